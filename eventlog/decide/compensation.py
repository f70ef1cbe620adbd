"""Undoing an effect that was executed."""

from __future__ import annotations

from eventlog.decide.answers import Refusal, check_supplied, proposal_of, refuse_transition, require_run
from eventlog.decide.frozen import compare_frozen
from eventlog.events import CompensationStarted, Owner, RunClaimed, RunEvent
from eventlog.run import Run, Status

__all__ = ["begin_compensation", "compensate"]


def compensate(run: Run, undoing: str | None, reason: str | None = None) -> Refusal | None:
    """Decide whether the run's effect may be undone by the action `undoing`; None if it may.

    Raises InvalidInput (`invalid_text`, `payload_too_large`) for a reason that could not be recorded.
    """
    require_run(run)
    check_supplied("reason", reason or "")
    is_unknown = run.status is Status.OUTCOME_UNKNOWN and run.compensation is not None
    if not is_unknown and (run.status is not Status.COMPLETED or not run.executed):
        why = f"run {run.run_id!r} has nothing to undo: it is {run.status.value}"
    elif undoing is None:
        why = f"the action {proposal_of(run).action!r} names no action that undoes it"
    elif run.compensation is not None and run.compensation.is_settled:
        why = f"undoing the effect of run {run.run_id!r} has been given up"
    elif run.compensation is not None and run.compensation.action != undoing:
        why = f"undoing run {run.run_id!r} has begun with {run.compensation.action!r}, not {undoing!r}"
    elif run.not_stored is not None:
        why = f"the log does not hold what the effect of run {run.run_id!r} returned: {run.not_stored}"
    else:
        # Whether the receiver of an unknown outcome can be asked is for the runtime to know.
        frozen = compare_frozen(run, None)
        return frozen if isinstance(frozen, Refusal) else None
    return refuse_transition(run, "cannot_compensate", "compensate", why)


def begin_compensation(
    run: Run,
    undoing: str,
    *,
    op_key: str,
    owner: Owner,
    deadline_us: int,
    key_until_us: int | None,
    claims: RunClaimed | None,
    reason: str | None,
) -> tuple[RunEvent, ...]:
    """Return the events that make the intent to undo the effect durable; valid as those of `begin_effect`."""
    attempts = run.compensation.attempts if run.compensation is not None else 0
    return (
        *((claims,) if claims is not None else ()),
        CompensationStarted(
            action=undoing,
            op_key=op_key,
            compensates=run.op_key or "",
            attempt=attempts + 1,
            epoch=claims.epoch if claims is not None else run.epoch,
            owner=owner,
            deadline_us=deadline_us,
            input_hash=proposal_of(run).hash,
            reason=reason,
            key_until_us=key_until_us,
        ),
    )
