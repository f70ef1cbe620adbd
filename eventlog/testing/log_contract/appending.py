"""Appending: to one stream and to several, again, and beside others."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec
import pytest

from eventlog.errors import EventLogError, WrongExpectedVersion
from eventlog.ids import new_event_id
from eventlog.log import Append, AppendResult, Expect, Head, NewEvent, RunLog
from eventlog.testing.clock import FakeClock
from eventlog.testing.log_contract.subject import (
    ANY,
    PATIENCE_S,
    OpenLog,
    OrderPlaced,
    Subject,
    everything,
    note,
    notes,
    of_stream,
    raises,
    texts,
)

__all__ = ["AppendContract", "AppendManyContract", "ConcurrencyContract", "ExpectContract", "RetryContract"]


class ExpectContract(Subject):
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


class AppendContract(Subject):
    """Events become durable together, in order, exactly as they were given."""

    async def test_an_append_tells_where_its_events_are(self, log: RunLog) -> None:
        await log.append("other", notes(3), expect=ANY)
        result = await log.append("a", notes(2), expect=ANY)
        stored = await of_stream(log, "a")
        expected = AppendResult(
            stream="a",
            version=2,
            first_position=4,
            last_position=5,
            leaf=stored[-1].leaf,
            recorded_at_us=stored[-1].recorded_at_us,
        )
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


class AppendManyContract(Subject):
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


class RetryContract(Subject):
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


class ConcurrencyContract(Subject):
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
