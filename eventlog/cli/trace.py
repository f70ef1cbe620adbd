"""The trace of a run: its events as short items, with the keys that the frozen commands promise.

An item has the event's type and what a person needs to follow the run; the log holds the rest. A promised key without
a value is null. Texts of any length (arguments, contents, messages) are cut to 200 characters here, ids and hashes
never.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final, assert_never

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
    OutcomeReconciled,
    OutcomeUnknown,
    ProposalRecorded,
    ProposalRejected,
    ProposalVerified,
    ResultRejected,
    ResumeRejected,
    ResumeStarted,
    RunClaimed,
    RunEvent,
    TransitionRejected,
)
from eventlog.log import RecordedEvent
from eventlog.proposal import Proposal

__all__ = ["trace_item", "trace_of"]

_MAX_TEXT: Final = 200

Item = dict[str, Any]


def trace_of(events: Iterable[RecordedEvent]) -> list[Item]:
    """Return the items of the events of one run, in order. All of them must be of known types."""
    items: list[Item] = []
    args: str | None = None
    for event in events:
        if isinstance(event.data, ProposalRecorded):
            args = _args_text(event.data)
        items.append(trace_item(event.type, event.data, args))
    return items


def trace_item(type_name: str, event: RunEvent, args: str | None = None) -> Item:
    """Return one item. `args` is the text of the arguments that the run's proposal has at this point."""
    return {"event": type_name, **_details(event, args)}


def _details(event: RunEvent, args: str | None) -> Item:
    match event:
        case CheckpointSaved(status=status):
            return {"status": status}
        case ProposalRecorded(proposal_hash=proposal_hash):
            return {"proposal_hash": proposal_hash}
        case ProposalVerified(phase=phase, proposal_hash=proposal_hash):
            return {"phase": phase, "proposal_hash": proposal_hash}
        case ProposalRejected():
            return {"phase": event.phase, "reason": event.reason, "action": event.action, **_differing(event, args)}
        case ApprovalRecorded(request_id=request_id, decision=decision):
            return {"request_id": request_id, "decision": decision}
        case TransitionRejected():
            return _transition(event)
        case ResumeRejected(reason=reason, status=status):
            return {"reason": reason, "status": status}
        case ResumeStarted():
            return {}
        case ActionExecuted(action=action) | ActionRecovered(action=action):
            return {"action": action}
        case ActionReplayed(reason=reason):
            return {"reason": reason}
        case ActionConflict():
            return _conflict(event)
        case ActionFailed(action=action, error=error):
            return {"action": action, "code": error.code, "message": _cut(error.message)}
        case OutcomeUnknown(action=action, why=why):
            return {"action": action, "why": _cut(why)}
        case ResultRejected(reason=reason, rejected=rejected):
            return {"reason": reason, "rejected": rejected}
        case OutcomeReconciled(action=action, verdict=verdict, evidence=evidence):
            return {"action": action, "verdict": verdict, "evidence": _cut(evidence)}
        case CompensationStarted(action=action, compensates=compensates):
            return {"action": action, "compensates": compensates}
        case CompensationExecuted(action=action, compensates=compensates):
            return {"action": action, "compensates": compensates}
        case CompensationFailed(action=action, error=error):
            return {"action": action, "code": error.code, "message": _cut(error.message)}
        case RunClaimed(epoch=epoch):
            return {"epoch": epoch}
        case _:
            assert_never(event)


def _differing(event: ProposalRejected, args: str | None) -> Item:
    """Return what differs: what was supplied at an approval, or the pair that a resume compared."""
    if event.phase == "approval":
        return {
            "supplied_hash": event.supplied_hash,
            "current_hash": event.current_hash,
            "stored_hash": event.stored_hash,
            "args": args,
            "output": event.output,
        }
    match event.reason:
        case "output_mismatch":
            return {"current_output": event.current_output, "approved_output": event.approved_output}
        case "approval_request_mismatch":
            return {"current_request_id": event.current_request_id, "approved_request_id": event.approved_request_id}
        case _:
            return {
                "current_hash": event.current_hash,
                "stored_hash": event.stored_hash,
                "approval_hash": event.approval_hash,
            }


def _transition(event: TransitionRejected) -> Item:
    return {
        "reason": event.reason,
        "current_status": event.current_status,
        "existing_approval": event.existing_approval,
        "attempted_decision": event.attempted_decision,
        "supplied_hash": event.supplied_hash,
    }


def _conflict(event: ActionConflict) -> Item:
    return {
        "reason": event.reason,
        "expected_content_hash": event.expected_content_hash,
        "existing_content_hash": event.existing_content_hash,
        "expected_content": _cut(event.expected_content),
        "existing_content": _cut(event.existing_content),
    }


def _args_text(event: ProposalRecorded) -> str | None:
    args = Proposal.decode(bytes(event.proposal)).args
    return _cut(json.dumps(args, ensure_ascii=False, sort_keys=True))


def _cut(text: str | None) -> str | None:
    return None if text is None else text[:_MAX_TEXT]
