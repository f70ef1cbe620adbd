"""Crashes of processes that perform approved effects, and what the next process makes of them.

    python tools/crash_runs.py points
    python tools/crash_runs.py pairs [--actions NAME,…] [--count N] [--result-first]
    python tools/crash_runs.py kills [--action NAME] [--count N] [--seed N] [--forgets] [--all-is-one]

`points` crashes the resume of an approved run at each named point, by exit status 91 and by SIGKILL, and resumes it in
another process. `pairs` crashes the recovery as well: at each point, and then, in the process that recovers, at each
point, for an action that writes a file, one that inserts a row elsewhere and one whose row is in the log's database, or
for those that `--actions` names; `--count` takes that many of the 36 pairs of an action, spread evenly. Every state
between two processes is compared with what the promise of the action says (`tools/crashes`).

`kills` lets a process start, approve and resume runs in a loop while it is killed at random moments; after each kill
another process finishes what it left. The effect is that of `--action`, a file by default, each with a receiver that
counts (`tools/crashes/targets.py`). Afterwards every run that a process was told about must be in the log, every
completed run must have its effect exactly as it was approved, no run more than one, and the log must be without
contradiction. Where effect and record are one transaction, no kill may leave one of them alone.

The negative controls: with `--forgets` the receiver loses its memory, the finished files before the next process looks
or the keys of requests, and effects are counted twice. `--all-is-one` says of `insert_row` too that effect and record
are one transaction, which is not so. `--result-first` breaks the engine: it records the result before the effect, and
an effect is missing.
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
from itertools import product
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # this is a program: it runs from a clone

from tools.environment import continue_in_environment

if __name__ == "__main__":
    continue_in_environment()

import eventlog
from eventlog.runtime.failpoints import CRASH_STATUS, FAILPOINTS, Reach, crash_at, pass_by
from projections import RunsTable, differences, runs_view
from tools.crashes.cells import HOWS, Cell, Crash, perform, records_result_first
from tools.crashes.processes import Ended, in_child, leave
from tools.crashes.receiver import receiving
from tools.crashes.subjects import subjects
from tools.crashes.targets import FileTarget, Target, targets

__all__ = ["main"]

ACTIONS: Final = ("write_file", "insert_row", "record_row", "http_request")
DONE_AGAIN: Final = "effects, and one was approved"
CAN_FORGET: Final = ("write_file", "http_request")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one campaign and print one JSON object; the exit status says whether it found nothing wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    points = commands.add_parser("points")
    points.set_defaults(campaign=_points)
    pairs = commands.add_parser("pairs")
    pairs.set_defaults(campaign=_pairs)
    pairs.add_argument("--actions", default="write_file,insert_row,record_row")
    pairs.add_argument("--count", type=int, default=len(FAILPOINTS) ** 2)
    pairs.add_argument("--result-first", action="store_true")
    kills = commands.add_parser("kills")
    kills.set_defaults(campaign=_kills)
    kills.add_argument("--count", type=int, default=300)
    kills.add_argument("--seed", type=int, default=1)
    kills.add_argument("--action", choices=ACTIONS, default="write_file")
    kills.add_argument("--forgets", action="store_true")
    kills.add_argument("--all-is-one", action="store_true")
    options = parser.parse_args(arguments)
    if getattr(options, "forgets", False) and options.action not in CAN_FORGET:
        parser.error(f"--forgets is a control of {' and '.join(CAN_FORGET)} only")
    with tempfile.TemporaryDirectory() as folder:
        report = options.campaign(Path(folder), options)
    print(json.dumps(report, sort_keys=True))
    return 1 if report["wrong"] else 0


# ── every failpoint ───────────────────────────────────────────────────────────────────────────────────────────────────
def _points(folder: Path, _: argparse.Namespace) -> dict[str, Any]:
    wrong: list[str] = []
    ends: dict[str, str] = {}
    for how, suffix in (("exit", ""), ("SIGKILL", "=kill")):
        for point in FAILPOINTS:
            place = folder / f"{how}-{point}"
            place.mkdir()
            campaign = _Campaign(place, FileTarget())
            ends[f"{point} {how}"] = end = _crash_once(campaign, point, crash_at(point + suffix), how, wrong)
            if end not in ("executed", "recovered", "already_completed"):
                wrong.append(f"{point} by {how}: the next resume ended as {end}")
    return {"points": len(ends), "ends": ends, "wrong": wrong}


def _crash_once(campaign: _Campaign, point: str, reach: Reach, how: str, wrong: list[str]) -> str:
    target = campaign.folder / "run-1.txt"
    campaign.in_child(_start_and_approve)
    status = campaign.in_child(_resume, reach).status
    expected = CRASH_STATUS if how == "exit" else -signal.SIGKILL
    if status != expected:
        wrong.append(f"{point} by {how}: nobody passed it, the process ended with {status}")
    before = _inode(target)
    ended = campaign.in_child(_resume)
    if before is not None and before != _inode(target):
        wrong.append(f"{point} by {how}: the file was written again")
    wrong += _audit(campaign, {"run-1"})
    return str(ended.said)


async def _start_and_approve(campaign: _Campaign, runner: eventlog.Runner) -> None:
    await campaign.approve(runner, "run-1")


async def _resume(_: _Campaign, runner: eventlog.Runner) -> str | None:
    return (await runner.resume("run-1")).result


# ── a crash, and a crash of its recovery ──────────────────────────────────────────────────────────────────────────────
def _pairs(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    names = options.actions.split(",")
    spoil = records_result_first if options.result_first else None
    cells: list[Cell] = []
    with receiving() as receiver:
        known = {subject.name: subject for subject in subjects(receiver)}
        for name in names:
            for number, points in enumerate(_spread(list(product(FAILPOINTS, FAILPOINTS)), options.count)):
                # Each way to end comes first and second, in all four combinations, along the list of pairs.
                crashes = [Crash(point, HOWS[number >> bit & 1]) for bit, point in enumerate(points)]
                cells.append(perform(known[name], crashes, folder, spoil))
    return {
        "pairs": len(cells),
        "actions": names,
        "ends": dict(Counter(cell.result for cell in cells)),
        "unknown": [cell.name for cell in cells if cell.is_unknown],
        "most_effects": max((len(cell.marks) for cell in cells), default=0),
        "wrong": [f"{cell.name}: {why}" for cell in cells for why in cell.wrong][:20],
    }


def _spread(pairs: list[tuple[str, str]], count: int) -> list[tuple[str, str]]:
    """Return `count` of the pairs, spread over the list so that every point is a first and a second one early."""
    step = 7  # it has no divisor in common with 36, so it comes to every pair once
    return [pairs[number * step % len(pairs)] for number in range(min(count, len(pairs)))]


# ── random kills ──────────────────────────────────────────────────────────────────────────────────────────────────────
def _kills(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    with receiving(forgets=options.forgets) as receiver:
        campaign = _Campaign(folder, targets(receiver, all_is_one=options.all_is_one)[options.action])
        campaign.in_child(_nothing)
        campaign.target.prepare(folder)
        return _kill_often(campaign, options)


def _kill_often(campaign: _Campaign, options: argparse.Namespace) -> dict[str, Any]:
    generator = random.Random(options.seed)
    told: set[str] = set()
    wrong: list[str] = []
    moments: Counter[str] = Counter()
    kills = 0
    for number in range(options.count):
        kills += 1
        told |= _kill_once(campaign, number, generator.uniform(0.002, 0.1))
        wrong += [
            f"kill {number}: {run_id} has either effect or record" for run_id in campaign.target.torn(campaign.folder)
        ]
        if options.forgets and isinstance(campaign.target, FileTarget):
            campaign.target.forget(campaign.folder)
        status = campaign.in_child(_finish_all).status
        if status != 0:
            wrong.append(f"kill {number}: the next process could not finish, status {status}")
            break
        if options.forgets or number % 50 == 49 or number == options.count - 1:
            wrong += _audit(campaign, told, moments)
        if options.forgets and any(each.endswith(DONE_AGAIN) for each in wrong):
            break  # the control has shown what it is there to show
    return {
        "action": options.action,
        "kills": kills,
        "seed": options.seed,
        "runs": len(told),
        "recovered": moments["action_recovered"],
        "claims": moments["run_claimed"],
        "wrong": sorted(wrong, key=lambda each: not each.endswith(DONE_AGAIN))[:20],
    }


def _kill_once(campaign: _Campaign, number: int, after_s: float) -> set[str]:
    """Let a process work until it is killed; return the runs that it said are completed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        leave(lambda: campaign.use(lambda each, runner: _work(each, runner, number, writing), pass_by))
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


async def _work(campaign: _Campaign, runner: eventlog.Runner, number: int, writing: int) -> None:
    """Start, approve and resume runs, several at a time, for ever; say which are completed."""
    os.write(writing, b"working\n")

    async def one_after_another(task: int) -> None:
        for index in range(1_000_000):
            run_id = f"run-{number}-{task}-{index}"
            await campaign.approve(runner, run_id)
            await runner.resume(run_id)
            os.write(writing, f"{run_id}\n".encode())

    await asyncio.gather(*(one_after_another(task) for task in range(3)))


async def _nothing(_: _Campaign, __: eventlog.Runner) -> None:
    """The log is made by being opened."""


async def _finish_all(campaign: _Campaign, runner: eventlog.Runner) -> None:
    """Resume every run that was approved and is not completed."""
    async with eventlog.open(campaign.folder / "runs.db", views=[runs_view()]) as log:
        rows = await log.read_view(_unfinished)
    for (run_id,) in rows:
        await runner.resume(run_id)


def _unfinished(connection: Any) -> list[tuple[str]]:
    rows: list[tuple[str]] = connection.execute(
        "SELECT run_id FROM runs WHERE status = 'APPROVED' ORDER BY run_id"
    ).fetchall()
    return rows


# ── what must be true afterwards ──────────────────────────────────────────────────────────────────────────────────────
def _audit(campaign: _Campaign, told: set[str], moments: Counter[str] | None = None) -> list[str]:
    """Return what is wrong in the log and outside it. `told` are the runs that somebody was told are completed."""
    wrong, runs = asyncio.run(_audit_log(campaign.folder, moments))
    completed = {run.run_id for run in runs if run.executed}
    wrong += [f"{run_id}: said to be completed, but is not" for run_id in sorted(told - completed)]
    # Only now, when the log is closed: the target may be in its database.
    target = campaign.target
    effects = target.effects(campaign.folder, [run.run_id for run in runs])
    wrong += [f"{run_id}: {count} {DONE_AGAIN}" for run_id, count in effects.items() if count > 1]
    missing = target.missing(campaign.folder, completed)
    wrong += [f"{run_id}: completed, but its effect is not as approved" for run_id in missing]
    temps = [path.name for path in campaign.folder.iterdir() if path.name.endswith("-tmp")]
    return wrong + [f"left behind: {name}" for name in temps]


async def _audit_log(folder: Path, moments: Counter[str] | None) -> tuple[list[str], list[eventlog.Run]]:
    """Return what is wrong in the log, and its runs; count its events by type."""
    wrong: list[str] = []
    view = runs_view()
    async with eventlog.open(folder / "runs.db", views=[view]) as log:
        position = 0
        while (page := await log.check_page(after=position)).events:
            wrong += [f"position {problem.position}: {problem.message}" for problem in page.problems]
            position = page.position
        wrong += [f"view row {difference.key} differs" for difference in await differences(log, view)]
        if moments is not None:
            moments.clear()
            moments.update([event.type async for event in log.read_all()])
        runner = eventlog.Runner(log)
        rows = await RunsTable(log, view).page(limit=1_000_000)
        return wrong, [await runner.state(row["run_id"]) for row in rows]


# ── processes ─────────────────────────────────────────────────────────────────────────────────────────────────────────
class _Campaign:
    """A folder with a log, a target, and the processes that use them."""

    def __init__(self, folder: Path, target: Target) -> None:
        self.folder: Final = folder
        self.target: Final = target

    def in_child(self, use: _Use, reach: Reach = pass_by) -> Ended:
        """Use a runner in a process of its own."""
        return in_child(lambda: self.use(use, reach))

    async def use(self, use: _Use, reach: Reach) -> Any:
        """Use a runner in this process."""
        view = runs_view()
        async with eventlog.open(self.folder / "runs.db", views=[view]) as log:
            action = self.target.action(self.folder)
            return await use(self, eventlog.Runner(log, actions=[action], view=RunsTable(log, view), reach=reach))

    async def approve(self, runner: eventlog.Runner, run_id: str) -> None:
        """Start a run and approve it."""
        args, output = self.target.request(self.folder, run_id)
        proposal = eventlog.propose(self.target.name, args, output)
        await runner.propose(run_id, proposal)
        await runner.approve(run_id, proposal.hash)


_Use = Callable[[_Campaign, eventlog.Runner], Awaitable[Any]]


def _inode(path: Path) -> tuple[int, int] | None:
    if not path.exists():
        return None
    status = path.stat()
    return status.st_ino, status.st_mtime_ns


if __name__ == "__main__":
    raise SystemExit(main())
