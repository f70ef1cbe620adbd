"""The clocks that stores and the runtime are handed."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """Two readings of time: one for people and deadlines across processes, one for waiting inside this process."""

    def now_us(self) -> int:
        """Return wall time in microseconds UTC. May jump either way."""

    def monotonic_s(self) -> float:
        """Return seconds that never go back, from an arbitrary start."""


class SystemClock:
    """The machine's own clocks."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic_s(self) -> float:
        return time.monotonic()
