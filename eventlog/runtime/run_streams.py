"""Reads and appends the streams of runs: at exactly the version that was decided on, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from eventlog.errors import (
    ClaimLost,
    CommitOutcomeUnknown,
    EventLogError,
    InvalidInput,
    LogCorrupt,
    Refused,
    RunConflict,
    StoreBusy,
    WrongExpectedVersion,
)
from eventlog.events import (
    RUN_EVENTS,
    ActionConflict,
    ActionExecuted,
    ActionRecovered,
    ActionReplayed,
    ChildFinished,
    CompensationExecuted,
    OfRequest,
    ResultRejected,
    RunEvent,
    SignalReceived,
    StepCompleted,
    run_stream,
)
from eventlog.ids import new_event_id
from eventlog.log import Append, AppendResult, Expect, NewEvent, RecordedEvent, RunLog, Snapshot, TransactionalLog
from eventlog.progress import advance, fold_stream
from eventlog.run import Run, Status, fold_fact
from eventlog.runtime.failpoints import RESULT_AFTER_COMMIT, RESULT_BEFORE_COMMIT, Reach
from eventlog.runtime.masking import without_secrets
from eventlog.snapshots import evidence_of, restore
from eventlog.stores.telemetry import logger

__all__ = ["MAX_REDECISIONS", "RunStreams", "late_result", "new_event", "of_step", "printable", "without_payload"]

MAX_REDECISIONS: Final = 100
_MAX_BUSY: Final = 4
_BUSY_PAUSE_S: Final = 0.2
_TYPE_OF: Final = {cls: name for name, cls in RUN_EVENTS.items()}
_MAX_TEXT: Final = 2000


class RunStreams:
    """The runs of one log."""

    def __init__(self, log: RunLog, reach: Reach) -> None:
        self._log: Final = log
        self._reach: Final = reach

    async def events(self, run_id: str, *, after: int = 0) -> Sequence[RecordedEvent]:
        """Return the events of a run behind version `after`, verified; none if there is no such run."""
        return (await self._log.read_stream(run_stream(run_id), after=after)).events

    async def load(self, run_id: str, at_version: int | None = None) -> Run:
        """Return the run as its events leave it, from its snapshot if it has one. Raises LogCorrupt."""
        if at_version is None:
            snapshot, tail = await self._log.read_from_snapshot(run_stream(run_id))
            if snapshot is None:
                return _folded(run_id, tail.events)
            run = await self._from_snapshot(run_id, snapshot, tail.events)
            if run is not None:
                return run
            logger.warning("snapshot_discarded", run_id=run_id, version=snapshot.version)
        return _folded(run_id, (await self.events(run_id))[:at_version])

    async def _from_snapshot(self, run_id: str, snapshot: Snapshot, tail: Sequence[RecordedEvent]) -> Run | None:
        """Return the run that a snapshot and the events from its version on add up to; None if there is any doubt.

        The checkpoint at its version has to commit to the state; and what people were asked and have decided, as far as
        it is still to be acted on, is read from the log itself.
        """
        try:
            start = restore(run_id, snapshot.version, snapshot.state, tail[0].data if tail else None)
            if start is None or not all([await self._is_in_log(run_id, *each) for each in evidence_of(start)]):
                return None
            return _folded(run_id, tail, start)
        except InvalidInput:
            return None

    async def _is_in_log(self, run_id: str, version: int, says: Callable[[RunEvent], bool]) -> bool:
        """Say whether the event at this version says what the snapshot has it say."""
        async for event in self._log.read(run_stream(run_id), after=version - 1, limit=1):
            return event.is_known and event.redacted is None and says(event.data)
        return False

    def without_secrets(self, events: Sequence[RunEvent]) -> Sequence[RunEvent]:
        """Return the events as they can be recorded where they must not be refused. See `masking`."""
        return without_secrets(self._log.scanner, events)

    async def values(self, run_id: str) -> dict[int, msgspec.Raw]:
        """Return what the steps and children of a run have returned, and its signals brought, by version."""
        found = {}
        for event in await self.events(run_id):
            match event.data:
                case StepCompleted(output=text) | ChildFinished(result=text) | SignalReceived(payload=text):
                    found[event.version] = text
        return found

    async def append(
        self,
        run: Run,
        events: Sequence[RunEvent],
        actor: str | None,
        *,
        checks: Sequence[tuple[str, Expect]] = (),
        before_us: int | None = None,
        subject: str | None = None,
    ) -> Run:
        """Append at the version that was decided on, and return the run, or the request, as it is then.

        `subject` is whom a new run is about. Raises WrongExpectedVersion if the run has moved, or one of the streams of
        `checks`, which it names; AppendTooLate if it would not be recorded before `before_us`.
        """
        events = self.without_secrets(of_step(run, events))
        new = [new_event(event) for event in events]
        result = await self.append_at(run, new, actor, checks=checks, before_us=before_us, subject=subject)
        for event in events:
            version, at_us = run.version + 1, result.recorded_at_us
            run = fold_fact(run, event, version=version, at_us=at_us, actor=actor or self._log.actor)
        return run

    async def append_first(
        self, run: Run, events: Sequence[RunEvent], actor: str | None, *, subject: str | None = None
    ) -> Run:
        """Append to a workflow run before a session holds it, and return the run as it is then."""
        events = self.without_secrets(events)
        result = await self.append_at(run, [new_event(event) for event in events], actor, subject=subject)
        at_us, name = result.recorded_at_us, actor or self._log.actor
        for event in events:
            run = advance(run, event, version=run.version + 1, at_us=at_us, actor=name)
        return run

    async def append_at(
        self,
        run: Run,
        events: Sequence[NewEvent],
        actor: str | None,
        *,
        beside: Sequence[Append] = (),
        checks: Sequence[tuple[str, Expect]] = (),
        before_us: int | None = None,
        subject: str | None = None,
    ) -> AppendResult:
        """Append at the version of `run`, and to other streams in the same transaction, if `checks` hold then.

        Raises WrongExpectedVersion; AppendTooLate if it would not be recorded before `before_us`.
        """
        append = Append(run_stream(run.run_id), events, Expect.at(run.version), subject)
        bound: dict[str, Any] = {} if before_us is None else {"before_us": before_us}
        results = await self._log.append_reserved(
            [append, *beside], checks=checks, actor=actor, correlation_id=run.root_run_id, **bound
        )
        return results[0]

    async def last_at_us(self) -> int:
        """Return when the last event of the whole log was recorded: no other comes to be recorded before that."""
        return (await self._log.head()).recorded_at_us

    async def has_appended(
        self, run: Run, events: Sequence[RunEvent], actor: str | None, *, before_us: int | None = None
    ) -> bool:
        """Append at the version that was decided on; False if the run has moved and the decision must be made again.

        Raises AppendTooLate if it would not be recorded before `before_us`.
        """
        try:
            await self.append(run, events, actor, before_us=before_us)
        except WrongExpectedVersion:
            return False
        return True

    async def has_replayed(self, run: Run, reason: str, actor: str | None) -> bool:
        """As `has_appended`, to note that a run that has ended was asked to go on; it gives what it came to again.

        A run whose subject is erased takes no note any more, and has come to no less for that.
        """
        try:
            return await self.has_appended(run, (ActionReplayed(reason=reason),), actor)
        except Refused as error:
            if error.code != "subject_erased":
                raise
            return True

    async def record(self, run: Run, event: RunEvent, actor: str | None) -> None:
        """Append the result of an effect, unless a later claim has fenced this holder (ClaimLost).

        Other events (a refused approval) may have moved the version meanwhile; the result goes behind them. The event
        id is made once, so that an append whose outcome was unknown is not recorded twice. What this attempt knows,
        nobody else may know: a store that is busy is asked a few times, and a result that is refused leaves a trace.
        """
        event = self.without_secrets(of_step(run, (event,)))[0]
        new = new_event(event)
        version = run.version
        self._reach(RESULT_BEFORE_COMMIT)
        for _ in range(MAX_REDECISIONS):
            try:
                await self._offer(Append(run_stream(run.run_id), [new], Expect.at(version)), actor, run.root_run_id)
            except InvalidInput as error:
                if new.data is not event:
                    raise
                new = NewEvent(new.type, without_payload(event, error), new.event_id)
            except WrongExpectedVersion:
                try:
                    version = await self._version_if_held(run, new.data)
                except EventLogError as error:
                    await self.note_rejected(run, new.data, error, actor)
                    raise
            else:
                self._reach(RESULT_AFTER_COMMIT)
                return
        raise RunConflict(run.run_id, "it changes faster than a result can be recorded")

    async def record_with(
        self, run: Run, kind: type[RunEvent], make: Callable[[Any], RunEvent], actor: str | None
    ) -> None:
        """Append the event that `make(connection)` returns, in the transaction in which it is called.

        Raises as `record`, and what `make` raises, wrapped or not; then nothing was written.
        """
        assert isinstance(self._log, TransactionalLog), "it was asked before the intent"
        version, event_id = run.version, new_event_id()
        for _ in range(MAX_REDECISIONS):
            try:
                await self._log.append_with(
                    run_stream(run.run_id),
                    _TYPE_OF[kind],
                    make,
                    expect=Expect.at(version),
                    actor=actor,
                    event_id=event_id,
                )
            except WrongExpectedVersion:
                version = await self._version_if_held(run)
            else:
                self._reach(RESULT_AFTER_COMMIT)
                return
        raise RunConflict(run.run_id, "it changes faster than a result can be recorded")

    async def append_with(
        self,
        run: Run,
        kind: type[RunEvent],
        make: Callable[[Any], RunEvent],
        actor: str | None,
        *,
        event_id: bytes,
    ) -> AppendResult:
        """Append, at the version of `run`, the event that `make(connection)` returns in the transaction of the append.

        Asked again with the same `event_id` it is stored, and written, at most once. Raises WrongExpectedVersion, and
        what `make` raises, wrapped or not.
        """
        assert isinstance(self._log, TransactionalLog), "it was asked before the intent"
        return await self._log.append_with(
            run_stream(run.run_id),
            _TYPE_OF[kind],
            make,
            expect=Expect.at(run.version),
            actor=actor,
            correlation_id=run.root_run_id,
            event_id=event_id,
        )

    async def note_rejected(self, run: Run, event: RunEvent, error: EventLogError, actor: str | None) -> None:
        """Leave a trace of a result that came too late: what this resumer knows, nobody else may ever know."""
        (rejected,) = self.without_secrets((late_result(run, event, error),))
        new = new_event(rejected)
        try:
            await self._offer(Append(run_stream(run.run_id), [new], Expect.exists()), actor, run.root_run_id)
        except InvalidInput as problem:
            assert isinstance(rejected, ResultRejected), "masking keeps the type"
            bare = replace(rejected, result={"not_stored": problem.code, "path": problem.path})
            new = NewEvent(new.type, bare)
            await self._offer(Append(run_stream(run.run_id), [new], Expect.exists()), actor, run.root_run_id)

    async def _offer(self, append: Append, actor: str | None, root_run_id: str | None) -> None:
        """Append what only this attempt knows. A store that is busy, or does not know, is asked a few times more."""
        for _ in range(_MAX_BUSY - 1):
            try:
                await self._log.append_reserved([append], actor=actor, correlation_id=root_run_id)
            except (StoreBusy, CommitOutcomeUnknown):
                await asyncio.sleep(_BUSY_PAUSE_S)
            else:
                return
        await self._log.append_reserved([append], actor=actor, correlation_id=root_run_id)

    async def _version_if_held(self, run: Run, result: RunEvent | None = None) -> int:
        """Return the version at which the run stands now. Raises ClaimLost unless it is held as in `run`.

        Raises RunConflict if a person has settled it meanwhile, and this result does not prove more than the verdict.
        """
        now = await self.load(run.run_id)
        if _held(now) != _held(run):
            raise ClaimLost(run.run_id, now.epoch, run.epoch)
        if now.is_cancelled and now.open_intent is not None:
            return now.version  # nobody has settled it: what it has come to is still recorded
        if now.status is not run.status and not _outweighs_verdict(result, now):
            raise RunConflict(run.run_id, "it was settled while its receiver was asked")
        return now.version


def _folded(run_id: str, events: Sequence[RecordedEvent], start: Run | None = None) -> Run:
    try:
        return fold_stream(run_id, events, start)
    except InvalidInput as error:
        raise LogCorrupt("event_malformed", str(error), stream=run_stream(run_id)) from error


def new_event(event: RunEvent) -> NewEvent:
    """Return the event with an id of its own, to be appended."""
    return NewEvent(_TYPE_OF[type(event)], event)


def of_step(run: Run, events: Sequence[RunEvent]) -> Sequence[RunEvent]:
    """Return the events with the step key of the request that they are about, if it has one."""
    if run.step is None:
        return events
    return [replace(event, step=run.step) if isinstance(event, OfRequest) else event for event in events]


def late_result(run: Run, event: RunEvent, error: EventLogError) -> ResultRejected:
    """Return the trace of a result that came when its resumer no longer held the run."""
    body: dict[str, Any] = msgspec.to_builtins(event)
    return ResultRejected(
        step=run.step,
        reason=error.code,
        rejected=_TYPE_OF[type(event)],
        op_key=body["op_key"],
        epoch=run.epoch,
        attempt=run.attempts if run.compensation is None else run.compensation.attempts,
        result={name: value for name, value in body.items() if name not in ("action", "op_key", "step")} or None,
    )


def printable(text: str) -> str:
    """Return foreign text so that an event can hold it: without lone surrogates, and not endless."""
    return text[:_MAX_TEXT].encode(errors="replace").decode()


def _held(run: Run) -> tuple[object, ...]:
    """Return what stays the same as long as one resumer holds one attempt, whatever else joins the stream."""
    undoing = run.compensation
    return run.epoch, run.attempts, undoing and (undoing.op_key, undoing.attempts), _open_attempt(run)


def _open_attempt(run: Run) -> tuple[str, int] | None:
    """Return what tells one attempt from another: its op_key and its number. None if none is open."""
    intent = run.open_intent
    return (intent.op_key, intent.attempt) if intent is not None else None


def _outweighs_verdict(result: RunEvent | None, now: Run) -> bool:
    """Say whether the result proves that the effect happened, of which a person has said that it did not."""
    match result:
        case ActionRecovered():
            return now.status is Status.APPROVED
        case CompensationExecuted():
            return now.status is Status.COMPLETED and now.compensation is not None and not now.compensation.is_settled
        case _:
            return False


def without_payload(event: RunEvent, error: InvalidInput) -> RunEvent:
    """Return the result without what the log cannot hold: that it happened counts more than what it returned."""
    reason = f"{error.code} at {error.path}"
    logger.warning("result_not_stored", code=error.code, path=error.path, kind=type(event).__name__)
    match event:
        case ActionExecuted():
            return replace(event, result=None, not_stored=reason)
        case ActionRecovered():
            return replace(event, evidence=None, result=None, not_stored=reason)
        case CompensationExecuted():
            return replace(event, result=None, evidence=None, not_stored=reason)
        case ActionConflict():
            return replace(
                event,
                reason=printable(event.reason),
                expected_content_hash=event.expected_content_hash and printable(event.expected_content_hash),
                existing_content_hash=event.existing_content_hash and printable(event.existing_content_hash),
                expected_content=None,
                existing_content=None,
            )
        case _:
            raise error
