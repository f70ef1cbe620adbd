"""Compares two tables of one view row by row, in the order of their keys, and says what differs first."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

import msgspec

from projections.projection import Row
from projections.sqlite_views.table import SqliteView

__all__ = ["Comparison", "Difference", "common_columns", "compare_again", "compare_tables"]

_END: Final = None

Values = tuple[Any, ...]


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A row that is not what the log says. `stored` or `expected` is None where the row exists on one side only."""

    key: str
    columns: list[str]
    stored: Row | None
    expected: Row | None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What came of comparing a view: how many rows were looked at and differ, and the first differences."""

    rows: int
    differing: int
    differences: list[Difference]
    keys: list[Values] = []
    """The keys of the rows in `differences`."""


def compare_tables(
    connection: sqlite3.Connection,
    view: SqliteView,
    stored: str,
    expected: str,
    *,
    limit: int = 100,
    columns: Sequence[str] | None = None,
) -> Comparison:
    """Compare the table `stored` with `expected`; keep up to `limit` differences.

    Both have the view's columns, or at least `columns`, the key first.
    """
    names = list(columns or view.projection.columns)
    rows, differing = 0, 0
    kept: list[Difference] = []
    keys: list[Values] = []
    pairs = _paired(view.all_rows(connection, stored, names), view.all_rows(connection, expected, names), view)
    for old, new in pairs:
        rows += 1
        if _is_same(old, new):
            continue
        differing += 1
        if len(kept) < limit:
            kept.append(_difference(view, names, old, new))
            keys.append((old or new or ())[: len(view.key_columns)])
    return Comparison(rows=rows, differing=differing, differences=kept, keys=keys)


def compare_again(
    connection: sqlite3.Connection,
    view: SqliteView,
    stored: str,
    expected: str,
    before: Comparison,
    columns: Sequence[str],
) -> Comparison:
    """Look again at the rows that differed before, now that both tables are at one position."""
    kept: list[Difference] = []
    keys: list[Values] = []
    for key in before.keys:
        old = view.one_row(connection, stored, columns, key)
        new = view.one_row(connection, expected, columns, key)
        if not _is_same(old, new):
            kept.append(_difference(view, columns, old, new))
            keys.append(key)
    unseen = before.differing - len(before.keys)
    return Comparison(rows=before.rows, differing=len(kept) + unseen, differences=kept, keys=keys)


def common_columns(connection: sqlite3.Connection, view: SqliteView, table: str) -> list[str]:
    """Return the columns of the view that the table has too, or none if it lacks one of the key."""
    found = {name for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))}
    names = [name for name in view.projection.columns if name in found]
    return names if found.issuperset(view.key_columns) else []


def _is_same(old: Values | None, new: Values | None) -> bool:
    """Say whether two rows are equal: to Python 1 and 1.0 are, and they are not the same row."""
    return old == new and _types(old) == _types(new)


def _is_same_value(old: Any, new: Any) -> bool:
    return type(old) is type(new) and bool(old == new)


def _paired(
    left: Iterator[Values], right: Iterator[Values], view: SqliteView
) -> Iterator[tuple[Values | None, Values | None]]:
    """Give the rows of both sides by key, side by side; None where a side has no row with the key."""
    width = len(view.key_columns)
    old, new = next(left, _END), next(right, _END)
    while old is not None or new is not None:
        if new is None or (old is not None and _order(old[:width]) < _order(new[:width])):
            yield old, None
            old = next(left, _END)
        elif old is None or _order(new[:width]) < _order(old[:width]):
            yield None, new
            new = next(right, _END)
        else:
            yield old, new
            old, new = next(left, _END), next(right, _END)


def _order(key: Values) -> tuple[Any, ...]:
    """Return what sorts in Python as the key does in SQLite: NULL, numbers, text by its UTF-8 bytes, then BLOBs."""
    return tuple(
        (0, 0)
        if value is None
        else (1, value)
        if isinstance(value, int | float)
        else (2, value.encode("utf-8", "surrogateescape"))
        if isinstance(value, str)
        else (3, value)
        for value in key
    )


def _types(values: Values | None) -> list[type] | None:
    return None if values is None else [type(value) for value in values]


def _difference(view: SqliteView, names: Sequence[str], old: Values | None, new: Values | None) -> Difference:
    stored, expected = _row(names, old), _row(names, new)
    columns = [
        name for at, name in enumerate(names) if old is None or new is None or not _is_same_value(old[at], new[at])
    ]
    either = stored or expected or {}
    key = ", ".join(str(either[name]) for name in islice(names, len(view.key_columns)))
    return Difference(key=key, columns=columns, stored=stored, expected=expected)


def _row(names: Sequence[str], values: Values | None) -> Row | None:
    return None if values is None else dict(zip(names, values, strict=True))
