"""Reading many events for a view: what a projection selects, decoded straight into what it asked for.

Leaves are not computed here: that is what `verify`, and every other way of reading, is for. What is checked is what a
fold cannot do without: that no position is missing, that the body is there, and that it decodes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Final

from eventlog.codec import UNREADABLE, Registry
from eventlog.entry import BODY_PLAIN
from eventlog.errors import EventTypeUnknown, InvalidInput, LogCorrupt, StoreUnavailable
from eventlog.stores.sqlite.redactions import BodyKeys, Place, Redactions
from eventlog.views import Selection, ViewEvent

__all__ = ["Placed", "Scan"]

_COLUMNS: Final = """
position, stream_id, version, type_id, schema_version, recorded_at_us, actor_id, body_kind, CAST(body AS BLOB)"""
_PAGE: Final = f"SELECT {_COLUMNS} FROM {{log}}events WHERE position > ? AND position <= ? ORDER BY position"
_SELECTED: Final = (
    f"SELECT {_COLUMNS} FROM {{log}}events WHERE position > ? AND position <= ? AND type_id IN (%s) ORDER BY position"
)
_HEAD: Final = "SELECT coalesce(max(position), 0) FROM {log}events"
_COUNT: Final = "SELECT count(*) FROM {log}events WHERE position > ? AND position <= ?"
_NAMES: Final = "SELECT {column}, CAST(name AS BLOB) FROM {log}{table} WHERE {column} > ? ORDER BY {column}"
_NAME: Final = "SELECT CAST(name AS BLOB) FROM {log}{table} WHERE {column} = ?"
_FIRST_OF_TYPE: Final = """
SELECT e.version, s.name FROM {log}events e JOIN {log}streams s USING (stream_id)
WHERE e.type_id = ? AND e.position > ? AND e.position <= ? AND substr(s.name, 1, ?) = ? ORDER BY e.position LIMIT 1"""
_LOG_ID: Final = """
SELECT log_id FROM {log}log_ids WHERE first_position <= ? ORDER BY first_position DESC LIMIT 1"""
_ORIGIN: Final = """
SELECT t.name, s.name FROM {log}events e JOIN {log}types t USING (type_id) JOIN {log}streams s USING (stream_id)
WHERE e.position = ?"""

_MAX_KNOWN_STREAMS: Final = 20_000

Row = tuple[Any, ...]
_Kind = tuple[str | None, Callable[[bytes], Any] | None]
"""The type of today, or None where each body decides it; and what decodes a body, or None where none is wanted."""
Placed = tuple[int, str, int, str, int, int, str, bytes]
"""An event that was just written: position, stream, version, type, schema version, time, actor, body."""


class Scan:
    """Reads the events of one selection through a connection, in position order. Keeps the names that it has read.

    `schema` is the name under which the log's database is attached to the connection, or "" where it is its own.
    """

    def __init__(
        self, selection: Selection, registry: Registry, *, schema: str = "", keys: BodyKeys | None = None
    ) -> None:
        self._redactions: Final = Redactions(keys, schema=schema)
        self._selection: Final = selection
        self._registry: Final = registry
        self._log: Final = f"{schema}." if schema else ""
        self._stored_types = registry.stored_names(selection.types)
        self._streams: dict[int, str | None] = {}
        self._actors: dict[int, str] = {}
        self._types: dict[int, str] = {}
        self._kinds: dict[tuple[int, int], _Kind] = {}
        self._last_type = 0

    def leaf(self, connection: sqlite3.Connection, position: int) -> bytes | None:
        """Return the leaf of the event at a position where the log lies apart from the views, else None."""
        if not self._log or position == 0:
            return None
        row = connection.execute(self._sql("SELECT leaf FROM {log}events WHERE position = ?"), (position,)).fetchone()
        leaf: bytes | None = None if row is None else row[0]
        return leaf

    @property
    def types(self) -> frozenset[str]:
        """Every name under which selected events are stored, and come out."""
        return self._stored_types

    def head(self, connection: sqlite3.Connection) -> int:
        """Return the last position of the log."""
        position: int = connection.execute(self._sql(_HEAD)).fetchone()[0]
        return position

    def events(self, connection: sqlite3.Connection, after: int, upto: int) -> Generator[ViewEvent, None, None]:
        """Give the selected events behind position `after`, up to and with `upto`, which the log has.

        Raises LogCorrupt (`position_gap`, `body_missing`, …), InvalidInput(`invalid_event`) with the position, and
        EventTypeUnknown for a selected event of a schema version that is newer than the one registered here.
        """
        self._learn_types(connection)
        self._redactions.forget()
        wanted = [number for number, name in self._types.items() if name in self._stored_types]
        is_selective = len(wanted) < len(self._types)
        if is_selective and upto - after > 1:
            self._check_count(connection, after, upto)
        sql = _SELECTED % ", ".join(map(str, wanted)) if is_selective else _PAGE
        return self._decoded(connection, self._sql(sql), after, upto, checks_positions=not is_selective)

    def may_want(self, placed: Placed) -> bool:
        """Say whether an event may be selected, as far as its stored type and its stream tell."""
        return placed[3] in self._stored_types and placed[1].startswith(self._selection.stream_prefix)

    def view_events(self, placed: Iterable[Placed]) -> Iterator[ViewEvent]:
        """Give the selected ones of events that were written in this transaction, without reading them again."""
        types = self._stored_types
        for position, stream, version, type_name, schema, at_us, actor, body in filter(self.may_want, placed):
            reading = self._registry.reading(type_name, schema, self._selection.shapes)
            if not reading.is_known and self._registry.is_known(type_name):
                raise EventTypeUnknown(stream, version, f"{type_name} of schema version {schema}")
            if reading.is_retired:
                continue
            data, current = reading.decode(body), reading.type
            if current is None:
                current, data = data
            if current in types:
                yield ViewEvent(position, stream, version, current, at_us, actor, data)

    def require_known(self, connection: sqlite3.Connection, after: int, upto: int) -> None:
        """Raise EventTypeUnknown if an event in between is of a type that nobody has registered, or asks for, here.

        A live view passes over such an event; one that is built anew would be complete in appearance only. Only streams
        with the selection's prefix count, as those of other programs are none of its business.
        """
        self._learn_types(connection)
        prefix = self._selection.stream_prefix
        for number, name in self._types.items():
            if name in self._stored_types or self._registry.is_known(name):
                continue
            arguments = (number, after, upto, len(prefix), prefix)
            found = connection.execute(self._sql(_FIRST_OF_TYPE), arguments).fetchone()
            if found is not None:
                raise EventTypeUnknown(found[1], found[0], name)

    def origin(self, connection: sqlite3.Connection, position: int) -> tuple[str, str]:
        """Return the stored type and the stream of the event at a position; empty texts if it is not there."""
        row = connection.execute(self._sql(_ORIGIN), (position,)).fetchone()
        return ("", "") if row is None else (str(row[0]), str(row[1]))

    # This is the hot path of a rebuild: one function, local names, no keyword arguments.
    def _decoded(
        self, connection: sqlite3.Connection, sql: str, after: int, upto: int, *, checks_positions: bool
    ) -> Generator[ViewEvent, None, None]:
        streams, actors, kinds, plain, make = self._streams, self._actors, self._kinds, BODY_PLAIN, ViewEvent
        types = self._stored_types  # with the names of today, also where a projection asks by a former one
        rows = connection.execute(sql, (after, upto))
        try:
            for position, stream_id, version, type_id, schema, at_us, actor_id, body_kind, body in rows:
                if checks_positions:
                    after += 1
                    if position != after:
                        raise LogCorrupt("position_gap", f"position {after} is missing", position=after)
                stream = streams.get(stream_id, "")
                if not stream:
                    if stream is None:
                        continue
                    stream = self._stream(connection, stream_id, position)
                    if stream is None:
                        continue
                type_name, decode = kinds.get((type_id, schema)) or self._kind(type_id, schema, stream, version)
                if decode is None:
                    continue
                if body is None or body_kind != plain:
                    body = self._left(connection, (position, stream, version, type_id, body_kind, body))
                    if body is None:
                        continue
                try:
                    data = decode(body)
                except UNREADABLE as error:
                    raise _undecodable(error, position, stream, self._types[type_id]) from error
                if type_name is None:
                    type_name, data = data
                    if type_name not in types:
                        continue
                actor = actors.get(actor_id) or self._actor(connection, actor_id, position)
                yield make(position, stream, version, type_name, at_us, actor, data)
        finally:
            rows.close()  # an error's traceback would keep it, and with it the snapshot that it reads

    def _left(self, connection: sqlite3.Connection, row: Row) -> bytes | None:
        """Return what a view is shown of a body that is erased or encrypted; None if there is nothing left of it.

        Raises StoreUnavailable(`subject_key_missing`): a view that passes over what is only not to be read here would
        be complete in appearance only.
        """
        position, stream, version, type_id, body_kind, stored = row
        log_id = self._log_id_at(connection, position)
        place = Place(log_id, position, version, stream, self._types[type_id])
        body = self._redactions.look(connection, place, body_kind, stored)
        if body.why == "key_missing":
            message = f"position {position} of stream {stream!r} is encrypted, and the key of its subject is not here"
            raise StoreUnavailable("subject_key_missing", message, position=position, stream=stream)
        return body.readable

    def _log_id_at(self, connection: sqlite3.Connection, position: int) -> bytes:
        log_id: bytes = connection.execute(self._sql(_LOG_ID), (position,)).fetchone()[0]
        return log_id

    def _sql(self, template: str) -> str:
        return template.replace("{log}", self._log)

    def _check_count(self, connection: sqlite3.Connection, after: int, upto: int) -> None:
        (count,) = connection.execute(self._sql(_COUNT), (after, upto)).fetchone()
        if count != upto - after:
            message = f"{upto - after - count} of the positions {after + 1} to {upto} are missing"
            raise LogCorrupt("position_gap", message, position=after + 1)

    def _learn_types(self, connection: sqlite3.Connection) -> None:
        """Read the types that came since. The readings are looked up again: a program may have registered more."""
        self._kinds = {}
        self._stored_types = self._registry.stored_names(self._selection.types)
        sql = self._sql(_NAMES).format(column="type_id", table="types")
        for number, name in connection.execute(sql, (self._last_type,)):
            self._types[number] = name.decode("utf-8", "surrogateescape")
            self._last_type = number

    def _kind(self, type_id: int, schema_version: int, stream: str, version: int) -> _Kind:
        """Look up what is done with the events of a stored type and schema version. Kept for one page."""
        name = self._types[type_id]
        reading = self._registry.reading(name, schema_version, self._selection.shapes)
        if not reading.is_known and self._registry.is_known(name):
            raise EventTypeUnknown(stream, version, f"{name} of schema version {schema_version}")
        is_wanted = reading.type is None or reading.type in self._stored_types
        kind = (reading.type, reading.decode if is_wanted and not reading.is_retired else None)
        self._kinds[type_id, schema_version] = kind
        return kind

    def _stream(self, connection: sqlite3.Connection, stream_id: int, position: int) -> str | None:
        """Return the name of a stream, or None if the selection leaves it out."""
        if len(self._streams) >= _MAX_KNOWN_STREAMS:
            self._streams.clear()
        name = self._name(connection, "streams", "stream_id", stream_id, position)
        found = name if name.startswith(self._selection.stream_prefix) else None
        self._streams[stream_id] = found
        return found

    def _actor(self, connection: sqlite3.Connection, actor_id: int, position: int) -> str:
        found = self._actors[actor_id] = self._name(connection, "actors", "actor_id", actor_id, position)
        return found

    def _name(self, connection: sqlite3.Connection, table: str, column: str, number: int, position: int) -> str:
        row = connection.execute(self._sql(_NAME).format(table=table, column=column), (number,)).fetchone()
        if row is None:
            raise LogCorrupt("name_missing", f"the name of {column} {number} is missing", position=position)
        name: str = row[0].decode("utf-8", "surrogateescape")
        return name


def _undecodable(error: Exception, position: int, stream: str, type_name: str) -> InvalidInput:
    return InvalidInput(
        "invalid_event",
        f"position {position} of stream {stream!r}: a {type_name!r} cannot be read: {error}",
        position=position,
        stream=stream,
        type=type_name,
    )
