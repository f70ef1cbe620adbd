"""What a run has come to, as text: what is the same in any two histories of it, however often it was interrupted.

Claims, attempts, checkpoints, refusals and times are left out, for they say how the run got there, and so are failures
that were overcome and approvals that were revoked. What is left is a line for each thing that was done for good.
Siblings end in any order, so the lines of a run are sorted. What chance gave a run (`uuid`, `random`) is replaced,
wherever it is found, by the name of what asked for it.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from eventlog.events import (
    RUN_PREFIX,
    ActionExecuted,
    ActionRecovered,
    ApprovalExpired,
    ApprovalRecorded,
    ApprovalRevoked,
    CheckpointSaved,
    ChildFinished,
    ChildStarted,
    OutcomeReconciled,
    ProposalRecorded,
    RunCancelled,
    RunCompleted,
    RunFailed,
    SignalReceived,
    StepCompleted,
    StepFailed,
    TimerFired,
)
from eventlog.log import RecordedEvent

__all__ = ["difference", "outcomes", "printed"]

_VARIES: Final = "…"
_LONG: Final = 12
"""What is shorter may be found where it is something else."""


def outcomes(events: Iterable[RecordedEvent], varies: Collection[str] = ()) -> list[str]:
    """Return the lines of all runs among these events. The values of what is named in `varies` are left out."""
    workflows: dict[str, str] = {}
    chances: dict[str, str] = {}
    lines: dict[tuple[object, ...], str] = {}
    for event in events:
        if not event.stream.startswith(RUN_PREFIX):
            continue
        run_id = event.stream.removeprefix(RUN_PREFIX)
        if isinstance(event.data, CheckpointSaved) and event.data.definition is not None:
            workflows[run_id] = event.data.definition.workflow
        if isinstance(event.data, StepCompleted) and event.data.kind == "value":
            chances.setdefault(_text(event.data.output).strip('"'), f"<{event.data.key} of {run_id}>")
        if isinstance(event.data, ApprovalRevoked):
            votes = (run_id, event.data.step, "votes")
            lines = {place: line for place, line in lines.items() if place[:3] != votes}
        line = _line(event.data, workflows.get(run_id, ""), varies)
        if line is not None:
            lines[_place(event, run_id)] = f"{run_id}: {line}"
    return sorted(_replaced(line, chances) for line in lines.values())


def _place(event: RecordedEvent, run_id: str) -> tuple[object, ...]:
    """Return where the line of an event stands; that of a later event of the same place takes it."""
    match event.data:
        case ApprovalRecorded(step=key):
            return run_id, key, "votes", event.actor
        case StepCompleted(key=key) | StepFailed(key=key) | ChildFinished(key=key):
            return run_id, key
        case RunCompleted() | RunFailed() | RunCancelled():
            return run_id, None
    return (event.position,)


def printed(events: Iterable[RecordedEvent]) -> str:
    """Return all events as they are in the log, one a line, cut to what a person reads."""
    return "\n".join(
        f"{event.position:5} {event.stream} {event.version:4} {event.type} {event.body[:160].decode(errors='replace')}"
        for event in events
    )


def difference(expected: Sequence[str], found: Sequence[str], names: tuple[str, str]) -> str:
    """Return where two histories part, line by line; the empty text where they do not."""
    return "\n".join(difflib.unified_diff(expected, found, *names, lineterm="", n=1))


def _replaced(line: str, chances: Mapping[str, str]) -> str:
    for value, name in chances.items():
        if len(value) >= _LONG and value in line:
            line = line.replace(value, name)
    return line


def _line(event: Any, workflow: str, varies: Collection[str]) -> str | None:
    def value(key: str | None, stored: Any) -> str:
        name = (key or "").partition("#")[0].partition(":")[0]
        return _VARIES if name in varies or key in varies else _text(stored)

    match event:
        case CheckpointSaved() if event.definition is not None:
            return f"began {workflow!r} with {value(workflow, _stored(event.input, event.artifact))}"
        case StepCompleted(key=key, kind="value"):
            return f"recorded {key!r}"
        case StepCompleted(key=key, kind="signal"):
            return f"took the signal {key!r}"
        case StepCompleted(key=key):
            return f"step {key!r} returned {value(key, _stored(event.output, event.artifact))}"
        case StepFailed(key=key, is_final=True):
            return f"step {key!r} failed: {event.error.type}: {value(key, event.error.message)}"
        case TimerFired(key=key):
            return f"the time of {key!r} came"
        case SignalReceived(name=name):
            return f"the signal {name!r} came with {value(name, _stored(event.payload, event.artifact))}"
        case ProposalRecorded(step=key):
            return f"action {key!r} was proposed: {value(key, event.proposal)}"
        case ApprovalRecorded(step=key):
            return f"action {key!r}: {event.decision}"
        case ApprovalExpired(step=key):
            return f"action {key!r}: expired"
        case ActionExecuted(step=key) | ActionRecovered(step=key) | OutcomeReconciled(step=key, verdict="executed"):
            return f"action {key!r} was done, and gave {value(key, event.result)}"
        case ChildStarted(key=key):
            return f"{event.relation} {key!r} began as run {event.child_run_id!r}"
        case ChildFinished(key=key):
            return f"child {key!r}: {event.status.value} {value(key, _stored(event.result, event.artifact))}"
        case RunCompleted():
            return f"returned {value(workflow, _stored(event.result, event.artifact))}"
        case RunFailed():
            return f"{event.status.value}: {event.error.code}: {value(workflow, event.error.message)}"
        case RunCancelled():
            return "cancelled"
    return None


def _stored(json: msgspec.Raw, artifact: str | None) -> Any:
    return f"artifact://{artifact}" if artifact is not None else json


def _text(value: Any) -> str:
    if isinstance(value, msgspec.Raw):
        return bytes(value).decode(errors="replace") or "null"
    return value if isinstance(value, str) else msgspec.json.encode(value, order="sorted").decode()
