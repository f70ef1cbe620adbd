"""Views in the log's own database: what appends, openings and exchanges do where something is not as it should be."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from eventlog import EventLogError, Expect
from eventlog.errors import LogCorrupt, StoreUnavailable
from eventlog.stores import SqliteLog
from eventlog.stores.sqlite import view_builds, views
from eventlog.stores.sqlite.schema import OWN_TABLES
from eventlog.stores.sqlite.view_builds import begin_build, exchange_view
from eventlog.stores.sqlite.view_registry import all_entries, find_entry
from eventlog.stores.sqlite.view_tables import drop_page, set_aside
from eventlog.views import ViewBuild, ViewEntry, ViewEvent
from projections import Row, SqliteView, rebuild_view
from tests.command_line import edit
from tests.totals import Totals, TotalsOfAmounts, dump, orders
from tools.campaigns.storage.log_files import open_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


async def append(log: SqliteLog, first: int, count: int) -> int:
    return (await log.append("orders", list(orders(first, count)), expect=Expect.any())).last_position


async def behind(log: SqliteLog) -> dict[str, int]:
    return (await log.health()).views_behind or {}


class Customers(Totals):
    """Another view of the same events."""

    name = "customers"


class Failing(TotalsOfAmounts):
    """Cannot fold the seventh order."""

    def apply(self, row: Row | None, event: ViewEvent) -> Row:
        if event.data.amount == 6:
            raise ZeroDivisionError("the fold divides")
        return super().apply(row, event)


class Raising(SqliteView):
    """A view whose next write raises what SQLite would."""

    error: sqlite3.Error | None = None

    def apply(
        self,
        connection: sqlite3.Connection,
        entry: ViewEntry,
        events: Iterable[ViewEvent],
        cache: dict[Any, Any] | None = None,
    ) -> None:
        error, self.error = self.error, None
        if error is not None:
            raise error
        super().apply(connection, entry, events, cache)


# ── in an append's transaction ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "code", "state"),
    [("SQLITE_FULL", "store_full", "open"), ("SQLITE_IOERR_READ", "store_io_error", "poisoned")],
)
async def test_disk_that_fails_under_a_view_fails_the_append_and_not_the_view(
    path: Path, name: str, code: str, state: str
) -> None:
    view = Raising(Totals())
    async with open_file(path, views=[view]) as log:
        await append(log, 0, 3)
        view.error = sqlite3.OperationalError(name)
        view.error.sqlite_errorcode, view.error.sqlite_errorname = getattr(sqlite3, name), name
        with pytest.raises(StoreUnavailable) as failed:
            await append(log, 3, 3)
        assert (failed.value.code, (await log.health()).state) == (code, state)
        assert (await log.head()).position == 3
        await append(log, 3, 3)
        assert await behind(log) == {"totals/1": 0}
        assert sum(row[1] for row in await log.read_view(dump)) == (await log.read_stream("orders")).version


async def test_view_that_is_far_behind_is_left_there_by_an_append_and_brought_up_by_its_reader(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "_CATCH_UP_PAGE", 4)
    async with open_file(path, views=[SqliteView(Totals())]) as log, open_file(path) as other:
        await append(other, 0, 3)
        await append(log, 3, 1)
        assert await behind(log) == {"totals/1": 0}, "so little is caught up on the way"
        await append(other, 4, 5)
        await append(log, 9, 1)
        assert await behind(log) == {"totals/1": 6}
        assert sum(row[1] for row in await log.read_view(dump)) == 10


async def test_bookkeeping_that_is_taken_away_from_an_open_log_stops_the_view_and_no_append(path: Path) -> None:
    async with open_file(path, views=[SqliteView(Totals())]) as log:
        await append(log, 0, 3)
        edit(path, "DROP TABLE views")
        assert await append(log, 3, 3) == 6
        assert await append(log, 6, 3) == 9


async def test_view_that_stopped_is_told_only_to_those_who_read_it(path: Path) -> None:
    bad, good = SqliteView(Failing()), SqliteView(Customers())
    async with open_file(path, views=[bad, good]) as log, open_file(path) as other:
        await append(log, 0, 10)
        await append(other, 10, 5)  # so that the good one has to be brought up first
        rows = await log.read_view(dump, "customers", of=["customers"])
        assert sum(row[1] for row in rows) == 15
        for names in (["totals"], None):
            with pytest.raises(EventLogError, match="the fold divides") as told:
                await log.read_view(dump, of=names)
            assert told.value.code == "view_failed"


# ── when the log is opened ────────────────────────────────────────────────────────────────────────────────────────────


async def test_raised_revision_that_cannot_be_folded_leaves_the_old_view_and_says_where(path: Path) -> None:
    async with open_file(path, views=[SqliteView(Totals())]) as log:
        await append(log, 0, 10)
    async with open_file(path, views=[SqliteView(Failing())]) as log:
        with pytest.raises(EventLogError, match="at position 7") as told:
            await log.read_view(dump)
        assert told.value.code == "view_failed"
        assert sum(row[1] for row in await log.look(dump)) == 10
        assert [(entry.state, entry.revision) for entry in await log.look(all_entries)] == [
            ("live", 1),
            ("building", 2),
        ]


async def test_whoever_asked_is_told_of_each_page_of_a_view_that_is_brought_up(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "_CATCH_UP_PAGE", 4)
    monkeypatch.setattr(views, "_BUILD_PAGE", 6)
    async with open_file(path) as log:
        await append(log, 0, 10)
    for revision, view, pages in ((1, Totals(), [4, 8]), (2, TotalsOfAmounts(), [6])):
        told: list[ViewBuild] = []
        log = open_file(path, views=[SqliteView(view)])
        log.tells_builds(told.append)
        async with log:
            assert len(await log.read_view(dump)) == 10
        assert told == [ViewBuild(name="totals", revision=revision, position=at, head=10) for at in pages]


async def test_log_that_is_only_read_gives_the_views_that_it_has_as_they_stand_and_says_which_it_lacks(
    path: Path,
) -> None:
    async with open_file(path, views=[SqliteView(Totals())]) as log:
        await append(log, 0, 3)
    async with open_file(path) as log:
        await append(log, 3, 3)
    known = [SqliteView(Totals()), SqliteView(Customers())]
    async with open_file(path, views=known, is_read_only=True) as log:
        assert len(await log.read_view(dump, of=["totals"])) == 3
        for names in (["customers"], None):
            with pytest.raises(EventLogError, match="the log has no such view: 'customers', revision 1") as told:
                await log.read_view(dump, of=names)
            assert told.value.code == "view_outdated"
        with pytest.raises(StoreUnavailable) as refused:
            await log.write_view(dump)
        assert refused.value.code == "store_readonly"
    async with open_file(path, views=[SqliteView(TotalsOfAmounts())], is_read_only=True) as log:
        with pytest.raises(EventLogError, match="the log has revision 1 of it: 'totals', revision 2"):
            await log.read_view(dump)


async def test_problem_that_somebody_edited_says_that_there_is_one(path: Path) -> None:
    async with open_file(path, views=[SqliteView(Totals())]) as log:
        await append(log, 0, 3)
    edit(path, "UPDATE views SET problem = 'see the wiki'")
    async with open_file(path) as log:
        (entry,) = await log.look(all_entries)
        assert entry.problem is not None
        assert (entry.problem.position, entry.problem.error) == (0, "see the wiki")


# ── tables ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_exchange_drops_what_an_earlier_one_has_kept_page_by_page(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_builds, "_DELETED_AT_ONCE", 1)
    view = SqliteView(Totals())

    def exchanges(connection: sqlite3.Connection) -> None:
        entry, _ = begin_build(connection, view, anew=True)
        exchange_view(connection, view, entry)

    async with open_file(path, views=[view]) as log:
        await append(log, 0, 5)
        await log.write_view(exchanges)
        first = await log.look(find_entry, "totals", "kept")
        await log.write_view(exchanges)
        second = await log.look(find_entry, "totals", "kept")
        assert first is not None and second is not None and first.generation != second.generation
        assert await log.look(_tables) == ["totals", f"totals__g{second.generation}"]


async def test_exchange_with_a_view_whose_table_is_gone_keeps_its_entry_alone(path: Path) -> None:
    view = SqliteView(Totals())

    def exchanges(connection: sqlite3.Connection) -> None:
        entry, _ = begin_build(connection, view)
        connection.execute("DROP TABLE totals")
        exchange_view(connection, view, entry)

    async with open_file(path, views=[view]) as log:
        await append(log, 0, 5)
        await log.write_view(exchanges)
        assert await log.look(_tables) == ["totals"]
        assert [entry.state for entry in await log.look(all_entries)] == ["live", "kept"]
        await rebuild_view(log, view)
        assert len(await log.look(dump)) == 5


async def test_views_that_nobody_knows_are_set_aside_and_dropped_by_what_the_registry_says(path: Path) -> None:
    async with open_file(path, views=[SqliteView(Totals()), SqliteView(Customers())]) as log:
        await append(log, 0, 5)
    edit(path, "DROP TABLE customers")
    async with open_file(path) as log:
        assert [await log.write_view(set_aside, name) for name in ("nobodys", "totals", "customers")] == [
            False,
            True,
            True,
        ]
        assert not await log.write_view(drop_page, "nobodys", "kept", 10)
        assert not await log.write_view(drop_page, "customers", "kept", 10), "its table was gone"
        more = [await log.write_view(drop_page, "totals", "kept", 4) for _ in range(3)]
        assert more == [True, True, False]
        assert await log.look(all_entries) == []
        assert await log.look(_tables) == []


@pytest.mark.parametrize("name", [min(OWN_TABLES), "a b", "x] (y); --"])
@pytest.mark.parametrize("drops", [True, False], ids=["dropped", "set aside"])
async def test_table_of_the_log_is_no_view_whatever_the_registry_says(path: Path, name: str, drops: bool) -> None:
    async with open_file(path) as log:
        await append(log, 0, 3)
    quoted = name.replace("'", "''")
    edit(
        path,
        f"INSERT INTO views (name, state, revision, position, shape) VALUES ('{quoted}', 'live', 1, 1, '')",
    )
    work: Callable[..., bool] = drop_page if drops else set_aside
    async with open_file(path) as log:
        with pytest.raises(LogCorrupt) as damage:
            await log.write_view(work, name, *(("live", 10) if drops else ()))
        assert damage.value.reason == "schema_changed"
        assert (await log.head()).position == 3
        assert await log.check_file() == []


def _tables(connection: sqlite3.Connection) -> list[str]:
    like = "SELECT name FROM sqlite_schema WHERE type = 'table' AND (name LIKE 'totals%' OR name LIKE 'customers%')"
    return sorted(name for (name,) in connection.execute(like))
