"""One life of a workflow: from the start of a process, or of what stands for one, to its end or its crash.

The life's log is an ordinary one in a file that counts its appends and dies right behind the one that it was told. Its
workflows, steps and actions are the caller's own, each with somebody watching who writes what happens into the ledger.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from eventlog.errors import Refused
from eventlog.events import RUN_PREFIX, CheckpointSaved, RunFailed, Waiting
from eventlog.log import Append, AppendResult, Expect
from eventlog.progress import ENDED, Progress, request_of
from eventlog.run import Run, Status
from eventlog.runtime.attempts import AnyAction
from eventlog.runtime.definitions import Workflow
from eventlog.runtime.effects import Call, Executed, Promise, Report
from eventlog.runtime.failpoints import Reach, pass_by
from eventlog.runtime.operations.children import hand_off, run_child
from eventlog.runtime.operations.steps import run_step
from eventlog.runtime.policies import Policy
from eventlog.runtime.runner import Runner
from eventlog.stores.sqlite import SqliteLog
from eventlog.testing.clock import FakeClock
from eventlog.testing.ledger import Ledger, answers
from eventlog.testing.twin import Question, Twin
from eventlog.values import returns

__all__ = ["ROOT_RUN", "Ending", "Scenario", "Script", "World", "live"]

ROOT_RUN: Final = "run-1"
"""The id of the run that a scenario starts."""

_MAX_ROUNDS: Final = 10_000
_MAX_CANCELS: Final = 1_000


class Answering(Protocol):
    """The outside world: does what `wait` of this run waits for; again after a crash, unless that is in the log."""

    def __call__(self, world: World, run: Run, wait: Waiting) -> Awaitable[None]: ...


@dataclass(frozen=True, kw_only=True)
class Script:
    """The outside world as a table.

    `signals` are the payloads by the signal's name, `decisions` by the action's name: `approve`, which is what is done
    where none is named, or `reject`. As many of `people` decide as are wanted, bringing all of `roles`. Times are
    waited for, and so are the time-outs of signals that are not in the table. Of an effect of which the engine does not
    know, what really became of it is told.
    """

    signals: Mapping[str, Any] = field(default_factory=dict)
    decisions: Mapping[str, str] = field(default_factory=dict)
    people: Sequence[str] = ("anna", "bert", "cleo", "dora", "emil")
    roles: Sequence[str] = ()

    async def __call__(self, world: World, run: Run, wait: Waiting) -> None:
        """Do what the run waits for."""
        match wait.type:
            case "timer" | "retry":
                assert wait.due_us is not None, "a time has a time"
                world.clock.advance_to(wait.due_us)
            case "signal" if wait.signal not in self.signals and wait.due_us is not None:
                world.clock.advance_to(wait.due_us)
            case "signal":
                await self._signal(world, run, wait.signal or "")
            case "approval":
                await self._decide(world, run, wait.node_id)
            case "outcome":
                await world.tell_outcome(run, wait.node_id)

    async def _signal(self, world: World, run: Run, name: str) -> None:
        if name not in self.signals:
            raise AssertionError(
                f"run {run.run_id!r} waits for the signal {name!r}, and the script has none: signals={{…}}"
            )
        await world.runner.signal(run.run_id, name, self.signals[name])

    async def _decide(self, world: World, run: Run, key: str) -> None:
        for person in self.people:
            run = await world.runner.state(run.run_id)
            request = request_of(run, key)
            assert request is not None and request.proposal is not None, "it was asked"
            if request.status is not Status.WAITING_FOR_USER:
                return
            if any(vote.actor == person for vote in request.votes):
                continue
            decision = self.decisions.get(request.proposal.action, "approve")
            decide = world.runner.reject if decision == "reject" else world.runner.approve
            await decide(run.run_id, request.proposal.hash, request=request.request_id, actor=person, roles=self.roles)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What is run, and in what world. `actions`, `workflows` (children too) and `policies` as for a `Runner`.

    `receipts` returns what the receivers of the effects show in the end, one entry for each effect that they have seen:
    none may be there twice. `varies` names steps, actions and workflows that give or take other values in another
    history that is right, too, because chance from outside or the time goes into them. A run that FAILED is resumed up
    to `resumes` times, as by somebody who has cleared the cause.
    """

    workflow: Workflow
    args: Sequence[Any] = ()
    actions: Sequence[AnyAction] = ()
    workflows: Sequence[Workflow] = ()
    policies: Mapping[str, Policy] = field(default_factory=dict)
    script: Answering = field(default_factory=Script)
    receipts: Callable[[], Sequence[Any]] | None = None
    varies: Sequence[str] = ()
    resumes: int = 0


class Ending(msgspec.Struct, kw_only=True):
    """How a life ended."""

    has_died: bool = False
    appends: int = 0
    error: str | None = None
    receipts: list[str] = []


class World:
    """What a script acts on."""

    def __init__(self, runner: Runner, clock: FakeClock, ledger: Ledger) -> None:
        self.runner: Final = runner
        self.clock: Final = clock
        self._ledger: Final = ledger

    async def moment(self) -> tuple[int, int]:
        """Return what changes whenever anything happens: the end of the log, and the time."""
        return (await self.runner.log.head()).position, self.clock.now_us()

    async def tell_outcome(self, run: Run, key: str) -> None:
        """Reconcile an effect of which nobody knows, as somebody does who went and looked."""
        request = request_of(run, key)
        assert request is not None, "it was asked"
        seen = self._ledger.effect(request.op_key or "")
        verdict = "executed" if seen is not None else "not_executed"
        result = seen.result if seen is not None else None
        await self.runner.reconcile(
            run.run_id,
            verdict,
            evidence="the ledger of the test",
            result=result,
            request=request.request_id,
            at_version=run.version,
        )


async def live(
    scenario: Scenario, place: Path, life: int, die_at: int | None, *, is_process: bool, reach: Reach = pass_by
) -> Ending:
    """Drive the scenario on in the log of `place` until all its runs have ended, or until its append number `die_at`.

    It dies as soon as that is durable; if the number is negative, in front of that append, which then is lost with all
    that was done since the one before. A process is killed there. Otherwise everything that is at work is cancelled,
    and nothing of it reaches the log any more. The clock stands where the log ends. `reach` may end a process as well.
    """
    clock = FakeClock()
    ledger = Ledger(place / "ledger.jsonl", life)
    log = _MortalLog(str(place / "log.db"), clock, ledger, die_at, is_process=is_process)
    try:
        async with log:
            await _set(clock, log)
            living = asyncio.create_task(_drive(scenario, log, clock, ledger, reach))
            dying = asyncio.create_task(log.death.wait())
            await asyncio.wait([living, dying], return_when=asyncio.FIRST_COMPLETED)
            has_died = log.death.is_set()
            if not has_died:
                dying.cancel()
                await living
            await _end_everything()
    finally:
        ledger.close()
    receipts = [] if scenario.receipts is None else [repr(each) for each in scenario.receipts()]
    return Ending(has_died=has_died, appends=log.appends, receipts=receipts)


async def _set(clock: FakeClock, log: SqliteLog) -> None:
    head = (await log.head()).position
    if head:
        async for event in log.read_all(after=head - 1):
            clock.advance_to(event.recorded_at_us)


async def _end_everything() -> None:
    """Cancel all other tasks of the loop, again and again, as no process lives on because it would like to."""
    here = asyncio.current_task()
    for _ in range(_MAX_CANCELS):
        left = [task for task in asyncio.all_tasks() if task is not here]
        if not left:
            return
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=0.005)
    raise AssertionError("a task of the workflow does not end when it is cancelled")


# ── driving ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _drive(scenario: Scenario, log: SqliteLog, clock: FakeClock, ledger: Ledger, reach: Reach) -> None:
    watch = _Watch(ledger)
    for workflow in (scenario.workflow, *scenario.workflows):
        watch.add(workflow)
    runner = Runner(
        log,
        workflows=watch.twins.values(),
        actions=[_watched_action(action, ledger) for action in scenario.actions],
        policies=scenario.policies,
        clock=clock,
        patience_s=0,
        folder="/",
        reach=reach,
    )
    world = World(runner, clock, ledger)
    if not await _run_ids(runner):
        await runner.start(watch.twins[scenario.workflow.name], ROOT_RUN, *scenario.args)
    await _drive_run(world, scenario, ROOT_RUN)
    for run_id in await _run_ids(runner):
        await _drive_run(world, scenario, run_id)  # those that the work was handed off to


async def _run_ids(runner: Runner) -> list[str]:
    return [
        event.stream.removeprefix(RUN_PREFIX)
        async for event in runner.log.read_all(types=["checkpoint_saved"], stream_prefix=RUN_PREFIX)
        if isinstance(event.data, CheckpointSaved) and event.data.definition is not None
    ]


async def _drive_run(world: World, scenario: Scenario, run_id: str) -> None:
    for _ in range(_MAX_ROUNDS):
        run = await world.runner.state(run_id)
        if run.status is Status.FAILED and run_id == ROOT_RUN:
            failures = [event for event in await world.runner.trace(run_id) if isinstance(event.data, RunFailed)]
            if len(failures) > scenario.resumes:
                return
        elif run.status in ENDED:
            return
        before = await world.moment()
        await _answer(world, scenario.script, run)
        if (await world.runner.state(run_id)).status in ENDED and run.status not in ENDED:
            continue
        answered = await world.moment()
        try:
            await world.runner.resume(run_id)
        except Refused as error:
            if error.code not in ("approval_required", "outcome_unknown"):
                raise
            if answered == before:
                raise AssertionError(f"the script leaves run {run_id!r} waiting: {error}") from error
        if await world.moment() == before:
            raise AssertionError(
                f"run {run_id!r} does not go on, and the script does nothing: it waits for {run.waiting}"
            )
    raise AssertionError(f"run {run_id!r} is still {run.status.value} after {_MAX_ROUNDS} rounds")


async def _answer(world: World, script: Answering, run: Run) -> None:
    """Let the outside world do what the run waits for, and the runs that it waits for."""
    progress: Progress | None = run.progress
    assert progress is not None, "only workflow runs are driven here"
    if progress.is_ready:
        return
    for wait in progress.waits:
        if wait.type != "child":
            await script(world, run, wait)
            continue
        child = await world.runner.state(wait.child_run_id or "")
        if child.status not in ENDED:
            await _answer(world, script, child)


# ── dying ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class _MortalLog(SqliteLog):
    """A log that writes its appends into the ledger, one after the other, and lets nothing return from its last one."""

    def __init__(self, path: str, clock: FakeClock, ledger: Ledger, die_at: int | None, *, is_process: bool) -> None:
        # Not to lose anything with its process is all that it is asked for here, so it need not wait for the disk.
        super().__init__(path, actor="crash-test", clock=clock, durability="normal")
        self._ledger: Final = ledger
        self._die_at: Final = die_at
        self._is_process: Final = is_process
        self._turn: Final = asyncio.Lock()
        self.appends = 0
        self.death: Final = asyncio.Event()

    async def append_many(self, appends: Sequence[Append], **options: Any) -> list[AppendResult]:
        """Append to several streams."""
        return await self._count(lambda: super(_MortalLog, self).append_many(appends, **options), appends)

    async def append_reserved(self, appends: Sequence[Append], **options: Any) -> list[AppendResult]:
        """Append to several streams, reserved ones too."""
        return await self._count(lambda: super(_MortalLog, self).append_reserved(appends, **options), appends)

    async def append_with(
        self,
        stream: str,
        type: str,
        make: Callable[[Any], Any],
        *,
        expect: Expect,
        actor: str | None = None,
        correlation_id: str | None = None,
        event_id: bytes | None = None,
    ) -> AppendResult:
        """Append the event that `make(connection)` returns."""
        made: list[Any] = []

        def keep(connection: Any) -> Any:
            made[:] = [make(connection)]
            return made[0]

        async def append() -> list[AppendResult]:
            return [
                await super(_MortalLog, self).append_with(
                    stream, type, keep, expect=expect, actor=actor, correlation_id=correlation_id, event_id=event_id
                )
            ]

        return (await self._count(append, [Append(stream, made, expect)]))[0]

    async def _count(
        self, append: Callable[[], Awaitable[list[AppendResult]]], appends: Sequence[Append]
    ) -> list[AppendResult]:
        async with self._turn:
            if self.death.is_set():
                raise asyncio.CancelledError
            if self._die_at == -(self.appends + 1):
                await self._die()
            results = await append()
            self.appends += 1
            answered = [
                answer
                for each in appends
                for answer in answers(
                    (getattr(event, "data", event) for event in each.events), each.stream.removeprefix(RUN_PREFIX)
                )
            ]
            self._ledger.note("appended", answered=answered)
            if self.appends == self._die_at:
                await self._die()
        return results

    async def _die(self) -> None:
        if self._is_process:
            os.kill(os.getpid(), signal.SIGKILL)
        self.death.set()
        await asyncio.get_running_loop().create_future()  # nothing behind this happens


# ── watching ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Watch:
    """Writes down what a workflow's steps do, and what it is told. `twins` are the workflows that are watched."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger: Final = ledger
        self.twins: Final[dict[str, Twin]] = {}

    def add(self, workflow: Workflow) -> None:
        self.twins[workflow.name] = Twin(workflow, self._answer)

    def _answer(self, question: Question) -> Coroutine[Any, Any, Any]:
        first, *rest = question.args
        if question.operation is run_step:
            first = self._watched(first, question)
        elif question.operation in (run_child, hand_off):
            first = self.twins.get(first.name, first)
        return self._delivered(question.pass_on(first, *rest), question)

    async def _delivered(self, answer: Coroutine[Any, Any, Any], question: Question) -> Any:
        value = await answer
        self._ledger.note("delivered", run=question.run_id, key=question.key)
        return value

    def _watched(self, function: Callable[..., Any], question: Question) -> Callable[..., Any]:
        def note(what: str) -> None:
            self._ledger.note(what, run=question.run_id, key=question.key)

        async def finish(awaitable: Awaitable[Any]) -> Any:
            value = await awaitable
            note("returned")
            return value

        def watched(*args: Any) -> Any:
            note("called")
            value = function(*args)
            if inspect.isawaitable(value):
                return finish(value)
            note("returned")
            return value

        watched.__annotations__ = {"return": returns(function)}  # by which the output is stored
        return watched


def _watched_action(action: AnyAction, ledger: Ledger) -> AnyAction:
    """Return a copy of the action that writes down each effect. One that writes in the log's own database is no effect
    of its own: it is there with its event or not at all.
    """
    if Promise(action.promise) is Promise.TRANSACTIONAL:
        return action
    execute: Callable[[Call], Awaitable[Report]] = action.execute  # type: ignore[union-attr]

    async def watched(call: Call) -> Report:
        report = await execute(call)
        if isinstance(report, Executed):
            ledger.note(
                "effect",
                run=call.run_id,
                key=call.action,
                op_key=call.op_key,
                may_repeat=Promise(action.promise) is Promise.KEYED,
                result=_plain(report.result),
            )
        return report

    twin = copy.copy(action)
    object.__setattr__(twin, "execute", watched)
    return twin


def _plain(value: Any) -> Any:
    try:
        return msgspec.json.decode(msgspec.json.encode(value))
    except (TypeError, ValueError, msgspec.MsgspecError):
        return None
