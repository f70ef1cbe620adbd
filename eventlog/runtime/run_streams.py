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
    RunConflict,
    StoreBusy,
    WrongExpectedVersion,
)
from eventlog.events import (
    RUN_EVENTS,
    ActionConflict,
    ActionExecuted,
    ActionRecovered,
    CompensationExecuted,
    ResultRejected,
    RunEvent,
    run_stream,
)
from eventlog.log import Append, Expect, NewEvent, RecordedEvent, RunLog, TransactionalLog
from eventlog.run import Run, Status, fold_run
from eventlog.runtime.failpoints import RESULT_AFTER_COMMIT, RESULT_BEFORE_COMMIT, Reach
from eventlog.stores.telemetry import logger

__all__ = ["MAX_REDECISIONS", "RunStreams", "printable"]

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

    async def events(self, run_id: str) -> Sequence[RecordedEvent]:
        """Return the events of a run, verified; none if there is no such run."""
        return (await self._log.read_stream(run_stream(run_id))).events

    async def load(self, run_id: str, at_version: int | None = None) -> Run:
        """Return the run as its events leave it. Raises LogCorrupt."""
        events = await self.events(run_id)
        try:
            return fold_run(run_id, events[:at_version])
        except InvalidInput as error:
            raise LogCorrupt("event_malformed", str(error), stream=run_stream(run_id)) from error

    async def append(self, run: Run, events: Sequence[RunEvent], actor: str | None) -> None:
        """Append at the version that was decided on. Raises WrongExpectedVersion if the run has moved."""
        new = [NewEvent(_TYPE_OF[type(event)], event) for event in events]
        append = Append(run_stream(run.run_id), new, Expect.at(run.version))
        await self._log.append_reserved([append], actor=actor)

    async def has_appended(self, run: Run, events: Sequence[RunEvent], actor: str | None) -> bool:
        """Append at the version that was decided on; False if the run has moved and the decision must be made again."""
        try:
            await self.append(run, events, actor)
        except WrongExpectedVersion:
            return False
        return True

    async def record(self, run: Run, event: RunEvent, actor: str | None) -> None:
        """Append the result of an effect, unless a later claim has fenced this holder (ClaimLost).

        Other events (a refused approval) may have moved the version meanwhile; the result goes behind them. The event
        id is made once, so that an append whose outcome was unknown is not recorded twice. What this attempt knows,
        nobody else may know: a store that is busy is asked a few times, and a result that is refused leaves a trace.
        """
        new = NewEvent(_TYPE_OF[type(event)], event)
        version = run.version
        self._reach(RESULT_BEFORE_COMMIT)
        for _ in range(MAX_REDECISIONS):
            try:
                await self._offer(Append(run_stream(run.run_id), [new], Expect.at(version)), actor)
            except InvalidInput as error:
                if new.data is not event:
                    raise
                new = NewEvent(new.type, _without_payload(event, error), new.event_id)
            except WrongExpectedVersion:
                try:
                    version = await self._version_if_held(run, new.data)
                except EventLogError as error:
                    await self._note_rejected(run, new.data, error, actor)
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
        version = run.version
        for _ in range(MAX_REDECISIONS):
            try:
                await self._log.append_with(
                    run_stream(run.run_id), _TYPE_OF[kind], make, expect=Expect.at(version), actor=actor
                )
            except WrongExpectedVersion:
                version = await self._version_if_held(run)
            else:
                self._reach(RESULT_AFTER_COMMIT)
                return
        raise RunConflict(run.run_id, "it changes faster than a result can be recorded")

    async def _note_rejected(self, run: Run, event: RunEvent, error: EventLogError, actor: str | None) -> None:
        """Leave a trace of a result that came too late: what this resumer knows, nobody else may ever know."""
        body: dict[str, Any] = msgspec.to_builtins(event)
        rejected = ResultRejected(
            reason=error.code,
            rejected=_TYPE_OF[type(event)],
            op_key=body["op_key"],
            epoch=run.epoch,
            attempt=run.attempts if run.compensation is None else run.compensation.attempts,
            result={name: value for name, value in body.items() if name not in ("action", "op_key")} or None,
        )
        new = NewEvent(_TYPE_OF[ResultRejected], rejected)
        try:
            await self._offer(Append(run_stream(run.run_id), [new], Expect.exists()), actor)
        except InvalidInput as problem:
            bare = replace(rejected, result={"not_stored": problem.code, "path": problem.path})
            new = NewEvent(new.type, bare)
            await self._offer(Append(run_stream(run.run_id), [new], Expect.exists()), actor)

    async def _offer(self, append: Append, actor: str | None) -> None:
        """Append what only this attempt knows. A store that is busy, or does not know, is asked a few times more."""
        for left in reversed(range(_MAX_BUSY)):
            try:
                await self._log.append_reserved([append], actor=actor)
            except (StoreBusy, CommitOutcomeUnknown):
                if not left:
                    raise
                await asyncio.sleep(_BUSY_PAUSE_S)
            else:
                return

    async def _version_if_held(self, run: Run, result: RunEvent | None = None) -> int:
        """Return the version at which the run stands now. Raises ClaimLost unless it is held as in `run`.

        Raises RunConflict if a person has settled it meanwhile, and this result does not prove more than the verdict.
        """
        now = await self.load(run.run_id)
        if _held(now) != _held(run):
            raise ClaimLost(run.run_id, now.epoch, run.epoch)
        if now.status is not run.status and not _outweighs_verdict(result, now):
            raise RunConflict(run.run_id, "it was settled while its receiver was asked")
        return now.version


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


def _without_payload(event: RunEvent, error: InvalidInput) -> RunEvent:
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
