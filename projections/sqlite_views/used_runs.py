"""How many runs the view `usage` has rows of."""

from __future__ import annotations

import sqlite3
from typing import Final

__all__ = ["used_runs_count"]

_COUNT: Final = "SELECT count(DISTINCT run_id) FROM usage"


def used_runs_count(connection: sqlite3.Connection) -> int:
    """Return how many runs have used something, or have begun to."""
    count: int = connection.execute(_COUNT).fetchone()[0]
    return count
