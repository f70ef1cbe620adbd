"""The receivers of many runs that are killed at random, one for each action that ships.

A target counts how often the effect of each run was done, by something that a second effect would add to and that
nothing takes away: receipts beside files, rows whose table takes a payload twice, the numbers of an HTTP receiver.
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Protocol

import eventlog
from eventlog.runtime.attempts import AnyAction
from eventlog.runtime.effects import Call, Executed, Report
from tools.campaigns.effects.http_receiver import Receiver
from tools.campaigns.effects.subjects import copy_of

__all__ = ["FileTarget", "Target", "targets"]

_TABLE: Final = "CREATE TABLE receipts (op_key TEXT NOT NULL, payload TEXT NOT NULL)"
_KEY: Final = "CREATE UNIQUE INDEX receipts_by_key ON receipts (op_key)"


class Target(Protocol):
    """Where the effects of many runs go."""

    name: str

    def prepare(self, folder: Path) -> None:
        """Make what the action needs. The log is there already, and closed."""

    def action(self, folder: Path) -> AnyAction:
        """Return the action as one process makes it."""

    def request(self, folder: Path, run_id: str) -> tuple[Any, str]:
        """Return the arguments and the output of a run."""

    def effects(self, folder: Path, run_ids: Iterable[str]) -> Counter[str]:
        """Return how often the effect of each of these runs was done."""

    def missing(self, folder: Path, run_ids: Iterable[str]) -> list[str]:
        """Return the runs whose effect is not there as it was approved."""

    def torn(self, folder: Path) -> list[str]:
        """Return the runs of which a crash left either effect or record, where these must be one."""


def targets(receiver: Receiver, *, all_is_one: bool = False) -> dict[str, Target]:
    """Return every target by the name of its action.

    With `all_is_one`, which is wrong, a row in another database and its record must be one as well.
    """
    every: list[Target] = [FileTarget(), RowTarget(is_one=all_is_one), OwnRowTarget(), HttpTarget(receiver)]
    return {target.name: target for target in every}


class FileTarget:
    """A file for each run, and a list of receipts of which nothing is ever removed."""

    name = "write_file"

    def prepare(self, folder: Path) -> None:
        """There is nothing to make."""

    def action(self, folder: Path) -> AnyAction:
        """Return the action that adds receipts."""
        return _CountedWriteFile(folder / "receipts")

    def request(self, folder: Path, run_id: str) -> tuple[Any, str]:
        """Return a text of some length, and the run's file."""
        return {"content": _content(run_id)}, str(_file(folder, run_id))

    def effects(self, folder: Path, run_ids: Iterable[str]) -> Counter[str]:
        """Count the receipts. One is missing where the process died between the file and its receipt."""
        path = folder / "receipts"
        receipts = Counter(path.read_text().splitlines() if path.exists() else ())
        return Counter({run_id: receipts[run_id] for run_id in run_ids})

    def missing(self, folder: Path, run_ids: Iterable[str]) -> list[str]:
        """Compare each file with what was approved."""
        return [run_id for run_id in run_ids if not _is_as_approved(_file(folder, run_id), run_id)]

    def torn(self, folder: Path) -> list[str]:
        """A file may be there before its record."""
        return []


class _CountedWriteFile(eventlog.WriteFile):
    """WriteFile that adds a receipt for each file it created."""

    def __init__(self, receipts: Path) -> None:
        super().__init__(name=FileTarget.name)
        self._receipts = receipts

    async def execute(self, call: Call) -> Report:
        """Create the file, then write the receipt."""
        report = await super().execute(call)
        if isinstance(report, Executed):
            descriptor = os.open(self._receipts, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(descriptor, f"{call.run_id}\n".encode())
            os.close(descriptor)
        return report


class RowTarget:
    """A row for each run in another database."""

    name = "insert_row"

    def __init__(self, *, is_one: bool = False) -> None:
        self._is_one: Final = is_one

    def prepare(self, folder: Path) -> None:
        """Make the other database."""
        _execute(folder / "shop.db", _TABLE, _KEY)

    def action(self, folder: Path) -> AnyAction:
        """Return the action."""
        return eventlog.InsertRow(folder / "shop.db", "receipts", name=self.name)

    def request(self, folder: Path, run_id: str) -> tuple[Any, str]:
        """Return a row that names its run."""
        return {"payload": run_id}, "receipts"

    def effects(self, folder: Path, run_ids: Iterable[str]) -> Counter[str]:
        """Count the rows."""
        return _count(folder / "shop.db", run_ids)

    def missing(self, folder: Path, run_ids: Iterable[str]) -> list[str]:
        """Look for the rows."""
        return _absent(self.effects(folder, run_ids))

    def torn(self, folder: Path) -> list[str]:
        """A row may be there before its record, unless that was said to be wrong."""
        return _torn(folder, folder / "shop.db") if self._is_one else []


class OwnRowTarget:
    """A row for each run in the log's own database."""

    name = "record_row"

    def prepare(self, folder: Path) -> None:
        """Make the table."""
        _execute(folder / "runs.db", _TABLE)

    def action(self, folder: Path) -> AnyAction:
        """Return the action."""
        return eventlog.RecordRow("receipts", name=self.name)

    def request(self, folder: Path, run_id: str) -> tuple[Any, str]:
        """Return a row that names its run."""
        return {"payload": run_id}, "receipts"

    def effects(self, folder: Path, run_ids: Iterable[str]) -> Counter[str]:
        """Count the rows. The log must be closed in this process."""
        return _count(folder / "runs.db", run_ids)

    def missing(self, folder: Path, run_ids: Iterable[str]) -> list[str]:
        """Look for the rows."""
        return _absent(self.effects(folder, run_ids))

    def torn(self, folder: Path) -> list[str]:
        """Compare rows and records."""
        return _torn(folder, folder / "runs.db")


class HttpTarget:
    """A request for each run to a receiver in another process."""

    name = "http_request"

    def __init__(self, receiver: Receiver) -> None:
        self._receiver: Final = receiver

    def prepare(self, folder: Path) -> None:
        """There is nothing to make: the receiver runs."""

    def action(self, folder: Path) -> AnyAction:
        """Return the action."""
        return self._receiver.action(self.name)

    def request(self, folder: Path, run_id: str) -> tuple[Any, str]:
        """Return a request to the run's own address."""
        return {"method": "POST", "json": {"run": run_id}}, self._receiver.url(run_id)

    def effects(self, folder: Path, run_ids: Iterable[str]) -> Counter[str]:
        """Ask the receiver."""
        return Counter({run_id: len(self._receiver.effects(run_id)) for run_id in run_ids})

    def missing(self, folder: Path, run_ids: Iterable[str]) -> list[str]:
        """Ask the receiver."""
        return _absent(self.effects(folder, run_ids))

    def torn(self, folder: Path) -> list[str]:
        """A receiver may have acted before there is a record."""
        return []


def _file(folder: Path, run_id: str) -> Path:
    return folder / f"{run_id}.txt"


def _content(run_id: str) -> str:
    return run_id * 50


def _is_as_approved(path: Path, run_id: str) -> bool:
    return path.exists() and path.read_text() == _content(run_id)


def _execute(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def _count(path: Path, run_ids: Iterable[str]) -> Counter[str]:
    with closing(sqlite3.connect(path)) as connection:
        rows = dict(connection.execute("SELECT payload, count(*) FROM receipts GROUP BY payload").fetchall())
    return Counter({run_id: rows.get(run_id, 0) for run_id in run_ids})


def _torn(folder: Path, rows: Path) -> list[str]:
    """Compare rows and records in copies, so that the next process finds what the crash left."""
    with copy_of(rows) as copy, closing(sqlite3.connect(copy)) as connection:
        done = {run_id for (run_id,) in connection.execute("SELECT payload FROM receipts")}
    with copy_of(folder / "runs.db") as copy, closing(sqlite3.connect(copy)) as connection:
        recorded = {run_id for (run_id,) in connection.execute("SELECT run_id FROM runs WHERE status = 'COMPLETED'")}
    return sorted(done ^ recorded)


def _absent(effects: Counter[str]) -> list[str]:
    return [run_id for run_id, count in effects.items() if count == 0]
