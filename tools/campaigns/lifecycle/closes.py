"""Programs that close a log twice, late, in the middle of things, or from the wrong place, and say what they were told.

Each runs in a child of its own, which afterwards has nothing to do but to end.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, ClassVar

import msgspec

import eventlog
from eventlog import Append, EventLogError, Expect, NewEvent
from eventlog.stores import SqliteLog
from eventlog.views import ViewEvent
from projections import Row, RowProjection, SqliteView, rebuild_view
from tools.campaigns.lifecycle.keeping import KEPT, code_of, event, open_for_ever, start_appending
from tools.campaigns.processes.child import leaving
from tools.campaigns.processes.stepping import CancelledAt, cancel_at
from tools.campaigns.processes.waiting import until
from tools.campaigns.storage.log_files import open_file

ANY = Expect.any()


@eventlog.event("lifecycle_order_placed")
class OrderPlaced(msgspec.Struct, frozen=True):
    """Somebody has ordered."""

    customer: str


class Orders(RowProjection):
    """How often each customer has ordered."""

    name = "orders"
    revision = 1
    columns: ClassVar[Mapping[str, str]] = {"customer": "TEXT PRIMARY KEY", "orders": "INTEGER NOT NULL"}
    event_types = frozenset({"lifecycle_order_placed"})

    def key(self, event: ViewEvent) -> str:
        """Return the customer."""
        customer: str = event.data.customer
        return customer

    def apply(self, row: Row | None, event: ViewEvent) -> Row:
        """Count the order."""
        return {"customer": event.data.customer, "orders": (row["orders"] if row else 0) + 1}


async def closes_twice(path: str) -> list[str]:
    """Close, and close again, one after the other and both at once; use it afterwards."""
    log = await open_for_ever(path)
    await log.append("s", [event()], expect=ANY)
    await asyncio.gather(log.close(), log.close())
    await log.close()
    told = [await code_of(log.append("s", [event()], expect=ANY)), await code_of(log.__aenter__())]
    leaving()
    return told


async def closes_under_appends(path: str) -> list[str]:
    """Close while appends are in flight; every one of them is answered."""
    log = await open_for_ever(path)
    tasks = start_appending(log, path)
    await asyncio.sleep(0.02)
    leaving()
    await log.close()
    async with asyncio.timeout(5):
        await asyncio.gather(*tasks)
    return [await code_of(log.head())]


async def closes_under_subscriptions(path: str) -> list[str]:
    """Close while subscriptions wait at the end, read from the beginning, or have been left in the middle."""
    log = await open_for_ever(path)
    await log.append("s", [event() for _ in range(1500)], expect=ANY)
    waiting = [asyncio.create_task(_drained(log.subscribe(after=after))) for after in (0, 1500)]
    left = log.subscribe()
    await anext(left)
    await asyncio.sleep(0.01)
    leaving()
    await log.close()
    async with asyncio.timeout(5):
        return [*(await asyncio.gather(*waiting)), await _drained(left)]


async def ends_with_subscriptions(path: str) -> None:
    """End the program with subscriptions open, some of them waiting and some left in the middle."""
    log = await open_for_ever(path)
    await log.append("s", [event() for _ in range(1500)], expect=ANY)
    for after in (0, 1500):
        KEPT.append(asyncio.create_task(_drained(log.subscribe(after=after))))
    for _ in range(3):
        left = log.subscribe()
        KEPT.append(left)
        await anext(left)
    await asyncio.sleep(0.01)
    leaving()


async def closes_under_a_rebuild(path: str) -> list[str]:
    """Close while a view is built again; the next opening builds it to the end."""
    view = SqliteView(Orders())
    log = await open_for_ever(path, views=[view])
    await log.append("orders", [OrderPlaced(f"c{number % 50}") for number in range(5000)], expect=ANY)
    rebuild = asyncio.create_task(code_of(rebuild_view(log, SqliteView(Orders()))))
    await asyncio.sleep(0.01)
    leaving()
    await log.close()
    async with asyncio.timeout(5):
        told = await rebuild
    assert told in ("ok", "engine_closed"), told
    async with open_file(path) as log:
        await rebuild_view(log, SqliteView(Orders()))
        rows = await log.look(SqliteView(Orders()).rows)
    return [str(sum(row["orders"] for row in rows))]


async def cancels_close(path: str) -> list[str]:
    """Cancel `close` at each of its awaits; it closes all the same."""
    number, wrong = 0, []
    while True:
        number += 1
        seen = CancelledAt()
        log = await open_file(path).__aenter__()
        append = asyncio.create_task(code_of(log.append("s", [event()], expect=ANY)))
        closing = asyncio.create_task(cancel_at(log.close(), number, seen))
        await asyncio.wait({closing})
        async with asyncio.timeout(5):
            told = await append
        if told not in ("ok", "engine_closed") or await code_of(log.head()) != "engine_closed":
            wrong.append(f"cancelled at await {number}: the append was told {told}")
        if not seen.was_cancelled:
            await until(lambda: threading.active_count() == 1)
            leaving()
            return wrong if number > 1 else ["there was no await to be cancelled at"]


async def raises_in_the_block(path: str) -> list[str]:
    """Raise out of `async with`, while appends are in flight."""
    told = []
    try:
        async with open_file(path) as log:
            start_appending(log, path)
            await asyncio.sleep(0.02)
            raise ZeroDivisionError
    except ZeroDivisionError:
        told.append("raised")
    told.append(await code_of(log.head()))
    leaving()
    return told


async def times_out_everywhere(path: str) -> list[str]:
    """Let `wait_for` end every kind of call after times from none at all to long enough, and go on working."""
    wrong: list[str] = []
    async with open_file(path) as log:
        await log.append("s", [event() for _ in range(600)], expect=ANY)
        for number in range(12):
            for name, call in _calls(log).items():
                told = await _timed_out(call(), number * 0.0004)
                if told not in ("ok", "timeout", "cancelled"):
                    wrong.append(f"{name} after {number * 0.4:.1f} ms: {told}")
        new = [event() for _ in range(20)]
        for delay, each in enumerate(new):  # a retry with the same id is safe, whatever came of the first one
            await _timed_out(log.append("retried", [each], expect=ANY), delay * 0.0002)
            await log.append("retried", [each], expect=ANY)
        if (await log.read_stream("retried")).version != len(new):
            wrong.append("an event that was appended again after a time-out is there twice, or not at all")
        leaving()
    return wrong


async def is_used_from_elsewhere(path: str) -> list[str]:
    """Use a log from another thread with a loop of its own, and one log object in two loops one after the other."""
    async with open_file(path) as log:
        told = [
            await asyncio.to_thread(lambda call=call: asyncio.run(code_of(call())))  # type: ignore[misc]
            for call in (*_calls(log).values(), log.close)
        ]
        await log.append("s", [event()], expect=ANY)
        leaving()
    return sorted(set(told))


def lives_in_two_loops(path: str) -> list[str]:
    """Open in one loop, and go on in the next one, without closing."""
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    log = first.run_until_complete(open_for_ever(path))
    told = [second.run_until_complete(code_of(call())) for call in (*_calls(log).values(), log.close)]
    second.close()
    told.append(first.run_until_complete(code_of(log.append("s", [event()], expect=ANY))))
    first.close()
    leaving()
    return sorted(set(told))


def works_in_daemon_threads(path: str) -> None:
    """End the program while two daemon threads, with a loop and a log each, append."""
    inside = threading.Barrier(3)

    async def work() -> None:
        log = await open_for_ever(path)
        start_appending(log, path)
        await asyncio.to_thread(inside.wait)
        await asyncio.sleep(3600)

    for _ in range(2):
        threading.Thread(target=lambda: asyncio.run(work()), daemon=True).start()
    inside.wait()
    leaving()


async def exits_in_a_task(path: str) -> None:
    """Call sys.exit in a task beside those that append."""
    await _raises_in_a_task(path, SystemExit(6))


async def is_interrupted_in_a_task(path: str) -> None:
    """Raise KeyboardInterrupt in a task beside those that append."""
    await _raises_in_a_task(path, KeyboardInterrupt())


async def _raises_in_a_task(path: str, error: BaseException) -> None:
    async def raising() -> None:
        leaving()
        raise error

    async with open_file(path) as log:
        start_appending(log, path)
        await asyncio.sleep(0.02)
        KEPT.append(asyncio.create_task(raising()))
        await asyncio.sleep(3600)


def lives_on_uvloop(path: str, program: str) -> None:
    """Run one of the other programs on a uvloop."""
    import uvloop

    from tools.campaigns.lifecycle import endings

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(getattr(endings, program)(path))


async def opens_and_closes(path: str, cycles: str) -> list[str]:
    """Open and close many times; threads, open files and tasks stay as they are."""
    await _live_once(path, 0)
    before = _kept()
    for number in range(int(cycles)):
        await _live_once(path, number)
    after = _kept()
    leaving()
    return [] if after == before else [f"threads, files, tasks: {before} before, {after} behind {cycles} cycles"]


async def _live_once(path: str, number: int) -> None:
    async with open_file(path, durability="normal") as log:
        if number % 10 == 0:
            left = log.subscribe()
            await asyncio.gather(log.append("s", [event()], expect=ANY), log.head(), log.health(), anext(left))


def _kept() -> tuple[int, int, int]:
    return threading.active_count(), len(os.listdir("/dev/fd")), len(asyncio.all_tasks())


async def appends_a_mixed_batch(path: str) -> list[str]:
    """Append good and bad events at once, so that they are committed together: each is told its own answer."""
    told: list[str] = []
    async with open_file(path) as log:
        first = event()
        await log.append("taken", [first], expect=Expect.no_stream())
        calls: list[Awaitable[Any]] = [log.append(f"good{n}", [event()], expect=Expect.no_stream()) for n in range(20)]
        calls[5:5] = [
            log.append("taken", [event()], expect=Expect.no_stream()),
            log.append("taken", [first], expect=ANY),
            log.append("other", [NewEvent("another", {}, event_id=first.event_id)], expect=ANY),
            log.append_many([Append("good0", [event()], ANY), Append("taken", [event()], Expect.at(7))]),
        ]
        told = await asyncio.gather(*map(code_of, calls))
        leaving()
        head = (await log.head()).position
    return [*told[5:9], f"{told.count('ok')} ok", f"{head} events"]


def _calls(log: SqliteLog) -> dict[str, Callable[[], Awaitable[Any]]]:
    return {
        "append": lambda: log.append("s", [event()], expect=ANY),
        "append_many": lambda: log.append_many([Append("s", [event()], ANY), Append("t", [event()], ANY)]),
        "read_stream": lambda: log.read_stream("s"),
        "read_all": lambda: _read(log.read_all()),
        "subscribe": lambda: _read(log.subscribe(), count=300),
        "check_page": lambda: log.check_page(after=0),
        "write_view": lambda: log.write_view(lambda connection: None),
        "head": log.head,
        "health": log.health,
    }


async def _read(events: AsyncIterator[Any], *, count: int = 100_000) -> None:
    async for each in events:
        if each.position >= count:
            return


async def _drained(events: AsyncIterator[Any]) -> str:
    return await code_of(_read(events))


async def _timed_out(doing: Awaitable[Any], timeout_s: float) -> str:
    try:
        await asyncio.wait_for(doing, timeout_s)
    except TimeoutError:
        return "timeout"
    except EventLogError as error:
        return error.code
    return "ok"
