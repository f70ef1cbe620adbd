"""Crashes of processes that perform approved effects, and what the next process makes of them.

    python tools/crash_runs.py points [--json]           every failpoint, by exit status 91 and by SIGKILL
    python tools/crash_runs.py kills [--count N] [--seed N] [--remove-files]

`points` crashes the resume of an approved run at each named point and resumes it in another process. `kills` lets a
process start, approve and resume runs in a loop while it is killed at random moments; after each kill another process
finishes what it left. In both the effect is a file, and each creation of it adds a receipt to a list that nothing
removes, so a second effect would be counted. Afterwards every run that a process was told about must be in the log,
every completed run must have its file with exactly the approved content, no run more than one receipt, and the log must
be without contradiction.

`--remove-files` is the negative control: it takes the finished files away before the next process looks, as a receiver
that loses its memory would, and receipts are counted twice.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import eventlog
from eventlog.runtime.effects import Call, Executed, Report
from eventlog.runtime.failpoints import CRASH_STATUS, FAILPOINTS, Reach, exit_at, pass_by
from eventlog.stores.sqlite import SqliteLog
from projections import RunsTable, differences, runs_view

__all__ = ["main"]

ACTION = "write_draft"


class CountedWriteFile(eventlog.WriteFile):
    """WriteFile that adds a receipt for each file it created."""

    def __init__(self, receipts: Path) -> None:
        super().__init__(name=ACTION)
        self._receipts = receipts

    async def execute(self, call: Call) -> Report:
        """Create the file, then write the receipt."""
        report = await super().execute(call)
        if isinstance(report, Executed):
            descriptor = os.open(self._receipts, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(descriptor, f"{call.run_id}\n".encode())
            os.close(descriptor)
        return report


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one campaign and print one JSON object; the exit status says whether it found nothing wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    points = commands.add_parser("points")
    points.set_defaults(campaign=_points)
    kills = commands.add_parser("kills")
    kills.set_defaults(campaign=_kills)
    kills.add_argument("--count", type=int, default=300)
    kills.add_argument("--seed", type=int, default=1)
    kills.add_argument("--remove-files", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        report = options.campaign(Path(folder), options)
    print(json.dumps(report, sort_keys=True))
    return 1 if report["wrong"] else 0


# ── every failpoint ───────────────────────────────────────────────────────────────────────────────────────────────────
def _points(folder: Path, _: argparse.Namespace) -> dict[str, Any]:
    wrong: list[str] = []
    ends: dict[str, str] = {}
    for how, make in (("exit", exit_at), ("SIGKILL", kill_at)):
        for point in FAILPOINTS:
            place = folder / f"{how}-{point}"
            place.mkdir()
            ends[f"{point} {how}"] = end = _crash_once(place, point, make(point), how, wrong)
            if end not in ("executed", "recovered", "already_completed"):
                wrong.append(f"{point} by {how}: the next resume ended as {end}")
    return {"points": len(ends), "ends": ends, "wrong": wrong}


def _crash_once(place: Path, point: str, reach: Reach, how: str, wrong: list[str]) -> str:
    _in_child(lambda: _with_runner(place, pass_by, _start_and_approve))
    status = _in_child(lambda: _with_runner(place, reach, _resume_only))
    expected = CRASH_STATUS if how == "exit" else -signal.SIGKILL
    if status != expected:
        wrong.append(f"{point} by {how}: nobody passed it, the process ended with {status}")
    before = _inode(place / "out.txt")
    _in_child(lambda: _with_runner(place, pass_by, _resume_and_tell))
    after = _inode(place / "out.txt")
    if before is not None and before != after:
        wrong.append(f"{point} by {how}: the file was written again")
    wrong += asyncio.run(_audit(place, {"run-1"}))
    return (place / "told").read_text()


async def _start_and_approve(runner: eventlog.Runner, place: Path) -> None:
    proposal = eventlog.propose(ACTION, {"content": "approved technical brief"}, str(place / "out.txt"))
    await runner.propose("run-1", proposal)
    await runner.approve("run-1", proposal.hash)


async def _resume_only(runner: eventlog.Runner, _: Path) -> None:
    await runner.resume("run-1")


async def _resume_and_tell(runner: eventlog.Runner, place: Path) -> None:
    (place / "told").write_text((await runner.resume("run-1")).result or "")


def kill_at(target: str) -> Reach:
    """Return a `reach` that kills the process at the point `target`, as no handler can see."""

    def reach(name: str) -> None:
        if name == target:
            os.kill(os.getpid(), signal.SIGKILL)

    return reach


# ── random kills ──────────────────────────────────────────────────────────────────────────────────────────────────────
def _kills(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    generator = random.Random(options.seed)
    told: set[str] = set()
    wrong: list[str] = []
    moments: Counter[str] = Counter()
    for number in range(options.count):
        told |= _kill_once(folder, number, generator.uniform(0.002, 0.05))
        if options.remove_files:
            for path in folder.glob("run-*.txt"):
                path.unlink()
        status = _in_child(lambda: _with_runner(folder, pass_by, _finish_all))
        if status != 0:
            wrong.append(f"kill {number}: the next process could not finish, status {status}")
            break
        if number % 50 == 49 or number == options.count - 1:
            wrong += asyncio.run(_audit(folder, told, moments))
    receipts = Counter(_lines(folder / "receipts"))
    return {
        "kills": options.count,
        "seed": options.seed,
        "runs": len(told),
        "receipts": sum(receipts.values()),
        "recovered": moments["action_recovered"],
        "claims": moments["run_claimed"],
        "wrong": wrong[:20],
    }


def _kill_once(folder: Path, number: int, after_s: float) -> set[str]:
    """Let a process work until it is killed; return the runs that it said are completed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _leave(lambda: _with_runner(folder, pass_by, lambda runner, place: _work(runner, place, number, writing)))
    os.close(writing)
    _wait_for_first_word(reading)
    time.sleep(after_s)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(reading) as pipe:
        return {line.strip() for line in pipe if line.endswith("\n")} - {"working"}


def _wait_for_first_word(reading: int) -> None:
    word = b""
    while not word.endswith(b"working\n"):
        byte = os.read(reading, 1)
        assert byte, "the child ended before it began to work"
        word += byte


async def _work(runner: eventlog.Runner, place: Path, number: int, writing: int) -> None:
    """Start, approve and resume runs, several at a time, for ever; say which are completed."""
    os.write(writing, b"working\n")

    async def one_after_another(task: int) -> None:
        for index in range(1_000_000):
            run_id = f"run-{number}-{task}-{index}"
            proposal = eventlog.propose(ACTION, {"content": run_id * 50}, str(place / f"{run_id}.txt"))
            await runner.propose(run_id, proposal)
            await runner.approve(run_id, proposal.hash)
            await runner.resume(run_id)
            os.write(writing, f"{run_id}\n".encode())

    await asyncio.gather(*(one_after_another(task) for task in range(3)))


async def _finish_all(runner: eventlog.Runner, place: Path) -> None:
    """Resume every run that was approved and is not completed."""
    view = runs_view()
    async with eventlog.open(place / "runs.db", views=[view]) as log:
        rows = await log.read_view(_unfinished)
    for (run_id,) in rows:
        await runner.resume(run_id)


def _unfinished(connection: Any) -> list[tuple[str]]:
    rows: list[tuple[str]] = connection.execute(
        "SELECT run_id FROM runs WHERE status = 'APPROVED' ORDER BY run_id"
    ).fetchall()
    return rows


# ── what must be true afterwards ──────────────────────────────────────────────────────────────────────────────────────
async def _audit(folder: Path, completed: set[str], moments: Counter[str] | None = None) -> list[str]:
    """Return what is wrong in the log and outside it. `completed` are the runs that somebody was told are completed."""
    wrong: list[str] = []
    view = runs_view()
    async with eventlog.open(folder / "runs.db", views=[view]) as log:
        position = 0
        while (page := await log.check_page(after=position)).events:
            wrong += [f"position {problem.position}: {problem.message}" for problem in page.problems]
            position = page.position
        wrong += [f"view row {difference.key} differs" for difference in await differences(log, view)]
        wrong += await _audit_runs(log, folder, completed)
        if moments is not None:
            moments.clear()
            moments.update([event.type async for event in log.read_all()])
    receipts = Counter(_lines(folder / "receipts"))
    wrong += [f"{run_id}: {count} effects" for run_id, count in receipts.items() if count > 1]
    temps = [path.name for path in folder.iterdir() if path.name.endswith("-tmp")]
    return wrong + [f"left behind: {name}" for name in temps]


async def _audit_runs(log: SqliteLog, folder: Path, completed: set[str]) -> list[str]:
    wrong = []
    runner = eventlog.Runner(log)
    for row in await RunsTable(log, runs_view()).page(limit=1_000_000):
        run = await runner.state(row["run_id"])
        if run.proposal is not None and run.executed:
            path = Path(run.proposal.output)
            if not path.exists() or path.read_text() != run.proposal.args["content"]:
                wrong.append(f"{run.run_id}: completed, but its file is not what was approved")
        completed = completed - {run.run_id} if run.executed else completed
    return wrong + [f"{run_id}: said to be completed, but is not" for run_id in sorted(completed)]


# ── processes ─────────────────────────────────────────────────────────────────────────────────────────────────────────
async def _with_runner(place: Path, reach: Reach, use: Callable[[eventlog.Runner, Path], Awaitable[None]]) -> None:
    view = runs_view()
    async with eventlog.open(place / "runs.db", views=[view]) as log:
        action = CountedWriteFile(place / "receipts")
        await use(eventlog.Runner(log, actions=[action], view=RunsTable(log, view), reach=reach), place)


def _in_child(work: Callable[[], Awaitable[None]]) -> int:
    """Run `work` in a forked process that has no log open yet; return its exit status, negative for a signal."""
    child = os.fork()
    if child == 0:
        _leave(work)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _leave(work: Callable[[], Awaitable[None]]) -> None:
    status = 70
    try:
        asyncio.run(_awaited(work))
        status = 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(status)


async def _awaited(work: Callable[[], Awaitable[None]]) -> None:
    await work()


def _inode(path: Path) -> tuple[int, int] | None:
    if not path.exists():
        return None
    status = path.stat()
    return status.st_ino, status.st_mtime_ns


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


if __name__ == "__main__":
    raise SystemExit(main())
