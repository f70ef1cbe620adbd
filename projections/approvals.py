"""The view `approvals`: every request that was ever made to a person, one row each; those to be answered are the inbox.

    status        what has become of the request
    waiting       nobody has decided; of several approvals some may have been `given`
    approved      it may be acted on
    rejected      somebody said no
    expired       nobody decided in time
    superseded    an edit has put another request in its place
    spent         its effect has begun under the approval (what came of it is in the view `effects`)
    cancelled     the run was cancelled before that
    closed        the workflow ended before that, without the effect

A revocation makes a request `waiting` again. `wanted` is what a person is wanted for: `decide` on a request that waits;
`reconcile`, if nobody knows what became of its effect or of what undoes it (`at_stake` is the name of that action);
NULL for nothing. `expires_at_us` may have passed: that nobody decided in time is a fact once an event says so.

`step` is the step key, empty in a run of one action; `args` is canonical JSON text, whole; `roles` a JSON list, NULL
for anybody; `required` and `given` are numbers of approvals, `required_level` is the least that each has to be. `level`
is what the log says of the one that decided; whether that holds is said by `eventlog verify`. `decided_by` is NULL
where a rule decided (`actor_source` is `policy`). The workflow of a run, and the run that started it, are in its row of
`runs`: no event of a request names them, and `projections.inbox` puts both together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from eventlog.events import (
    RUN_PREFIX,
    ActionConflict,
    ActionExecuted,
    ActionFailed,
    ActionRecovered,
    ApprovalExpired,
    ApprovalRecorded,
    ApprovalRevoked,
    CompensationExecuted,
    CompensationFailed,
    CompensationStarted,
    OutcomeReconciled,
    OutcomeUnknown,
    PolicyTerms,
    ProposalRecorded,
    ResumeStarted,
    RunCancelled,
    RunCompleted,
    RunFailed,
    Status,
)
from eventlog.proposal import canonical_args, stored_proposal
from eventlog.views import ViewEvent
from projections.projection import GroupProjection, Key, Row

__all__ = ["APPROVALS", "ApprovalsProjection"]

_COLUMNS: Final[Mapping[str, str]] = {
    "run_id": "TEXT NOT NULL",
    "step": "TEXT NOT NULL",
    "request_id": "TEXT NOT NULL",
    "status": "TEXT NOT NULL",
    "wanted": "TEXT",
    "at_stake": "TEXT",
    "action": "TEXT NOT NULL",
    "args": "TEXT NOT NULL",
    "output": "TEXT NOT NULL",
    "folder": "TEXT",
    "proposal_hash": "TEXT NOT NULL",
    "required": "INTEGER NOT NULL",
    "given": "INTEGER NOT NULL",
    "roles": "TEXT",
    "separation_of_duties": "INTEGER NOT NULL",
    "required_level": "INTEGER NOT NULL",
    "rule_failed": "TEXT",
    "expires_at_us": "INTEGER",
    "supersedes": "TEXT",
    "asked_at_us": "INTEGER NOT NULL",
    "asked_by": "TEXT NOT NULL",
    "decided_at_us": "INTEGER",
    "decided_by": "TEXT",
    "actor_source": "TEXT",
    "level": "INTEGER",
    "decision": "TEXT",
    "reason": "TEXT",
}
_ENDS: Final = frozenset({"run_cancelled", "run_completed", "run_failed"})
_OPEN: Final = frozenset({"waiting", "approved"})
"""What the end of a run still changes."""
_UNDECIDED: Final[Mapping[str, Any]] = {
    "status": "waiting",
    "wanted": "decide",
    "given": 0,
    "decided_at_us": None,
    "decided_by": None,
    "actor_source": None,
    "level": None,
    "decision": None,
    "reason": None,
}
_KNOWN: Final[Mapping[str, Any]] = {"wanted": None, "at_stake": None}
_DECIDED: Final = {"approve": "approved", "reject": "rejected"}


class ApprovalsProjection(GroupProjection):
    """Folds what is said about requests into the row of each.

    A group is what one step has asked for: the edits of one request. Only the end of a run concerns all of its groups.
    """

    name = "approvals"
    revision = 2
    columns = _COLUMNS
    key_columns = 3
    group_columns = 2
    stream_prefix = RUN_PREFIX
    indexes = ("wanted",)
    event_types = frozenset(
        {
            "action_conflict",
            "action_executed",
            "action_failed",
            "action_recovered",
            "approval_expired",
            "approval_recorded",
            "approval_revoked",
            "compensation_executed",
            "compensation_failed",
            "compensation_started",
            "outcome_reconciled",
            "outcome_unknown",
            "proposal_recorded",
            "resume_started",
            "run_cancelled",
            "run_completed",
            "run_failed",
        }
    )

    def group(self, event: ViewEvent) -> str | tuple[str, str]:
        """Return the run's id and the step, or for the end of a run its id alone."""
        run_id = event.stream.removeprefix(RUN_PREFIX)
        return run_id if event.type in _ENDS else (run_id, event.data.step or "")

    def apply(self, rows: Mapping[Key, Row], event: ViewEvent) -> Iterable[Row]:
        """Return the rows of the requests that the event is about, or that it ends."""
        match event.data:
            case ProposalRecorded(supersedes=superseded):
                return _asked(rows, event, superseded)
            case RunCancelled():
                return list(_ended(rows, "cancelled"))
            case RunCompleted():
                return list(_ended(rows, "closed"))
            case RunFailed(status=status):  # one that FAILED can be taken up again: its requests are waited for
                return [] if status is Status.FAILED else list(_ended(rows, "closed"))
            case _:
                row = _current(rows)
                changes = {} if row is None else _changes(row, event)
                return [{**row, **changes}] if row is not None and changes else []


APPROVALS: Final = ApprovalsProjection()


def _current(rows: Mapping[Key, Row]) -> Row | None:
    """Return the request of a step that no edit has replaced."""
    return next((row for row in rows.values() if row["status"] != "superseded"), None)


def _asked(rows: Mapping[Key, Row], recorded: ViewEvent, superseded: str | None) -> list[Row]:
    event: ProposalRecorded = recorded.data
    run_id, step = recorded.stream.removeprefix(RUN_PREFIX), event.step or ""
    before = rows.get((run_id, step, superseded)) if superseded is not None else None
    replaced = [] if before is None else [{**before, "status": "superseded", "wanted": None}]
    canonical = bytes(event.proposal)
    proposal = stored_proposal(canonical)
    policy = event.policy or PolicyTerms()
    asked = {
        "run_id": run_id,
        "request_id": event.request_id,
        "at_stake": None,
        "step": step,
        "action": proposal.action,
        "args": canonical_args(canonical),
        "output": proposal.output,
        "folder": event.folder,
        "proposal_hash": event.proposal_hash,
        "required": policy.required,
        "roles": msgspec.json.encode(policy.roles).decode() if policy.roles else None,
        "separation_of_duties": int(policy.separation_of_duties),
        "required_level": policy.level,
        "rule_failed": event.rule_failed,
        "expires_at_us": event.expires_at_us,
        "supersedes": superseded,
        "asked_at_us": recorded.recorded_at_us,
        "asked_by": recorded.actor,
        **_UNDECIDED,
    }
    return [*replaced, asked]


def _ended(rows: Mapping[Key, Row], status: str) -> Iterator[Row]:
    """Give the rows of the requests that nobody can act on any more."""
    for row in rows.values():
        if row["status"] in _OPEN:
            yield {**row, "status": status, "wanted": None}


def _changes(row: Row, recorded: ViewEvent) -> Row:
    match recorded.data:
        case ApprovalRecorded() as vote:
            return _voted(row, vote, recorded)
        case ApprovalExpired():
            return {"status": "expired", "wanted": None}
        case ApprovalRevoked():
            return dict(_UNDECIDED)
        case ResumeStarted():
            return {"status": "spent", **_KNOWN}
        case OutcomeUnknown(action=action) | ActionConflict(action=action, code="idempotency_conflict"):
            return {"wanted": "reconcile", "at_stake": action}
        case ActionExecuted() | ActionRecovered() | ActionFailed() | ActionConflict() | OutcomeReconciled():
            return _known(row)
        case CompensationStarted() | CompensationExecuted() | CompensationFailed():
            return _known(row)
        case _:
            return {}


def _voted(row: Row, vote: ApprovalRecorded, recorded: ViewEvent) -> Row:
    given = {"given": row["given"] + (vote.decision == "approve")}
    if not vote.is_deciding:
        return given
    return given | {
        "status": _DECIDED.get(vote.decision, vote.decision),
        "wanted": None,
        "decided_at_us": recorded.recorded_at_us,
        "decided_by": None if vote.actor_source == "policy" else recorded.actor,
        "actor_source": vote.actor_source,
        "level": vote.level,
        "decision": vote.decision,
        "reason": vote.reason,
    }


def _known(row: Row) -> Row:
    """What became of the effect, or of its undoing, is known, if it was not before."""
    return {} if row["at_stake"] is None else dict(_KNOWN)
