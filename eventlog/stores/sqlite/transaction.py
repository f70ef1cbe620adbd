"""One write transaction: a batch of requests, each checked against the log as the earlier ones of the batch leave it.

Runs on the writer's thread, as one function from the file lock to the identity check. Nothing that is remembered
between transactions is trusted blindly: stream heads are reused only while SQLite says that no other connection has
committed (`PRAGMA data_version`, read inside the transaction), and everything is forgotten when a transaction fails.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec
from msgspec.structs import replace

from eventlog.entry import BODY_PLAIN, NO_HASH, NO_ID, SALT_SIZE, prefixed, seal
from eventlog.errors import EventLogError, LogCorrupt, StoreBusy, StoreUnavailable, WrongExpectedVersion
from eventlog.log import AppendResult
from eventlog.stores.clock import Clock
from eventlog.stores.entropy import random_bytes
from eventlog.stores.repeats import original_results
from eventlog.stores.requests import EncodedEvent, Part, Request, Write
from eventlog.stores.sqlite.database import read_facts
from eventlog.stores.sqlite.failures import is_definite_at_commit, is_poison, is_poison_inside, translate
from eventlog.stores.sqlite.file_lock import FileLock
from eventlog.stores.sqlite.foreign_write import ConnectionBroken, TransactionEnded, kept_tables, run_write
from eventlog.stores.sqlite.identity import Identity
from eventlog.stores.sqlite.scan import Placed
from eventlog.stores.sqlite.schema import INSERT_EVENT

__all__ = ["Batch", "BatchOutcome", "InlineViews", "Transactions"]

Answer = list[AppendResult] | EventLogError

_HEAD: Final = "SELECT position, recorded_at_us FROM events ORDER BY position DESC LIMIT 1"
_STREAM_HEAD: Final = "SELECT version, leaf FROM events WHERE stream_id = ? ORDER BY version DESC LIMIT 1"
_BY_ID: Final = """
SELECT e.position, s.name, e.version, t.name, e.schema_version, CAST(e.body AS BLOB), e.leaf, e.recorded_at_us
FROM events e JOIN streams s USING (stream_id) JOIN types t USING (type_id) WHERE e.event_id = ?"""

_MAX_CACHED_STREAMS: Final = 50_000

_NO_TEXT: Final = prefixed("")

_PAGES_A_COMMIT: Final = 4
_PARTS_A_PAGE: Final = 4
_BYTES_A_ROW: Final = 250
_BYTES_A_PAGE: Final = 3000
_FRAME: Final = 4096 + 24
"""A page in the write-ahead log."""

_Name = tuple[int, bytes]
"""The number of a type or an actor, and its name as it stands in an entry."""


class InlineViews(Protocol):
    """The views that are written in the append's own transaction."""

    def follow(self, connection: sqlite3.Connection, before: int, after: int, placed: Sequence[Placed]) -> None:
        """Bring the views from position `before` to `after`. One that fails stays behind; only the database raises."""

    def forget(self) -> None:
        """Forget what was read in a transaction that failed."""


class Batch:
    """Requests that are committed together, and the one question that two threads must agree on: has it begun?"""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.requests: Final = requests
        self._lock: Final = threading.Lock()
        self._state = "waiting"

    def begin(self) -> bool:
        """Called by the writer's thread once it holds the locks; False if the waiters were told otherwise meanwhile."""
        return self._become("begun")

    def abandon(self) -> bool:
        """Called by the loop when time is up; True if nothing was or will be written."""
        return self._become("abandoned")

    def _become(self, state: str) -> bool:
        with self._lock:
            if self._state == "waiting":
                self._state = state
            return self._state == state


class BatchOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a batch: one answer a request, and whether the connection may be used again.

    `unknown` means that the COMMIT failed in a way that proves nothing; the answers are empty then.
    """

    answers: list[Answer] = []
    wal_bytes: int = 0
    written: int = 0
    """About how much the write-ahead log was written, in bytes."""
    poison: str | None = None
    unknown: str | None = None
    is_lost: bool = False
    """The files were replaced; reopening the path would open something else."""


class _StreamHead(msgspec.Struct, gc=False):
    stream_id: int
    version: int
    leaf: bytes
    texts: bytes


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


class Transactions:
    """Makes the transactions of one write connection."""

    def __init__(self, lock: FileLock, identity: Identity, clock: Clock, views: InlineViews | None) -> None:
        self._lock: Final = lock
        self._identity: Final = identity
        self._clock: Final = clock
        self._views: Final = views
        self._log_id = b""
        self._data_version: int | None = None
        self._position = 0
        self._time_us = 0
        self._heads: dict[str, _StreamHead] = {}
        self._types: dict[str, _Name] = {}
        self._actors: dict[str, _Name] = {}
        self._written = 0

    def commit(self, connection: sqlite3.Connection, batch: Batch) -> BatchOutcome:
        """Commit a batch and say what became of each request. Raises nothing."""
        try:
            self._lock.acquire()
        except EventLogError as error:
            return _all(batch, error)
        try:
            return self._commit_locked(connection, batch)
        finally:
            self._lock.release()

    def _commit_locked(self, connection: sqlite3.Connection, batch: Batch) -> BatchOutcome:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            poison = self._roll_back(connection) or _poison(error)
            return _all(batch, translate(error, "cannot begin a transaction"), poison=poison)
        if not batch.begin():
            poison = self._roll_back(connection)
            return _all(batch, StoreBusy("the write lock was not free in time"), poison=poison)
        try:
            answers = self._write(connection, batch.requests)
        except sqlite3.Error as error:
            poison = self._roll_back(connection, after=error) or _poison(error)
            return _all(batch, translate(error, "cannot append"), poison=poison)
        except ConnectionBroken as error:
            self._roll_back(connection)
            return _all(batch, StoreUnavailable("store_io_error", f"cannot append: {error}"), poison=str(error))
        except BaseException as error:
            poison = self._roll_back(connection)
            return _all(batch, _coded(error), poison=poison)
        return self._finish(connection, batch, answers)

    def _finish(self, connection: sqlite3.Connection, batch: Batch, answers: list[Answer]) -> BatchOutcome:
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            poison = self._roll_back(connection, after=error) or _poison(error)
            if is_definite_at_commit(error):
                return _all(batch, translate(error, "cannot commit"), poison=poison)
            return BatchOutcome(unknown=str(error), poison=f"COMMIT failed: {error}")
        try:
            return BatchOutcome(answers=answers, wal_bytes=self._identity.check(), written=self._written)
        except StoreUnavailable as error:
            return BatchOutcome(unknown=str(error), poison=str(error), is_lost=True)

    def _write(self, connection: sqlite3.Connection, requests: Sequence[Request]) -> list[Answer]:
        """Write the batch, and start over when it has to be: once trusting nothing, and without whoever ended it."""
        refused: dict[int, EventLogError] = {}
        is_careful = False
        while True:
            try:
                return self._write_once(connection, requests, refused, is_careful=is_careful)
            except _RequestEndedAll as ended:
                refused[ended.index] = ended.error
            except sqlite3.IntegrityError as error:
                # An id is in the log already (the usual reason), or what we remembered is wrong.
                if is_careful:
                    raise LogCorrupt("append_refused", f"the database refuses the next event: {error}") from error
                is_careful = True
                connection.execute("ROLLBACK")
            self._forget()
            connection.execute("BEGIN IMMEDIATE")

    def _write_once(
        self,
        connection: sqlite3.Connection,
        requests: Sequence[Request],
        refused: Mapping[int, EventLogError],
        *,
        is_careful: bool,
    ) -> list[Answer]:
        self._refresh(connection)
        self._written = 0
        before = self._position
        plan = _Plan(self, connection, is_careful, sum([request.size for request in requests]))
        answers = [refused.get(index) or plan.answer(request, index) for index, request in enumerate(requests)]
        if plan.rows:
            connection.executemany(INSERT_EVENT, plan.rows)
            self._position = plan.position
            self._time_us = plan.time_us
            self._written = plan.estimate()
            if self._views is not None:
                self._views.follow(connection, before, plan.position, plan.placed or ())
        return answers

    def _refresh(self, connection: sqlite3.Connection) -> None:
        """Read the head, unless nobody else can have moved it since this connection's last transaction."""
        data_version = connection.execute("PRAGMA data_version").fetchone()[0]
        if data_version == self._data_version:
            return
        self._forget()
        self._data_version = data_version
        self._position, self._time_us = connection.execute(_HEAD).fetchone() or (0, 0)
        self._log_id = read_facts(connection).log_id_at(self._position + 1)

    def _forget(self) -> None:
        self._data_version = None
        self._heads, self._types, self._actors = {}, {}, {}
        if self._views is not None:
            self._views.forget()

    def _roll_back(self, connection: sqlite3.Connection, *, after: sqlite3.Error | None = None) -> str | None:
        """End the transaction, if SQLite has not. Never raises; returns why the connection cannot be used, if so."""
        self._forget()
        try:
            if not connection.in_transaction:
                return None
            connection.execute("ROLLBACK")
        except Exception as error:
            return f"a transaction could not be rolled back: {error}"
        return str(after) if after is not None and is_poison_inside(after) else None


class _RequestEndedAll(Exception):
    """The write of the request at `index` made SQLite end the whole transaction; `error` is its answer."""

    def __init__(self, index: int, error: EventLogError) -> None:
        self.index: Final = index
        self.error: Final = error
        super().__init__(str(error))


class _Plan:
    """The rows of one transaction, while its requests are checked one after the other."""

    def __init__(
        self, transactions: Transactions, connection: sqlite3.Connection, is_careful: bool, events: int
    ) -> None:
        self._known: Final = transactions
        self._connection: Final = connection
        self._is_careful: Final = is_careful
        self._salts: Final = random_bytes(SALT_SIZE * events)
        self._placed: dict[bytes, tuple[int, str, EncodedEvent]] = {}
        """By an event's id: the index of its row, and its stream and itself, of which the row has only numbers."""
        self._parts = 0
        self._bytes = 0
        self.rows: list[tuple[Any, ...]] = []
        self.placed: list[Placed] | None = [] if transactions._views is not None else None
        """What was placed, for the views."""
        self.position = transactions._position
        self.time_us = max(transactions._clock.now_us(), transactions._time_us)

    def answer(self, request: Request, index: int) -> Answer:
        """Place the events of a request, or say why not; a refused request leaves nothing behind.

        Raises _RequestEndedAll if nothing of the whole batch is left.
        """
        try:
            # A second try must not write again what the first one did, so whoever writes is looked up first.
            if self._is_careful or request.write is not None or self._repeats_this_batch(request):
                results = self._stored_results(request)
                if results is not None:
                    return results
            miss = self._missed_expectation(request)
            if miss is not None:
                return self._stored_results(request) or miss
            if request.write is not None:
                request = self._written(request, request.write)
            return [self._place(part, request.actor) for part in request.parts]
        except TransactionEnded as ended:
            raise _RequestEndedAll(index, ended.error) from ended
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
        heads = self._known._heads
        for part in request.parts:
            actual = (heads.get(part.stream) or self._head(part.stream)).version
            if not part.expect.allows(actual):
                return WrongExpectedVersion(part.stream, str(part.expect), actual)
        for stream, expect in request.checks:
            actual = self._head(stream).version
            if not expect.allows(actual):
                return WrongExpectedVersion(stream, str(expect), actual)
        return None

    def _head(self, stream: str) -> _StreamHead:
        heads = self._known._heads
        head = heads.get(stream)
        if head is None:
            if len(heads) >= _MAX_CACHED_STREAMS and not self.rows:
                heads.clear()
            head = heads[stream] = self._read_head(stream)
        return head

    def _read_head(self, stream: str) -> _StreamHead:
        row = self._connection.execute("SELECT stream_id FROM streams WHERE name = ?", (stream,)).fetchone()
        if row is None:
            return _StreamHead(0, 0, NO_HASH, prefixed(stream))
        version, leaf = self._connection.execute(_STREAM_HEAD, row).fetchone() or (0, NO_HASH)
        return _StreamHead(row[0], version, leaf, prefixed(stream))

    def _place(self, part: Part, actor: str) -> AppendResult:
        known, rows, stream, time_us = self._known, self.rows, part.stream, self.time_us
        head = self._head(stream)
        if head.stream_id == 0:
            head.stream_id = self._intern("streams", "stream_id", stream)
        stream_id, version, leaf, stream_text = head.stream_id, head.version, head.leaf, head.texts
        actor_id, actor_text = known._actors.get(actor) or self._interned(known._actors, "actors", "actor_id", actor)
        before = position = self.position
        for event in part.events:
            type_name, event_id, causation_id, body = event.type, event.event_id, event.causation_id, event.body
            correlation = event.correlation_id
            type_id, type_text = known._types.get(type_name) or self._interned(
                known._types, "types", "type_id", type_name
            )
            index = len(rows)
            salt = self._salts[SALT_SIZE * index : SALT_SIZE * (index + 1)]
            position += 1
            version += 1
            leaf = seal(
                known._log_id,
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

    def _interned(self, known: dict[str, _Name], table: str, column: str, name: str) -> _Name:
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
        return None if row is None else _Placed(*row)


def _all(batch: Batch, error: EventLogError, *, poison: str | None = None) -> BatchOutcome:
    return BatchOutcome(answers=[error] * len(batch.requests), poison=poison)


def _poison(error: sqlite3.Error) -> str | None:
    return str(error) if is_poison(error) else None


def _coded(error: BaseException) -> EventLogError:
    if isinstance(error, EventLogError):
        return error
    return EventLogError("unexpected", f"the writer failed: {type(error).__name__}: {error}")
