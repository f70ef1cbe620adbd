"""Taking back before the act: a request by an edit, its approvals by a revocation, the run by a cancellation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from eventlog.decide.answers import (
    Accepted,
    Refusal,
    check_supplied,
    decision_facts,
    refuse_transition,
    request_id_of,
    require_run,
)
from eventlog.decide.decisions import (
    Terms,
    ask,
    check_roles,
    has_expired,
    not_pending,
    record_decision,
    refuse_expired,
)
from eventlog.errors import InvalidInput
from eventlog.events import ApprovalRevoked, RunCancelled, RunEvent
from eventlog.proposal import Proposal
from eventlog.run import Run, Status, fold_fact

__all__ = ["cancel", "edit", "refuse_edit", "revoke"]

_CANCELLABLE: Final = frozenset({Status.WAITING_FOR_USER, Status.APPROVED, Status.RUNNING, Status.WAITING})


def edit(
    run: Run,
    proposal: Proposal,
    terms: Terms,
    *,
    actor_source: str,
    folder: str | None = None,
    approves: bool = False,
    reason: str | None = None,
    actor: str | None = None,
    roles: Sequence[str] = (),
    now_us: int = 0,
) -> Accepted | Refusal:
    """Ask something else instead, under a request id of its own; the original request is closed for good.

    `terms` are those of the new proposal's action, and nothing that was said about the original counts. With `approves`
    the editor approves the new one in the same append, if those terms let him: he is its proposer. Raises
    InvalidInput(`invalid_argument`) if nothing would change, and as `record_decision`.
    """
    require_run(run)
    check_supplied("reason", reason or "")
    check_roles(roles)
    refused = refuse_edit(run, now_us)
    if refused is not None:
        return refused
    if run.proposal is not None and proposal.canonical == run.proposal.canonical:
        raise InvalidInput("invalid_argument", f"nothing of the request of run {run.run_id!r} would change")
    events = ask(_next_request_id(run), proposal, folder, terms, supersedes=request_id_of(run), reason=reason)
    if not approves or terms.auto is not None:
        return Accepted(events)
    after = _after(run, events, actor, now_us)
    vote = record_decision(
        after,
        "approve",
        proposal.hash,
        actor_source=actor_source,
        reason=reason,
        actor=actor,
        roles=roles,
        now_us=now_us,
    )
    return vote if isinstance(vote, Refusal) else Accepted((*events, *vote.events))


def refuse_edit(run: Run, now_us: int) -> Refusal | None:
    """Return why the request cannot be edited now, if it cannot: it waits for nobody, or its time has run out."""
    if run.status is not Status.WAITING_FOR_USER:
        return not_pending(run, "edit")
    return refuse_expired(run) if has_expired(run, now_us) else None


def revoke(run: Run, *, actor_source: str, reason: str | None = None, now_us: int = 0) -> Accepted | Refusal:
    """Withdraw the approvals of a request before the act; it then waits for a decision again, on the same terms.

    Raises InvalidInput (`invalid_text`, `payload_too_large`) for a reason that could not be recorded.
    """
    require_run(run)
    check_supplied("reason", reason or "")
    if has_expired(run, now_us):
        return refuse_expired(run)
    if run.attempts > 0:
        why = f"the effect of run {run.run_id!r} has begun under its approval"
        return refuse_transition(run, "approval_spent", "revoke", why, **decision_facts(run))
    is_revocable = run.status is Status.APPROVED or (run.status is Status.WAITING_FOR_USER and run.votes)
    if not is_revocable:
        why = f"run {run.run_id!r} has no approval to withdraw: it is {run.status.value}"
        return refuse_transition(run, "cannot_revoke", "revoke", why, **decision_facts(run))
    return Accepted((ApprovalRevoked(request_id=request_id_of(run), actor_source=actor_source, reason=reason),))


def cancel(run: Run, *, actor_source: str, reason: str | None = None) -> Accepted | Refusal:
    """Cancel a run that has not ended. What is under way is not called back, but nothing begins any more.

    An effect of which nobody knows has to be settled first; `abandoned` then cancels a run of one action. Raises
    InvalidInput (`invalid_text`, `payload_too_large`) for a reason that could not be recorded.
    """
    require_run(run)
    check_supplied("reason", reason or "")
    is_workflow = run.progress is not None
    if run.status in _CANCELLABLE or (is_workflow and run.status is Status.OUTCOME_UNKNOWN):
        return Accepted((RunCancelled(actor_source=actor_source, reason=reason),))
    why = f"run {run.run_id!r} has ended: it is {run.status.value}"
    if run.status is Status.OUTCOME_UNKNOWN:
        why = f"nobody knows what became of the effect of run {run.run_id!r}; settle that first"
    return refuse_transition(run, "cannot_cancel", "cancel", why)


def _next_request_id(run: Run) -> str:
    """Return the id of the next edit: counted from the first request, not one behind the other.

    No request has it as its first: in a step key, only a number stands behind a `#` that is not doubled.
    """
    first = run.superseded[0] if run.superseded else request_id_of(run)
    return f"{first}#edit-{len(run.superseded) + 1}"


def _after(run: Run, events: tuple[RunEvent, ...], actor: str | None, now_us: int) -> Run:
    """Return the run as it will be behind events that are not appended yet."""
    for event in events:
        run = fold_fact(run, event, version=run.version + 1, at_us=now_us, actor=actor or "")
    return replace(run, proposed_by=actor, proposers=(*run.proposers, *filter(None, (actor,))))
