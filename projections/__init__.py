"""Read models: folds of the log that answer questions about it.

A projection is a name, a revision and a pure `apply` (`projections.projection`); the views that ship are `runs`,
`approvals`, `effects`, `timeline` and `usage`. Views in SQLite are in `projections.sqlite_views`, transcripts in files
in `projections.mirrors`. Projections are handed events and can never append.
"""

from projections.approvals import APPROVALS, ApprovalsProjection
from projections.consumers import Consumer
from projections.effects import EFFECTS, EffectsProjection
from projections.memory_views import MemoryView
from projections.mirrors import MirroredLog, Repaired, TranscriptMirror, mirrored
from projections.projection import GroupProjection, Key, Projection, Row, RowProjection
from projections.runner import ProjectionRunner, ViewStatus
from projections.runs import RUNS, RunsProjection, wanted_requests
from projections.sqlite_views import (
    BuildProgress,
    Checked,
    Difference,
    RebuildableViews,
    Rebuilt,
    RunsTable,
    SqliteView,
    ViewFile,
    built_in_views,
    check_view,
    crashed_effects,
    crashes_count,
    differences,
    drop_old_view,
    inbox,
    inbox_size,
    rebuild_in_ranges,
    rebuild_view,
    runs_view,
)
from projections.timeline import TIMELINE, TimelineProjection
from projections.usage import USAGE, UsageProjection

__all__ = [
    "APPROVALS",
    "EFFECTS",
    "RUNS",
    "TIMELINE",
    "USAGE",
    "ApprovalsProjection",
    "BuildProgress",
    "Checked",
    "Consumer",
    "Difference",
    "EffectsProjection",
    "GroupProjection",
    "Key",
    "MemoryView",
    "MirroredLog",
    "Projection",
    "ProjectionRunner",
    "RebuildableViews",
    "Rebuilt",
    "Repaired",
    "Row",
    "RowProjection",
    "RunsProjection",
    "RunsTable",
    "SqliteView",
    "TimelineProjection",
    "TranscriptMirror",
    "UsageProjection",
    "ViewFile",
    "ViewStatus",
    "built_in_views",
    "check_view",
    "crashed_effects",
    "crashes_count",
    "differences",
    "drop_old_view",
    "inbox",
    "inbox_size",
    "mirrored",
    "rebuild_in_ranges",
    "rebuild_view",
    "runs_view",
    "wanted_requests",
]
