"""What a projection is: a name, a revision and a pure `apply`.

A projection answers one kind of question by folding events into rows. It is handed events, never a log: that it cannot
append is a matter of types. Raise `revision` whenever the rows of old events would come out differently; the view is
then built again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from eventlog.log import RecordedEvent

__all__ = ["Projection", "Row"]

Row = dict[str, Any]
"""One row of a view by column name; values are str, int, float, bytes or None."""


class Projection(Protocol):
    """A fold of events into rows that are found by one key; each holds the version of its stream it is folded up to."""

    @property
    def name(self) -> str:
        """The name of the view."""

    @property
    def revision(self) -> int:
        """1, and higher whenever the meaning of the rows changes."""

    @property
    def event_types(self) -> frozenset[str]:
        """The event types that may change a row."""

    @property
    def columns(self) -> Mapping[str, str]:
        """Column names and their SQLite types, the key first. There is a column `version`."""

    def key(self, event: RecordedEvent) -> str | None:
        """Return the key of the row that this event concerns, or None if it concerns none."""

    def apply(self, row: Row | None, event: RecordedEvent) -> Row | None:
        """Return the row as it is after `event`. Pure; the given row is not changed."""
