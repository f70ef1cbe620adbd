"""Campaign `histories`: what several processes were told about one log, and whether one order of all calls explains it.

    operations    a history in plain values
    checker       whether it is linearisable, and what the log at the end contradicts
    client        a process that does what is noted

Two or four processes with several tasks each append, read and conflict on one file. In every round the lock is once
held for longer than they wait for it, so that some are told that the store was busy; in every other round one of them
is killed, and the next goes on with what that one left open. Behind each round the whole history is checked.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Final

import eventlog
from tools.campaigns.frame.campaign import Break, Campaign, Control, Goal, Work
from tools.campaigns.histories import client
from tools.campaigns.histories.checker import check
from tools.campaigns.histories.operations import Appending, Conflict, Operation, Stored
from tools.campaigns.processes.in_child import leave
from tools.campaigns.storage.log_files import file_lock_held
from tools.campaigns.storage.shared_memory import a_folder

__all__ = ["CAMPAIGN"]

_OPERATIONS_OF_ROUND: Final = 2_400
_PATIENCE_S: Final = 60.0
_POLL_S: Final = 0.002
_HELD_S: Final = 4 * client.BUSY_TIMEOUT_S


def _run(work: Work) -> None:
    done = number = 0
    checked_s = 0.0
    told: Counter[str] = Counter()
    with a_folder(work.memory) as folder:
        while done < work.goal("operations") and (work.case is None or number == 0):
            case = work.case or f"round {number}"
            number += 1
            work.wants(case)
            place = folder / case.replace(" ", "-")
            place.mkdir()
            operations, stored = _Round(work, case, place).play()
            began_s = time.monotonic()
            faults = check(operations, stored)
            checked_s += time.monotonic() - began_s
            for fault in faults:
                work.violation(fault.invariant, case, fault.what)
            done += len(operations)
            work.count("operations", len(operations))
            work.count("rounds")
            told.update(_told(operation) for operation in operations)
            for name in ("stored", "refused"):
                work.count(name, sum(_told(operation) == name for operation in operations))
            for path in sorted(place.iterdir()):
                path.unlink()
    work.notes["checked"] = f"{done / max(checked_s, 1e-9):,.0f} operations/s"
    work.notes["told"] = ", ".join(f"{count} {name}" for name, count in sorted(told.items()))


def _told(operation: Operation) -> str:
    match operation:
        case Appending(outcome=outcome, is_repeat=is_repeat):
            return f"repeat {outcome}" if is_repeat else outcome
        case Conflict():
            return "conflict"
        case _:
            return "read"


class _Round:
    """One log, from the first process that opens it to the check of all of it."""

    def __init__(self, work: Work, case: str, folder: Path) -> None:
        self._work: Final = work
        self._case: Final = case
        self._path: Final = folder / "log.db"
        self._folder: Final = folder
        self._chance: Final = work.chance(case)
        self._notes: list[Path] = []
        self._children: dict[int, Path] = {}

    def play(self) -> tuple[list[Operation], list[Stored]]:
        """Let processes work, kill one of them in every other round, and return the history and the log."""
        processes = self._chance.choice((2, 4))
        each = _OPERATIONS_OF_ROUND // processes
        try:
            for _ in range(processes):
                self._start(each)
            self._keep_them_waiting()
            if int(self._case.rpartition(" ")[2]) % 2:
                time.sleep(self._chance.uniform(0.01, 0.35))
                self._replace_one(each)
            self._wait_for_all()
        finally:
            for child in self._children:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        histories = [client.load(path) for path in self._notes]
        operations = [operation for history in histories for operation in (*history.operations, *history.open)]
        return operations, asyncio.run(self._read())

    def _start(self, operations: int, restart: client.Restart | None = None) -> None:
        """Fork a process that works. No log is open here, and no thread runs."""
        notes = self._folder / f"notes-{len(self._notes)}.jsonl"
        notes.touch()
        self._notes.append(notes)
        chance = random.Random(self._chance.getrandbits(64))
        child = os.fork()
        if child == 0:
            what = restart or client.Restart()
            leave(lambda: client.work(self._path, notes, f"process-{notes.stem[6:]}", operations, what, chance))
        self._children[child] = notes

    def _keep_them_waiting(self) -> None:
        """Hold the lock once all have begun: what is told as refused then has to stay away."""
        give_up_s = time.monotonic() + _PATIENCE_S
        while not all(path.stat().st_size for path in self._notes) and time.monotonic() < give_up_s:
            time.sleep(_POLL_S)
        with file_lock_held(self._path):
            time.sleep(_HELD_S)

    def _replace_one(self, operations: int) -> None:
        child, notes = self._chance.choice(list(self._children.items()))
        del self._children[child]
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            self._work.count("killed")
        left = client.load(notes).open
        again = [append for append in left if self._chance.random() < 0.5]
        self._start(operations, client.Restart(again))

    def _wait_for_all(self) -> None:
        give_up_s = time.monotonic() + _PATIENCE_S
        while self._children:
            for child in list(self._children):
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:
                    del self._children[child]
                    code = os.waitstatus_to_exitcode(status)
                    if code != 0:
                        self._work.violation("I8", self._case, f"a process that nobody killed ended with {code}")
            if time.monotonic() >= give_up_s:
                self._work.violation("I9", self._case, f"{len(self._children)} processes do not come to their end")
                return
            time.sleep(_POLL_S)

    async def _read(self) -> list[Stored]:
        """Return the log, and report what is wrong with it by itself."""
        async with eventlog.open(self._path) as log:
            head = (await log.head()).position
            page = await log.check_page(after=0, limit=head + 1)
            for problem in page.problems:
                self._work.violation("I2", self._case, problem.message)
            events = log.read_all()
            return [Stored(each.position, each.stream, each.version, each.event_id.hex()) async for each in events]


_WITHOUT_EXPECTATION: Final = Control(
    "no_expectation",
    "an append is stored whatever version it expected",
    (
        Break(
            "eventlog/stores/sqlite/plan.py",
            "            if not part.expect.allows(actual):\n                return WrongExpectedVersion(part.stream",
            "            if False:\n                return WrongExpectedVersion(part.stream",
        ),
    ),
    shows="^I2 .*was stored behind",
)
_STALE_HEADS: Final = Control(
    "stale_heads",
    "a writer trusts what it remembers of streams though another process has committed",
    (
        Break(
            "eventlog/stores/sqlite/transaction.py",
            "        if data_version == self._data_version:\n            return",
            "        if self._data_version is not None and self._known.position:\n            return",
        ),
    ),
    shows="^I8 .*conflict",
)
_LATE: Final = Control(
    "written_after_all",
    "what callers were told was busy is written once the lock is free",
    (
        Break(
            "eventlog/stores/sqlite/transaction.py",
            '        return self._become("begun")\n',
            '        self._become("begun")\n        return True\n',
        ),
    ),
    shows="^I3 ",
)

CAMPAIGN: Final = Campaign(
    name="histories",
    title="several processes append, read and conflict on one log, and some of them are killed",
    promise="one order of all calls explains what everybody was told, and the log is in that order",
    faults=("F06", "F07", "F09", "F25", "F43", "F44", "F54", "F77"),
    invariants=("I1", "I2", "I3", "I4", "I8", "I9"),
    run=_run,
    cases="round [0-9]+",
    goals={
        "operations": Goal(fast=10_000, long=1_000_000, control=20_000),
        "stored": Goal(fast=2_000, long=200_000, control=1),
        "refused": Goal(fast=5, long=500, control=1),
        "killed": Goal(fast=1, long=100, control=1),
    },
    controls=(_WITHOUT_EXPECTATION, _STALE_HEADS, _LATE),
    limit_s=Goal(fast=120, long=2400, control=60),
    cores=2,
)
