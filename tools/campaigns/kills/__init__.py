"""Campaign `kills`: processes that use a log are killed at random moments, and what they leave is looked at each time.

    writers    a process that appends for ever, and says what was acknowledged to it
    audit      what must be true of the log behind each kill
    runs       processes that perform effects at receivers, and those that finish what they leave

A kill may fall into the opening of the log, its recovery, a transaction, a WAL checkpoint. Of two writers on one log
the other has to go on; then it is killed as well.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tools.campaigns.frame.campaign import Break, Campaign, Control, Goal, Work
from tools.campaigns.kills.audit import audit
from tools.campaigns.kills.runs import kill_runs
from tools.campaigns.kills.writers import Acknowledged, Writer
from tools.campaigns.storage.shared_memory import a_folder

__all__ = ["CAMPAIGN"]

KILLS_OF_ONE_LOG: Final = 40
"""Then all of it is audited once more, and a new log begun: audits stay short, and creation is killed too."""
_OPENING_S: Final = 0.012
"""About how long it takes to be forked and to open a log."""
_MOST_LINES: Final = 16
"""After up to so many acknowledgements a kill comes: a busy machine has then done as much as an idle one."""
_WORKING_S: Final = 0.004
"""A few commits, and sometimes a WAL checkpoint: by it a kill misses the end of the last commit."""
_PATIENCE_S: Final = 30.0
_OF_RUNS: Final = frozenset({"forgetful_receiver", "two_transactions"})
_OF_TWO: Final = frozenset({"stale_tree"})


def _run(work: Work) -> None:
    if work.control not in _OF_RUNS | _OF_TWO:
        _kill_writers(work, "kills", _Log.kill_one)
    if work.control not in _OF_RUNS:
        _kill_writers(work, "kills_of_two", _Log.kill_two)
    kill_runs(work)


def _kill_writers(work: Work, goal: str, kill: Callable[[_Log], int]) -> None:
    """Kill writers of one log after the other until the goal is reached."""
    began_s = time.monotonic()
    kills = number = acknowledged = while_opening = 0
    with a_folder(work.memory) as folder:
        while kills < work.goal(goal):
            case = f"{goal} of log {number}"
            number += 1
            of_log = min(KILLS_OF_ONE_LOG, work.goal(goal) - kills)
            if work.wants(case):
                log = _Log(work, case, folder / f"log{number}.db")
                while log.kills < of_log:
                    log.kills += kill(log)
                log.end()
                work.count(goal, log.kills)
                acknowledged += len(log.acknowledged)
                while_opening += log.while_opening
            kills += of_log
    seconds = time.monotonic() - began_s
    facts = (
        f"{work.counts[goal] / seconds:.0f}/s, {acknowledged} groups acknowledged, {while_opening} kills while opening"
    )
    work.notes[goal] = facts


class _Log:
    """One log, its writers, and what they were told."""

    def __init__(self, work: Work, case: str, path: Path) -> None:
        self._work: Final = work
        self._case: Final = case
        self._path: Final = path
        self._chance: Final[random.Random] = work.chance(case)
        self._head = 0
        self.acknowledged: Final[list[Acknowledged]] = []
        self.kills = 0
        self.while_opening = 0

    def kill_one(self) -> int:
        """Let one writer work, kill it, and look at what is there."""
        writer = Writer(self._path, "s", self._chance)
        try:
            self._let_work(writer)
        finally:
            told = self._kill(writer)
        self._look(told)
        return 1

    def kill_two(self) -> int:
        """Let two writers work on the log, kill one, let the other go on, and kill that."""
        one = Writer(self._path, "a", self._chance)
        other = Writer(self._path, "b", self._chance)
        told: list[Acknowledged] = []
        try:
            self._let_work(one, other)
            told += self._kill(one)
            if self._chance.random() < 0.7:
                self._must_go_on(other)
                time.sleep(self._chance.uniform(0, _WORKING_S))
        finally:
            told += self._kill(other)
        self._look(told)
        return 2

    def end(self) -> None:
        """Look at all of the log once more, and remove it."""
        self._look(self.acknowledged, whole=True)
        for path in self._path.parent.glob(f"{self._path.name}*"):
            path.unlink()

    def _let_work(self, *writers: Writer) -> None:
        """Wait for a random moment: of the beginning, or of the work of all once the log is open."""
        if self._chance.random() < 0.25:
            time.sleep(self._chance.uniform(0, _OPENING_S))
        elif all(writer.wait_for_lines(self._chance.randint(1, _MOST_LINES), _PATIENCE_S) for writer in writers):
            time.sleep(self._chance.uniform(0, _WORKING_S))
        elif not any(writer.has_ended for writer in writers):
            self._work.violation("I9", self._case, f"kill {self.kills}: somebody cannot open the log, or append")

    def _must_go_on(self, writer: Writer) -> None:
        """See to it that a writer is acknowledged an append that it has begun from now on."""
        wanted = writer.lines + writer.tasks + 2  # so one of its tasks has said two of them
        if not writer.wait_for_lines(wanted, _PATIENCE_S) and not writer.has_ended:
            self._work.violation("I9", self._case, f"kill {self.kills}: the other writer does not go on")

    def _kill(self, writer: Writer) -> list[Acknowledged]:
        ended = writer.kill()
        self.while_opening += not writer.is_open
        if ended is not None:
            self._work.violation("I8", self._case, f"kill {self.kills}: a writer had ended by itself, with {ended}")
        return writer.acknowledged()

    def _look(self, acknowledged: list[Acknowledged], *, whole: bool = False) -> None:
        after = 0 if whole else self._head
        found = asyncio.run(audit(self._path, acknowledged, after=after, head=self._head))
        for fault in found.faults:
            self._work.violation(fault.invariant, self._case, f"kill {self.kills}: {fault.what}")
        self._head = found.head
        if not whole:
            self.acknowledged.extend(acknowledged)


_TRANSACTION: Final = "eventlog/stores/sqlite/transaction.py"
_CONTROLS: Final = (
    Control(
        "told_before_commit",
        "callers are told before the COMMIT, which comes with the next transaction",
        (
            Break(_TRANSACTION, '            connection.execute("COMMIT")\n', "            pass\n"),
            Break(
                _TRANSACTION,
                '        try:\n            connection.execute("BEGIN IMMEDIATE")\n',
                '        try:\n            connection.in_transaction and connection.execute("COMMIT")\n'
                '            connection.execute("BEGIN IMMEDIATE")\n',
            ),
        ),
        shows="^I1 .*lost",
    ),
    Control(
        "in_pieces",
        "the events of a transaction are committed one by one",
        (
            Break(
                _TRANSACTION,
                "            connection.executemany(INSERT_EVENT, plan.rows)\n",
                "            for row in plan.rows:\n"
                "                connection.execute(INSERT_EVENT, row)\n"
                '                connection.execute("COMMIT")\n'
                '                connection.execute("BEGIN IMMEDIATE")\n',
            ),
        ),
        shows="^I4 .*half there|^I2 .*its tree at",
    ),
    Control(
        "stale_tree",
        "a writer goes on with the tree that it remembers though another process has appended",
        (
            Break(
                _TRANSACTION,
                "        self._frontier = read_frontier(connection, self._known.position)\n",
                "        if not self._frontier.size:\n"
                "            self._frontier = read_frontier(connection, self._known.position)\n",
            ),
        ),
        shows="^I2 |^I8 .*LogCorrupt",
    ),
    Control(
        "forgetful_receiver",
        "a receiver forgets the keys of requests, and acts for each",
        shows="^I5 .*effects, and one was approved",
    ),
    Control(
        "two_transactions",
        "an effect and its record, which are said to be one transaction, are two",
        shows="^I6 .*either effect or record",
    ),
)

CAMPAIGN: Final = Campaign(
    name="kills",
    title="processes that append, and that perform effects, are killed at random moments; of two, one after the other",
    promise="what was acknowledged is where it was, nothing is half there, effects are done once, and others go on",
    faults=("F06", "F07", "F09", "F14", "F25"),
    invariants=("I1", "I2", "I4", "I5", "I6", "I8", "I9", "I10"),
    run=_run,
    goals={
        "kills": Goal(fast=300, long=20_000, control=120),
        "kills_of_two": Goal(fast=60, long=5_000, control=60),
        "kills_of_runs": Goal(fast=24, long=1_000, control=200),
    },
    controls=_CONTROLS,
    limit_s=Goal(fast=180, long=3600, control=90),
)
