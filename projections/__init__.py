"""Read models: folds of the log that answer questions about it.

A projection is a name, a revision and a pure `apply` (`projections.projection`); the views that ship are `runs`. Views
in SQLite are in `projections.sqlite_views`. Projections are handed events and can never append.
"""

from projections.projection import Projection, Row
from projections.runs import RUNS, RunsProjection, wanted_requests
from projections.sqlite_views import Difference, RunsTable, SqliteView, differences, runs_view

__all__ = [
    "RUNS",
    "Difference",
    "Projection",
    "Row",
    "RunsProjection",
    "RunsTable",
    "SqliteView",
    "differences",
    "runs_view",
    "wanted_requests",
]
