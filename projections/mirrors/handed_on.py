"""What a mirrored log hands on to its log as it is: everything but appending.

A log in a database has more than the contract of logs asks for: a connection for a moment, on which views are kept.
`DatabaseHandedOn` hands that on, so that whatever keeps views of a log keeps them of a mirrored one.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

from eventlog.codec import Registry
from eventlog.heads import SignedHead
from eventlog.log import (
    Artifacts,
    CheckedPage,
    Head,
    Health,
    Mark,
    Problem,
    RecordedEvent,
    RunLog,
    Snapshot,
    StoredEntry,
    StreamSlice,
    TransactionalLog,
)
from eventlog.merkle import TreeHead
from eventlog.plain import Limits
from eventlog.scanning import Scanner
from eventlog.views import Selection, ViewBuild

__all__ = ["DatabaseHandedOn", "DatabaseLog", "DatabaseRunLog", "HandedOn"]

T = TypeVar("T")


@runtime_checkable
class DatabaseLog(TransactionalLog, Protocol):
    """What a log in a database can do beyond the contract of logs. See `SqliteLog`, whose promises these are."""

    def create_table(self, statement: str) -> Awaitable[None]:
        """Make a table for effects."""

    def read_view(self, function: Callable[..., T], *args: Any, of: Collection[str] | None = None) -> Awaitable[T]:
        """Read once the inline views are at the head."""

    def look(self, function: Callable[..., T], *args: Any) -> Awaitable[T]:
        """Read, wherever the views stand."""

    def write_view(self, function: Callable[..., T], *args: Any) -> Awaitable[T]:
        """Write rows of views, and nothing else."""

    def next_commit(self) -> Callable[[float], Awaitable[None]]:
        """Return what waits for a commit."""

    def scan_of(self, selection: Selection, *, schema: str = "") -> Any:
        """Return what reads events for views."""

    def tells_builds(self, on_build: Callable[[ViewBuild], None]) -> None:
        """Tell of views that are built."""

    def check_file(self) -> Awaitable[list[Problem]]:
        """Return damage that no hash of an event covers."""

    def backup(self, target: str | os.PathLike[str]) -> Awaitable[int]:
        """Copy the log."""


class DatabaseRunLog(RunLog, DatabaseLog, Protocol):
    """A log in a database that the runtime may use. Not to be looked for at runtime: an unopened log has no facts."""


class HandedOn:
    """Reads, facts, artifacts and snapshots of a log, with the promises of `eventlog.log`."""

    def __init__(self, log: RunLog) -> None:
        self.log: Final = log
        """The log itself. What is appended to it directly gets into the mirror with the next append, or start."""

    @property
    def store_id(self) -> bytes:
        """The 16 bytes that name the store."""
        return self.log.store_id

    @property
    def actor(self) -> str:
        """Who appends if a call does not say."""
        return self.log.actor

    @property
    def place(self) -> str | None:
        """The path beside which the runtime may keep its lock files."""
        return self.log.place

    @property
    def artifacts(self) -> Artifacts:
        """The large values that events name. They have no mirror."""
        return self.log.artifacts

    @property
    def scanner(self) -> Scanner | None:
        """What looks for secrets in all that is appended."""
        return self.log.scanner

    async def is_sealed(self, stream: str) -> bool:
        """Say whether the bodies of the stream are encrypted."""
        return await self.log.is_sealed(stream)

    async def health(self) -> Health:
        """Return the state of the store."""
        return await self.log.health()

    async def head(self) -> Head:
        """Return the end of the log."""
        return await self.log.head()

    async def sign_head(self) -> SignedHead | None:
        """Make sure that everything that is committed by now is under a signed head."""
        return await self.log.sign_head()

    async def tree_head(self, size: int | None = None) -> TreeHead:
        """Return size and root of the tree of the first `size` events."""
        return await self.log.tree_head(size)

    async def tree_state(self) -> tuple[int, bytes]:
        """Return the size and the frontier of the tree as they are stored."""
        return await self.log.tree_state()

    async def read_tiles(self, level: int, first: int, limit: int) -> list[tuple[int, bytes]]:
        """Return up to `limit` stored tiles of a level from the number `first` on."""
        return await self.log.read_tiles(level, first, limit)

    async def prove_inclusion(self, position: int, size: int) -> list[bytes]:
        """Return the proof that the event at `position` is in the tree of `size`."""
        return await self.log.prove_inclusion(position, size)

    async def prove_consistency(self, old_size: int, size: int) -> list[bytes]:
        """Return the proof that the tree of `size` begins with that of `old_size`."""
        return await self.log.prove_consistency(old_size, size)

    async def signed_heads(self, *, after: int = 0, limit: int | None = None) -> list[SignedHead]:
        """Return the signed heads that are kept with the log."""
        return await self.log.signed_heads(after=after, limit=limit)

    async def log_ids(self) -> list[tuple[int, bytes]]:
        """Return (first_position, log_id) of each incarnation of the log."""
        return await self.log.log_ids()

    def read_entries(self, stream: str | None = None, *, after: int = 0) -> AsyncGenerator[StoredEntry, None]:
        """Give the entries of a stream or of the whole log."""
        return self.log.read_entries(stream, after=after)

    async def find(self, event_id: bytes) -> RecordedEvent | None:
        """Return the event with this id, or None."""
        return await self.log.find(event_id)

    async def check_page(self, *, after: int, limit: int = 1000) -> CheckedPage:
        """Check the next `limit` events behind position `after`."""
        return await self.log.check_page(after=after, limit=limit)

    def read(self, stream: str, *, after: int = 0, limit: int | None = None) -> AsyncGenerator[RecordedEvent, None]:
        """Give the events of `stream` behind version `after`, in version order."""
        return self.log.read(stream, after=after, limit=limit)

    def read_back(
        self, stream: str, *, before: int | None = None, limit: int | None = None
    ) -> AsyncGenerator[RecordedEvent, None]:
        """Give the events of `stream` in front of version `before`, newest first."""
        return self.log.read_back(stream, before=before, limit=limit)

    async def read_stream(self, stream: str, *, after: int = 0) -> StreamSlice:
        """Return the events of `stream` behind version `after` and the version it is at."""
        return await self.log.read_stream(stream, after=after)

    def read_all(
        self,
        *,
        after: int = 0,
        limit: int | None = None,
        types: Iterable[str] | None = None,
        stream_prefix: str | None = None,
    ) -> AsyncGenerator[RecordedEvent, None]:
        """Give the events of the log behind position `after`, in position order."""
        return self.log.read_all(after=after, limit=limit, types=types, stream_prefix=stream_prefix)

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
        return self.log.subscribe(after=after, types=types, stream_prefix=stream_prefix, streams=streams, marks=marks)

    async def read_from_snapshot(self, stream: str) -> tuple[Snapshot | None, StreamSlice]:
        """Return the stream's snapshot and the events from its version on."""
        return await self.log.read_from_snapshot(stream)

    async def snapshot_streams(self) -> Sequence[str]:
        """Return the streams that have a snapshot."""
        return await self.log.snapshot_streams()

    async def load_snapshot(self, stream: str) -> Snapshot | None:
        """Return the snapshot of this stream, or None."""
        return await self.log.load_snapshot(stream)

    async def save_snapshot(self, stream: str, snapshot: Snapshot) -> None:
        """Keep the snapshot unless there is a newer one of this stream."""
        await self.log.save_snapshot(stream, snapshot)


class DatabaseHandedOn(HandedOn):
    """What a log in a database has besides. Nothing of it appends: what is written so are the rows of views."""

    @property
    def _inner(self) -> Any:
        """The log, of which more is known here than its type says."""
        return self.log

    @property
    def place(self) -> str:
        """The path of the database."""
        place: str = self._inner.place
        return place

    @property
    def registry(self) -> Registry:
        """Which Struct stands for which event type."""
        registry: Registry = self._inner.registry
        return registry

    @property
    def limits(self) -> Limits:
        """How large one append may be."""
        limits: Limits = self._inner.limits
        return limits

    @property
    def facts(self) -> Any:
        """What the database says of itself."""
        return self._inner.facts

    def tells_builds(self, on_build: Callable[[ViewBuild], None]) -> None:
        """Call `on_build` after each page of a view that is built, as on opening."""
        self._inner.tells_builds(on_build)

    async def create_table(self, statement: str) -> None:
        """Run one `CREATE TABLE` or `CREATE INDEX`: a table for effects, beside the log's."""
        await self._inner.create_table(statement)

    async def read_view(self, function: Callable[..., T], *args: Any, of: Collection[str] | None = None) -> T:
        """Run `function(connection, *args)` on a read connection once the inline views are at the head."""
        result: T = await self._inner.read_view(function, *args, of=of)
        return result

    async def look(self, function: Callable[..., T], *args: Any) -> T:
        """Run `function(connection, *args)` on a read connection, wherever the views stand."""
        result: T = await self._inner.look(function, *args)
        return result

    async def write_view(self, function: Callable[..., T], *args: Any) -> T:
        """Run `function(connection, *args)` in one write transaction under the file lock, for views only."""
        result: T = await self._inner.write_view(function, *args)
        return result

    def next_commit(self) -> Callable[[float], Awaitable[None]]:
        """Return what waits for the first commit of this process from now on."""
        waits: Callable[[float], Awaitable[None]] = self._inner.next_commit()
        return waits

    def scan_of(self, selection: Selection, *, schema: str = "") -> Any:
        """Return what reads the events of a selection through a connection."""
        return self._inner.scan_of(selection, schema=schema)

    async def check_file(self) -> list[Problem]:
        """Return damage that no hash of an event covers: of pages and indexes, and of the triggers on the tables."""
        problems: list[Problem] = await self._inner.check_file()
        return problems

    async def backup(self, target: str | os.PathLike[str]) -> int:
        """Copy the log, with its artifacts and without its mirror, to a new file and return its last position."""
        position: int = await self._inner.backup(target)
        return position
