"""Kills of processes that perform approved effects at real receivers, and what the next process makes of them.

A process starts, approves and resumes runs in a loop while it is killed; after each kill another one finishes what it
left. Every run that somebody was told is completed must be in the log, every completed run must have its effect exactly
as it was approved, no run more than one. Where effect and record are one transaction, no kill may leave one alone.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import eventlog
from eventlog.runtime.failpoints import pass_by
from projections import RunsTable, differences, runs_view
from tools.campaigns.effects.http_receiver import receiving
from tools.campaigns.effects.targets import Target, targets
from tools.campaigns.frame.campaign import Work
from tools.campaigns.processes.in_child import in_child, leave
from tools.campaigns.storage.shared_memory import a_folder

__all__ = ["ACTIONS", "kill_runs"]

ACTIONS: Final = ("write_file", "insert_row", "record_row", "http_request")
_KILLS_OF_ONE_LOG: Final = 25
_TASKS: Final = 3
_LAST_S: Final = 0.03
"""About as long as each of the tasks takes for a run or two."""
_BEGINS: Final = "working"


def kill_runs(work: Work) -> None:
    """Kill at each receiver in turn until the goal is reached."""
    moments: Counter[str] = Counter()
    kills = number = 0
    with a_folder(work.memory) as folder, receiving(forgets=work.control == "forgetful_receiver") as receiver:
        known = targets(receiver, all_is_one=work.control == "two_transactions")
        while kills < work.goal("kills_of_runs"):
            action = _action(work, number)
            case = f"runs {number} {action}"
            number += 1
            of_log = min(_KILLS_OF_ONE_LOG, max(1, work.goal("kills_of_runs") // len(ACTIONS)))
            if work.wants(case):
                place = folder / f"log{number}"
                place.mkdir()
                _Runs(work, case, place, known[action]).kill(of_log, moments)
            kills += of_log
    work.notes["left by killed runs"] = (
        f"{moments['run_claimed']} open intents, {moments['action_recovered']} recovered"
    )


def _action(work: Work, number: int) -> str:
    of_controls = {"forgetful_receiver": "http_request", "two_transactions": "insert_row"}
    return of_controls.get(work.control or "", ACTIONS[number % len(ACTIONS)])


class _Runs:
    """A folder with a log, a target, and the processes that use them."""

    def __init__(self, work: Work, case: str, folder: Path, target: Target) -> None:
        self._work: Final = work
        self._case: Final = case
        self._folder: Final = folder
        self._target: Final = target
        self._chance: Final = work.chance(case)
        self._told: Final[set[str]] = set()

    def kill(self, count: int, moments: Counter[str]) -> None:
        """Kill so often, audit, and add how often events of each type are in the log."""
        in_child(lambda: self._use(_nothing))
        self._target.prepare(self._folder)
        for number in range(count):
            self._told.update(self._kill_once(number))
            self._work.count("kills_of_runs")
            for run_id in self._target.torn(self._folder):
                self._work.violation("I6", self._case, f"kill {number}: {run_id} has either effect or record")
            status = in_child(lambda: self._use(_finish_all)).status
            if status != 0:
                self._work.violation("I8", self._case, f"kill {number}: nobody can finish, status {status}")
                return
            if number % 5 == 4 or number == count - 1:
                self._audit(number)
        moments.update(asyncio.run(_types(self._folder)))

    def _kill_once(self, number: int) -> set[str]:
        """Let a process work until it is killed; return the runs that it said are completed."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            leave(lambda: self._use(lambda each, runner: each.work_for_ever(runner, number, writing)))
        os.close(writing)
        with os.fdopen(reading) as pipe:
            said = pipe.readline()  # that it begins, or nothing if it has ended
            if self._chance.random() < 0.75:
                said += pipe.readline()  # and its first run: by then the others are somewhere between
            time.sleep(self._chance.uniform(0, _LAST_S))
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            if not os.WIFSIGNALED(status):
                code = os.waitstatus_to_exitcode(status)
                self._work.violation("I8", self._case, f"kill {number}: the process had ended by itself, with {code}")
            said += pipe.read()
        return set(said[: said.rfind("\n") + 1].split()) - {_BEGINS}

    async def work_for_ever(self, runner: eventlog.Runner, number: int, writing: int) -> None:
        """Start, approve and resume runs, several at a time; say which are completed."""
        os.write(writing, f"{_BEGINS}\n".encode())

        async def one_after_another(task: int) -> None:
            index = 0
            while True:
                index += 1
                run_id = f"run-{self._folder.name}-{number}-{task}-{index}"  # the receiver knows those of all logs
                await self._approve(runner, run_id)
                await runner.resume(run_id)
                os.write(writing, f"{run_id}\n".encode())

        await asyncio.gather(*map(one_after_another, range(_TASKS)))

    async def _approve(self, runner: eventlog.Runner, run_id: str) -> None:
        args, output = self._target.request(self._folder, run_id)
        proposal = eventlog.propose(self._target.name, args, output)
        await runner.propose(run_id, proposal)
        await runner.approve(run_id, proposal.hash)

    async def _use(self, use: Callable[[_Runs, eventlog.Runner], Awaitable[Any]]) -> Any:
        """Use a runner in this process."""
        view = runs_view()
        async with eventlog.open(self._folder / "runs.db", views=[view]) as log:
            action = self._target.action(self._folder)
            runner = eventlog.Runner(log, actions=[action], view=RunsTable(log, view), reach=pass_by)
            return await use(self, runner)

    @property
    def database(self) -> Path:
        return self._folder / "runs.db"

    # ── what must be true afterwards ─────────────────────────────────────────────────────────────────────────────────

    def _audit(self, number: int) -> None:
        wrong, runs = asyncio.run(_audit_log(self.database))
        completed = {run.run_id for run in runs if run.executed}
        target, folder = self._target, self._folder  # only now, when the log is closed: they may be in its database
        effects = target.effects(folder, [run.run_id for run in runs])
        wrong += [("I1", f"{run_id}: said to be completed, but is not") for run_id in sorted(self._told - completed)]
        wrong += [
            ("I5", f"{run_id}: {count} effects, and one was approved") for run_id, count in effects.items() if count > 1
        ]
        wrong += [
            ("I6", f"{run_id}: completed, but its effect is not as approved")
            for run_id in target.missing(folder, completed)
        ]
        wrong += [("I5", f"left behind: {path.name}") for path in folder.iterdir() if path.name.endswith("-tmp")]
        for invariant, what in wrong:
            self._work.violation(invariant, self._case, f"up to kill {number}: {what}")


async def _nothing(_: _Runs, __: eventlog.Runner) -> None:
    """The log is made by being opened."""


async def _finish_all(runs: _Runs, runner: eventlog.Runner) -> None:
    """Resume every run that was approved and is not completed."""
    async with eventlog.open(runs.database, views=[runs_view()]) as log:
        rows = await log.read_view(_unfinished)
    for (run_id,) in rows:
        await runner.resume(run_id)


def _unfinished(connection: Any) -> list[tuple[str]]:
    rows: list[tuple[str]] = connection.execute(
        "SELECT run_id FROM runs WHERE status = 'APPROVED' ORDER BY run_id"
    ).fetchall()
    return rows


async def _types(folder: Path) -> list[str]:
    async with eventlog.open(folder / "runs.db", views=[runs_view()]) as log:
        return [event.type async for event in log.read_all()]


async def _audit_log(database: Path) -> tuple[list[tuple[str, str]], list[eventlog.Run]]:
    """Return what is wrong in the log, and its runs."""
    wrong: list[tuple[str, str]] = []
    view = runs_view()
    async with eventlog.open(database, views=[view]) as log:
        position = 0
        while (page := await log.check_page(after=position)).events:
            wrong += [("I2", f"position {problem.position}: {problem.message}") for problem in page.problems]
            position = page.position
        wrong += [("I2", f"view row {difference.key} differs") for difference in await differences(log, view)]
        runner = eventlog.Runner(log)
        rows = await RunsTable(log, view).page(limit=1_000_000)
        return wrong, [await runner.state(row["run_id"]) for row in rows]
