"""The damages: what is done to the files of a log while nobody has it open. Each has a name that makes it again.

flip:FILE:BYTE:BIT       one bit is another
cut:FILE:BYTES           the file ends there
zero:FILE:PAGE           512 bytes are zero, from PAGE * 512 on
wal-of:SEED              the write-ahead log is that of another log, made in the same way
mixed:FILE               the file is that of another log; the other file is not
without:FILE             the file is gone
row:COLUMN:ROW:BIT       one bit of a cell of the table `events` is another, written as a careful forger would
swap:COLUMN:ROW          two neighbouring rows have each other's cell
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from eventlog.stores.sqlite.schema import EVENT_COLUMNS

__all__ = ["SECTOR", "all_cells", "all_cuts", "all_flips", "drop_guards", "flips", "forge", "some_flips", "spoil"]

SECTOR: Final = 512
Files = dict[str, bytes]


def spoil(damage: str, files: Files, others: Files) -> Files:
    """Return the files behind the damage; `others` are those of another log."""
    kind, name, *numbers = damage.split(":")
    match kind:
        case "flip":
            flipped = bytearray(files[name])
            flipped[int(numbers[0])] ^= 1 << int(numbers[1])
            return {**files, name: bytes(flipped)}
        case "cut":
            return {**files, name: files[name][: int(numbers[0])]}
        case "zero":
            start = int(numbers[0]) * SECTOR
            data = files[name]
            return {**files, name: data[:start] + bytes(len(data[start : start + SECTOR])) + data[start + SECTOR :]}
        case "mixed":
            return {**files, name: others[name]}
        case "without":
            return {each: data for each, data in files.items() if each != name}
        case _:
            return files


def some_flips(files: Files, count: int, chance: random.Random) -> Iterator[str]:
    """Give so many flips, most of them of bytes that hold something: most of a small database is empty space."""
    written = [(name, at) for name, data in files.items() for at, byte in enumerate(data) if byte]
    for _ in range(count):
        name, at = chance.choice(written)
        if chance.random() < 0.3:
            name = chance.choice(sorted(files))
            at = chance.randrange(len(files[name]))
        yield f"flip:{name}:{at}:{chance.randrange(8)}"


def all_flips(files: Files, chance: random.Random) -> Iterator[str]:
    """Give one flip, of any of its bits, for every byte of every file."""
    for name, data in files.items():
        for at in range(len(data)):
            yield f"flip:{name}:{at}:{chance.randrange(8)}"


def all_cuts(files: Files) -> Iterator[str]:
    """Give a cut and a zeroed sector at every 512 bytes of every file, and a cut of the last byte."""
    for name, data in files.items():
        for sector in range((len(data) + SECTOR - 1) // SECTOR):
            yield f"cut:{name}:{sector * SECTOR}"
            yield f"zero:{name}:{sector}"
        yield f"cut:{name}:{len(data) - 1}"


def all_cells(rows: int, chance: random.Random) -> Iterator[str]:
    """Give an edit of every cell of the table `events`, and a change of places with the next row."""
    for row in range(1, rows + 1):
        for column in EVENT_COLUMNS:
            yield f"row:{column}:{row}:{chance.randrange(1 << 20)}"
            if row < rows and column != "position":
                yield f"swap:{column}:{row}:0"


def forge(path: Path, damage: str) -> bool:
    """Edit a row as `damage` says; say whether anything was changed."""
    kind, column, row, number = damage.split(":")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        drop_guards(connection)
        try:
            return (_edit if kind == "row" else _swap)(connection, column, int(row), int(number))
        except sqlite3.IntegrityError:  # another row has this place, or this is no value of the column's type
            return False


def drop_guards(connection: sqlite3.Connection) -> None:
    """Do what only somebody without respect does: drop the triggers, and switch the checks off."""
    for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
        connection.execute(f"DROP TRIGGER {name}")
    connection.execute("PRAGMA ignore_check_constraints = ON")


def _edit(connection: sqlite3.Connection, column: str, row: int, number: int) -> bool:
    (value,) = connection.execute(f"SELECT {column} FROM events WHERE position = ?", (row,)).fetchone()
    edits = list(flips(value))
    if not edits:
        return False
    cast = "CAST(? AS TEXT)" if isinstance(value, str) else "?"
    edited = edits[number % len(edits)]
    connection.execute(f"UPDATE events SET {column} = {cast} WHERE position = ?", (edited, row))
    return True


def _swap(connection: sqlite3.Connection, column: str, row: int, number: int) -> bool:
    cells = "SELECT position, CAST({0} AS BLOB), {0} FROM events WHERE position IN (?, ?) ORDER BY position"
    (one, _, first), (two, _, second) = connection.execute(cells.format(column), (row, row + 1)).fetchall()
    if first == second:
        return False
    if column == "version":  # two versions of one stream cannot stand in two rows for a moment
        connection.execute("UPDATE events SET version = 1000000 WHERE position = ?", (one,))
    if column == "event_id":
        connection.execute("UPDATE events SET event_id = zeroblob(16) WHERE position = ?", (one,))
    connection.execute(f"UPDATE events SET {column} = ? WHERE position = ?", (first, two))
    connection.execute(f"UPDATE events SET {column} = ? WHERE position = ?", (second, one))
    return True


def flips(value: Any) -> Iterator[Any]:
    """Give a stored value with each of its bits flipped; the numbers that SQLite can hold, and texts byte by byte."""
    match value:
        case int():
            yield from (value ^ 1 << bit for bit in range(63))
        case bytes():
            for bit in range(8 * len(value)):
                flipped = bytearray(value)
                flipped[bit // 8] ^= 1 << bit % 8
                yield bytes(flipped)
        case str():
            yield from flips(value.encode())
        case None:
            yield from (b"\1" * 16, "x")
