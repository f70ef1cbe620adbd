"""The requests of a run, frozen as they were proposed, with everything that was said to them; and what was refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Final

from eventlog.audit.report.parts import card, facts, hash_of, link_to, place_of, pretty, raw, section, time_of
from eventlog.audit.report.safe import Safe, tag
from eventlog.errors import CODES
from eventlog.events import (
    ActionConflict,
    ActionFailed,
    ApprovalExpired,
    ApprovalRecorded,
    ApprovalRevoked,
    CompensationFailed,
    OutcomeUnknown,
    PolicyTerms,
    ProposalRecorded,
    ProposalRejected,
    ResultRejected,
    ResumeRejected,
    SignalRejected,
    StepFailed,
    TransitionRejected,
)
from eventlog.log import RecordedEvent
from eventlog.progress import requests_of
from eventlog.run import Run
from eventlog.sentences import sentence

__all__ = ["decisions_section", "refusal_kind", "refusals", "refusals_section", "requests_section"]

_DECISIONS: Final = (ApprovalRecorded, ApprovalExpired, ApprovalRevoked)
_REFUSALS: Final = (
    ActionConflict,
    ActionFailed,
    CompensationFailed,
    OutcomeUnknown,
    ProposalRejected,
    ResultRejected,
    ResumeRejected,
    SignalRejected,
    StepFailed,
    TransitionRejected,
)


def requests_section(run: Run, events: Sequence[RecordedEvent]) -> Safe:
    """Return what was asked for, as it is now, and every earlier wording of it that an edit has replaced."""
    current = [_request(request) for request in requests_of(run)]
    replaced = [_earlier(event) for event in _replaced(run, events)]
    return section(
        "requests", "What was asked for", *(current or [tag("p", "Nothing: the run has no request.")]), *replaced
    )


def decisions_section(events: Sequence[RecordedEvent]) -> Safe:
    """Return who approved, rejected, revoked what, when and why, and what nobody decided on in time."""
    found = [_decision(event) for event in events if isinstance(event.data, _DECISIONS)]
    return section("decisions", "Who decided", *(found or [tag("p", "Nobody has decided anything.")]))


def refusals(events: Sequence[RecordedEvent]) -> list[RecordedEvent]:
    """Return the events that say that something was refused, failed, or that nobody knows of it."""
    return [event for event in events if isinstance(event.data, _REFUSALS)]


def refusals_section(events: Sequence[RecordedEvent]) -> Safe:
    """Return everything that was refused or went wrong, why, and the raw input of it."""
    found = [_refusal(event) for event in refusals(events)]
    return section("refusals", "What was refused or failed", *(found or [tag("p", "Nothing.")]))


def refusal_kind(event: RecordedEvent) -> str:
    """Return the look of an event that says that something was refused or failed; of all others none."""
    if isinstance(event.data, OutcomeUnknown):
        return "unknown"
    return "refusal" if isinstance(event.data, _REFUSALS) else ""


def _request(request: Run) -> Safe:
    proposal = request.proposal
    assert proposal is not None, "a request has a proposal"
    return card(
        tag("h3", str(request.request_id)),
        facts(
            {
                "status": tag("span", request.status.value, class_="status"),
                "step": request.step,
                "action": proposal.action,
                "target": tag("code", proposal.output),
                "folder": None if request.folder is None else tag("code", request.folder),
                "arguments": pretty(proposal.args),
                "proposal hash": hash_of(request.proposal_hash),
                "approved request": hash_of(request.approval_request_id),
                "approved hash": hash_of(request.approval_hash),
                "proposed by": request.proposed_by,
                "terms": _terms(request.policy),
                "to be decided until": time_of(request.expires_at_us),
                "in place of": request.supersedes,
                "executed": "yes" if request.executed else "no",
            }
        ),
    )


def _terms(policy: PolicyTerms | None) -> str | None:
    if policy is None:
        return None
    roles = f", each with one of the roles {', '.join(policy.roles)}" if policy.roles else ""
    duties = ", none of whom has proposed it" if policy.separation_of_duties else ""
    level = f", at level {policy.level} or above" if policy.level else ""
    return f"{policy.required} different people{roles}{duties}{level}"


def _replaced(run: Run, events: Sequence[RecordedEvent]) -> Iterator[RecordedEvent]:
    """Give the proposals that are not the current one of a request any more."""
    current = {request.request_id for request in requests_of(run)}
    for event in events:
        if isinstance(event.data, ProposalRecorded) and event.data.request_id not in current:
            yield event


def _earlier(event: RecordedEvent) -> Safe:
    asked: ProposalRecorded = event.data
    return card(
        tag("h3", asked.request_id),
        tag("p", "Closed for good: an edit has replaced it."),
        facts({"proposal hash": hash_of(asked.proposal_hash), "proposal": pretty(json.loads(bytes(asked.proposal)))}),
        place_of(event),
    )


def _decision(event: RecordedEvent) -> Safe:
    said = event.data
    roles = ", ".join(said.roles) if isinstance(said, ApprovalRecorded) and said.roles else None
    return card(
        tag("h3", _decided(said), " — ", str(said.request_id)),
        facts(
            {
                "who": _who(event),
                "vouched for by": getattr(said, "actor_source", None),
                "level": _level(said),
                "when": time_of(event.recorded_at_us),
                "why": getattr(said, "reason", None),
                "as": roles,
                "exactly this hash": hash_of(getattr(said, "approval_hash", None)),
                "event": link_to(event),
            }
        ),
    )


def _level(said: ApprovalRecorded | ApprovalExpired | ApprovalRevoked) -> str | None:
    """Return how sure it is who decided, in words."""
    if not isinstance(said, ApprovalRecorded) or said.actor_source == "policy":
        return None
    known = dict(enumerate(("asserted", "authenticated by the program", "signed", "signed by a key in hardware")))
    return f"{said.level} ({known.get(said.level, 'unknown')}); whether it holds is said by `eventlog verify`"


def _decided(said: ApprovalRecorded | ApprovalExpired | ApprovalRevoked) -> str:
    match said:
        case ApprovalRecorded(decision=decision, is_deciding=is_deciding):
            return decision if is_deciding else f"{decision} (others have to as well)"
        case ApprovalExpired():
            return "expired"
        case ApprovalRevoked():
            return "revoked"


def _who(event: RecordedEvent) -> str:
    if isinstance(event.data, ApprovalExpired):
        return "nobody"
    if isinstance(event.data, ApprovalRecorded) and event.data.actor_source == "policy":
        return "a rule; nobody was asked"
    return event.actor


def _refusal(event: RecordedEvent) -> Safe:
    reason = _reason(event)
    known = CODES.get(reason)
    return card(
        tag("h3", reason),
        tag("p", sentence(event)),
        None if known is None else tag("p", known.meaning, class_="soft"),
        place_of(event),
        tag("p", f"{event.type}, its raw input:", class_="soft"),
        raw(event),
        kind=refusal_kind(event),
    )


def _reason(event: RecordedEvent) -> str:
    """Return the code of what went wrong."""
    match event.data:
        case ActionConflict(code=code):
            return code
        case ActionFailed(error=error) | CompensationFailed(error=error) | StepFailed(error=error):
            return error.code
        case OutcomeUnknown():
            return "outcome_unknown"
        case SignalRejected():
            return event.type
        case said:
            return str(said.reason)
