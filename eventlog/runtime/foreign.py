"""What the code of others raises, told apart from what ends the task or the program that runs it.

An action is called with a promise that whatever it raises is recorded. That is more than `except Exception` catches: a
client whose own background task was cancelled raises a CancelledError though nobody has cancelled its caller, and code
that only sees to `Exception` would let it pass for the end of the run.
"""

from __future__ import annotations

import asyncio
from typing import Final

__all__ = ["Interruptions", "ends_program"]


def ends_program(error: BaseException) -> bool:
    """Say whether this ends the whole program, wherever it was raised."""
    return isinstance(error, KeyboardInterrupt | SystemExit)


class Interruptions:
    """What ends the current task from outside, from here on: its cancellation, the end of its loop or the program."""

    def __init__(self) -> None:
        self._task: Final = _current_task()
        self._before: Final = 0 if self._task is None else self._task.cancelling()

    def include(self, error: BaseException) -> bool:
        """Say whether this ends the task; otherwise it comes from what the task has called."""
        if isinstance(error, asyncio.CancelledError):
            return self._task is None or self._task.cancelling() > self._before
        if isinstance(error, GeneratorExit):  # a coroutine that is closed, by whoever collects it, must not await
            return self._task is None or self._task is not _current_task()
        return ends_program(error)


def _current_task() -> asyncio.Task[object] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop is running
        return None
