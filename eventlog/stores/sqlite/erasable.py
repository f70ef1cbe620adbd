"""Looking for what an erasure is about: events by place, and the artifacts and keys that others need still.

Nothing is verified here; what is erased is, in the transaction that erases it. Every function runs on a connection.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from eventlog.entry import BODY_PLAIN
from eventlog.stores.artifacts import ARTIFACT_EVENTS, artifact_in
from eventlog.stores.sqlite.redactions import Redactions

__all__ = [
    "PlacedEvent",
    "destroyed_among",
    "events_at",
    "events_of_stream",
    "held_in_streams",
    "named_artifacts",
    "overwrites_what_is_deleted",
    "sealed_keys",
]

_COLUMNS: Final = """
SELECT e.position, s.name, t.name, e.body IS NULL,
  CASE WHEN e.body_kind = ? AND t.name IN ({types}) THEN CAST(e.body AS BLOB) END
FROM events e JOIN streams s USING (stream_id) JOIN types t USING (type_id)"""
_AT: Final = _COLUMNS + " WHERE e.position = ?"
_OF_STREAM: Final = _COLUMNS + " WHERE s.name = ? ORDER BY e.version"
_NAMING: Final = """
SELECT s.name, t.name, CAST(e.body AS BLOB)
FROM events e JOIN streams s USING (stream_id) JOIN types t USING (type_id)
WHERE t.name IN ({types}) AND e.body_kind = ? AND e.body IS NOT NULL"""
_HELD: Final = """
SELECT DISTINCT t.name FROM events e JOIN streams s USING (stream_id) JOIN types t USING (type_id) WHERE s.name = ?"""
_KEYS: Final = "SELECT DISTINCT key_id FROM subject_streams ORDER BY key_id"

_TYPES: Final = sorted(ARTIFACT_EVENTS)
_MARKS: Final = ", ".join("?" * len(_TYPES))


class PlacedEvent(msgspec.Struct, frozen=True):
    """An event, what kind it is, and the artifact that it names, as far as its body is there and in clear."""

    position: int
    stream: str
    type: str
    is_erased: bool
    artifact: str | None


def events_at(connection: sqlite3.Connection, positions: Iterable[int]) -> list[PlacedEvent]:
    """Return the events at these positions; those that the log has not are left out."""
    sql = _AT.format(types=_MARKS)
    rows = (connection.execute(sql, (BODY_PLAIN, *_TYPES, position)).fetchone() for position in positions)
    return [_placed(row) for row in rows if row is not None]


def events_of_stream(connection: sqlite3.Connection, stream: str) -> list[PlacedEvent]:
    """Return all events of a stream, in order."""
    sql = _OF_STREAM.format(types=_MARKS)
    return [_placed(row) for row in connection.execute(sql, (BODY_PLAIN, *_TYPES, stream))]


def held_in_streams(connection: sqlite3.Connection, streams: Iterable[str]) -> frozenset[tuple[str, str]]:
    """Return which stored types of events these streams have, as (type, stream)."""
    return frozenset((name, stream) for stream in streams for (name,) in connection.execute(_HELD, (stream,)))


def named_artifacts(connection: sqlite3.Connection, digests: Collection[str]) -> frozenset[str]:
    """Return those of these artifacts that an event names whose body is there. Reads all events that may name one."""
    rows = connection.execute(_NAMING.format(types=_MARKS), (*_TYPES, BODY_PLAIN))
    found = (artifact_in(stream, type_name, body) for stream, type_name, body in rows)
    return frozenset(digest for digest in found if digest is not None and digest in digests)


def sealed_keys(connection: sqlite3.Connection) -> list[bytes]:
    """Return the ids of the keys under which any stream is encrypted, destroyed or not."""
    return [key_id for (key_id,) in connection.execute(_KEYS)]


def destroyed_among(connection: sqlite3.Connection, key_ids: Iterable[bytes]) -> frozenset[bytes]:
    """Return those of these keys of which the log says that they are destroyed."""
    redactions = Redactions(None)
    return frozenset(key_id for key_id in key_ids if redactions.is_destroyed(connection, key_id))


def overwrites_what_is_deleted(connection: sqlite3.Connection) -> bool:
    """Say whether the connection overwrites whatever it deletes (`PRAGMA secure_delete` is ON, and not FAST)."""
    found: int = connection.execute("PRAGMA secure_delete").fetchone()[0]
    return found == 1


def _placed(row: tuple[int, str, str, int, bytes | None]) -> PlacedEvent:
    position, stream, type_name, is_erased, body = row
    artifact = None if body is None else artifact_in(stream, type_name, body)
    return PlacedEvent(position, stream, type_name, bool(is_erased), artifact)
