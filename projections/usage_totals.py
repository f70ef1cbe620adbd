"""Rows of the view `usage` added up: exactly, as the view itself adds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from projections.projection import Row
from projections.reported_usage import NO_COST, added_costs

__all__ = ["usage_total"]

_COUNTED: Final = (
    "input_tokens",
    "output_tokens",
    "total_tokens",
    "results",
    "failures",
    "reported",
    "malformed",
    "unread",
    "timed",
    "time_us",
)
_COSTS: Final = ("cost", "cost_usd")


def usage_total(rows: Iterable[Row]) -> Row:
    """Return what the rows come to: counts as integers, costs as decimal text, `models` by name.

    `workflow` is the one that a row names; `elapsed_us` lies between the first event that counts and the last.
    """
    found = list(rows)
    costs = dict.fromkeys(_COSTS, NO_COST)
    for name in _COSTS:
        for row in found:
            costs[name] = added_costs(costs[name], row[name])
    first = min((row["first_at_us"] for row in found), default=0)
    return {
        **{name: sum(row[name] for row in found) for name in _COUNTED},
        **costs,
        "models": sorted({row["model"] for row in found if row["model"] is not None}),
        "workflow": next((row["workflow"] for row in found if row["workflow"] is not None), None),
        "elapsed_us": max((row["last_at_us"] for row in found), default=0) - first,
    }
