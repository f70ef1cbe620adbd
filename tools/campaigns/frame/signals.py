"""Signals that ask the tool to end, taken where it can end with nothing left behind."""

from __future__ import annotations

import signal
import sys
from types import FrameType, TracebackType
from typing import Any, Final

__all__ = ["NotedSignals"]

_ASKING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class NotedSignals:
    """While this is entered, what would end the process is noted, and `end_if_asked` ends it.

    A signal that raises wherever it comes can come while a process is being started that nobody knows of yet, or while
    one is ended that the second Ctrl-C would leave running. One that is ignored, as in the background, stays so.
    """

    def __init__(self) -> None:
        self._noted: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> NotedSignals:
        for each in _ASKING:
            if signal.getsignal(each) is not signal.SIG_IGN:
                self._before[each] = signal.signal(each, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for each, before in self._before.items():
            signal.signal(each, before)

    def _note(self, number: int, _: FrameType | None) -> None:
        self._noted = self._noted or number

    def end_if_asked(self) -> None:
        """Raise SystemExit, with the status that says which signal it was, if one has come."""
        if self._noted is not None:
            sys.exit(128 + self._noted)
