"""The outside suites are run whole, and pass; what does not apply is listed in one place."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

import pytest

from tests.conformance.eventsource_adapter import LogCheckpoints, LogStore
from tests.conformance.not_applicable import NOT_APPLICABLE, SUITES_LEFT_OUT, LeftOut
from tests.conformance.outcomes import Outcomes
from tests.conformance.suites import LEAST_PASSED, SUITES, Suite

MODULES: Final = ("test_eventsource_py", "test_eventsourcing", "test_umadb")
LISTED: Final = Counter(case.suite for case in NOT_APPLICABLE)


def classes() -> Iterator[tuple[Suite, type]]:
    """Give every test class that runs an outside suite."""
    for name in MODULES:
        module: ModuleType = importlib.import_module(f"tests.conformance.{name}")
        for thing in vars(module).values():
            if isinstance(thing, type) and "suite" in vars(thing):
                yield vars(thing)["suite"], thing


def cases(tests: type) -> list[str]:
    """Return the names of the cases in a class."""
    return [name for name in dir(tests) if name.startswith("test")]


def test_every_suite_is_run_by_one_class_with_all_of_its_cases() -> None:
    assert sorted((suite, len(cases(tests))) for suite, tests in classes()) == sorted(
        (suite, suite.cases) for suite in SUITES
    )


def test_every_listed_case_exists_and_is_listed_once() -> None:
    there = {(suite.name, name) for suite, tests in classes() for name in cases(tests)}
    listed = [(case.suite, case.case) for case in NOT_APPLICABLE]
    assert set(listed) <= there
    assert len(set(listed)) == len(listed)
    assert all(each.reason for each in (*NOT_APPLICABLE, *SUITES_LEFT_OUT))


@pytest.mark.parametrize("left_out", SUITES_LEFT_OUT, ids=lambda left_out: left_out.suite)
def test_no_adapter_has_what_this_suite_is_about(left_out: LeftOut) -> None:
    there = {name for adapter in (LogStore, LogCheckpoints) for name in dir(adapter)}
    asked = {name for name in vars(_port(left_out.port)) if not name.startswith("_")}
    assert asked
    assert not asked & there


@pytest.mark.parametrize("left_out", SUITES_LEFT_OUT, ids=lambda left_out: left_out.suite)
def test_as_many_cases_are_left_out_as_the_list_says_of(left_out: LeftOut) -> None:
    suites = importlib.import_module("eventsource.testing.conformance_ports")
    assert len(cases(getattr(suites, left_out.suite))) == left_out.cases


def _port(name: str) -> Any:
    module, _, port = f"eventsource.ports.{name}".rpartition(".")
    return getattr(importlib.import_module(module), port)


def test_every_case_that_is_not_listed_passes(outside_outcomes: Outcomes) -> None:
    if any(outside_outcomes.collected[suite] < suite.cases for suite in SUITES):
        pytest.skip("only a part of the outside suites was asked for")
    passed = {suite.name: outside_outcomes.passed[suite] for suite in SUITES}
    assert passed == {suite.name: suite.cases - LISTED[suite.name] for suite in SUITES}
    for package, least in LEAST_PASSED.items():
        assert sum(outside_outcomes.passed[suite] for suite in SUITES if suite.package == package) >= least
