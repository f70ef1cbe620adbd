"""Chance, in one place: random bytes for salts and ids, and jitter for pauses."""

from __future__ import annotations

import os
import random

__all__ = ["jittered", "random_bytes"]


def random_bytes(size: int) -> bytes:
    """Return `size` bytes that nobody can guess."""
    return os.urandom(size)


def jittered(seconds: float) -> float:
    """Return about `seconds`, so that many who wait for the same thing do not ask at the same moments."""
    return seconds * random.uniform(0.75, 1.25)
