"""A log in memory: the whole contract without a file. For tests, and for programs whose log may end with them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from typing import Any, Final

from msgspec.structs import replace

from eventlog.codec import REGISTRY, Registry
from eventlog.entry import (
    BODY_PLAIN,
    NO_HASH,
    NO_ID,
    SALT_SIZE,
    Entry,
    content_commitment,
    encode,
    prefixed,
    seal,
)
from eventlog.errors import InvalidInput, StoreUnavailable, WrongExpectedVersion
from eventlog.events import JUDGED_EVENTS
from eventlog.heads import SignedHead
from eventlog.log import (
    Append,
    AppendResult,
    CheckedPage,
    Expect,
    Head,
    Health,
    Mark,
    Problem,
    RecordedEvent,
    Snapshot,
    StoredEntry,
    StreamSlice,
)
from eventlog.merkle import Frontier, Hashes, TreeHead, consistency_proof, frontier_of, inclusion_proof, node_hash
from eventlog.plain import Limits
from eventlog.scanning import DEFAULT_SCANNER, Scanner
from eventlog.stores.artifacts import MemoryArtifacts, name_artifact
from eventlog.stores.clock import Clock, SystemClock
from eventlog.stores.entropy import random_bytes
from eventlog.stores.guard import Guard
from eventlog.stores.judged import to_judge
from eventlog.stores.repeats import original_results
from eventlog.stores.requests import (
    EncodedEvent,
    Part,
    Request,
    Wanted,
    check_event_id,
    check_limit,
    check_position,
    check_stream,
    check_wanted,
    make_request,
)
from eventlog.stores.subscription import Page, Tail, TailPage, Unreadable, follow

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
        scanner: Scanner | None = DEFAULT_SCANNER,
    ) -> None:
        self._actor: Final = actor
        self._registry: Final = registry
        self._limits: Final = limits or Limits()
        self._clock: Final = clock or SystemClock()
        self._scanner: Final = scanner
        self._store_id: Final = random_bytes(16)
        self._log_id: Final = random_bytes(16)
        self._events: list[RecordedEvent] = []  # as stored: they are decoded whenever they are read
        self._streams: dict[str, list[RecordedEvent]] = {}
        self._by_id: dict[bytes, RecordedEvent] = {}
        self._salts: list[bytes] = []
        self._frontier: Final = Frontier()
        self._tiles: list[tuple[int, int, bytes]] = []
        self._guard: Final = Guard()
        self._artifacts: Final = MemoryArtifacts(self._guard.check, scanner)
        self._snapshots: Final[dict[str, Snapshot]] = {}
        self._tail: Final = Tail(_Feed(self._guard, self._events, self._registry))

    async def __aenter__(self) -> MemoryLog:
        self._guard.claim()
        self._guard.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Take no more work."""
        self._guard.close()
        self._tail.close()

    @property
    def store_id(self) -> bytes:
        """The 16 bytes that name the store."""
        return self._store_id

    @property
    def registry(self) -> Registry:
        """Which Struct stands for which event type."""
        return self._registry

    @property
    def actor(self) -> str:
        """Who appends if a call does not say."""
        return self._actor

    @property
    def place(self) -> None:
        """A log in memory lives in one process and has no place for lock files."""
        return None

    @property
    def scanner(self) -> Scanner | None:
        """What looks for secrets in everything that is appended."""
        return self._scanner

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
            format_version=2,
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
        subject: str | None = None,
    ) -> AppendResult:
        """Append events to one stream. Nothing is encrypted here: what is in memory ends with the log."""
        results = await self._append([Append(stream, events, expect, subject)], (), actor, correlation_id, causation_id)
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
        before_us: int | None = None,
    ) -> list[AppendResult]:
        """The engine's own door: as `append_many`, for streams that begin with `run:` or `$` as well."""
        return await self._append(
            appends, checks, actor, correlation_id, causation_id, is_reserved_allowed=True, before_us=before_us
        )

    @property
    def artifacts(self) -> MemoryArtifacts:
        """The large values that events name; they end with the log."""
        return self._artifacts

    async def is_sealed(self, stream: str) -> bool:
        """Nothing is encrypted here."""
        return False

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
        before_us: int | None = None,
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
            scanner=self._scanner,
            is_reserved_allowed=is_reserved_allowed,
            before_us=before_us,
        )
        results = self._store(request)
        self._tail.wake()
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
        late = request.lateness(now_us)
        if late is not None:
            raise late
        return [self._store_part(part, request.actor, now_us) for part in request.parts]

    def _store_part(self, part: Part, actor: str, now_us: int) -> AppendResult:
        first = len(self._events) + 1
        for event in part.events:
            self._salts.append(random_bytes(SALT_SIZE))
            recorded = self._record(event, part.stream, actor, now_us)
            self._frontier.extend([recorded.leaf], self._tiles)
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
            self._salts[-1],
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
            data=None,
            is_known=False,
            leaf=leaf,
            prev_in_stream=previous,
        )

    # ── the tree ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def sign_head(self) -> SignedHead | None:
        """Nobody signs the heads of a log that ends with its program."""
        self._guard.check()
        return None

    async def tree_head(self, size: int | None = None) -> TreeHead:
        """Return size and root of the tree of the first `size` events, of all if that is None."""
        size = self._check_size(len(self._events) if size is None else size)
        return TreeHead(size, frontier_of(size, self._hashes).root())

    async def tree_state(self) -> tuple[int, bytes]:
        """Return the size and the frontier of the tree."""
        self._guard.check()
        return self._frontier.size, self._frontier.to_bytes()

    async def read_tiles(self, level: int, first: int, limit: int) -> list[tuple[int, bytes]]:
        """Return up to `limit` tiles of a level from the number `first` on, as (number, root)."""
        self._guard.check()
        return [(number, root) for at, number, root in self._tiles if at == level and number >= first][:limit]

    async def prove_inclusion(self, position: int, size: int) -> list[bytes]:
        """Return the RFC 6962 proof that the event at `position` is in the tree of `size`."""
        if not 1 <= self._check_number(position) <= self._check_size(size):
            raise InvalidInput("invalid_argument", f"the tree of size {size} has no position {position}")
        return inclusion_proof(position - 1, size, self._hashes)

    async def prove_consistency(self, old_size: int, size: int) -> list[bytes]:
        """Return the RFC 6962 proof that the tree of `size` begins with that of `old_size`."""
        if not 0 <= self._check_number(old_size) <= self._check_size(size):
            raise InvalidInput("invalid_argument", f"a tree of size {size} does not begin with one of size {old_size}")
        return consistency_proof(old_size, size, self._hashes)

    async def signed_heads(self, *, after: int = 0, limit: int | None = None) -> list[SignedHead]:
        """Nobody has signed any."""
        self._guard.check()
        return []

    async def log_ids(self) -> list[tuple[int, bytes]]:
        """Return (first_position, log_id) of the one incarnation."""
        self._guard.check()
        return [(1, self._log_id)]

    async def read_entries(self, stream: str | None = None, *, after: int = 0) -> AsyncGenerator[StoredEntry, None]:
        """Give the entries of `stream` behind version `after`, or of the whole log behind position `after`."""
        self._guard.check()
        check_position(after, "after")
        events = self._events if stream is None else self._streams.get(check_stream(stream, self._limits), [])
        for event in events[after:]:
            yield self._entry(event)

    @property
    def _hashes(self) -> Hashes:
        def hashes(level: int, index: int) -> bytes:
            found = [event.leaf for event in self._events[index << level : (index + 1) << level]]
            while len(found) > 1:
                found = [node_hash(found[at], found[at + 1]) for at in range(0, len(found), 2)]
            return found[0]

        return hashes

    def _check_number(self, number: int) -> int:
        self._guard.check()
        if type(number) is not int:
            raise InvalidInput("invalid_argument", f"a place in the tree is a whole number, not {number!r:.40}")
        return number

    def _check_size(self, size: int) -> int:
        self._guard.check()
        last = len(self._events)
        if type(size) is not int or not 0 <= size <= last:
            message = f"the log has no tree of size {size!r:.40}: it ends at position {last}"
            raise InvalidInput("invalid_argument", message)
        return size

    def _entry(self, event: RecordedEvent) -> StoredEntry:
        salt = self._salts[event.position - 1]
        entry = Entry(
            log_id=self._log_id,
            position=event.position,
            version=event.version,
            recorded_at_us=event.recorded_at_us,
            schema_version=event.schema_version,
            event_id=event.event_id,
            causation_id=event.causation_id or NO_ID,
            body_kind=BODY_PLAIN,
            body_len=len(event.body),
            content_commit=content_commitment(salt, event.body),
            stored_hash=NO_HASH,
            prev_in_stream=event.prev_in_stream,
            stream=event.stream,
            type=event.type,
            actor=event.actor,
            correlation_id=event.correlation_id or "",
        )
        return StoredEntry(
            position=event.position,
            version=event.version,
            type=event.type,
            entry=encode(entry),
            stored=event.body,
            salt=salt,
        )

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def read(
        self, stream: str, *, after: int = 0, limit: int | None = None
    ) -> AsyncGenerator[RecordedEvent, None]:
        """Give the events of `stream` behind version `after`, in version order."""
        check_stream(stream, self._limits)
        check_position(after, "after")
        check_limit(limit)
        self._guard.check()
        end = None if limit is None else after + limit
        for stored in self._streams.get(stream, [])[after:end]:
            yield self._decoded(stored)

    async def read_back(
        self, stream: str, *, before: int | None = None, limit: int | None = None
    ) -> AsyncGenerator[RecordedEvent, None]:
        """Give the events of `stream` in front of version `before`, newest first."""
        self._guard.check()
        check_stream(stream, self._limits)
        end = None if before is None else max(check_position(before, "before") - 1, 0)
        check_limit(limit)
        for stored in self._streams.get(stream, [])[:end][::-1][:limit]:
            yield self._decoded(stored)

    async def read_stream(self, stream: str, *, after: int = 0) -> StreamSlice:
        """Return the events of `stream` behind version `after` and the version it is at."""
        self._guard.check()
        check_stream(stream, self._limits)
        check_position(after, "after")
        events = self._streams.get(stream, [])
        return StreamSlice([self._decoded(stored) for stored in events[after:]], len(events))

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
        wanted = check_wanted(types, stream_prefix, registry=self._registry)
        left = limit if limit is not None else -1  # which never becomes 0
        while left != 0:
            self._guard.check()
            page = self._events[after : after + PAGE]
            for event in _wanted(page, wanted, self._registry):
                yield event
                left -= 1
                if left == 0:
                    return
            if len(page) < PAGE:
                return
            after += len(page)

    def subscribe(
        self,
        *,
        after: int = 0,
        types: Iterable[str] | None = None,
        stream_prefix: str | None = None,
        streams: Iterable[str] | None = None,
        marks: bool = False,
    ) -> AsyncGenerator[RecordedEvent | Mark, None]:
        """Give the events behind position `after`, then wait for new ones."""

        async def begin() -> tuple[Tail, Wanted | None]:
            self._guard.check()
            check_position(after, "after")
            wanted = check_wanted(types, stream_prefix, self._registry, streams)
            self._check_not_beyond(after)
            return self._tail, wanted

        return follow(begin, after=after, marks=marks)

    async def find(self, event_id: bytes) -> RecordedEvent | None:
        """Return the event with this id, or None."""
        self._guard.check()
        stored = self._by_id.get(check_event_id(event_id))
        return None if stored is None else self._decoded(stored)

    async def head(self) -> Head:
        """Return the end of the log."""
        self._guard.check()
        if not self._events:
            return Head(0, NO_HASH)
        return Head(len(self._events), self._events[-1].leaf, self._events[-1].recorded_at_us)

    async def check_page(self, *, after: int, limit: int = 1000) -> CheckedPage:
        """Nobody edits a memory behind its back; this finds what cannot be decoded."""
        self._guard.check()
        check_position(after, "after")
        check_position(limit, "limit")
        events = self._events[after : after + limit]
        problems = [problem for stored in events if (problem := _problem(stored, self._registry)) is not None]
        named = [name for event in events if (name := name_artifact(event)) is not None]
        return CheckedPage(
            position=after + len(events),
            events=len(events),
            problems=problems,
            artifacts=named,
            leaves=[event.leaf for event in events],
            judged=list(_judged(events, self._registry)),
        )

    def _decoded(self, stored: RecordedEvent) -> RecordedEvent:
        return _decode(stored, self._registry)

    def _check_not_beyond(self, after: int) -> None:
        head = len(self._events)
        if after > head:
            raise StoreUnavailable(
                "store_identity_changed",
                f"the cursor {after} is beyond the end of the log at {head}: an older log stands here now",
                after=after,
                head=head,
            )


class _Feed:
    """The events as subscriptions read them: nobody else appends to them."""

    is_shared: Final = False

    def __init__(self, guard: Guard, events: list[RecordedEvent], registry: Registry) -> None:
        self._guard: Final = guard
        self._events: Final = events
        self._registry: Final = registry

    def check(self) -> None:
        """Raise EventLogError unless the log may be read."""
        self._guard.check()

    async def read_page(self, after: int, limit: int, wanted: Wanted | None) -> Page:
        """Return the wanted events among the next positions."""
        self._guard.check()
        page = self._events[after : after + limit]
        return list(_wanted(page, wanted, self._registry)), after + len(page)

    async def read_tail(self, after: int, limit: int) -> TailPage:
        """Return the events at the next positions."""
        self._guard.check()
        return [_decode_if_it_can_be(stored, self._registry) for stored in self._events[after : after + limit]]


def _decode(stored: RecordedEvent, registry: Registry) -> RecordedEvent:
    """Return a stored event as it is read: decoded for this reader, as the registry has its type by now."""
    type_name, stored_type, data, is_known = registry.read(
        stored.type, stored.schema_version, stored.body, position=stored.position, stream=stored.stream
    )
    return replace(stored, type=type_name, stored_type=stored_type, data=data, is_known=is_known)


def _decode_if_it_can_be(stored: RecordedEvent, registry: Registry) -> RecordedEvent | Unreadable:
    try:
        return _decode(stored, registry)
    except InvalidInput:
        return Unreadable(stored.position, stored.stream)


def _problem(stored: RecordedEvent, registry: Registry) -> Problem | None:
    try:
        _decode(stored, registry)
    except InvalidInput as error:
        return Problem(reason=error.code, message=str(error), position=stored.position, stream=stored.stream)
    return None


def _judged(page: Sequence[RecordedEvent], registry: Registry) -> Iterator[RecordedEvent]:
    for stored in page:
        if stored.type in JUDGED_EVENTS:
            said = to_judge(_decode(stored, registry))
            assert said is not None, "its type is one of ours, and this process has written it in today's shape"
            yield said


def _wanted(page: Sequence[RecordedEvent], wanted: Wanted | None, registry: Registry) -> Iterator[RecordedEvent]:
    """Give the wanted ones of these stored events as they are read; what is surely not wanted is not decoded."""
    for stored in page:
        if wanted is None or wanted.has(stored.type, stored.stream):
            event = _decode(stored, registry)
            if wanted is None or wanted.has(event.type, event.stream):
                yield event
