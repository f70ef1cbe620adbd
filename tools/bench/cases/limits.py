"""The limits: how often this machine does in a second what every event needs, and what every commit needs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from hashlib import sha256
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final

import msgspec

from tools.bench.cases.case import Case, Place, rate
from tools.bench.payloads import BODIES, StepRecorded, taken
from tools.bench.peers import RAW
from tools.bench.peers.raw_sqlite import flush_seconds
from tools.bench.rounds import Side
from tools.bench.store import timed

__all__ = ["LIMITS"]

_PAGE: Final = 1000
_decode: Final = msgspec.json.Decoder(StepRecorded).decode


@asynccontextmanager
async def _open(place: Place) -> AsyncIterator[list[Side]]:
    events, trips = place.scale.feed, place.scale.single_each
    bodies = list(taken(BODIES, events))
    folder = place.folder_for("blocks")
    async with AsyncExitStack() as opened:
        sides = [
            rate("SHA-256 of an event", events, partial(_each, bodies, lambda body: sha256(body).digest())),
            rate("msgspec decode of an event", events, partial(_each, bodies, _decode)),
        ]
        raw = place.find(RAW)
        if raw is not None:
            store = await place.enter(opened, raw)
            store.insert(rows=events, each=_PAGE)
            sides.append(rate("sqlite3 scan, 5 columns", events, partial(_in_loop, store.scan)))
        sides.append(rate("thread there and back", trips, partial(_round_trips, trips)))
        sides.append(rate("4 KB + fdatasync", trips, partial(_in_loop, partial(flush_seconds, folder, blocks=trips))))
        yield sides


async def _each(bodies: list[bytes], function: Callable[[bytes], object]) -> float:
    async def work() -> None:
        for body in bodies:
            function(body)

    return await timed(work)


async def _round_trips(trips: int) -> float:
    """Wake a thread and be woken by it, and nothing else: what a commit off the event loop costs at least."""
    loop = asyncio.get_running_loop()
    asked: SimpleQueue[asyncio.Future[None] | None] = SimpleQueue()

    def answer() -> None:
        while (future := asked.get()) is not None:
            loop.call_soon_threadsafe(future.set_result, None)

    async def work() -> None:
        for _ in range(trips):
            future: asyncio.Future[None] = loop.create_future()
            asked.put(future)
            await future

    thread = Thread(target=answer, daemon=True)
    thread.start()
    try:
        return await timed(work)
    finally:
        asked.put(None)
        thread.join()


async def _in_loop(work: Any) -> float:
    seconds: float = work()
    return seconds


LIMITS: Final = Case(
    name="limits", what="what every event and every commit needs, alone", unit="/s", open=_open, warm_up=True
)
