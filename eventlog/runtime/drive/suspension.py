"""Whether the code of a run is let on.

`Suspended` derives from BaseException, so that the `except Exception` of an agent does not take it for a failed tool.
Code that catches it all the same is not let on: whatever it asks next raises it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["Suspended", "Suspension"]


class Suspended(BaseException):
    """Ends the code of a run that pauses. Not an error, and nothing to catch: the run goes on from its log later."""


class Suspension:
    """Says whether the code of one drive is let on. `on_suspend` is called to unwind what waits."""

    def __init__(self) -> None:
        self.is_on = False
        """Whether the code is let on no more. That is for good: the run goes on in another drive."""
        self.fatal: BaseException | None = None
        """Why the run cannot go on here, if that is why."""
        self.on_suspend: Callable[[], None] = _ignore
        self._came: asyncio.Event = asyncio.Event()

    def suspend(self) -> None:
        """Let the code on no more."""
        self.is_on = True
        self._came.set()
        self.on_suspend()

    async def come(self) -> None:
        """Wait until the code is let on no more."""
        await self._came.wait()

    def halt(self, error: BaseException) -> Suspended:
        """Stop the run here for `error`, unless it was stopped already, and return what unwinds the code."""
        if self.fatal is None:
            self.fatal = error
        self.suspend()
        return Suspended()

    def require_off(self) -> None:
        """Raise Suspended if the code is let on no more."""
        if self.is_on:
            raise Suspended


def _ignore() -> None:
    """Nothing waits yet."""
