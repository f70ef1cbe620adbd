"""Reading: a stream loaded whole, the feed of all events, and the check of all hashes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Final

from eventlog.audit.verify import verify
from eventlog.stores import SqliteLog
from tools.bench.cases.case import Case, Place, rate
from tools.bench.peers import BARE, OURS, RAW
from tools.bench.rounds import Side
from tools.bench.store import Reader, timed, timed_on_processor

__all__ = ["CHECK_PAGES", "FEED", "LOAD", "SELECT_EVENTS", "VERIFY"]

SELECT_EVENTS: Final = "eventsourcing select_events"
CHECK_PAGES: Final = "eventlog check_page"
_EVENTSOURCING: Final = "eventsourcing"
_PAGE: Final = 1000


@asynccontextmanager
async def _load(place: Place) -> AsyncIterator[list[Side]]:
    events, loads = place.scale.stream, place.scale.loads
    async with AsyncExitStack() as opened:
        sides = []
        for peer in place.peers:
            if not peer.is_reader:
                continue
            store = await place.enter(opened, peer)
            await store.fill(events)
            sides.append(rate(peer.name, events * loads, partial(_loads, store, loads)))
            if peer.name == _EVENTSOURCING:
                sides.append(rate(SELECT_EVENTS, events, store.load_stored))
        yield sides


@asynccontextmanager
async def _feed(place: Place) -> AsyncIterator[list[Side]]:
    events = place.scale.feed
    async with AsyncExitStack() as opened:
        sides = []
        for peer in place.peers:
            if peer.name == OURS:
                store = await place.enter(opened, peer)
                await store.fill(events)
                sides.append(rate(OURS, events, partial(_read_all, store.log, events)))
            if peer.name == RAW:
                raw = await place.enter(opened, peer)
                raw.insert(rows=events, each=_PAGE)
                sides.append(rate("sqlite3 scan", events, partial(_in_loop, raw.scan)))
            if peer.name == _EVENTSOURCING:
                recorder = await place.enter(opened, peer)
                recorder.fill_feed(events)
                sides.append(rate(_EVENTSOURCING, events, recorder.read_feed))
        yield sides


@asynccontextmanager
async def _verify(place: Place) -> AsyncIterator[list[Side]]:
    events = place.scale.feed
    async with AsyncExitStack() as opened:
        sides = []
        for peer in place.peers:
            if peer.name == OURS:
                store = await place.enter(opened, peer)
                await store.fill(events)
                sides.append(rate(CHECK_PAGES, events, partial(_check_pages, store.log, events)))
                sides.append(rate(OURS, events, partial(_verify_all, store.log, events)))
            if peer.name == BARE:
                bare = await place.enter(opened, peer)
                await bare.fill(events)
                sides.append(rate(BARE, events, partial(timed_on_processor, bare.load)))
        yield sides


async def _loads(store: Reader, times: int) -> float:
    return sum([await store.load() for _ in range(times)])


async def _read_all(log: SqliteLog, events: int) -> float:
    seen = 0

    async def work() -> None:
        nonlocal seen
        async for _ in log.read_all():
            seen += 1

    seconds = await timed(work)
    assert seen == events, "the feed gives every event"
    return seconds


async def _check_pages(log: SqliteLog, events: int) -> float:
    async def work() -> None:
        after = 0
        while (page := await log.check_page(after=after, limit=_PAGE)).events:
            assert not page.problems, "what was just written is sound"
            after = page.position
        assert after == events, "the check has seen every event"

    return await timed_on_processor(work)


async def _verify_all(log: SqliteLog, events: int) -> float:
    async def work() -> None:
        verdicts = await verify(log)
        assert (verdicts.integrity.verdict, verdicts.events) == ("ok", events), "what was just written is sound"

    return await timed_on_processor(work)


async def _in_loop(work: Any) -> float:
    seconds: float = work()
    return seconds


LOAD: Final = Case(
    name="load",
    what="a stream of 1000 events loaded and decoded; by the engine verified as well",
    unit="events/s",
    open=_load,
    warm_up=True,
)
FEED: Final = Case(
    name="feed", what="all events in the order of the log; by the engine verified as well", unit="events/s", open=_feed
)
VERIFY: Final = Case(
    name="verify",
    what="every hash of the log computed again; in a second of one processor",
    unit="events/s",
    open=_verify,
)
