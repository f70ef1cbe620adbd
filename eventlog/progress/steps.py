"""How an event about a step, a signal, a timer or a child changes the run."""

from __future__ import annotations

from typing import Any, Final

from eventlog.events import (
    ChildFinished,
    ChildStarted,
    Failure,
    RunEvent,
    SignalReceived,
    SignalRejected,
    Status,
    StepCompleted,
    StepFailed,
    StepStarted,
    TimerFired,
    TimerSet,
)
from eventlog.progress.commits import committed_alone, join
from eventlog.progress.state import Child, Progress, Step, Stored, Timer
from eventlog.progress.waits import resolved
from eventlog.run import Run

__all__ = ["is_of_steps", "step_changes"]

_OF_STEPS: Final = (
    StepStarted,
    StepCompleted,
    StepFailed,
    SignalReceived,
    SignalRejected,
    TimerSet,
    TimerFired,
    ChildStarted,
    ChildFinished,
)


def is_of_steps(event: RunEvent) -> bool:
    """Say whether `step_changes` applies this event."""
    return isinstance(event, _OF_STEPS)


def step_changes(run: Run, progress: Progress, event: RunEvent, version: int, at_us: int) -> dict[str, Any]:
    """Apply an event about a step, a wait or a child."""
    match event:
        case StepStarted(name=name, key=key, attempt=attempt):
            step = progress.steps.setdefault(key, Step(name=name))
            step.attempts, step.retry_at_us = attempt, None
            return {}
        case StepCompleted():
            return _step_done(run, progress, event, version)
        case StepFailed():
            return _step_failed(progress, event)
        case SignalReceived(name=name):
            progress.signals.setdefault(name, []).append(Stored(event.payload, event.artifact, version))
            waiting = next((wait for wait in progress.waits if wait.signal == name), None)
            return resolved(progress, waiting.node_id) if waiting is not None else {}
        case SignalRejected(name=name):
            if progress.signals.get(name):
                progress.signals[name].pop(0)
            return {}
        case TimerSet(key=key, due_us=due_us, group=group):
            progress.timers[key] = Timer(due_us)
            join(progress, key, group)
            return {}
        case TimerFired(key=key):
            progress.timers.setdefault(key, Timer(at_us)).has_fired = True
            return committed_alone(run, progress, key)
        case ChildStarted(key=key, child_run_id=child_run_id, workflow=workflow):
            progress.children[key] = Child(
                run_id=child_run_id, workflow=workflow, relation=event.relation, input=event.input
            )
            join(progress, key, event.group)
            return committed_alone(run, progress, key) if event.relation == "handoff" else {}
        case _:
            assert isinstance(event, ChildFinished), "`is_of_steps` says which events come here"
            return _child_done(run, progress, event, version)


def _step_done(run: Run, progress: Progress, event: StepCompleted, version: int) -> dict[str, Any]:
    step = progress.steps.setdefault(event.key, Step(name=event.name))
    step.kind, step.attempts, step.input = event.kind, event.attempt, event.input
    step.is_done, step.retry_at_us = True, None
    if event.kind == "signal":
        kept = progress.signals.get(event.name) or [Stored()]
        step.value = kept.pop(0)
    else:
        step.value = Stored(event.output, event.artifact, version)
    progress.failures.pop(event.key, None)
    join(progress, event.key, event.group)
    return committed_alone(run, progress, event.key)


def _step_failed(progress: Progress, event: StepFailed) -> dict[str, Any]:
    step = progress.steps.setdefault(event.key, Step(name=event.name, kind=event.kind))
    step.attempts, step.input, step.retry_at_us = event.attempt, event.input, event.retry_at_us
    join(progress, event.key, event.group)
    if event.is_final:
        progress.failures[event.key] = event.error
    return {}


def _child_done(run: Run, progress: Progress, event: ChildFinished, version: int) -> dict[str, Any]:
    child = progress.children.get(event.key)
    if child is None or event.key in progress.committed:
        return {}  # a hand-off, or a failure that the workflow has handled before the child was taken up again
    child.status, child.value = event.status, Stored(event.result, event.artifact, version)
    changes: dict[str, Any] = {}
    if event.status is Status.COMPLETED:
        progress.failures.pop(event.key, None)
        changes = committed_alone(run, progress, event.key)
    else:
        message = f"the run {event.child_run_id!r} has ended {event.status.value}"
        progress.failures[event.key] = event.error or Failure(code="step_failed", message=message)
    return changes | resolved(progress, event.key)
