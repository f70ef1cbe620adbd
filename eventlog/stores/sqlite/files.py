"""The files of a log while it is open: the lock beside the database, the read connections, the writer's connection."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from eventlog.errors import StoreBusy, StoreUnavailable
from eventlog.stores.body_cipher import BodyCipher
from eventlog.stores.clock import Clock
from eventlog.stores.sqlite.connection import Durability, Settings, Worker
from eventlog.stores.sqlite.database import open_for_reading, open_for_writing, read_facts
from eventlog.stores.sqlite.failures import DRIVER_ERRORS, translate
from eventlog.stores.sqlite.file_lock import FileLock
from eventlog.stores.sqlite.identity import Identity, canonical_path
from eventlog.stores.sqlite.reader import ReadConnections
from eventlog.stores.sqlite.transaction import Transactions
from eventlog.stores.sqlite.views import Views
from eventlog.stores.sqlite.wal import WalCheckpoints
from eventlog.stores.sqlite.writer import WriteConnection, Writer, WriterSettings

__all__ = ["LogFiles", "file_size", "is_on_read_only_medium"]

T = TypeVar("T")

_CLOSE_TIMEOUT_S: Final = 1.2
_DRAIN_TIMEOUT_S: Final = 0.8
_LOOK_S: Final = 0.1


class LogFiles:
    """The files of the log at `path`. Raises StoreUnavailable(`store_not_found`) if there is none and none may be made.

    On a medium that cannot be written there is no `lock`, and nothing that it would have to keep apart.
    """

    def __init__(
        self,
        path: str,
        *,
        durability: Durability,
        timeouts: WriterSettings,
        is_read_only: bool,
        may_create: bool,
        clock: Clock,
        views: Views,
        cipher: BodyCipher | None,
    ) -> None:
        self.path: Final = canonical_path(path)
        self._timeouts: Final = timeouts
        self._clock: Final = clock
        self._views: Final = views
        self._cipher: Final = cipher
        self._settings: Final = Settings(
            self.path,
            durability=durability,
            busy_timeout_s=timeouts.busy_timeout_s,
            is_immutable=is_read_only and is_on_read_only_medium(self.path),
        )
        self.lock: FileLock | None = None
        if not self._settings.is_immutable:
            if not os.path.exists(self.path) and (is_read_only or not may_create):
                raise StoreUnavailable("store_not_found", f"there is no log at {path!r}", path=path)
            self.lock = FileLock(f"{self.path}.lock")
        self.reads: Final = ReadConnections(
            lambda: open_for_reading(self._settings, self.lock),
            self.lock,
            self.path,
            open_timeout_s=timeouts.busy_timeout_s + 1,
        )

    async def open_writer(self, *, may_create: bool) -> WriteConnection:
        """Open the connection that writes, within the busy time-out."""
        lock = self.lock
        assert lock is not None, "only a log on a read-only medium has no lock, and no writer"
        worker = Worker(lambda: open_for_writing(self._settings, lock, may_create=may_create), lock, self.path)
        await self.in_time(worker.open())
        identity = Identity(self.path)
        transactions = Transactions(lock, identity, self._clock, self._views or None, self._cipher)
        return WriteConnection(worker, transactions, WalCheckpoints(lock, identity))

    async def reopen_writer(self, store_id: bytes) -> WriteConnection:
        """Open the log again after a failure, and make sure that it is still this log."""
        connection = await self.open_writer(may_create=False)
        try:
            facts = await connection.worker.run(read_facts)
        except BaseException:
            await self.discard_writer(connection)
            raise
        if facts.store_id != store_id:
            await self.discard_writer(connection)
            raise StoreUnavailable("store_identity_changed", "another log stands here now", path=self.path)
        return connection

    async def discard_writer(self, connection: WriteConnection) -> None:
        """Close a connection that is used no more."""
        await connection.worker.close(timeout_s=_CLOSE_TIMEOUT_S)

    async def in_time(self, opening: Awaitable[T]) -> T:
        """Wait for a hop that needs the file lock. The thread may wait for ever, the caller does not.

        Time in which this log has the lock does not count: what is done under it, as by a view, takes what it takes.
        """
        try:
            async with asyncio.timeout(self._timeouts.busy_timeout_s + 1) as deadline:
                end = self._put_off(deadline)
                try:
                    return await opening
                finally:
                    end()
        except TimeoutError:
            raise StoreBusy("the write lock was not free in time", path=self.path) from None
        except DRIVER_ERRORS as error:
            raise translate(error, "cannot prepare the log") from error

    def _put_off(self, deadline: asyncio.Timeout) -> Callable[[], None]:
        """Put the deadline off as long as this log has the lock; return what ends that."""
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle
        looked_at_s = loop.time()

        def look() -> None:
            nonlocal timer, looked_at_s
            before_s, looked_at_s = looked_at_s, loop.time()
            when_s = deadline.when()
            if self.lock is not None and self.lock.is_held and when_s is not None and not deadline.expired():
                deadline.reschedule(when_s + looked_at_s - before_s)
            timer = loop.call_later(_LOOK_S, look)

        timer = loop.call_later(_LOOK_S, look)
        return lambda: timer.cancel()  # the one that `look` has set last

    async def drain(self, writer: Writer) -> None:
        """Let the writer finish what it took, in bounded time."""
        await writer.drain(_DRAIN_TIMEOUT_S)

    async def close(self, writer: Writer | None, connection: WriteConnection | None) -> None:
        """Finish what was taken; close readers, then the writer, then the lock file; all within `_CLOSE_TIMEOUT_S`.

        `connection` is that of a writer who was not begun. What waits for a lock that somebody else holds is left to
        its thread, which ends once it gets the lock.
        """
        end_s = asyncio.get_running_loop().time() + _CLOSE_TIMEOUT_S
        if writer is not None:
            await writer.drain(_DRAIN_TIMEOUT_S)
            connection = writer.connection
            if writer.poison is None:
                final = connection.worker.start(connection.wal.cut)
                await asyncio.wait({final}, timeout=_left_s(end_s))
        await self.reads.close(timeout_s=_left_s(end_s))
        if connection is not None:
            await connection.worker.close(timeout_s=_left_s(end_s))
        if self.lock is not None:
            self.lock.close()


def _left_s(end_s: float) -> float:
    return max(end_s - asyncio.get_running_loop().time(), 0.01)


def file_size(path: str) -> int | None:
    """Return the size of a file in bytes, None if there is none."""
    try:
        return os.stat(path).st_size
    except OSError:
        return None


def is_on_read_only_medium(path: str) -> bool:
    """Say whether the database cannot be written and has no write-ahead log that would have to be read with it."""
    directory = os.path.dirname(path) or "."
    return os.path.exists(path) and not os.access(directory, os.W_OK) and not file_size(f"{path}-wal")
