"""How a format is written, piece by piece, so that no log is too large for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from eventlog.audit.export.cloudevents import cloud_event_line
from eventlog.audit.export.csv import CSV_HEADER, csv_line
from eventlog.audit.export.exported_event import ExportedEvent
from eventlog.audit.export.jsonl import json_line
from eventlog.audit.export.parquet import ParquetSpelling

__all__ = ["BINARY", "SPELLINGS", "Spelling", "spelling"]


class Spelling(Protocol):
    """One writing of one export. The bytes of all calls, in order, are the file."""

    def begin(self) -> bytes:
        """Return what stands in front of the first event."""

    def add(self, event: ExportedEvent) -> bytes:
        """Take the next event and return what can be written by now, which may be nothing.

        Raises InvalidInput, with the position, for an event that the format cannot hold.
        """

    def end(self) -> bytes:
        """Return what was kept back, and what stands behind the last event."""


class _Lines:
    """A format of a line an event."""

    def __init__(self, line: Callable[[ExportedEvent], bytes], header: bytes = b"") -> None:
        self._header: Final = header
        self.add: Final = line

    def begin(self) -> bytes:
        return self._header

    def end(self) -> bytes:
        return b""


SPELLINGS: Final[Mapping[str, Callable[[], Spelling]]] = {
    "jsonl": lambda: _Lines(json_line),
    "csv": lambda: _Lines(csv_line, CSV_HEADER),
    "cloudevents": lambda: _Lines(cloud_event_line),
    "parquet": ParquetSpelling,
}
"""The formats by name. Making one raises Misuse(`missing_extra`) where the library that it needs is not installed."""

BINARY: Final = frozenset({"parquet"})
"""Those that are no text."""


def spelling(name: str) -> Spelling:
    """Return a new spelling of the format of this name, one of `SPELLINGS`. Raises Misuse(`missing_extra`)."""
    return SPELLINGS[name]()
