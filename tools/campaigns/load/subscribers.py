"""Subscribers that are slow, dead, or never look again, and what each of them has seen."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

from eventlog import RecordedEvent
from eventlog.stores import SqliteLog

__all__ = ["Subscriber", "Subscribers"]

_DIES_AFTER: Final = 10
_LOOKS_AFTER: Final = 50


class Subscriber:
    """One that follows the whole log, each time a while after it could have; a dead one stops after a few events."""

    def __init__(self, log: SqliteLog, number: int, *, pause_s: float, is_dead: bool) -> None:
        self.number: Final = number
        self.is_dead: Final = is_dead
        self.last = 0
        self.wrong: str | None = None
        self._pause_s: Final = pause_s
        self._events: Final = log.subscribe()

    async def follow(self) -> None:
        """Take every event, in order, for as long as it lives; a dead one is left without being closed."""
        async for event in self._events:
            assert isinstance(event, RecordedEvent), "marks were not asked for"
            if event.position != self.last + 1 and self.wrong is None:
                self.wrong = f"subscriber {self.number} was given {event.position} behind {self.last}"
            self.last = event.position
            if self.is_dead and self.last == _DIES_AFTER:
                return
            if self.last % _LOOKS_AFTER == 0:
                await asyncio.sleep(self._pause_s)


class Subscribers:
    """All subscribers of a load, every fourth of them dead. An async context manager: behind it none follows."""

    def __init__(self, log: SqliteLog, count: int, chance: Random) -> None:
        self.all: Final = [
            Subscriber(log, number, pause_s=chance.random() * 0.01, is_dead=number % 4 == 3) for number in range(count)
        ]

    async def __aenter__(self) -> Subscribers:
        self._tasks = [asyncio.create_task(each.follow()) for each in self.all]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def failures(self) -> list[str]:
        """Return what was lost, given twice, or ended a subscription that should have gone on."""
        ended = [
            f"subscription {each.number} ended: {task.exception() or 'without an error'}"
            for each, task in zip(self.all, self._tasks, strict=True)
            if task.done() and not task.cancelled() and not each.is_dead
        ]
        return ended + [each.wrong for each in self.all if each.wrong is not None]

    async def reach(self, position: int, *, stuck_s: float) -> list[str]:
        """Wait until all that live have seen everything; return who has come no further for so long."""
        behind = self._behind(position)
        while behind and not self.failures():
            before = [each.last for each in behind]
            await asyncio.sleep(stuck_s / 100)
            for _ in range(100):
                if [each.last for each in behind] != before or not self._behind(position):
                    break
                await asyncio.sleep(stuck_s / 100)
            else:
                return [f"subscriber {each.number} stays at {each.last} of {position}" for each in behind]
            behind = self._behind(position)
        return []

    def _behind(self, position: int) -> list[Subscriber]:
        return [each for each in self.all if not each.is_dead and each.last < position]
