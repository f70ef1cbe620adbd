"""How a workflow run begins: the first event of its stream."""

from __future__ import annotations

from eventlog.events import CheckpointSaved, Parent, Status
from eventlog.progress import Stored
from eventlog.runtime.definitions import Workflow

__all__ = ["first_checkpoint"]


def first_checkpoint(workflow: Workflow, arguments: Stored, parent: Parent | None = None) -> CheckpointSaved:
    """Return the checkpoint that a run of the workflow with these arguments begins with."""
    return CheckpointSaved(
        status=Status.RUNNING,
        state_version=1,
        definition=workflow.definition,
        input=arguments.json,
        artifact=arguments.artifact,
        parent=parent,
    )
