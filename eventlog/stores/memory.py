"""A log in memory: the whole contract without a file. For tests, and for programs whose log may end with them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any, Final

from eventlog.codec import REGISTRY, Registry
from eventlog.entry import NO_HASH, NO_ID, SALT_SIZE, prefixed, seal
from eventlog.errors import StoreUnavailable, WrongExpectedVersion
from eventlog.log import (
    Append,
    AppendResult,
    CheckedPage,
    Expect,
    Head,
    Health,
    Mark,
    RecordedEvent,
    Snapshot,
    StreamSlice,
)
from eventlog.plain import Limits
from eventlog.stores.artifacts import MemoryArtifacts, name_artifact
from eventlog.stores.clock import Clock, SystemClock
from eventlog.stores.entropy import random_bytes
from eventlog.stores.guard import Guard
from eventlog.stores.repeats import original_results
from eventlog.stores.requests import (
    EncodedEvent,
    Part,
    Request,
    check_event_id,
    check_limit,
    check_position,
    check_stream,
    check_wanted,
    make_request,
)
from eventlog.stores.subscription import Page, follow

__all__ = ["MemoryLog"]

PAGE: Final = 500


class MemoryLog:
    """A log that ends with its object. Use it as an async context manager, from one event loop."""

    def __init__(
        self,
        *,
        actor: str,
        registry: Registry = REGISTRY,
        limits: Limits | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._actor: Final = actor
        self._registry: Final = registry
        self._limits: Final = limits or Limits()
        self._clock: Final = clock or SystemClock()
        self._store_id: Final = random_bytes(16)
        self._log_id: Final = random_bytes(16)
        self._events: list[RecordedEvent] = []
        self._streams: dict[str, list[RecordedEvent]] = {}
        self._by_id: dict[bytes, RecordedEvent] = {}
        self._guard: Final = Guard()
        self._artifacts: Final = MemoryArtifacts(self._guard.check)
        self._snapshots: Final[dict[str, Snapshot]] = {}
        self._appended = asyncio.Event()

    async def __aenter__(self) -> MemoryLog:
        self._guard.claim()
        self._guard.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Take no more work."""
        self._guard.close()
        self._appended.set()

    @property
    def store_id(self) -> bytes:
        """The 16 bytes that name the store."""
        return self._store_id

    @property
    def actor(self) -> str:
        """Who appends if a call does not say."""
        return self._actor

    @property
    def place(self) -> None:
        """A log in memory lives in one process and has no place for lock files."""
        return None

    @property
    def limits(self) -> Limits:
        """How large one append may be."""
        return self._limits

    async def health(self) -> Health:
        """Return the state of the store."""
        self._guard.check()
        return Health(
            store="memory",
            log_id=self._log_id.hex(),
            store_id=self._store_id.hex(),
            format_version=1,
            head=len(self._events),
            state="open",
            queued=0,
            durability="none",
        )

    async def append(
        self,
        stream: str,
        events: Sequence[Any],
        *,
        expect: Expect,
        actor: str | None = None,
        correlation_id: str | None = None,
        causation_id: bytes | None = None,
    ) -> AppendResult:
        """Append events to one stream."""
        results = await self._append([Append(stream, events, expect)], (), actor, correlation_id, causation_id)
        return results[0]

    async def append_many(
        self,
        appends: Sequence[Append],
        *,
        checks: Sequence[tuple[str, Expect]] = (),
        actor: str | None = None,
        correlation_id: str | None = None,
        causation_id: bytes | None = None,
    ) -> list[AppendResult]:
        """Append to several streams, and check others that are not written, as one: all or nothing."""
        return await self._append(appends, checks, actor, correlation_id, causation_id)

    async def append_reserved(
        self,
        appends: Sequence[Append],
        *,
        checks: Sequence[tuple[str, Expect]] = (),
        actor: str | None = None,
        correlation_id: str | None = None,
        causation_id: bytes | None = None,
    ) -> list[AppendResult]:
        """The engine's own door: as `append_many`, for streams that begin with `run:` or `$` as well."""
        return await self._append(appends, checks, actor, correlation_id, causation_id, is_reserved_allowed=True)

    @property
    def artifacts(self) -> MemoryArtifacts:
        """The large values that events name; they end with the log."""
        return self._artifacts

    async def read_from_snapshot(self, stream: str) -> tuple[Snapshot | None, StreamSlice]:
        """Return the stream's snapshot and the events from its version on; without one, all events of the stream."""
        snapshot = await self.load_snapshot(stream)
        return snapshot, await self.read_stream(stream, after=max(snapshot.version - 1, 0) if snapshot else 0)

    async def snapshot_streams(self) -> Sequence[str]:
        """Return the streams that have a snapshot."""
        self._guard.check()
        return list(self._snapshots)

    async def load_snapshot(self, stream: str) -> Snapshot | None:
        """Return the snapshot of this stream, or None."""
        self._guard.check()
        return self._snapshots.get(check_stream(stream, self._limits))

    async def save_snapshot(self, stream: str, snapshot: Snapshot) -> None:
        """Keep the snapshot unless there is a newer one of this stream."""
        self._guard.check()
        check_position(snapshot.version, "version")
        older = self._snapshots.get(check_stream(stream, self._limits))
        if older is None or older.version <= snapshot.version:
            self._snapshots[stream] = snapshot

    async def _append(
        self,
        appends: Sequence[Append],
        checks: Sequence[tuple[str, Expect]],
        actor: str | None,
        correlation_id: str | None,
        causation_id: bytes | None,
        *,
        is_reserved_allowed: bool = False,
    ) -> list[AppendResult]:
        self._guard.check()
        request = make_request(
            appends,
            checks,
            actor=actor if actor is not None else self._actor,
            correlation_id=correlation_id,
            causation_id=causation_id,
            registry=self._registry,
            limits=self._limits,
            is_reserved_allowed=is_reserved_allowed,
        )
        results = self._store(request)
        self._appended.set()
        self._appended = asyncio.Event()
        return results

    def _store(self, request: Request) -> list[AppendResult]:
        found = [[self._by_id.get(event.event_id) for event in part.events] for part in request.parts]
        if any(event is not None for events in found for event in events):
            return original_results(request.parts, found)
        expectations = [*((part.stream, part.expect) for part in request.parts), *request.checks]
        for stream, expect in expectations:
            actual = len(self._streams.get(stream, ()))
            if not expect.allows(actual):
                raise WrongExpectedVersion(stream, str(expect), actual)
        now_us = max(self._clock.now_us(), self._events[-1].recorded_at_us if self._events else 0)
        return [self._store_part(part, request.actor, now_us) for part in request.parts]

    def _store_part(self, part: Part, actor: str, now_us: int) -> AppendResult:
        first = len(self._events) + 1
        for event in part.events:
            recorded = self._record(event, part.stream, actor, now_us)
            self._events.append(recorded)
            self._streams.setdefault(part.stream, []).append(recorded)
            self._by_id[event.event_id] = recorded
        return AppendResult(
            stream=part.stream,
            version=len(self._streams[part.stream]),
            first_position=first,
            last_position=len(self._events),
            leaf=self._events[-1].leaf,
            recorded_at_us=now_us,
        )

    def _record(self, event: EncodedEvent, stream: str, actor: str, now_us: int) -> RecordedEvent:
        before = self._streams.get(stream)
        previous = before[-1].leaf if before else NO_HASH
        position, version = len(self._events) + 1, len(before or ()) + 1
        texts = b"".join(map(prefixed, (stream, event.type, actor, event.correlation_id or "")))
        leaf = seal(
            self._log_id,
            position,
            version,
            now_us,
            event.schema_version,
            event.event_id,
            event.causation_id or NO_ID,
            random_bytes(SALT_SIZE),
            event.body,
            previous,
            texts,
        )
        return RecordedEvent(
            position=position,
            stream=stream,
            version=version,
            type=event.type,
            schema_version=event.schema_version,
            event_id=event.event_id,
            recorded_at_us=now_us,
            actor=actor,
            correlation_id=event.correlation_id,
            causation_id=event.causation_id,
            body=event.body,
            data=self._registry.decode(event.type, event.schema_version, event.body),
            is_known=self._registry.knows(event.type, event.schema_version),
            leaf=leaf,
            prev_in_stream=previous,
        )

    async def read(
        self, stream: str, *, after: int = 0, limit: int | None = None
    ) -> AsyncGenerator[RecordedEvent, None]:
        """Give the events of `stream` behind version `after`, in version order."""
        check_stream(stream, self._limits)
        check_position(after, "after")
        check_limit(limit)
        self._guard.check()
        end = None if limit is None else after + limit
        for event in self._streams.get(stream, [])[after:end]:
            yield event

    async def read_back(
        self, stream: str, *, before: int | None = None, limit: int | None = None
    ) -> AsyncGenerator[RecordedEvent, None]:
        """Give the events of `stream` in front of version `before`, newest first."""
        self._guard.check()
        check_stream(stream, self._limits)
        end = None if before is None else max(check_position(before, "before") - 1, 0)
        check_limit(limit)
        for event in self._streams.get(stream, [])[:end][::-1][:limit]:
            yield event

    async def read_stream(self, stream: str, *, after: int = 0) -> StreamSlice:
        """Return the events of `stream` behind version `after` and the version it is at."""
        self._guard.check()
        check_stream(stream, self._limits)
        check_position(after, "after")
        events = self._streams.get(stream, [])
        return StreamSlice(events[after:], len(events))

    async def read_all(
        self,
        *,
        after: int = 0,
        limit: int | None = None,
        types: Iterable[str] | None = None,
        stream_prefix: str | None = None,
    ) -> AsyncGenerator[RecordedEvent, None]:
        """Give the events of the log behind position `after`, in position order."""
        self._guard.check()
        check_position(after, "after")
        check_limit(limit)
        wanted = check_wanted(types, stream_prefix)
        left = limit if limit is not None else -1  # which never becomes 0
        while left != 0:
            self._guard.check()
            page = self._events[after : after + PAGE]
            for event in page:
                if wanted is None or wanted.has(event.type, event.stream):
                    yield event
                    left -= 1
                    if left == 0:
                        return
            if len(page) < PAGE:
                return
            after += len(page)

    async def subscribe(
        self,
        *,
        after: int = 0,
        types: Iterable[str] | None = None,
        stream_prefix: str | None = None,
        marks: bool = False,
    ) -> AsyncGenerator[RecordedEvent | Mark, None]:
        """Give the events behind position `after`, then wait for new ones."""
        self._guard.check()
        check_position(after, "after")
        wanted = check_wanted(types, stream_prefix)
        self._check_not_beyond(after)

        async def read_page(after: int) -> Page:
            self._guard.check()
            page = self._events[after : after + PAGE]
            return [event for event in page if wanted is None or wanted.has(event.type, event.stream)], after + len(
                page
            )

        feed = follow(read_page, self._next_commit, after=after, page_size=PAGE, marks=marks)
        async with aclosing(feed):
            async for each in feed:
                yield each

    async def find(self, event_id: bytes) -> RecordedEvent | None:
        """Return the event with this id, or None."""
        self._guard.check()
        return self._by_id.get(check_event_id(event_id))

    async def head(self) -> Head:
        """Return the end of the log."""
        self._guard.check()
        return Head(len(self._events), self._events[-1].leaf if self._events else NO_HASH)

    async def check_page(self, *, after: int, limit: int = 1000) -> CheckedPage:
        """Nobody edits a memory behind its back; this counts the events."""
        self._guard.check()
        check_position(after, "after")
        check_position(limit, "limit")
        events = self._events[after : after + limit]
        named = [name for event in events if (name := name_artifact(event)) is not None]
        return CheckedPage(position=after + len(events), events=len(events), problems=(), artifacts=named)

    def _check_not_beyond(self, after: int) -> None:
        head = len(self._events)
        if after > head:
            raise StoreUnavailable(
                "store_identity_changed",
                f"the cursor {after} is beyond the end of the log at {head}: an older log stands here now",
                after=after,
                head=head,
            )

    def _next_commit(self) -> Callable[[float], Awaitable[None]]:
        appended = self._appended

        async def wait(_: float) -> None:
            await appended.wait()

        return wait
