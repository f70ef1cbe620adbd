"""Programs that serve: workers, followers at the command line, and logs whose signer does not answer.

Each runs in a child of its own.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from typing import Any, NoReturn

import eventlog
from eventlog import Expect, RunContext, Runner
from eventlog.heads import HeadRequest, SignedHead
from eventlog.log import RunLog
from tools.campaigns.lifecycle.keeping import code_of, event, open_for_ever
from tools.campaigns.processes.child import leaving
from tools.campaigns.storage.log_files import open_file

STEPS = 30
RUNS = 3


# ── workflows ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def counts(number: int) -> int:
    """Take a moment."""
    await asyncio.sleep(0.01)
    return number


@eventlog.workflow
async def slow(run: RunContext) -> int:
    """Do steps one after the other, so that there is time to be stopped between them."""
    total = 0
    for number in range(STEPS):
        total += await run.step("count", counts, number)
    return total


def make_runner(log: RunLog) -> Runner:
    """Return the runner of `eventlog --app`."""
    return Runner(log, workflows=[slow])


async def submit_runs(path: str) -> None:
    """Record the runs for the workers of this module."""
    async with open_file(path) as log:
        for number in range(RUNS):
            await make_runner(log).submit(slow, f"run-{number}")


async def finish_runs(path: str) -> list[str]:
    """Let another worker do what is left, and return what became of the runs."""
    async with open_file(path) as log:
        await eventlog.Worker(make_runner(log)).run(until_idle=True)
        runs = [await make_runner(log).state(f"run-{number}") for number in range(RUNS)]
        return sorted({run.status.value for run in runs})


async def works_and_is_stopped_twice(path: str) -> list[str]:
    """Drive runs, and be told to stop two times at once, and again when it is over."""
    async with open_file(path) as log:
        worker = eventlog.Worker(make_runner(log))
        working = asyncio.create_task(worker.run())
        await asyncio.sleep(0.1)
        worker.stop()
        worker.stop()
        await working
        worker.stop()
        leaving()
    return [str(worker.driven)]


async def works_and_is_cancelled(path: str) -> list[str]:
    """Drive runs, and be cancelled twice."""
    async with open_file(path) as log:
        working = asyncio.create_task(eventlog.Worker(make_runner(log)).run())
        await asyncio.sleep(0.1)
        leaving()
        working.cancel()
        await asyncio.sleep(0)
        working.cancel()
        try:
            await working
        except asyncio.CancelledError:
            return ["cancelled"]
    return ["ended"]


async def works_and_never_closes(path: str) -> None:
    """End the program while a worker drives runs."""
    log = await open_for_ever(path)
    working = asyncio.create_task(eventlog.Worker(make_runner(log)).run())
    await asyncio.sleep(0.1)
    leaving()
    assert not working.done()


# ── the command line ──────────────────────────────────────────────────────────────────────────────────────────────────


def runs_a_command(path: str, *words: str) -> NoReturn:
    """Be the command `eventlog`."""
    from eventlog.cli.app import run

    sys.exit(run(["--db", path, *words]))


def tails_into_a_closed_pipe(path: str) -> NoReturn:
    """Be `eventlog tail -f | head -1`."""
    reading, writing = os.pipe()
    standard_output = os.dup(1)
    os.dup2(writing, 1)
    os.close(writing)

    def read_a_line() -> None:
        while b"\n" not in os.read(reading, 65_536):
            pass
        os.close(reading)
        os.write(standard_output, b"READY\n")

    threading.Thread(target=read_a_line, daemon=True).start()
    runs_a_command(path, "tail", "-f")


# ── signers ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Hanging:
    """A signer that answers when the log is opened, and never again."""

    def last(self) -> SignedHead | None:
        return None

    def sign(self, request: HeadRequest) -> SignedHead:
        threading.Event().wait()
        raise AssertionError("unreachable")

    def begin(self, log_id: bytes) -> None:
        """Take note of nothing."""


class _Dying(_Hanging):
    """A signer whose call ends as if its process were ending."""

    def sign(self, request: HeadRequest) -> SignedHead:
        raise SystemExit(9)


class _NeverThere(_Hanging):
    """A signer that does not even answer when the log is opened."""

    def last(self) -> SignedHead | None:
        threading.Event().wait()
        return None


async def ends_with_a_signer_that_hangs(path: str, ending: str) -> list[str]:
    """Append, and end, closing or not, though the signer has been asked and does not answer."""
    log = await open_for_ever(path, signer=_Hanging(), head_every_s=0.01)
    told = [await code_of(log.append("s", [event()], expect=Expect.any()))]
    await asyncio.sleep(0.05)
    if ending == "closed":
        await log.close()
    leaving()
    return told


async def ends_with_a_signer_that_dies(path: str) -> list[Any]:
    """Append though the signer fails, and ask the log what it thinks of it."""
    async with open_file(path, signer=_Dying(), head_every_s=0.01) as log:
        told = [await code_of(log.append("s", [event()], expect=Expect.any())), await code_of(log.sign_head())]
        told.append("said" if (await log.health()).head_error else "silent")
        leaving()
    return told


async def opens_with_a_signer_that_hangs(path: str) -> list[str]:
    """Give up opening a log whose signer does not answer."""
    try:
        async with asyncio.timeout(0.1):
            await open_file(path, signer=_NeverThere()).__aenter__()
    except TimeoutError:
        leaving()
        return ["gave up"]
    return ["opened"]
