"""The recorders of the `eventsourcing` package, kept by a log.

* An aggregate's events are the stream `aggregate/<id>`. There, versions are given by the caller and begin anywhere;
  here they begin at 1. The body keeps the caller's, and the first event of the stream says how far the two are apart.
* A notification id is a position.
* Tracking is a stream `tracking/<application>` whose last event is how far that application was processed; it is
  appended in the same call as the events that follow from it, so both are stored or none.
* Notifications are read by the prefix `aggregate/`: what is tracked takes positions, but is nobody's notification.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, cast
from uuid import UUID

from eventsourcing.persistence import (
    AggregateRecorder,
    ApplicationRecorder,
    IntegrityError,
    Notification,
    ProcessRecorder,
    StoredEvent,
    Subscription,
    Tracking,
)

from eventlog.errors import WrongExpectedVersion
from eventlog.log import Append, AppendResult, Expect, Mark, NewEvent, RecordedEvent
from tests.conformance.logs import BlockingFeed, LogThread, first, taken

__all__ = ["LogAggregateRecorder", "LogApplicationRecorder", "LogProcessRecorder"]

_AGGREGATES: Final = "aggregate/"
_TRACKING: Final = "tracking/"


class LogAggregateRecorder(AggregateRecorder):
    """Records aggregates in the log at `path`. To be closed."""

    def __init__(self, path: Path) -> None:
        self._thread: Final = LogThread(path)
        self._log: Final = self._thread.log

    def close(self) -> None:
        """Check and close the log."""
        self._thread.close()

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int] | None:
        self._thread.call(self._insert(stored_events, **kwargs))
        return None

    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> Sequence[StoredEvent]:
        return self._thread.call(self._select(_stream(originator_id), gt, lte, desc, limit))

    async def _insert(self, stored_events: Sequence[StoredEvent], tracking: Tracking | None = None) -> list[int]:
        appends = [await self._tracked(tracking)] if tracking else []
        appends += [await self._recorded(stream, events) for stream, events in _by_stream(stored_events).items()]
        if not appends:
            return []
        try:
            results = await self._log.append_many(appends)
        except WrongExpectedVersion as error:
            raise IntegrityError(str(error)) from error
        return _in_order(stored_events, results)

    async def _recorded(self, stream: str, events: list[StoredEvent]) -> Append:
        lowest = events[0].originator_version
        if [event.originator_version for event in events] != list(range(lowest, lowest + len(events))):
            raise IntegrityError(f"the versions of one append to {stream} do not follow one another")
        version = lowest - await self._base(stream, otherwise=lowest)
        if version < 0:
            raise IntegrityError(f"{stream} begins at a later version than {lowest}")
        return Append(stream, [_new(event) for event in events], Expect.at(version))

    async def _base(self, stream: str, *, otherwise: int) -> int:
        """Return the version that the caller gave to the first event of a stream."""
        event = await first(self._log.read(stream, limit=1))
        return cast(int, event.data["version"]) if event else otherwise

    async def _tracked(self, tracking: Tracking) -> Append:
        stream = _TRACKING + tracking.application_name
        last = await first(self._log.read_back(stream, limit=1))
        if last and last.data["notification_id"] >= tracking.notification_id:
            raise IntegrityError(f"{stream} is at {last.data['notification_id']} already")
        event = NewEvent("tracked", {"notification_id": tracking.notification_id})
        return Append(stream, [event], Expect.at(last.version if last else 0))

    async def _select(
        self, stream: str, gt: int | None, lte: int | None, desc: bool, limit: int | None
    ) -> list[StoredEvent]:
        distance = await self._base(stream, otherwise=1) - 1
        after = 0 if gt is None else max(gt - distance, 0)
        upto = None if lte is None else max(lte - distance, 0)
        if not desc:
            most = limit if upto is None else min(max(upto - after, 0), upto if limit is None else limit)
            return [_stored(event) for event in await taken(self._log.read(stream, after=after, limit=most))]
        events = await taken(self._log.read_back(stream, before=None if upto is None else upto + 1, limit=limit))
        return [_stored(event) for event in events if event.version > after]


class LogApplicationRecorder(LogAggregateRecorder, ApplicationRecorder):
    """Records aggregates, and gives their events out in the order of the log."""

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int] | None:
        return self._thread.call(self._insert(stored_events, **kwargs))

    def select_notifications(
        self,
        start: int | None,
        limit: int,
        stop: int | None = None,
        topics: Sequence[str] = (),
        *,
        inclusive_of_start: bool = True,
    ) -> Sequence[Notification]:
        after = max((start or 0) - inclusive_of_start, 0)
        events = self._log.read_all(after=after, limit=limit, types=topics or None, stream_prefix=_AGGREGATES)
        notifications = [_notification(event) for event in self._thread.call(taken(events))]
        return [notification for notification in notifications if stop is None or notification.id <= stop]

    def max_notification_id(self) -> int | None:
        return self._thread.call(self._log.head()).position or None

    def subscribe(self, gt: int | None = None, topics: Sequence[str] = ()) -> LogSubscription:
        return LogSubscription(self, gt, topics)

    def feed(self, gt: int | None, topics: Sequence[str]) -> BlockingFeed[RecordedEvent | Mark]:
        """Return the events that a subscription gives out."""
        feed = self._log.subscribe(after=gt or 0, types=topics or None, stream_prefix=_AGGREGATES)
        return BlockingFeed(self._thread, feed)


class LogSubscription(Subscription[LogApplicationRecorder]):
    """Gives out notifications as they are recorded, until it is stopped."""

    def __init__(self, recorder: LogApplicationRecorder, gt: int | None, topics: Sequence[str]) -> None:
        super().__init__(recorder, gt, topics)
        self._feed: Final = recorder.feed(gt, topics)

    def __next__(self) -> Notification:
        event = self._feed.next()
        if isinstance(event, RecordedEvent):
            return _notification(event)
        raise StopIteration  # it was stopped

    def stop(self) -> None:
        super().stop()
        self._feed.stop()


class LogProcessRecorder(LogApplicationRecorder, ProcessRecorder):
    """Records aggregates together with how far another application was processed."""

    def insert_tracking(self, tracking: Tracking) -> None:
        self._thread.call(self._insert([], tracking))

    def max_tracking_id(self, application_name: str) -> int | None:
        last = self._thread.call(first(self._log.read_back(_TRACKING + application_name, limit=1)))
        return cast(int, last.data["notification_id"]) if last else None


def _stream(originator_id: UUID | str) -> str:
    return f"{_AGGREGATES}{originator_id}"


def _by_stream(stored_events: Iterable[StoredEvent]) -> dict[str, list[StoredEvent]]:
    streams: dict[str, list[StoredEvent]] = {}
    for event in stored_events:
        streams.setdefault(_stream(event.originator_id), []).append(event)
    return streams


def _in_order(stored_events: Sequence[StoredEvent], results: Sequence[AppendResult]) -> list[int]:
    """Return the positions of the events in the order in which they were given."""
    positions = {result.stream: iter(range(result.first_position, result.last_position + 1)) for result in results}
    return [next(positions[_stream(event.originator_id)]) for event in stored_events]


def _new(event: StoredEvent) -> NewEvent:
    return NewEvent(event.topic, {"version": event.originator_version, "state": b64encode(event.state).decode()})


def _stored(event: RecordedEvent) -> StoredEvent:
    return StoredEvent(
        originator_id=UUID(event.stream.removeprefix(_AGGREGATES)),
        originator_version=event.data["version"],
        topic=event.type,
        state=b64decode(event.data["state"]),
    )


def _notification(event: RecordedEvent) -> Notification:
    stored = _stored(event)
    return Notification(stored.originator_id, stored.originator_version, stored.topic, stored.state, id=event.position)
