"""Runs of one action whose receiver stands beside the log: who did what there, and how often.

A `Receiver` is the world outside. It counts what really happened, so that a test never has to believe an action or the
log about it. The actions differ in what they know of the receiver afterwards: one looks for itself when it is called
again, one can be asked, one only sends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import eventlog
from eventlog.errors import Refused
from eventlog.events import Owner, ResumeStarted, run_stream
from eventlog.log import Append, Expect, RunLog
from eventlog.proposal import Proposal
from eventlog.run import Run
from eventlog.runtime.effects import Call, Executed, Finding, Promise, Recovered, Report
from eventlog.stores import MemoryLog, SqliteLog
from eventlog.testing.clock import FakeClock

__all__ = [
    "LEASE_S",
    "Asked",
    "Crash",
    "Gate",
    "Looking",
    "Receiver",
    "Sending",
    "SlowlyAsked",
    "approved",
    "assert_refused_as_unknown",
    "crash_at",
    "end_of",
    "give_verdict",
    "inside_its_effect",
    "intent_of",
    "late_owner",
    "runner_of",
    "trace_of",
    "types_of",
    "whole_log",
]

LEASE_S = 300.0
"""How long the lease of a runner lasts that `runner_of` made."""


class Crash(BaseException):
    """Ends a resume as a dead process would: nothing behind it is recorded, and its lock is free."""


def crash_at(point: str, error: type[BaseException] = Crash) -> Callable[[str], None]:
    """Return a `reach` that raises `error` at this failpoint: inside an action only what ends a program passes."""

    def reach(name: str) -> None:
        if name == point:
            raise error

    return reach


class Receiver:
    """The world outside the log. `effects` holds the op_key of every effect that really happened, in order.

    One that `is_refusing` does nothing twice for one op_key, and answers as it did the first time.
    """

    def __init__(self, *, is_refusing: bool = False) -> None:
        self.is_refusing = is_refusing
        self.effects: list[str] = []
        self.requests = 0
        self.questions = 0

    def receive(self, call: Call) -> dict[str, Any]:
        """Let the effect happen, unless it is known and this receiver refuses to repeat."""
        self.requests += 1
        if not (self.is_refusing and call.op_key in self.effects):
            self.effects.append(call.op_key)
        return self.answer(call)

    def answer(self, call: Call) -> dict[str, Any]:
        """Return what the first effect of this op_key is called here."""
        return {"number": self.effects.index(call.op_key) + 1}

    def knows(self, call: Call) -> bool:
        """Answer a question about an op_key."""
        self.questions += 1
        return call.op_key in self.effects


class Gate:
    """A place at which an action waits until the test lets it go on."""

    def __init__(self) -> None:
        self._is_reached = asyncio.Event()
        self._is_open = asyncio.Event()

    async def wait_until_reached(self) -> None:
        """Wait until the action stands here."""
        await self._is_reached.wait()

    async def pass_through(self) -> None:
        """Say that somebody is here, and wait until it is open."""
        self._is_reached.set()
        await self._is_open.wait()

    def open(self) -> None:
        """Let everybody go on."""
        self._is_open.set()


class Sending:
    """An action that sends, and knows nothing of what it sent before. It waits at `gate` first, if there is one."""

    name = "send"
    is_fenced = True

    def __init__(
        self,
        receiver: Receiver,
        promise: Promise = Promise.OPAQUE,
        *,
        key_lifetime_s: float | None = None,
        request_life_s: float = 0.0,
        compensation: str | None = None,
    ) -> None:
        self.receiver = receiver
        self.promise = promise
        self.gate: Gate | None = None
        self.key_lifetime_s = key_lifetime_s
        self.request_life_s = request_life_s
        self.compensation = compensation
        self.calls: list[Call] = []

    def check(self, call: Call) -> None:
        """Refuse nothing."""

    async def execute(self, call: Call) -> Report:
        """Send."""
        self.calls.append(call)
        if self.gate is not None:
            await self.gate.pass_through()
        return Executed(result=self.receiver.receive(call))


class Looking(Sending):
    """An action that looks at the receiver before it sends: checkable by `execute` itself."""

    def __init__(self, receiver: Receiver, promise: Promise = Promise.CHECKABLE, **rest: Any) -> None:
        super().__init__(receiver, promise, **rest)

    async def execute(self, call: Call) -> Report:
        """Send, unless it is there."""
        self.calls.append(call)
        if self.gate is not None:
            await self.gate.pass_through()
        if call.op_key in self.receiver.effects:
            return Recovered(evidence="it is there", result=self.receiver.answer(call))
        return Executed(result=self.receiver.receive(call))


class Asked(Sending):
    """An action whose receiver can be asked, and which answers what `finding` makes of it."""

    def __init__(self, receiver: Receiver, promise: Promise = Promise.CHECKABLE, **rest: Any) -> None:
        super().__init__(receiver, promise, **rest)
        self.finding: Callable[[Call], Any] = self.look

    def look(self, call: Call) -> Finding:
        """Say what the receiver knows."""
        if self.receiver.knows(call):
            return Recovered(evidence="it is there", result=self.receiver.answer(call))
        return eventlog.Absent()

    async def inspect(self, call: Call) -> Finding:
        """Ask the receiver."""
        found: Finding = self.finding(call)
        return found


class SlowlyAsked(Asked):
    """One whose answer to a question waits at `question`."""

    def __init__(self, receiver: Receiver, promise: Promise = Promise.CHECKABLE, **rest: Any) -> None:
        super().__init__(receiver, promise, **rest)
        self.question = Gate()

    async def inspect(self, call: Call) -> Finding:
        """Wait, then ask the receiver."""
        await self.question.pass_through()
        return await super().inspect(call)


@asynccontextmanager
async def whole_log(store: str, folder: Path, **options: Any) -> AsyncIterator[MemoryLog | SqliteLog]:
    """Open a new log, in "memory" or in a file of `folder` ("sqlite"); verify every event of it before it is closed."""
    path = "memory:" if store == "memory" else str(folder / "log.db")
    async with eventlog.open(path, **options) as log:
        yield log
        position = 0
        while (page := await log.check_page(after=position)).events:
            assert not page.problems
            position = page.position


def runner_of(log: RunLog, clock: FakeClock, *actions: Any, **options: Any) -> eventlog.Runner:
    """Return a runner that goes by this clock."""
    return eventlog.Runner(log, actions=actions, clock=clock, lease_s=LEASE_S, **options)


async def approved(
    runner: eventlog.Runner, run_id: str = "run-1", *, action: str = "send", output: str = "target", **args: Any
) -> Proposal:
    """Propose a run and approve it."""
    proposal = eventlog.propose(action, args, output)
    await runner.propose(run_id, proposal)
    await runner.approve(run_id, proposal.hash)
    return proposal


async def inside_its_effect(runner: eventlog.Runner, action: Sending) -> tuple[asyncio.Task[eventlog.Outcome], Gate]:
    """Approve `run-1` and let this runner of `action` stand in front of its effect until the gate is opened.

    Only this one call waits there; whoever calls the action later does not.
    """
    gate = action.gate = Gate()
    await approved(runner)
    holder = asyncio.create_task(runner.resume("run-1"))
    await gate.wait_until_reached()
    action.gate = None
    return holder, gate


async def late_owner(log: RunLog, clock: FakeClock, action: Sending) -> tuple[asyncio.Task[eventlog.Outcome], Gate]:
    """Let a resumer of `run-1` stand in front of its effect until its lease is over."""
    holder, gate = await inside_its_effect(runner_of(log, clock, action), action)
    clock.advance(LEASE_S + 1)
    return holder, gate


async def end_of(working: Awaitable[eventlog.Outcome]) -> str | None:
    """Return how a resume or an undoing ended: its result, or the code of its error."""
    try:
        return (await working).result
    except eventlog.EventLogError as error:
        return error.code


async def give_verdict(
    runner: eventlog.Runner, verdict: str, *, run_id: str = "run-1", evidence: str = "I looked", **rest: Any
) -> eventlog.Outcome:
    """Look at a run, and say what became of its effect; look again, where the first look came too early to count."""
    for is_last in (False, True):
        version = (await runner.state(run_id)).version
        try:
            return await runner.reconcile(run_id, verdict, evidence=evidence, at_version=version, **rest)
        except Refused as refusal:
            if is_last or refusal.code != "verdict_stale":
                raise
    raise AssertionError("unreachable")


async def assert_refused_as_unknown(runner: eventlog.Runner) -> None:
    """Resume `run-1` and see it refused, because nobody knows its outcome."""
    with pytest.raises(Refused) as refusal:
        await runner.resume("run-1")
    assert refusal.value.code == "outcome_unknown"


async def trace_of(log: RunLog, run_id: str = "run-1") -> list[Any]:
    """Return the events of a run."""
    return list((await log.read_stream(run_stream(run_id))).events)


async def types_of(log: RunLog, run_id: str = "run-1", *, after: int = 0) -> list[str]:
    """Return the types of the events of a run behind version `after`."""
    return [event.type for event in await trace_of(log, run_id) if event.version > after]


async def intent_of(log: RunLog, run: Run, owner: Owner, *, op_key: str, deadline_us: int) -> None:
    """Append the intent of another resumer, as it would."""
    intent = ResumeStarted(
        op_key=op_key,
        attempt=run.attempts + 1,
        epoch=run.epoch,
        owner=owner,
        deadline_us=deadline_us,
        approval_hash=run.approval_hash or "",
        input_hash=run.proposal_hash or "",
    )
    await log.append_reserved([Append(run_stream(run.run_id), [intent], Expect.at(run.version))])
