"""The folder of a mirror: made, locked and flushed, with the errors of the operating system as errors of the engine.

Beside the transcripts lie

    mirror.json                          which log this is a mirror of, and how far it was compared with it
    run%3arun-1.jsonl.4711-0.prepared    an append that has begun (`projections.mirrors.evidence`)
    run%3arun-1.jsonl.4711-1.tmp         a transcript that is being built again
    run%3arun-1.jsonl.1.replaced         what stood there before it was built again

A file with an owner is locked (`flock`) by it as long as it lives, so that what a dead process has left can be told
from what a living one works on. Everything here blocks.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from eventlog.errors import StoreUnavailable

__all__ = [
    "coded_os_errors",
    "create_owned",
    "flush",
    "locked",
    "make_folder",
    "open_regular",
    "opened",
    "owned_by_nobody",
    "replace_file",
    "write_whole",
]

LOCK_TIMEOUT_S: Final = 10.0
_LOCK_PAUSE_S: Final = 0.002
_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_names: Final = itertools.count()


@contextmanager
def coded_os_errors(doing: str) -> Iterator[None]:
    """Raise an error of the operating system as StoreUnavailable(`mirror_unavailable`)."""
    try:
        yield
    except OSError as error:
        message = f"cannot {doing}: {error.strerror or error}"
        raise StoreUnavailable("mirror_unavailable", message, errno=error.errno) from error


@contextmanager
def opened(path: str) -> Iterator[int]:
    """Open a directory for as long as something is done in it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def make_folder(path: str) -> None:
    """Make the folder and what is missing above it, every name durable."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return
    except FileNotFoundError:
        make_folder(os.path.dirname(path))
        os.mkdir(path, 0o700)
    with opened(os.path.dirname(path)) as above:
        flush(above)


def flush(descriptor: int) -> None:
    """Make a file's content, or a directory's names, durable."""
    if sys.platform == "darwin":
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)  # there fsync leaves the data in the disk's cache
    else:
        os.fsync(descriptor)


def write_whole(descriptor: int, data: bytes, at: int) -> None:
    """Write all of `data` at an offset."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, at)
        rest, at = rest[written:], at + written


def open_regular(directory: int, name: str, flags: int) -> int:
    """Open a regular file of a directory, and nothing that only looks like one. Raises OSError."""
    descriptor = os.open(name, flags | _FLAGS, 0o600, dir_fd=directory)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"{name} is no regular file")
    return descriptor


@contextmanager
def locked(directory: int, name: str) -> Iterator[int]:
    """Open a file, made if it is not there, and hold its lock; the file has this name as long as the lock is held.

    Raises TimeoutError if another process does not let go of it.
    """
    give_up_at_s = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        descriptor = open_regular(directory, name, os.O_RDWR | os.O_CREAT)
        try:
            _lock(descriptor, give_up_at_s)
            if _is_at(descriptor, directory, name):  # else it was replaced while we waited
                yield descriptor
                return
        finally:
            os.close(descriptor)


def _lock(descriptor: int, give_up_at_s: float) -> None:
    """Take the lock by asking again and again: a process that stands still must not hold this one up for ever."""
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > give_up_at_s:
                raise TimeoutError(errno.ETIMEDOUT, "another process holds its lock") from None
        time.sleep(_LOCK_PAUSE_S)


def _is_at(descriptor: int, directory: int, name: str) -> bool:
    try:
        there = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), there)


def create_owned(directory: int, name: Callable[[str], str]) -> tuple[str, int]:
    """Make a file that is ours as long as it is open; `name` makes its name from a number that nobody else uses."""
    while True:
        own = name(f"{os.getpid()}-{next(_names)}")
        with suppress(FileExistsError):  # a process with our number, dead or in another container
            descriptor = open_regular(directory, own, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if os.fstat(descriptor).st_nlink:  # else somebody took it for a remnant before it was locked
                    return own, descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)


@contextmanager
def owned_by_nobody(directory: int, name: str) -> Iterator[int | None]:
    """Own the file that a dead process has left, and give its descriptor; None if its owner lives, or it is gone."""
    descriptor = None
    try:
        with suppress(FileNotFoundError, BlockingIOError):
            opening = open_regular(directory, name, os.O_RDWR)
            try:
                fcntl.flock(opening, fcntl.LOCK_EX | fcntl.LOCK_NB)
                descriptor = opening
            finally:
                if descriptor is None:
                    os.close(opening)
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def replace_file(directory: int, name: str, data: bytes) -> None:
    """Give a file this content, durable, all of it or what it had before."""
    temp, descriptor = create_owned(directory, lambda number: f"{name}.{number}.tmp")
    try:
        write_whole(descriptor, data, 0)
        flush(descriptor)
        os.rename(temp, name, src_dir_fd=directory, dst_dir_fd=directory)
        flush(directory)
    except BaseException:
        with suppress(OSError):
            os.unlink(temp, dir_fd=directory)
        raise
    finally:
        os.close(descriptor)
