"""On what an intent rests: looked up right before it is appended, and still so in the transaction of its append."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from eventlog.decide import Refusal
from eventlog.log import Expect
from eventlog.run import Run

__all__ = ["Grounds", "Prove", "no_proof"]


class Grounds(msgspec.Struct, frozen=True):
    """Why an effect may begin. `checks` are the streams that this was read from, and their versions then.

    It begins before `before_us`, in microseconds UTC, or not at all: until then what it rests on counts. `is_in_doubt`:
    the log was put back since it was approved, so the effect may have happened in what was lost; a receiver that can be
    asked is asked first.
    """

    checks: Sequence[tuple[str, Expect]] = ()
    before_us: int | None = None
    is_in_doubt: bool = False


Prove = Callable[[Run], Awaitable[Grounds | Refusal]]
"""Returns on what an attempt at the effect of a request would rest now, or why none may begin."""


async def no_proof(request: Run) -> Grounds:
    """Ask for nothing: the effect needs no approval of its own."""
    return Grounds()
