"""Connections to the database: how one is opened, and how a whole transaction runs on its thread.

aiosqlite gives each connection a thread with a queue. Three things of it are used in a way its public surface does
not offer (a guard test pins them): its thread is made a daemon before it starts, so that an unclosed log never keeps
a process alive; work is put into its queue as one function, so that a hop is a whole transaction and no cancellation
can leave half of one; and a result for a loop that is closed is dropped instead of killing the thread.
"""

from __future__ import annotations

import asyncio
import ctypes
import sqlite3
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Literal, TypeVar
from urllib.parse import quote

import aiosqlite

from eventlog.errors import StoreUnavailable
from eventlog.stores.sqlite.failures import DRIVER_ERRORS, translate
from eventlog.stores.sqlite.file_lock import FileLock
from eventlog.stores.sqlite.identity import Identity

__all__ = ["Durability", "Settings", "Worker", "connect", "sqlite_has_wal_reset_fix"]

T = TypeVar("T")
Durability = Literal["full", "normal"]

_JOIN_TIMEOUT_S: Final = 0.5

_NO_CHECKPOINT_ON_CLOSE: Final = 1006
"""SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, which the `sqlite3` module names from Python 3.12 on."""

SQLITE_FLOOR: Final = (3, 37, 0)
"""STRICT tables."""

SQLITE_VERSION: Final = sqlite3.sqlite_version_info
"""The SQLite library that this Python uses."""


def sqlite_has_wal_reset_fix(version: tuple[int, int, int] = sqlite3.sqlite_version_info) -> bool:
    """Say whether this SQLite has the fix of the WAL-reset race: 3.51.3, and 3.50.7 and 3.44.6 on their branches."""
    if version[:2] == (3, 52):
        return False
    if version >= (3, 51, 3):
        return True
    return (version[:2] == (3, 50) and version >= (3, 50, 7)) or (version[:2] == (3, 44) and version >= (3, 44, 6))


class Settings:
    """How connections to one database are opened."""

    def __init__(self, path: str, *, durability: Durability, busy_timeout_s: float, is_immutable: bool = False) -> None:
        self.path: Final = path
        self.durability: Final = durability
        self.busy_timeout_s: Final = busy_timeout_s
        self.is_immutable: Final = is_immutable
        """The database is on a read-only medium and nobody can write it."""

    def uri(self, mode: str) -> str:
        tail = "&immutable=1" if self.is_immutable else ""
        return f"file:{quote(self.path)}?mode={mode}{tail}"


def connect(settings: Settings, mode: Literal["rwc", "rw", "ro"]) -> sqlite3.Connection:
    """Open a connection and set it up; each setting is read back. Call it under the file lock.

    Raises StoreUnavailable (`store_cannot_open`, `wal_unavailable`, `sqlite_too_old`, …) or LogCorrupt.
    """
    if sqlite3.sqlite_version_info < SQLITE_FLOOR:
        raise StoreUnavailable("sqlite_too_old", f"SQLite {sqlite3.sqlite_version} is older than 3.37.0")
    try:
        connection = sqlite3.connect(
            settings.uri(mode),
            uri=True,
            isolation_level=None,
            timeout=settings.busy_timeout_s,
            cached_statements=256,
        )
    except DRIVER_ERRORS as error:
        raise translate(error, f"cannot open {settings.path!r}") from error
    try:
        _set_up(connection, settings, mode)
    except BaseException:
        connection.close()
        raise
    return connection


def _set_up(connection: sqlite3.Connection, settings: Settings, mode: str) -> None:
    try:
        for name, value, expected in _pragmas(settings, mode):
            connection.execute(f"PRAGMA {name}={value}")
            found = connection.execute(f"PRAGMA {name}").fetchone()
            if found is None or str(found[0]).lower() != expected:
                raise _not_in_force(name, expected, found)
    except DRIVER_ERRORS as error:
        raise translate(error, f"cannot set up {settings.path!r}") from error


def _pragmas(settings: Settings, mode: str) -> list[tuple[str, str, str]]:
    pragmas = [
        ("busy_timeout", str(round(settings.busy_timeout_s * 1000)), str(round(settings.busy_timeout_s * 1000))),
        ("trusted_schema", "OFF", "0"),
        ("cell_size_check", "ON", "1"),
        ("mmap_size", "0", "0"),
    ]
    if mode == "ro":
        return [*pragmas, ("query_only", "ON", "1")]
    pragmas += [
        ("journal_mode", "WAL", "wal"),
        ("synchronous", settings.durability.upper(), {"full": "2", "normal": "1"}[settings.durability]),
        ("wal_autocheckpoint", "0", "0"),
        ("journal_size_limit", str(64 * 1024 * 1024), str(64 * 1024 * 1024)),
        ("secure_delete", "ON", "1"),
        ("recursive_triggers", "ON", "1"),
    ]
    if sys.platform == "darwin":  # there, plain fsync leaves data in the drive's cache
        pragmas += [("fullfsync", "ON", "1"), ("checkpoint_fullfsync", "ON", "1")]
    return pragmas


def _not_in_force(name: str, expected: str, found: tuple[Any, ...] | None) -> StoreUnavailable:
    code = "wal_unavailable" if name == "journal_mode" else "store_cannot_open"
    return StoreUnavailable(code, f"PRAGMA {name} is {found and found[0]!r} after it was set to {expected!r}")


class Worker:
    """A connection and the thread that owns it. For use from the loop that opened it."""

    def __init__(self, connector: Callable[[], sqlite3.Connection], lock: FileLock | None, path: str) -> None:
        self._aiosqlite: Final = aiosqlite.Connection(connector, iter_chunk_size=64)
        self._aiosqlite._thread.daemon = True
        self._connector: Final = connector
        self._lock: Final = lock
        self._path: Final = path
        self._identity: Identity | None = None
        self._is_open = False

    async def open(self) -> None:
        """Run the connector on the thread. Raises what it raises; when cancelled, closes what it opened meanwhile.

        Raises StoreUnavailable(`store_out_of_memory`) if there is no room for another thread.
        """
        if self._lock is not None:
            self._lock.share()
        try:
            self._aiosqlite._thread.start()
        except (RuntimeError, MemoryError) as error:
            if self._lock is not None:
                self._lock.let_go()
            raise StoreUnavailable("store_out_of_memory", f"cannot open {self._path!r}: {error}") from error
        self._is_open = True
        opened = self._queue(self._connect)
        try:
            await opened
        except (Exception, asyncio.CancelledError):
            self._end()
            raise

    def start(
        self, function: Callable[..., T], *args: Any, then: Callable[[T], None] | None = None
    ) -> asyncio.Future[T]:
        """Queue `function(connection, *args)` and return the future of its result.

        The function runs to its end whatever happens to the future; cancelling the future only drops the result.
        `then` is called with the result as soon as the loop has it, before the future is done.
        """
        return self._queue(lambda: function(self._aiosqlite._conn, *args), then)

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """As `start`, and wait for the result."""
        return await self.start(function, *args)

    async def close(self, *, timeout_s: float) -> bool:
        """Close the connection on its thread, under the lock, and end the thread; say whether that was done in time."""
        if not self._is_open:
            return True
        done, _ = await asyncio.wait({self._end()}, timeout=timeout_s)
        if done:
            self._aiosqlite._thread.join(_JOIN_TIMEOUT_S)  # it has nothing left to do but to end
        return bool(done)

    def _connect(self) -> None:
        self._aiosqlite._connection = self._connector()
        self._identity = Identity(self._path)

    def _disconnect(self) -> None:
        connection, self._aiosqlite._connection = self._aiosqlite._connection, None
        try:
            if connection is not None:
                self._close_under_lock(connection)
        finally:
            if self._lock is not None:
                self._lock.let_go()

    def _close_under_lock(self, connection: sqlite3.Connection) -> None:
        if self._lock is None:
            connection.close()
            return
        self._lock.acquire(even_if_closed=True)  # the last one to close makes a WAL checkpoint
        try:
            if self._identity is None or self._identity.is_unchanged():
                connection.close()
            else:
                _abandon(connection)
        finally:
            self._lock.release()

    def _queue(self, function: Callable[[], T], then: Callable[[T], None] | None = None) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            outcome: tuple[Any, BaseException | None]
            try:
                outcome = (function(), None)
            except BaseException as error:  # it belongs to whoever waits for the future
                outcome = (None, _settable(error))
            with suppress(RuntimeError):  # the loop was closed meanwhile; nobody is left to be told
                loop.call_soon_threadsafe(_deliver, future, outcome, then)

        self._aiosqlite._tx.put_nowait((None, work))
        return future

    def _end(self) -> asyncio.Future[None]:
        """Queue the end of connection and thread behind what is queued already; return the future of the first."""
        self._is_open = False
        self._aiosqlite._running = False
        closed = self._queue(self._disconnect)
        closed.add_done_callback(_look_at)  # an error while closing a failed connection tells nothing new
        self._aiosqlite._tx.put_nowait((None, lambda: aiosqlite.core._STOP_RUNNING_SENTINEL))
        return closed


def _abandon(connection: sqlite3.Connection) -> None:
    """Give up a connection whose files are not at their path any more, without a WAL checkpoint.

    Closing it as usual would move its write-ahead log into a database that may be somebody else's by now, over what
    others have committed there. Before Python 3.12 nothing can tell SQLite to leave that out, so the connection stays
    open to the end of the process, held by a reference that is never given back.
    """
    set_config = getattr(connection, "setconfig", None)
    if set_config is None:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
        return
    set_config(_NO_CHECKPOINT_ON_CLOSE, True)
    connection.close()


def _settable(error: BaseException) -> BaseException:
    """Return what a future takes for `error`: it refuses a StopIteration, and would pass for cancelled by the others.

    Whoever waits for the future would wait for ever, or end without an error.
    """
    if not isinstance(error, (StopIteration, asyncio.CancelledError, GeneratorExit)):
        return error
    settable = RuntimeError(f"{type(error).__name__} was raised in a transaction: {error}")
    settable.__cause__ = error
    return settable


def _look_at(future: asyncio.Future[None]) -> None:
    future.exception()  # nobody has the future but who waits for it by `asyncio.wait`, which cancels nothing


def _deliver(
    future: asyncio.Future[Any], outcome: tuple[Any, BaseException | None], then: Callable[[Any], None] | None
) -> None:
    if future.done():
        return
    result, error = outcome
    if error is not None:
        try:
            future.set_exception(error)
        except Exception as refused:  # no hop may leave its caller waiting
            future.set_exception(RuntimeError(f"{type(error).__name__} cannot be told: {refused}"))
        return
    try:
        if then is not None:
            then(result)
    finally:
        future.set_result(result)
