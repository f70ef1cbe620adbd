"""The actions that are crashed: each that ships, and functions for what no shipped action promises.

A subject makes its receiver, makes its action anew in each process, and says which effects its receiver shows. Effects
are looked for at the receiver and never taken from a report, by a mark that tells one effect from another: a row's
number, a line's, a file's inode. So an effect that was done over again shows as a second mark.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import eventlog
from eventlog import Absent, Call, Promise, Recovered
from eventlog.runtime.attempts import AnyAction
from eventlog.runtime.effects import Finding
from eventlog.runtime.failpoints import EFFECT_INSIDE
from tools.campaigns.effects.http_receiver import Receiver

__all__ = ["Subject", "copy_of", "database", "subjects"]

PAYLOAD: Final = "approved technical brief"
_KEYED_TABLE: Final = "CREATE TABLE receipts (op_key TEXT PRIMARY KEY, payload TEXT NOT NULL)"
_OPEN_TABLE: Final = "CREATE TABLE receipts (op_key TEXT NOT NULL, payload TEXT NOT NULL)"


def _nothing(_: Path) -> None:
    """There is nothing to make."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """An action and its receiver, in a folder of their own for each cell. Every function takes that folder."""

    name: str
    promise: Promise

    prepare: Callable[[Path], None] = _nothing
    """Makes the receiver. The log is there already, and closed."""

    action: Callable[[Path], AnyAction]
    """Returns the action as one process makes it."""

    request: Callable[[Path], tuple[Any, str]]
    """Returns the arguments and the target that are approved."""

    marks: Callable[[Path], frozenset[str]]
    """Returns one mark for each effect that the receiver shows."""

    is_of_first: Callable[[Path, Any], bool]
    """Says whether a value is what the first effect returned, or would have."""

    can_be_asked: bool = False
    """Whether the action has an `inspect`."""

    looks_first: bool = False
    """Whether `execute` looks at the target, and so passes no `effect.inside` when the effect is there."""

    is_sent_inside: bool = False
    """Whether at `effect.inside` the effect is out of the hands of this process."""


def subjects(receiver: Receiver) -> list[Subject]:
    """Return every subject."""
    return [
        _record_row(),
        _write_file(),
        _insert_row(),
        _askable_function(),
        _http_request(receiver),
        _opaque_function(),
    ]


def database(folder: Path) -> Path:
    """Return where the log of a cell is."""
    return folder / "runs.db"


@contextmanager
def copy_of(path: Path) -> Iterator[Path]:
    """Copy a database and what lies beside it, as a crash left them: to look at the original would recover it."""
    with tempfile.TemporaryDirectory(prefix="seen-", dir=path.parent) as folder:
        for each in path.parent.glob(f"{path.name}*"):
            if each.is_file() and not each.name.endswith("-shm"):
                shutil.copy(each, folder)
        yield Path(folder) / path.name


# ── actions that ship ─────────────────────────────────────────────────────────────────────────────────────────────────


def _record_row() -> Subject:
    """A row in the log's own database. Its table would take the same op_key twice."""

    def action(_: Path) -> AnyAction:
        return eventlog.RecordRow("receipts", name="record_row")

    return _of_a_row("record_row", Promise.TRANSACTIONAL, action, database, _OPEN_TABLE, looks_first=False)


def _insert_row() -> Subject:
    """A row in another database, whose table takes an op_key once."""

    def action(folder: Path) -> AnyAction:
        return eventlog.InsertRow(_shop(folder), "receipts", name="insert_row")

    return _of_a_row("insert_row", Promise.CHECKABLE, action, _shop, _KEYED_TABLE, looks_first=True)


def _of_a_row(
    name: str,
    promise: Promise,
    action: Callable[[Path], AnyAction],
    place: Callable[[Path], Path],
    table: str,
    *,
    looks_first: bool,
) -> Subject:
    """A row of a table in the database at `place`. It has the same number however often it is found again."""
    return Subject(
        name=name,
        promise=promise,
        prepare=lambda folder: _create(place(folder), table),
        action=action,
        request=lambda _: ({"payload": PAYLOAD}, "receipts"),
        marks=lambda folder: _rows(place(folder)),
        is_of_first=lambda _, value: bool(value == {"rowid": 1}),
        looks_first=looks_first,
    )


def _write_file() -> Subject:
    """A file. It is marked by its inode and its time: one that was made again has others."""

    def brief(folder: Path) -> str:
        return str(folder / "out" / "brief.txt")

    def marks(folder: Path) -> frozenset[str]:
        # Only files that hold exactly what was approved; a temporary one is no effect yet.
        files = [path for path in (folder / "out").glob("*") if not path.name.startswith(".")]
        return frozenset(_file_mark(path) for path in files if path.read_text() == PAYLOAD)

    return Subject(
        name="write_file",
        promise=Promise.CHECKABLE,
        action=lambda _: eventlog.WriteFile(name="write_file"),
        request=lambda folder: ({"content": PAYLOAD}, brief(folder)),
        marks=marks,
        # A file that is found again gives no result.
        is_of_first=lambda folder, value: value is None or bool(value["path"] == brief(folder)),
        looks_first=True,
    )


def _http_request(receiver: Receiver) -> Subject:
    """A request to a receiver in another process that acts once for each key, and repeats its answer."""

    def marks(folder: Path) -> frozenset[str]:
        return frozenset(map(str, receiver.effects(folder.name)))

    def is_of_first(folder: Path, value: Any) -> bool:
        return value is not None and {str(json.loads(value["body"])["effect"])} == marks(folder)

    return Subject(
        name="http_request",
        promise=Promise.KEYED,
        action=lambda _: receiver.action("http_request"),
        request=lambda folder: ({"method": "POST", "json": {"payload": PAYLOAD}}, receiver.url(folder.name)),
        marks=marks,
        is_of_first=is_of_first,
        is_sent_inside=True,
    )


# ── functions ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _askable_function() -> Subject:
    """A function that appends a line to a file that refuses nothing; a second function looks for the line."""

    async def inspect(call: Call) -> Finding:
        is_there = call.op_key in _lines(Path(call.output))
        return Recovered(evidence="its line is there", result={"lines": 1}) if is_there else Absent()

    return _of_a_line("askable_function", Promise.CHECKABLE, inspect)


def _opaque_function() -> Subject:
    """The same function, and nobody can ask."""
    return _of_a_line("opaque_function", Promise.OPAQUE)


def _of_a_line(name: str, promise: Promise, inspect: Callable[[Call], Awaitable[Finding]] | None = None) -> Subject:
    """A function that appends a line to a file; whoever has an `inspect` can be asked for it."""
    return Subject(
        name=name,
        promise=promise,
        action=lambda _: eventlog.action(name, promise=promise, inspect=inspect)(_append_line),
        request=lambda folder: ({}, str(folder / "lines.txt")),
        marks=lambda folder: _numbered(_lines(folder / "lines.txt")),
        is_of_first=lambda _, value: bool(value == {"lines": 1}),
        can_be_asked=inspect is not None,
    )


async def _append_line(call: Call) -> dict[str, int]:
    descriptor = os.open(call.output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        call.reach(EFFECT_INSIDE)
        os.write(descriptor, f"{call.op_key}\n".encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return {"lines": 1}


# ── what receivers show ───────────────────────────────────────────────────────────────────────────────────────────────


def _shop(folder: Path) -> Path:
    return folder / "shop.db"


def _create(path: Path, table: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(table)


def _rows(path: Path) -> frozenset[str]:
    with copy_of(path) as copy, closing(sqlite3.connect(copy)) as connection:
        rows = connection.execute("SELECT rowid, op_key FROM receipts WHERE payload = ?", (PAYLOAD,)).fetchall()
    return frozenset(f"{rowid}:{op_key}" for rowid, op_key in rows)


def _file_mark(path: Path) -> str:
    status = path.stat()
    return f"{path.name}:{status.st_ino}:{status.st_mtime_ns}"


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _numbered(lines: Iterable[str]) -> frozenset[str]:
    return frozenset(f"{number}:{line}" for number, line in enumerate(lines))
