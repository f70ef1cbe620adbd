"""The work of the workflow cases: steps that return text of a given size, and count how often each was done.

Whoever is measured wraps `Steps.answer` in its own kind of step, and gives a `Finished`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from tools.bench.store import Settings, at_once

__all__ = [
    "ANSWER_BYTES",
    "Finished",
    "OpenWorkflows",
    "RunsWorkflows",
    "Steps",
    "answer",
    "figures",
    "require_once",
    "run_at_once",
]

ANSWER_BYTES: Final = 100
_PERCENT: Final = 100
_TEXT: Final = "the invoice and the order agree; nothing is left to be done about them, so the next one is looked at. "


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch of workflows took: from the first start to the last end, and each of them for itself; seconds."""

    seconds: float
    each_s: list[float]


class RunsWorkflows(Protocol):
    """Something that runs workflows durably, on a file of its own."""

    async def settings(self) -> Settings:
        """Return the durability settings as a connection that writes has them."""

    async def run_workflows(self, *, workflows: int, steps: int) -> Finished:
        """Run so many workflows at once, each of so many steps, one step after the other.

        Raises ValueError unless each came to its end with every step done once.
        """


OpenWorkflows = Callable[[Path], AbstractAsyncContextManager[RunsWorkflows]]


class Steps:
    """The steps of a batch of workflows. Workflows and steps are counted from 0."""

    def __init__(self, size_bytes: int = ANSWER_BYTES) -> None:
        self._size_bytes: Final = size_bytes
        self._done: Final[Counter[tuple[int, int]]] = Counter()

    async def answer(self, workflow: int, step: int) -> str:
        """Do the step: return its text, of `size_bytes` ASCII letters."""
        self._done[workflow, step] += 1
        return answer(workflow, step, self._size_bytes)

    def counts(self) -> dict[str, int]:
        """Return how often each step was done, for another process."""
        return {f"{workflow}/{step}": count for (workflow, step), count in self._done.items()}

    def require_once(self, *, workflows: int, steps: int) -> None:
        """Raise ValueError unless every step of every workflow was done exactly once."""
        require_once(self.counts(), workflows=workflows, steps=steps)


def answer(workflow: int, step: int, size_bytes: int = ANSWER_BYTES) -> str:
    """Return the text of a step."""
    text = f"workflow {workflow}, step {step}: "
    return (text + _TEXT * (size_bytes // len(_TEXT) + 1))[:size_bytes]


def require_once(counts: Mapping[str, int], *, workflows: int, steps: int) -> None:
    """Raise ValueError unless every step of every workflow is counted exactly once."""
    twice = sum(count > 1 for count in counts.values())
    missing = workflows * steps - len(counts)
    if twice or missing:
        raise ValueError(f"of {workflows * steps} steps {twice} were done more than once, and {missing} never")


async def run_at_once(workflows: int, run: Callable[[int], Awaitable[Any]]) -> Finished:
    """Run `run(0)` to `run(workflows - 1)` at once, and time all of them."""
    each_s: list[float] = []

    async def timed(number: int) -> None:
        began = time.perf_counter()
        await run(number)
        each_s.append(time.perf_counter() - began)

    seconds = await at_once(workflows, timed)
    return Finished(seconds=seconds, each_s=each_s)


def figures(name: str, finished: Finished, steps: int) -> dict[str, float]:
    """Return the rates, and the time that the middle workflow and the slowest hundredth took, as figures of a side."""
    ordered = sorted(finished.each_s)
    count = len(ordered)
    return {
        f"{name}: steps/s": count * steps / finished.seconds,
        f"{name}: workflows/s": count / finished.seconds,
        f"{name}: p50, s": ordered[count // 2],
        f"{name}: p99, s": ordered[min(count - 1, count * 99 // _PERCENT)],
    }
