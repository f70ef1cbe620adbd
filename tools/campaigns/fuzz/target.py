"""A target of the fuzzer: how one input is drawn, and what must be true of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Problem", "Target"]

Problem = str | None
"""What was accepted and came back as something else (I10), or None."""


@dataclass(frozen=True, slots=True)
class Target:
    """One function, or a few that belong together, of which hostile input is the daily bread.

    `check` returns what is wrong with what was accepted, and raises what the target raises: an `EventLogError` is an
    answer, one of `allowed` too, and anything else a violation of I8.
    """

    name: str
    draw: Callable[[random.Random], Any]
    check: Callable[[Any], Problem]
    share: int
    """How many of a thousand inputs are for this target: fast ones get more."""
    allowed: tuple[type[Exception], ...] = ()
    known: Sequence[Any] = ()
    """Inputs that have to be looked at each time, beside those of the corpus."""
    is_guided: bool = True
    """Whether a coverage-guided fuzzer may run it by itself: it needs no files and no event loop."""
