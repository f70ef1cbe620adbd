"""Rows to events: verified against their leaves and decoded, page by page.

What a page returns is verified: every event's entry is encoded again from the row and its leaf compared, versions
follow one another in a stream, positions in the log. A row that contradicts itself is LogCorrupt, never an event.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from typing import Any, Final

from eventlog.codec import UNREADABLE, Registry, unreadable
from eventlog.entry import BODY_PLAIN, NO_HASH, NO_ID, SALT_SIZE, Entry, encode, leaf_hash, prefixed, seal
from eventlog.errors import InvalidInput, LogCorrupt
from eventlog.log import ArtifactName, CheckedPage, Problem, RecordedEvent, Redacted, StoredEntry
from eventlog.stores.artifacts import ARTIFACT_EVENTS, name_artifact
from eventlog.stores.judged import to_judge
from eventlog.stores.requests import Wanted
from eventlog.stores.sqlite.database import Facts, read_facts
from eventlog.stores.sqlite.redactions import Body, BodyKeys, Place, Redactions, plain_body
from eventlog.stores.sqlite.rollback import one_snapshot
from eventlog.stores.subscription import TailPage, Unreadable

__all__ = ["LastLeaves", "Rows"]

_COLUMNS: Final = """e.position, e.stream_id, e.version, e.type_id, e.schema_version, e.actor_id, e.recorded_at_us,
e.event_id, e.causation_id, CAST(e.correlation_id AS BLOB), e.body_kind, CAST(e.body AS BLOB), e.salt, e.leaf"""

_STREAM: Final = "SELECT stream_id FROM streams WHERE name = ?"
_VERSION: Final = "SELECT coalesce(max(version), 0) FROM events WHERE stream_id = ?"
_LEAF: Final = "SELECT leaf FROM events WHERE stream_id = ? AND version = ?"
_STREAM_PAGE: Final = f"""
SELECT {_COLUMNS} FROM events e WHERE e.stream_id = ? AND e.version > ? ORDER BY e.version LIMIT ?"""
_LOG_PAGE: Final = f"SELECT {_COLUMNS} FROM events e WHERE e.position > ? ORDER BY e.position LIMIT ?"
_BY_ID: Final = f"SELECT {_COLUMNS} FROM events e WHERE e.event_id = ?"
_TIME: Final = "SELECT recorded_at_us FROM events WHERE position = ?"
_HEAD: Final = "SELECT position, leaf, recorded_at_us FROM events ORDER BY position DESC LIMIT 1"

_NO_TEXT: Final = prefixed("")

_MAX_KNOWN_STREAMS: Final = 100_000
_MAX_KNOWN_LEAVES: Final = 20_000

Row = tuple[Any, ...]

LastLeaves = dict[int, tuple[int, bytes]]
"""By the id of a stream: the version and the leaf of its event that was read last."""

_Stream = tuple[str, bytes | None]
"""A stream's name, and as it stands in an entry; None if no entry can hold it."""

_Kind = tuple[str, str | None, str, bytes | None, Callable[[bytes], Any], bool]
"""What many events share: type, the stored one where that is another, actor, both as in an entry, what decodes the
body, and whether to a Struct. Where each body decides the type (see `Reading`), the first is empty."""


class Rows:
    """Reads events through one connection. The names of streams, types and actors are remembered: they never change."""

    def __init__(self, facts: Facts, registry: Registry, keys: BodyKeys | None = None) -> None:
        self._redactions: Final = Redactions(keys)
        self._facts = facts
        self._registry: Final = registry
        self._single_log_id = facts.log_ids[0][1] if len(facts.log_ids) == 1 else None
        self._streams: dict[int, _Stream] = {}
        self._types: dict[int, str] = {}
        self._actors: dict[int, str] = {}
        self._kinds: dict[tuple[int, int, int], _Kind] = {}

    def head(self, connection: sqlite3.Connection) -> tuple[int, bytes, int]:
        """Return position, leaf and time of the last event, (0, 32 zero bytes, 0) for an empty log."""
        return connection.execute(_HEAD).fetchone() or (0, NO_HASH, 0)

    def stream_page(
        self, connection: sqlite3.Connection, stream: str, after: int, limit: int
    ) -> tuple[list[RecordedEvent], int]:
        """Return up to `limit` events of a stream behind version `after` and its version, from one snapshot."""
        with one_snapshot(connection):
            row = connection.execute(_STREAM, (stream,)).fetchone()
            if row is None:
                return [], 0
            (version,) = connection.execute(_VERSION, row).fetchone()
            previous = self._leaf_before(connection, row[0], stream, after, version)
            return self._follow_stream(connection, (row[0], after, limit), stream, previous), version

    def stream_page_back(
        self, connection: sqlite3.Connection, stream: str, before: int | None, limit: int
    ) -> list[RecordedEvent]:
        """Return up to `limit` events of a stream in front of version `before` or from its end, newest first.

        The page is read and followed forwards, from the leaf in front of its oldest event, and so verified like any.
        """
        with one_snapshot(connection):
            row = connection.execute(_STREAM, (stream,)).fetchone()
            if row is None:
                return []
            (version,) = connection.execute(_VERSION, row).fetchone()
            newest = version if before is None else min(max(before - 1, 0), version)
            after = max(newest - limit, 0)
            previous = self._leaf_before(connection, row[0], stream, after, version)
            return self._follow_stream(connection, (row[0], after, newest - after), stream, previous)[::-1]

    def find(self, connection: sqlite3.Connection, event_id: bytes) -> RecordedEvent | None:
        """Return the event with this id, or None."""
        row = connection.execute(_BY_ID, (event_id,)).fetchone()
        if row is None:
            return None
        self._begin_page()
        return self._event(connection, row, _Leaves(connection).in_front_of(row), None)

    def log_page(
        self, connection: sqlite3.Connection, after: int, limit: int, wanted: Wanted | None = None
    ) -> tuple[list[RecordedEvent], int]:
        """Return the wanted events of the next `limit` positions, and the last position that was looked at."""
        events: list[RecordedEvent] = []
        position = after
        leaves = _Leaves(connection)
        self._begin_page()
        with closing(connection.execute(_LOG_PAGE, (after, limit))) as rows:
            for row in rows:
                position += 1
                if row[0] != position:
                    raise LogCorrupt("position_gap", f"position {position} is missing", position=position)
                event = self._event(connection, row, leaves.in_front_of(row), wanted)
                if event is not None:
                    events.append(event)
        return events, position

    def tail_page(self, connection: sqlite3.Connection, after: int, limit: int, leaves: LastLeaves) -> TailPage:
        """Return what stands at the next `limit` positions; what cannot be decoded is named, and stops nobody here.

        `leaves` is what the page before left behind: most events follow one of another page.
        """
        if len(leaves) > _MAX_KNOWN_LEAVES:
            leaves.clear()
        try:
            return self._tail_page(connection, after, limit, _Leaves(connection, leaves))
        except BaseException:
            leaves.clear()  # the last of them may be wrong
            raise

    def _tail_page(self, connection: sqlite3.Connection, after: int, limit: int, leaves: _Leaves) -> TailPage:
        page: TailPage = []
        self._begin_page()
        with closing(connection.execute(_LOG_PAGE, (after, limit))) as rows:
            for position, row in enumerate(rows, after + 1):
                if row[0] != position:
                    raise LogCorrupt("position_gap", f"position {position} is missing", position=position)
                try:
                    event = self._event(connection, row, leaves.in_front_of(row), None)
                except InvalidInput:
                    page.append(Unreadable(position, self._streams[row[1]][0]))
                else:
                    assert event is not None, "without a filter every row is an event"
                    page.append(event)
        return page

    def check_page(self, connection: sqlite3.Connection, after: int, limit: int) -> CheckedPage:
        """Check the next `limit` rows behind position `after`, each by itself, and collect what is wrong."""
        problems: list[Problem] = []
        names: list[ArtifactName] = []
        all_leaves: list[bytes] = []
        redacted: list[tuple[int, str]] = []
        judged: list[RecordedEvent] = []
        before = connection.execute(_TIME, (after,)).fetchone()
        last_us = before[0] if before and type(before[0]) is int else 0
        leaves = _Leaves(connection)
        count = 0
        self._begin_page()
        with closing(connection.execute(_LOG_PAGE, (after, limit))) as rows:
            for row in rows:
                count += 1
                if row[0] <= after:  # as where half a page is gone; a page that goes back would be asked for for ever
                    message = f"behind position {after} the database has a row at position {row[0]}"
                    raise LogCorrupt("store_corrupt", message, position=after + 1)
                if row[0] != after + 1:
                    problems.append(
                        _problem("position_gap", f"positions {after + 1} to {row[0] - 1} are missing", row, after + 1)
                    )
                after = row[0]
                all_leaves.append(row[13])
                try:
                    if type(row[6]) is not int:
                        raise _mismatch(row)
                    if row[6] < last_us:
                        message = f"position {after} is dated before the event in front of it"
                        problems.append(_problem("time_backwards", message, row))
                    last_us = max(last_us, row[6])
                    event = self._event(connection, row, leaves.in_front_of(row), None)
                    if event is not None and (said := to_judge(event)) is not None:
                        judged.append(said)
                    if event is not None and event.redacted is not None:
                        redacted.append((after, event.redacted))
                    elif event is not None and event.type in ARTIFACT_EVENTS and (name := name_artifact(event)):
                        names.append(name)
                except (LogCorrupt, InvalidInput) as error:
                    reason = error.reason if isinstance(error, LogCorrupt) else error.code
                    stream, _ = self._streams.get(row[1], (None, None))
                    problems.append(Problem(reason=reason, message=str(error), position=after, stream=stream))
        return CheckedPage(
            position=after,
            events=count,
            problems=problems,
            artifacts=names,
            leaves=all_leaves,
            redacted=redacted,
            judged=judged,
        )

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
        self, connection: sqlite3.Connection, page: tuple[int, int, int], stream: str, previous: bytes
    ) -> list[RecordedEvent]:
        """Return the events of a page: (stream_id, after, limit), the first of them behind the leaf `previous`."""
        events = []
        after = page[1]
        self._begin_page()
        with closing(connection.execute(_STREAM_PAGE, page)) as rows:
            for row in rows:
                after += 1
                if row[2] != after:
                    raise LogCorrupt(
                        "version_gap",
                        f"version {after} of stream {stream!r} is missing",
                        position=row[0],
                        stream=stream,
                    )
                event = self._event(connection, row, previous, None)
                assert event is not None, "without a filter every row is an event"
                if event.stream != stream:
                    raise LogCorrupt(
                        "name_changed", f"stream {stream!r} has another name now", position=row[0], stream=stream
                    )
                previous = row[13]
                events.append(event)
        return events

    def _event(
        self, connection: sqlite3.Connection, row: Row, previous: bytes, wanted: Wanted | None
    ) -> RecordedEvent | None:
        """Return the event of a row, or None if it is not wanted. Raises LogCorrupt unless the leaf is right.

        The entry that the row spells, behind the leaf `previous`, has to have the row's own leaf. Every event that is
        read passes here, so it is one function.
        """
        (
            position,
            stream_id,
            version,
            type_id,
            schema_version,
            actor_id,
            at_us,
            event_id,
            cause,
            correlation,
            body_kind,
            body,
            salt,
            leaf,
        ) = row
        kind = self._kinds.get((type_id, actor_id, schema_version)) or self._kind(connection, row)
        type_name, stored_type, actor, texts, decode, is_known = kind
        stream, stream_text = self._streams.get(stream_id) or self._stream(connection, row)
        if body is None or salt is None or body_kind != BODY_PLAIN:
            return self._redacted_event(connection, row, previous, wanted)
        log_id = self._single_log_id or self._facts.log_id_at(position)
        try:
            is_sealed = (
                len(event_id) == 16
                and len(salt) == SALT_SIZE
                and (cause is None or (len(cause) == 16 and cause != NO_ID))
                and leaf
                == seal(
                    log_id,
                    position,
                    version,
                    at_us,
                    schema_version,
                    event_id,
                    cause or NO_ID,
                    salt,
                    body,
                    previous,
                    stream_text + texts + (_NO_TEXT if correlation is None else _prefixed_correlation(correlation)),  # type: ignore[operator]
                )
            )
        except (struct.error, TypeError, AttributeError, UnicodeError):
            is_sealed = False  # a cell that no entry can hold
        if not is_sealed:
            if self._has_other_id(connection, position, log_id):
                return self._event(connection, row, previous, wanted)
            raise LogCorrupt(
                "leaf_mismatch",
                f"position {position} is not what its hash says",
                position=position,
                stream=stream,
                version=version,
            )
        if wanted is not None and not wanted.has(type_name or stored_type, stream):  # type: ignore[arg-type]
            return None
        try:
            data = decode(body)
        except UNREADABLE as error:
            stored_name = stored_type or type_name
            raise unreadable(stored_name, schema_version, error, position=position, stream=stream) from error
        if not type_name:
            type_name, data = data
            if wanted is not None and not wanted.has(type_name, stream):
                return None
        return RecordedEvent(  # by place: from the sixteenth keyword on Python makes a dict of them, for each event
            position,
            stream,
            version,
            type_name,
            schema_version,
            event_id,
            at_us,
            actor,
            None if correlation is None else _text(correlation),
            cause,
            body,
            data,
            is_known,
            leaf,
            previous,
            stored_type,
        )

    def _begin_page(self) -> None:
        """Forget what may change between two pages: what types mean here, and which keys are destroyed."""
        self._kinds.clear()
        self._redactions.forget()

    def _has_other_id(self, connection: sqlite3.Connection, position: int, log_id: bytes) -> bool:
        """Read the log ids again; say whether the one at `position` is not `log_id`, with which it was tried.

        Another program has begun a new incarnation of the log meanwhile then.
        """
        self._facts = facts = read_facts(connection)
        self._single_log_id = facts.log_ids[0][1] if len(facts.log_ids) == 1 else None
        return facts.log_id_at(position) != log_id

    def _redacted_event(
        self, connection: sqlite3.Connection, row: Row, previous: bytes, wanted: Wanted | None
    ) -> RecordedEvent | None:
        """As `_event`, for a row whose body is erased or encrypted."""
        position, version, schema_version, leaf = row[0], row[2], row[4], row[13]
        type_name, stored_type, actor, _, decode, is_known = self._kinds[row[3], row[5], schema_version]
        stream, _ = self._streams[row[1]]
        body, _ = self._sealed_entry(connection, row, previous)
        if wanted is not None and not wanted.has(type_name or stored_type, stream):  # type: ignore[arg-type]
            return None
        try:
            data = Redacted(body.why or "erased") if body.readable is None else decode(body.readable)
        except UNREADABLE as error:
            stored_name = stored_type or type_name
            raise unreadable(stored_name, schema_version, error, position=position, stream=stream) from error
        if not type_name and not isinstance(data, Redacted):
            type_name, data = data
            if wanted is not None and not wanted.has(type_name, stream):
                return None
        return RecordedEvent(
            position,
            stream,
            version,
            type_name or stored_type or "",
            schema_version,
            row[7],
            row[6],
            actor,
            None if row[9] is None else _text(row[9]),
            row[8],
            body.readable or b"",
            data,
            is_known,
            leaf,
            previous,
            stored_type,
            body.why,
        )

    def entry_page(
        self, connection: sqlite3.Connection, stream: str | None, after: int, limit: int
    ) -> list[StoredEntry]:
        """Return the next entries of a stream behind a version, or of the log behind a position.

        Raises LogCorrupt for one that does not have the row's leaf.
        """
        self._begin_page()
        if stream is None:
            return self._follow_entries(connection, _LOG_PAGE, (after, limit), None)
        found = connection.execute(_STREAM, (stream,)).fetchone()
        if found is None:
            return []
        (version,) = connection.execute(_VERSION, found).fetchone()
        self._leaf_before(connection, found[0], stream, after, version)
        return self._follow_entries(connection, _STREAM_PAGE, (found[0], after, limit), stream)

    def entry_at(self, connection: sqlite3.Connection, position: int) -> StoredEntry | None:
        """Return the entry at a position, or None. Called inside a transaction. Raises as `entry_page`."""
        row = connection.execute(_LOG_PAGE, (position - 1, 1)).fetchone()
        if row is None or row[0] != position:
            return None
        self._begin_page()
        return self._stored_entry(connection, row, _Leaves(connection).in_front_of(row))

    def _follow_entries(
        self, connection: sqlite3.Connection, sql: str, page: tuple[int, ...], stream: str | None
    ) -> list[StoredEntry]:
        entries = []
        leaves = _Leaves(connection)
        number = page[-2]
        with closing(connection.execute(sql, page)) as rows:
            for row in rows:
                number += 1
                if stream is None and row[0] != number:
                    raise LogCorrupt("position_gap", f"position {number} is missing", position=number)
                if stream is not None and row[2] != number:
                    message = f"version {number} of stream {stream!r} is missing"
                    raise LogCorrupt("version_gap", message, position=row[0], stream=stream)
                entries.append(self._stored_entry(connection, row, leaves.in_front_of(row)))
        return entries

    def _stored_entry(self, connection: sqlite3.Connection, row: Row, previous: bytes) -> StoredEntry:
        kind = self._kinds.get((row[3], row[5], row[4])) or self._kind(connection, row)
        if row[1] not in self._streams:
            self._stream(connection, row)
        body, entry = self._sealed_entry(connection, row, previous)
        return StoredEntry(
            position=row[0],
            version=row[2],
            type=kind[1] or kind[0],
            entry=entry,
            stored=body.stored,
            salt=body.salt,
        )

    def _sealed_entry(self, connection: sqlite3.Connection, row: Row, previous: bytes) -> tuple[Body, bytes]:
        """Return the body of a row and the bytes of its entry, which has the row's leaf. Raises LogCorrupt."""
        position = row[0]
        log_id = self._facts.log_id_at(position)
        try:
            body, entry = self._entry(connection, row, previous, log_id)
            if leaf_hash(entry) != row[13]:
                raise _mismatch(row)
        except LogCorrupt:
            if not self._has_other_id(connection, position, log_id):
                raise
            return self._sealed_entry(connection, row, previous)
        return body, entry

    def _entry(self, connection: sqlite3.Connection, row: Row, previous: bytes, log_id: bytes) -> tuple[Body, bytes]:
        """Return the body of a row and the bytes of its entry. Raises LogCorrupt for a row that no entry can hold."""
        (
            position,
            stream_id,
            version,
            type_id,
            schema_version,
            actor_id,
            at_us,
            event_id,
            cause,
            correlation,
            body_kind,
            stored,
            salt,
            _,
        ) = row
        stream, type_name, actor = self._streams[stream_id][0], self._types[type_id], self._actors[actor_id]
        has_salt = type(salt) is bytes and len(salt) == SALT_SIZE
        has_cause = type(cause) is bytes and cause != NO_ID  # not 0, which is one bit away from NULL
        if not (has_salt or salt is None) or not (has_cause or cause is None) or correlation == b"":
            raise _mismatch(row)
        try:
            if body_kind == BODY_PLAIN and stored is not None and has_salt:
                body = plain_body(salt, stored)
            elif has_salt:
                message = f"the body of position {position} is gone, and its salt is not"
                raise LogCorrupt("body_missing", message, position=position, stream=stream)
            else:
                place = Place(log_id, position, version, stream, type_name)
                body = self._redactions.look(connection, place, body_kind, stored)
            return body, encode(
                Entry(
                    log_id=log_id,
                    position=position,
                    version=version,
                    recorded_at_us=at_us,
                    schema_version=schema_version,
                    event_id=event_id,
                    causation_id=cause or NO_ID,
                    body_kind=body_kind,
                    body_len=body.body_len,
                    content_commit=body.content_commit,
                    stored_hash=body.stored_hash,
                    prev_in_stream=previous,
                    stream=stream,
                    type=type_name,
                    actor=actor,
                    correlation_id=_text(correlation) if correlation else "",
                )
            )
        except (struct.error, TypeError, ValueError) as error:
            raise _mismatch(row) from error

    def _kind(self, connection: sqlite3.Connection, row: Row) -> _Kind:
        """Look up what the events of a type, version and actor share. Kept for one page: types may come later."""
        position, type_id, schema_version, actor_id = row[0], row[3], row[4], row[5]
        if type(schema_version) is not int:  # as NULL, after a flipped bit
            raise _mismatch(row)
        stored_name = self._types.get(type_id) or _name(connection, "types", "type_id", type_id, position)
        actor = self._actors.get(actor_id) or _name(connection, "actors", "actor_id", actor_id, position)
        self._types[type_id], self._actors[actor_id] = stored_name, actor
        reading = self._registry.reading(stored_name, schema_version)
        stored_type = None if reading.type == stored_name else stored_name
        texts = _texts(stored_name, actor)
        kind = (reading.type or "", stored_type, actor, texts, reading.decode, reading.is_known)
        self._kinds[type_id, actor_id, schema_version] = kind
        return kind

    def _stream(self, connection: sqlite3.Connection, row: Row) -> _Stream:
        if len(self._streams) >= _MAX_KNOWN_STREAMS:
            self._streams.clear()
        name = _name(connection, "streams", "stream_id", row[1], row[0])
        found = self._streams[row[1]] = (name, _texts(name))
        return found


class _Leaves:
    """The last leaf of each stream while a page of the log is read, so that few have to be looked up."""

    def __init__(self, connection: sqlite3.Connection, last: LastLeaves | None = None) -> None:
        self._connection: Final = connection
        self._last: Final[LastLeaves] = {} if last is None else last

    def in_front_of(self, row: Row) -> bytes:
        """Return the leaf in front of a row's event in its stream. Raises LogCorrupt if that is missing."""
        stream_id, own_version = row[1], row[2]
        if type(own_version) is not int:
            raise _mismatch(row)
        version, leaf = self._last.get(stream_id, _NOTHING)
        self._last[stream_id] = (own_version, row[13])
        before = own_version - 1
        if before <= 0:
            return NO_HASH
        if version == before:
            return leaf
        found = self._connection.execute(_LEAF, (stream_id, before)).fetchone()
        if found is None:
            raise LogCorrupt(
                "version_gap", f"the event before position {row[0]} in its stream is missing", position=row[0]
            )
        stored: bytes = found[0]
        return stored


_NOTHING: Final = (0, NO_HASH)


def _mismatch(row: Row) -> LogCorrupt:
    return LogCorrupt("leaf_mismatch", f"position {row[0]} is not what its hash says", position=row[0])


def _name(connection: sqlite3.Connection, table: str, column: str, number: int, position: int) -> str:
    row = connection.execute(f"SELECT CAST(name AS BLOB) FROM {table} WHERE {column} = ?", (number,)).fetchone()
    if row is None or row[0] is None:
        raise LogCorrupt("name_missing", f"the name of {column} {number} is missing", position=position)
    return _text(row[0])


def _text(stored: bytes) -> str:
    """Return stored UTF-8 as text. Bytes that are none become surrogates, which no leaf holds: a mismatch, no crash."""
    return stored.decode("utf-8", "surrogateescape")


def _texts(*names: str) -> bytes | None:
    """Return the names as they stand in an entry, or None if no entry can hold them."""
    try:
        return b"".join(map(prefixed, names))
    except (struct.error, UnicodeError):
        return None


def _prefixed_correlation(stored: bytes) -> bytes | None:
    """Return a stored correlation id as it stands in an entry. An empty one is none that the writer spells so.

    The entry writes an absent one like an empty one, and two cells must not mean the same hash.
    """
    return prefixed(_text(stored)) if stored else None


def _problem(reason: str, message: str, row: Row, position: int | None = None) -> Problem:
    return Problem(reason=reason, message=message, position=position or row[0])
