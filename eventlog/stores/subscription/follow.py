"""A subscription: pages by its own cursor until it has caught up, then what the tail hands over; back if need be."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable

from eventlog.log import CaughtUp, CursorMoved, FellBehind, Mark, RecordedEvent
from eventlog.stores.requests import Wanted
from eventlog.stores.subscription.subscriber import Subscriber
from eventlog.stores.subscription.tail import PAGE, Tail

__all__ = ["follow"]


async def follow(
    begin: Callable[[], Awaitable[tuple[Tail, Wanted | None]]], *, after: int, marks: bool
) -> AsyncGenerator[RecordedEvent | Mark, None]:
    """Give the wanted events behind `after`, then wait for more, for ever.

    `begin` checks what was asked for before anything is read, and says of which log what is wanted. Nothing is held
    while the caller looks at an event. This is one function because a generator inside a generator doubles what an
    event costs.
    """
    tail, wanted = await begin()
    has_caught_up = False
    while True:
        events, position = await tail.read_page(after, wanted)
        is_full = position - after == PAGE
        if has_caught_up and is_full:
            has_caught_up = False
            if marks:
                yield FellBehind(after)
        for event in events:
            yield event
        if marks and position > after and (not events or events[-1].position < position):
            yield CursorMoved(position)
        after = position
        subscriber = Subscriber(wanted, after, has_marks=marks)
        if is_full or not tail.join(subscriber):
            continue
        try:
            if marks and not has_caught_up:
                yield CaughtUp(after)
            has_caught_up = True
            while True:
                while subscriber.events:
                    yield subscriber.take()
                if subscriber.left_at is not None:
                    break
                tail.check()
                if subscriber.is_due and subscriber.told < tail.position:
                    subscriber.told = tail.position
                    yield CursorMoved(subscriber.told)
                else:
                    subscriber.is_due = False
                    await subscriber.wait()
            after = subscriber.left_at
        finally:
            tail.leave(subscriber)
        if subscriber.has_fallen_behind:
            has_caught_up = False
            if marks:
                yield FellBehind(after)
