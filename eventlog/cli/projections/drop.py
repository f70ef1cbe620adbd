"""`eventlog projections drop`: what an exchange has kept, a build that nobody goes on with, or a view altogether.

It goes by what the registry of views says, so the projection need not be known any more. Rows are taken out page by
page, in smaller pages where the disk is full, and behind one that does not fit the log is opened anew: closing it moves
its write-ahead log into the database, which gives room for the next.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import click

from eventlog.cli.options import Options
from eventlog.cli.output import show_card
from eventlog.cli.projections.command import PlacedViewCommand
from eventlog.cli.projections.known import built_elsewhere, known_views, unknown_view
from eventlog.cli.projections.place import open_place
from eventlog.cli.wiring import complete
from eventlog.errors import EventLogError, StoreUnavailable
from eventlog.stores.sqlite.view_tables import drop_page, set_aside
from projections.sqlite_views.build_lock import exclusive
from projections.sqlite_views.database import ViewDatabase
from projections.sqlite_views.entries import read_entries

__all__ = ["drop"]

_AT_ONCE: Final = 2000
"""How many rows are taken out in one transaction."""


@click.command("drop", cls=PlacedViewCommand)
@click.argument("name")
@click.option("--build", is_flag=True, help="A build that was interrupted, or has stopped; the view stays.")
@click.option("--live", is_flag=True, help="The view altogether: its live table, what is kept, and any build.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def drop(options: Options, name: str, build: bool, live: bool, yes: bool) -> None:
    """Drop the old table that the last rebuild of a view has kept.

    With --live the view altogether; the next program that keeps it folds it from the beginning. No event is touched.
    The projection need not be known here.
    """
    if build and live:
        raise click.UsageError("Either --build or --live, which drops a build as well.")
    if live and not yes and not _is_confirmed(options, name):
        raise click.UsageError(f"Nothing was dropped: {name} --live is confirmed on a terminal, or with --yes.")
    dropped = complete(options, _drop(options, name, is_build=build, is_live=live))
    show_card(options, {"name": name, "dropped": dropped})


def _is_confirmed(options: Options, name: str) -> bool:
    if not options.may_ask:
        return False
    sys.stderr.write(f"Drop the view {name!r} with all its rows? Type its name: ")
    sys.stderr.flush()
    return sys.stdin.readline().strip() == name


async def _drop(options: Options, name: str, *, is_build: bool, is_live: bool) -> list[str]:
    """Return the states of the tables that were dropped."""
    dropping = _Dropping(options, name)
    while True:
        before = dropping.pages
        try:
            await dropping.go_on(is_build=is_build, is_live=is_live)
        except StoreUnavailable as error:
            if error.code != "store_full" or not dropping.may_go_on(before):
                raise
        except EventLogError as error:
            if error.code != "view_busy":
                raise
            raise built_elsewhere(name) from error
        else:
            return dropping.dropped


class _Dropping:
    """Drops tables of one view; what ends in the middle is gone on with."""

    def __init__(self, options: Options, name: str) -> None:
        self._options: Final = options
        self._name: Final = name
        self._limit = _AT_ONCE
        self.pages = 0
        self.dropped: Final[list[str]] = []

    def may_go_on(self, pages_before: int) -> bool:
        """Say whether another try may do better: something was done, or less can be tried."""
        if self.pages == pages_before:
            if self._limit == 1:
                return False
            self._limit = max(1, self._limit // 10)
        return True

    async def go_on(self, *, is_build: bool, is_live: bool) -> None:
        """Drop what was asked for and is still there. Raises EventLogError (`unknown_view`, `view_busy`)."""
        async with open_place(self._options) as place:
            states = await self._states(place.database)
            builds = [state for state in states if state not in ("live", "kept")]
            if not is_build and not is_live:
                await self._drop_all(place.database, ["kept"] if "kept" in states else [])
                return
            async with exclusive(place.database.place, f"{self._name}-build", waits=False):
                if is_build:
                    await self._drop_all(place.database, builds)
                    return
                await self._drop_all(place.database, ["kept", *builds] if "kept" in states else builds)
                if await place.database.write_view(set_aside, self._name):
                    self.dropped.insert(0, "live")
                    await self._drop_pages(place.database, "kept")

    async def _states(self, database: ViewDatabase) -> list[str]:
        entries = (await read_entries(database)).entries
        states = [entry.state for entry in entries if entry.name == self._name]
        if not states and not self.dropped:
            known = known_views(self._options)  # not before: what gave the projection may be gone as well
            if self._name not in known:
                raise unknown_view(self._name, known, {entry.name for entry in entries})
        return states

    async def _drop_all(self, database: ViewDatabase, states: Sequence[str]) -> None:
        for state in states:
            await self._drop_pages(database, state)
            if state not in self.dropped and not (state == "kept" and "live" in self.dropped):
                self.dropped.append(state)

    async def _drop_pages(self, database: ViewDatabase, state: str) -> None:
        while await database.write_view(drop_page, self._name, state, self._limit):
            self.pages += 1
