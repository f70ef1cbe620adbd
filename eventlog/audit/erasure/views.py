"""The views in the log's database that may hold something of what is erased: built again, or dropped.

Who can build a view is told by the caller, who knows its projection (`KnownViews`; `projections` has one). A view that
nobody here knows would keep what is erased: it is refused in front of everything else, or dropped where that was asked
for. Whatever is not live (an interrupted build, what an exchange has kept) is dropped in any case.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, Protocol

import msgspec

from eventlog.errors import EventLogError, Refused
from eventlog.stores.sqlite import SqliteLog
from eventlog.stores.sqlite.view_registry import all_entries
from eventlog.stores.sqlite.view_tables import drop_page, generations_without_table, set_aside
from eventlog.stores.telemetry import logger
from eventlog.views import ViewEntry

__all__ = ["Held", "KnownViews", "ViewPlan", "drop_unknown", "plan_views", "rebuild_known"]

_ROWS_AT_ONCE: Final = 2000

Held = Collection[tuple[str, str]]
"""Stored types of events, each with a stream that has such."""


class KnownViews(Protocol):
    """The views whose projections a program knows, in the log's own database."""

    def knows(self, entry: ViewEntry) -> bool:
        """Say whether this program can build that view again, in its revision or a later one."""

    def may_hold(self, name: str, held: Held) -> bool:
        """Say whether the view of this name selects events of these types in these streams."""

    async def rebuild(self, name: str) -> None:
        """Build the view again from the whole log, give it its name, and drop what had it. Raises EventLogError."""


class ViewPlan(msgspec.Struct, frozen=True):
    """The names of the views to build again, and of those that nobody here can build."""

    rebuilt: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


async def plan_views(log: SqliteLog, known: KnownViews, held: Held, *, drops_unknown: bool) -> ViewPlan:
    """Return what becomes of which view. Raises Refused(`view_unknown_here`) for one that cannot be built again."""
    entries = await log.look(all_entries)
    unknown = tuple(dict.fromkeys(entry.name for entry in entries if not known.knows(entry)))
    if unknown and not drops_unknown:
        names = ", ".join(map(repr, unknown))
        message = f"this program cannot build {names} again, and nobody knows what is in there; nothing was erased"
        raise Refused("view_unknown_here", message, views=list(unknown))
    gone = await log.look(generations_without_table)
    hidden = [entry.name for entry in entries if entry.name in unknown and entry.generation in gone]
    if hidden:
        message = f"what {', '.join(map(repr, hidden))} wrote is not under that name, so it cannot be dropped from here"
        raise Refused("view_unknown_here", f"{message}; nothing was erased", views=hidden)
    there = dict.fromkeys(entry.name for entry in entries if entry.name not in unknown)
    return ViewPlan(tuple(name for name in there if known.may_hold(name, held)), unknown)


async def rebuild_known(log: SqliteLog, known: KnownViews, names: Sequence[str]) -> dict[str, str]:
    """Build these views again, and drop what else there is of them. Return why, for each that could not be."""
    failed = {}
    for name in names:
        try:
            await _drop_states(log, name, but="live")
            if "live" in await _states(log, name):
                await known.rebuild(name)
                await _drop_states(log, name, but="live")
        except EventLogError as error:
            logger.error("view_not_rebuilt", view=name, code=error.code, why=str(error))
            failed[name] = f"{error.code}: {error}"
    return failed


async def drop_unknown(log: SqliteLog, names: Sequence[str]) -> None:
    """Drop these views altogether."""
    for name in names:
        await _drop_states(log, name, but="live")
        if await log.write_view(set_aside, name):
            await _drop_states(log, name, but="live")


async def _drop_states(log: SqliteLog, name: str, *, but: str) -> None:
    for state in await _states(log, name):
        while state != but and await log.write_view(drop_page, name, state, _ROWS_AT_ONCE):
            pass


async def _states(log: SqliteLog, name: str) -> list[str]:
    return [entry.state for entry in await log.look(all_entries) if entry.name == name]
