"""The log in an SQLite file: the contract of `eventlog.log`, kept by one writer, readers and a lock beside the file."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

from eventlog.codec import REGISTRY, Registry
from eventlog.errors import CommitOutcomeUnknown, EventLogError, InvalidInput, Misuse, StoreUnavailable
from eventlog.events import LOG_STREAM, BarrierRecorded
from eventlog.heads import HeadSigner, SignedHead
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
    StreamSlice,
)
from eventlog.plain import Limits
from eventlog.scanning import DEFAULT_SCANNER, Scanner
from eventlog.stores.artifacts import ArtifactFolder, FileArtifacts, artifacts_beside
from eventlog.stores.body_cipher import BodyCipher
from eventlog.stores.clock import Clock, SystemClock
from eventlog.stores.entropy import random_bytes
from eventlog.stores.guard import Guard
from eventlog.stores.head_keeper import HeadKeeper, HeadTimes
from eventlog.stores.requests import (
    Request,
    Wanted,
    check_event_id,
    check_limit,
    check_position,
    check_stream,
    check_wanted,
    make_request,
    make_writing_request,
)
from eventlog.stores.sqlite.backup import copy_log
from eventlog.stores.sqlite.commits import Commits
from eventlog.stores.sqlite.connection import Durability, sqlite_has_wal_reset_fix
from eventlog.stores.sqlite.database import Facts, check_file, read_facts
from eventlog.stores.sqlite.erasing import Erasing
from eventlog.stores.sqlite.erasures import (
    is_sealed,
)
from eventlog.stores.sqlite.feed import Feed
from eventlog.stores.sqlite.files import LogFiles, file_size
from eventlog.stores.sqlite.own_tables import create_table
from eventlog.stores.sqlite.rows import Rows
from eventlog.stores.sqlite.scan import Scan
from eventlog.stores.sqlite.signed_heads import SignedHeads, newest_kept_head, restored_behind
from eventlog.stores.sqlite.snapshots import load_snapshot, read_from_snapshot, save_snapshot, snapshot_streams
from eventlog.stores.sqlite.transaction import Batch, Transactions
from eventlog.stores.sqlite.tree import tree_head
from eventlog.stores.sqlite.tree_reads import TreeReads
from eventlog.stores.sqlite.views import InlineView, Views, views_behind
from eventlog.stores.sqlite.whole import CommitInDoubt, ConnectionUnusable
from eventlog.stores.sqlite.writer import WriteConnection, Writer, WriterSettings
from eventlog.stores.subscription import Tail, follow
from eventlog.stores.telemetry import logger
from eventlog.views import Selection, ViewBuild

if TYPE_CHECKING:
    from eventlog.stores.subject_keys import SubjectKeys

__all__ = ["SqliteLog"]

T = TypeVar("T")

PAGE: Final = 500


class SqliteLog(TreeReads, Erasing):
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
        signer: HeadSigner | None = None,
        head_times: HeadTimes | None = None,
        restored: str | None = None,
        subject_keys: SubjectKeys | None = None,
        scanner: Scanner | None = DEFAULT_SCANNER,
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
        self._scanner: Final = scanner
        self._views: Final = Views(views, self.scan_of)
        self._guard: Final = Guard()
        self._artifacts: Final = FileArtifacts(
            self._guard.check, lambda: self._folder, is_read_only=is_read_only, scanner=scanner
        )
        self._commits: Final = Commits()
        self._catching_up: Final = asyncio.Lock()
        self._connection: WriteConnection | None = None
        self._writer: Writer | None = None
        self._signer: Final = signer
        self._cipher: Final = BodyCipher(subject_keys) if subject_keys is not None else None
        self._head_times: Final = head_times or HeadTimes()
        self._heads: HeadKeeper | None = None
        self._restored_why: Final = restored
        self._on_build: Callable[[ViewBuild], None] | None = None

    def tells_builds(self, on_build: Callable[[ViewBuild], None]) -> None:
        """Call `on_build` after each page but the last of a view that is built, or brought up, as on opening."""
        self._on_build = on_build

    # ── opening and closing ──────────────────────────────────────────────────────────────────────────────────────────

    async def __aenter__(self) -> SqliteLog:
        self._guard.claim()
        self._files = LogFiles(
            self._given_path,
            durability=self._durability,
            timeouts=self._timeouts,
            is_read_only=self._is_read_only,
            may_create=self._may_create,
            clock=self._clock,
            views=self._views,
            cipher=self._cipher,
        )
        self._path = self._files.path
        self._folder = ArtifactFolder(artifacts_beside(self._path))
        self._reads = self._files.reads
        if self._signer is not None:
            source = SignedHeads(self._path, self._reads, self._make_rows, self._write_own, self._poison)
            self._heads = HeadKeeper(self._signer, source, self._head_times)
        try:
            await self._open()
        except BaseException:
            self._guard.close()
            await self._give_back(signs=False)
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
        self._tail.close()
        closing = asyncio.ensure_future(self._give_back(signs=True))
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            await asyncio.wait({closing})  # bounded, and leaving a half-closed log behind would help nobody
            raise

    async def _give_back(self, *, signs: bool) -> None:
        """Finish what was taken, sign it, and give the files back."""
        try:
            if self._heads is not None and self._writer is not None:
                await self._files.drain(self._writer)
                await self._heads.close(signs=signs and self._writer.poison is None)
            elif self._heads is not None:
                await self._heads.close(signs=False)
        finally:
            await self._files.close(self._writer, self._connection)

    async def _open(self) -> None:
        if not self._is_read_only:
            if self._heads is not None and not file_size(self._path):
                await self._heads.require_new(self._path)
            self._connection = await self._files.open_writer(may_create=self._may_create)
        self._facts = await self._reads.run(read_facts)
        self._tail = Tail(Feed(self._guard, self._reads, self._make_rows(), self._path))
        logger.debug("opened", path=self._path, is_read_only=self._is_read_only)
        if self._connection is None:
            if self._heads is not None:
                await self._heads.check()
            return
        if self._restored_why is not None:
            await self._declare_restored(self._connection, self._restored_why)
        if self._heads is not None:
            await self._heads.check()
            self._heads.start()
        self._writer = Writer(
            self._connection,
            self._timeouts,
            self._clock,
            reopen=lambda: self._files.reopen_writer(self._facts.store_id),
            discard=self._files.discard_writer,
            make_barrier=self._barrier,
            on_commit=self._tell_of_commit,
        )
        if self._views:
            await self._prepare_all_views(self._writer)

    async def _declare_restored(self, connection: WriteConnection, why: str) -> None:
        """Begin a new incarnation of the log, whose first event says what is known of the one before."""
        log_id = random_bytes(16)
        head = await self._reads.run(tree_head, None)
        if head.size == 0:
            raise InvalidInput("invalid_argument", "the log is empty: there is nothing in it that was restored")
        last = await self._heads.last() if self._heads is not None else None
        is_from_signer = last is not None
        if last is None:
            last = await self._reads.run(newest_kept_head)
        event = restored_behind(last, self._facts.log_ids[-1][1], head, why, is_from_signer=is_from_signer)
        append = Append(LOG_STREAM, [event], Expect.any())
        request = self._request([append], (), None, None, None, is_reserved_allowed=True)
        if self._heads is not None:
            try:
                await self._heads.begin(log_id)
            except StoreUnavailable as error:
                if error.code != "head_refused":
                    raise
                logger.warning("incarnation_not_begun", log_id=log_id.hex(), why=str(error))
        transactions = connection.transactions
        try:
            await self._files.in_time(connection.worker.run(transactions.begin_incarnation, log_id, request))
        except ConnectionUnusable as error:
            if error.told is not None:
                raise error.told from error
            await self._set_barrier_while_opening(connection, error.why)
        self._facts = await self._reads.run(read_facts)
        if self._facts.log_ids[-1][1] != log_id:
            message = "the restore was not declared: the storage failed, and it is not in the log; declare it again"
            raise StoreUnavailable("store_io_error", message)

    async def _set_barrier_while_opening(self, connection: WriteConnection, why: str) -> None:
        """Open the log again behind a COMMIT that has proved nothing, so that the log tells. Raises EventLogError."""
        logger.error("commit_outcome_unknown", why=why, requests=1)
        self._connection = None
        await self._files.discard_writer(connection)
        self._connection = connection = await self._files.reopen_writer(self._facts.store_id)
        batch = Batch([self._barrier(why)])
        outcome = await self._files.in_time(connection.worker.run(connection.transactions.commit, batch))
        if outcome.poison is not None or not all(isinstance(answer, list) for answer in outcome.answers):
            message = f"it is unknown whether the restore is declared: {outcome.poison or outcome.answers}"
            raise CommitOutcomeUnknown([], message)

    async def _prepare_all_views(self, writer: Writer) -> None:
        while await self._files.in_time(writer.transact(self._prepare_views)):
            if self._on_build is not None and self._views.building is not None:
                self._on_build(self._views.building)

    def _prepare_views(self, connection: sqlite3.Connection, transactions: Transactions) -> bool:
        return transactions.apart(connection, "cannot prepare the views", lambda: self._views.prepare_page(connection))

    def _barrier(self, why: str) -> Request:
        append = Append(LOG_STREAM, [BarrierRecorded(reason=why[:500])], Expect.any())
        return self._request([append], (), None, None, None, is_reserved_allowed=True)

    def _make_rows(self) -> Rows:
        return Rows(self._facts, self._registry, self._cipher)

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
    def registry(self) -> Registry:
        """Which Struct stands for which event type."""
        return self._registry

    @property
    def actor(self) -> str:
        """Who appends if a call does not say."""
        return self._actor

    @property
    def place(self) -> str:
        """The real path of the database, beside which the runtime keeps its lock files."""
        return self._path

    @property
    def scanner(self) -> Scanner | None:
        """What looks for secrets in everything that is appended."""
        return self._scanner

    @property
    def limits(self) -> Limits:
        """How large one append may be."""
        return self._limits

    async def health(self) -> Health:
        """Return the state of the store, without waiting for a writer."""
        self._guard.check()
        facts, head, behind = await self._reads.run(self._look_around)
        writer = self._writer
        return Health(
            store="sqlite",
            log_id=facts.log_ids[-1][1].hex(),
            store_id=self._facts.store_id.hex(),
            format_version=self._facts.format_version,
            head=head,
            state="poisoned" if writer is not None and writer.poison is not None else "open",
            queued=writer.queued if writer is not None else 0,
            durability=self._durability,
            is_read_only=writer is None,
            sqlite_version=sqlite3.sqlite_version,
            has_wal_reset_fix=sqlite_has_wal_reset_fix(),
            is_locked_by_file=self._files.lock is not None,
            wal_bytes=file_size(f"{self._path}-wal"),
            views_behind=behind,
            last_wal_checkpoint_error=writer.connection.wal.last_error if writer is not None else None,
            signed_size=self._heads.signed_size if self._heads is not None else None,
            head_error=self._heads.problem if self._heads is not None else None,
        )

    def _look_around(self, connection: sqlite3.Connection) -> tuple[Facts, int, dict[str, int]]:
        head, *_ = self._make_rows().head(connection)
        return read_facts(connection), head, views_behind(connection, head)

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
        subject: str | None = None,
    ) -> AppendResult:
        """Append events to one stream; *durable* on return. See `Append` for `subject`."""
        self._guard.check()
        request = self._request([Append(stream, events, expect, subject)], (), actor, correlation_id, causation_id)
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
        self._guard.check()
        request = self._request(
            appends, checks, actor, correlation_id, causation_id, is_reserved_allowed=True, before_us=before_us
        )
        return await self._submit(request)

    async def append_with(
        self,
        stream: str,
        type: str,
        make: Callable[[Any], Any],
        *,
        expect: Expect,
        actor: str | None = None,
        correlation_id: str | None = None,
        event_id: bytes | None = None,
    ) -> AppendResult:
        """Append the event that `make(connection)` returns, in the transaction in which it is called."""
        self._guard.check()
        request = make_writing_request(
            stream,
            type,
            make,
            expect,
            actor=actor if actor is not None else self._actor,
            correlation_id=correlation_id,
            event_id=event_id,
            registry=self._registry,
            limits=self._limits,
            scanner=self._scanner,
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
        before_us: int | None = None,
    ) -> Request:
        return make_request(
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

    def _submit(self, request: Request) -> asyncio.Future[list[AppendResult]]:
        """Hand a request to the writer, who owns the future: a cancelled caller is "not told", the commit goes on."""
        if self._writer is None:
            raise StoreUnavailable("store_readonly", "the log was opened for reading only")
        return self._writer.submit(request)

    # ── beside the events ────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def artifacts(self) -> FileArtifacts:
        """The large values that events name, in a folder beside the database."""
        return self._artifacts

    async def is_sealed(self, stream: str) -> bool:
        """Say whether the bodies of the stream are encrypted."""
        self._guard.check()
        return await self._reads.run(is_sealed, check_stream(stream, self._limits))

    async def read_from_snapshot(self, stream: str) -> tuple[Snapshot | None, StreamSlice]:
        """Return the stream's snapshot and the events from its version on; without one, all events of the stream."""
        self._guard.check()
        return await self._reads.run(read_from_snapshot, self._make_rows(), check_stream(stream, self._limits))

    async def snapshot_streams(self) -> Sequence[str]:
        """Return the streams that have a snapshot."""
        self._guard.check()
        return await self._reads.run(snapshot_streams)

    async def load_snapshot(self, stream: str) -> Snapshot | None:
        """Return the snapshot that was saved last of this stream, or None."""
        self._guard.check()
        return await self._reads.run(load_snapshot, check_stream(stream, self._limits))

    async def save_snapshot(self, stream: str, snapshot: Snapshot) -> None:
        """Keep the snapshot unless there is a newer one of this stream; say in the telemetry if that fails."""
        self._guard.check()
        check_stream(stream, self._limits)
        check_position(snapshot.version, "version")
        writer = self._writer
        if writer is None or writer.poison is not None:
            return
        assert self._files.lock is not None, "a writer has a lock"
        try:
            poison = await self._files.in_time(writer.run_between(save_snapshot, self._files.lock, stream, snapshot))
        except EventLogError as error:
            logger.warning("snapshot_not_saved", stream=stream, why=str(error))
        else:
            if poison is not None:
                writer.poison = poison

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
        wanted = check_wanted(types, stream_prefix, registry=self._registry)
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

    def subscribe(
        self,
        *,
        after: int = 0,
        types: Iterable[str] | None = None,
        stream_prefix: str | None = None,
        streams: Iterable[str] | None = None,
        marks: bool = False,
    ) -> AsyncGenerator[RecordedEvent | Mark, None]:
        """Give the events behind position `after`, then wait for new ones, those of other processes too."""

        async def begin() -> tuple[Tail, Wanted | None]:
            self._guard.check()
            check_position(after, "after")
            wanted = check_wanted(types, stream_prefix, self._registry, streams)
            await self._check_not_beyond(after)
            return self._tail, wanted

        return follow(begin, after=after, marks=marks)

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

    async def read_view(self, function: Callable[..., T], *args: Any, of: Collection[str] | None = None) -> T:
        """Run `function(connection, *args)` on a read connection once the inline views are at the head.

        It may read those named by `of`, or all. Raises EventLogError(`view_failed`) if one cannot be brought there,
        (`view_outdated`) where the log is open for reading only and lacks one; those it has are read as they stand.
        """
        self._guard.check()
        if self._writer is not None and self._views:
            async with self._catching_up:  # one reader's next try must not hide from another what failed
                if await self._reads.run(self._views_behind, of):
                    await self._catch_up_views(of)
        elif self._views:
            await self._reads.run(self._views.require_there, of)
        return await self._reads.run(_finished, function, *args)

    async def look(self, function: Callable[..., T], *args: Any) -> T:
        """Run `function(connection, *args)` on a read connection, wherever the views stand."""
        self._guard.check()
        return await self._reads.run(_finished, function, *args)

    async def write_view(self, function: Callable[..., T], *args: Any) -> T:
        """Run `function(connection, *args)` in one write transaction under the file lock, for views only."""
        self._guard.check()
        if self._writer is None:
            raise StoreUnavailable("store_readonly", "the log was opened for reading only")
        try:
            result: T = await self._files.in_time(self._writer.write_between(self._write_view, function, *args))
        except CommitInDoubt as doubt:  # what it has written is its own, and nobody else knows where to look for it
            raise CommitOutcomeUnknown([], f"it is unknown whether the views are written: {doubt.why}") from doubt
        return result

    def _poison(self) -> str | None:
        return self._writer.poison if self._writer is not None else None

    async def _write_own(self, function: Callable[..., Any], *args: Any) -> None:
        """As `write_view`, for a table of the log's own, while it can be written."""
        if self._writer is not None and self._writer.poison is None:
            with suppress(CommitInDoubt):  # it is there, or is not, and was not needed to go on
                await self._files.in_time(self._writer.write_between(self._write_view, function, *args))

    def _views_behind(self, connection: sqlite3.Connection, names: Collection[str] | None) -> bool:
        return self._views.are_behind(connection, names)

    async def _catch_up_views(self, names: Collection[str] | None) -> None:
        assert self._writer is not None, "views are caught up by a writer"
        self._views.retry()
        await self._prepare_all_views(self._writer)
        self._views.require(names)

    def _tell_of_commit(self) -> None:
        self._tail.wake()
        self._commits.wake()
        if self._heads is not None and self._writer is not None:
            self._heads.note_commit(self._writer.connection.transactions.position)

    def next_commit(self) -> Callable[[float], Awaitable[None]]:
        """Return what waits, for so many seconds at the most, for the first commit of this process from now on."""
        return self._commits.next()

    def scan_of(self, selection: Selection, *, schema: str = "") -> Scan:
        """Return what reads the events of a selection through a connection, for views in SQLite.

        `schema` is the name under which the log is attached to that connection, if it is not its own.
        """
        return Scan(selection, self._registry, schema=schema, keys=self._cipher)

    def _write_view(
        self, connection: sqlite3.Connection, transactions: Transactions, function: Callable[..., T], *args: Any
    ) -> tuple[T, int, int]:
        """Return the result, the size of the write-ahead log then, and how many rows were written."""
        self._views.forget_positions()
        changes = connection.total_changes
        result: T = transactions.between(connection, "cannot write", lambda: _finished(connection, function, *args))
        return result, file_size(f"{self._path}-wal") or 0, connection.total_changes - changes

    # ── signed heads ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def sign_head(self) -> SignedHead | None:
        """Make sure that everything that is committed by now is under a signed head; return that, None without one."""
        self._guard.check()
        if self._heads is None or self._writer is None:
            return None
        return await self._heads.sign()

    async def check_file(self) -> list[Problem]:
        """Return damage that no hash of an event covers: of pages and indexes, and of the triggers on the tables."""
        self._guard.check()
        return await self._reads.run(check_file)

    async def backup(self, target: str | os.PathLike[str]) -> int:
        """Copy the log, with the artifacts that it names, to a new file and return its last position.

        Raises StoreUnavailable(`store_cannot_open`) if the target exists, LogCorrupt if an artifact is missing or
        damaged. The copy keeps store id and log id.
        """
        self._guard.check()
        return await self._reads.run(copy_log, self._folder, os.fspath(target))

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


def _finished(connection: sqlite3.Connection, function: Callable[..., Any], *args: Any) -> Any:
    """Return what the function gives, unless it is something that would go on reading, or has not begun."""
    result = function(connection, *args)
    if isinstance(result, sqlite3.Cursor) and result.description is not None:
        result.close()
        raise Misuse("result_unfinished", "the function returned a cursor; fetch the rows in it")
    if iscoroutine(result):
        result.close()
        raise Misuse(
            "result_unfinished", "the function is a coroutine function; what runs on a connection is a plain one"
        )
    return result
