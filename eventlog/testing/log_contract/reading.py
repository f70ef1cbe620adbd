"""Reading streams and the log, and looking up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from eventlog.ids import new_event_id
from eventlog.log import CaughtUp, CursorMoved, Expect, Head, RunLog, StreamSlice
from eventlog.testing.log_contract.subject import (
    ANY,
    MANY,
    PATIENCE_S,
    OpenLog,
    OrderPlaced,
    Subject,
    everything,
    note,
    notes,
    of_stream,
    raises,
    take,
    take_events,
)

__all__ = ["LookUpContract", "ReadContract"]


class ReadContract(Subject):
    """Streams and the whole log, from any place on."""

    @pytest.fixture
    async def filled(self, log: RunLog) -> RunLog:
        """Stream a: positions 1, 3, 5, 7, 9; stream b: 2, 4, 6, 8, 10."""
        for number in range(1, 6):
            await log.append("a", [note(f"a{number}")], expect=ANY)
            await log.append("b", [note(f"b{number}")], expect=ANY)
        return log

    @pytest.mark.parametrize(
        ("after", "limit", "expected"),
        [
            (0, None, [1, 2, 3, 4, 5]),
            (2, None, [3, 4, 5]),
            (4, None, [5]),
            (5, None, []),
            (6, None, []),
            (2**63 - 1, None, []),
            (0, 0, []),
            (0, 2, [1, 2]),
            (1, 3, [2, 3, 4]),
            (3, 100, [4, 5]),
            (5, 1, []),
            (0, 2**63 - 1, [1, 2, 3, 4, 5]),
        ],
    )
    async def test_a_stream_is_read(self, filled: RunLog, after: int, limit: int | None, expected: list[int]) -> None:
        found = await of_stream(filled, "a", after=after, limit=limit)
        assert [(event.stream, event.version, event.data["text"]) for event in found] == [
            ("a", version, f"a{version}") for version in expected
        ]

    @pytest.mark.parametrize(
        ("after", "limit", "expected"),
        [
            (0, None, range(1, 11)),
            (7, None, [8, 9, 10]),
            (10, None, []),
            (11, None, []),
            (2**63 - 1, 5, []),
            (0, 0, []),
            (0, 1, [1]),
            (8, 5, [9, 10]),
            (2, 3, [3, 4, 5]),
            (0, 2**63 - 1, range(1, 11)),
        ],
    )
    async def test_the_log_is_read(
        self, filled: RunLog, after: int, limit: int | None, expected: Sequence[int]
    ) -> None:
        found = [event.position async for event in filled.read_all(after=after, limit=limit)]
        assert found == list(expected)

    @pytest.mark.parametrize("value", [-1, 2**63, 10**5000, True, 1.0, "1"], ids=lambda value: type(value).__name__)
    async def test_a_cursor_or_a_limit_is_not(self, filled: RunLog, value: Any) -> None:
        with raises("invalid_argument"):
            await of_stream(filled, "a", after=value)
        with raises("invalid_argument"):
            await of_stream(filled, "a", limit=value)
        with raises("invalid_argument"):
            await anext(filled.read_all(after=value))
        with raises("invalid_argument"):
            await anext(filled.read_all(limit=value))
        with raises("invalid_argument"):
            await filled.read_stream("a", after=value)
        with raises("invalid_argument"):
            await filled.check_page(after=value)
        with raises("invalid_argument"):
            await filled.check_page(after=0, limit=value)
        with raises("invalid_argument"):
            await take(filled.subscribe(after=value), 1)

    async def test_a_stream_that_is_not_there_is_empty(self, filled: RunLog) -> None:
        assert await of_stream(filled, "absent") == []
        assert await of_stream(filled, "absent", after=3, limit=3) == []
        assert await filled.read_stream("absent") == StreamSlice([], 0)
        assert await of_stream(filled, "run:absent") == []

    async def test_an_empty_log_is_empty(self, log: RunLog) -> None:
        assert await everything(log) == []
        assert await log.head() == Head(0, bytes(32))
        page = await log.check_page(after=0)
        assert (page.position, page.events, list(page.problems)) == (0, 0, [])

    async def test_a_stream_comes_with_the_version_it_is_at(self, filled: RunLog) -> None:
        for after in (0, 3, 5, 9):
            found = await filled.read_stream("a", after=after)
            assert found.version == 5
            assert [event.version for event in found.events] == list(range(after + 1, 6))

    async def test_all_ways_of_reading_agree(self, filled: RunLog) -> None:
        of_log = [event for event in await everything(filled) if event.stream == "b"]
        of_feed = [event for event in await take_events(filled.subscribe(), 10) if event.stream == "b"]
        assert of_log == of_feed == await of_stream(filled, "b") == list((await filled.read_stream("b")).events)

    async def test_the_head_is_the_last_event(self, log: RunLog) -> None:
        for number in range(1, 4):
            result = await log.append(f"s{number}", notes(2), expect=ANY)
            assert await log.head() == Head(2 * number, result.leaf, result.recorded_at_us)

    async def test_many_events_are_read_without_a_gap_or_a_double(self, log: RunLog) -> None:
        for stream in ("a", "b"):
            await log.append(stream, notes(MANY // 2), expect=ANY)
        assert [event.position for event in await everything(log)] == list(range(1, MANY + 1))
        assert [event.version for event in await of_stream(log, "b")] == list(range(1, MANY // 2 + 1))
        assert len((await log.read_stream("a")).events) == MANY // 2
        limit = MANY // 2 - 1
        assert len(await of_stream(log, "a", limit=limit)) == limit
        assert len([event async for event in log.read_all(after=1, limit=limit)]) == limit

    async def test_a_reader_holds_nothing_up_while_it_looks_at_an_event(self, log: RunLog) -> None:
        await log.append("a", notes(MANY), expect=ANY)
        reader = log.read_all()
        assert (await anext(reader)).position == 1
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(20):
                await log.append("a", [note("later")], expect=ANY)
        positions = [event.position async for event in reader]
        assert positions == list(range(2, len(positions) + 2))
        assert len(positions) >= MANY - 1

    async def test_a_reader_that_is_left_alone_holds_nothing_up(self, log: RunLog) -> None:
        await log.append("a", notes(MANY), expect=ANY)
        left_alone = [log.read_all(), log.read("a"), log.subscribe(), log.read_all(after=5)] * 5
        for number, reader in enumerate(left_alone[:4] * 5):
            assert (await anext(reader)).position > number // 4
        async with asyncio.timeout(PATIENCE_S):
            await log.append("a", [note()], expect=Expect.at(MANY))
            assert (await log.head()).position == MANY + 1

    async def test_the_whole_log_is_checked_page_by_page(self, filled: RunLog) -> None:
        found = [await filled.check_page(after=after, limit=4) for after in (0, 4, 8, 10, 50)]
        assert [(page.position, page.events) for page in found] == [(4, 4), (8, 4), (10, 2), (10, 0), (50, 0)]
        assert [list(page.problems) for page in found] == [[]] * 5


class LookUpContract(Subject):
    """One event by its id, a stream from its end, and some streams or types out of the whole log."""

    @pytest.fixture
    async def shop(self, log: RunLog) -> RunLog:
        """Positions 1 to 12: the streams order-1, order-2, orders and bill-1 in turn, three times."""
        for number in range(1, 4):
            for stream in ("order-1", "order-2", "orders", "bill-1"):
                new = note(f"{stream}:{number}") if stream == "bill-1" else OrderPlaced(number, stream)
                await log.append(stream, [new], expect=ANY)
        return log

    async def test_an_event_is_found_by_its_id(self, shop: RunLog) -> None:
        for each in await everything(shop):
            assert await shop.find(each.event_id) == each

    async def test_an_id_that_was_never_stored_is_not_found(self, shop: RunLog) -> None:
        assert await shop.find(new_event_id()) is None
        assert await shop.find(b"\xff" * 16) is None

    async def test_an_event_that_was_refused_is_not_found(self, log: RunLog) -> None:
        refused = note()
        with raises("version_conflict"):
            await log.append("a", [refused], expect=Expect.exists())
        assert await log.find(refused.event_id) is None

    @pytest.mark.parametrize("event_id", [b"", b"short", bytes(16), b"x" * 17, "x" * 16, None, 7], ids=repr)
    async def test_no_event_can_have_the_id(self, log: RunLog, event_id: Any) -> None:
        with raises("invalid_id"):
            await log.find(event_id)

    @pytest.mark.parametrize(
        ("before", "limit", "expected"),
        [
            (None, None, [5, 4, 3, 2, 1]),
            (None, 2, [5, 4]),
            (None, 0, []),
            (None, 2**63 - 1, [5, 4, 3, 2, 1]),
            (6, None, [5, 4, 3, 2, 1]),
            (2**63 - 1, 1, [5]),
            (5, None, [4, 3, 2, 1]),
            (4, 2, [3, 2]),
            (2, 9, [1]),
            (1, None, []),
            (0, None, []),
        ],
    )
    async def test_a_stream_is_read_back(
        self, log: RunLog, before: int | None, limit: int | None, expected: list[int]
    ) -> None:
        for _ in range(5):
            await log.append("other", [note()], expect=ANY)
            await log.append("a", [note()], expect=ANY)
        forwards = {event.version: event for event in await of_stream(log, "a")}
        found = [event async for event in log.read_back("a", before=before, limit=limit)]
        assert found == [forwards[version] for version in expected]

    async def test_reading_back_a_stream_that_is_not_there_gives_nothing(self, shop: RunLog) -> None:
        assert [event async for event in shop.read_back("absent")] == []
        assert [event async for event in shop.read_back("absent", before=3, limit=1)] == []

    async def test_many_events_are_read_back_without_a_gap_or_a_double(self, log: RunLog) -> None:
        await log.append("a", notes(MANY), expect=ANY)
        assert [event.version async for event in log.read_back("a")] == list(range(MANY, 0, -1))
        half = MANY // 2 + 1
        assert [event.version async for event in log.read_back("a", limit=half)] == list(range(MANY, MANY - half, -1))

    async def test_what_is_appended_meanwhile_is_not_read_back(self, log: RunLog) -> None:
        await log.append("a", notes(MANY), expect=ANY)
        reader = log.read_back("a")
        assert (await anext(reader)).version == MANY
        await log.append("a", notes(3), expect=ANY)
        assert [event.version async for event in reader] == list(range(MANY - 1, 0, -1))

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({"stream_prefix": "order-"}, [1, 2, 5, 6, 9, 10]),
            ({"stream_prefix": "order"}, [1, 2, 3, 5, 6, 7, 9, 10, 11]),
            ({"stream_prefix": "order-1"}, [1, 5, 9]),
            ({"stream_prefix": "ORDER"}, []),
            ({"stream_prefix": "order%"}, []),
            ({"stream_prefix": "absent"}, []),
            ({"stream_prefix": ""}, range(1, 13)),
            ({"stream_prefix": "order-", "after": 5}, [6, 9, 10]),
            ({"stream_prefix": "order-", "limit": 3}, [1, 2, 5]),
            ({"stream_prefix": "order-", "limit": 6}, [1, 2, 5, 6, 9, 10]),
            ({"stream_prefix": "order-", "limit": 0}, []),
            ({"stream_prefix": "order-", "after": 2, "limit": 1}, [5]),
            ({"types": ["note_taken"]}, [4, 8, 12]),
            ({"types": ["note_taken", "order_placed"], "limit": 5}, range(1, 6)),
            ({"types": []}, []),
            ({"types": ["note_taken"], "stream_prefix": "order"}, []),
            ({"types": ["order_placed"], "stream_prefix": "orders"}, [3, 7, 11]),
        ],
        ids=str,
    )
    async def test_the_log_is_read_through_the_filter(
        self, shop: RunLog, options: dict[str, Any], expected: Sequence[int]
    ) -> None:
        found = [event async for event in shop.read_all(**options)]
        everywhere = {event.position: event for event in await everything(shop)}
        assert found == [everywhere[position] for position in expected]

    async def test_a_filter_passes_pages_in_which_nothing_is_wanted(self, log: RunLog) -> None:
        await log.append("crowd", notes(MANY), expect=ANY)
        await log.append("needle-1", [note()], expect=ANY)
        await log.append("crowd", notes(MANY), expect=ANY)
        await log.append("needle-2", [note()], expect=ANY)
        found = [event.stream async for event in log.read_all(stream_prefix="needle-")]
        assert found == ["needle-1", "needle-2"]
        found = [event.stream async for event in log.read_all(stream_prefix="needle-", limit=1)]
        assert found == ["needle-1"]
        feed = log.subscribe(stream_prefix="needle-")
        assert [event.stream for event in await take_events(feed, 2)] == ["needle-1", "needle-2"]

    async def test_a_subscription_gives_only_streams_with_the_prefix(self, shop: RunLog) -> None:
        feed = shop.subscribe(after=4, stream_prefix="order-")
        assert [event.position for event in await take_events(feed, 4)] == [5, 6, 9, 10]
        await shop.append("bill-2", [note()], expect=ANY)
        await shop.append("order-3", [note()], expect=ANY)
        assert [event.stream for event in await take_events(feed, 1)] == ["order-3"]

    async def test_a_subscription_can_be_of_types_in_streams_with_a_prefix(self, shop: RunLog) -> None:
        await shop.append("order-1", [note()], expect=ANY)
        feed = shop.subscribe(types=["note_taken"], stream_prefix="order-")
        assert [event.position for event in await take_events(feed, 1)] == [13]

    async def test_with_marks_the_cursor_moves_over_other_streams(self, shop: RunLog) -> None:
        feed = shop.subscribe(stream_prefix="absent", marks=True)
        assert await take(feed, 2) == [CursorMoved(12), CaughtUp(12)]

    @pytest.mark.parametrize("prefix", [b"order", 7, ["order"]], ids=repr)
    async def test_a_prefix_is_not(self, log: RunLog, prefix: Any) -> None:
        with raises("invalid_argument"):
            await anext(log.read_all(stream_prefix=prefix))
        with raises("invalid_argument"):
            await take(log.subscribe(stream_prefix=prefix), 1)

    async def test_a_reader_of_types_takes_a_list(self, log: RunLog) -> None:
        with raises("invalid_argument"):
            await anext(log.read_all(types="note_taken"))

    @pytest.mark.parametrize("value", [-1, 2**63, True, 1.0, "1"], ids=lambda value: type(value).__name__)
    async def test_a_bound_of_reading_back_is_not(self, log: RunLog, value: Any) -> None:
        with raises("invalid_argument"):
            await anext(log.read_back("a", before=value))
        with raises("invalid_argument"):
            await anext(log.read_back("a", limit=value))

    async def test_a_closed_log_looks_nothing_up(self, open_log: OpenLog) -> None:
        log = await open_log()
        await log.close()
        with raises("engine_closed"):
            await log.find(new_event_id())
        with raises("engine_closed"):
            await anext(log.read_back("a"))
