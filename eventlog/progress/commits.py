"""What of a run is committed by its own event, and what is left to a checkpoint."""

from __future__ import annotations

from typing import Any

from eventlog.progress.state import Progress
from eventlog.run import Run

__all__ = ["committed_alone", "join"]


def join(progress: Progress, key: str, group: str | None) -> None:
    """Note the group of a step, if it belongs to one."""
    if group is not None:
        progress.groups[key] = group


def committed_alone(run: Run, progress: Progress, key: str) -> dict[str, Any]:
    """What stands alone is committed by its own event, what belongs to a group by a checkpoint."""
    if key in progress.groups or key in progress.committed:
        return {}
    progress.committed[key] = run.state_version + 1
    return {"state_version": run.state_version + 1}
