"""The table of one projection in SQLite, live or beside the live one.

Everything runs on the connection, and inside the transaction, that the caller hands in.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from math import isfinite
from operator import itemgetter
from typing import Any, Final

from eventlog.errors import InvalidInput
from eventlog.stores.sqlite.schema import OWN_TABLES
from eventlog.stores.sqlite.view_registry import table_name
from eventlog.views import Selection, ViewEntry, ViewEvent
from projections.folding import Cache, Changes, LoadFailed, fold_events
from projections.projection import Key, Projection, Row
from projections.sqlite_views.limits import at_most

__all__ = ["SqliteView", "UnstorableRow"]

_SCHEMA: Final = "SELECT type, sql FROM main.sqlite_schema WHERE name = ? COLLATE NOCASE"

_SQLITE_ROW: Final = 100
_SQLITE_DONE: Final = 101
_OF_THE_ROW: Final = (sqlite3.IntegrityError, sqlite3.InterfaceError, sqlite3.ProgrammingError, sqlite3.DataError)


class UnstorableRow(ValueError):
    """A projection made a row whose values its columns do not take."""


class SqliteView:
    """The table of one projection, named like it."""

    def __init__(self, projection: Projection) -> None:
        if not isinstance(projection, Projection):
            given = getattr(projection, "__qualname__", type(projection).__qualname__)
            raise InvalidInput("invalid_argument", f"a view is made of a projection, an object: `{given}()`?")
        if projection.name in OWN_TABLES:
            raise InvalidInput("invalid_argument", f"{projection.name!r} is the name of a table of the log")
        self._projection: Final = projection
        self._names: Final = tuple(projection.columns)
        self._key_names: Final = projection.key_names()
        self._values: Final = itemgetter(*self._names) if len(self._names) > 1 else lambda row: (row[self._names[0]],)
        self._selection: Final = projection.selection()
        self._shape: Final = _definition(projection)
        self._statements: Final[dict[str, tuple[str, str]]] = {}
        self._takes: Final = [_taken(kind) for kind in projection.columns.values()]
        _try(self)

    @property
    def name(self) -> str:
        """The name of the view and of its table."""
        return self._projection.name

    @property
    def revision(self) -> int:
        """The revision of the projection."""
        return self._projection.revision

    @property
    def shape(self) -> str:
        """The columns and indexes, as they are created."""
        return self._shape

    @property
    def selection(self) -> Selection:
        """The events that may change the view."""
        return self._selection

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns that identify a row."""
        return self._key_names

    @property
    def projection(self) -> Projection:
        """The fold behind the table."""
        return self._projection

    # ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def exists(self, connection: sqlite3.Connection, entry: ViewEntry) -> bool:
        """Say whether the entry's table is there."""
        return connection.execute(_SCHEMA, (table_name(self.name, entry),)).fetchone() is not None

    def is_own(self, connection: sqlite3.Connection, entry: ViewEntry) -> bool:
        """Say whether what has the table's name was created by a view of this shape."""
        found = connection.execute(_SCHEMA, (table_name(self.name, entry),)).fetchall()
        return [(kind, sql[sql.find("(") :]) for kind, sql in found] == [("table", self._columns_sql())]

    def create(self, connection: sqlite3.Connection, entry: ViewEntry) -> None:
        """Create the entry's table, empty, and its indexes, whose names are those of its generation for ever."""
        table = table_name(self.name, entry)
        if entry.state != "live":
            self.drop(connection, entry)  # what is left of a database whose entries somebody has removed
        connection.execute(f"CREATE TABLE main.[{table}] {self._columns_sql()}")
        for number, columns in enumerate(self._projection.indexes):
            index = f"{self.name}__g{entry.generation}_i{number}"
            listed = _listed(name.strip() for name in columns.split(","))
            connection.execute(f"CREATE INDEX main.[{index}] ON [{table}] ({listed})")

    def drop(self, connection: sqlite3.Connection, entry: ViewEntry) -> None:
        """Drop the entry's table, if there is one."""
        connection.execute(f"DROP TABLE IF EXISTS main.[{table_name(self.name, entry)}]")

    def delete_page(self, connection: sqlite3.Connection, entry: ViewEntry, limit: int) -> int:
        """Delete up to `limit` rows of the entry's table; return how many those were."""
        table = f"main.[{table_name(self.name, entry)}]"
        sql = f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} LIMIT ?)"
        return connection.execute(sql, (limit,)).rowcount

    def rename(self, connection: sqlite3.Connection, before: ViewEntry, after: ViewEntry) -> None:
        """Rename the table. What refers to it by name (an SQL view of somebody's) then refers to who has the name."""
        connection.execute("PRAGMA legacy_alter_table=ON")
        try:
            connection.execute(
                f"ALTER TABLE main.[{table_name(self.name, before)}] RENAME TO [{table_name(self.name, after)}]"
            )
        finally:
            connection.execute("PRAGMA legacy_alter_table=OFF")

    # ── folding ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def apply(
        self,
        connection: sqlite3.Connection,
        entry: ViewEntry,
        events: Iterable[ViewEvent],
        cache: Cache | None = None,
    ) -> None:
        """Fold the events into their rows and write each changed row once."""
        self.write(connection, entry, self.fold(connection, entry, events, {} if cache is None else cache))

    def fold(
        self, connection: sqlite3.Connection, entry: ViewEntry, events: Iterable[ViewEvent], cache: Cache
    ) -> Changes:
        """Return what the events change, reading what is not in the cache, and writing nothing."""
        try:
            return fold_events(self._projection, events, _Loader(self, connection, entry), cache)
        except LoadFailed as error:
            raise error.__cause__ or error from None

    def write(self, connection: sqlite3.Connection, entry: ViewEntry, changes: Changes) -> None:
        """Write rows that changed. Raises UnstorableRow for values that the columns do not take."""
        table = table_name(self.name, entry)
        rows = [self._checked(key, row) for key, row in changes.items() if row is not None]
        if rows:
            try:
                connection.executemany(self._spelled(table)[1], rows)
            except (*_OF_THE_ROW, UnicodeError, OverflowError) as error:
                raise UnstorableRow(f"a row does not fit the columns of {self.name!r}: {error}") from error
        if len(rows) < len(changes):
            gone = [_tuple(key) for key, row in changes.items() if row is None]
            connection.executemany(f"DELETE FROM main.[{table}] WHERE {self._where()}", gone)

    def _checked(self, key: Key, row: Row) -> tuple[Any, ...]:
        """Return the values of a row that has the columns of the view and the key that it was folded under."""
        try:
            values: tuple[Any, ...] = self._values(row)
        except (KeyError, TypeError):
            values = ()
        if len(row) != len(self._names) or not values:
            raise UnstorableRow(f"a row of {self.name!r} has the columns {', '.join(map(str, row))}, not its own")
        for name, value, takes in zip(self._names, values, self._takes, strict=True):
            if type(value) not in takes or (type(value) is float and not isfinite(value)):
                message = f"{name!r} of {self.name!r} cannot be {value!r:.80}, a {type(value).__name__}"
                raise UnstorableRow(f"{message}: its column is {self._projection.columns[name]}")
        if values[: len(self._key_names)] != _tuple(key) or None in _tuple(key):
            raise UnstorableRow(
                f"a row of {self.name!r} has the key {values[: len(self._key_names)]}, not {_tuple(key)}"
            )
        return values

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def row(self, connection: sqlite3.Connection, key: Key, entry: ViewEntry | None = None) -> Row | None:
        """Return one row by its key."""
        sql = self._spelled(self.name if entry is None else table_name(self.name, entry))[0]
        found = connection.execute(sql, _tuple(key)).fetchone()
        return None if found is None else dict(zip(self._names, found, strict=True))

    def rows(self, connection: sqlite3.Connection, after: Key | None = None, limit: int = 1000) -> list[Row]:
        """Return up to `limit` rows in the order of their keys, those behind `after` if given."""
        keys = _listed(self._key_names)
        where = "" if after is None else f"WHERE ({keys}) > ({', '.join('?' * len(self._key_names))})"
        arguments = (*(() if after is None else _tuple(after)), at_most(limit))
        return self._found(connection, f"{self._select(None)} {where} ORDER BY {keys} LIMIT ?", arguments)

    def first_rows(self, connection: sqlite3.Connection, entry: ViewEntry, limit: int) -> dict[Key, Row]:
        """Return the first `limit` rows of an entry's table by key, in the order of their keys."""
        keys = self._key_names
        sql = f"{self._select(entry)} ORDER BY {_listed(keys)} LIMIT ?"
        found = self._found(connection, sql, (at_most(limit),))
        return {tuple(row[name] for name in keys): row for row in found}

    def rows_where(self, connection: sqlite3.Connection, column: str, value: Any, limit: int = 1000) -> list[Row]:
        """Return up to `limit` rows that have this value in `column`, in the order of their keys."""
        assert column in self._names, "the column is one of the view's"
        sql = f"{self._select(None)} WHERE [{column}] = ? ORDER BY {_listed(self._key_names)} LIMIT ?"
        return self._found(connection, sql, (value, at_most(limit)))

    def count(self, connection: sqlite3.Connection) -> int:
        """Return how many rows there are."""
        count: int = connection.execute(f"SELECT count(*) FROM main.[{self.name}]").fetchone()[0]
        return count

    def all_rows(self, connection: sqlite3.Connection, table: str, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """Give these columns of the rows of a table with this key, in the order of their keys."""
        return connection.execute(f"SELECT {_listed(columns)} FROM {table} ORDER BY {_listed(self._key_names)}")

    def one_row(
        self, connection: sqlite3.Connection, table: str, columns: Sequence[str], key: Sequence[Any]
    ) -> tuple[Any, ...] | None:
        """Return these columns of the row with this key, or None."""
        sql = f"SELECT {_listed(columns)} FROM {table} WHERE {self._where()}"
        row: tuple[Any, ...] | None = connection.execute(sql, tuple(key)).fetchone()
        return row

    def group(self, connection: sqlite3.Connection, prefix: tuple[str | int, ...], entry: ViewEntry) -> dict[Key, Row]:
        """Return the rows, by key, that have these values in the first columns of the key."""
        where = " AND ".join(f"[{name}] = ?" for name in self._key_names[: len(prefix)])
        found = self._found(connection, f"{self._select(entry)} WHERE {where}", prefix)
        return {tuple(row[name] for name in self._key_names): row for row in found}

    # ── SQL ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _columns_sql(self) -> str:
        columns = [f"[{name}] {kind}" for name, kind in self._projection.columns.items()]
        if len(self._key_names) > 1:
            columns.append(f"PRIMARY KEY ({_listed(self._key_names)})")
        return f"({', '.join(columns)}) STRICT"

    def _found(self, connection: sqlite3.Connection, sql: str, arguments: Sequence[Any]) -> list[Row]:
        return [dict(zip(self._names, values, strict=True)) for values in connection.execute(sql, arguments)]

    def _spelled(self, table: str) -> tuple[str, str]:
        """Return the statements that find and that write a row of a table. Every append passes here."""
        found = self._statements.get(table)
        if found is None:
            find = f"SELECT {_listed(self._names)} FROM main.[{table}] WHERE {self._where()}"
            found = self._statements[table] = (find, self._upsert(table))
        return found

    def _select(self, entry: ViewEntry | None) -> str:
        table = self.name if entry is None else table_name(self.name, entry)
        return f"SELECT {_listed(self._names)} FROM main.[{table}]"

    def _where(self) -> str:
        return " AND ".join(f"[{name}] = ?" for name in self._key_names)

    def _upsert(self, table: str) -> str:
        names, keys = self._names, self._key_names
        others = ", ".join(f"[{name}] = excluded.[{name}]" for name in names if name not in keys)
        action = f"DO UPDATE SET {others}" if others else "DO NOTHING"
        return (
            f"INSERT INTO main.[{table}] ({_listed(names)}) VALUES ({', '.join('?' * len(names))}) "
            f"ON CONFLICT ({_listed(keys)}) {action}"
        )


class _Loader:
    """The rows of one table, for a fold."""

    def __init__(self, view: SqliteView, connection: sqlite3.Connection, entry: ViewEntry) -> None:
        self._view: Final = view
        self._connection: Final = connection
        self._entry: Final = entry

    def row(self, key: Key) -> Row | None:
        """Return the row with this key, or None."""
        with _told_apart(key):
            return self._view.row(self._connection, key, self._entry)

    def group(self, prefix: tuple[str | int, ...]) -> dict[Key, Row]:
        """Return the rows of a group by key."""
        with _told_apart(prefix):
            return self._view.group(self._connection, prefix, self._entry)


@contextmanager
def _told_apart(key: Key) -> Iterator[None]:
    """Tell a key that no column takes, which is the projection's fault, from a database that cannot be read."""
    for value in _tuple(key):
        if not isinstance(value, str | int | float | bytes):  # the driver may call this an error of the database
            raise UnstorableRow(f"no row can have the key {value!r:.80}, a {type(value).__name__}")
    try:
        yield
    except (*_OF_THE_ROW, UnicodeError, OverflowError) as error:
        raise UnstorableRow(f"no row can have this key: {error}") from error
    except sqlite3.Error as error:
        # To Python 3.11 a value that cannot be bound is whatever SQLite did last on this connection: not an error.
        if getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_OK, _SQLITE_ROW, _SQLITE_DONE):
            raise UnstorableRow(f"no row can have the key {key!r:.80}") from error
        raise LoadFailed from error


def _taken(kind: str) -> frozenset[type]:
    """Return the types whose values a column stores as they are: what is converted would not be what was folded."""
    types: dict[str, set[type]] = {
        "TEXT": {str},
        "INTEGER": {int},
        "REAL": {float},
        "BLOB": {bytes},
        "ANY": {str, int, float, bytes},
    }
    may_be_null = "NOT NULL" not in kind and "PRIMARY KEY" not in kind
    return frozenset(types[kind.split(" ")[0]] | ({type(None)} if may_be_null else set()))


def _try(view: SqliteView) -> None:
    """Raise InvalidInput if SQLite does not take the columns."""
    entry = ViewEntry(name=view.name, state="live", revision=1, position=0, generation=1, shape="")
    with closing(sqlite3.connect(":memory:")) as connection:
        try:
            view.create(connection, entry)
        except sqlite3.Error as error:
            raise InvalidInput("invalid_argument", f"the columns of {view.name!r} cannot be created: {error}") from None


def _definition(projection: Projection) -> str:
    columns = [f"{name} {kind}" for name, kind in projection.columns.items()]
    keys = projection.key_names()
    if len(keys) > 1:
        columns.append(f"PRIMARY KEY ({', '.join(keys)})")
    return "; ".join([", ".join(columns), *projection.indexes])


def _listed(names: Iterable[str]) -> str:
    """Return names as SQL lists them. In brackets, so that one may be a keyword, and a missing one is no text."""
    return ", ".join(f"[{name}]" for name in names)


def _tuple(key: Key) -> tuple[Any, ...]:
    return key if isinstance(key, tuple) else (key,)
