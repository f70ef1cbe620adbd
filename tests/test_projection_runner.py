"""Views that follow: they catch up, go on, wait, stop alone, and are kept by one process at a time."""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import eventlog
from eventlog import Expect, NewEvent
from eventlog.errors import EventLogError, InvalidInput
from eventlog.stores import SqliteLog
from eventlog.views import ViewEvent
from projections import (
    Key,
    MemoryView,
    ProjectionRunner,
    Row,
    RowProjection,
    SqliteView,
    ViewFile,
    check_view,
    rebuild_view,
)
from tests import runner_scenarios as scenarios
from tests.totals import Totals, TotalsOfAmounts, dump, orders
from tools.campaigns.processes.child import start
from tools.campaigns.storage.log_files import open_file


@pytest.fixture(params=["the log's own database", "a file of its own"])
def into(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return None if request.param == "the log's own database" else tmp_path / "views.db"


async def append(log: SqliteLog, first: int, count: int) -> int:
    return (await log.append("orders", list(orders(first, count)), expect=Expect.any())).last_position


async def assert_equal_to_a_fresh_one(log: SqliteLog, view: SqliteView, into: Path | None) -> None:
    if into is None:
        checked = await check_view(log, view)
    else:
        async with ViewFile(into, log) as place:
            checked = await check_view(log, view, place=place)
    assert checked is not None
    assert (checked.position, checked.differing) == (checked.head, 0)


# ── following ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_view_catches_up_then_follows_and_one_reads_his_own_writes(tmp_path: Path, into: Path | None) -> None:
    view = SqliteView(Totals())
    async with open_file(tmp_path / "log.db") as log:
        await append(log, 0, 3000)
        async with ProjectionRunner(log, [view], into=into) as runner:
            for number in range(20):
                await runner.wait_for("totals", await append(log, 3000 + number, 1))
            (status,) = runner.status()
            assert (status.state, status.position) == ("following", 3020)
        await assert_equal_to_a_fresh_one(log, view, into)


async def test_a_runner_that_ended_goes_on_where_it_was(tmp_path: Path, into: Path | None) -> None:
    class Counted(Totals):
        applied = 0

        def apply(self, row: Row | None, event: ViewEvent) -> Row:
            Counted.applied += 1
            return super().apply(row, event)

    async with open_file(tmp_path / "log.db") as log:
        for round_number in range(3):
            position = await append(log, round_number * 10, 10)
            async with ProjectionRunner(log, [SqliteView(Counted())], into=into) as runner:
                await runner.wait_for("totals", position)
        assert Counted.applied == 30
        await assert_equal_to_a_fresh_one(log, SqliteView(Counted()), into)


async def test_a_view_in_memory_follows_any_log() -> None:
    view = MemoryView(Totals())
    async with eventlog.open("memory:") as log, ProjectionRunner(log, [view]) as runner:
        result = await log.append("orders", list(orders(0, 120)), expect=Expect.any())
        await runner.wait_for("totals", result.last_position)
        assert len(view) == 50
        assert view.row("customer-7") == {"customer": "customer-7", "orders": 3}
        result = await log.append("others", [NewEvent("other", {})], expect=Expect.any())
        await runner.wait_for("totals", result.last_position)  # positions of events that it does not want count too


async def test_a_view_in_sqlite_needs_a_log_in_sqlite() -> None:
    async with eventlog.open("memory:") as log:
        with pytest.raises(InvalidInput, match="take a MemoryView"):
            async with ProjectionRunner(log, [SqliteView(Totals())]):
                pytest.fail("it was opened")


async def test_who_waits_too_long_is_told_where_the_view_is(tmp_path: Path) -> None:
    async with open_file(tmp_path / "log.db") as log, ProjectionRunner(log, [SqliteView(Totals())]) as runner:
        await runner.wait_for("totals", await append(log, 0, 5))
        with pytest.raises(EventLogError, match="at position 5, not yet at 6") as late:
            await runner.wait_for("totals", 6, timeout_s=0.1)
        assert late.value.code == "view_late"
        with pytest.raises(InvalidInput, match="keeps no view 'total'; it keeps totals"):
            await runner.wait_for("total", 1)


async def test_an_unknown_type_is_passed_over_live(tmp_path: Path, into: Path | None) -> None:
    async with (
        open_file(tmp_path / "log.db") as log,
        ProjectionRunner(log, [SqliteView(Totals())], into=into) as runner,
    ):
        await append(log, 0, 5)
        result = await log.append("s", [NewEvent("test_never_registered", {})], expect=Expect.any())
        await runner.wait_for("totals", result.last_position)


# ── stopping alone ───────────────────────────────────────────────────────────────────────────────────────────────────


class Poisoned(Totals):
    """Raises at one order until it is cured."""

    name = "poisoned"
    is_cured = False

    def apply(self, row: Row | None, event: ViewEvent) -> Row:
        if event.data.amount == 1777 and not Poisoned.is_cured:
            raise ZeroDivisionError("1777 cannot be folded")
        return super().apply(row, event)


@pytest.fixture
def _sick() -> Iterator[None]:
    Poisoned.is_cured = False
    yield
    Poisoned.is_cured = False


@pytest.mark.usefixtures("_sick")
async def test_a_poisoned_event_stops_one_view_and_nothing_else_until_it_is_resumed(
    tmp_path: Path, into: Path | None
) -> None:
    class Inline(Totals):
        name = "inline"

    views: list[SqliteView | MemoryView] = [
        SqliteView(Totals()),
        SqliteView(Poisoned()),
        MemoryView(TotalsOfAmounts()),
    ]
    async with open_file(tmp_path / "log.db", views=[SqliteView(Inline())]) as log:
        async with ProjectionRunner(log, views, into=into) as runner:
            position = await append(log, 0, 3000)
            await runner.wait_for("totals", position)
            with pytest.raises(EventLogError, match="1777 cannot be folded") as stopped:
                await runner.wait_for("poisoned", position)
            assert (stopped.value.code, stopped.value.details["position"]) == ("view_failed", 1778)
            found = {status.name: status for status in runner.status() if status.revision == 1}
            assert found["totals"].state == "following"
            assert found["poisoned"].state == "stopped"
            problem = found["poisoned"].problem
            assert problem is not None
            assert (problem.position, problem.type, problem.stream) == (1778, "test_order_placed", "orders")
            position = await append(log, 3000, 10)
            await runner.wait_for("totals", position)
            assert sum(row[1] for row in await log.read_view(dump, "inline")) == 3010
            Poisoned.is_cured = True
            await runner.resume("poisoned")
            await runner.wait_for("poisoned", position)
        await assert_equal_to_a_fresh_one(log, SqliteView(Poisoned()), into)


@pytest.mark.usefixtures("_sick")
async def test_what_stopped_a_view_is_recorded_beside_its_position(tmp_path: Path) -> None:
    from eventlog.stores.sqlite.view_registry import find_entry

    async with open_file(tmp_path / "log.db") as log:
        async with ProjectionRunner(log, [SqliteView(Poisoned())]) as runner:
            with pytest.raises(EventLogError):
                await runner.wait_for("poisoned", await append(log, 1700, 200))
        entry = await log.look(find_entry, "poisoned")
        assert entry is not None
        assert entry.problem is not None
        assert (entry.position, entry.problem.position) == (77, 78)
        Poisoned.is_cured = True
        async with ProjectionRunner(log, [SqliteView(Poisoned())]) as runner:
            await runner.wait_for("poisoned", 200)
        entry = await log.look(find_entry, "poisoned")
        assert entry is not None
        assert entry.problem is None


@pytest.mark.usefixtures("_sick")
async def test_an_inline_view_that_raises_stands_in_front_of_the_very_event(tmp_path: Path) -> None:
    from eventlog.stores.sqlite.view_registry import find_entry

    path = tmp_path / "log.db"
    async with open_file(path, views=[SqliteView(Poisoned())]) as log:
        await append(log, 1770, 20)
        entry = await log.look(find_entry, "poisoned")
        assert entry is not None
        assert entry.problem is not None
        assert (entry.position, entry.problem.position) == (7, 8)
        Poisoned.is_cured = True
    async with open_file(path, views=[SqliteView(Poisoned())]) as log:
        await assert_equal_to_a_fresh_one(log, SqliteView(Poisoned()), None)


# ── raised revisions ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_raised_revision_is_built_beside_while_the_lower_one_follows(tmp_path: Path, into: Path | None) -> None:
    old, new = SqliteView(Totals()), SqliteView(TotalsOfAmounts())
    async with open_file(tmp_path / "log.db") as log:
        async with ProjectionRunner(log, [old], into=into) as runner:
            await runner.wait_for("totals", await append(log, 0, 2000))
        async with ProjectionRunner(log, [old, new], into=into) as runner:
            await runner.wait_for("totals", await append(log, 2000, 10))
            for number in range(100):
                if [status.state for status in runner.status()] == ["overtaken", "following"]:
                    break
                await append(log, 2010 + number, 1)
                await asyncio.sleep(0.1)
            else:
                pytest.fail(f"the lower revision goes on: {runner.status()}")
        await assert_equal_to_a_fresh_one(log, new, into)


async def test_an_earlier_program_s_runner_is_told_that_it_was_overtaken(tmp_path: Path, into: Path | None) -> None:
    async with open_file(tmp_path / "log.db") as log:
        async with ProjectionRunner(log, [SqliteView(TotalsOfAmounts())], into=into) as runner:
            await runner.wait_for("totals", await append(log, 0, 20))
        async with ProjectionRunner(log, [SqliteView(Totals())], into=into) as runner:
            with pytest.raises(EventLogError) as overtaken:
                await runner.wait_for("totals", 21)
            assert overtaken.value.code == "view_overtaken"


async def test_a_log_older_than_its_views_is_said_to_be_so(tmp_path: Path) -> None:
    path, views = tmp_path / "log.db", tmp_path / "views.db"
    async with open_file(path) as log:
        await append(log, 0, 100)
    shutil.copy(path, tmp_path / "older.db")
    async with open_file(path) as log, ProjectionRunner(log, [SqliteView(Totals())], into=views) as runner:
        await runner.wait_for("totals", await append(log, 100, 20))
    shutil.copy(tmp_path / "older.db", path)
    async with open_file(path) as log:
        async with ProjectionRunner(log, [SqliteView(Totals())], into=views) as runner:
            await append(log, 100, 1)
            with pytest.raises(EventLogError, match="stands at position 120, but the log ends at") as rolled_back:
                await runner.wait_for("totals", 101)
            assert rolled_back.value.code == "store_rolled_back"
        async with ViewFile(views, log) as place:
            await rebuild_view(place, SqliteView(Totals()))
        await assert_equal_to_a_fresh_one(log, SqliteView(Totals()), views)


async def test_a_view_that_is_ahead_of_its_log_holds_nothing_of_what_is_appended(tmp_path: Path) -> None:
    """Another process keeps it, from the longer log: this one has not come to begin it, and to say so."""
    path, older, views = tmp_path / "log.db", tmp_path / "older.db", tmp_path / "views.db"
    async with open_file(path) as log:
        await append(log, 0, 100)
    shutil.copy(path, older)
    async with open_file(path) as log, ProjectionRunner(log, [SqliteView(Totals())], into=views) as runner:
        await runner.wait_for("totals", await append(log, 100, 20))
        async with open_file(older) as short, ProjectionRunner(short, [SqliteView(Totals())], into=views) as other:
            with pytest.raises(EventLogError) as late:
                await other.wait_for("totals", await append(short, 100, 1), timeout_s=0.5)
            assert late.value.code == "view_late"


async def test_a_database_of_views_belongs_to_one_log(tmp_path: Path) -> None:
    views = tmp_path / "views.db"
    async with open_file(tmp_path / "log.db") as log, ProjectionRunner(log, [SqliteView(Totals())], into=views):
        pass
    async with open_file(tmp_path / "other.db") as log:
        with pytest.raises(EventLogError) as refusal:
            async with ProjectionRunner(log, [SqliteView(Totals())], into=views):
                pytest.fail("it was opened")
        assert refusal.value.code == "view_of_another_log"


# ── several processes ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.campaign
async def test_two_processes_keep_one_view_and_the_second_takes_over(tmp_path: Path, into: Path | None) -> None:
    path = tmp_path / "log.db"
    async with open_file(path, busy_timeout_s=30) as log:
        await append(log, 0, 500)
        keepers = [start(scenarios.keeps_a_view, path, into or "") for _ in range(2)]
        try:
            for keeper in keepers:
                assert keeper.stdout is not None
                assert (await asyncio.to_thread(keeper.stdout.readline)).strip() == "READY"
            async with ProjectionRunner(log, [SqliteView(Totals())], into=into) as runner:
                for number in range(20):
                    await runner.wait_for("totals", await append(log, 500 + number, 1), timeout_s=30)
                keepers[0].send_signal(signal.SIGKILL)
                for number in range(20):
                    await runner.wait_for("totals", await append(log, 600 + number, 1), timeout_s=30)
        finally:
            for keeper in keepers:
                keeper.kill()
                await asyncio.to_thread(keeper.communicate)
        async with ProjectionRunner(log, [SqliteView(Totals())], into=into) as runner:
            await runner.wait_for("totals", 540, timeout_s=30)
        await assert_equal_to_a_fresh_one(log, SqliteView(Totals()), into)


# ── live equals rebuilt ──────────────────────────────────────────────────────────────────────────────────────────────


class Last(RowProjection):
    """The last order of each customer; none while it was for nothing. Rows come and go."""

    name = "last"
    columns = {"customer": "TEXT PRIMARY KEY", "amount": "INTEGER NOT NULL", "at": "INTEGER NOT NULL"}
    event_types = frozenset({"test_order_placed"})
    indexes = ("amount", "at, customer")

    def key(self, event: ViewEvent) -> Key | None:
        """Return the customer, if it is one who counts."""
        return None if event.data.customer == "customer-0" else str(event.data.customer)

    def apply(self, row: Row | None, event: ViewEvent) -> Row | None:
        """Return the last order."""
        if event.data.amount % 5 == 0:
            return None
        return {"customer": event.data.customer, "amount": event.data.amount, "at": event.position}


@pytest.mark.parametrize("seed", range(6))
async def test_inline_followed_in_memory_and_fresh_views_are_the_same_after_any_history(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    path, views = tmp_path / "log.db", tmp_path / "views.db"
    memory = [MemoryView(Last()), MemoryView(TotalsOfAmounts())]
    inline = [SqliteView(Last()), SqliteView(TotalsOfAmounts())]
    written = 0
    for _ in range(3):  # what is kept is closed and opened again
        async with (
            open_file(path, views=inline) as log,
            ProjectionRunner(log, [SqliteView(Last()), SqliteView(TotalsOfAmounts())], into=views) as runner,
            ProjectionRunner(log, memory) as in_memory,
        ):
            for _ in range(chance.randrange(1, 12)):
                count = chance.choice([1, 1, 2, 7, 300])
                written += count
                position = await append(log, chance.randrange(1000), count)
            for name in ("last", "totals"):
                await runner.wait_for(name, position)
                await in_memory.wait_for(name, position)
            for view, kept in zip(inline, memory, strict=True):
                await assert_equal_to_a_fresh_one(log, view, None)
                await assert_equal_to_a_fresh_one(log, view, views)
                rows = await log.read_view(view.rows, None, 10_000)
                assert rows == sorted(kept, key=lambda row: row["customer"])
