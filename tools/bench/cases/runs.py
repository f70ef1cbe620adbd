"""Runs to measure with, made of events that a real runner has written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import eventlog
from eventlog import Append, Call, Executed, Expect, NewEvent, Promise, RecordedEvent
from eventlog.events import run_stream
from eventlog.stores import SqliteLog

__all__ = ["EVENTS_OF_A_RUN", "write_runs"]

EVENTS_OF_A_RUN: Final = 7
_RUNS_A_CALL: Final = 100


class _WriteLetter:
    """An effect that does nothing."""

    name = "write_letter"
    promise = Promise.CHECKABLE

    def check(self, call: Call) -> None:
        """Nothing to refuse."""

    async def execute(self, call: Call) -> Executed:
        """Do nothing."""
        return Executed(result={"bytes": 461})


async def write_runs(log: SqliteLog, count: int) -> None:
    """Append completed runs: proposed, approved, performed."""
    events = await _run_events()
    assert len(events) == EVENTS_OF_A_RUN, "the life of a run of one action"
    for first in range(0, count, _RUNS_A_CALL):
        numbers = range(first, min(count, first + _RUNS_A_CALL))
        await log.append_reserved([_append(f"letter-{number}", events) for number in numbers])


async def _run_events() -> Sequence[RecordedEvent]:
    async with eventlog.open("memory:", actor="bench") as log:
        runner = eventlog.Runner(log, actions=[_WriteLetter()])
        proposal = eventlog.propose(_WriteLetter.name, {"content": "Dear Ada, …" * 20}, "letters/ada.txt")
        await runner.propose("run", proposal)
        await runner.approve("run", proposal.hash, reason="read it twice")
        await runner.resume("run")
        return await runner.trace("run")


def _append(run_id: str, events: Sequence[RecordedEvent]) -> Append:
    return Append(run_stream(run_id), [NewEvent(event.type, event.data) for event in events], Expect.no_stream())
