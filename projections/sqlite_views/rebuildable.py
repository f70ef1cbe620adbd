"""The views of a log that a program can build again: what an erasure is handed, so that none keeps what is gone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

from eventlog.views import ViewEntry
from projections.sqlite_views.database import ViewDatabase
from projections.sqlite_views.rebuilding import BuildProgress, drop_old_view, rebuild_view
from projections.sqlite_views.table import SqliteView

__all__ = ["RebuildableViews"]


class RebuildableViews:
    """These views, in the log's own database. Keeps `eventlog.audit.erasure.KnownViews`.

    `on_progress` is told the view and how far it is.
    """

    def __init__(
        self,
        database: ViewDatabase,
        views: Iterable[SqliteView],
        *,
        on_progress: Callable[[str, BuildProgress], None] | None = None,
    ) -> None:
        self._database: Final = database
        self._views: Final = {view.name: view for view in views}
        self._on_progress: Final = on_progress

    def knows(self, entry: ViewEntry) -> bool:
        """Say whether it is one of these, of no later revision than is known here."""
        view = self._views.get(entry.name)
        return view is not None and entry.revision <= view.revision

    def may_hold(self, name: str, held: Collection[tuple[str, str]]) -> bool:
        """Say whether the view selects events of these stored types in these streams."""
        selection = self._views[name].selection
        types = self._database.scan_of(selection).types
        return any(type in types and stream.startswith(selection.stream_prefix) for type, stream in held)

    async def rebuild(self, name: str) -> None:
        """Build the view anew from the whole log, and drop the old table. Raises as `rebuild_view`.

        Events of types that nobody has registered here are passed over, as the live view has passed them over.
        """
        tell = self._on_progress
        await rebuild_view(
            self._database,
            self._views[name],
            anew=True,
            allows_unknown_types=True,
            on_progress=None if tell is None else lambda progress: tell(name, progress),
        )
        await drop_old_view(self._database, self._views[name])
