"""Races of several processes that resume one run at the same moment, with effects counted at real receivers.

Each race is a fresh, approved run. All processes meet, by a barrier in shared memory, and resume the same few runs at
once. Exactly one effect of each may be there afterwards, only one process may have begun to act, and every other must
have been told `run_conflict` or `already_completed`. The races are shared out among the receivers of
`tools/campaigns/effects/receivers.py`.

How real the pressure is, is in the notes: the share of the losers that met the winner at work (`run_conflict`), and the
share of those among them that had read the run before anybody's intent was in the log, and lost by the version of
their own append: these were as near as two processes can come.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import eventlog
from eventlog.stores import SqliteLog
from tools.campaigns.effects import counting_receivers as receivers
from tools.campaigns.frame.campaign import Break, Campaign, Control, Goal, Work
from tools.campaigns.races.resumers import Told, resume_together
from tools.campaigns.storage.shared_memory import a_folder

__all__ = ["CAMPAIGN"]

RACED: Final = ("line", "file", "row", "table", "http")
EXPECTED: Final = frozenset({"executed", "run_conflict", "already_completed"})
HEAT: Final = 500
"""So many races are in one log."""
AT_ONCE: Final = 50


def run(work: Work) -> None:
    """Race two resumers, then eight."""
    with a_folder(work.memory) as folder, receivers.Server(folder) as server:
        _Heat(work, "warm", folder, server.port).warm()
        for name, resumers in (("races", 2), ("races_of_eight", 8)):
            began_s, met = time.monotonic(), Counter[str]()
            left, heat = work.goal(name), 0
            while left > 0:
                heat += 1
                races = min(HEAT, left)
                left -= races
                case = f"{resumers}-resumers-heat-{heat}"
                if work.wants(case):
                    met += _Heat(work, case, folder, server.port).race(resumers, races)
                    work.count(name, races)
            _note(work, name, met, work.counts[name] / (time.monotonic() - began_s))


def _note(work: Work, name: str, met: Counter[str], rate: float) -> None:
    losers = met["run_conflict"] + met["already_completed"]
    if losers:
        work.notes[name] = (
            f"{rate:.0f}/s; {met['run_conflict'] / losers:.0%} of the losers met the winner at work, "
            f"{met['by version'] / losers:.0%} lost by the version of their own append"
        )


class _Heat:
    """Some races in one log."""

    def __init__(self, work: Work, case: str, folder: Path, port: int) -> None:
        self._work: Final = work
        self._case: Final = case
        self._port: Final = port
        self._served: Final = folder
        self._folder: Final = folder / case
        self._database: Final = self._folder / "race.db"

    def race(self, resumers: int, count: int) -> Counter[str]:
        """Race, judge, and return how often what was told."""
        self._folder.mkdir()
        races = {f"{self._case}-{number}": RACED[number % len(RACED)] for number in range(count)}
        asyncio.run(self._prepare(races))
        receivers.prepare(self._folder, self._database)
        chance = self._work.chance(self._case)
        told = resume_together(self._folder, self._database, self._port, list(races), resumers, chance)
        for invariant, what in told.wrong:
            self._work.violation(invariant, self._case, what)
        self._judge(races, told)
        for problem in asyncio.run(_problems(self._database)):
            self._work.violation("I2", self._case, problem)
        return told.counts

    def warm(self) -> None:
        """Act once at each receiver in this process, so that what it takes is loaded before anybody is forked."""
        self._folder.mkdir()
        races = {f"{self._case}-{receiver}": receiver for receiver in RACED}
        asyncio.run(self._prepare(races))
        receivers.prepare(self._folder, self._database)
        asyncio.run(self._resume(list(races)))
        gc.collect()
        gc.freeze()  # a child's collector would touch, and so copy, every page of what is here

    async def _resume(self, run_ids: Sequence[str]) -> None:
        async with eventlog.open(self._database, durability="normal") as log:
            runner = eventlog.Runner(log, actions=receivers.actions(self._folder, self._port))
            for run_id in run_ids:
                await runner.resume(run_id)

    async def _prepare(self, races: dict[str, str]) -> None:
        async with eventlog.open(self._database, durability="normal") as log:
            runner = eventlog.Runner(log)

            async def approve(run_id: str) -> None:
                proposal = receivers.proposal(races[run_id], run_id, self._folder, self._port)
                await runner.propose(run_id, proposal)
                await runner.approve(run_id, proposal.hash)

            names = list(races)
            for first in range(0, len(names), AT_ONCE):
                await asyncio.gather(*map(approve, names[first : first + AT_ONCE]))

    def _judge(self, races: dict[str, str], told: Told) -> None:
        effects = self._effects()
        acted = receivers.attempts(self._folder)
        for run_id, receiver in races.items():
            answers = told.answers[run_id]
            if effects[run_id] > 1:
                self._wrong("I5", run_id, f"{effects[run_id]} effects at {receiver}")
            if acted[run_id] > 1:
                self._wrong("I5", run_id, f"{acted[run_id]} processes began to act on {receiver}")
            if effects[run_id] == 0:
                self._wrong("I6", run_id, f"no effect at {receiver}, and {answers} were told")
            if answers.count("executed") != 1 or not EXPECTED.issuperset(answers):
                self._wrong("I8", run_id, f"{receiver}: told {answers}")

    def _effects(self) -> Counter[str]:
        effects: Counter[str] = Counter()
        for receiver in RACED:
            place = self._served if receiver == "http" else self._folder
            effects += receivers.effects(receiver, place, self._database)
        return effects

    def _wrong(self, invariant: str, run_id: str, what: str) -> None:
        self._work.violation(invariant, self._case, f"{run_id}: {what}")


async def _problems(database: Path) -> Sequence[str]:
    async with eventlog.open(database) as log:
        assert isinstance(log, SqliteLog)
        head = (await log.head()).position
        page = await log.check_page(after=0, limit=head + 1)
    wrong = [f"position {problem.position}: {problem.message}" for problem in page.problems]
    return wrong if page.events == head else [*wrong, f"{page.events} events lie at {head} positions"]


CAMPAIGN: Final = Campaign(
    name="races",
    title="several processes resume one run at the same moment",
    promise="one of them acts, once, and every other is told that it was not the first",
    faults=("F31", "F49"),
    invariants=("I2", "I5", "I6", "I8", "I9"),
    run=run,
    goals={
        "races": Goal(fast=1000, long=100_000, control=100),
        "races_of_eight": Goal(fast=200, long=2000, control=20),
    },
    controls=(
        Control(
            "any_version",
            "the intent is appended at whatever version the run has by then",
            breaks=(
                Break(
                    "eventlog/runtime/run_streams.py",
                    "append = Append(run_stream(run.run_id), events, Expect.at(run.version), subject)",
                    "append = Append(run_stream(run.run_id), events, Expect.any(), subject)",
                ),
            ),
            shows="^I5 .*effects at|^I5 .*began to act",
        ),
        Control(
            "no_patience",
            "a run whose intent is open is taken over, whoever holds it",
            breaks=(
                Break(
                    "eventlog/runtime/attempts.py",
                    "if not is_orphaned(intent, self._place, self.now_us(run)):",
                    "if is_orphaned(intent, None, 0) and run.version < 0:",
                ),
            ),
            shows="^I5 |^I8 ",
        ),
    ),
    limit_s=Goal(fast=300, long=2400, control=180),
    cores=2,
)
