"""The programs of the public cases about workflows. Each function runs in a child of its own.

What steps and receivers did is in the files of a `World` (`tests/paused_agent.py`), whatever became of the process.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

import eventlog
from eventlog import Append, AppendResult, Call, Executed, NewEvent, Promise, Retry, RunContext, Runner, StepFailed
from eventlog.errors import EventLogError
from eventlog.events import CheckpointSaved, StepCompleted
from eventlog.events import StepFailed as StepFailedEvent
from eventlog.stores import SqliteLog
from tests.paused_agent import World
from tools.campaigns.storage.log_files import open_file

__all__ = [
    "KILLS",
    "Colour",
    "Report",
    "crashes",
    "goes_on",
    "runner_of",
    "waits_in_step",
]

RESULT_DELAY_S: Final = 0.1


class Act:
    """Leaves a receipt, and cannot be asked."""

    name = "act"
    promise = Promise.OPAQUE

    def check(self, call: Call) -> None:
        """Nothing to refuse."""

    async def execute(self, call: Call) -> Executed:
        """Leave a receipt."""
        World(call.output).apply(call.op_key, knows_keys=False)
        return Executed(result=call.args)


def _called(folder: str, step: str) -> None:
    World(folder).note(str(os.getpid()), "called", step)


async def says(folder: str, step: str) -> str:
    _called(folder, step)
    return step


# ── run-02, run-06: several questions ─────────────────────────────────────────────────────────────────────────────────


@eventlog.workflow
async def asks_in_a_loop(run: RunContext, folder: str) -> list[int]:
    answers = []
    for number in range(3):
        answers.append((await run.act("act", {"question": number}, output=folder))["question"])
    return answers


@eventlog.workflow
async def asks_three_at_once(run: RunContext, folder: str) -> list[int]:
    done = await run.gather(*(run.act("act", {"question": number}, output=folder) for number in range(3)))
    return [each["question"] for each in done]


# ── run-04: the next state before the result ──────────────────────────────────────────────────────────────────────────


@eventlog.workflow
async def steps_then_asks(run: RunContext, folder: str) -> list[str]:
    found = await run.gather(run.step("one", says, folder, "one"), run.step("two", says, folder, "two"))
    await run.act("act", {"found": list(found)}, output=folder)
    return list(found)


# ── run-08, run-14, run-48: what failed ───────────────────────────────────────────────────────────────────────────────


async def fails(folder: str, step: str, times: int) -> str:
    _called(folder, step)
    if World(folder).calls(step) <= times:
        raise OSError(f"{step} is out of order")
    return step


@eventlog.workflow
async def pays_and_fails_twice(run: RunContext, folder: str) -> str:
    await run.act("act", {"amount": 25}, output=folder)
    return await run.step("mail", fails, folder, "mail", 2)


@eventlog.workflow
async def five_of_which_the_third_fails(run: RunContext, folder: str) -> list[str]:
    done = []
    for number in range(1, 6):
        done.append(await run.step(f"step-{number}", fails, folder, f"step-{number}", number == 3))
    return done


@eventlog.workflow
async def tries_three_times(run: RunContext, folder: str, times: int) -> str:
    retry = Retry(attempts=3, first_delay_s=0.1)
    try:
        return await run.step("try", fails, folder, "try", times, retry=retry)
    except StepFailed as error:
        return f"gave up after {error.attempts}"


# ── run-16, run-30: another proposal, another definition ──────────────────────────────────────────────────────────────


@eventlog.workflow
async def proposes_anew(run: RunContext, folder: str) -> Any:
    """Ask the model outside of any step, as nobody should."""
    _called(folder, "model")
    value = "reviewed-value" if World(folder).calls("model") == 1 else "changed-value"
    return await run.act("act", {"value": value}, output=folder)


async def _report(run: RunContext, folder: str) -> list[str]:
    done = [await run.step("a", says, folder, "a")]
    await run.wait_for_signal("go")
    done.append(await run.step("b", says, folder, "b"))
    done.append(await run.step("c", says, folder, "c"))
    return done


async def _other_report(run: RunContext, folder: str) -> list[str]:
    done = [await run.step("a", says, folder, "a")]
    await run.wait_for_signal("go")
    done.append(await run.step("x", says, folder, "x"))
    done.append(await run.step("c", says, folder, "c"))
    return done


_REPORTS: Final = {
    "A": eventlog.workflow(name="report")(_report),
    "B": eventlog.workflow(name="report")(_other_report),
}


# ── run-36, run-38, run-44: siblings ──────────────────────────────────────────────────────────────────────────────────


async def next_turn(folder: str, results: list[Any]) -> list[Any]:
    """Return what the model is given: the results of its calls, in their order."""
    _called(folder, "model")
    return results


@eventlog.workflow
async def a_free_and_a_gated_call(run: RunContext, folder: str) -> list[Any]:
    gated = run.act("act", {"amount": 25}, output=folder)
    free = run.step("free", says, folder, "free")
    last = run.step("last", says, folder, "last")
    return await run.step("model", next_turn, folder, list(await run.gather(free, gated, last)))


@eventlog.workflow
async def approved_here_and_answered_elsewhere(run: RunContext, folder: str) -> list[Any]:
    gated = run.act("act", {"amount": 25}, output=folder)
    return list(await run.gather(gated, run.wait_for_signal("answer", type=str)))


@eventlog.workflow
async def answers(run: RunContext, folder: str) -> str:
    await run.wait_for_signal("go")
    return "late"


@eventlog.workflow
async def writes_early_and_late(run: RunContext, folder: str) -> list[Any]:
    gated = run.act("act", {"amount": 25}, output=folder)
    return list(await run.gather(run.step("early", says, folder, "early"), gated, run.child(answers, folder)))


# ── run-50: values ────────────────────────────────────────────────────────────────────────────────────────────────────


class Colour(Enum):
    RED = "red"


@dataclass
class Report:
    """What a step may return: with a field that its constructor does not take, and an enum deep inside."""

    title: str
    colours: dict[str, list[Colour]]
    length: int = field(init=False)

    def __post_init__(self) -> None:
        self.length = len(self.title)


async def makes_report(folder: str) -> Report:
    _called(folder, "report")
    return Report("five!", {"seen": [Colour.RED]})


@eventlog.workflow
async def reports(run: RunContext, folder: str) -> str:
    report = await run.step("report", makes_report, folder)
    await run.wait_for_signal("go")
    return f"{report!r}"


# ── run-66: cancelled in a step ───────────────────────────────────────────────────────────────────────────────────────


async def waits_for_ever(folder: str) -> None:
    _called(folder, "wait")
    print("READY", flush=True)
    await asyncio.Event().wait()


@eventlog.workflow
async def waits_in_step(run: RunContext, folder: str) -> None:
    await run.step("wait", waits_for_ever, folder)
    await run.act("act", {}, output=folder)


# ── processes ─────────────────────────────────────────────────────────────────────────────────────────────────────────

_WORKFLOWS: Final = (
    a_free_and_a_gated_call,
    answers,
    approved_here_and_answered_elsewhere,
    asks_in_a_loop,
    asks_three_at_once,
    five_of_which_the_third_fails,
    pays_and_fails_twice,
    proposes_anew,
    reports,
    steps_then_asks,
    tries_three_times,
    waits_in_step,
    writes_early_and_late,
)


def runner_of(log: Any, program: str = "A") -> Runner:
    """Return a runner of one of two programs, which differ in one workflow."""
    return Runner(log, workflows=[*_WORKFLOWS, _REPORTS[program]], actions=[Act()])


async def goes_on(folder: str, name: str, *args: str, program: str = "A") -> list[Any]:
    """Start the run that is called as its workflow, or resume it; return its status and value, or what refused it."""
    async with open_file(World(folder).log) as log:
        return await _go_on(runner_of(log, program), folder, name, *args)


async def goes_on_as_b(folder: str, name: str) -> list[Any]:
    """Go on with the run in a program in which that workflow is another one."""
    return await goes_on(folder, name, program="B")


async def _go_on(runner: Runner, folder: str, name: str, *args: str) -> list[Any]:
    try:
        try:
            outcome = await runner.resume(name)
        except eventlog.Refused as error:
            if error.code != "unknown_run":
                raise
            flow = next(flow for flow in [*_WORKFLOWS, *_REPORTS.values()] if flow.name == name)
            outcome = await runner.start(flow, name, folder, *map(int, args))
    except EventLogError as error:
        return [error.code, None]
    return [outcome.status, outcome.value if outcome.failure is None else outcome.failure.code]


class _KilledLog:
    """Delays every append of a step's result, and kills its process right behind a certain append."""

    def __init__(self, log: SqliteLog, is_last: Callable[[NewEvent], bool]) -> None:
        self._log = log
        self._is_last = is_last

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append_reserved(self, appends: Sequence[Append], **options: Any) -> list[AppendResult]:
        events = [event for append in appends for event in append.events]
        if any(isinstance(event.data, StepCompleted) for event in events):
            await asyncio.sleep(RESULT_DELAY_S)
        results = await self._log.append_reserved(appends, **options)
        if any(map(self._is_last, events)):
            os.kill(os.getpid(), signal.SIGKILL)
        return results


def _is_commit(event: NewEvent) -> bool:
    return isinstance(event.data, CheckpointSaved) and bool(event.data.committed)


def _is_first_failure(event: NewEvent) -> bool:
    return isinstance(event.data, StepFailedEvent) and event.data.attempt == 1


KILLS: Final = {"commit": _is_commit, "first_failure": _is_first_failure}


async def crashes(folder: str, kill: str, name: str, *args: str) -> list[Any]:
    """Go on with the run until the process is killed behind an append of this kind."""
    async with open_file(World(folder).log) as log:
        return await _go_on(runner_of(_KilledLog(log, KILLS[kill])), folder, name, *args)
