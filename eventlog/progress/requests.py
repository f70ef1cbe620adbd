"""How an event about a request changes it, and with it the run."""

from __future__ import annotations

from typing import Any

from eventlog.events import (
    ActionConflict,
    ActionExecuted,
    ActionFailed,
    ActionRecovered,
    ApprovalExpired,
    ApprovalRecorded,
    ApprovalRevoked,
    OutcomeReconciled,
    ProposalRecorded,
    ResumeStarted,
    RunEvent,
    Status,
)
from eventlog.progress.commits import committed_alone
from eventlog.progress.state import Progress
from eventlog.progress.waits import asked_again, resolved
from eventlog.run import Run, fold_fact

__all__ = ["request_changes"]


def request_changes(
    run: Run, progress: Progress, key: str, event: RunEvent, version: int, at_us: int, actor: str
) -> dict[str, Any]:
    """Apply an event about the request of step `key`, and return what it changes in the run."""
    request = before = progress.requests.get(key)
    if request is None:
        if not isinstance(event, ProposalRecorded):
            # A refusal about a step that has not asked yet: a trace, and no state.
            return {}
        request = Run(run_id=run.run_id, step=key)
        progress.first_hashes[key] = event.proposal_hash
        if event.group is not None:
            progress.groups[key] = event.group
    request = fold_fact(request, event, version=version, at_us=at_us, actor=actor)
    progress.requests[key] = request
    match event:
        case ProposalRecorded(supersedes=superseded):
            progress.evidence[key] = [version]
            if superseded is None:
                return {}
            if before is not None and before.proposal_hash is not None:
                progress.closed_hashes[key] = (*progress.closed_hashes.get(key, ()), before.proposal_hash)
            _forget_failure(progress, key)
            return asked_again(progress, key, request)
        case ApprovalRecorded():
            progress.evidence[key].append(version)
            return resolved(progress, key) if event.is_deciding else {}
        case ApprovalExpired() | OutcomeReconciled():
            progress.failures.pop(key, None)
            return resolved(progress, key)
        case ApprovalRevoked():
            progress.evidence[key] = progress.evidence[key][:1]
            _forget_failure(progress, key)
            return asked_again(progress, key, request)
        case ResumeStarted(deadline_us=deadline_us):
            progress.deadline_us = max(progress.deadline_us, deadline_us)
            progress.failures.pop(key, None)
        case ActionExecuted() | ActionRecovered():
            progress.failures.pop(key, None)
            return committed_alone(run, progress, key)
        case ActionFailed(error=error) if error.code != "lease_used_up":
            progress.failures[key] = error
        case ActionConflict() if request.problem is not None and request.status is not Status.OUTCOME_UNKNOWN:
            progress.failures[key] = request.problem
    return {}


def _forget_failure(progress: Progress, key: str) -> None:
    """What failed is asked for anew: that it failed is told no more, unless the workflow may have gone on behind it."""
    if progress.owner is None and key not in progress.committed:
        progress.failures.pop(key, None)
