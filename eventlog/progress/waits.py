"""What a paused run waits for, and what of that has come."""

from __future__ import annotations

from typing import Any, Final

from eventlog.events import Status, Waiting
from eventlog.progress.state import Progress
from eventlog.run import Run

__all__ = ["asked_again", "resolved"]

_STATUS_OF: Final = {
    "approval": Status.WAITING_FOR_USER,
    "outcome": Status.OUTCOME_UNKNOWN,
    "signal": Status.WAITING,
    "timer": Status.WAITING,
    "retry": Status.WAITING,
    "child": Status.WAITING,
}


def asked_again(progress: Progress, key: str, request: Run) -> dict[str, Any]:
    """A request that was edited, or whose approval was revoked, is waited for as it is now.

    Not in a run that does not pause, but is driven, or was given free in the middle: it may have other things to do.
    """
    if progress.owner is not None or not (progress.waits or progress.arrived):
        return {}
    asked = Waiting(type="approval", node_id=key, approval_id=request.request_id, due_us=request.expires_at_us)
    others = tuple(wait for wait in progress.waits if wait.node_id != key)
    was_first = bool(progress.waits) and progress.waits[0].node_id == key
    progress.waits = (asked, *others) if was_first else (*others, asked)
    progress.arrived = tuple(each for each in progress.arrived if each != key)
    return _waiting_now(progress)


def resolved(progress: Progress, key: str) -> dict[str, Any]:
    """Something that a paused run waits for has come."""
    if not any(wait.node_id == key for wait in progress.waits):
        return {}
    progress.waits = tuple(wait for wait in progress.waits if wait.node_id != key)
    progress.arrived = (*progress.arrived, key)
    return _waiting_now(progress)


def _waiting_now(progress: Progress) -> dict[str, Any]:
    """Return the status of a paused run: what people are wanted for stands before what comes by itself."""
    statuses = [_STATUS_OF[wait.type] for wait in progress.waits]
    for status in (Status.WAITING_FOR_USER, Status.OUTCOME_UNKNOWN):
        if status in statuses:
            return {"status": status, "waiting": progress.waits[0]}
    is_going_on = progress.is_ready or not statuses
    return {
        "status": Status.RUNNING if is_going_on else Status.WAITING,
        "waiting": progress.waits[0] if progress.waits else None,
    }
