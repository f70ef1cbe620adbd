"""What follows from the rounds: medians, spread, and ratios of what was measured in the same round."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

import msgspec

__all__ = ["Summary", "paired_ratio", "spread", "summary"]

_PERCENT: Final = 100


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The middle of several rounds, and the ends."""

    median: float
    low: float
    high: float


def summary(values: Sequence[float]) -> Summary:
    """Return median, smallest and largest. There is at least one value."""
    return Summary(median=median(values), low=min(values), high=max(values))


def spread(values: Sequence[float]) -> float:
    """Return the distance between the ends in percent of the median: how much a single round is worth."""
    found = summary(values)
    return _PERCENT * (found.high - found.low) / found.median if found.median else 0.0


def paired_ratio(values: Sequence[float], others: Sequence[float]) -> Summary:
    """Return the summary of the ratios, each of two values of one round.

    What slows the machine down for a while slows both sides of a pair, so the ratio stays what it is.
    """
    return summary([value / other for value, other in zip(values, others, strict=True)])
