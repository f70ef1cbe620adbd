"""What the tests of subscriptions run in processes of their own."""

from __future__ import annotations

import asyncio

import msgspec

from eventlog import Append, Expect, NewEvent, RecordedEvent
from eventlog.codec import Registry, event
from tools.campaigns.storage.log_files import open_file

__all__ = ["Priced", "follows_to", "readers_registry", "writes", "writes_prices"]


class Priced(msgspec.Struct, frozen=True):
    """What a reader takes `priced` events for. The writers know nothing of it."""

    total: int


def readers_registry() -> Registry:
    """Return the registry of a program that knows `priced`."""
    registry = Registry()
    event("priced", registry=registry)(Priced)
    return registry


async def writes(path: str, runs: str, rounds: str) -> int:
    """Append an event to each of the runs, so many times; return how many there are."""
    count = int(runs)
    async with open_file(path, may_create=False) as log:
        for number in range(int(rounds)):
            for first in range(0, count, 50):
                streams = [f"run-{each}" for each in range(first, min(first + 50, count))]
                await log.append_many(
                    [Append(stream, [NewEvent("noted", {"n": number})], Expect.any()) for stream in streams]
                )
                await asyncio.sleep(0)
    return count * int(rounds)


async def writes_prices(path: str, totals: str) -> None:
    """Append events of the type `priced`, whose totals are not looked at: this program does not know the type."""
    async with open_file(path, may_create=False) as log:
        for total in totals.split(","):
            value = int(total) if total.isdigit() else total
            await log.append("prices", [NewEvent("priced", {"total": value})], expect=Expect.any())


async def follows_to(path: str, after: str, end: str) -> list[int]:
    """Follow the log behind a position up to another one; return the positions."""
    seen = []
    async with open_file(path, may_create=False) as log:
        async for item in log.subscribe(after=int(after)):
            assert isinstance(item, RecordedEvent)
            seen.append(item.position)
            if item.position >= int(end):
                return seen
    raise AssertionError("a subscription does not end")
