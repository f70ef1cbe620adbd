"""Views built again without downtime: the old one served, one exchange, kill -9 at any time."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from eventlog import Expect, NewEvent
from eventlog.errors import EventLogError, EventTypeUnknown, InvalidInput
from eventlog.stores import SqliteLog
from eventlog.stores.sqlite.view_registry import all_entries, set_state
from eventlog.views import ViewEvent
from projections import (
    BuildProgress,
    Row,
    SqliteView,
    ViewFile,
    check_view,
    drop_old_view,
    rebuild_in_ranges,
    rebuild_view,
)
from projections.sqlite_views import Follower
from projections.sqlite_views.build_lock import exclusive
from tests import rebuild_scenarios as scenarios
from tests.totals import Totals, TotalsOfAmounts, dump, orders
from tools.campaigns.processes.child import start
from tools.campaigns.storage.log_files import open_file


async def fill(path: Path, count: int, **options: Any) -> None:
    async with open_file(path, **options) as log:
        for first in range(0, count, 10_000):
            await log.append("orders", list(orders(first, min(10_000, count - first))), expect=Expect.any())


async def states(log: SqliteLog) -> list[tuple[str, int]]:
    return [(entry.state, entry.revision) for entry in await log.look(all_entries)]


async def assert_equal_to_a_fresh_one(log: SqliteLog, view: SqliteView) -> None:
    checked = await check_view(log, view)
    assert checked is not None
    assert (checked.position, checked.differing, checked.rows > 0) == (checked.head, 0, True)


# ── under load ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.campaign
async def test_a_raised_revision_is_built_while_a_writer_appends_and_a_reader_polls(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await fill(path, 30_000, views=[SqliteView(Totals())])
    writer = start(scenarios.appends_at_a_rate, path, 1000, 30)
    reader = start(scenarios.polls, path, 20)
    assert writer.stdout is not None and reader.stdout is not None
    for process in (writer, reader):
        assert process.stdout is not None
        assert (await asyncio.to_thread(process.stdout.readline)).strip() == "READY"
    view = SqliteView(TotalsOfAmounts())
    heard: list[BuildProgress] = []
    async with open_file(path, busy_timeout_s=30) as log:
        await asyncio.sleep(0.5)
        rebuilt = await rebuild_view(log, view, on_progress=heard.append)
        assert rebuilt.outcome == "exchanged"
        assert rebuilt.events >= 30_000
        assert await states(log) == [("live", 2), ("kept", 1)]
        out, err = await asyncio.to_thread(reader.communicate, timeout=40)
        polled = _result(out, err)
        written = _result(*await asyncio.to_thread(writer.communicate, "stop\n", timeout=40))
    assert polled["wrong"] == []
    assert polled["revisions"] == [1, 2], "the old view was served until the exchange, then the new one"
    assert written["count"] > 100
    assert heard[-1].position <= rebuilt.position
    async with open_file(path, views=[view]) as log:
        await assert_equal_to_a_fresh_one(log, view)
        assert (await log.head()).position == 30_000 + written["count"]


def _result(out: str, err: str) -> dict[str, Any]:
    import json

    found = [line.removeprefix("RESULT ") for line in out.splitlines() if line.startswith("RESULT ")]
    assert found, f"{out}\n{err}"
    result: dict[str, Any] = json.loads(found[-1])
    return result


# ── kill -9 ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.campaign
async def test_a_rebuild_killed_fifty_times_at_random_ends_byte_for_byte_like_a_fresh_one(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await fill(path, 40_000, views=[SqliteView(Totals())])
    seed = random.randrange(2**32)
    process = start(scenarios.killed_rebuilds, path, 50, seed)
    found = _result(*await asyncio.to_thread(process.communicate, timeout=100))
    assert found["wrong"] == [], f"seed {seed}"
    assert any(state == "building" and 0 < position < 40_000 for state, _, position in found["left"]), (
        f"no kill met a build half done (seed {seed})"
    )
    view = SqliteView(TotalsOfAmounts())
    async with open_file(path) as log:
        await rebuild_view(log, view)
        await assert_equal_to_a_fresh_one(log, view)
        killed = await log.look(dump)
    await fill(tmp_path / "fresh.db", 40_000)
    async with open_file(tmp_path / "fresh.db", views=[view]) as log:
        assert await log.read_view(dump) == killed


@pytest.mark.campaign
async def test_rows_and_position_in_two_transactions_would_be_found(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await fill(path, 40_000, views=[SqliteView(Totals())])
    for seed in range(5):
        process = start(scenarios.killed_rebuilds, path, 20, seed, "yes")
        if _result(*await asyncio.to_thread(process.communicate, timeout=60))["wrong"]:
            return
    pytest.fail("a hundred kills never came between the rows and the position")


# ── what a rebuild goes on with ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_cancelled_rebuild_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await fill(path, 20_000)
    view = SqliteView(Totals())
    async with open_file(path) as log:
        task: asyncio.Task[object] | None = None

        def cancel(progress: BuildProgress) -> None:
            if progress.position >= 3000 and task is not None:
                task.cancel()

        task = asyncio.create_task(rebuild_view(log, view, on_progress=cancel))
        await asyncio.wait({task})
        assert task.cancelled()
        (entry,) = [entry for entry in await log.look(all_entries) if entry.state == "building"]
        assert entry.position >= 3000
        rebuilt = await rebuild_view(log, view)
        assert rebuilt.began_after == entry.position
        assert rebuilt.events == 20_000 - entry.position
        await assert_equal_to_a_fresh_one(log, view)


async def test_a_build_of_other_columns_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await fill(path, 3000)
    async with open_file(path) as log:
        await _begin_a_build(log, SqliteView(Totals()))
        rebuilt = await rebuild_view(log, SqliteView(TotalsOfAmounts()))
        assert rebuilt.began_after == 0
        await assert_equal_to_a_fresh_one(log, SqliteView(TotalsOfAmounts()))


async def test_a_build_is_thrown_away_where_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await fill(path, 3000)
    view = SqliteView(Totals())
    async with open_file(path) as log:
        await _begin_a_build(log, view)
        assert (await rebuild_view(log, view, anew=True)).began_after == 0
        await assert_equal_to_a_fresh_one(log, view)


async def _begin_a_build(log: SqliteLog, view: SqliteView) -> None:
    from eventlog.stores.sqlite.view_builds import begin_build

    entry, _ = await log.write_view(begin_build, view)
    assert await Follower(log, view, entry).step()
    (building,) = [entry for entry in await log.look(all_entries) if entry.state == "building"]
    assert building.position == 1000


async def test_what_was_exchanged_is_kept_until_it_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await fill(path, 100, views=[SqliteView(Totals())])
    view = SqliteView(TotalsOfAmounts())
    async with open_file(path) as log:
        await rebuild_view(log, view)
        (kept,) = [entry for entry in await log.look(all_entries) if entry.state == "kept"]
        assert len(await log.look(dump, f"totals__g{kept.generation}")) == 50
        assert await drop_old_view(log, view)
        assert not await drop_old_view(log, view)
        assert await states(log) == [("live", 2)]
        assert [name for (name,) in await log.look(_tables)] == ["totals"]


def _tables(connection: sqlite3.Connection) -> list[tuple[str]]:
    return connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'totals%'").fetchall()


async def test_a_view_of_sql_on_the_table_reads_the_new_one_after_the_exchange(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await fill(path, 100, views=[SqliteView(Totals())])
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE VIEW busy AS SELECT * FROM totals WHERE orders > 1")
    connection.close()
    async with open_file(path) as log:
        await rebuild_view(log, SqliteView(TotalsOfAmounts()))
        assert len((await log.look(dump, "busy"))[0]) == 6, "three columns, each with its type"


# ── what stops a rebuild ─────────────────────────────────────────────────────────────────────────────────────────────


class Poisoned(TotalsOfAmounts):
    """Raises at the order for 777."""

    revision = 3

    def apply(self, row: Row | None, event: ViewEvent) -> Row:
        if event.data.amount == 777:
            raise ZeroDivisionError("777 cannot be folded")
        return super().apply(row, event)


async def test_a_projection_that_raises_leaves_the_old_view_as_it_is_and_says_where(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await fill(path, 2000, views=[SqliteView(Totals())])
    async with open_file(path) as log:
        before = await log.look(dump)
        with pytest.raises(EventLogError, match="777 cannot be folded") as failure:
            await rebuild_view(log, SqliteView(Poisoned()))
        assert (failure.value.code, failure.value.details["position"]) == ("view_failed", 778)
        assert await log.look(dump) == before
        (building,) = [entry for entry in await log.look(all_entries) if entry.state == "building"]
        assert (building.position, building.problem is not None) == (777, True)


class Corrected(Poisoned):
    """The same, corrected."""

    def apply(self, row: Row | None, event: ViewEvent) -> Row:
        return TotalsOfAmounts.apply(self, row, event)


async def test_a_corrected_projection_goes_on_in_front_of_the_event_that_stopped_it(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await fill(path, 2000)
    async with open_file(path) as log:
        with pytest.raises(EventLogError):
            await rebuild_view(log, SqliteView(Poisoned()))
        rebuilt = await rebuild_view(log, SqliteView(Corrected()))
        assert rebuilt.began_after == 777
        await assert_equal_to_a_fresh_one(log, SqliteView(Corrected()))


async def test_a_row_that_the_columns_do_not_take_stops_it_as_well(tmp_path: Path) -> None:
    class Wrong(Totals):
        def apply(self, row: Row | None, event: ViewEvent) -> Row:
            counted = super().apply(row, event)
            return {**counted, "orders": "many"} if event.data.amount == 60 else counted

    path = tmp_path / "log.db"
    await fill(path, 2000)
    async with open_file(path) as log:
        with pytest.raises(EventLogError, match=r"cannot be .many., a str: its column is INTEGER") as failure:
            await rebuild_view(log, SqliteView(Wrong()))
        assert failure.value.details["position"] == 61


async def test_an_event_type_that_nobody_registered_stops_a_rebuild_and_not_a_live_view(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    view = SqliteView(Totals())
    async with open_file(path, views=[view]) as log:
        await log.append("orders", list(orders(0, 10)), expect=Expect.any())
        await log.append("orders", [NewEvent("test_never_registered", {})], expect=Expect.any())
        await log.append("orders", list(orders(10, 10)), expect=Expect.any())
        assert sum(row[1] for row in await log.read_view(dump)) == 20
        with pytest.raises(EventTypeUnknown, match="test_never_registered"):
            await rebuild_view(log, view)
        assert (await rebuild_view(log, view, allows_unknown_types=True)).outcome == "exchanged"
        await assert_equal_to_a_fresh_one(log, view)


async def test_two_processes_do_not_build_one_view_at_once(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await fill(path, 10)
    async with open_file(path) as log, exclusive(log.place, "totals-build", waits=False):
        with pytest.raises(EventLogError) as refusal:
            await rebuild_view(log, SqliteView(Totals()))
        assert refusal.value.code == "view_busy"


async def test_an_earlier_program_does_not_build_over_a_later_revision(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await fill(path, 10, views=[SqliteView(TotalsOfAmounts())])
    async with open_file(path) as log:
        with pytest.raises(EventLogError) as refusal:
            await rebuild_view(log, SqliteView(Totals()))
        assert refusal.value.code == "view_overtaken"


# ── comparing ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_rebuild_says_how_the_old_view_differed_and_mends_it(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    view = SqliteView(Totals())
    await fill(path, 200, views=[view])
    edit(path, "UPDATE totals SET orders = 99 WHERE customer = 'customer-7'")
    edit(path, "DELETE FROM totals WHERE customer = 'customer-9'")
    edit(path, "INSERT INTO totals VALUES ('nobody', 1)")
    async with open_file(path, views=[view]) as log:
        compared = await rebuild_view(log, view, compares=True, exchanges=False)
        assert (compared.outcome, await states(log)) == ("compared", [("live", 1)])
        for rebuilt in (compared, await rebuild_view(log, view, compares=True)):
            assert rebuilt.comparison is not None
            assert rebuilt.comparison.differing == 3
            found = {each.key: (each.stored, each.expected) for each in rebuilt.comparison.differences}
            assert found["customer-7"][0] == {"customer": "customer-7", "orders": 99}
            assert found["customer-7"][1] == {"customer": "customer-7", "orders": 4}
            assert found["customer-9"][0] is None
            assert found["nobody"][1] is None
        await assert_equal_to_a_fresh_one(log, view)


async def test_rows_that_only_went_on_meanwhile_do_not_differ(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    view = SqliteView(Totals())
    await fill(path, 5000, views=[view])
    async with open_file(path, views=[view]) as log:
        task: list[asyncio.Task[object]] = []

        def append_once(progress: BuildProgress) -> None:
            if not task:
                task.append(asyncio.create_task(log.append("orders", list(orders(0, 100)), expect=Expect.any())))

        rebuilt = await rebuild_view(log, view, compares=True, on_progress=append_once)
        await asyncio.wait(task)
        assert rebuilt.comparison is not None
        assert rebuilt.comparison.differing == 0


def edit(path: Path, statement: str) -> None:
    editor = sqlite3.connect(path)
    with editor:
        editor.execute(statement)
    editor.close()


# ── elsewhere, and by several processes ──────────────────────────────────────────────────────────────────────────────


async def test_a_view_in_a_file_of_its_own_is_built_again_too(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await fill(path, 3000)
    view = SqliteView(TotalsOfAmounts())
    async with open_file(path) as log, ViewFile(tmp_path / "views.db", log) as views:
        for _ in range(2):
            assert (await rebuild_view(views, view)).position == 3000
        checked = await check_view(log, view, place=views)
        assert checked is not None
        assert (checked.rows, checked.differing) == (50, 0)
        assert [name for (name,) in await log.look(_tables)] == []


@pytest.mark.campaign
async def test_two_processes_by_position_range_come_to_the_same_view(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await fill(path, 20_000)
    view = SqliteView(TotalsOfAmounts())
    async with open_file(path, busy_timeout_s=30) as log:
        rebuilt = await rebuild_in_ranges(log, view, processes=2)
        assert rebuilt.position == 20_000
        assert await states(log) == [("live", 2)]
        await assert_equal_to_a_fresh_one(log, view)


async def test_a_fold_that_does_not_merge_is_refused(tmp_path: Path) -> None:
    class Alone(Totals):
        merge = None  # type: ignore[assignment]

    path = tmp_path / "log.db"
    await fill(path, 10)
    async with open_file(path) as log:
        with pytest.raises(InvalidInput, match="declares no `merge`"):
            await rebuild_in_ranges(log, SqliteView(Alone()), processes=2)


async def test_a_merge_that_is_killed_between_two_pages_goes_on(tmp_path: Path) -> None:
    from projections.sqlite_views import ranges

    path = tmp_path / "log.db"
    await fill(path, 20_000)
    view = SqliteView(TotalsOfAmounts())
    async with open_file(path, busy_timeout_s=30) as log:
        parts = await log.write_view(ranges._parts, view, 2, 20_000)
        assert [part.state for part in parts] == ["part-0-10000", "part-10000-20000"]
        for part in parts:
            await ranges._follow_part(str(path), view, part.state)
        await log.write_view(set_state, "totals", "part-0-10000", "merging")
        ranges_at_once = ranges._MERGED_AT_ONCE
        ranges._MERGED_AT_ONCE = 20  # type: ignore[misc]
        try:
            assert await log.write_view(ranges._merge_page, view, "part-10000-20000")
            rebuilt = await rebuild_in_ranges(log, view, processes=2)
        finally:
            ranges._MERGED_AT_ONCE = ranges_at_once  # type: ignore[misc]
        assert rebuilt.position == 20_000
        await assert_equal_to_a_fresh_one(log, view)


async def test_a_serial_rebuild_does_not_take_a_half_merged_range_for_its_own(tmp_path: Path) -> None:
    from projections.sqlite_views import ranges

    path = tmp_path / "log.db"
    await fill(path, 20_000)
    view = SqliteView(TotalsOfAmounts())
    async with open_file(path) as log:
        for part in await log.write_view(ranges._parts, view, 2, 20_000):
            await ranges._follow_part(str(path), view, part.state)
        await log.write_view(set_state, "totals", "part-0-10000", "merging")
        await rebuild_view(log, view)
        await assert_equal_to_a_fresh_one(log, view)
