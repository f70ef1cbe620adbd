"""The small workflows that simulations run, and the steps in them."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from eventlog.errors import ActionFailed, ApprovalExpired, ApprovalRejected, OutcomeUnknown, StepFailed, WaitTimedOut
from eventlog.runtime.context import RunContext
from eventlog.runtime.definitions import Workflow, workflow
from eventlog.runtime.retries import Retry

__all__ = ["STORIES"]

_RETRY: Final = Retry(attempts=3, first_delay_s=0.2)


async def look(number: int) -> int:
    """Return a number after a moment."""
    await asyncio.sleep(0.01)
    return number + 1


def look_at_once(number: int) -> int:
    """Return a number."""
    return number + 1


@workflow
async def one_act(run: RunContext, kind: str) -> Any:
    """Look, then act."""
    number = await run.step("look", look_at_once, 1)
    return await run.act(kind, {"n": number}, output=kind)


@workflow
async def two_acts(run: RunContext, first: str, second: str) -> Any:
    """Do two things at the same time."""
    return await run.gather(
        run.act(first, {"n": 1}, output=first, key="first"), run.act(second, {"n": 2}, output=second, key="second")
    )


@workflow
async def nap(run: RunContext, kind: str, seconds: float) -> Any:
    """Sleep, then act, whatever a person says to it."""
    await run.sleep(seconds)
    await run.step("look", look, 2)
    try:
        return await run.act(kind, {"n": 3}, output=kind)
    except (ApprovalRejected, ApprovalExpired, ActionFailed, OutcomeUnknown):
        return await run.step("look again", look_at_once, 3, retry=_RETRY)


@workflow
async def called(run: RunContext, kind: str, timeout_s: float) -> Any:
    """Wait to be called, but not for ever; then act."""
    try:
        number = await run.wait_for_signal("go", timeout_s=timeout_s)
    except WaitTimedOut:
        number = 0
    found = await run.gather(run.step("one", look, 1), run.step("two", look_at_once, 2, retry=_RETRY))
    return await run.act(kind, {"n": [number, *found]}, output=kind)


@workflow
async def in_order(run: RunContext, first: str, second: str) -> Any:
    """Do one thing after the other, and the second also if the first was not to be."""
    try:
        await run.act(first, {"n": 1}, output=first, key="first")
    except (ApprovalRejected, ApprovalExpired, ActionFailed, OutcomeUnknown, StepFailed):
        await run.sleep(1)
    return await run.act(second, {"n": 2}, output=second, key="second")


STORIES: Final[tuple[Workflow, ...]] = (one_act, two_acts, nap, called, in_order)
