"""Which keys sign the heads of a log, by what the log says itself: a fold of the events about them in `$log`.

A reader who wants to be sure has a key by another way and needs none of this. For the others, and for following the
keys of a log through its rotations, these rules hold; each key belongs to one origin, which is its name.

* The first key that is declared for an origin counts from the first head on. A later one is a problem: a key is
  replaced by rotation only, which the key before it has signed.
* A rotation at position p makes the new key count for heads of size p and more, and the old one for smaller ones only.
  A head of that size or more may bear both signatures, so that who knows only the old key can follow; the new one is
  what it needs.
* A revocation takes a key away for heads that are larger than its `from_size`, whenever they were signed.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from typing import Final

import msgspec

from eventlog.errors import InvalidInput
from eventlog.events import LogKeyDeclared, LogKeyRevoked, LogKeyRotated
from eventlog.signing.ed25519 import PrivateKey, is_signature
from eventlog.signing.notes import VerifierKey, canonical_base64, make_verifier_key, parse_verifier_key

__all__ = [
    "NO_LOG_KEYS",
    "KeyProblem",
    "LogKey",
    "LogKeys",
    "current_key",
    "evolve_log_keys",
    "fold_log_keys",
    "keys_for",
    "rotate",
    "rotation_text",
]


class LogKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key that signs heads. `position` is that of the event which brought it.

    It counts for heads of `from_size` and more, up to `until_size`, None where no end is known. `revoked_at` is the
    position of the event that revoked it, `reason` what that gave.
    """

    key: VerifierKey
    position: int
    from_size: int
    until_size: int | None = None
    is_rotated: bool = False
    revoked_at: int | None = None
    reason: str | None = None


class KeyProblem(msgspec.Struct, frozen=True):
    """An event about keys that changes nothing, because it is not what the rules ask for."""

    position: int
    why: str


class LogKeys(msgspec.Struct, frozen=True):
    """All keys that the log has named, in that order, and what was wrong."""

    keys: tuple[LogKey, ...] = ()
    problems: tuple[KeyProblem, ...] = ()


NO_LOG_KEYS: Final = LogKeys()


def fold_log_keys(events: Iterable[tuple[int, object]]) -> LogKeys:
    """Return the keys after these events, each with its position. Events about other things are passed by."""
    found = NO_LOG_KEYS
    for position, event in events:
        found = evolve_log_keys(found, position, event)
    return found


def evolve_log_keys(found: LogKeys, position: int, event: object) -> LogKeys:
    """Return the keys after one event. Never fails: what is wrong with an event is added to the problems.

    Raises Misuse(`missing_extra`) for a rotation, without the extra `proof`.
    """
    try:
        match event:
            case LogKeyDeclared():
                return _declared(found, position, event)
            case LogKeyRotated():
                return _rotated(found, position, event)
            case LogKeyRevoked():
                return _revoked(found, position, event)
    except InvalidInput as error:
        return msgspec.structs.replace(found, problems=(*found.problems, KeyProblem(position, str(error))))
    return found


def keys_for(found: LogKeys, origin: str, size: int) -> tuple[VerifierKey, ...]:
    """Return the keys of which one must have signed a head of this origin and size, for it to count."""
    return tuple(
        each.key
        for each in found.keys
        if each.key.name == origin and each.from_size <= size and (each.until_size is None or size <= each.until_size)
    )


def current_key(found: LogKeys, origin: str) -> VerifierKey | None:
    """Return the key that signs the heads of this origin from now on, or None."""
    open_ended = [each.key for each in found.keys if each.key.name == origin and each.until_size is None]
    return open_ended[-1] if open_ended else None


def rotation_text(replaces: str, verifier_key: str) -> bytes:
    """Return what the old key signs: its own text, and that of the key that takes its place."""
    return f"eventlog/log-key/v1\n{replaces}\n{verifier_key}\n".encode()


def rotate(old: PrivateKey, new: bytes, origin: str) -> LogKeyRotated:
    """Return the event by which the key `old` of this origin hands over to the public key `new`.

    Raises InvalidInput(`invalid_argument`) if they are the same, and `weak_key`.
    """
    replaces, verifier_key = make_verifier_key(origin, old.public), make_verifier_key(origin, new)
    if replaces == verifier_key:
        raise InvalidInput("invalid_argument", "a key cannot take its own place")
    signature = old.sign(rotation_text(replaces.to_text(), verifier_key.to_text()))
    return LogKeyRotated(
        verifier_key=verifier_key.to_text(), replaces=replaces.to_text(), signature=b64encode(signature).decode()
    )


def _declared(found: LogKeys, position: int, event: LogKeyDeclared) -> LogKeys:
    key = parse_verifier_key(event.verifier_key)
    if any(each.key.name == key.name for each in found.keys):
        raise InvalidInput(
            "bad_verifier_key", f"{key.name!r} has a key already, and a key is replaced by rotation only"
        )
    return _with(found, LogKey(key=key, position=position, from_size=0))


def _rotated(found: LogKeys, position: int, event: LogKeyRotated) -> LogKeys:
    old, new = parse_verifier_key(event.replaces), parse_verifier_key(event.verifier_key)
    if old != current_key(found, new.name) or old == new:
        raise InvalidInput("bad_verifier_key", f"the key {event.replaces!r:.120} does not sign at this place")
    if not is_signature(old.public, _decoded(event.signature), rotation_text(event.replaces, event.verifier_key)):
        raise InvalidInput("bad_verifier_key", "the key that is replaced has not signed that")
    ended = tuple(
        msgspec.structs.replace(each, until_size=position - 1) if each.key == old and each.until_size is None else each
        for each in found.keys
    )
    after = msgspec.structs.replace(found, keys=ended)
    return _with(after, LogKey(key=new, position=position, from_size=position, is_rotated=True))


def _revoked(found: LogKeys, position: int, event: LogKeyRevoked) -> LogKeys:
    key = parse_verifier_key(event.verifier_key)
    if not any(each.key == key for each in found.keys):
        raise InvalidInput("bad_verifier_key", f"the log has not named the key {event.verifier_key!r:.120}")
    keys = tuple(_ended(each, position, event) if each.key == key else each for each in found.keys)
    return msgspec.structs.replace(found, keys=keys)


def _ended(each: LogKey, position: int, event: LogKeyRevoked) -> LogKey:
    until = event.from_size if each.until_size is None else min(each.until_size, event.from_size)
    return msgspec.structs.replace(each, until_size=until, revoked_at=position, reason=event.reason)


def _with(found: LogKeys, key: LogKey) -> LogKeys:
    return msgspec.structs.replace(found, keys=(*found.keys, key))


def _decoded(signature: str) -> bytes:
    try:
        return canonical_base64(signature)
    except ValueError:
        raise InvalidInput("bad_verifier_key", "the signature is no base64") from None
