"""Drives runs: reads a run, decides, appends, performs the approved effect, and records what became of it.

The runner keeps nothing in memory between two calls. What it knows of a run is folded from the log each time, so any
process may make the next call. Two resumers of one run meet at the append of the intent: it is written at exactly the
version that was read, so one of them wins, and the other has done nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from eventlog import errors
from eventlog.decide import (
    Accepted,
    Refusal,
    Replay,
    begin_effect,
    check_run_id,
    compare_view,
    record_decision,
    refuse_resume,
    require_run,
    resume,
    start,
)
from eventlog.errors import (
    ActionConflict,
    ActionFailed,
    ClaimLost,
    EventLogError,
    InvalidInput,
    LogCorrupt,
    RunConflict,
    WrongExpectedVersion,
)
from eventlog.events import RUN_EVENTS, Failure, Owner, ResumeRejected, RunClaimed, RunEvent, run_stream
from eventlog.events import ActionConflict as ActionConflictEvent
from eventlog.events import ActionExecuted as ActionExecutedEvent
from eventlog.events import ActionFailed as ActionFailedEvent
from eventlog.events import ActionRecovered as ActionRecoveredEvent
from eventlog.events import OutcomeUnknown as OutcomeUnknownEvent
from eventlog.log import Append, Expect, NewEvent, RecordedEvent, RunLog
from eventlog.proposal import Proposal, op_key
from eventlog.run import Intent, Run, Status, fold_run
from eventlog.runtime.claims import hold, is_orphaned
from eventlog.runtime.effects import Action, Call, Conflicted, Executed, Promise, Recovered, Report
from eventlog.runtime.failpoints import (
    EFFECT_AFTER,
    INTENT_AFTER_COMMIT,
    INTENT_BEFORE_COMMIT,
    RESULT_AFTER_COMMIT,
    RESULT_BEFORE_COMMIT,
    Reach,
    pass_by,
)
from eventlog.stores.clock import Clock, SystemClock
from eventlog.stores.telemetry import logger

__all__ = ["Outcome", "RunView", "Runner"]

E = TypeVar("E", bound=EventLogError)

_MAX_REDECISIONS: Final = 100
MAX_LEASE_S: Final = 365 * 24 * 3600
_TYPE_OF: Final = {cls: name for name, cls in RUN_EVENTS.items()}


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a command left behind. `result` is set by `resume`: executed, recovered or already_completed."""

    run: Run
    result: str | None = None

    @property
    def run_id(self) -> str:
        return self.run.run_id

    @property
    def status(self) -> str:
        return self.run.status.value


class RunView(Protocol):
    """The stored view of runs that people decide from, compared with the log before an effect."""

    async def row(self, run: Run) -> Mapping[str, Any]:
        """Return the row of this run by column name, brought up to `run.version` first where it is missing or late."""


class Runner:
    """Commands on the runs of one log.

    `actions` are the effects that this program can perform. `view` is the stored view to compare with before an effect,
    if the program shows people one. `lease_s` is how long an intent belongs to its owner: a resumer that is proved dead
    is taken over at once, any other when its lease has run out, so it must be longer than the longest effect. `folder`
    is what relative targets of new proposals are relative to, this process's own by default.
    """

    def __init__(
        self,
        log: RunLog,
        *,
        actions: Iterable[Action] = (),
        view: RunView | None = None,
        lease_s: float = 300.0,
        folder: str | None = None,
        clock: Clock | None = None,
        reach: Reach = pass_by,
    ) -> None:
        if not 0 < lease_s <= MAX_LEASE_S:
            raise InvalidInput(
                "invalid_argument", f"lease_s is a number of seconds up to {MAX_LEASE_S}, not {lease_s!r}"
            )
        self._log: Final = log
        self._actions: Final = _by_name(actions)
        self._view: Final = view
        self._lease_s: Final = lease_s
        self._folder: Final = folder
        self._clock: Final = clock or SystemClock()
        self._reach: Final = reach

    async def propose(self, run_id: str, proposal: Proposal, *, actor: str | None = None) -> Outcome:
        """Begin a run of one action, which then waits for a decision. Raises Refused(`run_exists`)."""
        run = Run(run_id=check_run_id(run_id))
        accepted = start(run, proposal, self._folder or _current_folder())
        try:
            await self._append(run, accepted.events, actor)
        except WrongExpectedVersion:
            start(await self._load(run_id), proposal)  # raises run_exists
            raise
        return Outcome(run=await self._load(run_id))

    async def approve(
        self, run_id: str, proposal_hash: str, *, reason: str | None = None, actor: str | None = None
    ) -> Outcome:
        """Approve exactly the proposal with this hash.

        Raises Refused: `unknown_run`, `approval_not_pending` (`existing_approval` in the details),
        `proposal_hash_mismatch`.
        """
        return await self._decide(run_id, "approve", proposal_hash, reason, actor)

    async def reject(
        self, run_id: str, proposal_hash: str, *, reason: str | None = None, actor: str | None = None
    ) -> Outcome:
        """Reject exactly the proposal with this hash; a rejection is final. Raises as `approve`."""
        return await self._decide(run_id, "reject", proposal_hash, reason, actor)

    async def resume(self, run_id: str, *, output: str | None = None, actor: str | None = None) -> Outcome:
        """Perform the approved effect, or find that it was performed. Any process may call this, any number of times.

        `output`, if given, must be the approved target. Raises Refused when the run does not allow it (the refusal is
        in the log), ActionConflict, ActionFailed or OutcomeUnknown for the effect's own end, RunConflict or ClaimLost
        when another resumer is at work, LogCorrupt when the run's events contradict their hashes.
        """
        check_run_id(run_id)
        for _ in range(_MAX_REDECISIONS):
            run = await self._load(run_id)
            decision = resume(run, output)
            if isinstance(decision, Accepted):
                decision = await self._look_before_effect(run) or decision
            match decision:
                case Refusal(event=event, error=error):
                    if await self._has_appended(run, (event,), actor):
                        raise _logged(error)
                case Replay(event=event):
                    if await self._has_appended(run, (event,), actor):
                        return Outcome(run=await self._load(run_id), result=event.reason)
                case Accepted():
                    return await self._perform(run, actor)
        raise RunConflict(run_id, "it changes faster than a decision can be recorded")

    async def state(self, run_id: str, *, at_version: int | None = None) -> Run:
        """Return the run as its events leave it, up to `at_version` if given. Raises Refused(`unknown_run`)."""
        run = await self._load(check_run_id(run_id), at_version)
        require_run(run)
        return run

    async def trace(self, run_id: str) -> Sequence[RecordedEvent]:
        """Return the events of a run, verified. Raises Refused(`unknown_run`)."""
        events = (await self._log.read_stream(run_stream(check_run_id(run_id)))).events
        require_run(Run(run_id=run_id, version=len(events)))
        return events

    async def _decide(
        self, run_id: str, decision: str, proposal_hash: str, reason: str | None, actor: str | None
    ) -> Outcome:
        check_run_id(run_id)
        actor_source = "os" if actor is None else "asserted"
        for _ in range(_MAX_REDECISIONS):
            run = await self._load(run_id)
            match record_decision(run, decision, proposal_hash, actor_source=actor_source, reason=reason):
                case Accepted(events=events):
                    if await self._has_appended(run, events, actor):
                        return Outcome(run=await self._load(run_id))
                case Refusal(event=event, error=error):
                    if await self._has_appended(run, (event,), actor):
                        raise _logged(error)
        raise RunConflict(run_id, "it changes faster than a decision can be recorded")

    async def _look_before_effect(self, run: Run) -> Refusal | None:
        """Refuse, before any intent, what this program cannot or must not perform."""
        proposal = run.proposal
        assert proposal is not None, "a run that is approved has a proposal"
        action = self._actions.get(proposal.action)
        if action is None:
            return refuse_resume(run, "unknown_action", f"no action {proposal.action!r} is registered here")
        if run.status is Status.OUTCOME_UNKNOWN and _is_opaque(action):
            return refuse_resume(run, "outcome_unknown", f"the effect of run {run.run_id!r} may have happened")
        try:
            action.check(self._call(run, proposal, run.attempts + 1))
        except ActionFailed as error:
            why = _printable(str(error))
            event = ResumeRejected(reason=_printable(error.code), status=run.status.value, detail=why)
            return Refusal(event, ActionFailed(error.code, str(error), run_id=run.run_id, **error.details))
        except Exception as error:
            why = _printable(f"{type(error).__name__}: {error}")
            return refuse_resume(run, "action_failed", f"the action's own check failed: {why}", detail=why)
        return compare_view(run, await self._view.row(run)) if self._view is not None else None

    async def _perform(self, run: Run, actor: str | None) -> Outcome:
        proposal = run.proposal
        assert proposal is not None, "a run that is approved has a proposal"
        action = self._actions[proposal.action]
        with hold(self._log.place) as owner:
            if run.intent is not None and not self._may_take_over(run, run.intent):
                raise RunConflict(run.run_id, "another resumer is performing its effect")
            if run.intent is not None and _is_opaque(action):
                await self._give_up(run, run.intent, owner, actor)
            began_s = self._clock.monotonic_s()
            held = await self._begin(run, owner, actor)
            call = self._call(held, proposal, held.attempts)
            if self._clock.monotonic_s() - began_s > self._lease_s / 2:
                raise await self._failed(held, proposal, _too_late(), actor)
            return await self._execute(held, proposal, action, call, actor)

    async def _begin(self, run: Run, owner: Owner, actor: str | None) -> Run:
        """Make the intent durable and return the run as it is held now. Raises RunConflict if another was first."""
        assert run.proposal is not None, "a run that is approved has a proposal"
        key = self._op_key(run, run.proposal)
        if run.op_key not in (None, key):
            raise LogCorrupt("op_key_changed", f"run {run.run_id!r} began under another op_key")
        events = begin_effect(
            run,
            op_key=key,
            owner=owner,
            deadline_us=self._now_us(run) + round(self._lease_s * 1_000_000),
            takes_over=run.intent is not None,
        )
        self._reach(INTENT_BEFORE_COMMIT)
        try:
            await self._append(run, events, actor)
        except WrongExpectedVersion:
            raise RunConflict(run.run_id, "another process was first") from None
        self._reach(INTENT_AFTER_COMMIT)
        return replace(
            run, version=run.version + len(events), attempts=run.attempts + 1, epoch=_epoch_of(run), intent=run.intent
        )

    async def _execute(self, run: Run, proposal: Proposal, action: Action, call: Call, actor: str | None) -> Outcome:
        try:
            report = await action.execute(call)
        except ActionFailed as error:
            raise await self._failed(run, proposal, error, actor) from error
        except Exception as error:
            raise await self._unknown(run, proposal, error, actor) from error
        self._reach(EFFECT_AFTER)
        return await self._record_report(run, proposal, call, report, actor)

    async def _record_report(
        self, run: Run, proposal: Proposal, call: Call, report: Report, actor: str | None
    ) -> Outcome:
        name = proposal.action
        match report:
            case Executed(result=result):
                await self._record(run, ActionExecutedEvent(action=name, op_key=call.op_key, result=result), actor)
                return Outcome(run=await self._load(run.run_id), result="executed")
            case Recovered(evidence=evidence):
                await self._record(run, ActionRecoveredEvent(action=name, op_key=call.op_key, evidence=evidence), actor)
                return Outcome(run=await self._load(run.run_id), result="recovered")
            case Conflicted():
                await self._record(run, _conflict_event(name, call.op_key, report), actor)
                raise _logged(
                    ActionConflict(
                        "output_conflict",
                        f"the target {proposal.output!r} of run {run.run_id!r} holds something else",
                        run_id=run.run_id,
                        output=proposal.output,
                        expected_content_hash=report.expected_content_hash,
                        existing_content_hash=report.existing_content_hash,
                    )
                )
            case _:
                error = TypeError(f"the action returned {type(report).__name__}, which is no report")
                raise await self._unknown(run, proposal, error, actor)

    async def _failed(self, run: Run, proposal: Proposal, error: ActionFailed, actor: str | None) -> ActionFailed:
        failure = Failure(code=error.code, message=_printable(str(error)))
        event = ActionFailedEvent(action=proposal.action, op_key=self._op_key(run, proposal), error=failure)
        await self._record(run, event, actor)
        return _logged(ActionFailed(error.code, str(error), run_id=run.run_id, **error.details))

    async def _unknown(
        self, run: Run, proposal: Proposal, error: Exception, actor: str | None
    ) -> errors.OutcomeUnknown:
        why = _printable(f"{type(error).__name__}: {error}")
        event = OutcomeUnknownEvent(action=proposal.action, op_key=self._op_key(run, proposal), why=why)
        await self._record(run, event, actor)
        return _logged(errors.OutcomeUnknown(run.run_id, why))

    async def _give_up(self, run: Run, intent: Intent, owner: Owner, actor: str | None) -> None:
        """Fence a dead holder whose effect nobody can ask about. Raises OutcomeUnknown once that is recorded."""
        assert run.proposal is not None, "a run that is approved has a proposal"
        why = f"attempt {intent.attempt} ended without a result, and the action cannot be asked"
        claim = RunClaimed(epoch=run.version + 1, owner=owner, deadline_us=self._now_us(run))
        unknown = OutcomeUnknownEvent(action=run.proposal.action, op_key=intent.op_key, why=why)
        if not await self._has_appended(run, (claim, unknown), actor):
            raise RunConflict(run.run_id, "another process was first")
        raise _logged(errors.OutcomeUnknown(run.run_id, why))

    async def _record(self, run: Run, event: RunEvent, actor: str | None) -> None:
        """Append the result of an effect, unless a later claim has fenced this holder (ClaimLost).

        Other events (a refused approval) may have moved the version meanwhile; the result goes behind them. The event
        id is made once, so that an append whose outcome was unknown is not recorded twice.
        """
        new = NewEvent(_TYPE_OF[type(event)], event)
        version = run.version
        self._reach(RESULT_BEFORE_COMMIT)
        for _ in range(_MAX_REDECISIONS):
            append = Append(run_stream(run.run_id), [new], Expect.at(version))
            try:
                await self._log.append_reserved([append], actor=actor)
            except InvalidInput as error:
                if new.data is not event:
                    raise
                new = NewEvent(new.type, _without_payload(event, error), new.event_id)
            except WrongExpectedVersion:
                now = await self._load(run.run_id)
                if now.epoch > run.epoch or now.intent is None or now.attempts != run.attempts:
                    raise _logged(ClaimLost(run.run_id, now.epoch, run.epoch)) from None
                version = now.version
            else:
                self._reach(RESULT_AFTER_COMMIT)
                return
        raise RunConflict(run.run_id, "it changes faster than a result can be recorded")

    async def _load(self, run_id: str, at_version: int | None = None) -> Run:
        stream = await self._log.read_stream(run_stream(run_id))
        try:
            return fold_run(run_id, stream.events[:at_version])
        except InvalidInput as error:
            raise LogCorrupt("event_malformed", str(error), stream=run_stream(run_id)) from error

    async def _append(self, run: Run, events: Sequence[RunEvent], actor: str | None) -> None:
        new = [NewEvent(_TYPE_OF[type(event)], event) for event in events]
        append = Append(run_stream(run.run_id), new, Expect.at(run.version))
        await self._log.append_reserved([append], actor=actor)

    async def _has_appended(self, run: Run, events: Sequence[RunEvent], actor: str | None) -> bool:
        """Append at the version that was decided on; False if the run has moved and the decision must be made again."""
        try:
            await self._append(run, events, actor)
        except WrongExpectedVersion:
            return False
        return True

    def _may_take_over(self, run: Run, intent: Intent) -> bool:
        return is_orphaned(intent, self._log.place, self._now_us(run))

    def _now_us(self, run: Run) -> int:
        # A clock that jumped back must not bring a deadline back to life.
        return max(self._clock.now_us(), run.recorded_at_us)

    def _op_key(self, run: Run, proposal: Proposal) -> str:
        return op_key(self._log.store_id, run.run_id, proposal.action, run.approval_hash or "")

    def _call(self, run: Run, proposal: Proposal, attempt: int) -> Call:
        return Call(
            run_id=run.run_id,
            action=proposal.action,
            args=proposal.args,
            output=proposal.output,
            op_key=self._op_key(run, proposal),
            folder=run.folder,
            place=self._log.place,
            attempt=attempt,
            reach=self._reach,
        )


def _by_name(actions: Iterable[Action]) -> dict[str, Action]:
    by_name: dict[str, Action] = {}
    for action in actions:
        if action.name in by_name:
            raise InvalidInput("invalid_argument", f"two actions are called {action.name!r}")
        try:
            Promise(action.promise)
        except ValueError:
            known = ", ".join(Promise)
            message = f"the action {action.name!r} promises {action.promise!r}; a promise is one of {known}"
            raise InvalidInput("invalid_argument", message) from None
        by_name[action.name] = action
    return by_name


def _epoch_of(run: Run) -> int:
    """Return the epoch under which the next intent is held: a take-over claims its own version."""
    return run.epoch if run.intent is None else run.version + 1


def _conflict_event(name: str, key: str, report: Conflicted) -> ActionConflictEvent:
    return ActionConflictEvent(
        action=name,
        op_key=key,
        reason=report.reason,
        expected_content_hash=report.expected_content_hash,
        existing_content_hash=report.existing_content_hash,
        expected_content=report.expected_content,
        existing_content=report.existing_content,
    )


def _too_late() -> ActionFailed:
    return ActionFailed(
        "action_failed", "half of the lease was used up before the effect could begin; nothing was done"
    )


def _is_opaque(action: Action) -> bool:
    return Promise(action.promise) is Promise.OPAQUE


def _without_payload(event: RunEvent, error: InvalidInput) -> RunEvent:
    """Return the result without what the log cannot hold: that it happened counts more than what it returned."""
    reason = {"not_stored": error.code, "path": error.path}
    match event:
        case ActionExecutedEvent():
            return replace(event, result=reason)
        case ActionRecoveredEvent():
            return replace(event, evidence=reason)
        case ActionConflictEvent():
            return replace(event, reason=_printable(event.reason), expected_content=None, existing_content=None)
        case _:
            raise error


def _current_folder() -> str | None:
    """Return the folder of this process, None if it is gone or has no name in UTF-8."""
    try:
        folder = os.getcwd()
        folder.encode()
    except (OSError, UnicodeEncodeError):
        return None
    return folder


def _printable(text: str) -> str:
    return text[:2000].encode(errors="replace").decode()


def _logged(error: E) -> E:
    logger.info("refused", code=error.code, run_id=error.details.get("run_id"))
    return error
