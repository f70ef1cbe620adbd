"""What callers did and were told, with the times of each call: a history, in plain values.

Times are nanoseconds of the monotonic clock, which all processes of a machine share. Event ids are text. A call that
was never answered, or whose answer said that nobody knows, has no time of an answer: it may have been carried out at
any time since, or never.
"""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["Appending", "Conflict", "Operation", "Part", "Reading", "Stored", "StreamReading"]


class Stored(msgspec.Struct, frozen=True, array_like=True):
    """An event of the log as it was read when all was over."""

    position: int
    stream: str
    version: int
    event_id: str


class Part(msgspec.Struct, frozen=True, array_like=True):
    """The events of an append for one stream; `version` and `first_position` are what the answer said, if it did."""

    stream: str
    event_ids: tuple[str, ...]
    expected: int | None = None
    version: int = 0
    first_position: int = 0


class Appending(msgspec.Struct, frozen=True, tag="appending"):
    """A call of `append` or `append_many`. `is_repeat`: these ids were in a call before this one."""

    caller: str
    called_ns: int
    answered_ns: int | None
    parts: tuple[Part, ...]
    outcome: Literal["stored", "refused", "unknown"] = "unknown"
    is_repeat: bool = False


class Conflict(msgspec.Struct, frozen=True, tag="conflict"):
    """A call that was refused because `stream` was not at the expected version but at `actual`."""

    caller: str
    called_ns: int
    answered_ns: int
    event_ids: tuple[str, ...]
    stream: str
    actual: int


class Reading(msgspec.Struct, frozen=True, tag="reading"):
    """A read of the log behind the position `after`, up to its end."""

    caller: str
    called_ns: int
    answered_ns: int
    after: int
    event_ids: tuple[str, ...]


class StreamReading(msgspec.Struct, frozen=True, tag="stream_reading"):
    """A read of one stream behind the version `after`, from one snapshot, in which it was at `version`."""

    caller: str
    called_ns: int
    answered_ns: int
    stream: str
    after: int
    version: int
    event_ids: tuple[str, ...]


Operation = Appending | Conflict | Reading | StreamReading
