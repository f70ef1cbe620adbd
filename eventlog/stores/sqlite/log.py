"""The log in an SQLite file: the contract of `eventlog.log`, kept by one writer, readers and a lock beside the file."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any, Final, TypeVar

from eventlog.codec import REGISTRY, Registry
from eventlog.errors import StoreBusy, StoreUnavailable
from eventlog.events import LOG_STREAM, BarrierRecorded
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
    StreamSlice,
)
from eventlog.plain import Limits
from eventlog.stores.clock import Clock, SystemClock
from eventlog.stores.entropy import jittered
from eventlog.stores.guard import Guard
from eventlog.stores.requests import (
    Request,
    check_event_id,
    check_limit,
    check_position,
    check_stream,
    check_wanted,
    make_request,
    make_writing_request,
)
from eventlog.stores.sqlite.backup import copy_database
from eventlog.stores.sqlite.connection import Durability, Settings, Worker, sqlite_has_wal_reset_fix
from eventlog.stores.sqlite.database import Facts, check_file, open_for_reading, open_for_writing, read_facts
from eventlog.stores.sqlite.failures import DRIVER_ERRORS, translate
from eventlog.stores.sqlite.file_lock import FileLock
from eventlog.stores.sqlite.identity import Identity, canonical_path
from eventlog.stores.sqlite.own_tables import create_table
from eventlog.stores.sqlite.reader import ReadConnections
from eventlog.stores.sqlite.rows import Rows
from eventlog.stores.sqlite.transaction import Transactions
from eventlog.stores.sqlite.views import InlineView, Views
from eventlog.stores.sqlite.wal import WalCheckpoints
from eventlog.stores.sqlite.writer import WriteConnection, Writer, WriterSettings
from eventlog.stores.subscription import Page, follow
from eventlog.stores.telemetry import logger

__all__ = ["SqliteLog"]

T = TypeVar("T")

PAGE: Final = 500
_CLOSE_TIMEOUT_S: Final = 1.2
_DRAIN_TIMEOUT_S: Final = 0.8


class SqliteLog:
    """A log in one SQLite file. Made by `eventlog.open`; use it as an async context manager, from one event loop."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        actor: str,
        registry: Registry = REGISTRY,
        limits: Limits | None = None,
        durability: Durability = "full",
        busy_timeout_s: float = 5.0,
        settle_timeout_s: float = 5.0,
        may_create: bool = True,
        is_read_only: bool = False,
        views: Iterable[InlineView] = (),
        clock: Clock | None = None,
    ) -> None:
        self._given_path: Final = os.fspath(path)
        self._actor: Final = actor
        self._registry: Final = registry
        self._limits: Final = limits or Limits()
        self._durability: Final[Durability] = durability
        self._timeouts: Final = WriterSettings(busy_timeout_s=busy_timeout_s, settle_timeout_s=settle_timeout_s)
        self._may_create: Final = may_create
        self._is_read_only: Final = is_read_only
        self._clock: Final = clock or SystemClock()
        self._views: Final = Views(views, self._make_rows)
        self._guard: Final = Guard()
        self._lock: FileLock | None = None
        self._connection: WriteConnection | None = None
        self._writer: Writer | None = None
        self._committed: set[asyncio.Future[None]] = set()

    # ── opening and closing ──────────────────────────────────────────────────────────────────────────────────────────

    async def __aenter__(self) -> SqliteLog:
        self._loop = self._guard.claim()
        self._path = canonical_path(self._given_path)
        self._settings = Settings(
            self._path,
            durability=self._durability,
            busy_timeout_s=self._timeouts.busy_timeout_s,
            is_immutable=self._is_read_only and _is_on_read_only_medium(self._path),
        )
        if not self._settings.is_immutable:
            self._check_exists()
            self._lock = FileLock(f"{self._path}.lock")
        self._reads = ReadConnections(
            lambda: open_for_reading(self._settings, self._lock),
            self._lock,
            self._path,
            open_timeout_s=self._timeouts.busy_timeout_s + 1,
        )
        try:
            await self._open()
        except BaseException:
            self._guard.close()
            await self._close()
            raise
        self._guard.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Take no more work, finish what was taken, and give the files back within about two seconds."""
        if not self._guard.is_open:
            return
        self._guard.check()
        self._guard.close()
        self._wake_subscribers()
        closing = asyncio.ensure_future(self._close())
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            await asyncio.wait({closing})  # bounded, and leaving a half-closed log behind would help nobody
            raise

    def _check_exists(self) -> None:
        if os.path.exists(self._path) or (self._may_create and not self._is_read_only):
            return
        raise StoreUnavailable("store_not_found", f"there is no log at {self._given_path!r}", path=self._given_path)

    async def _open(self) -> None:
        if not self._is_read_only:
            self._connection = await self._open_writer(may_create=self._may_create)
        self._facts = await self._reads.run(read_facts)
        logger.debug("opened", path=self._path, is_read_only=self._is_read_only)
        if self._connection is None:
            return
        self._writer = Writer(
            self._connection,
            self._timeouts,
            self._clock,
            reopen=self._reopen_writer,
            discard=self._discard_writer,
            make_barrier=self._barrier,
            on_commit=self._wake_subscribers,
        )
        if self._views:
            await self._in_time(self._writer.run_between(self._create_views))

    async def _open_writer(self, *, may_create: bool) -> WriteConnection:
        lock = self._lock
        assert lock is not None, "only a log on a read-only medium has no lock, and no writer"
        worker = Worker(lambda: open_for_writing(self._settings, lock, may_create=may_create), lock, self._path)
        await self._in_time(worker.open())
        identity = Identity(self._path)
        transactions = Transactions(lock, identity, self._clock, self._views or None)
        return WriteConnection(worker, transactions, WalCheckpoints(lock, identity))

    async def _reopen_writer(self) -> WriteConnection:
        """Open the log again after a failure, and make sure that it is still this log."""
        connection = await self._open_writer(may_create=False)
        try:
            facts = await connection.worker.run(read_facts)
        except BaseException:
            await self._discard_writer(connection)
            raise
        if facts.store_id != self._facts.store_id:
            await self._discard_writer(connection)
            raise StoreUnavailable("store_identity_changed", "another log stands here now", path=self._path)
        return connection

    async def _discard_writer(self, connection: WriteConnection) -> None:
        await connection.worker.close(timeout_s=_CLOSE_TIMEOUT_S)

    async def _close(self) -> None:
        """Finish what was taken; close readers, then the writer, then the lock file; all within `_CLOSE_TIMEOUT_S`.

        What waits for a lock that somebody else holds is left to its thread, which ends once it gets the lock.
        """
        end_s = self._loop.time() + _CLOSE_TIMEOUT_S
        writer = self._writer
        if writer is not None:
            await writer.drain(_DRAIN_TIMEOUT_S)
            self._connection = writer.connection
            if writer.poison is None:
                final = writer.connection.worker.start(writer.connection.wal.cut)
                await asyncio.wait({final}, timeout=self._left_s(end_s))
        await self._reads.close(timeout_s=self._left_s(end_s))
        if self._connection is not None:
            await self._connection.worker.close(timeout_s=self._left_s(end_s))
        if self._lock is not None:
            self._lock.close()

    def _left_s(self, end_s: float) -> float:
        return max(end_s - self._loop.time(), 0.01)

    async def _in_time(self, opening: Awaitable[T]) -> T:
        """Wait for a hop that needs the file lock. The thread may wait for ever, the caller does not."""
        try:
            async with asyncio.timeout(self._timeouts.busy_timeout_s + 1):
                return await opening
        except TimeoutError:
            raise StoreBusy("the write lock was not free in time", path=self._path) from None
        except DRIVER_ERRORS as error:
            raise translate(error, "cannot prepare the log") from error

    def _create_views(self, connection: sqlite3.Connection) -> None:
        assert self._lock is not None, "views are created by a writer"
        with self._lock:
            self._views.create(connection)
            self._views.catch_up(connection)

    def _barrier(self, why: str) -> Request:
        append = Append(LOG_STREAM, [BarrierRecorded(reason=why[:500])], Expect.any())
        return self._request([append], (), None, None, None, is_reserved_allowed=True)

    def _make_rows(self) -> Rows:
        return Rows(self._facts, self._registry)

    # ── facts ────────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def store_id(self) -> bytes:
        """The 16 bytes that name the store; they survive a restore."""
        return self._facts.store_id

    @property
    def facts(self) -> Facts:
        """What the database says of itself."""
        return self._facts

    @property
    def place(self) -> str | None:
        """The real path of the database, beside which the runtime keeps its lock files."""
        return self._path

    @property
    def limits(self) -> Limits:
        """How large one append may be."""
        return self._limits

    async def health(self) -> Health:
        """Return the state of the store, without waiting for a writer."""
        self._guard.check()
        head, behind = await self._reads.run(self._head_and_views)
        writer = self._writer
        return Health(
            store="sqlite",
            log_id=self._facts.log_ids[-1][1].hex(),
            store_id=self._facts.store_id.hex(),
            format_version=self._facts.format_version,
            head=head,
            state="poisoned" if writer is not None and writer.poison is not None else "open",
            queued=writer.queued if writer is not None else 0,
            durability=self._durability,
            is_read_only=writer is None,
            sqlite_version=sqlite3.sqlite_version,
            has_wal_reset_fix=sqlite_has_wal_reset_fix(),
            is_locked_by_file=self._lock is not None,
            wal_bytes=_size(f"{self._path}-wal"),
            views_behind=behind,
            last_wal_checkpoint_error=writer.connection.wal.last_error if writer is not None else None,
        )

    def _head_and_views(self, connection: sqlite3.Connection) -> tuple[int, dict[str, int]]:
        rows = self._make_rows()
        return rows.head(connection)[0], Views((), lambda: rows).behind(connection)

    # ── appending ────────────────────────────────────────────────────────────────────────────────────────────────────

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
        """Append events to one stream; *durable* on return."""
        self._guard.check()
        request = self._request([Append(stream, events, expect)], (), actor, correlation_id, causation_id)
        return (await self._submit(request))[0]

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
        self._guard.check()
        return await self._submit(self._request(appends, checks, actor, correlation_id, causation_id))

    async def append_reserved(
        self, appends: Sequence[Append], *, checks: Sequence[tuple[str, Expect]] = (), actor: str | None = None
    ) -> list[AppendResult]:
        """The engine's own door: as `append_many`, for streams that begin with `run:` or `$` as well."""
        self._guard.check()
        return await self._submit(self._request(appends, checks, actor, None, None, is_reserved_allowed=True))

    async def append_with(
        self, stream: str, type: str, make: Callable[[Any], Any], *, expect: Expect, actor: str | None = None
    ) -> AppendResult:
        """Append the event that `make(connection)` returns, in the transaction in which it is called."""
        self._guard.check()
        request = make_writing_request(
            stream,
            type,
            make,
            expect,
            actor=actor if actor is not None else self._actor,
            registry=self._registry,
            limits=self._limits,
        )
        return (await self._submit(request))[0]

    async def create_table(self, statement: str) -> None:
        """Run one `CREATE TABLE` or `CREATE INDEX`, best with `IF NOT EXISTS`: a table for effects, beside the log's.

        Raises InvalidInput(`invalid_argument`) for any other statement, for a table of the log or of one of its views,
        and for what SQLite refuses.
        """
        await self.write_view(create_table, statement)

    def _request(
        self,
        appends: Sequence[Append],
        checks: Sequence[tuple[str, Expect]],
        actor: str | None,
        correlation_id: str | None,
        causation_id: bytes | None,
        *,
        is_reserved_allowed: bool = False,
    ) -> Request:
        return make_request(
            appends,
            checks,
            actor=actor if actor is not None else self._actor,
            correlation_id=correlation_id,
            causation_id=causation_id,
            registry=self._registry,
            limits=self._limits,
            is_reserved_allowed=is_reserved_allowed,
        )

    def _submit(self, request: Request) -> asyncio.Future[list[AppendResult]]:
        """Hand a request to the writer, who owns the future: a cancelled caller is "not told", the commit goes on."""
        if self._writer is None:
            raise StoreUnavailable("store_readonly", "the log was opened for reading only")
        return self._writer.submit(request)

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def read(
        self, stream: str, *, after: int = 0, limit: int | None = None
    ) -> AsyncGenerator[RecordedEvent, None]:
        """Give the events of `stream` behind version `after`, verified and in version order."""
        self._guard.check()
        check_stream(stream, self._limits)
        check_position(after, "after")
        check_limit(limit)
        rows = self._make_rows()
        left = limit if limit is not None else -1
        while left != 0:
            size = PAGE if left < 0 else min(PAGE, left)
            self._guard.check()
            events, _ = await self._reads.run(rows.stream_page, stream, after, size)
            for event in events:
                yield event
            if len(events) < size:
                return
            after = events[-1].version
            left = left - len(events) if left > 0 else left

    async def read_back(
        self, stream: str, *, before: int | None = None, limit: int | None = None
    ) -> AsyncGenerator[RecordedEvent, None]:
        """Give the events of `stream` in front of version `before`, verified and newest first."""
        self._guard.check()
        check_stream(stream, self._limits)
        before = None if before is None else check_position(before, "before")
        check_limit(limit)
        rows = self._make_rows()
        left = limit if limit is not None else -1  # which never becomes 0
        while left != 0:
            size = PAGE if left < 0 else min(PAGE, left)
            self._guard.check()
            events = await self._reads.run(rows.stream_page_back, stream, before, size)
            for event in events:
                yield event
            if len(events) < size:
                return
            before = events[-1].version
            left = left - len(events) if left > 0 else left

    async def read_stream(self, stream: str, *, after: int = 0) -> StreamSlice:
        """Return the events of `stream` behind version `after` and the version it was at, from one snapshot."""
        self._guard.check()
        check_stream(stream, self._limits)
        check_position(after, "after")
        events, version = await self._reads.run(self._make_rows().stream_page, stream, after, -1)
        return StreamSlice(events, version)

    async def read_all(
        self,
        *,
        after: int = 0,
        limit: int | None = None,
        types: Iterable[str] | None = None,
        stream_prefix: str | None = None,
    ) -> AsyncGenerator[RecordedEvent, None]:
        """Give the events of the log behind position `after`, verified and in position order."""
        self._guard.check()
        check_position(after, "after")
        check_limit(limit)
        wanted = check_wanted(types, stream_prefix)
        rows = self._make_rows()
        left = limit if limit is not None else -1  # which never becomes 0
        while left != 0:
            size = PAGE if left < 0 or wanted is not None else min(PAGE, left)
            self._guard.check()
            events, position = await self._reads.run(rows.log_page, after, size, wanted)
            for event in events:
                yield event
                left -= 1
                if left == 0:
                    return
            if position - after < size:
                return
            after = position

    async def subscribe(
        self,
        *,
        after: int = 0,
        types: Iterable[str] | None = None,
        stream_prefix: str | None = None,
        marks: bool = False,
    ) -> AsyncGenerator[RecordedEvent | Mark, None]:
        """Give the events behind position `after`, then wait for new ones, those of other processes too."""
        self._guard.check()
        check_position(after, "after")
        wanted = check_wanted(types, stream_prefix)
        rows = self._make_rows()
        await self._check_not_beyond(after)

        identity = Identity(self._path)

        async def read_page(after: int) -> Page:
            self._guard.check()
            identity.check_database()
            return await self._reads.run(rows.log_page, after, PAGE, wanted)

        feed = follow(read_page, self._next_commit, after=after, page_size=PAGE, marks=marks)
        async with aclosing(feed):
            async for each in feed:
                yield each

    async def find(self, event_id: bytes) -> RecordedEvent | None:
        """Return the event with this id, verified, or None."""
        self._guard.check()
        return await self._reads.run(self._make_rows().find, check_event_id(event_id))

    async def head(self) -> Head:
        """Return the end of the log."""
        self._guard.check()
        return Head(*await self._reads.run(self._make_rows().head))

    async def check_page(self, *, after: int, limit: int = 1000) -> CheckedPage:
        """Check the next `limit` events behind position `after` and go on behind what is wrong."""
        self._guard.check()
        check_position(after, "after")
        check_position(limit, "limit")
        return await self._reads.run(self._make_rows().check_page, after, limit)

    async def read_view(self, function: Callable[..., T], *args: Any) -> T:
        """Run `function(connection, *args)` on a read connection once the inline views are at the head.

        Raises EventLogError(`view_failed`) if a view cannot be brought there.
        """
        self._guard.check()
        if self._writer is not None and self._views:
            behind = await self._reads.run(self._views_behind)
            if behind:
                await self._in_time(self._writer.run_between(self._catch_up_views))
        return await self._reads.run(function, *args)

    async def write_view(self, function: Callable[..., T], *args: Any) -> T:
        """Run `function(connection, *args)` in one write transaction under the file lock, for views only."""
        self._guard.check()
        if self._writer is None:
            raise StoreUnavailable("store_readonly", "the log was opened for reading only")
        result: T = await self._in_time(self._writer.run_between(self._write_view, function, *args))
        return result

    def _views_behind(self, connection: sqlite3.Connection) -> bool:
        return self._views.are_behind(connection)

    def _catch_up_views(self, connection: sqlite3.Connection) -> None:
        assert self._lock is not None, "views are written by a writer"
        with self._lock:
            self._views.catch_up(connection)
        self._views.require_all()

    def _write_view(self, connection: sqlite3.Connection, function: Callable[..., T], *args: Any) -> T:
        assert self._lock is not None, "views are written by a writer"
        with self._lock:
            connection.execute("BEGIN IMMEDIATE")
            try:
                result = function(connection, *args)
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")
            return result

    async def check_file(self) -> list[Problem]:
        """Return damage that no hash of an event covers: of pages and indexes, and of the triggers on the tables."""
        self._guard.check()
        return await self._reads.run(check_file)

    async def backup(self, target: str | os.PathLike[str]) -> int:
        """Copy the log to a new file through SQLite's backup API and return its last position.

        Raises StoreUnavailable(`store_cannot_open`) if the target exists. The copy keeps store id and log id.
        """
        self._guard.check()
        return await self._reads.run(copy_database, os.fspath(target))

    # ── guards ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _check_not_beyond(self, after: int) -> None:
        head = await self.head()
        if after > head.position:
            raise StoreUnavailable(
                "store_identity_changed",
                f"the cursor {after} is beyond the end of the log at {head.position}: an older log stands here now",
                after=after,
                head=head.position,
            )

    def _next_commit(self) -> Callable[[float], Awaitable[None]]:
        committed: asyncio.Future[None] = self._loop.create_future()
        self._committed.add(committed)
        committed.add_done_callback(self._committed.discard)

        async def wait(seconds: float) -> None:
            await asyncio.wait({committed}, timeout=jittered(seconds))
            committed.cancel()

        return wait

    def _wake_subscribers(self) -> None:
        for future in list(self._committed):
            if not future.done():
                future.set_result(None)


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:
        return None


def _is_on_read_only_medium(path: str) -> bool:
    """Say whether the database cannot be written and has no write-ahead log that would have to be read with it."""
    directory = os.path.dirname(path) or "."
    return os.path.exists(path) and not os.access(directory, os.W_OK) and not _size(f"{path}-wal")
