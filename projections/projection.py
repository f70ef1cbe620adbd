"""What a projection is: a name, a revision, the events it wants, a table, and a pure `apply`.

A projection answers one kind of question by folding events into rows. It is handed events, never a log: that it cannot
append is a matter of types. Raise `revision` whenever the rows of old events would come out differently; the view is
then built again, beside the one that is there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from inspect import iscoroutinefunction
from typing import Any, ClassVar, Final, Protocol

import msgspec

from eventlog.errors import InvalidInput
from eventlog.views import Selection, ViewEvent

__all__ = ["GroupProjection", "Key", "Merge", "Projection", "Row", "RowProjection"]

Row = dict[str, Any]
"""One row of a view by column name; values are str, int, float, bytes or None."""

Key = str | int | tuple[str | int, ...]
"""What identifies a row: the value of the primary key, or a tuple of its values where it has several columns."""

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,59}")
_KIND: Final = re.compile(r"(TEXT|INTEGER|REAL|BLOB|ANY)(?=( NOT NULL| PRIMARY KEY)*$).*")


class Merge(Protocol):
    """Makes one row of two with the same key."""

    def __call__(self, earlier: Row, later: Row, /) -> Row:
        """Return the row of both parts of the log."""


class Projection:
    """What all projections say of themselves, as class attributes. Derive from `RowProjection` or `GroupProjection`.

    Raises InvalidInput(`invalid_argument`) when the class is made, if a name or a column cannot be one.
    """

    name: ClassVar[str]
    """The name of the view and of its table: `snake_case`, up to 60 characters."""

    revision: ClassVar[int] = 1
    """Raised whenever the meaning of the rows changes."""

    event_types: ClassVar[frozenset[str] | Mapping[str, type[msgspec.Struct]]]
    """The event types that may change a row; as a mapping, with the narrow Struct that each is decoded to."""

    columns: ClassVar[Mapping[str, str]]
    """Column names and their SQLite types, those of the key first: `{"customer": "TEXT PRIMARY KEY", …}`."""

    key_columns: ClassVar[int] = 1
    """How many of the first columns are the key. With more than one, their types do not say PRIMARY KEY."""

    stream_prefix: ClassVar[str] = ""
    """Only events of streams whose names begin so."""

    indexes: ClassVar[tuple[str, ...]] = ()
    """Columns to be searched by: one index each; several columns of one index are separated by commas."""

    merge: ClassVar[Merge | None] = None
    """For a fold whose rows can be made from two parts of the log: the row of the earlier part and that of the later,
    to one row. The log is then folded by several processes at once. A static method."""

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        if getattr(cls, "columns", None) is not None and getattr(cls, "name", None) is not None:
            _check(cls)

    @classmethod
    def selection(cls) -> Selection:
        """Return which events the view is folded from."""
        types = cls.event_types
        shapes = types if isinstance(types, Mapping) else {}
        return Selection(frozenset(types), cls.stream_prefix, shapes)

    @classmethod
    def key_names(cls) -> tuple[str, ...]:
        """Return the names of the key's columns."""
        return tuple(cls.columns)[: cls.key_columns]


class RowProjection(Projection):
    """A fold in which an event changes one row: `key` says which, `apply` makes the row as it is then."""

    def key(self, event: ViewEvent) -> Key | None:
        """Return the key of the row that this event concerns, or None if it concerns none."""
        raise NotImplementedError

    def apply(self, row: Row | None, event: ViewEvent) -> Row | None:
        """Return the row as it is after `event`, None for no row. Pure; the given row is not changed."""
        raise NotImplementedError


class GroupProjection(Projection):
    """A fold in which an event may change several rows of one group: those that have the first columns of the key in
    common, as many as `group_columns`.

    All rows of a group are read for an event, so a group is to stay small. With two columns, of which the second tells
    the groups of one owner apart, an event that concerns them all may still name the first alone.
    """

    key_columns: ClassVar[int] = 2

    group_columns: ClassVar[int] = 1
    """How many of the key's columns the rows of a group have in common: 1 or 2."""

    def group(self, event: ViewEvent) -> str | int | tuple[str | int, ...] | None:
        """Return the values of the first key columns of the rows that this event may change, or None for none."""
        raise NotImplementedError

    def apply(self, rows: Mapping[Key, Row], event: ViewEvent) -> Iterable[Row]:
        """Return the rows, by whole key in `rows`, that are new or other than before. Pure; rows are not changed."""
        raise NotImplementedError


def _check(cls: type[Projection]) -> None:
    if type(cls.name) is not str or not _NAME.fullmatch(cls.name) or "__" in cls.name or cls.name.startswith("sqlite_"):
        raise _invalid(cls, f"{cls.name!r} is no name of a view: {_NAMES}")
    if isinstance(getattr(cls, "event_types", ()), str):
        raise _invalid(cls, "`event_types` is a set of event types, not one text")
    if not all(type(each) is str for each in getattr(cls, "event_types", ())):
        raise _invalid(cls, "`event_types` are names, as `@eventlog.event(name)` gives them")
    if type(cls.revision) is not int or cls.revision < 1:
        raise _invalid(cls, f"a revision is an int from 1, not {cls.revision!r}")
    if not 1 <= cls.key_columns <= len(cls.columns):
        raise _invalid(cls, f"{cls.key_columns} of {len(cls.columns)} columns cannot be the key")
    for column, kind in cls.columns.items():
        if not _NAME.fullmatch(column):
            raise _invalid(cls, f"{column!r} is no name of a column: {_NAMES}")
        if not _KIND.fullmatch(kind):
            raise _invalid(
                cls,
                f"the column {column!r} is of the type {kind!r}; it is TEXT, INTEGER, REAL, BLOB or ANY, "
                "with NOT NULL or PRIMARY KEY behind it",
            )
    for index in cls.indexes:
        if not {name.strip() for name in index.split(",")} <= set(cls.columns):
            raise _invalid(cls, f"the index {index!r} names something that is no column")
    if "PRIMARY KEY" not in next(iter(cls.columns.values())) and cls.key_columns == 1:
        raise _invalid(cls, "the first column is the key, so its type ends with PRIMARY KEY")
    for method in ("key", "group", "apply"):
        if iscoroutinefunction(getattr(cls, method, None)):
            raise _invalid(cls, f"`{method}` is a coroutine function; a fold is pure and waits for nothing")


_NAMES: Final = "a-z, 0-9 and single _ from a letter on, up to 60 characters"


def _invalid(cls: type[Projection], message: str) -> InvalidInput:
    return InvalidInput("invalid_argument", f"{cls.__qualname__}: {message}")
