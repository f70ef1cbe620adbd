"""Comparing all transcripts with the log, and what is done about it.

Looked at are every transcript in the folder, line by line; every stream that a dead process was appending to, by the
evidence it has left; and every stream to which anything was appended behind the position up to which the folder was
compared the last time, also by programs that know nothing of a mirror. If there are fewer transcripts now than there
were then, every stream of the log is looked at. What is missing is appended. A line that is not as it was written, or
not of the event that the log has in its place, or behind the log's end, is refused and left as it is, unless `force` is
given: then the transcript is built again, and what stood there is kept under another name.

One exception: what stands behind the length that evidence names was never acknowledged. A disk may have left anything
there when the power went, so it is cut off and written again.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Container, Iterable, Mapping
from contextlib import ExitStack, aclosing, suppress
from typing import Final, Literal

import msgspec

from eventlog.errors import EventLogError, InvalidInput, LogCorrupt, MirrorDamaged
from eventlog.log import EventReader, Head, RunLog
from projections.mirrors.evidence import PREPARED, read_evidence
from projections.mirrors.folder import (
    coded_os_errors,
    create_owned,
    flush,
    make_folder,
    opened,
    owned_by_nobody,
    replace_file,
    write_whole,
)
from projections.mirrors.threads import on_thread
from projections.mirrors.transcript_files import TranscriptFiles
from projections.mirrors.transcript_growth import BATCH_BYTES, ahead, bring_up
from projections.mirrors.transcript_header import HEADER, Header, compared_up_to, read_header
from projections.mirrors.transcript_lines import line_of
from projections.mirrors.transcript_names import SUFFIX, file_name, is_cut_name, stream_of

__all__ = ["Repaired", "rebuild", "repair"]

_TEMP: Final = ".tmp"
_OLD: Final = 0
"""Where a stream begins that had events before those that were looked at."""
_AT_ONCE: Final = 16
"""How many transcripts are compared at once: each waits for the disk most of the time."""
_logger: Final = logging.getLogger("eventlog.mirrors")


class Repaired(msgspec.Struct, frozen=True, kw_only=True):
    """What was done for a transcript: it was `behind` by so many `lines`, or was `rebuilt` with so many.

    `replaced` is the path of what stood there before. One that is `unreadable` is behind still: the log, or what it
    holds of this stream, cannot be read (`problem`).
    """

    stream: str
    path: str
    was: Literal["behind", "rebuilt", "unreadable"]
    lines: int = 0
    replaced: str | None = None
    problem: EventLogError | None = None


class _Found(msgspec.Struct, frozen=True):
    """What is in the folder: the header, transcripts by stream, and by stream how long it was when an append began.

    `remnants` belong to dead processes; `nameless` are transcripts that do not say of which stream they are.
    """

    header: Header | None
    transcripts: Mapping[str, str]
    begun: Mapping[str, int]
    remnants: list[str]
    nameless: list[str]


# ── the whole folder ─────────────────────────────────────────────────────────────────────────────────────────────────


async def repair(files: TranscriptFiles, log: RunLog, prefix: str, *, force: bool) -> list[Repaired]:
    """Compare everything with the log, and bring up what is behind; return what was done.

    Raises MirrorDamaged for the first transcript that contradicts the log once all others are brought up. Raises
    StoreUnavailable(`mirror_unavailable`, …).
    """
    done: list[Repaired] = []
    with ExitStack() as owned, coded_os_errors(f"read the transcripts in {files.folder}"):
        found = await on_thread(_survey, files, prefix, owned)
        damage: list[MirrorDamaged] = []
        header = found.header
        if header is not None and header.store_id != log.store_id.hex():
            if not force:
                raise _foreign(files, header, log)
            header = None
        head = await log.head()
        after = await compared_up_to(log, header, prefix, head)
        touched = await _touched(log, after, prefix)
        if header is not None and after and _some_are_gone(header, found, touched):
            _logger.warning("transcripts_gone folder=%r", files.folder)
            touched = await _touched(log, 0, prefix)
        streams = list(dict.fromkeys([*found.transcripts, *found.begun, *touched]))
        for at in range(0, len(streams), _AT_ONCE):
            some = (_repair_one(files, log, each, found, touched, force=force) for each in streams[at : at + _AT_ONCE])
            for one in await asyncio.gather(*some, return_exceptions=True):
                match one:
                    case MirrorDamaged():
                        damage.append(one)
                    case BaseException():
                        raise one
                    case Repaired():
                        done.append(one)
        damage += await _nameless(files, found, streams, force=force)
        if damage:
            for each in damage:
                _logger.error("%s file=%r stream=%r offset=%r", each.code, each.path, each.stream, each.offset)
            raise damage[0]
        if any(one.problem is not None for one in done):
            return done  # the evidence and the position stay: the next start looks at these streams again
        compared = {stream for stream in streams if touched.get(stream, _OLD) <= head.position}
        await on_thread(_finish, files, found.remnants, compared, log.store_id.hex(), prefix, head)
    return done


def _some_are_gone(header: Header, found: _Found, touched: Mapping[str, int]) -> bool:
    """Say whether a transcript was there when the folder was compared the last time, and is not.

    One of a stream that was touched since does not count, for it is brought up anyway.
    """
    there = {stream for stream in (*found.transcripts, *touched) if touched.get(stream, _OLD) <= header.position}
    return len(there) < header.transcripts


def _survey(files: TranscriptFiles, prefix: str, owned: ExitStack) -> _Found:
    make_folder(files.folder)
    transcripts: dict[str, str] = {}
    begun: dict[str, int] = {}
    remnants: list[str] = []
    nameless: list[str] = []
    with opened(files.folder) as directory:
        for name in sorted(os.listdir(directory)):
            if name.endswith((PREPARED, _TEMP)):
                descriptor = owned.enter_context(owned_by_nobody(directory, name))
                if descriptor is None:
                    continue
                remnants.append(name)
                for append in read_evidence(descriptor) if name.endswith(PREPARED) else ():
                    size = append.size_bytes
                    begun[append.stream] = min(begun.get(append.stream, size), size)
            elif name.endswith(SUFFIX):
                stream = stream_of(name) or files.first_stream(name)
                if stream is None or file_name(stream) != name:
                    nameless.append(name)
                elif stream.startswith(prefix):
                    transcripts[stream] = name
    return _Found(read_header(files), transcripts, begun, remnants, nameless)


async def _nameless(
    files: TranscriptFiles, found: _Found, streams: Iterable[str], *, force: bool
) -> list[MirrorDamaged]:
    """Return what is wrong with files that are named as transcripts of no stream we know; or put them aside."""
    known = {file_name(stream) for stream in streams}
    unknown = [name for name in found.nameless if name not in known and is_cut_name(name)]
    if not force:
        return [files.damaged(name, None, "does not say of which stream it is", 0) for name in unknown]
    for name in unknown:
        await on_thread(files.replace, None, name)
    return []


def _foreign(files: TranscriptFiles, header: Header, log: RunLog) -> MirrorDamaged:
    ids = f"the store {header.store_id}, not of {log.store_id.hex()}"
    return MirrorDamaged("mirror_damaged", f"the transcripts in {files.folder} are of {ids}", path=files.path(HEADER))


def _finish(
    files: TranscriptFiles, remnants: Iterable[str], compared: Iterable[str], store_id: str, prefix: str, head: Head
) -> None:
    with opened(files.folder) as directory:
        there = set(os.listdir(directory))
        reached = Header(
            store_id=store_id,
            streams=prefix,
            position=head.position,
            leaf=head.leaf.hex(),
            transcripts=sum(file_name(stream) in there for stream in compared),
        )
        replace_file(directory, HEADER, msgspec.json.encode(reached))
        for name in remnants:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=directory)


async def _touched(log: EventReader, after: int, prefix: str) -> dict[str, int]:
    """Return the streams to which anything was appended behind a position, each with the position at which it begins.

    For one that had events before, that is 0. An event that cannot be read hides nothing of the others: its stream is
    among them, if it can be told.
    """
    touched: dict[str, int] = {}
    while True:
        try:
            async with aclosing(log.read_all(after=after, stream_prefix=prefix)) as events:
                async for event in events:
                    touched.setdefault(event.stream, event.position if event.version == 1 else _OLD)
                    after = event.position
            return touched
        except (LogCorrupt, InvalidInput) as error:
            position, stream = error.details.get("position"), error.details.get("stream")
            if not isinstance(position, int) or position <= after:
                raise
            if isinstance(stream, str) and stream.startswith(prefix):
                touched.setdefault(stream, _OLD)
            after = position


# ── one transcript ───────────────────────────────────────────────────────────────────────────────────────────────────


async def _repair_one(
    files: TranscriptFiles,
    log: EventReader,
    stream: str,
    found: _Found,
    touched: Container[str],
    *,
    force: bool,
) -> Repaired | None:
    path = files.path(file_name(stream))
    try:
        if stream in found.transcripts:
            is_whole = await _compare(files, log, stream, found.transcripts[stream], found.begun.get(stream))
            if is_whole and stream not in found.begun and stream not in touched:
                return None  # and durable, or it would be among what was touched
        lines = await bring_up(files, log, stream)
    except MirrorDamaged:
        if not force:
            raise
        return await rebuild(files, log, stream)
    except (LogCorrupt, InvalidInput) as error:  # this stream of the log; the others have nothing to do with it
        return Repaired(stream=stream, path=path, was="unreadable", problem=error)
    return Repaired(stream=stream, path=path, was="behind", lines=lines) if lines else None


async def _compare(files: TranscriptFiles, log: EventReader, stream: str, name: str, begun_at: int | None) -> bool:
    """Compare each line with its event, and say whether nothing is missing, and nothing torn.

    Raises MirrorDamaged, unless that stands where nothing was acknowledged yet: there it is cut off.
    """
    try:
        return await _compare_lines(files, log, stream, name)
    except MirrorDamaged as error:
        if error.code == "mirror_ahead" or error.offset is None or begun_at is None or error.offset < begun_at:
            raise
        await on_thread(files.cut, name, error.offset)
        return False


async def _compare_lines(files: TranscriptFiles, log: EventReader, stream: str, name: str) -> bool:
    async with aclosing(log.read(stream)) as events:
        offset = 0
        while True:
            lines, places = await on_thread(files.lines, name, stream, offset)
            for line, place in zip(lines, places, strict=False):
                event = await anext(events, None)
                if event is None:
                    raise ahead(files, name, stream, place)
                if line.event != line_of(event).event:
                    raise files.damaged(name, stream, f"has another event at byte {place} than the log", place)
            if not lines:
                return await anext(events, None) is None and await on_thread(files.size, name) == offset
            offset = places[-1]


async def rebuild(files: TranscriptFiles, log: EventReader, stream: str) -> Repaired:
    """Build the transcript of a stream again from the log, and put it in the place of the one that is there.

    What is there is kept under another name; a stream that the log does not have gets no transcript. *Durable* on
    return. Killed in the middle of it, the old one still stands.
    """
    name = file_name(stream)
    with coded_os_errors(f"build the transcript {files.path(name)} again"):
        temp, descriptor = await on_thread(_create_temp, files, name)
        try:
            size = count = 0
            batch: list[bytes] = []
            async with aclosing(log.read(stream)) as events:
                async for event in events:
                    batch.append(line_of(event).text)
                    count += 1
                    if len(batch[-1]) >= BATCH_BYTES or len(batch) >= 500:
                        size = await on_thread(_write, descriptor, batch, size)
                        batch = []
            await on_thread(_write, descriptor, batch, size)
            await on_thread(flush, descriptor)
            replaced = await on_thread(files.replace, temp if count else None, name)
        finally:
            await on_thread(_drop_temp, files, temp, descriptor)
    await bring_up(files, log, stream)  # what others have appended meanwhile went into the old one
    _logger.warning("transcript_rebuilt stream=%r lines=%d replaced=%r", stream, count, replaced)
    path = None if replaced is None else files.path(replaced)
    return Repaired(stream=stream, path=files.path(name), was="rebuilt", lines=count, replaced=path)


def _create_temp(files: TranscriptFiles, name: str) -> tuple[str, int]:
    make_folder(files.folder)
    with opened(files.folder) as directory:
        return create_owned(directory, lambda number: f"{name}.{number}{_TEMP}")


def _write(descriptor: int, batch: list[bytes], at: int) -> int:
    data = b"".join(batch)
    write_whole(descriptor, data, at)
    return at + len(data)


def _drop_temp(files: TranscriptFiles, temp: str, descriptor: int) -> None:
    try:
        with suppress(OSError), opened(files.folder) as directory:
            os.unlink(temp, dir_fd=directory)
    finally:
        os.close(descriptor)
