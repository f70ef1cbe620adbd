"""The command line beyond the frozen five: options, formats, exit statuses, hostile text, terminals and pipes."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

import eventlog
from eventlog import Expect, NewEvent
from eventlog.cli import main
from eventlog.cli.app import SECTIONS
from eventlog.cli.failures import exit_status, label_of
from eventlog.cli.kept_views import KEPT
from eventlog.cli.text import escaped_json, is_hidden, visible
from eventlog.errors import (
    CODES,
    CommitOutcomeUnknown,
    EventLogError,
    LogCorrupt,
    Refused,
    RunConflict,
    StoreBusy,
    StoreUnavailable,
)
from eventlog.stores import SqliteLog
from tests.command_line import CommandLine, Ended, HereCommandLine, NobodyCommandLine, environment

HIDDEN: Final = "a\u202eb\u200b\x1b[31mc\u2028\x00\ufe0f\U000e0041\u3164"
BARE: Final = re.compile(r"[\x00-\x09\x0b-\x1f\x7f\u202a-\u202e\u200b-\u200f\u2028\u2029\ufe0f\u3164\U000e0041]")
COMMANDS: Final = [name for section in SECTIONS.values() for name in section]


@pytest.fixture
def here(tmp_path: Path) -> HereCommandLine:
    return HereCommandLine(tmp_path, "--db", "a.db")


@pytest.fixture
def runs(here: HereCommandLine) -> HereCommandLine:
    """A log with two runs, positions 1 to 4."""
    for run_id, output in (("run-1", "one.txt"), ("運行-2", "草稿.txt")):
        here("start", run_id, "--output", output, status=0)
    return here


def append(here: CommandLine, stream: str, *events: dict[str, Any], expect: str = "any") -> Any:
    lines = "".join(json.dumps(event) + "\n" for event in events)
    return here("events", "append", stream, "--from", "-", "--expect", expect, stdin=lines.encode(), status=0).json


class TestHelp:
    def test_it_answers_without_loading_what_it_does_not_need(self, tmp_path: Path) -> None:
        program = "import sys; from eventlog.cli.app import run; run(['--help']); print(sorted(sys.modules))"
        ended = subprocess.run(
            [sys.executable, "-c", program], env=environment(), cwd=tmp_path, capture_output=True, text=True, check=True
        )
        loaded = set(eval(ended.stdout.splitlines()[-1]))
        assert "click" in loaded
        assert loaded.isdisjoint(
            {"rich", "aiosqlite", "structlog", "sqlite3", "asyncio", "msgspec", "rfc8785", "logging"}
        )

    def test_its_time_is_printed(self, tmp_path: Path) -> None:
        command = [sys.executable, "-m", "eventlog", "--help"]
        times = []
        for _ in range(11):
            began = time.perf_counter()
            subprocess.run(command, cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL, check=True)
            times.append((time.perf_counter() - began) * 1000)
        print(f"eventlog --help: median {statistics.median(times[1:]):.0f} ms of {len(times) - 1} warm starts")

    @pytest.mark.parametrize("name", COMMANDS)
    def test_every_command_explains_itself(self, here: HereCommandLine, name: str) -> None:
        ended = here(name, "--help", status=0)
        assert ended.text.startswith(f"Usage: eventlog {name}")
        assert "--db" in ended.text
        assert here("--help", status=0).text.count(f"\n  {name} ") == 1

    def test_help_says_where_output_is_looked_at(self, here: HereCommandLine) -> None:
        for name in ("start", "approve", "reject", "resume", "show-trace"):
            text = " ".join(here(name, "--help", status=0).text.split())
            is_said = "--output TARGET Accepted for symmetry; only start and resume look at it." in text
            assert is_said == (name not in ("start", "resume")), name

    def test_help_promises_no_more_than_is_true(self, here: HereCommandLine) -> None:
        for name in ("verify", "doctor"):
            text = " ".join(here(name, "--help", status=0).text.split())
            assert "changes no data; the side files of SQLite and of the lock may appear" in text

    def test_a_command_that_does_not_exist_is_a_usage_error(self, here: HereCommandLine) -> None:
        ended = here("fly", status=2)
        assert (ended.out, "No such command 'fly'" in ended.error) == (b"", True)

    @pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
    def test_a_shell_gets_its_completion(self, here: HereCommandLine, shell: str) -> None:
        assert "_EVENTLOG_COMPLETE" in here("completion", shell, status=0).text

    def test_completion_knows_commands_and_their_commands(self, tmp_path: Path) -> None:
        for words, last, expected in (("eventlog ap", 1, "approve"), ("eventlog runs ", 2, "show")):
            env = {"_EVENTLOG_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(last)}
            assert f"plain,{expected}" in CommandLine(tmp_path)(env=env, status=0).text.splitlines()

    def test_a_variable_that_asks_for_no_completion_is_named_and_not_silently_an_end(self, tmp_path: Path) -> None:
        for instruction in ("junk", "bash_fly", "\x1b[31m_complete"):
            ended = CommandLine(tmp_path)("resume", "a", env={"_EVENTLOG_COMPLETE": instruction}, status=1)
            assert (ended.out, ended.error.count("\n")) == (b"", 1)
            assert "_EVENTLOG_COMPLETE is set" in ended.error
            assert ended.error.endswith("unset it\n")


class TestOptions:
    def test_they_stand_anywhere(self, runs: HereCommandLine) -> None:
        plain = HereCommandLine(runs.folder)
        expected = runs("runs", "list", "--json", status=0).out
        for words in (
            ("--db", "a.db", "--json", "runs", "list"),
            ("runs", "--db", "a.db", "list", "--json"),
            ("--format", "human", "runs", "--json", "list", "--db", "a.db"),
            ("--db", "wrong.db", "runs", "list", "--db", "a.db", "--json"),
        ):
            assert plain(*words, status=0).out == expected, words
        assert plain("runs", "list", "--json", env={"EVENTLOG_DB": "a.db"}, status=0).out == expected

    def test_without_a_log_it_is_a_usage_error(self, tmp_path: Path) -> None:
        ended = HereCommandLine(tmp_path)("runs", "list", status=2)
        assert (ended.out, "Missing option '--db'" in ended.error) == (b"", True)

    def test_a_program_that_reads_json_gets_a_document_for_a_usage_error_too(self, tmp_path: Path) -> None:
        document = HereCommandLine(tmp_path)("--json", "runs", "list", status=2).json
        assert document.keys() == {"error", "message", "hint", "details"}
        assert document["error"] == "invalid_argument"

    def test_quiet_leaves_out_remarks_and_not_results(self, runs: HereCommandLine) -> None:
        loud, quiet = runs("verify", status=0), runs("verify", "-q", status=0)
        assert loud.out == quiet.out != b""
        assert (loud.err[:7], quiet.err) == (b"checked", b"")

    def test_verbose_shows_the_log_lines_and_the_message_of_a_refusal(self, tmp_path: Path) -> None:
        cli = CommandLine(tmp_path, "--db", "a.db")
        cli("start", "r", "--output", "t", status=0)
        brief = cli("runs", "show", "nope", status=2).error
        assert brief.startswith("error[unknown_run]: there is no run 'nope'\n")
        assert cli("runs", "show", "nope", "-v", status=2).error == brief
        for words in (("runs", "show", "nope", "--json"), ("show-trace", "nope")):
            quiet, verbose = cli(*words, status=2), cli(*words, "-v", status=2)
            assert (verbose.out, quiet.err, verbose.error) == (quiet.out, b"", brief), words
        assert "opened" not in cli("runs", "list", "-v", status=0).error
        assert "opened" in cli("runs", "list", "-vv", status=0).error

    def test_limits_are_said(self, here: HereCommandLine) -> None:
        for number in range(4):
            here("start", f"r{number}", "--output", "t", status=0)
        for words in (("runs", "list"), ("approvals", "list")):
            some = here(*words, "--limit", "3", "--json", status=0)
            assert (some.json["shown"], some.json["total"], len(some.json[words[0]])) == (3, 4, 3)
            assert some.error == "showing 3 of 4 (--all)\n"
            assert here(*words, "--limit", "3", "--all", status=0).err == b""

    @pytest.mark.parametrize("limit", [2**63 - 1, 2**63, 10**20], ids=str)
    def test_a_limit_beyond_the_integers_of_the_database_is_none(self, here: HereCommandLine, limit: int) -> None:
        here("start", "r", "--output", "t", status=0)
        for words in (("runs", "list"), ("approvals", "list")):
            assert here(*words, "--limit", str(limit), "--json", status=0).json["shown"] == 1

    def test_arguments_that_are_not_utf_8_are_a_coded_error(self, here: HereCommandLine) -> None:
        for words in (("runs", "show", b"\xff"), ("tail", "--type", b"\xff"), ("--db", b"\xff.db", "runs", "list")):
            assert here(*words, "--json", status=2).json["error"] == "invalid_text"
        assert here("runs", "show", b"\xff", status=2).error.startswith("error[invalid_text]: ")


class TestExitStatuses:
    @pytest.mark.parametrize(
        ("error", "status"),
        [
            (Refused("approval_required", "x"), 2),
            (RunConflict("r", "x"), 5),
            (StoreBusy("x"), 5),
            (CommitOutcomeUnknown(["00"], "x"), 5),
            (LogCorrupt("leaf_mismatch", "x"), 3),
            (StoreUnavailable("store_full", "x"), 1),
            (StoreUnavailable("store_not_found", "x"), 2),
            (StoreUnavailable("schema_too_new", "x"), 2),
            (EventLogError("view_failed", "x"), 1),
        ],
    )
    def test_each_kind_of_error_has_its_own(self, error: EventLogError, status: int) -> None:
        assert exit_status(error) == status

    def test_every_code_is_explained_and_every_label_resolves(self, here: HereCommandLine) -> None:
        for code in CODES:
            assert here("explain", code, "--json", status=0).json == {
                "code": code,
                "meaning": CODES[code].meaning,
                "hint": CODES[code].hint,
            }
            label = label_of(Refused(code, "x", subject="run:1"))
            assert here("explain", label, "--json", status=0).json["code"] == code
        assert {row["code"] for row in here("explain", "--json", status=0).json["codes"]} == set(CODES)

    def test_an_unknown_code_is_answered_with_the_nearest(self, here: HereCommandLine) -> None:
        assert "Did you mean unknown_run?" in here("explain", "unknwon_run", status=2).error

    def test_errors_are_text_for_people_and_one_document_for_programs(self, runs: HereCommandLine) -> None:
        ended = runs("runs", "show", "nope", status=2)
        assert ended.out == b""
        assert (
            ended.error
            == "error[unknown_run]: there is no run 'nope'\nhint: List the runs with `eventlog runs list`.\n"
        )
        for option in ("--json", "--format=jsonl"):
            document = runs("runs", "show", "nope", option, status=2)
            assert document.err == b""
            assert document.json == {
                "error": "unknown_run:nope",
                "message": "there is no run 'nope'",
                "hint": CODES["unknown_run"].hint,
                "details": {"run_id": "nope"},
            }

    def test_a_fault_of_the_program_is_unexpected_and_shows_no_traceback(
        self, runs: HereCommandLine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("eventlog.cli.seed.trace_of", lambda events: 1 // 0)
        seed = runs("show-trace", "run-1", status=1)
        assert (seed.out, seed.err) == (b'{"error": "unexpected"}\n', b"")
        other = runs("runs", "show", "run-1", status=1)
        assert other.error.startswith("error[unexpected]: ZeroDivisionError")
        assert "Traceback" not in other.error
        for words in (("show-trace", "run-1"), ("runs", "show", "run-1"), ("runs", "show", "run-1", "--json")):
            told = runs(*words, "-v", status=1).error
            assert (told.count("Traceback"), told.count("ZeroDivisionError: ")) == (1, 2), words

    def test_a_log_that_somebody_else_locks_is_busy(
        self, runs: HereCommandLine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(eventlog, "open", partial(eventlog.open, busy_timeout_s=0.1))
        with (runs.folder / "a.db.lock").open("r+b") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            assert runs("runs", "list", "--json", status=5).json["error"] == "store_busy"
            assert runs("show-trace", "run-1", status=5).out == b'{"error": "store_busy"}\n'


class TestFailpoints:
    """EVENTLOG_FAILPOINT=NAME[:COUNT][=kill] ends a real process where a crash would."""

    @pytest.fixture
    def cli(self, runs: HereCommandLine) -> CommandLine:
        for run_id in ("run-1", "運行-2"):
            digest = runs("show-trace", run_id, status=0).json["proposal_hash"]
            runs("approve", run_id, "--proposal-hash", digest, status=0)
        return CommandLine(runs.folder, "--db", "a.db")

    @pytest.mark.parametrize(
        "spec",
        [
            "nowhere",
            "EFFECT.AFTER",
            " effect.after",
            "effect.after\n",
            "effect.after:",
            "effect.after:0",
            "effect.after:-1",
            "effect.after:two",
            "effect.after:9999999",
            "effect.after:1:2",
            "effect.after=",
            "effect.after=stop",
            "effect.after=kill:2",
            "effect.after\x1b[31m",
        ],
    )
    def test_a_spec_that_names_no_failpoint_is_a_usage_error_and_nothing_is_begun(
        self, cli: CommandLine, spec: str
    ) -> None:
        here = HereCommandLine(cli.folder, "--db", "a.db")
        before = here("tail", status=0).out
        ended = here("resume", "run-1", env={"EVENTLOG_FAILPOINT": spec}, status=2)
        assert (ended.out, "with one of intent.before_commit, " in ended.error) == (b"", True)
        assert not BARE.search(ended.error)
        assert here("tail", status=0).out == before
        assert not (cli.folder / "one.txt").exists()

    @pytest.mark.parametrize(
        ("spec", "status"),
        [
            ("effect.after", 91),
            ("effect.after:1", 91),
            ("effect.after=kill", -signal.SIGKILL),
            ("effect.after:1=kill", -signal.SIGKILL),
        ],
    )
    def test_the_process_ends_there_and_the_next_recovers(self, cli: CommandLine, spec: str, status: int) -> None:
        ended = cli("resume", "run-1", env={"EVENTLOG_FAILPOINT": spec}, status=status)
        assert (ended.out, ended.err) == (b"", b"")
        assert (cli.folder / "one.txt").exists()
        assert cli("resume", "run-1", status=0).json["result"] == "recovered"

    @pytest.mark.parametrize("spec", ["effect.after:2", "effect.after:2=kill"])
    def test_a_point_that_is_passed_once_only_ends_nothing_at_the_second_time(
        self, cli: CommandLine, spec: str
    ) -> None:
        assert cli("resume", "run-1", env={"EVENTLOG_FAILPOINT": spec}, status=0).json["result"] == "executed"


class TestRuns:
    def test_list_shows_what_the_view_holds(self, runs: HereCommandLine) -> None:
        document = runs("runs", "list", "--json", status=0).json
        assert [row["run_id"] for row in document["runs"]] == ["run-1", "運行-2"]
        assert runs("runs", "list", status=0).text.splitlines()[0].split("\t") == [
            "run-1",
            "WAITING_FOR_USER",
            "write_draft",
            "one.txt",
            "-",
            "approval of write_draft",
        ]
        assert "version" not in document["runs"][0]  # of the row, which is not always the run's
        lines = runs("runs", "list", "--format", "jsonl", status=0).text.splitlines()
        assert [json.loads(line)["output"] for line in lines] == ["one.txt", "草稿.txt"]

    def test_show_is_the_paused_state_with_everything_that_is_frozen(self, runs: HereCommandLine) -> None:
        state = runs("runs", "show", "run-1", "--json", status=0).json
        assert {key: state[key] for key in ("state_version", "committed", "pending_writes", "waiting", "intent")} == {
            "state_version": 1,
            "committed": {},
            "pending_writes": [],
            "waiting": {"type": "approval", "node_id": "write_draft", "approval_id": "approval:run-1"},
            "intent": None,
        }
        seed = runs("show-trace", "run-1", status=0).json
        assert {key: state[key] for key in seed} == seed

    def test_show_says_from_which_folder_a_relative_output_is_taken(self, runs: HereCommandLine) -> None:
        folder = os.path.realpath(runs.folder)
        for words in (("runs", "show"), ("approvals", "show")):
            shown = runs(*words, "run-1", "--json", status=0).json
            assert (shown["output"], shown["folder"]) == ("one.txt", folder)
            assert f"folder\t{folder}\n" in runs(*words, "run-1", "--format", "plain", status=0).text

    def test_show_folds_up_to_a_version(self, runs: HereCommandLine) -> None:
        digest = runs("show-trace", "run-1", status=0).json["proposal_hash"]
        runs("approve", "run-1", "--proposal-hash", digest, status=0)
        states = [
            runs("runs", "show", "run-1", "--at-version", str(version), "--json", status=0).json
            for version in (1, 2, 4)
        ]
        assert [(state["version"], state["status"], state["proposal_hash"]) for state in states] == [
            (1, "WAITING_FOR_USER", None),
            (2, "WAITING_FOR_USER", digest),
            (4, "APPROVED", digest),
        ]
        assert (
            runs("runs", "show", "run-1", "--at-version", "5", "--json", status=2).json["error"] == "invalid_argument"
        )

    def test_hashes_are_whole_in_every_format(self, runs: HereCommandLine) -> None:
        digest = runs("show-trace", "run-1", status=0).json["proposal_hash"]
        for form in ("human", "plain", "json", "jsonl"):
            for words in (("runs", "show", "run-1"), ("approvals", "show", "run-1"), ("tail",), ("approvals", "list")):
                text = runs(*words, "--format", form, status=0).text
                assert digest in text, (words, form)

    def test_a_narrow_terminal_folds_texts_and_never_an_id_or_a_hash(self, here: HereCommandLine) -> None:
        run_id = "the-run-with-the-long-name-" + "運行" * 20
        digest = here("start", run_id, "--output", "out/" * 50, status=0).json["proposal_hash"]
        for columns in ("1", "40", "100", "300"):
            env = {"COLUMNS": columns}
            lines = here("approvals", "list", "--format", "human", env=env, status=0).text.splitlines()
            for whole in (run_id, f"approval:{run_id}", "write_draft", digest):
                assert any(whole in line for line in lines), (columns, whole)
            assert "…" not in "".join(lines)
            text = here("runs", "list", "--format", "human", env=env, status=0).text
            assert run_id in text and "WAITING_FOR_USER" in text
            assert "".join(text.split()).count("out/") >= 45  # folded, nowhere cut

    def test_show_says_who_decided_when_and_why(self, runs: HereCommandLine) -> None:
        unsaid = {"decided_by": None, "decided_at": None, "decision_reason": None}
        shows = (("runs", "show"), ("approvals", "show"))
        for words in shows:
            assert unsaid.items() <= runs(*words, "run-1", "--json", status=0).json.items()
        for run_id, command, reason in (("run-1", "approve", ("--reason", "read twice, 讀")), ("運行-2", "reject", ())):
            digest = runs("show-trace", run_id, status=0).json["proposal_hash"]
            said = runs(command, run_id, "--proposal-hash", digest, *reason, status=0).json
            assert said == runs("show-trace", run_id, status=0).json
            recorded = next(
                event
                for event in runs("tail", run_id, "--json", status=0).json["events"]
                if event["type"] == "approval_recorded"
            )
            assert recorded["data"].get("reason") == (reason[-1] if reason else None)
            for words in shows:
                shown = runs(*words, run_id, "--json", status=0).json
                assert (shown["decided_by"], shown["decided_at"], shown["decision_reason"]) == (
                    f"os:{os.getuid()}",
                    recorded["recorded_at"],
                    recorded["data"].get("reason"),
                )
        assert unsaid.items() <= runs("runs", "show", "run-1", "--at-version", "2", "--json", status=0).json.items()
        assert "decision_reason\tread twice, 讀\n" in runs("approvals", "show", "run-1", status=0).text

    def test_a_reason_that_cannot_be_recorded_is_refused(self, runs: HereCommandLine) -> None:
        digest = runs("show-trace", "run-1", status=0).json["proposal_hash"]
        words = ("approve", "run-1", "--proposal-hash", digest, "--reason")
        assert runs(*words, "x" * 100_000, status=2).json == {"error": "payload_too_large"}
        assert runs(*words, b"\xff", status=2).json == {"error": "invalid_text"}
        assert runs("show-trace", "run-1", status=0).json["status"] == "WAITING_FOR_USER"


class TestApprovals:
    def test_show_never_cuts_and_ends_with_the_exact_command(self, here: HereCommandLine) -> None:
        args = {"content": "x" * 5000, "nested": {"a": [1, 2]}}
        digest = here("start", "-r", "--output", "t", "--args", json.dumps(args), status=2)  # it looks like an option
        digest = here("start", "--output", "t", "--args", json.dumps(args), "--", "-r", status=0).json["proposal_hash"]
        shown = here("approvals", "show", "--", "-r", status=0).text
        assert "x" * 5000 in shown
        words = shown.splitlines()[-1].removeprefix("approve with:  ").split()
        assert words == ["eventlog", "--db", "a.db", "approve", "--proposal-hash", digest, "--", "-r"]
        assert HereCommandLine(here.folder)(*words[1:], status=0).json["status"] == "APPROVED"
        assert here("approvals", "show", "--json", "--", "-r", status=0).json["approve_with"] is None
        assert here("approvals", "list", "--json", status=0).json["total"] == 0

    def test_list_shows_only_what_waits(self, runs: HereCommandLine) -> None:
        digest = runs("show-trace", "run-1", status=0).json["proposal_hash"]
        runs("reject", "run-1", "--proposal-hash", digest, status=0)
        assert [row["run_id"] for row in runs("approvals", "list", "--json", status=0).json["approvals"]] == ["運行-2"]


class TestEvents:
    def test_what_is_appended_is_shown_as_it_was_given(self, here: HereCommandLine) -> None:
        body = (
            '{"type": "noted", "data": {"ü": [1, 2.5, null, 123456789012345678901234567890]}, "event_id": "%s"}\n'
            % ("0a" * 16)
        )
        words = ("events", "append", "notes", "--from", "-", "--expect")
        first = here(*words, "0", stdin=body.encode(), status=0).json
        assert (first["stream"], first["version"], first["first_position"], first["deduplicated"]) == (
            "notes",
            1,
            1,
            False,
        )
        again = here(*words, "0", stdin=body.encode(), status=0).json
        assert again == {**first, "deduplicated": True}
        shown = here("events", "show", "1", "--json", status=0).json
        assert shown["data"] == {"ü": [1, 2.5, None, 123456789012345678901234567890]}
        assert (shown["event_id"], shown["actor"], shown["leaf"]) == ("0a" * 16, f"os:{os.getuid()}", first["leaf"])
        raw = here("events", "show", "1", "--raw", status=0).out
        assert raw == '{"ü":[1,2.5,null,123456789012345678901234567890]}'.encode()

    def test_the_expectation_is_kept(self, here: HereCommandLine) -> None:
        line = b'{"type": "noted", "data": 1}\n'
        words = ("events", "append", "notes", "--json", "--from", "-", "--expect")
        assert here(*words, "exists", stdin=line, status=2).json["error"] == "store_not_found"
        assert here(*words, "no-stream", stdin=line, status=0).json["version"] == 1
        assert here(*words, "5", stdin=line, status=5).json["error"] == "version_conflict"
        assert here(*words, "no-stream", stdin=line, status=5).json["error"] == "version_conflict"
        assert here(*words, "1", stdin=line + b"\n" + line, status=0).json["version"] == 3
        assert "is no version" in here(*words, "-1", stdin=line, status=2).error

    @pytest.mark.parametrize(
        ("line", "code"),
        [
            (b'{"type": "noted"}', "invalid_event"),
            (b'{"type": "noted", "data": 1, "more": 2}', "invalid_event"),
            (b"[]", "invalid_event"),
            (b"nonsense", "invalid_json"),
            (b'{"type": "noted", "data": 1, "data": 2}', "duplicate_key"),
            (b'{"type": "noted", "data": NaN}', "non_finite_number"),
            (b'{"type": "noted", "data": "\\ud800"}', "invalid_text"),
            (b'{"type": "noted", "data": "\xff"}', "invalid_text"),
            (b'{"type": 7, "data": 1}', "invalid_id"),
            (b'{"type": "noted", "data": 1, "event_id": "zz"}', "invalid_id"),
            (b'{"type": "noted", "data": 1, "event_id": 5}', "invalid_id"),
        ],
    )
    def test_all_lines_are_exact_or_nothing_is_written(self, here: HereCommandLine, line: bytes, code: str) -> None:
        good = b'{"type": "noted", "data": 1}\n'
        words = ("events", "append", "notes", "--from", "-", "--expect", "any", "--json")
        assert here(*words, stdin=good + line + b"\n" + good, status=2).json["error"] == code
        assert not (here.folder / "a.db").exists() or here("db", "info", "--json", status=0).json["head"] == 0

    def test_the_engines_streams_are_not_for_everybody(self, here: HereCommandLine) -> None:
        line = b'{"type": "approval_recorded", "data": 1}\n'
        for stream in ("run:run-1", "$log"):
            words = ("events", "append", stream, "--from", "-", "--expect", "any", "--json")
            assert here(*words, stdin=line, status=2).json["error"] == "reserved_stream"

    @pytest.mark.parametrize("position", ["5", str(2**63), str(2**64)])
    def test_a_position_that_is_not_there_yet_is_an_error_that_names_the_argument(
        self, runs: HereCommandLine, position: str
    ) -> None:
        for words, name in (
            (("events", "show", position), "POS"),
            (("tail", "--after", position), "--after"),
            (("tail", "run-1", "--after", position), "--after"),
            (("tail", "-f", "--after", position), "--after"),
        ):
            told = runs(*words, status=2).error.splitlines()[0]
            assert told == f"error[invalid_argument]: {name} is {position}, but the log ends at position 4"

    def test_tail_filters_by_run_position_and_type(self, runs: HereCommandLine) -> None:
        def positions(*words: str) -> list[int]:
            return [int(line.split("\t")[0]) for line in runs("tail", *words, status=0).text.splitlines()]

        assert positions() == [1, 2, 3, 4]
        assert positions("運行-2") == [3, 4]
        assert positions("--after", "1", "--type", "proposal_*") == [2, 4]
        assert positions("run-1", "--after", "1") == [2]
        assert [event["position"] for event in runs("tail", "--json", status=0).json["events"]] == [1, 2, 3, 4]
        assert runs("tail", "--after", "4", "--json", status=0).json == {"events": []}
        assert runs("tail", "nope", "--format", "jsonl", status=2).json["error"] == "unknown_run:nope"
        fields = runs("tail", "run-1", status=0).text.splitlines()[0].split("\t")
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", fields[1])
        assert fields[2:] == ["run:run-1", "1", "checkpoint_saved", "status=WAITING_FOR_USER"]

    def test_what_follows_is_no_document(self, runs: HereCommandLine) -> None:
        assert "jsonl" in runs("tail", "-f", "--json", status=2).error

    def test_tail_f_of_a_log_that_is_replaced_ends_with_a_coded_error(self, runs: HereCommandLine) -> None:
        runs("db", "backup", "other.db", status=0)
        with subprocess.Popen(
            runs.argv("tail", "-f"),
            cwd=runs.folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None and process.stderr is not None
            for _ in range(4):
                process.stdout.readline()
            os.replace(runs.folder / "other.db", runs.folder / "a.db")
            assert process.stderr.readline().startswith(b"error[store_identity_changed]: ")
            rest = process.stderr.read()
            assert (process.wait(timeout=10), b"Traceback" in rest) == (1, False)

    def test_a_subscription_that_loses_its_log_is_a_document_for_a_program(
        self, runs: HereCommandLine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def lost(*_: object, **__: object) -> AsyncIterator[object]:
            raise StoreUnavailable("store_identity_changed", "another log stands here now")
            yield

        monkeypatch.setattr(SqliteLog, "subscribe", lost)
        ended = runs("tail", "-f", "--format", "jsonl", status=1)
        assert (ended.json["error"], ended.err) == ("store_identity_changed", b"")

    def test_tail_f_prints_events_of_other_processes_as_they_come_and_ends_with_ctrl_c(
        self, runs: HereCommandLine
    ) -> None:
        process = subprocess.Popen(
            runs.argv("tail", "-f", "--after", "4", "--format", "jsonl"),
            cwd=runs.folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        append(runs, "notes", {"type": "noted", "data": 1})
        assert json.loads(process.stdout.readline())["position"] == 5
        append(runs, "notes", {"type": "noted", "data": 2})
        assert json.loads(process.stdout.readline())["position"] == 6
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=10)
        assert (process.returncode, error) == (130, b"")


class TestPipesAndTerminals:
    def test_a_reader_that_leaves_ends_the_writer_without_a_traceback(self, here: HereCommandLine) -> None:
        append(here, "notes", *({"type": "noted", "data": "x" * 1000} for _ in range(500)))
        with subprocess.Popen(
            here.argv("tail"), cwd=here.folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None and process.stderr is not None
            process.stdout.readline()
            process.stdout.close()
            assert (process.stderr.read(), process.wait(timeout=10)) == (b"", 141)

    @pytest.mark.parametrize(
        ("redirection", "why"), [("> /dev/full", "No space left on device"), (">&-", "it is closed")]
    )
    @pytest.mark.parametrize(
        "words",
        [
            ("--help",),
            ("--version",),
            ("runs", "list", "--help"),
            ("show-trace", "run-1"),
            ("runs", "list"),
            ("runs", "list", "--json"),
            ("runs", "show", "nope", "--json"),
            ("tail",),
            ("events", "show", "1", "--raw"),
            ("completion", "bash"),
        ],
    )
    def test_a_standard_output_that_takes_nothing_is_said_once_and_is_no_success(
        self, runs: HereCommandLine, words: tuple[str, ...], redirection: str, why: str
    ) -> None:
        ended = redirected(runs, redirection, *words)
        assert (ended.status, ended.error) == (1, f"error: cannot write to standard output: {why}\n")

    def test_without_a_standard_output_nothing_is_begun(self, runs: HereCommandLine) -> None:
        assert redirected(runs, ">&-", "start", "run-3", "--output", "x").status == 1
        assert redirected(runs, ">&- 2>&-", "start", "run-3", "--output", "x").status == 1
        assert runs("runs", "list", "--json", status=0).json["total"] == 2

    @pytest.mark.parametrize(
        "words", [("--help",), ("--version",), ("show-trace", "run-1"), ("runs", "show", "nope", "--json"), ("verify",)]
    )
    def test_a_reader_that_was_never_there_is_a_broken_pipe(
        self, runs: HereCommandLine, words: tuple[str, ...]
    ) -> None:
        reading, writing = os.pipe()
        os.close(reading)
        with os.fdopen(writing, "wb") as out:
            ended = subprocess.run(
                runs.argv(*words), cwd=runs.folder, env=environment(), stdout=out, stderr=subprocess.PIPE, check=False
            )
        assert (ended.returncode, ended.stderr) == (141, b"")

    @pytest.mark.parametrize(
        ("redirection", "why"),
        [("<&-", "standard input is closed"), ("0> sink", "cannot read standard input: Bad file descriptor")],
    )
    def test_a_standard_input_that_gives_nothing_is_a_coded_error(
        self, runs: HereCommandLine, redirection: str, why: str
    ) -> None:
        start = redirected(runs, redirection, "start", "run-3", "--output", "x", "--args", "-")
        assert (start.status, start.out, start.err) == (2, b'{"error": "invalid_argument"}\n', b"")
        append = redirected(runs, redirection, "events", "append", "notes", "--from", "-", "--expect", "any")
        assert (append.status, append.out) == (2, b"")
        assert append.error.startswith(f"error[invalid_argument]: {why}")
        assert redirected(runs, redirection, "runs", "list").status == 0

    def test_files_of_the_log_never_get_the_number_of_a_closed_stream(self, runs: HereCommandLine) -> None:
        program = (
            "import os, sys; from eventlog.cli import main\n"
            "sys.argv = ['eventlog', '--db', 'a.db', 'runs', 'list']\n"
            "try: main()\n"
            "finally: print(*(os.path.samestat(os.fstat(number), os.stat(os.devnull)) for number in (0, 2)))\n"
        )
        command = ["sh", "-c", '"$@" <&- 2>&-', "sh", sys.executable, "-c", program]
        ended = subprocess.run(
            command, cwd=runs.folder, env=environment(), capture_output=True, text=True, timeout=60, check=False
        )
        assert (ended.returncode, ended.stdout.splitlines()[-1]) == (0, "True True")

    def test_a_bar_is_drawn_on_a_terminal_only_and_can_be_switched_off(self, here: HereCommandLine) -> None:
        append(here, "notes", *({"type": "noted", "data": number} for number in range(3000)))
        assert "verifying" in on_terminal(here, "verify")
        assert "verifying" not in on_terminal(here, "verify", "--no-progress")
        assert "verifying" not in here("verify", status=0).error

    @pytest.mark.parametrize(
        "where", ["eventlog.cli.app.run", "eventlog.cli.commands.import_module", "eventlog.cli.tail.complete"]
    )
    def test_ctrl_c_ends_with_130_whether_loading_parsing_or_working(
        self, runs: HereCommandLine, monkeypatch: pytest.MonkeyPatch, where: str
    ) -> None:
        def interrupted(*arguments: object) -> None:
            for each in arguments:
                if isinstance(each, Coroutine):
                    each.close()
            raise KeyboardInterrupt

        monkeypatch.setattr(where, interrupted)
        monkeypatch.setattr(sys, "argv", ["eventlog", "--db", str(runs.folder / "a.db"), "tail"])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 130

    def test_a_terminal_gets_a_table_a_pipe_gets_plain_lines(self, runs: HereCommandLine) -> None:
        assert "\x1b[" in on_terminal(runs, "runs", "list")
        assert "status" in on_terminal(runs, "runs", "list")
        assert runs("runs", "list", status=0).text.startswith("run-1\t")
        for words, env in ((("--no-color",), {}), ((), {"NO_COLOR": "1"})):
            assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", on_terminal(runs, *words, "verify", **env))

    def test_a_terminal_does_not_change_the_five(self, runs: HereCommandLine) -> None:
        shown = on_terminal(runs, "show-trace", "run-1").replace("\r\n", "\n")
        assert shown == runs("show-trace", "run-1", status=0).text

    def test_wide_characters_keep_the_columns_in_line(self, runs: HereCommandLine) -> None:
        lines = [
            line
            for line in runs("runs", "list", "--format", "human", status=0).text.splitlines()
            if "write_draft" in line
        ]
        assert [width(line[: line.index("WAITING")]) for line in lines] == [9, 9]
        assert [width(line[: line.index("write_draft")]) for line in lines] == [28, 28]


def redirected(cli: CommandLine, redirection: str, *words: str) -> Ended:
    """Run the command with a redirection of the shell."""
    ended = subprocess.run(
        ["sh", "-c", f'"$@" {redirection}', "sh", *cli.argv(*words)],
        cwd=cli.folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)


def width(text: str) -> int:
    return sum(2 if ord(character) > 0x2E80 else 1 for character in text)


def on_terminal(cli: CommandLine, *words: str, **env: str) -> str:
    """Return what the command prints on a terminal of its own."""
    leader, follower = pty.openpty()
    extra = {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30", **env}
    process = subprocess.Popen(
        cli.argv(*words), cwd=cli.folder, env=environment(**extra), stdin=follower, stdout=follower, stderr=follower
    )
    os.close(follower)
    data = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        data += piece
    os.close(leader)
    process.wait(timeout=10)
    return data.decode()


class TestHiddenCharacters:
    def test_they_are_named_and_what_people_read_is_left_alone(self) -> None:
        assert visible(HIDDEN) == "a\\u202eb\\u200b\\x1b[31mc\\u2028\\x00\\ufe0f\\U000e0041\\u3164"
        assert visible("a\nb\tc") == "a\\nb\\tc"
        assert visible("plain, 草稿, é, \\n, 🎉, [red]") == "plain, 草稿, é, \\n, 🎉, [red]"

    def test_no_hidden_character_of_unicode_gets_through(self) -> None:
        for number in (*range(0x30000), *range(0xE0000, 0xE1000)):
            character = chr(number)
            if is_hidden(character):
                shown = visible(character)
                assert shown.isascii() and shown.isprintable(), hex(number)

    def test_json_means_the_same_with_them_escaped(self) -> None:
        text = json.dumps({HIDDEN: [HIDDEN, "草"]}, ensure_ascii=False)
        assert json.loads(escaped_json(text)) == json.loads(text)
        assert not BARE.search(escaped_json(text))
        assert "草" in escaped_json(text)

    @pytest.mark.parametrize("form", ["human", "plain", "json", "jsonl"])
    def test_no_surface_shows_them_bare_or_reads_markup(self, here: HereCommandLine, form: str) -> None:
        append(here, "notes", {"type": "noted", "data": {HIDDEN: "[red]x[/red] :smile: " + HIDDEN}})
        args = json.dumps({"content": HIDDEN + "[bold]"})
        here("start", "r", "--output", HIDDEN.replace("\x00", "") + "[link=x]", "--args", args, status=0)
        for words in (
            ("runs", "list"),
            ("runs", "show", "r"),
            ("approvals", "list"),
            ("approvals", "show", "r"),
            ("tail",),
            ("events", "show", "1"),
            ("events", "show", "3"),
        ):
            ended = here(*words, "--format", form, status=0)
            assert not BARE.search(ended.text.replace("\t", "")), words
        assert "[red]x[/red] :smile:" in here("events", "show", "1", "--format", form, status=0).text

    def test_an_error_shows_them_escaped_too(self, here: HereCommandLine) -> None:
        for words in (("runs", "show", HIDDEN.replace("\x00", "")), ("--db", "a\u202e.db", "runs", "list")):
            ended = here(*words, status=2)
            assert not BARE.search(ended.error), words


class TestDatabase:
    def test_info_says_what_there_is(self, runs: HereCommandLine) -> None:
        info = runs("db", "info", "--json", status=0).json
        assert (info["head"], info["format_version"], info["views_behind"]) == (
            4,
            2,
            {f"{view.name}/{view.revision}": 0 for view in KEPT},
        )
        assert info["events_by_type"] == {"checkpoint_saved": 2, "proposal_recorded": 2}
        assert info["database_bytes"] == (runs.folder / "a.db").stat().st_size

    def test_a_backup_is_a_log_and_never_overwrites(self, runs: HereCommandLine) -> None:
        assert runs("db", "backup", "b.db", "--json", status=0).json["position"] == 4
        copy = HereCommandLine(runs.folder, "--db", "b.db")
        assert copy("tail", status=0).out == runs("tail", status=0).out
        copy("verify", status=0)
        (runs.folder / "mine").write_text("mine", encoding="utf-8")
        assert runs("db", "backup", "mine", "--json", status=2).json["error"] == "store_cannot_open"
        assert (runs.folder / "mine").read_text(encoding="utf-8") == "mine"

    def test_a_log_of_the_current_format_needs_no_migration(self, runs: HereCommandLine) -> None:
        for words in (("--dry-run",), ()):
            document = runs("db", "migrate", *words, "--json", status=0).json
            assert (document["format_version"], document["result"]) == (2, "nothing to do")
        assert runs("--db", "none.db", "db", "migrate", "--json", status=2).json["error"] == "store_not_found"
        assert not (runs.folder / "none.db").exists()


class TestDoctor:
    def test_a_sound_folder_passes_and_nothing_is_left_behind(self, runs: HereCommandLine) -> None:
        before = sorted(path.name for path in runs.folder.iterdir() if not path.name.endswith(("-wal", "-shm")))
        checks = {check["name"]: check for check in runs("doctor", "--json", status=0).json["checks"]}
        assert {
            "python",
            "sqlite",
            "sqlite_wal_reset_fix",
            "clock",
            "flock",
            "log",
            "views",
            "owner_locks",
        } <= checks.keys()
        assert checks["flock"]["state"] == checks["log"]["state"] == checks["views"]["state"] == "ok"
        after = sorted(path.name for path in runs.folder.iterdir() if not path.name.endswith(("-wal", "-shm")))
        assert after == before

    def test_lock_files_that_cannot_be_opened_are_not_counted_as_none(self, runs: HereCommandLine) -> None:
        def owner_locks() -> dict[str, Any]:
            checks = runs("doctor", "--json", status=0).json["checks"]
            found: dict[str, Any] = next(check for check in checks if check["name"] == "owner_locks")
            return found

        assert (owner_locks()["state"], owner_locks()["found"]) == ("ok", "0 at work, 0 left by a crash")
        folder = runs.folder / "a.db.owners"
        folder.mkdir()
        (folder / "x.lock").symlink_to("elsewhere")  # which is never followed, not even by root
        found = owner_locks()
        assert (found["state"], found["found"]) == ("warn", "0 at work, 0 left by a crash, 1 cannot be opened")
        (folder / "x.lock").unlink()
        folder.rmdir()
        folder.write_text("no folder", encoding="utf-8")
        assert (owner_locks()["state"], "Not a directory" in owner_locks()["found"]) == ("warn", True)

    def test_what_fails_is_said_with_a_hint(self, tmp_path: Path) -> None:
        ended = HereCommandLine(tmp_path, "--db", "none/a.db")("doctor", "--format", "human", status=1)
        assert "fail" in ended.text and "hint: Create it." in ended.text
        (tmp_path / "b.db").write_text("no database at all" * 100, encoding="utf-8")
        ended = HereCommandLine(tmp_path, "--db", "b.db")("doctor", "--json", status=1)
        assert "store_not_eventlog" in ended.text

    def test_locks_of_a_crash_and_late_views_are_warnings(self, runs: HereCommandLine) -> None:
        digest = runs("show-trace", "run-1", status=0).json["proposal_hash"]
        runs("approve", "run-1", "--proposal-hash", digest, status=0)
        process = CommandLine(runs.folder, "--db", "a.db")
        process("resume", "run-1", env={"EVENTLOG_FAILPOINT": "intent.after_commit"}, status=91)
        asyncio.run(append_without_views(runs.folder))
        checks = {check["name"]: check for check in runs("doctor", "--json", status=0).json["checks"]}
        assert (checks["owner_locks"]["state"], checks["views"]["state"]) == ("warn", "warn")
        assert "1 left by a crash" in checks["owner_locks"]["found"]


LOOKS: Final = (
    ("tail",),
    ("tail", "run-1", "--after", "1"),
    ("events", "show", "1"),
    ("show-trace", "run-1"),
    ("runs", "list"),
    ("runs", "show", "run-1"),
    ("approvals", "list"),
    ("approvals", "show", "run-1"),
    ("projections", "list"),
    ("projections", "check"),
    ("verify",),
)


class TestALogThatCannotBeWritten:
    @pytest.fixture
    def folder(self) -> Iterator[Path]:
        """A folder that another user can reach, which pytest's own are not."""
        folder = Path(tempfile.mkdtemp())
        yield folder
        folder.chmod(0o755)
        shutil.rmtree(folder)

    @pytest.fixture
    def nobody(self, folder: Path) -> NobodyCommandLine:
        here = HereCommandLine(folder, "--db", "a.db")
        for run_id in ("run-1", "run-2"):
            here("start", run_id, "--output", "x", status=0)
        return NobodyCommandLine(folder, "--db", "a.db")

    def test_in_a_closed_folder_what_only_reads_works_all_the_same(self, nobody: NobodyCommandLine) -> None:
        expected = [HereCommandLine(nobody.folder, "--db", "a.db")(*words, status=0).out for words in LOOKS]
        close(nobody.folder)
        assert [nobody(*words, status=0).out for words in LOOKS] == expected
        assert nobody("runs", "list", status=0).err == b""
        decided = nobody("approve", "run-1", "--proposal-hash", "0" * 64, status=2).json["error"]
        assert decided in {"store_cannot_open", "store_readonly"}

    def test_a_late_view_is_shown_as_it_stands_and_said_to_be_late(self, nobody: NobodyCommandLine) -> None:
        asyncio.run(append_without_views(nobody.folder))
        close(nobody.folder)
        for words, late in (("runs", "list"), "view of runs is"), (("approvals", "list"), "views of runs, approvals"):
            ended = nobody(*words, status=0)
            assert len(ended.text.splitlines()) == 2
            assert ended.error.startswith(f"the {late}")
            assert ended.error.endswith(" 1 events behind the log, which cannot be written here\n")

    def test_a_log_without_the_view_says_so(self, folder: Path) -> None:
        asyncio.run(append_without_views(folder))
        close(folder)
        ended = NobodyCommandLine(folder, "--db", "a.db")("runs", "list", "--json", status=2)
        assert (ended.json["error"], "no view of runs" in ended.json["message"]) == ("store_readonly", True)

    def test_what_could_never_see_anything_new_does_not_follow(self, nobody: NobodyCommandLine) -> None:
        close(nobody.folder)
        assert "leave -f away" in nobody("tail", "-f", status=2).error

    def test_a_file_that_cannot_be_written_can_be_read(self, nobody: NobodyCommandLine) -> None:
        (nobody.folder / "a.db").chmod(0o444)
        (nobody.folder / "a.db.lock").unlink()
        nobody.folder.chmod(0o777)
        for words in LOOKS:
            nobody(*words, status=0)


def close(folder: Path) -> None:
    """Take everybody's right to write in a folder, and give the right to read all files."""
    for file in folder.iterdir():
        file.chmod(0o444)
    folder.chmod(0o555)


async def append_without_views(folder: Path) -> None:
    async with eventlog.open(folder / "a.db") as log:
        await log.append("notes", [NewEvent("noted", 1)], expect=Expect.any())
