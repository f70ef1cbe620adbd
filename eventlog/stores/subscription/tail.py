"""The one reader of a log's end in a process, for all who have caught up with it.

It reads each new page once, every event verified, and hands the events to those who want them. It begins with the first
subscriber and ends with the last one; what it holds is bounded, and so is what waits for each (`Subscriber`): whoever
does not keep up leaves, and reads for himself. If a page cannot be read all of them do, and each meets what is wrong at
its own place, or passes it. While there is much to read it rests between two pages, so that it leaves the processor to
those who write; after a silence it reads at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from eventlog.log import RecordedEvent
from eventlog.stores.entropy import jittered
from eventlog.stores.requests import Wanted
from eventlog.stores.subscription.pages import Page, Source, Unreadable
from eventlog.stores.subscription.progress import Progress
from eventlog.stores.subscription.routes import Routes
from eventlog.stores.subscription.subscriber import Subscriber
from eventlog.stores.telemetry import logger

__all__ = ["PAGE", "RECENT_BYTES", "RECENT_EVENTS", "Tail"]

PAGE: Final = 500
"""So many positions are read at once by who catches up."""
_TAIL_PAGE: Final = 250
"""Half a window: whoever has handled one page when the next comes has room for it."""
RECENT_EVENTS: Final = 500
RECENT_BYTES: Final = 4 * 1024 * 1024
"""What the tail keeps of what it read, for those who catch up with it while it goes on."""

_FIRST_POLL_S: Final = 0.005
_LAST_POLL_S: Final = 0.25
_REST: Final = 20
"""A page is followed by so many times the rest that it took to read,"""
_LONGEST_REST_S: Final = 0.005
"""but by no longer one."""


class Tail:
    """What has been read of a log's end, and who is there. For use from the loop of the log."""

    def __init__(self, source: Source) -> None:
        self._source: Final = source
        self._members: Final[dict[Subscriber, None]] = {}
        self._routes: Final = Routes()
        self._progress: Final = Progress()
        self._recent: Final[deque[RecordedEvent | Unreadable]] = deque()
        self._recent_bytes = 0
        self._catching_up: Final = asyncio.Semaphore(1)
        self._task: asyncio.Task[None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._has_news = False
        self.position = 0
        """Everything up to here has been handed on."""

    async def read_page(self, after: int, wanted: Wanted | None) -> Page:
        """Read `PAGE` positions behind `after` for one who catches up.

        One at a time: a thousand of them leave the other connections to everybody else.
        """
        async with self._catching_up:
            return await self._source.read_page(after, PAGE, wanted)

    def check(self) -> None:
        """Raise EventLogError unless the log may be read."""
        self._source.check()

    def join(self, subscriber: Subscriber) -> bool:
        """Hand this one everything that he wants behind the position where he is.

        Say whether that can be done: if the tail is too far ahead of him he has to read another page himself.
        """
        if not self._members:
            self._begin_at(subscriber.after)
        if not self._catch_up(subscriber):
            return False
        self._members[subscriber] = None
        self._routes.add(subscriber)
        if subscriber.has_marks:
            subscriber.is_due = subscriber.after < self.position
            self._progress.add(subscriber, self._now_s(), self.position)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="eventlog-tail")
        return True

    def leave(self, subscriber: Subscriber) -> None:
        """Hand this one nothing more. He may have left already."""
        if self._members.pop(subscriber, subscriber) is None:
            self._routes.discard(subscriber)
            self._progress.discard(subscriber)
            if not self._members:
                self.wake()

    def wake(self) -> None:
        """Say that something was committed."""
        self._has_news = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        """Read nothing more, and let everybody find out that the log is closed."""
        if self._task is not None:
            self._task.cancel()
        self._let_all_go()

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = _FIRST_POLL_S
        try:
            while self._members:
                self._has_news = False
                began_s, after = loop.time(), self.position
                is_full = await self._read(after)
                now_s = loop.time()
                if self.position > after:
                    pause_s = _FIRST_POLL_S
                    self._progress.tell(now_s, self.position)
                    await asyncio.sleep(min((now_s - began_s) * _REST, _LONGEST_REST_S))
                else:
                    pause_s = min(pause_s * 2, _LAST_POLL_S)
                if not is_full:
                    await self._wait(pause_s)
        finally:
            self._let_all_go()

    async def _read(self, after: int) -> bool:
        """Read the next page and hand it on; say whether it was full."""
        try:
            page = await self._source.read_tail(after, _TAIL_PAGE)
        except Exception as error:
            logger.debug("tail_not_read", after=after, why=str(error))
            self._let_all_go()
            await asyncio.sleep(_FIRST_POLL_S)  # if nobody else meets it, this does not go round and round
            return False
        if after != self.position:  # all have left meanwhile, and others have begun elsewhere
            return True
        self._hand_on(page)
        return len(page) == _TAIL_PAGE

    def _hand_on(self, page: list[RecordedEvent | Unreadable]) -> None:
        for each in page:
            if isinstance(each, Unreadable):
                leaving = self._routes.who_might_want(each.stream)
            else:
                leaving = self._give(each)
            for subscriber in leaving:
                self._let_go(subscriber, each.position - 1)
            self.position = each.position
        self._remember(page)

    def _give(self, event: RecordedEvent) -> list[Subscriber]:
        """Put an event into the windows of those who want it; return those whose window is full."""
        full = []
        for group in self._routes.who_wants(event.stream, event.type):
            for subscriber in group:
                if not subscriber.put(event):
                    subscriber.has_fallen_behind = True
                    full.append(subscriber)
        return full

    def _let_go(self, subscriber: Subscriber, position: int) -> None:
        subscriber.leave(position)
        self.leave(subscriber)

    def _let_all_go(self) -> None:
        for subscriber in list(self._members):
            self._let_go(subscriber, self.position)

    async def _wait(self, pause_s: float) -> None:
        """Wait for a commit of this process, or for the next look at what others did; tell people things meanwhile."""
        poll_at_s = self._now_s() + jittered(pause_s) if self._source.is_shared else None
        while self._members and not self._has_news:
            now_s = self._now_s()
            if poll_at_s is not None and now_s >= poll_at_s:
                return
            self._progress.tell(now_s, self.position)
            until_told_s = self._progress.until_next_s(now_s)
            told_at_s = None if until_told_s is None else now_s + until_told_s
            await self._wait_until(min((at_s for at_s in (poll_at_s, told_at_s) if at_s is not None), default=None))

    async def _wait_until(self, at_s: float | None) -> None:
        """Wait for a commit, or until it is so late by the clock of the loop."""
        loop = asyncio.get_running_loop()
        self._waiter = waiter = loop.create_future()
        timer = loop.call_at(at_s, _end, waiter) if at_s is not None else None
        try:
            await waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    # ── what was read last ───────────────────────────────────────────────────────────────────────────────────────────

    def _begin_at(self, position: int) -> None:
        self.position = position
        self._recent.clear()
        self._recent_bytes = 0

    def _remember(self, page: list[RecordedEvent | Unreadable]) -> None:
        self._recent.extend(page)
        self._recent_bytes += sum(map(_size, page))
        while len(self._recent) > RECENT_EVENTS or self._recent_bytes > RECENT_BYTES:
            self._recent_bytes -= _size(self._recent.popleft())

    def _catch_up(self, subscriber: Subscriber) -> bool:
        """Hand a new one what the tail has read behind his position; say whether it still has all of that."""
        behind = self.position - subscriber.after
        if behind > len(self._recent):
            return False
        for index in range(len(self._recent) - max(behind, 0), len(self._recent)):
            each = self._recent[index]
            if isinstance(each, Unreadable):
                return False
            wanted = subscriber.wanted
            if (wanted is None or wanted.has(each.type, each.stream)) and not subscriber.put(each):
                return False
        return True

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()


def _size(each: RecordedEvent | Unreadable) -> int:
    return 0 if isinstance(each, Unreadable) else len(each.body)


def _end(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
