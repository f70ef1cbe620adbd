"""Who may use a log: the process and the event loop that opened it, from opening to closing."""

from __future__ import annotations

import asyncio
import os

from eventlog.errors import Misuse, StoreUnavailable

__all__ = ["Guard"]


class Guard:
    """The state of a log object, and the check in front of every call."""

    def __init__(self) -> None:
        self._state = "new"
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def is_open(self) -> bool:
        return self._state == "open"

    def claim(self) -> asyncio.AbstractEventLoop:
        """Bind the log to this process and loop. Raises Misuse if it was opened before."""
        if self._state != "new":
            raise Misuse("engine_closed", "a log object is opened once; make another with eventlog.open(…)")
        self._state = "opening"
        self._pid = os.getpid()
        self._loop = asyncio.get_running_loop()
        return self._loop

    def open(self) -> None:
        """The log may be used from now on."""
        self._state = "open"

    def close(self) -> None:
        """The log may not be used any more."""
        self._state = "closed"

    def check(self) -> None:
        """Return if the caller may go on; raises `engine_closed` (StoreUnavailable), else Misuse with its code."""
        if self._state != "open":
            why = "the log is closed" if self._state == "closed" else "the log is not open yet"
            raise StoreUnavailable("engine_closed", why)
        if os.getpid() != self._pid:
            raise Misuse("fork_detected", f"the log was opened in process {self._pid}, this is its child {os.getpid()}")
        if asyncio.get_running_loop() is not self._loop:
            raise Misuse("wrong_loop", "the log was opened in another event loop")
