"""Rounds: every side once, in the same order, and again (A B A B), so that no side has the quiet minute for itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec

__all__ = ["Measure", "Series", "Side", "run_rounds"]

Series = dict[str, list[float]]
"""What was measured, by the name of the side: one value a round."""

Measure = Callable[[], Awaitable[Mapping[str, float]]]


class Side(msgspec.Struct, frozen=True):
    """One thing that is measured in each round. A measure may give several figures, each with its own name."""

    name: str
    measure: Measure


async def run_rounds(
    sides: Sequence[Side], rounds: int, *, warm_up: bool = False, say: Callable[[str], None] = lambda _: None
) -> Series:
    """Run the rounds and return the series. The warm-up is one more round in front, whose figures are thrown away."""
    series: Series = {}
    first: Final = 0 if warm_up else 1
    for number in range(first, rounds + 1):
        for side in sides:
            figures = await side.measure()
            if number > 0:
                _add(series, figures)
            say(f"round {number}: " + ", ".join(f"{name} {value:,.4g}" for name, value in figures.items()))
    return series


def _add(series: Series, figures: Mapping[str, float]) -> None:
    for name, value in figures.items():
        series.setdefault(name, []).append(value)
