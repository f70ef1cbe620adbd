"""Resuming, the intent to act, and what a person finds out about an effect that nobody knows of."""

from __future__ import annotations

from typing import Any, Final

from eventlog.decide.answers import (
    Accepted,
    Refusal,
    Replay,
    check_supplied,
    proposal_of,
    refuse_resume,
    refuse_transition,
    require_run,
)
from eventlog.decide.decisions import has_expired, refuse_expired, too_late
from eventlog.decide.frozen import compare_frozen
from eventlog.errors import ApprovalRejected, InvalidInput
from eventlog.events import (
    ActionReplayed,
    OutcomeReconciled,
    OutcomeUnknown,
    Owner,
    ProposalVerified,
    ResumeRejected,
    ResumeStarted,
    RunClaimed,
    RunEvent,
)
from eventlog.plain import check_text
from eventlog.run import Run, Status

__all__ = ["VERDICTS", "begin_effect", "claim", "found_out", "reconcile", "resume"]

VERDICTS: Final = ("executed", "not_executed", "abandoned")
"""What a person can find out about an effect."""

_HAPPENED: Final = frozenset({"action_executed", "action_recovered", "compensation_executed"})


def resume(run: Run, output: str | None, now_us: int = 0) -> Accepted | Refusal | Replay:
    """Decide whether the approved effect may run now, on the log alone.

    `output` is the target that the caller names, None for the frozen one. The order of the checks is fixed: rejected,
    not yet approved, completed, output, request, hash. Accepted carries the `proposal_verified` of the resume.
    """
    require_run(run)
    if output is not None:
        check_text(output, "$.output")
    match run.status:
        case Status.REJECTED:
            return _rejected(run)
        case Status.WAITING_FOR_USER if has_expired(run, now_us):
            return refuse_expired(run)
        case Status.EXPIRED:
            return Refusal(ResumeRejected(reason="approval_expired", status=run.status.value), too_late(run))
        case Status.WAITING_FOR_USER:
            return refuse_resume(run, "approval_required", f"nobody has approved run {run.run_id!r} yet")
        case Status.COMPLETED:
            return Replay(ActionReplayed(reason="already_completed"))
        case Status.FAILED if run.failure is not None:
            return Replay(ActionReplayed(reason="already_failed"))
        case Status.OUTCOME_UNKNOWN if run.compensation is not None:
            undoing = f"undoing by {run.compensation.action!r} the effect of run {run.run_id!r}"
            return refuse_resume(run, "outcome_unknown", f"{undoing} may have happened")
        case Status.APPROVED | Status.OUTCOME_UNKNOWN:
            return compare_frozen(run, output)
        case other:
            message = f"run {run.run_id!r} cannot be resumed: it is {other.value}"
            return refuse_resume(run, "cannot_resume", message, subject=other.value)


def begin_effect(
    run: Run, *, op_key: str, owner: Owner, deadline_us: int, key_until_us: int | None, claims: RunClaimed | None
) -> tuple[RunEvent, ...]:
    """Return the events that make the intent durable: a claim first if another resumer held the run.

    The epoch of a claim is its own version, so this is valid only when appended at exactly `run.version`.
    """
    proposal = proposal_of(run)
    return (
        *((claims,) if claims is not None else ()),
        ProposalVerified(phase="resume", proposal_hash=proposal.hash),
        ResumeStarted(
            op_key=op_key,
            attempt=run.attempts + 1,
            epoch=claims.epoch if claims is not None else run.epoch,
            owner=owner,
            deadline_us=deadline_us,
            approval_hash=run.approval_hash or "",
            input_hash=proposal.hash,
            key_until_us=key_until_us,
        ),
    )


def claim(run: Run, *, owner: Owner, deadline_us: int, is_stray: bool) -> RunClaimed:
    """Return the claim of another resumer; valid only when appended at exactly `run.version`."""
    return RunClaimed(epoch=run.version + 1, owner=owner, deadline_us=deadline_us, is_stray=is_stray)


def found_out(run: Run, claims: RunClaimed | None, *, strays_are_over: bool) -> tuple[RunEvent, ...]:
    """Return what is known of an attempt, and is not recorded yet: that it has ended, or that nobody else may act.

    `claims` fences a resumer that has ended without a result and has not been found out yet: its outcome is unknown.
    """
    if claims is None and (run.strays_are_over or not strays_are_over):
        return ()
    action, key = _action_at_stake(run)
    why = run.unknown or "the attempt ended without a result"
    unknown = OutcomeUnknown(action=action, op_key=key, why=why, strays_are_over=strays_are_over)
    return (*((claims,) if claims is not None else ()), unknown)


def reconcile(
    run: Run,
    verdict: str,
    evidence: str,
    *,
    actor_source: str,
    result: Any = None,
    claims: RunClaimed | None = None,
    seen: Run | None = None,
    strays_are_over: bool = False,
) -> Accepted | Refusal:
    """Settle an outcome that nobody knows, by what a person has found out.

    `claims` is as for `found_out`; `strays_are_over` if everybody who was overruled is proved dead. `seen` is what the
    person decides from, if that was said: the run as it was then, a run without version if it had not asked yet. The
    verdict has to be about the attempt that was last then; and that nothing has happened can only have been seen when
    it was recorded that nobody may act any more. Raises InvalidInput (`invalid_verdict`, `invalid_argument`,
    `invalid_text`, `payload_too_large`).
    """
    require_run(run)
    _check_verdict(verdict, evidence, result)
    if not run.is_unknown and (claims is None or run.open_intent is None):
        message = f"the outcome of run {run.run_id!r} is not unknown: it is {run.status.value}"
        return refuse_transition(run, "outcome_not_unknown", f"reconcile:{verdict}", message)
    action, key = _action_at_stake(run)
    if verdict == "not_executed" and _is_known_to_have_happened(run, key):
        message = f"a resumer of run {run.run_id!r} that came late has reported that the effect happened"
        return refuse_transition(run, "verdict_contradicted", f"reconcile:{verdict}", message)
    if seen is not None and _is_stale(run, verdict, seen, strays_are_over=strays_are_over):
        return _stale(run, verdict, seen)
    settled = OutcomeReconciled(
        action=action,
        op_key=key,
        verdict=verdict,
        status=_status_after(run, verdict),
        evidence=evidence,
        actor_source=actor_source,
        result=result,
    )
    ended = found_out(run, claims, strays_are_over=strays_are_over) if claims is not None else ()
    return Accepted((*ended, settled))


def _is_stale(run: Run, verdict: str, seen: Run, *, strays_are_over: bool) -> bool:
    """Say whether an effect may have happened since the person looked, or is another one than the person saw."""
    if _attempt_at_stake(seen) != _attempt_at_stake(run):
        return True
    if verdict != "not_executed":
        return False  # what has happened has happened, and what is given up is not tried again
    return not seen.is_unknown or (strays_are_over and not seen.strays_are_over)


def _stale(run: Run, verdict: str, seen: Run) -> Refusal:
    _, attempt = _attempt_at_stake(run)
    message = (
        f"at version {seen.version} of run {run.run_id!r} it was not recorded yet that attempt {attempt} is over; "
        "look at the receiver again, now"
    )
    detail = f"version {seen.version}"
    return refuse_transition(run, "verdict_stale", f"reconcile:{verdict}", message, detail=detail, attempt=attempt)


def _attempt_at_stake(run: Run) -> tuple[str | None, int]:
    """Return the op_key and the number of the last attempt at what is at stake."""
    if run.compensation is not None:
        return run.compensation.op_key, run.compensation.attempts
    return run.op_key, run.attempts


def _rejected(run: Run) -> Refusal:
    error = ApprovalRejected(
        f"the proposal of run {run.run_id!r} was rejected",
        reason=run.decision_reason,
        actor=run.decided_by,
        run_id=run.run_id,
        status=run.status.value,
    )
    return Refusal(ResumeRejected(reason=error.code, status=run.status.value), error)


def _check_verdict(verdict: str, evidence: object, result: Any) -> None:
    if verdict not in VERDICTS:
        raise InvalidInput("invalid_verdict", f"a verdict is one of {', '.join(VERDICTS)}, not {verdict!r:.80}")
    if not isinstance(evidence, str) or not evidence.strip():
        raise InvalidInput("invalid_argument", "a verdict needs evidence: say how it was found out")
    check_supplied("evidence", evidence)
    if result is not None and verdict != "executed":
        raise InvalidInput("invalid_argument", f"only an executed effect has a result, not one that was {verdict}")


def _action_at_stake(run: Run) -> tuple[str, str]:
    """Return action and op_key of what is under way or unknown: the effect, or its undoing."""
    if run.compensation is not None:
        return run.compensation.action, run.compensation.op_key
    return proposal_of(run).action, run.op_key or ""


def _is_known_to_have_happened(run: Run, key: str) -> bool:
    late = run.late
    return late is not None and late.op_key == key and late.rejected in _HAPPENED


def _status_after(run: Run, verdict: str) -> Status:
    if run.is_cancelled:
        return Status.CANCELLED
    if run.compensation is not None:
        return Status.COMPENSATED if verdict == "executed" else Status.COMPLETED
    return {"executed": Status.COMPLETED, "not_executed": Status.APPROVED}.get(verdict, Status.CANCELLED)
