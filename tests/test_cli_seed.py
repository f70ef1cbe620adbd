"""The five frozen commands: the vectors, the article's transcript, its experiments and its crash, in real processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from eventlog.runtime.failpoints import CRASH_STATUS, FAILPOINTS
from tests.command_line import ROOT, CommandLine, Ended, HereCommandLine, edit

VECTORS: Final = ROOT / "tests" / "vectors" / "seed_cli.json"
CONTENT: Final = "approved technical brief"
KEYS: Final = {
    "action",
    "approval_hash",
    "approval_request_id",
    "args",
    "executed",
    "output",
    "proposal_hash",
    "request_id",
    "run_id",
    "status",
    "trace",
}
ZEROS: Final = "0" * 64


@pytest.fixture
def cli(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)


@pytest.fixture
def here(tmp_path: Path) -> HereCommandLine:
    return HereCommandLine(tmp_path)


def run_step(cli: CommandLine, step: dict[str, Any]) -> None:
    match step:
        case {"write": {"path": path, "text": text}}:
            (cli.folder / path).write_text(text, encoding="utf-8")
        case {"sqlite": {"db": db, "sql": sql}}:
            assert edit(cli.folder / db, sql) == 1
        case {"argv": argv, "stdout": stdout, "exit": status}:
            ended = cli(*argv)
            assert (ended.status, ended.text) == (status, stdout), step["name"]
            assert ended.err == b"" or not step["stderr_empty"], step["name"]
        case _:
            pytest.fail(f"a step of an unknown kind: {step}")


def test_every_step_of_the_vectors_prints_exactly_these_bytes(cli: CommandLine) -> None:
    for step in json.loads(VECTORS.read_text(encoding="utf-8")):
        run_step(cli, step)


def events(ended: Ended) -> list[str]:
    return [item["event"] for item in ended.json["trace"]]


def approved(cli: CommandLine, run_id: str = "run-1", output: str = "draft.txt", db: str = "runs.db") -> str:
    """Start and approve a run; return its hash."""
    started = cli("--db", db, "--output", output, "start", run_id, status=0).json
    digest: str = started["proposal_hash"]
    cli("--db", db, "approve", run_id, "--proposal-hash", digest, status=0)
    return digest


class TestTheArticle:
    def test_its_proposal_has_its_hash(self, cli: CommandLine) -> None:
        options = ("--db", "c12.db", "--output", "/tmp/c12-draft.txt")
        digest = "2bba1bb36ae552812b4b9e0d730249a3447adfc3ed100e0f4d92e3a8c28e7573"
        started = cli(*options, "start", "run-1", status=0).json
        assert (started["proposal_hash"], started["status"]) == (digest, "WAITING_FOR_USER")
        decided = cli(*options, "approve", "run-1", "--proposal-hash", digest, status=0).json
        assert (decided["approval_hash"], decided["status"]) == (digest, "APPROVED")

    def test_section_2_start_approve_resume_twice(self, cli: CommandLine) -> None:
        approved(cli)
        first = cli("--db", "runs.db", "--output", "draft.txt", "resume", "run-1", status=0)
        assert first.json["result"] == "executed"
        assert first.json.keys() == KEYS | {"result"}
        target = cli.folder / "draft.txt"
        assert target.read_bytes() == CONTENT.encode()
        before = target.stat()
        trace = cli("--db", "runs.db", "show-trace", "run-1", status=0)
        assert trace.json.keys() == KEYS
        assert events(trace) == [
            "checkpoint_saved",
            "proposal_recorded",
            "proposal_verified",
            "approval_recorded",
            "proposal_verified",
            "resume_started",
            "action_executed",
        ]
        again = cli("--db", "runs.db", "--output", "draft.txt", "resume", "run-1", status=0)
        assert again.json["result"] == "already_completed"
        assert events(again)[-1] == "action_replayed"
        assert (target.stat().st_mtime_ns, target.stat().st_ino) == (before.st_mtime_ns, before.st_ino)

    def test_experiment_1_another_request_is_refused(self, cli: CommandLine) -> None:
        options = ("--db", "exp1.db", "--output", "/tmp/c12-exp1.txt")
        digest = "af45d70539c0998f4e3071d23e5501ccd207fb1dd5fa1d3d758307d84b74a8b9"
        cli(*options, "start", "run-1", status=0)
        cli(*options, "approve", "run-1", "--proposal-hash", digest, status=0)
        assert edit(cli.folder / "exp1.db", "UPDATE runs SET request_id='approval:run-2' WHERE run_id='run-1'") == 1
        assert cli(*options, "resume", "run-1", status=2).json == {"error": "approval_request_mismatch"}
        # Experiment 3 goes on with the same database: the order of the checks looks at the output first.
        other = cli("--db", "exp1.db", "--output", "/tmp/c12-other.txt", "resume", "run-1", status=2)
        assert other.out == b'{"error": "output_mismatch"}\n'
        rejected = cli("--db", "exp1.db", "show-trace", "run-1", status=0).json["trace"][-2:]
        assert rejected == [
            {
                "event": "proposal_rejected",
                "phase": "resume",
                "reason": "approval_request_mismatch",
                "action": "write_draft",
                "current_request_id": "approval:run-2",
                "approved_request_id": "approval:run-1",
            },
            {
                "event": "proposal_rejected",
                "phase": "resume",
                "reason": "output_mismatch",
                "action": "write_draft",
                "current_output": "/tmp/c12-other.txt",
                "approved_output": "/tmp/c12-exp1.txt",
            },
        ]

    def test_experiment_2_other_arguments_with_a_matching_hash_are_refused(self, cli: CommandLine) -> None:
        options = ("--db", "exp2.db", "--output", "/tmp/c12-exp2.txt")
        digest = "bd3de4cee4ccf82fb98239c875d50dac6455907c76e67cd267949412d08cfe0c"
        forged = "f92f11517a438bc7384f1486dd4f98e8613dccb0cf760946cb3da118051108a0"
        cli(*options, "start", "run-1", status=0)
        cli(*options, "approve", "run-1", "--proposal-hash", digest, status=0)
        statement = "UPDATE runs SET args=?, proposal_hash=? WHERE run_id='run-1'"
        assert edit(cli.folder / "exp2.db", statement, '{"content":"unauthorized change"}', forged) == 1
        assert cli(*options, "resume", "run-1", status=2).json == {"error": "proposal_hash_mismatch"}
        item = cli("--db", "exp2.db", "show-trace", "run-1", status=0).json["trace"][-1]
        assert item == {
            "event": "proposal_rejected",
            "phase": "resume",
            "reason": "proposal_hash_mismatch",
            "action": "write_draft",
            "current_hash": forged,
            "stored_hash": forged,
            "approval_hash": digest,
        }

    def test_section_6_every_refusal_and_the_conflict(self, cli: CommandLine) -> None:
        options = ("--db", "runs.db", "--output", "draft.txt")
        digest = cli(*options, "start", "run-2", status=0).json["proposal_hash"]
        assert cli(*options, "resume", "run-2", status=2).json == {"error": "approval_required"}
        wrong = cli(*options, "approve", "run-2", "--proposal-hash", ZEROS, status=2)
        assert wrong.json == {"error": "proposal_hash_mismatch"}
        assert cli(*options, "reject", "run-2", "--proposal-hash", digest, status=0).json["status"] == "REJECTED"
        late = cli(*options, "approve", "run-2", "--proposal-hash", digest, status=2)
        assert late.json == {"error": "approval_not_pending"}
        assert cli(*options, "resume", "run-2", status=2).json == {"error": "approval_rejected"}
        (cli.folder / "draft.txt").write_text("different content\n", encoding="utf-8")
        approved(cli, "run-3")
        assert cli(*options, "resume", "run-3", status=2).json == {"error": "output_conflict"}
        assert (cli.folder / "draft.txt").read_text(encoding="utf-8") == "different content\n"


EXECUTED_AFTER: Final = {"intent.before_commit", "intent.after_commit", "effect.inside"}
LAST_RESULT: Final = {"result.after_commit": "already_completed"}


class TestTheCrashWindow:
    @pytest.mark.parametrize("failpoint", FAILPOINTS)
    def test_the_next_process_does_exactly_what_is_missing(self, cli: CommandLine, failpoint: str) -> None:
        approved(cli, output="out/draft.txt")
        crashed = cli("--db", "runs.db", "resume", "run-1", env={"EVENTLOG_FAILPOINT": failpoint})
        assert (crashed.status, crashed.out, crashed.err) == (CRASH_STATUS, b"", b"")
        target = cli.folder / "out" / "draft.txt"
        assert target.exists() == (failpoint not in EXECUTED_AFTER)
        before = target.stat() if target.exists() else None
        resumed = cli("--db", "runs.db", "resume", "run-1", status=0)
        assert resumed.json["result"] == ("executed" if before is None else LAST_RESULT.get(failpoint, "recovered"))
        after = target.stat()
        if before is not None:
            assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)
        assert target.read_bytes() == CONTENT.encode()
        assert [path.name for path in target.parent.iterdir()] == ["draft.txt"]
        verified = cli("--db", "runs.db", "verify", "--json", status=0).json
        assert {verified[name]["verdict"] for name in ("integrity", "order", "views")} == {"ok"}

    def test_an_unknown_failpoint_is_a_usage_error_and_nothing_happens(self, cli: CommandLine) -> None:
        wrong = cli("--db", "a.db", "--output", "x", "start", "r", env={"EVENTLOG_FAILPOINT": "nowhere"}, status=2)
        assert (wrong.out, b"nowhere" in wrong.err) == (b"", True)
        assert list(cli.folder.iterdir()) == []

    def test_a_living_holder_is_left_alone_and_the_other_is_told_to_try_again(self, cli: CommandLine) -> None:
        approved(cli)
        cli(
            "--db", "runs.db", "resume", "run-1", env={"EVENTLOG_FAILPOINT": "intent.after_commit"}, status=CRASH_STATUS
        )
        lock = next((cli.folder / "runs.db.owners").iterdir())
        import fcntl

        with lock.open("r+b") as held:  # what the crashed process held, held by a living one
            fcntl.flock(held, fcntl.LOCK_EX)
            assert cli("--db", "runs.db", "resume", "run-1", status=5).json == {"error": "run_conflict"}
        assert cli("--db", "runs.db", "resume", "run-1", status=0).json["result"] == "executed"
        assert "run_claimed" in events(cli("--db", "runs.db", "show-trace", "run-1", status=0))


class TestOptions:
    def test_they_stand_before_and_after_and_after_wins_over_before_over_the_environment(
        self, here: HereCommandLine
    ) -> None:
        env = {"EVENTLOG_DB": "env.db", "EVENTLOG_OUTPUT": "env.txt"}
        ended = here(
            "--db", "before.db", "--output", "before.txt", "start", "r", "--output", "after.txt", env=env, status=0
        )
        assert ended.json["output"] == "after.txt"
        assert here("start", "r", "--db", "after.db", env=env, status=0).json["output"] == "env.txt"
        assert here("--output", "b.txt", "start", "--db", "after2.db", "r", env=env, status=0).json["output"] == "b.txt"
        found = {path.name for path in here.folder.glob("*.db")}
        assert found == {"before.db", "after.db", "after2.db"}

    def test_resume_takes_the_frozen_target_unless_one_is_given_or_in_the_environment(
        self, here: HereCommandLine
    ) -> None:
        approved(here)
        wrong = here("--db", "runs.db", "resume", "run-1", env={"EVENTLOG_OUTPUT": "other.txt"}, status=2)
        assert wrong.json == {"error": "output_mismatch"}
        assert here("--db", "runs.db", "resume", "run-1", status=0).json["result"] == "executed"

    @pytest.mark.parametrize(
        "argv",
        [
            ("start", "r", "--output", "x"),
            ("--db", "a.db", "start", "r"),
            ("--db", "a.db", "--output", "x", "start"),
            ("--db", "a.db", "--output", "x", "start", "r", "--action", "other"),
            ("--db", "a.db", "approve", "r"),
            ("--db", "memory:", "--output", "x", "start", "r"),
            ("--db", "a.db", "--output", "x", "start", "r", "--args", "@missing.json"),
        ],
    )
    def test_a_usage_error_is_text_on_standard_error_and_touches_nothing(
        self, here: HereCommandLine, argv: tuple[str, ...]
    ) -> None:
        ended = here(*argv, status=2)
        assert ended.out == b""
        assert ended.err.decode().splitlines()[-1].startswith("Error: ")
        assert list(here.folder.iterdir()) == []

    def test_no_format_changes_the_five_commands(self, here: HereCommandLine) -> None:
        plain = here("--db", "a.db", "--output", "x", "start", "r", status=0).json
        for option in (("--format", "human"), ("--format", "jsonl"), ("--json",), ("-q",), ("--no-color",)):
            assert here(*option, "--db", "a.db", "show-trace", "r", status=0).json == plain
            assert here("--db", "a.db", "show-trace", "r", *option, status=0).json == plain

    def test_verbose_logs_to_standard_error_and_leaves_standard_output_as_it_is(self, cli: CommandLine) -> None:
        cli("--db", "a.db", "--output", "x", "start", "r", status=0)
        ended = cli("-v", "--db", "a.db", "resume", "r", status=2)
        assert ended.out == b'{"error": "approval_required"}\n'
        assert b"refused" in ended.err


class TestOtherProposals:
    def test_any_action_and_arguments_are_recorded(self, here: HereCommandLine) -> None:
        (here.folder / "args.json").write_text('{"n": 1.0}', encoding="utf-8")
        options = ("--db", "a.db", "--output", "t", "start")
        text = here(*options, "r1", "--action", "pay", "--args", '{"to": "草"}', status=0).json
        assert (text["action"], text["args"]) == ("pay", {"to": "草"})
        assert here(*options, "r2", "--action", "pay", "--args", "@args.json", status=0).json["args"] == {"n": 1}
        piped = here(*options, "r3", "--args", "-", stdin=b'{"content": "x"}', status=0).json
        assert (piped["action"], piped["args"]) == ("write_draft", {"content": "x"})

    @pytest.mark.parametrize(
        ("args", "code"),
        [
            ('{"a": 1, "a": 2}', "duplicate_key"),
            ('{"a": NaN}', "non_finite_number"),
            ('{"a": 9007199254740992}', "number_too_large"),
            ("[1]", "unsupported_type"),
            ("{", "invalid_json"),
            ('{"a": "\\ud800"}', "invalid_text"),
            ('{"a": ' + "[" * 200 + "]" * 200 + "}", "payload_too_deep"),
        ],
    )
    def test_what_is_not_exact_is_refused_and_no_file_is_made(
        self, here: HereCommandLine, args: str, code: str
    ) -> None:
        ended = here("--db", "a.db", "--output", "t", "start", "r", "--args", args, status=2)
        assert (ended.json, ended.err) == ({"error": code}, b"")
        assert list(here.folder.iterdir()) == []

    def test_an_action_that_is_not_here_is_refused_before_any_intent(self, here: HereCommandLine) -> None:
        started = here("--db", "a.db", "--output", "t", "start", "r", "--action", "pay", "--args", "{}", status=0).json
        here("--db", "a.db", "approve", "r", "--proposal-hash", started["proposal_hash"], status=0)
        assert here("--db", "a.db", "resume", "r", status=2).json == {"error": "unknown_action"}
        trace = here("--db", "a.db", "show-trace", "r", status=0).json["trace"]
        assert trace[-1] == {"event": "resume_rejected", "reason": "unknown_action", "status": "APPROVED"}

    def test_long_arguments_and_contents_are_cut_in_the_trace_and_whole_in_the_log(self, here: HereCommandLine) -> None:
        content = "長" * 1000
        args = json.dumps({"content": content})
        started = here("--db", "a.db", "--output", "t", "start", "r", "--args", args, status=0).json
        here("--db", "a.db", "approve", "r", "--proposal-hash", ZEROS, status=2)
        here("--db", "a.db", "approve", "r", "--proposal-hash", started["proposal_hash"], status=0)
        (here.folder / "t").write_text("x" * 1000, encoding="utf-8")
        here("--db", "a.db", "resume", "r", status=2)
        shown = here("--db", "a.db", "show-trace", "r", status=0).json
        rejected = next(item for item in shown["trace"] if item["event"] == "proposal_rejected")
        assert rejected["args"] == ('{"content": "' + content)[:200]
        conflict = shown["trace"][-1]
        assert (conflict["existing_content"], conflict["expected_content"]) == ("x" * 200, content[:200])
        assert shown["args"] == {"content": content}


class TestHostileInput:
    def test_a_log_that_does_not_exist_has_no_runs_and_is_not_made(self, here: HereCommandLine) -> None:
        for command in (
            ("resume",),
            ("show-trace",),
            ("approve", "--proposal-hash", ZEROS),
            ("reject", "--proposal-hash", ZEROS),
        ):
            ended = here("--db", "missing.db", *command, "run-9", status=2)
            assert (ended.out, ended.err) == (b'{"error": "unknown_run:run-9"}\n', b"")
        assert list(here.folder.iterdir()) == []

    @pytest.mark.parametrize("argument", [b"run-\xff", b"\xed\xa0\x80"])
    def test_arguments_that_are_not_utf_8_are_a_coded_error(self, here: HereCommandLine, argument: bytes) -> None:
        for words in (("start", argument), ("start", "r", "--output", argument), ("start", "r", "--db", argument)):
            ended = here("--db", "a.db", "--output", "t", *words, status=2)
            assert (ended.out, ended.err) == (b'{"error": "invalid_text"}\n', b"")
        assert list(here.folder.iterdir()) == []

    @pytest.mark.parametrize("run_id", ["", " ", "a\nb", "a\u202eb", "\u200b", "x" * 501, "a\x1b[31m"])
    def test_a_run_id_that_people_cannot_compare_is_refused_before_a_file_is_made(
        self, here: HereCommandLine, run_id: str
    ) -> None:
        ended = here("--db", "a.db", "--output", "t", "start", run_id, status=2)
        assert (ended.json, ended.err) == ({"error": "invalid_id"}, b"")
        assert list(here.folder.iterdir()) == []

    @pytest.mark.parametrize(
        "run_id", ["'; DROP TABLE runs; --", "../../etc/passwd", "運行-1", "[red]x[/red]", "-x", "a:b"]
    )
    def test_any_other_run_id_is_just_a_name(self, here: HereCommandLine, run_id: str) -> None:
        options = ("--db", "a.db", "--output", "t")
        assert here(*options, "start", "--", run_id, status=0).json["run_id"] == run_id
        assert here(*options, "start", "--", run_id, status=2).json == {"error": f"run_exists:{run_id}"}

    def test_the_bytes_are_utf_8_whatever_the_locale(self, cli: CommandLine) -> None:
        env = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
        ended = cli("--db", "a.db", "--output", "草稿.txt", "start", "運行", env=env, status=0)
        assert "運行".encode() in ended.out

    def test_a_foreign_database_is_refused_and_left_untouched(self, here: HereCommandLine) -> None:
        path = here.folder / "other.db"
        edit(path, "CREATE TABLE t (x)")
        before = path.read_bytes()
        assert here("--db", "other.db", "--output", "t", "start", "r", status=2).json == {"error": "store_not_eventlog"}
        assert path.read_bytes() == before

    def test_damage_under_a_run_ends_with_3_and_other_runs_stay_usable(self, here: HereCommandLine) -> None:
        for run_id in ("r1", "r2"):
            here("--db", "a.db", "--output", "t", "start", run_id, status=0)
        edit(here.folder / "a.db", "DROP TRIGGER events_update")
        assert (
            edit(here.folder / "a.db", "UPDATE events SET recorded_at_us = recorded_at_us + 1 WHERE position = 1") == 1
        )
        damaged = here("--db", "a.db", "show-trace", "r1", status=3)
        assert (damaged.json, damaged.err) == ({"error": "log_corrupt"}, b"")
        assert here("--db", "a.db", "show-trace", "r2", status=0).json["run_id"] == "r2"
