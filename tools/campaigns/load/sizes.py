"""How large memory and the write-ahead log were at the most, looked at all the time."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from pathlib import Path
from typing import Final

__all__ = ["Sizes"]

_EVERY_S: Final = 0.02


class Sizes:
    """Looks at both. An async context manager."""

    def __init__(self, path: Path) -> None:
        self._wal: Final = f"{path}-wal"
        self.wal_bytes = 0
        self._before: Final = largest_memory()

    async def __aenter__(self) -> Sizes:
        self._task = asyncio.create_task(self._look())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    @property
    def grown_bytes(self) -> int:
        """By how much the process has grown at the most."""
        return largest_memory() - self._before

    async def _look(self) -> None:
        while True:
            if os.path.exists(self._wal):
                self.wal_bytes = max(self.wal_bytes, os.stat(self._wal).st_size)
            await asyncio.sleep(_EVERY_S)


def largest_memory() -> int:
    """Return the largest resident size that this process has had."""
    found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found if sys.platform == "darwin" else found * 1024
