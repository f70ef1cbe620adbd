"""Subscribing: catching up, being live, marks, and many at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from random import Random
from typing import Any, Final

import pytest

from eventlog.errors import StoreUnavailable
from eventlog.log import CaughtUp, CursorMoved, FellBehind, Mark, NewEvent, RecordedEvent, RunLog
from eventlog.testing.log_contract.subject import (
    ANY,
    MANY,
    PATIENCE_S,
    OrderPlaced,
    Subject,
    everything,
    note,
    notes,
    raises,
    take,
    take_events,
)

__all__ = ["SubscribeContract"]


class SubscribeContract(Subject):
    """A feed catches up, then is live; thousands of them at a time are no different from one."""

    async def test_a_subscription_catches_up_and_then_is_live(self, log: RunLog) -> None:
        await log.append("a", notes(3), expect=ANY)
        feed = log.subscribe()
        assert [event.position for event in await take_events(feed, 3)] == [1, 2, 3]
        next_event = asyncio.ensure_future(anext(feed))
        await asyncio.sleep(0.05)
        assert not next_event.done()
        await log.append("b", [note("live")], expect=ANY)
        async with asyncio.timeout(PATIENCE_S):
            found = await next_event
        assert isinstance(found, RecordedEvent)
        assert (found.position, found.stream, found.data) == (4, "b", {"text": "live"})

    async def test_a_subscription_goes_on_behind_its_cursor(self, log: RunLog) -> None:
        result = await log.append("a", notes(3), expect=ANY)
        feed = log.subscribe(after=result.last_position)
        await log.append("a", notes(2), expect=ANY)
        assert [event.position for event in await take_events(feed, 2)] == [4, 5]
        assert [event.position for event in await take_events(log.subscribe(after=1), 4)] == [2, 3, 4, 5]

    async def test_a_subscription_to_an_empty_log_waits_for_its_first_event(self, log: RunLog) -> None:
        waiting = asyncio.ensure_future(take_events(log.subscribe(), 1))
        await asyncio.sleep(0.02)
        await log.append("a", [note()], expect=ANY)
        assert [event.position for event in await waiting] == [1]

    async def test_only_the_wanted_types_are_given(self, log: RunLog) -> None:
        await log.append("a", [note(), OrderPlaced(1), NewEvent("x", {}), note()], expect=ANY)
        feed = log.subscribe(types=["order_placed", "x"])
        assert [event.position for event in await take_events(feed, 2)] == [2, 3]
        await log.append("a", [note(), OrderPlaced(2)], expect=ANY)
        assert [event.position for event in await take_events(feed, 1)] == [6]

    async def test_types_may_come_from_any_iterable_but_not_be_one_text(self, log: RunLog) -> None:
        await log.append("a", [note(), OrderPlaced(1)], expect=ANY)
        feed = log.subscribe(types=(name for name in ("order_placed",)))
        assert [event.position for event in await take_events(feed, 1)] == [2]
        with raises("invalid_argument"):
            await take(log.subscribe(types="order_placed"), 1)

    async def test_with_marks_it_says_when_it_has_caught_up(self, log: RunLog) -> None:
        await log.append("a", notes(2), expect=ANY)
        feed = log.subscribe(marks=True)
        *events, mark = await take(feed, 3)
        assert [getattr(event, "position", None) for event in events] == [1, 2]
        assert mark == CaughtUp(2)

    async def test_with_marks_an_empty_log_is_caught_up_at_once(self, log: RunLog) -> None:
        assert await take(log.subscribe(marks=True), 1) == [CaughtUp(0)]

    async def test_with_marks_the_cursor_moves_over_what_is_not_wanted(self, log: RunLog) -> None:
        await log.append("a", [OrderPlaced(1), note(), note()], expect=ANY)
        feed = log.subscribe(types=["order_placed"], marks=True)
        event, *marks = await take(feed, 3)
        assert isinstance(event, RecordedEvent)
        assert event.position == 1
        assert marks == [CursorMoved(3), CaughtUp(3)]
        await log.append("a", [note()], expect=ANY)
        assert await take(feed, 1) == [CursorMoved(4)]
        await log.append("a", [note(), OrderPlaced(2)], expect=ANY)
        (event,) = await take(feed, 1)
        assert isinstance(event, RecordedEvent)
        assert event.position == 6

    async def test_with_marks_it_says_when_it_falls_behind_and_has_caught_up_again(self, log: RunLog) -> None:
        feed, quick = log.subscribe(marks=True), log.subscribe(marks=True)
        assert await take(feed, 1) == await take(quick, 1) == [CaughtUp(0)]
        await log.append("a", notes(MANY), expect=ANY)
        async with asyncio.timeout(PATIENCE_S):
            while getattr(await anext(quick), "position", 0) < MANY:
                pass  # what this one is given the other one would have been given as well
        found = await until_caught_up(feed)
        assert positions(found) == list(range(1, MANY + 1))
        behind, caught_up = [mark for mark in found if not isinstance(mark, RecordedEvent | CursorMoved)]
        assert isinstance(behind, FellBehind)
        assert positions(found[: found.index(behind)]) == list(range(1, behind.position + 1))
        assert caught_up == CaughtUp(MANY)

    async def test_catching_up_through_many_pages_is_marked_once(self, log: RunLog) -> None:
        await log.append("a", notes(MANY), expect=ANY)
        found = await take(log.subscribe(marks=True), MANY + 1)
        assert [mark for mark in found if not isinstance(mark, RecordedEvent)] == [CaughtUp(MANY)]

    async def test_the_cursor_passes_pages_in_which_nothing_is_wanted(self, log: RunLog) -> None:
        await log.append("a", [*notes(MANY), OrderPlaced(1)], expect=ANY)
        assert [event.position for event in await take_events(log.subscribe(types=["order_placed"]), 1)] == [MANY + 1]
        feed = log.subscribe(types=["absent"], marks=True)
        cursors = []
        async with asyncio.timeout(PATIENCE_S):
            async for mark in feed:
                assert not isinstance(mark, RecordedEvent)
                cursors.append(mark.position)
                if isinstance(mark, CaughtUp):
                    break
        assert cursors == sorted(cursors)
        assert cursors[-1] == MANY + 1

    async def test_many_subscribers_each_get_everything_in_order(self, log: RunLog) -> None:
        readers = [asyncio.ensure_future(take_events(log.subscribe(after=after), 300 - after)) for after in range(40)]
        readers = [reader for reader in readers if not reader.done()]
        await asyncio.sleep(0)
        # A cursor must not be beyond the end, so those behind 0 are begun once there is something to be behind of.
        for reader in readers[1:]:
            reader.cancel()
        await asyncio.gather(*readers[1:], return_exceptions=True)
        await log.append("a", notes(40), expect=ANY)
        later = [asyncio.ensure_future(take_events(log.subscribe(after=after), 300 - after)) for after in range(1, 40)]
        for _ in range(26):
            await log.append("a", notes(10), expect=ANY)
        for after, found in enumerate(await asyncio.gather(readers[0], *later)):
            assert [event.position for event in found] == list(range(after + 1, 301))

    async def test_a_subscriber_that_stops_looking_holds_nobody_up(self, log: RunLog) -> None:
        await log.append("a", [note()], expect=ANY)
        slow, quick = log.subscribe(), log.subscribe()
        await take(slow, 1)
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(50):
                await log.append("a", notes(20), expect=ANY)
        assert len(await take_events(quick, 1001)) == 1001
        assert [event.position for event in await take_events(slow, 1000)] == list(range(2, 1002))

    async def test_a_cancelled_subscriber_can_go_on_behind_its_cursor(self, log: RunLog) -> None:
        await log.append("a", [note()], expect=ANY)
        cursor = 0
        for number in range(2, 12):
            feed = log.subscribe(after=cursor)
            (event,) = await take_events(feed, 1)
            cursor = event.position
            waiting = asyncio.ensure_future(anext(feed))
            await asyncio.sleep(0.001 * number)
            waiting.cancel()
            await asyncio.wait({waiting})
            await log.append("a", [note()], expect=ANY)
            assert cursor == number - 1

    async def test_a_cursor_beyond_the_end_is_refused(self, log: RunLog) -> None:
        await log.append("a", notes(3), expect=ANY)
        with raises("store_identity_changed") as caught:
            await take(log.subscribe(after=4), 1)
        assert isinstance(caught.value, StoreUnavailable)
        assert (caught.value.details["after"], caught.value.details["head"]) == (4, 3)

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({"streams": ["b"]}, [2, 5, 8]),
            ({"streams": ["a", "b"]}, [1, 2, 4, 5, 7, 8]),
            ({"streams": ("ab", "absent")}, [3, 6, 9]),
            ({"streams": ["a", "ab", "b"], "stream_prefix": "a"}, [1, 3, 4, 6, 7, 9]),
            ({"streams": ("a", "b"), "types": ["note_taken"]}, [2, 5, 8]),
            ({"streams": ["a"], "after": 1}, [4, 7]),
        ],
        ids=str,
    )
    async def test_a_subscription_can_be_of_some_streams(
        self, log: RunLog, options: dict[str, Any], expected: list[int]
    ) -> None:
        async def append_to_each(number: int) -> None:
            await log.append("a", [OrderPlaced(number)], expect=ANY)
            await log.append("b", [note()], expect=ANY)
            await log.append("ab", [note()], expect=ANY)

        await append_to_each(1)
        feed = log.subscribe(**options)
        before = [position for position in expected if position <= 3]
        assert positions(await take(feed, len(before))) == before
        waiting = asyncio.ensure_future(take(feed, len(expected) - len(before)))
        await append_to_each(2)
        await append_to_each(3)
        assert positions(await waiting) == expected[len(before) :]

    async def test_a_subscription_of_no_stream_gets_nothing_but_marks(self, log: RunLog) -> None:
        await log.append("a", [note()], expect=ANY)
        assert await take(log.subscribe(streams=[], marks=True), 2) == [CursorMoved(1), CaughtUp(1)]

    @pytest.mark.parametrize("streams", ["a", b"a", [7], ["a", None], 7], ids=repr)
    async def test_streams_are_not(self, log: RunLog, streams: Any) -> None:
        with raises("invalid_argument"):
            await take(log.subscribe(streams=streams, marks=True), 1)

    async def test_the_cursor_moves_while_nothing_that_comes_is_wanted(self, log: RunLog) -> None:
        feed = log.subscribe(types=["absent"], marks=True)
        assert await take(feed, 1) == [CaughtUp(0)]
        told = 0
        while told < 30:
            moved = asyncio.ensure_future(anext(feed))
            while not moved.done():
                await log.append("a", [note()], expect=ANY)
                await asyncio.sleep(0.005)
            mark = await moved
            assert isinstance(mark, CursorMoved)
            assert told < mark.position <= (await log.head()).position
            told = mark.position

    async def test_a_mark_does_not_pass_what_was_not_given_yet(self, log: RunLog) -> None:
        feed = log.subscribe(types=["order_placed"], marks=True)
        given = cursor = 0
        for number in range(1, 9):
            await log.append("a", [OrderPlaced(number), *notes(number)], expect=ANY)
        while cursor < 44:
            (item,) = await take(feed, 1)
            if isinstance(item, RecordedEvent):
                given += 1
            expected = sum(number + 1 for number in range(1, given + 1))
            assert cursor <= item.position <= expected
            cursor = item.position
        assert given == 8

    async def test_one_that_is_cancelled_leaves_the_others_alone(self, log: RunLog) -> None:
        feeds = [log.subscribe(marks=True) for _ in range(10)]
        for feed in feeds:
            assert await take(feed, 1) == [CaughtUp(0)]
        waiting = [asyncio.ensure_future(anext(feed)) for feed in feeds]
        await asyncio.sleep(0)
        for each in waiting[::2]:
            each.cancel()
        await log.append("a", [note()], expect=ANY)
        async with asyncio.timeout(PATIENCE_S):
            found = await asyncio.gather(*waiting[1::2])
        assert [event.position for event in found] == [1] * 5
        for feed in feeds[::2]:
            await feed.aclose()
        await log.append("a", [note()], expect=ANY)
        for feed in feeds[1::2]:
            assert positions(await take(feed, 1)) == [2]

    async def test_200_subscribers_of_all_kinds_get_exactly_what_is_read(self, log: RunLog) -> None:
        random = Random(6)
        crowd = [_Listener(log, random) for _ in range(200)]
        tasks = [asyncio.create_task(each.listen()) for each in crowd]
        async with asyncio.timeout(3 * PATIENCE_S):
            await asyncio.gather(*(_write(log, writer) for writer in range(4)))
            end = (await log.head()).position + 1
            for each in crowd:
                each.end = end
            await log.append("bell", [note()], expect=ANY)
            await asyncio.gather(*tasks)
        stored = await everything(log)
        assert len(stored) == end
        for each in crowd:
            assert each.found == [event.position for event in stored if each.wants(event)], each.options


_STREAMS: Final = [f"{kind}-{number}" for kind in ("order", "orders", "bill") for number in range(8)]
_PREFIXES: Final = ("order", "order-", "orders-", "bill-1", "bill-", "absent", "")


async def _write(log: RunLog, writer: int) -> None:
    random = Random(writer)
    for number in range(40):
        events = [random.choice((note(), OrderPlaced(number))) for _ in range(random.randint(1, 14))]
        await log.append(random.choice(_STREAMS), events, expect=ANY)
        await asyncio.sleep(random.choice((0, 0, 0.001)))


class _Listener:
    """A subscriber with any filter that begins some time, takes some time, and may begin again behind its cursor."""

    def __init__(self, log: RunLog, random: Random) -> None:
        self.log: Final = log
        self.random: Final = Random(random.random())
        self.options: Final[dict[str, Any]] = {}
        if random.random() < 0.4:
            self.options["types"] = random.sample(("note_taken", "order_placed", "absent"), random.randint(1, 2))
        if random.random() < 0.4:
            self.options["stream_prefix"] = random.choice(_PREFIXES)
        if random.random() < 0.4:
            self.options["streams"] = random.sample(_STREAMS, random.randint(1, 5))
        self.pause_s: Final = random.choice((None, None, None, 0.001))
        self.begins_after_s: Final = random.choice((0, 0, 0.01, 0.05))
        self.is_cut_often: Final = random.random() < 0.1
        self.found: Final[list[int]] = []
        self.first = 0
        self.end = MANY * MANY

    async def listen(self) -> None:
        await asyncio.sleep(self.begins_after_s)
        cursor = self.first = self.random.randint(0, (await self.log.head()).position)
        while cursor < self.end:
            async with aclosing(self.log.subscribe(after=cursor, marks=True, **self.options)) as feed:
                async for item in feed:
                    assert item.position >= cursor, "never back"
                    cursor = item.position
                    if isinstance(item, RecordedEvent):
                        self.found.append(cursor)
                        if self.pause_s is not None:
                            await asyncio.sleep(self.pause_s)
                    if cursor >= self.end or (self.is_cut_often and self.random.random() < 0.05):
                        break

    def wants(self, event: RecordedEvent) -> bool:
        return (
            event.position > self.first
            and event.type in self.options.get("types", (event.type,))
            and event.stream in self.options.get("streams", (event.stream,))
            and event.stream.startswith(self.options.get("stream_prefix", ""))
        )


def positions(found: Sequence[RecordedEvent | Mark]) -> list[int]:
    """Return the positions of the events."""
    return [each.position for each in found if isinstance(each, RecordedEvent)]


async def until_caught_up(feed: AsyncIterator[RecordedEvent | Mark]) -> list[RecordedEvent | Mark]:
    """Return what a subscription gives up to its next `CaughtUp`."""
    found: list[RecordedEvent | Mark] = []
    async with asyncio.timeout(PATIENCE_S):
        while not found or not isinstance(found[-1], CaughtUp):
            found.append(await anext(feed))
    return found
