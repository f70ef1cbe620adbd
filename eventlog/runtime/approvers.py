"""Enrolling and revoking the keys of approvers: events of the stream `$log`, each appended at the version it was read.

    challenge = await approver_challenge(log, "anna", public)          # who enrols asks
    proof = sign_enrolment(challenge, key)                             # who holds the key signs
    await enrol_approver(log, proof, kind="ed25519", public=public)    # who enrols records it

With `ssh-keygen -Y sign -n eventlog-approval@v1` it is `enrolment_of_ssh`, of the armour that this writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from eventlog.errors import AppendTooLate, Misuse, Refused, RunConflict, WrongExpectedVersion
from eventlog.events import LOG_EVENTS, LOG_STREAM, ApproverEnrolled, ApproverRevoked, Envelope
from eventlog.log import Append, Expect, NewEvent, RecordedEvent, RunLog
from eventlog.plain import check_id
from eventlog.runtime.run_streams import MAX_REDECISIONS
from eventlog.runtime.signed_decisions import log_ids_of
from eventlog.signing.approver_keys import (
    ApproverKey,
    ApproverKeys,
    enrol,
    fold_approver_keys,
    revoke_key,
)
from eventlog.signing.ed25519 import PrivateKey, check_public_key
from eventlog.signing.envelopes import make_envelope, pae, payload_of
from eventlog.signing.ssh_signatures import parse_armour
from eventlog.signing.statements import EnrolmentStatement, encode_enrolment, key_id_of, parse_enrolment
from eventlog.stores.clock import Clock, SystemClock
from eventlog.stores.entropy import random_bytes

__all__ = [
    "approver_challenge",
    "approver_keys",
    "enrol_approver",
    "enrolment_of_ssh",
    "revoke_approver",
    "sign_enrolment",
]

_TYPE_OF: Final = {cls: name for name, cls in LOG_EVENTS.items()}
_MICRO: Final = 1_000_000


async def approver_keys(log: RunLog) -> ApproverKeys:
    """Return the keys that the log has enrolled, by id, those that were revoked among them."""
    return (await _read(log))[1]


async def approver_challenge(
    log: RunLog, approver: str, public: bytes, *, valid_for_s: float = 3600.0, clock: Clock | None = None
) -> EnrolmentStatement:
    """Return what the holder of a raw public key has to sign, within so many seconds, to be enrolled as `approver`.

    Nothing is written. Raises InvalidInput: `weak_key`, `invalid_id`.
    """
    log_id_at = await log_ids_of(log)
    head = await log.head()
    now_us = max((clock or SystemClock()).now_us(), head.recorded_at_us)
    return EnrolmentStatement(
        approver=check_id(approver, "approver", max_bytes=256),
        key_id=key_id_of(check_public_key(public)),
        log_id=log_id_at(head.position + 1).hex(),
        challenge=random_bytes(16).hex(),
        not_after_us=now_us + round(valid_for_s * _MICRO),
    )


def sign_enrolment(challenge: EnrolmentStatement, key: PrivateKey) -> Envelope:
    """Return the proof that the key's holder makes. Raises InvalidInput for a text that has no canonical form."""
    payload = encode_enrolment(challenge)
    return make_envelope(payload, challenge.key_id, key.sign(pae(payload)))


def enrolment_of_ssh(challenge: EnrolmentStatement, armour: bytes) -> Envelope:
    """Return the proof of which `ssh-keygen -Y sign` has made this signature. Raises InvalidInput."""
    return make_envelope(encode_enrolment(challenge), challenge.key_id, parse_armour(armour))


async def enrol_approver(
    log: RunLog,
    proof: Envelope,
    *,
    kind: str,
    public: bytes,
    level: int | None = None,
    roles: Sequence[str] = (),
    actor: str | None = None,
    clock: Clock | None = None,
) -> ApproverKey:
    """Enrol a raw public key for the approver that its holder's proof names; *durable* on return.

    `kind` is `ed25519`, `ssh-ed25519` or `sk-ssh-ed25519@openssh.com`; `level` is that of the approvals that it signs:
    3 for the last, a FIDO token, and 2 for the others unless the caller says that they are in hardware too. `roles` are
    those that it binds: of what the approver claims only they count, and where the terms ask for level 2 or more no
    others ever do. Raises as `eventlog.signing.approver_keys.enrol`.
    """
    clock = clock or SystemClock()
    for _ in range(MAX_REDECISIONS):
        stream, keys = await _read(log)
        head = await log.head()
        log_id = (await log_ids_of(log))(head.position + 1)
        now_us = max(clock.now_us(), head.recorded_at_us)
        enrolled, event_id = enrol(
            keys, proof, kind=kind, public=public, log_id=log_id, now_us=now_us, level=level, roles=roles
        )
        if await log.find(event_id) is not None:
            raise Refused("nonce_used", "this proof was recorded before", approver=enrolled.approver)
        before_us = parse_enrolment(payload_of(proof)).not_after_us
        if await _has_appended(log, len(stream), enrolled, actor, event_id, before_us):
            return (await approver_keys(log))[enrolled.key_id]
    raise RunConflict(LOG_STREAM, "it changes faster than a key can be enrolled")


async def revoke_approver(
    log: RunLog, key_id: str, *, reason: str | None = None, actor: str | None = None
) -> ApproverKey:
    """Revoke a key: nothing that it signs counts from here on. Raises Refused: `approver_unknown`, `approver_revoked`.

    What was recorded before stays approved as it is, and no effect begins under it any more.
    """
    for _ in range(MAX_REDECISIONS):
        stream, keys = await _read(log)
        if await _has_appended(log, len(stream), revoke_key(keys, key_id, reason), actor, None):
            return (await approver_keys(log))[key_id]
    raise RunConflict(LOG_STREAM, "it changes faster than a key can be revoked")


async def _read(log: RunLog) -> tuple[Sequence[RecordedEvent], ApproverKeys]:
    events = (await log.read_stream(LOG_STREAM)).events
    return events, fold_approver_keys(events, await log_ids_of(log))


async def _has_appended(
    log: RunLog,
    version: int,
    event: ApproverEnrolled | ApproverRevoked,
    actor: str | None,
    event_id: bytes | None,
    before_us: int | None = None,
) -> bool:
    """Append to `$log` at the version that was read, and before `before_us`; False if that has to be decided again."""
    name = _TYPE_OF[type(event)]
    new = NewEvent(name, event) if event_id is None else NewEvent(name, event, event_id)
    try:
        await log.append_reserved([Append(LOG_STREAM, [new], Expect.at(version))], actor=actor, before_us=before_us)
    except (WrongExpectedVersion, AppendTooLate):
        return False
    except Misuse as error:
        if error.code != "event_id_conflict":
            raise
        return False  # the challenge was used meanwhile: it is found now
    return True
