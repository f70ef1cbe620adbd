"""The events that every store is given: JSON of 461 bytes on average, the same in every run and for everybody.

Each store gets them in the form it takes: a Struct, a dictionary, or the JSON itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, islice
from typing import Any, Final, TypeVar

import msgspec

import eventlog

__all__ = ["BODIES", "COUNT", "DICTS", "MEAN_BYTES", "STEPS", "StepRecorded", "taken"]

MEAN_BYTES: Final = 461
T = TypeVar("T")

COUNT: Final = 401
"""How many different ones there are: one of each size from 261 to 661 bytes, in a fixed disorder."""

_TEXT: Final = (
    "the agent looked up the invoice, compared it with the order and found that the amounts differ by a cent; "
)


@eventlog.event("bench_step_recorded")
class StepRecorded(msgspec.Struct, frozen=True):
    """A step of an agent: the tool it called, and what came back."""

    tool: str
    call_id: str
    arguments: str
    result: str
    tokens: int
    seconds: float


def _step(number: int) -> StepRecorded:
    size_bytes = MEAN_BYTES - COUNT // 2 + number * 163 % COUNT
    step = StepRecorded(
        tool="read_invoice",
        call_id=f"call-{number:05}",
        arguments=f"invoice {1000 + number} of customer {number % 7}, in full",
        result="",
        tokens=1000 + number,
        seconds=0.25 + number % 8,
    )
    missing = size_bytes - len(msgspec.json.encode(step))
    return msgspec.structs.replace(step, result=(_TEXT * 7)[:missing])


STEPS: Final = [_step(number) for number in range(COUNT)]
BODIES: Final = [msgspec.json.encode(step) for step in STEPS]
DICTS: Final[list[dict[str, Any]]] = [msgspec.to_builtins(step) for step in STEPS]


def taken(source: list[T], count: int, *, first: int = 0) -> Iterator[T]:
    """Give `count` of an endless repetition, from the one with the number `first` on."""
    return islice(cycle(source), first, first + count)
