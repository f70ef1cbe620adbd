"""Apache Parquet, compressed with Zstandard, written row group by row group.

    position, version, recorded_at_us               int64
    schema_version, stored_schema_version           int32
    stream, type, event_id, actor, log_id,
    correlation_id, causation_id, stored_type,
    redacted                                        string
    recorded_at                                     timestamp in microseconds, UTC; always there
    leaf                                            binary, 32 bytes
    data                                            string, JSON

In the order of `ExportedEvent`. Null: correlation_id, causation_id, stored_type, stored_schema_version and redacted
where there is none, and nothing else. A row group has at most `ROWS` events and about `SIZE_BYTES` of data, so that
memory does not grow with the log.

Needs the extra `parquet`.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import UNSET

from eventlog.audit.export.exported_event import FIELDS, ExportedEvent
from eventlog.errors import Misuse

__all__ = ["ParquetSpelling"]

ROWS: Final = 10_000
SIZE_BYTES: Final = 8 * 1024 * 1024
_ROW_BYTES: Final = 512
"""About what the fields of an event take besides its data."""

_INT64: Final = frozenset({"position", "version", "recorded_at_us", "recorded_at"})
_INT32: Final = frozenset({"schema_version", "stored_schema_version"})
_NULLABLE: Final = frozenset({"correlation_id", "causation_id", "stored_type", "stored_schema_version", "redacted"})


class ParquetSpelling:
    """Collects the events of one row group. Raises Misuse(`missing_extra`) without the extra `parquet`."""

    def __init__(self) -> None:
        self._arrow, parquet = _libraries()
        self._schema: Final = self._arrow.schema([self._field(name) for name in FIELDS])
        self._pieces: Final = _Pieces()
        self._writer: Final = parquet.ParquetWriter(
            self._arrow.PythonFile(self._pieces, mode="w"), self._schema, compression="zstd"
        )
        self._rows: list[list[Any]] = []
        self._size = 0

    def begin(self) -> bytes:
        """Return the magic number."""
        return self._pieces.take()

    def add(self, event: ExportedEvent) -> bytes:
        """Keep the event; return the row group that it completes."""
        row = _row(event)
        self._rows.append(row)
        self._size += len(row[-1]) + _ROW_BYTES
        if len(self._rows) >= ROWS or self._size >= SIZE_BYTES:
            self._write_group()
        return self._pieces.take()

    def end(self) -> bytes:
        """Return the last row group and the footer."""
        if self._rows:
            self._write_group()
        self._writer.close()
        return self._pieces.take()

    def _write_group(self) -> None:
        columns = zip(self._schema, zip(*self._rows, strict=True), strict=True)
        arrays = [self._arrow.array(column, field.type) for field, column in columns]
        self._writer.write_table(self._arrow.Table.from_arrays(arrays, schema=self._schema))
        self._rows, self._size = [], 0

    def _field(self, name: str) -> Any:
        return self._arrow.field(name, self._type(name), nullable=name in _NULLABLE)

    def _type(self, name: str) -> Any:
        arrow = self._arrow
        if name == "recorded_at":
            return arrow.timestamp("us", tz="UTC")
        if name == "leaf":
            return arrow.binary(32)
        return arrow.int64() if name in _INT64 else arrow.int32() if name in _INT32 else arrow.string()


def _row(event: ExportedEvent) -> list[Any]:
    """Return the cells in the order of the columns; `data` is the last."""
    cells = {name: getattr(event, name) for name in FIELDS}
    cells["recorded_at"] = event.recorded_at_us
    cells["leaf"] = bytes.fromhex(event.leaf)
    cells["data"] = bytes(event.data).decode()
    return [None if cell is UNSET else cell for cell in cells.values()]


class _Pieces:
    """A file that is never read: what is written to it is taken away piece by piece."""

    closed = False

    def __init__(self) -> None:
        self._written: list[bytes] = []
        self._position = 0

    def take(self) -> bytes:
        """Return what was written since the last call."""
        taken = b"".join(self._written)
        self._written.clear()
        return taken

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self._written.append(piece)
        self._position += len(piece)
        return len(piece)

    def tell(self) -> int:
        return self._position

    def flush(self) -> None: ...

    def close(self) -> None: ...


def _libraries() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        message = "the format parquet needs the extra `parquet`: install `eventlog-engine[parquet]`"
        raise Misuse("missing_extra", message) from error
    return pyarrow, parquet
