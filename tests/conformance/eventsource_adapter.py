"""The ports of the eventsource-py package, kept by a log.

* A stream, which is a category and a UUID there, is named `<category>/<uuid>`. No category has a slash in it, so the
  prefix `<category>/` is exactly the streams of that category.
* A domain event is stored as its own JSON, under its own id. There, an id that comes again is an error; here, a call
  that is repeated whole returns its first result. The adapter turns the one into the other.
* A position is the log's, with the log's id beside it, so that positions of two logs refuse to be compared.
* A checkpoint is the last event of a stream `checkpoint/<name>`; to reset it is an event as well.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote
from uuid import UUID

from eventsource.domain import StreamId
from eventsource.domain.event import DomainEvent
from eventsource.domain.exceptions import DuplicateEventError, OptimisticLockError, PositionForeignError
from eventsource.ports import (
    AppendResult,
    CategoryReadOptions,
    CheckpointData,
    EventEnvelope,
    ExpectedVersion,
    FeedReadOptions,
    LagMetrics,
    Position,
    ReadDirection,
    StreamReadOptions,
)

from eventlog.errors import Misuse, WrongExpectedVersion
from eventlog.log import EventLog, Expect, NewEvent, RecordedEvent
from eventlog.plain import Limits
from tests.conformance.logs import checked_log, first, taken

__all__ = ["LogCheckpoints", "LogStore"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_CHECKPOINTS: Final = "checkpoint/"


class _InFile:
    """A log that is opened when it is first used, in the event loop that uses it."""

    def __init__(self, path: Path) -> None:
        self._path: Final = path
        self._opened: Final = AsyncExitStack()
        self._log: EventLog | None = None
        self._log_id = ""

    async def _open(self) -> EventLog:
        if self._log is None:
            self._log = await self._opened.enter_async_context(checked_log(self._path))
            self._log_id = (await self._log.health()).log_id
        return self._log

    async def close(self) -> None:
        """Check and close the log."""
        await self._opened.aclose()


class LogStore(_InFile):
    """EventAppender, StreamReader, EventLookup, GlobalEventFeed and CategoryQuery."""

    max_append_batch: int | None = Limits().events_per_call

    def __init__(self, path: Path, event_type: type[DomainEvent]) -> None:
        super().__init__(path)
        self._event_type: Final = event_type

    async def append(self, stream: StreamId, events: Sequence[DomainEvent], expected: ExpectedVersion) -> AppendResult:
        if not events:
            raise ValueError("an append has events, this one is empty")
        log = await self._open()
        try:
            result = await log.append(_name(stream), [_new(event) for event in events], expect=_expect(expected))
        except WrongExpectedVersion as error:
            raise OptimisticLockError(stream.aggregate_id, expected.version or 0, error.actual) from error
        except Misuse as error:
            if error.code != "event_id_conflict":
                raise
            raise DuplicateEventError(str(error)) from error
        if result.deduplicated:
            raise DuplicateEventError(f"the events are stored already, up to position {result.last_position}")
        return AppendResult(stream, result.version, self._position(result.first_position))

    async def read_stream(
        self, stream: StreamId, options: StreamReadOptions | None = None
    ) -> AsyncIterator[EventEnvelope]:
        log = await self._open()
        options = options or StreamReadOptions()
        lowest, highest = options.from_version or 1, options.to_version
        if options.direction is ReadDirection.BACKWARD:
            events = log.read_back(_name(stream), before=None if highest is None else highest + 1)
        else:
            events = log.read(_name(stream), after=lowest - 1)
        left = options.limit
        async with aclosing(events):
            async for event in events:
                is_outside = event.version < lowest or (highest is not None and event.version > highest)
                if is_outside or left == 0:
                    return
                left = None if left is None else left - 1
                yield self._envelope(event)

    async def get_stream_version(self, stream: StreamId) -> int:
        log = await self._open()
        last = await first(log.read_back(_name(stream), limit=1))
        return last.version if last else 0

    async def event_exists(self, event_id: UUID) -> bool:
        log = await self._open()
        return await log.find(event_id.bytes) is not None

    async def read_all(
        self, from_position: Position | None = None, options: FeedReadOptions | None = None
    ) -> AsyncIterator[EventEnvelope]:
        log = await self._open()
        options = options or FeedReadOptions()
        events = log.read_all(after=self._number(from_position))
        async for envelope in self._filtered(events, options.tenant_id, None, options.limit):
            yield envelope

    async def current_position(self) -> Position | None:
        log = await self._open()
        head = await log.head()
        return self._position(head.position) if head.position else None

    async def read_category(
        self, category: str, options: CategoryReadOptions | None = None
    ) -> AsyncIterator[EventEnvelope]:
        log = await self._open()
        options = options or CategoryReadOptions()
        events = log.read_all(stream_prefix=f"{category}/")
        async for envelope in self._filtered(events, options.tenant_id, options.from_timestamp, options.limit):
            yield envelope

    async def _filtered(
        self,
        events: AsyncGenerator[RecordedEvent, None],
        tenant_id: UUID | None,
        since: datetime | None,
        limit: int | None,
    ) -> AsyncIterator[EventEnvelope]:
        async with aclosing(events):
            async for event in events:
                if limit == 0:
                    return
                envelope = self._envelope(event)
                is_old = since is not None and envelope.stored_at < since
                if is_old or (tenant_id is not None and envelope.event.tenant_id != tenant_id):
                    continue
                limit = None if limit is None else limit - 1
                yield envelope

    def _envelope(self, event: RecordedEvent) -> EventEnvelope:
        category, _, aggregate_id = event.stream.partition("/")
        return EventEnvelope(
            event=self._event_type.model_validate(event.data),
            stream_id=StreamId(aggregate_id=UUID(aggregate_id), category=category),
            stream_version=event.version,
            position=self._position(event.position),
            stored_at=_time(event),
        )

    def _position(self, number: int) -> Position:
        return Position(self._log_id, (number,))

    def _number(self, position: Position | None) -> int:
        if position is None:
            return 0
        if position.store_id != self._log_id:
            raise PositionForeignError(f"the position {position} is one of another log")
        return int(position.key[0])


class LogCheckpoints(_InFile):
    """ProjectionCheckpoints and SubscriptionPositions."""

    async def get_checkpoint(self, projection_name: str) -> UUID | None:
        checkpoint = await self._last(projection_name)
        return checkpoint.last_event_id if checkpoint else None

    async def update_checkpoint(self, projection_name: str, event_id: UUID, event_type: str) -> None:
        await self._save(projection_name, event_id, event_type, None)

    async def reset_checkpoint(self, projection_name: str) -> None:
        if await self._last(projection_name):
            log = await self._open()
            await log.append(_checkpoints_of(projection_name), [NewEvent("reset", {})], expect=Expect.any())

    async def get_lag_metrics(self, projection_name: str, event_types: list[str] | None = None) -> LagMetrics | None:
        checkpoint = await self._last(projection_name)
        if checkpoint is None:
            return None
        return LagMetrics(
            projection_name,
            last_event_id=str(checkpoint.last_event_id),
            events_processed=checkpoint.events_processed,
            last_processed_at=checkpoint.last_processed_at.isoformat() if checkpoint.last_processed_at else None,
        )

    async def get_all_checkpoints(self) -> list[CheckpointData]:
        log = await self._open()
        last = {event.stream: event for event in await taken(log.read_all(stream_prefix=_CHECKPOINTS))}
        found = [_checkpoint(event) for _, event in sorted(last.items())]
        return [checkpoint for checkpoint in found if checkpoint]

    async def get_position(self, subscription_id: str) -> Position | None:
        checkpoint = await self._last(subscription_id)
        return checkpoint.position if checkpoint else None

    async def save_position(self, subscription_id: str, position: Position, event_id: UUID, event_type: str) -> None:
        await self._save(subscription_id, event_id, event_type, position)

    async def _last(self, name: str) -> CheckpointData | None:
        log = await self._open()
        event = await first(log.read_back(_checkpoints_of(name), limit=1))
        return _checkpoint(event) if event else None

    async def _save(self, name: str, event_id: UUID, event_type: str, position: Position | None) -> None:
        before = await self._last(name)
        position = position or (before.position if before else None)
        saved = {
            "event_id": str(event_id),
            "event_type": event_type,
            "events_processed": (before.events_processed if before else 0) + 1,
            "position": position.to_str() if position else None,
        }
        log = await self._open()
        await log.append(_checkpoints_of(name), [NewEvent("saved", saved)], expect=Expect.any())


def _checkpoints_of(name: str) -> str:
    return _CHECKPOINTS + quote(name, safe="")


def _checkpoint(event: RecordedEvent) -> CheckpointData | None:
    if event.type == "reset":
        return None
    saved: dict[str, Any] = event.data
    return CheckpointData(
        projection_name=unquote(event.stream.removeprefix(_CHECKPOINTS)),
        last_event_id=UUID(saved["event_id"]),
        last_event_type=saved["event_type"],
        last_processed_at=_time(event),
        events_processed=saved["events_processed"],
        position=Position.from_str(saved["position"]) if saved["position"] else None,
    )


def _name(stream: StreamId) -> str:
    return f"{stream.category}/{stream.aggregate_id}"


def _new(event: DomainEvent) -> NewEvent:
    return NewEvent(
        event.event_type,
        event.model_dump(mode="json"),
        event_id=event.event_id.bytes,
        correlation_id=str(event.correlation_id),
        causation_id=event.causation_id.bytes if event.causation_id else None,
    )


def _expect(expected: ExpectedVersion) -> Expect:
    match expected.kind:
        case "exact":
            return Expect.at(expected.version or 0)
        case "no_stream":
            return Expect.no_stream()
        case "stream_exists":
            return Expect.exists()
        case _:
            return Expect.any()


def _time(event: RecordedEvent) -> datetime:
    return _EPOCH + timedelta(microseconds=event.recorded_at_us)
