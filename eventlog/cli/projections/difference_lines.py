"""Rows of a view that are not what the log says: as JSON, as lines for people, as fields for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from eventlog.cli.output import grouped
from eventlog.cli.text import shortened, visible
from projections import Difference, Row

__all__ = ["difference_documents", "difference_fields", "difference_lines", "row_facts"]

_VALUE: Final = 160
"""How many characters of a value are shown to people; JSON has all."""


def difference_documents(differences: Sequence[Difference]) -> list[dict[str, Any]]:
    """Return the rows as JSON has them; a BLOB is written as SQL spells it."""
    return [
        {
            "key": each.key,
            "columns": list(each.columns),
            "stored": row_facts(each.stored),
            "expected": row_facts(each.expected),
        }
        for each in differences
    ]


def difference_lines(differences: Sequence[Difference], differing: int) -> Iterator[str]:
    """Give the rows for people: key, column, what is stored and what the log says."""
    for each in differences:
        if each.stored is None or each.expected is None:
            yield f"row {each.key!r} is {'in the log, but not in the view' if each.stored is None else _ONLY_STORED}"
            continue
        yield f"row {each.key!r}:"
        for column in each.columns:
            yield f"    {column}: stored {_text(each.stored[column])}, expected {_text(each.expected[column])}"
    if differing > len(differences):
        yield f"… and {grouped(differing - len(differences))} more rows"


_ONLY_STORED: Final = "in the view, but not in the log"


def difference_fields(name: str, differences: Sequence[Difference]) -> Iterator[str]:
    """Give the rows as tab-separated lines: view, key, column, stored, expected; `*` is a row that one side lacks."""
    for each in differences:
        if each.stored is None or each.expected is None:
            sides = ("-", "row") if each.stored is None else ("row", "-")
            yield _fields(name, each.key, "*", *sides)
            continue
        for column in each.columns:
            yield _fields(name, each.key, column, _json(each.stored[column]), _json(each.expected[column]))


def row_facts(row: Row | None) -> Row | None:
    """Return a row whose values JSON can hold."""
    return None if row is None else {name: _plain(value) for name, value in row.items()}


def _fields(name: str, *values: str) -> str:
    return "\t".join(("difference", visible(name), *map(visible, values)))


def _text(value: Any) -> str:
    return shortened(repr(value) if isinstance(value, str) else _json(value), _VALUE)


def _json(value: Any) -> str:
    return json.dumps(_plain(value), ensure_ascii=False)


def _plain(value: Any) -> Any:
    return f"x'{value.hex()}'" if isinstance(value, bytes) else value
