"""What a step returns comes back exactly, of the types that its annotations name, or is refused with the path."""

from __future__ import annotations

import asyncio
import collections.abc
import datetime
import enum
import functools
import json
import math
import subprocess
import sys
import uuid
import zoneinfo
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from decimal import Decimal
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    TypedDict,
    TypeVar,
)

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventlog.errors import InvalidInput
from eventlog.plain import Limits, is_utf8, parse_json
from eventlog.values import (
    check_arguments,
    codec_for,
    codec_of,
    digest_of,
    is_same,
    parameters,
    returns,
)
from tests.strategies import exact_plain, identical

if TYPE_CHECKING:
    from nowhere import Unknown  # type: ignore[import-not-found]

T = TypeVar("T")
PLAIN = codec_for(Any)
UTC = datetime.UTC
NOON = datetime.datetime(2026, 7, 1, 12, tzinfo=UTC)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Tone(enum.StrEnum):
    LOUD = "loud"


class Level(enum.IntEnum):
    LOW = 1


class Right(enum.IntFlag):
    READ = 1
    WRITE = 2


@dataclass
class Line:
    name: str
    price: Decimal
    tags: frozenset[str] = frozenset()


@dataclass
class Order:
    """A field that the constructor does not take, and an enumeration inside a list inside a mapping (run-50)."""

    id: uuid.UUID
    lines: list[Line]
    colors: dict[str, list[Color]] = field(default_factory=dict)
    count: int = field(init=False)

    def __post_init__(self) -> None:
        self.count = len(self.lines)


@dataclass
class Stamped:
    number: int
    stamp: int = field(init=False, default=0)


@dataclass(eq=False)
class Uncomparable:
    number: int


@dataclass(frozen=True)
class Cached:
    number: int

    @functools.cached_property
    def double(self) -> int:
        return 2 * self.number


@dataclass
class Page(Generic[T]):
    items: list[T]


class Point(NamedTuple):
    x: int
    y: float = 0.0


class Found(msgspec.Struct, frozen=True):
    name: str
    at: datetime.datetime | None = None
    inner: Found | None = None


class Shape(msgspec.Struct, tag=True):
    pass


class Circle(Shape):
    radius: float


class Square(Shape):
    side: float


class Options(TypedDict):
    verbose: bool
    level: NotRequired[int]


class Custom:
    """A class that msgspec does not know."""


UserId = NewType("UserId", int)
ORDER = Order(
    uuid.UUID(int=7), [Line("bolt", Decimal("1.50"), frozenset({"a", "b"}))], {"all": [Color.RED, Color.BLUE]}
)


def refused(annotation: Any, value: Any) -> InvalidInput:
    """Return the refusal of a value; no value of these tests is refused without one."""
    with pytest.raises(InvalidInput) as refusal:
        codec_for(annotation).encode(value)
    return refusal.value


# ── without an annotation ─────────────────────────────────────────────────────────────────────────────────────────────


@given(exact_plain)
def test_plain_data_comes_back_identical_without_an_annotation(value: Any) -> None:
    data, found = PLAIN.round_trip(value)
    assert identical(found, value)
    assert identical(PLAIN.decode(msgspec.Raw(data)), value)
    assert identical(parse_json(data), value)


@pytest.mark.parametrize(
    "number", [2**63, -(2**63) - 1, 10**30, 10**4298, -(10**4298), 2**14_280 - 1, -(2**14_280) + 1]
)
@pytest.mark.parametrize("annotation", [Any, int, int | None, dict[str, Any]])
def test_a_long_integer_comes_back_the_same(annotation: Any, number: int) -> None:
    value = {"n": number} if annotation == dict[str, Any] else number
    codec = codec_for(annotation)
    assert codec.decode(codec.encode(value)) == value


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("annotation", [Any, int, list[int]])
@pytest.mark.parametrize("size", range(14_270, 14_290))
def test_an_integer_at_the_limit_comes_back_the_same_or_is_refused(annotation: Any, size: int, sign: int) -> None:
    for number in (2**size - 1, 2**size, 10**4299):
        value = [sign * number] if annotation == list[int] else sign * number
        codec = codec_for(annotation)
        try:
            data = codec.encode(value)
        except InvalidInput:
            continue
        assert codec.decode(data) == value


def test_a_value_that_is_not_plain_is_refused_by_its_whole_path_and_inner_type() -> None:
    """run-52 (langchain-ai/langgraph#8606): the error named only the outermost type."""
    refusal = refused(Any, {"a": [{"b": {"c": object()}}]})
    assert (refusal.code, refusal.path) == ("unsupported_type", "$.a[0].b.c")
    assert "builtins.object" in str(refusal)


@pytest.mark.parametrize(
    ("value", "code", "path"),
    [
        ((1, 2), "unsupported_type", "$"),
        ({"a": {1, 2}}, "unsupported_type", "$.a"),
        (OrderedDict(a=1), "unsupported_type", "$"),
        ([Tone.LOUD], "unsupported_type", "$[0]"),
        ({1: "a"}, "non_string_key", "$"),
        ([math.nan], "non_finite_number", "$[0]"),
        (-math.inf, "non_finite_number", "$"),
        ("\ud800", "invalid_text", "$"),
        ({"a\udfff": 1}, "invalid_text", "$['a\\udfff']"),
        ([2**20_000], "number_too_large", "$[0]"),
        (NOON, "unsupported_type", "$"),
        (ORDER, "unsupported_type", "$"),
        (Custom(), "unsupported_type", "$"),
    ],
)
def test_what_is_not_plain_data_is_refused_without_an_annotation(value: Any, code: str, path: str) -> None:
    refusal = refused(Any, value)
    assert (refusal.code, refusal.path) == (code, path)


def test_a_value_larger_or_deeper_than_allowed_is_refused() -> None:
    deep: Any = []
    for _ in range(200):
        deep = [deep]
    endless: list[Any] = []
    endless.append(endless)
    assert refused(Any, deep).code == refused(Any, endless).code == "payload_too_deep"
    assert refused(list[list[Any]], endless).code == "payload_too_deep"
    for annotation, value in ((Any, "x" * 100), (str, "x" * 100), (bytes, b"x" * 100)):
        with pytest.raises(InvalidInput) as refusal:
            codec_for(annotation).encode(value, Limits(body_bytes=50))
        assert refusal.value.code == "payload_too_large"


# ── with an annotation ────────────────────────────────────────────────────────────────────────────────────────────────

TYPED: list[tuple[Any, Any]] = [
    (None, None),
    (bool, True),
    (int, -3),
    (str, "grüße\0"),
    (float, -0.0),
    (str | None, None),
    (int | str, "7"),
    (int | float, 7),
    (dict[str, Any], {"a": [1, 1.0, True, None]}),
    (dict, {"a": {"b": []}}),
    (list, [1, "a"]),
    (dict[int, str], {1: "a"}),
    (dict[str, list[int]], {"a": [1]}),
    (tuple[int, str], (1, "a")),
    (tuple[int, ...], ()),
    (set[int], {3, 1, 2}),
    (frozenset[tuple[int, bool]], frozenset({(1, True)})),
    (collections.abc.Sequence[int], [1, 2]),
    (collections.abc.Mapping[str, int], {"a": 1}),
    (datetime.datetime, NOON),
    (datetime.datetime, NOON.replace(tzinfo=None, microsecond=5)),
    (datetime.datetime, datetime.datetime(2026, 7, 1, tzinfo=datetime.timezone(datetime.timedelta(minutes=-90)))),
    (datetime.date, datetime.date(2026, 1, 1)),
    (datetime.time, datetime.time(1, 2, 3, 4)),
    (datetime.timedelta, datetime.timedelta(days=-3, microseconds=1)),
    (uuid.UUID, uuid.UUID(int=5)),
    (Decimal, Decimal("1.500")),
    (Decimal, Decimal("NaN")),
    (bytes, b"\0\xff"),
    (bytearray, bytearray(b"ab")),
    (Color, Color.BLUE),
    (Tone, Tone.LOUD),
    (Level, Level.LOW),
    (Right, Right.READ | Right.WRITE),
    (Literal["a", 1], 1),
    (UserId, 7),
    (Annotated[int, msgspec.Meta(gt=0, extra_json_schema={"x": []})], 7),
    (Point, Point(1, 2.0)),
    (Found, Found("a", NOON, Found("b"))),
    (Circle | Square, Square(2.0)),
    (Options, {"verbose": True}),
    (Line, Line("bolt", Decimal("1.50"), frozenset({"a"}))),
    (Order, ORDER),
    (list[Order | None], [ORDER, None]),
    (Page[Line], Page([Line("nut", Decimal(2))])),
    (Uncomparable, Uncomparable(3)),
    (Any | None, {"a": 1}),
]


@pytest.mark.parametrize(
    ("annotation", "value"), TYPED, ids=[f"{annotation}-{n}" for n, (annotation, _) in enumerate(TYPED)]
)
def test_a_value_comes_back_as_its_annotation_says(annotation: Any, value: Any) -> None:
    codec = codec_for(annotation)
    data, found = codec.round_trip(value)
    assert codec.untyped_because is None
    for back in (found, codec.decode(data), codec.decode(msgspec.Raw(data))):
        assert type(back) is type(value)
        assert is_same(value, back)
    json.loads(data)  # others can read it as plain data, whatever became of the type


@given(
    st.builds(
        Order,
        id=st.uuids(),
        lines=st.lists(
            st.builds(
                Line,
                name=st.text(),
                price=st.decimals(allow_nan=False, allow_infinity=False),
                tags=st.frozensets(st.text(max_size=3), max_size=3),
            ),
            max_size=3,
        ),
        colors=st.dictionaries(st.text(max_size=3), st.lists(st.sampled_from(Color), max_size=2), max_size=2),
    )
)
def test_a_dataclass_comes_back_equal_or_is_refused(order: Order) -> None:
    codec = codec_for(Order)
    try:
        data = codec.encode(order)
    except InvalidInput:
        assert any(not is_utf8(text) for line in order.lines for text in (line.name, *line.tags)) or any(
            not is_utf8(key) for key in order.colors
        )
        return
    found = codec.decode(data)
    assert found == order
    assert found.count == len(order.lines)
    assert all(a.price.as_tuple() == b.price.as_tuple() for a, b in zip(found.lines, order.lines, strict=True))


ALTERED: list[tuple[Any, Any, str]] = [
    (int, True, "$"),
    (int, 1.0, "$"),
    (int, Level.LOW, "$"),
    (str, Tone.LOUD, "$"),
    (str, 5, "$"),
    (None, 5, "$"),
    (float, 2**53 + 1, "$"),
    (list[int], (1, 2), "$"),
    (tuple[int, ...], [1], "$"),
    (list[int], [1, "a"], "$[1]"),
    (list[Any], [1, (2,)], "$[1]"),
    (set[str], {"a": 1}, "$"),
    (dict[str, int], OrderedDict(a=1), "$"),
    (dict[str, int], defaultdict(int, a=1), "$"),
    (dict[str, Any], {"a": [NOON]}, "$.a[0]"),
    (dict[str, list[Any]], {"a": [1, NOON]}, "$.a[1]"),
    (dict, {1: "a"}, "$"),
    (Options, {"verbose": True, "extra": 1}, "$"),
    (Options, {}, "$"),
    (Point, (1, 2.0), "$"),
    (tuple[int, float], Point(1, 2.0), "$"),
    (Line, Line("bolt", 1.5), "$.price"),  # type: ignore[arg-type]
    (list[Line], [Line("nut", Decimal(1)), Line("bolt", Decimal(1), {"a"})], "$[1].tags"),  # type: ignore[arg-type]
    (datetime.datetime, datetime.datetime(2026, 7, 1, tzinfo=zoneinfo.ZoneInfo("UTC")), "$"),
    (Found, Found("a", None, Found("b", NOON.astimezone(zoneinfo.ZoneInfo("UTC")))), "$.inner.at"),
    (datetime.datetime, NOON.replace(tzinfo=None, fold=1), "$"),
    (list[str], ["a", "\ud800"], "$[1]"),
    (dict[str, float], {"a": math.nan}, "$.a"),
    (float | None, math.nan, "$"),
    (Page[int], Page([Custom()]), "$.items[0]"),
    (Annotated[int, msgspec.Meta(gt=0)], -1, "$"),
    (bytes, bytearray(b"a"), "$"),
    (Circle | Square, Shape(), "$.type"),
]


@pytest.mark.parametrize(
    ("annotation", "value", "path"), ALTERED, ids=[f"{annotation}-{n}" for n, (annotation, _, _) in enumerate(ALTERED)]
)
def test_a_value_that_would_come_back_as_something_else_is_refused_with_its_path(
    annotation: Any, value: Any, path: str
) -> None:
    assert refused(annotation, value).path == path


def test_an_int_where_a_float_is_promised_comes_back_as_the_equal_float() -> None:
    data, found = codec_for(float).round_trip(3)
    assert (type(found), found, codec_for(float).decode(data)) == (float, 3.0, 3.0)


def test_a_field_that_the_constructor_sets_itself_comes_back_or_is_refused_and_is_never_lost() -> None:
    """run-50 (langchain-ai/langgraph#6970, #9021, #6718)."""
    stamped = Stamped(1)
    stamped.stamp = 99
    assert codec_for(Stamped).round_trip(stamped)[1].stamp == 99
    altered = Order(uuid.UUID(int=1), [])
    altered.count = 99  # the constructor would count again
    assert refused(Order, altered).path == "$.count"
    assert refused(list[Order], [ORDER, altered]).path == "$[1].count"


def test_an_attribute_that_is_no_field_is_refused_and_one_that_can_be_computed_again_is_not() -> None:
    line = Line("bolt", Decimal(1))
    line.note = "urgent"  # type: ignore[attr-defined]
    assert "urgent" not in str(codec_for(dict[str, Any]).encode({}))
    assert refused(Line, line).code == "unsupported_type"
    cached = Cached(2)
    assert cached.double == 4
    assert codec_for(Cached).round_trip(cached)[1] == cached


def test_what_was_stored_stays_readable_as_plain_data_when_the_class_has_changed() -> None:
    """run-50: a class that is renamed before loading came back as None."""
    data = codec_for(Order).encode(ORDER)
    assert PLAIN.decode(data)["lines"][0]["name"] == "bolt"

    @dataclass
    class Renamed:
        identity: str

    with pytest.raises(InvalidInput, match=r"cannot be read as .*Renamed.*identity") as refusal:
        codec_for(Renamed).decode(data)
    assert refusal.value.code == "invalid_event"


def test_the_value_handed_on_is_not_the_object_that_the_giver_may_still_alter() -> None:
    given = {"a": [1]}
    for annotation in (Any, dict[str, Any], dict[str, list[int]]):
        _, found = codec_for(annotation).round_trip(given)
        found["a"].append(2)
    assert given == {"a": [1]}


@pytest.mark.parametrize(
    ("annotation", "why"),
    [
        (Custom, "Custom cannot be read back"),
        (list[Custom], r"Custom in list\[.*Custom\] cannot be read back"),
        (dict[str, complex], "complex in dict"),
        (T, "stands for any type"),
        ("Nowhere", "Nowhere cannot be resolved"),
        (Stamped | Line, "cannot be read back from JSON: Type unions"),
        (collections.abc.Iterable[int], "Iterable"),
        (msgspec.Raw, "Raw"),
    ],
)
def test_an_annotation_that_cannot_be_read_back_counts_as_none_and_the_refusal_says_so(
    annotation: Any, why: str
) -> None:
    codec = codec_for(annotation)
    assert not codec.is_typed
    assert codec.round_trip({"a": [1]})[1] == {"a": [1]}
    with pytest.raises(InvalidInput, match=why) as refusal:
        codec.encode({"a": [Custom()]})
    assert (refusal.value.code, refusal.value.path) == ("unsupported_type", "$.a[0]")


def test_a_codec_is_made_once_for_each_annotation() -> None:
    unhashable = Annotated[int, ["a list"]]
    assert codec_for(unhashable) is codec_for(unhashable)
    assert codec_for(dict[str, int]) is codec_for(dict[str, int])
    assert codec_for(Literal[1]) is not codec_for(Literal[True])
    for number in range(1000):
        codec = codec_for(Annotated[int, [number]])
        assert codec.annotation.__metadata__ == ([number],)


# ── the comparison ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (1, True),
        (1.0, 1),
        ("loud", Tone.LOUD),
        ([1], [True]),
        ((1,), [1]),
        ({"a": 1}, {"a": True}),
        ({1: "a"}, {True: "a"}),
        ({1}, {True}),
        ({(1, 0)}, {(True, 0)}),
        (Point(1), Point(True)),
        (Line("a", Decimal("1.0")), Line("a", Decimal("1.00"))),
        (Uncomparable(1), Uncomparable(True)),
        (Found("a"), Found("b")),
        (NOON, NOON.astimezone(datetime.timezone(datetime.timedelta(hours=2)))),
        (Decimal("sNaN"), Decimal(1)),
        (math.nan, math.nan),
    ],
)
def test_equal_is_not_the_same(given: Any, found: Any) -> None:
    assert not is_same(given, found)


# ── functions ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def plain(number: int) -> list[int]:
    return [number]


async def awaited(number: int) -> Order: ...  # type: ignore[empty-body]
def later(number: int) -> collections.abc.Awaitable[Order]: ...  # type: ignore[empty-body]
def coroutine(number: int) -> collections.abc.Coroutine[Any, Any, Order]: ...  # type: ignore[empty-body]
def task(number: int) -> asyncio.Task[Order]: ...  # type: ignore[empty-body]
def nothing(number: int) -> None: ...
def unannotated(number): ...  # type: ignore[no-untyped-def]
def bare(number: int) -> collections.abc.Awaitable: ...  # type: ignore[empty-body, type-arg]
def unknown(number: Unknown) -> Unknown: ...
def known(number: Unknown) -> Order: ...  # type: ignore[empty-body]
def constrained() -> Annotated[int, msgspec.Meta(gt=0)]: ...  # type: ignore[empty-body]


@functools.wraps(awaited)
async def wrapping(*args: Any) -> Any: ...


class Model:
    def ask(self, prompt: str) -> Order: ...  # type: ignore[empty-body]
    async def __call__(self, prompt: str) -> Order: ...  # type: ignore[empty-body]
    @staticmethod
    def static() -> Order: ...  # type: ignore[empty-body]
    @classmethod
    def of_class(cls) -> Order: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (plain, list[int]),
        (awaited, Order),
        (later, Order),
        (coroutine, Order),
        (task, Order),
        (nothing, type(None)),
        (unannotated, Any),
        (bare, Any),
        (unknown, "Unknown"),
        (known, Order),
        (constrained, Annotated[int, msgspec.Meta(gt=0)]),
        (wrapping, Order),
        (functools.partial(functools.partial(awaited, 1)), Order),
        (Model().ask, Order),
        (Model(), Order),
        (Model.static, Order),
        (Model.of_class, Order),
        (functools.partial(Model(), "p"), Order),
        (Order, Order),
        (len, Any),
        (lambda: 1, Any),
        (json.loads, Any),
    ],
)
def test_the_annotation_says_what_a_call_gives(function: Any, expected: Any) -> None:
    assert returns(function) == expected
    assert codec_of(function) is codec_of(function)
    assert codec_of(function) is codec_for(expected)


def test_a_class_that_is_local_to_a_function_is_found_if_the_step_uses_it() -> None:
    @dataclass
    class Local:
        number: int

    def step() -> Local:
        return Local(1)

    assert returns(step) is Local
    assert codec_of(step).round_trip(Local(1))[1] == Local(1)


def test_a_name_that_is_defined_later_is_found_later(tmp_path: Any) -> None:
    scope: dict[str, Any] = {}
    exec("from __future__ import annotations\ndef step() -> Later: ...", scope)
    assert not codec_of(scope["step"]).is_typed
    scope["Later"] = Found
    assert codec_of(scope["step"]) is codec_for(Found)


async def flow(run: Unknown, incident: str, order: Order, *rest: int, loud: bool = False) -> None: ...


def test_the_annotations_behind_the_context_are_found_for_as_many_arguments_as_there_are() -> None:
    assert parameters(flow, 0) == []
    assert parameters(flow, 1) == [str]
    assert parameters(flow, 4) == [str, Order, int, int]
    assert parameters(unannotated, 2) == [Any, Any]
    assert parameters(Model().ask, 1) == [Any]  # the bound method's first parameter is the context


@pytest.mark.parametrize("args", [("INC-7",), (), ("a", "b", "c")])
def test_arguments_that_do_not_fit_the_signature_are_refused(args: tuple[Any, ...]) -> None:
    async def two(run: Any, first: str, second: int) -> None: ...

    with pytest.raises(InvalidInput, match="'two' cannot be called with these arguments") as refusal:
        check_arguments(two, args)
    assert refusal.value.code == "invalid_argument"


def test_arguments_that_fit_the_signature_are_taken() -> None:
    check_arguments(flow, ("a", ORDER))
    check_arguments(flow, ("a", ORDER, 1, 2, 3))
    check_arguments(nothing, ())


# ── digests ───────────────────────────────────────────────────────────────────────────────────────────────────────────

ARGUMENTS = "('INC-7', {'b': 1, 'a': [1.5, None]}, frozenset('abcdefgh'))"


def test_the_digest_of_arguments_is_the_same_in_every_process() -> None:
    program = f"from eventlog.values import digest_of\nprint(digest_of({ARGUMENTS}))"
    found = {
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout.strip()
        for seed in ("1", "2", "3")
    }
    assert found == {digest_of(eval(ARGUMENTS))}
    assert found == {"da1987b7dd88bdb7"}


def test_different_arguments_have_different_digests_and_some_have_none() -> None:
    different: list[tuple[Any, ...]] = [(), (None,), (1,), ("1",), (1.0,), ([1],), ({"a": 1},), (ORDER,), (1, 2), (12,)]
    digests = {digest_of(args) for args in different}
    assert len(digests) == len(different)
    assert all(digest is not None and len(digest) == 16 for digest in digests)
    endless: list[Any] = []
    endless.append(endless)
    for args in ((Custom(),), (endless,), ("\ud800",), ({1: 2},)):
        assert digest_of(args) is None


@pytest.mark.parametrize("annotation", [Any, list[Any], dict[str, Any]])
def test_a_stored_value_that_is_nested_without_end_is_an_invalid_event(annotation: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        codec_for(annotation).decode(b'{"a":' * 50_000 if annotation == dict[str, Any] else b"[" * 100_000)
    assert caught.value.code == "invalid_event"
