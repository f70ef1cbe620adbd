"""What a store must do to be measured."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

__all__ = ["OpenStore", "Reader", "Settings", "Store", "at_once", "timed", "timed_on_processor"]

Settings = dict[str, str]
"""What was read back from the connection that writes: `journal_mode`, `synchronous` and what else matters."""


class Store(Protocol):
    """An open store in a folder of its own. Times are seconds and leave out the preparation of what is written."""

    async def settings(self) -> Settings:
        """Return the durability settings as the writing connection has them now."""

    async def append(self, *, tasks: int, each: int) -> float:
        """Let `tasks` concurrent tasks write `each` events, a durable call an event, each to a stream of its own."""


class Reader(Store, Protocol):
    """A store whose streams can be read back whole."""

    async def fill(self, events: int) -> None:
        """Write one stream of `events` events, in the fastest way there is."""

    async def load(self) -> float:
        """Read that stream back, decoded as the library does it."""


OpenStore = Callable[[Path], AbstractAsyncContextManager[Store]]


async def at_once(tasks: int, work: Callable[[int], Awaitable[None]]) -> float:
    """Run `work(0)` to `work(tasks - 1)` concurrently and return the seconds."""
    gc.collect()
    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(tasks):
            group.create_task(_awaited(work, number))
    return time.perf_counter() - began


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    """Run `work()` and return the seconds."""
    gc.collect()
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


async def timed_on_processor(work: Callable[[], Awaitable[object]]) -> float:
    """Run `work()` and return the seconds that all threads of this process have used: what one core needs for it."""
    gc.collect()
    began = time.process_time()
    await work()
    return time.process_time() - began


async def _awaited(work: Callable[[int], Awaitable[None]], number: int) -> None:
    await work(number)
