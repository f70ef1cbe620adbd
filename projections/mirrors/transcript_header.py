"""The file `mirror.json` of a folder of transcripts: which log they are of, and how far they were compared with it.

It is written when a folder was compared with its log, and nothing of it is trusted that the log or the folder does not
bear out: a header that cannot be read, or is of another past, means that everything is looked at.
"""

from __future__ import annotations

from contextlib import aclosing, suppress
from typing import Final, Literal

import msgspec

from eventlog.errors import InvalidInput, LogCorrupt
from eventlog.log import EventReader, Head
from projections.mirrors.transcript_files import TranscriptFiles

__all__ = ["HEADER", "Header", "compared_up_to", "read_header"]

HEADER: Final = "mirror.json"


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """Up to `position`, an event with this `leaf`, no stream whose name begins with `streams` lacked a line.

    `transcripts` is how many streams had events up to there, each of which had a file: when one is taken away later,
    nothing else tells of it.
    """

    format: Literal["eventlog/transcripts/1"] = "eventlog/transcripts/1"
    store_id: str
    streams: str
    position: int
    leaf: str
    transcripts: int


def read_header(files: TranscriptFiles) -> Header | None:
    """Return the header; None if there is none, or it cannot be read: then everything is looked at."""
    try:
        with open(files.path(HEADER), "rb") as file:
            return msgspec.json.decode(file.read(), type=Header)
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


async def compared_up_to(log: EventReader, header: Header | None, prefix: str, head: Head) -> int:
    """Return the position of the header, if the log has the same past now; else 0."""
    if header is None or header.streams != prefix or not 0 < header.position <= head.position:
        return 0
    with suppress(LogCorrupt, InvalidInput):
        async with aclosing(log.read_all(after=header.position - 1, limit=1)) as events:
            async for event in events:
                return header.position if event.leaf.hex() == header.leaf else 0
    return 0
