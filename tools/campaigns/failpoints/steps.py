"""The steps of a process in its storage, seen from outside: each statement of SQLite, each name of a file that changes.

The engine has failpoints of its own around effects only. What it does to files is told by Python itself, whose audit
hook hears of each one that is made, linked, renamed or removed; and what it does to databases by SQLite, whose trace
hears of each statement. Both are told in front of what they tell of, so the process ends between two steps, with the
one before done and the one told not begun. Nothing of it costs anything where nobody listens.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from typing import Any, Final

from eventlog.runtime.failpoints import CRASH_STATUS

__all__ = ["Steps"]

_FILES: Final = frozenset({"os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.truncate"})
_BOUNDS: Final = ("BEGIN", "COMMIT", "ROLLBACK", "PRAGMA WAL_CHECKPOINT", "PRAGMA JOURNAL_MODE", "VACUUM")


class Steps:
    """Counts the steps of this process from `watch` on, and ends it in front of step number `end_at`.

    Of statements only those count that begin or end a transaction, or every one with `every_statement`.
    """

    def __init__(self, end_at: int | None = None, how: str = "SIGKILL", *, every_statement: bool = False) -> None:
        self._end_at: Final = end_at
        self._how: Final = how
        self._every_statement: Final = every_statement
        self.count = 0

    def watch(self) -> None:
        """Listen for as long as the process lives: an audit hook is never removed, so be a child."""
        connect = sqlite3.connect

        def connect_traced(*args: Any, **options: Any) -> sqlite3.Connection:
            connection: sqlite3.Connection = connect(*args, **options)
            connection.set_trace_callback(self._statement)
            return connection

        sqlite3.connect = connect_traced  # type: ignore[assignment]
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if event in _FILES or (event == "open" and isinstance(args[2], int) and args[2] & os.O_CREAT):
            self._step()

    def _statement(self, statement: str) -> None:
        if self._every_statement or statement.lstrip().upper().startswith(_BOUNDS):
            self._step()

    def _step(self) -> None:
        self.count += 1
        if self.count == self._end_at:
            if self._how == "exit":
                os._exit(CRASH_STATUS)
            os.kill(os.getpid(), signal.SIGKILL)
