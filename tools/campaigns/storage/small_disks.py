"""Small file systems, mounted where only this process and its children see them, and gone when those have ended."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

__all__ = ["Filler", "lacks_ext4", "lacks_mounts", "on_ext4", "on_tmpfs", "with_own_mounts"]

_NEW_MOUNTS: Final = 0x00020000
_MIB: Final = 1024 * 1024
_SIZE_MIB: Final = 16
_TIMEOUT_S: Final = 60


def lacks_mounts() -> str | None:
    """Return what is missing here for mounts of one's own, if something is."""
    if sys.platform != "linux" or not shutil.which("mount") or not shutil.which("unshare"):
        return "mount and unshare, as Linux has them"
    probe = ["unshare", "--mount", "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/tmp"]
    done = subprocess.run(probe, capture_output=True, timeout=_TIMEOUT_S, check=False)
    return None if done.returncode == 0 else "the permission to mount a file system"


def lacks_ext4() -> str | None:
    """Return what is missing here for a file system in a file, if something is."""
    if not shutil.which("mkfs.ext4"):
        return "mkfs.ext4"
    return None if os.path.exists("/dev/loop-control") else "loop devices"


def with_own_mounts() -> None:
    """From here on what this process mounts is seen by it and its children alone, and is gone with them."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_MOUNTS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    _call("mount", "--make-rprivate", "/")


@contextmanager
def on_tmpfs(folder: Path) -> Iterator[Path]:
    """Give a folder on a file system of its own in memory."""
    with _mounted(folder / "tmpfs", "-t", "tmpfs", "-o", f"size={_SIZE_MIB}m", "tmpfs") as place:
        yield place


@contextmanager
def on_ext4(folder: Path, block_bytes: int = 4096) -> Iterator[Path]:
    """Give a folder on an ext4 of its own, which is in a file. Raises CalledProcessError where that cannot be.

    Its blocks are as large as a page, as they are on any disk of today. Where they are smaller and the disk is full,
    a program can be ended by SIGBUS: SQLite gives its `-shm` room by writing the last byte of each 4 KiB, which takes
    one block, and then uses all of them through mapped memory.
    """
    image = folder / f"ext4-{block_bytes}.image"
    with open(image, "wb") as file:
        file.truncate(_SIZE_MIB * _MIB)
    _call("mkfs.ext4", "-q", "-b", str(block_bytes), "-m", "0", "-O", "^has_journal", str(image))
    with _mounted(folder / f"ext4-{block_bytes}", "-o", "loop", str(image)) as place:
        yield place


@contextmanager
def _mounted(place: Path, *how: str) -> Iterator[Path]:
    place.mkdir()
    _call("mount", *how, str(place))
    try:
        yield place
    finally:
        _call("umount", "-l", str(place))


def _call(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT_S)


class Filler:
    """A file that takes all the room of a disk but a little."""

    def __init__(self, place: Path) -> None:
        self._path: Final = place / "filler"

    def leave(self, room_bytes: int) -> None:
        """Make the file, so that about this much is left."""
        disk = os.statvfs(self._path.parent)
        size = disk.f_bavail * disk.f_frsize - room_bytes
        with open(self._path, "wb") as file, suppress(OSError):
            if size > 0:
                os.posix_fallocate(file.fileno(), 0, size)

    def remove(self) -> None:
        """Free the room again. May be called twice."""
        self._path.unlink(missing_ok=True)
