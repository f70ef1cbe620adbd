"""The steps of a process in its storage: all are heard of, and one that ends a process is not done."""

from __future__ import annotations

import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from eventlog.runtime.failpoints import CRASH_STATUS
from tools.campaigns.failpoints.steps import Steps
from tools.campaigns.processes import child


def works(folder: str, end_at: str, how: str, every: str) -> int:
    """Make, link and remove a file, and insert two rows in one transaction; return how many steps that took."""
    steps = Steps(int(end_at) or None, how, every_statement=bool(every))
    steps.watch()
    os.close(os.open(f"{folder}/made", os.O_CREAT | os.O_WRONLY))
    os.close(os.open(f"{folder}/made", os.O_RDONLY))  # no step: nothing changes
    os.link(f"{folder}/made", f"{folder}/linked")
    os.remove(f"{folder}/made")
    with closing(sqlite3.connect(f"{folder}/rows.db", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE rows (n INTEGER)")
        connection.execute("BEGIN")
        connection.execute("INSERT INTO rows VALUES (1)")
        connection.execute("INSERT INTO rows VALUES (2)")
        connection.execute("COMMIT")
    return steps.count


def seen(folder: Path) -> tuple[bool, bool, int | None]:
    """Return whether the file has its first and its second name, and how many rows there are, None without a table."""
    rows = None
    if (folder / "rows.db").exists():
        with closing(sqlite3.connect(folder / "rows.db")) as connection:
            if connection.execute("SELECT 1 FROM sqlite_schema").fetchone():
                (rows,) = connection.execute("SELECT count(*) FROM rows").fetchone()
    return (folder / "made").exists(), (folder / "linked").exists(), rows


def test_a_process_that_nothing_ends_takes_every_step(tmp_path: Path) -> None:
    assert child.run(works, tmp_path, 0, "SIGKILL", "").result == 5, "made, linked, removed, BEGIN and COMMIT"
    assert seen(tmp_path) == (False, True, 2)


@pytest.mark.parametrize(
    ("end_at", "left"),
    [
        (1, (False, False, None)),
        (2, (True, False, None)),
        (3, (True, True, None)),
        (4, (False, True, 0)),
        (5, (False, True, 0)),
    ],
)
def test_a_process_ends_in_front_of_its_step(tmp_path: Path, end_at: int, left: tuple[bool, bool, int | None]) -> None:
    assert child.run(works, tmp_path, end_at, "SIGKILL", "").returncode == -signal.SIGKILL
    assert seen(tmp_path) == left


def test_with_every_statement_what_is_inside_of_a_transaction_counts_as_well(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "ended").mkdir()
    assert child.run(works, tmp_path / "whole", 0, "exit", "every").result == 8
    assert child.run(works, tmp_path / "ended", 4, "exit", "every").returncode == CRASH_STATUS
    assert seen(tmp_path / "ended") == (False, True, None), "the table is not made"
