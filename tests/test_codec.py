"""Events to bytes and back: exact or refused, and old shapes become new ones in one place."""

from __future__ import annotations

import datetime
import enum
import sys
import tracemalloc
import uuid
from collections import OrderedDict
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventlog.codec import MAX_TYPE_BYTES, REGISTRY, Registry, event
from eventlog.errors import EventLogError, InvalidInput
from eventlog.events import LOG_EVENTS, RUN_EVENTS, ApprovalRecorded
from eventlog.plain import Limits
from tests.strategies import exact_plain, floats, identical, texts

LIMITS = Limits()
REGISTERED = Registry()


class Tone(enum.StrEnum):
    LOUD = "loud"
    QUIET = "quiet"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Broken(enum.StrEnum):
    """What msgspec writes as it is, and no reader of UTF-8 reads."""

    HALF = "\ud800"


class Part(msgspec.Struct, frozen=True):
    name: str
    inner: Part | None = None


@event("everything_happened", registry=REGISTERED)
class Everything(msgspec.Struct, frozen=True, kw_only=True):
    text: str = ""
    number: int = 0
    share: float = 0.0
    flag: bool = False
    maybe: int | None = None
    numbers: list[int] = []
    by_name: dict[str, float] = {}
    by_number: dict[int, str] = {}
    pair: tuple[int, str] = (0, "")
    blob: bytes = b""
    at: datetime.datetime | None = None
    day: datetime.date | None = None
    took: datetime.timedelta | None = None
    label: uuid.UUID | None = None
    price: Decimal = Decimal(0)
    tone: Tone = Tone.LOUD
    level: Level = Level.LOW
    tags: frozenset[str] = frozenset()
    parts: list[Part] = []
    anything: Any = None


@event("reading_taken", registry=REGISTERED)
class Reading(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Nothing but leaves, which are not read back to be compared."""

    text: str = ""
    number: int = 0
    share: float = 0.0
    flag: bool = False
    maybe: str | None = None


@event("reading_limited", registry=REGISTERED)
class Limited(msgspec.Struct, frozen=True, kw_only=True):
    """Leaves that are not any of their type."""

    short: Annotated[str, msgspec.Meta(max_length=3)] = ""
    positive: Annotated[int, msgspec.Meta(ge=0)] = 0
    maybe: Annotated[int, msgspec.Meta(ge=0)] | None = None
    word: Literal["a", "b"] = "a"


@event("reading_checked", registry=REGISTERED)
class Checked(msgspec.Struct, frozen=True):
    """Leaves that are looked at when they are read."""

    number: int

    def __post_init__(self) -> None:
        if self.number in REFUSED:
            raise ValueError(f"no {self.number}")


REFUSED: set[int] = set()


@event("reading_quoted", registry=REGISTERED)
class Quoted(msgspec.Struct, frozen=True):
    """JSON that others have made, which is stored byte for byte."""

    raw: msgspec.Raw


everything = st.builds(
    Everything,
    text=texts,
    number=st.integers(),
    share=floats,
    flag=st.booleans(),
    maybe=st.none() | st.integers(),
    numbers=st.lists(st.integers(), max_size=3),
    by_name=st.dictionaries(texts, floats, max_size=3),
    by_number=st.dictionaries(st.integers(-(2**60), 2**60), texts, max_size=3),
    pair=st.tuples(st.integers(), texts),
    blob=st.binary(max_size=20),
    at=st.none() | st.datetimes(timezones=st.just(datetime.UTC)),
    day=st.none() | st.dates(),
    took=st.none() | st.timedeltas(datetime.timedelta(-1000), datetime.timedelta(1000)),
    label=st.none() | st.uuids(),
    price=st.decimals(allow_nan=False, allow_infinity=False),
    tone=st.sampled_from(Tone),
    level=st.sampled_from(Level),
    tags=st.frozensets(texts, max_size=3),
    parts=st.lists(st.builds(Part, texts, st.none() | st.builds(Part, texts)), max_size=3),
    anything=exact_plain,
)

garbage = st.sampled_from(
    [
        b"x",
        (1, 2),
        {1: 2},
        {1, 2},
        Tone.LOUD,
        Level.HIGH,
        OrderedDict(a=1),
        float("nan"),
        "\ud800",
        Part("x"),
        10**5000,
        object(),
        [float("inf")],
        {"a": (1,)},
        datetime.date(2026, 1, 1),
        bytearray(b"x"),
        1.0,
        True,
        None,
        "text",
        7,
        [],
        {},
    ]
)


def refusal(data: Any, registry: Registry = REGISTERED, limits: Limits = LIMITS) -> tuple[str, str]:
    """Return the code and the path with which data is refused."""
    with pytest.raises(InvalidInput) as caught:
        registry.encode(data, limits)
    return caught.value.code, caught.value.path


def same_fields(left: msgspec.Struct, right: msgspec.Struct) -> bool:
    """Say whether two Structs hold equal values of the same types."""
    pairs = [(getattr(left, name), getattr(right, name)) for name in left.__struct_fields__]
    return left == right and all(type(one) is type(other) for one, other in pairs)


# ── there and back ───────────────────────────────────────────────────────────────────────────────────────────────────


@given(exact_plain)
def test_plain_data_comes_back_identical(data: Any) -> None:
    assert identical(REGISTERED.decode("nobody_knows", 1, REGISTERED.encode(data, LIMITS)), data)


@given(everything)
def test_a_struct_comes_back_identical(data: Everything) -> None:
    body = REGISTERED.encode(data, LIMITS)
    found = REGISTERED.decode("everything_happened", 1, body)
    assert type(found) is Everything
    assert same_fields(found, data)
    assert identical(found.anything, data.anything, in_order=False)
    if not data.by_number:
        assert REGISTERED.encode(found, LIMITS) == body


@given(st.sampled_from(Everything.__struct_fields__), garbage)
def test_a_struct_with_anything_in_any_field_comes_back_the_same_or_is_refused(field: str, value: Any) -> None:
    data = Everything(**{field: value})
    try:
        body = REGISTERED.encode(data, LIMITS)
    except InvalidInput:
        return
    found = REGISTERED.decode("everything_happened", 1, body)
    assert found == data
    is_int_for_float = field == "share" and type(value) is int
    assert type(getattr(found, field)) is (float if is_int_for_float else type(value))


@given(st.builds(Reading, text=texts, number=st.integers(), share=floats, flag=st.booleans(), maybe=st.none() | texts))
def test_a_struct_of_leaves_comes_back_identical(data: Reading) -> None:
    assert same_fields(REGISTERED.decode("reading_taken", 1, REGISTERED.encode(data, LIMITS)), data)


@given(st.sampled_from(Reading.__struct_fields__), garbage)
def test_a_struct_of_leaves_with_anything_in_any_field_comes_back_the_same_or_is_refused(
    field: str, value: Any
) -> None:
    data = Reading(**{field: value})
    try:
        body = REGISTERED.encode(data, LIMITS)
    except InvalidInput:
        return
    found = REGISTERED.decode("reading_taken", 1, body)
    assert found == data
    is_int_for_float = field == "share" and type(value) is int
    assert type(getattr(found, field)) is (float if is_int_for_float else type(value))


@pytest.mark.parametrize("number", [2**63, -(2**63), 2**64, -(2**14_282), -(2**14_283) + 1, 2**14_284 - 1, 2**14_284])
def test_a_long_integer_comes_back_the_same_or_is_refused(number: int) -> None:
    data = Reading(number=number)
    try:
        body = REGISTERED.encode(data, LIMITS)
    except InvalidInput:
        assert number.bit_length() > 14_000
        return
    assert REGISTERED.decode("reading_taken", 1, body) == data


@given(exact_plain, exact_plain)
def test_different_data_has_different_bytes(left: Any, right: Any) -> None:
    assert (REGISTERED.encode(left, LIMITS) == REGISTERED.encode(right, LIMITS)) == identical(left, right)


@given(exact_plain)
def test_the_bytes_are_json_that_others_read_the_same(data: Any) -> None:
    import json

    body = REGISTERED.encode(data, LIMITS)
    assert identical(json.loads(body), data)
    body.decode()


@given(st.lists(texts, max_size=8), st.randoms())
def test_a_set_is_spelled_in_one_order_however_it_was_filled(tags: list[str], random: Any) -> None:
    body = REGISTERED.encode(Everything(tags=frozenset(tags)), LIMITS)
    random.shuffle(tags)
    assert REGISTERED.encode(Everything(tags=frozenset(tags)), LIMITS) == body


def test_the_bytes_are_compact_and_readable() -> None:
    assert REGISTERED.encode({"é": [1, 2.0, None, "\n"]}, LIMITS) == '{"é":[1,2.0,null,"\\n"]}'.encode()


def test_fields_at_their_default_are_left_out_where_the_struct_says_so() -> None:
    approval = ApprovalRecorded(request_id="r", decision="approve", approval_hash="h", actor_source="cli")
    expected = b'{"request_id":"r","decision":"approve","approval_hash":"h","actor_source":"cli"}'
    assert REGISTRY.encode(approval, LIMITS) == expected
    assert REGISTRY.decode("approval_recorded", 1, expected) == approval


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"text": "\ud800"}, ("invalid_text", "$.text")),
        ({"share": float("nan")}, ("non_finite_number", "$.share")),
        ({"by_name": {"a": float("inf")}}, ("non_finite_number", "$.by_name['a']")),
        ({"parts": [Part("x", Part("\ud800"))]}, ("invalid_text", "$.parts[0].inner.name")),
        ({"number": 10**5000}, ("number_too_large", "$.number")),
        ({"pair": (10**5000, "")}, ("number_too_large", "$.pair[0]")),
        ({"anything": {"\ud800": 1}}, ("invalid_text", "$.anything (a key)")),
        ({"anything": Broken.HALF}, ("invalid_text", "$")),
        ({"text": Tone.LOUD}, ("invalid_event", "$")),
        ({"number": Level.LOW}, ("invalid_event", "$")),
        ({"number": True}, ("invalid_event", "$")),
        ({"number": 1.0}, ("invalid_event", "$")),
        ({"number": "1"}, ("invalid_event", "$")),
        ({"text": None}, ("invalid_event", "$")),
        ({"anything": (1, 2)}, ("invalid_event", "$")),
        ({"anything": [1, (2,)]}, ("invalid_event", "$")),
        ({"anything": {1: 2}}, ("invalid_event", "$")),
        ({"anything": OrderedDict(a=1)}, ("invalid_event", "$")),
        ({"anything": {"a": Tone.LOUD}}, ("invalid_event", "$")),
        ({"anything": b"x"}, ("invalid_event", "$")),
        ({"anything": Part("x")}, ("invalid_event", "$")),
        ({"anything": object()}, ("invalid_event", "$")),
        ({"numbers": [1, True]}, ("invalid_event", "$")),
        ({"tone": "loud"}, ("invalid_event", "$")),
    ],
    ids=lambda each: type(next(iter(each.values()))).__name__ if isinstance(each, dict) else each[0],
)
def test_a_struct_is_refused_that_would_not_come_back_the_same(
    fields: dict[str, Any], expected: tuple[str, str]
) -> None:
    assert refusal(Everything(**fields)) == expected


@pytest.mark.parametrize("fields", [{"short": "long"}, {"positive": -1}, {"maybe": -1}, {"word": "c"}])
def test_a_struct_is_refused_that_its_own_type_would_not_read(fields: dict[str, Any]) -> None:
    assert refusal(Limited(**fields)) == ("invalid_event", "$")


def test_a_struct_is_refused_that_refuses_itself_when_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    data = Checked(13)
    REGISTERED.encode(data, LIMITS)
    monkeypatch.setattr("tests.test_codec.REFUSED", {13})
    assert refusal(data) == ("invalid_event", "$")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"text": "\ud800"}, ("invalid_text", "$.text")),
        ({"share": float("nan")}, ("non_finite_number", "$.share")),
        ({"number": 10**5000}, ("number_too_large", "$.number")),
        ({"number": True}, ("invalid_event", "$")),
        ({"flag": 1}, ("invalid_event", "$")),
        ({"text": None}, ("invalid_event", "$")),
        ({"text": Tone.LOUD}, ("invalid_event", "$")),
    ],
)
def test_a_struct_of_leaves_is_refused_that_would_not_come_back_the_same(
    fields: dict[str, Any], expected: tuple[str, str]
) -> None:
    assert refusal(Reading(**fields)) == expected


def test_an_int_in_a_float_field_comes_back_as_the_equal_float() -> None:
    found = REGISTERED.decode("everything_happened", 1, REGISTERED.encode(Everything(share=3), LIMITS))
    assert identical(found.share, 3.0)
    assert refusal(Everything(share=2**53 + 1)) == ("invalid_event", "$")


def test_depth_is_limited_in_structs_as_in_plain_data() -> None:
    def nested(levels: int) -> Part:
        part = Part("x")
        for _ in range(levels - 1):
            part = Part("x", part)
        return part

    REGISTERED.encode(nested(100), LIMITS)
    assert refusal(nested(101)) == ("payload_too_deep", "$" + ".inner" * 100)
    assert refusal(nested(500))[0] == "payload_too_deep"


@pytest.mark.parametrize("levels", [900, 20_000], ids=["than msgspec reads", "than Python walks"])
def test_what_is_nested_deeper_than_can_be_read_is_refused_though_the_limit_allows_it(levels: int) -> None:
    data: list[Any] = []
    for _ in range(levels):
        data = [data]
    limits = Limits(depth=10**6)
    if levels < 10_000 and sys.version_info >= (3, 12):  # newer Pythons read so deep, and then it comes back the same
        body = REGISTERED.encode(Everything(anything=data), limits)
        assert REGISTERED.decode("everything_happened", 1, body) == Everything(anything=data)
        return
    assert refusal(Everything(anything=data), limits=limits) == ("payload_too_deep", "$")
    if levels > 10_000:
        assert refusal(data, limits=limits) == ("payload_too_deep", "$")


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"[" * 20_000 + b"]" * 20_000, ("payload_too_deep", "$")),
        (b'"\xed\xa0\x80"', ("invalid_text", "$.raw")),
        (b'{"a":["\xff"]}', ("invalid_text", "$.raw")),
        (b"[1", ("invalid_event", "$")),
        (b" [1]", ("invalid_event", "$")),
    ],
    ids=["too deep", "half a character", "no UTF-8", "cut off", "space around it"],
)
def test_raw_json_is_refused_that_nobody_could_read_or_that_would_not_come_back_the_same(
    raw: bytes, expected: tuple[str, str]
) -> None:
    first = Registry()
    event("reading_quoted", registry=first)(Quoted)
    assert refusal(Quoted(msgspec.Raw(raw)), first) == expected
    first.encode(Quoted(msgspec.Raw(b'{"a":["\xc3\xa9"]}')), LIMITS)
    assert refusal(Quoted(msgspec.Raw(raw)), first) == expected, "nor when the type is known to be exact"


def test_a_struct_that_holds_itself_is_refused() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    assert refusal(Everything(anything=cycle))[0] == "payload_too_deep"


def test_the_size_of_a_body_is_limited_to_the_byte() -> None:
    body = REGISTERED.encode(Everything(text="x" * 500), LIMITS)
    REGISTERED.encode(Everything(text="x" * 500), Limits(body_bytes=len(body)))
    assert refusal(Everything(text="x" * 500), limits=Limits(body_bytes=len(body) - 1))[0] == "payload_too_large"
    assert refusal("x" * 99, limits=Limits(body_bytes=100)) == ("payload_too_large", "$")
    assert REGISTERED.encode("x" * 98, Limits(body_bytes=100)) == b'"' + b"x" * 98 + b'"'


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (lambda big: Everything(text=big), "$.text"),
        (lambda big: Everything(anything={"a": [big]}), "$.anything['a'][0]"),
        (lambda big: Everything(parts=[Part("x", Part(big))]), "$.parts[0].inner.name"),
        (lambda big: Everything(blob=big.encode()), "$.blob"),
        (lambda big: Everything(parts=[Part(big[: 1 << 20]) for _ in range(20)]), "$.parts[15].name"),
    ],
    ids=["text", "inside plain data", "inside a Struct", "bytes", "many texts"],
)
def test_a_huge_struct_is_refused_before_it_is_encoded(make: Any, path: str) -> None:
    data = make("x" * (100 << 20))
    tracemalloc.start()
    try:
        assert refusal(data) == ("payload_too_large", path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


# ── types ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_registry_knows_the_engines_own_events() -> None:
    for registry in (REGISTRY, Registry(), REGISTERED):
        for name, cls in (*RUN_EVENTS.items(), *LOG_EVENTS.items()):
            assert registry.type_of(cls) == (name, 1)
            assert registry.knows(name, 1)


def test_a_registry_knows_what_was_registered_there_alone() -> None:
    assert REGISTERED.knows("everything_happened", 1)
    assert not REGISTERED.knows("everything_happened", 2)
    assert not REGISTRY.knows("everything_happened", 1)
    with pytest.raises(InvalidInput, match="decorate it") as caught:
        REGISTRY.type_of(Everything)
    assert caught.value.code == "unsupported_type"


@pytest.mark.parametrize("name", ["", " ", "a\nb", "x" * (MAX_TYPE_BYTES + 1), 7])
def test_a_type_needs_a_name_that_can_be_read(name: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        Registry().register(Part, name)
    assert caught.value.code == "invalid_id"


def test_a_name_belongs_to_one_class() -> None:
    registry = Registry()
    registry.register(Part, "part_made")
    registry.register(Part, "part_made")
    for name in ("part_made", "approval_recorded"):
        with pytest.raises(InvalidInput, match="belongs to"):
            registry.register(Everything, name)


def test_a_module_that_is_loaded_again_registers_its_types_again() -> None:
    def load() -> type[msgspec.Struct]:
        class Loaded(msgspec.Struct):
            value: int

        return Loaded

    registry = Registry()
    first, second = load(), load()
    registry.register(first, "loaded")
    assert type(registry.decode("loaded", 1, b'{"value":1}')) is first
    registry.register(second, "loaded")
    assert type(registry.decode("loaded", 1, b'{"value":1}')) is second


@pytest.mark.parametrize(
    ("version", "chain"),
    [
        (0, {}),
        (-1, {}),
        (65_536, {}),
        (2, {}),
        (3, {1: dict}),
        (3, {2: dict}),
        (1, {1: dict}),
        (2, {1: dict, 2: dict}),
        (2, {0: dict, 1: dict}),
    ],
)
def test_a_chain_of_upcasters_has_no_hole_and_no_end_left_over(version: int, chain: dict[int, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        Registry().register(Part, "part_made", schema_version=version, upcast=chain)
    assert caught.value.code == "invalid_argument"


# ── reading what was stored ──────────────────────────────────────────────────────────────────────────────────────────


class Named(msgspec.Struct, frozen=True):
    first: str
    last: str
    at: datetime.datetime
    by_number: dict[int, bytes]
    raw: msgspec.Raw


def _split(old: dict[str, Any]) -> dict[str, Any]:
    first, last = old.pop("name").split(" ")
    return {**old, "first": first, "last": last}


def _complete(old: dict[str, Any]) -> dict[str, Any]:
    return {**old, "at": "2026-01-02T03:04:05Z", "by_number": {"7": "AP8="}, "raw": {"b": 1, "a": [2]}}


NAMED = Named(
    "Ada",
    "Lovelace",
    datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
    {7: b"\0\xff"},
    msgspec.Raw(b'{"b":1,"a":[2]}'),
)


def named() -> Registry:
    registry = Registry()
    registry.register(Named, "named", schema_version=3, upcast={1: _split, 2: _complete})
    return registry


def test_an_old_shape_goes_through_every_upcaster_behind_its_version() -> None:
    registry = named()
    assert registry.decode("named", 1, b'{"name":"Ada Lovelace"}') == NAMED
    assert registry.decode("named", 2, b'{"first":"Ada","last":"Lovelace"}') == NAMED
    assert registry.decode("named", 3, registry.encode(NAMED, LIMITS)) == NAMED


def test_a_newer_version_and_an_unknown_type_come_back_plain() -> None:
    registry = named()
    assert registry.decode("named", 4, b'{"name":"Ada Lovelace"}') == {"name": "Ada Lovelace"}
    assert registry.decode("nobody_knows", 1, b'[1,2.0,"x"]') == [1, 2.0, "x"]
    assert [registry.knows("named", version) for version in (1, 2, 3, 4)] == [True, True, True, False]


@pytest.mark.parametrize(
    ("version", "body"),
    [
        (3, b"{}"),
        (3, b'{"first":1}'),
        (3, b"[1]"),
        (3, b"not JSON"),
        (1, b"{}"),
        (1, b'{"name":"Ada"}'),
        (1, b"[]"),
        (1, b"null"),
        (1, b"not JSON"),
        (2, b'{"first":1,"last":2}'),
    ],
)
def test_stored_bytes_of_another_shape_are_refused_and_the_type_is_named(version: int, body: bytes) -> None:
    with pytest.raises(InvalidInput, match=f"'named' of schema version {version}") as caught:
        named().decode("named", version, body)
    assert caught.value.code == "invalid_event"


def test_an_event_of_the_engine_with_a_field_of_the_future_is_refused() -> None:
    with pytest.raises(EventLogError) as caught:
        REGISTRY.decode("action_replayed", 1, b'{"reason":"already_completed","mood":"good"}')
    assert caught.value.code == "invalid_event"


@pytest.mark.parametrize("name", ["everything_happened", "run_failed", "nobody_knows_it"])
@pytest.mark.parametrize("schema_version", [1, 9])
@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"text":' * 50_000, b'"\xff"', b'{"text":"\xff"}'])
def test_a_stored_body_that_nobody_could_have_written_is_an_invalid_event(
    name: str, schema_version: int, body: bytes
) -> None:
    """As in a database that somebody has edited: a body may be nested deeper than Python reads, or be no text."""
    with pytest.raises(InvalidInput) as caught:
        REGISTERED.decode(name, schema_version, body)
    assert caught.value.code == "invalid_event"
