"""A log in a file as subscriptions read it: other processes may append to it, and its file may be replaced."""

from __future__ import annotations

from typing import Final

from eventlog.stores.guard import Guard
from eventlog.stores.requests import Wanted
from eventlog.stores.sqlite.identity import Identity
from eventlog.stores.sqlite.reader import ReadConnections
from eventlog.stores.sqlite.rows import LastLeaves, Rows
from eventlog.stores.subscription import Page, TailPage

__all__ = ["Feed"]


class Feed:
    """Pages for the subscribers of one log. `rows` is theirs: what it remembers of names is remembered once for all.

    Two threads may use it at a time. All that they share are dicts of what never changes, filled one entry at a time.
    """

    is_shared: Final = True

    def __init__(self, guard: Guard, reads: ReadConnections, rows: Rows, path: str) -> None:
        self._guard: Final = guard
        self._reads: Final = reads
        self._rows: Final = rows
        self._identity: Final = Identity(path)
        self._leaves: Final[LastLeaves] = {}

    def check(self) -> None:
        """Raise EventLogError unless the log is open, and used from the process and the loop that opened it."""
        self._guard.check()

    async def read_page(self, after: int, limit: int, wanted: Wanted | None) -> Page:
        """Read the next positions. Raises StoreUnavailable(`store_identity_changed`) if the file was replaced."""
        self._check()
        return await self._reads.run(self._rows.log_page, after, limit, wanted)

    async def read_tail(self, after: int, limit: int) -> TailPage:
        """Read the next positions, without a filter."""
        self._check()
        return await self._reads.run(self._rows.tail_page, after, limit, self._leaves)

    def _check(self) -> None:
        self._guard.check()
        self._identity.check_database()
