"""Races of several processes that resume one run at the same moment, with effects counted at real receivers.

    python tools/race_resumers.py [--races N] [--resumers N] [--receiver NAME] [--without-expected-version]

Each race is a fresh, approved run. All processes are told its id at once. Exactly one effect may be there afterwards,
only one process may have begun to act, and every other must have been told `run_conflict` or `already_completed`.
The races are shared out among the receivers of `receivers.py`, unless one is named.

`--without-expected-version` is the negative control: it drops the expectation from the append of the intent. Doubles
appear at the receiver that cannot refuse, and at the others processes that acted although another one did.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # this is a program: it runs from a clone

from tools.environment import continue_in_environment

if __name__ == "__main__":
    continue_in_environment()

import eventlog
from eventlog.errors import EventLogError
from eventlog.log import Append, AppendResult, Expect
from eventlog.runtime.failpoints import INTENT_BEFORE_COMMIT, Reach, pass_by
from eventlog.stores.sqlite import SqliteLog
from tools import receivers

__all__ = ["UncheckedLog", "main"]

RACED: Final = ("line", "file", "row", "table", "http")
EXPECTED: Final = frozenset({"executed", "run_conflict", "already_completed"})


class UncheckedLog:
    """The negative control: a log that forgets the version that its caller expected."""

    def __init__(self, log: SqliteLog) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append_reserved(self, appends: Sequence[Append], **options: Any) -> list[AppendResult]:
        """Append wherever the stream is."""
        anywhere = [Append(append.stream, append.events, Expect.any()) for append in appends]
        return await self._log.append_reserved(anywhere, **options)

    async def append_with(
        self, stream: str, type: str, make: Callable[[Any], Any], *, expect: Expect, **options: Any
    ) -> AppendResult:
        """Append wherever the stream is."""
        return await self._log.append_with(stream, type, make, expect=Expect.any(), **options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the races and print one JSON object; the exit status says whether every race had exactly one effect."""
    options = _parser().parse_args(arguments)
    if options.resumer is not None:
        asyncio.run(_resume_what_comes(options.resumer, options.port, options.without_expected_version))
        return 0
    with tempfile.TemporaryDirectory() as folder, receivers.Server(Path(folder)) as server:
        report = _race(Path(folder), server.port, options)
    print(json.dumps(report, sort_keys=True))
    wrong = report["doubles"] or report["missing"] or report["acted_twice"] or report["unexpected"]
    return 1 if wrong else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--races", type=int, default=1000)
    parser.add_argument("--resumers", type=int, default=2)
    parser.add_argument("--receiver", choices=RACED, action="append")
    parser.add_argument("--without-expected-version", action="store_true")
    parser.add_argument("--resumer", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    return parser


def _race(folder: Path, port: int, options: argparse.Namespace) -> dict[str, Any]:
    raced = options.receiver or RACED
    races = {f"run-{number}": raced[number % len(raced)] for number in range(options.races)}
    asyncio.run(_prepare(folder, port, races))
    receivers.prepare(folder, folder / "race.db")
    resumers = [_spawn(folder, port, options.without_expected_version) for _ in range(options.resumers)]
    told: Counter[str] = Counter()
    try:
        for resumer in resumers:
            assert _read(resumer) == "ready", "a resumer did not start"
        for run_id in races:
            for resumer in resumers:
                _write(resumer, run_id)
            told.update([_read(resumer) for resumer in resumers])
    finally:
        for resumer in resumers:
            resumer.communicate(timeout=30)
    return _report(folder, races, told)


async def _prepare(folder: Path, port: int, races: dict[str, str]) -> None:
    async with eventlog.open(folder / "race.db", durability="normal") as log:
        runner = eventlog.Runner(log)
        for run_id, receiver in races.items():
            proposal = receivers.proposal(receiver, run_id, folder, port)
            await runner.propose(run_id, proposal)
            await runner.approve(run_id, proposal.hash)


def _spawn(folder: Path, port: int, is_unchecked: bool) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--resumer", str(folder), "--port", str(port)]
    if is_unchecked:
        command.append("--without-expected-version")
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


async def _resume_what_comes(folder: Path, port: int, is_unchecked: bool) -> None:
    """The resumer's side: one run id a line in, one answer a line out."""
    async with eventlog.open(folder / "race.db") as log:
        used: Any = UncheckedLog(log) if is_unchecked else log
        reach: Reach = _linger if is_unchecked else pass_by
        runner = eventlog.Runner(used, actions=receivers.actions(folder, port), reach=reach)
        print("ready", flush=True)
        for line in sys.stdin:
            print(await _resume(runner, line.strip()), flush=True)


def _linger(name: str) -> None:
    if name == INTENT_BEFORE_COMMIT:  # wide enough for the other process to have read the same version
        time.sleep(0.005)


async def _resume(runner: eventlog.Runner, run_id: str) -> str:
    try:
        return (await runner.resume(run_id)).result or ""
    except EventLogError as error:
        return error.code


def _report(folder: Path, races: dict[str, str], told: Counter[str]) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    for receiver in set(races.values()):
        counts += receivers.effects(receiver, folder, folder / "race.db")
    acted = receivers.attempts(folder)
    return {
        "races": len(races),
        "by_receiver": dict(Counter(races.values())),
        "effects": counts.total(),
        "doubles": sum(counts[run_id] > 1 for run_id in races),
        "missing": sum(counts[run_id] == 0 for run_id in races),
        "acted_twice": sum(acted[run_id] > 1 for run_id in races),
        "told": dict(told),
        "unexpected": sorted(set(told) - EXPECTED),
    }


def _write(resumer: subprocess.Popen[str], line: str) -> None:
    assert resumer.stdin is not None, "it was opened with a pipe"
    resumer.stdin.write(line + "\n")
    resumer.stdin.flush()


def _read(resumer: subprocess.Popen[str]) -> str:
    assert resumer.stdout is not None, "it was opened with a pipe"
    return resumer.stdout.readline().strip()


if __name__ == "__main__":
    raise SystemExit(main())
