"""What a command comes to: events, a refusal, or a replay; and how a refusal is told."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from eventlog.errors import InvalidInput, Refused
from eventlog.events import ActionReplayed, ResumeRejected, RunEvent, TransitionRejected
from eventlog.plain import check_id, check_text
from eventlog.proposal import Proposal
from eventlog.run import Run

__all__ = [
    "MAX_SUPPLIED",
    "Accepted",
    "Refusal",
    "Replay",
    "check_run_id",
    "check_supplied",
    "decision_facts",
    "proposal_of",
    "refuse_resume",
    "refuse_transition",
    "request_id_of",
    "require_run",
    "time_text",
]

MAX_SUPPLIED: Final = 1024
"""How many characters of what a caller supplies an event holds."""


class Accepted(msgspec.Struct, frozen=True):
    """The command is allowed; these events say what it changes."""

    events: tuple[RunEvent, ...]


class Refusal(msgspec.Struct, frozen=True):
    """The command is refused: append `event`, then raise `error`."""

    event: RunEvent
    error: Refused


class Replay(msgspec.Struct, frozen=True):
    """The run has ended, and how is stored in it; append `event` and do nothing else."""

    event: ActionReplayed


def check_run_id(run_id: object) -> str:
    """Return `run_id` if it can name a run; raises InvalidInput(`invalid_id`)."""
    return check_id(run_id, "run id", max_bytes=500)


def require_run(run: Run) -> None:
    """Raise Refused(`unknown_run`) if the run has no events."""
    if run.version == 0:
        raise Refused("unknown_run", f"there is no run {run.run_id!r}", subject=run.run_id, run_id=run.run_id)


def check_supplied(name: str, text: str) -> None:
    """Raise InvalidInput (`invalid_text`, `payload_too_large`) for a text that an event could not hold."""
    check_text(text, f"$.{name}")
    if len(text) > MAX_SUPPLIED:
        raise InvalidInput("payload_too_large", f"more than {MAX_SUPPLIED} characters", path=f"$.{name}")


def refuse_resume(run: Run, code: str, message: str, **facts: Any) -> Refusal:
    """Return the refusal of a resume for the reason `code`."""
    return Refusal(
        ResumeRejected(
            reason=code, status=run.status.value, detail=facts.pop("detail", None), viewed=facts.get("viewed")
        ),
        Refused(code, message, run_id=run.run_id, status=run.status.value, **facts),
    )


def refuse_transition(
    run: Run, code: str, attempted: str, message: str, *, supplied_hash: str | None = None, **facts: Any
) -> Refusal:
    """Return the refusal of a command for the reason `code`. `facts` are for the error; `detail` is for the event."""
    return Refusal(
        TransitionRejected(
            reason=code,
            attempted_decision=attempted,
            current_status=run.status.value,
            existing_approval=run.approval,
            supplied_hash=supplied_hash,
            detail=facts.pop("detail", None),
        ),
        Refused(code, message, run_id=run.run_id, status=run.status.value, **facts),
    )


def decision_facts(run: Run) -> dict[str, Any]:
    """Return the recorded decision as an error tells it; nothing if nobody has decided."""
    if run.approval is None:
        return {}
    return {
        "existing_approval": run.approval,
        "decided_by": run.decided_by,
        "decided_at": None if run.decided_at_us is None else time_text(run.decided_at_us),
        "reason": run.decision_reason,
    }


def time_text(at_us: int) -> str:
    """Return microseconds UTC as ISO 8601."""
    try:
        seconds, microseconds = divmod(at_us, 1_000_000)
        return datetime.fromtimestamp(seconds, UTC).replace(microsecond=microseconds).isoformat()
    except (OverflowError, OSError, ValueError):
        return f"{at_us} µs"  # a time that no calendar holds


def proposal_of(run: Run) -> Proposal:
    """Return what the run asks to do."""
    assert run.proposal is not None, "the first append of a run records its proposal"
    return run.proposal


def request_id_of(run: Run) -> str:
    """Return the question that the run asks."""
    assert run.request_id is not None, "the first append of a run records its request"
    return run.request_id
