"""Makes the golden files of the current format: a log as this version writes it, and what later ones must read in it.

    PYTHONPATH=. python3 tools/golden.py

writes `tests/golden/v2.db` and `tests/golden/v2.json` once. Logs like it are in the field from the first release on, so
a golden file is never made again: the tool refuses to overwrite one. While a format is unreleased, delete both files by
hand.

The expected values are what was read back from the log when it was made. `tests/test_golden.py` does not trust them
alone: it computes every leaf afresh, from the rows, by an encoder of its own.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import shutil
import sys
import tempfile
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

import eventlog
from eventlog import decide
from eventlog.codec import Registry, event
from eventlog.events import (
    ActionConflict,
    ActionExecuted,
    ActionFailed,
    ActionRecovered,
    BarrierRecorded,
    CheckpointSaved,
    ChildFinished,
    ChildStarted,
    ClaimRenewed,
    CompensationExecuted,
    CompensationFailed,
    Definition,
    Failure,
    OutcomeUnknown,
    Owner,
    Parent,
    PolicyTerms,
    ResultRejected,
    RunCancelled,
    RunClaimed,
    RunCompleted,
    RunEvent,
    RunFailed,
    SignalReceived,
    SignalRejected,
    StepCompleted,
    StepFailed,
    StepStarted,
    TimerFired,
    TimerSet,
    Waiting,
    run_stream,
)
from eventlog.log import Append, EventReader, Expect, NewEvent, RecordedEvent, RunLog
from eventlog.progress import advance, fold_stream, request_of
from eventlog.proposal import op_key, propose
from eventlog.run import Run, Status, evolve
from eventlog.runtime.run_streams import of_step
from eventlog.stores.sqlite.schema import FORMAT_VERSION
from eventlog.testing.clock import FakeClock
from tools.golden_proof import describe_proof, write_what_is_proved

__all__ = ["GOLDEN", "GOLDEN_REGISTRY", "Counter", "Refilled", "count", "describe", "make"]

GOLDEN: Final = Path(__file__).resolve().parent.parent / "tests" / "golden"
GOLDEN_REGISTRY: Final = Registry()

ANY: Final = Expect.any()
OWNERS: Final = (
    Owner(host="h" * 64, boot="b" * 64, lock="1" * 32),
    Owner(host="h" * 64, boot="c" * 64, lock="2" * 32),
)


# ── a user's own events; their shapes are frozen like everything else here ───────────────────────────────────────────


@event("stock_refilled", registry=GOLDEN_REGISTRY, schema_version=2, upcast={1: lambda old: {**old, "unit": "piece"}})
class Refilled(msgspec.Struct, frozen=True):
    amount: int
    unit: str


@event("stock_counted", registry=GOLDEN_REGISTRY)
class Counted(msgspec.Struct, frozen=True):
    at: datetime.datetime
    by: uuid.UUID
    shelves: tuple[int, ...]


class Counter(msgspec.Struct, frozen=True):
    """What the stream `stock-7` adds up to."""

    total: int = 0
    counts: int = 0
    unknown: int = 0


def count(counter: Counter, recorded: RecordedEvent) -> Counter:
    """Return the counter behind one more event."""
    match recorded.data:
        case Refilled(amount=amount):
            return replace(counter, total=counter.total + amount)
        case Counted():
            return replace(counter, counts=counter.counts + 1)
        case _:
            return replace(counter, unknown=counter.unknown + 1)


# ── making it ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Story:
    """A run that is written as a story: each chapter is decided on the state that the earlier ones left."""

    def __init__(self, log: RunLog, run_id: str, clock: FakeClock) -> None:
        self.log = log
        self.clock = clock
        self.run = Run(run_id=run_id)

    async def tell(self, *events: RunEvent, actor: str = "os:1000") -> None:
        """Append events at exactly the version that the run is at."""
        expect = Expect.at(self.run.version)
        self.clock.advance(1.25)
        await self.log.append_reserved([Append(run_stream(self.run.run_id), events, expect)], actor=actor)
        for each in events:
            self.run = replace(evolve(self.run, each), version=self.run.version + 1)

    async def tell_outcome(self, outcome: Any, actor: str = "os:1000") -> None:
        """Append what a command decided, be it accepted, refused or replayed."""
        events = outcome.events if isinstance(outcome, decide.Accepted) else (outcome.event,)
        await self.tell(*events, actor=actor)

    async def start(self, output: str) -> None:
        """Record the proposal."""
        args = {"content": "Grüße\n", "mode": 420, "ratio": 0.5, "tags": ["a", None, True]}
        await self.tell_outcome(
            decide.start(self.run, propose("write_draft", args, output), "/home/agent"), actor="agent:7"
        )

    async def decide(self, decision: str, supplied_hash: str | None = None, reason: str | None = None) -> None:
        """Record a person's decision."""
        supplied_hash = self.run.proposal_hash or "" if supplied_hash is None else supplied_hash
        outcome = decide.record_decision(self.run, decision, supplied_hash, actor_source="cli", reason=reason)
        await self.tell_outcome(outcome, actor="person:3")

    async def begin(
        self, owner: Owner, *, takes_over: bool = False, is_stray: bool = False, key_until_us: int | None = None
    ) -> str:
        """Record the intent and return its key."""
        key = self.key("write_draft")
        deadline_us = self.clock.now_us() + 60_000_000
        claims = None
        if takes_over:
            claims = decide.claim(self.run, owner=owner, deadline_us=deadline_us, is_stray=is_stray)
        events = decide.begin_effect(
            self.run, op_key=key, owner=owner, deadline_us=deadline_us, key_until_us=key_until_us, claims=claims
        )
        await self.tell(*events)
        return key

    async def begin_undoing(self, owner: Owner, *, takes_over: bool = False, reason: str | None = None) -> str:
        """Record the intent to undo and return its key."""
        key = self.key("compensate:write_draft")
        deadline_us = self.clock.now_us() + 60_000_000
        claims = None
        if takes_over:
            claims = decide.claim(self.run, owner=owner, deadline_us=deadline_us, is_stray=False)
        events = decide.begin_compensation(
            self.run,
            "remove_draft",
            op_key=key,
            owner=owner,
            deadline_us=deadline_us,
            key_until_us=deadline_us + 1,
            claims=claims,
            reason=reason,
        )
        await self.tell(*events)
        return key

    async def settle(self, verdict: str, result: Any = None) -> None:
        """Record what a person found out."""
        evidence = "nachgesehen – im Ordner"
        outcome = decide.reconcile(self.run, verdict, evidence, actor_source="os", result=result)
        await self.tell_outcome(outcome, actor="person:3")

    def key(self, step: str) -> str:
        """Return the op_key of a step."""
        return op_key(self.log.store_id, self.run.run_id, step, self.run.approval_hash or "")


async def make(path: Path) -> dict[str, Any]:
    """Write the log with its fixed content to `path` and return what is read in it."""
    clock = FakeClock()
    async with eventlog.open(path, actor="service:stock", registry=Registry(), clock=clock) as log:
        await write_own_events(log, clock)
    async with eventlog.open(path, actor="service:stock", registry=GOLDEN_REGISTRY, clock=clock) as log:
        await write_completed_run(log, clock)
        await write_recovered_run(log, clock)
        await write_rejected_run(log, clock)
        await write_unknown_run(log, clock)
        await write_failed_run(log, clock)
        await write_settled_runs(log, clock)
        await write_compensated_run(log, clock)
        await write_run_that_cannot_be_undone(log, clock)
        await write_runs_on_terms(log, clock)
        await write_workflow_run(log, clock)
        await write_workflow_runs_that_stopped(log, clock)
        await log.append_reserved([Append("$log", [BarrierRecorded(reason="disk I/O error")], ANY)])
    await write_what_is_proved(path, GOLDEN_REGISTRY, clock)
    async with eventlog.open(path, registry=GOLDEN_REGISTRY) as log:
        facts = {"format": FORMAT_VERSION, "store_id": log.store_id.hex()}
        return {**facts, **await describe(log), "proof": await describe_proof(log)}


async def write_own_events(log: RunLog, clock: FakeClock) -> None:
    """Write a user's events: typed and plain, old and unknown, linked and not, of all kinds of text and numbers.

    The log knows none of their types: today's program would not write the old shape.
    """
    refilled = NewEvent("stock_refilled", msgspec.to_builtins(Refilled(5, "box")), schema_version=2)
    ordered = NewEvent("stock_ordered", {"sku": "é-7", "n": 10**30, "x": [0.1, -0.0, 1e300]}, correlation_id="case-1")
    await log.append("stock-7", [ordered, refilled], expect=Expect.no_stream())
    clock.advance(3600)
    old = NewEvent("stock_refilled", {"amount": 7}, causation_id=ordered.event_id)
    of_struct = Counted(datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), uuid.UUID(int=7), (1, 2, 3))
    counted = NewEvent("stock_counted", msgspec.to_builtins(of_struct) | {"shelves": [1, 2, 3]})
    await log.append("stock-7", [old, counted], expect=Expect.at(2), actor="agent:7", correlation_id="case-2")
    clock.set(clock.now_us() - 7_200_000_000)  # the clock jumps back; recorded times do not
    newer = NewEvent("stock_counted", {"shelves": "many"}, schema_version=9)
    await log.append_many(
        [
            Append("stock-7", [newer], Expect.exists()),
            Append("注文", [NewEvent("note_taken", "text\0\u2028\U0001f600"), NewEvent("note_taken", None)], ANY),
        ],
        checks=[("nothing", Expect.no_stream())],
    )


async def write_completed_run(log: RunLog, clock: FakeClock) -> None:
    """Write a run with refusals on the way, a conflict, a failure, and a replay behind its end."""
    story = Story(log, "run-completed", clock)
    await story.start("out/draft.txt")
    await story.tell_outcome(decide.resume(story.run, None))
    await story.decide("approve", "0" * 64)
    await story.decide("approve", reason="checked by hand")
    await story.decide("reject")
    await story.tell_outcome(decide.resume(story.run, "elsewhere.txt"))
    edited = decide.compare_view(story.run, {**decide.view_columns(story.run), "args": "{}"})
    await story.tell_outcome(edited)
    key = await story.begin(OWNERS[0])
    await story.tell(
        ActionConflict(
            action="write_draft",
            op_key=key,
            reason="output_conflict",
            expected_content_hash="e" * 64,
            existing_content_hash="f" * 64,
            expected_content="Grüße\n",
            existing_content="old\n",
        )
    )
    key = await story.begin(OWNERS[0])
    await story.tell(
        ActionFailed(action="write_draft", op_key=key, error=Failure(code="store_full", message="no space"))
    )
    key = await story.begin(OWNERS[0])
    await story.tell(ActionExecuted(action="write_draft", op_key=key, result={"bytes": 8}))
    await story.tell_outcome(decide.resume(story.run, None))


async def write_recovered_run(log: RunLog, clock: FakeClock) -> None:
    """Write a run whose first resumer died and whose second one found the effect done."""
    story = Story(log, "run-recovered", clock)
    await story.start("out/other.txt")
    await story.decide("approve")
    await story.begin(OWNERS[0])
    key = await story.begin(OWNERS[1], takes_over=True)
    found = {"content_hash": "e" * 64}
    await story.tell(ActionRecovered(action="write_draft", op_key=key, evidence=found, result={"bytes": 8}))


async def write_rejected_run(log: RunLog, clock: FakeClock) -> None:
    """Write a run that a person rejected."""
    story = Story(log, "run-rejected", clock)
    await story.start("out/third.txt")
    await story.decide("reject", reason="nein – not now")
    await story.tell_outcome(decide.resume(story.run, None))


async def write_unknown_run(log: RunLog, clock: FakeClock) -> None:
    """Write a run of which nobody can tell whether its effect happened, and one that still waits."""
    story = Story(log, "run-unknown", clock)
    await story.start("out/fourth.txt")
    await story.decide("approve")
    key = await story.begin(OWNERS[0])
    await story.tell(OutcomeUnknown(action="write_draft", op_key=key, why="the process died"))
    await Story(log, "run-waiting", clock).start("out/fifth.txt")


async def write_failed_run(log: RunLog, clock: FakeClock) -> None:
    """Write a run whose effect was refused for good, and which was resumed again."""
    story = Story(log, "run-failed", clock)
    await story.start("out/sixth.txt")
    await story.decide("approve")
    key = await story.begin(OWNERS[0], key_until_us=clock.now_us() + 86_400_000_000)
    failure = Failure(code="card_declined", message="the bank said no", details={"status": 402, "reasons": ["é", None]})
    await story.tell(ActionFailed(action="write_draft", op_key=key, error=failure, is_final=True))
    await story.tell_outcome(decide.resume(story.run, None))


async def write_settled_runs(log: RunLog, clock: FakeClock) -> None:
    """Write a run for each verdict; the one that was not executed was tried again, by a resumer that a late one met."""
    for verdict in decide.VERDICTS:
        story = Story(log, f"run-settled-{verdict}", clock)
        await story.start(f"out/{verdict}.txt")
        await story.decide("approve")
        key = await story.begin(OWNERS[0])
        await story.tell_outcome(decide.reconcile(story.run, verdict, "too early", actor_source="os"))
        await story.tell(OutcomeUnknown(action="write_draft", op_key=key, why="the process died"))
        await story.settle(verdict, {"bytes": 8} if verdict == "executed" else None)
        if verdict == "not_executed":
            await story.begin(OWNERS[0])
            await story.begin(OWNERS[1], takes_over=True, is_stray=True)
            late = ResultRejected(
                reason="claim_lost",
                rejected="action_executed",
                op_key=key,
                epoch=0,
                attempt=2,
                result={"result": {"bytes": 8}},
            )
            await story.tell(late)


async def write_compensated_run(log: RunLog, clock: FakeClock) -> None:
    """Write a run that was undone at the third attempt: one failed, one died, one found it undone."""
    story = Story(log, "run-compensated", clock)
    await story.start("out/seventh.txt")
    await story.tell_outcome(decide.compensate(story.run, "remove_draft"))
    await story.decide("approve")
    key = await story.begin(OWNERS[0])
    await story.tell(ActionExecuted(action="write_draft", op_key=key, result={"bytes": 8}))
    undo = await story.begin_undoing(OWNERS[0], reason="zweimal bestellt")
    failure = Failure(code="action_failed", message="the file is open")
    await story.tell(CompensationFailed(action="remove_draft", op_key=undo, compensates=key, error=failure))
    await story.begin_undoing(OWNERS[0])
    await story.begin_undoing(OWNERS[1], takes_over=True)
    undone = CompensationExecuted(
        action="remove_draft", op_key=undo, compensates=key, result={"removed": True}, evidence={"found": None}
    )
    await story.tell(undone)


async def write_run_that_cannot_be_undone(log: RunLog, clock: FakeClock) -> None:
    """Write a run whose undoing was unknown, was settled as not done, and then failed for good."""
    story = Story(log, "run-not-undone", clock)
    await story.start("out/eighth.txt")
    await story.decide("approve")
    key = await story.begin(OWNERS[0])
    await story.tell(ActionExecuted(action="write_draft", op_key=key))
    undo = await story.begin_undoing(OWNERS[0])
    await story.tell(OutcomeUnknown(action="remove_draft", op_key=undo, why="the process died"))
    await story.settle("not_executed")
    await story.begin_undoing(OWNERS[0])
    failure = Failure(code="action_failed", message="it is printed")
    await story.tell(
        CompensationFailed(action="remove_draft", op_key=undo, compensates=key, error=failure, is_final=True)
    )


async def write_runs_on_terms(log: RunLog, clock: FakeClock) -> None:
    """Write a run that two people had to approve and one took back, one that expired, and one that was cancelled."""
    terms = decide.Terms(
        policy=PolicyTerms(required=2, roles=("ops",), separation_of_duties=True),
        expires_at_us=clock.now_us() + 3_600_000_000,
    )
    for run_id in ("run-on-terms", "run-expired", "run-cancelled"):
        story = Story(log, run_id, clock)
        proposal = propose("write_draft", {"content": "Grüße\n"}, f"out/{run_id}.txt")
        await story.tell_outcome(decide.start(story.run, proposal, "/home/agent", terms), actor="agent:7")
        voted = decide.record_decision(
            story.run, "approve", proposal.hash, actor_source="asserted", actor="person:3", roles=("ops",)
        )
        await story.tell_outcome(voted, actor="person:3")
        match run_id:
            case "run-on-terms":
                await story.tell_outcome(decide.revoke(story.run, actor_source="os", reason="zu früh"))
                edited = propose("write_draft", {"content": "Gruß\n"}, f"out/{run_id}.txt")
                await story.tell_outcome(decide.edit(story.run, edited, terms, actor_source="os", reason="kürzer"))
            case "run-expired":
                expired = decide.expire(story.run, clock.now_us() + 7_200_000_000)
                assert expired is not None
                await story.tell_outcome(expired)
            case "run-cancelled":
                await story.tell_outcome(decide.cancel(story.run, actor_source="asserted", reason="nicht mehr"))


class Workflow(Story):
    """A workflow run that is written as a story; a child begins in the append of its parent."""

    async def tell(self, *events: RunEvent, actor: str = "os:1000", child: Workflow | None = None) -> None:
        """Append events at exactly the version that the run is at, and fold them."""
        self.clock.advance(1.25)
        appends = [Append(run_stream(self.run.run_id), events, Expect.at(self.run.version))]
        if child is not None:
            appends.append(Append(run_stream(child.run.run_id), [child.beginning], Expect.no_stream()))
        root = self.run.root_run_id or self.run.run_id
        results = await self.log.append_reserved(appends, actor=actor, correlation_id=root)
        at_us = results[0].recorded_at_us
        self._fold(events, at_us, actor)
        if child is not None:
            child._fold([child.beginning], at_us, actor)

    def _fold(self, events: Sequence[RunEvent], at_us: int, actor: str) -> None:
        for each in events:
            self.run = advance(self.run, each, version=self.run.version + 1, at_us=at_us, actor=actor)

    beginning: CheckpointSaved

    async def begin_run(self, parent: Parent | None = None, *, arguments: bytes = b'["INC-7",3]') -> None:
        """Record the run, unless its parent does, and claim it."""
        definition = Definition(
            workflow="fix_incident", fingerprint="f" * 64, version="2", steps=("search", "send", "ask")
        )
        self.beginning = CheckpointSaved(
            status=Status.RUNNING,
            state_version=1,
            definition=definition,
            input=msgspec.Raw(arguments),
            parent=parent,
        )
        if parent is None:
            await self.tell(self.beginning)
            await self.claim()

    async def claim(self, owner: Owner = OWNERS[0]) -> None:
        """Let a process take the run."""
        deadline_us = self.clock.now_us() + 60_000_000
        await self.tell(RunClaimed(epoch=self.run.version + 1, owner=owner, deadline_us=deadline_us))

    async def pause(self, *waits: Waiting, committed: tuple[str, ...] = ()) -> None:
        """Give the run free until something comes."""
        wanted = {"approval": Status.WAITING_FOR_USER, "outcome": Status.OUTCOME_UNKNOWN}
        paused = CheckpointSaved(
            status=wanted.get(waits[0].type, Status.WAITING),
            state_version=self.run.state_version + 1,
            waiting=waits[0],
            also_waiting=waits[1:],
            committed=committed,
        )
        await self.tell(paused)

    async def say(self, step: str, make: Callable[[Run], Any], actor: str = "person:3") -> None:
        """Append what was decided on one request."""
        request = request_of(self.run, step) or replace(self.run, step=step, progress=None)
        outcome = make(request)
        events = outcome.events if isinstance(outcome, decide.Accepted) else (outcome,)
        await self.tell(*of_step(request, events), actor=actor)


async def write_workflow_run(log: RunLog, clock: FakeClock) -> None:
    """Write a workflow run with everything that one can go through, and the child that it waited for."""
    story = Workflow(log, "flow-completed", clock)
    await story.begin_run()
    problem = Failure(code="step_failed", message="no answer", type="TimeoutError", traceback="Traceback …")
    again_at_us = clock.now_us() + 2_000_000
    await story.tell(StepStarted(name="search", key="search", attempt=1))
    failed = StepFailed(
        name="search", key="search", attempt=1, error=problem, is_final=False, retry_at_us=again_at_us, input="i" * 64
    )
    await story.tell(failed)
    await story.tell(StepStarted(name="search", key="search", attempt=2))
    found = msgspec.Raw('{"Zeilen":["é",null,0.5]}'.encode())
    await story.tell(StepCompleted(name="search", key="search", output=found, attempt=2, input="i" * 64))
    await story.tell(TimerSet(key="sleep", due_us=clock.now_us() + 5_000_000))
    await story.pause(Waiting(type="timer", node_id="sleep", due_us=clock.now_us() + 5_000_000))
    await story.claim(OWNERS[1])
    await story.tell(TimerFired(key="sleep"))
    await _write_group(story)
    await story.tell(SignalReceived(name="go", payload=msgspec.Raw(b"[1,2]")), actor="person:4")
    await story.tell(StepCompleted(name="go", key="go:signal", kind="signal"))
    await _write_child(story)
    await story.tell(RunCompleted(result=msgspec.Raw(b'{"applied":true}')))


async def _write_group(story: Workflow) -> None:
    """Write a sibling that is done at once, one by reference, and an effect that two people approve."""
    output = msgspec.Raw(b'"p-9"')
    await story.tell(StepCompleted(name="prepare", key="prepare", output=output, group="gather"))
    await story.tell(StepCompleted(name="prepare", key="prepare#2", artifact="a" * 64, group="gather"))
    proposal = propose("send", {"patch": "p-9"}, "repo:main")
    terms = decide.Terms(policy=PolicyTerms(required=2), expires_at_us=story.clock.now_us() + 3_600_000_000)
    request_id = f"approval:{story.run.run_id}:send"
    asked = decide.Accepted(decide.ask(request_id, proposal, "/home/agent", terms, group="gather"))
    await story.say("send", lambda _: asked, actor="agent:7")
    await story.pause(Waiting(type="approval", node_id="send", approval_id=request_id))
    edited = propose("send", {"patch": "p-10"}, "repo:main")
    await story.say("send", lambda run: decide.edit(run, edited, terms, actor_source="asserted", reason="neuer"))
    for person in ("person:3", "person:4"):
        await story.say(
            "send",
            lambda run, person=person: decide.record_decision(  # type: ignore[misc]
                run, "approve", edited.hash, actor_source="asserted", actor=person
            ),
            person,
        )
    await story.claim()
    key = op_key(story.log.store_id, story.run.run_id, "send", edited.hash)
    deadline_us = story.clock.now_us() + 60_000_000

    def begun(run: Run) -> decide.Accepted:
        events = decide.begin_effect(
            run, op_key=key, owner=OWNERS[0], deadline_us=deadline_us, key_until_us=None, claims=None
        )
        return decide.Accepted(tuple(events))

    await story.say("send", begun)
    await story.tell(ClaimRenewed(epoch=story.run.epoch, deadline_us=story.clock.now_us() + 60_000_000))
    await story.say("send", lambda _: ActionExecuted(action="send", op_key=key, result={"applied": "p-10"}))
    committed = CheckpointSaved(
        status=Status.RUNNING,
        state_version=story.run.state_version + 1,
        committed=("prepare", "prepare#2", "send"),
    )
    await story.tell(committed)


async def _write_child(story: Workflow) -> None:
    """Write a child that failed, and a run that was handed over to."""
    child = Workflow(story.log, "flow-completed/ask", story.clock)
    parent = Parent(run_id=story.run.run_id, step="ask", root_run_id=story.run.run_id)
    await child.begin_run(parent, arguments=b"[]")
    started = ChildStarted(key="ask", child_run_id=child.run.run_id, workflow="fix_incident", input="i" * 64)
    await story.tell(started, child=child)
    await story.pause(Waiting(type="child", node_id="ask", child_run_id=child.run.run_id))
    await child.claim()
    error = Failure(code="workflow_failed", message="niemand da", type="LookupError")
    await child.tell(RunFailed(error=error))
    await story.tell(ChildFinished(key="ask", child_run_id=child.run.run_id, status=Status.FAILED, error=error))
    await story.claim()
    next_run = Workflow(story.log, "flow-next", story.clock)
    handed = Parent(run_id=story.run.run_id, step="ask#2", root_run_id=story.run.run_id, relation="handoff")
    await next_run.begin_run(handed, arguments=b"[]")
    to_next = ChildStarted(key="ask#2", child_run_id="flow-next", workflow="fix_incident", relation="handoff")
    await story.tell(to_next, child=next_run)
    await story.tell(CheckpointSaved(status=Status.RUNNING, state_version=story.run.state_version, committed=("ask",)))


async def write_workflow_runs_that_stopped(log: RunLog, clock: FakeClock) -> None:
    """Write workflow runs that wait for all kinds of things, were given free, rejected or cancelled."""
    story = Workflow(log, "flow-waiting", clock)
    await story.begin_run()
    waits = (
        Waiting(type="signal", node_id="go:signal", signal="go", due_us=clock.now_us() + 9_000_000),
        Waiting(type="retry", node_id="search", due_us=clock.now_us() + 2_000_000),
    )
    await story.pause(*waits)
    await story.tell(SignalReceived(name="go", payload=msgspec.Raw(b'"soon"')), actor="person:4")
    await story.claim()
    await story.tell(SignalRejected(name="go", key="go:signal", reason="Expected `int`, got `str`"))
    await story.pause(*waits)
    story = Workflow(log, "flow-free", clock)
    await story.begin_run()
    await story.tell(CheckpointSaved(status=Status.RUNNING, state_version=1, is_released=True, snapshot_hash="a" * 64))
    story = Workflow(log, "flow-rejected", clock)
    await story.begin_run()
    proposal = propose("send", {}, "repo:main")
    unruled = decide.Terms(rule_failed="the rule small raised KeyError")
    asked = decide.Accepted(decide.ask("approval:flow-rejected:send", proposal, terms=unruled))
    await story.say("send", lambda _: asked)
    await story.pause(Waiting(type="approval", node_id="send", approval_id="approval:flow-rejected:send"))
    await story.say("send", lambda run: decide.record_decision(run, "reject", proposal.hash, actor_source="os"))
    await story.claim()
    refused = Failure(code="approval_rejected", message="nein")
    await story.tell(RunFailed(error=refused, status=Status.REJECTED))
    story = Workflow(log, "flow-cancelled", clock)
    await story.begin_run()
    await story.tell(RunCancelled(actor_source="os", reason="zu spät"))


# ── reading it ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def describe(log: EventReader) -> dict[str, Any]:
    """Return what a log holds as plain data: its events, and what its streams add up to."""
    events = [recorded async for recorded in log.read_all()]
    head = await log.head()
    counter, version = await eventlog.fold(log, "stock-7", Counter, count)
    runs = {}
    for stream in dict.fromkeys(each.stream for each in events if each.stream.startswith("run:")):
        run_id = stream.removeprefix("run:")
        run = fold_stream(run_id, (await log.read_stream(stream)).events)
        runs[run_id] = json.loads(msgspec.json.encode(run))
    return {
        "head": [head.position, head.leaf.hex()],
        "events": [_event(each) for each in events],
        "stock": {"version": version, **msgspec.to_builtins(counter)},
        "runs": runs,
    }


def _event(recorded: RecordedEvent) -> dict[str, Any]:
    return {
        "position": recorded.position,
        "stream": recorded.stream,
        "version": recorded.version,
        "type": recorded.type,
        "schema_version": recorded.schema_version,
        "event_id": recorded.event_id.hex(),
        "recorded_at_us": recorded.recorded_at_us,
        "actor": recorded.actor,
        "correlation_id": recorded.correlation_id,
        "causation_id": recorded.causation_id.hex() if recorded.causation_id is not None else None,
        "body": recorded.body.decode(),
        "is_known": recorded.is_known,
        "leaf": recorded.leaf.hex(),
        "prev_in_stream": recorded.prev_in_stream.hex(),
    }


def main() -> int:
    """Make the golden files of the current format, unless they are there."""
    database, expected = (GOLDEN / f"v{FORMAT_VERSION}{ending}" for ending in (".db", ".json"))
    for path in (database, expected):
        if path.exists():
            print(f"{path} is there already; a golden file is never made again.", file=sys.stderr)
            return 1
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "log.db"
        description = asyncio.run(make(made))
        assert not made.with_name("log.db-wal").exists(), "a closed log is one file"
        GOLDEN.mkdir(exist_ok=True)
        shutil.copyfile(made, database)
    text = json.dumps(description, indent=1, ensure_ascii=False, sort_keys=True)
    expected.write_text(text + "\n", encoding="utf-8")
    print(f"made {database} and {expected}: {len(description['events'])} events")
    return 0


if __name__ == "__main__":
    sys.exit(main())
