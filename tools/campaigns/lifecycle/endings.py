"""Programs that end in every way but the right one. Each runs in a child of its own."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from typing import NoReturn

from eventlog import Expect
from eventlog.stores import SqliteLog
from tools.campaigns.lifecycle.keeping import KEPT, code_of, event, open_for_ever, start_appending
from tools.campaigns.processes.child import leaving
from tools.campaigns.storage.log_files import open_file


async def never_closes(path: str) -> None:
    """Open, append, and return without closing."""
    log = await open_for_ever(path)
    await log.append("s", [event()], expect=Expect.any())
    leaving()


async def never_closes_and_forgets(path: str) -> None:
    """As `never_closes`, with nothing left that refers to the log."""
    await (await open_file(path).__aenter__()).append("s", [event()], expect=Expect.any())
    leaving()


async def exits_inside(path: str) -> NoReturn:
    """Call sys.exit while appends are in flight, in the middle of `async with`."""
    async with open_file(path) as log:
        start_appending(log, path)
        await asyncio.sleep(0.05)
        leaving()
        sys.exit(3)


async def raises_inside(path: str) -> NoReturn:
    """Raise what nobody catches, with appends in flight and the log not closed."""
    log = await open_for_ever(path)
    start_appending(log, path)
    await asyncio.sleep(0.05)
    leaving()
    sys.stderr = None  # the traceback is Python's business and known
    raise RuntimeError("the program's own fault")


async def returns_with_appends_in_flight(path: str) -> None:
    """Let asyncio.run cancel everything while the writer is at work."""
    start_appending(await open_for_ever(path), path)
    await asyncio.sleep(0.05)
    leaving()


def closes_the_loop_under_an_append(path: str) -> None:
    """Close the event loop, without cancelling anything, while a transaction runs."""
    loop = asyncio.new_event_loop()
    log = loop.run_until_complete(open_for_ever(path))
    KEPT.append(loop.create_task(log.append("s", [event()], expect=Expect.any())))
    for _ in range(3):
        loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    leaving()


async def appends_until_interrupted(path: str) -> None:
    """Append until Ctrl-C, closing in order; print READY once that is under way."""
    async with open_file(path) as log:
        await _append_for_ever(log, path)


async def appends_until_interrupted_and_never_closes(path: str) -> None:
    """Append until Ctrl-C, closing nothing."""
    await _append_for_ever(await open_for_ever(path), path)


async def cancelled_by_sigterm(path: str) -> str:
    """Append until SIGTERM, whose handler cancels the task, as a service does."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        async with open_file(path) as log:
            await _append_for_ever(log, path)
    return "ended in order"


async def exits_in_a_sigterm_handler(path: str) -> None:
    """Append until SIGTERM, whose handler raises SystemExit wherever the program just is."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(4))
    await _append_for_ever(await open_for_ever(path), path)


async def cannot_get_the_lock(path: str, ending: str) -> list[str]:
    """Meet a lock that another process never gives back, then end in one of several ways."""
    log = open_file(path, busy_timeout_s=0.2)
    await log.__aenter__()
    print("READY", flush=True)
    sys.stdin.readline()
    if ending == "in the middle":
        start_appending(log, path)
        await asyncio.sleep(0.05)
        leaving()
        return []
    told = [await code_of(log.append("s", [event()], expect=Expect.any())) for _ in range(2)]
    leaving()
    if ending == "closed":
        await log.close()
    return told


async def cannot_get_the_lock_at_open(path: str) -> str:
    """Meet the lock that is never given back when opening."""
    told = await code_of(open_file(path, busy_timeout_s=0.0).__aenter__())
    leaving()
    return told


async def _append_for_ever(log: SqliteLog, path: str) -> None:
    start_appending(log, path)
    await asyncio.sleep(0.05)
    print("READY", flush=True)
    await asyncio.sleep(3600)
