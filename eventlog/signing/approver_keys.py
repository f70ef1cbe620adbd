"""Which key stands for which approver, and from which position of the log to which.

Keys are enrolled and revoked by events of the stream `$log`. An enrolment counts only with a proof of possession: a
signed `EnrolmentStatement` over the approver, the key and this incarnation of the log, whose challenge is the id of the
event itself, so that no proof can be used again. A key is enrolled once and for one approver; what is revoked stays so.
Points that let anybody forge are refused (`ed25519.check_public_key`). An event that breaks one of these rules, which
this engine does not write, enrols nobody.

Who may enrol approvers is up to whoever runs the log, and stays visible in it for ever. Somebody who does not trust the
operator brings the keys of the approvers himself.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from eventlog.errors import InvalidInput, Refused
from eventlog.events import ApproverEnrolled, ApproverRevoked, Envelope
from eventlog.log import RecordedEvent
from eventlog.plain import check_id
from eventlog.signing.ed25519 import check_public_key, is_signature
from eventlog.signing.envelopes import pae, payload_of, signature_of
from eventlog.signing.ssh_signatures import (
    SK_SSH_ED25519,
    SSH_ED25519,
    is_ssh_signature,
    parse_public_line,
    public_line,
)
from eventlog.signing.statements import EnrolmentStatement, key_id_of, parse_enrolment

__all__ = [
    "ED25519",
    "SSH",
    "SSH_TOKEN",
    "ApproverKey",
    "ApproverKeys",
    "LogIdAt",
    "enrol",
    "fold_approver_keys",
    "is_signed_by",
    "key_of",
    "note_approver_event",
    "parse_public_key",
    "revoke_key",
    "spell_public_key",
]

_SIGNED_LEVEL: Final = 2
ED25519: Final = "ed25519"
SSH: Final = SSH_ED25519
SSH_TOKEN: Final = SK_SSH_ED25519
_LEVELS: Final[dict[str, tuple[int, ...]]] = {ED25519: (2, 3), SSH: (2, 3), SSH_TOKEN: (3,)}


class ApproverKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key of an approver. `enrolled_at` and `revoked_at` are positions; what is signed counts between the two.

    `public` are the 32 raw bytes, `kind` how it signs: the bytes themselves (`ed25519`), or as `ssh-keygen -Y sign`
    does (`ssh-ed25519`, or `sk-ssh-ed25519@openssh.com` with a FIDO token). `level` is the one of an approval that it
    signs: 3 for a token, and for another key if whoever enrolled it says that it is in hardware.
    """

    approver: str
    key_id: str
    kind: str
    public: bytes
    level: int
    roles: tuple[str, ...] = ()
    enrolled_at: int
    revoked_at: int | None = None

    def counting_roles(self, claimed: Iterable[str], level: int) -> tuple[str, ...]:
        """Return which of the roles that are claimed count, where the terms ask for this level.

        Those that the enrolment binds; if it binds none, all of them, but none from level 2 on.
        """
        is_bound = bool(self.roles) or level >= _SIGNED_LEVEL
        return tuple(role for role in claimed if not is_bound or role in self.roles)

    def counts_at(self, position: int) -> bool:
        """Say whether an event at this position can rest on it."""
        return self.enrolled_at < position and (self.revoked_at is None or position < self.revoked_at)


ApproverKeys = Mapping[str, ApproverKey]
"""The keys by their id."""

LogIdAt = Callable[[int], bytes]
"""Returns the id of the incarnation of the log to which a position belongs."""


def fold_approver_keys(events: Iterable[RecordedEvent], log_id_at: LogIdAt) -> dict[str, ApproverKey]:
    """Return the keys that these events of the stream `$log`, in order, have enrolled and revoked.

    Raises Misuse(`missing_extra`) where a proof has to be verified and `cryptography` is missing.
    """
    keys: dict[str, ApproverKey] = {}
    for event in events:
        note_approver_event(keys, event, log_id_at)
    return keys


def note_approver_event(keys: dict[str, ApproverKey], event: RecordedEvent, log_id_at: LogIdAt) -> str | None:
    """Fold one event of the stream `$log` into `keys`; others than of approvers change nothing.

    Returns why an enrolment does not count, if it does not. Raises as `fold_approver_keys`.
    """
    match event.data:
        case ApproverEnrolled() as enrolled:
            flaw = _flaw(keys, enrolled, log_id_at(event.position), event.event_id, event.recorded_at_us)
            if flaw is None:
                keys[enrolled.key_id] = _key(enrolled, event.position)
            return flaw
        case ApproverRevoked(key_id=key_id) if key_id in keys and keys[key_id].revoked_at is None:
            keys[key_id] = replace(keys[key_id], revoked_at=event.position)
    return None


def key_of(keys: ApproverKeys, approver: str, position: int) -> ApproverKey:
    """Return the one key that an approver can sign with at a position.

    Raises Refused(`approver_unknown`) if he has none, `approver_revoked` if he has none any more;
    InvalidInput(`invalid_argument`) if he has several.
    """
    own = [key for key in keys.values() if key.approver == approver and key.counts_at(position)]
    revoked = [key for key in keys.values() if key.approver == approver and key.revoked_at is not None]
    if not own and revoked:
        last = revoked[-1]
        message = f"the key {last.key_id} of {approver!r} was revoked at position {last.revoked_at}"
        raise Refused("approver_revoked", message, approver=approver, key_id=last.key_id, position=last.revoked_at)
    if not own:
        raise Refused("approver_unknown", f"no key of {approver!r} is enrolled in this log", approver=approver)
    if len(own) > 1:
        known = ", ".join(sorted(key.key_id for key in own))
        raise InvalidInput("invalid_argument", f"{approver!r} has {len(own)} keys, name one of them: {known}")
    return own[0]


def is_signed_by(key: ApproverKey, message: bytes, signature: bytes) -> bool:
    """Say whether this is the key's signature of the message, in the way in which a key of its kind signs.

    Raises Misuse(`missing_extra`) without `cryptography`.
    """
    return _is_signed(key.kind, key.public, message, signature)


def enrol(
    keys: ApproverKeys,
    proof: Envelope,
    *,
    kind: str,
    public: bytes,
    log_id: bytes,
    now_us: int,
    level: int | None = None,
    roles: Iterable[str] = (),
) -> tuple[ApproverEnrolled, bytes]:
    """Return the event that enrols a key, by a proof that its holder has made, and the id that the event has to have.

    `level` is the least that its kind has, if it is not given; `roles` are those that the enrolment binds.
    Raises Refused: `signature_invalid`, `statement_mismatch`, `statement_expired`, `approver_key_taken`; InvalidInput:
    `weak_key`, `statement_invalid`, `invalid_id`, `invalid_argument`.
    """
    spelled = spell_public_key(kind, public)
    level = _LEVELS[kind][0] if level is None else level
    if level not in _LEVELS[kind]:
        raise InvalidInput("invalid_argument", f"the level of a key is 2, or 3 for one in hardware, not {level!r}")
    statement = parse_enrolment(payload_of(proof))
    check_id(statement.approver, "approver", max_bytes=256)
    enrolled = ApproverEnrolled(
        approver=statement.approver,
        key_id=key_id_of(check_public_key(public)),
        kind=kind,
        public_key=spelled,
        proof=proof,
        level=level,
        roles=tuple(dict.fromkeys(check_id(role, "role", max_bytes=128) for role in roles)),
    )
    challenge = bytes.fromhex(statement.challenge)
    code = _flaw(keys, enrolled, log_id, challenge, now_us)
    if code is not None:
        raise Refused(code, _MESSAGES[code], approver=statement.approver, key_id=enrolled.key_id)
    return enrolled, challenge


def revoke_key(keys: ApproverKeys, key_id: str, reason: str | None = None) -> ApproverRevoked:
    """Return the event that revokes a key. Raises Refused: `approver_unknown`, `approver_revoked`."""
    if key_id not in keys:
        raise Refused("approver_unknown", f"no key {key_id!r:.80} is enrolled in this log", key_id=key_id)
    if keys[key_id].revoked_at is not None:
        position = keys[key_id].revoked_at
        raise Refused("approver_revoked", f"the key {key_id} was revoked at position {position}", key_id=key_id)
    return ApproverRevoked(key_id=key_id, reason=reason)


def parse_public_key(text: str) -> tuple[str, bytes]:
    """Return the kind and the raw bytes of a public key: a line of OpenSSH, or base64 of 32 bytes.

    Raises InvalidInput: `invalid_argument`, `weak_key`.
    """
    words = text.split()
    if words and words[0] in (SSH, SSH_TOKEN):
        return words[0], check_public_key(parse_public_line(text))
    try:
        raw = base64.b64decode(text.strip().encode(), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raw = b""
    if len(raw) != 32:
        what = f"a line of an OpenSSH public key ({SSH}, {SSH_TOKEN}), or base64 of the 32 bytes of an Ed25519 key"
        raise InvalidInput("invalid_argument", f"a public key is {what}")
    return ED25519, check_public_key(raw)


def spell_public_key(kind: str, public: bytes) -> str:
    """Return a public key as an event holds it. Raises InvalidInput(`invalid_argument`) for an unknown kind."""
    match kind:
        case "ssh-ed25519" | "sk-ssh-ed25519@openssh.com":
            return public_line(public, kind)
        case "ed25519":
            return base64.b64encode(public).decode()
        case _:
            raise InvalidInput("invalid_argument", f"a key is {ED25519}, {SSH} or {SSH_TOKEN}, not {kind!r:.80}")


_MESSAGES: Final = {
    "statement_invalid": "the enrolment does not hold a public key as it has to be spelled, with a proof of possession",
    "signature_invalid": "the proof is not signed by the key that is to be enrolled",
    "statement_mismatch": "the proof was made for another key, another log, or by another challenge",
    "statement_expired": "the challenge is too old; ask for another one",
    "approver_key_taken": "this key is enrolled already",
}


def _key(enrolled: ApproverEnrolled, position: int) -> ApproverKey:
    return ApproverKey(
        approver=enrolled.approver,
        key_id=enrolled.key_id,
        kind=enrolled.kind,
        public=parse_public_key(enrolled.public_key)[1],
        level=enrolled.level,
        roles=enrolled.roles,
        enrolled_at=position,
    )


def _flaw(keys: ApproverKeys, enrolled: ApproverEnrolled, log_id: bytes, event_id: bytes, at_us: int) -> str | None:
    """Return the code of what is wrong with an enrolment, if something is."""
    try:
        kind, public = parse_public_key(enrolled.public_key)
        keyid, signature = signature_of(enrolled.proof)
        payload = payload_of(enrolled.proof)
        statement = parse_enrolment(payload)
        is_signed = _is_signed(enrolled.kind, public, pae(payload), signature)
    except InvalidInput:
        return "statement_invalid"
    expected = EnrolmentStatement(
        approver=enrolled.approver,
        key_id=key_id_of(public),
        log_id=log_id.hex(),
        challenge=event_id.hex(),
        not_after_us=statement.not_after_us,
    )
    is_spelled = kind == enrolled.kind and spell_public_key(kind, public) == enrolled.public_key
    if not is_spelled or enrolled.level not in _LEVELS[kind]:
        return "statement_invalid"
    if not is_signed:
        return "signature_invalid"
    if statement != expected or not enrolled.key_id == keyid == expected.key_id:
        return "statement_mismatch"
    if at_us >= statement.not_after_us:
        return "statement_expired"
    return "approver_key_taken" if enrolled.key_id in keys else None


def _is_signed(kind: str, public: bytes, message: bytes, signature: bytes) -> bool:
    if kind in (SSH, SSH_TOKEN):
        return is_ssh_signature(public, signature, message, kind=kind)
    return kind == ED25519 and is_signature(public, signature, message)
