"""Whose signature a head bears: that of a key that the reader has pinned, or of one that only the log itself declares.

A pinned key counts from where the log says that it took over, and is followed through the rotations that it has signed,
and into the incarnations of the log that a restore began. What is signed by another key than the pinned ones after that
counts for nothing, whatever the log declares.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from eventlog.errors import InvalidInput
from eventlog.events import LogEvent, LogKeyDeclared, LogRestored
from eventlog.signing.ed25519 import is_signature
from eventlog.signing.log_keys import NO_LOG_KEYS, LogKey, LogKeys, current_key, evolve_log_keys, keys_for
from eventlog.signing.notes import SignatureLine, VerifierKey, make_verifier_key

__all__ = ["HeadKeys", "Signature"]

Signature = Literal["pinned", "self_declared", "unpinned", "unsigned", "bad", "no_key"]
"""`unpinned`: by a key that the log declares, though another is pinned. `unsigned`: by no key that counts at this size.

`bad`: the signature of a key that is known is wrong. `no_key`: neither does the reader know a key, nor does the log
declare one.
"""


class HeadKeys:
    """The keys of one log: those that are pinned and what they lead to, and those that `events` of the log declare.

    `log_ids` has the incarnation that begins at a position. Raises Misuse(`missing_extra`) where a rotation, or a
    signature, would have to be verified without the extra `proof`.
    """

    def __init__(
        self, pinned: Sequence[VerifierKey], events: Iterable[tuple[int, LogEvent]], log_ids: Mapping[int, bytes]
    ) -> None:
        events = sorted(events, key=lambda each: each[0])
        self.declared: Final = _declared(events, log_ids)
        self._pinned: Final = _pinned(pinned, self.declared, events, log_ids)

    @property
    def kind(self) -> Literal["pinned", "self_declared", "none"]:
        """Which keys there are."""
        return "pinned" if self._pinned.keys else "self_declared" if self.declared.keys else "none"

    def signature(self, origin: str, size: int, text: bytes, lines: Sequence[SignatureLine]) -> Signature:
        """Say who has signed the head of this origin and size."""
        known = {each.key for each in (*self._pinned.keys, *self.declared.keys) if each.key.name == origin}
        signed = set()
        for line in lines:
            for key in known:
                if (line.name, line.key_id) == (key.name, key.key_id):
                    if not is_signature(key.public, line.signature, text):
                        return "bad"
                    signed.add(key)
        if not signed.isdisjoint(keys_for(self._pinned, origin, size)):
            return "pinned"
        if signed.isdisjoint(keys_for(self.declared, origin, size)):
            return "unsigned" if self._pinned.keys or self.declared.keys else "no_key"
        return "unpinned" if self._begins(origin) <= size else "self_declared"

    def _begins(self, origin: str) -> float:
        """Return the size from which on only pinned keys count for an origin."""
        if not self._pinned.keys:
            return float("inf")
        return min((each.from_size for each in self._pinned.keys if each.key.name == origin), default=0)


def _declared(events: Sequence[tuple[int, LogEvent]], log_ids: Mapping[int, bytes]) -> LogKeys:
    """Return the keys that the log declares; the one before a restore goes on after it, until another is declared."""
    found = NO_LOG_KEYS
    for position, event in events:
        if isinstance(event, LogRestored) and found.keys:
            found = _carried(found, event, log_ids.get(position))
        elif isinstance(event, LogKeyDeclared):
            found = evolve_log_keys(_without_carried(found, event.verifier_key), position, event)
        else:
            found = evolve_log_keys(found, position, event)
    return found


def _without_carried(found: LogKeys, verifier_key: str) -> LogKeys:
    """Let a key that is declared take the place of one that was only carried over."""
    name = verifier_key.partition("+")[0]
    kept = tuple(each for each in found.keys if each.position or each.key.name != name)
    return msgspec.structs.replace(found, keys=kept)


def _pinned(
    pinned: Sequence[VerifierKey],
    declared: LogKeys,
    events: Sequence[tuple[int, LogEvent]],
    log_ids: Mapping[int, bytes],
) -> LogKeys:
    """Return the pinned keys, each from where the log brought it, and what they have handed over to."""
    since = {each.key: each for each in declared.keys}
    keys = tuple(since.get(key, LogKey(key=key, position=0, from_size=0)) for key in dict.fromkeys(pinned))
    found = LogKeys(tuple(msgspec.structs.replace(each, until_size=None, revoked_at=None) for each in keys))
    for position, event in events if keys else ():
        if isinstance(event, LogRestored):
            found = _carried(found, event, log_ids.get(position))
        elif not isinstance(event, LogKeyDeclared):
            found = evolve_log_keys(found, position, event)
    return found


def _carried(found: LogKeys, restored: LogRestored, log_id: bytes | None) -> LogKeys:
    """Let the key that signed before a restore sign for the incarnation that this began.

    And for the one that it names as lost, of which the log may hold nothing any more.
    """
    before = [each.key.name for each in found.keys]
    origin = next((name for name in before if name.endswith(f"/{restored.previous_log_id}")), before[-1])
    key, prefix = current_key(found, origin), origin.rpartition("/")[0]
    ids = (restored.previous_log_id, *([] if log_id is None else [log_id.hex()]))
    names = [name for each in ids if (name := f"{prefix}/{each}") not in before]
    carried = [] if key is None else [_renamed(key, name) for name in names]
    later = None if log_id is None else current_key(found, f"{prefix}/{log_id.hex()}")
    if later is not None:  # it may have signed what was lost, together with the event that brought it
        carried.append(_renamed(later, f"{prefix}/{restored.previous_log_id}"))
    return msgspec.structs.replace(found, keys=(*found.keys, *carried))


def _renamed(key: VerifierKey, name: str) -> LogKey:
    try:
        return LogKey(key=make_verifier_key(name, key.public), position=0, from_size=0)
    except InvalidInput:  # a name that no key can have: it signs nothing
        return LogKey(key=key, position=0, from_size=0)
