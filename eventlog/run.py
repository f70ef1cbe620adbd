"""The state of one request of a run and of its effect, and how each event changes it. Pure.

    WAITING_FOR_USER ──approve──▶ APPROVED ──effect──▶ COMPLETED
           ├────────reject──────▶ REJECTED
           ├──nobody in time────▶ EXPIRED
           ◀────────revoke─────── APPROVED, before the effect has begun
                                   APPROVED ──nobody can tell──▶ OUTCOME_UNKNOWN ──a person settles it──▶ …
                                   APPROVED ──refused for good─▶ FAILED
                                                                 COMPLETED ──undone──▶ COMPENSATED

A conflict or a definite failure leaves a run APPROVED: clear the cause and resume. An `idempotency_conflict` does not:
somebody has used the op_key, and what that did is unknown. A person settles an unknown outcome as COMPLETED, APPROVED
(it may be tried again) or CANCELLED (given up). A run that somebody cancels is CANCELLED and stays so: what its effect
has come to is recorded, and no other begins.

A run of one action is one such state. A workflow run has many, one for each request, in its `progress`; the events of
steps, timers, signals and children are told there, and mean nothing here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, assert_never

import msgspec
from msgspec.structs import replace

from eventlog.codec import unknown_type
from eventlog.events import (
    ActionConflict,
    ActionExecuted,
    ActionFailed,
    ActionRecovered,
    ActionReplayed,
    ApprovalExpired,
    ApprovalRecorded,
    ApprovalRevoked,
    CheckpointSaved,
    ChildFinished,
    ChildStarted,
    ClaimRenewed,
    CompensationExecuted,
    CompensationFailed,
    CompensationStarted,
    Failure,
    OutcomeReconciled,
    OutcomeUnknown,
    Owner,
    PolicyTerms,
    ProposalRecorded,
    ProposalRejected,
    ProposalVerified,
    ResultRejected,
    ResumeRejected,
    ResumeStarted,
    RunCancelled,
    RunClaimed,
    RunCompleted,
    RunEvent,
    RunFailed,
    SignalReceived,
    SignalRejected,
    Status,
    StepCompleted,
    StepFailed,
    StepStarted,
    TimerFired,
    TimerSet,
    TransitionRejected,
    Waiting,
)
from eventlog.log import RecordedEvent
from eventlog.proposal import Proposal, stored_proposal

__all__ = ["Compensation", "Intent", "Run", "Status", "Vote", "evolve", "fold_event", "fold_fact", "fold_run"]

_HAS_NOT_ENDED: Final = frozenset({Status.WAITING_FOR_USER, Status.APPROVED, Status.RUNNING, Status.WAITING})


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


class Vote(msgspec.Struct, frozen=True, kw_only=True):
    """One decision on a request. `actor` made it, as `actor_source` vouches for; `roles` are what he brought to it.

    `level` is what the log says of how sure that is; it was checked if `is_signed`, and is again before the effect.
    """

    decision: str
    actor: str | None = None
    actor_source: str = ""
    roles: tuple[str, ...] = ()
    reason: str | None = None
    level: int = 0
    is_signed: bool = False


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run as its events leave it, or one request of a workflow run. `version` 0 means that there is no such run.

    `approval` is the decision, `approve` or `reject`; `approval_request_id` and `approval_hash` are what it froze.
    `epoch` is the version of the last `run_claimed`, 0 before the first; `attempts` counts the intents.
    """

    run_id: str
    step: str | None = None
    """The step key of the request, absent in a run of one action."""
    root_run_id: str | None = None
    """The run in which the family of a workflow run began: the correlation id of its events."""
    version: int = 0
    status: Status = Status.WAITING_FOR_USER
    state_version: int = 0
    waiting: Waiting | None = None
    progress: Any = None
    """The `eventlog.progress.Progress` of a workflow run; None in a run of one action, and in each request."""
    request_id: str | None = None
    superseded: tuple[str, ...] = ()
    """The requests that edits have closed for good, the oldest first."""
    proposal: Proposal | None = None
    proposal_hash: str | None = None
    proposed_by: str | None = None
    proposers: tuple[str, ...] = ()
    """All who asked or edited: with separation of duties none of them approves."""
    """The actor who asked, or who edited what was asked."""
    folder: str | None = None
    """The folder that a relative target was meant in, absolute."""
    policy: PolicyTerms | None = None
    """The terms of the decision, as they were when it was asked for; None: one decision by anybody."""
    expires_at_us: int | None = None
    """Until when it may be decided on."""
    votes: tuple[Vote, ...] = ()
    """The decisions on the current request, that which decided among them."""
    approval: str | None = None
    decided_by: str | None = None
    """Who made the decision that decided; None where a rule did."""
    decided_at_us: int | None = None
    decision_reason: str | None = None
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
    strays_are_over: bool = False
    """Whether it is recorded that all of them are dead."""
    is_vouched_for: bool = False
    """Whether a person has said that no attempt so far has done anything, and none has begun since."""
    result: Any = None
    """What the effect returned, or what a person says it did."""
    failure: Failure | None = None
    """Why the effect will never happen, if that is final."""
    not_stored: str | None = None
    """Why the log does not hold what the effect returned, if it could not."""
    unknown: str | None = None
    """Why nobody knows what became of the effect, while that is so."""
    unknown_since_us: int = 0
    """When that was recorded first, since the last attempt and since whoever was overruled is dead."""
    compensation: Compensation | None = None
    problem: Failure | None = None
    """Why the last attempt came to nothing, until another begins."""
    late: ResultRejected | None = None
    """What a resumer that no longer held the run said in the end of its effect."""
    is_cancelled: bool = False
    """Whether somebody cancelled the run while this had not ended; then nothing begins any more."""
    recorded_at_us: int = 0
    """When the last event was recorded."""
    redacted: str | None = None
    """Why words that the run held are not there, if so: `erased`, `subject_erased` or `key_missing`."""

    @property
    def open_intent(self) -> Intent | None:
        """What has begun and has no result yet: the effect, or the undoing of it."""
        return self.intent if self.compensation is None else self.compensation.intent

    @property
    def is_stray(self) -> bool:
        """Whether some earlier resumer may still be at work."""
        return bool(self.strays)

    @property
    def is_unknown(self) -> bool:
        """Whether nobody knows what became of an effect; of a cancelled run too, which does not show it."""
        return self.status is Status.OUTCOME_UNKNOWN or self.unknown is not None

    @property
    def supersedes(self) -> str | None:
        """The request that the current one replaces."""
        return self.superseded[-1] if self.superseded else None


def fold_run(run_id: str, events: Iterable[RecordedEvent]) -> Run:
    """Return the run that these events, all of its stream in order, add up to.

    Raises EventTypeUnknown for an event that this program does not know: acting on half a state is worse than not
    acting.
    """
    run = Run(run_id=run_id)
    for event in events:
        run = fold_event(run, event)
    return run


def fold_event(run: Run, event: RecordedEvent) -> Run:
    """Return the run after an event of its stream. Raises EventTypeUnknown as `fold_run`."""
    if not event.is_known:
        raise unknown_type(event)
    return fold_fact(run, event.data, version=event.version, at_us=event.recorded_at_us, actor=event.actor)


def fold_fact(run: Run, event: RunEvent, *, version: int, at_us: int, actor: str) -> Run:
    """Return the run after an event: what it says, and what its envelope says of who and when."""
    after = replace(evolve(run, event), version=version, recorded_at_us=at_us)
    if after.unknown is not None and (run.unknown is None or after.strays_are_over is not run.strays_are_over):
        after = replace(after, unknown_since_us=at_us)
    match event:
        case ProposalRecorded():
            return replace(after, proposed_by=actor, proposers=tuple(dict.fromkeys((*run.proposers, actor))))
        case ApprovalRecorded():
            return _signed(after, event, actor, at_us)
        case _:
            return after


def evolve(run: Run, event: RunEvent) -> Run:
    """Return the run as it is after `event`. Never fails: the event has happened."""
    after = _after(run, event)
    if run.is_cancelled and after.status is not run.status:
        return replace(after, status=Status.CANCELLED)
    return after


def _after(run: Run, event: RunEvent) -> Run:
    match event:
        case CheckpointSaved(status=status, state_version=state_version, waiting=waiting):
            return replace(run, status=status, state_version=state_version, waiting=waiting)
        case ProposalRecorded():
            return _proposed(run, event)
        case ApprovalRecorded():
            return _voted(run, event)
        case ApprovalExpired():
            return replace(run, status=Status.EXPIRED, waiting=None)
        case ApprovalRevoked():
            return replace(_undecided(run), status=Status.WAITING_FOR_USER, waiting=_wait_for_user(run))
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
        case RunCancelled():
            return _cancelled(run)
        case ResultRejected():
            return replace(run, late=event)
        case ProposalVerified() | ProposalRejected() | TransitionRejected() | ResumeRejected() | ActionReplayed():
            return run
        case (
            StepStarted()
            | StepCompleted()
            | StepFailed()
            | SignalReceived()
            | SignalRejected()
            | TimerSet()
            | TimerFired()
        ):
            return run
        case ChildStarted() | ChildFinished() | ClaimRenewed() | RunCompleted() | RunFailed():
            return run
        case _:
            assert_never(event)


def _proposed(run: Run, event: ProposalRecorded) -> Run:
    """A request that supersedes another begins anew: nothing that was said or done about the other counts for it."""
    run = replace(
        run,
        request_id=event.request_id,
        proposal=stored_proposal(bytes(event.proposal)),
        proposal_hash=event.proposal_hash,
        folder=event.folder,
        policy=event.policy,
        expires_at_us=event.expires_at_us,
    )
    if event.supersedes is None:
        return run
    run = replace(
        _undecided(run),
        status=Status.WAITING_FOR_USER,
        superseded=(*run.superseded, event.supersedes),
        executed=False,
        attempts=0,
        op_key=None,
        key_until_us=None,
        intent=None,
        result=None,
        failure=None,
        not_stored=None,
        unknown=None,
        unknown_since_us=0,
        compensation=None,
        problem=None,
        late=None,
    )
    return replace(run, waiting=_wait_for_user(run))


def _voted(run: Run, event: ApprovalRecorded) -> Run:
    vote = Vote(
        decision=event.decision,
        actor_source=event.actor_source,
        roles=event.roles,
        reason=event.reason,
        level=event.level,
        is_signed=event.envelope is not None,
    )
    run = replace(run, votes=(*run.votes, vote))
    if not event.is_deciding:
        return run
    return replace(
        run,
        status=Status.APPROVED if event.decision == "approve" else Status.REJECTED,
        waiting=None,
        approval=event.decision,
        decision_reason=event.reason,
        approval_request_id=event.request_id,
        approval_hash=event.approval_hash,
    )


def _signed(run: Run, event: ApprovalRecorded, actor: str, at_us: int) -> Run:
    """Say who made the last vote, and when it decided. A rule that decided is nobody, whoever proposed."""
    name = None if event.actor_source == "policy" else actor
    *earlier, last = run.votes
    run = replace(run, votes=(*earlier, replace(last, actor=name)))
    return replace(run, decided_by=name, decided_at_us=at_us) if event.is_deciding else run


def _undecided(run: Run) -> Run:
    """Return the run as if nobody had said anything about its request."""
    return replace(
        run,
        votes=(),
        approval=None,
        decided_by=None,
        decided_at_us=None,
        decision_reason=None,
        approval_request_id=None,
        approval_hash=None,
    )


def _wait_for_user(run: Run) -> Waiting:
    node_id = run.step if run.step is not None else run.proposal.action if run.proposal is not None else ""
    return Waiting(type="approval", node_id=node_id, approval_id=run.request_id)


def _cancelled(run: Run) -> Run:
    """What has ended stays as it ended; what nobody knows waits for who settles it. An open intent stays open."""
    if run.status in _HAS_NOT_ENDED:
        return replace(run, status=Status.CANCELLED, is_cancelled=True, waiting=None)
    if run.status is Status.OUTCOME_UNKNOWN:
        return replace(run, is_cancelled=True)
    return run


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
        is_vouched_for=False,
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
    if overruled:
        run = replace(run, strays_are_over=False)
    if run.intent is not None:
        return replace(run, intent=_handed_over(run.intent, event))
    if run.compensation is not None and run.compensation.intent is not None:
        return replace(run, compensation=replace(run.compensation, intent=_handed_over(run.compensation.intent, event)))
    return run


def _handed_over(intent: Intent, event: RunClaimed) -> Intent:
    return replace(intent, epoch=event.epoch, owner=event.owner, deadline_us=event.deadline_us)


def _unknown(run: Run, event: OutcomeUnknown) -> Run:
    run = replace(run, status=Status.OUTCOME_UNKNOWN, unknown=event.why)
    if event.strays_are_over:
        run = replace(run, strays_are_over=True)
    if _is_compensation(run, event.op_key):
        return replace(run, compensation=_at_rest(run))
    return replace(run, intent=None)


def _reconciled(run: Run, event: OutcomeReconciled) -> Run:
    run = replace(run, unknown=None, status=event.status, is_vouched_for=event.verdict == "not_executed")
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
    return replace(
        run,
        status=Status.COMPLETED,
        unknown=None,
        problem=None,
        is_vouched_for=False,
        compensation=compensation,
    )


def _is_compensation(run: Run, key: str) -> bool:
    return run.compensation is not None and run.compensation.op_key == key


def _at_rest(run: Run, *, is_settled: bool = False, result: Any = None) -> Compensation | None:
    return run.compensation and replace(run.compensation, intent=None, is_settled=is_settled, result=result)
