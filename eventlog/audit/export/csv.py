"""CSV as RFC 4180 has it: a header, commas, CRLF, UTF-8 without a byte order mark.

A column each for the fields of `ExportedEvent`, in that order; `data` is one JSON text. A cell without a value is
empty: no field is ever an empty text. A cell is quoted if it holds a comma, a quote or a line break, or has outer
space; quotes in it are doubled.

Safe to open in a spreadsheet: no text is taken for a formula. A text that begins with one of = + - @, their full-width
forms, TAB, CR or LF, also behind spaces and invisible characters, gets one apostrophe in front; so does a text that
begins with an apostrophe. **To get the text back, take one apostrophe from each cell that begins with one.** Numbers
are left alone, a negative number in `data` among them. This holds for readers that split at commas: one that is told
to split at something else has other cells than these.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import UNSET, Raw

from eventlog.audit.export.exported_event import FIELDS, ExportedEvent

__all__ = ["CSV_HEADER", "csv_line", "guarded", "unguarded"]

_END: Final = "\r\n"
_SKIPPED: Final = r"\s\x00-\x20\x7f-\xa0\xad\u180e\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff"
"""What a spreadsheet may pass over, or not show, before it looks at a cell: spaces, controls, invisible characters."""
_DANGEROUS: Final = re.compile(rf"'|[{_SKIPPED}]*[=+\-@\uff1d\uff0b\uff0d\uff20\t\r\n]")
_NUMBER: Final = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_QUOTED: Final = re.compile(r'[,"\r\n]|\A\s|\s\Z')

_HARMLESS: Final = frozenset(FIELDS) - {"stream", "type", "actor", "correlation_id", "stored_type", "data"}
"""Numbers, digits and times: what our own code has spelled."""

CSV_HEADER: Final = (",".join(FIELDS) + _END).encode()
"""The first line."""


def csv_line(event: ExportedEvent) -> bytes:
    """Return the event as one line, or as several if a cell holds a line break."""
    return (",".join([_cell(name, getattr(event, name)) for name in FIELDS]) + _END).encode()


def guarded(text: str) -> str:
    """Return a text as no spreadsheet takes it for a formula."""
    return f"'{text}" if _DANGEROUS.match(text) else text


def unguarded(cell: str) -> str:
    """Return the text that a cell stands for: the inverse of `guarded`."""
    return cell.removeprefix("'")


def _cell(name: str, value: object) -> str:
    if value is None or value is UNSET:
        return ""
    if name in _HARMLESS:
        return str(value)
    text = str(value, "utf-8") if isinstance(value, Raw) else str(value)
    return text if name == "data" and _NUMBER.fullmatch(text) else _quoted(guarded(text))


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if _QUOTED.search(text) else text
