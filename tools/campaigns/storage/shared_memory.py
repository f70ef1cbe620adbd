"""Folders in memory, for campaigns that end processes and not machines: what the kernel has taken survives those."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

__all__ = ["a_folder", "make_folder"]

_SHARED_MEMORY: Final = Path("/dev/shm")


def make_folder(prefix: str) -> Path:
    """Make a folder where nothing waits for a disk; on a disk if there is no such place, or hardly any room in it."""
    is_there = _SHARED_MEMORY.is_dir() and os.access(_SHARED_MEMORY, os.W_OK) and _has_room(_SHARED_MEMORY)
    return Path(tempfile.mkdtemp(prefix=prefix, dir=_SHARED_MEMORY if is_there else None))


def _has_room(folder: Path) -> bool:
    seen = os.statvfs(folder)
    return seen.f_bavail * seen.f_frsize >= 1 << 28


@contextmanager
def a_folder(parent: Path) -> Iterator[Path]:
    """Make a folder of its own in `parent`, such as `Work.memory`, and remove it afterwards."""
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        yield Path(folder)
