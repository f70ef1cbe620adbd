"""A program with workflows, as somebody writes it for `eventlog --app tests.workflow_program:make_runner`.

What a step or an action really did is a line in the file `done.txt` of the current folder.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import eventlog
from eventlog import Call, Policy, Retry, RunContext, Runner, StepFailed
from eventlog.log import RunLog

__all__ = [
    "NOT_A_FUNCTION",
    "ask_two",
    "delegate",
    "fix_incident",
    "make_nothing",
    "make_runner",
    "make_runner_async",
    "retry_once",
    "slow",
    "start",
    "submit",
    "wait_long",
]

NOT_A_FUNCTION: Final = 7
DONE: Final = "done.txt"
HOSTILE: Final = "[red]\x1b[31m\u202e"


def note(what: str) -> None:
    """Leave a line that says what was done, at once and whole."""
    with Path(DONE).open("a", encoding="utf-8") as file:
        file.write(f"{what}\n")
        file.flush()


async def search_logs(incident: str) -> list[str]:
    note("search_logs")
    print("this program prints what it likes")
    return [f"log of {incident}"]


async def prepare_patch(incident: str) -> str:
    note("prepare_patch")
    return f"patch for {incident}"


async def apply_patch(call: Call) -> Any:
    note("apply_patch")
    return {"applied": call.args["patch"]}


@eventlog.workflow
async def fix_incident(run: RunContext, incident: str) -> dict[str, Any]:
    """Search, prepare a patch beside asking whether to apply it, and apply it."""
    logs = await run.step("search_logs", search_logs, incident)
    patch, applied = await run.gather(
        run.step("prepare_patch", prepare_patch, incident),
        run.act("apply_patch", {"patch": "p-9"}, output="repo:main"),
    )
    return {"logs": logs, "patch": patch, "applied": applied}


@eventlog.workflow
async def ask_two(run: RunContext) -> list[Any]:
    """Ask for two things at once."""
    return list(
        await run.gather(
            run.act("apply_patch", {"patch": 1, "note": HOSTILE}, output="repo:one"),
            run.act("deploy", {"to": "production"}, output="cluster"),
        )
    )


@eventlog.workflow
async def delegate(run: RunContext, incident: str) -> Any:
    """Let another run do it."""
    return await run.child(fix_incident, incident)


@eventlog.workflow
async def wait_long(run: RunContext) -> Any:
    """Wait for a signal that nobody has sent yet."""
    return await run.wait_for_signal("go")


async def slow_step(number: int) -> int:
    await asyncio.sleep(0.05)
    note(f"step {number}")
    return number


@eventlog.workflow
async def slow(run: RunContext, steps: int) -> int:
    """Do steps one after the other, so that there is time to be killed between them."""
    total = 0
    for number in range(steps):
        total += await run.step("one", slow_step, number)
    return total


def fails(message: str) -> None:
    raise ValueError(message)


@eventlog.workflow
async def retry_once(run: RunContext) -> str:
    """Meet a step that fails with a message that nobody should print as it is."""
    try:
        await run.step("fail[bold]", fails, HOSTILE, retry=Retry(attempts=2, first_delay_s=0.01))
    except StepFailed:
        await run.act("apply_patch", {"patch": HOSTILE}, output=HOSTILE)
        return "applied"
    return "never"


def make_runner(log: RunLog) -> Runner:
    """Make the Runner of this program."""
    return Runner(
        log,
        workflows=[fix_incident, ask_two, delegate, wait_long, slow, retry_once],
        actions=[
            eventlog.action("apply_patch", promise="opaque")(apply_patch),
            eventlog.action("deploy", promise="opaque")(deploy),
        ],
        policies={"deploy": Policy(required=2, roles=("ops",))},
    )


async def deploy(call: Call) -> Any:
    note("deploy")
    return "deployed"


async def make_runner_async(log: RunLog) -> Runner:
    """Make the same Runner, waiting for something first."""
    await asyncio.sleep(0)
    return make_runner(log)


def make_nothing(log: RunLog) -> None:
    """Make no Runner."""


async def submit(path: str, workflow: str, run_id: str, *args: Any) -> None:
    """Record a run for a worker to drive."""
    async with eventlog.open(path) as log:
        await make_runner(log).submit(globals()[workflow], run_id, *args)


async def start(path: str, workflow: str, run_id: str, *args: Any) -> str:
    """Begin a run here, and drive it as far as it goes; return its status."""
    async with eventlog.open(path) as log:
        return (await make_runner(log).start(globals()[workflow], run_id, *args)).status
