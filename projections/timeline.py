"""The view `timeline`: the story of every run, one row an event, with the sentence that says for people what it says.

`position` is the event's place in the log, `version` that in its run. A sentence is one line of plain text in which
long values are cut, and hidden characters are as they came: see `eventlog.sentences`. What the whole event says is in
the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from eventlog.events import RUN_EVENTS, RUN_PREFIX
from eventlog.sentences import sentence
from eventlog.views import ViewEvent
from projections.projection import Row, RowProjection

__all__ = ["TIMELINE", "TimelineProjection"]

_COLUMNS: Final[Mapping[str, str]] = {
    "position": "INTEGER PRIMARY KEY",
    "run_id": "TEXT NOT NULL",
    "version": "INTEGER NOT NULL",
    "at_us": "INTEGER NOT NULL",
    "actor": "TEXT NOT NULL",
    "type": "TEXT NOT NULL",
    "sentence": "TEXT NOT NULL",
}


class TimelineProjection(RowProjection):
    """Tells each event of a run in a row of its own. Raise the revision when a sentence is worded otherwise."""

    name = "timeline"
    columns = _COLUMNS
    stream_prefix = RUN_PREFIX
    indexes = ("run_id, version",)
    event_types = frozenset(RUN_EVENTS)

    def key(self, event: ViewEvent) -> int:
        """Return the event's position."""
        return event.position

    def apply(self, row: Row | None, event: ViewEvent) -> Row:
        """Return the row of the event."""
        return {
            "position": event.position,
            "run_id": event.stream.removeprefix(RUN_PREFIX),
            "version": event.version,
            "at_us": event.recorded_at_us,
            "actor": event.actor,
            "type": event.type,
            "sentence": sentence(event),
        }

    @staticmethod
    def merge(earlier: Row, later: Row) -> Row:
        """Return the later row. No two parts of a log have an event in common."""
        return later


TIMELINE: Final = TimelineProjection()
