"""The state of a run, and how each event changes it. Pure.

    WAITING_FOR_USER ──approve──▶ APPROVED ──effect──▶ COMPLETED
           └────────reject──────▶ REJECTED
                                   APPROVED ──nobody can tell──▶ OUTCOME_UNKNOWN ──a person settles it──▶ …
                                   APPROVED ──refused for good─▶ FAILED
                                                                 COMPLETED ──undone──▶ COMPENSATED

A conflict or a definite failure leaves a run APPROVED: clear the cause and resume. An `idempotency_conflict` does not:
somebody has used the op_key, and what that did is unknown. A person settles an unknown outcome as COMPLETED, APPROVED
(it may be tried again) or CANCELLED (given up).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, assert_never

import msgspec
from msgspec.structs import replace

from eventlog.errors import EventTypeUnknown
from eventlog.events import (
    ActionConflict,
    ActionExecuted,
    ActionFailed,
    ActionRecovered,
    ActionReplayed,
    ApprovalRecorded,
    CheckpointSaved,
    CompensationExecuted,
    CompensationFailed,
    CompensationStarted,
    Failure,
    OutcomeReconciled,
    OutcomeUnknown,
    Owner,
    ProposalRecorded,
    ProposalRejected,
    ProposalVerified,
    ResultRejected,
    ResumeRejected,
    ResumeStarted,
    RunClaimed,
    RunEvent,
    Status,
    TransitionRejected,
    Waiting,
)
from eventlog.log import RecordedEvent
from eventlog.proposal import Proposal

__all__ = ["Compensation", "Intent", "Run", "Status", "evolve", "fold_run"]


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """An effect that has begun and has no result yet."""

    op_key: str
    attempt: int
    epoch: int
    owner: Owner
    deadline_us: int


class Compensation(msgspec.Struct, frozen=True, kw_only=True):
    """The undoing of the run's effect: under way, failed, unknown or done.

    `is_settled` once nothing more will be tried.
    """

    action: str
    op_key: str
    attempts: int
    key_until_us: int | None = None
    intent: Intent | None = None
    is_settled: bool = False
    result: Any = None
    """What undoing the effect returned, or what a person says it did."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run as its events leave it. `version` 0 means that there is no such run.

    `approval` is the decision, `approve` or `reject`; `approval_request_id` and `approval_hash` are what it froze.
    `epoch` is the version of the last `run_claimed`, 0 before the first; `attempts` counts the intents.
    """

    run_id: str
    version: int = 0
    status: Status = Status.WAITING_FOR_USER
    state_version: int = 0
    waiting: Waiting | None = None
    request_id: str | None = None
    proposal: Proposal | None = None
    proposal_hash: str | None = None
    folder: str | None = None
    """The folder that a relative target was meant in, absolute."""
    approval: str | None = None
    approval_request_id: str | None = None
    approval_hash: str | None = None
    executed: bool = False
    epoch: int = 0
    attempts: int = 0
    op_key: str | None = None
    """The identity of the effect, as the last intent recorded it."""
    key_until_us: int | None = None
    """Until when the receiver knows the op_key, where it knows it only for a time."""
    intent: Intent | None = None
    strays: tuple[Owner, ...] = ()
    """Earlier resumers that were overruled without proof that they are dead: they may still be at work."""
    result: Any = None
    """What the effect returned, or what a person says it did."""
    failure: Failure | None = None
    """Why the effect will never happen, if that is final."""
    not_stored: str | None = None
    """Why the log does not hold what the effect returned, if it could not."""
    unknown: str | None = None
    """Why nobody knows what became of the effect, while that is so."""
    unknown_since_us: int = 0
    """When that was recorded first, since the last attempt."""
    compensation: Compensation | None = None
    problem: Failure | None = None
    """Why the last attempt came to nothing, until another begins."""
    late: ResultRejected | None = None
    """What a resumer that no longer held the run said in the end of its effect."""
    recorded_at_us: int = 0
    """When the last event was recorded."""

    @property
    def open_intent(self) -> Intent | None:
        """What has begun and has no result yet: the effect, or the undoing of it."""
        return self.intent if self.compensation is None else self.compensation.intent

    @property
    def is_stray(self) -> bool:
        """Whether some earlier resumer may still be at work."""
        return bool(self.strays)


def fold_run(run_id: str, events: Iterable[RecordedEvent]) -> Run:
    """Return the run that these events, all of its stream in order, add up to.

    Raises EventTypeUnknown for an event that this program does not know: acting on half a state is worse than not
    acting.
    """
    run = Run(run_id=run_id)
    for event in events:
        if not event.is_known:
            raise EventTypeUnknown(event.stream, event.version, event.type)
        before, at_us = run, event.recorded_at_us
        run = replace(evolve(run, event.data), version=event.version, recorded_at_us=at_us)
        if run.unknown is not None and before.unknown is None:
            run = replace(run, unknown_since_us=at_us)
    return run


def evolve(run: Run, event: RunEvent) -> Run:
    """Return the run as it is after `event`. Never fails: the event has happened."""
    match event:
        case CheckpointSaved(status=status, state_version=state_version, waiting=waiting):
            return replace(run, status=status, state_version=state_version, waiting=waiting)
        case ProposalRecorded():
            return _proposed(run, event)
        case ApprovalRecorded():
            return _decided(run, event)
        case ResumeStarted():
            return _begun(run, event)
        case RunClaimed():
            return _claimed(run, event)
        case ActionExecuted() | ActionRecovered():
            return _done(run, event)
        case ActionFailed(is_final=True, error=error):
            return replace(run, status=Status.FAILED, intent=None, unknown=None, failure=error)
        case ActionFailed(error=error):
            return replace(run, status=Status.APPROVED, intent=None, unknown=None, problem=error)
        case ActionConflict():
            return _conflicted(run, event)
        case OutcomeUnknown():
            return _unknown(run, event)
        case OutcomeReconciled():
            return _reconciled(run, event)
        case CompensationStarted():
            return _compensating(run, event)
        case CompensationExecuted(result=result):
            undone = _at_rest(run, is_settled=True, result=result)
            return replace(run, status=Status.COMPENSATED, unknown=None, compensation=undone)
        case CompensationFailed(is_final=is_final, error=error):
            run = replace(run, status=Status.COMPLETED, unknown=None, problem=error)
            return replace(run, compensation=_at_rest(run, is_settled=is_final))
        case ProposalVerified() | ProposalRejected() | TransitionRejected() | ResumeRejected() | ActionReplayed():
            return run
        case ResultRejected():
            return replace(run, late=event)
        case _:
            assert_never(event)


def _decided(run: Run, event: ApprovalRecorded) -> Run:
    return replace(
        run,
        status=Status.APPROVED if event.decision == "approve" else Status.REJECTED,
        waiting=None,
        approval=event.decision,
        approval_request_id=event.request_id,
        approval_hash=event.approval_hash,
    )


def _proposed(run: Run, event: ProposalRecorded) -> Run:
    return replace(
        run,
        request_id=event.request_id,
        proposal=Proposal.decode(bytes(event.proposal)),
        proposal_hash=event.proposal_hash,
        folder=event.folder,
    )


def _done(run: Run, event: ActionExecuted | ActionRecovered) -> Run:
    return replace(
        run,
        status=Status.COMPLETED,
        executed=True,
        intent=None,
        unknown=None,
        result=event.result,
        not_stored=event.not_stored,
    )


def _conflicted(run: Run, event: ActionConflict) -> Run:
    """A target that holds something else can be cleared. Of a key that was used otherwise nobody knows what it did."""
    run = replace(run, intent=None, problem=Failure(code=event.code, message=event.reason))
    if event.code == "idempotency_conflict":
        return replace(run, status=Status.OUTCOME_UNKNOWN, unknown=event.reason)
    return replace(run, status=Status.APPROVED, unknown=None)


def _begun(run: Run, event: ResumeStarted) -> Run:
    return replace(
        run,
        problem=None,
        intent=_intent(event),
        attempts=event.attempt,
        op_key=event.op_key,
        key_until_us=event.key_until_us,
        status=Status.APPROVED,
        unknown=None,
    )


def _intent(event: ResumeStarted | CompensationStarted) -> Intent:
    return Intent(
        op_key=event.op_key,
        attempt=event.attempt,
        epoch=event.epoch,
        owner=event.owner,
        deadline_us=event.deadline_us,
    )


def _claimed(run: Run, event: RunClaimed) -> Run:
    """The claim's owner answers for the open intent from now on."""
    intent = run.open_intent
    overruled = (intent.owner,) if event.is_stray and intent is not None else ()
    run = replace(run, epoch=event.epoch, strays=(*run.strays, *overruled))
    if run.intent is not None:
        return replace(run, intent=_handed_over(run.intent, event))
    if run.compensation is not None and run.compensation.intent is not None:
        return replace(run, compensation=replace(run.compensation, intent=_handed_over(run.compensation.intent, event)))
    return run


def _handed_over(intent: Intent, event: RunClaimed) -> Intent:
    return replace(intent, epoch=event.epoch, owner=event.owner, deadline_us=event.deadline_us)


def _unknown(run: Run, event: OutcomeUnknown) -> Run:
    run = replace(run, status=Status.OUTCOME_UNKNOWN, unknown=event.why)
    if _is_compensation(run, event.op_key):
        return replace(run, compensation=_at_rest(run))
    return replace(run, intent=None)


def _reconciled(run: Run, event: OutcomeReconciled) -> Run:
    run = replace(run, unknown=None, status=event.status)
    if _is_compensation(run, event.op_key):
        is_settled = event.verdict != "not_executed"
        return replace(run, compensation=_at_rest(run, is_settled=is_settled, result=event.result))
    if event.verdict == "executed":
        return replace(run, executed=True, intent=None, result=event.result)
    return replace(run, intent=None)


def _compensating(run: Run, event: CompensationStarted) -> Run:
    compensation = Compensation(
        action=event.action,
        op_key=event.op_key,
        attempts=event.attempt,
        key_until_us=event.key_until_us,
        intent=_intent(event),
    )
    return replace(run, status=Status.COMPLETED, unknown=None, problem=None, compensation=compensation)


def _is_compensation(run: Run, key: str) -> bool:
    return run.compensation is not None and run.compensation.op_key == key


def _at_rest(run: Run, *, is_settled: bool = False, result: Any = None) -> Compensation | None:
    return run.compensation and replace(run.compensation, intent=None, is_settled=is_settled, result=result)
