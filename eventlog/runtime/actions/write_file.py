"""The action that creates a text file: all of it or nothing, never over something else, found again after a crash.

How a file comes to be:

    1  open the parent directory, creating and flushing what is missing; everything below goes through its descriptor
    2  look at the target: present and equal is `Recovered`, present and different is `Conflicted`, absent goes on
    3  write a temporary file beside it, `.<op_key[:32]>-<attempt>.eventlog-tmp`, and flush it
    4  `link` it to the target's name, which fails if that name exists, whoever made it   <- the effect
    5  flush the directory, then remove the temporary name

Until step 4 every error is `ActionFailed`; from then on every error is an `OSError`, which means: it may have happened.
The next attempt passes step 2 and so finds out. An error that keeps a *later* attempt from looking at the target is an
`OSError` too, because an earlier attempt may have got as far as step 4.

POSIX only; made for local file systems.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import fcntl
import hashlib
import os
import stat
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, NamedTuple, NoReturn

from eventlog.errors import ActionFailed
from eventlog.runtime.effects import Call, Conflicted, Executed, Promise, Recovered, Report
from eventlog.runtime.failpoints import EFFECT_INSIDE

__all__ = ["WriteFile"]


class WriteFile:
    """Create the file `call.output` with the text `call.args["content"]`, as UTF-8, with no newline translated.

    `Executed` means that content, name and every directory on the way are durable. `Recovered` means the same of a file
    that was there already with exactly this content; its inode, times and links stay as they are. An existing target
    that differs is reported and never touched, a symbolic link is never followed. Missing parent directories are
    created, and stay if the effect then fails.

    With `root`, the target is a relative path without `..`, and no directory below the root may be a symbolic link: the
    kernel confines the path (`openat2`), or else every component is opened without following. Without `root`, the path
    is taken as the system takes it.
    """

    promise: Final = Promise.CHECKABLE

    def __init__(self, *, name: str = "write_file", root: str | os.PathLike[str] | None = None) -> None:
        self.name: Final = name
        self._root: Final = None if root is None else os.fsencode(root)

    def check(self, call: Call) -> None:
        """Refuse arguments other than exactly `{"content": text}`, and a path that names no file or leaves the root."""
        _check_arguments(call)
        _check_path(call, confined=self._root is not None)

    async def execute(self, call: Call) -> Report:
        """Create the file, or find it there. If cancelled, wait until the work has ended, and only then raise.

        So whoever holds a lock around this call may release it when the call has ended: nothing goes on behind it.
        """
        self.check(call)
        return await _run_to_the_end(lambda: _perform(call, self._root))


async def _run_to_the_end(work: Callable[[], Report]) -> Report:
    # A plain future, not a task: `asyncio.run` cancels all tasks when it ends, and would let the thread run on unseen.
    future = asyncio.get_running_loop().run_in_executor(None, work)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
    if cancelled is not None:
        future.exception()  # Seen, so that asyncio does not complain; the next attempt finds out what happened.
        raise cancelled
    return future.result()


# ── what can be refused without looking at the disk ───────────────────────────────────────────────────────────────────


def _check_arguments(call: Call) -> None:
    args = call.args
    if not isinstance(args, dict) or args.keys() != {"content"} or not isinstance(args["content"], str):
        raise ActionFailed("invalid_arguments", f'{call.action} takes exactly {{"content": text}}')
    _check_text(args["content"], "content")


def _check_path(call: Call, *, confined: bool) -> None:
    path = call.output
    _check_text(path, "output")
    names = path.split("/")
    if "\0" in path:
        _refuse_path(call, "it holds a NUL character")
    if names[-1] in ("", ".", ".."):
        _refuse_path(call, "it does not end in the name of a file")
    if confined and (names[0] == "" or ".." in names):
        _refuse_path(call, "only a relative path without `..` is allowed below the root")


def _check_text(text: str, field: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ActionFailed("invalid_text", f"{field} holds a lone surrogate", field=field, index=error.start) from error


def _refuse_path(call: Call, why: str) -> NoReturn:
    raise ActionFailed("path_not_allowed", f"the target {call.output!r} is not allowed: {why}", path=call.output)


# ── the effect ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class _Effect:
    """One attempt to create `name` in the open `directory`."""

    call: Call
    directory: int
    name: bytes
    content: bytes
    sha256: str

    def temp(self, attempt: int) -> bytes:
        """The temporary name of an attempt. Only the owner of the run's intent executes, so nobody else uses it."""
        return f".{self.call.op_key[:32]}-{attempt}.eventlog-tmp".encode()

    def facts(self) -> dict[str, str | int]:
        return {"sha256": self.sha256, "size_bytes": len(self.content)}


def _perform(call: Call, root: bytes | None) -> Report:
    folder, name = os.path.split(call.output.encode())
    content = call.args["content"].encode()
    with _before_looking(call):
        directory = _open_parent(call, folder, root)
    try:
        sha256 = hashlib.sha256(content).hexdigest()
        effect = _Effect(call=call, directory=directory, name=name, content=content, sha256=sha256)
        # The look saves a write when there is something already; the link below decides if somebody is quicker.
        return _report_existing(effect) or _create(effect)
    finally:
        os.close(directory)


def _create(effect: _Effect) -> Report:
    call = effect.call
    try:
        with _nothing_done(call):
            _write_temp(effect)
        call.reach(EFFECT_INSIDE)
        if _publish(effect):
            _flush(effect.directory)
            _remove_temp(effect, call.attempt)
            _sweep(effect)
            return Executed(result={"path": call.output, **effect.facts()})
    finally:
        with suppress(OSError):  # On the way out of an error, which counts more than a temp that stays.
            _remove_temp(effect, call.attempt)
    return _report_existing(effect) or _vanished(call)


def _vanished(call: Call) -> NoReturn:
    raise ActionFailed(
        "action_failed", f"{call.output!r} was not written: another file was there and has gone", path=call.output
    )


def _write_temp(effect: _Effect) -> None:
    fd = _open_temp(effect)
    try:
        rest = memoryview(effect.content)
        while rest:
            rest = rest[os.write(fd, rest) :]
        _flush(fd)
    finally:
        os.close(fd)


def _open_temp(effect: _Effect) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    temp = effect.temp(effect.call.attempt)
    try:
        return os.open(temp, flags, 0o666, dir_fd=effect.directory)
    except FileExistsError:  # This very attempt was cut off before; what it left may be half written.
        os.unlink(temp, dir_fd=effect.directory)
        return os.open(temp, flags, 0o666, dir_fd=effect.directory)


def _remove_temp(effect: _Effect, attempt: int) -> None:
    with suppress(FileNotFoundError):  # A rename has moved it, or it was never made.
        os.unlink(effect.temp(attempt), dir_fd=effect.directory)


def _sweep(effect: _Effect) -> None:
    """Remove what crashed attempts of this very op_key left. A name that cannot be removed harms nobody."""
    for attempt in range(1, effect.call.attempt + 1):
        with suppress(OSError):
            _remove_temp(effect, attempt)


# ── creating the name: the one step that is the effect ────────────────────────────────────────────────────────────────

_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})
_NO_EXCLUSIVE_RENAME: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP})

_REFUSALS: Final = frozenset(
    {
        errno.EACCES,
        errno.EBUSY,
        errno.EDQUOT,
        errno.EINVAL,
        errno.ELOOP,
        errno.EMLINK,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOMEM,
        errno.ENOSPC,
        errno.ENOSYS,
        errno.ENOTDIR,
        errno.EOPNOTSUPP,
        errno.EPERM,
        errno.EROFS,
        errno.EXDEV,
    }
)
"""Answers that say the name was not made. Others, EIO or EINTR for one, leave it open."""


def _publish(effect: _Effect) -> bool:
    """Give the temp the target's name, and return True; return False if that name exists. Never replaces anything."""
    try:
        return _link(effect) or _rename(effect)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno in _REFUSALS:
            raise _failed(effect.call, error) from error
        raise


def _link(effect: _Effect) -> bool:
    """Return False where the file system has no links."""
    temp = effect.temp(effect.call.attempt)
    here = effect.directory
    try:
        os.link(temp, effect.name, src_dir_fd=here, dst_dir_fd=here, follow_symlinks=False)
    except OSError as error:
        if error.errno in _NO_LINKS:
            return False
        raise
    return True


def _rename(effect: _Effect) -> bool:
    try:
        _rename_exclusively(effect.directory, effect.temp(effect.call.attempt), effect.name)
    except OSError as error:
        if error.errno in _NO_EXCLUSIVE_RENAME:
            message = f"{effect.call.output!r} was not written: its file system cannot create a name exclusively"
            raise ActionFailed("atomic_create_unsupported", message, path=effect.call.output) from error
        raise
    return True


def _rename_exclusively(directory: int, old: bytes, new: bytes) -> None:
    """Rename within a directory, or raise FileExistsError. ENOSYS where the C library has no such call."""
    symbol, exclusively = ("renameatx_np", 4) if sys.platform == "darwin" else ("renameat2", 1)
    rename = getattr(_libc(), symbol, None)
    if rename is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    rename.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    if rename(directory, old, directory, new, exclusively) != 0:
        _raise_errno()


# ── the target that is there already ──────────────────────────────────────────────────────────────────────────────────

_CHUNK_BYTES: Final = 1 << 20
_SHOWN_BYTES: Final = 4096

_KINDS: Final = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a fifo",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class _Seen(NamedTuple):
    """The content of a file. `sha256` is None if it grew while it was read; `text` is None if it is not to be shown."""

    size_bytes: int
    sha256: str | None
    text: str | None


def _report_existing(effect: _Effect) -> Report | None:
    """Report what the target holds, durably; return None if nothing is there. How many links it has does not matter."""
    with _before_looking(effect.call):
        fd = _open_target(effect)
    if fd is None:
        return None
    try:
        with _before_looking(effect.call):
            seen = _read(fd)
        if (seen.size_bytes, seen.sha256) != (len(effect.content), effect.sha256):
            return _conflict(effect, seen)
        # Whoever wrote it may not have flushed it, or may have crashed before: only now is it known to be durable.
        _flush(fd)
        _flush(effect.directory)
        _sweep(effect)
        return Recovered(evidence=effect.facts())
    finally:
        os.close(fd)


def _open_target(effect: _Effect) -> int | None:
    """Open a regular file and nothing else: opening a fifo can wait for ever, opening a device can do something."""
    here = effect.directory
    try:
        _require_regular(effect.call, os.stat(effect.name, dir_fd=here, follow_symlinks=False))
        fd = os.open(effect.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=here)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # It was swapped for a link or a socket between the two calls.
            raise _not_regular(effect.call, "no regular file") from error
        raise
    try:
        _require_regular(effect.call, os.fstat(fd))
    except BaseException:
        os.close(fd)
        raise
    return fd


def _require_regular(call: Call, status: os.stat_result) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if kind != stat.S_IFREG:
        raise _not_regular(call, _KINDS.get(kind, "no regular file"))


def _not_regular(call: Call, kind: str) -> ActionFailed:
    return ActionFailed("target_not_regular", f"the target {call.output!r} is {kind}", path=call.output, kind=kind)


def _read(fd: int) -> _Seen:
    """Hash the file in constant memory. Stop at the size it had at first, so that a growing file cannot hold us."""
    size = os.fstat(fd).st_size
    digest, head, count = hashlib.sha256(), b"", 0
    while chunk := os.read(fd, min(_CHUNK_BYTES, size - count + 1)):
        digest.update(chunk)
        count += len(chunk)
        if count > size:
            return _Seen(count, None, None)
        head = head + chunk if count <= _SHOWN_BYTES else b""
    return _Seen(count, digest.hexdigest(), _shown(head) if count <= _SHOWN_BYTES else None)


def _conflict(effect: _Effect, seen: _Seen) -> Conflicted:
    return Conflicted(
        reason="idempotency_key_reused_with_different_content",
        expected_content_hash=effect.sha256,
        existing_content_hash=seen.sha256,
        expected_content=_shown(effect.content),
        existing_content=seen.text,
    )


def _shown(content: bytes) -> str | None:
    if len(content) > _SHOWN_BYTES or b"\0" in content:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


# ── what an error says ────────────────────────────────────────────────────────────────────────────────────────────────

_PROOFS_OF_ABSENCE: Final = frozenset({errno.ENAMETOOLONG, errno.ENOTDIR})
"""Answers to a look-up which say that the path leads to no file. ENOENT is none: a root may just not be mounted."""


@contextmanager
def _nothing_done(call: Call) -> Iterator[None]:
    """Turn an OSError into `ActionFailed`: the target was seen to be absent and has not been linked."""
    try:
        yield
    except OSError as error:
        raise _failed(call, error) from error


@contextmanager
def _before_looking(call: Call) -> Iterator[None]:
    """Like `_nothing_done`, but a later attempt that cannot see the target cannot say what an earlier one did."""
    try:
        yield
    except OSError as error:
        if call.attempt > 1 and error.errno not in _PROOFS_OF_ABSENCE:
            raise
        raise _failed(call, error) from error


def _failed(call: Call, error: OSError) -> ActionFailed:
    name = errno.errorcode.get(error.errno or 0, "unknown")
    message = f"{call.output!r} was not written: {error.strerror} ({name})"
    return ActionFailed("action_failed", message, path=call.output, errno=name, strerror=error.strerror)


# ── the parent directory ──────────────────────────────────────────────────────────────────────────────────────────────

# O_PATH asks for no permission to read: ancestors often allow only passing. Where it is missing they must be readable.
_PASS: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

# Of an ancestor that we may not read, or whose file system cannot flush or change directories.
_NOT_FLUSHABLE: Final = frozenset({errno.EACCES, errno.EPERM, errno.EINVAL, errno.EROFS})

_OpenDirectory = Callable[[bytes], int]


def _open_parent(call: Call, folder: bytes, root: bytes | None) -> int:
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
        with _nothing_done(call), suppress(FileExistsError):  # No directory, so no target either.
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
        _flush(fd)
    finally:
        os.close(fd)


def _flush(fd: int) -> None:
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
    fd: int = _libc().syscall(ctypes.c_long(_OPENAT2), *arguments)
    if fd < 0:
        _raise_errno()
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


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _raise_errno() -> NoReturn:
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number))
