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

import errno
import hashlib
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple, NoReturn

from msgspec.structs import replace

from eventlog.errors import ActionFailed
from eventlog.runtime.actions.definite import before_looking, failed, nothing_done
from eventlog.runtime.actions.directories import flush, open_parent
from eventlog.runtime.actions.log_files import belongs_to_log
from eventlog.runtime.actions.threads import run_to_the_end
from eventlog.runtime.effects import Call, Conflicted, Executed, Promise, Recovered, Report
from eventlog.runtime.failpoints import EFFECT_INSIDE
from eventlog.stores.exclusive_rename import NO_EXCLUSIVE_RENAME, rename_exclusively

__all__ = ["WriteFile"]


class WriteFile:
    """Create the file `call.output` with the text `call.args["content"]`, as UTF-8, with no newline translated.

    `Executed` means that content, name and every directory on the way are durable. `Recovered` means the same of a file
    that was there already with exactly this content; its inode, times and links stay as they are. An existing target
    that differs is reported and never touched, a symbolic link is never followed. Missing parent directories are
    created, and stay if the effect then fails.

    With `root`, the target is a relative path without `..`, and no directory below the root may be a symbolic link: the
    kernel confines the path (`openat2`), or else every component is opened without following. Without `root`, the path
    is taken as the system takes it, from the folder in which the run was proposed; a relative one is refused if that
    folder is not known, because it would be another file wherever the process happens to be.

    Never a file of the log itself. A conflict reports hashes and, only with `shows_content`, the text of both files up
    to 4 KiB: what is in the log stays there.
    """

    promise: Final = Promise.CHECKABLE
    is_fenced: Final = True

    def __init__(
        self,
        *,
        name: str = "write_file",
        root: str | os.PathLike[str] | None = None,
        shows_content: bool = False,
    ) -> None:
        self.name: Final = name
        # Absolute from the start: the same root wherever the process goes, or the next one is started.
        self._root: Final = None if root is None else os.path.abspath(os.fsencode(root))
        self._shows_content: Final = shows_content

    @property
    def definition(self) -> dict[str, str | None]:
        """The folder that it may write below."""
        return {"root": None if self._root is None else os.fsdecode(self._root).encode(errors="replace").decode()}

    def check(self, call: Call) -> None:
        """Refuse arguments other than exactly `{"content": text}`, and a path that is no file, or not certain which.

        That is one that leaves the root, or without root a relative one of a run without an absolute folder.
        """
        _check_arguments(call)
        _check_path(call, confined=self._root is not None)

    async def execute(self, call: Call) -> Report:
        """Create the file, or find it there. If cancelled, wait until the work has ended, and only then raise.

        So whoever holds a lock around this call may release it when the call has ended: nothing goes on behind it.
        """
        self.check(call)
        report = await run_to_the_end(lambda: _perform(call, self._root))
        if isinstance(report, Conflicted) and not self._shows_content:
            return replace(report, expected_content=None, existing_content=None)
        return report


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
    if not (confined or os.path.isabs(path)):
        _check_folder(call)


def _check_folder(call: Call) -> None:
    folder = call.folder
    if folder is None:
        _refuse_path(call, "it is relative, and the run has no folder")
    _check_text(folder, "folder")
    if "\0" in folder or not os.path.isabs(folder):
        _refuse_path(call, f"it is relative to {folder!r}, which is no absolute path")


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

    def result(self) -> dict[str, str | int]:
        return {"path": self.call.output, **self.facts()}


def _perform(call: Call, root: bytes | None) -> Report:
    folder, name = os.path.split(_path(call, root))
    content = call.args["content"].encode()
    with before_looking(call):
        directory = open_parent(call, folder, root)
    try:
        if call.place is not None and belongs_to_log(call.place, directory, name):
            _refuse_path(call, "it belongs to the log")
        sha256 = hashlib.sha256(content).hexdigest()
        effect = _Effect(call=call, directory=directory, name=name, content=content, sha256=sha256)
        # The look saves a write when there is something already; the link below decides if somebody is quicker.
        return _report_existing(effect) or _create(effect)
    finally:
        os.close(directory)


def _path(call: Call, root: bytes | None) -> bytes:
    path = call.output.encode()
    if root is None and call.folder is not None:
        return os.path.join(call.folder.encode(), path)  # which leaves an absolute path as it is
    return path


def _create(effect: _Effect) -> Report:
    call = effect.call
    try:
        with nothing_done(call):
            _write_temp(effect)
        call.reach(EFFECT_INSIDE)
        if _publish(effect):
            flush(effect.directory)
            _remove_temp(effect, call.attempt)
            _sweep(effect)
            return Executed(result=effect.result())
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
        flush(fd)
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
            raise failed(effect.call, error) from error
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
        rename_exclusively(effect.directory, effect.temp(effect.call.attempt), effect.name)
    except OSError as error:
        if error.errno in NO_EXCLUSIVE_RENAME:
            message = f"{effect.call.output!r} was not written: its file system cannot create a name exclusively"
            raise ActionFailed("atomic_create_unsupported", message, path=effect.call.output) from error
        raise
    return True


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
    with before_looking(effect.call):
        fd = _open_target(effect)
    if fd is None:
        return None
    try:
        with before_looking(effect.call):
            seen = _read(fd)
        if (seen.size_bytes, seen.sha256) != (len(effect.content), effect.sha256):
            return _conflict(effect, seen)
        # Whoever wrote it may not have flushed it, or may have crashed before: only now is it known to be durable.
        flush(fd)
        flush(effect.directory)
        _sweep(effect)
        return Recovered(evidence=effect.facts(), result=effect.result())
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
