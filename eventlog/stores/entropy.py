"""Chance, in one place: random bytes for salts and ids, and jitter for pauses."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import TypeVar

__all__ = ["jittered", "random_bytes", "random_float", "sample"]

T = TypeVar("T")


def random_bytes(size: int) -> bytes:
    """Return `size` bytes that nobody can guess."""
    return os.urandom(size)


def random_float() -> float:
    """Return a number from 0 up to 1 that nobody can predict."""
    return (int.from_bytes(random_bytes(7)) >> 3) / 2**53


def sample(population: Sequence[T], count: int) -> list[T]:
    """Return `count` members of the population in any order."""
    return random.sample(population, count)


def jittered(seconds: float) -> float:
    """Return about `seconds`, so that many who wait for the same thing do not ask at the same moments."""
    return seconds * random.uniform(0.75, 1.25)
