"""Artifacts: values too large for an event, each kept beside the log under the SHA-256 of its bytes.

Beside the database `log.db` lie

    log.db.artifacts/                    0700
        9f/                              the first two digits, 0700
            9f86d081…                    64 hex digits: the SHA-256 of what is inside; 0600
            .5b1e….tmp                   being written; its writer holds a `flock` on it

A file gets its name only when its content is durable, by a link, which never replaces anything; the names on the way
are made durable before `put` returns. So a crash leaves a whole artifact, or a temporary file that nobody names and
that the next `put` into that directory removes, unless its writer still lives. No event that names an artifact is
appended before the `put` has returned; an artifact that no event names harms nobody.

Artifacts are never changed and never removed here. What is found under a name is checked against that name whenever it
is read, and no symbolic link is followed below the database's directory.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

import msgspec

from eventlog.errors import InvalidInput, LogCorrupt, StoreUnavailable, code_of_os_error
from eventlog.events import RUN_EVENTS, RUN_PREFIX
from eventlog.log import ArtifactName, RecordedEvent
from eventlog.scanning import Scanner
from eventlog.stores.entropy import random_bytes
from eventlog.stores.refused_secrets import refuse_secret
from eventlog.stores.telemetry import logger

__all__ = [
    "ARTIFACT_EVENTS",
    "ArtifactFolder",
    "FileArtifacts",
    "MemoryArtifacts",
    "artifact_in",
    "artifacts_beside",
    "check_digest",
    "coded_os_errors",
    "flush",
    "name_artifact",
]

ARTIFACT_EVENTS: Final = frozenset(name for name, event in RUN_EVENTS.items() if "artifact" in event.__struct_fields__)
"""The types of events that may name an artifact, each in its field `artifact`."""

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_FIELD: Final = b'"artifact"'
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_TEMP_SUFFIX: Final = ".tmp"

_NOT_A_FILE: Final = frozenset({errno.ELOOP, errno.ENOTDIR, errno.ENXIO})
"""What opening says of a symbolic link, of something below what is no directory, and of a socket."""
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})

_CODES: Final = {
    errno.EROFS: "store_readonly",
    errno.EACCES: "store_cannot_open",
    errno.EPERM: "store_cannot_open",
    errno.ELOOP: "store_cannot_open",
    errno.ENOTDIR: "store_cannot_open",
    errno.EEXIST: "store_cannot_open",  # of a folder: there is something else by its name
    errno.EISDIR: "store_cannot_open",
    errno.ENAMETOOLONG: "store_cannot_open",
}


class _Naming(msgspec.Struct):
    artifact: str | None = None


_NAMING: Final = msgspec.json.Decoder(_Naming)


def artifacts_beside(database: str) -> str:
    """Return the folder that holds the artifacts of the log in this file."""
    return f"{database}.artifacts"


def artifact_in(stream: str, type: str, body: bytes) -> str | None:
    """Return the artifact that an event names, or None. Costs next to nothing for one that names none."""
    if type not in ARTIFACT_EVENTS or _FIELD not in body or not stream.startswith(RUN_PREFIX):
        return None
    try:
        return _NAMING.decode(body).artifact
    except (msgspec.DecodeError, RecursionError):  # no event of ours, which is for others to say
        return None


def name_artifact(event: RecordedEvent) -> ArtifactName | None:
    """Return the artifact that a recorded event names, with the event's place, or None."""
    digest = artifact_in(event.stream, event.type, event.body)
    return ArtifactName(digest=digest, position=event.position, stream=event.stream) if digest is not None else None


def check_digest(digest: str) -> str:
    """Return `digest` if it is one. Raises InvalidInput(`invalid_argument`)."""
    if type(digest) is not str or _DIGEST.fullmatch(digest) is None:
        raise InvalidInput("invalid_argument", f"an artifact is named by 64 hex digits, not by {digest!r:.80}")
    return digest


class MemoryArtifacts:
    """The artifacts of a log in memory."""

    def __init__(self, check: Callable[[], None], scanner: Scanner | None = None) -> None:
        self._check: Final = check
        self._scanner: Final = scanner
        self._kept: Final[dict[str, bytes]] = {}

    async def put(self, data: bytes) -> str:
        """Keep `data` and return its digest."""
        self._check()
        refuse_secret(self._scanner, _check_data(data))
        digest = hashlib.sha256(data).hexdigest()
        self._kept[digest] = data
        return digest

    async def get(self, digest: str) -> bytes:
        """Return what was kept under `digest`. Raises LogCorrupt(`artifact_missing`)."""
        self._check()
        data = self._kept.get(check_digest(digest))
        if data is None:
            raise _missing(digest)
        return data


class FileArtifacts:
    """The artifacts of a log in a file: an `ArtifactFolder`, each call of it on a thread.

    A call that is cancelled goes on unseen to its end, which harms nobody: an artifact is there as a whole or not.
    """

    def __init__(
        self,
        check: Callable[[], None],
        folder: Callable[[], ArtifactFolder],
        *,
        is_read_only: bool,
        scanner: Scanner | None = None,
    ) -> None:
        """`check` raises unless the log is open; `folder` is asked only then, for its path is known from opening on."""
        self._check: Final = check
        self._scanner: Final = scanner
        self._folder: Final = folder
        self._is_read_only: Final = is_read_only

    async def put(self, data: bytes) -> str:
        """Keep `data`, *durable* on return, and return its digest. See `ArtifactFolder.put`."""
        self._check()
        if self._is_read_only:
            raise StoreUnavailable("store_readonly", "the log was opened for reading only")
        return await asyncio.to_thread(self._put, self._folder(), _check_data(data))

    def _put(self, folder: ArtifactFolder, data: bytes) -> str:
        refuse_secret(self._scanner, data)
        return folder.put(data)

    async def get(self, digest: str) -> bytes:
        """Return what is kept under `digest`, verified. See `ArtifactFolder.get`."""
        self._check()
        return await asyncio.to_thread(self._folder().get, check_digest(digest))


class ArtifactFolder:
    """A folder of artifacts. Its calls block; several threads and processes may use it at once."""

    def __init__(self, path: str) -> None:
        self._path: Final = path
        self._durable: Final[set[tuple[int, int]]] = set()
        """Directories, by device and inode, whose names are known to be durable."""
        self._swept: Final[set[str]] = set()

    def put(self, data: bytes) -> str:
        """Keep `data` and return its digest. Content and every name on the way to it are durable on return.

        Raises StoreUnavailable (`store_full`, `store_io_error`, …): then nothing passes for the artifact that is not
        it. Raises LogCorrupt(`artifact_damaged`) if something else has its name; that is left as it is.
        """
        digest = hashlib.sha256(data).hexdigest()
        with coded_os_errors(f"cannot store the artifact {digest}"):
            directory = self._make_directory(digest[:2])
            try:
                self._sweep(directory, digest[:2])
                if not _is_there(directory, digest, data):
                    _create(directory, digest, data)
                flush(directory)  # of a name that was there, too: its writer may have crashed before it did this
            finally:
                os.close(directory)
        return digest

    def get(self, digest: str) -> bytes:
        """Return the bytes of an artifact.

        Raises LogCorrupt: `artifact_missing` if it is not there, `artifact_damaged` if it is not what its name says.
        """
        with coded_os_errors(f"cannot read the artifact {digest}"):
            try:
                data = self._read(check_digest(digest))
            except FileNotFoundError:
                raise _missing(digest) from None
            except OSError as error:
                if error.errno in _NOT_A_FILE:
                    raise _damaged(digest, f"is no regular file in a directory of its own: {error.strerror}") from error
                raise
        if hashlib.sha256(data).hexdigest() != digest:
            raise _damaged(digest, "is not what its name says")
        return data

    def _read(self, digest: str) -> bytes:
        folder = os.open(self._path, _DIRECTORY | os.O_NOFOLLOW)
        try:
            directory = os.open(digest[:2], _DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
        finally:
            os.close(folder)
        try:
            return _read_file(directory, digest, is_flushed=False)
        finally:
            os.close(directory)

    def _make_directory(self, name: str) -> int:
        """Open a directory of the folder; it, the folder and their names are there and durable."""
        parent, base = os.path.split(self._path)
        above = os.open(parent or ".", _DIRECTORY)
        try:
            folder = self._open_or_make(above, base)
        finally:
            os.close(above)
        try:
            return self._open_or_make(folder, name)
        finally:
            os.close(folder)

    def _open_or_make(self, above: int, name: str) -> int:
        is_new = True
        try:
            os.mkdir(name, 0o700, dir_fd=above)
        except FileExistsError:
            is_new = False
        here = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
        try:
            status = os.fstat(here)
            identity = status.st_dev, status.st_ino
            if is_new or identity not in self._durable:  # whoever else made it may have yet to flush its name
                flush(above)
                self._durable.add(identity)
        except BaseException:
            os.close(here)
            raise
        return here

    def _sweep(self, directory: int, name: str) -> None:
        """Remove what writers left that were killed, once for each directory. What cannot be removed harms nobody."""
        if name in self._swept:
            return
        self._swept.add(name)
        for found in os.listdir(directory):
            if found.startswith(".") and found.endswith(_TEMP_SUFFIX):
                with suppress(OSError):
                    _remove_if_left(directory, found)


def _remove_if_left(directory: int, temp: str) -> None:
    """Remove a temporary file unless its writer lives, who holds a lock on it."""
    fd = os.open(temp, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(temp, dir_fd=directory)
        logger.debug("artifact_remnant_removed", name=temp)
    finally:
        os.close(fd)


def _is_there(directory: int, digest: str, data: bytes) -> bool:
    """Say whether the artifact is there as a whole, and durable; raises LogCorrupt if something else has its name."""
    try:
        found = _read_file(directory, digest, is_flushed=True)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno in _NOT_A_FILE:
            raise _damaged(digest, f"is no regular file: {error.strerror}") from error
        raise
    if found != data:
        raise _damaged(digest, "is not what its name says")
    return True


def _read_file(directory: int, digest: str, *, is_flushed: bool) -> bytes:
    """Return the content of a regular file, and flush it, if that is asked for: a copy may not have been."""
    fd = os.open(digest, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise _damaged(digest, "is no regular file")
        with open(fd, "rb", closefd=False) as file:
            data = file.read()
        if is_flushed:
            flush(fd)
    finally:
        os.close(fd)
    return data


def _create(directory: int, digest: str, data: bytes) -> None:
    temp, fd = _open_temp(directory)
    try:
        _write(fd, data)
        flush(fd)
        if not _publish(directory, temp, digest) and not _is_there(directory, digest, data):
            raise FileNotFoundError(errno.ENOENT, "another file had its name and has gone")
    finally:
        with suppress(OSError):  # on the way out of an error, which counts more, or moved away by a rename
            os.unlink(temp, dir_fd=directory)
        os.close(fd)


def _open_temp(directory: int) -> tuple[str, int]:
    """Make a temporary file and lock it. One that was taken for a remnant before it was locked is given up."""
    while True:
        temp = f".{random_bytes(16).hex()}{_TEMP_SUFFIX}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(temp, flags, 0o600, dir_fd=directory)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_nlink:
                return temp, fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _write(fd: int, data: bytes) -> None:
    rest, at = memoryview(data), 0
    while rest:
        written = os.pwrite(fd, rest, at)
        rest, at = rest[written:], at + written


def _publish(directory: int, temp: str, digest: str) -> bool:
    """Give the temporary file the artifact's name; return False if that exists."""
    try:
        os.link(temp, digest, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # Without links: whoever comes between the look and this has the same content under this name.
        os.rename(temp, digest, src_dir_fd=directory, dst_dir_fd=directory)
    return True


def flush(fd: int) -> None:
    """Make a file's content, or a directory's names, durable."""
    if sys.platform == "darwin":
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # there fsync leaves the data in the disk's cache
    else:
        os.fsync(fd)


@contextmanager
def coded_os_errors(doing: str) -> Iterator[None]:
    """Raise an error of the operating system as StoreUnavailable with its code."""
    try:
        yield
    except OSError as error:
        code = code_of_os_error(error, _CODES.get(error.errno or 0, "store_io_error"))
        raise StoreUnavailable(code, f"{doing}: {error.strerror or error}") from error


def _check_data(data: bytes) -> bytes:
    if type(data) is not bytes:
        raise InvalidInput("invalid_argument", f"an artifact is bytes, not this {type(data).__name__}")
    return data


def _missing(digest: str) -> LogCorrupt:
    return LogCorrupt("artifact_missing", f"the artifact {digest} is missing", artifact=digest)


def _damaged(digest: str, how: str) -> LogCorrupt:
    return LogCorrupt("artifact_damaged", f"the artifact {digest} {how}", artifact=digest)
