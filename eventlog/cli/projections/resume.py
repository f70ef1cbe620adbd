"""`eventlog projections resume`: a view that has stopped, or is only late, is tried again and brought up."""

from __future__ import annotations

import click
from msgspec import to_builtins

from eventlog.cli.advice import after_a_stop
from eventlog.cli.failures import report
from eventlog.cli.options import Options
from eventlog.cli.output import show_card
from eventlog.cli.projections.command import PlacedViewCommand
from eventlog.cli.projections.known import known_views, the_view
from eventlog.cli.projections.place import open_place
from eventlog.cli.wiring import complete
from eventlog.errors import EventLogError
from eventlog.stores.sqlite.view_tables import without_table
from eventlog.views import ViewEntry
from projections import SqliteView
from projections.sqlite_views.bringing_up import bring_up
from projections.sqlite_views.database import ViewDatabase
from projections.sqlite_views.entries import read_entries
from projections.sqlite_views.rebuilding import view_failed

__all__ = ["resume"]


@click.command("resume", cls=PlacedViewCommand)
@click.argument("name")
@click.pass_obj
def resume(options: Options, name: str) -> int:
    """Try a view again that stopped at an event which its projection could not fold, and bring it up.

    It goes on in front of that event. If the projection still raises, the error says where and why (view_failed).

    Exit status 0: it is at the end of the log. 2: it cannot be brought there. 5: the log is busy; try again.
    """
    try:
        complete(options, _resume(options, name))
    except EventLogError as error:
        if error.code != "view_failed":
            raise
        return report(error, options, status=2, hint=after_a_stop(options, name))
    return 0


async def _resume(options: Options, name: str) -> None:
    known = known_views(options)
    async with open_place(options) as place:
        database = place.database
        entries = (await read_entries(database)).entries
        view = the_view(known, name, {entry.name for entry in entries})
        before = next((entry for entry in entries if (entry.name, entry.state) == (name, "live")), None)
        after = await _brought_up(database, view, before)
    show_card(
        options,
        {
            "name": name,
            "revision": after.revision,
            "stopped_at": None if before is None or before.problem is None else before.problem.position,
            "position_before": None if before is None else before.position,
            "position": after.position,
            "problem_before": None if before is None else to_builtins(before.problem),
        },
    )


async def _brought_up(database: ViewDatabase, view: SqliteView, entry: ViewEntry | None) -> ViewEntry:
    if entry is None:
        message = f"there is no view {view.name!r} yet; building it makes one"
        raise EventLogError("unknown_view", message, view=view.name, revision=view.revision)
    if entry.revision < view.revision:
        message = f"the view {view.name!r} has revision {entry.revision}, this program folds {view.revision}"
        raise EventLogError("view_outdated", message, view=view.name, revision=entry.revision)
    if entry.revision > view.revision:
        message = f"the view {view.name!r} has revision {entry.revision}, this program knows {view.revision}"
        raise EventLogError("view_overtaken", message, view=view.name, revision=entry.revision)
    if await database.look(without_table, [entry]):
        message = f"the table of the view {view.name!r} is gone; only building it again makes one"
        raise EventLogError("view_outdated", message, view=view.name, revision=entry.revision)
    after = await bring_up(database, view)
    if after.problem is not None:
        raise view_failed(after, after.problem)
    return after
