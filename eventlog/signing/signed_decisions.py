"""Whether a signed decision is what it has to be: every binding of its statement, compared with the log. Pure.

The same check is made when the decision is recorded, again before the effect, and by whoever verifies the log later.
It needs the envelope, the event of the proposal that was decided on, who held which key, and the root that the log's
tree has at the size of the head that the approver saw:

    statement_invalid     the envelope holds no approval statement
    approver_unknown      its key is not enrolled at this position; approver_revoked: not any more
    signature_invalid     its signature is not the key's over exactly this
    statement_mismatch    a field says something else than the log; `field` names it
    separation_of_duties  the approver asked himself, and the terms do not let him
    role_required         none of the roles that the terms ask for is claimed and counts: see `counting_roles`
    level_required        the key is of a lower level than the terms ask for
    statement_expired     its time is over
    head_mismatch         the log has no such head, or it is older than the proposal

What the approver was shown is compared where it was shown as `shown_requests` shows it; of another media type the
digest is evidence and no more. That a nonce is used once follows from the log, where it is the id of the event.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from eventlog.errors import InvalidInput
from eventlog.events import RUN_PREFIX, ApprovalRecorded, Envelope, PolicyTerms, ProposalRecorded
from eventlog.log import RecordedEvent
from eventlog.proposal import hash_of, stored_proposal
from eventlog.signing.approver_keys import ApproverKey, ApproverKeys, is_signed_by
from eventlog.signing.envelopes import pae, payload_of, signature_of
from eventlog.signing.shown_requests import SHOWN_AS, displayed_request
from eventlog.signing.statements import ApprovalStatement, parse_approval, policy_digest

__all__ = [
    "AUTHENTICATED",
    "SIGNED",
    "Flaw",
    "Occasion",
    "SignedDecision",
    "bindings",
    "check_decision",
    "flaw_of_recorded",
    "read_statement",
    "separation_flaw",
]

SIGNED: Final = "signed"
"""The `actor_source` of a decision that its approver has signed."""

AUTHENTICATED: Final = "authenticated"
"""That of a decision whose actor was authenticated by the server that the program is."""


class Occasion(msgspec.Struct, frozen=True, kw_only=True):
    """When and where a decision is looked at.

    `position` is that of the event that rests on it, by which keys are enrolled and revoked; `at_us` when that is, in
    microseconds UTC. `log_id` is the incarnation in which the decision was recorded. `root` is the root of the log's
    tree at the size that the statement's head has, None if the log never had that size.
    """

    position: int
    at_us: int
    log_id: bytes
    root: bytes | None


class SignedDecision(msgspec.Struct, frozen=True, kw_only=True):
    """A decision that is proved: what was signed, and with which key."""

    statement: ApprovalStatement
    key: ApproverKey


class Flaw(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong: a code of `eventlog.errors`, a sentence, and for a mismatch the field with both values."""

    code: str
    message: str
    field: str | None = None
    supplied: str | None = None
    expected: str | None = None


def read_statement(envelope: Envelope) -> ApprovalStatement:
    """Return what an envelope says, whoever signed it. Raises InvalidInput(`statement_invalid`)."""
    return parse_approval(payload_of(envelope))


def check_decision(
    envelope: Envelope, asked: RecordedEvent, keys: ApproverKeys, occasion: Occasion
) -> SignedDecision | Flaw:
    """Return the decision that the envelope proves about the request that `asked`, a `ProposalRecorded`, has made.

    Raises Misuse(`missing_extra`) without `cryptography`.
    """
    try:
        statement = read_statement(envelope)
        keyid, signature = signature_of(envelope)
        key = keys.get(statement.key_id)
        flaw = _key_flaw(statement, key, occasion.position)
        if flaw is not None or key is None:
            return flaw or Flaw(code="approver_unknown", message="its key is not enrolled")
        if keyid != statement.key_id or not is_signed_by(key, pae(payload_of(envelope)), signature):
            return Flaw(
                code="signature_invalid", message=f"the signature is not that of the key {key.key_id} over this"
            )
        flaw = _mismatch(statement, bindings(asked, occasion.log_id), key)
    except InvalidInput as error:
        return Flaw(code="statement_invalid", message=str(error))
    return flaw or _terms_flaw(statement, asked, key, occasion) or SignedDecision(statement=statement, key=key)


def flaw_of_recorded(
    recorded: RecordedEvent, asked: RecordedEvent, keys: ApproverKeys, occasion: Occasion
) -> Flaw | None:
    """Return what is wrong with a decision as it was recorded, signed or not; None if nothing is.

    `recorded` is its `ApprovalRecorded`, `asked` the `ProposalRecorded` that it answers. Beyond `check_decision`, its
    level is the one that the terms ask for and that it proves, and what the event says is what was signed: who decided
    what, why, as what, and its id. Raises as `check_decision`.
    """
    event: ApprovalRecorded = recorded.data
    wanted = _terms(asked).level
    if event.envelope is None:
        proved = int(event.actor_source == AUTHENTICATED)
        if event.level > proved:
            message = f"it says that it is of level {event.level}, and nothing in it is signed"
            return Flaw(code="signature_invalid", message=message)
        return _level_flaw(event.level, wanted) if event.decision == "approve" else None
    found = check_decision(event.envelope, asked, keys, occasion)
    return found if isinstance(found, Flaw) else _recorded_otherwise(recorded, found)


def bindings(asked: RecordedEvent, log_id: bytes) -> dict[str, Any]:
    """Return what a statement about a request has to say, by field, as far as the log alone decides that.

    Raises InvalidInput(`invalid_event`) where the event holds no proposal.
    """
    event: ProposalRecorded = asked.data
    canonical = bytes(event.proposal)
    proposal = stored_proposal(canonical)
    return {
        "request_id": event.request_id,
        "log_id": log_id.hex(),
        "run_id": asked.stream.removeprefix(RUN_PREFIX),
        "proposal_position": asked.position,
        "proposal_leaf": asked.leaf.hex(),
        "proposal_sha256": hash_of(canonical),
        "action": proposal.action,
        "action_sha256": event.action_sha256,
        "output": proposal.output,
        "policy_id": proposal.action,
        "policy_sha256": policy_digest(event.policy),
        "requester": asked.actor,
        "displayed": displayed_request(asked, log_id),
    }


def separation_flaw(statement: ApprovalStatement, terms: PolicyTerms) -> Flaw | None:
    """Return that the approver approves what he has asked for, if the terms do not let him."""
    is_own = statement.approver == statement.requester and statement.decision == "approve"
    if not (is_own and terms.separation_of_duties):
        return None
    return Flaw(code="separation_of_duties", message=f"{statement.approver!r} has asked for it, and cannot approve it")


def _key_flaw(statement: ApprovalStatement, key: ApproverKey | None, position: int) -> Flaw | None:
    if key is None or key.enrolled_at >= position:
        message = f"the key {statement.key_id} is not enrolled in this log at position {position}"
        return Flaw(code="approver_unknown", message=message)
    if not key.counts_at(position):
        message = f"the key {key.key_id} of {key.approver!r} was revoked at position {key.revoked_at}"
        return Flaw(code="approver_revoked", message=message)
    return None


def _mismatch(statement: ApprovalStatement, expected: dict[str, Any], key: ApproverKey) -> Flaw | None:
    """Return the first field that says something else than the log."""
    for name, value in {**expected, "approver": key.approver}.items():
        found = getattr(statement, name)
        if name == "displayed" and found.media_type != SHOWN_AS:
            continue
        if found != value:
            return _differs(name, found, value)
    return None


def _differs(field: str, supplied: object, expected: object) -> Flaw:
    return Flaw(
        code="statement_mismatch",
        message=f"what was signed is about another {field}: {supplied!r:.200}, not {expected!r:.200}",
        field=field,
        supplied=f"{supplied}"[:_MAX_TOLD],
        expected=f"{expected}"[:_MAX_TOLD],
    )


_MAX_TOLD: Final = 256


def _terms_flaw(
    statement: ApprovalStatement, asked: RecordedEvent, key: ApproverKey, occasion: Occasion
) -> Flaw | None:
    terms = _terms(asked)
    flaw = separation_flaw(statement, terms)
    if flaw is None and statement.decision == "approve":
        flaw = _level_flaw(key.level, terms.level) or _roles_flaw(statement, terms, key)
    if flaw is not None:
        return flaw
    if occasion.at_us >= statement.not_after_us:
        return Flaw(code="statement_expired", message="the time until which the signed statement counts is over")
    head = statement.head
    if head.size < asked.position:
        message = f"the head that was signed, of size {head.size}, is older than the proposal at {asked.position}"
        return Flaw(code="head_mismatch", message=message)
    if head.size >= occasion.position or occasion.root is None or occasion.root.hex() != head.root:
        message = f"the log never had the head that was signed, of size {head.size} with the root {head.root}"
        return Flaw(code="head_mismatch", message=message)
    return None


def _roles_flaw(statement: ApprovalStatement, terms: PolicyTerms, key: ApproverKey) -> Flaw | None:
    counting = key.counting_roles(statement.roles, terms.level)
    if not terms.roles or not set(terms.roles).isdisjoint(counting):
        return None
    bound = ", ".join(key.roles) or "no role"
    wanted = ", ".join(terms.roles)
    message = f"one of the roles {wanted} is asked for, and the key of {key.approver!r} was enrolled for {bound}"
    return Flaw(code="role_required", message=message)


def _level_flaw(level: int, wanted: int) -> Flaw | None:
    if level >= wanted:
        return None
    return Flaw(code="level_required", message=f"an approval of level {wanted} is asked for, and this one is {level}")


def _recorded_otherwise(recorded: RecordedEvent, found: SignedDecision) -> Flaw | None:
    event: ApprovalRecorded = recorded.data
    statement = found.statement
    pairs: Iterator[tuple[str, object, object]] = iter(
        (
            ("decision", statement.decision, event.decision),
            ("approver", statement.approver, recorded.actor),
            ("proposal_sha256", statement.proposal_sha256, event.approval_hash),
            ("request_id", statement.request_id, event.request_id),
            ("reason", statement.reason, event.reason),
            ("roles", tuple(statement.roles), tuple(event.roles)),
            ("level", found.key.level, event.level),
            ("actor_source", SIGNED, event.actor_source),
            ("nonce", statement.nonce, recorded.event_id.hex()),
        )
    )
    return next((_differs(name, said, stored) for name, said, stored in pairs if said != stored), None)


def _terms(asked: RecordedEvent) -> PolicyTerms:
    event: ProposalRecorded = asked.data
    return event.policy or PolicyTerms()
