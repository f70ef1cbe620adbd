"""Tables of views: folding events into one, building one beside the live one, and giving it the name.

Every function works inside the transaction of its caller, who holds the file lock.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from typing import Any, Final, Protocol

from msgspec.structs import replace

from eventlog.errors import Misuse
from eventlog.stores.sqlite.failures import is_poison_inside, primary
from eventlog.stores.sqlite.scan import Scan
from eventlog.stores.sqlite.view_registry import (
    add_entry,
    find_entry,
    move_entry,
    remove_entry,
    set_problem,
    set_state,
)
from eventlog.views import FoldFailed, Selection, ViewEntry, ViewEvent, ViewProblem, described

__all__ = [
    "InlineView",
    "advance_view",
    "begin_build",
    "claim_name",
    "drop_kept_page",
    "exchange_view",
    "is_of_the_store",
]

_DELETED_AT_ONCE: Final = 2000


class InlineView(Protocol):
    """A view that is kept with plain SQL. The projections that ship with the engine provide such objects."""

    @property
    def name(self) -> str:
        """The name of the view."""

    @property
    def revision(self) -> int:
        """Raised when the view's shape or meaning changes."""

    @property
    def shape(self) -> str:
        """What its tables look like; another text after a change."""

    @property
    def selection(self) -> Selection:
        """The events that change the view."""

    def exists(self, connection: sqlite3.Connection, entry: ViewEntry) -> bool:
        """Say whether the entry's tables are there, or anything else that has their names."""

    def is_own(self, connection: sqlite3.Connection, entry: ViewEntry) -> bool:
        """Say whether what has the names of the entry's tables is exactly what `create` makes."""

    def create(self, connection: sqlite3.Connection, entry: ViewEntry) -> None:
        """Create the entry's tables, empty."""

    def drop(self, connection: sqlite3.Connection, entry: ViewEntry) -> None:
        """Drop the entry's tables, if they are there."""

    def delete_page(self, connection: sqlite3.Connection, entry: ViewEntry, limit: int) -> int:
        """Delete up to `limit` rows of the entry's tables, which nobody reads any more; return how many those were."""

    def rename(self, connection: sqlite3.Connection, before: ViewEntry, after: ViewEntry) -> None:
        """Rename the tables of `before` to those of `after`."""

    def apply(
        self,
        connection: sqlite3.Connection,
        entry: ViewEntry,
        events: Iterable[ViewEvent],
        cache: dict[Any, Any] | None = None,
    ) -> None:
        """Write what these events, in position order, change. Called inside a transaction; commits nothing.

        `cache` belongs to a caller who alone writes this entry: rows may be kept there from call to call.
        """


def advance_view(
    connection: sqlite3.Connection,
    view: InlineView,
    scan: Scan,
    entry: ViewEntry,
    upto: int,
    cache: dict[Any, Any] | None = None,
) -> ViewEntry:
    """Fold the events behind `entry` up to position `upto` into its tables, and return the entry as it is then.

    Called inside a transaction. Whatever a projection does wrong is its own failure: the entry then has a `problem`,
    and stands in front of the event that it could not fold, which the fold tells, or else is found by halving.
    """
    size = upto - entry.position
    while entry.position < upto:
        end = min(upto, entry.position + size)
        connection.execute("SAVEPOINT view")
        try:
            with closing(scan.events(connection, entry.position, end)) as events:
                view.apply(connection, entry, events, cache)
            entry = move_entry(connection, entry, end)
        except BaseException as error:
            if cache is not None:
                cache.clear()
            if not connection.in_transaction or is_of_the_store(error):
                raise
            connection.execute("ROLLBACK TO view")
            connection.execute("RELEASE view")
            if isinstance(error, FoldFailed) and entry.position < error.position <= end:
                size = error.position - 1 - entry.position
            else:
                size = (end - entry.position) // 2
            if size == 0:
                return _stopped(connection, scan, entry, error)
        else:
            connection.execute("RELEASE view")
    return entry


def begin_build(connection: sqlite3.Connection, view: InlineView, *, anew: bool = False) -> tuple[ViewEntry, bool]:
    """Return the entry of the view's build and whether it is new. One that was interrupted is gone on with.

    A build of another revision or shape, and one whose tables are gone, is begun anew; so is any, if `anew`.
    """
    entry = find_entry(connection, view.name, "building")
    if entry is not None:
        is_same = (entry.revision, entry.shape) == (view.revision, view.shape)
        if is_same and not anew and view.exists(connection, entry):
            return entry, False
        view.drop(connection, entry)
        remove_entry(connection, view.name, "building")
    entry = add_entry(connection, view.name, "building", view.revision, view.shape)
    view.create(connection, entry)
    return entry, True


def exchange_view(connection: sqlite3.Connection, view: InlineView, building: ViewEntry) -> None:
    """Give the build the public name; what had it is kept until it is dropped. Called inside a transaction."""
    live = find_entry(connection, view.name)
    if live is None:
        claim_name(connection, view, replace(building, state="live"))
    else:
        _drop_kept(connection, view)
        set_state(connection, view.name, "live", "kept")
        kept = find_entry(connection, view.name, "kept")
        assert kept is not None, "it was given this state in this transaction"
        if view.exists(connection, live):
            view.rename(connection, live, kept)
    set_state(connection, view.name, "building", "live")
    after = find_entry(connection, view.name)
    assert after is not None, "it was given this state in this transaction"
    view.rename(connection, building, after)


def claim_name(connection: sqlite3.Connection, view: InlineView, entry: ViewEntry) -> None:
    """Make the live name free for a view that has no live entry.

    A table that only this view can have created is what is left of one whose entry is gone. Raises
    Misuse(`view_name_taken`) for anything else: what nobody has recorded is somebody's.
    """
    if not view.exists(connection, entry):
        return
    if not view.is_own(connection, entry):
        message = f"{view.name!r} is the name of something else in the database, so no view can have it"
        raise Misuse("view_name_taken", message, view=view.name)
    view.drop(connection, entry)


def drop_kept_page(connection: sqlite3.Connection, view: InlineView) -> bool:
    """Take a page of rows out of what an exchange has kept, or drop it if none is left; say whether there is more.

    Rows of views are overwritten when they are deleted, so dropping a large table at once would keep appends waiting.
    """
    kept = find_entry(connection, view.name, "kept")
    if kept is None:
        return False
    if view.exists(connection, kept) and view.delete_page(connection, kept, _DELETED_AT_ONCE):
        return True
    view.drop(connection, kept)
    remove_entry(connection, view.name, "kept")
    return False


def is_of_the_store(error: BaseException) -> bool:
    """Say whether the disk or the lock is at fault, and no projection."""
    if not isinstance(error, sqlite3.Error):
        return False
    return is_poison_inside(error) or primary(error) == sqlite3.SQLITE_FULL


def _drop_kept(connection: sqlite3.Connection, view: InlineView) -> None:
    """Drop what an exchange has kept, if there is anything."""
    while drop_kept_page(connection, view):
        pass


def _stopped(connection: sqlite3.Connection, scan: Scan, entry: ViewEntry, error: BaseException) -> ViewEntry:
    position = entry.position + 1
    type_name, stream = scan.origin(connection, position)
    problem = ViewProblem(position=position, type=type_name, stream=stream, error=described(error))
    set_problem(connection, entry, problem)
    return replace(entry, problem=problem)
