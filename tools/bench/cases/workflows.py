"""Workflows: many at once in one process, each of some steps, one step after the other.

A slow peer runs fewer at once, so that every round takes about as long; so the engine is measured with that few, too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from tools.bench.cases.case import Case, Place
from tools.bench.peers import OURS
from tools.bench.rounds import Side
from tools.bench.steps import RunsWorkflows, figures

__all__ = ["FEW", "WORKFLOWS"]

FEW: Final = 0.1
"""The share of the workflows that the engine runs as often as the slowest peers do."""


@asynccontextmanager
async def _open(place: Place) -> AsyncIterator[list[Side]]:
    async with AsyncExitStack() as opened:
        sides = []
        for peer in place.peers:
            if peer.workflows is None:
                continue
            runs = await place.enter_workflows(opened, peer)
            sides.append(_side(place, peer.name, runs, peer.workflow_pace))
            if peer.name == OURS:
                sides.append(_side(place, f"{OURS} (a tenth)", runs, FEW))
        yield sides


def _side(place: Place, name: str, runs: RunsWorkflows, pace: float) -> Side:
    workflows, steps = max(1, round(place.scale.workflows * pace)), place.scale.steps

    async def measure() -> Mapping[str, float]:
        return figures(name, await runs.run_workflows(workflows=workflows, steps=steps), steps)

    return Side(name, measure)


WORKFLOWS: Final = Case(
    name="workflows",
    what="1000 workflows at once in one process, each of 10 steps of 100 B; a tenth of them where it says so, and of "
    "the peers; p50 and p99 are of the time from the start of all to the end of each",
    unit="",
    open=_open,
    rounds=lambda scale: scale.workflow_rounds,
    warm_up=True,
)
