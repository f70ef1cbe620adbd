"""The rows of one write transaction: requests, placed one behind the other, each as the ones before it leave the log.

A request that is refused leaves nothing behind. What is known of the log may be reused from one transaction to the
next, as `Transactions` says.
"""

from __future__ import annotations

import sqlite3
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from eventlog.entry import (
    BODY_ENCRYPTED,
    BODY_PLAIN,
    NO_HASH,
    NO_ID,
    SALT_SIZE,
    Entry,
    content_commitment,
    encode,
    leaf_hash,
    prefixed,
    seal,
)
from eventlog.errors import (
    EventLogError,
    InvalidInput,
    LogCorrupt,
    Refused,
    WrongExpectedVersion,
)
from eventlog.events import LOG_STREAM
from eventlog.log import AppendResult
from eventlog.sealed import associated_data, stored_hash
from eventlog.stores.body_cipher import BodyCipher, BodyKey, cipher_of
from eventlog.stores.clock import Clock
from eventlog.stores.entropy import random_bytes
from eventlog.stores.repeats import original_results
from eventlog.stores.requests import NO_BODY, EncodedEvent, Part, Request, Write
from eventlog.stores.sqlite.database import read_facts
from eventlog.stores.sqlite.foreign_write import TransactionEnded, kept_tables, run_write
from eventlog.stores.sqlite.redactions import Place, Redactions
from eventlog.stores.sqlite.scan import Placed
from eventlog.stores.sqlite.schema import EVENT_COLUMNS
from eventlog.stores.telemetry import logger

__all__ = ["Answer", "Known", "Plan", "RequestEndedAll"]

Answer = list[AppendResult] | EventLogError

CLOCK_TOLERANCE_US: Final = 2_000_000
"""A clock that is further behind the log's last event than this is said to be, as `clock_regression`."""

_STREAM_HEAD: Final = "SELECT version, leaf, body_kind FROM events WHERE stream_id = ? ORDER BY version DESC LIMIT 1"
_BY_ID: Final = """
SELECT e.position, s.name, e.version, t.name, e.schema_version, CAST(e.body AS BLOB), e.leaf, e.recorded_at_us,
e.body_kind
FROM events e JOIN streams s USING (stream_id) JOIN types t USING (type_id) WHERE e.event_id = ?"""

_MAX_CACHED_STREAMS: Final = 50_000

_NO_TEXT: Final = prefixed("")
_LEAF_COLUMN: Final = EVENT_COLUMNS.index("leaf")
_BODY_COLUMN: Final = EVENT_COLUMNS.index("body")
_KEY_OF_STREAM: Final = "SELECT key_id FROM subject_streams WHERE stream_id = ?"
_SEAL_STREAM: Final = "INSERT INTO subject_streams (stream_id, key_id) VALUES (?, ?)"

_PAGES_A_COMMIT: Final = 5
_PARTS_A_PAGE: Final = 4
_BYTES_A_ROW: Final = 250
_BYTES_A_PAGE: Final = 3000
_FRAME: Final = 4096 + 24
"""A page in the write-ahead log."""

Name = tuple[int, bytes]
"""The number of a type or an actor, and its name as it stands in an entry."""


class StreamHead(msgspec.Struct, gc=False):
    stream_id: int
    version: int
    leaf: bytes
    texts: bytes
    key_id: bytes | None = None
    """Under which the bodies of the stream are encrypted, if they are."""
    key: BodyKey | None = None


class _Placed(msgspec.Struct, frozen=True, gc=False):
    """Where an event is, in the log or in this batch."""

    position: int
    stream: str
    version: int
    type: str
    schema_version: int
    body: bytes | None
    leaf: bytes
    recorded_at_us: int


class Known:
    """What is known of the log from one transaction to the next: its end, and the streams and names that were read."""

    def __init__(self, clock: Clock, cipher: BodyCipher | None) -> None:
        self.clock: Final = clock
        self.cipher: Final = cipher
        self.log_id = b""
        self.position = 0
        self.time_us = 0
        self._is_clock_behind = False
        self.heads: dict[str, StreamHead] = {}
        self.types: dict[str, Name] = {}
        self.actors: dict[str, Name] = {}

    def now_us(self) -> int:
        """Return the clock's time, or that of the log's last event if the clock is behind it, which is said once."""
        now_us = self.clock.now_us()
        is_behind = now_us < self.time_us - CLOCK_TOLERANCE_US
        if is_behind and not self._is_clock_behind:
            logger.warning("clock_regression", behind_s=(self.time_us - now_us) / 1_000_000)
        self._is_clock_behind = is_behind
        return max(now_us, self.time_us)

    def forget(self) -> None:
        """Forget the streams and names."""
        self.heads, self.types, self.actors = {}, {}, {}


class RequestEndedAll(Exception):
    """The write of the request at `index` made SQLite end the whole transaction; `error` is its answer."""

    def __init__(self, index: int, error: EventLogError) -> None:
        self.index: Final = index
        self.error: Final = error
        super().__init__(str(error))


class Plan:
    """The rows of one transaction, while its requests are checked one after the other."""

    def __init__(
        self, known: Known, connection: sqlite3.Connection, is_careful: bool, events: int, *, has_views: bool
    ) -> None:
        self._known: Final = known
        self._connection: Final = connection
        self._is_careful: Final = is_careful
        self._salts: Final = random_bytes(SALT_SIZE * events)
        self._placed: dict[bytes, tuple[int, str, EncodedEvent]] = {}
        """By an event's id: the index of its row, and its stream and itself, of which the row has only numbers."""
        self._parts = 0
        self._bytes = 0
        self.rows: list[tuple[Any, ...]] = []
        self.placed: list[Placed] | None = [] if has_views else None
        """What was placed, for the views."""
        self.destroys_keys = False
        """Whether an event says that a subject's key is destroyed."""
        self.position = known.position
        self.time_us = known.now_us()

    def answer(self, request: Request, index: int) -> Answer:
        """Place the events of a request, or say why not; a refused request leaves nothing behind.

        Raises RequestEndedAll if nothing of the whole batch is left.
        """
        try:
            # A second try must not write again what the first one did, so whoever writes is looked up first.
            if self._is_careful or request.write is not None or self._repeats_this_batch(request):
                results = self._stored_results(request)
                if results is not None:
                    return results
            miss = self._missed_expectation(request) or request.lateness(self.time_us)
            if miss is not None:
                return self._stored_results(request) or miss
            self._find_keys(request)
            if request.write is not None:
                request = self._written(request, request.write)
            return [self._place(part, request.actor) for part in request.parts]
        except TransactionEnded as ended:
            raise RequestEndedAll(index, ended.error) from ended
        except EventLogError as error:
            return error

    def _written(self, request: Request, write: Write) -> Request:
        """Let the request write what belongs to it, and return it with its event's body. All of that or nothing."""
        connection = self._connection
        body = run_write(connection, kept_tables(connection), write)
        (part,) = request.parts
        (event,) = part.events
        return replace(request, parts=[replace(part, events=[replace(event, body=body)])])

    def estimate(self) -> int:
        """Return about how many bytes the rows are in the write-ahead log, in whole pages, and rather too many."""
        rows = self._bytes + _BYTES_A_ROW * len(self.rows)
        return (_PAGES_A_COMMIT + self._parts // _PARTS_A_PAGE + rows // _BYTES_A_PAGE) * _FRAME

    def _repeats_this_batch(self, request: Request) -> bool:
        placed = self._placed
        if not placed:
            return False
        if request.size == 1:
            return request.parts[0].events[0].event_id in placed
        return not placed.keys().isdisjoint(request.event_ids())

    def _missed_expectation(self, request: Request) -> WrongExpectedVersion | None:
        heads = self._known.heads
        for part in request.parts:
            actual = (heads.get(part.stream) or self._head(part.stream)).version
            if not part.expect.allows(actual):
                return WrongExpectedVersion(part.stream, str(part.expect), actual)
        for stream, expect in request.checks:
            actual = self._head(stream).version
            if not expect.allows(actual):
                return WrongExpectedVersion(stream, str(expect), actual)
        return None

    def _head(self, stream: str) -> StreamHead:
        heads = self._known.heads
        head = heads.get(stream)
        if head is None:
            if len(heads) >= _MAX_CACHED_STREAMS and not self.rows:
                heads.clear()
            head = heads[stream] = self._read_head(stream)
        return head

    def _read_head(self, stream: str) -> StreamHead:
        row = self._connection.execute("SELECT stream_id FROM streams WHERE name = ?", (stream,)).fetchone()
        if row is None:
            return StreamHead(0, 0, NO_HASH, prefixed(stream))
        version, leaf, kind = self._connection.execute(_STREAM_HEAD, row).fetchone() or (0, NO_HASH, None)
        sealed = self._connection.execute(_KEY_OF_STREAM, row).fetchone()
        if kind is not None and (kind == BODY_ENCRYPTED) != (sealed is not None):
            raise _subject_changed(stream, version, kind)
        return StreamHead(row[0], version, leaf, prefixed(stream), None if sealed is None else sealed[0])

    def _find_keys(self, request: Request) -> None:
        """See to it that the key of each stream that is encrypted is there: of all, or the request is refused whole."""
        found = []
        for part in request.parts:
            head = self._head(part.stream)
            names_subject = part.subject is not None or part.subject_of is not None
            if names_subject or (head.key is None and head.key_id is not None):
                found.append((head, self._find_key(part, head)))
        for head, key in found:
            head.key = key

    def _find_key(self, part: Part, head: StreamHead) -> BodyKey | None:
        """Return the key of the part's stream, which a new stream gets by naming its subject, or who else has that.

        Raises InvalidInput(`invalid_argument`) for a stream that has begun without one, or about another subject, and
        what the cipher raises.
        """
        key_id = head.key_id
        if key_id is None and part.subject_of is not None and not head.version:
            key_id = self._head(part.subject_of).key_id
        if key_id is not None:
            if Redactions(None).is_destroyed(self._connection, key_id):
                message = f"the subject of the stream {part.stream!r} was erased, and nothing can be added to it"
                raise Refused("subject_erased", message, stream=part.stream)
            cipher = cipher_of(self._known.cipher, part.stream)
            key = cipher.key(key_id, part.stream)  # that it is not here says nothing of whose it is
            if part.subject is not None and not cipher.is_key_of(key_id, part.subject):
                message = f"the stream {part.stream!r} is about another subject"
                raise InvalidInput("invalid_argument", message, path="$.subject")
            return key
        if part.subject is None:
            return None
        if head.version:
            message = f"the stream {part.stream!r} has begun in clear, and cannot be encrypted any more"
            raise InvalidInput("invalid_argument", message, path="$.subject")
        return cipher_of(self._known.cipher, part.stream).new_key(part.subject)

    def _place(self, part: Part, actor: str) -> AppendResult:
        known, rows, stream, time_us = self._known, self.rows, part.stream, self.time_us
        head = self._head(stream)
        key = head.key
        if head.stream_id == 0:
            head.stream_id = self._intern("streams", "stream_id", stream)
        if key is not None and head.key_id is None:
            head.key_id = key.key_id
            self._connection.execute(_SEAL_STREAM, (head.stream_id, key.key_id))
        stream_id, version, leaf, stream_text = head.stream_id, head.version, head.leaf, head.texts
        actor_id, actor_text = known.actors.get(actor) or self._interned(known.actors, "actors", "actor_id", actor)
        before = position = self.position
        for event in part.events:
            type_name, event_id, causation_id, body = event.type, event.event_id, event.causation_id, event.body
            correlation = event.correlation_id
            type_id, type_text = known.types.get(type_name) or self._interned(
                known.types, "types", "type_id", type_name
            )
            index = len(rows)
            salt = self._salts[SALT_SIZE * index : SALT_SIZE * (index + 1)]
            position += 1
            version += 1
            if key is not None:
                place = (position, version, salt, leaf)
                row = self._sealed(key, event, head.stream_id, stream, actor, actor_id, type_id, place)
                leaf = row[_LEAF_COLUMN]
                self._placed[event_id] = (index, stream, event)
                self._bytes += len(row[_BODY_COLUMN])
                rows.append(row)
                continue
            leaf = seal(
                known.log_id,
                position,
                version,
                time_us,
                event.schema_version,
                event_id,
                causation_id or NO_ID,
                salt,
                body,
                leaf,
                stream_text + type_text + actor_text + (prefixed(correlation) if correlation else _NO_TEXT),
            )
            self._placed[event_id] = (index, stream, event)
            self._bytes += len(body)
            rows.append(
                (
                    position,
                    stream_id,
                    version,
                    type_id,
                    event.schema_version,
                    actor_id,
                    time_us,
                    event_id,
                    causation_id,
                    correlation,
                    BODY_PLAIN,
                    body.decode(),
                    salt,
                    leaf,
                )
            )
        if stream == LOG_STREAM and any(event.type == "subject_erased" for event in part.events):
            self.destroys_keys = True
        if self.placed is not None:
            self._note_placed(part, actor, before, head.version)
        head.version, head.leaf, self.position = version, leaf, position
        self._parts += 1
        return AppendResult(
            stream=stream,
            version=version,
            first_position=before + 1,
            last_position=position,
            leaf=leaf,
            recorded_at_us=time_us,
        )

    def _sealed(
        self,
        key: BodyKey,
        event: EncodedEvent,
        stream_id: int,
        stream: str,
        actor: str,
        actor_id: int,
        type_id: int,
        place: tuple[int, int, bytes, bytes],
    ) -> tuple[Any, ...]:
        """Return the row of an event whose body is encrypted; `place`: position, version, salt and the leaf before."""
        position, version, salt, previous = place
        log_id = self._known.log_id
        data = associated_data(log_id, position, version, stream, event.type)
        stored = cipher_of(self._known.cipher, stream).seal(key, data, salt, event.body, event.type)
        entry = Entry(
            log_id=log_id,
            position=position,
            version=version,
            recorded_at_us=self.time_us,
            schema_version=event.schema_version,
            event_id=event.event_id,
            causation_id=event.causation_id or NO_ID,
            body_kind=BODY_ENCRYPTED,
            body_len=len(stored),
            content_commit=content_commitment(salt, event.body),
            stored_hash=stored_hash(stored),
            prev_in_stream=previous,
            stream=stream,
            type=event.type,
            actor=actor,
            correlation_id=event.correlation_id or "",
        )
        return (
            position,
            stream_id,
            version,
            type_id,
            event.schema_version,
            actor_id,
            self.time_us,
            event.event_id,
            event.causation_id,
            event.correlation_id,
            BODY_ENCRYPTED,
            stored,
            None,
            leaf_hash(encode(entry)),
        )

    def _note_placed(self, part: Part, actor: str, position: int, version: int) -> None:
        assert self.placed is not None, "there are views"
        for number, event in enumerate(part.events, start=1):
            self.placed.append(
                (
                    position + number,
                    part.stream,
                    version + number,
                    event.type,
                    event.schema_version,
                    self.time_us,
                    actor,
                    event.body,
                )
            )

    def _interned(self, known: dict[str, Name], table: str, column: str, name: str) -> Name:
        row = self._connection.execute(f"SELECT {column} FROM {table} WHERE name = ?", (name,)).fetchone()
        found = known[name] = (row[0] if row else self._intern(table, column, name), prefixed(name))
        return found

    def _intern(self, table: str, column: str, name: str) -> int:
        statement = (
            f"INSERT INTO {table} ({column}, name) VALUES ((SELECT coalesce(max({column}), 0) + 1 FROM {table}), ?)"
        )
        number = self._connection.execute(statement, (name,)).lastrowid
        assert number is not None, "an INSERT into a rowid table sets its rowid"
        return number

    def _stored_results(self, request: Request) -> list[AppendResult] | None:
        """Return the original results if the whole request is stored already, None if nothing of it is.

        Raises Misuse(`event_id_conflict`) for anything in between, and for other content under the same id.
        """
        found = [[self._find(event.event_id) for event in part.events] for part in request.parts]
        if all(place is None for places in found for place in places):
            return None
        return original_results(request.parts, found)

    def _find(self, event_id: bytes) -> _Placed | None:
        placed = self._placed.get(event_id)
        if placed is not None:
            index, stream, event = placed
            position, version, time_us, leaf = (self.rows[index][column] for column in (0, 2, 6, 13))
            return _Placed(position, stream, version, event.type, event.schema_version, event.body, leaf, time_us)
        row = self._connection.execute(_BY_ID, (event_id,)).fetchone()
        if row is None:
            return None
        kind, stored = row[8], row[5]
        if stored is None or kind == BODY_ENCRYPTED:
            stored = self._opened(row, kind, stored)
        position, stream, version, type_name, schema_version, _, leaf, time_us, _ = row
        return _Placed(position, stream, version, type_name, schema_version, stored, leaf, time_us)

    def _opened(self, row: tuple[Any, ...], kind: int, stored: bytes | None) -> bytes:
        """Return the body of a stored event that is encrypted; NO_BODY, which is any, where nobody can read it now."""
        place = Place(read_facts(self._connection).log_id_at(row[0]), row[0], row[2], row[1], row[3])
        body = Redactions(self._known.cipher).look(self._connection, place, kind, stored)
        return NO_BODY if body.why is not None or body.readable is None else body.readable


def _subject_changed(stream: str, version: int, kind: int) -> LogCorrupt:
    """Return the error for a stream that would go on in clear, or under a key, though it did not until now."""
    said, other = ("encrypted", "no subject") if kind == BODY_ENCRYPTED else ("in clear", "a subject")
    message = f"the last event of the stream {stream!r} is {said}, and the log names {other} for it"
    return LogCorrupt("subject_changed", message, stream=stream, version=version)
