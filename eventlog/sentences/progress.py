"""Sentences about the course of a run: its beginning and end, checkpoints, claims, steps, waits and other runs."""

from __future__ import annotations

from typing import assert_never

import msgspec

from eventlog.events import (
    CheckpointSaved,
    ChildFinished,
    ChildStarted,
    ClaimRenewed,
    Definition,
    Parent,
    RunCancelled,
    RunClaimed,
    RunCompleted,
    RunFailed,
    SignalReceived,
    SignalRejected,
    StepCompleted,
    StepFailed,
    StepStarted,
    TimerFired,
    TimerSet,
    Waiting,
)
from eventlog.sentences.words import failure_text, joined, listed, named, quoted, stored_text
from eventlog.times import time_text

__all__ = ["OfProgressEvent", "progress_sentence"]

_OfStepEvent = (
    StepStarted
    | StepCompleted
    | StepFailed
    | SignalReceived
    | SignalRejected
    | TimerSet
    | TimerFired
    | ChildStarted
    | ChildFinished
)
OfProgressEvent = CheckpointSaved | RunClaimed | ClaimRenewed | RunCompleted | RunFailed | RunCancelled | _OfStepEvent


def progress_sentence(actor: str, event: OfProgressEvent) -> str:
    """Return the sentence. `actor` is ready to stand in it."""
    match event:
        case CheckpointSaved():
            return _checkpointed(actor, event)
        case RunClaimed(epoch=epoch, deadline_us=deadline_us):
            fenced = "; who held it before was only late, and may still be at work" if event.is_stray else ""
            return f"{actor} took the run over (epoch {epoch}), and holds it until {time_text(deadline_us)}{fenced}"
        case ClaimRenewed(epoch=epoch, deadline_us=deadline_us):
            return f"{actor} is still at work (epoch {epoch}), and holds the run until {time_text(deadline_us)}"
        case RunCompleted():
            return joined(f"{actor} completed the run", _came_to("it returned", event.result, event.artifact))
        case RunFailed(error=error, status=status):
            return f"the run ended as {status.value}: {failure_text(error)}"
        case RunCancelled(reason=reason, actor_source=source):
            why = "" if reason is None else f", because {quoted(reason)}"
            return f"{actor} (vouched for by {named(source)}) cancelled the run{why}; nothing begins any more"
        case _:
            return _of_steps(actor, event)


def _of_steps(actor: str, event: _OfStepEvent) -> str:
    match event:
        case StepStarted(key=key, attempt=attempt):
            return f"{actor} began attempt {attempt} at step {named(key)}"
        case StepCompleted():
            return _step_done(actor, event)
        case StepFailed():
            return _step_failed(event)
        case SignalReceived(name=name):
            return f"{actor} sent the signal {named(name)}{_carrying(event.payload, event.artifact)}"
        case SignalRejected(name=name, key=key, reason=reason):
            return f"the signal {named(name)} is not what step {named(key)} waits for, which waits on: {quoted(reason)}"
        case TimerSet(key=key, due_us=due_us):
            return f"step {named(key)} waits until {time_text(due_us)} at the longest"
        case TimerFired(key=key):
            return f"the timer of step {named(key)} was due, and the run goes on from there"
        case ChildStarted(key=key, child_run_id=child_run_id, workflow=workflow, relation=relation):
            what = f"the run {named(child_run_id)} of workflow {named(workflow)}"
            return f"step {named(key)} started {what}" + ("" if relation == "child" else f", as a {named(relation)}")
        case ChildFinished(key=key, child_run_id=child_run_id, status=status):
            ended = f"the run {named(child_run_id)} that step {named(key)} started has ended as {status.value}"
            error = None if event.error is None else failure_text(event.error)
            return joined(ended, _came_to("it returned", event.result, event.artifact), error)
        case _:
            assert_never(event)


def _checkpointed(actor: str, event: CheckpointSaved) -> str:
    if event.definition is not None:
        return _begun(actor, event, event.definition)
    if event.state_version == 1:
        return f"{actor} started the run; it is {event.status.value}"
    waits = (event.waiting, *event.also_waiting) if event.waiting is not None else ()
    return joined(
        f"checkpoint {event.state_version}: the run is {event.status.value}",
        f"committed: {listed(event.committed)}" if event.committed else None,
        f"it waits for {', and for '.join(map(_wait, waits))}" if waits else None,
        "it is given free" if event.is_released else None,
    )


def _begun(actor: str, event: CheckpointSaved, definition: Definition) -> str:
    code = f"code {named(definition.fingerprint)}"
    if definition.version is not None:
        code = f"version {named(definition.version)}, {code}"
    given = _carrying(event.input, event.artifact)
    return joined(
        f"{actor} started the run of workflow {named(definition.workflow)} ({code}){given}", _parent(event.parent)
    )


def _parent(parent: Parent | None) -> str | None:
    if parent is None:
        return None
    return f"as {named(parent.relation)} of step {named(parent.step)} of the run {named(parent.run_id)}"


def _wait(wait: Waiting) -> str:
    until = "" if wait.due_us is None else f" until {time_text(wait.due_us)}"
    match wait:
        case Waiting(type="approval", approval_id=str(request_id)):
            return f"a decision on request {named(request_id)}"
        case Waiting(type="outcome"):
            return f"somebody who settles what became of {named(wait.node_id)}"
        case Waiting(type="signal", signal=str(name)):
            return f"the signal {named(name)}{until}"
        case Waiting(type="child", child_run_id=str(run_id)):
            return f"the end of the run {named(run_id)}"
        case _:
            return f"the {named(wait.type)} of {named(wait.node_id)}{until}"


def _step_done(actor: str, event: StepCompleted) -> str:
    output = _came_to("its output", event.output, event.artifact)
    group = None if event.group is None else f"pending in the group {named(event.group)}"
    match event.kind:
        case "step":
            attempt = "" if event.attempt == 1 else f" at attempt {event.attempt}"
            done = f"{actor} completed step {named(event.key)}{attempt}"
        case "signal":
            done = f"step {named(event.key)} took the signal {named(event.name)}"
        case kind:
            done = f"step {named(event.key)} recorded a {named(kind)}"
    return joined(done, output, group)


def _step_failed(event: StepFailed) -> str:
    what = f"step {named(event.key)}" if event.kind == "step" else f"the {named(event.kind)} of step {named(event.key)}"
    failed = f"attempt {event.attempt} at {what} failed: {failure_text(event.error)}"
    if event.is_final:
        return joined(failed, "the workflow is told")
    again = "" if event.retry_at_us is None else f" at {time_text(event.retry_at_us)}"
    return joined(failed, f"it is tried again{again}")


def _came_to(what: str, text: msgspec.Raw, artifact: str | None) -> str | None:
    found = stored_text(text, artifact)
    return f"{what} {found}" if found else None


def _carrying(text: msgspec.Raw, artifact: str | None) -> str:
    found = stored_text(text, artifact)
    return f" with {found}" if found else ""
