"""Commands on workflow runs: start, resume, signal, cancel; and who may drive a run.

A run is driven under a claim, an ordinary event at the version that was read: of two who resume it one wins, and the
other has done nothing. A claim ends with the pause or the end of the run. One whose holder died, or went silent beyond
its lease, is fenced by the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from eventlog.decide import Accepted, Refusal, cancel, check_run_id, refuse_resume, refuse_transition, require_run
from eventlog.errors import InvalidInput, Refused, RunConflict, WrongExpectedVersion
from eventlog.events import (
    Owner,
    RunClaimed,
    RunEvent,
    SignalReceived,
    Status,
    Waiting,
    run_stream,
)
from eventlog.log import Append, Expect
from eventlog.progress import ENDED, Progress, request_of
from eventlog.run import Run
from eventlog.runtime.attempts import Attempts, logged
from eventlog.runtime.beginnings import first_checkpoint
from eventlog.runtime.claims import Holder, forget, is_proved_dead
from eventlog.runtime.context import RunContext
from eventlog.runtime.definitions import Workflow, mismatch
from eventlog.runtime.drive import Drive
from eventlog.runtime.effect_events import Doing
from eventlog.runtime.endings import notices
from eventlog.runtime.people import actor_source
from eventlog.runtime.recent import Recent
from eventlog.runtime.run_streams import MAX_REDECISIONS, RunStreams, new_event
from eventlog.runtime.session import Session
from eventlog.runtime.tools import Tools
from eventlog.stores.telemetry import logger
from eventlog.times import time_text
from eventlog.values import codec_for

__all__ = ["Workflows", "by_name"]

_MICRO: Final = 1_000_000


class Workflows:
    """The workflow runs of one log, as this program can drive them. `attempts` says what can be asked of an effect."""

    def __init__(self, streams: RunStreams, tools: Tools, attempts: Attempts) -> None:
        self._streams: Final = streams
        self._tools: Final = tools
        self._attempts: Final = attempts
        self._holder: Final = Holder(tools.log.place)
        self._signalled: Final = Recent(streams)
        self._drives: Final[dict[str, Drive]] = {}
        self.is_told = False
        """Whether somebody tells this of what others do to its runs, so that it need not look itself."""

    # ── starting ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def submit(
        self, workflow: Workflow, run_id: str, args: Sequence[Any], actor: str | None, subject: str | None = None
    ) -> Run:
        """Record the run; whoever resumes it, or a worker, drives it. Raises Refused(`run_exists`), InvalidInput."""
        return await self._record(workflow, run_id, args, actor, None, subject)

    async def start(
        self, workflow: Workflow, run_id: str, args: Sequence[Any], actor: str | None, subject: str | None = None
    ) -> Run:
        """Record the run and drive it until it ends or pauses."""
        owner = self._holder.claim()
        try:
            run = await self._record(workflow, run_id, args, actor, owner, subject)
        except BaseException as error:
            self._holder.release(owner, is_settled=isinstance(error, Refused | InvalidInput))
            raise
        return await self._drive(workflow, run, owner, actor)

    async def _record(
        self,
        workflow: Workflow,
        run_id: str,
        args: Sequence[Any],
        actor: str | None,
        owner: Owner | None,
        subject: str | None,
    ) -> Run:
        self._require_registered(workflow)
        run = Run(run_id=check_run_id(run_id), root_run_id=run_id)
        stored = await self._tools.keep(workflow.encode_input(args), run_id, is_sealed=subject is not None)
        events: list[RunEvent] = [first_checkpoint(workflow, stored)]
        if owner is not None:
            events.append(RunClaimed(epoch=2, owner=owner, deadline_us=self._deadline_us(run)))
        try:
            return await self._streams.append_first(run, events, actor, subject=subject)
        except WrongExpectedVersion:
            message = f"the run {run_id!r} exists already"
            raise Refused("run_exists", message, subject=run_id, run_id=run_id) from None

    def _require_registered(self, workflow: object) -> None:
        if not isinstance(workflow, Workflow):
            message = f"a run follows a workflow made by `@eventlog.workflow`, not {workflow!r:.80}"
            raise InvalidInput("invalid_argument", message)
        if self._tools.workflows.get(workflow.name) is not workflow:
            message = f"the workflow {workflow.name!r} is not registered: Runner(log, workflows=[{workflow.name}, …])"
            raise InvalidInput("invalid_argument", message)

    # ── resuming ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def resume(self, run_id: str, actor: str | None, read: Run | None = None) -> tuple[Run, str | None]:
        """Drive the run on until it ends or pauses; return it, and `already_completed` if it had ended before.

        A run that waits for a time, a signal or another run that has not come is returned as it is. Raises Refused, and
        says so in the log, for one that waits for people, is cancelled or was rejected, or cannot be driven here.
        `read` is the run if it was read just now.
        """
        for _ in range(MAX_REDECISIONS):
            run, read = read if read is not None else await self._streams.load(run_id), None
            require_run(run)
            if run.status is Status.COMPLETED:
                if await self._streams.has_replayed(run, "already_completed", actor):
                    return await self._streams.load(run_id), "already_completed"
                continue
            refusal = self._refusal(run)
            if refusal is None and not await self._can_go_on(run):
                refusal = self._still_waiting(run)
                if refusal is None:
                    return run, None
            if refusal is not None:
                if await self._streams.has_appended(run, (refusal.event,), actor):
                    raise logged(refusal.error)
                continue
            driven = await self._claim_and_drive(run, actor)
            if driven is not None:
                return driven, None
        raise RunConflict(run_id, "it changes faster than it can be claimed")

    async def advance(self, run_id: str, *, again: bool = False) -> Run | None:
        """Drive the run if it can go on and nobody drives it; None if not, or if it has moved meanwhile.

        Raises RunConflict if somebody drives it, and what refuses it, which is in its log. With `again` one that has
        FAILED is taken up again.
        """
        run = await self._streams.load(run_id)
        is_failed = run.status is Status.FAILED
        if run.progress is None or (run.status in ENDED and not (again and is_failed)):
            return None
        if not is_failed and not await self._can_go_on(run):
            return None
        refusal = self._refusal(run)
        if refusal is not None:
            if not await self._streams.has_appended(run, (refusal.event,), None):
                return None
            raise logged(refusal.error)
        return await self._claim_and_drive(run, self._tools.actor)

    def notify(self, run_id: str) -> None:
        """Let the drive of this run, if it is here, see what others have done to it."""
        drive = self._drives.get(run_id)
        if drive is not None:
            drive.look_at_log()

    def stop(self) -> None:
        """Give every run that is driven here free at its next boundary."""
        for drive in list(self._drives.values()):
            drive.stop()

    async def value(self, run: Run) -> Any:
        """Return what the workflow returned, of the type that it names; None if it has not, or that is erased."""
        progress: Progress | None = run.progress
        if progress is None or run.status is not Status.COMPLETED:
            return None
        workflow = self._tools.workflows.get(progress.definition.workflow)
        try:
            return await self._tools.value(workflow.result if workflow is not None else codec_for(Any), progress.value)
        except InvalidInput:
            if run.redacted is None:
                raise
            return None  # the null that stands for an erased value is not of the type that the workflow names

    def _refusal(self, run: Run) -> Refusal | None:
        """Say why this program may not drive the run, whatever it waits for; None if it may."""
        progress: Progress = run.progress
        run_id, name = run.run_id, progress.definition.workflow
        workflow = self._tools.workflows.get(name)
        match run.status:
            case Status.CANCELLED:
                message = f"run {run_id!r} cannot be resumed: it is CANCELLED"
                return refuse_resume(run, "cannot_resume", message, subject=run.status.value)
            case Status.REJECTED:
                return refuse_resume(run, "approval_rejected", f"a request of run {run_id!r} was rejected")
            case Status.EXPIRED:
                return refuse_resume(run, "approval_expired", f"nobody decided on a request of run {run_id!r} in time")
        if run.redacted is not None:
            message = f"run {run_id!r} cannot go on: what its steps have returned is not there ({run.redacted})"
            return refuse_resume(run, "run_erased", message, detail=run.redacted)
        if workflow is None:
            return refuse_resume(run, "unknown_workflow", f"no workflow {name!r} is registered here", detail=name)
        difference = mismatch(progress.definition, workflow)
        if difference is not None:
            return refuse_resume(run, "definition_mismatch", difference, detail=difference[:2000])
        return None

    def _still_waiting(self, run: Run) -> Refusal | None:
        """Refuse a run that only people can let go on; None if something else may come by itself."""
        waits: tuple[Waiting, ...] = run.progress.waits
        kinds = {wait.type for wait in waits}
        ids = ", ".join(str(wait.approval_id) for wait in waits if wait.type == "approval")
        if kinds == {"approval"}:
            return refuse_resume(
                run, "approval_required", f"run {run.run_id!r} waits for a decision on {ids}", detail=ids
            )
        if kinds <= {"approval", "outcome"} and kinds:
            return refuse_resume(run, "outcome_unknown", f"an effect of run {run.run_id!r} may have happened")
        return None

    async def _can_go_on(self, run: Run) -> bool:
        progress: Progress = run.progress
        if progress.is_ready or not progress.waits:
            return True
        if progress.due_us is not None and progress.due_us <= self._now_us(run):
            return True
        for wait in progress.waits:
            if wait.type == "approval" and self._is_decided(run, wait.node_id):
                return True
            if wait.type == "outcome" and self._can_be_asked(run, wait.node_id):
                return True
            if wait.type == "child" and await self._has_moved(wait.child_run_id or ""):
                return True
        return False

    def _is_decided(self, run: Run, key: str) -> bool:
        """Say whether people have decided on a request that the run waits for: they may have before it paused."""
        request = request_of(run, key)
        return request is not None and request.status is not Status.WAITING_FOR_USER

    def _can_be_asked(self, run: Run, key: str) -> bool:
        """Say whether an effect of which nobody knows can be asked about, or tried again."""
        request = request_of(run, key)
        action = self._tools.actions.get(request.proposal.action) if request and request.proposal else None
        if request is None or action is None or request.proposal is None:
            return False
        effect = Doing(request.proposal.action, request.op_key or "")
        return self._attempts.recourse(action, effect, request) != "unknown"

    async def _has_moved(self, child_run_id: str) -> bool:
        """Say whether a child can go on, or has ended."""
        child = await self._streams.load(child_run_id)
        if child.progress is None or child.status in ENDED:
            return True
        return not self._is_held(child) and await self._can_go_on(child)

    # ── driving ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _is_held(self, run: Run) -> bool:
        """Say whether somebody drives the run, as far as one can tell."""
        progress: Progress = run.progress
        if progress.owner is None:
            return False
        return not (self._now_us(run) > progress.deadline_us or is_proved_dead(progress.owner, self._tools.log.place))

    async def _claim_and_drive(self, run: Run, actor: str | None) -> Run | None:
        """Take the run and drive it; None if it has moved since it was read. Raises RunConflict if it is driven."""
        progress: Progress = run.progress
        if self._is_held(run):
            until = f"{time_text(progress.deadline_us)}, unless it is renewed"
            raise RunConflict(run.run_id, f"another process is driving it; its claim ends at {until}")
        before = progress.owner
        is_stray = before is not None and not is_proved_dead(before, self._tools.log.place)
        owner = self._holder.claim()
        claim = RunClaimed(epoch=run.version + 1, owner=owner, deadline_us=self._deadline_us(run), is_stray=is_stray)
        try:
            run = await self._streams.append_first(run, (claim,), actor)
        except WrongExpectedVersion:
            self._holder.release(owner, is_settled=True)
            return None
        except BaseException:
            self._holder.release(owner, is_settled=False)
            raise
        if before is not None and not is_stray:
            forget(before, self._tools.log.place)
        return await self._drive(self._tools.workflows[progress.definition.workflow], run, owner, actor)

    async def _drive(self, workflow: Workflow, run: Run, owner: Owner, actor: str | None) -> Run:
        name = actor or self._tools.actor or self._tools.log.actor
        session = Session(self._streams, run, owner, self._tools.clock, name)
        drive = Drive(session, workflow, self._tools, company=None if self.is_told else lambda: len(self._drives))
        self._drives[run.run_id] = drive
        logger.info("run_picked_up", run_id=run.run_id, workflow=workflow.name, epoch=run.epoch)
        try:
            try:
                args = workflow.decode_input(await self._tools.text(session.progress.input))
            except InvalidInput as error:
                message = f"the input of run {run.run_id!r} does not fit the workflow any more: {error}"
                await drive.refuse(Refused("definition_mismatch", message, run_id=run.run_id, detail=str(error)))
            return await drive.go(RunContext(drive), args)
        finally:
            if self._drives.get(run.run_id) is drive:
                del self._drives[run.run_id]
            logger.info("run_left", run_id=run.run_id, status=session.run.status.value)
            self._holder.release(owner, is_settled=session.progress.owner != owner)

    # ── from outside ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def signal(self, run_id: str, name: str, payload: Any, actor: str | None) -> Run:
        """Send the run a signal, *durable* on return. Raises Refused(`unknown_run`, `cannot_signal`), InvalidInput."""
        stored = await self._tools.store(codec_for(Any), payload, check_run_id(run_id))
        received = SignalReceived(name=name, payload=stored.json, artifact=stored.artifact)
        for _ in range(MAX_REDECISIONS):
            run = await self._signalled.read(check_run_id(run_id))
            require_run(run)
            refusal = self._refuse_signal(run, name)
            event = received if refusal is None else refusal.event
            if not await self._streams.has_appended(run, (event,), actor):
                self._signalled.forget(run_id)
            elif refusal is not None:
                raise logged(refusal.error)
            else:
                self.notify(run_id)
                return await self._signalled.read(run_id)
        raise RunConflict(run_id, "it changes faster than this can be recorded")

    def _refuse_signal(self, run: Run, name: str) -> Refusal | None:
        if run.progress is not None and run.status not in ENDED:
            return None
        why = "it is no workflow" if run.progress is None else f"it is {run.status.value}"
        message = f"run {run.run_id!r} takes no signal: {why}"
        return refuse_transition(run, "cannot_signal", f"signal:{name}"[:1024], message)

    async def cancel(self, run_id: str, reason: str | None, actor: str | None) -> Run:
        """Cancel the run and, in the same transaction, the children that it waits for.

        Raises Refused(`unknown_run`, `cannot_cancel`), and says so in the log.
        """
        for _ in range(MAX_REDECISIONS):
            run = await self._streams.load(run_id)
            require_run(run)
            decision = cancel(run, actor_source=actor_source(actor), reason=reason)
            if isinstance(decision, Refusal):
                if await self._streams.has_appended(run, (decision.event,), actor):
                    raise logged(decision.error)
                continue
            family = await self._unfinished_children(run)
            try:
                await self._cancel_all(run, family, decision.events, reason, actor)
            except WrongExpectedVersion:
                continue
            for each in (run, *family):
                self.notify(each.run_id)
            return await self._streams.load(run_id)
        raise RunConflict(run_id, "it changes faster than it can be cancelled")

    async def _cancel_all(
        self, run: Run, family: Sequence[Run], events: Sequence[RunEvent], reason: str | None, actor: str | None
    ) -> None:
        own = [new_event(event) for event in events]
        beside = notices(run, own)
        for child in family:
            cancelled = cancel(child, actor_source=actor_source(actor), reason=f"run {run.run_id!r} was cancelled")
            assert isinstance(cancelled, Accepted), "it has not ended"
            beside.append(
                Append(
                    run_stream(child.run_id), [new_event(event) for event in cancelled.events], Expect.at(child.version)
                )
            )
        await self._streams.append_at(run, own, actor, beside=beside)

    async def _unfinished_children(self, run: Run) -> list[Run]:
        """Return the runs that this one has started for itself, theirs with them, as far as they have not ended."""
        family: list[Run] = []
        progress: Progress = run.progress
        for child in progress.children.values():
            # One that had failed may have been taken up since, by itself; the others have ended for good.
            if child.relation == "child" and child.status in (None, Status.FAILED):
                found = await self._streams.load(child.run_id)
                is_failed = found.status is Status.FAILED
                if found.progress is not None and (is_failed or found.status not in ENDED):
                    family += (*(() if is_failed else (found,)), *await self._unfinished_children(found))
        return family

    def clock_us(self) -> int:
        """Return the time by this program's clock, in microseconds UTC."""
        return self._tools.clock.now_us()

    def _now_us(self, run: Run) -> int:
        return max(self._tools.clock.now_us(), run.recorded_at_us)

    def _deadline_us(self, run: Run) -> int:
        return self._now_us(run) + round(self._tools.lease_s * _MICRO)


def by_name(workflows: Iterable[Workflow]) -> dict[str, Workflow]:
    """Return the workflows by name. Raises InvalidInput(`invalid_argument`)."""
    found: dict[str, Workflow] = {}
    for workflow in workflows:
        if not isinstance(workflow, Workflow):
            message = f"{workflow!r:.80} is no workflow; `@eventlog.workflow` makes one of an async function"
            raise InvalidInput("invalid_argument", message)
        if found.setdefault(workflow.name, workflow) is not workflow:
            raise InvalidInput("invalid_argument", f"two workflows are called {workflow.name!r}")
    return found
