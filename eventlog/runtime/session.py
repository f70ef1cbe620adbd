"""A run while one drive holds it: its state in memory, and the one way in which its events reach the log.

The state is kept equal to the log without reading it again: what this session appends it folds itself, and an append
that finds the stream further on than it thought reads what others have appended meanwhile (a decision, a signal, a
cancellation), folds that, and asks again whether the append still makes sense. Only a later claim ends the session: its
next append is ClaimLost, and nothing of it is written.

Steps of one run that end at the same time are written in one append, in the order in which they ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from eventlog.codec import unknown_type
from eventlog.errors import (
    ClaimLost,
    CommitOutcomeUnknown,
    EventLogError,
    EventTypeUnknown,
    InvalidInput,
    LogCorrupt,
    RunConflict,
    StoreBusy,
    StoreUnavailable,
    WrongExpectedVersion,
)
from eventlog.events import Owner, RunEvent, Status, run_stream
from eventlog.ids import new_event_id
from eventlog.log import Append, Expect, NewEvent, RecordedEvent, TransactionalLog
from eventlog.progress import Progress, Stored, advance, as_of_now, request_of
from eventlog.run import Run
from eventlog.runtime.detached import detached
from eventlog.runtime.failpoints import RESULT_AFTER_COMMIT, RESULT_BEFORE_COMMIT, Reach
from eventlog.runtime.run_streams import MAX_REDECISIONS, RunStreams, new_event, of_step, without_payload
from eventlog.runtime.undisturbed import undisturbed
from eventlog.stores.clock import Clock
from eventlog.stores.telemetry import logger

__all__ = ["Make", "RequestStreams", "Session"]

Make = Callable[[Run], Sequence[RunEvent]]
"""Returns the events to append to the run as it is now; raises if they make no sense any more."""

Beside = Callable[[Run, Sequence[NewEvent]], Sequence[Append]]
"""Returns what is appended to other streams in the same transaction as these events of the run."""

_Write = tuple[type[RunEvent], Callable[[Any], RunEvent]]
"""What kind of event it is, and what makes it inside the transaction."""

_MICRO: Final = 1_000_000
_MAX_BUSY: Final = 4
_BUSY_PAUSE_S: Final = 0.2
_MAX_LOOK_PAUSE_S: Final = 5.0


class _Entry:
    """One append that waits for its turn."""

    __slots__ = (
        "appends",
        "before_us",
        "beside",
        "checks",
        "event_id",
        "events",
        "future",
        "is_alone",
        "is_result",
        "make",
        "write",
    )

    def __init__(
        self,
        make: Make,
        *,
        beside: Beside | None = None,
        checks: Sequence[tuple[str, Expect]] = (),
        before_us: int | None = None,
        write: _Write | None = None,
        is_alone: bool = False,
        is_result: bool = False,
    ) -> None:
        self.make: Final = make
        self.is_result: Final = is_result
        self.beside: Final = beside
        self.checks: Final = checks
        self.before_us: Final = before_us
        self.write: Final = write
        self.is_alone: Final = is_alone or beside is not None or write is not None
        self.event_id: Final = new_event_id()
        """The id of what `write` makes: of several tries at most one writes."""
        self.future: Final[asyncio.Future[int]] = asyncio.get_running_loop().create_future()
        self.events: list[NewEvent] | None = None
        self.appends: Sequence[Append] = ()
        """What goes beside the events, made with them: another try appends the very same."""


class Session:
    """The run `run`, held by `owner` under the epoch that it has. `on_change` is called when others changed it."""

    def __init__(self, streams: RunStreams, run: Run, owner: Owner, clock: Clock, actor: str) -> None:
        self._streams: Final = streams
        self._clock: Final = clock
        self._actor: Final = actor
        self.run = run
        self.owner: Final = owner
        self.epoch: Final = run.epoch
        self.on_change: Callable[[], None] = _ignore
        self.changes = 0
        """How often others have changed the run since the session began."""
        self.lost: EventLogError | None = None
        """Why nothing more can be appended, once that is so."""
        self._queue: list[_Entry] = []
        self._flushing: asyncio.Task[None] | None = None
        self._has_news = False
        self._looking_again: asyncio.TimerHandle | None = None
        self._failed_looks = 0
        self._recorded: asyncio.Future[dict[int, msgspec.Raw]] | None = None

    @property
    def progress(self) -> Progress:
        """The state of the workflow, as of the last append that is durable."""
        progress: Progress | None = self.run.progress
        assert progress is not None, "a session is of a workflow run"
        return progress

    def now_us(self) -> int:
        """Return the time, never before that of the run's last event."""
        return max(self._clock.now_us(), self.run.recorded_at_us)

    def until_s(self, due_us: int) -> float:
        """Return in how many seconds it is so late, by the clock alone.

        If that has jumped back, the time of the run stands still until the clock is where it was: that may take years.
        """
        return max(0.0, (due_us - self._clock.now_us()) / _MICRO)

    async def append(
        self,
        make: Make,
        *,
        beside: Beside | None = None,
        checks: Sequence[tuple[str, Expect]] = (),
        before_us: int | None = None,
    ) -> int:
        """Append the events that `make` returns; *durable* on return, with the version of the last.

        `make` is called again if the run has moved; what it raises is raised here, and nothing was written. `beside`
        returns what is appended to other streams in the same transaction. No other events come in the same append: the
        run that `make` sees is the one in front of its events. Raises ClaimLost, and RunConflict once the run is
        cancelled: then nothing goes on; WrongExpectedVersion for a stream of `checks` that has moved, AppendTooLate if
        it would not be recorded before `before_us`.
        """
        return await self._wait_for(_Entry(make, beside=beside, checks=checks, before_us=before_us, is_alone=True))

    async def append_with(
        self, kind: type[RunEvent], make: Callable[[Any], RunEvent], require: Callable[[Run], None]
    ) -> int:
        """Append the event that `make(connection)` returns, in the transaction in which it is called.

        `require` is asked before each try whether that still makes sense; what it raises is raised here. However often
        it is tried, `make` writes at most once.
        """

        def check(run: Run) -> Sequence[RunEvent]:
            require(run)
            return ()

        return await self._wait_for(_Entry(check, write=(kind, make), is_result=True))

    async def _wait_for(self, entry: _Entry) -> int:
        self._queue.append(entry)
        self._flush_soon()
        return await entry.future

    async def add(self, *events: RunEvent) -> int:
        """Append these events, whatever others have appended meanwhile. Raises ClaimLost, RunConflict as `append`."""
        return await self._wait_for(_Entry(lambda _: events))

    async def add_result(self, event: RunEvent) -> int:
        """Append what something has come to, also if the run was cancelled meanwhile. Raises ClaimLost."""
        return await self._wait_for(_Entry(lambda _: (event,), is_result=True))

    async def note_rejected(self, request: Run, event: RunEvent, error: EventLogError) -> None:
        """Leave a trace of a result that came when another held the run: nobody else may ever know it."""
        await self._streams.note_rejected(request, event, error, self._actor)

    async def text(self, stored: Stored) -> msgspec.Raw:
        """Return the text of a value that a snapshot has left out, from its event.

        The first such value reads all events of the run: a replay asks for one after the other.
        """
        if self._recorded is None:
            self._recorded = asyncio.ensure_future(self._streams.values(self.run.run_id))
        return (await asyncio.shield(self._recorded))[stored.version]

    async def catch_up(self) -> None:
        """Fold what others have appended. Raises nothing for a claim that is lost: the next append does."""
        await asyncio.wait([self._look_soon()])

    async def drain(self) -> None:
        """Wait until nothing is waiting or under way."""
        while self._flushing is not None and not self._flushing.done():
            await asyncio.wait([self._flushing])

    async def end(self) -> None:
        """Tell nobody of changes any more, and stop reading what nobody waits for."""
        self.on_change = _ignore
        if self._looking_again is not None:
            self._looking_again.cancel()
        if self._recorded is not None:
            self._recorded.add_done_callback(lambda read: read.cancelled() or read.exception())
            self._recorded.cancel()
            await undisturbed(_ended(self._recorded))

    # ── one append after the other ───────────────────────────────────────────────────────────────────────────────────

    def _flush_soon(self) -> asyncio.Task[None]:
        """Return the task that appends what waits. One that was cancelled before it began told nobody."""
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.create_task(self._flush())
        return self._flushing

    async def _flush(self) -> None:
        try:
            while self._queue or self._has_news:
                if self._has_news:
                    self._has_news = False
                    await self._look()
                else:
                    await self._write(self._take())
        except BaseException as error:  # the program ends: what is wrong with an append is told to who waits for that
            waiting, self._queue = self._queue, []
            _fail(waiting, error)
            raise
        finally:
            self._flushing = None

    def _take(self) -> list[_Entry]:
        """Return the next entries that can go in one append."""
        if self._queue[0].is_alone:
            return [self._queue.pop(0)]
        alone = next((place for place, entry in enumerate(self._queue) if entry.is_alone), len(self._queue))
        batch, self._queue = self._queue[:alone], self._queue[alone:]
        return batch

    async def _write(self, batch: list[_Entry]) -> None:
        try:
            await self._try(batch)
        except InvalidInput as error:
            if len(batch) == 1:
                _fail(batch, error)
            else:  # one of them cannot be stored; the others can
                for entry in batch:
                    await self._write([entry])
        except EventLogError as error:
            _fail(batch, error)
        except Exception as error:  # the store's own, and nothing that a workflow is to be told as if it were its own
            logger.error("append_failed", run_id=self.run.run_id, why=repr(error))
            unavailable = StoreUnavailable("store_io_error", f"cannot append: {type(error).__name__}: {error}")
            unavailable.__cause__ = error
            _fail(batch, unavailable)

    async def _try(self, batch: list[_Entry]) -> None:
        """Append a batch, as often as it takes. Raises InvalidInput for what cannot be stored; nothing is written."""
        busy = 0
        is_behind = False
        for _ in range(MAX_REDECISIONS):
            try:
                if is_behind:
                    await self._catch_up()
                    is_behind = False
                ready = self._made(batch)
                if not ready:
                    return
                version = self.run.version
                await self._append(ready)
            except WrongExpectedVersion as error:
                if error.stream != run_stream(self.run.run_id):
                    raise
                is_behind = True
            except (StoreBusy, CommitOutcomeUnknown):
                busy += 1
                if busy >= _MAX_BUSY:
                    raise
                await asyncio.sleep(_BUSY_PAUSE_S)
            else:
                for entry in ready:
                    version += len(entry.events or ())
                    if not entry.future.done():
                        entry.future.set_result(version)
                return
        raise RunConflict(self.run.run_id, "it changes faster than a result can be recorded")

    async def _append(self, ready: list[_Entry]) -> None:
        first = ready[0]
        if first.write is not None:
            kind, make = first.write
            made: list[RunEvent] = []

            def keep(connection: Any) -> RunEvent:
                made[:] = [detached(make(connection))]
                return made[0]

            result = await self._streams.append_with(self.run, kind, keep, self._actor, event_id=first.event_id)
            first.events = [new_event(event) for event in made]
        else:
            events = [event for entry in ready for event in entry.events or ()]
            if not events:
                return
            result = await self._streams.append_at(
                self.run, events, self._actor, beside=first.appends, checks=first.checks, before_us=first.before_us
            )
        if result.deduplicated:  # an earlier try was stored after all, and others may have come behind it
            await self._catch_up()
        else:
            self._fold([event.data for entry in ready for event in entry.events or ()], result.recorded_at_us)

    def _made(self, batch: list[_Entry]) -> list[_Entry]:
        """Return the entries that still make sense, each with its events; an event keeps its id when it is made again.

        The others are told why not.
        """
        ready = []
        for entry in batch:
            try:
                if self.lost is not None:
                    raise self.lost
                if self.run.status is Status.CANCELLED and not entry.is_result:
                    raise RunConflict(self.run.run_id, "it was cancelled")
                made = self._streams.without_secrets(entry.make(self.run))
            except Exception as error:
                _fail([entry], error)
                continue
            kept = entry.events
            if kept is None or [event.data for event in kept] != list(made):
                entry.events = [new_event(event) for event in made]
                entry.appends = entry.beside(self.run, entry.events) if entry.beside and entry.events else ()
            ready.append(entry)
        return ready

    # ── what others have appended ────────────────────────────────────────────────────────────────────────────────────

    def _look_soon(self) -> asyncio.Task[None]:
        self._has_news = True
        return self._flush_soon()

    async def _look(self) -> None:
        """Catch up, or see to it that this is tried again: a read that fails says nothing against what is appended."""
        try:
            await self._catch_up()
        except Exception as error:
            code = error.code if isinstance(error, EventLogError) else type(error).__name__
            logger.warning("run_not_looked_at", run_id=self.run.run_id, code=code)
            if self._looking_again is not None:
                self._looking_again.cancel()
            pause_s = min(_MAX_LOOK_PAUSE_S, _BUSY_PAUSE_S * 2**self._failed_looks)
            self._failed_looks += 1
            self._looking_again = asyncio.get_running_loop().call_later(pause_s, self._look_again)
        else:
            self._failed_looks = 0

    def _look_again(self) -> None:
        if self.on_change is not _ignore and self.lost is None:
            self._look_soon()

    async def _catch_up(self) -> None:
        """Fold what others have appended. Whatever cannot be folded ends the session: nobody knows what it says."""
        try:
            events = await self._streams.events(self.run.run_id, after=self.run.version)
            for event in events:
                self._fold_foreign(event)
        except (EventTypeUnknown, LogCorrupt) as error:
            self.lost = self.lost or error
            self.on_change()
            return
        if self.run.epoch != self.epoch:
            self.lost = ClaimLost(self.run.run_id, self.run.epoch, self.epoch)
        if events:
            self.changes += 1
            self.on_change()

    def _fold_foreign(self, event: RecordedEvent) -> None:
        if not event.is_known:
            raise unknown_type(event)
        try:
            self.run = advance(
                self.run, event.data, version=event.version, at_us=event.recorded_at_us, actor=event.actor
            )
        except InvalidInput as error:
            raise LogCorrupt("event_malformed", str(error), stream=event.stream) from error

    def _fold(self, events: Sequence[RunEvent], at_us: int) -> None:
        for event in events:
            self.run = advance(self.run, event, version=self.run.version + 1, at_us=at_us, actor=self._actor)


class RequestStreams:
    """The streams of a run as an attempt at an effect sees them: one request of the run that a session holds.

    Keeps the members of `RunStreams` that attempts use, with the same promises.
    """

    def __init__(self, session: Session, log: object, reach: Reach) -> None:
        self._session: Final = session
        self._log: Final = log
        self._reach: Final = reach

    async def append(
        self,
        request: Run,
        events: Sequence[RunEvent],
        actor: str | None,
        *,
        checks: Sequence[tuple[str, Expect]] = (),
        before_us: int | None = None,
    ) -> Run:
        """Append if the request is as it was decided on, and `checks` hold. Raises WrongExpectedVersion if not.

        Raises AppendTooLate if it would not be recorded before `before_us`.
        """

        def make(run: Run) -> Sequence[RunEvent]:
            _require_unchanged(run, request)
            return of_step(request, events)

        await self._session.append(make, checks=checks, before_us=before_us)
        return self._now(request)

    async def record(self, request: Run, event: RunEvent, actor: str | None) -> None:
        """Append the result of an effect, unless a later claim has fenced this holder (ClaimLost)."""
        self._reach(RESULT_BEFORE_COMMIT)
        (event,) = of_step(request, (detached(event),))
        try:
            await self._record(request, event)
        except InvalidInput as error:
            await self._record(request, without_payload(event, error))
        self._reach(RESULT_AFTER_COMMIT)

    async def _record(self, request: Run, event: RunEvent) -> None:
        try:
            await self._session.add_result(event)
        except EventLogError as error:
            if self._session.lost is not None:
                await self._session.note_rejected(request, event, error)
            raise

    async def record_with(
        self, request: Run, kind: type[RunEvent], make: Callable[[Any], RunEvent], actor: str | None
    ) -> None:
        """Append the event that `make(connection)` returns, in the transaction in which it is called.

        Raises RunConflict, and writes nothing, once the intent of this attempt is not open any more: what the log says
        of the effect counts.
        """
        assert isinstance(self._log, TransactionalLog), "it was asked before the intent"

        def require(run: Run) -> None:
            if _attempt_of(request_of(run, request.step or "")) != _attempt_of(request):
                raise RunConflict(run.run_id, f"the effect of {request.step!r} was settled before it could be written")

        await self._session.append_with(kind, lambda connection: of_step(request, (make(connection),))[0], require)
        self._reach(RESULT_AFTER_COMMIT)

    def _now(self, request: Run) -> Run:
        assert request.step is not None, "a request of a workflow run has a step key"
        now = request_of(self._session.run, request.step)
        assert now is not None, "a request that was asked stays in the run"
        return now


def _attempt_of(request: Run | None) -> tuple[object, ...] | None:
    """Return what tells the open attempt at the effect of a request from any other; None if none is open."""
    intent = request.open_intent if request is not None else None
    return None if request is None or intent is None else (intent.op_key, intent.attempt, request.epoch)


def _require_unchanged(run: Run, request: Run) -> None:
    """Raise WrongExpectedVersion if others have changed the request since it was decided on."""
    if request_of(run, request.step or "") != as_of_now(run, request):
        as_it_was = f"with the request {request.request_id!r} as it was"
        raise WrongExpectedVersion(run_stream(run.run_id), as_it_was, run.version)


def _fail(entries: Iterable[_Entry], error: BaseException) -> None:
    for entry in entries:
        if not entry.future.done():
            entry.future.set_exception(error)


def _ignore() -> None:
    """Nobody wants to know."""


async def _ended(future: asyncio.Future[Any]) -> None:
    await asyncio.wait([future])
