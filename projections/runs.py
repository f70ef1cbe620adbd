"""The view `runs`: one row a run, in the columns that people look at and decide from.

A run of one action has its request in the row. A workflow run may have many requests: the row has the oldest that
waits for a decision, if there is one, and counts in `asks` how many wait for a person. `refusal` is the code of why
nobody could take the run up when that was tried last, as `definition_mismatch`; NULL once it has gone on since, or
ended.

What becomes of a workflow run hangs on more than its row shows: which of its waits are over, which request an edit has
replaced. That is kept in the column `state`, as `eventlog.progress` folds it, without what no row needs (steps, values,
results), so that the row and the fold of the whole run cannot part. Raise the revision when a state that an earlier
program has kept cannot be read any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from eventlog.events import (
    RUN_PREFIX,
    ActionConflict,
    ActionExecuted,
    ActionFailed,
    ActionRecovered,
    ApprovalExpired,
    ApprovalRecorded,
    ApprovalRevoked,
    CheckpointSaved,
    ChildFinished,
    CompensationExecuted,
    CompensationFailed,
    CompensationStarted,
    OutcomeReconciled,
    OutcomeUnknown,
    ProposalRecorded,
    ResumeRejected,
    ResumeStarted,
    RunCancelled,
    Status,
    Waiting,
)
from eventlog.progress import Child, Progress, Stored, advance, requests_of
from eventlog.proposal import canonical_args, stored_proposal
from eventlog.run import Run
from eventlog.views import ViewEvent
from projections.projection import Row, RowProjection
from projections.run_refusals import NOT_REFUSED, is_overcome, refusal_columns

__all__ = ["RUNS", "RunsProjection", "wanted_requests"]

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
    "workflow": "TEXT",
    "parent_run_id": "TEXT",
    "root_run_id": "TEXT",
    "waiting_for": "TEXT",
    "expires_at_us": "INTEGER",
    "asks": "INTEGER NOT NULL",
    "is_cancelled": "INTEGER NOT NULL",
    "refusal": "TEXT",
    "refusal_detail": "TEXT",
    "refused_at_us": "INTEGER",
    "state": "TEXT",
    "version": "INTEGER NOT NULL",
}
_WANTED: Final = {"WAITING_FOR_USER": "approval", "OUTCOME_UNKNOWN": "outcome"}
"""What a run of one action waits for, by its status."""
_CLOSED: Final = frozenset({Status.COMPLETED, Status.CANCELLED, Status.REJECTED, Status.EXPIRED})
"""How a workflow run has ended where no decision on what it left open can help it any more."""


class RunsProjection(RowProjection):
    """Folds the events of runs into the row of each run."""

    name = "runs"
    revision = 4  # 1 passed over what undoes an effect or settles an unknown one, 2 over workflow runs, 3 over refusals
    columns = _COLUMNS
    stream_prefix = RUN_PREFIX
    event_types = frozenset(
        {
            "action_conflict",
            "action_executed",
            "action_failed",
            "action_recovered",
            "approval_expired",
            "approval_recorded",
            "approval_revoked",
            "checkpoint_saved",
            "child_finished",
            "compensation_executed",
            "compensation_failed",
            "compensation_started",
            "outcome_reconciled",
            "outcome_unknown",
            "proposal_recorded",
            "resume_rejected",
            "resume_started",
            "run_cancelled",
            "run_claimed",
            "run_completed",
            "run_failed",
            "signal_received",
        }
    )

    def key(self, event: ViewEvent) -> str | None:
        """Return the run's id, or None for an event outside the runs' streams."""
        return event.stream.removeprefix(RUN_PREFIX) if event.stream.startswith(RUN_PREFIX) else None

    def apply(self, row: Row | None, event: ViewEvent) -> Row | None:
        """Return the row of the run as it is after `event`."""
        before = row or _first_row(event)
        if event.version <= before["version"]:
            return row  # applied already
        if isinstance(event.data, ResumeRejected):
            return {**before, **refusal_columns(before, event), "version": event.version}
        fold = _workflow_changes if before["state"] is not None or _begins_workflow(event.data) else _changes
        after = {**before, **fold(before, event), "version": event.version}
        is_over = after["refusal"] is not None and is_overcome(after, event.data)
        return {**after, **NOT_REFUSED} if is_over else after


RUNS: Final = RunsProjection()


def wanted_requests(run: Run) -> tuple[Run, ...]:
    """Return the requests of a run for which a person is wanted, the oldest first: to decide, or to reconcile."""
    is_closed = run.progress is not None and run.status in _CLOSED
    return tuple(
        request
        for request in requests_of(run)
        if request.is_unknown or (request.status is Status.WAITING_FOR_USER and not is_closed)
    )


def _first_row(event: ViewEvent) -> Row:
    row: Row = dict.fromkeys(_COLUMNS)
    run_id = event.stream.removeprefix(RUN_PREFIX)
    return {**row, "run_id": run_id, "status": "", "executed": 0, "asks": 0, "is_cancelled": 0, "version": 0}


# ── a run of one action ──────────────────────────────────────────────────────────────────────────────────────────────


def _changes(row: Row, recorded: ViewEvent) -> Row:
    if isinstance(recorded.data, RunCancelled):
        return _cancelled(row)
    changes = _request_changes(recorded.data)
    if "status" not in changes:
        return changes
    wanted = _WANTED.get(changes["status"])
    changes["asks"] = int(wanted is not None)
    if row["is_cancelled"] and changes["status"] != row["status"]:
        changes["status"] = "CANCELLED"
    action = changes.get("action", row["action"])
    changes["waiting_for"] = None if wanted is None or changes["status"] == "CANCELLED" else _said(wanted, action)
    return changes


def _said(what: str, of: str | None) -> str:
    return what if of is None else f"{what} of {of}"


def _cancelled(row: Row) -> Row:
    """What has ended stays as it ended; what nobody knows waits for who settles it."""
    if row["status"] in ("WAITING_FOR_USER", "APPROVED"):
        return {"status": "CANCELLED", "is_cancelled": 1, "asks": 0, "waiting_for": None}
    return {"is_cancelled": 1} if row["status"] == "OUTCOME_UNKNOWN" else {}


def _request_changes(event: Any) -> Row:
    match event:
        case CheckpointSaved():
            return {"status": event.status.value}
        case ProposalRecorded():
            return _proposal_columns(event)
        case ApprovalRecorded(is_deciding=False):
            return {}
        case ApprovalRecorded(decision=decision, request_id=request_id, approval_hash=approval_hash):
            return {
                "status": "APPROVED" if decision == "approve" else "REJECTED",
                "approval": decision,
                "approval_request_id": request_id,
                "approval_hash": approval_hash,
            }
        case ApprovalExpired():
            return {"status": "EXPIRED"}
        case ApprovalRevoked():
            return dict(_UNDECIDED)
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


_UNDECIDED: Final[Mapping[str, Any]] = {
    "status": "WAITING_FOR_USER",
    "approval": None,
    "approval_request_id": None,
    "approval_hash": None,
}


def _proposal_columns(event: ProposalRecorded) -> Row:
    canonical = bytes(event.proposal)
    proposal = stored_proposal(canonical)
    asked = {
        "request_id": event.request_id,
        "action": proposal.action,
        "args": canonical_args(canonical),
        "output": proposal.output,
        "proposal_hash": event.proposal_hash,
        "expires_at_us": event.expires_at_us,
    }
    if event.supersedes is not None:
        return {**asked, **_UNDECIDED, "executed": 0}
    return {**asked, "waiting_for": _said("approval", proposal.action)}


# ── a workflow run ───────────────────────────────────────────────────────────────────────────────────────────────────


class _State(msgspec.Struct, frozen=True):
    """A run whose progress stands beside it, so that decoding knows the type of each."""

    run: Run
    progress: Progress


_decode_state: Final = msgspec.json.Decoder(_State).decode


def _run_of(row: Row) -> Run:
    """Return the run as far as its row keeps it."""
    if row["state"] is None:
        return Run(run_id=row["run_id"])
    state = _decode_state(row["state"])
    return replace(state.run, progress=state.progress)


def _state_of(run: Run) -> str:
    return msgspec.json.encode(_State(replace(run, progress=None), run.progress)).decode()


def _begins_workflow(event: Any) -> bool:
    return isinstance(event, CheckpointSaved) and event.definition is not None


def _workflow_changes(row: Row, recorded: ViewEvent) -> Row:
    """Return the columns that the event changes. The others stay as they are, also where somebody has edited them."""
    run = _run_of(row)
    shown = _workflow_columns(run) if run.progress is not None else {}
    event = recorded.data
    if isinstance(event, ChildFinished):
        _know_child(run, event)
    run = advance(run, event, version=recorded.version, at_us=recorded.recorded_at_us, actor=recorded.actor)
    run = _without_what_no_row_needs(run)
    columns = _workflow_columns(run)
    changes = {name: value for name, value in columns.items() if name not in shown or shown[name] != value}
    return {**changes, "state": _state_of(run)}


def _know_child(run: Run, event: ChildFinished) -> None:
    """Bring in the child that has ended, if the run waits for it: of the others its row keeps nothing."""
    progress: Progress = run.progress
    if any(wait.type == "child" and wait.node_id == event.key for wait in progress.waits):
        progress.children[event.key] = Child(run_id=event.child_run_id, workflow="", relation="child")


def _without_what_no_row_needs(run: Run) -> Run:
    """Return the run with what decides about later rows: its waits, its owner, the requests that are not done."""
    progress: Progress = run.progress
    requests = {
        key: replace(request, result=None, late=None, problem=None, compensation=None)
        for key, request in progress.requests.items()
        if request.status is not Status.COMPLETED
    }
    slim = Progress(
        definition=replace(progress.definition, steps=()),
        input=Stored(),
        parent=progress.parent,
        owner=progress.owner,
        requests=requests,
        evidence={key: [] for key in requests},
        waits=progress.waits,
        arrived=progress.arrived,
    )
    return replace(run, progress=slim, failure=None)


def _workflow_columns(run: Run) -> Row:
    progress: Progress = run.progress
    wanted = wanted_requests(run)
    pending = next((request for request in wanted if request.status is Status.WAITING_FOR_USER), None)
    return {
        "status": run.status.value,
        **_pending_columns(pending),
        "workflow": progress.definition.workflow,
        "parent_run_id": progress.parent.run_id if progress.parent is not None else None,
        "root_run_id": run.root_run_id,
        "waiting_for": "; ".join(map(_wait_text, progress.waits)) or None,
        "asks": len(wanted),
        "is_cancelled": int(run.status is Status.CANCELLED),
    }


def _pending_columns(request: Run | None) -> Row:
    proposal = request.proposal if request is not None else None
    if request is None or proposal is None:
        return dict.fromkeys(("request_id", "action", "args", "output", "proposal_hash", "expires_at_us"))
    return {
        "request_id": request.request_id,
        "action": proposal.action,
        "args": canonical_args(proposal.canonical),
        "output": proposal.output,
        "proposal_hash": request.proposal_hash,
        "expires_at_us": request.expires_at_us,
    }


def _wait_text(wait: Waiting) -> str:
    match wait.type:
        case "signal":
            return f"signal {wait.signal}"
        case "timer":
            return f"timer {wait.node_id}"
        case "child":
            return f"child {wait.child_run_id}"
        case _:
            return _said(wait.type, wait.node_id)
