"""Snapshots in a file: kept beside the events, and whatever becomes of them, the log does not notice."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

import eventlog
from eventlog.codec import Registry, event
from eventlog.errors import ActionFailed, EventLogError, InvalidInput
from eventlog.log import Expect, NewEvent, Snapshot
from eventlog.stores import SqliteLog
from tests import artifact_scenarios
from tests.needs import need, need_command
from tools.campaigns.processes import child
from tools.campaigns.storage.libc_faults import build_shim, shim_environment
from tools.campaigns.storage.log_files import assert_whole, file_lock_held, open_file

ANY = Expect.any()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def under_faults(tmp_path: Path) -> Callable[..., Any]:
    """Runs a scenario in a child whose system calls can be made to fail, and returns what it returns."""
    need(sys.platform == "linux", "LD_PRELOAD, as Linux has it")
    shim = build_shim(tmp_path, need_command("gcc"))

    def run(scenario: Callable[..., Any], *args: object) -> Any:
        done = child.run(scenario, *args, env=shim_environment(shim, tmp_path / "faults"))
        assert done.returncode == 0, done.stderr
        return done.result

    return run


class Noted(msgspec.Struct, frozen=True):
    """An event of the program."""


def edit(path: Path, script: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(script)


def note() -> NewEvent:
    return NewEvent("noted", {})


async def append(log: SqliteLog, stream: str = "a") -> None:
    await log.append(stream, [note()], expect=ANY)


class TestTable:
    async def test_it_is_made_when_it_is_first_needed(self, path: Path) -> None:
        async with open_file(path) as log:
            await append(log)
            assert await log.load_snapshot("a") is None
            assert "snapshots" not in await log.read_view(_tables)
            await log.save_snapshot("a", Snapshot(1, b"one"))
            assert "snapshots" in await log.read_view(_tables)
            assert await log.check_file() == []
            await assert_whole(log)

    async def test_snapshots_outlive_the_log_object_and_others_see_them(self, path: Path) -> None:
        async with open_file(path) as log:
            await log.save_snapshot("a", Snapshot(1, b"one"))
        async with open_file(path) as log, open_file(path) as other, open_file(path, is_read_only=True) as looking:
            assert await looking.load_snapshot("a") == Snapshot(1, b"one")
            await other.save_snapshot("a", Snapshot(3, b"three"))
            await log.save_snapshot("a", Snapshot(2, b"two"))
            for each in (log, other, looking):
                assert await each.load_snapshot("a") == Snapshot(3, b"three")

    async def test_a_log_that_is_only_read_saves_none_and_changes_no_byte(self, path: Path) -> None:
        async with open_file(path) as log:
            await append(log)
        before = path.read_bytes()
        async with open_file(path, is_read_only=True) as log:
            await log.save_snapshot("a", Snapshot(1, b"one"))
            assert await log.load_snapshot("a") is None
        assert path.read_bytes() == before

    @pytest.mark.parametrize("script", ["DROP TABLE snapshots", "DELETE FROM snapshots"])
    async def test_whoever_throws_them_away_loses_nothing_else(self, path: Path, script: str) -> None:
        async with open_file(path) as log:
            await append(log)
            await log.save_snapshot("a", Snapshot(1, b"one"))
        edit(path, script)
        async with open_file(path) as log:
            assert await log.load_snapshot("a") is None
            await append(log)
            await log.save_snapshot("a", Snapshot(2, b"two"))
            assert await log.load_snapshot("a") == Snapshot(2, b"two")
            assert await log.check_file() == []
            await assert_whole(log)

    @pytest.mark.parametrize(
        "script",
        [
            "CREATE TABLE snapshots (a)",
            "CREATE TABLE snapshots (stream, version, state); INSERT INTO snapshots VALUES ('a', 'x', 7)",
            "CREATE VIEW snapshots AS SELECT 1 AS stream",
        ],
    )
    async def test_another_table_of_this_name_is_as_good_as_none(
        self, path: Path, script: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with open_file(path) as log:
            await append(log)
        edit(path, script)
        with caplog.at_level(logging.WARNING, logger="eventlog"):
            async with open_file(path) as log:
                assert await log.load_snapshot("a") is None
                await log.save_snapshot("a", Snapshot(1, b"one"))
                assert await log.load_snapshot("a") is None
                await append(log)
                assert (await log.health()).state == "open"
                await assert_whole(log)
        assert "snapshot_not_saved" in caplog.text

    async def test_a_copy_of_the_log_may_hold_them(self, path: Path, tmp_path: Path) -> None:
        async with open_file(path) as log:
            await log.save_snapshot("a", Snapshot(1, b"one"))
            await log.backup(tmp_path / "b.db")
        async with open_file(tmp_path / "b.db") as log:
            assert await log.load_snapshot("a") == Snapshot(1, b"one")


class TestOwnTable:
    async def test_no_program_makes_a_table_of_this_name(self, path: Path) -> None:
        async with open_file(path) as log:
            with pytest.raises(InvalidInput):
                await log.create_table("CREATE TABLE IF NOT EXISTS Snapshots (a)")
            assert "Snapshots" not in await log.read_view(_tables)

    async def test_no_effect_writes_into_it(self, path: Path) -> None:
        def forge(connection: Any) -> Noted:
            connection.execute("UPDATE snapshots SET state = x'00'")
            return Noted()

        registry = Registry()
        event("noted", registry=registry)(Noted)
        async with open_file(path, registry=registry) as log:
            await log.save_snapshot("a", Snapshot(1, b"one"))
            with pytest.raises(EventLogError) as refused:
                await log.append_with("a", "noted", forge, expect=ANY)
            assert isinstance(refused.value, ActionFailed)
            assert await log.load_snapshot("a") == Snapshot(1, b"one")
            assert (await log.head()).position == 0


class TestBesideAppends:
    async def test_appends_and_saves_at_the_same_time_leave_both_whole(self, path: Path) -> None:
        async with open_file(path) as log:

            async def work(stream: str) -> None:
                for version in range(1, 41):
                    await log.append(stream, [note()], expect=Expect.at(version - 1))
                    await log.save_snapshot(stream, Snapshot(version, b"x" * version))

            await asyncio.gather(*map(work, "abcde"))
            await assert_whole(log)
            assert [await log.load_snapshot(stream) for stream in "abcde"] == [Snapshot(40, b"x" * 40)] * 5
            assert (await log.head()).position == 200

    async def test_a_save_that_is_cancelled_says_so_and_leaves_no_transaction_open(self, path: Path) -> None:
        async with open_file(path) as log:
            for number in range(1, 30):
                saving = asyncio.ensure_future(log.save_snapshot("a", Snapshot(number, b"x" * 10_000)))
                for _ in range(number % 3):
                    await asyncio.sleep(0)
                saving.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await saving
                await append(log)
            await assert_whole(log)

    async def test_a_save_that_gets_no_lock_is_given_up_and_the_log_goes_on(
        self, path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with open_file(path, busy_timeout_s=0.2) as log:
            await append(log)
            with caplog.at_level(logging.WARNING, logger="eventlog"), file_lock_held(path):
                await log.save_snapshot("a", Snapshot(1, b"one"))
            assert "snapshot_not_saved" in caplog.text
            await append(log)
            await assert_whole(log)

    @pytest.mark.processes
    async def test_on_a_full_disk_no_snapshot_is_saved_and_the_old_one_stays(
        self, under_faults: Callable[..., Any], path: Path
    ) -> None:
        seen = under_faults(artifact_scenarios.snapshot_finds_no_room, path)
        assert seen.pop("hits") >= 1, "the fault was not injected"
        assert seen == {"saved": "ok", "appended": "ok", "kept": 1, "later": True, "reopened": []}

    @pytest.mark.processes
    async def test_a_failed_sync_of_a_save_lets_nobody_trust_that_connection_again(
        self, under_faults: Callable[..., Any], path: Path
    ) -> None:
        seen = under_faults(artifact_scenarios.fsync_of_a_snapshot_fails, path)
        assert seen.pop("hits") == 1, "the fault was not injected"
        assert seen.pop("kept") in (1, 2)
        assert seen == {
            "saved": "ok",
            "state": "poisoned",
            "appended": "ok",
            "later": True,
            "reopened": ["barrier_recorded"],
        }


async def test_a_log_in_memory_keeps_them_as_well() -> None:
    async with eventlog.open("memory:") as log:
        await log.save_snapshot("a", Snapshot(1, b"one"))
        assert await log.load_snapshot("a") == Snapshot(1, b"one")


def _tables(connection: sqlite3.Connection) -> list[str]:
    return [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
