#!/usr/bin/env python3
"""Every promise at every crash point, in real processes; then five rows of an article on checkpoints and receipts.

    python3 tools/crash_matrix.py [NEW-DIRECTORY]

First ours. For each action and each failpoint of the engine a process resumes an approved run and ends there, by exit
status 91 or by SIGKILL; another process resumes the run; a third asks again, or settles what nobody knows. One line:

    {"promise", "action", "point", "how", "before", "after", "effects", "result"}

`before` and `after` are the run in its log, and the effects that its receiver shows, on either side of the second
process; `effects` is how many there have been in the end; `result` is what the second process answered. An outcome that
nobody knows has `reconciled` as well: the verdict of a person, and what it led to.

Then the article's five rows (`campaigns/effects/article.py`), two of them wrong on purpose, each with its exact counts:

    {"case", "before": [done, receipts], "after": [done, receipts], "first_exit", "replay_exit"}

The last line says `"assertions": "passed"` if everything was as it must be, and the exit status is 0 then, otherwise 1.
Databases, files and `results.json`, which holds what all workers of the article printed, stay in the new directory, a
temporary one by default; a directory that exists is refused. `--control NAME` breaks something on purpose, and the
matrix has to say so: a receiver that forgets its keys, an engine that records a result before the effect.

Works from any folder and with any Python: it continues in the project's `.venv` (`python3 tools/dev.py setup`). Until
then only the standard library is imported.
"""

from __future__ import annotations

import argparse
import json
import platform
import sqlite3
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this is a program: it runs from a clone

from tools.environment import continue_in_environment

if TYPE_CHECKING:
    from tools.campaigns.effects.cells import Cell

__all__ = ["main"]

CONTROLS = ("forgetful-receiver", "result-first")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the matrix; the exit status says whether everything was as it must be, 2 that it was not begun."""
    options = _parser().parse_args(arguments)
    try:
        output = _new_directory(options.directory)
    except OSError as error:
        print(f"crash_matrix.py: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    cells = list(_ours(output / "ours", options.control))
    _say(_summary(cells))
    records, wrong_rows = _the_article(output)
    wrong = [f"{cell.name}: {each.what}" for cell in cells for each in cell.wrong] + wrong_rows
    verdict = "failed" if wrong else "passed"
    results = {
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "platform": platform.platform(),
        "cells": [cell.line() for cell in cells],
        "cases": records,
        "wrong": wrong,
        "assertions": verdict,
    }
    (output / "results.json").write_text(json.dumps(results, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    _say({**({"wrong": wrong} if wrong else {}), "assertions": verdict, "output": str(output)})
    return 1 if wrong else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", nargs="?", metavar="NEW-DIRECTORY", help="where everything is kept")
    parser.add_argument("--control", choices=CONTROLS, help="break this, and crash only the action that it concerns")
    return parser


def _new_directory(wanted: str | None) -> Path:
    """Return a directory that was made now. Raises OSError for one that exists."""
    if wanted is None:
        return Path(tempfile.mkdtemp(prefix="crash-matrix-"))
    path = Path(wanted).resolve()
    path.mkdir(parents=True)
    return path


def _ours(parent: Path, control: str | None) -> Iterable[Cell]:
    """Perform every action at every failpoint in both ways, and print each."""
    from eventlog.runtime.failpoints import FAILPOINTS
    from tools.campaigns.effects.cells import HOWS, Crash, perform, records_result_first
    from tools.campaigns.effects.http_receiver import receiving
    from tools.campaigns.effects.subjects import subjects

    concerned = {"forgetful-receiver": "http_request", "result-first": "write_file"}.get(control or "")
    spoil = records_result_first if control == "result-first" else None
    with receiving(forgets=control == "forgetful-receiver") as receiver:
        for subject in subjects(receiver):
            if concerned in (None, subject.name):
                for point in FAILPOINTS:
                    for how in HOWS:
                        cell = perform(subject, [Crash(point, how)], parent, spoil)
                        _say(cell.line())
                        yield cell


def _summary(cells: Sequence[Cell]) -> dict[str, Any]:
    """Return how many cells there were, and list each outcome that nobody knew, with what a person made of it."""
    unknown = {cell.name: cell.settled["verdict"] for cell in cells if cell.settled is not None}
    return {
        "cells": len(cells),
        "most_effects": max(len(cell.marks) for cell in cells),
        "unknown": unknown,
        "unexplained": [cell.name for cell in cells if cell.wrong],
    }


def _the_article(output: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Perform the article's rows, print each, and return what was seen and what was wrong."""
    from tools.campaigns.effects.article import ROWS, line_of, perform_row, wrong_with

    records: list[dict[str, Any]] = []
    wrong: list[str] = []
    for row in ROWS:
        record = perform_row(row, output)
        _say(line_of(record))
        records.append(record)
        wrong += wrong_with(row, record)
    return records, wrong


def _say(line: dict[str, Any]) -> None:
    print(json.dumps(line, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    continue_in_environment()
    sys.exit(main())
