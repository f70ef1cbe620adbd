"""A clock that stands still until a test moves it."""

from __future__ import annotations

__all__ = ["FakeClock"]

_NOON_US = 1_767_268_800_000_000
"""2026-01-01T12:00:00Z."""


class FakeClock:
    """Keeps the contract of `eventlog.stores.clock.Clock`. Wall time in microseconds UTC, monotonic time in seconds."""

    def __init__(self, now_us: int = _NOON_US, monotonic_s: float = 0.0) -> None:
        self._now_us = now_us
        self._monotonic_s = monotonic_s

    def now_us(self) -> int:
        """Return the wall time that was set."""
        return self._now_us

    def monotonic_s(self) -> float:
        """Return the seconds that this clock was advanced by, from its start."""
        return self._monotonic_s

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks. Raises ValueError for a negative time: only wall time goes back, by `set`."""
        if seconds < 0:
            raise ValueError("time passes forwards only; `set` moves the wall clock")
        self._now_us += round(seconds * 1_000_000)
        self._monotonic_s += seconds

    def set(self, now_us: int) -> None:
        """Move the wall clock, forwards or back, as NTP does; the monotonic clock does not notice."""
        self._now_us = now_us
