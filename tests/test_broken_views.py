"""What once broke views: each test is named after its symptom."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

import eventlog
from eventlog import Expect
from eventlog.errors import EventLogError, InvalidInput, StoreBusy, StoreUnavailable
from eventlog.stores import SqliteLog
from eventlog.stores.sqlite.foreign_write import ConnectionBroken
from eventlog.stores.sqlite.view_registry import all_entries
from eventlog.views import ViewEvent
from projections import Row, RowProjection, SqliteView, ViewFile, rebuild_in_ranges, rebuild_view
from projections.sqlite_views import database, ranges
from projections.sqlite_views.build_lock import exclusive, is_held
from projections.sqlite_views.parts import drop_parts
from tests.totals import Totals, TotalsOfAmounts, orders
from tools.campaigns.storage.log_files import file_lock_held, open_file

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


async def append(log: SqliteLog, first: int, count: int) -> int:
    return (await log.append("orders", list(orders(first, count)), expect=Expect.any())).last_position


# ── hops: work on the thread of a connection ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("error", [StopIteration(3), StopAsyncIteration(), asyncio.CancelledError(), GeneratorExit()])
async def test_what_a_future_does_not_take_for_an_error_once_kept_its_caller_waiting_for_ever(
    tmp_path: Path, error: BaseException
) -> None:
    def fails(connection: sqlite3.Connection) -> None:
        raise error

    async with open_file(tmp_path / "log.db") as log, ViewFile(tmp_path / "views.db", log) as file:
        for run in (log.look, log.write_view, file.look, file.write_view):
            async with asyncio.timeout(20):
                with pytest.raises((RuntimeError, StopAsyncIteration)):
                    await run(fails)
        await append(log, 0, 1)


async def test_work_under_the_lock_that_took_longer_than_the_time_out_was_told_as_a_busy_lock(tmp_path: Path) -> None:
    def works(connection: sqlite3.Connection) -> str:
        time.sleep(1.5)
        return "done"

    async with open_file(tmp_path / "log.db", busy_timeout_s=0.1) as log:
        assert await log.write_view(works) == "done"


async def test_a_lock_that_somebody_else_has_is_still_told_as_busy(tmp_path: Path) -> None:
    async with open_file(tmp_path / "log.db", busy_timeout_s=0.1) as log:
        with file_lock_held(tmp_path / "log.db"), pytest.raises(StoreBusy):
            await asyncio.wait_for(log.write_view(lambda _: None), 20)
        await append(log, 0, 1)


async def test_a_write_that_could_not_be_ended_left_its_connection_in_use(tmp_path: Path) -> None:
    def breaks(connection: sqlite3.Connection) -> None:
        raise ConnectionBroken("a write could not be ended")

    async with open_file(tmp_path / "log.db") as log:
        with pytest.raises(StoreUnavailable, match="could not be ended") as broken:
            await log.write_view(breaks)
        assert (broken.value.code, (await log.health()).state) == ("store_io_error", "poisoned")
        assert await log.write_view(lambda _: "written") == "written"
        assert (await log.health()).state == "open"


# ── locks, and files of views ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_forked_child_once_kept_the_lock_of_a_view_that_its_parent_had_given_back(tmp_path: Path) -> None:
    place = str(tmp_path / "log.db")
    read, write = os.pipe()
    async with exclusive(place, "totals", waits=False):
        child = os.fork()
        if child == 0:
            os.write(write, b"!")
            signal.pause()
        assert os.read(read, 1) == b"!"
        assert is_held(place, "totals"), "the parent's lock is left alone"
    try:
        assert not is_held(place, "totals")
        async with exclusive(place, "totals", waits=False):
            assert is_held(place, "totals")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)  # noqa: ASYNC222 - it is dead
        os.close(read)
        os.close(write)


def test_each_page_of_a_file_of_views_once_waited_for_whoever_was_reading_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cut that waits would wait longer than a test may take."""
    path = str(tmp_path / "views.db")
    monkeypatch.setattr(database, "_CHECKPOINT_BYTES", 0)
    with (
        closing(sqlite3.connect(path, isolation_level=None, timeout=600)) as writer,
        closing(sqlite3.connect(path, isolation_level=None)) as reader,
    ):
        writer.execute("PRAGMA journal_mode=WAL")
        writer.execute("CREATE TABLE t (a)")
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM t").fetchall()
        writer.execute("INSERT INTO t VALUES (1)")
        database.cut_write_ahead_log(writer, path)
        assert os.path.getsize(f"{path}-wal") > 0
        assert writer.execute("PRAGMA busy_timeout").fetchone() == (600_000,)
        reader.execute("COMMIT")
        database.cut_write_ahead_log(writer, path)
        assert os.path.getsize(f"{path}-wal") == 0


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE totals__g7 (x)",
        "CREATE TABLE Totals__G7 (x)",
        "CREATE TABLE totals (x)",
        "CREATE INDEX totals__g7_i0 ON mine (x)",
        "CREATE UNIQUE INDEX u ON totals (orders)",
    ],
)
async def test_a_program_could_make_tables_that_builds_of_views_would_have_dropped(
    tmp_path: Path, statement: str
) -> None:
    async with open_file(tmp_path / "log.db", views=[SqliteView(Totals())]) as log:
        await log.create_table("CREATE TABLE mine (x)")
        with pytest.raises(InvalidInput, match="not authorized"):
            await log.create_table(statement)


# ── builds by several processes ──────────────────────────────────────────────────────────────────────────────────────


@eventlog.event("test_door_opened")
class DoorOpened(msgspec.Struct, frozen=True):
    """A door is open."""

    door: str


@eventlog.event("test_door_closed")
class DoorClosed(msgspec.Struct, frozen=True):
    """A door is closed."""

    door: str


class OpenDoors(RowProjection):
    """The doors that are open: a row goes when its door is closed."""

    name = "open_doors"
    columns = {"door": "TEXT PRIMARY KEY"}
    event_types = frozenset({"test_door_opened", "test_door_closed"})

    def key(self, event: ViewEvent) -> str:
        """Return the door."""
        door: str = event.data.door
        return door

    def apply(self, row: Row | None, event: ViewEvent) -> Row | None:
        """Keep an open door."""
        return {"door": event.data.door} if event.type == "test_door_opened" else None

    @staticmethod
    def merge(earlier: Row, later: Row) -> Row:
        """Return the later one, as one might think."""
        return later


async def fold_parts(log: SqliteLog, view: SqliteView, head: int) -> None:
    """Fold two ranges as two processes do."""
    for part in await log.write_view(ranges._parts, view, 2, head):
        await ranges._follow_part(log.place, view, part.state)


async def states(log: SqliteLog) -> list[str]:
    return [entry.state for entry in await log.look(all_entries)]


async def test_rows_that_went_in_a_later_range_once_stayed(tmp_path: Path) -> None:
    async with open_file(tmp_path / "log.db", busy_timeout_s=30) as log:
        await log.append("doors", [DoorOpened(f"door-{n}") for n in range(1500)], expect=Expect.any())
        await log.append("doors", [DoorOpened(f"door-{n}") for n in range(1500, 3000)], expect=Expect.any())
        await log.append("doors", [DoorClosed("door-3"), DoorOpened("door-3")], expect=Expect.any())
        await log.append("doors", [DoorClosed("door-5")], expect=Expect.any())
        view = SqliteView(OpenDoors())
        await fold_parts(log, view, 3003)
        with pytest.raises(EventLogError, match="cannot be split") as failed:
            await rebuild_in_ranges(log, view, processes=2)
        assert (failed.value.code, failed.value.details["position"]) == ("view_failed", 3001)
        await rebuild_view(log, view)
        assert await log.look(view.count) == 2999


async def test_a_row_may_go_in_the_first_range(tmp_path: Path) -> None:
    async with open_file(tmp_path / "log.db", busy_timeout_s=30) as log:
        await log.append("doors", [DoorOpened("door"), DoorClosed("door")], expect=Expect.any())
        await log.append("doors", [DoorOpened(f"door-{n}") for n in range(3000)], expect=Expect.any())
        view = SqliteView(OpenDoors())
        await fold_parts(log, view, 3002)
        await rebuild_in_ranges(log, view, processes=2)
        assert await log.look(view.count) == 3000


def _raises(earlier: Row, later: Row) -> Row:
    raise KeyError("merge")


def _exits(earlier: Row, later: Row) -> Row:
    raise SystemExit(3)


def _loses(earlier: Row, later: Row) -> Any:
    return None


def _renames(earlier: Row, later: Row) -> Row:
    return {**later, "customer": "nobody"}


@pytest.mark.parametrize("merge", [_raises, _exits, _loses, _renames, lambda *_: {"customer": 5}])
async def test_a_merge_that_does_wrong_once_ended_without_a_code_and_left_its_tables(
    tmp_path: Path, merge: Any
) -> None:
    wrong = type("Wrong", (TotalsOfAmounts,), {"merge": staticmethod(merge)})
    async with open_file(tmp_path / "log.db", busy_timeout_s=30) as log:
        await append(log, 0, 3000)
        view = SqliteView(wrong())
        await fold_parts(log, view, 3000)
        with pytest.raises(EventLogError, match="cannot be merged") as failed:
            await rebuild_in_ranges(log, view, processes=2)
        assert failed.value.code == "view_failed"
        await append(log, 3000, 1)
        assert await states(log) == ["merging", "part-1500-3000"]
        await log.write_view(drop_parts, view)
        await rebuild_view(log, view)
        assert await states(log) == ["live"]
