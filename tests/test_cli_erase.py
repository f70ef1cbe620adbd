"""`eventlog erase`, `start --subject`, and what every command says of what is erased."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from tests.command_line import CommandLine, HereCommandLine, environment
from tests.erasure_scene import MARKS, files_of, found_in, record
from tools.campaigns.storage.log_files import open_file

BASIS: Final = ("--legal-basis", "Art. 17 GDPR")
ARGS: Final = json.dumps({"content": MARKS["args"]})


@pytest.fixture
def cli(tmp_path: Path) -> HereCommandLine:
    return HereCommandLine(tmp_path, "--db", "a.db")


def finish(cli: HereCommandLine, run: str, *options: str) -> None:
    """Record a run of one action up to its end."""
    asked = cli("start", run, "--action", "write_draft", "--args", ARGS, "--output", f"{run}.txt", *options, status=0)
    cli("approve", run, "--proposal-hash", asked.json["proposal_hash"], *_keys(options), status=0)
    cli("resume", run, *_keys(options), status=0)
    (cli.folder / f"{run}.txt").unlink()


def _keys(options: tuple[str, ...]) -> tuple[str, ...]:
    at = options.index("--subject-keys") if "--subject-keys" in options else None
    return () if at is None else options[at : at + 2]


def left(cli: HereCommandLine) -> list[str]:
    return found_in(files_of(cli.folder / "a.db"))


def recorded(cli: HereCommandLine) -> None:
    """Record the whole scene."""

    async def work() -> None:
        async with open_file(cli.folder / "a.db") as log:
            await record(log)

    asyncio.run(work())


class TestErasing:
    def test_a_run_is_erased_and_the_answer_says_what_was_done(self, cli: HereCommandLine) -> None:
        finish(cli, "run-1")
        assert left(cli) != []
        answer = cli("erase", "--run", "run-1", *BASIS, "--yes", "--json", status=0).json
        assert (answer["is_complete"], answer["is_purged"], answer["views_failed"]) == (True, True, {})
        assert answer["erased"] == len(answer["positions"]) > 5
        assert answer["views_rebuilt"] == ["approvals", "effects", "runs"]
        assert any("backups" in each for each in answer["out_of_reach"])
        assert left(cli) == []
        again = cli("erase", "--run", "run-1", *BASIS, "--yes", "--json", status=0).json
        assert (again["erased"], again["already"]) == (0, answer["erased"])
        assert cli("resume", "run-1", status=0).json["result"] == "already_completed"

    def test_single_events_and_a_stream(self, cli: HereCommandLine) -> None:
        lines = b"".join(json.dumps({"type": "noted", "data": {"t": MARKS["note"]}}).encode() + b"\n" for _ in range(3))
        cli("events", "append", "notes", "--from", "-", "--expect", "any", stdin=lines, status=0)
        one = cli("erase", "--position", "1", "--position", "3", *BASIS, "--yes", "--json", status=0).json
        assert (one["erased"], one["positions"]) == (2, [1, 3])
        rest = cli("erase", "--stream", "notes", *BASIS, "--yes", "--json", status=0).json
        assert (rest["erased"], rest["already"], left(cli)) == (1, 2, [])

    def test_a_dry_run_writes_nothing(self, cli: HereCommandLine) -> None:
        finish(cli, "run-1")
        before = cli("db", "info", "--json", status=0).json
        plan = cli("erase", "--run", "run-1", *BASIS, "--dry-run", "--json", status=0).json
        assert (plan["dry_run"], plan["events"], plan["already"]) == (True, len(plan["positions"]), 0)
        assert cli("db", "info", "--json", status=0).json["head"] == before["head"]
        assert left(cli) != []

    def test_people_are_shown_what_is_out_of_reach(self, cli: HereCommandLine) -> None:
        finish(cli, "run-1")
        shown = cli("erase", "--run", "run-1", *BASIS, "--yes", "--format", "human", status=0).text
        assert "out of reach from here:" in shown

    def test_a_reader_that_keeps_a_copy_ends_it_with_try_again(
        self, cli: HereCommandLine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("eventlog.stores.sqlite.erasing._PURGES", 2)
        finish(cli, "run-1")
        with closing(sqlite3.connect(cli.folder / "a.db")) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM events").fetchone()
            ended = cli("erase", "--run", "run-1", *BASIS, "--yes", "--json", status=5)
        assert ended.json["is_complete"] is False
        assert "call this again" in ended.error
        cli("erase", "--run", "run-1", *BASIS, "--yes", status=0)
        assert left(cli) == []


class TestRefusals:
    @pytest.mark.parametrize(
        "words",
        [
            ("--run", "run-1"),
            ("--run", "run-1", "--stream", "x", *BASIS, "--yes"),
            (*BASIS, "--yes"),
            ("--subject", "ann", *BASIS, "--yes"),
            ("--run", "run-1", *BASIS),
        ],
        ids=["no-basis", "two-things", "nothing", "no-keys", "not-confirmed"],
    )
    def test_what_is_no_command_does_nothing(self, cli: HereCommandLine, words: tuple[str, ...]) -> None:
        finish(cli, "run-1")
        ended = cli("erase", *words, status=2)
        assert "Usage:" in ended.error or "Nothing was erased" in ended.error
        assert left(cli) != []

    def test_a_run_that_has_not_ended_is_told_with_what_to_do(self, cli: HereCommandLine) -> None:
        cli("start", "run-1", "--output", "x", status=0)
        answer = cli("erase", "--run", "run-1", *BASIS, "--yes", "--json", status=2).json
        assert answer["error"] == "run_open:run-1"
        assert "eventlog runs cancel" in answer["hint"]
        cli("runs", "cancel", "run-1", status=0)
        cli("erase", "--run", "run-1", *BASIS, "--yes", status=0)

    def test_a_view_that_is_not_known_here(self, cli: HereCommandLine) -> None:
        finish(cli, "run-1")
        with closing(sqlite3.connect(cli.folder / "a.db")) as database:
            database.execute("CREATE TABLE orders (said TEXT)")
            database.execute("INSERT INTO orders VALUES (?)", (MARKS["note"],))
            database.execute(
                "INSERT INTO views (name, state, revision, position, shape) VALUES ('orders','live',1,1,'')"
            )
            database.commit()
        answer = cli("erase", "--run", "run-1", *BASIS, "--yes", "--json", status=2).json
        assert (answer["error"], answer["details"]["views"]) == ("view_unknown_here", ["orders"])
        done = cli("erase", "--run", "run-1", *BASIS, "--yes", "--drop-unknown-views", "--json", status=0).json
        assert done["views_dropped"] == ["orders"]
        assert left(cli) == []

    @pytest.mark.parametrize(("answer", "status"), [(b"erase\n", 0), (b"y\n", 2), (b"\n", 2)])
    def test_on_a_terminal_it_is_asked_for(self, cli: HereCommandLine, answer: bytes, status: int) -> None:
        finish(cli, "run-1")
        leader, follower = pty.openpty()
        process = subprocess.Popen(
            CommandLine(cli.folder, "--db", "a.db").argv("erase", "--run", "run-1", *BASIS),
            cwd=cli.folder,
            env=environment(TERM="dumb"),
            stdin=follower,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        os.close(follower)
        os.write(leader, answer)
        _, err = process.communicate(timeout=30)
        os.close(leader)
        assert (process.returncode, b"Type `erase`" in err) == (status, True)
        assert (left(cli) == []) is (status == 0)


class TestWhatIsShown:
    @pytest.fixture
    def erased(self, cli: HereCommandLine) -> HereCommandLine:
        recorded(cli)
        for run in ("family-1", "act-1"):
            cli("erase", "--run", run, *BASIS, "--yes", status=0)
        cli("erase", "--stream", "notes-1", *BASIS, "--yes", status=0)
        return cli

    def test_no_command_shows_a_word_and_each_says_so(self, erased: HereCommandLine) -> None:
        shown: list[tuple[str, ...]] = [
            ("runs", "show", "family-1"),
            ("runs", "show", "act-1"),
            ("runs", "timeline", "family-1"),
            ("runs", "usage", "act-1"),
            ("approvals", "show", "act-1"),
            ("diagram", "family-1"),
            ("diagram", "act-1", "--as", "dot"),
            ("tail", "act-1"),
            ("events", "show", "1"),
            ("export", "--format", "jsonl", "--to", "-"),
            ("export", "--format", "csv", "--to", "-"),
            ("export", "--format", "cloudevents", "--to", "-"),
        ]
        for words in shown:
            ended = erased(*words, status=0)
            said = ended.text + ended.error
            assert "erased" in said, words
            assert not any(mark in said for mark in MARKS.values()), words

    def test_programs_are_told_in_a_field_of_its_own(self, erased: HereCommandLine) -> None:
        def answer(*words: str) -> Any:
            return erased(*words, "--json", status=0).json

        assert answer("runs", "show", "family-1")["redacted"] == "erased"
        assert answer("runs", "show", "act-1")["redacted"] == "erased"
        asked = answer("approvals", "show", "act-1")
        assert (asked["redacted"], asked["proposal_hash"]) == ("erased", asked["approval_hash"])
        assert {each["redacted"] for each in answer("runs", "timeline", "act-1")["timeline"]} == {"erased"}
        assert answer("runs", "usage", "act-1")["redacted_events"] == 8
        notes = answer("tail", "--type", "noted")["events"]
        assert [(each["redacted"], each["data"]) for each in notes] == [("erased", None)] * 3

    def test_the_raw_body_is_said_to_be_what_remains(self, erased: HereCommandLine) -> None:
        position = str(erased("tail", "--type", "noted", "--json", status=0).json["events"][0]["position"])
        ended = erased("events", "show", position, "--raw", status=0)
        assert (ended.out, "what remains of it: erased" in ended.error) == (b"", True)

    def test_a_report_and_verify_say_so(self, erased: HereCommandLine) -> None:
        erased("report", "act-1", "--to", "r.html", status=0)
        report = (erased.folder / "r.html").read_text(encoding="utf-8")
        assert "erased" in report
        assert not any(mark in report for mark in MARKS.values())
        verdicts = erased("verify", "--json", status=0).json
        assert (verdicts["erasures"]["verdict"], verdicts["erasures"]["erased"] > 20) == ("ok", True)

    def test_an_exported_line_without_its_data_is_not_appended_elsewhere(self, erased: HereCommandLine) -> None:
        line = erased("export", "--format", "jsonl", "--to", "-", "--type", "noted", "--limit", "1", status=0).out
        ended = erased("events", "append", "x", "--from", "-", "--expect", "any", "--json", stdin=line, status=2)
        assert ended.json["error"] == "invalid_event"

    def test_a_pack_of_an_erased_run_has_no_word_of_it_and_verifies(self, cli: HereCommandLine) -> None:
        finish(cli, "run-1")
        cli("keys", "new", "--to", "k.pem", "--prefix", "example.org/log", status=0)
        cli("erase", "--run", "run-1", *BASIS, "--yes", "--signer", "k.pem", status=0)
        cli("export", "--format", "pack", "--run", "run-1", "--to", "pack/", "--signer", "k.pem", status=0)
        pack = [each for each in (cli.folder / "pack").rglob("*") if each.is_file()]
        assert found_in(pack) == []
        checked = subprocess.run(
            [sys.executable, cli.folder / "pack" / "verify.py", cli.folder / "pack"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert "erasures   ok         7 erased" in checked.stdout, checked.stdout + checked.stderr

    def test_other_programs_open_an_export_still(self, erased: HereCommandLine) -> None:
        parquet = pytest.importorskip("pyarrow.parquet")
        erased("export", "--format", "parquet", "--to", "e.parquet", status=0)
        table = parquet.read_table(erased.folder / "e.parquet").to_pydict()
        redacted = [why for why, type in zip(table["redacted"], table["type"], strict=True) if type == "noted"]
        assert redacted == ["erased"] * 3
        assert not any(mark.encode() in (erased.folder / "e.parquet").read_bytes() for mark in MARKS.values())


class TestSubjects:
    KEYS: Final = ("--subject-keys", "keys")

    def test_a_run_about_a_subject_from_its_start_to_its_erasure(self, cli: HereCommandLine) -> None:
        finish(cli, "run-1", "--subject", "ann", *self.KEYS)
        assert (cli.folder / "keys.wrapping").stat().st_mode & 0o777 == 0o600
        stored = self.bodies(cli)
        assert not any(MARKS["args"].encode() in body for body in stored)
        assert cli("runs", "show", "run-1", "--json", *self.KEYS, status=0).json["args"] == {"content": MARKS["args"]}
        blind = cli("runs", "show", "run-1", "--json", status=0).json
        assert blind["redacted"] == "key_missing"
        assert MARKS["args"] not in json.dumps(blind)
        done = cli("erase", "--subject", "ann", *BASIS, *self.KEYS, "--yes", "--json", status=0).json
        assert (done["is_complete"], done["streams"]) == (True, ["run:run-1"])
        assert left(cli) == []
        assert cli("runs", "show", "run-1", "--json", *self.KEYS, status=0).json["redacted"] == "subject_erased"
        assert cli("resume", "run-1", *self.KEYS, status=0).json["result"] == "already_completed"
        assert cli("verify", "--json", status=0).json["erasures"]["verdict"] == "ok"

    def test_a_copy_from_before_an_erasure_is_put_back_and_the_subject_is_erased_again(
        self, cli: HereCommandLine
    ) -> None:
        """What was open in the copy cannot be read, ended or cancelled: the erasure itself is the way out."""
        cli("start", "run-1", "--output", "x", "--subject", "ann", *self.KEYS, status=0)
        cli("start", "run-2", "--output", "y", *self.KEYS, status=0)
        cli("db", "backup", "copy.db", *self.KEYS, status=0)
        cli("runs", "cancel", "run-1", *self.KEYS, status=0)
        cli("erase", "--subject", "ann", *BASIS, *self.KEYS, "--yes", status=0)
        for name in ("a.db", "a.db-wal", "a.db-shm"):
            (cli.folder / name).unlink(missing_ok=True)
        (cli.folder / "copy.db").rename(cli.folder / "a.db")
        cli("db", "restored", "--force", "--reason", "the disk was lost", *self.KEYS, status=0)
        assert cli("runs", "cancel", "run-1", "--json", *self.KEYS, status=2).json["error"] == "subject_erased"
        assert cli("verify", "--json", *self.KEYS).json["erasures"]["key_missing"] > 0
        done = cli("erase", "--subject", "ann", *BASIS, *self.KEYS, "--yes", "--json", status=0).json
        assert (done["is_complete"], done["streams"]) == (True, ["run:run-1"])
        listed = cli("approvals", "list", "--json", *self.KEYS, status=0).json["approvals"]
        assert {each["run_id"]: each["output"] for each in listed} == {"run-1": "[erased]", "run-2": "y"}
        cli("runs", "cancel", "run-2", *self.KEYS, status=0)
        cli("erase", "--run", "run-2", *BASIS, *self.KEYS, "--yes", status=0)
        verified = cli("verify", "--json", *self.KEYS, status=0).json
        assert (verified["erasures"]["verdict"], verified["erasures"]["key_missing"]) == ("ok", 0)

    def bodies(self, cli: HereCommandLine) -> list[bytes]:
        with closing(sqlite3.connect(cli.folder / "a.db")) as database:
            return [bytes(body) for (body,) in database.execute("SELECT CAST(body AS BLOB) FROM events")]

    def test_without_the_keys_it_goes_no_further(self, cli: HereCommandLine) -> None:
        asked = cli("start", "run-1", "--output", "x", "--subject", "ann", *self.KEYS, status=0).json
        ended = cli("approve", "run-1", "--proposal-hash", asked["proposal_hash"], status=2)
        assert ended.json == {"error": "subject_key_missing"}
        ended = cli("approve", "run-1", "--proposal-hash", asked["proposal_hash"], "--subject-keys", "none", status=2)
        assert ended.json == {"error": "subject_key_missing"}
        assert not (cli.folder / "none").exists()
        cli("approve", "run-1", "--proposal-hash", asked["proposal_hash"], *self.KEYS, status=0)

    def test_the_environment_names_the_keys_as_well(self, cli: HereCommandLine) -> None:
        env = {"EVENTLOG_SUBJECT_KEYS": "keys", "EVENTLOG_WRAPPING_KEY": "elsewhere.key"}
        cli("start", "run-1", "--output", "x", "--subject", "ann", env=env, status=0)
        assert (cli.folder / "elsewhere.key").exists()
        assert not (cli.folder / "keys.wrapping").exists()

    def test_a_wrapping_key_that_is_gone_is_never_made_anew(self, cli: HereCommandLine) -> None:
        cli("start", "run-1", "--output", "x", "--subject", "ann", *self.KEYS, status=0)
        (cli.folder / "keys.wrapping").unlink()
        ended = cli("start", "run-2", "--output", "x", "--subject", "ann", *self.KEYS, status=2)
        assert ended.json == {"error": "wrapping_key_unusable"}
        assert not (cli.folder / "keys.wrapping").exists()

    def test_nobody_of_that_name(self, cli: HereCommandLine) -> None:
        cli("start", "run-1", "--output", "x", "--subject", "ann", *self.KEYS, status=0)
        answer = cli("erase", "--subject", "ben", *BASIS, *self.KEYS, "--yes", "--json", status=2).json
        assert answer["error"] == "unknown_subject"

    def test_a_subject_needs_keys(self, cli: HereCommandLine) -> None:
        assert "--subject-keys" in cli("start", "run-1", "--output", "x", "--subject", "ann", status=2).error
