"""What became of the outside cases in one run of pytest."""

from __future__ import annotations

from collections import Counter
from typing import Final

import pytest

from tests.conformance.not_applicable import NOT_APPLICABLE, Case
from tests.conformance.suites import Suite

__all__ = ["OUTCOMES", "Outcomes", "listed", "suite_of"]


class Outcomes:
    """How many cases of each suite were collected, and how many of them passed."""

    def __init__(self) -> None:
        self.collected: Final[Counter[Suite]] = Counter()
        self.passed: Final[Counter[Suite]] = Counter()


OUTCOMES: Final = pytest.StashKey[Outcomes]()
"""Where `conftest.py` keeps them in pytest's configuration."""


def suite_of(item: pytest.Item) -> Suite | None:
    """Return the outside suite that a collected test is a case of, if it is one."""
    suite = getattr(getattr(item, "cls", None), "suite", None)
    return suite if isinstance(suite, Suite) else None


def listed(item: pytest.Item) -> Case | None:
    """Return the line of the list that says why a case does not apply, if there is one."""
    suite = suite_of(item)
    name = getattr(item, "originalname", item.name)
    found = (case for case in NOT_APPLICABLE if suite is not None and (case.suite, case.case) == (suite.name, name))
    return next(found, None)
