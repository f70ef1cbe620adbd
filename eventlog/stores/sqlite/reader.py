"""Read connections, apart from the writer: one page is one hop, and nothing is held between two pages."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Any, Final, TypeVar

from eventlog.stores.sqlite.connection import Worker
from eventlog.stores.sqlite.failures import translate
from eventlog.stores.sqlite.file_lock import FileLock

__all__ = ["ReadConnections"]

T = TypeVar("T")


class ReadConnections:
    """A few connections that are opened when they are first needed and used by whoever comes."""

    SIZE: Final = 2

    def __init__(self, connector: Callable[[], sqlite3.Connection], lock: FileLock | None) -> None:
        self._connector: Final = connector
        self._lock: Final = lock
        self._free: list[Worker] = []
        self._all: list[Worker] = []
        self._slots: Final = asyncio.Semaphore(self.SIZE)

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Run `function(connection, *args)` on a read connection. A driver's error comes out as a coded one."""
        async with self._slots:
            worker = self._free.pop() if self._free else await self._open()
            hop = worker.start(function, *args)
            try:
                return await hop
            except sqlite3.Error as error:
                raise translate(error, "cannot read") from error
            finally:
                self._free.append(worker)

    async def close(self, *, timeout_s: float) -> None:
        """Close all connections, those in use as soon as their page is done."""
        workers, self._all, self._free = self._all, [], []
        lock = self._lock
        if lock is not None:
            await asyncio.gather(*(worker.close(lock, timeout_s=timeout_s) for worker in workers))

    async def _open(self) -> Worker:
        worker = Worker(self._connector)
        try:
            await worker.open()
        except sqlite3.Error as error:
            raise translate(error, "cannot open a read connection") from error
        self._all.append(worker)
        return worker
