"""The actions that write one row of an SQLite table: in the log's own database, or in another one.

`RecordRow` writes in the log's own database, in the transaction that records the result: both are there, or neither is.

`InsertRow` writes in a database of its own, which commits by itself, so a crash can come between. Its table has a
column with a unique index that holds the `op_key`: the row can be there only once, whoever writes it, and a later
attempt finds it, compares it with what was approved, and returns what the first one would have returned. How a row
comes to be:

    1  BEGIN IMMEDIATE, and look for a row with this op_key: there and equal is `Recovered`, different is `Conflicted`
    2  INSERT the row with its op_key
    3  look again: a trigger may have changed, moved or removed it, and then a later attempt would not find it
    4  COMMIT, flushed to the disk (`synchronous=FULL`)                                              <- the effect

Until step 4 every error is `ActionFailed`, unless it keeps a later attempt from looking; an error of the COMMIT means
that it may have happened.

Both insert by `INSERT OR ABORT`: what a table says about a constraint (`ON CONFLICT REPLACE` deletes another row,
`ROLLBACK` ends the transaction) is not in force, for the row nor for what its triggers write.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from typing import Any, Final, Protocol
from urllib.parse import quote

from eventlog.errors import ActionFailed, InvalidInput
from eventlog.runtime.actions.log_files import belongs_to_log
from eventlog.runtime.actions.threads import run_to_the_end
from eventlog.runtime.effects import Call, Conflicted, Executed, Promise, Recovered, Report
from eventlog.runtime.failpoints import EFFECT_INSIDE
from eventlog.runtime.run_streams import printable

__all__ = ["InsertRow", "RecordRow"]

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_CELLS: Final = (str, int, float, type(None))
_MAX_INT: Final = 2**63 - 1


class RecordRow:
    """Insert one row into `table` of the log's own database, together with the event that says so.

    The arguments are the row: column names and their values (text, integers of 64 bits, floats, null). The output is
    the table's name. The column `key_column`, if there is one, gets the op_key. The table belongs to the program, which
    makes it; a table of the log or of one of its views is refused. The result is `{"rowid": …}`.
    """

    promise: Final = Promise.TRANSACTIONAL

    def __init__(self, table: str, *, name: str = "record_row", key_column: str | None = "op_key") -> None:
        self.name: Final = name
        self._table: Final = _checked_name(table, "table")
        self._key_column: Final = None if key_column is None else _checked_name(key_column, "column")

    @property
    def definition(self) -> dict[str, str | None]:
        """The table, and the column of the op_key."""
        return {"table": self._table, "key_column": self._key_column}

    def check(self, call: Call) -> None:
        """Refuse another target than the table, and arguments that are no row."""
        _check_row(call, self._table, self._key_column)

    def write(self, connection: Any, call: Call) -> dict[str, int | None]:
        """Insert the row, and see that it is there as it was approved."""
        key = {} if self._key_column is None else {self._key_column: call.op_key}
        result = _insert(connection, self._table, {**call.args, **key})
        if self._key_column is None:
            found = _look_up(connection, self._table, call.args, "rowid", result["rowid"], give="rowid")
        else:
            column = _quoted(self._key_column)
            found = _look_up(connection, self._table, call.args, column, call.op_key, give=column)
        if found is None or found[1]:
            raise _not_as_approved(self._table, None if found is None else found[1])
        return result


class InsertRow:
    """Insert one row into `table` of the SQLite database at `path`, which is not the log's.

    The arguments are the row: column names and their values (text, integers of 64 bits, floats, null). The output is
    the table's name. The column `key_column` must have a unique index of its own; it gets the op_key. The result is
    `{"rowid": …}`, the same for every later attempt. Waits up to `busy_timeout_s` for other writers.
    """

    promise: Final = Promise.CHECKABLE
    is_fenced: Final = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        table: str,
        *,
        name: str = "insert_row",
        key_column: str = "op_key",
        busy_timeout_s: float = 5.0,
    ) -> None:
        self.name: Final = name
        self._path: Final = os.path.abspath(os.fspath(path))
        self._table: Final = _checked_name(table, "table")
        self._key_column: Final = _checked_name(key_column, "column")
        self._busy_timeout_s: Final = busy_timeout_s

    @property
    def definition(self) -> dict[str, str]:
        """The database, the table, and the column of the op_key."""
        return {"path": printable(self._path), "table": self._table, "key_column": self._key_column}

    def check(self, call: Call) -> None:
        """Refuse another target than the table, arguments that are no row, and the log's own database."""
        _check_row(call, self._table, self._key_column)
        if call.place is not None and _is_of_log(call.place, self._path):
            raise ActionFailed("path_not_allowed", f"{self._path!r} belongs to the log; use RecordRow", path=self._path)

    async def execute(self, call: Call) -> Report:
        """Insert the row, or find it there. If cancelled, wait until the work has ended, and only then raise."""
        self.check(call)
        return await run_to_the_end(lambda: self._perform(call))

    def _perform(self, call: Call) -> Report:
        try:
            connection = self._open()
        except sqlite3.Error as error:
            raise self._before_looking(call, error) from error
        with closing(connection):
            try:
                self._require_unique(connection, call)
                connection.execute("BEGIN IMMEDIATE")
                existing = self._existing(connection, call)
            except sqlite3.Error as error:
                raise self._before_looking(call, error) from error
            if existing is not None:
                return existing
            try:
                call.reach(EFFECT_INSIDE)
                _insert(connection, self._table, {**call.args, self._key_column: call.op_key})
                inserted = self._existing(connection, call)
            except sqlite3.Error as error:
                raise _refused(self._table, error) from error
            if not isinstance(inserted, Recovered):
                with suppress(sqlite3.Error):  # what cannot be rolled back is when the connection closes
                    connection.execute("ROLLBACK")
                raise _not_as_approved(self._table, None if inserted is None else [inserted.reason])
            connection.execute("COMMIT")  # an error here may come after the row is on the disk: it says nothing
            return Executed(result=inserted.result)

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"file:{quote(self._path)}?mode=rw", uri=True, isolation_level=None, timeout=self._busy_timeout_s
        )
        try:
            connection.execute("PRAGMA synchronous=FULL")
        except BaseException:
            connection.close()
            raise
        return connection

    def _require_unique(self, connection: sqlite3.Connection, call: Call) -> None:
        """Without a unique index a second row with the same op_key would be accepted: the promise would be false."""
        key = self._key_column.lower()
        for _, index, is_unique, _, is_partial in connection.execute(f"PRAGMA index_list({_quoted(self._table)})"):
            columns = [(row[2] or "").lower() for row in connection.execute(f"PRAGMA index_info({_quoted(index)})")]
            if is_unique and not is_partial and columns == [key]:
                return
        message = f"the table {self._table!r} of {self._path!r} has no unique index on {self._key_column!r} alone"
        if not call.is_alone:
            raise sqlite3.OperationalError(message)  # an earlier attempt may have met one, and written its row
        raise ActionFailed("target_not_keyed", message, table=self._table)

    def _existing(self, connection: sqlite3.Connection, call: Call) -> Recovered | Conflicted | None:
        """Return what is there under this op_key, compared cell by cell with what was approved."""
        key = _quoted(self._key_column)
        found = _look_up(connection, self._table, call.args, key, call.op_key, give="rowid")
        if found is None:
            return None
        rowid, differing = found
        if differing:
            return Conflicted(
                reason=f"the row with this op_key holds something else in {', '.join(differing)}",
                code="idempotency_conflict",
            )
        return Recovered(evidence={"table": self._table, "op_key": call.op_key}, result={"rowid": rowid})

    def _before_looking(self, call: Call, error: sqlite3.Error) -> Exception:
        """A later attempt that cannot look cannot say what an earlier one did."""
        return error if not call.is_alone else _refused(self._table, error)


def _checked_name(name: str, what: str) -> str:
    if not _NAME.fullmatch(name) or name.lower().startswith("sqlite_"):
        raise InvalidInput("invalid_argument", f"a {what} is named by letters, digits and _, not {name!r:.80}")
    return name


def _check_row(call: Call, table: str, key_column: str | None) -> None:
    if call.output != table:
        raise ActionFailed("path_not_allowed", f"{call.action} writes to {table!r}, not to {call.output!r}")
    args = call.args
    if not isinstance(args, dict) or not args:
        raise ActionFailed("invalid_arguments", f"{call.action} takes a row: columns and their values")
    for name, value in args.items():
        if not _NAME.fullmatch(name) or name.lower() in ((key_column or "").lower(), "rowid", "oid", "_rowid_"):
            raise ActionFailed("invalid_arguments", f"{name!r:.80} is no column that {call.action} may be given")
        if type(value) not in _CELLS or (type(value) is int and abs(value) > _MAX_INT):
            raise ActionFailed("invalid_arguments", f"the column {name!r} cannot hold this {type(value).__name__}")
    if len({name.lower() for name in args}) != len(args):
        raise ActionFailed(
            "invalid_arguments", "a column is named twice, in other letters: SQLite takes one of the two"
        )


class _Executing(Protocol):
    """A connection, or what a transactional action gets of the log's."""

    def execute(self, sql: str, parameters: Sequence[Any], /) -> Any: ...


def _insert(connection: _Executing, table: str, row: Mapping[str, Any]) -> dict[str, int | None]:
    columns, marks = ", ".join(map(_quoted, row)), ", ".join("?" * len(row))
    statement = f"INSERT OR ABORT INTO {_quoted(table)} ({columns}) VALUES ({marks})"
    cursor = connection.execute(statement, tuple(row.values()))
    if cursor.rowcount != 1:
        # A trigger may leave a row out without an error.
        raise ActionFailed("action_failed", f"the table {table!r} took no row, and raised no error", table=table)
    return {"rowid": cursor.lastrowid}


def _look_up(
    connection: _Executing, table: str, row: Mapping[str, Any], column: str, value: Any, *, give: str
) -> tuple[Any, list[str]] | None:
    """Return `give` of the row with this value in `column`, and which cells differ from `row`; None if there is none.

    SQLite compares first: it converts a value of `row` as the column did when it was stored. Then that may have lost
    nothing (https://www.sqlite.org/datatype3.html#type_affinity): an INTEGER column makes 7 of the text "007", and of
    one of twenty digits a float.
    """
    cells = (f"CASE WHEN ({_quoted(name)} COLLATE BINARY) IS ? THEN {_quoted(name)} ELSE x'' END" for name in row)
    statement = f"SELECT {', '.join([give, *cells])} FROM {_quoted(table)} WHERE {column} = ?"
    found = connection.execute(statement, (*row.values(), value)).fetchone()
    if found is None:
        return None
    given, *held = found
    return given, [name for (name, each), cell in zip(row.items(), held, strict=True) if not _is_whole(each, cell)]


def _is_whole(value: Any, cell: Any) -> bool:
    """Say whether a cell holds a value, or what gives it back: "5" for 5, and 5 for "5", but not 5 for "05"."""
    if isinstance(value, str):
        return value == (cell if not isinstance(cell, int | float) else str(cell))
    if isinstance(cell, str):
        return bool(value == type(value)(cell))
    return bool(value == cell)


def _not_as_approved(table: str, differing: list[str] | None) -> ActionFailed:
    how = "cannot be found again" if differing is None else f"differs: {', '.join(differing)}"
    why = "a trigger may have changed it, or a column that holds another type"
    message = f"nothing was written to {table!r}: a row that was just inserted {how}; {why}"
    return ActionFailed("target_not_keyed", message, table=table)


def _refused(table: str, error: sqlite3.Error) -> ActionFailed:
    name = getattr(error, "sqlite_errorname", None) or type(error).__name__
    return ActionFailed("action_failed", f"nothing was written to {table!r}: {error} ({name})", table=table, error=name)


def _is_of_log(place: str, path: str) -> bool:
    folder, name = os.path.split(os.path.realpath(path))
    try:
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False  # there is no such folder, and so nothing of the log in it
    try:
        return belongs_to_log(place, directory, os.fsencode(name))
    finally:
        os.close(directory)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
