"""Durable subscriptions: each event once, position and effect in one transaction, across crashes."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

import eventlog
from eventlog import Expect, NewEvent
from eventlog.errors import EventLogError, InvalidInput
from eventlog.log import EventReader, RecordedEvent
from eventlog.stores import SqliteLog
from eventlog.stores.sqlite.saved_positions import SavedPosition, positions_at, saved_positions
from eventlog.stores.sqlite.view_registry import all_entries, table_name
from projections import Consumer, SqliteView, rebuild_view
from projections.sqlite_views import cursors
from tests import runner_scenarios as scenarios
from tests.totals import OrderPlaced, Totals, TotalsOfAmounts, orders
from tools.campaigns.processes.child import start
from tools.campaigns.storage.log_files import open_file

LETTERS = "CREATE TABLE IF NOT EXISTS letters (position INTEGER, customer TEXT)"


@pytest.fixture(params=["the log's own database", "a file of its own"])
def into(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    if request.param == "the log's own database":
        return None
    with closing(sqlite3.connect(tmp_path / "letters.db")) as connection:
        connection.execute(LETTERS)
    return tmp_path / "letters.db"


async def append(log: SqliteLog, first: int, count: int) -> int:
    return (await log.append("orders", list(orders(first, count)), expect=Expect.any())).last_position


@asynccontextmanager
async def opened(tmp_path: Path, into: Path | None) -> AsyncIterator[SqliteLog]:
    async with open_file(tmp_path / "log.db", busy_timeout_s=30) as log:
        if into is None:
            await log.create_table(LETTERS)
        yield log


@asynccontextmanager
async def running(consumer: Consumer) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(consumer.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})


def letters(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as connection:
        return [position for (position,) in connection.execute("SELECT position FROM letters ORDER BY rowid")]


def make(log: EventReader, into: Path | None, handle: Callable[[Any, RecordedEvent], None] | None = None) -> Consumer:
    return Consumer(log, "letters", handle or scenarios.write_letter, into=into, types=["test_order_placed"])


# ── once each ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_consumer_that_ended_goes_on_with_the_next_event(tmp_path: Path, into: Path | None) -> None:
    async with opened(tmp_path, into) as log:
        for number in range(4):
            position = await append(log, number * 50, 50)
            consumer = make(log, into)
            async with running(consumer):
                await consumer.wait_for(position, timeout_s=20)
    assert letters(into or tmp_path / "log.db") == list(range(1, 201))


async def test_positions_of_events_that_it_does_not_want_are_saved_as_well(tmp_path: Path, into: Path | None) -> None:
    async with opened(tmp_path, into) as log:
        await append(log, 0, 1)
        result = await log.append("s", [NewEvent("other", {"n": n}) for n in range(3000)], expect=Expect.any())
        consumer = make(log, into)
        async with running(consumer):
            await consumer.wait_for(result.last_position, timeout_s=20)
        again = make(log, into)
        async with running(again):
            await again.wait_for(result.last_position, timeout_s=20)
    with closing(sqlite3.connect(into or tmp_path / "log.db")) as connection:
        assert connection.execute("SELECT name, position FROM consumers").fetchall() == [("letters", 3001)]
    assert letters(into or tmp_path / "log.db") == [1]


async def test_a_new_consumer_may_begin_behind_the_past(tmp_path: Path, into: Path | None) -> None:
    async with opened(tmp_path, into) as log:
        await append(log, 0, 10)
        consumer = Consumer(log, "letters", scenarios.write_letter, into=into, start_after=7)
        async with running(consumer):
            await consumer.wait_for(10)
    assert letters(into or tmp_path / "log.db") == [8, 9, 10]


async def test_two_consumers_of_one_log_keep_apart(tmp_path: Path, into: Path | None) -> None:
    async with opened(tmp_path, into) as log:
        position = await append(log, 0, 10)
        consumers = [Consumer(log, name, scenarios.write_letter, into=into) for name in ("a", "b")]
        async with running(consumers[0]), running(consumers[1]):
            for consumer in consumers:
                await consumer.wait_for(position)
    assert sorted(letters(into or tmp_path / "log.db")) == sorted([*range(1, 11), *range(1, 11)])


# ── what a handler does wrong ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_handler_that_raises_stops_in_front_of_its_event_and_nothing_of_it_is_kept(
    tmp_path: Path, into: Path | None
) -> None:
    is_cured = False

    def handle(connection: Any, event: RecordedEvent) -> None:
        scenarios.write_letter(connection, event)
        if event.data.amount == 30 and not is_cured:
            raise ZeroDivisionError("no letter to customer-30")

    async with opened(tmp_path, into) as log:
        position = await append(log, 0, 60)
        async with running(make(log, into, handle)) as task:
            await asyncio.wait({task}, timeout=20)
            error = task.exception()
        assert isinstance(error, EventLogError)
        assert (error.code, error.details["position"]) == ("consumer_failed", 31)
        assert "no letter to customer-30" in str(error)
        assert letters(into or tmp_path / "log.db") == list(range(1, 31))
        is_cured = True
        consumer = make(log, into, handle)
        async with running(consumer):
            await consumer.wait_for(position, timeout_s=20)
    assert letters(into or tmp_path / "log.db") == list(range(1, 61))


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK", "END"])
async def test_a_handler_cannot_part_its_rows_from_the_position(
    tmp_path: Path, into: Path | None, statement: str
) -> None:
    def handle(connection: Any, event: RecordedEvent) -> None:
        scenarios.write_letter(connection, event)
        connection.execute(statement)

    async with opened(tmp_path, into) as log:
        await append(log, 0, 3)
        async with running(make(log, into, handle)) as task:
            await asyncio.wait({task}, timeout=20)
            assert isinstance(task.exception(), EventLogError)
        assert letters(into or tmp_path / "log.db") == []
        await append(log, 3, 1)


async def test_a_handler_in_the_log_s_database_cannot_write_the_log_or_its_views(tmp_path: Path) -> None:
    def handle(connection: Any, event: RecordedEvent) -> None:
        connection.execute("UPDATE views SET position = 0")

    async with open_file(tmp_path / "log.db", views=[SqliteView(Totals())]) as log:
        await append(log, 0, 3)
        async with running(make(log, None, handle)) as task:
            await asyncio.wait({task}, timeout=20)
            assert isinstance(task.exception(), EventLogError)
            assert "not authorized" in str(task.exception()) or "prohibited" in str(task.exception())


async def test_a_log_in_memory_needs_a_file_to_save_positions_in(tmp_path: Path) -> None:
    async with eventlog.open("memory:") as log:
        with pytest.raises(InvalidInput, match="say with `into` where to write"):
            await Consumer(log, "letters", scenarios.write_letter).run()


async def test_a_consumer_ahead_of_the_log_says_so(tmp_path: Path) -> None:
    into = tmp_path / "letters.db"
    with closing(sqlite3.connect(into)) as connection:
        connection.execute(LETTERS)
    async with open_file(tmp_path / "log.db") as log:
        await append(log, 0, 3)
        consumer = make(log, into)
        async with running(consumer):
            await consumer.wait_for(3)
        with closing(sqlite3.connect(into)) as connection, connection:
            connection.execute("UPDATE consumers SET position = 9")
        with pytest.raises(EventLogError) as rolled_back:
            await make(log, into).run()
        assert rolled_back.value.code == "store_rolled_back"
    async with open_file(tmp_path / "other.db") as log:
        with pytest.raises(EventLogError) as foreign:
            await make(log, into).run()
        assert foreign.value.code == "view_of_another_log"


# ── crashes and several processes ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.campaign
async def test_letters_are_written_once_each_by_processes_that_are_killed_at_random(
    tmp_path: Path, into: Path | None
) -> None:
    chance = random.Random()
    async with opened(tmp_path, into) as log:
        position = 0
        for number in range(6):
            running_processes = [start(scenarios.consumes, tmp_path / "log.db", into or "") for _ in range(2)]
            for process in running_processes:
                assert process.stdout is not None
                assert (await asyncio.to_thread(process.stdout.readline)).strip() == "READY"
            for _ in range(15):
                position = await append(log, number * 100, 20)
                await asyncio.sleep(chance.uniform(0, 0.01))
            for process in running_processes:
                process.kill()
                await asyncio.to_thread(process.communicate)
        consumer = make(log, into)
        async with running(consumer):
            await consumer.wait_for(position, timeout_s=30)
    assert letters(into or tmp_path / "log.db") == list(range(1, position + 1))


async def test_saving_the_position_in_a_second_transaction_would_be_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: what is broken on purpose writes the same letters twice behind a crash in between."""

    def take_without_position(
        connection: sqlite3.Connection, _: Any, may_define: bool, handled: Any, handle: Any, events: Any, end: Any
    ) -> Any:
        for event in events:
            handle(connection, event)
        return end

    into = tmp_path / "letters.db"
    with closing(sqlite3.connect(into)) as connection:
        connection.execute(LETTERS)
    async with open_file(tmp_path / "log.db") as log:
        await append(log, 0, 3)
        monkeypatch.setattr(cursors, "_take", take_without_position)
        async with running(make(log, into)):
            async with asyncio.timeout(10):
                while len(letters(into)) < 3:  # noqa: ASYNC110 - another connection writes them
                    await asyncio.sleep(0.01)
        monkeypatch.undo()
        consumer = make(log, into)
        async with running(consumer):
            await consumer.wait_for(3)
    assert letters(into) == [1, 2, 3, 1, 2, 3]


async def test_raising_a_projection_s_revision_sends_no_letter_again(tmp_path: Path, into: Path | None) -> None:
    async with opened(tmp_path, into) as log:
        consumer = make(log, into)
        async with running(consumer):
            await rebuild_view(log, SqliteView(Totals()))
            await consumer.wait_for(await append(log, 0, 100), timeout_s=20)
            await rebuild_view(log, SqliteView(TotalsOfAmounts()))
            await consumer.wait_for(await append(log, 100, 1), timeout_s=20)
    assert letters(into or tmp_path / "log.db") == list(range(1, 102))


# ── what a consumer is given ─────────────────────────────────────────────────────────────────────────────────────────


async def test_a_struct_stands_for_its_event_type(tmp_path: Path, into: Path | None) -> None:
    async with opened(tmp_path, into) as log:
        await log.append("s", [NewEvent("other", {"n": 1})], expect=Expect.any())
        position = await append(log, 0, 3)
        consumer = Consumer(log, "letters", scenarios.write_letter, into=into, types=[OrderPlaced])
        async with running(consumer):
            await consumer.wait_for(position)
    assert letters(into or tmp_path / "log.db") == [2, 3, 4]


@pytest.mark.parametrize("types", ["test_order_placed", OrderPlaced, [3], [None], 5, [dict]])
async def test_what_is_no_list_of_event_types_is_refused(tmp_path: Path, types: Any) -> None:
    async with open_file(tmp_path / "log.db") as log:
        with pytest.raises(InvalidInput, match=r"types|registered"):
            Consumer(log, "letters", scenarios.write_letter, types=types)


async def _asynchronous(connection: Any, event: RecordedEvent) -> None:
    raise NotImplementedError


def _generator(connection: Any, event: RecordedEvent) -> Any:
    scenarios.write_letter(connection, event)
    yield


async def _asynchronous_generator(connection: Any, event: RecordedEvent) -> Any:
    scenarios.write_letter(connection, event)
    yield


@pytest.mark.parametrize("handle", [_asynchronous, _generator, _asynchronous_generator, "write", None])
async def test_a_handler_that_does_nothing_when_it_is_called_is_refused(tmp_path: Path, handle: Any) -> None:
    async with open_file(tmp_path / "log.db") as log:
        with pytest.raises(InvalidInput, match="a plain function"):
            Consumer(log, "letters", handle)


@pytest.mark.parametrize("handle", [_asynchronous, _generator, lambda *_: 1])
async def test_a_handler_that_returns_something_has_handled_nothing(
    tmp_path: Path, into: Path | None, handle: Any
) -> None:
    async with opened(tmp_path, into) as log:
        await append(log, 0, 3)
        consumer = make(log, into, lambda connection, event: handle(connection, event))
        async with running(consumer) as task:
            with pytest.raises(EventLogError, match="the handler returned a"):
                await consumer.wait_for(3, timeout_s=20)
            await asyncio.wait({task})
    assert consumer.position == 0


@pytest.mark.parametrize("start_after", [-1, 1.5, True, "x", None])
async def test_a_consumer_begins_at_a_position(tmp_path: Path, start_after: Any) -> None:
    async with open_file(tmp_path / "log.db") as log:
        with pytest.raises(InvalidInput, match="`start_after`"):
            Consumer(log, "letters", scenarios.write_letter, start_after=start_after)


async def test_beginning_beyond_the_end_of_the_log_saves_nothing(tmp_path: Path, into: Path | None) -> None:
    async with opened(tmp_path, into) as log:
        await append(log, 0, 3)
        with pytest.raises(InvalidInput, match="beyond the end of the log at 3"):
            beyond = Consumer(log, "letters", scenarios.write_letter, into=into, start_after=100)
            await asyncio.wait_for(beyond.run(), 20)
        consumer = Consumer(log, "letters", scenarios.write_letter, into=into, start_after=2)
        async with running(consumer):
            await consumer.wait_for(3)
    assert letters(into or tmp_path / "log.db") == [3]


# ── logs that were restored ──────────────────────────────────────────────────────────────────────────────────────────


def restore(path: Path, backup: Path) -> None:
    for end in ("", "-wal", "-shm"):
        Path(f"{path}{end}").unlink(missing_ok=True)
    path.write_bytes(backup.read_bytes())


@pytest.mark.parametrize("is_wanted", [True, False])
async def test_a_restored_log_that_grew_beyond_the_saved_position_is_not_taken_for_the_one_that_was_handled(
    tmp_path: Path, is_wanted: bool
) -> None:
    path, into, backup = tmp_path / "log.db", tmp_path / "letters.db", tmp_path / "backup.db"
    with closing(sqlite3.connect(into)) as connection:
        connection.execute(LETTERS)
    types = ["test_order_placed" if is_wanted else "other"]
    async with open_file(path) as log:
        await append(log, 0, 10)
        await log.backup(backup)
        await append(log, 10, 5)
        consumer = Consumer(log, "letters", scenarios.write_letter, into=into, types=types)
        async with running(consumer):
            await consumer.wait_for(15)
        async with running(Consumer(log, "letters", scenarios.write_letter, into=into, types=types)) as task:
            await asyncio.wait({task}, timeout=0.2)
            assert not task.done(), "the log is the one that was handled"
    restore(path, backup)
    async with open_file(path) as log:
        await append(log, 100, 20)
        with pytest.raises(EventLogError, match="another event now") as rolled_back:
            await asyncio.wait_for(Consumer(log, "letters", scenarios.write_letter, into=into, types=types).run(), 20)
        assert rolled_back.value.code == "store_rolled_back"
    assert letters(into) == (list(range(1, 16)) if is_wanted else [])


# ── what a handler may do in its transaction ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("is_caught", [True, False])
async def test_a_handler_whose_statement_ends_the_transaction_writes_nothing_behind_it(
    tmp_path: Path, into: Path | None, is_caught: bool
) -> None:
    def handle(connection: Any, event: RecordedEvent) -> None:
        if event.position < 3:
            scenarios.write_letter(connection, event)
            return
        try:
            connection.execute("INSERT OR ROLLBACK INTO letters (rowid, position) VALUES (1, 0)")
        except sqlite3.IntegrityError:
            if not is_caught:
                scenarios.write_letter(connection, event)

    async with opened(tmp_path, into) as log:
        await append(log, 0, 5)
        for _ in range(2):
            with pytest.raises(EventLogError) as failed:
                await make(log, into, handle).run()
            assert (failed.value.code, failed.value.details["position"]) == ("consumer_failed", 3)
        await append(log, 5, 1)
    assert letters(into or tmp_path / "log.db") == [1, 2]


async def test_a_handler_that_exits_ends_its_consumer_and_no_thread(tmp_path: Path, into: Path | None) -> None:
    def handle(connection: Any, event: RecordedEvent) -> None:
        raise SystemExit(3)

    async with opened(tmp_path, into) as log:
        await append(log, 0, 1)
        with pytest.raises(EventLogError, match="SystemExit: 3") as failed:
            await make(log, into, handle).run()
        assert failed.value.code == "consumer_failed"
        await append(log, 1, 1)


async def test_a_handler_cannot_write_what_is_built_or_kept_of_a_view(tmp_path: Path) -> None:
    refused: list[str] = []

    def handle(connection: Any, event: RecordedEvent) -> None:
        for table in ("totals", "TOTALS", kept, "consumers"):
            with pytest.raises(sqlite3.DatabaseError, match=r"not authorized|prohibited"):
                connection.execute(f"DELETE FROM {table}")
            refused.append(table)
        connection.execute("INSERT INTO letters VALUES (1, 'customer')")

    async with opened(tmp_path, None) as log:
        position = await append(log, 0, 1)
        await rebuild_view(log, SqliteView(Totals()))
        await rebuild_view(log, SqliteView(TotalsOfAmounts()))
        (kept,) = [table_name("totals", entry) for entry in await log.look(all_entries) if entry.state == "kept"]
        consumer = make(log, None, handle)
        async with running(consumer):
            await consumer.wait_for(position)
    assert refused == ["totals", "TOTALS", kept, "consumers"]


async def test_a_handler_may_make_tables_in_a_file_of_its_own_but_not_touch_the_positions(tmp_path: Path) -> None:
    def handle(connection: Any, event: RecordedEvent) -> None:
        connection.execute(LETTERS)
        connection.execute("CREATE INDEX IF NOT EXISTS by_customer ON letters (customer)")
        scenarios.write_letter(connection, event)
        for statement in _NOT_OF_A_HANDLER:
            with pytest.raises(sqlite3.DatabaseError, match=r"not authorized|prohibited"):
                connection.execute(statement)

    async with open_file(tmp_path / "log.db") as log:
        position = await append(log, 0, 3)
        consumer = make(log, tmp_path / "letters.db", handle)
        async with running(consumer):
            await consumer.wait_for(position)
    assert letters(tmp_path / "letters.db") == [1, 2, 3]


_NOT_OF_A_HANDLER = (
    "UPDATE consumers SET position = 0",
    "DROP TABLE consumers",
    "ALTER TABLE consumers RENAME TO others",
    "CREATE TRIGGER t AFTER UPDATE ON consumers BEGIN DELETE FROM letters; END",
    "COMMIT",
    "SAVEPOINT s",
    "PRAGMA journal_mode=DELETE",
    "ATTACH ':memory:' AS other",
)


# ── waiting, and being slow ──────────────────────────────────────────────────────────────────────────────────────────


async def test_whoever_waits_for_a_consumer_is_told_why_it_ended(tmp_path: Path, into: Path | None) -> None:
    def handle(connection: Any, event: RecordedEvent) -> None:
        raise ZeroDivisionError("no letters today")

    async with opened(tmp_path, into) as log:
        consumer = make(log, into, handle)
        async with running(consumer):
            waiting = asyncio.create_task(consumer.wait_for(1, timeout_s=20))
            await append(log, 0, 1)
            with pytest.raises(EventLogError, match="no letters today") as failed:
                await waiting
        assert failed.value.code == "consumer_failed"
        with pytest.raises(EventLogError, match="no letters today"):
            await consumer.wait_for(1, timeout_s=20)


@pytest.mark.parametrize("is_slow", [True, False])
async def test_a_slow_handler_keeps_no_transaction_open_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_slow: bool
) -> None:
    path = tmp_path / "letters.db"
    saved: list[int] = []

    def handle(connection: Any, event: RecordedEvent) -> None:
        scenarios.write_letter(connection, event)
        with closing(sqlite3.connect(path)) as other:
            saved.append(other.execute("SELECT position FROM consumers").fetchone()[0])

    with closing(sqlite3.connect(path)) as connection:
        connection.execute(LETTERS)
    monkeypatch.setattr(cursors, "_LONGEST_S", 0.0 if is_slow else 60.0)
    async with open_file(tmp_path / "log.db") as log:
        position = await append(log, 0, 5)
        consumer = make(log, path, handle)
        async with running(consumer):
            await consumer.wait_for(position)
    assert saved == ([0, 1, 2, 3, 4] if is_slow else [0, 0, 0, 0, 0])
    assert letters(path) == [1, 2, 3, 4, 5]


async def test_whoever_only_looks_is_told_up_to_where_each_consumer_has_come(tmp_path: Path, into: Path | None) -> None:
    async def saved(log: SqliteLog) -> list[SavedPosition]:
        return await log.look(saved_positions) if into is None else await positions_at(str(into))

    async with opened(tmp_path, into) as log:
        assert await saved(log) == []
        await append(log, 0, 3)
        consumer = make(log, into)
        async with running(consumer):
            await consumer.wait_for(3)
        assert await saved(log) == [SavedPosition("letters", 3, log.store_id)]


async def test_whoever_looks_for_consumers_in_what_is_no_database_is_told_so(tmp_path: Path) -> None:
    nothing, none = tmp_path / "letters.txt", tmp_path / "none" / "letters.db"
    nothing.write_text("Dear Ann, this is no database, long as it may be.\n" * 100)
    for path, code in ((nothing, "store_corrupt"), (none, "store_cannot_open")):
        with pytest.raises(EventLogError) as caught:
            await positions_at(str(path))
        assert getattr(caught.value, "reason", caught.value.code) == code
