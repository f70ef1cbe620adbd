"""Bodies that are not there, or not in clear: erased ones, and encrypted ones.

An erased event has neither body nor salt; `erasures` names the `payload_erased` event, and that has what the leaf needs
and what may be read still. An encrypted body carries its commitment, and what may be read without the key.
"""

from __future__ import annotations

import sqlite3
from typing import Any, Final, Literal, Protocol

import msgspec

from eventlog.entry import BODY_ENCRYPTED, BODY_PLAIN, NO_HASH, content_commitment
from eventlog.errors import LogCorrupt
from eventlog.events import LOG_STREAM, PayloadErased, SubjectErased
from eventlog.sealed import associated_data, parse_sealed, stored_hash

__all__ = ["Body", "BodyKeys", "Place", "Redactions", "plain_body"]

Why = Literal["erased", "subject_erased", "key_missing"]

_ERASED_BY: Final = """
SELECT CAST(b.body AS BLOB) FROM {log}erasures e
JOIN {log}events b ON b.position = e.erased_by JOIN {log}types t ON t.type_id = b.type_id
JOIN {log}streams s ON s.stream_id = b.stream_id
WHERE e.position = ? AND t.name = 'payload_erased' AND s.name = ?"""
_SUBJECTS: Final = """
SELECT CAST(e.body AS BLOB) FROM {log}streams s JOIN {log}events e USING (stream_id) JOIN {log}types t USING (type_id)
WHERE s.name = ? AND t.name = 'subject_erased' AND e.body IS NOT NULL"""

_decode_erased: Final = msgspec.json.Decoder(PayloadErased).decode
_decode_subject: Final = msgspec.json.Decoder(SubjectErased).decode


class BodyKeys(Protocol):
    """Opens encrypted bodies."""

    def open(self, key_id: bytes, data: bytes, stored: bytes) -> tuple[bytes, bytes] | None:
        """Return salt and plain body of a sealed body with this associated data, or None if the key is not there.

        Raises LogCorrupt: `body_unreadable` where the key does not fit, `content_mismatch` where what was sealed is not
        what the stored bytes commit to.
        """


class Place(msgspec.Struct, frozen=True, gc=False):
    """Which event a body belongs to."""

    log_id: bytes
    position: int
    version: int
    stream: str
    type: str


class Body(msgspec.Struct, frozen=True, gc=False):
    """What the entry says of a body, and what can be read of it: all, what remains, or nothing (None)."""

    body_len: int
    content_commit: bytes
    stored_hash: bytes
    readable: bytes | None
    why: Why | None
    stored: bytes | None
    salt: bytes | None = None


class Redactions:
    """Finds what is left of bodies, through the connections that it is given. `schema`: where the log is attached."""

    def __init__(self, keys: BodyKeys | None, *, schema: str = "") -> None:
        self._keys: Final = keys
        self._log: Final = f"{schema}." if schema else ""
        self._destroyed: frozenset[bytes] | None = None

    def look(self, connection: sqlite3.Connection, place: Place, body_kind: int, stored: bytes | None) -> Body:
        """Return what there is of the body of an event that is not simply stored in clear.

        Raises LogCorrupt: `body_missing` where nothing says that it was erased, `body_kind` for a kind that no program
        writes, `body_unreadable` for an encrypted body that is none, or whose key does not fit.
        """
        if stored is None:
            return self._erased(connection, place, body_kind)
        if body_kind != BODY_ENCRYPTED:
            reason, what = ("body_missing", "the salt of") if body_kind == BODY_PLAIN else ("body_kind", "the kind of")
            raise _damaged(reason, place, f"{what} the body is not what the log writes ({body_kind})")
        return self._sealed(connection, place, stored)

    def forget(self) -> None:
        """Look again which keys are destroyed: events may have come."""
        self._destroyed = None

    def _erased(self, connection: sqlite3.Connection, place: Place, body_kind: int) -> Body:
        row = connection.execute(_ERASED_BY.replace("{log}", self._log), (place.position, LOG_STREAM)).fetchone()
        if row is None:
            raise _damaged("body_missing", place, "the body is gone, and no erasure is recorded")
        try:
            erased = _decode_erased(row[0])
            commit, stored = bytes.fromhex(erased.content_commit), bytes.fromhex(erased.stored_hash)
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            raise _damaged("body_missing", place, f"its erasure cannot be read: {error}") from error
        if erased.position != place.position or erased.body_kind != body_kind:
            raise _damaged("body_missing", place, f"its erasure is about position {erased.position}")
        if place.stream == LOG_STREAM:  # who holds which key would be what the erasure says
            raise _damaged("body_missing", place, "an event about the log itself is never erased")
        if not _is_remainder(place.type, bytes(erased.remainder)):
            raise _damaged("body_missing", place, "its erasure leaves more of it than an erasure does")
        return Body(erased.body_len, commit, stored, bytes(erased.remainder) or None, "erased", None)

    def _sealed(self, connection: sqlite3.Connection, place: Place, stored: bytes) -> Body:
        try:
            sealed = parse_sealed(stored)
        except (TypeError, ValueError) as error:
            raise _damaged("body_unreadable", place, str(error)) from error
        data = associated_data(place.log_id, place.position, place.version, place.stream, place.type)
        opened = self._keys.open(sealed.key_id, data, stored) if self._keys is not None else None
        facts: tuple[int, bytes, bytes] = len(stored), sealed.content_commit, stored_hash(stored)
        if opened is None:
            why: Why = "subject_erased" if sealed.key_id in self._known_destroyed(connection) else "key_missing"
            return Body(*facts, sealed.remainder or None, why, stored)
        _, body = opened
        return Body(*facts, body, None, stored)

    def is_destroyed(self, connection: sqlite3.Connection, key_id: bytes) -> bool:
        """Say whether the log says that the key of a subject is destroyed."""
        return key_id in self._known_destroyed(connection)

    def _known_destroyed(self, connection: sqlite3.Connection) -> frozenset[bytes]:
        if self._destroyed is None:
            rows = connection.execute(_SUBJECTS.replace("{log}", self._log), (LOG_STREAM,))
            self._destroyed = frozenset(found for row in rows if (found := _key_id(row)) is not None)
        return self._destroyed


def plain_body(salt: bytes, body: bytes) -> Body:
    """Return what the entry says of a body that is stored in clear."""
    return Body(len(body), content_commitment(salt, body), NO_HASH, body, None, body, salt)


def _is_remainder(type: str, remainder: bytes) -> bool:
    """Say whether this can be left of a body: no leaf proves it, so nothing may stand in it that somebody wrote."""
    from eventlog.remainders import remainder_of

    try:
        return not remainder or remainder == remainder_of(type, remainder)
    except (TypeError, KeyError, AttributeError, msgspec.MsgspecError):
        return False


def _key_id(row: tuple[Any, ...]) -> bytes | None:
    try:
        return bytes.fromhex(_decode_subject(row[0]).key_id)
    except (TypeError, ValueError, msgspec.MsgspecError):
        return None


def _damaged(reason: str, place: Place, what: str) -> LogCorrupt:
    return LogCorrupt(reason, f"position {place.position}: {what}", position=place.position, stream=place.stream)
