"""How the events of a workflow run add up: which event changes what."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from eventlog.codec import unknown_type
from eventlog.errors import InvalidInput
from eventlog.events import (
    CheckpointSaved,
    ClaimRenewed,
    RunCancelled,
    RunClaimed,
    RunCompleted,
    RunEvent,
    RunFailed,
    Status,
)
from eventlog.log import RecordedEvent
from eventlog.progress.requests import request_changes
from eventlog.progress.state import ENDED, Progress, Stored
from eventlog.progress.steps import is_of_steps, step_changes
from eventlog.run import Run, evolve, fold_run

__all__ = ["advance", "fold_stream", "is_workflow"]


def is_workflow(events: Iterable[RecordedEvent]) -> bool:
    """Say whether the events of a run, of which the first is needed, are those of a workflow."""
    return any(isinstance(event.data, CheckpointSaved) and event.data.definition is not None for event in events)


def fold_stream(run_id: str, events: Iterable[RecordedEvent], start: Run | None = None) -> Run:
    """Return the run that these events, all of its stream in order, add up to; of either kind.

    With `start`, the state in front of them, which this fold may change. Of events whose words are erased, or cannot be
    read here, it is what remains of them; the run says so. Raises EventTypeUnknown for an event that this program does
    not know, InvalidInput (`invalid_event`) for a stream that cannot be one of a run.
    """
    events = list(events)
    run = start or Run(run_id=run_id)
    if run.progress is None and not is_workflow(events[:1]):
        return _redacted(fold_run(run_id, events), events)
    for event in events:
        if not event.is_known:
            raise unknown_type(event)
        run = advance(run, event.data, version=event.version, at_us=event.recorded_at_us, actor=event.actor)
    return _redacted(run, events)


def _redacted(run: Run, events: Iterable[RecordedEvent]) -> Run:
    why = next((event.redacted for event in events if event.redacted is not None), None)
    return run if why is None else replace(run, redacted=why)


def advance(run: Run, event: RunEvent, *, version: int, at_us: int, actor: str) -> Run:
    """Return the workflow run as it is after `event`; its progress is changed in place.

    Raises InvalidInput (`invalid_event`) where the events cannot be those of one run: no event of a step that never
    asked, nothing in front of the first checkpoint.
    """
    progress: Progress | None = run.progress
    if progress is None:
        if not isinstance(event, CheckpointSaved) or event.definition is None:
            raise InvalidInput("invalid_event", "the first event of a workflow run is a checkpoint with its definition")
        return _begun(run, event, version=version, at_us=at_us)
    if is_of_steps(event):
        changes = step_changes(run, progress, event, version, at_us)
    else:
        changes = _run_changes(run, progress, event, version=version, at_us=at_us, actor=actor)
    if run.status in ENDED and not _takes_up(run, event):
        changes = _still_ended(progress, changes)
    return replace(run, version=version, recorded_at_us=at_us, **changes)


def _takes_up(run: Run, event: RunEvent) -> bool:
    """Say whether the event takes up a run that had ended: a claim does, of one that FAILED; nothing else."""
    return run.status is Status.FAILED and isinstance(event, RunClaimed)


def _still_ended(progress: Progress, changes: dict[str, Any]) -> dict[str, Any]:
    """Return what an event changes in a run that has ended and stays so, whatever comes behind its end.

    What an effect has come to is kept, and what people say about it; nobody drives the run and it waits for nothing.
    """
    progress.owner = None
    progress.waits, progress.arrived = (), ()
    return {name: value for name, value in changes.items() if name in ("state_version", "epoch")}


def _begun(run: Run, event: CheckpointSaved, *, version: int, at_us: int) -> Run:
    assert event.definition is not None, "it was asked before"
    progress = Progress(
        definition=event.definition, input=Stored(event.input, event.artifact, version), parent=event.parent
    )
    return replace(
        run,
        progress=progress,
        root_run_id=event.parent.root_run_id if event.parent is not None else run.run_id,
        status=event.status,
        state_version=event.state_version,
        version=version,
        recorded_at_us=at_us,
    )


def _run_changes(
    run: Run, progress: Progress, event: RunEvent, *, version: int, at_us: int, actor: str
) -> dict[str, Any]:
    """Apply an event about the run as a whole, or about one of its requests, and return what it changes in the run."""
    match event:
        case CheckpointSaved():
            return _checkpointed(run, progress, event, version)
        case RunClaimed():
            return _claimed(run, progress, event)
        case ClaimRenewed(deadline_us=deadline_us):
            progress.deadline_us = deadline_us
            return {}
        case RunCompleted():
            if run.status not in ENDED:
                progress.value = Stored(event.result, event.artifact, version)
            return _ended(progress, Status.COMPLETED)
        case RunFailed(error=error, status=status):
            return _ended(progress, status) | {"failure": error}
        case RunCancelled():
            progress.requests = {key: evolve(request, event) for key, request in progress.requests.items()}
            return _ended(progress, Status.CANCELLED)
        case _:
            key = getattr(event, "step", None)
            return {} if key is None else request_changes(run, progress, key, event, version, at_us, actor)


def _checkpointed(run: Run, progress: Progress, event: CheckpointSaved, version: int) -> dict[str, Any]:
    for key in event.committed:
        progress.committed[key] = event.state_version
    if event.snapshot_hash is not None:
        progress.snapshot_version = version
    if event.waiting is not None:
        progress.waits = (event.waiting, *event.also_waiting)
        progress.arrived = ()
    if event.waiting is not None or event.is_released:
        progress.owner = None
    return {"status": event.status, "state_version": event.state_version, "waiting": event.waiting}


def _claimed(run: Run, progress: Progress, event: RunClaimed) -> dict[str, Any]:
    """The new owner answers for every effect that is under way; what the workflow did not handle is tried again."""
    if _takes_up(run, event):
        _forget_failures(progress)
    for key, request in progress.requests.items():
        if request.open_intent is not None:
            progress.requests[key] = evolve(request, event)
    progress.owner, progress.deadline_us = event.owner, event.deadline_us
    progress.waits, progress.arrived = (), ()
    return {"status": Status.RUNNING, "epoch": event.epoch, "waiting": None, "failure": None}


def _forget_failures(progress: Progress) -> None:
    for key in [key for key in progress.failures if key not in progress.committed]:
        child = progress.children.get(key)
        if child is not None and child.status is not Status.FAILED:
            continue  # nobody can take that run up again
        del progress.failures[key]
        step = progress.steps.get(key)
        if step is not None:
            step.forgotten = step.attempts
        if key in progress.children:
            progress.children[key].status = None


def _ended(progress: Progress, status: Status) -> dict[str, Any]:
    progress.owner = None
    progress.waits, progress.arrived = (), ()
    return {"status": status, "waiting": None}
