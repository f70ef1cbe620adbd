"""Where processes wait for each other, so that what they do next is done at the same moment."""

from __future__ import annotations

import mmap
import os
import time
from typing import Final

__all__ = ["Barrier"]

_COUNTER_BYTES: Final = 8
_PATIENCE_S: Final = 50.0


class Barrier:
    """A counter for each process, in memory that forks share. Make it before the forks."""

    def __init__(self, parties: int) -> None:
        self._parties: Final = parties
        self._memory: Final = mmap.mmap(-1, parties * _COUNTER_BYTES)

    def wait(self, party: int, turn: int) -> None:
        """Return as soon as all have come to this turn. Raises TimeoutError."""
        place = party * _COUNTER_BYTES
        self._memory[place : place + _COUNTER_BYTES] = turn.to_bytes(_COUNTER_BYTES, "little")
        until_s = time.monotonic() + _PATIENCE_S
        while not all(self._turn(each) >= turn for each in range(self._parties)):
            if time.monotonic() > until_s:
                raise TimeoutError(f"turn {turn}: another process does not come")
            os.sched_yield()

    def _turn(self, party: int) -> int:
        place = party * _COUNTER_BYTES
        return int.from_bytes(self._memory[place : place + _COUNTER_BYTES], "little")
