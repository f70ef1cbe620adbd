"""One whole transaction of another kind than an append: erasures, restores, views. It ends as an append does.

What fails before its COMMIT, or at one that proves that nothing was kept, is told as definite. A COMMIT that proves
nothing is told to nobody: the connection is given up, and behind a barrier the log says what became of it (see
`eventlog.stores.sqlite.failures`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, Final, TypeVar

from eventlog.errors import EventLogError
from eventlog.stores.sqlite.failures import SQLITE_ERRORS, is_definite_at_commit, is_poison, is_poison_inside, translate
from eventlog.stores.sqlite.rollback import roll_back

__all__ = ["CommitInDoubt", "ConnectionUnusable", "in_one_transaction"]

T = TypeVar("T")


class ConnectionUnusable(Exception):
    """A transaction has ended so that its connection must not be used again, because of `why`.

    `told` is what its caller is told, None where nobody knows whether it was kept; `result` is what it had come to.
    """

    def __init__(self, why: str, *, told: EventLogError | None = None, result: Any = None) -> None:
        self.why: Final = why
        self.told: Final = told
        self.result: Final = result
        super().__init__(why)


class CommitInDoubt(Exception):
    """A COMMIT has proved nothing, because of `why`. A barrier is behind it by now: what the log says of it holds.

    `result` is what the transaction had come to.
    """

    def __init__(self, why: str, result: Any = None) -> None:
        self.why: Final = why
        self.result: Final = result
        super().__init__(why)


def in_one_transaction(connection: sqlite3.Connection, doing: str, work: Callable[[], T]) -> T:
    """Return what `work` does, once that is committed; `doing` says what that was for.

    Raises what `work` raises, and what the driver does as a coded error; nothing was written then. Raises
    ConnectionUnusable.
    """
    try:
        connection.execute("BEGIN IMMEDIATE")
    except SQLITE_ERRORS as error:
        raise _refused(error, doing, str(error) if is_poison(error) else None) from error
    try:
        result = work()
        _commit(connection)
    except SQLITE_ERRORS as error:
        why = roll_back(connection) or (str(error) if is_poison_inside(error) else None)
        raise _refused(error, doing, why) from error
    except _InDoubt as doubt:
        roll_back(connection)
        raise ConnectionUnusable(f"COMMIT failed: {doubt}", result=result) from doubt.__cause__
    except BaseException as error:
        why = roll_back(connection)
        if why is not None:
            raise ConnectionUnusable(why, told=_coded(error, doing)) from error
        raise
    return result


class _InDoubt(Exception):
    """A COMMIT has proved nothing."""


def _commit(connection: sqlite3.Connection) -> None:
    try:
        connection.execute("COMMIT")
    except SQLITE_ERRORS as error:
        if is_definite_at_commit(error):
            raise
        raise _InDoubt(str(error)) from error


def _refused(error: sqlite3.Error | MemoryError, doing: str, why: str | None) -> Exception:
    """Return what is raised for a failure that is definite; `why` says that the connection cannot be used, if so."""
    told = translate(error, doing)
    return told if why is None else ConnectionUnusable(why, told=told)


def _coded(error: BaseException, doing: str) -> EventLogError:
    return error if isinstance(error, EventLogError) else EventLogError("unexpected", f"{doing}: {error}")
