"""What one of several processes does with the workflow runs of a log. Each function runs in a child.

What steps and receivers did is in the files of a `World` (`tests/paused_agent.py`), whatever became of the process.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import eventlog
from eventlog import (
    Absent,
    Append,
    AppendResult,
    Call,
    Executed,
    Policy,
    Promise,
    Recovered,
    RunContext,
    Runner,
    Worker,
)
from eventlog.errors import EventLogError
from eventlog.events import RunClaimed
from eventlog.log import Expect
from eventlog.runtime.effects import Finding
from eventlog.runtime.failpoints import EFFECT_INSIDE, pass_by
from eventlog.stores import SqliteLog
from tests.paused_agent import World, saw
from tools.campaigns.storage.log_files import open_file
from tools.campaigns.take_overs.stopping import stop_at

__all__ = [
    "CLAIMED",
    "Gathered",
    "Send",
    "ask_first",
    "five",
    "go_on",
    "is_told",
    "meet",
    "parent",
    "resumes",
    "resumes_in_rounds",
    "resumes_slowly",
    "runner_of",
    "sends",
    "sends_until_idle",
    "stops_in_step",
    "two",
    "works",
    "works_until_told",
]

LONG_LEASE_S: Final = 3600.0
"""Longer than any test: who takes over has proof that the holder is dead."""
SHORT_LEASE_S: Final = 1.0
CLAIMED: Final = "claimed"
"""Right behind the claim of a run."""
_PATIENCE_S: Final = 3.0
_GATHER_S: Final = 0.3


# ── the world ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def go_on(world: World) -> None:
    """Let the steps that wait for it go on."""
    (world.folder / "go").touch()


def is_told(world: World, run_id: str) -> bool:
    """Say whether somebody has come back from this run."""
    return (world.folder / f"told-{run_id}").exists()


class Send:
    """Leaves a receipt, at a receiver of one of three kinds.

    A `fenced` one refuses a second effect by itself, one that is `askable` only says what it knows, an `opaque` one
    does neither.
    """

    name = "send"

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.promise = Promise.OPAQUE if kind == "opaque" else Promise.CHECKABLE
        self.is_fenced = kind == "fenced"
        if kind == "askable":
            self.inspect = self._inspect

    def check(self, call: Call) -> None:
        """Nothing to refuse."""

    async def execute(self, call: Call) -> Executed | Recovered:
        """Send it."""
        call.reach(EFFECT_INSIDE)
        is_known = call.op_key in World(call.output).receipts()
        World(call.output).apply(call.op_key, knows_keys=self.is_fenced)
        result = {"sent": call.args["text"]}
        return Recovered(result=result) if self.is_fenced and is_known else Executed(result=result)

    async def _inspect(self, call: Call) -> Finding:
        is_known = call.op_key in World(call.output).receipts()
        return Recovered(evidence="a receipt", result={"sent": call.args["text"]}) if is_known else Absent()


# ── workflows ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _called(folder: str, run_id: str, step: str) -> None:
    World(folder).note(str(os.getpid()), "called", f"{run_id}/{step}")


async def waits_for_the_other(folder: str, run_id: str) -> int:
    """Return once another process has come back from the run, so that it surely came while the run was driven."""
    _called(folder, run_id, "meet")
    try:
        async with asyncio.timeout(_PATIENCE_S):
            while not is_told(World(folder), run_id):  # noqa: ASYNC110  (another process says so, by a file)
                await asyncio.sleep(0.005)
    except TimeoutError:
        return -1
    return os.getpid()


@eventlog.workflow
async def meet(run: RunContext, folder: str) -> int:
    by = await run.step("meet", waits_for_the_other, folder, run.run_id)
    await run.act("send", {"text": "met"}, output=folder)
    return by


async def counts(folder: str, run_id: str, number: int) -> int:
    _called(folder, run_id, str(number))
    await asyncio.sleep(0)
    return number


@eventlog.workflow
async def five(run: RunContext, folder: str) -> int:
    total = 0
    for number in range(5):
        total += await run.step("count", counts, folder, run.run_id, number)
    return total


async def waits_to_go_on(folder: str, run_id: str) -> int:
    _called(folder, run_id, "one")
    while not (Path(folder) / "go").exists():  # noqa: ASYNC110  (the test says so, by a file)
        await asyncio.sleep(0.01)
    return 1


@eventlog.workflow
async def two(run: RunContext, folder: str) -> int:
    one = await run.step("one", waits_to_go_on, folder, run.run_id)
    return one + await run.step("two", counts, folder, run.run_id, 2)


async def stops_itself(folder: str, run_id: str) -> int:
    """Return who made it; the first process that makes it stops in the middle, until somebody continues it."""
    is_first = World(folder).calls(f"{run_id}/stop") == 0
    _called(folder, run_id, "stop")
    if is_first:
        os.kill(os.getpid(), signal.SIGSTOP)
    return os.getpid()


@eventlog.workflow
async def stops_in_step(run: RunContext, folder: str) -> int:
    by = await run.step("stop", stops_itself, folder, run.run_id)
    await run.act("send", {"text": str(by)}, output=folder)
    return by


@eventlog.workflow
async def ask_first(run: RunContext, folder: str) -> dict[str, str]:
    """Ask a person, and send."""
    await run.step("count", counts, folder, run.run_id, 1)
    sent: dict[str, str] = await run.act("send", {"text": "asked"}, output=folder)
    return sent


@eventlog.workflow
async def parent(run: RunContext, folder: str) -> str:
    sent = await run.child(ask_first, folder)
    number = await run.step("count", counts, folder, run.run_id, 2)
    return f"{sent['sent']} {number}"


async def makes(folder: str, run_id: str, step: str) -> str:
    """Return something that no other call returns."""
    _called(folder, run_id, step)
    await asyncio.sleep(0.01)
    return uuid.uuid4().hex


@eventlog.workflow
async def sends(run: RunContext, folder: str) -> dict[str, str]:
    """Make four things, two of them at once, and send them as a rule allows it."""
    first = await run.step("first", makes, folder, run.run_id, "first")
    saw(folder, f"{run.run_id}/first", first)
    left, right = await run.gather(
        run.step("left", makes, folder, run.run_id, "left"), run.step("right", makes, folder, run.run_id, "right")
    )
    saw(folder, f"{run.run_id}/left", left)
    saw(folder, f"{run.run_id}/right", right)
    sent: dict[str, str] = await run.act("send", {"text": f"{first} {left} {right}"}, output=folder)
    saw(folder, f"{run.run_id}/last", await run.step("last", makes, folder, run.run_id, "last"))
    return sent


WORKFLOWS: Final = (ask_first, five, meet, parent, sends, stops_in_step, two)
AUTOMATIC: Final = {"send": Policy(auto=True)}


# ── a race, and its negative control ──────────────────────────────────────────────────────────────────────────────────


class Gathered:
    """A log that claims a run only when every other process has read it too: the tightest race there can be.

    One that is `careless` does not expect the run to be where it was read, as the negative control.
    """

    def __init__(self, log: SqliteLog, care: str) -> None:
        self._log = log
        self._is_careless = care == "careless"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append_reserved(self, appends: Sequence[Append], **options: Any) -> list[AppendResult]:
        if isinstance(appends[0].events[0].data, RunClaimed):
            await asyncio.sleep(_GATHER_S)
        if self._is_careless:
            appends = [Append(append.stream, append.events, Expect.any()) for append in appends]
        return await self._log.append_reserved(appends, **options)


class _StoppedLog:
    """A log whose process stops as soon as it has claimed a run, until somebody continues it."""

    def __init__(self, log: SqliteLog) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append_reserved(self, appends: Sequence[Append], **options: Any) -> list[AppendResult]:
        results = await self._log.append_reserved(appends, **options)
        if isinstance(appends[0].events[0].data, RunClaimed):
            os.kill(os.getpid(), signal.SIGSTOP)
        return results


# ── processes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def runner_of(log: Any, *, kind: str = "fenced", lease_s: float = LONG_LEASE_S, **more: Any) -> Runner:
    """Return a runner that knows all workflows."""
    return Runner(log, workflows=WORKFLOWS, actions=[Send(kind)], lease_s=lease_s, **more)


def _open(folder: str) -> SqliteLog:
    return open_file(World(folder).log, busy_timeout_s=30)


async def _wait_for_the_start() -> None:
    print("READY", flush=True)
    await asyncio.to_thread(sys.stdin.readline)


async def _answer(runner: Runner, run_id: str) -> list[Any]:
    try:
        outcome = await runner.resume(run_id)
    except EventLogError as error:
        return [error.code, None]
    return [outcome.status, outcome.value]


async def resumes(folder: str, run_id: str) -> list[Any]:
    """Resume a run; return its status and value, or the code of the error."""
    async with _open(folder) as log:
        return await _answer(runner_of(log), run_id)


async def resumes_in_rounds(folder: str, rounds: str, care: str) -> list[Any]:
    """Resume run-0, run-1, …, each when the test says so; return what was told of each."""
    told = []
    async with _open(folder) as log:
        runner = runner_of(Gathered(log, care), kind="opaque")
        for number in range(int(rounds)):
            await _wait_for_the_start()
            told.append([*await _answer(runner, f"run-{number}"), os.getpid()])
            (Path(folder) / f"told-run-{number}").touch()
    return told


async def resumes_slowly(folder: str, run_id: str, kind: str, point: str) -> list[Any]:
    """Resume a run on a short lease, and stop at the point, if one is named, until somebody continues this process."""
    async with _open(folder) as log:
        reach = pass_by if point in ("", CLAIMED) else stop_at(point)
        stopped = _StoppedLog(log) if point == CLAIMED else log
        return await _answer(runner_of(stopped, kind=kind, lease_s=SHORT_LEASE_S, reach=reach), run_id)


async def works(folder: str, max_concurrent: str, care: str = "") -> int:
    """Work until nothing is left; return how many runs were driven."""
    async with _open(folder) as log:
        worker = Worker(runner_of(Gathered(log, care) if care else log), max_concurrent=int(max_concurrent))
        await _wait_for_the_start()
        await worker.run(until_idle=True)
        return worker.driven


async def sends_until_idle(folder: str, max_concurrent: str) -> int:
    """Work until nothing is left, at a receiver that can only be asked, without waiting for people."""
    async with _open(folder) as log:
        worker = Worker(runner_of(log, kind="askable", policies=AUTOMATIC), max_concurrent=int(max_concurrent))
        await _wait_for_the_start()
        await worker.run(until_idle=True)
        return worker.driven


async def works_until_told(folder: str, max_concurrent: str) -> int:
    """Work until SIGTERM; return how many runs were driven."""
    async with _open(folder) as log:
        worker = Worker(runner_of(log), max_concurrent=int(max_concurrent))

        def stop() -> None:
            worker.stop()
            print("STOPPING", flush=True)

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
        await _wait_for_the_start()
        await worker.run()
        return worker.driven
