"""A subscription: a pull loop with a wake-up hint. The hint carries no data; the cursor alone says what is next."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final

from eventlog.log import CaughtUp, CursorMoved, FellBehind, Mark, RecordedEvent

__all__ = ["Page", "follow"]

Page = tuple[list[RecordedEvent], int]
"""The wanted events among the next positions, and the last position that was looked at."""

_FIRST_POLL_S: Final = 0.005
_LAST_POLL_S: Final = 0.25


async def follow(
    read_page: Callable[[int], Awaitable[Page]],
    next_commit: Callable[[], Callable[[float], Awaitable[None]]],
    *,
    after: int,
    page_size: int,
    marks: bool,
) -> AsyncGenerator[RecordedEvent | Mark, None]:
    """Give the events behind `after`, then wait for more, for ever.

    `next_commit()` is called before each page is read, so that no commit falls between the page and the wait; what it
    returns waits for a commit from then on, or for so many seconds, after which a commit of another process may have
    gone unseen. Nothing is held while the caller looks at an event.
    """
    has_caught_up = False
    pause_s = _FIRST_POLL_S
    while True:
        wait = next_commit()
        events, position = await read_page(after)
        is_full = position - after == page_size
        if has_caught_up and is_full:
            has_caught_up = False
            if marks:
                yield FellBehind(after)
        for event in events:
            yield event
        if marks and position > after and (not events or events[-1].position < position):
            yield CursorMoved(position)
        pause_s = _FIRST_POLL_S if position > after else min(pause_s * 2, _LAST_POLL_S)
        after = position
        if is_full:
            continue
        if not has_caught_up:
            has_caught_up = True
            if marks:
                yield CaughtUp(after)
        await wait(pause_s)
