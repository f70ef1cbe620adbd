"""Rows to events: verified against their leaves and decoded, page by page.

What a page returns is verified: every event's entry is encoded again from the row and its leaf compared, versions
follow one another in a stream, positions in the log. A row that contradicts itself is LogCorrupt, never an event.
"""

from __future__ import annotations

import sqlite3
import struct
from typing import Any, Final

import msgspec

from eventlog.codec import Registry
from eventlog.entry import BODY_PLAIN, NO_HASH, NO_ID, SALT_SIZE, prefixed, seal
from eventlog.errors import InvalidInput, LogCorrupt
from eventlog.log import CheckedPage, Problem, RecordedEvent
from eventlog.stores.requests import Wanted
from eventlog.stores.sqlite.database import Facts

__all__ = ["Rows"]

_COLUMNS: Final = """e.position, e.stream_id, e.version, e.type_id, e.schema_version, e.actor_id, e.recorded_at_us,
e.event_id, e.causation_id, CAST(e.correlation_id AS BLOB), e.body_kind, CAST(e.body AS BLOB), e.salt, e.leaf"""

_STREAM: Final = "SELECT stream_id FROM streams WHERE name = ?"
_VERSION: Final = "SELECT coalesce(max(version), 0) FROM events WHERE stream_id = ?"
_LEAF: Final = "SELECT leaf FROM events WHERE stream_id = ? AND version = ?"
_STREAM_PAGE: Final = f"""
SELECT {_COLUMNS} FROM events e WHERE e.stream_id = ? AND e.version > ? ORDER BY e.version LIMIT ?"""
_LOG_PAGE: Final = f"""
SELECT {_COLUMNS}, p.leaf
FROM events e LEFT JOIN events p ON p.stream_id = e.stream_id AND p.version = e.version - 1
WHERE e.position > ? ORDER BY e.position LIMIT ?"""
_BY_ID: Final = f"""
SELECT {_COLUMNS}, p.leaf
FROM events e LEFT JOIN events p ON p.stream_id = e.stream_id AND p.version = e.version - 1
WHERE e.event_id = ?"""
_TIME: Final = "SELECT recorded_at_us FROM events WHERE position = ?"
_HEAD: Final = "SELECT position, leaf FROM events ORDER BY position DESC LIMIT 1"

_NO_TEXT: Final = prefixed("")

Row = tuple[Any, ...]


class Rows:
    """Reads events through one connection. The names of streams, types and actors are remembered: they never change."""

    def __init__(self, facts: Facts, registry: Registry) -> None:
        self._facts: Final = facts
        self._registry: Final = registry
        self._single_log_id: Final = facts.log_ids[0][1] if len(facts.log_ids) == 1 else None
        self._streams: dict[int, str] = {}
        self._types: dict[int, str] = {}
        self._actors: dict[int, str] = {}
        self._texts: dict[tuple[int, int, int], bytes] = {}
        self._tails: dict[tuple[int, int], bytes] = {}

    def head(self, connection: sqlite3.Connection) -> tuple[int, bytes]:
        """Return position and leaf of the last event, (0, 32 zero bytes) for an empty log."""
        return connection.execute(_HEAD).fetchone() or (0, NO_HASH)

    def stream_page(
        self, connection: sqlite3.Connection, stream: str, after: int, limit: int
    ) -> tuple[list[RecordedEvent], int]:
        """Return up to `limit` events of a stream behind version `after` and its version, from one snapshot."""
        connection.execute("BEGIN")
        try:
            row = connection.execute(_STREAM, (stream,)).fetchone()
            if row is None:
                return [], 0
            (version,) = connection.execute(_VERSION, row).fetchone()
            previous = self._leaf_before(connection, row[0], stream, after, version)
            rows = connection.execute(_STREAM_PAGE, (row[0], after, limit)).fetchall()
            return self._follow_stream(connection, rows, stream, after, previous), version
        finally:
            connection.execute("ROLLBACK")

    def stream_page_back(
        self, connection: sqlite3.Connection, stream: str, before: int | None, limit: int
    ) -> list[RecordedEvent]:
        """Return up to `limit` events of a stream in front of version `before` or from its end, newest first.

        The page is read and followed forwards, from the leaf in front of its oldest event, and so verified like any.
        """
        connection.execute("BEGIN")
        try:
            row = connection.execute(_STREAM, (stream,)).fetchone()
            if row is None:
                return []
            (version,) = connection.execute(_VERSION, row).fetchone()
            newest = version if before is None else min(max(before - 1, 0), version)
            after = max(newest - limit, 0)
            previous = self._leaf_before(connection, row[0], stream, after, version)
            rows = connection.execute(_STREAM_PAGE, (row[0], after, newest - after)).fetchall()
            return self._follow_stream(connection, rows, stream, after, previous)[::-1]
        finally:
            connection.execute("ROLLBACK")

    def find(self, connection: sqlite3.Connection, event_id: bytes) -> RecordedEvent | None:
        """Return the event with this id, or None."""
        row = connection.execute(_BY_ID, (event_id,)).fetchone()
        if row is None:
            return None
        _check_numbers(row)
        return self._event(connection, row, _previous(row), None)

    def log_page(
        self, connection: sqlite3.Connection, after: int, limit: int, wanted: Wanted | None = None
    ) -> tuple[list[RecordedEvent], int]:
        """Return the wanted events of the next `limit` positions, and the last position that was looked at."""
        events: list[RecordedEvent] = []
        position = after
        for row in connection.execute(_LOG_PAGE, (after, limit)).fetchall():
            if row[0] != position + 1:
                raise LogCorrupt("position_gap", f"position {position + 1} is missing", position=position + 1)
            position = row[0]
            _check_numbers(row)
            event = self._event(connection, row, _previous(row), wanted)
            if event is not None:
                events.append(event)
        return events, position

    def check_page(self, connection: sqlite3.Connection, after: int, limit: int) -> CheckedPage:
        """Check the next `limit` rows behind position `after`, each by itself, and collect what is wrong."""
        problems: list[Problem] = []
        rows = connection.execute(_LOG_PAGE, (after, limit)).fetchall()
        before = connection.execute(_TIME, (after,)).fetchone()
        last_us = before[0] if before and type(before[0]) is int else 0
        for row in rows:
            if row[0] != after + 1:
                problems.append(
                    _problem("position_gap", f"positions {after + 1} to {row[0] - 1} are missing", row, after + 1)
                )
            after = row[0]
            try:
                _check_numbers(row)
                if row[6] < last_us:
                    problems.append(
                        _problem("time_backwards", f"position {after} is dated before the event in front of it", row)
                    )
                last_us = max(last_us, row[6])
                previous = row[14] if row[2] > 1 else NO_HASH
                if previous is None:
                    problems.append(
                        _problem("version_gap", f"the event before position {after} in its stream is missing", row)
                    )
                    continue
                self._event(connection, row, previous, None)
            except (LogCorrupt, InvalidInput) as error:
                reason = error.reason if isinstance(error, LogCorrupt) else error.code
                problems.append(
                    Problem(reason=reason, message=str(error), position=after, stream=self._streams.get(row[1]))
                )
        return CheckedPage(position=after, events=len(rows), problems=problems)

    def _leaf_before(
        self, connection: sqlite3.Connection, stream_id: int, stream: str, after: int, version: int
    ) -> bytes:
        if version == 0:
            raise LogCorrupt("stream_empty", f"stream {stream!r} has lost all of its events", stream=stream)
        if after == 0 or after > version:
            return NO_HASH
        row = connection.execute(_LEAF, (stream_id, after)).fetchone()
        if row is None:
            raise LogCorrupt("version_gap", f"version {after} of stream {stream!r} is missing", stream=stream)
        leaf: bytes = row[0]
        return leaf

    def _follow_stream(
        self, connection: sqlite3.Connection, rows: list[Row], stream: str, after: int, previous: bytes
    ) -> list[RecordedEvent]:
        events = []
        for row in rows:
            after += 1
            if row[2] != after:
                raise LogCorrupt(
                    "version_gap", f"version {after} of stream {stream!r} is missing", position=row[0], stream=stream
                )
            event = self._event(connection, row, previous, None)
            assert event is not None, "without a filter every row is an event"
            if event.stream != stream:
                raise LogCorrupt(
                    "name_changed", f"stream {stream!r} has another name now", position=row[0], stream=stream
                )
            previous = event.leaf
            events.append(event)
        return events

    def _event(
        self, connection: sqlite3.Connection, row: Row, previous: bytes, wanted: Wanted | None
    ) -> RecordedEvent | None:
        """Return the event of a row, or None if it is not wanted. Raises LogCorrupt unless the leaf is right."""
        position, stream_id, version, type_id, schema_version, actor_id, at_us, event_id, cause, correlation = row[:10]
        body_kind, body, salt, leaf = row[10:14]
        type_name = self._types.get(type_id) or self._name(connection, "types", "type_id", type_id, position)
        stream = self._streams.get(stream_id) or self._name(connection, "streams", "stream_id", stream_id, position)
        actor = self._actors.get(actor_id) or self._name(connection, "actors", "actor_id", actor_id, position)
        if body is None or salt is None:
            raise LogCorrupt(
                "body_missing", f"the body of position {position} is gone", position=position, stream=stream
            )
        if body_kind != BODY_PLAIN:
            raise LogCorrupt(
                "body_kind", f"position {position} has the body kind {body_kind}", position=position, stream=stream
            )
        if not self._is_sealed(row, previous):
            raise LogCorrupt(
                "leaf_mismatch",
                f"position {position} is not what its hash says",
                position=position,
                stream=stream,
                version=version,
            )
        if wanted is not None and not wanted.has(type_name, stream):
            return None
        decode, is_known = self._registry.reader(type_name, schema_version)
        try:
            data = decode(body)
        except (InvalidInput, msgspec.DecodeError):
            data = self._decode(type_name, schema_version, body, position, stream)  # which says what is wrong
        return RecordedEvent(
            position=position,
            stream=stream,
            version=version,
            type=type_name,
            schema_version=schema_version,
            event_id=event_id,
            recorded_at_us=at_us,
            actor=actor,
            correlation_id=None if correlation is None else _text(correlation),
            causation_id=cause,
            body=body,
            data=data,
            is_known=is_known,
            leaf=leaf,
            prev_in_stream=previous,
        )

    def _is_sealed(self, row: Row, previous: bytes) -> bool:
        """Say whether the entry that this row spells, behind the leaf `previous`, has the row's own leaf."""
        position, stream_id, version, type_id, schema_version, actor_id, at_us, event_id, cause, correlation = row[:10]
        _, body, salt, leaf = row[10:14]
        try:
            texts = self._texts.get((stream_id, type_id, actor_id)) or self._remember_texts(
                stream_id, type_id, actor_id
            )
            text = None if correlation is None else _text(correlation)
            return _is_exact(event_id, cause, text, salt) and leaf == seal(
                self._single_log_id or self._facts.log_id_at(position),
                position,
                version,
                at_us,
                schema_version,
                event_id,
                cause or NO_ID,
                salt,
                body,
                previous,
                texts + (_NO_TEXT if text is None else prefixed(text)),
            )
        except (struct.error, TypeError, AttributeError, UnicodeError):
            return False  # a cell that no entry can hold

    def _decode(self, type_name: str, schema_version: int, body: bytes, position: int, stream: str) -> Any:
        try:
            return self._registry.decode(type_name, schema_version, body)
        except InvalidInput as error:
            raise InvalidInput(
                error.code, f"position {position} of stream {stream!r}: {error}", position=position
            ) from error

    def _name(self, connection: sqlite3.Connection, table: str, column: str, number: int, position: int) -> str:
        row = connection.execute(f"SELECT CAST(name AS BLOB) FROM {table} WHERE {column} = ?", (number,)).fetchone()
        if row is None:
            raise LogCorrupt("name_missing", f"the name of {column} {number} is missing", position=position)
        names = {"types": self._types, "streams": self._streams, "actors": self._actors}[table]
        name = _text(row[0])
        names[number] = name
        return name

    def _remember_texts(self, stream_id: int, type_id: int, actor_id: int) -> bytes:
        if len(self._texts) > 100_000:
            self._texts.clear()
            self._tails.clear()
        tail = self._tails.get((type_id, actor_id))
        if tail is None:
            tail = self._tails[type_id, actor_id] = prefixed(self._types[type_id]) + prefixed(self._actors[actor_id])
        texts = self._texts[stream_id, type_id, actor_id] = prefixed(self._streams[stream_id]) + tail
        return texts


def _check_numbers(row: Row) -> None:
    """Refuse a row in which a damaged page holds something else than a number where numbers are compared."""
    if type(row[2]) is not int or type(row[6]) is not int:
        raise LogCorrupt("leaf_mismatch", f"position {row[0]} is not what its hash says", position=row[0])


def _previous(row: Row) -> bytes:
    """Return the leaf in front of a row's event in its stream. Raises LogCorrupt if that is missing."""
    previous: bytes | None = row[14] if row[2] > 1 else NO_HASH
    if previous is None:
        raise LogCorrupt("version_gap", f"the event before position {row[0]} in its stream is missing", position=row[0])
    return previous


def _text(stored: bytes) -> str:
    """Return stored UTF-8 as text. Bytes that are none become surrogates, which no leaf holds: a mismatch, no crash."""
    return stored.decode("utf-8", "surrogateescape")


def _is_exact(event_id: Any, cause: Any, correlation: Any, salt: Any) -> bool:
    """Say whether these cells are spelled as the writer spells them.

    The entry has fixed places for ids, which a longer id would be cut to fit, and writes an absent one like an empty
    one: two cells must not mean the same hash.
    """
    has_right_ids = len(event_id) == 16 and (cause is None or (len(cause) == 16 and cause != NO_ID))
    return has_right_ids and len(salt) == SALT_SIZE and correlation != ""


def _problem(reason: str, message: str, row: Row, position: int | None = None) -> Problem:
    return Problem(reason=reason, message=message, position=position or row[0])
