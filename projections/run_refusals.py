"""Why nobody could take a run up when that was tried last, as the row of the run has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from eventlog.events import ResumeRejected, ResumeStarted, RunClaimed
from eventlog.progress import ENDED
from eventlog.views import ViewEvent
from projections.projection import Row

__all__ = ["NOT_REFUSED", "OF_THE_RUN", "is_overcome", "refusal_columns"]

OF_THE_RUN: Final = frozenset(
    {"approval_expired", "approval_rejected", "approval_required", "cannot_resume", "outcome_unknown"}
)
"""Reasons why a resume is refused that the run's status says already; they are kept in no column."""

NOT_REFUSED: Final[Mapping[str, None]] = {"refusal": None, "refusal_detail": None, "refused_at_us": None}
"""The columns of a run that has gone on since, or was never refused."""


def refusal_columns(row: Row, recorded: ViewEvent) -> Row:
    """Return what a refused resume changes in the row of the run. A run that has ended is not to be taken up."""
    event: ResumeRejected = recorded.data
    if event.step is not None or event.reason in OF_THE_RUN or row["status"] in ENDED:
        return {}
    return {"refusal": event.reason, "refusal_detail": event.detail, "refused_at_us": recorded.recorded_at_us}


def is_overcome(row: Row, event: Any) -> bool:
    """Say whether the run, whose row this is behind the event, has gone on or ended with it.

    Who takes up a run of a workflow claims it first; one of one action may begin without.
    """
    has_begun = isinstance(event, ResumeStarted) and row["workflow"] is None
    return has_begun or isinstance(event, RunClaimed) or row["status"] in ENDED
