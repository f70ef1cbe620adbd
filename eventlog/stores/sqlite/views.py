"""Views that live in the log's database and are written in the append's own transaction.

Which views a log has, and up to which position each is written, is recorded in the table `views`
(`view_registry.py`), in the same transaction as the view's rows. A process that appends without knowing a view leaves
it behind, visibly; the next one that knows it brings it up before anybody reads. A view that raises is rolled back to a
savepoint and stays behind alone, in front of the event that it could not fold: the append goes on.

A view whose revision was raised is built beside the one that is there, a page a transaction, so that other processes
append and read the old one meanwhile; then it takes its name in one transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final, TypeVar

from eventlog.errors import EventLogError
from eventlog.stores.sqlite.failures import SQLITE_ERRORS
from eventlog.stores.sqlite.rollback import roll_back
from eventlog.stores.sqlite.scan import Placed, Scan
from eventlog.stores.sqlite.view_builds import (
    InlineView,
    advance_view,
    begin_build,
    claim_name,
    drop_kept_page,
    exchange_view,
    is_of_the_store,
)
from eventlog.stores.sqlite.view_registry import (
    add_entry,
    all_entries,
    find_entry,
    move_entry,
    newest_revision,
    remove_entry,
)
from eventlog.stores.telemetry import logger
from eventlog.views import Selection, ViewBuild, ViewEntry, ViewProblem

__all__ = ["InlineView", "Views", "views_behind"]

_CATCH_UP_PAGE: Final = 1000
_BUILD_PAGE: Final = 5000
_MAX_CACHED_ROWS: Final = 20_000
_HEAD: Final = "SELECT coalesce(max(position), 0) FROM events"

T = TypeVar("T")


class Views:
    """The inline views that this process knows. Used on the writer's thread, under the file lock."""

    def __init__(self, views: Iterable[InlineView], make_scan: Callable[[Selection], Scan]) -> None:
        self._views: Final = tuple(views)
        self._make_scan: Final = make_scan
        self._scans: dict[str, Scan] = {}
        self._builds: dict[str, _Build] = {}
        self._entries: dict[str, ViewEntry] = {}
        """Where views stand, as long as nobody but this connection's appends can have moved them."""
        self.failures: dict[str, str] = {}
        self._overtaken: dict[str, str] = {}
        self.building: ViewBuild | None = None
        """What the last page was of, and how far that view is; None if it was the last page of a view."""

    def __bool__(self) -> bool:
        return bool(self._views)

    def prepare_page(self, connection: sqlite3.Connection) -> bool:
        """Do one transaction's worth of what the views lack when the log is opened; say whether there is more.

        What is not there is created, what is not whole begun anew, what has an earlier revision built beside and
        exchanged, what is late caught up. A view of a later revision belongs to a later program and is left to it.
        """
        self.forget_positions()
        self.building = None
        return any(self._prepare(connection, view) for view in self._views)

    def _prepare(self, connection: sqlite3.Connection, view: InlineView) -> bool:
        if view.name in self._overtaken or view.name in self.failures:
            return False
        newest = newest_revision(connection, view.name)
        if newest is not None and newest > view.revision:
            self._overtaken[view.name] = f"revision {newest} is kept by a later program, this one knows {view.revision}"
            return False
        if self._is_to_be_built(connection, view, newest):
            return _in_transaction(connection, drop_kept_page, view) or self._build_page(connection, view)
        if not self._is_whole(connection, view):
            _in_transaction(connection, _begin_anew, view)
            return True
        return self._catch_up_page(connection, view)

    def _is_to_be_built(self, connection: sqlite3.Connection, view: InlineView, newest: int | None) -> bool:
        """Say whether there is a view to be read while another is built: an earlier one, or one of other columns."""
        live = find_entry(connection, view.name)
        if newest is None or live is None or (newest == view.revision and live.shape == view.shape):
            return False
        return view.exists(connection, live) and live.position <= self._scan(view).head(connection)

    def _is_whole(self, connection: sqlite3.Connection, view: InlineView) -> bool:
        entry = find_entry(connection, view.name)
        if entry is None or entry.shape != view.shape or not view.exists(connection, entry):
            return False
        return entry.position <= self._scan(view).head(connection)

    def _build_page(self, connection: sqlite3.Connection, view: InlineView) -> bool:
        """Build a page of the raised revision and, with the last one, exchange it; say whether there is more."""
        build = self._builds.setdefault(view.name, _Build())

        def work(connection: sqlite3.Connection) -> bool:
            other = find_entry(connection, view.name, "building")
            if other is not None and other.revision > view.revision:
                why = f"revision {other.revision} is being built by a later program, this one knows {view.revision}"
                self._overtaken[view.name] = why
                return False
            entry, _ = begin_build(connection, view)
            build.go_on_from(entry)
            scan = self._scan(view)
            head = scan.head(connection)
            upto = min(head, entry.position + _BUILD_PAGE)
            scan.require_known(connection, entry.position, upto)
            entry = advance_view(connection, view, scan, entry, upto, build.rows)
            build.left_at(entry)
            if entry.problem is not None:
                self._fail(view, entry.problem)
                return False
            if upto < head:
                self.building = ViewBuild(name=view.name, revision=view.revision, position=upto, head=head)
                return True
            exchange_view(connection, view, entry)
            return False

        try:
            has_more = _in_transaction(connection, work)
        except SQLITE_ERRORS:
            del self._builds[view.name]  # nothing of the page was kept, and its rows are in the cache
            raise
        except EventLogError as error:  # of the log, or an unknown type: the old view stays, and whoever wants to read
            self.failures[view.name] = str(error)  # the new one is told
            logger.error("view_failed", view=view.name, why=str(error))
            has_more = False
        if not has_more:
            del self._builds[view.name]
        return has_more

    def follow(self, connection: sqlite3.Connection, before: int, after: int, placed: Sequence[Placed]) -> None:
        """Inside an append's transaction: bring each view that stands near `before` to `after`.

        Raises only what the database itself raises; a view that fails stays behind. `placed` are the events in between.
        """
        for view in self._views:
            if view.name in self.failures or view.name in self._overtaken:
                continue
            try:
                entry = self._entries.get(view.name) or find_entry(connection, view.name)
                if entry is None or entry.revision != view.revision:
                    continue  # another program keeps it now
                if entry.position == before:
                    self._follow_closely(connection, view, entry, after, placed)
                elif 0 <= before - entry.position <= _CATCH_UP_PAGE:
                    self._advance(connection, view, entry, after)
            except (sqlite3.Error, EventLogError) as error:
                if not connection.in_transaction or is_of_the_store(error):
                    raise  # the append itself has failed
                self.failures[view.name] = str(error)

    def _follow_closely(
        self, connection: sqlite3.Connection, view: InlineView, entry: ViewEntry, after: int, placed: Sequence[Placed]
    ) -> None:
        """Fold what was just placed. Where that fails the careful way finds out which event it is."""
        self._entries.pop(view.name, None)
        scan = self._scan(view)
        if not any(scan.may_want(each) for each in placed):
            self._entries[view.name] = move_entry(connection, entry, after)
            return
        connection.execute("SAVEPOINT view")
        try:
            view.apply(connection, entry, scan.view_events(placed))
            entry = move_entry(connection, entry, after)
        except BaseException as error:  # on the writer's thread, where nobody but the view can have raised an exit
            if not connection.in_transaction or is_of_the_store(error):
                raise
            connection.execute("ROLLBACK TO view")
            connection.execute("RELEASE view")
            self._advance(connection, view, entry, after)
        else:
            connection.execute("RELEASE view")
            self._entries[view.name] = entry

    def forget(self) -> None:
        """Forget what was read in a transaction that failed, or before somebody else wrote."""
        self._scans.clear()
        self._builds.clear()
        self._entries.clear()

    def forget_positions(self) -> None:
        """Forget where the views stand, which something else on this connection may have changed."""
        self._entries.clear()

    def retry(self) -> None:
        """Let the views that failed be tried again."""
        self.failures.clear()

    def require(self, names: Collection[str] | None = None) -> None:
        """Raise EventLogError(`view_failed`) if a view, one of these, could not be brought to the head."""
        for name, why in (self.failures | self._overtaken).items():
            if names is None or name in names:
                raise EventLogError("view_failed", f"the view {name!r} stopped: {why}", view=name)

    def require_there(self, connection: sqlite3.Connection, names: Collection[str] | None = None) -> None:
        """Raise EventLogError(`view_outdated`) for a view, one of these, that a log which is only read lacks."""
        for view in self._views:
            if names is not None and view.name not in names:
                continue
            entry = find_entry(connection, view.name)
            if entry is None or entry.revision != view.revision:
                what = "no such view" if entry is None else f"revision {entry.revision} of it"
                message = f"the log has {what}: {view.name!r}, revision {view.revision}, and cannot be written here"
                raise EventLogError("view_outdated", message, view=view.name)

    def are_behind(self, connection: sqlite3.Connection, names: Collection[str] | None = None) -> bool:
        """Say whether a view that this process knows, one of these, is not at the head."""
        wanted = [view for view in self._views if names is None or view.name in names]
        if any(view.name in self._overtaken for view in wanted):
            return True
        (head,) = connection.execute(_HEAD).fetchone()
        return not all(_is_at(connection, view, head) for view in wanted)

    def _scan(self, view: InlineView) -> Scan:
        scan = self._scans.get(view.name)
        if scan is None:
            scan = self._scans[view.name] = self._make_scan(view.selection)
        return scan

    def _catch_up_page(self, connection: sqlite3.Connection, view: InlineView) -> bool:
        def work(connection: sqlite3.Connection) -> bool:
            entry = find_entry(connection, view.name)
            head = self._scan(view).head(connection)
            if entry is None or entry.position >= head:
                return False
            upto = min(head, entry.position + _CATCH_UP_PAGE)
            self._advance(connection, view, entry, upto)
            if upto < head:
                self.building = ViewBuild(name=view.name, revision=view.revision, position=upto, head=head)
            return view.name not in self.failures

        return _in_transaction(connection, work)

    def _advance(self, connection: sqlite3.Connection, view: InlineView, entry: ViewEntry, upto: int) -> None:
        entry = advance_view(connection, view, self._scan(view), entry, upto)
        if entry.problem is not None:
            self._fail(view, entry.problem)

    def _fail(self, view: InlineView, problem: ViewProblem) -> None:
        self.failures[view.name] = f"{problem.error} (at position {problem.position}, a {problem.type!r})"
        logger.error("view_failed", view=view.name, position=problem.position, why=problem.error)


class _Build:
    """A build as this process left it: its rows are the kept ones as long as nobody else has gone on with it."""

    def __init__(self) -> None:
        self.rows: Final[dict[Any, Any]] = {}
        self._left_at: tuple[int, int] | None = None

    def go_on_from(self, entry: ViewEntry) -> None:
        """Forget the rows unless the build is where it was left: other processes build it as well, page by page."""
        if (entry.generation, entry.position) != self._left_at or len(self.rows) > _MAX_CACHED_ROWS:
            self.rows.clear()

    def left_at(self, entry: ViewEntry) -> None:
        """Remember where the build is."""
        self._left_at = (entry.generation, entry.position)


def views_behind(connection: sqlite3.Connection, head: int) -> dict[str, int]:
    """Return how many positions each view of the database is behind the head, those of other programs included."""
    entries = all_entries(connection)
    return {f"{entry.name}/{entry.revision}": head - entry.position for entry in entries if entry.state == "live"}


def _is_at(connection: sqlite3.Connection, view: InlineView, position: int) -> bool:
    entry = find_entry(connection, view.name)
    return entry is not None and (entry.revision, entry.position) == (view.revision, position)


def _begin_anew(connection: sqlite3.Connection, view: InlineView) -> None:
    entry = find_entry(connection, view.name)
    if entry is not None:
        view.drop(connection, entry)
        remove_entry(connection, view.name, "live")
    entry = add_entry(connection, view.name, "live", view.revision, view.shape)
    claim_name(connection, view, entry)
    view.create(connection, entry)


def _in_transaction(connection: sqlite3.Connection, work: Callable[..., T], *args: Any) -> T:
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = work(connection, *args)
        connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise
    return result
