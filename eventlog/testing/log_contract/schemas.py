"""Events of earlier programs: old shapes, old names, types that were split or retired; and what is not written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Final

import msgspec
import pytest

from eventlog.codec import Registry, Upcast
from eventlog.log import Expect, Mark, NewEvent, RecordedEvent, Retired, RunLog, fold
from eventlog.testing.log_contract.subject import (
    ANY,
    PATIENCE_S,
    OpenLog,
    Subject,
    everything,
    of_stream,
    raises,
    take_events,
)

__all__ = ["SchemaContract", "read_on_every_way"]


class _PersonNamed(msgspec.Struct, frozen=True):
    first: str
    last: str
    titles: dict[int, str]


class _OrderMoved(msgspec.Struct, frozen=True):
    to: str


class _OrderPriced(msgspec.Struct, frozen=True):
    cents: int


class _ValueNoted(msgspec.Struct, frozen=True):
    value: int


def _split_name(old: dict[str, Any]) -> dict[str, Any]:
    first, _, last = old.pop("name").partition(" ")
    return {"first": first, "last": last, **old}


def _add_title(old: dict[str, Any]) -> dict[str, Any]:
    return {**old, "titles": {"1": "Dr"}}


def _decide(old: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return ("order_moved", {"to": old["to"]}) if "to" in old else ("order_priced", {"price": old["price"]})


def _in_cents(old: dict[str, Any]) -> dict[str, Any]:
    return {"cents": round(old["price"] * 100)}


def _raise_to_today(registry: Registry) -> None:
    """Register the types as a later program does."""
    chain = {1: _split_name, 2: _add_title}
    registry.register(
        _PersonNamed, "person_named", schema_version=3, upcast=chain, renamed_from=("name_given", "name_noted")
    )
    registry.register(_OrderMoved, "order_moved")
    registry.register(_OrderPriced, "order_priced", schema_version=2, upcast={1: _in_cents})
    registry.split(_decide, "order_changed", into=("order_moved", "order_priced"))
    registry.retire("order_flagged")


_ADA: Final = _PersonNamed("Ada", "Lovelace", {1: "Dr"})
_OLD: Final[list[tuple[str, int, Any]]] = [
    ("name_given", 1, {"name": "Ada Lovelace"}),
    ("name_noted", 2, {"first": "Ada", "last": "Lovelace"}),
    ("person_named", 2, {"first": "Ada", "last": "Lovelace"}),
    ("person_named", 3, {"first": "Ada", "last": "Lovelace", "titles": {"1": "Dr"}}),
    ("person_named", 4, {"whole": "Ada Lovelace"}),
    ("order_changed", 1, {"to": "Köln", "text": '{"x": NaN}'}),
    ("order_changed", 1, {"price": 1.5}),
    ("order_changed", 2, {"anything": 1}),
    ("order_priced", 1, {"price": 2.25}),
    ("order_flagged", 7, {"flag": True}),
    ("note_taken", 1, {"text": "hello"}),
]
"""Events as earlier programs, and one later, wrote them: type, schema version, data."""
_READ: Final[list[tuple[str, str | None, Any, bool]]] = [
    ("person_named", "name_given", _ADA, True),
    ("person_named", "name_noted", _ADA, True),
    ("person_named", None, _ADA, True),
    ("person_named", None, _ADA, True),
    ("person_named", None, {"whole": "Ada Lovelace"}, False),
    ("order_moved", "order_changed", _OrderMoved("Köln"), True),
    ("order_priced", "order_changed", _OrderPriced(150), True),
    ("order_changed", None, {"anything": 1}, False),
    ("order_priced", None, _OrderPriced(225), True),
    ("order_flagged", None, Retired({"flag": True}), True),
    ("note_taken", None, {"text": "hello"}, False),
]
"""The same events as they are read: type, stored type where that is another, data, whether it is known."""


def _unless(mended: list[bool]) -> Upcast:
    def step(old: dict[str, Any]) -> dict[str, Any]:
        if not mended:
            raise KeyError(7)
        return old

    return step


def _no_types() -> tuple[str, ...]:
    return ()


async def read_on_every_way(log: RunLog, stream: str) -> list[list[RecordedEvent]]:
    """Return the events of the one stream of a log, read in each way that there is."""
    read = await of_stream(log, stream)
    found = [await log.find(event.event_id) for event in read]
    return [
        read,
        [event async for event in log.read_back(stream)][::-1],
        list((await log.read_stream(stream)).events),
        list((await log.read_from_snapshot(stream))[1].events),
        await everything(log),
        await take_events(log.subscribe(), len(read)),
        await take_events(log.subscribe(streams=[stream]), len(read)),
        [event for event in found if event is not None],
    ]


class SchemaContract(Subject):
    """Old events come back in today's shape and under today's name, on every way; they are stored as they were."""

    async def _old_log(self, open_log: OpenLog) -> RunLog:
        """Return a log whose old events were written when nobody knew the types of today."""
        registry = Registry()
        log = await open_log(registry=registry)
        events = [NewEvent(name, data, schema_version=version) for name, version, data in _OLD]
        await log.append("a", events, expect=ANY)
        _raise_to_today(registry)
        return log

    async def test_old_events_come_back_as_those_of_today_on_every_way(self, open_log: OpenLog) -> None:
        log = await self._old_log(open_log)
        for events in await read_on_every_way(log, "a"):
            assert [(event.type, event.stored_type, event.data, event.is_known) for event in events] == _READ

    async def test_old_events_are_stored_as_they_were(self, open_log: OpenLog) -> None:
        log = await self._old_log(open_log)
        for events in await read_on_every_way(log, "a"):
            stored = [(event.stored_type or event.type, event.schema_version, event.body) for event in events]
            assert stored == [(name, version, msgspec.json.encode(data)) for name, version, data in _OLD]

    @pytest.mark.parametrize(
        ("types", "positions"),
        [
            (["person_named"], [1, 2, 3, 4, 5]),
            (["name_given"], [1, 2, 3, 4, 5]),
            (["order_moved"], [6, 8]),
            (["order_priced"], [7, 8, 9]),
            (["order_changed"], [6, 7, 8, 9]),
            (["order_moved", "note_taken"], [6, 8, 11]),
            (["order_flagged"], [10]),
            (["nobody_knows"], []),
            ([], []),
        ],
        ids=lambda each: "-".join(map(str, each)) or "none",
    )
    async def test_a_filter_knows_every_name_under_which_its_types_are_stored(
        self, open_log: OpenLog, types: list[str], positions: list[int]
    ) -> None:
        """What a newer program wrote under a name that was split here may be any of what it became: it is given."""
        log = await self._old_log(open_log)
        assert [event.position async for event in log.read_all(types=types)] == positions
        followed = await take_events(log.subscribe(types=types), len(positions))
        assert [event.position for event in followed] == positions
        later = [event async for event in log.read_all(types=types, after=6, limit=1)]
        assert [event.position for event in later] == [position for position in positions if position > 6][:1]

    async def test_who_waits_for_a_type_gets_what_comes_under_its_old_name(self, open_log: OpenLog) -> None:
        registry = Registry()
        log = await open_log(registry=registry)
        await log.append("a", [NewEvent("order_changed", {"price": 3})], expect=ANY)
        _raise_to_today(registry)
        feed = log.subscribe(types=["order_priced"])
        assert [event.data for event in await take_events(feed, 1)] == [_OrderPriced(300)]
        await log.append("a", [_OrderMoved("Bonn"), _OrderPriced(4)], expect=ANY)
        assert [event.data for event in await take_events(feed, 1)] == [_OrderPriced(4)]
        await feed.aclose()

    async def test_an_old_event_that_cannot_be_read_is_an_error_that_says_where_and_why(
        self, open_log: OpenLog
    ) -> None:
        mended: list[bool] = []
        registry = Registry()
        log = await open_log(registry=registry)
        bad = NewEvent("value_noted", {"value": 1})
        await log.append("a", [NewEvent("note_taken", 1), bad], expect=ANY)
        registry.register(_ValueNoted, "value_noted", schema_version=2, upcast={1: _unless(mended)})
        readings = [log.read("a"), log.read_back("a"), log.read_all(), log.read_all(types=["value_noted"])]
        for reading in (*readings, log.subscribe()):
            await _assert_stops_at_the_bad_one(reading)
        for call in (log.read_stream("a"), log.read_from_snapshot("a"), log.find(bad.event_id)):
            with raises("invalid_event") as caught:
                await call
            assert caught.value.details["position"] == 2
        (problem,) = (await log.check_page(after=0)).problems
        assert (problem.reason, problem.position, problem.stream) == ("invalid_event", 2, "a")
        assert [event.position async for event in log.read_all(types=["note_taken"])] == [1], "it is not asked for"
        mended.append(True)  # every log of the suite is checked when it closes

    async def test_a_fold_passes_over_retired_events_and_counts_their_versions(self, open_log: OpenLog) -> None:
        log = await self._old_log(open_log)
        folded, version = await fold(log, "a", _no_types, lambda types, event: (*types, event.type))
        assert folded == tuple(name for name, *_ in _READ if name != "order_flagged")
        assert version == len(_OLD)

    @pytest.mark.parametrize(
        ("name", "version", "code"),
        [
            ("name_given", 1, "event_type_former"),
            ("name_given", 3, "event_type_former"),
            ("order_changed", 1, "event_type_former"),
            ("order_flagged", 7, "event_type_former"),
            ("person_named", 1, "schema_version_old"),
            ("person_named", 2, "schema_version_old"),
            ("order_priced", 1, "schema_version_old"),
        ],
    )
    async def test_nothing_is_written_under_an_old_name_or_in_an_old_shape(
        self, open_log: OpenLog, name: str, version: int, code: str
    ) -> None:
        log = await self._old_log(open_log)
        with raises(code) as caught:
            await log.append("b", [NewEvent(name, {}, schema_version=version)], expect=ANY)
        assert name in str(caught.value)
        assert (await log.head()).position == len(_OLD)
        await log.append("b", [_ADA], expect=Expect.no_stream())

    async def test_an_append_under_the_old_name_is_not_mistaken_for_its_repetition(self, open_log: OpenLog) -> None:
        """What was stored stands under the old name; the same id under the new one is another event."""
        registry = Registry()
        log = await open_log(registry=registry)
        first = NewEvent("name_given", {"first": "Ada", "last": "L", "titles": {}}, schema_version=3)
        await log.append("a", [first], expect=ANY)
        _raise_to_today(registry)
        with raises("event_id_conflict"):
            again = NewEvent("person_named", first.data, first.event_id, schema_version=3)
            await log.append("a", [again], expect=ANY)


async def _assert_stops_at_the_bad_one(reading: AsyncGenerator[RecordedEvent | Mark, None]) -> None:
    with raises("invalid_event") as caught:
        async with asyncio.timeout(PATIENCE_S):
            async for _ in reading:
                pass
    await reading.aclose()
    said = str(caught.value)
    assert caught.value.details["position"] == 2
    assert "position 2 of stream 'a'" in said and "from schema version 1 to 2 raised KeyError(7)" in said
