"""A write that is not the log's, inside the log's transaction: what it may do, and how it ends.

It gets no connection but a `WriteAccess`, which runs statements and is over when the write is. What the statements may
do is watched by SQLite's authorizer: rows of the program's own tables, and reading anything. A savepoint takes back
what a failed write did, so that it costs nobody else anything.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Any, Final, TypeVar
from weakref import WeakSet

from eventlog.errors import ActionFailed, EventLogError
from eventlog.stores.requests import Write
from eventlog.stores.sqlite.failures import primary
from eventlog.stores.sqlite.schema import OWN_TABLES
from eventlog.stores.sqlite.view_registry import all_entries, table_name

__all__ = ["ConnectionBroken", "TransactionEnded", "WriteAccess", "WriteCursor", "kept_tables", "run_write"]

T = TypeVar("T")
Parameters = Sequence[Any] | Mapping[str, Any]

_READS: Final = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)
_ROW_CHANGES: Final = frozenset({sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE})
_DEFINITIONS: Final = frozenset(
    {
        sqlite3.SQLITE_CREATE_TABLE,
        sqlite3.SQLITE_CREATE_INDEX,
        sqlite3.SQLITE_CREATE_TRIGGER,
        sqlite3.SQLITE_CREATE_VIEW,
        sqlite3.SQLITE_DROP_TABLE,
        sqlite3.SQLITE_DROP_INDEX,
        sqlite3.SQLITE_DROP_TRIGGER,
        sqlite3.SQLITE_DROP_VIEW,
        sqlite3.SQLITE_ALTER_TABLE,
        sqlite3.SQLITE_REINDEX,
    }
)


class TransactionEnded(Exception):
    """SQLite ended the whole transaction because of what this write did. `error` is what its caller is told."""

    def __init__(self, error: EventLogError) -> None:
        self.error: Final = error
        super().__init__(str(error))


class ConnectionBroken(Exception):
    """What a write did could not be taken back or kept: the connection must not be used again."""


class WriteAccess:
    """What a write has of the transaction: `execute` and `executemany`, as the driver's connection has them.

    For the thread on which the write was called, until it ends or the transaction does; after that, and everywhere
    else, both raise sqlite3.ProgrammingError or sqlite3.OperationalError and touch nothing.
    """

    __slots__ = ("_gate",)

    def __init__(self, gate: _Gate) -> None:
        self._gate: Final = gate

    def execute(self, sql: str, parameters: Parameters = (), /) -> WriteCursor:
        """Run one statement."""
        return WriteCursor(self._gate, self._gate.start(lambda cursor: cursor.execute(sql, parameters)))

    def executemany(self, sql: str, rows: Iterable[Parameters], /) -> WriteCursor:
        """Run one statement for each of `rows`, which may be read from another cursor of this write meanwhile."""
        rows = self._gate.while_it_lasts(rows)
        return WriteCursor(self._gate, self._gate.start(lambda cursor: cursor.executemany(sql, rows)))


class WriteCursor:
    """The rows of a statement, and what the driver says of it; for as long as its `WriteAccess` is of use."""

    __slots__ = ("_cursor", "_gate")

    def __init__(self, gate: _Gate, cursor: sqlite3.Cursor) -> None:
        self._gate: Final = gate
        self._cursor: Final = cursor

    @property
    def lastrowid(self) -> int | None:
        """The rowid of the row that was inserted last."""
        return self._gate.watch(lambda: self._cursor.lastrowid)

    @property
    def rowcount(self) -> int:
        """How many rows were changed; -1 if the statement changes none."""
        return self._gate.watch(lambda: self._cursor.rowcount)

    @property
    def description(self) -> Any:
        """The names of the columns, as the driver gives them; None if there are none."""
        return self._gate.watch(lambda: self._cursor.description)

    def fetchone(self) -> Any:
        """Return the next row, or None."""
        return self._gate.watch(self._cursor.fetchone)

    def fetchmany(self, size: int = 1) -> list[Any]:
        """Return up to `size` rows."""
        return self._gate.watch(lambda: self._cursor.fetchmany(size))

    def fetchall(self) -> list[Any]:
        """Return the rows that are left."""
        return self._gate.watch(self._cursor.fetchall)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._gate.watch(lambda: next(self._cursor))


def kept_tables(connection: sqlite3.Connection) -> Set[str]:
    """Return the tables of a log that no foreign write may change: its own, and those of its views in every state."""
    tables = {name for entry in all_entries(connection) for name in (entry.name, table_name(entry.name, entry))}
    return OWN_TABLES | {name.lower() for name in tables}


def run_write(connection: sqlite3.Connection, own_tables: Set[str], write: Write, *, may_define: bool = False) -> bytes:
    """Call `write` in a savepoint and return what it returns. What it did is kept then, and otherwise gone.

    It may change rows of all tables but `own_tables`, and with `may_define` make and drop all others.

    Raises what it raised, if that is an EventLogError, or ActionFailed, whatever else that was, an exit included; and
    TransactionEnded, ConnectionBroken, or sqlite3.Error if the storage ended the transaction.
    """
    gate = _Gate(connection)
    connection.execute("SAVEPOINT own_write")
    connection.set_authorizer(partial(_may_write, connection, own_tables, may_define))
    error: BaseException | None = None
    body = b""
    try:
        body = write(WriteAccess(gate))
    except BaseException as raised:
        error = raised
    if not _end(connection, gate, is_kept=error is None):
        raise _of_the_end(gate.ended_by, error)
    if error is not None:
        raise _definite(error)
    return body


def _end(connection: sqlite3.Connection, gate: _Gate, *, is_kept: bool) -> bool:
    """Make the connection as it was before a write had it, and say whether the transaction goes on."""
    try:
        gate.shut()
        connection.set_authorizer(None)
        if not connection.in_transaction:
            return False
        if not is_kept:
            connection.execute("ROLLBACK TO own_write")
        connection.execute("RELEASE own_write")
    except Exception as problem:
        raise ConnectionBroken(f"a write could not be ended: {_described(problem)}") from problem
    return True


class _Gate:
    """What a `WriteAccess` and its cursors share: the way to the connection, which `shut` closes for all of them."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection: sqlite3.Connection | None = connection
        self._thread: Final = threading.get_ident()
        # An open cursor keeps the transaction's snapshot, so all are known; one that nobody holds has closed itself.
        self._cursors: Final[WeakSet[sqlite3.Cursor]] = WeakSet()
        self._is_executing = False
        self.ended_by: BaseException | None = None
        """The error by which SQLite ended the transaction."""

    def start(self, run: Callable[[sqlite3.Cursor], object]) -> sqlite3.Cursor:
        """Let `run` execute a statement with a new cursor."""
        connection = self._entered()
        if self._is_executing:
            raise sqlite3.ProgrammingError("a statement cannot be executed from within the parameters of another")
        _require_transaction(connection)
        cursor = connection.cursor()
        self._cursors.add(cursor)
        self._is_executing = True
        try:
            self.watch(lambda: run(cursor))
        finally:
            self._is_executing = False
        return cursor

    def watch(self, use: Callable[[], T]) -> T:
        """Return `use()`, and remember the error if it ended the transaction."""
        connection = self._entered()
        try:
            return use()
        except BaseException as error:
            if self.ended_by is None and not connection.in_transaction:
                self.ended_by = error
            raise

    def while_it_lasts(self, rows: Iterable[Parameters]) -> Iterator[Parameters]:
        """Give `rows`, unless giving one ended the transaction: the statement that takes it would commit alone."""
        for row in rows:
            _require_transaction(self._entered())
            yield row

    def shut(self) -> None:
        """Close every cursor, and let nobody through any more."""
        self._connection = None
        for cursor in list(self._cursors):
            cursor.close()

    def _entered(self) -> sqlite3.Connection:
        if threading.get_ident() != self._thread:
            raise sqlite3.ProgrammingError("the access to a transaction is of use on the thread of its write only")
        if self._connection is None:
            raise sqlite3.ProgrammingError("the write is over, and so is its access to the transaction")
        return self._connection


def _require_transaction(connection: sqlite3.Connection) -> None:
    if not connection.in_transaction:
        raise sqlite3.OperationalError("the transaction has ended; nothing more is written")


def _may_write(
    connection: sqlite3.Connection,
    own_tables: Set[str],
    may_define: bool,
    action: int,
    first: str | None,
    second: str | None,
    *_: str | None,
) -> int:
    """Say whether a foreign write inside the transaction may do this: rows of its own tables, and reading anything.

    The transaction is not its own to end, and the log's tables are append-only for everybody. Once SQLite has ended it
    by itself, whatever came would be committed alone.
    """
    if not connection.in_transaction:
        return sqlite3.SQLITE_DENY
    if action in _READS:
        return sqlite3.SQLITE_OK
    if action in _ROW_CHANGES and (first or "").lower() not in own_tables:
        return sqlite3.SQLITE_OK
    if may_define and action in _DEFINITIONS and own_tables.isdisjoint({(first or "").lower(), (second or "").lower()}):
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _of_the_end(ended_by: BaseException | None, error: BaseException | None) -> Exception:
    """Return what the end of the whole transaction means: a constraint says nothing about the log, all else does."""
    if isinstance(ended_by, sqlite3.Error):
        if primary(ended_by) == sqlite3.SQLITE_CONSTRAINT:
            return TransactionEnded(_definite(error or ended_by))
        return ended_by
    return sqlite3.OperationalError(f"the transaction was ended by a write: {_described(ended_by or error)}")


def _definite(error: BaseException) -> EventLogError:
    if isinstance(error, EventLogError):
        return error
    failed = ActionFailed("action_failed", f"nothing was written: {_described(error)}")
    failed.__cause__ = error
    return failed


def _described(error: BaseException | None) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # it is somebody else's error, and may not even be able to say what it is
        return type(error).__name__
