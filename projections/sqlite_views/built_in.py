"""The views that ship: what an operator and an auditor ask of any log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from projections.approvals import APPROVALS
from projections.effects import EFFECTS
from projections.projection import Projection
from projections.runs import RUNS
from projections.sqlite_views.table import SqliteView
from projections.timeline import TIMELINE
from projections.usage import USAGE

__all__ = ["BUILT_IN", "built_in_views"]

BUILT_IN: Final[Sequence[Projection]] = (RUNS, APPROVALS, EFFECTS, TIMELINE, USAGE)


def built_in_views() -> list[SqliteView]:
    """Return the views that ship, `runs` first. Each can be handed to `eventlog.open(…, views=[…])`, or follow."""
    return [SqliteView(projection) for projection in BUILT_IN]
