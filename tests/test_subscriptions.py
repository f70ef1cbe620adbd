"""Subscriptions by the thousand: one reader for all, bounded windows, no gap and no double; and what others got wrong.

The contract suite says what one subscription does, on every store. Here are their number, what they cost (in pages
read, never in time), and the ends of it: full windows, damage, other processes, the start and the end of the tail.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, closing
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventlog import EventLogError, EventReader, Expect, NewEvent, RecordedEvent
from eventlog.codec import Registry, event
from eventlog.log import CaughtUp, CursorMoved, FellBehind, Mark
from eventlog.stores import MemoryLog, SqliteLog
from eventlog.stores.requests import Wanted
from eventlog.stores.sqlite.feed import Feed
from eventlog.stores.sqlite.schema import EVENT_COLUMNS
from eventlog.stores.subscription.pages import TailPage, Unreadable
from eventlog.stores.subscription.progress import INTERVAL_POSITIONS, INTERVAL_S, Progress
from eventlog.stores.subscription.routes import Routes
from eventlog.stores.subscription.subscriber import WINDOW_BYTES, WINDOW_EVENTS, Subscriber
from eventlog.stores.subscription.tail import PAGE, RECENT_EVENTS, Tail
from tests import subscription_scenarios
from tools.campaigns.processes import child
from tools.campaigns.storage.log_files import assert_whole, open_file

ANY: Final = Expect.any()
PATIENCE_S: Final = 60.0
Feedlike = AsyncGenerator[RecordedEvent | Mark, None]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture(params=["sqlite", "memory"])
async def log(request: pytest.FixtureRequest, path: Path) -> AsyncIterator[SqliteLog | MemoryLog]:
    async with open_file(path) if request.param == "sqlite" else MemoryLog(actor="test") as opened:
        yield opened


def note(number: int = 0, **data: Any) -> NewEvent:
    return NewEvent("noted", {"n": number, **data})


def notes(count: int) -> list[NewEvent]:
    return [note(number) for number in range(count)]


def tail_of(log: SqliteLog | MemoryLog) -> Tail:
    return log._tail


def has_ended(log: SqliteLog | MemoryLog) -> bool:
    task = tail_of(log)._task
    return task is not None and task.done()


async def take(feed: Feedlike, count: int) -> list[RecordedEvent | Mark]:
    async with asyncio.timeout(PATIENCE_S):
        return [await anext(feed) for _ in range(count)]


async def take_positions(feed: Feedlike, count: int) -> list[int]:
    return [item.position for item in await take(feed, count)]


async def until(is_so: Callable[[], bool]) -> None:
    """Wait until something is so that must become so."""
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():  # noqa: ASYNC110  (nothing tells)
            await asyncio.sleep(0.002)


@asynccontextmanager
async def caught_up(log: EventReader, count: int, **options: Any) -> AsyncIterator[list[Feedlike]]:
    """Give so many subscriptions of what is to come, each at the end of the log."""
    after = (await log.head()).position
    async with AsyncExitStack() as stack:
        feeds = []
        for _ in range(count):
            feed = log.subscribe(after=after, marks=True, **options)
            await stack.enter_async_context(aclosing(feed))
            assert await take(feed, 1) == [CaughtUp(after)]
            feeds.append(feed)
        yield feeds


# ── a thousand ────────────────────────────────────────────────────────────────────────────────────────────────────────

RUNS: Final = 990
ON_ALL: Final = 10


class Reader:
    """One of many: it follows its own run, or the whole log, and asserts that nothing is missing or comes twice."""

    def __init__(self, number: int) -> None:
        self.stream: Final = f"run-{number}" if number < RUNS else None
        self.is_slow: Final = number % 10 == 0
        self.last = 0
        self.end = 0
        """How far it has to get."""

    async def read(self, log: EventReader) -> None:
        streams = None if self.stream is None else [self.stream]
        async with aclosing(log.subscribe(streams=streams)) as feed:
            async for event in feed:
                assert isinstance(event, RecordedEvent)
                assert self.stream in (None, event.stream)
                number = event.position if self.stream is None else event.version
                assert number == self.last + 1, f"{self.stream}: {number} behind {self.last}"
                self.last = number
                if self.last == self.end:
                    return
                if self.is_slow:
                    await asyncio.sleep(0.001)


class Watched:
    """What waited at most, seen from outside while a crowd was served."""

    def __init__(self, tail: Tail) -> None:
        self._tail: Final = tail
        self.window = self.recent = 0

    def look(self) -> None:
        self.window = max([self.window, *(len(each.events) for each in self._tail._members)])
        self.recent = max(self.recent, len(self._tail._recent))

    def assert_bounded(self) -> None:
        assert self.window <= WINDOW_EVENTS
        assert self.recent <= RECENT_EVENTS


async def serve_crowd(log: SqliteLog, path: Path, *, rounds: int, others_rounds: int) -> Watched:
    """Let 1,000 follow what is written here and in another process; return what waited meanwhile."""
    readers = [Reader(number) for number in range(RUNS + ON_ALL)]
    for reader in readers:
        reader.end = rounds + others_rounds if reader.stream is not None else (rounds + others_rounds) * RUNS
    watched = Watched(tail_of(log))
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        for reader in readers:
            group.create_task(reader.read(log))
        await until(lambda: len(tail_of(log)._members) == len(readers))
        other = child.start(subscription_scenarios.writes, path, RUNS, others_rounds)
        try:
            for number in range(rounds):
                for run in range(RUNS):
                    await log.append(f"run-{run}", [note(number)], expect=ANY)
                    watched.look()
            await asyncio.to_thread(other.wait)
        finally:
            other.kill()
            other.communicate()
        while any(reader.last < reader.end for reader in readers):
            watched.look()
            await asyncio.sleep(0.005)
    return watched


@pytest.mark.campaign
async def test_a_thousand_subscribers_miss_nothing_and_hold_little_while_two_processes_write(path: Path) -> None:
    async with open_file(path) as log:
        watched = await serve_crowd(log, path, rounds=1, others_rounds=2)
        watched.assert_bounded()
        assert watched.window > 0, "somebody had to wait, or the bound says nothing"
        await assert_whole(log)
        await until(lambda: has_ended(log))


async def write_past(log: SqliteLog | MemoryLog, quick: Feedlike, watched: Watched) -> None:
    """Append far more than a window, all of which one is given at once, while the others do not look."""
    for _ in range(10):
        await log.append("a", notes(150), expect=ANY)
        for _ in range(150):
            await anext(quick)
            watched.look()


async def until_caught_up(feed: Feedlike) -> list[RecordedEvent | Mark]:
    """Return what comes up to the next `CaughtUp`, which comes because the subscriber has fallen behind."""
    found: list[RecordedEvent | Mark] = []
    while not found or not isinstance(found[-1], CaughtUp):
        found += await take(feed, 1)
    return found


async def test_what_waits_for_one_who_does_not_look_is_bounded(log: SqliteLog | MemoryLog) -> None:
    watched = Watched(tail_of(log))
    async with caught_up(log, 2) as (slow, quick):
        await write_past(log, quick, watched)
        found = await until_caught_up(slow)
    watched.assert_bounded()
    assert watched.window > WINDOW_EVENTS // 2
    assert [item.position for item in found if isinstance(item, RecordedEvent)] == list(range(1, 1_501))
    assert sum(isinstance(item, FellBehind) for item in found) == 1


async def test_a_queue_without_a_bound_is_caught(log: SqliteLog | MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    def put_anyway(subscriber: Subscriber, event: RecordedEvent) -> bool:
        subscriber.events.append(event)
        subscriber.wake()
        return True

    monkeypatch.setattr(Subscriber, "put", put_anyway)
    watched = Watched(tail_of(log))
    async with caught_up(log, 2) as (_, quick):
        await write_past(log, quick, watched)
    with pytest.raises(AssertionError):
        watched.assert_bounded()


async def test_a_tail_that_drops_what_has_no_room_is_caught(
    log: SqliteLog | MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = Subscriber.put

    def put_or_drop(subscriber: Subscriber, event: RecordedEvent) -> bool:
        put(subscriber, event)
        return True

    monkeypatch.setattr(Subscriber, "put", put_or_drop)
    reader = Reader(RUNS)  # on the whole log, and slow
    reader.end = 2_000
    async with asyncio.timeout(PATIENCE_S):
        reading = asyncio.create_task(reader.read(log))
        await until(lambda: len(tail_of(log)._members) == 1)
        await log.append("a", notes(1_000), expect=ANY)
        await log.append("a", notes(1_000), expect=ANY)
        while not reading.done():  # there is a next event after whatever was dropped
            await log.append("a", [note()], expect=ANY)
            await asyncio.sleep(0.002)
        with pytest.raises(AssertionError, match="behind"):
            await reading


async def test_a_tail_that_begins_one_too_early_is_caught(
    log: SqliteLog | MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log.append("a", [note()], expect=ANY)
    join = Tail.join

    def join_too_early(tail: Tail, subscriber: Subscriber) -> bool:
        object.__setattr__(subscriber, "after", subscriber.after - 1)
        return join(tail, subscriber)

    monkeypatch.setattr(Tail, "join", join_too_early)
    reader = Reader(RUNS + 1)
    reader.end = 2
    reading = asyncio.create_task(reader.read(log))
    with pytest.raises(AssertionError, match="1 behind 1"):
        await asyncio.wait_for(reading, PATIENCE_S)


# ── what it costs, in pages ───────────────────────────────────────────────────────────────────────────────────────────


class Pages:
    """Counts what is read for the subscribers of logs in files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.own: list[tuple[int, int]] = []
        self.of_the_tail: list[tuple[int, int]] = []
        """Each from a position, and how many positions."""
        read_page, read_tail = Feed.read_page, Feed.read_tail

        async def counted_page(feed: Feed, after: int, limit: int, wanted: Wanted | None) -> Any:
            page = await read_page(feed, after, limit, wanted)
            self.own.append((after, page[1] - after))
            return page

        async def counted_tail(feed: Feed, after: int, limit: int) -> Any:
            page = await read_tail(feed, after, limit)
            self.of_the_tail.append((after, len(page)))
            return page

        monkeypatch.setattr(Feed, "read_page", counted_page)
        monkeypatch.setattr(Feed, "read_tail", counted_tail)

    def forget(self) -> None:
        self.own.clear()
        self.of_the_tail.clear()

    def positions_of_the_tail(self) -> int:
        return sum(count for _, count in self.of_the_tail)


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Pages:
    return Pages(monkeypatch)


@pytest.mark.parametrize("count", [1, 20, 500])
async def test_a_new_event_is_read_once_however_many_there_are(path: Path, pages: Pages, count: int) -> None:
    """store-22: nobody but the tail does anything when something is committed that he does not want."""
    async with open_file(path) as log, caught_up(log, 1) as (on_all,), caught_up(log, count, streams=["x"]):
        pages.forget()
        for number in range(30):
            await log.append("a", [note(number)], expect=ANY)
        assert await take_positions(on_all, 30) == list(range(1, 31))
        assert pages.positions_of_the_tail() == 30
        assert pages.own == []


async def test_nothing_is_read_where_nobody_has_subscribed(path: Path, pages: Pages) -> None:
    """store-24: an append does not know whether anybody is told of it."""
    async with open_file(path) as log:
        async with caught_up(log, 3):
            pass
        await until(lambda: has_ended(log))
        pages.forget()
        await log.append("a", notes(10), expect=ANY)
        await asyncio.sleep(0.05)
        assert (pages.own, pages.of_the_tail) == ([], [])


async def test_an_idle_log_is_looked_at_seldom_and_by_one_for_all(path: Path, pages: Pages) -> None:
    """The pause doubles each time, up to a quarter of a second and by chance a quarter less; timers are never early."""
    loop = asyncio.get_running_loop()
    async with open_file(path) as log, caught_up(log, 100):
        pages.forget()
        began_s = loop.time()
        await asyncio.sleep(0.6)
        passed_s = loop.time() - began_s
        assert pages.own == []
        assert 0 < len(pages.of_the_tail) <= 12 + passed_s / (0.75 * 0.25)


async def test_those_who_catch_up_do_so_one_after_the_other(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_file(path) as log:
        await log.append("a", notes(1_200), expect=ANY)
        reading = most = 0
        read_page = Feed.read_page

        async def counted(feed: Feed, after: int, limit: int, wanted: Wanted | None) -> Any:
            nonlocal reading, most
            reading += 1
            most = max(most, reading)
            try:
                return await read_page(feed, after, limit, wanted)
            finally:
                reading -= 1

        monkeypatch.setattr(Feed, "read_page", counted)
        found = await asyncio.gather(*(take_positions(log.subscribe(), 1_200) for _ in range(20)))
        assert all(positions == list(range(1, 1_201)) for positions in found)
        assert most == 1


async def test_all_are_given_the_same_object(log: SqliteLog | MemoryLog) -> None:
    async with caught_up(log, 50) as feeds:
        await log.append("a", [note()], expect=ANY)
        events = [(await take(feed, 1))[0] for feed in feeds]
        assert all(event is events[0] for event in events)


async def test_many_large_events_fill_a_window_before_many_small_ones_do(log: SqliteLog | MemoryLog) -> None:
    async with caught_up(log, 2) as (slow, quick):
        (slows, _) = tail_of(log)._members
        count = 4 * WINDOW_BYTES // 300_000
        for number in range(count):
            await log.append("a", [note(number, text="x" * 300_000)], expect=ANY)
            await anext(quick)
        assert slows.has_fallen_behind
        assert sum(len(event.body) for event in slows.events) < WINDOW_BYTES + 400_000
        found = await until_caught_up(slow)
        assert [item.position for item in found if isinstance(item, RecordedEvent)] == list(range(1, count + 1))
        assert any(isinstance(item, FellBehind) for item in found)


# ── who wants what ────────────────────────────────────────────────────────────────────────────────────────────────────

_names = st.text("ab-", min_size=0, max_size=4)
_wanted = st.none() | st.builds(
    Wanted,
    st.none() | st.frozensets(st.sampled_from("xyz"), max_size=2),
    _names,
    st.none() | st.frozensets(_names, max_size=3),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(_wanted, max_size=12), _names, st.sampled_from("xyz"), st.randoms())
def test_the_routes_lead_to_those_and_only_those_who_want_an_event(
    filters: list[Wanted | None], stream: str, type_name: str, random: Random
) -> None:
    routes = Routes()
    subscribers = [Subscriber(wanted, 0, has_marks=False) for wanted in filters]
    for subscriber in subscribers:
        routes.add(subscriber)
    staying = subscribers[:]
    while True:
        found = [subscriber for group in routes.who_wants(stream, type_name) for subscriber in group]
        assert len(found) == len(set(found)), "nobody twice"
        assert set(found) == {each for each in staying if each.wanted is None or each.wanted.has(type_name, stream)}
        assert set(found) <= set(routes.who_might_want(stream))
        if not staying:
            break
        routes.discard(staying.pop(random.randrange(len(staying))))
    for subscriber in subscribers:
        routes.discard(subscriber)  # once more, which changes nothing
    assert not routes._by_stream and not routes._by_prefix and routes._of_the_log.is_empty(), "nothing is left behind"


# ── damage, and what cannot be decoded ────────────────────────────────────────────────────────────────────────────────


def damage_the_next(path: Path) -> None:
    """As another program, append a row that looks like the last one and has its leaf."""
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        changed = {"position": "position + 1", "version": "version + 1", "event_id": "randomblob(16)"}
        values = ", ".join(changed.get(name, name) for name in EVENT_COLUMNS)
        last = "FROM events ORDER BY position DESC LIMIT 1"
        raw.execute(f"INSERT INTO events ({', '.join(EVENT_COLUMNS)}) SELECT {values} {last}")


async def test_a_damaged_event_stops_everybody_who_would_pass_it(path: Path) -> None:
    async with open_file(path) as log:
        await log.append("a", [note()], expect=ANY)
        filters: list[dict[str, Any]] = [{}, {"types": ["absent"]}, {"streams": ["b"]}, {"stream_prefix": "c"}]
        async with AsyncExitStack() as stack:
            feeds = [feed for each in filters for feed in await stack.enter_async_context(caught_up(log, 3, **each))]
            waiting = [asyncio.ensure_future(anext(feed)) for feed in feeds]
            await asyncio.sleep(0.01)
            damage_the_next(path)
            async with asyncio.timeout(PATIENCE_S):
                found = await asyncio.gather(*waiting, return_exceptions=True)
        assert {getattr(each, "code", each) for each in found} == {"log_corrupt"}
        with pytest.raises(EventLogError, match="is not what its hash says"):
            await take(log.subscribe(after=1), 1)


async def test_an_event_that_cannot_be_decoded_stops_only_those_who_want_it(path: Path) -> None:
    registry = subscription_scenarios.readers_registry()
    async with open_file(path, registry=registry) as log, AsyncExitStack() as stack:
        (wants_it,) = await stack.enter_async_context(caught_up(log, 1, types=["priced"]))
        (on_all,) = await stack.enter_async_context(caught_up(log, 1))
        (of_another_type,) = await stack.enter_async_context(caught_up(log, 1, types=["noted"]))
        (elsewhere,) = await stack.enter_async_context(caught_up(log, 1, streams=["a"]))
        done = await asyncio.to_thread(child.run, subscription_scenarios.writes_prices, path, "1,none,3")
        assert done.returncode == 0, done.stderr
        await log.append("a", [note()], expect=ANY)
        for feed in (wants_it, on_all):
            assert await take_positions(feed, 1) == [1]
            with pytest.raises(EventLogError) as caught:
                await take(feed, 1)
            assert (caught.value.code, caught.value.details["position"]) == ("invalid_event", 2)
        for feed in (of_another_type, elsewhere):
            items: list[RecordedEvent | Mark] = []
            while not isinstance(items[-1] if items else None, RecordedEvent):
                items += await take(feed, 1)
            assert items[-1].position == 4
            assert all(isinstance(item, CursorMoved) for item in items[:-1])


async def test_a_page_that_cannot_be_read_for_a_moment_costs_nobody_anything(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_tail = Feed.read_tail
    failures: list[int] = []

    async def failing(feed: Feed, after: int, limit: int) -> Any:
        if len(failures) < 3:
            failures.append(after)
            raise OSError("for a moment")
        return await read_tail(feed, after, limit)

    async with open_file(path) as log, caught_up(log, 5) as feeds:
        monkeypatch.setattr(Feed, "read_tail", failing)
        for number in range(1, 6):
            await log.append("a", [note()], expect=ANY)
            for feed in feeds:
                assert await take_positions(feed, 1) == [number]
        await until(lambda: len(failures) == 3)


@pytest.mark.parametrize("marks", [True, False])
async def test_one_who_was_at_the_end_and_reads_a_full_page_has_fallen_behind(
    path: Path, monkeypatch: pytest.MonkeyPatch, marks: bool
) -> None:
    async def fails(feed: Feed, after: int, limit: int) -> Any:
        raise OSError("for a while")

    async with open_file(path) as log, aclosing(log.subscribe(marks=marks)) as feed:
        waiting = asyncio.ensure_future(anext(feed))
        if marks:
            assert await waiting == CaughtUp(0)
            waiting = asyncio.ensure_future(anext(feed))
        await until(lambda: len(tail_of(log)._members) == 1)
        with monkeypatch.context() as patch:
            patch.setattr(Feed, "read_tail", fails)
            await log.append("a", notes(PAGE + 1), expect=ANY)
            async with asyncio.timeout(PATIENCE_S):
                first = await waiting
        if marks:
            assert first == FellBehind(0)
            (first,) = await take(feed, 1)
        assert first.position == 1
        assert await take_positions(feed, PAGE) == list(range(2, PAGE + 2))


async def test_in_memory_an_event_that_cannot_be_decoded_stops_only_those_who_want_it_too() -> None:
    registry = Registry()
    async with MemoryLog(actor="test", registry=registry) as log, AsyncExitStack() as stack:
        (wants_it,) = await stack.enter_async_context(caught_up(log, 1, types=["priced"]))
        (elsewhere,) = await stack.enter_async_context(caught_up(log, 1, streams=["a"]))
        await log.append("prices", [NewEvent("priced", {"total": "none"})], expect=ANY)
        event("priced", registry=registry)(subscription_scenarios.Priced)
        await log.append("a", [note()], expect=ANY)
        with pytest.raises(EventLogError) as caught:
            await take(wants_it, 1)
        assert (caught.value.code, caught.value.details["position"]) == ("invalid_event", 1)
        items = await take(elsewhere, 1)
        while isinstance(items[-1], CursorMoved):
            items += await take(elsewhere, 1)
        assert items[-1].position == 2


class HeldSource:
    """Events in memory, of which the next page is read when the test says so."""

    is_shared = False

    def __init__(self, page: TailPage) -> None:
        self.page: Final = page
        self.asked: Final[list[int]] = []
        self.may_go_on: Final = asyncio.Event()

    def check(self) -> None:
        """It may be read."""

    async def read_page(self, after: int, limit: int, wanted: Wanted | None) -> Any:
        raise AssertionError("nobody reads for himself here")

    async def read_tail(self, after: int, limit: int) -> TailPage:
        self.asked.append(after)
        await self.may_go_on.wait()
        return self.page[after : after + limit]


async def held_source(*sizes: int) -> HeldSource:
    """Return a source of so many events of the stream `a` with bodies of about these sizes."""
    async with MemoryLog(actor="test") as log:
        for size in sizes:
            await log.append("a", [note(text="x" * size)], expect=ANY)
        return HeldSource([event async for event in log.read_all()])


def subscriber(after: int, **wanted: Any) -> Subscriber:
    return Subscriber(Wanted(**{"types": None, "stream_prefix": "", **wanted}), after, has_marks=False)


ELSEWHERE: Final = frozenset({"elsewhere"})


async def test_a_page_of_those_who_have_all_left_is_not_given_to_those_who_began_elsewhere() -> None:
    source = await held_source(1, 1, 1)
    tail = Tail(source)
    early, late = subscriber(0), subscriber(2)
    assert tail.join(early)
    await until(lambda: source.asked == [0])
    tail.leave(early)
    assert tail.join(late)
    source.may_go_on.set()
    await until(lambda: len(late.events) == 1)
    assert (late.take().position, tail.position, list(early.events)) == (3, 3, [])
    assert source.asked[:2] == [0, 2]
    tail.close()


async def test_who_joins_where_the_tail_has_passed_what_cannot_be_decoded_reads_for_himself() -> None:
    source = await held_source(1, 1)
    source.page[1] = Unreadable(2, "a")
    tail = Tail(source)
    source.may_go_on.set()
    assert tail.join(subscriber(0, streams=ELSEWHERE))
    await until(lambda: tail.position == 2)
    assert not tail.join(subscriber(0))
    assert tail.join(subscriber(2)), "behind it there is nothing that he would miss"
    tail.close()


async def test_who_joins_with_more_behind_him_than_his_window_holds_reads_for_himself() -> None:
    source = await held_source(WINDOW_BYTES // 2, WINDOW_BYTES // 2, 1)
    tail = Tail(source)
    source.may_go_on.set()
    assert tail.join(subscriber(0, streams=ELSEWHERE))
    await until(lambda: tail.position == 3)
    assert not tail.join(subscriber(0))
    nearer = subscriber(1)
    assert tail.join(nearer)
    assert [event.position for event in nearer.events] == [2, 3]
    tail.close()


# ── beginning and ending ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_tail_ends_with_the_last_subscriber_and_begins_again(log: SqliteLog | MemoryLog) -> None:
    for number in range(3):
        async with caught_up(log, 2) as feeds:
            task = tail_of(log)._task
            assert task is not None and not task.done()
            await log.append("a", [note()], expect=ANY)
            for feed in feeds:
                assert await take_positions(feed, 1) == [number + 1]
        await until(task.done)
        assert not tail_of(log)._members


async def test_closing_the_log_ends_all_and_leaves_no_task(log: SqliteLog | MemoryLog) -> None:
    before = asyncio.all_tasks()
    feeds = [log.subscribe(marks=True) for _ in range(100)]
    for feed in feeds:
        await take(feed, 1)
    waiting = [asyncio.ensure_future(anext(feed)) for feed in feeds[:50]]
    await asyncio.sleep(0)
    await log.close()
    async with asyncio.timeout(PATIENCE_S):
        found = await asyncio.gather(*waiting, *map(anext, feeds[50:]), return_exceptions=True)
    assert [getattr(each, "code", each) for each in found] == ["engine_closed"] * 100
    await until(lambda: asyncio.all_tasks() <= before)


async def test_a_tail_that_somebody_cancels_is_begun_again(log: SqliteLog | MemoryLog) -> None:
    async with caught_up(log, 5) as feeds:
        waiting = [asyncio.ensure_future(anext(feed)) for feed in feeds]
        await asyncio.sleep(0)
        task = tail_of(log)._task
        assert task is not None
        task.cancel()
        await until(task.done)
        await log.append("a", [note()], expect=ANY)
        async with asyncio.timeout(PATIENCE_S):
            assert [event.position for event in await asyncio.gather(*waiting)] == [1] * 5


async def test_one_that_is_forgotten_in_the_middle_is_no_burden(log: SqliteLog | MemoryLog) -> None:
    forgotten = log.subscribe(marks=True)
    await take(forgotten, 1)
    async with caught_up(log, 1) as (feed,):
        for _ in range(4):
            await log.append("a", notes(300), expect=ANY)
            await take(feed, 300)
        assert len(tail_of(log)._members) == 1
    del forgotten


# ── what others got wrong: cursors ────────────────────────────────────────────────────────────────────────────────────


async def test_page_and_end_are_of_one_snapshot(path: Path) -> None:
    """A head that is read apart would be beyond events that no page has given yet."""
    async with open_file(path) as log:
        other = child.start(subscription_scenarios.writes, path, 100, 60)
        try:
            joined = 0
            while other.poll() is None:
                given, moved = 0, 0
                async with aclosing(log.subscribe(marks=True)) as feed:
                    async for item in feed:
                        moved += isinstance(item, RecordedEvent)
                        given = item.position if isinstance(item, RecordedEvent) else given
                        assert item.position == given == moved, f"{item} behind {given}, the event number {moved}"
                        if isinstance(item, CaughtUp):
                            break
                joined += 1
        finally:
            other.kill()
            other.communicate()
        assert joined > 1
        await assert_whole(log)


async def test_the_cursor_moves_over_what_is_not_wanted_and_what_cannot_be_decoded(path: Path) -> None:
    """store-34: no next position is assumed, and nothing has to match for the cursor to be beyond it."""
    async with open_file(path) as log:
        await log.append("a", notes(3), expect=ANY)
        done = await asyncio.to_thread(child.run, subscription_scenarios.writes_prices, path, "none,none")
        assert done.returncode == 0, done.stderr
        await log.append("b", notes(3), expect=ANY)
    async with open_file(path, registry=subscription_scenarios.readers_registry()) as log:
        assert await take(log.subscribe(streams=["absent"], marks=True), 2) == [CursorMoved(8), CaughtUp(8)]
        assert await take_positions(log.subscribe(types=["noted"], marks=True), 7) == [1, 2, 3, 6, 7, 8, 8]
        assert await take_positions(log.subscribe(after=5, marks=True), 4) == [6, 7, 8, 8]


async def test_a_cursor_ahead_of_an_older_copy_is_told_so(path: Path, tmp_path: Path) -> None:
    """store-36: whoever waited for position 121 of a log that ends at 100 would wait for ever."""
    async with open_file(path) as log:
        await log.append("a", notes(100), expect=ANY)
        await log.backup(tmp_path / "older.db")
        await log.append("a", notes(20), expect=ANY)
    shutil.move(tmp_path / "older.db", path)
    async with open_file(path) as log:
        await log.append("a", [note()], expect=ANY)
        with pytest.raises(EventLogError) as caught:
            await take(log.subscribe(after=120, marks=True), 1)
        assert caught.value.code == "store_identity_changed"
        assert (caught.value.details["after"], caught.value.details["head"]) == (120, 101)


async def test_ten_thousand_that_nobody_wants_move_the_cursor_and_are_not_read_again(path: Path, pages: Pages) -> None:
    """store-38: what is left out moves the cursor in steps, is not collected, and is not read again after a restart."""
    async with open_file(path) as log:
        for _ in range(5):
            await log.append("a", notes(1_000), expect=ANY)
        feed = log.subscribe(types=["rare"], marks=True)
        items = await until_caught_up(feed)
        assert [mark.position for mark in items] == [*range(500, 5_001, 500), 5_000]
        for _ in range(5):
            await log.append("a", notes(1_000), expect=ANY)
        cursor = items[-1].position
        while cursor < 10_000:
            (mark,) = await take(feed, 1)
            assert isinstance(mark, CursorMoved) and mark.position > cursor
            cursor = mark.position
            assert len(tail_of(log)._recent) <= RECENT_EVENTS
        await feed.aclose()
    pages.forget()
    async with open_file(path) as log:
        await log.append("a", [NewEvent("rare", {})], expect=ANY)
        assert await take_positions(log.subscribe(after=cursor, types=["rare"]), 1) == [10_001]
        assert sum(count for _, count in pages.own) == 1
        assert min(after for after, _ in pages.own + pages.of_the_tail) == 10_000


async def test_who_comes_again_is_given_nothing_again(path: Path) -> None:
    """store-40: the cursor of whoever handles events is stored with what he does, and counts alone."""
    async with open_file(path) as log:
        await log.append("a", notes(40), expect=ANY)
        handled: list[int] = []

        async def handle(count: int) -> None:
            async with aclosing(log.subscribe(after=handled[-1] if handled else 0)) as feed:
                for _ in range(count):
                    handled.append((await take(feed, 1))[0].position)

        writing = asyncio.create_task(log.append("a", notes(30), expect=ANY))
        await handle(50)
        for _ in range(3):
            waiting = asyncio.create_task(handle(1_000))
            await asyncio.sleep(0.01)
            waiting.cancel()
            await asyncio.wait({waiting})
        await writing
        await log.append("a", notes(5), expect=ANY)
        await handle(75 - len(handled))
        assert handled == list(range(1, 76))


async def test_one_in_another_process_goes_on_where_one_here_stopped(path: Path) -> None:
    async with open_file(path) as log, caught_up(log, 1) as (feed,):
        await log.append("a", notes(700), expect=ANY)
        (first, *_) = [await take_positions(feed, 350)]
        done = asyncio.create_task(
            asyncio.to_thread(child.run, subscription_scenarios.follows_to, path, first[-1], 1_000)
        )
        for _ in range(30):
            await log.append("a", notes(10), expect=ANY)
        assert first + (await done).result == list(range(1, 1_001))


# ── marks ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_all_of_many_learn_in_the_end_how_far_the_log_is(log: SqliteLog | MemoryLog) -> None:
    """Whether they are given much, little or nothing, and though nothing comes any more."""
    async with AsyncExitStack() as stack:
        cursors = dict.fromkeys(range(150), 0)

        async def follow(number: int) -> None:
            feed = log.subscribe(streams=[f"a-{number}"], marks=True)
            async with aclosing(feed):
                async for item in feed:
                    assert item.position >= cursors[number]
                    cursors[number] = item.position

        following = [asyncio.create_task(follow(number)) for number in cursors]
        stack.callback(lambda: [task.cancel() for task in following])
        await until(lambda: len(tail_of(log)._members) == len(cursors))
        for number in range(60):
            await log.append(f"a-{number % 30}", notes(2), expect=ANY)
            await asyncio.sleep(0.003)
        await until(lambda: set(cursors.values()) == {120} or any(task.done() for task in following))
        assert set(cursors.values()) == {120}
        await until(lambda: tail_of(log)._progress.until_next_s(0.0) is None)


def test_a_thousand_are_not_woken_at_once_and_nobody_twice_for_the_same() -> None:
    progress = Progress()
    subscribers = [Subscriber(None, 0, has_marks=True) for _ in range(1_000)]
    for subscriber in subscribers:
        progress.add(subscriber, 0.0, 0)
    progress.tell(INTERVAL_S, 0)
    assert not any(subscriber.is_due for subscriber in subscribers), "the tail has not moved"
    turns = 0
    while any(not subscriber.is_due for subscriber in subscribers):
        before = sum(subscriber.is_due for subscriber in subscribers)
        progress.tell(10.0, 7)
        assert 0 < sum(subscriber.is_due for subscriber in subscribers) - before <= 100
        turns += 1
    assert turns >= 10
    for subscriber in subscribers:
        subscriber.is_due, subscriber.told = False, 7
    progress.tell(20.0, 7)
    assert not any(subscriber.is_due for subscriber in subscribers)


def test_one_who_was_just_given_something_is_told_in_the_turn_after() -> None:
    progress, subscriber = Progress(), Subscriber(None, 0, has_marks=True)
    progress.add(subscriber, 0.0, 0)
    subscriber.told = 5
    progress.tell(1.0, 9)
    assert not subscriber.is_due
    assert progress.until_next_s(1.0) == INTERVAL_S
    other = Subscriber(None, 9, has_marks=True)
    progress.add(other, 1.1, 9)
    progress.discard(other)
    assert progress.until_next_s(1.0) == INTERVAL_S, "who comes and goes does not make anybody be forgotten"
    progress.tell(1.0 + INTERVAL_S, 9)
    assert subscriber.is_due
    assert progress.until_next_s(2.0) is None


def test_many_positions_are_not_passed_in_silence() -> None:
    progress, subscriber = Progress(), Subscriber(None, 0, has_marks=True)
    progress.add(subscriber, 0.0, 0)
    progress.tell(0.001, INTERVAL_POSITIONS - 1)
    assert not subscriber.is_due
    progress.tell(0.002, INTERVAL_POSITIONS)
    assert subscriber.is_due
