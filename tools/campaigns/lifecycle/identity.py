"""Programs whose files are taken away, replaced or locked under an open log; each returns what it was told.

Each runs in a child of its own.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import eventlog
from eventlog import Expect, NewEvent, Policy, Runner
from tools.campaigns.lifecycle.keeping import code_of, event
from tools.campaigns.processes import child
from tools.campaigns.processes.child import leaving
from tools.campaigns.storage.log_files import file_lock_held, open_file

ANY = Expect.any()


async def appends_as_another(path: str) -> None:
    """Append one event, as another process."""
    async with open_file(path) as log:
        await log.append("theirs", [event()], expect=ANY)


def _let_another_append(path: str) -> None:
    subprocess.run(
        child.command(appends_as_another, path),
        cwd=child.ROOT,
        env=child.environment(),
        check=True,
        stdout=subprocess.DEVNULL,
    )


async def loses_its_wal(path: str) -> list[str]:
    """Let the write-ahead log be deleted: what is appended behind that is not acknowledged."""
    async with open_file(path) as log:
        await log.append("s", [event()], expect=ANY)
        os.unlink(f"{path}-wal")
        told = [await code_of(log.append("s", [event()], expect=ANY)) for _ in range(2)]
        leaving()
    return told


async def is_renamed(path: str, ending: str) -> list[str]:
    """Let the database be moved away, and another one be put there or not: nothing is written into either."""
    async with open_file(path) as log:
        await log.append("s", [event()], expect=ANY)
        events = log.subscribe()
        await anext(events)
        for end in ("", "-wal", "-shm"):
            os.rename(f"{path}{end}", f"{path}.moved{end}")
        if ending == "replaced":
            _let_another_append(path)
        told = [await code_of(log.append("s", [event()], expect=ANY)) for _ in range(2)]
        told.append(await code_of(anext(events)))
        leaving()
    if ending == "replaced":
        async with open_file(path) as log:
            told.append(",".join([each.stream async for each in log.read_all()]))
    return told


async def is_opened_by_its_own_process(path: str) -> list[str]:
    """Let the database be read as a plain file in this process, and another process come and go.

    Closing the file drops SQLite's locks; who comes then believes to be the last one, and deletes the write-ahead log.
    """
    async with open_file(path) as log:
        await log.append("s", [event()], expect=ANY)
        Path(path).read_bytes()
        await asyncio.to_thread(_come_and_go, path)
        is_there = os.path.exists(f"{path}-wal")
        told = [await code_of(log.append("s", [event()], expect=ANY)) for _ in range(2)]
        leaving()
    return ["the log was not deleted", *told] if is_there else told


def _come_and_go(path: str) -> None:
    """Read and write as a foreign process that is no engine and takes no file lock."""
    program = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT count(*) FROM events'); c.close()"
    )
    subprocess.run([sys.executable, "-c", program, path], check=True)


async def is_locked_out(path: str, by: str) -> list[str]:
    """Meet a lock of the file, or of the database, that another holds longer than a caller waits; then go on."""
    async with open_file(path, busy_timeout_s=0.2) as log:
        await log.append("s", [event()], expect=ANY)
        if by == "file":
            with file_lock_held(path):
                told = [await code_of(log.append("s", [event()], expect=ANY))]
        else:
            with closing(sqlite3.connect(path, isolation_level=None)) as foreign:
                foreign.execute("BEGIN IMMEDIATE")
                told = [await code_of(log.append("s", [event()], expect=ANY))]
                foreign.execute("ROLLBACK")
        told.append(await code_of(log.append("s", [event()], expect=ANY)))
        leaving()
        head = (await log.head()).position
    return [*told, f"{head} events"]


async def is_locked_out_of_a_decision(path: str) -> list[str]:
    """Meet a lock while a run is read for a decision: that ends no run."""
    async with open_file(path, busy_timeout_s=0.2) as log:
        runner = Runner(log, actions=[_mail], policies={"lifecycle_mail": Policy()})
        proposal = eventlog.propose("lifecycle_mail", {"to": "ada"}, "outbox")
        await runner.propose("run-1", proposal)
        with file_lock_held(path):
            told = [await code_of(runner.approve("run-1", proposal.hash)), await code_of(runner.resume("run-1"))]
        before = (await runner.state("run-1")).status.value
        await runner.approve("run-1", proposal.hash)
        with closing(sqlite3.connect(path, isolation_level=None)) as foreign:
            foreign.execute("BEGIN IMMEDIATE")
            told.append(await code_of(runner.resume("run-1")))
            foreign.execute("ROLLBACK")
        told += [before, (await runner.state("run-1")).status.value]
        told.append((await runner.resume("run-1")).run.status.value)
        leaving()
    return told


@eventlog.action("lifecycle_mail", promise="opaque")
async def _mail(call: eventlog.Call) -> str:
    return "sent"


async def leaves_iterators(path: str) -> list[str]:
    """Leave iterators in the middle: none of them keeps the write-ahead log from being cut."""
    async with open_file(path) as log:
        await log.append("s", [NewEvent("noted", {"n": number}) for number in range(2000)], expect=ANY)
        left = [log.read_all(), log.read("s"), log.subscribe(), log.subscribe()]
        for events in left:
            await anext(events)
        await log.append("s", [event()], expect=ANY)
        with file_lock_held(path), closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as foreign:
            busy, _, _ = foreign.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        rest = len([each async for each in left[0]])
        leaving()
    return [f"busy {busy}", f"{rest} more"]
