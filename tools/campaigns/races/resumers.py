"""The processes that race: forked from a warm one, and let go together by a barrier in memory that they share."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import eventlog
from eventlog.errors import EventLogError, WrongExpectedVersion
from tools.campaigns.effects import counting_receivers as receivers
from tools.campaigns.processes.barrier import Barrier
from tools.campaigns.processes.in_child import leave

__all__ = ["Told", "resume_together"]

_MOST_AT_ONCE: Final = 4
_PATIENCE_S: Final = 60


@dataclass
class Told:
    """What the processes were told: the answers by run, how often each came, and how a process ended if not well."""

    answers: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[tuple[str, str]] = field(default_factory=list)


def resume_together(
    folder: Path, database: Path, port: int, run_ids: Sequence[str], resumers: int, chance: random.Random
) -> Told:
    """Let so many processes resume the runs, a few at once and in the same order, and return what they were told."""
    barrier = Barrier(resumers)
    batches = list(_batches(run_ids, chance))
    children = {}
    for number in range(resumers):
        child = os.fork()
        if child == 0:
            leave(lambda number=number: _resume_all(folder, database, port, batches, barrier, number))  # type: ignore[misc]
        children[child] = folder / f"told-{number}"
    told = Told()
    for child, path in children.items():
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status != 0:
            told.wrong.append(("I9" if status == -signal.SIGALRM else "I8", f"a resumer ended with {status}"))
            continue
        answers, lost = json.loads(path.read_text())
        for run_id, answer in answers:
            told.answers[run_id].append(answer)
        told.counts.update([answer for _, answer in answers])
        told.counts["by version"] += lost
    return told


def _batches(run_ids: Sequence[str], chance: random.Random) -> Iterator[Sequence[str]]:
    """Yield the runs in order, one or a few at a time."""
    first = 0
    while first < len(run_ids):
        size = chance.randint(1, _MOST_AT_ONCE)
        yield run_ids[first : first + size]
        first += size


async def _resume_all(
    folder: Path, database: Path, port: int, batches: Sequence[Sequence[str]], barrier: Barrier, number: int
) -> None:
    """Be a resumer."""
    answers: list[tuple[str, str]] = []
    async with eventlog.open(database, durability="normal", busy_timeout_s=30) as log:
        counted = _Counted(log)
        runner = eventlog.Runner(counted, actions=receivers.actions(folder, port))
        for turn, batch in enumerate(batches, start=1):
            barrier.wait(number, turn)
            signal.alarm(_PATIENCE_S)
            answers += zip(batch, await asyncio.gather(*(_resume(runner, run_id) for run_id in batch)), strict=True)
    (folder / f"told-{number}").write_text(json.dumps([answers, counted.lost]))


async def _resume(runner: eventlog.Runner, run_id: str) -> str:
    try:
        return (await runner.resume(run_id)).result or ""
    except EventLogError as error:
        return error.code


class _Counted:
    """A log that counts the appends that came too late."""

    def __init__(self, log: Any) -> None:
        self._log: Final = log
        self.lost = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append_reserved(self, *args: Any, **options: Any) -> Any:
        """Append."""
        try:
            return await self._log.append_reserved(*args, **options)
        except WrongExpectedVersion:
            self.lost += 1
            raise
