"""Cancelling appends: at each of their awaits, at each step of the loop, and a thousand times at random under load.

Whatever is cancelled: no lock and no transaction is left, nothing hangs, and repeating the same append ends with
exactly one event each.
"""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import aiosqlite
import pytest

from eventlog import Expect, NewEvent
from eventlog.stores import SqliteLog
from tools.campaigns.processes.stepping import CancelledAt, cancel_at
from tools.campaigns.storage.log_files import open_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


async def test_append_that_is_cancelled_at_any_of_its_awaits_converges_when_it_is_repeated(path: Path) -> None:
    async with open_file(path) as log:
        number = 0
        while True:
            number += 1
            seen = CancelledAt()
            event = _event()
            appending = asyncio.create_task(cancel_at(_append(log, event), number, seen))
            await asyncio.wait({appending})
            assert appending.cancelled() == seen.was_cancelled
            await _assert_converges(log, path, [event])
            if not seen.was_cancelled:
                break
        assert number > 1, "an append waits at least once"


async def test_append_that_is_cancelled_after_any_number_of_steps_converges_when_it_is_repeated(path: Path) -> None:
    cancelled = 0
    async with open_file(path) as log:
        for steps in range(2000):
            events = [_event() for _ in range(3)]
            appending = asyncio.create_task(log.append("many", events, expect=Expect.any()))
            for _ in range(steps):
                await asyncio.sleep(0)
            appending.cancel()
            await asyncio.wait({appending})
            cancelled += appending.cancelled()
            await _append_again(log, "many", events)
            if not appending.cancelled() and steps > 20:
                break
        await _assert_whole(log, path)
        stored = [event.event_id async for event in log.read("many")]
        assert len(stored) == len(set(stored)) == 3 * (steps + 1)
    assert cancelled >= 10
    print(f"\ncancelled after 0 to {steps} steps of the loop: {cancelled} of {steps + 1} were in time")


@pytest.mark.campaign
async def test_thousand_random_cancellations_under_load_converge(path: Path, is_long: bool) -> None:
    seed = random.SystemRandom().getrandbits(32)
    chance = random.Random(seed)
    count = 20_000 if is_long else 1_000
    outcomes = {"cancelled": 0, "answered": 0}
    batches: list[tuple[str, list[NewEvent]]] = []

    async def one(log: SqliteLog) -> None:
        stream = f"s{chance.randrange(8)}"
        events = [_event() for _ in range(chance.choice((1, 1, 1, 4)))]
        batches.append((stream, events))
        appending = asyncio.create_task(log.append(stream, events, expect=Expect.any()))
        await asyncio.sleep(chance.choice((0, 0, chance.uniform(0, 0.03))))
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)
        appending.cancel()
        await asyncio.wait({appending})
        outcomes["cancelled" if appending.cancelled() else "answered"] += 1

    async with open_file(path) as log:
        stop = asyncio.Event()
        load = [asyncio.create_task(_load(log, number, stop)) for number in range(5)]
        async with asyncio.timeout(100):
            for _ in range(count // 20):
                await asyncio.gather(*(one(log) for _ in range(20)))
        stop.set()
        acknowledged = sum(await asyncio.gather(*load))
        await _assert_no_lock_is_left(path)
        for stream, events in batches:
            await _append_again(log, stream, events)
        await _assert_whole(log, path)
        stored = [event.event_id async for event in log.read_all()]
    expected = [event.event_id for _, events in batches for event in events]
    assert len(stored) == len(set(stored)) == len(expected) + acknowledged
    assert set(expected) <= set(stored)
    print(f"\ncancellations, seed {seed}: {outcomes}, {acknowledged} other appends meanwhile")
    assert outcomes["cancelled"] > count / 4
    assert outcomes["answered"] > 0


@pytest.mark.parametrize("timeout_s", [0.0, 0.0005, 0.002, 0.01])
async def test_timeout_around_an_append_converges_when_it_is_repeated(path: Path, timeout_s: float) -> None:
    async with open_file(path) as log:
        for _ in range(20):
            event = _event()
            try:
                async with asyncio.timeout(timeout_s):
                    await _append(log, event)
            except TimeoutError:
                pass
            await _assert_converges(log, path, [event])


async def test_every_caller_of_a_batch_is_cancelled_and_the_batch_is_stored_whole_or_not_at_all(path: Path) -> None:
    async with open_file(path) as log:
        await log.append("s", [_event()], expect=Expect.no_stream())
        for steps in (0, 1, 2, 3, 5, 10, 50, 200):
            events = [[_event() for _ in range(5)] for _ in range(20)]
            callers = [asyncio.create_task(log.append("s", each, expect=Expect.any())) for each in events]
            for _ in range(steps):
                await asyncio.sleep(0)
            for caller in callers:
                caller.cancel()
            await asyncio.wait(callers)
            await log.append("s", [_event()], expect=Expect.any())  # behind whatever was queued
            stored = {event.event_id async for event in log.read("s")}
            for each in events:
                assert sum(event.event_id in stored for event in each) in (0, 5)
        await _assert_whole(log, path)


async def test_control_in_bare_aiosqlite_a_cancelled_begin_locks_everybody_out(path: Path) -> None:
    async with aiosqlite.connect(path, isolation_level=None) as bare:
        beginning = asyncio.create_task(_begin(bare))
        await asyncio.sleep(0)
        beginning.cancel()
        await asyncio.wait({beginning})
        await bare.execute("SELECT 1")  # behind the BEGIN, which ran all the same
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            await _assert_no_lock_is_left(path)
        await bare.execute("ROLLBACK")


async def _begin(bare: aiosqlite.Connection) -> Any:
    return await bare.execute("BEGIN IMMEDIATE")


async def _append(log: SqliteLog, event: NewEvent) -> Any:
    return await log.append("s", [event], expect=Expect.any())


async def _load(log: SqliteLog, number: int, stop: asyncio.Event) -> int:
    acknowledged = 0
    while not stop.is_set():
        await log.append(f"load{number}", [_event()], expect=Expect.at(acknowledged))
        acknowledged += 1
    return acknowledged


async def _assert_converges(log: SqliteLog, path: Path, events: list[NewEvent]) -> None:
    await _append_again(log, "s", events)
    await _assert_no_lock_is_left(path)
    stored = [event.event_id async for event in log.read("s")]
    for event in events:
        assert stored.count(event.event_id) == 1


async def _append_again(log: SqliteLog, stream: str, events: list[NewEvent]) -> None:
    """Repeat an append twice: the second time it is certainly stored, and in the same place."""
    async with asyncio.timeout(5):
        first = await log.append(stream, events, expect=Expect.any())
        second = await log.append(stream, events, expect=Expect.no_stream())
    assert second.deduplicated
    assert (second.first_position, second.last_position) == (first.first_position, first.last_position)


async def _assert_whole(log: SqliteLog, path: Path) -> None:
    head = (await log.head()).position
    page = await log.check_page(after=0, limit=head + 1)
    assert (page.events, list(page.problems)) == (head, [])
    await _assert_no_lock_is_left(path)


async def _assert_no_lock_is_left(path: Path) -> None:
    """Check that somebody else can begin a transaction; the writer itself may be in the middle of one for a moment."""
    with closing(sqlite3.connect(path, timeout=0.5, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")


def _event() -> NewEvent:
    return NewEvent("noted", {"nonce": os.urandom(8).hex()})
