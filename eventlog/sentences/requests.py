"""Sentences about a request of a run and its effect: who asked, decided, acted and was refused what, and why."""

from __future__ import annotations

from typing import Final, assert_never

from eventlog.errors import InvalidInput
from eventlog.events import (
    ActionConflict,
    ActionExecuted,
    ActionFailed,
    ActionRecovered,
    ActionReplayed,
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
    ProposalRejected,
    ProposalVerified,
    ResultRejected,
    ResumeRejected,
    ResumeStarted,
    TransitionRejected,
)
from eventlog.proposal import stored_proposal
from eventlog.sentences.words import failure_text, joined, listed, named, quoted, value_text
from eventlog.times import time_text

__all__ = ["OfRequestEvent", "request_sentence"]

OfRequestEvent = (
    ProposalRecorded
    | ProposalVerified
    | ProposalRejected
    | ApprovalRecorded
    | ApprovalExpired
    | ApprovalRevoked
    | TransitionRejected
    | ResumeRejected
    | ResumeStarted
    | ActionExecuted
    | ActionRecovered
    | ActionReplayed
    | ActionConflict
    | ActionFailed
    | OutcomeUnknown
    | ResultRejected
    | OutcomeReconciled
    | CompensationStarted
    | CompensationExecuted
    | CompensationFailed
)

_VOUCHED: Final = {
    "os": "vouched for by the operating system",
    "asserted": "vouched for by the program",
    "authenticated": "authenticated by the program",
    "signed": "who has signed it",
}
_ENDED: Final = {
    "already_completed": "it has completed already",
    "already_failed": "it has failed for good already",
    "already_compensated": "its effect has been undone already",
}
_VERDICTS: Final = {
    "executed": "was done",
    "not_executed": "was not done, and may be tried again",
    "abandoned": "will never be known, and nothing more is done",
}


def request_sentence(actor: str, event: OfRequestEvent) -> str:
    """Return the sentence, with the step of the workflow that asks, if it is one. `actor` is ready to stand in it."""
    said = _said(actor, event)
    return said if event.step is None else f"step {named(event.step)}: {said}"


def _said(actor: str, event: OfRequestEvent) -> str:
    match event:
        case ProposalRecorded():
            return _proposed(actor, event)
        case ProposalVerified(phase=phase, proposal_hash=digest):
            when = {"approval": "before the approval", "resume": "before the effect"}.get(phase, f"at {named(phase)}")
            return f"the proposal was hashed again {when}, and is still {named(digest)}"
        case ProposalRejected():
            return _differed(actor, event)
        case ApprovalRecorded():
            return _decided(actor, event)
        case ApprovalExpired(request_id=request_id, expires_at_us=expires_at_us):
            return f"nobody decided on request {named(request_id)} until {time_text(expires_at_us)}; it has expired"
        case ApprovalRevoked():
            who = _vouched(actor, event.actor_source)
            return f"{who} withdrew the approvals of request {named(event.request_id)}{_why(event.reason)}"
        case TransitionRejected():
            return _not_allowed(actor, event)
        case ResumeRejected():
            return _not_resumed(actor, event)
        case _:
            return _effect_said(actor, event)


def _effect_said(
    actor: str,
    event: ResumeStarted
    | ActionExecuted
    | ActionRecovered
    | ActionReplayed
    | ActionConflict
    | ActionFailed
    | OutcomeUnknown
    | ResultRejected
    | OutcomeReconciled
    | CompensationStarted
    | CompensationExecuted
    | CompensationFailed,
) -> str:
    match event:
        case ResumeStarted(attempt=attempt, op_key=op_key, approval_hash=approval_hash):
            what = f"attempt {attempt} at the effect {named(op_key)}"
            return f"{actor} began {what}, as approved by {named(approval_hash)}; from here on it may have happened"
        case ActionExecuted(action=action, op_key=op_key):
            result = _result(event.result, event.not_stored)
            return joined(f"{actor} did {named(action)}, once: the effect {named(op_key)} is executed", result)
        case ActionRecovered(action=action):
            done = f"{named(action)} had been done by an earlier attempt at the effect {named(event.op_key)}"
            evidence = None if event.evidence is None else f"the evidence: {value_text(event.evidence)}"
            return joined(f"{done}; {actor} did not repeat it", evidence, _result(event.result, event.not_stored))
        case ActionReplayed(reason=reason):
            why = f"{_ENDED[reason]} [{reason}]" if reason in _ENDED else named(reason)
            return f"{actor} resumed the run again; nothing was done: {why}"
        case ActionConflict():
            return _conflicted(actor, event)
        case ActionFailed(action=action, error=error, is_final=is_final):
            then = "no attempt can do better" if is_final else "it may be tried again"
            return f"{named(action)} definitely did not happen: {failure_text(error)}; {then}"
        case OutcomeUnknown(action=action, op_key=op_key, why=why):
            return f"nobody knows whether {named(action)} happened (effect {named(op_key)}): {quoted(why)}"
        case ResultRejected():
            return _came_late(actor, event)
        case OutcomeReconciled():
            return _settled(actor, event)
        case CompensationStarted(action=action, compensates=compensates, attempt=attempt):
            what = f"attempt {attempt} to undo the effect {named(compensates)} by {named(action)}"
            return f"{actor} began {what} (effect {named(event.op_key)}){_why(event.reason)}"
        case CompensationExecuted(action=action, compensates=compensates):
            earlier = (
                "" if event.evidence is None else f"; an earlier attempt had done it: {value_text(event.evidence)}"
            )
            undone = f"{actor} undid the effect {named(compensates)} by {named(action)}{earlier}"
            return joined(undone, _result(event.result, event.not_stored))
        case CompensationFailed(action=action, compensates=compensates, error=error, is_final=is_final):
            then = "no attempt can do better" if is_final else "it may be tried again"
            return f"{named(action)} did not undo the effect {named(compensates)}: {failure_text(error)}; {then}"
        case _:
            assert_never(event)


def _proposed(actor: str, event: ProposalRecorded) -> str:
    request = f"request {named(event.request_id)}, proposal {named(event.proposal_hash)}"
    return joined(
        f"{actor} asked to do {_wanted(bytes(event.proposal))} ({request})",
        None if event.supersedes is None else f"in place of {named(event.supersedes)}{_why(event.reason)}",
        _terms(event.policy),
        None if event.expires_at_us is None else f"until {time_text(event.expires_at_us)}",
        None if event.rule_failed is None else f"its automatic rule failed: {quoted(event.rule_failed)}",
    )


def _wanted(canonical: bytes) -> str:
    """Return what is proposed; bytes that are no proposal, which nothing would execute, as they are."""
    try:
        proposal = stored_proposal(canonical)
    except InvalidInput:
        return f"what is no proposal: {quoted(canonical.decode(errors='backslashreplace'))}"
    return f"{named(proposal.action)} with {value_text(proposal.args)} to {quoted(proposal.output)}"


def _terms(policy: PolicyTerms | None) -> str | None:
    if policy is None:
        return None
    people = "1 person" if policy.required == 1 else f"{policy.required} people"
    role = f" with the role {listed(policy.roles, 'or')}" if policy.roles else ""
    duties = ", not by who asked" if policy.separation_of_duties else ""
    level = f", at level {policy.level} or above" if policy.level else ""
    return f"to be approved by {people}{role}{duties}{level}"


def _decided(actor: str, event: ApprovalRecorded) -> str:
    who = "a rule" if event.actor_source == "policy" else _vouched(actor, event.actor_source)
    did = {"approve": "approved", "reject": "rejected"}.get(event.decision, f"decided {named(event.decision)} on")
    frozen = f"{who} {did} request {named(event.request_id)} with exactly the proposal {named(event.approval_hash)}"
    roles = f", as {listed(event.roles)}" if event.roles else ""
    level = f"its level is {event.level}" if event.level else None
    others = None if event.is_deciding else "others have to approve it as well"
    return joined(f"{frozen}{roles}{_why(event.reason)}", level, others)


def _differed(actor: str, event: ProposalRejected) -> str:
    """Say what was refused, what was supplied or found, and what was frozen."""
    tried = f"{actor}'s decision on" if event.phase == "approval" else f"{actor}'s resume of"
    pairs = (
        ("the hash supplied was", event.supplied_hash),
        ("the target is", event.output),
        ("the target given was", event.current_output),
        ("the target approved is", event.approved_output),
        ("the request is now", event.current_request_id),
        ("the request approved is", event.approved_request_id),
        ("the proposal's hash is now", event.current_hash),
        ("the hash stored is", event.stored_hash),
        ("the hash approved is", event.approval_hash),
    )
    facts = [f"{what} {_fact(what, found)}" for what, found in pairs if found is not None]
    seen = None if event.viewed is None else f"people saw {value_text(event.viewed)}"
    return joined(f"{tried} {named(event.action)} was refused: {named(event.reason)}", *facts, seen)


def _fact(what: str, found: str) -> str:
    return quoted(found) if "target" in what else named(found)


def _not_allowed(actor: str, event: TransitionRejected) -> str:
    refused = f"{actor}'s {named(event.attempted_decision)} was refused: {named(event.reason)}"
    stands = None if event.existing_approval is None else f"{named(event.existing_approval)} stands"
    supplied = None if event.supplied_hash is None else f"the hash supplied was {named(event.supplied_hash)}"
    detail = None if event.detail is None else f"supplied: {quoted(event.detail)}"
    return joined(f"{refused}; the status is {named(event.current_status)}", stands, supplied, detail)


def _not_resumed(actor: str, event: ResumeRejected) -> str:
    refused = f"{actor}'s resume was refused: {named(event.reason)}; the status is {named(event.status)}"
    detail = None if event.detail is None else quoted(event.detail)
    seen = None if event.viewed is None else f"people saw {value_text(event.viewed)}"
    return joined(refused, detail, seen)


def _conflicted(actor: str, event: ActionConflict) -> str:
    met = f"{actor} did not do {named(event.action)}, whose target holds something else: {named(event.reason)}"
    expected = event.expected_content_hash
    existing = event.existing_content_hash
    return joined(
        f"{met} [{named(event.code)}]",
        None if expected is None else f"expected content {named(expected)}",
        None if existing is None else f"found content {named(existing)}",
        None if event.existing_content is None else f"which begins {quoted(event.existing_content)}",
    )


def _came_late(actor: str, event: ResultRejected) -> str:
    late = f"{actor} no longer held the run and came with {named(event.rejected)} of attempt {event.attempt}"
    result = None if event.result is None else f"it said {value_text(event.result)}"
    return joined(f"{late} at the effect {named(event.op_key)}: {named(event.reason)}; it changes nothing", result)


def _settled(actor: str, event: OutcomeReconciled) -> str:
    found = _VERDICTS.get(event.verdict, f"is {named(event.verdict)}")
    who = _vouched(actor, event.actor_source)
    settled = (
        f"{who} settled that {named(event.action)} (effect {named(event.op_key)}) {found} [{named(event.verdict)}]"
    )
    evidence = f"the evidence: {quoted(event.evidence)}"
    return joined(settled, evidence, _result(event.result), f"the status is {event.status.value}")


def _result(result: object, not_stored: str | None = None) -> str | None:
    if not_stored is not None:
        return f"the log does not hold its result: {quoted(not_stored)}"
    return None if result is None else f"its result: {value_text(result)}"


def _vouched(actor: str, source: str) -> str:
    return f"{actor} ({_VOUCHED.get(source) or f'vouched for by {named(source)}'})"


def _why(reason: str | None) -> str:
    return "" if reason is None else f", because {quoted(reason)}"
