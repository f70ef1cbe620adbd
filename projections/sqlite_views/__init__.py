"""Views as SQLite tables: in the log's database, or in one of their own.

`SqliteView` keeps the table of one projection; `rebuild_view` builds it again without downtime; `check_view` proves
that it equals its log. `RunsTable` is the view of runs as the runtime compares it with the log.
"""

from projections.sqlite_views.built_in import built_in_views
from projections.sqlite_views.checking import Checked, check_view, differences
from projections.sqlite_views.comparing import Comparison, Difference
from projections.sqlite_views.crashes import crashed_effects, crashes_count
from projections.sqlite_views.database import ViewDatabase, ViewFile, ViewStore
from projections.sqlite_views.following import Follower
from projections.sqlite_views.inbox import inbox, inbox_size
from projections.sqlite_views.ranges import rebuild_in_ranges
from projections.sqlite_views.rebuildable import RebuildableViews
from projections.sqlite_views.rebuilding import BuildProgress, Rebuilt, drop_old_view, rebuild_view
from projections.sqlite_views.runs_table import RunsTable, runs_view
from projections.sqlite_views.table import SqliteView

__all__ = [
    "BuildProgress",
    "Checked",
    "Comparison",
    "Difference",
    "Follower",
    "RebuildableViews",
    "Rebuilt",
    "RunsTable",
    "SqliteView",
    "ViewDatabase",
    "ViewFile",
    "ViewStore",
    "built_in_views",
    "check_view",
    "crashed_effects",
    "crashes_count",
    "differences",
    "drop_old_view",
    "inbox",
    "inbox_size",
    "rebuild_in_ranges",
    "rebuild_view",
    "runs_view",
]
