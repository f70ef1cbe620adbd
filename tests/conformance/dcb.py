"""Dynamic consistency boundaries, kept by a log: appends under the condition that no event matches a query.

All events are in one stream, whose versions are the positions. A condition is decided over the events of the stream,
and the append expects the stream to be where it was then; if it is not, the condition is decided again. No lock is
held, and the log knows nothing of tags.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final
from uuid import UUID, uuid4

from eventsourcing.dcb.api import (
    DCBAppendCondition,
    DCBEvent,
    DCBQuery,
    DCBReadResponse,
    DCBRecorder,
    DCBSequencedEvent,
    DCBSubscription,
)
from eventsourcing.persistence import IntegrityError

from eventlog.errors import WrongExpectedVersion
from eventlog.log import Expect, Mark, NewEvent, RecordedEvent
from tests.conformance.logs import BlockingFeed, LogThread

__all__ = ["LogDcbRecorder", "matches"]

_STREAM: Final = "dcb"


class LogDcbRecorder(DCBRecorder):
    """Records events with types and tags in the log at `path`. To be closed."""

    def __init__(self, path: Path) -> None:
        self._thread: Final = LogThread(path)
        self._log: Final = self._thread.log

    def close(self) -> None:
        """Check and close the log."""
        self._thread.close()

    def read(
        self, query: DCBQuery | None = None, *, after: int | None = None, limit: int | None = None
    ) -> DCBReadResponse:
        stream = self._thread.call(self._log.read_stream(_STREAM, after=after or 0))
        found = [event for event in map(_sequenced, stream.events) if matches(query, event.event)][:limit]
        if limit is None:
            return _Response(found, stream.version or None)
        return _Response(found, found[-1].position if found else None)

    def append(
        self,
        events: Sequence[DCBEvent],
        condition: DCBAppendCondition | None = None,
        *,
        event_ids: Sequence[UUID] | None = None,
    ) -> int:
        """Append under a condition, and return the position of the last event.

        With `event_ids`, a call that was stored already is not judged again: it returns what it returned.
        """
        ids = event_ids or [uuid4() for _ in events]
        return self._thread.call(self._append(list(map(_new, events, ids)), condition, may_be_stored=bool(event_ids)))

    def subscribe(self, query: DCBQuery | None = None, *, after: int | None = None) -> LogDcbSubscription:
        return LogDcbSubscription(self, query, after)

    def feed(self, after: int | None) -> BlockingFeed[RecordedEvent | Mark]:
        """Return the events behind a position; the log has no other stream, so versions are its positions too."""
        return BlockingFeed(self._thread, self._log.subscribe(after=after or 0, stream_prefix=_STREAM))

    async def _append(self, new: list[NewEvent], condition: DCBAppendCondition | None, *, may_be_stored: bool) -> int:
        if may_be_stored and await self._log.find(new[0].event_id):
            condition = None
        while True:
            expect = Expect.any() if condition is None else await self._allowed(condition)
            try:
                return (await self._log.append(_STREAM, new, expect=expect)).version
            except WrongExpectedVersion:
                continue  # somebody appended since the condition was decided

    async def _allowed(self, condition: DCBAppendCondition) -> Expect:
        stream = await self._log.read_stream(_STREAM, after=condition.after or 0)
        if any(matches(condition.fail_if_events_match, _sequenced(event).event) for event in stream.events):
            raise IntegrityError(condition)
        return Expect.at(stream.version)


class LogDcbSubscription(DCBSubscription[LogDcbRecorder]):
    """Gives out the events that match a query as they are recorded, until it is stopped."""

    def __init__(self, recorder: LogDcbRecorder, query: DCBQuery | None, after: int | None) -> None:
        super().__init__(recorder, query, after)
        self._feed: Final = recorder.feed(after)

    def __next__(self) -> DCBSequencedEvent:
        while isinstance(recorded := self._feed.next(), RecordedEvent):
            event = _sequenced(recorded)
            if matches(self._query, event.event):
                self._last_position = event.position
                return event
        raise StopIteration

    def stop(self) -> None:
        super().stop()
        self._feed.stop()


class _Response(DCBReadResponse):
    def __init__(self, events: Sequence[DCBSequencedEvent], head: int | None) -> None:
        self._events: Final[Iterator[DCBSequencedEvent]] = iter(events)
        self._head: Final = head

    @property
    def head(self) -> int | None:
        return self._head

    def __next__(self) -> DCBSequencedEvent:
        return next(self._events)


def matches(query: DCBQuery | None, event: DCBEvent) -> bool:
    """Say whether a query finds an event: one of its items does, by its types and all its tags, or it has none."""
    if query is None or not query.items:
        return True
    return any(
        (not item.types or event.type in item.types) and set(item.tags) <= set(event.tags) for item in query.items
    )


def _new(event: DCBEvent, event_id: UUID) -> NewEvent:
    body = {"data": b64encode(event.data).decode(), "tags": event.tags}
    return NewEvent(event.type, body, event_id=event_id.bytes)


def _sequenced(event: RecordedEvent) -> DCBSequencedEvent:
    return DCBSequencedEvent(DCBEvent(event.type, b64decode(event.data["data"]), event.data["tags"]), event.version)
