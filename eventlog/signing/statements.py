"""What an approver signs: an in-toto statement that says exactly what was decided about what, and on what he looked.

    {"_type": "https://in-toto.io/Statement/v1",
     "subject": [{"name": <request_id>, "digest": {"sha256": <proposal_sha256>}}],
     "predicateType": "urn:eventlog:approval:v1",
     "predicate": { … the fields of `ApprovalStatement`, all of them, null where there is none … }}

An approver proves that he holds a key by another statement, whose subject is the key itself:

    {"_type": …, "subject": [{"name": <approver>, "digest": {"sha256": <key_id>}}],
     "predicateType": "urn:eventlog:enrolment:v1", "predicate": { … the fields of `EnrolmentStatement` … }}

The payload are the RFC 8785 bytes of that and no other spelling of it: a statement is read by encoding it again, and
whatever gives other bytes (an unknown field, one that is missing or stands twice, white space) is refused. Its DSSE PAE
is what is signed (`eventlog.signing.envelopes`), by an Ed25519 key, or as an SSH signature of those bytes in the
namespace `eventlog-approval@v1` (`eventlog.signing.ssh_signatures`).

Hashes are 64 lower-case hex digits, ids of logs and nonces 32, times are integer microseconds UTC. A `key_id` is the
SHA-256 of the 32 raw bytes of the public key.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from eventlog.errors import InvalidInput
from eventlog.events import PolicyTerms
from eventlog.plain import parse_json
from eventlog.proposal import canonical_bytes, hash_of

__all__ = [
    "APPROVAL",
    "ENROLMENT",
    "ApprovalStatement",
    "Displayed",
    "EnrolmentStatement",
    "SeenHead",
    "encode_approval",
    "encode_enrolment",
    "key_id_of",
    "parse_approval",
    "parse_enrolment",
    "policy_digest",
]

APPROVAL: Final = "urn:eventlog:approval:v1"
ENROLMENT: Final = "urn:eventlog:enrolment:v1"

_STATEMENT: Final = "https://in-toto.io/Statement/v1"
_MAX_BYTES: Final = 64 * 1024

_Hash = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
_Id = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]
_Positive = Annotated[int, msgspec.Meta(ge=1)]


class _Signed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What statements have in common: immutable, and closed. No field has a default, so none can be left out."""


class Displayed(_Signed, frozen=True, kw_only=True):
    """What the approver was shown: its media type, and the SHA-256 of its bytes."""

    media_type: str
    sha256: _Hash


class SeenHead(_Signed, frozen=True, kw_only=True):
    """The head of the log when the request was shown. It makes every approver a witness of all that lies before it."""

    size: _Positive
    root: _Hash


class ApprovalStatement(_Signed, frozen=True, kw_only=True):
    """One decision of one approver on one request, with everything that it depends on.

    `decision` is `approve` or `reject`. `log_id`, `run_id` and `request_id` say where; `proposal_position`,
    `proposal_leaf` and `proposal_sha256` are the event of the proposal and its bytes; `action`, `output` and the
    `action_sha256` of the action's definition (null where whoever asked did not know the action) what would run.
    `policy_id` is the name under which the terms were kept, which is that of the action, `policy_sha256` the terms
    themselves (`policy_digest`). `requester` asked; `approver` decides, with the key `key_id`, bringing `roles`, for a
    `reason` or none. It counts once (`nonce` becomes the id of the event that records it), before `not_after_us`.
    """

    decision: Literal["approve", "reject"]
    request_id: str
    log_id: _Id
    run_id: str
    proposal_position: _Positive
    proposal_leaf: _Hash
    proposal_sha256: _Hash
    action: str
    action_sha256: _Hash | None
    output: str
    policy_id: str
    policy_sha256: _Hash
    requester: str
    approver: str
    key_id: _Hash
    roles: tuple[str, ...]
    reason: str | None
    nonce: _Id
    not_after_us: _Positive
    max_uses: Annotated[int, msgspec.Meta(ge=1, le=1)]
    displayed: Displayed
    head: SeenHead


class EnrolmentStatement(_Signed, frozen=True, kw_only=True):
    """That who makes it holds the key `key_id`, and signs with it in this log as `approver`.

    `challenge` becomes the id of the event that records it, so that a proof counts once, and before `not_after_us`.
    """

    approver: str
    key_id: _Hash
    log_id: _Id
    challenge: _Id
    not_after_us: _Positive


class _Subject(msgspec.Struct, frozen=True):
    """Read only to find the predicate: what a subject has to be follows from that."""

    name: str
    digest: dict[str, str]


class _Statement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str = msgspec.field(name="_type")
    subject: tuple[_Subject, ...]
    predicate_type: str = msgspec.field(name="predicateType")
    predicate: dict[str, Any]


S = TypeVar("S", ApprovalStatement, EnrolmentStatement)


def encode_approval(statement: ApprovalStatement) -> bytes:
    """Return the payload of an approval. Raises InvalidInput with the path for what has no exact canonical form."""
    return _encoded(APPROVAL, statement.request_id, statement.proposal_sha256, statement)


def parse_approval(payload: bytes) -> ApprovalStatement:
    """Return the approval that a payload spells. Raises InvalidInput(`statement_invalid`) for any other bytes."""
    return _exact(_parsed(payload, APPROVAL, ApprovalStatement), payload, encode_approval)


def encode_enrolment(statement: EnrolmentStatement) -> bytes:
    """Return the payload of a proof of possession. Raises as `encode_approval`."""
    return _encoded(ENROLMENT, statement.approver, statement.key_id, statement)


def parse_enrolment(payload: bytes) -> EnrolmentStatement:
    """Return the proof of possession that a payload spells. Raises InvalidInput(`statement_invalid`)."""
    return _exact(_parsed(payload, ENROLMENT, EnrolmentStatement), payload, encode_enrolment)


def key_id_of(public: bytes) -> str:
    """Return the id of a raw public key: its SHA-256, as 64 hex digits."""
    return sha256(public).hexdigest()


def policy_digest(policy: PolicyTerms | None) -> str:
    """Return the SHA-256 of the terms of a decision: of their RFC 8785 bytes as an object.

    Fields that hold their default are left out, as they are where the terms are stored; terms that are absent are `{}`.
    """
    return hash_of(canonical_bytes(_plain(policy or PolicyTerms())))


def _encoded(kind: str, name: str, digest: str, predicate: msgspec.Struct) -> bytes:
    return canonical_bytes(
        {
            "_type": _STATEMENT,
            "subject": [{"name": name, "digest": {"sha256": digest}}],
            "predicateType": kind,
            "predicate": _plain(predicate),
        }
    )


def _plain(value: msgspec.Struct) -> dict[str, Any]:
    """Return a Struct as plain data, with lists where it has tuples."""
    fields: dict[str, Any] = msgspec.to_builtins(value)
    return {name: list(field) if isinstance(field, tuple) else field for name, field in fields.items()}


def _parsed(payload: bytes, kind: str, cls: type[S]) -> S:
    if len(payload) > _MAX_BYTES:
        raise _invalid(f"the statement has more than {_MAX_BYTES} bytes")
    try:
        statement = msgspec.convert(parse_json(payload, what="the statement"), _Statement)
        if statement.predicate_type != kind:
            raise _invalid(f"the statement is a {statement.predicate_type!r:.80}, not {kind}")
        return msgspec.convert(statement.predicate, cls)
    except msgspec.ValidationError as error:
        raise _invalid(f"the statement is not as it has to be: {error}") from None
    except InvalidInput as error:
        raise _invalid(str(error)) from None


def _exact(statement: S, payload: bytes, encode: Callable[[S], bytes]) -> S:
    try:
        is_exact = encode(statement) == payload
    except InvalidInput:
        is_exact = False
    if not is_exact:
        raise _invalid("the statement is not spelled in the one way that it has (RFC 8785), or its subject is another")
    return statement


def _invalid(message: str) -> InvalidInput:
    return InvalidInput("statement_invalid", message)
