"""Programs that end in every way but the right one. Each function runs in a child of its own (`tests/child.py`)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import signal
import sqlite3
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import eventlog
from eventlog import EventLogError, Expect, NewEvent
from eventlog.stores import SqliteLog
from tests.child import leaving
from tests.logs import is_lock_free, open_file
from tests.waiting import until

_KEPT: list[object] = []
"""Keeps logs alive to the very end of the interpreter."""


async def never_closes(path: str) -> None:
    """Open, append, and return without closing."""
    log = await _opened(path)
    await log.append("s", [_event()], expect=Expect.any())
    leaving()


async def never_closes_and_forgets(path: str) -> None:
    """As `never_closes`, with nothing left that refers to the log."""
    await (await open_file(path).__aenter__()).append("s", [_event()], expect=Expect.any())
    leaving()


async def exits_inside(path: str) -> NoReturn:
    """Call sys.exit while appends are in flight, in the middle of `async with`."""
    async with open_file(path) as log:
        _start_appending(log)
        await asyncio.sleep(0.05)
        leaving()
        sys.exit(3)


async def raises_inside(path: str) -> NoReturn:
    """Raise what nobody catches, with appends in flight and the log not closed."""
    log = await _opened(path)
    _start_appending(log)
    await asyncio.sleep(0.05)
    leaving()
    sys.stderr = None  # the traceback is Python's business and known
    raise RuntimeError("the program's own fault")


async def returns_with_appends_in_flight(path: str) -> None:
    """Let asyncio.run cancel everything while the writer is at work."""
    _start_appending(await _opened(path))
    await asyncio.sleep(0.05)
    leaving()


def closes_the_loop_under_an_append(path: str) -> None:
    """Close the event loop, without cancelling anything, while a transaction runs."""
    loop = asyncio.new_event_loop()
    log = loop.run_until_complete(_opened(path))
    _KEPT.append(loop.create_task(log.append("s", [_event()], expect=Expect.any())))
    for _ in range(3):
        loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    leaving()


async def appends_until_interrupted(path: str) -> None:
    """Append until Ctrl-C, closing in order; print READY once that is under way."""
    async with open_file(path) as log:
        await _append_for_ever(log)


async def appends_until_interrupted_and_never_closes(path: str) -> None:
    """Append until Ctrl-C, closing nothing."""
    await _append_for_ever(await _opened(path))


async def cancelled_by_sigterm(path: str) -> str:
    """Append until SIGTERM, whose handler cancels the task, as a service does."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        async with open_file(path) as log:
            await _append_for_ever(log)
    return "ended in order"


async def exits_in_a_sigterm_handler(path: str) -> None:
    """Append until SIGTERM, whose handler raises SystemExit wherever the program just is."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(4))
    await _append_for_ever(await _opened(path))


async def cannot_get_the_lock(path: str, ending: str) -> list[str]:
    """Meet a lock that another process never gives back, then end in one of several ways."""
    log = open_file(path, busy_timeout_s=0.2)
    await log.__aenter__()
    print("READY", flush=True)
    sys.stdin.readline()
    if ending == "in the middle":
        _start_appending(log)
        await asyncio.sleep(0.05)
        leaving()
        return []
    told = [await _told(log.append("s", [_event()], expect=Expect.any())) for _ in range(2)]
    leaving()
    if ending == "closed":
        await log.close()
    return told


async def cannot_get_the_lock_at_open(path: str) -> str:
    """Meet the lock that is never given back when opening."""
    told = await _told(open_file(path, busy_timeout_s=0.0).__aenter__())
    leaving()
    return told


async def forks(path: str, ending: str) -> dict[str, Any]:
    """Fork with an open log; the child tries everything and ends; the parent goes on in the middle of a transaction."""
    async with open_file(path) as log:
        await log.append("s", [_event()], expect=Expect.any())
        inside, go_on = threading.Event(), threading.Event()

        def hold(connection: sqlite3.Connection) -> None:
            inside.set()
            go_on.wait(10)

        writing = asyncio.ensure_future(log.write_view(hold)) if ending == "_exit in a transaction" else None
        if writing is not None:
            await until(inside.is_set)
        from_child, to_parent = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(to_parent, ",".join(await _try_everything(log)).encode())
            os._exit(0)
        os.close(to_parent)
        in_child, status = await asyncio.to_thread(_end_of, child, from_child)
        is_lock_held = not is_lock_free(path)
        go_on.set()
        if writing is not None:
            await writing
        for _ in range(20):
            await log.append("s", [_event()], expect=Expect.any())
        health = await log.health()
        return {
            "child": in_child,
            "status": status,
            "is_lock_held": is_lock_held,
            "state": health.state,
            "head": health.head,
        }


async def forks_and_waits_in_a_transaction(path: str) -> None:
    """Fork in the middle of a transaction; the child lives on until its input ends, the parent until it is killed."""
    async with open_file(path) as log:
        inside = threading.Event()

        def hold(connection: sqlite3.Connection) -> None:
            inside.set()
            threading.Event().wait(60)

        _KEPT.append(asyncio.ensure_future(log.write_view(hold)))
        await until(inside.is_set)
        if os.fork() == 0:
            os.read(0, 1)
            os._exit(0)
        print("READY", flush=True)
        await asyncio.sleep(60)


def _end_of(child: int, from_child: int) -> tuple[list[str], int]:
    with open(from_child, "rb") as pipe:
        said = pipe.read().decode().split(",")
    return said, os.waitpid(child, 0)[1]


def forks_between_two_runs_of_the_loop(path: str) -> dict[str, Any]:
    """Fork while no loop runs; the child ends as any program does, taking apart all that it has."""
    # With epoll the child would take the parent's registrations apart as well, which is asyncio's affair.
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    log = loop.run_until_complete(_opened(path))
    loop.run_until_complete(log.append("s", [_event()], expect=Expect.any()))
    child = os.fork()
    if child == 0:
        sys.exit(5)
    _, status = os.waitpid(child, 0)
    for _ in range(20):
        loop.run_until_complete(log.append("s", [_event()], expect=Expect.any()))
    health = loop.run_until_complete(log.health())
    loop.run_until_complete(log.close())
    loop.close()
    return {"status": os.waitstatus_to_exitcode(status), "state": health.state, "head": health.head}


async def _try_everything(log: SqliteLog) -> list[str]:
    async def first(events: Any) -> None:
        async for _ in events:
            return

    attempts: list[Callable[[], Awaitable[Any]]] = [
        lambda: log.append("s", [_event()], expect=Expect.any()),
        lambda: log.append_many([eventlog.Append("s", [_event()], Expect.any())]),
        lambda: log.append_reserved([eventlog.Append("s", [_event()], Expect.any())]),
        lambda: log.read_stream("s"),
        lambda: first(log.read("s")),
        lambda: first(log.read_all()),
        lambda: first(log.subscribe()),
        lambda: log.check_page(after=0),
        lambda: log.backup("/nonexistent/copy.db"),
        lambda: log.read_view(lambda connection: None),
        lambda: log.write_view(lambda connection: None),
        log.head,
        log.health,
        log.close,
    ]
    return [await _told(attempt()) for attempt in attempts]


async def _opened(path: str) -> SqliteLog:
    log = await open_file(path).__aenter__()
    _KEPT.append(log)
    return log


def _start_appending(log: SqliteLog) -> None:
    """Start tasks that append as fast as they can."""

    async def appending(number: int) -> None:
        with contextlib.suppress(EventLogError):  # as it ends when the log is closed
            while True:
                await log.append(f"s{number}", [_event()], expect=Expect.any())

    _KEPT.extend(asyncio.create_task(appending(number)) for number in range(5))


async def _append_for_ever(log: SqliteLog) -> None:
    _start_appending(log)
    await asyncio.sleep(0.05)
    print("READY", flush=True)
    await asyncio.sleep(3600)


async def _told(doing: Awaitable[Any]) -> str:
    try:
        await doing
    except EventLogError as error:
        return error.code
    return "ok"


def _event() -> NewEvent:
    return NewEvent("noted", {"text": "x" * 100})
