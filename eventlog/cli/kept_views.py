"""Which of the views that ship this command line keeps, and which it brings up only when they are asked for.

What people decide from is kept with every append: the lists of runs and of what waits are then there at once, however
long the log is. The story of a run and what it has used are asked for seldom, and every event would cost a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from projections import APPROVALS, EFFECTS, RUNS, TIMELINE, USAGE, Projection

__all__ = ["INBOX", "KEPT", "ON_DEMAND", "SHIPPED", "is_brought_up_when_asked_for"]

KEPT: Final[Sequence[Projection]] = (RUNS, APPROVALS, EFFECTS)
ON_DEMAND: Final[Sequence[Projection]] = (TIMELINE, USAGE)

SHIPPED: Final = frozenset(projection.name for projection in (*KEPT, *ON_DEMAND))
INBOX: Final = (RUNS.name, APPROVALS.name, EFFECTS.name)
"""The views that say what a person is wanted for."""

_ASKED_FOR: Final = frozenset(projection.name for projection in ON_DEMAND)


def is_brought_up_when_asked_for(name: str) -> bool:
    """Say whether it is nothing to speak of that this view is behind the log."""
    return name in _ASKED_FOR
