"""Read connections, apart from the writer: one page is one hop, and nothing is held between two pages."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Any, Final, TypeVar

from eventlog.errors import StoreBusy, StoreUnavailable
from eventlog.stores.sqlite.connection import Worker
from eventlog.stores.sqlite.failures import DRIVER_ERRORS, translate
from eventlog.stores.sqlite.file_lock import FileLock
from eventlog.stores.sqlite.rollback import behind_nothing

__all__ = ["ReadConnections"]

T = TypeVar("T")


class ReadConnections:
    """A few connections that are opened when they are first needed and used by whoever comes."""

    SIZE: Final = 2

    def __init__(
        self, connector: Callable[[], sqlite3.Connection], lock: FileLock | None, path: str, *, open_timeout_s: float
    ) -> None:
        self._path: Final = path
        self._connector: Final = connector
        self._lock: Final = lock
        self._open_timeout_s: Final = open_timeout_s
        self._free: list[Worker] = []
        self._all: list[Worker] = []
        self._slots: Final = asyncio.Semaphore(self.SIZE)
        self._is_closed = False

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Run `function(connection, *args)` on a read connection. A driver's error comes out as a coded one."""
        async with self._slots:
            self._check_open()
            worker = self._free.pop() if self._free else await self._open()
            self._check_open()
            hop: asyncio.Future[T] = worker.start(behind_nothing, function, *args)
            try:
                return await hop
            except DRIVER_ERRORS as error:
                raise translate(error, "cannot read") from error
            finally:
                self._free.append(worker)

    async def close(self, *, timeout_s: float) -> None:
        """Close all connections, those in use as soon as their page is done."""
        self._is_closed = True
        workers, self._all, self._free = self._all, [], []
        await asyncio.gather(*(worker.close(timeout_s=timeout_s) for worker in workers))

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreUnavailable("engine_closed", "the log was closed before it was read")

    async def _open(self) -> Worker:
        """Open one more connection: under the file lock, for which its thread may wait for ever, and no caller."""
        worker = Worker(self._connector, self._lock, self._path)
        self._all.append(worker)
        try:
            async with asyncio.timeout(self._open_timeout_s):
                await worker.open()
        except BaseException as error:
            if worker in self._all:
                self._all.remove(worker)
            if isinstance(error, TimeoutError):
                raise StoreBusy("the lock was not free in time for opening a read connection") from None
            if isinstance(error, DRIVER_ERRORS):
                raise translate(error, "cannot open a read connection") from error
            raise
        return worker
