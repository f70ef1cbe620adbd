"""The parts of a build that several processes fold: entries beside the live one, each for a range of positions.

The state of a part is `part-FIRST-LAST`: behind position FIRST, up to LAST. While others are merged into the first one
its state is `merging`, so that nobody takes it for a build.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from eventlog.stores.sqlite.view_registry import add_entry, all_entries, find_entry, remove_entry
from eventlog.views import ViewEntry
from projections.sqlite_views.table import SqliteView

__all__ = ["add_part", "drop_parts", "find_parts", "part_range"]

_PART: Final = "part-"


def add_part(connection: sqlite3.Connection, view: SqliteView, first: int, last: int) -> ViewEntry:
    """Make the empty table of a part, and return its entry."""
    entry = add_entry(connection, view.name, f"{_PART}{first}-{last}", view.revision, view.shape, position=first)
    view.create(connection, entry)
    return entry


def find_parts(connection: sqlite3.Connection, view: SqliteView) -> list[ViewEntry]:
    """Return the parts that are left, by position."""
    parts = [each for each in all_entries(connection) if each.name == view.name and each.state.startswith(_PART)]
    return sorted(parts, key=lambda part: part_range(part.state))


def part_range(state: str) -> tuple[int, int]:
    """Return behind which position a part in this state begins, and with which it ends."""
    first, last = state.removeprefix(_PART).split("-")
    return int(first), int(last)


def drop_parts(connection: sqlite3.Connection, view: SqliteView) -> None:
    """Drop what a build by several processes has left, that into which parts were merged included."""
    merging = find_entry(connection, view.name, "merging")
    for piece in find_parts(connection, view) + ([] if merging is None else [merging]):
        view.drop(connection, piece)
        remove_entry(connection, view.name, piece.state)
