"""Appending: durable calls one by one from 1, 100 and 1000 tasks, and in batches of 1000."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Final

from tools.bench.cases.case import Case, Place, rate
from tools.bench.peers import BARE, OURS, RAW, Peer
from tools.bench.peers.raw_sqlite import RawSqlite, flush_seconds
from tools.bench.rounds import Side
from tools.bench.store import Store

__all__ = ["APPEND_1", "APPEND_100", "APPEND_1000", "BATCHES", "FLUSH", "X1", "X100", "X1000"]

X1: Final = "sqlite3 x1"
X100: Final = "sqlite3 x100"
X1000: Final = "sqlite3 x1000"
FLUSH: Final = "4 KB + fdatasync"
_BATCH: Final = 1000


@asynccontextmanager
async def _one_task(place: Place) -> AsyncIterator[list[Side]]:
    async with AsyncExitStack() as opened:
        folder = place.folder_for("blocks")
        blocks = place.scale.single_each
        sides = [rate(FLUSH, blocks, partial(_in_loop, partial(flush_seconds, folder, blocks=blocks)))]
        for peer in place.peers:
            store = await place.enter(opened, peer)
            sides.append(_appends(peer, store, tasks=1, each=place.scale.single_each))
        yield sides


@asynccontextmanager
async def _hundred_tasks(place: Place) -> AsyncIterator[list[Side]]:
    async with AsyncExitStack() as opened:
        sides = []
        for peer in place.peers:
            store = await place.enter(opened, peer)
            if isinstance(store, RawSqlite):
                sides.append(_inserts(X1, store, rows=place.scale.single_each, each=1))
                sides.append(_inserts(X100, store, rows=100 * place.scale.hundred_each, each=100))
            else:
                sides.append(_appends(peer, store, tasks=100, each=place.scale.hundred_each))
        yield sides


@asynccontextmanager
async def _thousand_tasks(place: Place) -> AsyncIterator[list[Side]]:
    each = place.scale.thousand_each
    async with AsyncExitStack() as opened:
        sides = []
        for peer in place.peers:
            if peer.name in (OURS, BARE):
                sides.append(_appends(peer, await place.enter(opened, peer), tasks=1000, each=each))
            if peer.name == RAW:
                sides.append(_inserts(X1000, await place.enter(opened, peer), rows=1000 * each, each=1000))
        yield sides


@asynccontextmanager
async def _batches(place: Place) -> AsyncIterator[list[Side]]:
    batches = place.scale.batches
    async with AsyncExitStack() as opened:
        sides = []
        for peer in place.peers:
            if peer.name == OURS:
                store = await place.enter(opened, peer)
                sides.append(rate(OURS, batches * _BATCH, partial(store.append_batches, batches=batches)))
            if peer.name == RAW:
                sides.append(_inserts(X1000, await place.enter(opened, peer), rows=batches * _BATCH, each=_BATCH))
        yield sides


def _appends(peer: Peer, store: Store, *, tasks: int, each: int) -> Side:
    each = max(1, round(each * peer.pace))
    name = X1 if peer.name == RAW else peer.name
    return rate(name, tasks * each, partial(store.append, tasks=tasks, each=each))


def _inserts(name: str, store: RawSqlite, *, rows: int, each: int) -> Side:
    return rate(name, rows, partial(_in_loop, partial(store.insert, rows=rows, each=each)))


async def _in_loop(work: partial[float]) -> float:
    return work()


APPEND_1: Final = Case(
    name="append-1", what="one task, one durable event a call", unit="events/s", open=_one_task, warm_up=True
)
APPEND_100: Final = Case(
    name="append-100", what="100 tasks, one durable event a call", unit="events/s", open=_hundred_tasks, warm_up=True
)
APPEND_1000: Final = Case(
    name="append-1000", what="1000 tasks, one durable event a call", unit="events/s", open=_thousand_tasks, warm_up=True
)
BATCHES: Final = Case(
    name="batches", what="one task, 1000 events of one stream a call", unit="events/s", open=_batches, warm_up=True
)
