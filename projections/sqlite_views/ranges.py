"""Builds a view by several processes at once, each over a range of positions, for projections that declare `merge`.

Each range is folded into a table of its own, as if it were the whole log; then the later tables are merged into the
first, row by row in the order of their keys, which is then a build like any other. A page is merged and taken out of
its table in one transaction, so whatever ends this, it goes on where it was.

Behind the first range a fold does not see the rows that the earlier ones have, so it can add to them and not take them
away: an `apply` that returns None there ends the build, and that view is built by one process.
"""

from __future__ import annotations

import asyncio
import importlib
import multiprocessing
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from itertools import pairwise
from multiprocessing.process import BaseProcess
from typing import Any, Final

from msgspec.structs import replace

from eventlog.codec import REGISTRY, Registry
from eventlog.errors import EventLogError, InvalidInput
from eventlog.stores.sqlite.log import SqliteLog
from eventlog.stores.sqlite.view_registry import (
    find_entry,
    move_entry,
    remove_entry,
    set_state,
)
from eventlog.views import ViewEntry, ViewEvent, described
from projections.projection import Key, Projection, Row, RowProjection
from projections.sqlite_views.build_lock import exclusive
from projections.sqlite_views.following import Follower
from projections.sqlite_views.parts import add_part, drop_parts, find_parts, part_range
from projections.sqlite_views.rebuilding import BuildProgress, Rebuilt, drop_build, rebuild_view, view_failed
from projections.sqlite_views.table import SqliteView, UnstorableRow

__all__ = ["fold_in_ranges", "rebuild_in_ranges"]

_MERGED_AT_ONCE: Final = 2000
_POLL_S: Final = 0.1
_SMALLEST_RANGE: Final = 1000

Told = Callable[[int, int], None]


async def fold_in_ranges(
    log: SqliteLog,
    view: SqliteView,
    *,
    processes: int,
    anew: bool = False,
    allows_unknown_types: bool = False,
    on_positions: Told | None = None,
) -> None:
    """Leave a build of the view that is folded up to where the log ended, made by `processes` processes.

    Only for the log's own database. The projection's class, and the Structs of its events, have to be importable by
    name. Called under the lock of the build. Raises InvalidInput for a projection without `merge`, EventLogError
    (`view_failed` where the projection or its `merge` raises, or the fold cannot be split; …). `on_positions` is told
    how many positions are folded of how many.
    """
    if view.projection.merge is None:
        message = f"{view.name!r} cannot be built by several processes: its projection declares no `merge`"
        raise InvalidInput("invalid_argument", message)
    if log.registry is not REGISTRY:
        raise InvalidInput("invalid_argument", "other processes know the default registry only, not this log's")
    if anew:
        await log.write_view(drop_parts, view)
        await log.write_view(drop_build, view)
    parts = await log.write_view(_parts, view, processes, (await log.head()).position)
    if any(part.position < part_range(part.state)[1] for part in parts):
        await _fold(log, view, parts, allows_unknown_types, on_positions)
    await _merge(log, view, [part.state for part in parts])


def _parts(connection: sqlite3.Connection, view: SqliteView, processes: int, head: int) -> list[ViewEntry]:
    """Return the ranges by position: those that an interrupted build has left, or new ones.

    None if there is a build that can be gone on with, or the log is too short.
    """
    found = find_parts(connection, view)
    merging = find_entry(connection, view.name, "merging")
    pieces = found if merging is None else [merging, *found]
    if pieces and all(_is_usable(connection, view, piece) for piece in pieces):
        return found
    drop_parts(connection, view)
    if find_entry(connection, view.name, "building") is not None or head < _SMALLEST_RANGE * processes:
        return []
    bounds = [head * number // processes for number in range(processes + 1)]
    return [add_part(connection, view, first, last) for first, last in pairwise(bounds)]


def _is_usable(connection: sqlite3.Connection, view: SqliteView, piece: ViewEntry) -> bool:
    return (piece.revision, piece.shape) == (view.revision, view.shape) and view.exists(connection, piece)


async def rebuild_in_ranges(
    log: SqliteLog,
    view: SqliteView,
    *,
    processes: int,
    anew: bool = False,
    compares: bool = False,
    exchanges: bool = True,
    allows_unknown_types: bool = False,
    on_progress: Callable[[BuildProgress], None] | None = None,
) -> Rebuilt:
    """As `rebuild_view`, with the log folded by several processes. Raises as `fold_in_ranges` and `rebuild_view`."""
    began_s = time.monotonic()

    def tell(done: int, total: int) -> None:
        if on_progress is not None:
            rate = done / max(time.monotonic() - began_s, 1e-9)
            left_s = (total - done) / rate if rate else None
            on_progress(BuildProgress(position=done, head=total, rate=rate, left_s=left_s))

    rebuilt = await rebuild_view(
        log,
        view,
        compares=compares,
        exchanges=exchanges,
        allows_unknown_types=allows_unknown_types,
        before_build=partial(
            fold_in_ranges,
            log,
            view,
            processes=processes,
            anew=anew,
            allows_unknown_types=allows_unknown_types,
            on_positions=tell,
        ),
        on_progress=on_progress,
    )
    return replace(rebuilt, began_after=0, events=rebuilt.position, seconds=time.monotonic() - began_s)


# ── folding ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _fold(
    log: SqliteLog,
    view: SqliteView,
    parts: Sequence[ViewEntry],
    allows_unknown_types: bool,
    on_positions: Told | None,
) -> None:
    context = multiprocessing.get_context("spawn")
    modules = sorted(_modules(log.registry, view.projection))
    waiting = [part for part in parts if part.position < part_range(part.state)[1]]
    children = [
        context.Process(
            target=_fold_part,
            args=(log.place, view.projection, part.state, modules, allows_unknown_types),
            daemon=True,
        )
        for part in waiting
    ]
    try:
        for child in children:
            child.start()
        while any(child.is_alive() for child in children):
            await asyncio.sleep(_POLL_S)
            await _tell(log, view, on_positions)
    finally:
        for child in children:
            _end(child)
    await _require_whole(log, view, children)


def _modules(registry: Registry, projection: Projection) -> set[str]:
    """Return the modules that have to be imported for the events to have their shapes."""
    return {cls.__module__ for cls in registry.classes()} | {type(projection).__module__}


async def _tell(log: SqliteLog, view: SqliteView, on_positions: Told | None) -> None:
    if on_positions is not None:
        parts = await log.look(find_parts, view)
        ranges = [(part_range(part.state), part.position) for part in parts]
        on_positions(sum(at - first for (first, _), at in ranges), sum(last - first for (first, last), _ in ranges))


async def _require_whole(log: SqliteLog, view: SqliteView, children: Sequence[BaseProcess]) -> None:
    for part in await log.look(find_parts, view):
        if part.problem is not None:
            raise view_failed(part, part.problem)
        if part.position < part_range(part.state)[1]:
            codes = ", ".join(str(child.exitcode) for child in children)
            message = f"a process that folds {view.name!r} ended at position {part.position} (exit codes {codes})"
            raise EventLogError("view_failed", message, view=view.name, position=part.position)


def _end(child: BaseProcess) -> None:
    with suppress(ValueError):
        if child.is_alive():
            child.terminate()
        child.join(5)


def _fold_part(
    path: str, projection: Projection, state: str, modules: Sequence[str], allows_unknown_types: bool
) -> None:
    """Fold one range. This is what a child process does."""
    for module in modules:
        if module != "__main__":
            importlib.import_module(module)
    asyncio.run(_follow_part(path, SqliteView(projection), state, allows_unknown_types=allows_unknown_types))


async def _follow_part(path: str, view: SqliteView, state: str, *, allows_unknown_types: bool = False) -> None:
    async with (
        SqliteLog(path, actor="eventlog:rebuild", may_create=False) as log,
        exclusive(log.place, f"{view.name}-{state}", waits=True),
    ):
        entry = await log.look(find_entry, view.name, state)
        if entry is None:
            return
        if part_range(state)[0] > 0:
            view = SqliteView(_keeping_rows(view.projection))
        part = Follower(log, view, entry, requires_known_types=not allows_unknown_types, until=part_range(state)[1])
        while await part.step():
            pass


def _keeping_rows(projection: Projection) -> Projection:
    """Return the projection with an `apply` that raises where the given one takes a row away.

    Whether the earlier ranges have that row is not known here, and that it has gone would be forgotten.
    """
    if not isinstance(projection, RowProjection):
        return projection
    kept = copy(projection)
    apply = projection.apply

    def keep(row: Row | None, event: ViewEvent) -> Row:
        made = apply(row, event)
        if made is None:
            message = "`apply` returned None behind the first range, so the fold cannot be split"
            raise FoldCannotBeSplit(f"{message}: rebuild this view with one process, which can")
        return made

    vars(kept)["apply"] = keep
    return kept


class FoldCannotBeSplit(Exception):
    """A fold takes rows away, which a process that has not seen the events before cannot."""


# ── merging ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _merge(log: SqliteLog, view: SqliteView, states: Sequence[str]) -> None:
    for state in states:
        if part_range(state)[0] == 0:
            await log.write_view(set_state, view.name, state, "merging")
            continue
        while await log.write_view(_merge_page, view, state):
            pass
    await log.write_view(set_state, view.name, "merging", "building")


def _merge_page(connection: sqlite3.Connection, view: SqliteView, state: str) -> bool:
    """Merge one page of a range into the build and take it out of the range; say whether there is more."""
    build, part = find_entry(connection, view.name, "merging"), find_entry(connection, view.name, state)
    assert build is not None and part is not None, "both were there when merging began, under the lock of the build"
    rows = view.first_rows(connection, part, _MERGED_AT_ONCE)
    if not rows:
        view.drop(connection, part)
        remove_entry(connection, view.name, state)
        move_entry(connection, build, part_range(state)[1])
        return False
    try:
        merged = {key: _merged(view, connection, build, key, row) for key, row in rows.items()}
        view.write(connection, build, dict(merged))
    except (_MergeFailed, UnstorableRow) as error:
        raise _cannot_be_merged(view, error) from error
    view.write(connection, part, dict.fromkeys(rows))
    return True


class _MergeFailed(Exception):
    """What `merge` raised, as text."""


def _cannot_be_merged(view: SqliteView, error: Exception) -> EventLogError:
    message = f"the parts of the view {view.name!r} cannot be merged, and one process has to build it: {error}"
    return EventLogError("view_failed", message, view=view.name, revision=view.revision)


def _merged(view: SqliteView, connection: sqlite3.Connection, build: ViewEntry, key: Key, later: Row) -> Row:
    merge: Any = view.projection.merge
    earlier = view.row(connection, key, build)
    if earlier is None:
        return later
    try:
        row: Row = merge(earlier, later)
    except BaseException as error:  # an exit as well, as of `apply`
        raise _MergeFailed(f"`merge` raised {described(error)}, for the key {key!r}") from error
    if not isinstance(row, dict):
        raise _MergeFailed(f"`merge` returned {type(row).__name__}, and no row, for the key {key!r}")
    return row
