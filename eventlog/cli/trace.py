"""The trace of a run: its events as short items, with the keys that the frozen commands promise.

An item has the event's type and what a person needs to follow the run; the log holds the rest. A promised key without
a value is null; a key that nobody was promised is there if it has one. Texts of any length (arguments, contents,
messages) are cut to 200 characters here, ids and hashes never.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final, assert_never

from eventlog.cli.output import time_text
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
    OfRequest,
    OutcomeReconciled,
    OutcomeUnknown,
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
    StepCompleted,
    StepFailed,
    StepStarted,
    TimerFired,
    TimerSet,
    TransitionRejected,
    Waiting,
)
from eventlog.log import RecordedEvent
from eventlog.proposal import stored_proposal

__all__ = ["trace_item", "trace_of"]

_MAX_TEXT: Final = 200

Item = dict[str, Any]


def trace_of(events: Iterable[RecordedEvent]) -> list[Item]:
    """Return the items of the events of one run, in order. All of them must be of known types."""
    items: list[Item] = []
    args: dict[str | None, str | None] = {}
    for event in events:
        step = event.data.step if isinstance(event.data, OfRequest) else None
        if isinstance(event.data, ProposalRecorded):
            args[step] = _args_text(event.data)
        items.append(trace_item(event.type, event.data, args.get(step)))
    return items


def trace_item(type_name: str, event: RunEvent, args: str | None = None) -> Item:
    """Return one item. `args` is the text of the arguments that the request's proposal has at this point."""
    step = {"step": event.step} if isinstance(event, OfRequest) and event.step is not None else {}
    return {"event": type_name, **step, **_details(event, args)}


def _details(event: RunEvent, args: str | None) -> Item:
    match event:
        case CheckpointSaved():
            return _checkpoint(event)
        case ProposalRecorded():
            return _proposal(event)
        case ProposalVerified(phase=phase, proposal_hash=proposal_hash):
            return {"phase": phase, "proposal_hash": proposal_hash}
        case ProposalRejected():
            return {"phase": event.phase, "reason": event.reason, "action": event.action, **_differing(event, args)}
        case ApprovalRecorded():
            return _decision(event)
        case ApprovalExpired(request_id=request_id, expires_at_us=expires_at_us):
            return {"request_id": request_id, "expires_at": time_text(expires_at_us)}
        case ApprovalRevoked(request_id=request_id, reason=reason):
            return {"request_id": request_id, **_there(reason=_cut(reason))}
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
        case RunClaimed(epoch=epoch) | ClaimRenewed(epoch=epoch):
            return {"epoch": epoch}
        case RunCancelled(reason=reason):
            return _there(reason=_cut(reason))
        case RunFailed(status=status, error=error):
            return {"status": status, "code": error.code, "message": _cut(error.message), **_there(type=error.type)}
        case RunCompleted():
            return _there(artifact=event.artifact)
        case _:
            return _step_details(event)


def _step_details(
    event: StepStarted
    | StepCompleted
    | StepFailed
    | SignalReceived
    | SignalRejected
    | TimerSet
    | TimerFired
    | ChildStarted
    | ChildFinished,
) -> Item:
    match event:
        case StepStarted(key=key, attempt=attempt):
            return {"key": key, "attempt": attempt}
        case StepCompleted(key=key, attempt=attempt):
            kind = None if event.kind == "step" else event.kind
            return {"key": key, "attempt": attempt, **_there(kind=kind, group=event.group, artifact=event.artifact)}
        case StepFailed(key=key, attempt=attempt, error=error):
            failed = {"key": key, "attempt": attempt, "code": error.code, "message": _cut(error.message)}
            retry_at = None if event.retry_at_us is None else time_text(event.retry_at_us)
            return failed | _there(type=error.type, retry_at=retry_at, group=event.group)
        case SignalReceived(name=name):
            return {"name": name, **_there(artifact=event.artifact)}
        case SignalRejected(name=name, key=key, reason=reason):
            return {"name": name, "key": key, "reason": _cut(reason)}
        case TimerSet(key=key, due_us=due_us):
            return {"key": key, "due_at": time_text(due_us)}
        case TimerFired(key=key):
            return {"key": key}
        case ChildStarted(key=key, child_run_id=child_run_id):
            started = {"key": key, "child_run_id": child_run_id, "workflow": event.workflow}
            return started if event.relation == "child" else {**started, "relation": event.relation}
        case ChildFinished(key=key, child_run_id=child_run_id, status=status):
            code = event.error.code if event.error is not None else None
            return {"key": key, "child_run_id": child_run_id, "status": status, **_there(code=code)}
        case _:
            assert_never(event)


def _checkpoint(event: CheckpointSaved) -> Item:
    """Return the status, and of a workflow run what was committed and what it waits for."""
    definition = event.definition
    if definition is not None:
        parent = event.parent.run_id if event.parent is not None else None
        return {"status": event.status, "workflow": definition.workflow, **_there(parent_run_id=parent)}
    if event.state_version == 1:
        return {"status": event.status}  # the first event of a run of one action
    waits = (event.waiting, *event.also_waiting) if event.waiting is not None else ()
    named = [_wait_text(wait) for wait in waits]
    return {"status": event.status, **_there(committed=list(event.committed) or None, waiting=named or None)}


def _wait_text(wait: Waiting) -> str:
    found = wait.approval_id or wait.signal or wait.child_run_id or wait.node_id
    return f"{wait.type} {found}"


def _proposal(event: ProposalRecorded) -> Item:
    expires_at = None if event.expires_at_us is None else time_text(event.expires_at_us)
    request_id = event.request_id if event.step is not None or event.supersedes is not None else None
    more = _there(request_id=request_id, supersedes=event.supersedes, reason=_cut(event.reason), expires_at=expires_at)
    return {"proposal_hash": event.proposal_hash, **more, **_there(rule_failed=_cut(event.rule_failed))}


def _decision(event: ApprovalRecorded) -> Item:
    """Return the decision; that others are needed beside it, or that a rule made it, is said where it is so."""
    said: Item = {"request_id": event.request_id, "decision": event.decision}
    if not event.is_deciding:
        said["is_deciding"] = False
    if event.actor_source == "policy":
        said["by"] = "policy"
    return said


def _there(**facts: Any) -> Item:
    """Return the facts that have a value."""
    return {name: value for name, value in facts.items() if value is not None}


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
    args = stored_proposal(bytes(event.proposal)).args
    return _cut(json.dumps(args, ensure_ascii=False, sort_keys=True))


def _cut(text: str | None) -> str | None:
    return None if text is None else text[:_MAX_TEXT]
