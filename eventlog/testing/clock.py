"""A clock that stands still until a test moves it.

    clock = FakeClock()
    async with eventlog.open("memory:", clock=clock) as log:
        runner = Runner(log, workflows=[nap], clock=clock, patience_s=0)
        paused = await runner.start(nap, "run-1")  # it sleeps for two hours
        clock.advance(hours=2)
        ended = await runner.resume("run-1")

The log goes by it, too: no run is ever before its own last event. Whoever sleeps by another clock, and has to look at
this one again when it moves, says so: `clock.on_move(worker.wake)`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

__all__ = ["FakeClock"]

_NOON_US = 1_767_268_800_000_000
"""2026-01-01T12:00:00Z."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class FakeClock:
    """Keeps the contract of `eventlog.stores.clock.Clock`. Wall time in microseconds UTC, monotonic time in seconds."""

    def __init__(self, now_us: int = _NOON_US, monotonic_s: float = 0.0) -> None:
        self._now_us = now_us
        self._monotonic_s = monotonic_s
        self._watchers: Final[list[Callable[[], object]]] = []

    def now_us(self) -> int:
        """Return the wall time that was set."""
        return self._now_us

    def now(self) -> datetime:
        """Return the wall time that was set, in UTC."""
        return _EPOCH + timedelta(microseconds=self._now_us)

    def monotonic_s(self) -> float:
        """Return the seconds that this clock was advanced by, from its start."""
        return self._monotonic_s

    def advance(self, seconds: float = 0, *, minutes: float = 0, hours: float = 0, days: float = 0) -> None:
        """Let time pass on both clocks. Raises ValueError for a negative time: only wall time goes back, by `set`."""
        seconds += minutes * 60 + hours * 3600 + days * 86_400
        if seconds < 0:
            raise ValueError("time passes forwards only; `set` moves the wall clock")
        self._now_us += round(seconds * 1_000_000)
        self._monotonic_s += seconds
        self._tell()

    def advance_to(self, when: datetime | int) -> None:
        """Let time pass until `when`, a datetime with a zone or microseconds UTC; not at all if that is past."""
        until_us = when if isinstance(when, int) else (when - _EPOCH) // _MICROSECOND
        passed_us = until_us - self._now_us
        if passed_us > 0:
            self._now_us = until_us
            self._monotonic_s += passed_us / 1_000_000
            self._tell()

    def set(self, now_us: int) -> None:
        """Move the wall clock, forwards or back, as NTP does; the monotonic clock does not notice."""
        self._now_us = now_us
        self._tell()

    def on_move(self, wake: Callable[[], object]) -> None:
        """Call `wake` whenever the clock has been moved, in the task and thread that moved it."""
        self._watchers.append(wake)

    def _tell(self) -> None:
        for wake in self._watchers:
            wake()
