"""Where views in SQLite are kept: in the log's own database, or in a file of their own beside it.

In the log's database the rows of a view are written between the appends, under the same lock. In a file of their own
(`ViewFile`) they share no lock with the log, which is attached for reading only; a view is written there in one
transaction with its position all the same, so both places are exact.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import quote

from eventlog.codec import Registry
from eventlog.errors import EventLogError, StoreUnavailable
from eventlog.log import EventReader
from eventlog.stores.sqlite.connection import Settings, Worker, connect
from eventlog.stores.sqlite.failures import DRIVER_ERRORS, translate
from eventlog.stores.sqlite.file_lock import FileLock
from eventlog.stores.sqlite.files import is_on_read_only_medium
from eventlog.stores.sqlite.rollback import behind_nothing, roll_back
from eventlog.stores.sqlite.scan import Scan
from eventlog.stores.sqlite.schema import APPLICATION_ID, CREATE_VIEWS
from eventlog.views import Selection

__all__ = ["ViewDatabase", "ViewFile", "ViewStore", "attach_log", "cut_write_ahead_log"]

T = TypeVar("T")

_CLOSE_TIMEOUT_S: Final = 2.0
_CHECKPOINT_BYTES: Final = 8 * 1024 * 1024
LOG_SCHEMA: Final = "log"
"""The name under which the log is attached to a file of views."""

_CREATE_OWNER: Final = "CREATE TABLE view_owner (store_id BLOB NOT NULL) STRICT"


class ViewDatabase(Protocol):
    """A database that views are kept in, and from which the log can be read. It cannot append."""

    @property
    def place(self) -> str:
        """The path of the database, beside which lock files may be kept."""

    def scan_of(self, selection: Selection, *, schema: str = "") -> Scan:
        """Return what reads the events of a selection through a connection of this database."""

    async def look(self, function: Callable[..., T], *args: Any) -> T:
        """Run `function(connection, *args)` on a connection that reads."""

    async def write_view(self, function: Callable[..., T], *args: Any) -> T:
        """Run `function(connection, *args)` in one write transaction."""


class ViewStore(ViewDatabase, EventReader, Protocol):
    """What views need of a log in SQLite: reading events, and a connection for a moment. It cannot append."""

    async def read_view(self, function: Callable[..., T], *args: Any, of: Collection[str] | None = None) -> T:
        """Run `function(connection, *args)` once the inline views, those named by `of` or all, are at the head."""

    @property
    def store_id(self) -> bytes:
        """The 16 bytes that name the store."""

    @property
    def registry(self) -> Registry:
        """Which Struct stands for which event type."""

    def next_commit(self) -> Callable[[float], Awaitable[None]]:
        """Return what waits, for so many seconds at the most, for the first commit from now on."""


class ViewFile:
    """A database of views of one log, made if it is missing. Use it as an async context manager.

    Raises StoreUnavailable (`store_cannot_open`, …), EventLogError(`view_of_another_log`) if it has views of another.
    """

    def __init__(self, path: str | os.PathLike[str], log: ViewStore, *, busy_timeout_s: float = 5.0) -> None:
        self._path: Final = os.path.realpath(path)
        self._log: Final = log
        self._settings: Final = Settings(self._path, durability="normal", busy_timeout_s=busy_timeout_s)

    async def __aenter__(self) -> ViewFile:
        self._lock = FileLock(f"{self._path}.lock")
        self._log_lock = FileLock(f"{self._log.place}.lock")
        self._worker = Worker(self._connect, self._lock, self._path)
        try:
            await self._worker.open()
        except DRIVER_ERRORS as error:
            self._let_go()
            raise translate(error, f"cannot open the views at {self._path!r}") from error
        except BaseException:
            self._let_go()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._worker.close(timeout_s=_CLOSE_TIMEOUT_S)
        self._let_go()

    def _let_go(self) -> None:
        self._lock.close()
        self._log_lock.close()

    @property
    def place(self) -> str:
        """The path of the database."""
        return self._path

    def scan_of(self, selection: Selection, *, schema: str = LOG_SCHEMA) -> Scan:
        """Return what reads the events of a selection from the attached log."""
        return self._log.scan_of(selection, schema=schema)

    async def look(self, function: Callable[..., T], *args: Any) -> T:
        """Run `function(connection, *args)` on the connection, which nobody else uses meanwhile."""
        return await self._run(function, *args)

    async def write_view(self, function: Callable[..., T], *args: Any) -> T:
        """Run `function(connection, *args)` in one write transaction."""
        return await self._run(self._write, function, *args)

    async def _run(self, function: Callable[..., T], *args: Any) -> T:
        try:
            return await self._worker.run(behind_nothing, function, *args)
        except DRIVER_ERRORS as error:
            raise translate(error, f"cannot use the views at {self._path!r}") from error

    def _write(self, connection: sqlite3.Connection, function: Callable[..., T], *args: Any) -> T:
        with self._lock:
            connection.execute("BEGIN IMMEDIATE")
            try:
                result = function(connection, *args)
                connection.execute("COMMIT")
            except BaseException:
                roll_back(connection)
                raise
            cut_write_ahead_log(connection, self._path)
            return result

    def _connect(self) -> sqlite3.Connection:
        with self._lock:
            connection = connect(self._settings, "rwc")
            try:
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        try:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
            if "view_owner" not in tables:
                if "views" in tables or _is_a_log(connection):
                    raise StoreUnavailable("store_not_eventlog", f"{self._path!r} is no database of views")
                connection.execute(CREATE_VIEWS.strip().rstrip(";"))
                connection.execute(_CREATE_OWNER)
                connection.execute("INSERT INTO view_owner VALUES (?)", (self._log.store_id,))
            (owner,) = connection.execute("SELECT store_id FROM view_owner").fetchone()
        except BaseException:
            roll_back(connection)
            raise
        connection.execute("COMMIT")
        if owner != self._log.store_id:
            message = f"the views at {self._path!r} are of the log {owner.hex()}, not of {self._log.store_id.hex()}"
            raise EventLogError("view_of_another_log", message)
        with self._log_lock:  # whoever opens a log first may have to recover its write-ahead log
            attach_log(connection, self._log.place)


def _is_a_log(connection: sqlite3.Connection) -> bool:
    application_id: int = connection.execute("PRAGMA main.application_id").fetchone()[0]
    return application_id == APPLICATION_ID


def attach_log(connection: sqlite3.Connection, path: str, *, schema: str = LOG_SCHEMA) -> None:
    """Attach the database at `path`, for reading only, under the name `schema`."""
    tail = "&immutable=1" if is_on_read_only_medium(path) else ""
    connection.execute(f"ATTACH DATABASE ? AS {schema}", (f"file:{quote(path)}?mode=ro{tail}",))


def cut_write_ahead_log(connection: sqlite3.Connection, path: str) -> None:
    """Copy what is committed into the database at `path` and cut its write-ahead log, if that has become large.

    Behind a commit, under the lock of the file. Nobody is waited for: what a reader still needs is left for the next
    time.
    """
    if _size(f"{path}-wal") <= _CHECKPOINT_BYTES:
        return
    (timeout_ms,) = connection.execute("PRAGMA busy_timeout").fetchone()
    connection.execute("PRAGMA busy_timeout=0")
    try:
        connection.execute("PRAGMA main.wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        connection.execute(f"PRAGMA busy_timeout={timeout_ms}")


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
