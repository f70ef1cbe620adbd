"""Builds a view again without downtime: beside the one that is there, then it takes its name in one transaction.

Meanwhile the old one is read, and kept up to date by whoever keeps it. A build that was interrupted, however hard, is
gone on with where it was; what had the name before is kept until it is dropped (`drop_old_view`), or until the next
build begins. Appends wait no longer than for one page of rows to be written.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Awaitable, Callable
from typing import Final, Literal

import msgspec

from eventlog.errors import EventLogError
from eventlog.stores.sqlite.scan import Scan
from eventlog.stores.sqlite.view_builds import advance_view, begin_build, claim_name, drop_kept_page, exchange_view
from eventlog.stores.sqlite.view_registry import find_entry, remove_entry, table_name
from eventlog.views import ViewEntry, ViewProblem
from projections.sqlite_views.build_lock import exclusive
from projections.sqlite_views.comparing import Comparison, common_columns, compare_again, compare_tables
from projections.sqlite_views.database import ViewDatabase
from projections.sqlite_views.following import Follower
from projections.sqlite_views.parts import drop_parts
from projections.sqlite_views.table import SqliteView

__all__ = ["BuildProgress", "Rebuilt", "drop_build", "drop_old_view", "rebuild_view", "view_failed"]

_LAST_STRETCH: Final = 500
"""How many events may be folded inside the transaction of the exchange."""
_MAX_LOOKED_AT_AGAIN: Final = 10_000
_MAX_DIFFERENCES: Final = 100


class BuildProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a build is. `rate` is events/s since it began or was gone on with, `left_s` what is left at that rate."""

    position: int
    head: int
    rate: float
    left_s: float | None


class Rebuilt(msgspec.Struct, frozen=True, kw_only=True):
    """What a rebuild did.

    `began_after` is the position that an interrupted build had reached, 0 for a new one; `events` are the positions
    that were passed since. `comparison` is what the old view differed in, if that was asked for and can be told: rows
    of another shape cannot be compared.
    """

    name: str
    revision: int
    outcome: Literal["exchanged", "compared"]
    position: int
    began_after: int
    events: int
    seconds: float
    comparison: Comparison | None = None


async def rebuild_view(
    database: ViewDatabase,
    view: SqliteView,
    *,
    anew: bool = False,
    compares: bool = False,
    exchanges: bool = True,
    allows_unknown_types: bool = False,
    before_build: Callable[[], Awaitable[None]] | None = None,
    on_progress: Callable[[BuildProgress], None] | None = None,
) -> Rebuilt:
    """Build the view again from the whole log and give it the public name.

    `anew` throws an interrupted build away instead of going on with it. `compares` says how the old view differed;
    without `exchanges` that is all, and the build is dropped. Cancelling leaves a build that can be gone on with.
    `before_build` may leave a build to go on with, under the same lock: see `rebuild_in_ranges`.

    Raises EventLogError (`view_busy` if another process builds it, `view_failed` if the projection raises,
    `view_overtaken` if the live view is of a later revision), Misuse(`view_name_taken`), EventTypeUnknown for an event
    of a type that is not registered here (unless `allows_unknown_types`), LogCorrupt, StoreUnavailable. The old view is
    as it was then.
    """
    async with exclusive(database.place, f"{view.name}-build", waits=False):
        await database.write_view(_require_buildable, view)
        if exchanges:
            await drop_old_view(database, view)
        if before_build is not None:
            await before_build()
        entry, _ = await database.write_view(_begin, view, anew)
        build = Follower(database, view, entry, requires_known_types=not allows_unknown_types)
        meter = _Meter(entry.position)
        await _catch_up(build, meter, on_progress)
        before = await database.look(_compare, view, build.entry) if compares else None
        ending = _Ending(view, database.scan_of(view.selection), before, exchanges)
        while not await database.write_view(ending.finish_if_near, build.entry):
            await _catch_up(build, meter, on_progress)
        return Rebuilt(
            name=view.name,
            revision=view.revision,
            outcome="exchanged" if exchanges else "compared",
            position=ending.position,
            began_after=meter.began_after,
            events=ending.position - meter.began_after,
            seconds=meter.seconds,
            comparison=ending.comparison,
        )


async def drop_old_view(database: ViewDatabase, view: SqliteView) -> bool:
    """Drop what the last exchange has kept, and say whether there was anything."""
    had_kept = await database.look(find_entry, view.name, "kept") is not None
    while await database.write_view(drop_kept_page, view):
        pass
    return had_kept


class _Meter:
    """Positions, never estimates: what was passed, and in what time."""

    def __init__(self, began_after: int) -> None:
        self.began_after: Final = began_after
        self._began_s: Final = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began_s

    def progress(self, position: int, head: int) -> BuildProgress:
        rate = (position - self.began_after) / max(self.seconds, 1e-9)
        left_s = (head - position) / rate if rate > 0 else None
        return BuildProgress(position=position, head=head, rate=rate, left_s=left_s)


async def _catch_up(build: Follower, meter: _Meter, on_progress: Callable[[BuildProgress], None] | None) -> None:
    while await build.step():
        _tell(build, meter, on_progress)
    _tell(build, meter, on_progress)
    if build.entry.problem is not None:
        raise view_failed(build.entry, build.entry.problem)


def _tell(build: Follower, meter: _Meter, on_progress: Callable[[BuildProgress], None] | None) -> None:
    if on_progress is not None:
        on_progress(meter.progress(build.entry.position, build.head))


def view_failed(entry: ViewEntry, problem: ViewProblem) -> EventLogError:
    """Return the error that says what stopped a view."""
    return EventLogError(
        "view_failed",
        f"the view {entry.name!r} (revision {entry.revision}) stopped in front of position {problem.position}, "
        f"a {problem.type!r} of stream {problem.stream!r}: {problem.error}",
        view=entry.name,
        revision=entry.revision,
        state=entry.state,
        position=problem.position,
        type=problem.type,
        stream=problem.stream,
    )


class _Ending:
    """The last transaction: folds the short stretch that is missing, looks again at what differed, and exchanges."""

    def __init__(self, view: SqliteView, scan: Scan, before: Comparison | None, exchanges: bool) -> None:
        self._view: Final = view
        self._scan: Final = scan
        self._before: Final = before
        self._exchanges: Final = exchanges
        self.position = 0
        self.comparison: Comparison | None = None

    def finish_if_near(self, connection: sqlite3.Connection, entry: ViewEntry) -> bool:
        """Do all that, unless the build is too far behind for one transaction. Raises EventLogError(`view_failed`)."""
        head = self._scan.head(connection)
        if head - entry.position > _LAST_STRETCH:
            return False
        entry = advance_view(connection, self._view, self._scan, entry, head)
        if entry.problem is not None:
            raise view_failed(entry, entry.problem)
        self.position = entry.position
        if self._before is not None:
            self.comparison = _compare_again(connection, self._view, entry, self._before)
        if self._exchanges:
            exchange_view(connection, self._view, entry)
        else:
            drop_build(connection, self._view)
        return True


def _begin(connection: sqlite3.Connection, view: SqliteView, anew: bool) -> tuple[ViewEntry, bool]:
    drop_parts(connection, view)  # what a build by ranges has left: the one that is begun, or gone on with, is another
    other = find_entry(connection, view.name, "building")
    if other is not None and other.revision > view.revision:
        message = f"revision {other.revision} of {view.name!r} is being built; this program knows {view.revision}"
        raise EventLogError("view_overtaken", message, view=view.name, revision=other.revision)
    return begin_build(connection, view, anew=anew)


def _require_buildable(connection: sqlite3.Connection, view: SqliteView) -> None:
    live = find_entry(connection, view.name)
    if live is None:
        nobody = ViewEntry(
            name=view.name, state="live", revision=view.revision, position=0, generation=0, shape=view.shape
        )
        claim_name(connection, view, nobody)
    elif live.revision > view.revision:
        raise EventLogError(
            "view_overtaken",
            f"the view {view.name!r} has revision {live.revision}, which a later program keeps; "
            f"this one knows {view.revision}",
            view=view.name,
            revision=live.revision,
        )


def drop_build(connection: sqlite3.Connection, view: SqliteView) -> None:
    """Drop a build that was begun, if there is one."""
    entry = find_entry(connection, view.name, "building")
    if entry is not None:
        view.drop(connection, entry)
        remove_entry(connection, view.name, "building")


def _compare(connection: sqlite3.Connection, view: SqliteView, build: ViewEntry) -> Comparison | None:
    """Compare the live view with the build, in the columns that both have.

    Rows that changed while the log went on differ as well; they are looked at again at the end.
    """
    live = find_entry(connection, view.name)
    if live is None:
        return None
    columns = _comparable(connection, view, live)
    if not columns:
        return None
    return compare_tables(
        connection, view, _quoted(view, live), _quoted(view, build), limit=_MAX_LOOKED_AT_AGAIN, columns=columns
    )


def _comparable(connection: sqlite3.Connection, view: SqliteView, live: ViewEntry) -> list[str]:
    """Return the columns that can be compared: of the same revision all, or none if somebody took one away."""
    columns = common_columns(connection, view, table_name(view.name, live))
    is_whole = len(columns) == len(view.projection.columns)
    return columns if is_whole or live.revision != view.revision else []


def _quoted(view: SqliteView, entry: ViewEntry) -> str:
    return f"main.[{table_name(view.name, entry)}]"


def _compare_again(
    connection: sqlite3.Connection, view: SqliteView, build: ViewEntry, before: Comparison
) -> Comparison | None:
    """Return what differs where both are at the head, or None if nobody has brought the live view there."""
    live = find_entry(connection, view.name)
    if live is None or live.position != build.position:
        return None
    columns = _comparable(connection, view, live)
    found = compare_again(connection, view, _quoted(view, live), _quoted(view, build), before, columns)
    return msgspec.structs.replace(found, differences=found.differences[:_MAX_DIFFERENCES], keys=[])
