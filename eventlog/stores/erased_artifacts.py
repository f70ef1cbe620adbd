"""Erasing artifacts: overwritten, unlinked, and gone from their folder when that is durable.

Which artifacts an erasure is about stands in the bodies that it erases. So that a crash behind that does not forget
them, they are noted first, beside the artifacts:

    log.db.artifacts/erasing-<16 hex digits>    0600; JSON, a list of digests

A note is removed once nothing that it names is left; the next erasure goes on with those that it finds. What a killed
writer has left (`.….tmp`) is overwritten as well: it may be the same value.

What an overwritten file leaves on a flash disk, in a snapshot of the file system or in a copy is out of reach.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Final

import msgspec

from eventlog.stores.artifacts import check_digest, coded_os_errors, flush
from eventlog.stores.entropy import random_bytes

__all__ = ["ErasedArtifacts"]

_NOTE: Final = re.compile(r"erasing-[0-9a-f]{16}")
_DIRECTORY_NAME: Final = re.compile(r"[0-9a-f]{2}")
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PIECE: Final = bytes(1024 * 1024)
_DOING: Final = "cannot erase artifacts"

_decode: Final = msgspec.json.Decoder(list[str]).decode


class ErasedArtifacts:
    """Erases artifacts of the folder at `path`. Its calls block. Raises StoreUnavailable where the disk refuses."""

    def __init__(self, path: str) -> None:
        self._path: Final = path

    def note(self, digests: Collection[str]) -> None:
        """Note that these are going to be erased; *durable* on return. Nothing is noted where there is no folder."""
        if not digests or not os.path.isdir(self._path):
            return
        with coded_os_errors(_DOING), _opened(self._path, _DIRECTORY) as folder:
            name = f"erasing-{random_bytes(8).hex()}"
            draft = f".{name}.tmp"
            with _opened(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, folder) as file:
                os.write(file, msgspec.json.encode(sorted(digests)))
                flush(file)
            os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
            flush(folder)

    def noted(self) -> frozenset[str]:
        """Return what any erasure has noted that has not come to its end, this one among them."""
        return frozenset(digest for _, digests in self._notes() for digest in digests)

    def erase(self, digests: Collection[str]) -> list[str]:
        """Overwrite and remove these artifacts; return those that were there. *Durable* on return."""
        with coded_os_errors(_DOING):
            return [digest for digest in sorted(digests) if self._erase(check_digest(digest))]

    def erase_remnants(self) -> int:
        """Overwrite and remove what killed writers have left, and return how many that were."""
        count = 0
        with coded_os_errors(_DOING):
            for name in self._names():
                if _DIRECTORY_NAME.fullmatch(name):
                    with _opened(os.path.join(self._path, name), _DIRECTORY) as directory:
                        left = [found for found in os.listdir(directory) if found.startswith(".")]
                        count += sum(_erase_if_left(directory, found) for found in left)
        return count

    def forget_notes(self) -> None:
        """Remove the notes of which nothing is left to be erased."""
        with coded_os_errors(_DOING):
            for name, digests in self._notes():
                if not any(map(self._is_there, digests)):
                    with suppress(FileNotFoundError):  # another erasure was first
                        os.unlink(os.path.join(self._path, name))

    def _notes(self) -> Iterator[tuple[str, list[str]]]:
        for name in self._names():
            if _NOTE.fullmatch(name):
                try:
                    with open(os.path.join(self._path, name), "rb") as file:
                        yield name, [check_digest(digest) for digest in _decode(file.read())]
                except FileNotFoundError:
                    continue

    def _names(self) -> list[str]:
        try:
            return sorted(os.listdir(self._path))
        except FileNotFoundError:
            return []

    def _is_there(self, digest: str) -> bool:
        return os.path.lexists(os.path.join(self._path, digest[:2], digest))

    def _erase(self, digest: str) -> bool:
        try:
            with _opened(os.path.join(self._path, digest[:2]), _DIRECTORY) as directory:
                _overwrite(directory, digest)
                os.unlink(digest, dir_fd=directory)
                flush(directory)
        except FileNotFoundError:
            return False
        return True


def _erase_if_left(directory: int, name: str) -> bool:
    """Erase a temporary file unless its writer lives, who holds a lock on it."""
    try:
        _overwrite(directory, name, lambda fd: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB))
        os.unlink(name, dir_fd=directory)
    except (BlockingIOError, FileNotFoundError):
        return False
    flush(directory)
    return True


def _overwrite(directory: int, name: str, claim: Callable[[int], None] = lambda _: None) -> None:
    with _opened(name, _FILE, directory) as file:
        claim(file)
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            return
        at = 0
        while at < status.st_size:
            at += os.pwrite(file, _PIECE[: status.st_size - at], at)
        flush(file)


@contextmanager
def _opened(path: str, flags: int, directory: int | None = None) -> Iterator[int]:
    descriptor = os.open(path, flags, 0o600, dir_fd=directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
