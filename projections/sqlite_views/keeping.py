"""Keeps one view in SQLite up to date: begins it, builds a raised revision beside the old one, then follows the log."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator, Callable
from typing import Final

from eventlog.errors import EventLogError
from eventlog.stores.sqlite.view_builds import claim_name
from eventlog.stores.sqlite.view_registry import add_entry, find_entry, remove_entry, set_problem
from eventlog.views import ViewEntry
from projections.sqlite_views.build_lock import exclusive
from projections.sqlite_views.database import ViewDatabase, ViewStore
from projections.sqlite_views.following import Follower
from projections.sqlite_views.rebuilding import BuildProgress, rebuild_view
from projections.sqlite_views.table import SqliteView

__all__ = ["keep_view", "position_of"]

_FIRST_POLL_S: Final = 0.005
_LAST_POLL_S: Final = 0.25


async def keep_view(
    log: ViewStore,
    database: ViewDatabase,
    view: SqliteView,
    *,
    allows_unknown_types: bool = False,
    on_progress: Callable[[BuildProgress], None] | None = None,
) -> AsyncGenerator[ViewEntry, None]:
    """Keep the view, and give its entry after each page, for ever; behind one with a `problem` it ends.

    One process at a time keeps a revision of a view; another waits here, and takes over when the first has gone.
    Raises EventLogError (`view_overtaken` where a later revision is kept, `store_rolled_back` where the log ends before
    the view), and what `rebuild_view` raises.
    """
    async with exclusive(database.place, f"{view.name}-{view.revision}", waits=True):
        entry = await _entry(database, view, allows_unknown_types, on_progress)
        follower = Follower(database, view, entry)
        pause_s = _FIRST_POLL_S
        while True:
            wait = log.next_commit()
            before = follower.entry.position
            has_more = await follower.step()
            yield follower.entry
            if follower.entry.problem is not None:
                return
            pause_s = _FIRST_POLL_S if follower.entry.position > before else min(pause_s * 2, _LAST_POLL_S)
            if not has_more:
                await wait(pause_s)


async def position_of(database: ViewDatabase, view: SqliteView) -> int:
    """Return how far this revision of the view is, whoever keeps it; -1 if there is none."""
    entry = await database.look(find_entry, view.name)
    return -1 if entry is None or entry.revision != view.revision else entry.position


async def _entry(
    database: ViewDatabase,
    view: SqliteView,
    allows_unknown_types: bool,
    on_progress: Callable[[BuildProgress], None] | None,
) -> ViewEntry:
    entry = await database.look(find_entry, view.name)
    if entry is None:
        return await database.write_view(_begin, view)
    head = await database.look(database.scan_of(view.selection).head)
    if entry.position > head:
        raise EventLogError(
            "store_rolled_back",
            f"the view {view.name!r} stands at position {entry.position}, but the log ends at {head}",
            view=view.name,
            position=entry.position,
            head=head,
        )
    leaf = await database.look(database.scan_of(view.selection).leaf, entry.position)
    if entry.leaf is not None and leaf != entry.leaf:
        raise EventLogError(
            "store_rolled_back",
            f"the view {view.name!r} was folded from another log up to position {entry.position}",
            view=view.name,
            position=entry.position,
        )
    is_there = await database.look(view.exists, entry)
    if entry.revision < view.revision or (entry.revision == view.revision and entry.shape != view.shape and is_there):
        await rebuild_view(database, view, allows_unknown_types=allows_unknown_types, on_progress=on_progress)
    elif entry.revision > view.revision:
        raise EventLogError(
            "view_overtaken",
            f"the view {view.name!r} has revision {entry.revision} by now; this program knows {view.revision}",
            view=view.name,
            revision=entry.revision,
        )
    elif not is_there:
        return await database.write_view(_begin, view)
    return await database.write_view(_resumed, view)


def _begin(connection: sqlite3.Connection, view: SqliteView) -> ViewEntry:
    entry = find_entry(connection, view.name)
    if entry is not None:
        view.drop(connection, entry)
        remove_entry(connection, view.name, "live")
    entry = add_entry(connection, view.name, "live", view.revision, view.shape)
    claim_name(connection, view, entry)
    view.create(connection, entry)
    return entry


def _resumed(connection: sqlite3.Connection, view: SqliteView) -> ViewEntry:
    """Return the live entry, as it is tried again."""
    entry = find_entry(connection, view.name)
    assert entry is not None, "it was there, and only this process may drop it"
    set_problem(connection, entry, None)
    found = find_entry(connection, view.name)
    assert found is not None, "nothing has removed it in this transaction"
    return found
