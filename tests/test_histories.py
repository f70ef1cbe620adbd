"""The checker of histories finds each thing that no log may have told, and nothing in what a log may tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tools.campaigns.histories import client
from tools.campaigns.histories.checker import check
from tools.campaigns.histories.operations import (
    Appending,
    Conflict,
    Operation,
    Part,
    Reading,
    Stored,
    StreamReading,
)

LOG = [
    Stored(1, "a", 1, "one"),
    Stored(2, "a", 2, "two"),
    Stored(3, "b", 1, "three"),
    Stored(4, "a", 3, "four"),
]
"""`one` was appended alone, `two` and `three` together, to two streams, and `four` alone again."""


def stored(called: int, answered: int, *parts: Part, **more: Any) -> Appending:
    return Appending("p", called, answered, parts, "stored", **more)


ONE = stored(10, 20, Part("a", ("one",), 0, 1, 1))
PAIR = stored(30, 40, Part("a", ("two",), None, 2, 2), Part("b", ("three",), None, 1, 3))
FOUR = stored(50, 60, Part("a", ("four",), 2, 3, 4))
HISTORY: list[Operation] = [ONE, PAIR, FOUR]


def reading(called: int, answered: int, *event_ids: str, after: int = 0) -> Reading:
    return Reading("r", called, answered, after, event_ids)


def of_stream(called: int, answered: int, version: int, *event_ids: str, stream: str = "a") -> StreamReading:
    return StreamReading("r", called, answered, stream, version - len(event_ids), version, event_ids)


def conflict(called: int, answered: int, actual: int, *, stream: str = "a") -> Conflict:
    return Conflict("c", called, answered, ("other",), stream, actual)


def found(*more: Operation, history: list[Operation] = HISTORY, log: list[Stored] = LOG) -> list[str]:
    return [f"{fault.invariant} {fault.what}" for fault in check([*history, *more], log)]


@pytest.mark.parametrize(
    "operation",
    [
        reading(12, 14),
        reading(12, 14, "one"),
        reading(35, 70, "one", "two", "three", "four"),
        reading(32, 38, "one"),
        reading(70, 80, "four", after=3),
        of_stream(0, 5, 0),
        of_stream(32, 38, 2, "two"),
        of_stream(35, 38, 0, stream="b"),
        of_stream(45, 48, 1, "three", stream="b"),
        conflict(25, 35, 2),
        conflict(32, 38, 1),
        conflict(0, 5, 0, stream="never"),
        Appending("u", 32, None, (Part("a", ("gone",)),)),
        Appending("f", 32, 33, (Part("a", ("gone",)),), "refused"),
        stored(70, 80, Part("a", ("one",), 0, 1, 1), is_repeat=True),
        Appending("f", 32, 33, (Part("a", ("one",)),), "refused", is_repeat=True),
    ],
)
def test_what_a_log_may_tell_is_no_fault(operation: Operation) -> None:
    assert found(operation) == []


def test_calls_at_the_same_time_may_take_place_in_either_order() -> None:
    late = stored(0, 60, Part("a", ("one",), 0, 1, 1))
    early = stored(0, 60, Part("a", ("four",), 2, 3, 4))
    assert found(history=[early, PAIR, late]) == []


def test_an_append_without_an_answer_may_be_stored_long_after_its_call() -> None:
    unknown = Appending("u", 0, None, (Part("a", ("four",), 2),))
    assert found(history=[ONE, PAIR, unknown]) == []


def test_an_open_append_and_its_repeat_are_one() -> None:
    unknown = Appending("u", 10, None, (Part("a", ("one",), 0),))
    repeat = stored(55, 65, Part("a", ("one",), 0, 1, 1), is_repeat=True)
    assert found(history=[unknown, repeat, PAIR, FOUR]) == []


# ── each thing that is wrong ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_lost_event_is_found() -> None:
    assert any(fault.startswith("I1 lost") for fault in found(log=LOG[:3]))


@pytest.mark.parametrize("told", [Part("a", ("four",), None, 3, 5), Part("a", ("four",), None, 4, 4)])
def test_an_event_at_another_place_than_was_told_is_found(told: Part) -> None:
    assert any(fault.startswith("I1 moved") for fault in found(history=[ONE, PAIR, stored(50, 60, told)]))


def test_a_gap_in_the_positions_is_found() -> None:
    log = [*LOG[:3], Stored(5, "a", 3, "four")]
    assert any("event 4 of the log is at position 5" in fault for fault in found(log=log))


def test_a_gap_in_the_versions_is_found() -> None:
    log = [*LOG[:3], Stored(4, "a", 4, "four")]
    assert any("versions of a" in fault for fault in found(log=log))


def test_an_event_that_is_stored_twice_is_found() -> None:
    assert any("stored 2 times" in fault for fault in found(log=[*LOG, Stored(5, "a", 4, "four")]))


def test_an_event_that_was_refused_and_is_stored_is_found() -> None:
    refused = Appending("f", 50, 60, (Part("a", ("four",)),), "refused")
    assert any(fault.startswith("I3") for fault in found(history=[ONE, PAIR, refused]))


def test_an_event_that_met_a_conflict_and_is_stored_is_found() -> None:
    refused = Conflict("f", 50, 60, ("four",), "a", 2)
    assert any(fault.startswith("I3") for fault in found(history=[ONE, PAIR, refused]))


def test_an_event_that_nobody_appended_is_found() -> None:
    assert found(history=[ONE, PAIR]) == ["I3 event four is stored, and nobody has appended it"]


def test_half_of_an_unknown_append_is_found() -> None:
    unknown = Appending("u", 50, None, (Part("a", ("four", "five")),))
    assert any("half there" in fault for fault in found(history=[ONE, PAIR, unknown]))


def test_an_unknown_append_that_is_torn_apart_is_found() -> None:
    unknown = Appending("u", 0, None, (Part("a", ("one", "four")),))
    assert any("torn apart" in fault for fault in found(history=[unknown, PAIR]))


def test_an_append_that_was_stored_at_another_version_than_it_expected_is_found() -> None:
    append = stored(50, 60, Part("a", ("four",), 1, 3, 4))
    assert any("was stored behind 2" in fault for fault in found(history=[ONE, PAIR, append]))


def test_a_call_that_was_answered_before_another_began_and_lies_behind_it_is_found() -> None:
    early = stored(0, 5, Part("a", ("four",), 2, 3, 4))
    assert any("when appending of p at 0 had been told" in fault for fault in found(history=[ONE, PAIR, early]))


def test_an_unanswered_call_that_lies_before_what_was_told_before_it_is_found() -> None:
    late = Appending("u", 45, None, (Part("a", ("one",), 0),))
    assert any("appending of u at 45" in fault for fault in found(history=[late, PAIR, FOUR]))


@pytest.mark.parametrize(
    "read",
    [
        reading(70, 80, "one", "two", "three"),
        reading(45, 48, "one"),
        reading(12, 14, "one", "two", "three"),
        of_stream(70, 80, 2, "two"),
        of_stream(12, 14, 3, "four"),
    ],
)
def test_a_read_that_misses_what_was_told_before_or_sees_what_was_not_yet_asked_for_is_found(read: Operation) -> None:
    assert any(fault.startswith("I1") for fault in found(read))


def test_of_two_reads_the_later_one_may_not_see_less() -> None:
    both = [reading(31, 32, "one", "two", "three"), reading(33, 34, "one")]
    assert found(both[0]) == found(both[1]) == []
    assert any("reading of r at 33" in fault for fault in found(*both))


@pytest.mark.parametrize("read", [reading(35, 38, "one", "two"), of_stream(35, 38, 1, "two"), reading(65, 70, "x")])
def test_a_read_of_something_else_than_the_log_has_is_found(read: Operation) -> None:
    assert found(read) != []


def test_a_read_that_saw_half_of_an_append_is_found() -> None:
    assert any("half of an append" in fault for fault in found(reading(35, 38, "one", "two")))


@pytest.mark.parametrize("wrong", [conflict(70, 80, 1), conflict(12, 14, 3), conflict(30, 40, 7)])
def test_a_conflict_that_names_a_version_which_was_not_true_then_is_found(wrong: Conflict) -> None:
    assert any(fault.startswith(("I8", "I1")) for fault in found(wrong))


def test_a_repeat_that_was_told_another_place_is_found() -> None:
    repeat = stored(70, 80, Part("a", ("one",), 0, 5, 9), is_repeat=True)
    assert any(fault.startswith("I1 moved") for fault in found(repeat))


def test_a_line_that_was_being_written_when_the_process_died_is_no_answer(tmp_path: Path) -> None:
    notes = tmp_path / "notes.jsonl"
    unknown = Appending("u", 0, None, (Part("a", ("one",), 0),))
    notes.write_bytes(client.line_of_call(1, unknown) + client.line_of_answer(ONE, 1)[:-10])
    assert client.load(notes) == client.History([], [unknown])
    notes.write_bytes(client.line_of_call(1, unknown) + client.line_of_answer(ONE, 1))
    assert client.load(notes) == client.History([ONE], [])
