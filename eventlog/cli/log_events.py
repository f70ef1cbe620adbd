"""The stream `$log`, as the commands about keys read and write it."""

from __future__ import annotations

from typing import NamedTuple

from eventlog.events import LOG_STREAM, LogEvent
from eventlog.log import Append, Expect, RecordedEvent
from eventlog.signing.log_keys import LogKeys, fold_log_keys
from eventlog.stores import SqliteLog

__all__ = ["LogStory", "append_to_log", "read_log_story"]


class LogStory(NamedTuple):
    """What a log says of itself: its events, the version of their stream, and the keys that they name."""

    events: tuple[RecordedEvent, ...]
    version: int
    keys: LogKeys


async def read_log_story(log: SqliteLog) -> LogStory:
    """Return what the log says of itself. Raises LogCorrupt, Misuse(`missing_extra`)."""
    stream = await log.read_stream(LOG_STREAM)
    keys = fold_log_keys((event.position, event.data) for event in stream.events)
    return LogStory(tuple(stream.events), stream.version, keys)


async def append_to_log(log: SqliteLog, story: LogStory, event: LogEvent) -> int:
    """Append an event that was decided on by this story; return its position. Raises WrongExpectedVersion."""
    (result,) = await log.append_reserved([Append(LOG_STREAM, [event], Expect.at(story.version))])
    return result.last_position
