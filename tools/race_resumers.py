"""Races of several processes that resume one run at the same moment, with effects counted at a receiver that cannot
refuse.

    python tools/race_resumers.py [--races N] [--resumers N] [--without-expected-version] [--seed N]

Each race is a fresh run, approved, whose action adds one line to a file outside the log. All processes are told its id
at once. Exactly one line may be there afterwards, and every other process must have been told `run_conflict` or
`already_completed`. `--without-expected-version` is the negative control: it drops the expectation from the append of
the intent, and doubles appear.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import eventlog
from eventlog.errors import EventLogError
from eventlog.log import Append, AppendResult, Expect
from eventlog.runtime.effects import Call, Executed, Promise
from eventlog.runtime.failpoints import INTENT_BEFORE_COMMIT
from eventlog.stores.sqlite import SqliteLog

__all__ = ["main"]

ACTION = "add_line"


class AddLine:
    """Adds one line to the target. It has no key and cannot be asked: only the log can keep it from happening twice."""

    name = ACTION
    promise = Promise.OPAQUE

    def check(self, call: Call) -> None:
        """Nothing to refuse."""

    async def execute(self, call: Call) -> Executed:
        """Append a line in one write."""
        descriptor = os.open(call.output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, f"{call.run_id} {os.getpid()}\n".encode())
        os.close(descriptor)
        return Executed()


class UncheckedLog:
    """The negative control: a log that forgets the version that its caller expected."""

    def __init__(self, log: SqliteLog) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append_reserved(
        self, appends: Sequence[Append], *, checks: Sequence[tuple[str, Expect]] = (), actor: str | None = None
    ) -> list[AppendResult]:
        """Append wherever the stream is."""
        anywhere = [Append(append.stream, append.events, Expect.any()) for append in appends]
        return await self._log.append_reserved(anywhere, checks=checks, actor=actor)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the races and print one JSON object; the exit status says whether every race had exactly one effect."""
    options = _parser().parse_args(arguments)
    if options.resumer is not None:
        asyncio.run(_resume_what_comes(options.resumer, options.without_expected_version))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(_race(Path(folder), options))
    print(json.dumps(report, sort_keys=True))
    return 0 if report["doubles"] == 0 and report["missing"] == 0 and not report["unexpected"] else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--races", type=int, default=1000)
    parser.add_argument("--resumers", type=int, default=2)
    parser.add_argument("--without-expected-version", action="store_true")
    parser.add_argument("--resumer", metavar="DB", help=argparse.SUPPRESS)
    return parser


async def _race(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    database = folder / "race.db"
    await _prepare(database, folder, options.races)
    resumers = [_spawn(database, options.without_expected_version) for _ in range(options.resumers)]
    answers: list[list[str]] = []
    try:
        for resumer in resumers:
            assert _read(resumer) == "ready", "a resumer did not start"
        for number in range(options.races):
            for resumer in resumers:
                _write(resumer, f"run-{number}")
            answers.append([_read(resumer) for resumer in resumers])
    finally:
        for resumer in resumers:
            resumer.communicate(timeout=30)
    return _report(folder, answers)


async def _prepare(database: Path, folder: Path, races: int) -> None:
    async with eventlog.open(database, durability="normal") as log:
        runner = eventlog.Runner(log)
        for number in range(races):
            proposal = eventlog.propose(ACTION, {}, str(folder / f"{number}.lines"))
            await runner.propose(f"run-{number}", proposal)
            await runner.approve(f"run-{number}", proposal.hash)


def _spawn(database: Path, is_unchecked: bool) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--resumer", str(database)]
    if is_unchecked:
        command.append("--without-expected-version")
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


async def _resume_what_comes(database: str, is_unchecked: bool) -> None:
    """The resumer's side: one run id a line in, one answer a line out."""
    async with eventlog.open(database) as log:
        used: Any = UncheckedLog(log) if is_unchecked else log
        runner = eventlog.Runner(used, actions=[AddLine()], reach=_linger if is_unchecked else lambda name: None)
        print("ready", flush=True)
        for line in sys.stdin:
            print(await _resume(runner, line.strip()), flush=True)


def _linger(name: str) -> None:
    if name == INTENT_BEFORE_COMMIT:  # wide enough for the other process to have read the same version
        import time

        time.sleep(0.005)


async def _resume(runner: eventlog.Runner, run_id: str) -> str:
    try:
        return (await runner.resume(run_id)).result or ""
    except EventLogError as error:
        return error.code


def _report(folder: Path, answers: list[list[str]]) -> dict[str, Any]:
    counts = [_lines(folder / f"{number}.lines") for number in range(len(answers))]
    told = Counter(answer for race in answers for answer in race)
    expected = {"executed", "run_conflict", "already_completed"}
    return {
        "races": len(answers),
        "doubles": sum(count > 1 for count in counts),
        "missing": sum(count == 0 for count in counts),
        "told": dict(told),
        "unexpected": sorted(set(told) - expected),
    }


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def _write(resumer: subprocess.Popen[str], line: str) -> None:
    assert resumer.stdin is not None, "it was opened with a pipe"
    resumer.stdin.write(line + "\n")
    resumer.stdin.flush()


def _read(resumer: subprocess.Popen[str]) -> str:
    assert resumer.stdout is not None, "it was opened with a pipe"
    return resumer.stdout.readline().strip()


if __name__ == "__main__":
    raise SystemExit(main())
