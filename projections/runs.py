"""The view `runs`: one row a run, in the columns that people look at and decide from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from eventlog.events import (
    RUN_PREFIX,
    ActionConflict,
    ActionExecuted,
    ActionFailed,
    ActionRecovered,
    ApprovalRecorded,
    CheckpointSaved,
    CompensationExecuted,
    CompensationFailed,
    CompensationStarted,
    OutcomeReconciled,
    OutcomeUnknown,
    ProposalRecorded,
    ResumeStarted,
)
from eventlog.log import RecordedEvent
from eventlog.proposal import Proposal, canonical_args
from projections.projection import Row

__all__ = ["RUNS", "RunsProjection"]

_COLUMNS: Final[Mapping[str, str]] = {
    "run_id": "TEXT PRIMARY KEY",
    "status": "TEXT NOT NULL",
    "request_id": "TEXT",
    "action": "TEXT",
    "args": "TEXT",
    "output": "TEXT",
    "proposal_hash": "TEXT",
    "approval": "TEXT",
    "approval_request_id": "TEXT",
    "approval_hash": "TEXT",
    "executed": "INTEGER NOT NULL",
    "version": "INTEGER NOT NULL",
}


class RunsProjection:
    """Folds the events of runs into the row of each run."""

    name: Final = "runs"
    revision: Final = 2  # 1 passed over what undoes an effect or settles an unknown one
    columns: Final = _COLUMNS
    event_types: Final = frozenset(
        {
            "action_conflict",
            "action_executed",
            "action_failed",
            "action_recovered",
            "approval_recorded",
            "checkpoint_saved",
            "compensation_executed",
            "compensation_failed",
            "compensation_started",
            "outcome_reconciled",
            "outcome_unknown",
            "proposal_recorded",
            "resume_started",
        }
    )

    def key(self, event: RecordedEvent) -> str | None:
        """Return the run's id, or None for an event outside the runs' streams."""
        return event.stream.removeprefix(RUN_PREFIX) if event.stream.startswith(RUN_PREFIX) else None

    def apply(self, row: Row | None, event: RecordedEvent) -> Row | None:
        """Return the row of the run as it is after `event`."""
        before = row or _first_row(event)
        if event.version <= before["version"]:
            return row  # applied already
        return {**before, **_changes(event.data), "version": event.version}


RUNS: Final = RunsProjection()


def _first_row(event: RecordedEvent) -> Row:
    row: Row = dict.fromkeys(_COLUMNS)
    run_id = event.stream.removeprefix(RUN_PREFIX)
    return {**row, "run_id": run_id, "status": "", "executed": 0, "version": 0}


def _changes(event: Any) -> Row:
    match event:
        case CheckpointSaved():
            return {"status": event.status.value}
        case ProposalRecorded():
            return _proposal_columns(event)
        case ApprovalRecorded(decision=decision, request_id=request_id, approval_hash=approval_hash):
            return {
                "status": "APPROVED" if decision == "approve" else "REJECTED",
                "approval": decision,
                "approval_request_id": request_id,
                "approval_hash": approval_hash,
            }
        case ActionExecuted() | ActionRecovered():
            return {"status": "COMPLETED", "executed": 1}
        case OutcomeUnknown():
            return {"status": "OUTCOME_UNKNOWN"}
        case OutcomeReconciled(status=status, verdict=verdict):
            return {"status": status.value, **({"executed": 1} if verdict == "executed" else {})}
        case CompensationStarted() | CompensationFailed():
            return {"status": "COMPLETED"}
        case CompensationExecuted():
            return {"status": "COMPENSATED"}
        case ActionFailed(is_final=True):
            return {"status": "FAILED"}
        case ActionConflict(code="idempotency_conflict"):
            return {"status": "OUTCOME_UNKNOWN"}
        case ResumeStarted() | ActionConflict() | ActionFailed():
            return {"status": "APPROVED"}
        case _:
            return {}


def _proposal_columns(event: ProposalRecorded) -> Row:
    canonical = bytes(event.proposal)
    proposal = Proposal.decode(canonical)
    return {
        "request_id": event.request_id,
        "action": proposal.action,
        "args": canonical_args(canonical),
        "output": proposal.output,
        "proposal_hash": event.proposal_hash,
    }
