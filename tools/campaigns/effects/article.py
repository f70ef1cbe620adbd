"""The five rows of an article on checkpoints and receipts: two commits, and a crash between them.

A step has two halves: a receipt at a receiver, and the mark `done` in the control database. There are four ways to put
them in order. A way is run in a process that ends with status 91 at the named point, and then again in another process.
What both databases hold is the row: (done, receipts) before and after the second process. Two are wrong on purpose.

    effect_first        receipt, then mark             a crash between: the receipt comes twice
    checkpoint_first    mark, then receipt             a crash between: the receipt never comes
    atomic              both in one transaction        both or neither
    idempotent          receipt by its key, then mark  the receiver knows the key: the receipt comes once

This is no use of the engine: it is the problem that the engine is there for. Only the standard library is needed.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

__all__ = ["ROWS", "Row", "line_of", "perform_row", "wrong_with"]

KEY: Final = "job-17:save-report:v1"
PAYLOAD: Final = "demo-report-17"
EXIT_STATUS: Final = 91
_TIMEOUT_S: Final = 30

_CONTROL: Final = "control.db"
_EFFECT: Final = "effect.db"

_TABLES: Final = """
CREATE TABLE progress (id INTEGER PRIMARY KEY, done INTEGER NOT NULL);
INSERT INTO progress VALUES (1, 0);
CREATE TABLE receipts (op_key TEXT NOT NULL, payload TEXT NOT NULL);
"""
_UNIQUE_KEY: Final = "CREATE UNIQUE INDEX receipts_by_key ON receipts (op_key)"


@dataclass(frozen=True, slots=True)
class Row:
    """One row: how the halves are ordered, where the first process ends, and what must be seen."""

    way: str
    point: str
    before: tuple[int, int]
    after: tuple[int, int]

    @property
    def case(self) -> str:
        """The name of the row, and of its folder."""
        return f"{self.way}-{self.point}"


ROWS: Final = (
    Row("effect_first", "effect", (0, 1), (1, 2)),
    Row("checkpoint_first", "checkpoint", (1, 0), (1, 0)),
    Row("atomic", "in_transaction", (0, 0), (1, 1)),
    Row("atomic", "committed", (1, 1), (1, 1)),
    Row("idempotent", "effect", (0, 1), (1, 1)),
)


def perform_row(row: Row, parent: Path) -> dict[str, Any]:
    """Run both processes of a row in a new folder, and return what they printed and what was seen between and after."""
    folder = parent / row.case
    folder.mkdir()
    _make_databases(folder, row.way)
    first = _run_worker(folder, row.way, row.point)
    before = _seen(folder, row.way)
    replay = _run_worker(folder, row.way, "none")
    after = _seen(folder, row.way)
    return {
        "case": row.case,
        "first_exit": first.returncode,
        "first_stdout": first.stdout,
        "first_stderr": first.stderr,
        "before_replay": before,
        "replay_exit": replay.returncode,
        "replay_stdout": replay.stdout,
        "replay_stderr": replay.stderr,
        "after_replay": after,
    }


def line_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the line that is printed for a row."""
    return {
        "case": record["case"],
        "before": _counts(record["before_replay"]),
        "after": _counts(record["after_replay"]),
        "first_exit": record["first_exit"],
        "replay_exit": record["replay_exit"],
    }


def wrong_with(row: Row, record: Mapping[str, Any]) -> list[str]:
    """Return in what a row is not as the article has it."""
    expected = {
        "case": row.case,
        "before": list(row.before),
        "after": list(row.after),
        "first_exit": EXIT_STATUS,
        "replay_exit": 0,
    }
    line = line_of(record)
    return [
        f"{row.case}: {name} is {line[name]}, not {value}" for name, value in expected.items() if line[name] != value
    ]


def _counts(seen: Mapping[str, Any]) -> list[int]:
    return [seen["done"], len(seen["receipts"])]


def _run_worker(folder: Path, way: str, point: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-X", "utf8", __file__, str(folder), way, point]
    return subprocess.run(command, capture_output=True, encoding="utf-8", timeout=_TIMEOUT_S, check=False)


# ── the databases ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _make_databases(folder: Path, way: str) -> None:
    for path in {_control(folder), _receiver(folder, way)}:
        with closing(_connect(path)) as connection:
            connection.executescript(_TABLES)
            if way == "idempotent":
                connection.execute(_UNIQUE_KEY)


def _seen(folder: Path, way: str) -> dict[str, Any]:
    """Return what new connections find: what is durable, whatever a process believed."""
    with closing(_connect(_control(folder))) as control, closing(_connect(_receiver(folder, way))) as receiver:
        return {
            "done": control.execute("SELECT done FROM progress WHERE id = 1").fetchone()[0],
            "receipts": receiver.execute("SELECT op_key, payload FROM receipts").fetchall(),
        }


def _control(folder: Path) -> Path:
    return folder / _CONTROL


def _receiver(folder: Path, way: str) -> Path:
    """One transaction can hold both halves only in one database."""
    return folder / (_CONTROL if way == "atomic" else _EFFECT)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous=FULL")
    return connection


# ── the worker ────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Step:
    """The two halves of the step, as one process can do them, and the points at which it may end."""

    def __init__(self, folder: Path, way: str, ends_at: str) -> None:
        self.control: Final = _connect(_control(folder))
        self.receiver: Final = self.control if way == "atomic" else _connect(_receiver(folder, way))
        self._ends_at: Final = ends_at

    def is_done(self) -> bool:
        return bool(self.control.execute("SELECT done FROM progress WHERE id = 1").fetchone()[0])

    def mark_done(self) -> None:
        self.control.execute("UPDATE progress SET done = 1 WHERE id = 1")

    def save_receipt(self) -> None:
        self.receiver.execute("INSERT INTO receipts VALUES (?, ?)", (KEY, PAYLOAD))

    def save_receipt_once(self) -> None:
        """Save the receipt unless its key is known; a key that is known with another payload is an error."""
        insert = "INSERT INTO receipts VALUES (?, ?) ON CONFLICT (op_key) DO NOTHING"
        if self.receiver.execute(insert, (KEY, PAYLOAD)).rowcount == 0:
            (known,) = self.receiver.execute("SELECT payload FROM receipts WHERE op_key = ?", (KEY,)).fetchone()
            if known != PAYLOAD:
                raise ValueError(f"the receiver knows {KEY} with another payload")

    def pass_point(self, name: str) -> None:
        if name == self._ends_at:
            _say(event="injected_exit", point=name)
            os._exit(EXIT_STATUS)  # as a crash would: nothing is closed, no handler runs

    def close(self) -> None:
        for connection in {self.control, self.receiver}:
            connection.close()


def _effect_first(step: _Step) -> None:
    step.save_receipt()
    step.pass_point("effect")
    step.mark_done()


def _checkpoint_first(step: _Step) -> None:
    step.mark_done()
    step.pass_point("checkpoint")
    step.save_receipt()


def _atomic(step: _Step) -> None:
    step.control.execute("BEGIN IMMEDIATE")
    step.save_receipt()
    step.pass_point("in_transaction")
    step.mark_done()
    step.control.execute("COMMIT")
    step.pass_point("committed")


def _idempotent(step: _Step) -> None:
    step.save_receipt_once()
    step.pass_point("effect")
    step.mark_done()


_WAYS: Final[Mapping[str, Callable[[_Step], None]]] = {
    "effect_first": _effect_first,
    "checkpoint_first": _checkpoint_first,
    "atomic": _atomic,
    "idempotent": _idempotent,
}


def _work(arguments: Sequence[str]) -> None:
    folder, way, ends_at = arguments
    step = _Step(Path(folder), way, ends_at)
    if step.is_done():
        _say(event="checkpoint_skip")
    else:
        _WAYS[way](step)
        _say(event="step_done")
    step.close()


def _say(**facts: str) -> None:
    print(json.dumps({"pid": os.getpid(), **facts}), flush=True)


if __name__ == "__main__":
    _work(sys.argv[1:])
