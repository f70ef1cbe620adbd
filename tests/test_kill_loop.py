"""The kill loop as a test: no kill loses, halves or damages anything, and the audit is able to notice if one did."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests import child
from tools import kill_loop

pytestmark = pytest.mark.campaign


def _campaign(workload: str, kills: int) -> dict[str, Any]:
    seed = random.SystemRandom().getrandbits(32)
    done = child.run(kill_loop.campaign, workload, kills, seed, timeout_s=kills / 2 + 60)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = done.result
    print(f"\n{kill_loop.Report(**report)}")
    assert report["kills"] == kills
    return report


@pytest.mark.timeout(1800)
def test_no_kill_loses_or_halves_what_was_acknowledged(is_long: bool) -> None:
    """A hundred and fifty kills; with `--long` three thousand."""
    report = _campaign("appends", 3_000 if is_long else 150)
    assert report["violations"] == []
    assert report["acknowledged"] > 5 * report["kills"], (
        "so few appends were reached by the kills that they show nothing"
    )
    assert report["stored"] >= report["acknowledged"]


def test_control_acknowledging_before_the_append_returns_is_reported_as_lost() -> None:
    violations = _campaign("wrong_acknowledged_too_early", 40)["violations"]
    assert [each for each in violations if "lost: acknowledged" in each]
    assert not [each for each in violations if "lost: acknowledged" not in each]


def test_control_appending_in_pieces_what_belongs_together_is_reported_as_half_there() -> None:
    violations = _campaign("wrong_appends_in_pieces", 40)["violations"]
    assert [each for each in violations if "half there" in each]
    assert not [each for each in violations if "half there" not in each]
