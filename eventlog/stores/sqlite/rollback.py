"""How a transaction ends that is not committed, so that nothing hides why.

After SQLITE_NOMEM, _FULL, _IOERR and _INTERRUPT SQLite may have ended the transaction by itself (see its
lang_transaction.html, "Response To Errors Within A Transaction"). A ROLLBACK fails then, as an error of its statement:
it would be told instead of what happened, and as damage of the log.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from eventlog.stores.sqlite.failures import DRIVER_ERRORS

__all__ = ["behind_nothing", "end_transaction", "one_snapshot", "roll_back"]

T = TypeVar("T")


def end_transaction(connection: sqlite3.Connection) -> None:
    """End the transaction without keeping it, if SQLite has not. Raises what the driver does."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def roll_back(connection: sqlite3.Connection) -> str | None:
    """As `end_transaction`, and never raise a driver's error: the one that brought us here counts more.

    Return why the connection cannot be used, if the transaction cannot be ended.
    """
    try:
        end_transaction(connection)
    except DRIVER_ERRORS as error:
        return f"a transaction could not be rolled back: {error}"
    return None


@contextmanager
def one_snapshot(connection: sqlite3.Connection) -> Iterator[None]:
    """Let everything inside be read from one state of the database. What it raises is what is raised."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        roll_back(connection)


def behind_nothing(connection: sqlite3.Connection, function: Callable[..., T], *args: Any) -> T:
    """Return `function(connection, *args)`, once a transaction that could not be ended before has ended.

    What is read would be as old as that one, and none could begin.
    """
    end_transaction(connection)
    return function(connection, *args)
