"""Erasing bodies: body and salt of a row become NULL, and one event in `$log` each says what its leaf needs.

The one update that the triggers allow. The space is overwritten at once (`secure_delete`), and gone from the
write-ahead log once that is cut.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from eventlog.entry import BODY_PLAIN, Entry, parse
from eventlog.errors import InvalidInput, LogCorrupt, Misuse
from eventlog.events import LOG_STREAM, NOTHING, PayloadErased
from eventlog.sealed import parse_sealed
from eventlog.stores.requests import Request

if TYPE_CHECKING:
    from eventlog.stores.sqlite.rows import Rows

__all__ = [
    "Erased",
    "Erasure",
    "MakeErasure",
    "are_noted",
    "carry_out",
    "check_erasure_texts",
    "is_sealed",
    "payload_erased",
    "plan_erasures",
    "streams_of",
]

_MAX_TEXT: Final = 1000
_ERASED: Final = """
SELECT v.position IS NOT NULL AND v.body IS NULL
FROM erasures e LEFT JOIN events v USING (position) WHERE e.position = ?"""
_ERASE: Final = "UPDATE events SET body = NULL, salt = NULL WHERE position = ?"
_NOTE: Final = "INSERT INTO erasures (position, erased_by) VALUES (?, ?)"
_IS_NOTED: Final = "SELECT count(*) FROM erasures WHERE position = ? AND erased_by = ?"
_HAS_SNAPSHOTS: Final = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'snapshots'"
_FORGET: Final = """
DELETE FROM snapshots WHERE stream = (
  SELECT s.name FROM events e JOIN streams s USING (stream_id) WHERE e.position = ?)"""
_IS_SEALED: Final = """
SELECT count(*) FROM subject_streams JOIN streams USING (stream_id) WHERE name = ?"""
_STREAMS: Final = """
SELECT name FROM subject_streams JOIN streams USING (stream_id) WHERE key_id = ? ORDER BY stream_id"""


class Erased(msgspec.Struct, frozen=True):
    """That the body of the event at `position` is erased, and which event says so."""

    position: int
    erased_by: int


class Erasure(msgspec.Struct, frozen=True):
    """What is about to be erased: the entry that stays, and what stays of the body."""

    entry: Entry
    remainder: bytes

    @property
    def position(self) -> int:
        return self.entry.position


MakeErasure = Callable[[Sequence[Erasure]], Request]


def check_erasure_texts(legal_basis: str, reason: str | None) -> tuple[str, str | None]:
    """Return what is said of an erasure, if an event can hold it. Raises InvalidInput(`invalid_argument`)."""
    for name, text in (("legal_basis", legal_basis), ("reason", reason)):
        if text is not None and (type(text) is not str or not text.strip() or len(text) > _MAX_TEXT):
            message = f"`{name}` is a text of 1 to {_MAX_TEXT} characters"
            raise InvalidInput("invalid_argument", message, path=f"$.{name}")
    if legal_basis is None:
        raise InvalidInput("invalid_argument", "an erasure needs its legal basis", path="$.legal_basis")
    return legal_basis, reason


def plan_erasures(connection: sqlite3.Connection, rows: Rows, positions: Sequence[int]) -> list[Erasure]:
    """Return what will be erased, inside the transaction in which it will be; what is erased already is left out.

    Each event is verified first. Raises InvalidInput, Misuse(`not_erasable`), LogCorrupt: `not_erased` where the table
    of erasures says that a body is gone which is there, so that nobody takes it for erased.
    """
    return [_plan(connection, rows, position) for position in positions if not _is_erased(connection, position)]


def payload_erased(erasure: Erasure, legal_basis: str, reason: str | None) -> PayloadErased:
    """Return the event that says so."""
    entry = erasure.entry
    return PayloadErased(
        position=entry.position,
        body_kind=entry.body_kind,
        body_len=entry.body_len,
        content_commit=entry.content_commit.hex(),
        stored_hash=entry.stored_hash.hex(),
        legal_basis=legal_basis,
        remainder=msgspec.Raw(erasure.remainder) if erasure.remainder else NOTHING,
        reason=reason,
    )


def carry_out(connection: sqlite3.Connection, erased: Sequence[tuple[int, int]]) -> None:
    """Erase the bodies at these positions, and the snapshots that were made of them."""
    positions = [(position,) for position, _ in erased]
    connection.executemany(_ERASE, positions)
    connection.executemany(_NOTE, erased)
    if connection.execute(_HAS_SNAPSHOTS).fetchone()[0]:
        connection.executemany(_FORGET, positions)


def are_noted(connection: sqlite3.Connection, erased: Sequence[tuple[int, int]]) -> bool:
    """Say whether these erasures, which were carried out together, are in the log."""
    return all(connection.execute(_IS_NOTED, each).fetchone()[0] for each in erased)


def is_sealed(connection: sqlite3.Connection, stream: str) -> bool:
    """Say whether the bodies of a stream are encrypted."""
    return bool(connection.execute(_IS_SEALED, (stream,)).fetchone()[0])


def streams_of(connection: sqlite3.Connection, key_id: bytes) -> list[str]:
    """Return the streams that are encrypted under a key."""
    return [name for (name,) in connection.execute(_STREAMS, (key_id,))]


def _is_erased(connection: sqlite3.Connection, position: int) -> bool:
    found = connection.execute(_ERASED, (position,)).fetchone()
    if found is not None and not found[0]:
        message = f"position {position} is noted as erased, and is not: this program has not written that"
        raise LogCorrupt("not_erased", message, position=position)
    return found is not None


def _plan(connection: sqlite3.Connection, rows: Rows, position: int) -> Erasure:
    from eventlog.remainders import remainder_of

    found = rows.entry_at(connection, position) if position > 0 else None
    if found is None:
        raise InvalidInput("invalid_argument", f"the log has no event at position {position}")
    entry = parse(found.entry)
    if entry.stream == LOG_STREAM:
        message = f"position {position} is about the log itself, and what is proved needs it"
        raise Misuse("not_erasable", message, position=position)
    assert found.stored is not None, "what is erased already was left out"
    if entry.body_kind == BODY_PLAIN:
        return Erasure(entry, remainder_of(entry.type, found.stored))
    return Erasure(entry, parse_sealed(found.stored).remainder)
