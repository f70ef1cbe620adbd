"""Runs to measure with, made of events that a real runner has written."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import eventlog
from eventlog import Append, Call, Executed, Expect, NewEvent, Promise, RecordedEvent
from eventlog.events import ActionFailed, ResumeStarted, run_stream
from eventlog.stores import SqliteLog

__all__ = ["EVENTS_OF_A_RUN", "LONG_RUN", "write_long_run", "write_runs"]

LONG_RUN: Final = "long"
EVENTS_OF_A_RUN: Final = 7
_RUNS_A_CALL: Final = 100
_FAILURE: Final = "action_failed"


class _WriteLetter:
    """An effect that does nothing, or fails."""

    name = "write_letter"
    promise = Promise.CHECKABLE

    def __init__(self) -> None:
        self.fails = False

    def check(self, call: Call) -> None:
        """Nothing to refuse."""

    async def execute(self, call: Call) -> Executed:
        """Do nothing."""
        if self.fails:
            raise eventlog.ActionFailed(_FAILURE, "the disk is full")
        return Executed(result={"bytes": 461})


async def write_runs(log: SqliteLog, count: int) -> None:
    """Append completed runs: proposed, approved, performed."""
    events = await _run_events(failures=0)
    assert len(events) == EVENTS_OF_A_RUN, "the life of a run of one action"
    for first in range(0, count, _RUNS_A_CALL):
        numbers = range(first, min(count, first + _RUNS_A_CALL))
        await log.append_reserved([_append(f"letter-{number}", events) for number in numbers])


async def write_long_run(log: SqliteLog, size: int) -> None:
    """Append one run of `size` events, most of them attempts that failed."""
    events = await _run_events(failures=1)
    pair = [event for event in events if isinstance(event.data, ResumeStarted | ActionFailed)][:2]
    start = events[: events.index(pair[0])]
    filled = [*start, *(pair * size)][:size]
    await log.append_reserved([_append(LONG_RUN, filled)])


async def _run_events(*, failures: int) -> Sequence[RecordedEvent]:
    action = _WriteLetter()
    async with eventlog.open("memory:", actor="bench") as log:
        runner = eventlog.Runner(log, actions=[action])
        proposal = eventlog.propose(action.name, {"content": "Dear Ada, …" * 20}, "letters/ada.txt")
        await runner.propose("run", proposal)
        await runner.approve("run", proposal.hash, reason="read it twice")
        action.fails = failures > 0
        await asyncio.gather(runner.resume("run"), return_exceptions=action.fails)
        return await runner.trace("run")


def _append(run_id: str, events: Sequence[RecordedEvent]) -> Append:
    return Append(run_stream(run_id), [NewEvent(event.type, event.data) for event in events], Expect.no_stream())
