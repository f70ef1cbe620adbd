"""What may be stored: names, data, types, and what is reserved."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import enum
import uuid
from collections import OrderedDict
from typing import Any, Final, NamedTuple

import msgspec
import pytest

from eventlog.errors import InvalidInput
from eventlog.events import ApprovalRecorded
from eventlog.log import Append, Expect, NewEvent, RunLog, fold
from eventlog.plain import Limits
from eventlog.testing.log_contract.subject import (
    ANY,
    PATIENCE_S,
    Colour,
    OpenLog,
    OrderPlaced,
    ParcelSent,
    Subject,
    everything,
    note,
    notes,
    of_stream,
    raises,
    texts,
)

__all__ = [
    "BAD_DATA",
    "BAD_EVENT_IDS",
    "BAD_IDS",
    "GOOD_DATA",
    "GOOD_IDS",
    "ContentContract",
    "ReservedContract",
    "TypesContract",
]


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


class ContentContract(Subject):
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

    @pytest.mark.parametrize("correlation_id", ["", " ", "a\nb", "\ud800", "x" * 513, 7, b"a"], ids=ascii)
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


class TypesContract(Subject):
    """Registered types come back typed, others plain. Old shapes are in `schemas`."""

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

    async def test_a_stream_is_folded_over_its_typed_events(self, log: RunLog) -> None:
        await log.append("a", [OrderPlaced(3), OrderPlaced(4)], expect=ANY)
        assert await fold(log, "a", int, lambda total, event: total + event.data.total) == (7, 2)
        assert await fold(log, "absent", lambda: 40, lambda total, event: total) == (40, 0)


class ReservedContract(Subject):
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

    async def test_the_engines_door_takes_the_ids_of_what_it_belongs_to(self, log: RunLog) -> None:
        own = NewEvent("approval_recorded", self.APPROVAL, correlation_id="own", causation_id=b"o" * 16)
        await log.append_reserved(
            [Append("run:run-1", [own, self.APPROVAL], ANY), Append("run:run-2", [self.APPROVAL], ANY)],
            correlation_id="run-0",
            causation_id=b"c" * 16,
        )
        found = [(event.correlation_id, event.causation_id) for event in await everything(log)]
        assert found == [("own", b"o" * 16), ("run-0", b"c" * 16), ("run-0", b"c" * 16)]

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
