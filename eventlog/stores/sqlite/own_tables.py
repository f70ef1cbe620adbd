"""Tables that belong to the program and lie in the log's database, so that an effect can be one with its event."""

from __future__ import annotations

import sqlite3
from typing import Final

from eventlog.errors import InvalidInput
from eventlog.stores.sqlite.schema import OWN_TABLES

__all__ = ["create_table"]

VIEWS: Final = frozenset({"approvals", "effects", "runs", "timeline", "usage"})
"""Names of views that the log has or may get: their tables are dropped when they are built again."""

_MAKES: Final = frozenset({sqlite3.SQLITE_CREATE_TABLE, sqlite3.SQLITE_CREATE_INDEX})
_BELONGS_TO_MAKING: Final = frozenset(
    {
        sqlite3.SQLITE_SELECT,
        sqlite3.SQLITE_READ,
        sqlite3.SQLITE_FUNCTION,
        sqlite3.SQLITE_REINDEX,
    }
)
_CATALOGUE: Final = frozenset({"sqlite_master", "sqlite_schema"})
_CHANGES: Final = frozenset({sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE})


def create_table(connection: sqlite3.Connection, statement: str) -> None:
    """Run one CREATE TABLE or CREATE INDEX. Raises InvalidInput(`invalid_argument`) for anything else, and for errors.

    Called inside a transaction. A table of the log, and a name that a view has or may get, are refused.
    """
    connection.set_authorizer(_may)
    try:
        connection.execute(statement)
    except (sqlite3.Error, sqlite3.Warning) as error:
        message = f"only CREATE TABLE and CREATE INDEX on tables of the program's own are run here: {error}"
        raise InvalidInput("invalid_argument", message) from error
    finally:
        connection.set_authorizer(None)


def _may(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    if action in _MAKES:
        table = second if action == sqlite3.SQLITE_CREATE_INDEX else first
        is_foreign = (table or "").lower() not in OWN_TABLES | VIEWS
        return sqlite3.SQLITE_OK if is_foreign else sqlite3.SQLITE_DENY
    if action in _BELONGS_TO_MAKING or (action in _CHANGES and (first or "").lower() in _CATALOGUE):
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY
