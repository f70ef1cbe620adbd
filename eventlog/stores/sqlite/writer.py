"""The one writer: takes what is queued, commits it once, and tells each caller what happened.

Callers never touch the connection. They wait for a future that the writer owns, so cancelling a caller means "not
told" and nothing else. There is no timer in front of a commit: an idle log answers at once, a busy one batches by
itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from eventlog.errors import CommitOutcomeUnknown, Conflict, EventLogError, Misuse, StoreBusy, StoreUnavailable
from eventlog.log import AppendResult
from eventlog.stores.clock import Clock
from eventlog.stores.requests import Request
from eventlog.stores.sqlite.connection import Worker
from eventlog.stores.sqlite.foreign_write import ConnectionBroken
from eventlog.stores.sqlite.plan import Answer
from eventlog.stores.sqlite.transaction import Batch, BatchOutcome, Transactions
from eventlog.stores.sqlite.wal import WalCheckpoints
from eventlog.stores.sqlite.whole import CommitInDoubt, ConnectionUnusable
from eventlog.stores.telemetry import is_debugging, logger

__all__ = ["WriteConnection", "Writer", "WriterSettings"]

MAX_BATCH_EVENTS: Final = 10_000
MAX_QUEUED_REQUESTS: Final = 20_000
MAX_TRIES: Final = 3
_BYTES_OF_A_VIEW_ROW: Final = 256
"""About what a row of a view is in the write-ahead log."""
_TOLD_BEHIND_POISON: Final = frozenset({"store_full", "store_out_of_memory"})
"""What keeps a poisoned store from being reopened and is told as what it is: somebody can see to it."""
_IDLE_S: Final = 0.25
_POLL_S: Final = 0.02
_PATIENCE_S: Final = 0.2
_CANCELLED_PATIENCE_S: Final = 1.0

T = TypeVar("T")


class WriterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds: how long a caller waits for the lock, and how long for a commit that has begun or failed."""

    busy_timeout_s: float
    settle_timeout_s: float


class WriteConnection(msgspec.Struct, frozen=True):
    """A write connection with what belongs to it and is made anew when it is reopened."""

    worker: Worker
    transactions: Transactions
    wal: WalCheckpoints


class _Waiting(msgspec.Struct, eq=False):
    """A queued request, the future its caller waits for, and the monotonic time at which it becomes `store_busy`."""

    request: Request
    future: asyncio.Future[list[AppendResult]]
    deadline_s: float
    tries: int = 1

    def answer(self, answer: Answer) -> None:
        """Tell the caller, once. After a first try that ended unknown, only the log can make a failure definite."""
        if self.tries > 1 and isinstance(answer, EventLogError) and not isinstance(answer, (Conflict, Misuse)):
            answer = self.unknown(f"the first try may have stored them, and asking again failed: {answer}")
        if self.future.done() or self.future.get_loop().is_closed():
            return
        if isinstance(answer, EventLogError):
            self.future.set_exception(answer)
            self.future.exception()  # a caller that was cancelled will not look; that is no fault
        else:
            self.future.set_result(answer)

    def unknown(self, why: str) -> CommitOutcomeUnknown:
        ids = [event_id.hex() for event_id in self.request.event_ids()]
        return CommitOutcomeUnknown(ids, f"it is unknown whether the events are stored: {why}")


class Writer:
    """Owns the write connection and the queue in front of it."""

    def __init__(
        self,
        connection: WriteConnection,
        settings: WriterSettings,
        clock: Clock,
        *,
        reopen: Callable[[], Awaitable[WriteConnection]],
        discard: Callable[[WriteConnection], Awaitable[None]],
        make_barrier: Callable[[str], Request],
        on_commit: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._settings: Final = settings
        self._clock: Final = clock
        self._reopen: Final = reopen
        self._discard: Final = discard
        self._make_barrier: Final = make_barrier
        self._on_commit: Final = on_commit
        self._queue: deque[_Waiting] = deque()
        self._wake: Final = asyncio.Event()
        self._woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_closing = False
        self.poison: str | None = None
        self.is_lost = False
        """The files were replaced: nothing but opening the log again can help."""
        self._task: Final = asyncio.create_task(self._run(), name="eventlog-writer")

    @property
    def connection(self) -> WriteConnection:
        return self._connection

    @property
    def queued(self) -> int:
        return len(self._queue)

    def submit(self, request: Request) -> asyncio.Future[list[AppendResult]]:
        """Queue a request and return the future of its answer. Raises StoreUnavailable if it cannot be taken."""
        if self._is_closing or self._task.done():
            raise StoreUnavailable("engine_closed", "the log takes no more events: it is closed, or its loop is ending")
        if self.is_lost:
            raise StoreUnavailable("store_identity_changed", self.poison or "the files were replaced")
        if len(self._queue) >= MAX_QUEUED_REQUESTS:
            raise StoreBusy(f"{len(self._queue)} requests are waiting already", queued=len(self._queue))
        future: asyncio.Future[list[AppendResult]] = asyncio.get_running_loop().create_future()
        self._queue.append(_Waiting(request, future, self._clock.monotonic_s() + self._settings.busy_timeout_s))
        self._wake.set()
        return future

    async def run_between(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run `function(connection, *args)` on the writer's thread, between two batches."""
        return await self._connection.worker.run(function, *args)

    async def write_between(self, function: Callable[..., tuple[T, int, int]], *args: Any) -> T:
        """As `transact`, for what returns its result, the write-ahead log's size and how many rows it has written.

        Whatever of the log is due because of that follows.
        """
        result, wal_bytes, rows = await self.transact(function, *args)
        connection = self._connection
        connection.wal.note_commit(wal_bytes, rows * _BYTES_OF_A_VIEW_ROW)
        if connection.wal.is_due and not self._is_closing:
            await connection.worker.run(connection.wal.run)
        return result

    async def transact(self, function: Callable[..., T], *args: Any) -> T:
        """Run `function(connection, transactions, *args)`, which is a transaction, between two batches.

        A connection that cannot be used is replaced first, as before an append. Raises what the function raises,
        StoreUnavailable(`store_io_error`); CommitInDoubt where its COMMIT has proved nothing and there is a barrier
        behind it by now, CommitOutcomeUnknown where none could be set in time.
        """
        if self.poison is not None:
            await self.submit(self._make_barrier(self.poison))
        connection = self._connection
        try:
            return await connection.worker.run(function, connection.transactions, *args)
        except ConnectionBroken as error:
            if connection is self._connection:
                self._poison(str(error))
            raise StoreUnavailable("store_io_error", f"nothing was written: {error}") from error
        except ConnectionUnusable as error:
            if connection is self._connection and self.poison is None:
                self._poison(error.why)
            if error.told is not None:
                raise error.told from error
            await self._set_barrier(error.why)
            raise CommitInDoubt(error.why, error.result) from error

    async def _set_barrier(self, why: str) -> None:
        """Have the log opened again, and a barrier committed behind what is in doubt. Raises CommitOutcomeUnknown."""
        logger.error("commit_outcome_unknown", why=why, requests=1)
        give_up_s = self._clock.monotonic_s() + self._settings.settle_timeout_s
        while True:
            try:
                await self.submit(self._make_barrier(why))
                return
            except EventLogError as error:
                if self.is_lost or self._is_closing or self._clock.monotonic_s() >= give_up_s:
                    raise CommitOutcomeUnknown([], f"it is unknown whether that is stored: {why}") from error
            await asyncio.sleep(_POLL_S)

    async def drain(self, timeout_s: float) -> None:
        """Take no more requests and wait until those taken are answered, or the time is up."""
        self._is_closing = True
        self._wake.set()
        await asyncio.wait({self._task}, timeout=timeout_s)
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=timeout_s / 2)
        self._fail_queue("the log was closed before the events were written")

    async def _run(self) -> None:
        try:
            while not (self._is_closing and not self._queue):
                await self._wait_for_work()
                waiting = self._take()
                if waiting:
                    await self._commit_and_answer(waiting)
        except Exception as error:
            logger.exception("writer_failed")
            self.poison = f"{type(error).__name__}: {error}"
        finally:
            self._fail_queue("the writer has ended; the events were not written")

    async def _wait_for_work(self) -> None:
        while not self._queue and not self._is_closing:
            self._wake.clear()
            try:
                if not self._connection.wal.is_due_when_idle:
                    await self._wake.wait()
                    continue
                async with asyncio.timeout(_IDLE_S):
                    await self._wake.wait()
            except TimeoutError:
                await self._checkpoint_wal()

    def _take(self) -> list[_Waiting]:
        taken: list[_Waiting] = []
        events = 0
        while self._queue and (not taken or events + self._queue[0].request.size <= MAX_BATCH_EVENTS):
            waiting = self._queue.popleft()
            events += waiting.request.size
            taken.append(waiting)
        return taken

    async def _commit_and_answer(self, waiting: list[_Waiting]) -> None:
        """Commit what was taken; whatever ends this early, nobody is left without an answer."""
        try:
            await self._commit(waiting)
        except BaseException as error:
            self._tell_unknown(waiting, f"the writer ended: {type(error).__name__}")
            raise

    async def _commit(self, waiting: list[_Waiting]) -> None:
        if self.poison is not None and not await self._recover(waiting):
            return
        batch = Batch([each.request for each in waiting])
        commit = self._connection.transactions.commit
        hop = self._connection.worker.start(commit, batch, then=partial(self._tell_and_wake, waiting))
        outcome = await self._finish_hop(hop, batch, waiting)
        if outcome.poison is not None:
            self._poison(outcome.poison, is_lost=outcome.is_lost)
        if outcome.unknown is not None:
            await self._settle(outcome.unknown, waiting)
            return
        if outcome.poison is not None:
            self._tell(waiting, outcome)
        if outcome.wal_bytes:
            self._connection.wal.note_commit(outcome.wal_bytes, outcome.written)
        if self._connection.wal.is_due:
            await self._checkpoint_wal()

    def _tell_and_wake(self, waiting: list[_Waiting], outcome: BatchOutcome) -> None:
        """Tell the callers at once, unless something has to be done about it first, and only then wake the writer.

        Whoever is told may append again in the next turn of the loop, and the writer, whose turn comes behind theirs,
        finds it there.
        """
        try:
            if outcome.unknown is None and outcome.poison is None:
                self._tell(waiting, outcome)
        finally:
            _wake(self._woken)

    def _tell(self, waiting: list[_Waiting], outcome: BatchOutcome) -> None:
        has_written = False
        for each, answer in zip(waiting, outcome.answers, strict=True):
            has_written = has_written or isinstance(answer, list)
            each.answer(answer)
        if has_written:
            self._on_commit()
        if is_debugging():
            _log_answers(waiting, outcome.answers)

    async def _finish_hop(
        self, hop: asyncio.Future[BatchOutcome], batch: Batch, waiting: list[_Waiting]
    ) -> BatchOutcome:
        """Wait for the thread, and keep the callers' deadlines meanwhile.

        Callers who were told something before the thread was done keep that answer. Cancellation is held back until the
        transaction has ended, or is certain never to begin; a disk that does not answer holds it back for a second.
        """
        was_told = False
        cancelled: asyncio.CancelledError | None = None
        give_up_s = 0.0
        unknown_at_s = self._clock.monotonic_s() + self._settings.busy_timeout_s + self._settings.settle_timeout_s
        while not hop.done():
            now_s = self._clock.monotonic_s()
            deadline_s = waiting[0].deadline_s
            try:
                self._woken = asyncio.get_running_loop().create_future()
                await _wait(hop, _POLL_S if was_told or cancelled else max(deadline_s - now_s, _POLL_S), self._woken)
            except asyncio.CancelledError as error:
                cancelled = cancelled or error
                give_up_s = give_up_s or self._clock.monotonic_s() + _CANCELLED_PATIENCE_S
                if batch.abandon():
                    _answer_all(waiting, StoreBusy("the program ended before the write lock was free"))
                    raise
            now_s = self._clock.monotonic_s()
            if not hop.done() and now_s >= deadline_s:
                was_told = was_told or self._tell_late(batch, waiting, now_s >= unknown_at_s)
                self._expire_queue()
            if not hop.done() and cancelled is not None and now_s >= give_up_s:
                self._tell_unknown(waiting, "the program ended before the commit did")
                raise cancelled
        if cancelled is not None:
            self._tell_at_the_end(waiting, hop.result())
            raise cancelled
        return hop.result()

    def _tell_late(self, batch: Batch, waiting: list[_Waiting], is_too_late: bool) -> bool:
        if batch.abandon():
            _answer_all(
                waiting, StoreBusy("the write lock was not free in time", waited_s=self._settings.busy_timeout_s)
            )
            logger.warning("store_busy", requests=len(waiting))
            return True
        if is_too_late:
            self._tell_unknown(waiting, "the commit did not end in time")
        return is_too_late

    def _tell_at_the_end(self, waiting: list[_Waiting], outcome: BatchOutcome) -> None:
        if outcome.unknown is not None:
            self._tell_unknown(waiting, outcome.unknown)
        elif outcome.poison is not None:
            self._tell(waiting, outcome)

    def _expire_queue(self) -> None:
        now_s = self._clock.monotonic_s()
        while self._queue and self._queue[0].deadline_s <= now_s:
            self._queue.popleft().answer(StoreBusy("the write lock was not free in time"))

    async def _settle(self, why: str, waiting: list[_Waiting]) -> None:
        """After a COMMIT that proves nothing: reopen, commit a barrier, then ask the log, and tell the callers."""
        logger.error("commit_outcome_unknown", why=why, requests=len(waiting))
        give_up_s = self._clock.monotonic_s() + self._settings.settle_timeout_s
        while not self.is_lost:
            if await self._reopen_behind_barrier(why) is None:
                self._ask_again(waiting, why)
                return
            if self._clock.monotonic_s() >= give_up_s:
                break
            await asyncio.sleep(_POLL_S)
        self._tell_unknown(waiting, why)

    def _ask_again(self, waiting: list[_Waiting], why: str) -> None:
        """Put requests back in front: behind the barrier each is found in the log, or certain not to be and written.

        One whose caller has gone is dropped: it was not told, and may be stored or not.
        """
        self._tell_unknown([each for each in waiting if each.tries >= MAX_TRIES], why)
        again = [each for each in waiting if not each.future.done()]
        for each in again:
            each.tries += 1
            each.deadline_s = self._clock.monotonic_s() + self._settings.busy_timeout_s
        self._queue.extendleft(reversed(again))

    async def _recover(self, waiting: list[_Waiting]) -> bool:
        """Bring a poisoned store back; if that fails, the callers learn that nothing was written."""
        why = self.poison or ""
        if self.is_lost:
            _answer_all(waiting, StoreUnavailable("store_identity_changed", why))
            return False
        error = await self._reopen_behind_barrier(why)
        if error is None:
            return True
        code = error.code if error.code in _TOLD_BEHIND_POISON else "store_io_error"
        _answer_all(waiting, StoreUnavailable(code, f"the store cannot be reopened after: {why}"))
        return False

    async def _reopen_behind_barrier(self, why: str) -> EventLogError | None:
        """Open the store again and commit a barrier; return what keeps that from being done, None if it is done."""
        await self._discard(self._connection)
        try:
            self._connection = await self._reopen()
        except EventLogError as error:
            logger.error("reopen_failed", code=error.code, why=str(error))
            return error
        batch = Batch([self._make_barrier(why)])
        hop = self._connection.worker.start(self._connection.transactions.commit, batch)
        outcome = await self._keeping_deadlines(hop)
        refusals = [answer for answer in outcome.answers if isinstance(answer, EventLogError)]
        if outcome.poison is not None or outcome.unknown is not None or refusals:
            logger.error("barrier_failed", why=outcome.poison or outcome.unknown or str(refusals))
            return refusals[0] if refusals else StoreUnavailable("store_io_error", "the barrier cannot be committed")
        logger.warning("store_reopened", after=why)
        self.poison = None
        self._on_commit()
        return None

    def _poison(self, why: str, *, is_lost: bool = False) -> None:
        self.poison = why
        self.is_lost = is_lost
        logger.error("store_poisoned", why=why)

    def _tell_unknown(self, waiting: list[_Waiting], why: str) -> None:
        for each in waiting:
            each.answer(each.unknown(why))

    async def _checkpoint_wal(self) -> None:
        wal = self._connection.wal
        await self._keeping_deadlines(self._connection.worker.start(wal.run))
        if wal.failures >= wal.MAX_FAILURES:
            self._poison(f"{wal.failures} WAL checkpoints in a row failed: {wal.last_error}")

    async def _keeping_deadlines(self, hop: asyncio.Future[T]) -> T:
        """Wait for the thread while the lock may be held elsewhere; what is queued meanwhile still times out."""
        while not hop.done():
            await _wait(hop, _PATIENCE_S)
            self._expire_queue()
        return hop.result()

    def _fail_queue(self, why: str) -> None:
        while self._queue:
            self._queue.popleft().answer(StoreUnavailable("engine_closed", why))


async def _wait(hop: asyncio.Future[Any], timeout_s: float, woken: asyncio.Future[None] | None = None) -> None:
    """Wait until `hop` is done, `woken` is, or the time is up; cancelling this leaves `hop` alone.

    `asyncio.wait` takes longer.
    """
    loop = asyncio.get_running_loop()
    woken = woken or loop.create_future()
    wake = partial(_wake, woken)
    hop.add_done_callback(wake)
    timer = loop.call_later(timeout_s, wake)
    try:
        await woken
    finally:
        timer.cancel()
        hop.remove_done_callback(wake)


def _wake(woken: asyncio.Future[None], _: object = None) -> None:
    if not woken.done():
        woken.set_result(None)


def _answer_all(waiting: list[_Waiting], error: EventLogError) -> None:
    for each in waiting:
        each.answer(error)


def _log_answers(waiting: list[_Waiting], answers: list[Answer]) -> None:
    for each, answer in zip(waiting, answers, strict=True):
        if isinstance(answer, EventLogError):
            logger.info("append_refused", code=answer.code, stream=each.request.parts[0].stream)
            continue
        for result in answer:
            logger.debug(
                "appended",
                stream=result.stream,
                version=result.version,
                position=result.last_position,
                deduplicated=result.deduplicated,
            )
