"""Opening the directory of a target: missing ones are made, all names on the way are durable, and a root confines it.

Without a root a path is taken as the system takes it. Below a root no component may be a symbolic link: the kernel
confines the path (`openat2`), or else every component is opened without following.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from eventlog.errors import ActionFailed
from eventlog.runtime.actions.definite import libc, nothing_done, raise_errno
from eventlog.runtime.effects import Call

__all__ = ["flush", "open_parent"]

# O_PATH asks for no permission to read: ancestors often allow only passing. Where it is missing they must be readable.
_PASS: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

# Of an ancestor that we may not read, or whose file system cannot flush or change directories.
_NOT_FLUSHABLE: Final = frozenset({errno.EACCES, errno.EPERM, errno.EINVAL, errno.EROFS})

_OpenDirectory = Callable[[bytes], int]


def open_parent(call: Call, folder: bytes, root: bytes | None) -> int:
    """Open the target's directory, creating what is missing; all names on the way are durable when this returns."""
    if len(folder) >= os.pathconf("/", "PC_PATH_MAX"):  # Before a long chain of directories is created for nothing.
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    names = [name for name in folder.split(b"/") if name not in (b"", b".")]
    if root is None:
        start = b"/" if folder.startswith(b"/") else b"."
        return _descend(call, [start, *names], lambda path: os.open(path, _PASS))
    root_fd = os.open(root, _PASS)
    try:
        return _descend(call, [b".", *names], lambda path: _open_beneath(call, root_fd, path))
    finally:
        os.close(root_fd)


def _descend(call: Call, names: list[bytes], open_directory: _OpenDirectory) -> int:
    here = open_directory(names[0])
    try:
        for depth in range(1, len(names)):
            below = _open_or_make(call, here, os.path.join(*names[: depth + 1]), open_directory)
            os.close(here)
            here = below
        return os.open(b".", _READ, dir_fd=here)
    finally:
        os.close(here)


def _open_or_make(call: Call, above: int, path: bytes, open_directory: _OpenDirectory) -> int:
    """Open `path`, a directory in `above`, making it if need be.

    `above` is flushed in both cases: what is there may have been made a moment ago, by an attempt that crashed or by a
    process that has yet to flush it. If it was not made here, it may be one that we are not allowed to flush.
    """
    try:
        below = open_directory(path)
    except FileNotFoundError:
        with nothing_done(call), suppress(FileExistsError):  # No directory, so no target either.
            os.mkdir(os.path.basename(path), dir_fd=above)
        _flush_by_name(above)
        return open_directory(path)
    try:
        _flush_by_name(above)
    except OSError as error:
        if error.errno not in _NOT_FLUSHABLE:
            os.close(below)
            raise
    return below


def _flush_by_name(directory: int) -> None:
    """Flush a directory that is open to be passed only."""
    fd = os.open(b".", _READ, dir_fd=directory)
    try:
        flush(fd)
    finally:
        os.close(fd)


def flush(fd: int) -> None:
    """Make a file's content, or a directory's names, durable. A failure is final: the system forgets what it lost."""
    if sys.platform == "darwin":
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # There fsync leaves the data in the disk's cache.
    else:
        os.fsync(fd)


# ── confinement ───────────────────────────────────────────────────────────────────────────────────────────────────────

_OPENAT2: Final = 437
_RESOLVE_NO_SYMLINKS: Final = 0x04
_RESOLVE_BENEATH: Final = 0x08
# Older kernels; sandboxes that do not know the call; a signal, after which the walk's calls try again by themselves.
_ASK_OTHERWISE: Final = frozenset({errno.ENOSYS, errno.EPERM, errno.EINTR})
_HAS_OPENAT2: Final = sys.platform == "linux" and os.uname().machine in ("x86_64", "aarch64")


def _open_beneath(call: Call, root: int, path: bytes) -> int:
    """Open a directory below `root` without following any link, or refuse the target."""
    try:
        return _open_confined(root, path)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EXDEV):
            message = f"the target {call.output!r} is not allowed: a symbolic link is on its way below the root"
            raise ActionFailed("path_not_allowed", message, path=call.output) from error
        raise


def _open_confined(root: int, path: bytes) -> int:
    try:
        return _openat2(root, path)
    except OSError as error:
        if error.errno not in _ASK_OTHERWISE:
            raise
    return _walk(root, path)


def _openat2(root: int, path: bytes) -> int:
    """Open a directory with `openat2(2)`; `struct open_how` is flags, mode and resolve, 64 bits each."""
    if not _HAS_OPENAT2:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    how = struct.pack("QQQ", _PASS, 0, _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS)
    arguments = (ctypes.c_long(root), ctypes.c_char_p(path), ctypes.c_char_p(how), ctypes.c_size_t(len(how)))
    fd: int = libc().syscall(ctypes.c_long(_OPENAT2), *arguments)
    if fd < 0:
        raise_errno()
    return fd


def _walk(root: int, path: bytes) -> int:
    here = os.dup(root)
    try:
        for name in path.split(b"/"):
            below = _open_unlinked(here, name)
            os.close(here)
            here = below
        return os.dup(here)
    finally:
        os.close(here)


def _open_unlinked(above: int, name: bytes) -> int:
    try:
        return os.open(name, _PASS | os.O_NOFOLLOW, dir_fd=above)
    except NotADirectoryError:  # With O_DIRECTORY the system says this of a link, too.
        if stat.S_ISLNK(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
        raise
