"""What one of several processes on the same log does. Each function runs in a child of its own."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import eventlog
from eventlog import Expect, NewEvent, WrongExpectedVersion
from tools.campaigns.storage.log_files import open_file


def _wait_for_the_start() -> None:
    print("READY", flush=True)
    sys.stdin.readline()


async def appends(path: str, name: str, count: str) -> list[str]:
    """Append events to a stream of our own and to one that is shared, one after the other; return their ids."""
    ids = []
    async with open_file(path, busy_timeout_s=30) as log:
        _wait_for_the_start()
        for number in range(int(count)):
            own, shared = NewEvent("own", {"n": number}), NewEvent("shared", {"by": name, "n": number})
            await log.append(f"own-{name}", [own], expect=Expect.at(number))
            await log.append("shared", [shared], expect=Expect.any())
            ids += [own.event_id.hex(), shared.event_id.hex()]
    return ids


async def counts(path: str, name: str, count: str) -> dict[str, int]:
    """Add to a counter that others add to as well, `count` times: read it, and append where it was read."""
    lost = 0
    async with open_file(path, busy_timeout_s=30) as log:
        _wait_for_the_start()
        for _ in range(int(count)):
            while True:
                version = (await log.read_stream("counter")).version
                event = NewEvent("counted", {"by": name, "to": version + 1})
                try:
                    await log.append("counter", [event], expect=Expect.at(version))
                except WrongExpectedVersion:
                    lost += 1
                    continue
                break
    return {"lost": lost}


async def subscribes(path: str, count: str) -> list[Any]:
    """Follow the log until so many events were seen; return their positions and ids."""
    seen: list[Any] = []
    async with open_file(path, may_create=False) as log:
        _wait_for_the_start()
        async for event in log.subscribe():
            assert isinstance(event, eventlog.RecordedEvent)
            seen.append([event.position, event.event_id.hex()])
            if len(seen) == int(count):
                break
    return seen


async def reads_and_pauses(path: str) -> None:
    """Stop in the middle of reading, for as long as nobody says go on; then read to the end."""
    async with open_file(path) as log:
        events = log.read_all()
        await anext(events)
        subscription = log.subscribe()
        await anext(subscription)
        print("READY", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        last = 1
        async for event in events:
            assert event.position == last + 1
            last = event.position
        assert last == (await log.head()).position
