"""Plain data and ids: exact or refused, with the path, before anything is copied."""

from __future__ import annotations

import enum
import json
import math
import tracemalloc
import unicodedata
from collections import OrderedDict, defaultdict, namedtuple
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventlog.errors import InvalidInput
from eventlog.plain import MAX_INT_BITS, MAX_INT_DIGITS, Limits, check_id, check_plain, check_text, parse_json
from tests.strategies import exact_plain, identical

LIMITS = Limits()
GIGABYTE = 1 << 30


def refusal(value: Any, limits: Limits = LIMITS, **options: Any) -> tuple[str, str]:
    """Return the code and the path with which `check_plain` refuses a value."""
    with pytest.raises(InvalidInput) as caught:
        check_plain(value, limits, **options)
    return caught.value.code, caught.value.path


# ── plain data ───────────────────────────────────────────────────────────────────────────────────────────────────────


@given(exact_plain)
def test_plain_data_of_every_kind_is_let_through(value: Any) -> None:
    check_plain(value, LIMITS)


class Level(enum.IntEnum):
    LOW = 1


class Tone(enum.StrEnum):
    LOUD = "loud"


class MyDict(dict[str, Any]):
    pass


class MyList(list[Any]):
    pass


class MyFloat(float):
    pass


Pair = namedtuple("Pair", "left right")

SUBCLASSES = [
    Level.LOW,
    Tone.LOUD,
    MyDict(a=1),
    MyList([1]),
    MyFloat(1),
    Pair(1, 2),
    OrderedDict(a=1),
    defaultdict(int, a=1),
]


@pytest.mark.parametrize("value", SUBCLASSES, ids=lambda value: type(value).__name__)
def test_a_subclass_of_plain_data_is_refused_wherever_it_stands(value: Any) -> None:
    assert refusal(value) == ("unsupported_type", "$")
    assert refusal([0, value]) == ("unsupported_type", "$[1]")
    assert refusal({"a": {"b": value}}) == ("unsupported_type", "$.a.b")


@given(exact_plain, st.sampled_from([math.nan, b"x", (1,), {1}, "\ud800", 1 << MAX_INT_BITS, Level.LOW]))
def test_one_bad_value_is_found_behind_any_good_one(good: Any, bad: Any) -> None:
    code, path = refusal({"good": good, "list": [good, {"bad": bad}]})
    assert path == "$.list[1].bad"
    assert code in {"non_finite_number", "unsupported_type", "invalid_text", "number_too_large"}


def test_the_first_of_several_faults_is_named() -> None:
    assert refusal([1, {"a": math.nan}, b""]) == ("non_finite_number", "$[1].a")


@pytest.mark.parametrize(
    ("key", "step"),
    [
        ("name", ".name"),
        ("été", ".été"),
        ("", "['']"),
        ("a b", "['a b']"),
        ("a.b", "['a.b']"),
        ("0", "['0']"),
        ("\n", r"['\n']"),
        ("\u202e", r"['\u202e']"),
        ("x" * 50, "[" + ascii("x" * 40 + "…") + "]"),
        ("'", '["\'"]'),
    ],
)
def test_a_step_of_a_path_can_be_read(key: str, step: str) -> None:
    assert refusal({key: math.nan}) == ("non_finite_number", "$" + step)
    assert step.isprintable()


def test_integers_are_let_through_up_to_the_bound() -> None:
    largest = (1 << MAX_INT_BITS) - 1
    check_plain([largest, -largest], LIMITS)
    assert len(str(largest)) <= MAX_INT_DIGITS
    assert refusal([largest + 1]) == ("number_too_large", "$[0]")
    assert refusal(-largest - 1) == ("number_too_large", "$")


def test_a_smaller_bound_for_integers_can_be_asked_for() -> None:
    check_plain(2**53 - 1, LIMITS, int_bits=53)
    assert refusal({"a": 2**53}, int_bits=53) == ("number_too_large", "$.a")
    assert refusal({"a": -(2**53)}, int_bits=53) == ("number_too_large", "$.a")


@pytest.mark.parametrize("levels", [1, 2, 50])
@pytest.mark.parametrize("wrap", [lambda inner: [inner], lambda inner: {"k": inner}], ids=["lists", "dicts"])
def test_depth_is_counted_in_lists_and_dicts_alike(levels: int, wrap: Any) -> None:
    value: Any = 1
    for _ in range(levels):
        value = wrap(value)
    check_plain(value, Limits(depth=levels))
    assert refusal(value, Limits(depth=levels - 1))[0] == "payload_too_deep"


def test_a_hundred_thousand_levels_are_refused_without_following_them() -> None:
    value: Any = 1
    for _ in range(100_000):
        value = [value]
    code, path = refusal(value)
    assert code == "payload_too_deep"
    assert path == "$" + "[0]" * LIMITS.depth
    while isinstance(value, list):  # taken apart here: freeing so deep a value at once is a burden of its own
        value = value.pop()


def test_a_list_that_holds_itself_is_refused() -> None:
    cycle: list[Any] = [1]
    cycle.append(cycle)
    assert refusal(cycle)[0] == "payload_too_deep"
    loop: dict[str, Any] = {}
    loop["a"] = [loop]
    assert refusal(loop)[0] == "payload_too_deep"


def test_one_list_held_many_times_over_is_refused_by_its_spelled_size() -> None:
    value: Any = []
    for _ in range(90):
        value = [value, value]
    assert refusal(value, Limits(body_bytes=10_000))[0] == "payload_too_large"


@pytest.mark.parametrize("letter", ["a", "é"], ids=["ascii", "not ascii"])
def test_a_text_of_a_gigabyte_is_refused_before_it_is_copied(letter: str) -> None:
    text = letter * GIGABYTE
    for value in (text, {"k": [text]}, {text: 1}):
        tracemalloc.start()
        try:
            assert refusal(value)[0] == "payload_too_large"
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()


def test_many_small_things_together_are_refused_too() -> None:
    limits = Limits(body_bytes=1000)
    check_plain([0] * 400, limits)
    assert refusal([0] * 1100, limits)[0] == "payload_too_large"
    assert refusal([["x" * 90] for _ in range(20)], limits)[0] == "payload_too_large"
    assert refusal({f"{number:04}": None for number in range(300)}, limits)[0] == "payload_too_large"


# ── ids and text ─────────────────────────────────────────────────────────────────────────────────────────────────────


def is_seen(text: str) -> bool:
    """Say whether people can see and compare a text, by the categories of Unicode alone."""
    hidden = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    return bool(text) and text == text.strip() and all(unicodedata.category(each) not in hidden for each in text)


@given(st.text(max_size=40))
def test_an_id_is_returned_as_it_is_exactly_if_it_can_be_seen_and_is_short(text: str) -> None:
    if is_seen(text) and len(text.encode()) <= 30:
        assert check_id(text, "thing", max_bytes=30) is text
    else:
        with pytest.raises(InvalidInput) as caught:
            check_id(text, "thing", max_bytes=30)
        assert (caught.value.code, caught.value.details["what"]) == ("invalid_id", "thing")


@pytest.mark.parametrize("text", ["", "\t", "\u200d", "a\u2069b", "a\u2029", "\udc80", "x" * 513, "é" * 257])
def test_an_id_that_people_cannot_see_or_compare_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_id(text, "thing")
    assert caught.value.code == "invalid_id"
    assert str(caught.value).isprintable()


def test_an_id_may_be_empty_where_that_is_said() -> None:
    assert check_id("", "thing", may_be_empty=True) == ""
    with pytest.raises(InvalidInput):
        check_id(" ", "thing", may_be_empty=True)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("letter", ["a", "é"])
def test_an_id_of_a_hundred_megabytes_is_refused_without_looking_at_each_letter(letter: str) -> None:
    with pytest.raises(InvalidInput, match="bytes"):
        check_id(letter * 100_000_000, "thing")


def test_text_is_returned_unless_utf_8_cannot_hold_it() -> None:
    assert check_text("é\0\U0001f600") == "é\0\U0001f600"
    with pytest.raises(InvalidInput, match="character 2") as caught:
        check_text("ab\ud800", "$.reason")
    assert (caught.value.code, caught.value.path) == ("invalid_text", "$.reason")


# ── JSON texts ───────────────────────────────────────────────────────────────────────────────────────────────────────


@given(exact_plain)
def test_a_json_text_gives_exactly_what_it_spells(value: Any) -> None:
    assert identical(parse_json(json.dumps(value)), value)
    assert identical(parse_json(json.dumps(value, ensure_ascii=False).encode()), value)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('{"a": 1, "a": 1}', "duplicate_key"),
        ('[{"b": {"a": 1, "\\u0061": 2}}]', "duplicate_key"),
        ("NaN", "non_finite_number"),
        ("[Infinity]", "non_finite_number"),
        ('{"a": -Infinity}', "non_finite_number"),
        ("1e400", "non_finite_number"),
        ("[-1e400]", "non_finite_number"),
        ("1" * (MAX_INT_DIGITS + 1), "number_too_large"),
        ("[" + "9" * MAX_INT_DIGITS + "]", "number_too_large"),
        ("-" + "1" * 100_000, "number_too_large"),
        ('"\\ud800"', "invalid_text"),
        ('{"a": ["\\udc00\\ud800"]}', "invalid_text"),
        ('{"\\ud800": 1}', "invalid_text"),
        ('"\ud800"', "invalid_text"),
        (b'"\xff"', "invalid_text"),
        (b'"\xed\xa0\x80"', "invalid_text"),
        (b'"\xc0\x80"', "invalid_text"),
        ('{"a": 1}'.encode("utf-16"), "invalid_text"),
        ('\ufeff{"a": 1}', "invalid_json"),
        (b'\xef\xbb\xbf{"a": 1}', "invalid_json"),
        ("", "invalid_json"),
        ("{", "invalid_json"),
        ("{'a': 1}", "invalid_json"),
        ("[1,]", "invalid_json"),
        ("01", "invalid_json"),
        ("1 2", "invalid_json"),
        ('"a\nb"', "invalid_json"),
        ("undefined", "invalid_json"),
        ("[" * 100_000, "payload_too_deep"),
        ("[" * 100_000 + "]" * 100_000, "payload_too_deep"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "payload_too_deep"),
    ],
    ids=lambda each: ascii(each)[:30],
)
def test_a_json_text_is_refused(text: str | bytes, code: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_json(text)
    assert caught.value.code == code
    assert len(str(caught.value)) < 300


def test_a_json_text_may_hold_what_is_whole() -> None:
    assert parse_json('"\\ud83d\\ude00"') == "\U0001f600"
    assert parse_json(b' {"a" : [1.0, 1, -0.0, true, null]} ') == {"a": [1.0, 1, -0.0, True, None]}


def test_the_refusal_of_a_json_text_says_where() -> None:
    with pytest.raises(InvalidInput, match=r"the config is not JSON: .* line 2, column 3"):
        parse_json("{\n  x}", what="the config")
    with pytest.raises(InvalidInput, match="the config is not UTF-8 at byte 3"):
        parse_json(b'"ab\xff"', what="the config")
    with pytest.raises(InvalidInput) as caught:
        parse_json('{"a": ["\\ud800"]}')
    assert caught.value.path == "$.a[0]"
