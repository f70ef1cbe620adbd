"""Replays the recorded history of a run against the code of today, for the tests of whoever changes that code.

    async def test_runs_that_are_under_way_can_go_on() -> None:
        replayed = await replay(fix_incident, Path("tests/histories/run-42.jsonl"), ignores_fingerprint=True)
        assert replayed.answered == ("search_logs", "prepare_patch")

The code is run from the top. Whatever it asks for is answered from the history, and at the first thing that the history
has no answer to it is stopped: no function of a step is called, no effect happens, nothing is waited for, and nothing
is written, for all this is done with a copy in memory. Where the code does not fit, `replay` raises what a resume of
the run would raise: Refused(`definition_mismatch`) for a changed fingerprint, unless that is to be ignored because the
change is meant, and Refused(`nondeterministic_replay`) for code that asks for something else than it did.

A history is the events of `runner.trace`, a file of JSON lines as `eventlog tail --format jsonl` prints them, or a log.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from eventlog.codec import REGISTRY
from eventlog.errors import InvalidInput, LogCorrupt, Refused
from eventlog.events import (
    RUN_PREFIX,
    ClaimRenewed,
    Owner,
    RunCancelled,
    RunClaimed,
    RunCompleted,
    RunFailed,
    run_stream,
)
from eventlog.log import Append, Artifacts, Expect, NewEvent, RecordedEvent
from eventlog.progress import ENDED, Progress, fold_stream, request_of
from eventlog.proposal import propose
from eventlog.run import Run, Status
from eventlog.runtime.attempts import AnyAction
from eventlog.runtime.definitions import Workflow
from eventlog.runtime.drive import Asked, Drive
from eventlog.runtime.operations.acts import act
from eventlog.runtime.operations.children import hand_off, run_child
from eventlog.runtime.operations.steps import run_step
from eventlog.runtime.operations.waits import sleep_until, wait_for_signal
from eventlog.runtime.runner import Runner
from eventlog.stores.artifacts import artifact_in
from eventlog.stores.memory import MemoryLog
from eventlog.stores.sqlite import SqliteLog
from eventlog.testing.clock import FakeClock
from eventlog.testing.twin import Question, Twin
from eventlog.values import digest_of

__all__ = ["Replayed", "replay"]

_END_OF_TIME_US: Final = 4_000_000_000_000_000
_NOBODY: Final = Owner(host="replay", boot="replay", lock="replay")
_SQLITE: Final = b"SQLite format 3\0"
_ENDS: Final = (RunCompleted, RunFailed, RunCancelled)
_SETTLED: Final = frozenset(
    {Status.COMPLETED, Status.COMPENSATED, Status.REJECTED, Status.EXPIRED, Status.FAILED, Status.CANCELLED}
)


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """How far the code came. `run` is what the history adds up to.

    `how` is `stopped` (at the step key `stopped_at`, to which the history has no answer), `returned` (with `value`), or
    `raised` (with the run's own `error`). `answered` are the step keys that were answered, in the order of asking.
    """

    run: Run
    how: str
    answered: tuple[str, ...]
    stopped_at: str | None = None
    value: Any = None
    error: str | None = None


async def replay(
    workflow: Workflow,
    history: Iterable[RecordedEvent] | os.PathLike[str],
    *,
    run_id: str | None = None,
    actions: Sequence[AnyAction] = (),
    ignores_fingerprint: bool = False,
    artifacts: Artifacts | None = None,
) -> Replayed:
    """Run the code against the history of a run of it; see the module for what is raised.

    `run_id` says which run of a history of several is meant. `actions`, if any are given, are all that the code may
    propose. `artifacts` are those of the log, where the events came without it; InvalidInput if one of them is needed
    and nobody has given them. A history that was completed has to come to the same result:
    Refused(`nondeterministic_replay`) otherwise.
    """
    events, kept = await _read(history, run_id, artifacts)
    if not events:
        raise InvalidInput("invalid_argument", "there is no event of a run in this history")
    run = fold_stream(events[0].stream.removeprefix(RUN_PREFIX), events)
    if run.progress is None:
        raise InvalidInput("invalid_argument", f"run {run.run_id!r} is one action, not a workflow")
    past = _without_end(events) if run.status in ENDED else events
    replaying = _Replaying(run, fold_stream(run.run_id, past), actions)
    clock = FakeClock(_END_OF_TIME_US)
    async with MemoryLog(actor="replay", clock=clock, scanner=None) as copy:
        for data in kept:
            await copy.artifacts.put(data)
        await _copy(past, run.run_id, copy)
        continues = [run.progress.definition.fingerprint] if ignores_fingerprint else []
        twin = Twin(workflow, replaying.answer, continues=continues)
        runner = Runner(copy, workflows=[twin], clock=clock, patience_s=0)
        try:
            outcome = await runner.resume(run.run_id)
        except _Stopped as stopped:
            return _require_same(replaying.stopped(stopped.key))
        except LogCorrupt as missing:
            if missing.reason != "artifact_missing" or artifacts is not None or _is_database_path(history):
                raise
            message = "this history has artifacts; give artifacts=, or the database, instead of its events alone"
            raise InvalidInput("invalid_argument", message) from missing
        assert outcome.run.status in ENDED, "what has no answer stops the code, and nothing else does"
        how = "returned" if outcome.run.status is Status.COMPLETED else "raised"
        error = outcome.failure.message if outcome.failure is not None else None
        return _require_same(
            Replayed(run=run, how=how, answered=replaying.answered, value=outcome.value, error=error),
            outcome.run.progress,
        )


class _Stopped(Exception):
    """The code asks for what the history has no answer to."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key: Final = key


class _Replaying:
    """Answers from the history alone: `run` is what all of it adds up to, `past` what was there before its end."""

    def __init__(self, run: Run, past: Run, actions: Sequence[AnyAction]) -> None:
        self._run: Final = run
        self._past: Final = past
        self._progress: Final[Progress] = past.progress
        self._actions: Final = frozenset(action.name for action in actions)
        self._asked: Final[dict[str, None]] = {}

    @property
    def answered(self) -> tuple[str, ...]:
        """The keys that were asked for and have an answer."""
        return tuple(key for key in self._asked if self._has_answer(key))

    def stopped(self, key: str) -> Replayed:
        """Return that the code was stopped here."""
        return Replayed(run=self._run, how="stopped", answered=self.answered, stopped_at=key)

    def answer(self, question: Question) -> Any:
        """Return the engine's own answer if it is in the history; else what stops the code."""
        self._asked[question.key] = None
        if self._has_answer(question.key):
            return question.pass_on()
        return question.put_to(self._stop, question)

    def _has_answer(self, key: str) -> bool:
        progress = self._progress
        step, timer, child = progress.steps.get(key), progress.timers.get(key), progress.children.get(key)
        request = progress.requests.get(key)
        return (
            key in progress.failures
            or (step is not None and step.is_done)
            or (timer is not None and timer.has_fired)
            or (child is not None and (child.status is Status.COMPLETED or child.relation == "handoff"))
            or (request is not None and request.status in _SETTLED)
        )

    async def _stop(self, drive: Drive, asked: Asked, question: Question) -> Any:
        """Stop the code here, if this is what the history waits for as well."""
        self._require_known_action(drive, question)
        recorded, now = self._recorded(question.key), _described(question)
        if recorded is not None and recorded != now:
            raise drive.diverged(now, recorded)
        await drive.before_new()
        raise drive.halt(_Stopped(question.key))

    def _require_known_action(self, drive: Drive, question: Question) -> None:
        if question.operation is act and self._actions and question.args[0] not in self._actions:
            message = f"the workflow proposes {question.args[0]!r}, and there is no such action"
            raise drive.halt(Refused("unknown_action", message, run_id=self._run.run_id, action=question.args[0]))

    def _recorded(self, key: str) -> str | None:
        """Return what the history has begun under this key, as `_described` spells it; None if nothing."""
        progress = self._progress
        request = request_of(self._past, key)
        if request is not None:
            return f"an action with the proposal {progress.first_hashes.get(key)}"
        if key in progress.children:
            child = progress.children[key]
            return f"a {child.relation} {child.workflow!r} with the arguments {child.input}"
        if key in progress.steps:
            return f"the step {progress.steps[key].name!r}"
        return f"the time {key!r}" if key in progress.timers else None


def _described(question: Question) -> str:
    match question.operation, question.args:
        case operation, (action, args, output) if operation is act:
            return f"an action with the proposal {propose(action, args, output).hash}"
        case operation, (workflow, args, _) if operation in (run_child, hand_off):
            relation = "child" if operation is run_child else "handoff"
            return f"a {relation} {workflow.name!r} with the arguments {digest_of(args) if args else None}"
        case operation, _ if operation in (sleep_until, wait_for_signal):
            return f"the time {question.key!r}"
        case operation, _ if operation is run_step:
            return f"the step {question.name!r}"
    return f"the value {question.name!r}"


def _require_same(replayed: Replayed, now: Progress | None = None) -> Replayed:
    """Return what was replayed, unless the history has ended and this is no such end."""
    run = replayed.run
    if run.status is not Status.COMPLETED:
        return replayed
    if replayed.how == "stopped":
        asked = repr(replayed.stopped_at)
    elif replayed.how == "raised":
        asked = f"an end by {replayed.error}"
    else:
        assert now is not None, "the code has returned"
        if _text(now) == _text(run.progress):
            return replayed
        asked = f"the result {_text(now)}"
    recorded = f"the result {_text(run.progress)}"
    message = f"run {run.run_id!r} is replayed, and its workflow comes to {asked}, where its log holds {recorded}"
    raise Refused("nondeterministic_replay", message, run_id=run.run_id, asked=asked, recorded=recorded)


def _text(progress: Progress) -> str:
    stored = progress.value
    return bytes(stored.json).decode() or "null" if stored.artifact is None else f"artifact://{stored.artifact}"


# ── the copy ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _copy(past: Sequence[RecordedEvent], run_id: str, copy: MemoryLog) -> None:
    """Copy a history without its end, as that of a run which nobody holds and which waits for nothing."""
    stream = run_stream(run_id)
    for actor, part in groupby(past, key=lambda event: event.actor):
        new = [NewEvent(event.type, _unheld(event.data), event.event_id, event.correlation_id) for event in part]
        await copy.append_reserved([Append(stream, new, Expect.any())], actor=actor)
    claim = RunClaimed(epoch=len(past) + 1, owner=_NOBODY, deadline_us=0)
    await copy.append_reserved([Append(stream, [NewEvent("run_claimed", claim)], Expect.exists())])


def _without_end(events: list[RecordedEvent]) -> list[RecordedEvent]:
    last = max(place for place, event in enumerate(events) if isinstance(event.data, _ENDS))
    return events[:last]


def _unheld(event: Any) -> Any:
    return replace(event, deadline_us=0) if isinstance(event, RunClaimed | ClaimRenewed) else event


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _read(
    history: Iterable[RecordedEvent] | os.PathLike[str], run_id: str | None, artifacts: Artifacts | None
) -> tuple[list[RecordedEvent], list[bytes]]:
    """Return the events of the one run, and the artifacts that they name."""
    if not isinstance(history, os.PathLike):
        events = _of_one_run(history, run_id)
        return events, await _named(events, artifacts)
    path = Path(history)
    if not _is_database_path(path):
        events = _of_one_run(_events_of_lines(path), run_id)
        return events, await _named(events, artifacts)
    async with SqliteLog(path, actor="replay", is_read_only=True) as log:
        events = _of_one_run([event async for event in log.read_all(stream_prefix=RUN_PREFIX)], run_id)
        return events, await _named(events, artifacts or log.artifacts)


def _is_database_path(history: object) -> bool:
    if not isinstance(history, os.PathLike):
        return False
    with Path(history).open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


async def _named(events: Iterable[RecordedEvent], artifacts: Artifacts | None) -> list[bytes]:
    if artifacts is None:
        return []
    digests = {artifact_in(event.stream, event.type, event.body) for event in events}
    return [await artifacts.get(digest) for digest in sorted(filter(None, digests))]


def _of_one_run(events: Iterable[RecordedEvent], run_id: str | None) -> list[RecordedEvent]:
    found = [event for event in events if event.stream.startswith(RUN_PREFIX)]
    if run_id is not None:
        return [event for event in found if event.stream == run_stream(run_id)]
    streams = {event.stream for event in found}
    if len(streams) > 1:
        raise InvalidInput("invalid_argument", f"there are {len(streams)} runs in this history: say which by run_id=…")
    return found


class _Line(msgspec.Struct, kw_only=True):
    """One line of `eventlog tail --format jsonl`."""

    position: int
    stream: str
    version: int
    type: str
    schema_version: int = 1
    event_id: str
    recorded_at: datetime
    actor: str
    correlation_id: str | None = None
    causation_id: str | None = None
    data: Any


def _events_of_lines(path: Path) -> Iterator[RecordedEvent]:
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            read = msgspec.json.decode(line, type=_Line)
            yield _event(read)
        except (msgspec.DecodeError, ValueError) as error:
            raise InvalidInput("invalid_event", f"line {number} of {path} is no recorded event: {error}") from error


def _event(line: _Line) -> RecordedEvent:
    body = msgspec.json.encode(line.data)
    read = REGISTRY.read(line.type, line.schema_version, body)
    since = line.recorded_at - datetime(1970, 1, 1, tzinfo=UTC)
    return RecordedEvent(
        position=line.position,
        stream=line.stream,
        version=line.version,
        type=read.type,
        stored_type=read.stored_type,
        schema_version=line.schema_version,
        event_id=bytes.fromhex(line.event_id),
        recorded_at_us=(since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds,
        actor=line.actor,
        correlation_id=line.correlation_id,
        causation_id=bytes.fromhex(line.causation_id) if line.causation_id is not None else None,
        body=body,
        data=read.data,
        is_known=read.is_known,
        leaf=b"",
        prev_in_stream=b"",
    )
