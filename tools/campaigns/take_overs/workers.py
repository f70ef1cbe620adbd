"""Worker processes that drive workflows and are killed, again and again, until every run has come to its end.

Two workers share the runs of one log. At random moments one of them is killed and another takes its place: it has to
find out that the runs which the dead one held are free, and go on with each where its log ends. At the end every run is
completed, and each of its effects is there exactly once at receivers that can be asked.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, Final

import eventlog
from eventlog import Policy, RunContext
from eventlog.run import Status
from eventlog.runtime.worker import Worker
from eventlog.stores import SqliteLog
from tools.campaigns.failpoints.site import Asked, lines
from tools.campaigns.frame.campaign import Work
from tools.campaigns.take_overs.stopping import StuckError, end, fork, kill

__all__ = ["kill_workers"]

_WORKERS: Final = 2
_RUNS: Final = 6
"""So many are there at first, and so many more come with each worker."""
_MOST_KILLS: Final = 20
"""In one log; then its runs are driven to their ends."""
_LONGEST_S: Final = 0.15
_POLICIES: Final = {"order": Policy(auto=True), "book": Policy(auto=True)}


@eventlog.workflow
async def deliver(run: RunContext, number: int) -> list[Any]:
    """Two effects with steps around them."""
    size = await run.step("measure", _measure, number)
    ordered = await run.act("order", {"parts": size}, output="shop")
    packed, booked = await run.gather(
        run.step("pack", _measure, number + 1), run.act("book", {"number": number}, output="van")
    )
    return [size, ordered, packed, booked]


def _measure(number: int) -> int:
    return number * 2


def kill_workers(work: Work, folder: Path) -> None:
    """Kill until there were enough kills, in one log after the other."""
    number = 0
    while work.counts["workers_killed"] < work.goal("workers_killed"):
        case = f"workers-{number}"
        if work.case is not None:
            if not (work.case.startswith("workers-") and work.wants(work.case)):
                return
            case = work.case
        place = folder / case
        place.mkdir()
        _drive(work, place, case)
        if work.case is not None:
            return
        number += 1


def _drive(work: Work, folder: Path, case: str) -> None:
    asyncio.run(_submit(folder, 0))
    chance, done = work.chance(case), 0
    workers = [fork(partial(_work, folder, until_idle=False)) for _ in range(_WORKERS)]
    try:
        for _ in range(min(_MOST_KILLS, work.goal("workers_killed") - work.counts["workers_killed"])):
            time.sleep(chance.uniform(0.01, _LONGEST_S))
            victim = workers.pop(chance.randrange(len(workers)))
            os.kill(victim, signal.SIGKILL)
            status = end(victim)
            if status != -signal.SIGKILL:
                work.violation("I8", case, f"a worker had ended by itself with {status}")
            work.count("workers_killed")
            done += 1
            asyncio.run(_submit(folder, done))
            workers.append(fork(partial(_work, folder, until_idle=False)))
    except StuckError as error:
        work.violation("I9", case, str(error))
    finally:
        for pid in workers:
            kill(pid)
    _finish(work, folder, case, (done + 1) * _RUNS)


def _finish(work: Work, folder: Path, case: str, runs: int) -> None:
    """Let one more worker drive everything to its end, and judge."""
    last = fork(partial(_work, folder, until_idle=True))
    try:
        status = end(last)
    except StuckError:
        work.violation("I9", case, "the last worker does not come to an end")
        return
    finally:
        kill(last)
    if status != 0:
        work.violation("I8", case, f"the last worker ended with {status}")
    for invariant, what in asyncio.run(_wrong(folder, runs)):
        work.violation(invariant, case, what)


def _runner(log: SqliteLog, folder: Path) -> eventlog.Runner:
    actions = [Asked("order", folder / "orders"), Asked("book", folder / "van")]
    return eventlog.Runner(log, workflows=[deliver], actions=actions, policies=_POLICIES)


def _open(folder: Path) -> SqliteLog:
    log = eventlog.open(folder / "log.db", durability="normal", busy_timeout_s=30)
    assert isinstance(log, SqliteLog)
    return log


async def _submit(folder: Path, group: int) -> None:
    """Record another group of runs, for the workers to drive."""
    async with _open(folder) as log:
        runner = _runner(log, folder)
        for number in range(group * _RUNS, (group + 1) * _RUNS):
            await runner.submit(deliver, f"run-{number}", number)


async def _work(folder: Path, *, until_idle: bool) -> None:
    async with _open(folder) as log:
        await Worker(_runner(log, folder)).run(until_idle=until_idle)


async def _wrong(folder: Path, count: int) -> list[tuple[str, str]]:
    async with _open(folder) as log:
        head = (await log.head()).position
        page = await log.check_page(after=0, limit=head + 1)
        runner = _runner(log, folder)
        runs = [await runner.state(f"run-{number}") for number in range(count)]
    wrong = [("I2", f"position {problem.position}: {problem.message}") for problem in page.problems]
    wrong += [("I9", f"{run.run_id} is {run.status.value}") for run in runs if run.status is not Status.COMPLETED]
    for book in ("orders", "van"):
        counts = Counter(lines(folder / book))
        wrong += [("I5", f"{times} effects at {book} for {key}") for key, times in counts.items() if times > 1]
        if len(counts) != count:
            wrong.append(("I6", f"{len(counts)} effects at {book}, and {count} runs are completed"))
    return wrong
