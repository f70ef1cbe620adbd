"""Programs that fork while a log is open. Each function runs in a child of its own."""

from __future__ import annotations

import asyncio
import os
import selectors
import sqlite3
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import eventlog
from eventlog import Expect, Runner
from eventlog.stores import SqliteLog
from tools.campaigns.lifecycle.keeping import KEPT, code_of, event, open_for_ever
from tools.campaigns.processes import child
from tools.campaigns.processes.child import leaving
from tools.campaigns.processes.waiting import until
from tools.campaigns.storage.log_files import is_lock_free, open_file


async def forks(path: str, ending: str) -> dict[str, Any]:
    """Fork with an open log; the child tries everything and ends; the parent goes on in the middle of a transaction."""
    async with open_file(path) as log:
        await log.append("s", [event()], expect=Expect.any())
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
            said = "it was never over"
            try:
                said = ",".join(await _try_everything(log))
            finally:
                os.write(to_parent, said.encode())
                os._exit(0)
        os.close(to_parent)
        in_child, status = await asyncio.to_thread(_end_of, child, from_child)
        is_lock_held = not is_lock_free(path)
        go_on.set()
        if writing is not None:
            await writing
        for _ in range(20):
            await log.append("s", [event()], expect=Expect.any())
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

        KEPT.append(asyncio.ensure_future(log.write_view(hold)))
        await until(inside.is_set)
        if os.fork() == 0:
            os.read(0, 1)
            os._exit(0)
        print("READY", flush=True)
        await asyncio.sleep(60)


async def forks_in_an_effect(path: str) -> None:
    """Fork in the middle of an effect; the child lives on until its input ends, the parent until it is killed."""
    async with open_file(path) as log:
        runner = Runner(log, actions=[_fork])
        proposal = eventlog.propose("lifecycle_fork", {}, "nowhere")
        await runner.propose("run-1", proposal)
        await runner.approve("run-1", proposal.hash)
        await runner.resume("run-1")


async def resumes(path: str) -> str:
    """Resume the run of `forks_in_an_effect` as another process; return what is told."""
    async with open_file(path) as log:
        return await code_of(Runner(log, actions=[_fork]).resume("run-1"))


@eventlog.action("lifecycle_fork", promise="opaque")
async def _fork(call: eventlog.Call) -> None:
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
    log = loop.run_until_complete(open_for_ever(path))
    loop.run_until_complete(log.append("s", [event()], expect=Expect.any()))
    child = os.fork()
    if child == 0:
        sys.exit(5)
    _, status = os.waitpid(child, 0)
    for _ in range(20):
        loop.run_until_complete(log.append("s", [event()], expect=Expect.any()))
    health = loop.run_until_complete(log.health())
    loop.run_until_complete(log.close())
    loop.close()
    return {"status": os.waitstatus_to_exitcode(status), "state": health.state, "head": health.head}


async def _try_everything(log: SqliteLog) -> list[str]:
    async def first(events: Any) -> None:
        async for _ in events:
            return

    attempts: list[Callable[[], Awaitable[Any]]] = [
        lambda: log.append("s", [event()], expect=Expect.any()),
        lambda: log.append_many([eventlog.Append("s", [event()], Expect.any())]),
        lambda: log.append_reserved([eventlog.Append("s", [event()], Expect.any())]),
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
    return [await _answer(attempt) for attempt in attempts]


async def _answer(attempt: Callable[[], Awaitable[Any]]) -> str:
    """Return the code that was told, or the name of what was raised without one."""
    try:
        return await code_of(attempt())
    except Exception as error:
        return type(error).__name__


async def forks_and_execs(path: str) -> dict[str, Any]:
    """Fork, and let the child become another program that opens the same log."""
    async with open_file(path) as log:
        await log.append("s", [event()], expect=Expect.any())
        command = child.command(appends_one, path)
        pid = os.fork()
        if pid == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.execve(command[0], command, child.environment())
        _, status = await asyncio.to_thread(os.waitpid, pid, 0)
        for _ in range(20):
            await log.append("s", [event()], expect=Expect.any())
        health, theirs = await log.health(), (await log.read_stream("theirs")).version
        leaving()
    return {
        "status": os.waitstatus_to_exitcode(status),
        "theirs": theirs,
        "state": health.state,
        "head": health.head,
    }


async def appends_one(path: str) -> None:
    """Append one event, as the program that the forked child becomes."""
    async with open_file(path) as log:
        await log.append("theirs", [event()], expect=Expect.any())
