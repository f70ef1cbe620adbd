"""What once broke a view, each by its symptom: tables destroyed, rows folded twice, stale answers, hanging readers."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

import eventlog
from eventlog import Expect, NewEvent
from eventlog.codec import Registry
from eventlog.errors import EventLogError, InvalidInput, Misuse
from eventlog.stores import SqliteLog
from eventlog.stores.sqlite.view_builds import begin_build
from eventlog.stores.sqlite.view_registry import add_entry, all_entries, find_entry, remove_entry
from eventlog.views import ViewEvent
from projections import (
    Consumer,
    GroupProjection,
    Key,
    MemoryView,
    ProjectionRunner,
    Row,
    RowProjection,
    SqliteView,
    check_view,
    rebuild_view,
)
from tests import runner_scenarios as scenarios
from tests.totals import OrderPlaced, Totals, TotalsOfAmounts, dump, orders
from tools.campaigns.storage.log_files import open_file


async def append(log: SqliteLog, first: int, count: int) -> int:
    return (await log.append("orders", list(orders(first, count)), expect=Expect.any())).last_position


async def assert_equal_to_a_fresh_one(log: SqliteLog, view: SqliteView) -> None:
    checked = await check_view(log, view)
    assert checked is not None
    assert (checked.position, checked.differences) == (checked.head, [])


def edit(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as editor, editor:
        for statement in statements:
            editor.execute(statement)


# ── names ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("taken", ["events", "views", "consumers", "snapshots", "meta", "streams"])
def test_a_view_named_like_a_table_of_the_log_is_refused_before_anything_is_opened(taken: str) -> None:
    class Named(Totals):
        name = taken

    with pytest.raises(InvalidInput, match="is the name of a table of the log"):
        SqliteView(Named())


@pytest.mark.parametrize(
    "theirs", ["CREATE TABLE totals (a)", "CREATE TABLE Totals (a)", "CREATE VIEW totals AS SELECT 1"]
)
async def test_what_somebody_keeps_under_the_view_s_name_is_left_as_it_is(tmp_path: Path, theirs: str) -> None:
    path = tmp_path / "log.db"
    async with open_file(path) as log:
        await append(log, 0, 3)
    edit(path, theirs, *(["INSERT INTO totals VALUES (42)"] if "TABLE" in theirs else []))
    view = SqliteView(Totals())
    with pytest.raises(Misuse) as inline:
        await open_file(path, views=[view]).__aenter__()
    assert inline.value.code == "view_name_taken"
    async with open_file(path) as log:
        with pytest.raises(Misuse) as rebuilt:
            await rebuild_view(log, view)
        assert rebuilt.value.code == "view_name_taken"
        async with ProjectionRunner(log, [view]) as runner:
            with pytest.raises(Misuse):
                await runner.wait_for("totals", 3)
        assert await log.look(_rows_of, "totals") == [(42 if "TABLE" in theirs else 1,)]


def _rows_of(connection: sqlite3.Connection, table: str) -> list[Any]:
    return connection.execute(f"SELECT * FROM {table}").fetchall()


async def test_tables_whose_entries_were_deleted_by_hand_are_taken_over_and_built_again(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    view = SqliteView(Totals())
    async with open_file(path, views=[view]) as log:
        await append(log, 0, 30)
        await rebuild_view(log, view)
    edit(path, "DELETE FROM views", "DELETE FROM sqlite_sequence")
    async with open_file(path) as log:
        await rebuild_view(log, view)
        await rebuild_view(log, view)
        await assert_equal_to_a_fresh_one(log, view)


async def test_names_may_be_words_of_sql(tmp_path: Path) -> None:
    class Order(RowProjection):
        name = "transaction"
        columns = {"group": "TEXT PRIMARY KEY", "order": "INTEGER NOT NULL", "select": "INTEGER"}
        indexes = ("order", "select, group")
        event_types = frozenset({"test_order_placed"})

        def key(self, event: ViewEvent) -> Key:
            return str(event.data.customer)

        def apply(self, row: Row | None, event: ViewEvent) -> Row:
            return {"group": event.data.customer, "order": event.data.amount, "select": None}

    view = SqliteView(Order())
    async with open_file(tmp_path / "log.db", views=[view]) as log:
        await append(log, 0, 20)
        await rebuild_view(log, view)
        await append(log, 20, 20)
        await assert_equal_to_a_fresh_one(log, view)
        assert len(await log.read_view(view.rows_where, "order", 3)) == 1


# ── definitions ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        ({"event_types": "test_order_placed"}, "not one text"),
        ({"event_types": [OrderPlaced]}, "are names"),
        (
            {"columns": {"k": "TEXT PRIMARY KEY", "n": "INTEGER; DROP TABLE x"}},
            "with NOT NULL or PRIMARY KEY",
        ),
        ({"columns": {"k": "TEXT COLLATE NOCASE PRIMARY KEY"}}, "with NOT NULL or PRIMARY KEY"),
        ({"columns": {"k": "TEXT", "n": "INTEGER"}}, "ends with PRIMARY KEY"),
        ({"indexes": ("nothing",)}, "no column"),
        ({"name": "Totals"}, "is no name of a view"),
        ({"name": "totals__g3"}, "is no name of a view"),
        ({"revision": 0}, "a revision is an int from 1"),
    ],
)
def test_a_projection_that_cannot_work_is_refused_when_its_class_is_made(attributes: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        type("Wrong", (Totals,), attributes)


def test_a_fold_that_waits_is_refused_when_its_class_is_made() -> None:
    with pytest.raises(InvalidInput, match="a fold is pure and waits for nothing"):

        class Waiting(Totals):
            async def apply(self, row: Row | None, event: ViewEvent) -> Row:  # type: ignore[override]
                return {}


async def test_what_is_no_view_is_refused_with_what_to_write_instead(tmp_path: Path) -> None:
    for wrong in (Totals(), MemoryView(Totals()), "totals"):
        with pytest.raises(InvalidInput, match="wrap a projection"):
            eventlog.open(tmp_path / "log.db", views=[wrong])  # type: ignore[list-item]
    for make in (SqliteView, MemoryView):
        with pytest.raises(InvalidInput, match=r"an object: `Totals\(\)`"):
            make(Totals)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="given twice"):
        eventlog.open(tmp_path / "log.db", views=[SqliteView(Totals()), SqliteView(TotalsOfAmounts())])


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "wrong",
    [
        {"amount": 1.0},
        {"amount": True},
        {"amount": 2**70},
        {"amount": None},
        {"amount": "1"},
        {"share": 1},
        {"share": float("nan")},
        {"share": float("inf")},
        {"note": "\ud800"},
        {"note": b"x"},
        {"customer": "somebody else"},
        {"more": 1},
    ],
    ids=repr,
)
async def test_a_row_that_would_not_come_back_as_it_was_folded_stops_the_view(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    class Exact(RowProjection):
        name = "exact"
        columns = {"customer": "TEXT PRIMARY KEY", "amount": "INTEGER NOT NULL", "share": "REAL", "note": "TEXT"}
        event_types = frozenset({"test_order_placed"})

        def key(self, event: ViewEvent) -> Key:
            return str(event.data.customer)

        def apply(self, row: Row | None, event: ViewEvent) -> Row:
            right = {"customer": event.data.customer, "amount": 1, "share": 0.5, "note": None}
            return {**right, **wrong} if event.data.amount == 7 else right

    view = SqliteView(Exact())
    async with open_file(tmp_path / "log.db", views=[view]) as log:
        await append(log, 0, 20)
        entry = await log.look(find_entry, "exact")
        assert entry is not None
        assert entry.problem is not None
        assert (entry.position, entry.problem.position) == (7, 8)
        with pytest.raises(EventLogError) as failure:
            await rebuild_view(log, view)
        assert (failure.value.code, failure.value.details["position"]) == ("view_failed", 8)


@pytest.mark.parametrize("key", [None, 1.5, object, "\ud800", 2**70, (), ("a", "b"), ["a"]], ids=repr)
async def test_a_key_that_no_row_can_have_is_the_projection_s_fault_and_not_the_disk_s(
    tmp_path: Path, key: Any
) -> None:
    class Strange(Totals):
        def key(self, event: ViewEvent) -> Any:
            return key if event.data.amount == 7 else event.data.customer

    view = SqliteView(Strange())
    async with open_file(tmp_path / "log.db") as log:
        await append(log, 0, 20)
        if key is None:
            assert (await rebuild_view(log, view)).position == 20, "None is for an event that concerns no row"
            return
        with pytest.raises(EventLogError) as failure:
            await rebuild_view(log, view)
        assert (failure.value.code, failure.value.details["position"]) == ("view_failed", 8)


async def test_a_group_that_gives_rows_of_another_group_stops_live_and_rebuilt(tmp_path: Path) -> None:
    class Foreign(GroupProjection):
        name = "foreign"
        columns = {"customer": "TEXT", "n": "INTEGER", "at": "INTEGER NOT NULL"}
        event_types = frozenset({"test_order_placed"})

        def group(self, event: ViewEvent) -> str:
            return str(event.data.customer)

        def apply(self, rows: Mapping[Key, Row], event: ViewEvent) -> Iterable[Row]:
            owner = "customer-0" if event.data.amount == 3 else event.data.customer
            yield {"customer": owner, "n": 1, "at": event.position}

    view = SqliteView(Foreign())
    async with open_file(tmp_path / "log.db", views=[view]) as log:
        await append(log, 0, 10)
        entry = await log.look(find_entry, "foreign")
        assert entry is not None
        assert entry.position == 3
        with pytest.raises(EventLogError, match="is none of the group"):
            await rebuild_view(log, view)


# ── what a fold may raise ────────────────────────────────────────────────────────────────────────────────────────────


class Wordless(Exception):
    """An error that cannot say what it is."""

    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        KeyboardInterrupt(),
        asyncio.CancelledError(),
        GeneratorExit(),
        StopIteration(),
        RecursionError(),
        MemoryError(),
        Wordless(),
        ValueError("\ud800 half a character"),
        ValueError("x" * 100_000),
        sqlite3.OperationalError("database is locked"),
        EventLogError("store_busy", "mine"),
        EventLogError("engine_closed", "mine"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_a_fold_raises_is_its_own_failure(tmp_path: Path, error: BaseException) -> None:
    class Raising(Totals):
        def apply(self, row: Row | None, event: ViewEvent) -> Row:
            if event.data.amount == 3:
                raise error
            return super().apply(row, event)

    view = SqliteView(Raising())
    async with open_file(tmp_path / "log.db", views=[view]) as log:
        for number in range(5):
            await append(log, number, 1)
        entry = await log.look(find_entry, "totals")
        assert entry is not None
        assert entry.problem is not None
        assert (entry.position, entry.problem.position, len(entry.problem.error) < 600) == (3, 4, True)
        assert (await log.health()).state == "open"
        async with asyncio.timeout(10):
            with pytest.raises(EventLogError) as rebuilt:
                await rebuild_view(log, view)
            assert (rebuilt.value.code, rebuilt.value.details["position"]) == ("view_failed", 4)
    async with open_file(tmp_path / "log.db") as log, asyncio.timeout(10):
        async with ProjectionRunner(log, [SqliteView(Raising())], into=tmp_path / "views.db") as runner:
            with pytest.raises(EventLogError) as followed:
                await runner.wait_for("totals", 5)
            assert (followed.value.code, followed.value.details["position"]) == ("view_failed", 4)
        assert (await log.head()).position == 5


async def test_an_event_that_the_narrow_shape_does_not_fit_freezes_nobody_else(tmp_path: Path) -> None:
    class TooMuch(msgspec.Struct):
        customer: str
        amount: int
        missing: str

    class Picky(Totals):
        name = "picky"
        event_types = {"test_order_placed": TooMuch}  # type: ignore[assignment]

    async with open_file(tmp_path / "log.db") as log:
        await append(log, 0, 10)
        gc.disable()  # nothing may depend on when an error's traceback is collected
        try:
            async with ProjectionRunner(log, [SqliteView(Picky()), SqliteView(Totals())]) as runner:
                with pytest.raises(EventLogError, match="missing"):
                    await runner.wait_for("picky", 10)
                for number in range(10):
                    position = await append(log, number, 1)
                    assert (await log.head()).position == position
                    await runner.wait_for("totals", position)
        finally:
            gc.enable()


async def test_a_function_that_gives_a_cursor_or_a_coroutine_is_refused(tmp_path: Path) -> None:
    async def look(connection: sqlite3.Connection) -> None:
        """Never awaited."""

    async with open_file(tmp_path / "log.db", views=[SqliteView(Totals())]) as log:
        for ask in (log.look, log.read_view, log.write_view):
            for wrong in (look, lambda connection: connection.execute("SELECT 1")):
                with pytest.raises(Misuse) as refusal:
                    await ask(wrong)
                assert refusal.value.code == "result_unfinished"
        assert await append(log, 0, 1) == 1


# ── several at once ──────────────────────────────────────────────────────────────────────────────────────────────────


class Poisoned(Totals):
    """Cannot fold the fourth order."""

    def apply(self, row: Row | None, event: ViewEvent) -> Row:
        if event.data.amount == 3:
            raise ZeroDivisionError
        return super().apply(row, event)


async def test_many_readers_of_a_view_that_stopped_are_all_told(tmp_path: Path) -> None:
    async with open_file(tmp_path / "log.db", views=[SqliteView(Poisoned())]) as log:
        await append(log, 0, 50)
        answers = await asyncio.gather(*(log.read_view(dump) for _ in range(100)), return_exceptions=True)
        assert {getattr(answer, "code", None) for answer in answers} == {"view_failed"}


async def test_rebuilding_a_revision_does_not_end_the_runner_that_keeps_it(tmp_path: Path) -> None:
    view = SqliteView(Totals())
    async with open_file(tmp_path / "log.db") as log, ProjectionRunner(log, [view]) as runner:
        for number in range(5):
            await runner.wait_for("totals", await append(log, number, 1))
            await rebuild_view(log, view)
        await runner.wait_for("totals", await append(log, 9, 1))
        await assert_equal_to_a_fresh_one(log, view)


async def test_an_earlier_program_leaves_the_build_of_a_later_one_alone_and_opens(tmp_path: Path) -> None:
    class Third(TotalsOfAmounts):
        revision = 3

    path = tmp_path / "log.db"
    async with open_file(path, views=[SqliteView(Totals())]) as log:
        await append(log, 0, 100)
        await log.write_view(begin_build, SqliteView(Third()))
    async with open_file(path, views=[SqliteView(TotalsOfAmounts())]) as log:
        with pytest.raises(EventLogError, match="revision 3 is being built by a later program"):
            await log.read_view(dump)
        with pytest.raises(EventLogError) as refusal:
            await rebuild_view(log, SqliteView(TotalsOfAmounts()))
        assert refusal.value.code == "view_overtaken"
        assert [(each.state, each.revision) for each in await log.look(all_entries)] == [("live", 1), ("building", 3)]


async def test_other_columns_under_the_same_revision_are_built_beside_what_is_served(tmp_path: Path) -> None:
    class Wider(Totals):
        columns = {**Totals.columns, "amount": "INTEGER"}

        def apply(self, row: Row | None, event: ViewEvent) -> Row:
            return {**super().apply(row, event), "amount": None}

    path = tmp_path / "log.db"
    async with open_file(path, views=[SqliteView(Totals())]) as log:
        await append(log, 0, 100)
    async with open_file(path, views=[SqliteView(Wider())]) as log:
        assert [(each.state, each.revision) for each in await log.look(all_entries)] == [("live", 1), ("kept", 1)]
        await assert_equal_to_a_fresh_one(log, SqliteView(Wider()))


async def test_no_number_of_a_table_is_given_twice(tmp_path: Path) -> None:
    async with open_file(tmp_path / "log.db") as log:
        seen = []
        for _ in range(3):
            entry = await log.write_view(add_entry, "totals", "building", 1, "")
            seen.append(entry.generation)
            await log.write_view(remove_entry, "totals", "building")
        assert len(set(seen)) == 3


# ── the file behind a view ───────────────────────────────────────────────────────────────────────────────────────────


async def test_a_page_that_a_full_disk_took_back_is_not_folded_twice(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with open_file(path, views=[SqliteView(Totals())]) as log:
        await log.append("late", [NewEvent("test_not_registered_yet", {})], expect=Expect.any())
        for first in range(0, 12_000, 6000):
            await log.append("orders", list(orders(first, 6000, customers=20_000)), expect=Expect.any())
    view = SqliteView(TotalsOfAmounts())
    registry = Registry()
    registry.register(OrderPlaced, "test_order_placed")
    async with open_file(path, registry=registry, views=[view]) as log:  # builds nothing: the first type is unknown
        registry.register(NotRegisteredYet, "test_not_registered_yet")
        limit = await log.write_view(_leave_room_for_a_page)
        with pytest.raises(EventLogError) as full:
            await log.read_view(dump)
        assert full.value.code == "store_full"
        building = await log.look(find_entry, "totals", "building")
        assert building is not None
        assert building.position == 5000, "one page was built"
        await log.write_view(_leave_room, limit)
        assert sum(row[1] for row in await log.read_view(dump)) == 12_000
        await assert_equal_to_a_fresh_one(log, view)


class NotRegisteredYet(msgspec.Struct):
    """Registered in the middle of a test."""


def _leave_room_for_a_page(connection: sqlite3.Connection) -> int:
    limit: int = connection.execute("PRAGMA max_page_count").fetchone()[0]
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count={pages + 90}")
    return limit


def _leave_room(connection: sqlite3.Connection, limit: int) -> None:
    connection.execute(f"PRAGMA max_page_count={limit}")


async def test_views_of_a_log_that_was_restored_and_grew_again_say_so(tmp_path: Path) -> None:
    import shutil

    path, views = tmp_path / "log.db", tmp_path / "views.db"
    async with open_file(path) as log:
        await append(log, 0, 100)
    shutil.copy(path, tmp_path / "older.db")
    async with open_file(path) as log, ProjectionRunner(log, [SqliteView(Totals())], into=views) as runner:
        await runner.wait_for("totals", await append(log, 100, 50))
    shutil.copy(tmp_path / "older.db", path)
    async with open_file(path) as log:
        await append(log, 500, 80)  # beyond where the views stand
        async with ProjectionRunner(log, [SqliteView(Totals())], into=views) as runner:
            with pytest.raises(EventLogError, match="was folded from another log up to position 150") as rolled_back:
                await runner.wait_for("totals", 180)
            assert rolled_back.value.code == "store_rolled_back"


async def test_a_view_in_memory_refuses_the_newer_event_that_one_in_sqlite_refuses(tmp_path: Path) -> None:
    later = Registry()
    later.register(OrderPlaced, "test_order_placed", schema_version=2, upcast={1: dict})
    path = tmp_path / "log.db"
    async with open_file(path, registry=later) as log:
        await log.append("orders", [OrderPlaced("a", 1)], expect=Expect.any())
    earlier = Registry()
    earlier.register(OrderPlaced, "test_order_placed")
    async with open_file(path, registry=earlier) as log:
        for view in (MemoryView(TotalsOfAmounts()), SqliteView(TotalsOfAmounts())):
            async with ProjectionRunner(log, [view]) as runner:
                with pytest.raises(EventLogError, match="test_order_placed of schema version 2"):
                    await runner.wait_for("totals", 1)


async def test_a_type_that_is_renamed_later_is_found_by_who_follows_already(tmp_path: Path) -> None:
    class Renamed(msgspec.Struct):
        customer: str
        amount: int
        note: str = ""

    registry = Registry()
    view = SqliteView(type("Late", (Totals,), {"event_types": frozenset({"test_order_renamed"})})())
    async with open_file(tmp_path / "log.db", registry=registry) as log:
        made = [NewEvent("test_order_made", {"customer": "a", "amount": n, "note": ""}) for n in range(3)]
        async with ProjectionRunner(log, [view]) as runner:
            await runner.wait_for("late" if view.name == "late" else "totals", 0)
            registry.register(Renamed, "test_order_renamed", renamed_from=["test_order_made"])
            stale = Registry()
            async with open_file(tmp_path / "log.db", registry=stale) as old:
                position = (await old.append("orders", made, expect=Expect.any())).last_position
            await runner.wait_for(view.name, position)
        assert await log.look(view.rows) == [{"customer": "a", "orders": 3}]


async def test_a_file_in_which_a_consumer_came_first_takes_views_as_well(tmp_path: Path) -> None:
    into = tmp_path / "mine.db"
    edit(into, "CREATE TABLE letters (position INTEGER, customer TEXT)")
    async with open_file(tmp_path / "log.db") as log:
        consumer = Consumer(log, "letters", scenarios.write_letter, into=into)
        task = asyncio.create_task(consumer.run())
        await consumer.wait_for(await append(log, 0, 3))
        task.cancel()
        await asyncio.wait({task})
        async with ProjectionRunner(log, [SqliteView(Totals())], into=into) as runner:
            await runner.wait_for("totals", 3)
        async with open_file(tmp_path / "other.db") as other:
            with pytest.raises(EventLogError):
                async with ProjectionRunner(other, [SqliteView(Totals())], into=tmp_path / "log.db"):
                    pytest.fail("a log is no database of views")
