"""Runs of workflows in one process: who called what, how a run stands, and what its log says.

A process that dies is played by a log that ends early (`log_until`): the events up to one of them, as they were, in
a new log. Whoever held the run is dead there, and the run goes on from what is left.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import eventlog
from eventlog.events import CheckpointSaved, RunClaimed, run_stream
from eventlog.log import Append, Expect, NewEvent, RunLog
from eventlog.progress import Progress
from eventlog.run import Run
from eventlog.stores import MemoryLog
from eventlog.testing.clock import FakeClock
from tests.effect_runs import LEASE_S

__all__ = [
    "Calls",
    "by_code_of",
    "claims_in",
    "commits_in",
    "effect",
    "events_of",
    "log_until",
    "progress_of",
    "runner_for",
    "state_of",
    "tidy",
    "types_in",
    "until",
    "until_logged",
]


class Calls:
    """What was called, in order; it makes functions for steps that say so."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, name: str, value: Any = None, *, fails: int = 0) -> Callable[..., Any]:
        """Return an async function that notes its call and returns `value`, but raises OSError `fails` times first."""

        async def function(*args: Any) -> Any:
            self.names.append(name)
            if self.count(name) <= fails:
                raise OSError(f"{name} is out of order")
            return name if value is None else value

        return function

    def count(self, name: str) -> int:
        """Return how often this was called."""
        return self.names.count(name)

    def counts(self) -> Counter[str]:
        """Return how often each was called."""
        return Counter(self.names)

    def forget(self) -> None:
        """Begin anew, as another process would."""
        self.names.clear()


def effect(calls: Calls, name: str = "apply", promise: str = "opaque") -> Any:
    """Return an action of this name that notes its effect in `calls` and returns its arguments."""

    @eventlog.action(name, promise=promise)
    async def perform(call: eventlog.Call) -> Any:
        calls.names.append(name)
        return {"done": call.args}

    return perform


def runner_for(log: RunLog, clock: FakeClock, *workflows: Any, **options: Any) -> eventlog.Runner:
    """Return a runner that goes by this clock and waits for no time in memory."""
    options.setdefault("lease_s", LEASE_S)
    options.setdefault("patience_s", 0)
    return eventlog.Runner(log, workflows=workflows, clock=clock, **options)


def progress_of(run: Run) -> Progress:
    """Return how far a workflow run has come."""
    assert run.progress is not None
    progress: Progress = run.progress
    return progress


async def state_of(runner: eventlog.Runner, run_id: str = "run-1") -> Run:
    """Return the run as its log leaves it."""
    return await runner.state(run_id)


async def events_of(log: RunLog, run_id: str = "run-1", *, after: int = 0) -> list[Any]:
    """Return the bodies of the events of a run behind version `after`."""
    return [event.data for event in (await log.read_stream(run_stream(run_id), after=after)).events]


async def types_in(log: RunLog, run_id: str = "run-1", *, after: int = 0) -> list[str]:
    """Return the types of the events of a run behind version `after`."""
    return [event.type for event in (await log.read_stream(run_stream(run_id), after=after)).events]


async def until(is_so: Callable[[], bool]) -> None:
    """Wait until something is so. A test that waits in vain is ended by its time-out."""
    while not is_so():  # noqa: ASYNC110 - nothing tells when it is
        await asyncio.sleep(0.001)


async def until_logged(log: RunLog, type: str, run_id: str = "run-1") -> None:
    """Wait until an event of this type is in the stream of the run; the empty type is any."""
    while not any(each.startswith(type) for each in await types_in(log, run_id)):  # noqa: ASYNC110 - as above
        await asyncio.sleep(0)


def by_code_of(old: eventlog.Workflow, **options: Any) -> Callable[[Any], eventlog.Workflow]:
    """Make a workflow that says that it goes on with the runs of `old`."""
    return eventlog.workflow(name=old.name, continues=[old.definition.fingerprint], **options)


@asynccontextmanager
async def log_until(log: RunLog, position: int, clock: FakeClock) -> AsyncIterator[MemoryLog]:
    """Give a log in memory with the events of `log` up to this position, each in an append of its own."""
    async with eventlog.open("memory:", clock=clock) as left:
        assert isinstance(left, MemoryLog)
        async for event in log.read_all(limit=position):
            new = NewEvent(event.type, event.data, event.event_id)
            await left.append_reserved(
                [Append(event.stream, [new], Expect.at(event.version - 1))], correlation_id=event.correlation_id
            )
        yield left


def claims_in(events: Sequence[Any]) -> list[RunClaimed]:
    """Return the claims among the events."""
    return [event for event in events if isinstance(event, RunClaimed)]


def commits_in(events: Sequence[Any]) -> list[tuple[str, ...]]:
    """Return what each checkpoint among the events commits, if it commits anything."""
    return [event.committed for event in events if isinstance(event, CheckpointSaved) and event.committed]


@asynccontextmanager
async def tidy() -> AsyncIterator[None]:
    """Fail if tasks are left over, or an exception that nobody has looked at."""
    loop = asyncio.get_running_loop()
    complaints: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    before = asyncio.all_tasks()
    yield
    for _ in range(5):
        await asyncio.sleep(0)
    gc.collect()
    await asyncio.sleep(0)
    left = [task for task in asyncio.all_tasks() - before if task is not asyncio.current_task()]
    assert not left, f"left over: {left}"
    assert not complaints, f"nobody has looked at {complaints}"
