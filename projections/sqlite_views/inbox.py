"""What waits for people: the requests of the view `approvals` that somebody is wanted for, each with its run."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Final

from projections.approvals import APPROVALS
from projections.projection import Row
from projections.sqlite_views.limits import at_most

__all__ = ["REQUEST_COLUMNS", "REQUEST_NAMES", "inbox", "inbox_size"]

_OF_RUN: Final[Mapping[str, str]] = {
    "run_status": "status",
    "workflow": "workflow",
    "parent_run_id": "parent_run_id",
    "root_run_id": "root_run_id",
    "waiting_for": "waiting_for",
    "approval_request_id": "approval_request_id",
    "approval_hash": "approval_hash",
    "executed": "executed",
}
"""The columns that a run gives to the rows of its requests, by the names that they have there."""

REQUEST_NAMES: Final = (*APPROVALS.columns, *_OF_RUN)
"""The columns of a request together with those of its run."""

REQUEST_COLUMNS: Final = ", ".join(
    (*(f"a.{name}" for name in APPROVALS.columns), *(f"r.{name}" for name in _OF_RUN.values()))
)
"""The same in SQL, where the view `approvals` is called `a` and `runs` `r`."""

# The plus signs keep SQLite to the index of `wanted`: few requests wait, of however many there have been.
_WANTED: Final = f"""
SELECT {REQUEST_COLUMNS} FROM approvals a LEFT JOIN runs r ON r.run_id = a.run_id
WHERE a.wanted > '' AND (+a.run_id, +a.request_id) > (?, ?) ORDER BY +a.run_id, +a.request_id LIMIT ?"""

_SIZE: Final = "SELECT count(*) FROM approvals WHERE wanted > ''"


def inbox(connection: sqlite3.Connection, after: tuple[str, str] = ("", ""), limit: int = 1000) -> list[Row]:
    """Return up to `limit` requests for which a person is wanted, by run and request, those behind `after`.

    A row has the columns of `approvals` and, from `runs`, `run_status`, `workflow`, `parent_run_id`, `root_run_id`,
    `waiting_for`, `approval_request_id`, `approval_hash` and `executed`. Both views have to be there:
    `await log.read_view(inbox)` on a log that was opened with both. No stream is read. A limit of -1 is none.
    """
    found = connection.execute(_WANTED, (*after, at_most(limit)))
    return [dict(zip(REQUEST_NAMES, values, strict=True)) for values in found]


def inbox_size(connection: sqlite3.Connection) -> int:
    """Return for how many requests a person is wanted."""
    size: int = connection.execute(_SIZE).fetchone()[0]
    return size
