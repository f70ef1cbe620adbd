"""One write transaction: a batch of requests, each checked against the log as the earlier ones of the batch leave it.

Runs on the writer's thread, as one function from the file lock to the identity check. Nothing that is remembered
between transactions is trusted blindly: stream heads are reused only while SQLite says that no other connection has
committed (`PRAGMA data_version`, read inside the transaction), and everything is forgotten when a transaction fails.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

import msgspec

from eventlog.errors import (
    EventLogError,
    LogCorrupt,
    StoreBusy,
    StoreUnavailable,
)
from eventlog.merkle import Frontier
from eventlog.stores.body_cipher import BodyCipher
from eventlog.stores.clock import Clock
from eventlog.stores.requests import Request
from eventlog.stores.sqlite.database import read_facts
from eventlog.stores.sqlite.erasures import MakeErasure, carry_out, plan_erasures
from eventlog.stores.sqlite.failures import SQLITE_ERRORS, is_definite_at_commit, is_poison, is_poison_inside, translate
from eventlog.stores.sqlite.file_lock import FileLock
from eventlog.stores.sqlite.foreign_write import ConnectionBroken
from eventlog.stores.sqlite.identity import Identity
from eventlog.stores.sqlite.plan import Answer, Known, Plan, RequestEndedAll
from eventlog.stores.sqlite.rollback import end_transaction, roll_back
from eventlog.stores.sqlite.rows import Rows
from eventlog.stores.sqlite.scan import Placed
from eventlog.stores.sqlite.schema import EVENT_COLUMNS, INSERT_EVENT
from eventlog.stores.sqlite.tree import read_frontier, write_tree
from eventlog.stores.sqlite.whole import ConnectionUnusable, in_one_transaction

__all__ = ["Batch", "BatchOutcome", "InlineViews", "Transactions"]

T = TypeVar("T")

_HEAD: Final = "SELECT position, recorded_at_us FROM events ORDER BY position DESC LIMIT 1"
_BEGIN_INCARNATION: Final = """
INSERT INTO log_ids (first_position, log_id) VALUES ((SELECT coalesce(max(position), 0) + 1 FROM events), ?)"""
_LEAF_COLUMN: Final = EVENT_COLUMNS.index("leaf")


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


class Transactions:
    """Makes the transactions of one write connection."""

    def __init__(
        self,
        lock: FileLock,
        identity: Identity,
        clock: Clock,
        views: InlineViews | None,
        cipher: BodyCipher | None = None,
    ) -> None:
        self._known: Final = Known(clock, cipher)
        self._lock: Final = lock
        self._identity: Final = identity
        self._views: Final = views
        self._unusable: str | None = None
        self._data_version: int | None = None
        self._frontier = Frontier()
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

    @property
    def position(self) -> int:
        """The last position that this connection knows of."""
        return self._known.position

    def begin_incarnation(self, connection: sqlite3.Connection, log_id: bytes, request: Request) -> None:
        """Make `log_id` the log's from the next position on, with the event that says why, in one transaction.

        Raises as `between`.
        """

        def begin() -> None:
            connection.execute(_BEGIN_INCARNATION, (log_id,))
            self._forget()
            (answer,) = self._write_once(connection, [request], {}, is_careful=False)
            if isinstance(answer, EventLogError):
                raise answer

        self.between(connection, "cannot begin a new incarnation of the log", begin)
        self._forget()

    def erase(
        self, connection: sqlite3.Connection, rows: Rows, positions: Sequence[int], make_request: MakeErasure
    ) -> list[tuple[int, int]]:
        """Erase the bodies of events, with one event each that says so, in one transaction.

        Return (position, position of the event that says so). Raises as `between`.
        """

        def erase() -> list[tuple[int, int]]:
            erasures = plan_erasures(connection, rows, positions)
            if not erasures:
                return []
            (answer,) = self._write_once(connection, [make_request(erasures)], {}, is_careful=False)
            if isinstance(answer, EventLogError):
                raise answer
            (result,) = answer
            erased = [(each.position, result.first_position + at) for at, each in enumerate(erasures)]
            carry_out(connection, erased)
            return erased

        return self.between(connection, "cannot erase", erase)

    def between(self, connection: sqlite3.Connection, doing: str, work: Callable[[], T]) -> T:
        """Return what `work` does in a transaction of its own, once that is committed, under the file lock.

        Raises what it raises, and coded errors; nothing was written then. Raises ConnectionUnusable: this connection
        takes no transaction any more, also where whoever asked has gone.
        """
        with self._lock:
            if self._unusable is not None:
                message = f"nothing was written, the log is opened again first: {self._unusable}"
                raise ConnectionUnusable(self._unusable, told=StoreUnavailable("store_io_error", message))
            try:
                return in_one_transaction(connection, doing, work)
            except BaseException as error:
                self._forget()
                if isinstance(error, ConnectionUnusable):
                    self._unusable = error.why
                raise

    def apart(self, connection: sqlite3.Connection, doing: str, work: Callable[[], T]) -> T:
        """Return what `work` does under the file lock, in transactions that it begins and ends itself.

        Raises as `between`; what `work` makes can be looked at and made again, so that nothing of it is in doubt.
        """
        with self._lock:
            try:
                return work()
            except SQLITE_ERRORS as error:
                self._forget()
                why = roll_back(connection) or (str(error) if is_poison_inside(error) else None)
                if why is None:
                    raise
                self._unusable = why
                raise ConnectionUnusable(self._unusable, told=translate(error, doing)) from error

    def forget(self, _: sqlite3.Connection) -> None:
        """Forget what is remembered of streams, and with it the keys of their subjects."""
        self._forget()

    def _commit_locked(self, connection: sqlite3.Connection, batch: Batch) -> BatchOutcome:
        if self._unusable is not None:  # they are asked again on the next connection, which nothing is in doubt on
            return BatchOutcome(unknown=self._unusable, poison=self._unusable)
        try:
            connection.execute("BEGIN IMMEDIATE")
        except SQLITE_ERRORS as error:
            poison = self._roll_back(connection) or _poison(error)
            return _all(batch, translate(error, "cannot begin a transaction"), poison=poison)
        if not batch.begin():
            poison = self._roll_back(connection)
            return _all(batch, StoreBusy("the write lock was not free in time"), poison=poison)
        try:
            answers = self._write(connection, batch.requests)
        except SQLITE_ERRORS as error:
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
        except SQLITE_ERRORS as error:
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
            except RequestEndedAll as ended:
                refused[ended.index] = ended.error
            except sqlite3.IntegrityError as error:
                # An id is in the log already (the usual reason), or what we remembered is wrong.
                if is_careful:
                    raise LogCorrupt("append_refused", f"the database refuses the next event: {error}") from error
                is_careful = True
                end_transaction(connection)
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
        before = self._known.position
        plan = Plan(
            self._known,
            connection,
            is_careful,
            sum([request.size for request in requests]),
            has_views=self._views is not None,
        )
        answers = [refused.get(index) or plan.answer(request, index) for index, request in enumerate(requests)]
        if plan.rows:
            connection.executemany(INSERT_EVENT, plan.rows)
            write_tree(connection, self._frontier, [row[_LEAF_COLUMN] for row in plan.rows])
            if plan.destroys_keys:
                for head in self._known.heads.values():
                    head.key = None  # whoever writes next asks the log, which says that the key is not to be used
            self._known.position = plan.position
            self._known.time_us = plan.time_us
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
        self._known.position, self._known.time_us = connection.execute(_HEAD).fetchone() or (0, 0)
        self._known.log_id = read_facts(connection).log_id_at(self._known.position + 1)
        self._frontier = read_frontier(connection, self._known.position)

    def _forget(self) -> None:
        self._data_version = None
        self._known.forget()
        if self._views is not None:
            self._views.forget()

    def _roll_back(
        self, connection: sqlite3.Connection, *, after: sqlite3.Error | MemoryError | None = None
    ) -> str | None:
        """End the transaction, if SQLite has not. Never raises; returns why the connection cannot be used, if so."""
        self._forget()
        try:
            if not connection.in_transaction:
                return None
            connection.execute("ROLLBACK")
        except Exception as error:
            return f"a transaction could not be rolled back: {error}"
        return str(after) if after is not None and is_poison_inside(after) else None


def _all(batch: Batch, error: EventLogError, *, poison: str | None = None) -> BatchOutcome:
    return BatchOutcome(answers=[error] * len(batch.requests), poison=poison)


def _poison(error: sqlite3.Error | MemoryError) -> str | None:
    return str(error) if is_poison(error) else None


def _coded(error: BaseException) -> EventLogError:
    if isinstance(error, EventLogError):
        return error
    return EventLogError("unexpected", f"the writer failed: {type(error).__name__}: {error}")
