"""Approvals as they are stored, looked at again before the effect: which count, and what refuses the effect.

What is looked at are the events of the run themselves, not what they fold to: an approval that is signed is proved by
its bytes. Whether a single one counts is said by `eventlog.signing.signed_decisions`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from eventlog.decide.answers import Refusal, refuse_resume
from eventlog.errors import InvalidInput, RunConflict
from eventlog.events import ApprovalRecorded, ApprovalRevoked, OfRequest, ProposalRecorded, ResumeStarted
from eventlog.log import RecordedEvent
from eventlog.run import Run
from eventlog.signing.signed_decisions import Flaw, read_statement
from eventlog.signing.statements import ApprovalStatement

__all__ = [
    "approvals_of",
    "began_at_us",
    "earliest_end",
    "event_of_request",
    "flaw_facts",
    "needs_proof",
    "refuse_changed_action",
    "refuse_erased",
    "refuse_lost",
    "refuse_lower_level",
    "refuse_other_proposal",
    "refuse_too_few",
    "refuse_unproved",
    "statement_of",
]


def needs_proof(request: Run) -> bool:
    """Say whether the approvals of a request have to be looked at again before its effect."""
    wanted = request.policy.level if request.policy is not None else 0
    return wanted > 0 or any(vote.is_signed or vote.level > 0 for vote in request.votes)


def event_of_request(events: Sequence[RecordedEvent], request: Run) -> RecordedEvent:
    """Return the event that made a request of the run as it is now. Raises RunConflict if there is none any more."""
    for event in reversed(events):
        if isinstance(event.data, ProposalRecorded) and event.data.request_id == request.request_id:
            return event
    raise RunConflict(request.run_id, "its request is gone")


def approvals_of(events: Sequence[RecordedEvent], asked: RecordedEvent, request: Run) -> list[RecordedEvent]:
    """Return the approvals of a request that were not withdrawn, oldest first."""
    found: list[RecordedEvent] = []
    for event in events:
        if event.position <= asked.position or not isinstance(event.data, OfRequest) or event.data.step != request.step:
            continue
        match event.data:
            case ApprovalRevoked():
                found.clear()
            case ApprovalRecorded(request_id=request_id, decision="approve") if request_id == request.request_id:
                found.append(event)
    return found


def began_at_us(events: Sequence[RecordedEvent], asked: RecordedEvent, request: Run) -> int | None:
    """Return when the first attempt at the effect of a request began, None before that.

    It has spent the approvals: whether their time was over is asked of it alone, and of no later attempt.
    """
    for event in events:
        is_intent = event.position > asked.position and isinstance(event.data, ResumeStarted)
        if is_intent and event.data.step == request.step:
            return event.recorded_at_us
    return None


def earliest_end(approvals: Sequence[RecordedEvent]) -> int | None:
    """Return when the first of these approvals ceases to count, None if none of them says."""
    statements = [statement for each in approvals if (statement := statement_of(each)) is not None]
    return min((statement.not_after_us for statement in statements), default=None)


def statement_of(recorded: RecordedEvent) -> ApprovalStatement | None:
    """Return what a recorded approval has signed; None if that is nothing, or no statement."""
    event: ApprovalRecorded = recorded.data
    if event.envelope is None:
        return None
    try:
        return read_statement(event.envelope)
    except InvalidInput:
        return None  # that it is none is found where it is checked


def flaw_facts(flaw: Flaw) -> dict[str, Any]:
    """Return what an error tells of a mismatch."""
    if flaw.field is None:
        return {}
    return {"field": flaw.field, "supplied": flaw.supplied, "expected": flaw.expected}


def refuse_changed_action(request: Run, asked: RecordedEvent, digest_of: Callable[[str], str | None]) -> Refusal | None:
    """Refuse an action that is not the one that was approved, as far as the digests of both are known."""
    event: ProposalRecorded = asked.data
    action = request.proposal.action if request.proposal is not None else ""
    now = digest_of(action)
    if now is None or event.action_sha256 in (None, now):
        return None
    return refuse_resume(
        request,
        "definition_mismatch",
        f"the action {action!r} is another than the one that was approved",
        detail=f"action_sha256: {now}, not {event.action_sha256}",
        action=action,
        approved_sha256=event.action_sha256,
        current_sha256=now,
    )


def refuse_unproved(request: Run, flaw: Flaw, position: int) -> Refusal:
    """Return the refusal of an effect whose approval at this position does not count."""
    named = "" if flaw.field is None else f"; {flaw.field}: {flaw.supplied!r:.300}, not {flaw.expected!r:.300}"
    return refuse_resume(
        request,
        flaw.code,
        f"the approval at position {position} does not count: {flaw.message}{_begun(request)}",
        detail=f"the approval at position {position}{named}",
        position=position,
        **flaw_facts(flaw),
    )


def _begun(request: Run) -> str:
    """Say that an earlier attempt may have happened: no other begins, so that a person has to look."""
    is_open = request.open_intent is not None or request.is_unknown
    return "; an earlier attempt may have happened: find out, and reconcile" if is_open else ""


def refuse_erased(request: Run, events: Sequence[RecordedEvent]) -> Refusal | None:
    """Refuse an effect one of whose events, its proposal and approvals, is erased, or cannot be read here."""
    gone = next((event for event in events if event.redacted is not None), None)
    if gone is None:
        return None
    what = "proposal" if isinstance(gone.data, ProposalRecorded) else "approval"
    message = f"run {request.run_id!r} cannot act: its {what} at position {gone.position} is not there"
    why = f"{gone.redacted}: the {what} at position {gone.position}"
    return refuse_resume(
        request, "run_erased", f"{message} ({gone.redacted}){_begun(request)}", detail=why, position=gone.position
    )


def refuse_lower_level(request: Run, wanted: int) -> Refusal:
    """Refuse an effect that was asked on lower terms than those of the program that is to perform it."""
    frozen = request.policy.level if request.policy is not None else 0
    return refuse_resume(
        request,
        "level_required",
        f"this program asks for an approval of level {wanted}, and run {request.run_id!r} was asked on level {frozen}: "
        "edit it, or cancel it and ask anew, where this policy is known",
        detail=f"level {frozen}, not {wanted}",
        required_level=wanted,
        level=frozen,
    )


def refuse_lost(request: Run, position: int, first: int) -> Refusal:
    """Refuse an effect that may have happened in what was lost when the log was put back from an older copy.

    It was approved at `position`, and the log goes on since then from `first`.
    """
    way_out = "revoke the approval, and approve it again" if not request.attempts else "cancel the run, and ask anew"
    return refuse_resume(
        request,
        "approval_before_restore",
        f"it was approved at position {position}, and the log was put back from an older copy since, where it goes on "
        f"at position {first}: the effect may have happened in what was lost; find out, and if it did not, {way_out}",
        detail=f"the approval at position {position}, the restore at position {first}",
        position=position,
        restored_at=first,
    )


def refuse_other_proposal(request: Run, asked: RecordedEvent) -> Refusal | None:
    """Refuse what is about to run, if it is not byte for byte what the event of the proposal holds."""
    if request.proposal is not None and request.proposal.canonical == bytes(asked.data.proposal):
        return None
    message = f"what run {request.run_id!r} is about to do is not what was proposed at position {asked.position}"
    return refuse_resume(request, "proposal_hash_mismatch", message)


def refuse_too_few(request: Run, asked: RecordedEvent, approvals: Sequence[RecordedEvent]) -> Refusal | None:
    """Refuse where the approvals that count are fewer than the terms ask for."""
    required = asked.data.policy.required if asked.data.policy is not None else 1
    given = len({event.actor for event in approvals})
    if given >= required:
        return None
    message = f"run {request.run_id!r} takes {required} approvals by different people, and has {given}"
    return refuse_resume(request, "approval_required", message)
