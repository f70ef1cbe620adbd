"""Another run that a workflow starts: a child, whose end it waits for, or a hand-off, which takes the work over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eventlog.decide import check_run_id
from eventlog.errors import Refused, StepFailed, WrongExpectedVersion
from eventlog.events import ChildStarted, Failure, Parent, Status, Waiting, run_stream
from eventlog.events import StepFailed as StepFailedEvent
from eventlog.log import Append, Expect, NewEvent
from eventlog.progress import Child
from eventlog.run import Run
from eventlog.runtime.beginnings import first_checkpoint
from eventlog.runtime.definitions import Workflow
from eventlog.runtime.drive import Asked, Drive
from eventlog.runtime.operations.steps import step_failed
from eventlog.values import digest_of

__all__ = ["hand_off", "run_child"]


async def run_child(drive: Drive, asked: Asked, workflow: Workflow, args: tuple[Any, ...], run_id: str | None) -> Any:
    """Return what the child returned; it is driven here as far as it goes, and by whoever resumes it later.

    Raises StepFailed if it ended otherwise, the same on every replay.
    """
    child = await _started(drive, asked, workflow, args, run_id, "child")
    is_driven = False
    while child.status is not Status.COMPLETED:
        if asked.key in drive.progress.failures:
            raise _told(drive, asked)
        if is_driven:
            await drive.block(Waiting(type="child", node_id=asked.key, child_run_id=child.run_id))
            is_driven = False
        else:
            await drive.before_new()
            with drive.working():
                await drive.tools.drive_child(child.run_id)
                await drive.session.catch_up()
            is_driven = True
        child = drive.progress.children[asked.key]
    return await drive.value(asked, workflow.result, child.value)


async def hand_off(drive: Drive, asked: Asked, workflow: Workflow, args: tuple[Any, ...], run_id: str | None) -> str:
    """Start a run that takes the work over, and return its id; a worker, or whoever resumes it, drives it."""
    child = await _started(drive, asked, workflow, args, run_id, "handoff")
    return child.run_id


async def _started(
    drive: Drive, asked: Asked, workflow: Workflow, args: tuple[Any, ...], run_id: str | None, relation: str
) -> Child:
    """Return the run that this step has started, started now if it is not yet: both streams say so, or neither."""
    drive.require_kind(asked, relation)
    digest = digest_of(args) if args else None
    child = drive.progress.children.get(asked.key)
    if child is not None:
        _require_same(drive, asked, child, workflow, relation, digest)
        return child
    if asked.key in drive.progress.failures:
        raise _told(drive, asked)
    if drive.tools.workflows.get(workflow.name) is not workflow:
        message = f"the workflow {workflow.name!r} is not registered here"
        raise drive.halt(Refused("unknown_workflow", message, run_id=drive.run.run_id, workflow=workflow.name))
    await drive.before_new()
    with drive.working():
        await drive.accept(asked)
        child_id = check_run_id(run_id if run_id is not None else f"{drive.run.run_id}/{asked.key}")
        stored = await drive.tools.keep(workflow.encode_input(args), drive.run.run_id)
        started = ChildStarted(
            key=asked.key,
            child_run_id=child_id,
            workflow=workflow.name,
            relation=relation,
            input=digest,
            group=asked.group,
        )

        def beside(run: Run, events: Sequence[NewEvent]) -> Sequence[Append]:
            parent = Parent(
                run_id=run.run_id, step=asked.key, root_run_id=run.root_run_id or run.run_id, relation=relation
            )
            first = first_checkpoint(workflow, stored, parent)
            event = NewEvent("checkpoint_saved", first, causation_id=events[-1].event_id)
            own = run_stream(run.run_id)
            return [Append(run_stream(child_id), [event], Expect.no_stream(), subject_of=own)]

        try:
            if child_id == drive.run.run_id:
                raise WrongExpectedVersion(run_stream(child_id), "without events", drive.run.version)
            await drive.session.append(lambda _: (started,), beside=beside)
        except WrongExpectedVersion:
            message = f"the run {child_id!r} exists already, and is another"
            why = Failure(code="run_exists", type="run_exists", message=message)
            failed = StepFailedEvent(
                name=asked.name, key=asked.key, kind=relation, attempt=1, error=why, input=digest, group=asked.group
            )
            await drive.session.add_result(failed)
            raise _told(drive, asked) from None
    return drive.progress.children[asked.key]


def _told(drive: Drive, asked: Asked) -> StepFailed:
    drive.deliver(asked)
    return step_failed(drive, asked, drive.progress.failures[asked.key])


def _require_same(
    drive: Drive, asked: Asked, child: Child, workflow: Workflow, relation: str, digest: str | None
) -> None:
    if child.workflow != workflow.name:
        raise drive.diverged(f"a {relation} {workflow.name!r}", f"a {child.relation} {child.workflow!r}")
    if digest is not None and child.input is not None and digest != child.input:
        raise drive.diverged(
            f"the run {asked.key!r} with other arguments (digest {digest})", f"digest {child.input} there"
        )
