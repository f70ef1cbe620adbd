"""Tables that belong to the program and lie in the log's database, so that an effect can be one with its event."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Set
from functools import partial
from typing import Final

from eventlog.errors import InvalidInput
from eventlog.stores.sqlite.foreign_write import kept_tables

__all__ = ["create_table"]

VIEWS: Final = frozenset({"approvals", "effects", "runs", "timeline", "usage"})
"""Names of views that the log has or may get: their tables are dropped when they are built again."""
_OF_A_BUILD: Final = re.compile(r".+__g[0-9]+(_i[0-9]+)?")
"""Names that builds of views, and their indexes, have or will have."""

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
    connection.set_authorizer(partial(_may, kept_tables(connection) | VIEWS))
    try:
        connection.execute(statement)
    except (sqlite3.Error, sqlite3.Warning) as error:
        message = f"only CREATE TABLE and CREATE INDEX on tables of the program's own are run here: {error}"
        raise InvalidInput("invalid_argument", message) from error
    finally:
        connection.set_authorizer(None)


def _may(kept: Set[str], action: int, first: str | None, second: str | None, *_: str | None) -> int:
    if action in _MAKES:
        names = {(name or "").lower() for name in (first, second)}
        is_foreign = kept.isdisjoint(names) and not any(map(_OF_A_BUILD.fullmatch, names))
        return sqlite3.SQLITE_OK if is_foreign else sqlite3.SQLITE_DENY
    if action in _BELONGS_TO_MAKING or (action in _CHANGES and (first or "").lower() in _CATALOGUE):
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY
