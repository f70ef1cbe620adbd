"""One subscriber of the tail: the bounded window between who reads and who handles."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from eventlog.log import RecordedEvent
from eventlog.stores.requests import Wanted

__all__ = ["WINDOW_BYTES", "WINDOW_EVENTS", "Subscriber"]

WINDOW_EVENTS: Final = 500
"""How many events wait for one subscriber at the most. They are not copied: all who wait for an event share it."""

WINDOW_BYTES: Final = 1024 * 1024
"""How large their bodies are together at the most; the last one may go beyond it."""


class Subscriber:
    """Who is at the end of the log behind position `after`, and what waits for him there."""

    __slots__ = (
        "_size_bytes",
        "_waiter",
        "after",
        "events",
        "has_fallen_behind",
        "has_marks",
        "is_due",
        "left_at",
        "told",
        "wanted",
    )

    def __init__(self, wanted: Wanted | None, after: int, *, has_marks: bool) -> None:
        self.wanted: Final = wanted
        self.after: Final = after
        self.has_marks: Final = has_marks
        self.events: Final[deque[RecordedEvent]] = deque()
        self.told = after
        """The last position that he was given, with an event or as a mark."""
        self.is_due = False
        """Whether he is to be told how far the tail is."""
        self.left_at: int | None = None
        """Once he is not at the tail any more: the position behind which he reads for himself, after the window."""
        self.has_fallen_behind = False
        """Whether he left because his window was full."""
        self._size_bytes = 0
        self._waiter: asyncio.Future[None] | None = None

    def put(self, event: RecordedEvent) -> bool:
        """Take an event that is wanted and not yet handled into the window; say whether there was room for it."""
        if event.position <= self.after:
            return True
        if self.events and (len(self.events) >= WINDOW_EVENTS or self._size_bytes >= WINDOW_BYTES):
            return False
        self.events.append(event)
        self._size_bytes += len(event.body)
        if self._waiter is not None:
            self.wake()
        return True

    def take(self) -> RecordedEvent:
        """Take the next event out of the window."""
        event = self.events.popleft()
        self._size_bytes -= len(event.body)
        self.told = event.position
        return event

    def leave(self, position: int) -> None:
        """End here, for the window holds what was wanted up to `position`: he goes on behind that by himself."""
        self.left_at = max(position, self.after)
        self.wake()

    async def wait(self) -> None:
        """Wait until something has changed, or nothing: it is looked at again in either case."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def wake(self) -> None:
        """End the wait, if this one waits."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
