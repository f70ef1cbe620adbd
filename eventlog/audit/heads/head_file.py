"""The file of heads that a signer, or a witness, keeps where the writer of the database cannot reach it.

Append-only, its lines as in `eventlog.audit.heads.head_lines`. What was written is on the disk before anybody is told
of it. Whoever reads or writes holds `flock` on the file, so that two signers with one key never sign two different
heads after one. A last line without its newline is what a crash has left, and so is one with a NUL byte, which no line
has: a power cut may keep the last sector of a line and lose one in front of it, which is zeros then. Nobody was given
its head, and the next line takes its place. Anything else that is no line, a file that has become shorter, and another
file under its name, are damage (`head_file_damaged`), and nothing is signed any more.

A file may hold many millions of heads, and only its end is read for signing: back to the newest head, which says what
the lines before it would (`eventlog.audit.heads.head_lines`), in windows that grow. Damage in front of what was read
stops nothing and is found by whoever reads all: `kept_heads`, `move_heads`, and who begins an incarnation.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from eventlog.audit.heads.head_lines import HeadLine, HeadMemory, KeptHead, LineDamaged, parse_lines, spell_line
from eventlog.audit.heads.new_file import flush_folder_of, write_all, write_new_file
from eventlog.errors import InvalidInput, Misuse, StoreUnavailable
from eventlog.signing.notes import parse_note
from eventlog.stores.telemetry import logger

__all__ = ["HeadFile", "HeldHeads", "kept_heads", "move_heads"]

_LOCK_TIMEOUT_S: Final = 10.0
_LOCK_PAUSE_S: Final = 0.005
_WINDOW_BYTES: Final = 1 << 15
_WINDOW_GROWTH: Final = 8
_PIECE_BYTES: Final = 1 << 20
_NUL: Final = b"\0"


class HeldHeads:
    """The file while it is locked: what it says, and a way to add to it."""

    def __init__(self, file: HeadFile, descriptor: int) -> None:
        self._file: Final = file
        self._descriptor: Final = descriptor

    @property
    def memory(self) -> HeadMemory:
        """What the lines say that were read so far: at least those from the newest head on."""
        return self._file.memory

    def last_of(self, origin: str) -> KeptHead | None:
        """Return the last head of this origin, however far back it is. Raises StoreUnavailable as `locked`."""
        self._file._read_back(self._descriptor, lambda memory: origin in memory.by_origin)
        return self.memory.by_origin.get(origin)

    def read_all(self) -> HeadMemory:
        """Return what all lines say. Raises StoreUnavailable as `locked`."""
        self._file._read_back(self._descriptor, lambda _: False)
        return self.memory

    def append(self, line: HeadLine) -> KeptHead | None:
        """Add a line; *durable* on return. Returns its head, if it has one.

        Raises StoreUnavailable(`signer_unavailable`) if it cannot be kept; then it was not.
        """
        return self._file._append(self._descriptor, line)


class HeadFile:
    """The file at `path`, made when it is held for the first time. Safe for several threads and several processes."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: Final = os.fspath(path)
        self.memory = HeadMemory()
        self.torn_bytes = 0
        """How many bytes a crash has left behind the last whole line, as of the last look."""
        self._threads: Final = threading.Lock()
        self._start: int | None = None  # where what was read begins; None before the first look, and after damage
        self._end = 0
        self._is_name_durable = False
        self._identity: tuple[int, int] | None = None

    @contextmanager
    def locked(self) -> Iterator[HeldHeads]:
        """Hold the file for writing. Raises StoreUnavailable: `signer_unavailable`, `head_file_damaged`."""
        with self._threads, self._opened(os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX) as descriptor:
            self._catch_up(descriptor)
            yield HeldHeads(self, descriptor)

    def look(self) -> HeadMemory:
        """Return what the file says by now; a file that is not there says nothing, and is not made. Raises as above."""
        with self._threads:
            if self._identity is None and not os.path.exists(self.path):
                return self.memory
            with self._opened(os.O_RDONLY, fcntl.LOCK_SH) as descriptor:
                self._catch_up(descriptor)
        return self.memory

    @contextmanager
    def _opened(self, flags: int, lock: int) -> Iterator[int]:
        if self._identity is not None:
            flags &= ~os.O_CREAT  # what was there once does not begin anew
        try:
            descriptor = os.open(self.path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)  # a pipe keeps nobody waiting
        except FileNotFoundError as error:
            if self._identity is not None:
                raise self.damaged("it is gone") from error
            raise self._unavailable(error) from error
        except (OSError, ValueError) as error:
            raise self._unavailable(error) from error
        try:
            _require_regular(descriptor)
            self._lock(descriptor, lock)
            yield descriptor
        except _NotRegular as error:
            raise self._unavailable(error) from None
        finally:
            os.close(descriptor)  # which frees the lock

    def _lock(self, descriptor: int, lock: int) -> None:
        deadline = time.monotonic() + _LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(descriptor, lock | fcntl.LOCK_NB)
                return
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    message = f"another process has held {self.path!r} for {_LOCK_TIMEOUT_S:g} s"
                    raise StoreUnavailable("signer_unavailable", message, path=self.path) from error
                time.sleep(_LOCK_PAUSE_S)
            except OSError as error:
                raise self._unavailable(error) from error

    def _catch_up(self, descriptor: int) -> None:
        """Read what others have added, and make that durable: they may have died before they did."""
        size = self._check_identity(descriptor)
        try:
            is_as_it_was = self._start is not None and size == self._end
            end = self._end if is_as_it_was else _end_of_lines(descriptor, size)
            if end > self._end:
                os.fsync(descriptor)
        except OSError as error:
            raise self._unavailable(error) from error
        if end < self._end:
            raise self.damaged(f"a line in front of byte {self._end} is none any more")
        self.torn_bytes = size - end
        if self.torn_bytes:
            logger.warning("head_file_torn", path=self.path, bytes=self.torn_bytes)
        if self._start is None:
            self._read_window(descriptor, end, end)
            self._read_back(descriptor, lambda memory: memory.newest is not None)
        else:
            self._take(descriptor, self.memory, self._end, end)

    def _read_back(self, descriptor: int, is_enough: Callable[[HeadMemory], bool]) -> None:
        """Read more of the file, from farther in front, until it is enough or there is no more."""
        length = max(_WINDOW_BYTES, (self._end - (self._start or 0)) * _WINDOW_GROWTH)
        while self._start and not is_enough(self.memory):
            self._read_window(descriptor, max(self._end - length, 0), self._end)
            length *= _WINDOW_GROWTH

    def _read_window(self, descriptor: int, start: int, end: int) -> None:
        """Read all lines that begin at `start` or behind it."""
        try:
            if start:
                start = _begin_of_line(descriptor, start, end)
        except OSError as error:
            raise self._unavailable(error) from error
        self.memory = HeadMemory()
        self._take(descriptor, self.memory, start, end)
        self._start = start

    def _take(self, descriptor: int, memory: HeadMemory, start: int, end: int) -> None:
        """Read the lines from `start` to `end`. After damage, what is asked for next is read again from the end."""
        try:
            for _ in _lines_from(descriptor, start, end, memory):
                pass
        except LineDamaged as error:
            self.memory, self._start = HeadMemory(), None
            raise self.damaged(str(error)) from None
        except OSError as error:
            self.memory, self._start = HeadMemory(), None
            raise self._unavailable(error) from error
        self._end = end

    def _check_identity(self, descriptor: int) -> int:
        """Return the size of the file, if it is the one that it was."""
        found = os.fstat(descriptor)
        identity = found.st_dev, found.st_ino
        if self._identity is not None and identity != self._identity:
            raise self.damaged("another file has taken its place")
        if found.st_size < self._end:
            raise self.damaged(f"it has become shorter: it had {self._end} bytes and has {found.st_size}")
        self._identity = identity
        return found.st_size

    def _append(self, descriptor: int, line: HeadLine) -> KeptHead | None:
        if self.memory.moved_to is not None:
            raise self.damaged(f"it takes no more lines, its heads go on in {self.memory.moved_to!r}")
        spelled = spell_line(line)
        try:
            _cut_off(descriptor, self._end)
            os.lseek(descriptor, self._end, os.SEEK_SET)
            write_all(descriptor, spelled)
            os.fsync(descriptor)
            if not self._is_name_durable:  # whoever made the file may not have come to flush its name
                flush_folder_of(self.path)
                self._is_name_durable = True
        except OSError as error:
            with suppress(OSError):  # it may be there or not; nobody is told of it, and the next one settles it
                os.ftruncate(descriptor, self._end)
            raise self._unavailable(error) from error
        self._end += len(spelled)
        return self.memory.take(line)

    def damaged(self, why: str) -> StoreUnavailable:
        """Return the error for a file that holds what its signer has not written."""
        return StoreUnavailable("head_file_damaged", f"the file of heads {self.path!r}: {why}", path=self.path)

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        why = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        message = f"the file of heads {self.path!r} cannot be used: {why}"
        return StoreUnavailable("signer_unavailable", message, path=self.path)


def kept_heads(path: str | os.PathLike[str]) -> tuple[list[KeptHead], int]:
    """Return all heads in a file, in their order, and how many bytes a crash has left behind them.

    For who compares them with a log: nothing is locked or changed, and no signature was verified. Raises
    StoreUnavailable: `signer_unavailable` if it cannot be read, `head_file_damaged`.
    """
    file = HeadFile(path)
    try:
        with open(os.open(file.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as stream:
            _require_regular(stream.fileno())
            size = os.fstat(stream.fileno()).st_size
            end = _end_of_lines(stream.fileno(), size)
            found = list(filter(None, _lines_from(stream.fileno(), 0, end, HeadMemory())))
        for kept in found:
            parse_note(kept.note)
    except (InvalidInput, LineDamaged) as error:
        raise file.damaged(str(error)) from None
    except (OSError, ValueError) as error:
        raise file._unavailable(error) from error
    return found, size - end


def move_heads(old: HeadFile, new_path: str, *, at_us: int) -> None:
    """Let the heads go on in a new file, with all that is in the old one, which says so and takes no more.

    May be repeated after a crash. Raises Misuse(`target_exists`) if there is another file, and StoreUnavailable.
    """
    new_path = os.path.abspath(new_path)
    with old.locked() as held:
        if held.memory.moved_to == new_path:
            return
        if held.memory.moved_to is not None:
            raise Misuse("target_exists", f"the heads of {old.path!r} have moved to {held.memory.moved_to!r}")
        held.read_all()  # damage does not move
        with open(old.path, "rb") as stream:
            data = stream.read(old._end)
        _copy(data, new_path, old.path)
        held.append(HeadLine(at_us=at_us, moved_to=new_path))


class _NotRegular(ValueError):
    """A directory, a pipe, a device: nothing that a signer has written."""


def _require_regular(descriptor: int) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise _NotRegular("it is no regular file")


def _copy(data: bytes, new_path: str, old_path: str) -> None:
    """Copy the lines of the old file, or complete a copy that was made before the old one took more of them.

    Any file that is not just the beginning of the old one may have heads of its own: Misuse(`target_exists`).
    """
    try:
        write_new_file(new_path, data, like=old_path)
    except Misuse:
        if not _is_begun(new_path, data):
            raise
        with HeadFile(new_path).locked(), open(new_path, "r+b") as stream:
            there = stream.read(len(data) + 1)
            if not data.startswith(there):
                raise
            stream.write(data[len(there) :])
            stream.flush()
            os.fsync(stream.fileno())


def _is_begun(path: str, data: bytes) -> bool:
    """Say whether a file holds the beginning of this, and nothing else."""
    with open(path, "rb") as stream:
        return data.startswith(stream.read(len(data) + 1) or b"\0")


def _lines_from(descriptor: int, start: int, end: int, memory: HeadMemory) -> Iterator[KeptHead | None]:
    """Let `memory` take the lines from `start` to `end`, a piece at a time; yield the head of each, if it has one.

    Raises LineDamaged, which says where; OSError.
    """
    place, rest = start, b""
    for at in range(start, end, _PIECE_BYTES):
        data = rest + _read(descriptor, at, min(at + _PIECE_BYTES, end))
        whole = data[: data.rfind(b"\n") + 1]
        rest = data[len(whole) :]
        try:
            for spelled, line in parse_lines(whole):
                yield memory.take(line)
                place += len(spelled)
        except LineDamaged as error:
            raise LineDamaged(f"the line at byte {place}: {error}") from None


def _cut_off(descriptor: int, end: int) -> None:
    """Remove what a crash has left of a line that nobody was told of, *durable* on return. Raises OSError.

    So what a power cut loses of the next line is zeros, and never a piece of this one.
    """
    if os.fstat(descriptor).st_size > end:
        os.ftruncate(descriptor, end)
        os.fsync(descriptor)


def _end_of_lines(descriptor: int, size: int) -> int:
    """Return where the last whole line of a file of this size ends. Raises OSError."""
    end = _behind_newline(descriptor, size)
    start = _behind_newline(descriptor, max(end - 1, 0))
    return start if _NUL in _read(descriptor, start, end) else end


def _behind_newline(descriptor: int, size: int) -> int:
    """Return the place behind the last newline in a file of this size, 0 if there is none. Raises OSError."""
    end = size
    while end:
        start = max(end - _WINDOW_BYTES, 0)
        found = _read(descriptor, start, end).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _begin_of_line(descriptor: int, offset: int, end: int) -> int:
    """Return where the first line begins that begins at `offset` or behind it, `end` if none does. Raises OSError."""
    at = offset - 1
    while at < end:
        found = _read(descriptor, at, min(at + _WINDOW_BYTES, end)).find(b"\n")
        if found >= 0:
            return at + found + 1
        at += _WINDOW_BYTES
    return end


def _read(descriptor: int, start: int, end: int) -> bytes:
    """Return the bytes from `start` to `end`, of the file. Raises OSError, also if there are fewer."""
    pieces = []
    while start < end:
        piece = os.pread(descriptor, end - start, start)
        if not piece:
            raise OSError(errno.EIO, "it became shorter while it was read")
        pieces.append(piece)
        start += len(piece)
    return b"".join(pieces)
