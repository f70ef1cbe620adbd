"""What every log has to do: a suite of tests that the tests of a store inherit.

    class TestMyLog(LogContract):
        @pytest.fixture
        def new_log(self, tmp_path: Path) -> NewLog:
            names = itertools.count()
            return lambda **options: MyLog(tmp_path / f"{next(names)}.log", **options)

`new_log` is all that a store gives: each call makes another log, empty and not opened yet, from the keyword options
`actor`, `registry`, `limits` and `clock`, any of which may be absent. Whatever the suite opened is checked by
`check_page` when it is closed, so that each test is also one of the integrity of the log. Runs under pytest-asyncio in
auto mode.

The classes below have one subject each; `LogContract` is all of them.
"""

from __future__ import annotations

import asyncio
import datetime
import decimal
import enum
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from eventlog.codec import Registry, event
from eventlog.errors import EventLogError, InvalidInput, Misuse, StoreUnavailable, WrongExpectedVersion
from eventlog.events import ApprovalRecorded
from eventlog.ids import new_event_id
from eventlog.log import (
    Append,
    AppendResult,
    CaughtUp,
    CursorMoved,
    EventReader,
    Expect,
    FellBehind,
    Head,
    Mark,
    NewEvent,
    RecordedEvent,
    RunLog,
    StreamSlice,
    fold,
)
from eventlog.plain import Limits
from eventlog.testing.clock import FakeClock

try:
    import pytest
except ImportError as error:
    raise Misuse("missing_extra", "the contract suite runs under pytest: install `eventlog-engine[dev]`") from error

__all__ = ["LogContract", "NewLog", "OpenLog", "OpenableLog"]

ANY: Final = Expect.any()
PATIENCE_S: Final = 20.0
"""How long the suite waits for something that must come."""

MANY: Final = 3_000
"""More events than a page of any store holds."""


class OpenableLog(RunLog, Protocol):
    """A log that is opened by `async with`."""

    async def __aenter__(self) -> RunLog: ...

    async def __aexit__(self, *_: object) -> None: ...


NewLog = Callable[..., OpenableLog]
OpenLog = Callable[..., Awaitable[RunLog]]

# ── Events of the suite ──────────────────────────────────────────────────────────────────────────────────────────────

CONTRACT_REGISTRY: Final = Registry()


class Colour(enum.Enum):
    RED = "red"


@event("order_placed", registry=CONTRACT_REGISTRY)
class OrderPlaced(msgspec.Struct, frozen=True):
    total: int
    note: str = ""


@event("parcel_sent", registry=CONTRACT_REGISTRY)
class ParcelSent(msgspec.Struct, frozen=True):
    at: datetime.datetime
    label: uuid.UUID
    size: tuple[int, int, int]
    seal: bytes
    price: decimal.Decimal
    colour: Colour
    tags: frozenset[str] = frozenset()
    extra: Any = None


def _split_name(old: dict[str, Any]) -> dict[str, Any]:
    first, _, last = old["name"].partition(" ")
    return {"first": first, "last": last}


def _add_title(old: dict[str, Any]) -> dict[str, Any]:
    return {**old, "titles": {"1": "Dr"}}


@event("person_named", schema_version=3, upcast={1: _split_name, 2: _add_title}, registry=CONTRACT_REGISTRY)
class PersonNamed(msgspec.Struct, frozen=True):
    first: str
    last: str
    titles: dict[int, str]


def _never_works(old: dict[str, Any]) -> dict[str, Any]:
    return {"value": old["a key that no event has"]}


@event("badly_upcast", schema_version=2, upcast={1: _never_works}, registry=CONTRACT_REGISTRY)
class BadlyUpcast(msgspec.Struct, frozen=True):
    value: int


def note(text: str = "hello", **fields: Any) -> NewEvent:
    """Return an event of a type that nobody registered."""
    return NewEvent("note_taken", {"text": text}, **fields)


def notes(count: int) -> list[NewEvent]:
    return [note(str(number)) for number in range(1, count + 1)]


def texts(events: Sequence[RecordedEvent]) -> list[str]:
    return [event.data["text"] for event in events]


async def everything(log: EventReader) -> list[RecordedEvent]:
    return [event async for event in log.read_all()]


async def of_stream(log: EventReader, stream: str, **bounds: Any) -> list[RecordedEvent]:
    return [event async for event in log.read(stream, **bounds)]


async def take(feed: AsyncIterator[RecordedEvent | Mark], count: int) -> list[RecordedEvent | Mark]:
    """Return the next `count` things of a subscription; fails if they do not come."""
    async with asyncio.timeout(PATIENCE_S):
        return [await anext(feed) for _ in range(count)]


async def take_events(feed: AsyncIterator[RecordedEvent | Mark], count: int) -> list[RecordedEvent]:
    taken = await take(feed, count)
    assert all(isinstance(each, RecordedEvent) for each in taken)
    return [each for each in taken if isinstance(each, RecordedEvent)]


@contextmanager
def raises(code: str) -> Iterator[pytest.ExceptionInfo[EventLogError]]:
    """Expect an error of the engine with this code."""
    with pytest.raises(EventLogError) as caught:
        yield caught
    assert caught.value.code == code


async def assert_sound(log: EventReader) -> int:
    """Assert that `check_page` finds nothing wrong in the whole log, and return how many events it looked at."""
    after = looked_at = 0
    while True:
        page = await log.check_page(after=after, limit=700)
        assert list(page.problems) == []
        looked_at += page.events
        if page.events == 0:
            return looked_at
        assert page.position > after
        after = page.position


class _Subject:
    """What all parts of the suite start from."""

    @pytest.fixture
    def new_log(self) -> NewLog:
        """Replace this: a function that makes another log, empty and not opened yet, from keyword options."""
        raise NotImplementedError("a store's test class has to have the fixture `new_log`")

    @pytest.fixture
    async def open_log(self, new_log: NewLog) -> AsyncIterator[OpenLog]:
        """Open logs with options; all are verified and closed when the test ends."""
        async with AsyncExitStack() as stack:

            async def open_one(**options: Any) -> RunLog:
                log = await stack.enter_async_context(new_log(**{"registry": CONTRACT_REGISTRY, **options}))
                stack.push_async_callback(_verify, log)
                return log

            yield open_one

    @pytest.fixture
    async def log(self, open_log: OpenLog) -> RunLog:
        """An open, empty log."""
        return await open_log()


async def _verify(log: RunLog) -> None:
    try:
        head = await log.head()
    except StoreUnavailable as error:
        if error.code == "engine_closed":  # by the test itself
            return
        raise
    assert await assert_sound(log) == head.position


# ── Appending ────────────────────────────────────────────────────────────────────────────────────────────────────────


class ExpectContract(_Subject):
    """Where the caller thinks a stream is."""

    @pytest.mark.parametrize("expect", [Expect.any(), Expect.no_stream(), Expect.at(0)], ids=str)
    async def test_an_absent_stream_is_begun_under(self, log: RunLog, expect: Expect) -> None:
        result = await log.append("a", [note()], expect=expect)
        assert (result.stream, result.version, result.deduplicated) == ("a", 1, False)

    @pytest.mark.parametrize("expect", [Expect.exists(), Expect.at(1)], ids=str)
    async def test_an_absent_stream_is_refused_under(self, log: RunLog, expect: Expect) -> None:
        with pytest.raises(WrongExpectedVersion) as caught:
            await log.append("a", [note()], expect=expect)
        error = caught.value
        assert (error.code, error.stream, error.expected, error.actual) == ("version_conflict", "a", str(expect), 0)
        assert await log.head() == Head(0, bytes(32))

    @pytest.mark.parametrize("expect", [Expect.any(), Expect.exists(), Expect.at(2)], ids=str)
    async def test_a_stream_at_version_2_goes_on_under(self, log: RunLog, expect: Expect) -> None:
        await log.append("a", notes(2), expect=ANY)
        assert (await log.append("a", [note()], expect=expect)).version == 3

    @pytest.mark.parametrize("expect", [Expect.no_stream(), Expect.at(0), Expect.at(1), Expect.at(3)], ids=str)
    async def test_a_stream_at_version_2_is_refused_under(self, log: RunLog, expect: Expect) -> None:
        await log.append("a", notes(2), expect=ANY)
        with pytest.raises(WrongExpectedVersion) as caught:
            await log.append("a", [note()], expect=expect)
        assert (caught.value.expected, caught.value.actual) == (str(expect), 2)
        assert len(await everything(log)) == 2

    async def test_a_refused_append_burns_no_position_and_no_version(self, log: RunLog) -> None:
        await log.append("a", [note()], expect=ANY)
        for _ in range(3):
            with raises("version_conflict"):
                await log.append("a", notes(4), expect=Expect.at(9))
        result = await log.append("a", [note()], expect=Expect.at(1))
        assert (result.version, result.first_position) == (2, 2)

    async def test_an_expectation_is_about_its_own_stream_alone(self, log: RunLog) -> None:
        await log.append("a", notes(5), expect=ANY)
        assert (await log.append("b", [note()], expect=Expect.no_stream())).version == 1
        assert (await log.append("A", [note()], expect=Expect.no_stream())).version == 1

    @pytest.mark.parametrize("version", [-1, -(10**5000), True, 1.0, "1", None], ids=lambda value: type(value).__name__)
    async def test_no_expectation_can_be_made_of(self, version: Any) -> None:
        with raises("invalid_argument"):
            Expect.at(version)

    @pytest.mark.parametrize("expect", [None, 0, "any"], ids=repr)
    async def test_an_expectation_is_not(self, log: RunLog, expect: Any) -> None:
        with raises("invalid_argument"):
            await log.append("a", [note()], expect=expect)


class AppendContract(_Subject):
    """Events become durable together, in order, exactly as they were given."""

    async def test_an_append_tells_where_its_events_are(self, log: RunLog) -> None:
        await log.append("other", notes(3), expect=ANY)
        result = await log.append("a", notes(2), expect=ANY)
        stored = await of_stream(log, "a")
        expected = AppendResult(stream="a", version=2, first_position=4, last_position=5, leaf=stored[-1].leaf)
        assert result == expected

    async def test_events_of_one_call_follow_one_another(self, log: RunLog) -> None:
        await log.append("a", notes(50), expect=ANY)
        stored = await everything(log)
        assert texts(stored) == [str(number) for number in range(1, 51)]
        assert [event.position for event in stored] == [event.version for event in stored] == list(range(1, 51))

    async def test_an_event_comes_back_with_everything_it_was_given(self, log: RunLog) -> None:
        given = note("text", event_id=b"e" * 16, correlation_id="case-7", causation_id=b"c" * 16, schema_version=9)
        result = await log.append("a", [given], expect=ANY, actor="agent:7")
        (stored,) = await everything(log)
        assert (stored.position, stored.stream, stored.version, stored.type) == (1, "a", 1, "note_taken")
        assert (stored.event_id, stored.correlation_id, stored.causation_id) == (b"e" * 16, "case-7", b"c" * 16)
        assert (stored.actor, stored.schema_version, stored.data) == ("agent:7", 9, {"text": "text"})
        assert (stored.leaf, stored.prev_in_stream) == (result.leaf, bytes(32))

    async def test_every_event_names_its_predecessor_in_the_stream(self, log: RunLog) -> None:
        for stream in ("a", "b", "a", "b", "a"):
            await log.append(stream, notes(2), expect=ANY)
        for stream in ("a", "b"):
            stored = await of_stream(log, stream)
            assert [event.prev_in_stream for event in stored] == [bytes(32), *(event.leaf for event in stored[:-1])]

    async def test_no_two_events_have_the_same_leaf(self, log: RunLog) -> None:
        await log.append("a", [note("same") for _ in range(20)], expect=ANY)
        assert len({event.leaf for event in await everything(log)}) == 20

    async def test_what_is_read_twice_is_the_same_twice(self, log: RunLog) -> None:
        await log.append("a", [OrderPlaced(1), note()], expect=ANY)
        assert await everything(log) == await everything(log) == await of_stream(log, "a")

    async def test_an_event_gets_an_id_of_its_own_and_without_links(self, log: RunLog) -> None:
        await log.append("a", [OrderPlaced(1), OrderPlaced(1), note()], expect=ANY)
        stored = await everything(log)
        assert len({event.event_id for event in stored}) == 3
        assert {(event.correlation_id, event.causation_id) for event in stored} == {(None, None)}

    async def test_links_of_the_call_are_for_events_without_their_own(self, log: RunLog) -> None:
        own = note(correlation_id="own", causation_id=b"o" * 16)
        await log.append("a", [own, note(), OrderPlaced(1)], expect=ANY, correlation_id="call", causation_id=b"c" * 16)
        found = [(event.correlation_id, event.causation_id) for event in await everything(log)]
        assert found == [("own", b"o" * 16), ("call", b"c" * 16), ("call", b"c" * 16)]

    async def test_the_actor_is_the_logs_unless_the_call_names_another(self, open_log: OpenLog) -> None:
        log = await open_log(actor="service:orders")
        await log.append("a", [note()], expect=ANY)
        await log.append("a", [note()], expect=ANY, actor="agent:2")
        await log.append_many([Append("a", [note()], ANY)], actor="agent:3")
        await log.append("a", [note()], expect=ANY)
        found = [event.actor for event in await everything(log)]
        assert found == ["service:orders", "agent:2", "agent:3", "service:orders"]

    async def test_times_come_from_the_clock_and_one_call_has_one_time(self, open_log: OpenLog) -> None:
        clock = FakeClock(now_us=1_000_000)
        log = await open_log(clock=clock)
        await log.append("a", notes(2), expect=ANY)
        clock.advance(1.5)
        await log.append("b", [note()], expect=ANY)
        assert [event.recorded_at_us for event in await everything(log)] == [1_000_000, 1_000_000, 2_500_000]

    async def test_times_never_go_back_when_the_clock_does(self, open_log: OpenLog) -> None:
        clock = FakeClock(now_us=5_000_000)
        log = await open_log(clock=clock)
        for now_us in (5_000_000, 1_000_000, -1, 5_000_001, 4_000_000):
            clock.set(now_us)
            await log.append("a", [note()], expect=ANY)
        found = [event.recorded_at_us for event in await everything(log)]
        assert found == [5_000_000, 5_000_000, 5_000_000, 5_000_001, 5_000_001]

    @pytest.mark.parametrize(
        "events",
        [[], (), "text", b"bytes", {"a": 1}, note(), OrderPlaced(1), None, 7],
        # Names without what is new each time, the id of an event: tests that run in several processes go by their name.
        ids=["[]", "()", "text", "bytes", "dict", "NewEvent", "Struct", "None", "int"],
    )
    async def test_events_are_not(self, log: RunLog, events: Any) -> None:
        with raises("invalid_argument"):
            await log.append("a", events, expect=ANY)

    @pytest.mark.parametrize(
        "thing", [{"type": "x"}, "order_placed", None, OrderPlaced, Append("a", [], ANY)], ids=repr
    )
    async def test_an_event_is_not(self, log: RunLog, thing: Any) -> None:
        with raises("unsupported_type"):
            await log.append("a", [thing], expect=ANY)
        assert (await log.head()).position == 0


class AppendManyContract(_Subject):
    """Several streams, written and checked as one."""

    async def test_several_streams_are_written_in_the_order_of_the_call(self, log: RunLog) -> None:
        await log.append("b", [note("0")], expect=ANY)
        results = await log.append_many(
            [
                Append("a", [note("1"), note("2")], Expect.no_stream()),
                Append("b", [note("3")], Expect.at(1)),
                Append("c", [note("4")], ANY),
            ]
        )
        assert [(each.stream, each.version) for each in results] == [("a", 2), ("b", 2), ("c", 1)]
        assert [(each.first_position, each.last_position) for each in results] == [(2, 3), (4, 4), (5, 5)]
        stored = await everything(log)
        assert texts(stored) == ["0", "1", "2", "3", "4"]
        assert [each.leaf for each in results] == [stored[2].leaf, stored[3].leaf, stored[4].leaf]

    @pytest.mark.parametrize("position", [0, 1, 2])
    async def test_one_missed_expectation_keeps_all_streams_as_they_were(self, log: RunLog, position: int) -> None:
        expectations = [ANY, ANY, ANY]
        expectations[position] = Expect.at(4)
        parts = [Append(f"s{index}", [note()], expect) for index, expect in enumerate(expectations)]
        with pytest.raises(WrongExpectedVersion) as caught:
            await log.append_many(parts)
        assert caught.value.stream == f"s{position}"
        assert (await log.head()).position == 0
        assert [(await log.read_stream(f"s{index}")).version for index in range(3)] == [0, 0, 0]

    async def test_a_bad_event_keeps_all_streams_as_they_were(self, log: RunLog) -> None:
        with raises("non_finite_number"):
            await log.append_many(
                [Append("a", [note()], ANY), Append("b", [note(), NewEvent("x", {"n": float("nan")})], ANY)]
            )
        assert (await log.head()).position == 0

    async def test_a_check_on_a_stream_that_is_not_written_can_pass(self, log: RunLog) -> None:
        await log.append("policy", notes(2), expect=ANY)
        checks = [("policy", Expect.at(2)), ("absent", Expect.no_stream()), ("run:x", Expect.at(0))]
        await log.append_many([Append("a", [note()], ANY)], checks=checks)
        assert (await log.read_stream("a")).version == 1
        assert (await log.read_stream("policy")).version == 2
        assert (await log.read_stream("absent")).version == 0

    @pytest.mark.parametrize(
        ("stream", "expect", "actual"),
        [("policy", Expect.at(1), 2), ("policy", Expect.no_stream(), 2), ("absent", Expect.exists(), 0)],
        ids=str,
    )
    async def test_a_check_that_misses_keeps_everything_as_it_was(
        self, log: RunLog, stream: str, expect: Expect, actual: int
    ) -> None:
        await log.append("policy", notes(2), expect=ANY)
        with pytest.raises(WrongExpectedVersion) as caught:
            await log.append_many([Append("a", [note()], ANY)], checks=[(stream, expect)])
        assert (caught.value.stream, caught.value.actual) == (stream, actual)
        assert (await log.head()).position == 2

    async def test_a_check_sees_a_stream_as_it_is_before_the_call(self, log: RunLog) -> None:
        await log.append_many([Append("a", notes(2), Expect.no_stream())], checks=[("a", Expect.no_stream())])
        with raises("version_conflict"):
            await log.append_many([Append("a", notes(2), ANY)], checks=[("a", Expect.at(4))])

    async def test_a_stream_stands_once_in_a_call(self, log: RunLog) -> None:
        with raises("invalid_argument"):
            await log.append_many([Append("a", [note()], ANY), Append("a", [note()], ANY)])
        assert (await log.head()).position == 0

    async def test_a_call_without_streams_is_refused(self, log: RunLog) -> None:
        with raises("invalid_argument"):
            await log.append_many([], checks=[("a", ANY)])

    @pytest.mark.parametrize("part", [("a", [note()], ANY), {"stream": "a"}, None], ids=["tuple", "dict", "None"])
    async def test_a_part_of_a_call_is_not(self, log: RunLog, part: Any) -> None:
        with raises("invalid_argument"):
            await log.append_many([part])

    async def test_a_part_without_events_is_refused(self, log: RunLog) -> None:
        with raises("invalid_argument"):
            await log.append_many([Append("a", [note()], ANY), Append("b", [], ANY)])
        assert (await log.head()).position == 0


class RetryContract(_Subject):
    """Repeating a call is always safe."""

    EXPECTATIONS: Final = [Expect.any(), Expect.no_stream(), Expect.exists(), Expect.at(0), Expect.at(2), Expect.at(77)]

    @pytest.mark.parametrize("expect", EXPECTATIONS, ids=str)
    async def test_a_repeated_call_gets_its_first_result_whatever_it_expects(self, log: RunLog, expect: Expect) -> None:
        events = [note("1"), note("2")]
        first = await log.append("a", events, expect=Expect.no_stream())
        await log.append("a", [note("3")], expect=ANY)
        again = await log.append("a", events, expect=expect)
        assert again == msgspec.structs.replace(first, deduplicated=True)
        assert texts(await everything(log)) == ["1", "2", "3"]

    async def test_a_repeated_call_over_several_streams_gets_its_first_results(self, log: RunLog) -> None:
        parts = [Append("a", [note("1"), note("2")], Expect.no_stream()), Append("b", [note("3")], Expect.no_stream())]
        checks = [("policy", Expect.no_stream())]
        first = await log.append_many(parts, checks=checks)
        await log.append("policy", [note("4")], expect=ANY)
        again = await log.append_many(parts, checks=checks)
        assert again == [msgspec.structs.replace(each, deduplicated=True) for each in first]
        assert len(await everything(log)) == 4

    async def test_a_typed_event_is_repeated_as_itself(self, log: RunLog) -> None:
        event_id = new_event_id()
        await log.append("a", [NewEvent("order_placed", OrderPlaced(3), event_id=event_id)], expect=ANY)
        again = await log.append("a", [NewEvent("order_placed", OrderPlaced(3), event_id=event_id)], expect=ANY)
        assert again.deduplicated

    async def test_who_repeats_a_call_and_why_makes_it_no_other_event(self, log: RunLog) -> None:
        event = note()
        await log.append("a", [event], expect=ANY, actor="agent:1", correlation_id="first")
        assert (await log.append("a", [event], expect=ANY, actor="agent:2", correlation_id="second")).deduplicated
        (stored,) = await everything(log)
        assert (stored.actor, stored.correlation_id) == ("agent:1", "first")

    async def test_the_beginning_of_a_call_is_found_where_it_is(self, log: RunLog) -> None:
        events = notes(3)
        await log.append("a", events, expect=ANY)
        again = await log.append("a", events[:2], expect=ANY)
        assert (again.version, again.first_position, again.last_position, again.deduplicated) == (2, 1, 2, True)

    async def test_a_call_of_which_only_a_part_is_stored_is_refused(self, log: RunLog) -> None:
        old, new = note("old"), note("new")
        await log.append("a", [old], expect=ANY)
        for events in ([old, new], [new, old]):
            for expect in (ANY, Expect.at(1), Expect.at(9)):
                with raises("event_id_conflict"):
                    await log.append("a", events, expect=expect)
        assert texts(await everything(log)) == ["old"]

    @pytest.mark.parametrize(
        "other",
        [
            NewEvent("note_taken", {"text": "other"}, event_id=b"e" * 16),
            NewEvent("note_burnt", {"text": "hello"}, event_id=b"e" * 16),
            NewEvent("note_taken", {"text": "hello"}, event_id=b"e" * 16, schema_version=2),
            NewEvent("note_taken", {"text": "hello", "more": 1}, event_id=b"e" * 16),
        ],
        ids=["other content", "other type", "other schema version", "more content"],
    )
    @pytest.mark.parametrize("expect", [ANY, Expect.at(1), Expect.no_stream()], ids=str)
    async def test_the_same_id_is_refused_for_an_event_with(self, log: RunLog, other: NewEvent, expect: Expect) -> None:
        await log.append("a", [note(event_id=b"e" * 16)], expect=ANY)
        with raises("event_id_conflict") as caught:
            await log.append("a", [other], expect=expect)
        assert caught.value.details["event_id"] == (b"e" * 16).hex()
        assert texts(await everything(log)) == ["hello"]

    async def test_the_same_event_is_refused_in_another_stream(self, log: RunLog) -> None:
        event = note()
        await log.append("a", [event], expect=ANY)
        with raises("event_id_conflict"):
            await log.append("b", [event], expect=Expect.no_stream())
        assert (await log.read_stream("b")).version == 0

    async def test_the_same_events_in_another_order_are_refused(self, log: RunLog) -> None:
        events = notes(3)
        await log.append("a", events, expect=ANY)
        for other in ([events[1], events[0], events[2]], [events[0], events[2]], events[::-1]):
            with raises("event_id_conflict"):
                await log.append("a", other, expect=ANY)
        assert len(await everything(log)) == 3

    async def test_the_same_parts_in_another_order_are_refused(self, log: RunLog) -> None:
        parts = [Append("a", [note("1")], ANY), Append("b", [note("2")], ANY)]
        await log.append_many(parts)
        with raises("event_id_conflict"):
            await log.append_many(parts[::-1])
        assert len(await everything(log)) == 2

    async def test_events_of_several_calls_are_no_repeated_call(self, log: RunLog) -> None:
        first, second = note("1"), note("2")
        await log.append("a", [first], expect=ANY)
        await log.append("x", [note("between")], expect=ANY)
        await log.append("b", [second], expect=ANY)
        with raises("event_id_conflict"):
            await log.append_many([Append("a", [first], ANY), Append("b", [second], ANY)])

    async def test_a_call_over_several_streams_of_which_one_is_stored_is_refused(self, log: RunLog) -> None:
        old, new = note("old"), note("new")
        await log.append("a", [old], expect=ANY)
        with raises("event_id_conflict"):
            await log.append_many([Append("a", [old], ANY), Append("b", [new], ANY)])
        assert (await log.read_stream("b")).version == 0

    async def test_an_id_stands_once_in_a_call(self, log: RunLog) -> None:
        event = note()
        with raises("event_id_conflict"):
            await log.append("a", [event, note(), event], expect=ANY)
        with raises("event_id_conflict"):
            await log.append_many([Append("a", [event], ANY), Append("b", [event], ANY)])
        assert (await log.head()).position == 0

    async def test_an_id_that_was_refused_is_still_free(self, log: RunLog) -> None:
        event = note()
        with raises("version_conflict"):
            await log.append("a", [event], expect=Expect.at(5))
        assert not (await log.append("a", [event], expect=ANY)).deduplicated

    async def test_the_same_call_many_times_at_once_is_stored_once(self, log: RunLog) -> None:
        events = notes(3)
        calls = (log.append("a", events, expect=Expect.no_stream()) for _ in range(30))
        results = await asyncio.gather(*calls)
        assert sorted(each.deduplicated for each in results) == [False, *[True] * 29]
        assert {(each.version, each.first_position, each.leaf) for each in results} == {(3, 1, results[0].leaf)}
        assert len(await everything(log)) == 3

    async def test_a_refused_repeat_leaves_its_neighbours_alone(self, log: RunLog) -> None:
        event = note()
        await log.append("a", [event], expect=ANY)
        results = await asyncio.gather(
            log.append("b", [note()], expect=Expect.no_stream()),
            log.append("a", [event, note()], expect=ANY),
            log.append("a", [event], expect=Expect.no_stream()),
            log.append("c", [note()], expect=Expect.no_stream()),
            return_exceptions=True,
        )
        found = [
            each.code if isinstance(each, EventLogError) else getattr(each, "deduplicated", None) for each in results
        ]
        assert found == [False, "event_id_conflict", True, False]
        assert len(await everything(log)) == 3

    async def test_a_cancelled_call_can_be_repeated_until_it_is_answered(self, log: RunLog) -> None:
        for rounds in range(12):
            events = [note(f"{rounds}"), note(f"{rounds}")]
            task = asyncio.create_task(log.append("a", events, expect=ANY))
            for _ in range(rounds):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
            result = await log.append("a", events, expect=ANY)
            assert result.version == 2 * rounds + 2
        assert len(await everything(log)) == 24

    async def test_a_cancelled_call_leaves_the_neighbours_alone(self, log: RunLog) -> None:
        tasks = [asyncio.create_task(log.append(f"s{number}", notes(2), expect=ANY)) for number in range(20)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, AppendResult) for each in results[1::2])
        versions = [(await log.read_stream(f"s{number}")).version for number in range(20)]
        assert set(versions[1::2]) == {2}
        assert set(versions[::2]) <= {0, 2}


class ConcurrencyContract(_Subject):
    """Many callers at once."""

    async def test_of_many_callers_at_one_version_exactly_one_wins(self, log: RunLog) -> None:
        await log.append("a", notes(2), expect=ANY)
        calls = (log.append("a", [note(str(number))], expect=Expect.at(2)) for number in range(50))
        results = await asyncio.gather(*calls, return_exceptions=True)
        (won,) = [index for index, each in enumerate(results) if isinstance(each, AppendResult)]
        lost = [each for each in results if isinstance(each, WrongExpectedVersion)]
        assert len(lost) == 49
        assert {(each.stream, each.expected, each.actual) for each in lost} == {("a", "at version 2", 3)}
        assert texts(await of_stream(log, "a", after=2)) == [str(won)]

    async def test_two_callers_that_check_each_others_streams_cannot_both_win(self, log: RunLog) -> None:
        results = await asyncio.gather(
            log.append_many([Append("a", [note()], ANY)], checks=[("b", Expect.no_stream())]),
            log.append_many([Append("b", [note()], ANY)], checks=[("a", Expect.no_stream())]),
            return_exceptions=True,
        )
        assert sorted(isinstance(each, WrongExpectedVersion) for each in results) == [False, True]

    async def test_one_callers_conflict_leaves_its_neighbours_alone(self, log: RunLog) -> None:
        expectations = [Expect.at(7) if number % 5 == 0 else Expect.no_stream() for number in range(60)]
        calls = (log.append(f"s{number}", [note()], expect=each) for number, each in enumerate(expectations))
        results = await asyncio.gather(*calls, return_exceptions=True)
        for number, result in enumerate(results):
            assert isinstance(result, WrongExpectedVersion if number % 5 == 0 else AppendResult)
        assert len(await everything(log)) == 48

    async def test_what_many_tasks_append_has_no_gap_and_no_double(self, log: RunLog) -> None:
        async def work(number: int) -> None:
            for turn in range(5):
                await log.append(f"s{number % 7}", [note(f"{number}.{turn}"), note(f"{number}.{turn}")], expect=ANY)

        await asyncio.gather(*(work(number) for number in range(200)))
        stored = await everything(log)
        assert [event.position for event in stored] == list(range(1, 2001))
        for stream in (f"s{number}" for number in range(7)):
            versions = [event.version for event in stored if event.stream == stream]
            assert versions == list(range(1, len(versions) + 1))
        assert texts(stored)[::2] == texts(stored)[1::2], "the events of one call stand together"
        for number in (0, 99, 199):
            mine = [text for text in texts(stored)[::2] if text.partition(".")[0] == str(number)]
            assert mine == [f"{number}.{turn}" for turn in range(5)], "one task's events stand in its order"

    async def test_callers_that_read_again_and_retry_all_get_through(self, log: RunLog) -> None:
        async def add_one() -> None:
            while True:
                version = (await log.read_stream("counter")).version
                try:
                    await log.append("counter", [note(str(version))], expect=Expect.at(version))
                except WrongExpectedVersion:
                    continue
                return

        async with asyncio.timeout(PATIENCE_S * 2):
            await asyncio.gather(*(add_one() for _ in range(20)))
        assert texts(await of_stream(log, "counter")) == [str(number) for number in range(20)]

    async def test_readers_beside_writers_see_whole_calls_in_order(self, log: RunLog) -> None:
        async def write() -> None:
            for _ in range(100):
                await log.append("a", notes(3), expect=ANY)

        async def read() -> None:
            seen = 0
            while seen < 300:
                found = await log.read_stream("a")
                assert [event.version for event in found.events] == list(range(1, found.version + 1))
                assert found.version >= seen
                assert found.version % 3 == 0
                seen = found.version
                await asyncio.sleep(0)

        async with asyncio.timeout(PATIENCE_S * 2):
            await asyncio.gather(write(), read(), read(), read())


# ── What may be stored ───────────────────────────────────────────────────────────────────────────────────────────────


class _Word(str):
    """A subclass of str, which would come back as a str."""


BAD_IDS: Final[dict[str, Any]] = {
    "empty": "",
    "blank": " ",
    "space in front": " a",
    "space behind": "a ",
    "NUL": "a\0b",
    "newline": "a\nb",
    "DEL": "a\x7f",
    "C1 control": "a\x85b",
    "zero width": "a\u200bb",
    "right to left": "a\u202eb",
    "line separator": "a\u2028b",
    "BOM": "\ufeffa",
    "lone surrogate": "a\ud800",
    "too many bytes": "x" * 513,
    "too many bytes in few characters": "é" * 257,
    "a subclass": _Word("a"),
    "bytes": b"a",
    "int": 7,
    "None": None,
}

GOOD_IDS: Final[dict[str, str]] = {
    "one letter": "a",
    "as long as may be": "x" * 512,
    "as long as may be, in few characters": "é" * 256,
    "Japanese": "注文-7",
    "with spaces": "my own stream",
    "SQL": "'; DROP TABLE events; --",
    "a pattern": "%_*?[a]",
    "a path": "../../etc/passwd",
    "nearly the engine's": "runs:1",
}

BAD_EVENT_IDS: Final[dict[str, Any]] = {
    "empty": b"",
    "short": b"e" * 15,
    "long": b"e" * 17,
    "all zero": bytes(16),
    "text": "e" * 16,
    "bytearray": bytearray(b"e" * 16),
    "UUID": uuid.UUID(int=1),
    "int": 1,
}


class _Bad(NamedTuple):
    data: Any
    code: str
    path: str


class _Level(enum.IntEnum):
    LOW = 1


class _Tone(enum.StrEnum):
    LOUD = "loud"


class _Pair(NamedTuple):
    left: int


_NAN: Final = float("nan")
_A_DAY: Final = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def _nested(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


BAD_DATA: Final[dict[str, _Bad]] = {
    "NaN": _Bad({"a": _NAN}, "non_finite_number", "$.a"),
    "infinity": _Bad({"a": [1, {"b": float("inf")}]}, "non_finite_number", "$.a[1].b"),
    "minus infinity": _Bad([float("-inf")], "non_finite_number", "$[0]"),
    "NaN alone": _Bad(_NAN, "non_finite_number", "$"),
    "lone surrogate": _Bad({"a": {"b": ["ok", "x\ud800"]}}, "invalid_text", "$.a.b[1]"),
    "lone surrogate in a key": _Bad({"a": {"\udfff": 1}}, "invalid_text", r"$.a['\udfff']"),
    "odd key on the way": _Bad({"a b": {"": _NAN}}, "non_finite_number", "$['a b']['']"),
    "int as key": _Bad({"a": {1: "x"}}, "non_string_key", "$.a"),
    "huge int as key": _Bad({10**5000: 1}, "non_string_key", "$"),
    "None as key": _Bad({None: "x"}, "non_string_key", "$"),
    "a subclass as key": _Bad({_Word("a"): "x"}, "non_string_key", "$"),
    "tuple": _Bad({"a": (1, 2)}, "unsupported_type", "$.a"),
    "named tuple": _Bad({"a": _Pair(1)}, "unsupported_type", "$.a"),
    "set": _Bad({"a": {1}}, "unsupported_type", "$.a"),
    "bytes": _Bad({"a": b"x"}, "unsupported_type", "$.a"),
    "date": _Bad({"a": [_A_DAY]}, "unsupported_type", "$.a[0]"),
    "UUID": _Bad({"a": uuid.UUID(int=1)}, "unsupported_type", "$.a"),
    "Decimal": _Bad({"a": decimal.Decimal(1)}, "unsupported_type", "$.a"),
    "complex": _Bad({"a": 1j}, "unsupported_type", "$.a"),
    "an object": _Bad({"a": object()}, "unsupported_type", "$.a"),
    "a Struct inside": _Bad({"a": OrderPlaced(1)}, "unsupported_type", "$.a"),
    "IntEnum": _Bad({"a": _Level.LOW}, "unsupported_type", "$.a"),
    "StrEnum": _Bad({"a": _Tone.LOUD}, "unsupported_type", "$.a"),
    "a subclass of str": _Bad({"a": _Word("a")}, "unsupported_type", "$.a"),
    "OrderedDict": _Bad({"a": OrderedDict(b=1)}, "unsupported_type", "$.a"),
    "huge int": _Bad({"a": 10**5000}, "number_too_large", "$.a"),
    "101 levels": _Bad({"a": _nested(100)}, "payload_too_deep", "$.a" + "[0]" * 99),
}

GOOD_DATA: Final[dict[str, Any]] = {
    "nothing": None,
    "empty": {},
    "list": [],
    "text alone": "text",
    "zero": 0,
    "minus zero": -0.0,
    "true": True,
    "deep": _nested(100),
    "big ints": [2**63, 2**64, -(2**64) - 1, 10**4000, -(10**4000)],
    "floats": [0.1, 1e308, 5e-324, 1.0, 1e22, -1.5],
    "text of all kinds": [
        "",
        "\0",
        "\x1f\x7f",
        "\u2028\u2029",
        "\ufeff",
        "\U0001f600",
        "é",
        "e\u0301",
        "</script>",
        '"\\',
    ],
    "keys of all kinds": {"": 1, " ": 2, "\0": 3, "é": 4, "e\u0301": 5, "\U0001f600": 6, "a.b": 7},
    "order of keys": {"b": 1, "a": 2, "c": {"z": 1, "y": 2}},
}


class ContentContract(_Subject):
    """Exact or refused; never altered."""

    @pytest.mark.parametrize("stream", BAD_IDS.values(), ids=BAD_IDS)
    async def test_a_stream_cannot_be_named(self, log: RunLog, stream: Any) -> None:
        with raises("invalid_id"):
            await log.append(stream, [note()], expect=ANY)
        with raises("invalid_id"):
            await log.append_many([Append("a", [note()], ANY)], checks=[(stream, ANY)])
        with raises("invalid_id"):
            await log.read_stream(stream)
        with raises("invalid_id"):
            await of_stream(log, stream)
        assert (await log.head()).position == 0

    @pytest.mark.parametrize("stream", GOOD_IDS.values(), ids=GOOD_IDS)
    async def test_a_stream_can_be_named(self, log: RunLog, stream: str) -> None:
        await log.append(stream, [note()], expect=Expect.no_stream())
        assert [event.stream for event in await of_stream(log, stream)] == [stream]

    async def test_names_that_look_alike_are_different_streams(self, log: RunLog) -> None:
        names = ["é", "e\u0301", "E\u0301", "ｅ", "e"]
        for name in names:
            await log.append(name, [note(name)], expect=Expect.no_stream())
        assert [texts(await of_stream(log, name)) for name in names] == [[name] for name in names]

    @pytest.mark.parametrize("name", [*BAD_IDS.values(), "x" * 129], ids=[*BAD_IDS, "more than 128 bytes"])
    async def test_an_event_type_cannot_be(self, log: RunLog, name: Any) -> None:
        with raises("invalid_id"):
            await log.append("a", [NewEvent(name, {})], expect=ANY)

    @pytest.mark.parametrize("actor", ["", " ", "a\nb", "a\u202eb", "\ud800", "x" * 257, 7, b"a"], ids=ascii)
    async def test_an_actor_cannot_be(self, log: RunLog, actor: Any) -> None:
        with raises("invalid_id"):
            await log.append("a", [note()], expect=ANY, actor=actor)

    @pytest.mark.parametrize("correlation_id", ["", " ", "a\nb", "\ud800", "x" * 129, 7, b"a"], ids=ascii)
    async def test_a_correlation_id_cannot_be(self, log: RunLog, correlation_id: Any) -> None:
        with raises("invalid_id"):
            await log.append("a", [note()], expect=ANY, correlation_id=correlation_id)
        with raises("invalid_id"):
            await log.append("a", [note(correlation_id=correlation_id)], expect=ANY)

    @pytest.mark.parametrize("event_id", BAD_EVENT_IDS.values(), ids=BAD_EVENT_IDS)
    async def test_an_event_id_cannot_be(self, log: RunLog, event_id: Any) -> None:
        with raises("invalid_id"):
            await log.append("a", [note(event_id=event_id)], expect=ANY)
        with raises("invalid_id"):
            await log.append("a", [note(causation_id=event_id)], expect=ANY)
        with raises("invalid_id"):
            await log.append("a", [note()], expect=ANY, causation_id=event_id)

    @pytest.mark.parametrize("version", [0, -1, 65_536, True, 1.0, "1", None], ids=repr)
    async def test_a_schema_version_cannot_be(self, log: RunLog, version: Any) -> None:
        with raises("invalid_argument"):
            await log.append("a", [note(schema_version=version)], expect=ANY)

    @pytest.mark.parametrize("bad", BAD_DATA.values(), ids=BAD_DATA)
    async def test_data_is_refused_with_the_path_to_what_is_wrong(self, log: RunLog, bad: _Bad) -> None:
        with pytest.raises(InvalidInput) as caught:
            await log.append("a", [NewEvent("x", bad.data)], expect=ANY)
        assert (caught.value.code, caught.value.path) == (bad.code, bad.path)
        assert (await log.head()).position == 0

    async def test_of_several_events_the_bad_one_is_named(self, log: RunLog) -> None:
        with pytest.raises(InvalidInput, match=r"event 2 of 'a'.*at \$\.n\)$") as caught:
            await log.append("a", [note(), note(), NewEvent("x", {"n": _NAN})], expect=ANY)
        assert caught.value.path == "$.n"
        assert (await log.head()).position == 0

    @pytest.mark.parametrize("data", GOOD_DATA.values(), ids=GOOD_DATA)
    async def test_data_comes_back_as_it_was(self, log: RunLog, data: Any) -> None:
        await log.append("a", [NewEvent("x", data)], expect=ANY)
        (stored,) = await everything(log)
        assert repr(stored.data) == repr(data)
        assert msgspec.json.decode(stored.body) == data

    async def test_a_list_that_holds_itself_is_refused(self, log: RunLog) -> None:
        cycle: list[Any] = []
        cycle.append(cycle)
        with raises("payload_too_deep"):
            await log.append("a", [NewEvent("x", cycle)], expect=ANY)

    async def test_a_small_object_that_spells_a_huge_text_is_refused(self, open_log: OpenLog) -> None:
        log = await open_log(limits=Limits(body_bytes=100_000))
        value: Any = ["x"]
        for _ in range(60):
            value = [value, value]
        async with asyncio.timeout(PATIENCE_S):
            with raises("payload_too_large"):
                await log.append("a", [NewEvent("x", value)], expect=ANY)

    async def test_depth_is_limited(self, open_log: OpenLog) -> None:
        log = await open_log(limits=Limits(depth=3))
        await log.append("a", [NewEvent("x", [[[1]]])], expect=ANY)
        with raises("payload_too_deep"):
            await log.append("a", [NewEvent("x", [[[[1]]]])], expect=ANY)
        with raises("payload_too_deep"):
            await log.append("a", [NewEvent("x", {"a": {"b": {"c": {}}}})], expect=ANY)

    async def test_the_size_of_a_body_is_limited_to_the_byte(self, open_log: OpenLog) -> None:
        log = await open_log(limits=Limits(body_bytes=1000))
        overhead = len('{"text":""}')
        await log.append("a", [note("x" * (1000 - overhead))], expect=ANY)
        await log.append("a", [note("é" * ((1000 - overhead) // 2))], expect=ANY)
        for text in ("x" * (1001 - overhead), "é" * 500, "\0" * 200, "x" * 100_000):
            with raises("payload_too_large"):
                await log.append("a", [note(text)], expect=ANY)
        assert [len(event.body) for event in await everything(log)] == [1000, 999]

    async def test_the_size_of_a_typed_body_is_limited_too(self, open_log: OpenLog) -> None:
        log = await open_log(limits=Limits(body_bytes=1000))
        with pytest.raises(InvalidInput) as caught:
            await log.append("a", [OrderPlaced(1, "x" * 1001)], expect=ANY)
        assert (caught.value.code, caught.value.path) == ("payload_too_large", "$.note")

    async def test_the_number_of_events_in_a_call_is_limited(self, open_log: OpenLog) -> None:
        log = await open_log(limits=Limits(events_per_call=10))
        await log.append("a", notes(10), expect=ANY)
        with raises("batch_too_large"):
            await log.append("a", notes(11), expect=ANY)
        with raises("batch_too_large"):
            await log.append_many([Append("b", notes(6), ANY), Append("c", notes(5), ANY)])
        assert (await log.head()).position == 10

    async def test_the_size_of_a_stream_name_is_limited(self, open_log: OpenLog) -> None:
        log = await open_log(limits=Limits(id_bytes=5))
        await log.append("12345", [note()], expect=ANY)
        for stream in ("123456", "ééé"):
            with raises("invalid_id"):
                await log.append(stream, [note()], expect=ANY)


class TypesContract(_Subject):
    """Registered types come back typed, others plain; old shapes come back new."""

    PARCEL: Final = ParcelSent(
        at=datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=datetime.UTC),
        label=uuid.UUID(int=2**127 + 5),
        size=(1, 2, 3),
        seal=b"\0\xff",
        price=decimal.Decimal("10.10"),
        colour=Colour.RED,
        tags=frozenset({"a", "b"}),
        extra={"plain": [1, 2.5, None]},
    )

    @pytest.mark.parametrize(
        "typed", [OrderPlaced(3), OrderPlaced(2**70, "é"), PARCEL], ids=lambda each: type(each).__name__
    )
    async def test_a_registered_struct_comes_back_as_itself(self, log: RunLog, typed: Any) -> None:
        await log.append("a", [typed], expect=ANY)
        (stored,) = await everything(log)
        assert type(stored.data) is type(typed)
        assert stored.data == typed
        assert (stored.is_known, stored.schema_version) == (True, 1)

    async def test_a_struct_in_a_new_event_keeps_the_id_it_was_given(self, log: RunLog) -> None:
        await log.append("a", [NewEvent("order_placed", OrderPlaced(3), event_id=b"i" * 16)], expect=ANY)
        (stored,) = await everything(log)
        assert (stored.data, stored.event_id) == (OrderPlaced(3), b"i" * 16)

    async def test_plain_data_of_a_registered_type_comes_back_typed(self, log: RunLog) -> None:
        await log.append("a", [NewEvent("order_placed", {"total": 4})], expect=ANY)
        (stored,) = await everything(log)
        assert stored.data == OrderPlaced(4)
        assert stored.body == b'{"total":4}'

    @pytest.mark.parametrize("data", [{"total": "4"}, {}, {"total": None}, [1], None], ids=repr)
    async def test_plain_data_that_is_not_what_its_type_names_is_refused(self, log: RunLog, data: Any) -> None:
        with raises("invalid_event"):
            await log.append("a", [NewEvent("order_placed", data)], expect=ANY)
        assert (await log.head()).position == 0

    async def test_a_struct_under_another_types_name_is_refused(self, log: RunLog) -> None:
        with raises("invalid_event"):
            await log.append("a", [NewEvent("parcel_sent", OrderPlaced(1))], expect=ANY)

    async def test_a_struct_that_nobody_registered_is_refused(self, log: RunLog) -> None:
        class Stranger(msgspec.Struct):
            value: int

        with raises("unsupported_type"):
            await log.append("a", [Stranger(1)], expect=ANY)
        with raises("unsupported_type"):
            await log.append("a", [NewEvent("stranger_came", Stranger(1))], expect=ANY)

    @pytest.mark.parametrize(
        ("bad", "code", "path"),
        [
            (OrderPlaced(1, "\ud800"), "invalid_text", "$.note"),
            (OrderPlaced("1"), "invalid_event", "$"),  # type: ignore[arg-type]
            (OrderPlaced(1, _Tone.LOUD), "invalid_event", "$"),
            (OrderPlaced(_Level.LOW), "invalid_event", "$"),
            (msgspec.structs.replace(PARCEL, extra=_NAN), "non_finite_number", "$.extra"),
            (msgspec.structs.replace(PARCEL, extra={"a": [_NAN]}), "non_finite_number", "$.extra['a'][0]"),
            (msgspec.structs.replace(PARCEL, extra=(1, 2)), "invalid_event", "$"),
            (msgspec.structs.replace(PARCEL, extra={1: 2}), "invalid_event", "$"),
            (msgspec.structs.replace(PARCEL, extra=OrderedDict(a=1)), "invalid_event", "$"),
            (msgspec.structs.replace(PARCEL, extra=object()), "invalid_event", "$"),
            (msgspec.structs.replace(PARCEL, extra=_nested(120)), "payload_too_deep", "$.extra" + "[0]" * 99),
            (msgspec.structs.replace(PARCEL, size=(1, 2)), "invalid_event", "$"),
        ],
        ids=lambda each: "" if isinstance(each, str) else repr(each)[:80].encode("ascii", "replace").decode(),
    )
    async def test_a_struct_that_would_not_come_back_the_same_is_refused(
        self, log: RunLog, bad: Any, code: str, path: str
    ) -> None:
        with pytest.raises(InvalidInput) as caught:
            await log.append("a", [bad], expect=ANY)
        assert (caught.value.code, caught.value.path) == (code, path)
        assert (await log.head()).position == 0

    async def test_an_unknown_type_comes_back_plain_and_says_so(self, log: RunLog) -> None:
        await log.append("a", [NewEvent("from_the_future", {"b": [1, 2.0, "x"]})], expect=ANY)
        (stored,) = await everything(log)
        assert (stored.data, stored.is_known) == ({"b": [1, 2.0, "x"]}, False)
        assert stored.body == b'{"b":[1,2.0,"x"]}'

    async def test_a_newer_schema_version_comes_back_plain_and_says_so(self, log: RunLog) -> None:
        await log.append("a", [NewEvent("order_placed", {"sum": "many"}, schema_version=2)], expect=ANY)
        (stored,) = await everything(log)
        assert (stored.data, stored.is_known, stored.schema_version) == ({"sum": "many"}, False, 2)

    @pytest.mark.parametrize(
        ("version", "old"),
        [
            (1, {"name": "Ada Lovelace"}),
            (2, {"first": "Ada", "last": "Lovelace"}),
            (3, {"first": "Ada", "last": "Lovelace", "titles": {"1": "Dr"}}),
        ],
    )
    async def test_an_old_shape_comes_back_new_on_every_way(
        self, log: RunLog, version: int, old: dict[str, Any]
    ) -> None:
        await log.append("a", [NewEvent("person_named", old, schema_version=version)], expect=ANY)
        found = [
            *await everything(log),
            *await of_stream(log, "a"),
            *(await log.read_stream("a")).events,
            *await take_events(log.subscribe(), 1),
        ]
        assert [event.data for event in found] == [PersonNamed("Ada", "Lovelace", {1: "Dr"})] * 4
        assert {(event.schema_version, event.is_known) for event in found} == {(version, True)}
        assert {event.body for event in found} == {msgspec.json.encode(old)}, "the stored bytes stay as they were"

    async def test_an_old_shape_that_no_upcaster_can_read_is_refused(self, log: RunLog) -> None:
        shapes: list[Any] = [{"value": 1}, [], None]
        for data in shapes:
            with raises("invalid_event"):
                await log.append("a", [NewEvent("badly_upcast", data, schema_version=1)], expect=ANY)

    async def test_a_stream_is_folded_over_its_typed_events(self, log: RunLog) -> None:
        await log.append("a", [OrderPlaced(3), OrderPlaced(4)], expect=ANY)
        assert await fold(log, "a", int, lambda total, event: total + event.data.total) == (7, 2)
        assert await fold(log, "absent", lambda: 40, lambda total, event: total) == (40, 0)


class ReservedContract(_Subject):
    """Streams that only the engine writes."""

    APPROVAL: Final = ApprovalRecorded(
        request_id="approval:run-1", decision="approve", approval_hash="a" * 64, actor_source="cli"
    )

    @pytest.mark.parametrize("stream", ["run:run-1", "run:", "$log", "$", "$anything"])
    async def test_nobody_forges_an_event_of_the_engine_in(self, log: RunLog, stream: str) -> None:
        with raises("reserved_stream"):
            await log.append(stream, [self.APPROVAL], expect=ANY)
        with raises("reserved_stream"):
            await log.append_many([Append("a", [note()], ANY), Append(stream, [self.APPROVAL], ANY)])
        assert (await log.head()).position == 0

    async def test_the_engine_has_its_own_door(self, log: RunLog) -> None:
        results = await log.append_reserved(
            [Append("run:run-1", [self.APPROVAL], Expect.no_stream())], checks=[("a", Expect.no_stream())], actor="os:7"
        )
        assert [(each.stream, each.version) for each in results] == [("run:run-1", 1)]
        (stored,) = await of_stream(log, "run:run-1")
        assert (stored.data, stored.actor, stored.is_known) == (self.APPROVAL, "os:7", True)

    async def test_the_engines_door_keeps_expectations(self, log: RunLog) -> None:
        with raises("version_conflict"):
            await log.append_reserved([Append("run:run-1", [self.APPROVAL], Expect.at(3))])

    async def test_a_stored_id_opens_no_reserved_stream(self, log: RunLog) -> None:
        event = NewEvent("approval_recorded", self.APPROVAL)
        await log.append_reserved([Append("run:run-1", [event], ANY)])
        with raises("reserved_stream"):
            await log.append("run:run-1", [event], expect=ANY)

    async def test_a_store_has_an_identity(self, open_log: OpenLog) -> None:
        first, second = await open_log(), await open_log()
        assert len(first.store_id) == 16
        assert first.store_id != second.store_id
        assert (await first.health()).store_id == first.store_id.hex()
        assert (await first.health()).log_id != (await second.health()).log_id


# ── Reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class ReadContract(_Subject):
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
            assert await log.head() == Head(2 * number, result.leaf)

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


class LookUpContract(_Subject):
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


class SubscribeContract(_Subject):
    """A feed catches up, then is live."""

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
        feed = log.subscribe(marks=True)
        assert await take(feed, 1) == [CaughtUp(0)]
        await log.append("a", notes(MANY), expect=ANY)
        found = await take(feed, MANY + 2)
        assert found[0] == FellBehind(0)
        assert [event.position for event in found[1:-1] if isinstance(event, RecordedEvent)] == list(range(1, MANY + 1))
        assert found[-1] == CaughtUp(MANY)

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


# ── The life of a log ────────────────────────────────────────────────────────────────────────────────────────────────


def _calls(log: RunLog) -> dict[str, Callable[[], Awaitable[Any]]]:
    """Return every way to ask something of a log."""

    async def first_of(feed: AsyncIterator[Any]) -> Any:
        return await anext(feed, None)

    return {
        "append": lambda: log.append("a", [note()], expect=ANY),
        "append_many": lambda: log.append_many([Append("a", [note()], ANY)]),
        "append_reserved": lambda: log.append_reserved([Append("run:a", [note()], ANY)]),
        "read": lambda: first_of(log.read("a")),
        "read_stream": lambda: log.read_stream("a"),
        "read_all": lambda: first_of(log.read_all()),
        "subscribe": lambda: first_of(log.subscribe()),
        "head": lambda: log.head(),
        "health": lambda: log.health(),
        "check_page": lambda: log.check_page(after=0),
    }


WAYS: Final = sorted(_calls(None))  # type: ignore[arg-type]


class LifeContract(_Subject):
    """Opened once, used from one event loop, closed."""

    @pytest.mark.parametrize("way", WAYS)
    async def test_a_log_that_is_not_open_yet_refuses_to(self, new_log: NewLog, way: str) -> None:
        with raises("engine_closed"):
            await _calls(new_log())[way]()

    @pytest.mark.parametrize("way", WAYS)
    async def test_a_closed_log_refuses_to(self, log: RunLog, way: str) -> None:
        await log.append("a", [note()], expect=ANY)
        await log.close()
        with raises("engine_closed") as caught:
            await _calls(log)[way]()
        assert isinstance(caught.value, StoreUnavailable)

    @pytest.mark.parametrize("way", WAYS)
    async def test_another_event_loop_is_refused_to(self, log: RunLog, way: str) -> None:
        await log.append("a", [note()], expect=ANY)

        async def ask() -> Any:
            return await _calls(log)[way]()

        with raises("wrong_loop"):
            await asyncio.to_thread(lambda: asyncio.run(ask()))
        assert (await log.head()).position == 1

    async def test_a_log_may_be_closed_twice(self, log: RunLog) -> None:
        await log.close()
        await log.close()

    async def test_a_log_object_is_opened_once(self, new_log: NewLog) -> None:
        log = new_log()
        async with log:
            with raises("engine_closed"):
                await log.__aenter__()
            await log.append("a", [note()], expect=ANY)
        with raises("engine_closed"):
            await log.__aenter__()

    async def test_what_was_taken_before_closing_is_finished(self, new_log: NewLog) -> None:
        async with new_log() as log:
            tasks = [asyncio.create_task(log.append("a", [note()], expect=ANY)) for _ in range(50)]
            await asyncio.sleep(0)
            await log.close()
            results = await asyncio.gather(*tasks)
        assert sorted(each.version for each in results) == list(range(1, 51))

    async def test_a_waiting_subscriber_is_told_that_the_log_is_closed(self, log: RunLog) -> None:
        await log.append("a", [note()], expect=ANY)
        feeds = [log.subscribe() for _ in range(5)]
        for feed in feeds:
            await take(feed, 1)
        waiting = [asyncio.ensure_future(anext(feed)) for feed in feeds]
        await asyncio.sleep(0.02)
        await log.close()
        async with asyncio.timeout(PATIENCE_S):
            found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [getattr(each, "code", each) for each in found] == ["engine_closed"] * 5

    async def test_readers_at_the_time_of_closing_are_answered(self, log: RunLog) -> None:
        await log.append("a", notes(MANY), expect=ANY)
        reading = [asyncio.ensure_future(log.read_stream("a")) for _ in range(20)]
        await asyncio.sleep(0)
        await log.close()
        async with asyncio.timeout(PATIENCE_S):
            found = await asyncio.gather(*reading, return_exceptions=True)
        for each in found:
            if isinstance(each, EventLogError):
                assert each.code == "engine_closed"
            else:
                assert isinstance(each, StreamSlice)
                assert len(each.events) == MANY

    async def test_health_says_what_the_log_holds(self, log: RunLog) -> None:
        assert ((await log.health()).head, (await log.health()).state) == (0, "open")
        await log.append("a", notes(3), expect=ANY)
        health = await log.health()
        assert (health.head, health.queued, health.is_read_only) == (3, 0, False)
        assert (len(health.log_id), len(health.store_id)) == (32, 32)


class LogContract(
    ExpectContract,
    AppendContract,
    AppendManyContract,
    RetryContract,
    ConcurrencyContract,
    ContentContract,
    TypesContract,
    ReservedContract,
    ReadContract,
    LookUpContract,
    SubscribeContract,
    LifeContract,
):
    """All of it. Inherit this, and give the fixture `new_log`."""
