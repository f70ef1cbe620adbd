"""Which views a database has: the table `views`, one row for each table of a view.

    name         the view's, which is the name of its live table
    state        live, building (beside the live one), kept (the one before, until it is dropped), part-N (of a build)
    revision     of the projection that writes it
    position     up to which the log is folded into it; written with the view's rows in one transaction
    generation   numbers the tables that were ever made, none twice; one that is not live is called NAME__gGENERATION
    shape        of its columns, so that a build is not gone on with after they were changed
    problem      JSON of what stopped it, NULL while nothing does
    leaf         of the event at the position, for a view that lies apart from its log: which log that was

Every function works inside the transaction of its caller.
"""

from __future__ import annotations

import sqlite3
from typing import Final

import msgspec

from eventlog.errors import EventLogError
from eventlog.views import ViewEntry, ViewProblem

__all__ = [
    "ENTRY_COLUMNS",
    "add_entry",
    "all_entries",
    "as_entry",
    "find_entry",
    "move_entry",
    "newest_revision",
    "overtaken",
    "remove_entry",
    "set_problem",
    "set_state",
    "table_name",
]

ENTRY_COLUMNS: Final = "name, state, revision, position, generation, shape, problem, leaf"
_FIND: Final = f"SELECT {ENTRY_COLUMNS} FROM views WHERE name = ? AND state = ?"
_ALL: Final = f"SELECT {ENTRY_COLUMNS} FROM views ORDER BY name, state = 'live' DESC, generation"
_NEWEST: Final = "SELECT max(revision) FROM views WHERE name = ? AND state = 'live'"
_ADD: Final = """
INSERT INTO views (name, state, revision, position, shape) VALUES (?, ?, ?, ?, ?)"""
_MOVE: Final = """
UPDATE views SET position = ?, problem = NULL, leaf = ?
WHERE name = ? AND state = ? AND generation = ? AND revision = ? AND position = ?"""
_SET_STATE: Final = "UPDATE views SET state = ? WHERE name = ? AND state = ?"
_SET_PROBLEM: Final = "UPDATE views SET problem = ? WHERE name = ? AND state = ? AND generation = ?"
_REMOVE: Final = "DELETE FROM views WHERE name = ? AND state = ?"

_decode_problem: Final = msgspec.json.Decoder(ViewProblem).decode


def table_name(table: str, entry: ViewEntry) -> str:
    """Return the name that the table `table` of a view has in the database."""
    return table if entry.state == "live" else f"{table}__g{entry.generation}"


def find_entry(connection: sqlite3.Connection, name: str, state: str = "live") -> ViewEntry | None:
    """Return the entry of a view in this state, or None."""
    row = connection.execute(_FIND, (name, state)).fetchone()
    return None if row is None else as_entry(row)


def all_entries(connection: sqlite3.Connection) -> list[ViewEntry]:
    """Return all entries by name, the live one of each first."""
    return [as_entry(row) for row in connection.execute(_ALL).fetchall()]


def newest_revision(connection: sqlite3.Connection, name: str) -> int | None:
    """Return the revision of the live view, or None if there is none."""
    revision: int | None = connection.execute(_NEWEST, (name,)).fetchone()[0]
    return revision


def add_entry(
    connection: sqlite3.Connection, name: str, state: str, revision: int, shape: str, *, position: int = 0
) -> ViewEntry:
    """Add an entry with a generation of its own and return it."""
    connection.execute(_ADD, (name, state, revision, position, shape))
    found = find_entry(connection, name, state)
    assert found is not None, "it was inserted in this transaction"
    return found


def move_entry(connection: sqlite3.Connection, entry: ViewEntry, position: int, leaf: bytes | None = None) -> ViewEntry:
    """Move an entry from the position that it was read at to `position`, and return it as it is now.

    Raises EventLogError(`view_overtaken`) if it is not there any more: somebody else writes this view.
    """
    identity = (entry.name, entry.state, entry.generation, entry.revision, entry.position)
    moved = connection.execute(_MOVE, (position, leaf, *identity)).rowcount
    if moved != 1:
        raise overtaken(entry)
    return msgspec.structs.replace(entry, position=position, problem=None, leaf=leaf)


def overtaken(entry: ViewEntry) -> EventLogError:
    """Return the error that says that an entry is not what it was when it was read."""
    return EventLogError(
        "view_overtaken",
        f"the view {entry.name!r} is not at position {entry.position} any more: somebody else writes it",
        view=entry.name,
        position=entry.position,
    )


def set_problem(connection: sqlite3.Connection, entry: ViewEntry, problem: ViewProblem | None) -> None:
    """Say what stopped a view, or that nothing does."""
    text = None if problem is None else msgspec.json.encode(problem).decode()
    connection.execute(_SET_PROBLEM, (text, entry.name, entry.state, entry.generation))


def set_state(connection: sqlite3.Connection, name: str, before: str, after: str) -> None:
    """Give an entry another state. The tables are for the caller to rename."""
    connection.execute(_SET_STATE, (after, name, before))


def remove_entry(connection: sqlite3.Connection, name: str, state: str) -> None:
    """Remove an entry, if it is there. The tables are for the caller to drop."""
    connection.execute(_REMOVE, (name, state))


def as_entry(row: tuple[str, str, int, int, int, str, str | None, bytes | None]) -> ViewEntry:
    """Return a row of `ENTRY_COLUMNS` as an entry."""
    name, state, revision, position, generation, shape, problem, leaf = row
    return ViewEntry(
        name=name,
        state=state,
        revision=revision,
        position=position,
        generation=generation,
        shape=shape,
        problem=None if problem is None else _problem(problem),
        leaf=leaf,
    )


def _problem(text: str) -> ViewProblem:
    try:
        return _decode_problem(text)
    except msgspec.MsgspecError:  # somebody edited it; that something is wrong is all there is to know
        return ViewProblem(position=0, type="", stream="", error=text)
