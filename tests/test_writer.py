"""The writer of a log: what those who wait are told when it is cancelled, fails, or loses its files in the middle.

A view of the test stands in for a disk that does not answer: it holds a transaction up, and then does what is told.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eventlog import CommitOutcomeUnknown, EventLogError, Expect, NewEvent
from eventlog.errors import StoreBusy, StoreUnavailable
from eventlog.log import AppendResult
from eventlog.stores import SqliteLog
from eventlog.stores.sqlite.foreign_write import ConnectionBroken
from eventlog.stores.sqlite.wal import WalCheckpoints
from eventlog.stores.sqlite.writer import Writer
from eventlog.views import ViewEntry
from tests.failure_scenarios import StuckView
from tools.campaigns.processes.waiting import until
from tools.campaigns.storage.log_files import file_lock_held, open_file


class HeldUp(StuckView):
    """Waits when it is told to, and then does something else before it goes on."""

    then: Callable[[], None] | None = None

    def apply(self, connection: sqlite3.Connection, entry: ViewEntry, events: Any, cache: Any = None) -> None:
        """Wait, if told to; then do it."""
        super().apply(connection, entry, events, cache)
        if self.then is not None:
            self.then()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


def append(log: SqliteLog) -> asyncio.Task[AppendResult]:
    return asyncio.create_task(log.append("s", [NewEvent("noted", {})], expect=Expect.any()))


def writer_of(log: SqliteLog) -> Writer:
    assert log._writer is not None
    return log._writer


async def held_up(log: SqliteLog, view: HeldUp) -> asyncio.Task[AppendResult]:
    """Begin an append that hangs in the middle of its transaction."""
    view.is_stuck.set()
    appending = append(log)
    await until(view.has_begun.is_set)
    return appending


def fails_with(name: str) -> Callable[[], None]:
    def fail() -> None:
        error = sqlite3.OperationalError(name)
        error.sqlite_errorcode, error.sqlite_errorname = getattr(sqlite3, name), name
        raise error

    return fail


async def told(appending: asyncio.Task[AppendResult]) -> str:
    try:
        await appending
    except EventLogError as error:
        return error.code
    return "ok"


async def test_files_that_go_in_the_middle_leave_one_in_doubt_and_refuse_those_behind_him(path: Path) -> None:
    view = HeldUp()
    async with open_file(path, views=[view]) as log:
        await append(log)
        first = await held_up(log, view)
        second = append(log)
        await until(lambda: writer_of(log).queued == 1)
        view.then = lambda: os.rename(f"{path}-wal", f"{path}-wal.away")
        view.may_go_on.set()
        assert [await told(each) for each in (first, second)] == ["commit_outcome_unknown", "store_identity_changed"]
        assert await told(append(log)) == "store_identity_changed"


@pytest.mark.parametrize(
    ("then", "code"),
    [
        (fails_with("SQLITE_IOERR_READ"), "store_io_error"),
        (None, "ok"),
    ],
    ids=["its disk has failed", "it is written"],
)
async def test_writer_that_is_cancelled_in_a_transaction_tells_what_has_become_of_it(
    path: Path, then: Callable[[], None] | None, code: str
) -> None:
    view = HeldUp()
    async with open_file(path, views=[view]) as log:
        await append(log)
        waiting = await held_up(log, view)
        view.then = then
        writer = writer_of(log)
        writer._task.cancel()
        await asyncio.sleep(0.05)
        view.may_go_on.set()
        assert await told(waiting) == code
        await until(writer._task.done)
        assert await told(append(log)) == "engine_closed"


async def test_writer_that_is_cancelled_at_a_commit_in_doubt_says_that_it_is(path: Path) -> None:
    view = HeldUp()
    async with open_file(path, views=[view]) as log:
        await append(log)
        waiting = await held_up(log, view)
        view.then = lambda: os.rename(f"{path}-wal", f"{path}-wal.away")
        writer_of(log)._task.cancel()
        await asyncio.sleep(0.05)
        view.may_go_on.set()
        with pytest.raises(CommitOutcomeUnknown):
            await waiting


async def test_writer_that_fails_as_nobody_thought_of_leaves_nobody_waiting_and_takes_nothing_more(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError("nobody thought of it")

    async with open_file(path) as log:
        await append(log)
        with monkeypatch.context() as patch:
            patch.setattr(WalCheckpoints, "note_commit", fails)
            assert await told(append(log)) == "ok", "he was told before"
            await until(writer_of(log)._task.done)
        assert (await log.health()).state == "poisoned"
        assert await told(append(log)) == "engine_closed"
        assert (await log.read_stream("s")).version == 2


async def test_closing_answers_who_is_queued_behind_a_lock_that_is_never_free(path: Path) -> None:
    async with open_file(path, busy_timeout_s=30) as log:
        await append(log)
        with file_lock_held(path):
            first = append(log)
            await asyncio.sleep(0.05)
            assert writer_of(log).queued == 0, "it was taken, and waits for the lock"
            second = append(log)
            await until(lambda: writer_of(log).queued == 1)
            await log.close()
            assert [await told(each) for each in (first, second)] == ["store_busy", "engine_closed"]


async def test_what_breaks_on_a_connection_that_was_given_up_says_nothing_of_the_new_one(path: Path) -> None:
    view = HeldUp()

    def waits_and_breaks(*_: object) -> None:
        view.has_begun.set()
        view.may_go_on.wait(60)
        raise ConnectionBroken("a write could not be ended")

    def breaks(*_: object) -> None:
        raise ConnectionBroken("this one neither")

    async with open_file(path) as log:
        await append(log)
        writer = writer_of(log)
        early = asyncio.create_task(writer.transact(breaks))
        late = asyncio.create_task(writer.transact(waits_and_breaks))
        with pytest.raises(StoreUnavailable, match="this one neither"):
            await early
        assert await told(append(log)) == "ok", "on a new connection"
        view.may_go_on.set()
        with pytest.raises(StoreUnavailable, match="could not be ended"):
            await late
        assert (await log.health()).state == "open"


async def test_what_a_view_has_written_is_moved_out_of_the_write_ahead_log_in_time(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WalCheckpoints, "SOFT_LIMIT", 1)
    ran: list[bool] = []
    run = WalCheckpoints.run

    def counted(wal: WalCheckpoints, connection: sqlite3.Connection, *, is_last: bool = False) -> None:
        ran.append(is_last)
        run(wal, connection, is_last=is_last)

    monkeypatch.setattr(WalCheckpoints, "run", counted)
    async with open_file(path) as log:
        await log.create_table("CREATE TABLE own_counts (n INTEGER)")
        ran.clear()
        await log.write_view(lambda connection: connection.execute("INSERT INTO own_counts VALUES (1)").rowcount)
        assert ran == [False]


async def test_reader_that_finds_no_free_connection_and_no_lock_is_told_so(path: Path) -> None:
    async with open_file(path, busy_timeout_s=0.1) as log:
        await append(log)
        with file_lock_held(path):
            heads = await asyncio.gather(*(log.head() for _ in range(3)), return_exceptions=True)
            assert {type(head) for head in heads if isinstance(head, Exception)} == {StoreBusy}
        assert (await log.head()).position == 1


async def test_reader_for_whom_no_connection_can_be_opened_is_told_why(path: Path) -> None:
    async with open_file(path) as log:
        await append(log)
        await asyncio.gather(log.head(), return_exceptions=True)
        os.rename(path, f"{path}.away")
        heads = await asyncio.gather(*(log.head() for _ in range(3)), return_exceptions=True)
        os.rename(f"{path}.away", path)
        assert {head.code for head in heads if isinstance(head, EventLogError)} == {"store_not_found"}
        assert (await log.head()).position == 1


async def test_reader_that_waits_for_a_connection_when_the_log_is_closed_is_answered(path: Path) -> None:
    async with open_file(path, busy_timeout_s=1.5) as log:
        await append(log)
        with file_lock_held(path):
            heads = [asyncio.create_task(log.head()) for _ in range(3)]
            await asyncio.sleep(0.1)
            await log.close()
            found = await asyncio.gather(*heads, return_exceptions=True)
    assert {getattr(each, "code", "read") for each in found} <= {"read", "store_busy", "engine_closed"}
    assert any(isinstance(each, StoreBusy) for each in found)


async def test_a_poisoned_store_whose_disk_is_full_is_told_as_full_and_works_when_there_is_room(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(connection: sqlite3.Connection) -> None:
        raise ConnectionBroken("a write could not be ended")

    async def finds_no_room() -> None:
        raise StoreUnavailable("store_full", "cannot open: database or disk is full")

    async with open_file(path, busy_timeout_s=1) as log:
        with pytest.raises(StoreUnavailable):
            await log.write_view(breaks)
        with monkeypatch.context() as full:
            full.setattr(writer_of(log), "_reopen", finds_no_room)
            with pytest.raises(StoreUnavailable, match="cannot be reopened after: a write could not be") as refusal:
                await append(log)
        assert refusal.value.code == "store_full"
        assert (await append(log)).version == 1
