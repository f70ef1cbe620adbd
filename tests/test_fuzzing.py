"""The fuzzer's own parts: its sources of chance, its corpus, its comparison, and its judgement of one input."""

from __future__ import annotations

import random
from typing import Any

import pytest

from eventlog.errors import InvalidInput
from tools.campaigns.fuzz import drawing, of_events, of_names, of_proofs, of_values
from tools.campaigns.fuzz.guided import GUIDED, run_bytes
from tools.campaigns.fuzz.of_values import is_identical, meaning
from tools.campaigns.fuzz.target import Target
from tools.campaigns.fuzz.trying import corpus_of, spelled, try_input

MODULES = {"of_events": of_events, "of_names": of_names, "of_proofs": of_proofs, "of_values": of_values}
TARGETS = [target for module in MODULES.values() for target in module.TARGETS]


def raising(error: Exception) -> Target:
    def check(given: Any) -> str | None:
        raise error

    return Target("t", lambda chance: 0, check, 1, allowed=(ValueError,))


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_inputs_are_the_same_from_the_same_chance(target: Target) -> None:
    first, second = ([spelled(target.draw(chance)) for _ in range(20)] for chance in map(random.Random, (5, 5)))
    assert first == second and len(set(first)) > 5


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_its_corpus_is_read_and_met_as_it_has_to_be(target: Target) -> None:
    assert [wrong for each in corpus_of(target) if (wrong := try_input(target, each)) is not None] == []


def test_a_coded_error_is_an_answer_and_any_other_is_none() -> None:
    assert try_input(raising(InvalidInput("invalid_id", "")), 0) is None
    assert try_input(raising(ValueError()), 0) is None
    assert try_input(raising(KeyError("x")), 0) == ("I8", "a raw KeyError: 'x'")
    assert try_input(Target("t", lambda chance: 0, lambda given: "other", 1), 0) == ("I10", "other")


def test_every_guided_target_is_one_and_runs_from_any_bytes() -> None:
    for name, module in GUIDED.items():
        (target,) = (each for each in MODULES[module].TARGETS if each.name == name)
        for data in (b"", b"\xff" * 100, bytes(range(256)) * 3):
            assert run_bytes(target, data) is None


def test_bytes_in_place_of_chance_end_in_zeros() -> None:
    chance = drawing.BytesChance(b"\1\2\3")
    assert [chance.getrandbits(8) for _ in range(5)] == [1, 2, 3, 0, 0]
    assert 0 <= chance.random() < 1
    assert chance.choice("abc") == "a"


@pytest.mark.parametrize(
    ("one", "other"), [(1, 1.0), (1, True), (0.0, -0.0), ({"a": 1, "b": 2}, {"b": 2, "a": 1}), ((1,), [1])]
)
def test_what_is_equal_to_python_is_not_identical(one: Any, other: Any) -> None:
    assert is_identical(one, one) and not is_identical(one, other)


def test_what_means_the_same_is_told_apart_from_what_is_alike() -> None:
    assert meaning(1) == meaning(1.0) != meaning(True)
    assert meaning(0.0) == meaning(-0.0)
    assert meaning({"a": 1, "b": 2}) == meaning({"b": 2, "a": 1})
    assert meaning("é") != meaning("e\u0301") and meaning([]) != meaning({})
