"""`eventlog verify`: what it finds, what it leaves alone, and that no damage makes it fall over."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

import eventlog
from eventlog import Expect, NewEvent
from eventlog.audit.verify import Finding, verify
from tests.command_line import CommandLine, Ended, HereCommandLine, edit

VERDICTS: Final = ("integrity", "order", "artifacts", "views")


@pytest.fixture
def cli(tmp_path: Path) -> CommandLine:
    """A log of three runs and six events of another stream, positions 1 to 12, checkpointed into the database."""
    here = HereCommandLine(tmp_path, "--db", "a.db")
    for number in (1, 2, 3):
        here("start", f"run-{number}", "--output", "t", status=0)
    lines = b"".join(b'{"type": "noted", "data": {"n": %d}}\n' % number for number in range(6))
    here("events", "append", "notes", "--from", "-", "--expect", "0", stdin=lines, status=0)
    return here


def verdicts(ended: Ended) -> dict[str, str]:
    return {name: ended.json[name]["verdict"] for name in VERDICTS}


def problems(ended: Ended, name: str) -> list[tuple[str, int | None]]:
    return [(problem["reason"], problem["position"]) for problem in ended.json[name]["problems"]]


def without_triggers(path: Path, statement: str, *arguments: Any) -> None:
    """Edit the log as somebody would who first removes what stands in the way, and puts it back afterwards."""
    connection = sqlite3.connect(path, isolation_level=None)
    triggers = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
    for name, _ in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    connection.execute(statement, arguments)
    for _, sql in triggers:
        connection.execute(sql)
    connection.close()


def test_a_clean_log_is_clean_and_is_not_written(cli: CommandLine) -> None:
    before = (cli.folder / "a.db").read_bytes()
    ended = cli("verify", "--json", status=0)
    assert verdicts(ended) == dict.fromkeys(VERDICTS, "ok")
    assert (ended.json["events"], ended.json["head"], ended.err) == (12, 12, b"")
    assert (cli.folder / "a.db").read_bytes() == before


def test_one_run_is_checked_alone(cli: CommandLine) -> None:
    ended = cli("verify", "--json", "--run", "run-2", status=0)
    assert (verdicts(ended), ended.json["events"]) == (dict.fromkeys(VERDICTS, "ok"), 2)
    assert cli("verify", "--json", "--run", "run-9", status=2).json["error"] == "unknown_run:run-9"


EDITS: Final = {
    "a body": ("UPDATE events SET body = '{\"n\":7}' WHERE position = 9", "integrity", ("leaf_mismatch", 9)),
    "a time": (
        "UPDATE events SET recorded_at_us = recorded_at_us + 1 WHERE position = 9",
        "integrity",
        ("leaf_mismatch", 9),
    ),
    "an actor": ("UPDATE actors SET name = 'mallory'", "integrity", ("leaf_mismatch", 1)),
    "a leaf": ("UPDATE events SET leaf = zeroblob(32) WHERE position = 9", "integrity", ("leaf_mismatch", 9)),
    "an erased body": (
        "UPDATE events SET body = NULL, salt = NULL WHERE position = 9",
        "integrity",
        ("body_missing", 9),
    ),
    "a name": ("DELETE FROM types WHERE name = 'noted'", "integrity", ("name_missing", 7)),
    "a deleted row": ("DELETE FROM events WHERE position = 9", "order", ("position_gap", 9)),
    "a row put first": ("UPDATE events SET position = 0 WHERE position = 9", "order", ("position_gap", 9)),
    "an inserted row": (
        "INSERT INTO events SELECT 13, stream_id, 7, type_id, schema_version, actor_id, recorded_at_us, "
        "randomblob(16), NULL, NULL, 0, body, salt, leaf FROM events WHERE position = 12",
        "integrity",
        ("leaf_mismatch", 13),
    ),
    "two rows swapped": (
        "UPDATE events SET body = (SELECT body FROM events o WHERE o.position = 21 - events.position) "
        "WHERE position IN (10, 11)",
        "integrity",
        ("leaf_mismatch", 10),
    ),
    "a time far back": ("UPDATE events SET recorded_at_us = 5 WHERE position = 9", "order", ("time_backwards", 9)),
}


@pytest.mark.parametrize("what", EDITS)
def test_an_edit_behind_the_triggers_is_found_at_its_position(cli: CommandLine, what: str) -> None:
    statement, name, expected = EDITS[what]
    without_triggers(cli.folder / "a.db", statement)
    ended = cli("verify", "--json", status=3)
    assert expected in problems(ended, name)


def test_the_other_runs_stay_clean_and_usable_beside_a_damaged_one(cli: CommandLine) -> None:
    without_triggers(cli.folder / "a.db", "UPDATE events SET body = '{}' WHERE position = 1")
    assert problems(cli("verify", "--json", "--run", "run-1", status=3), "integrity") == [("leaf_mismatch", 1)]
    assert verdicts(cli("verify", "--json", "--run", "run-2", status=0)) == dict.fromkeys(VERDICTS, "ok")
    cli("show-trace", "run-2", status=0)


def test_a_damaged_log_leaves_the_view_unjudged(cli: CommandLine) -> None:
    without_triggers(cli.folder / "a.db", "UPDATE events SET body = '{}' WHERE position = 1")
    found = verdicts(cli("verify", "--json", status=3))
    assert found == {"integrity": "damaged", "order": "ok", "artifacts": "ok", "views": "unknown"}


class TestViews:
    @pytest.mark.parametrize(
        "statement",
        [
            "UPDATE runs SET args = 'x' WHERE run_id = 'run-2'",
            "UPDATE runs SET executed = 1 WHERE run_id = 'run-2'",
            "DELETE FROM runs WHERE run_id = 'run-2'",
            "UPDATE runs SET version = 99 WHERE run_id = 'run-2'",
        ],
    )
    def test_an_edited_row_is_named_and_the_log_stays_clean(self, cli: CommandLine, statement: str) -> None:
        edit(cli.folder / "a.db", statement)
        for words in (("verify", "--json"), ("verify", "--json", "--run", "run-2")):
            ended = cli(*words, status=3)
            assert verdicts(ended) == {"integrity": "ok", "order": "ok", "artifacts": "ok", "views": "differs"}
            assert "'run-2'" in ended.json["views"]["problems"][0]["message"]
        assert verdicts(cli("verify", "--json", "--run", "run-1", status=0))["views"] == "ok"

    def test_an_invented_row_is_named(self, cli: CommandLine) -> None:
        columns = "run_id, status, executed, asks, is_cancelled, version"
        edit(cli.folder / "a.db", f"INSERT INTO runs ({columns}) VALUES ('run-0', 'x', 1, 0, 0, 1)")
        problem = cli("verify", "--json", status=3).json["views"]["problems"][0]
        assert problem["message"] == "run 'run-0' is in the view, but not in the log"

    async def test_a_view_that_is_only_late_is_not_called_different(self, cli: CommandLine) -> None:
        async with eventlog.open(cli.folder / "a.db") as log:  # a program that does not know the view
            await log.append("notes", [NewEvent("noted", 1)], expect=Expect.any())
        ended = CommandLine(cli.folder, "--db", "a.db")("verify", "--json", status=0)
        assert verdicts(ended)["views"] == "behind"

    async def test_a_late_view_with_an_edited_row_differs(self, cli: CommandLine) -> None:
        async with eventlog.open(cli.folder / "a.db") as log:
            await log.append("notes", [NewEvent("noted", 1)], expect=Expect.any())
        edit(cli.folder / "a.db", "UPDATE runs SET output = 'x' WHERE run_id = 'run-2'")
        process = CommandLine(cli.folder, "--db", "a.db")
        assert verdicts(process("verify", "--json", status=3))["views"] == "differs"

    async def test_a_log_without_views_has_none_to_judge(self, tmp_path: Path) -> None:
        async with eventlog.open(tmp_path / "b.db") as log:
            await log.append("notes", [NewEvent("noted", 1)], expect=Expect.any())
        assert verdicts(CommandLine(tmp_path, "--db", "b.db")("verify", "--json", status=0))["views"] == "absent"

    def test_a_view_that_was_dropped_is_a_finding(self, cli: CommandLine) -> None:
        edit(cli.folder / "a.db", "DROP TABLE runs")
        ended = cli("verify", "--json", status=3)
        assert (verdicts(ended)["views"], problems(ended, "views")) == ("differs", [("view_unreadable", None)])


class TestFiles:
    def test_no_log_cannot_be_verified(self, cli: CommandLine) -> None:
        assert cli("verify", "--json", "--db", "none.db", status=4).json["error"] == "store_not_found"
        (cli.folder / "text.db").write_text("not a database, but long enough to be looked at" * 50, encoding="utf-8")
        assert cli("verify", "--json", "--db", "text.db", status=4).json["error"] == "store_not_eventlog"
        assert not (cli.folder / "none.db").exists()

    def test_an_index_that_lost_an_entry_is_found_by_the_file_check(self, cli: CommandLine) -> None:
        connection = sqlite3.connect(cli.folder / "a.db", isolation_level=None)
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("CREATE INDEX probe ON runs (action)")
        connection.execute("UPDATE sqlite_schema SET sql = 'CREATE INDEX probe ON runs (output)' WHERE name = 'probe'")
        connection.close()
        ended = cli("verify", "--json", status=3)
        assert ("store_corrupt", None) in problems(ended, "integrity")

    @pytest.mark.parametrize(
        ("statement", "message"),
        [
            ("DROP TRIGGER events_update", "the trigger events_update is missing"),
            (
                "CREATE TRIGGER quiet BEFORE INSERT ON events BEGIN SELECT raise(IGNORE); END",
                "there is a foreign trigger quiet",
            ),
        ],
    )
    def test_the_triggers_that_guard_the_log_are_checked(self, cli: CommandLine, statement: str, message: str) -> None:
        edit(cli.folder / "a.db", statement)
        found = cli("verify", "--json", status=3).json["integrity"]["problems"]
        assert [(problem["reason"], problem["message"]) for problem in found] == [("schema_changed", message)]

    def test_text_that_is_no_text_is_found(self, cli: CommandLine) -> None:
        without_triggers(
            cli.folder / "a.db", "UPDATE events SET correlation_id = CAST(x'ff' AS TEXT) WHERE position = 9"
        )
        assert cli("verify", "--json", status=3).json["integrity"]["verdict"] == "damaged"

    @pytest.mark.parametrize(
        "statement",
        [
            "DELETE FROM meta",
            "DELETE FROM log_ids",
            "DROP TABLE events",
            "DROP TABLE views",
            "DROP TABLE types",
            "DELETE FROM events",
            "UPDATE log_ids SET log_id = randomblob(16)",
        ],
    )
    def test_whatever_is_torn_out_is_damage_and_never_a_traceback(self, cli: CommandLine, statement: str) -> None:
        tear(cli.folder / "a.db", statement)
        ended = cli("verify", "--json")
        assert ended.status == 3, ended
        assert "damaged" in verdicts(ended).values() or "differs" in verdicts(ended).values()

    def test_any_overwritten_bytes_are_damage_or_unverifiable_and_never_a_traceback(
        self, cli: CommandLine, is_long: bool
    ) -> None:
        found = fuzz(cli, overwrite, count=4000 if is_long else 150)
        assert found <= {0, 3, 4}
        assert 3 in found

    def test_any_cut_file_is_damage_or_unverifiable_and_never_a_traceback(
        self, cli: CommandLine, is_long: bool
    ) -> None:
        assert fuzz(cli, cut, count=100 if is_long else 15) <= {3, 4}


def tear(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
        connection.execute(f"DROP TRIGGER {name}")
    connection.execute(statement)
    connection.close()


def fuzz(cli: CommandLine, damage: Callable[[bytes, random.Random], bytes], *, count: int) -> set[int]:
    """Verify `count` copies that were damaged in different ways; return the exit statuses. Prints what they were.

    A copy that passes must hold every event and every run as they were.
    """
    whole = (cli.folder / "a.db").read_bytes()
    looks = [("tail", "--format", "jsonl"), ("runs", "list", "--format", "jsonl")]
    before = [cli(*words, status=0).out for words in looks]
    statuses = []
    for seed in range(count):
        folder = cli.folder / f"damaged-{seed}"
        folder.mkdir()
        (folder / "a.db").write_bytes(damage(whole, random.Random(seed)))
        damaged = HereCommandLine(folder, "--db", "a.db")
        ended = damaged("verify", "--json")
        assert b"Traceback" not in ended.err
        assert ended.status in (0, 3, 4), (seed, ended)
        assert ended.json
        assert ended.status != 0 or [damaged(*words, status=0).out for words in looks] == before, seed
        statuses.append(ended.status)
        shutil.rmtree(folder)
    print({status: statuses.count(status) for status in sorted(set(statuses))})
    return set(statuses)


def overwrite(whole: bytes, chance: random.Random) -> bytes:
    """Overwrite a few bytes that mean something: not those of the space that is free."""
    data = bytearray(whole)
    at = chance.choice([at for at, byte in enumerate(whole[:-64]) if byte])
    length = chance.choice((1, 16, 64))
    data[at : at + length] = chance.randbytes(length)
    return bytes(data)


def cut(whole: bytes, chance: random.Random) -> bytes:
    return whole[: chance.randrange(1, len(whole) - 4096)]


class TestTheFunction:
    async def test_it_goes_on_behind_damage_and_reports_progress(self) -> None:
        async with eventlog.open("memory:") as log:
            await log.append("notes", [NewEvent("noted", number) for number in range(2500)], expect=Expect.any())
            seen: list[tuple[int, int]] = []

            async def views() -> Finding:
                return Finding(verdict="ok")

            found = await verify(log, views=views, progress=lambda done, total: seen.append((done, total)))
        assert (found.events, found.head, found.is_damaged, found.is_known) == (2500, 2500, False, True)
        assert seen == [(1000, 2500), (2000, 2500), (2500, 2500)]

    async def test_without_a_check_of_the_views_their_verdict_is_unknown(self) -> None:
        async with eventlog.open("memory:") as log:
            assert (await verify(log)).views.verdict == "unknown"

    def test_problems_are_counted_and_only_the_first_are_kept(self, cli: CommandLine) -> None:
        lines = b"".join(b'{"type": "noted", "data": %d}\n' % number for number in range(50))
        cli("events", "append", "many", "--from", "-", "--expect", "0", stdin=lines, status=0)
        without_triggers(cli.folder / "a.db", "UPDATE events SET body = 'x' WHERE position > 12")
        integrity = cli("verify", "--json", status=3).json["integrity"]
        assert (integrity["problem_count"], len(integrity["problems"])) == (50, 20)
        assert "and 30 more" in cli("verify", "--format", "human", status=3).text
