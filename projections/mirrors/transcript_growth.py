"""How a transcript grows: by what it lacks, read from the log. The only way in which a line is ever written."""

from __future__ import annotations

from contextlib import aclosing, suppress
from typing import Final

from eventlog.errors import MirrorDamaged, StoreUnavailable
from eventlog.log import EventReader
from projections.mirrors.folder import coded_os_errors, opened
from projections.mirrors.threads import on_thread
from projections.mirrors.transcript_files import End, Moved, TranscriptFiles
from projections.mirrors.transcript_lines import Line, line_of
from projections.mirrors.transcript_names import file_name

__all__ = ["BATCH_BYTES", "ahead", "bring_up"]

BATCH_BYTES: Final = 1 << 20
"""About how much is held in memory at once."""
_TRIES: Final = 100


async def bring_up(files: TranscriptFiles, log: EventReader, stream: str) -> int:
    """Write what the transcript of a stream lacks, *durable* on return, and return how many lines that were.

    The last line that is there is compared with the log. Raises MirrorDamaged if the log has something else in its
    place or nothing at all, StoreUnavailable(`mirror_unavailable`), and what reading the log raises.
    """
    name = file_name(stream)
    for _ in range(_TRIES):
        with suppress(Moved), coded_os_errors(f"write the transcript {files.path(name)}"):
            return await _extend(files, log, stream, name)
    raise StoreUnavailable("mirror_unavailable", f"the transcript {files.path(name)} never stands still")


async def _extend(files: TranscriptFiles, log: EventReader, stream: str, name: str) -> int:
    start = await on_thread(_end, files, name, stream)
    batch: list[Line] = []
    size, version = 0, start.version
    async with aclosing(log.read(stream, after=max(start.version - 1, 0))) as events:
        async for event in events:
            batch.append(line_of(event))
            size += len(batch[-1].text)
            if size >= BATCH_BYTES:
                version = (await on_thread(files.extend, name, stream, batch)).version
                batch, size = [batch[-1]._replace(text=b"")], 0
    if batch:
        version = (await on_thread(files.extend, name, stream, batch)).version
    elif start.line is not None:
        raise ahead(files, name, stream)
    return version - start.version


def _end(files: TranscriptFiles, name: str, stream: str) -> End:
    with opened(files.folder) as directory:
        return files.end(directory, name, stream)


def ahead(files: TranscriptFiles, name: str, stream: str, offset: int | None = None) -> MirrorDamaged:
    """Return the error that a transcript goes on where the log has ended."""
    path = files.path(name)
    how = "has more lines than the log has events of the stream"
    return MirrorDamaged("mirror_ahead", f"the transcript {path} {how}", path=path, stream=stream, offset=offset)
