"""The transcripts of a folder as files: where each ends, more lines behind that, another file in its place.

A transcript is its lines, one behind the other; what stands behind the last newline is a line that was torn and does
not count. Lines are added under the file's lock, and only behind a last line that is the one the caller knows: two that
bring the same transcript up write each line once. Everything here blocks, and holds a lock only within one call.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from eventlog.errors import MirrorDamaged
from projections.mirrors.folder import flush, locked, open_regular, opened, write_whole
from projections.mirrors.transcript_lines import Line, read_line

__all__ = ["NOTHING", "End", "Moved", "TranscriptFiles"]

_BLOCK_BYTES: Final = 1 << 16
_MAX_KNOWN: Final = 4096
_logger: Final = logging.getLogger("eventlog.mirrors")


class End(NamedTuple):
    """How many bytes the whole lines of a transcript take, and the last of them."""

    size: int
    line: Line | None

    @property
    def version(self) -> int:
        return 0 if self.line is None else self.line.version


NOTHING: Final = End(0, None)


class Moved(Exception):
    """The transcript does not end where the caller's lines begin; look at it again."""


_Stamp = tuple[int, int, int, int]


class TranscriptFiles:
    """The transcripts in one folder. Threads and processes may use it at once."""

    def __init__(self, folder: str) -> None:
        self.folder: Final = folder
        self._known: Final[dict[str, tuple[_Stamp, End]]] = {}
        """Where transcripts end that this process has flushed, and what their files looked like then."""
        self._doubtful: Final[dict[str, int]] = {}
        """Behind which byte of a transcript a write or a flush has failed: that may be gone, whatever a read shows."""

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def end(self, directory: int, name: str, stream: str) -> End:
        """Return where a transcript that can be written ends. Raises OSError, MirrorDamaged if its end is no line."""
        try:
            descriptor = open_regular(directory, name, os.O_RDWR)
        except FileNotFoundError:
            return NOTHING
        try:
            return self._end(descriptor, name, stream)
        finally:
            os.close(descriptor)

    def extend(self, name: str, stream: str, lines: Sequence[Line]) -> End:
        """Put those of the lines that are missing behind the transcript, *durable* on return, and say where it ends.

        `lines` are of one stream, without a gap. A line that was torn is cut off first. Raises Moved if the file ends
        in front of them, MirrorDamaged if it ends in another line, OSError; then nothing more than these lines is
        there, and what is there is not taken for durable.
        """
        with opened(self.folder) as directory, locked(directory, name) as descriptor:
            if name in self._doubtful:
                os.ftruncate(descriptor, min(self._doubtful[name], os.fstat(descriptor).st_size))
            end = self._end(descriptor, name, stream)
            text = self._missing(name, end, lines)
            if not text and self._is_known(name, descriptor):
                return end
            try:
                _cut(descriptor, end.size, name)
                write_whole(descriptor, text, end.size)
                flush(descriptor)
                if not end.size:
                    flush(directory)
            except BaseException:
                self._doubtful[name] = min(end.size, self._doubtful.get(name, end.size))
                with suppress(OSError):
                    os.ftruncate(descriptor, end.size)
                raise
            self._doubtful.pop(name, None)
            if text:
                end = End(end.size + len(text), lines[-1]._replace(text=b""))
            self._know(name, descriptor, end)
        return end

    def _missing(self, name: str, end: End, lines: Sequence[Line]) -> bytes:
        """Return the text of the lines behind `end`; what is there already has to be the same."""
        first = lines[0].version
        if end.version < first - 1:
            raise Moved
        if end.line is not None and first <= end.version <= lines[-1].version:
            known = lines[end.version - first]
            if known.event != end.line.event:
                raise self.damaged(name, known.stream, "its last line is of another event than the log has there")
        return b"".join(line.text for line in lines[max(end.version + 1 - first, 0) :])

    def lines(self, name: str, stream: str, offset: int) -> tuple[list[Line], list[int]]:
        """Return some of the whole lines from a byte on, and where each begins; none at the end.

        Raises MirrorDamaged at the first that is not as it was written, OSError.
        """
        with opened(self.folder) as directory:
            descriptor = open_regular(directory, name, os.O_RDONLY)
            try:
                texts = _whole_lines(descriptor, offset)
            finally:
                os.close(descriptor)
        found: list[Line] = []
        places: list[int] = []
        for text in texts:
            found.append(self._checked(text, name, stream, offset))
            places.append(offset)
            offset += len(text) + 1
        return found, [*places, offset]

    def size(self, name: str) -> int:
        """Return how many bytes a transcript has, torn ones too."""
        return os.stat(self.path(name)).st_size

    def first_stream(self, name: str) -> str | None:
        """Return the stream that the first line of a transcript names; None if it has no whole line."""
        with opened(self.folder) as directory:
            descriptor = open_regular(directory, name, os.O_RDONLY)
            try:
                texts = _whole_lines(descriptor, 0)
            finally:
                os.close(descriptor)
        line = read_line(texts[0]) if texts else None
        return None if line is None else line.stream

    def cut(self, name: str, size: int) -> None:
        """Shorten a transcript to so many bytes."""
        with opened(self.folder) as directory, locked(directory, name) as descriptor:
            _cut(descriptor, size, name)
            flush(descriptor)

    def replace(self, temp: str | None, name: str) -> str | None:
        """Put the file `temp` in the place of a transcript, or nothing, and return what the old one is called now."""
        with opened(self.folder) as directory:
            if not _is_there(directory, name):
                if temp is not None:
                    os.rename(temp, name, src_dir_fd=directory, dst_dir_fd=directory)
                flush(directory)
                return None
            with locked(directory, name):
                aside = _set_aside(directory, name)
                if temp is not None:
                    os.rename(temp, name, src_dir_fd=directory, dst_dir_fd=directory)
                else:
                    os.unlink(name, dir_fd=directory)
                flush(directory)
        self._doubtful.pop(name, None)
        return aside

    def damaged(self, name: str, stream: str | None, how: str, offset: int | None = None) -> MirrorDamaged:
        path = self.path(name)
        return MirrorDamaged("mirror_damaged", f"the transcript {path} {how}", path=path, stream=stream, offset=offset)

    # ── where a file ends ────────────────────────────────────────────────────────────────────────────────────────────

    def _end(self, descriptor: int, name: str, stream: str) -> End:
        known = self._known.get(name)
        if known is not None and known[0] == _stamp(descriptor):
            return known[1]
        text, size = _last_line(descriptor)
        return NOTHING if text is None else End(size, self._checked(text, name, stream, size - len(text) - 1))

    def _checked(self, text: bytes, name: str, stream: str, offset: int) -> Line:
        line = read_line(text)
        if line is None:
            raise self.damaged(name, stream, f"has no line at byte {offset} as it was written", offset)
        if line.stream != stream:
            raise self.damaged(name, stream, f"is of {line.stream!r:.200} at byte {offset}, not {stream!r}", offset)
        return line

    def _is_known(self, name: str, descriptor: int) -> bool:
        known = self._known.get(name)
        return known is not None and known[0] == _stamp(descriptor)

    def _know(self, name: str, descriptor: int, end: End) -> None:
        self._known.pop(name, None)
        while len(self._known) >= _MAX_KNOWN:
            with suppress(KeyError, RuntimeError, StopIteration):  # another thread was quicker
                self._known.pop(next(iter(self._known)))
        self._known[name] = _stamp(descriptor), end


def _stamp(descriptor: int) -> _Stamp:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _last_line(descriptor: int) -> tuple[bytes | None, int]:
    """Return the last whole line, without its newline, and the byte behind that; None if there is none."""
    start, tail, block = os.fstat(descriptor).st_size, b"", _BLOCK_BYTES
    while start:
        size = min(block, start)
        start, block = start - size, block * 2
        tail = os.pread(descriptor, size, start) + tail
        last = tail.rfind(b"\n")
        before = tail.rfind(b"\n", 0, max(last, 0))
        if last >= 0 and (before >= 0 or not start):
            return tail[before + 1 : last], start + last + 1
    return None, 0


def _whole_lines(descriptor: int, offset: int) -> list[bytes]:
    """Return some whole lines from a byte on, without their newlines, or none at the end of the file."""
    size = _BLOCK_BYTES * 16
    while True:
        data = os.pread(descriptor, size, offset)
        last = data.rfind(b"\n")
        if last >= 0:
            return data[:last].split(b"\n")
        if len(data) < size:
            return []
        size *= 2


def _cut(descriptor: int, size: int, name: str) -> None:
    """Shorten a file to so many bytes, if it is longer, and say so."""
    torn = os.fstat(descriptor).st_size - size
    if torn > 0:
        os.ftruncate(descriptor, size)
        _logger.warning("transcript_cut file=%r bytes=%d", name, torn)


def _is_there(directory: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _set_aside(directory: int, name: str) -> str:
    """Give a file a second name that says that it was replaced, and return it."""
    number = 1
    while True:
        aside = f"{name}.{number}.replaced"
        try:
            os.link(name, aside, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
        except FileExistsError:
            number += 1
        else:
            return aside
