"""Which failpoints are passed when nothing crashes: a failpoint that no scenario reaches protects nothing."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import eventlog
from tools.crashes.receiver import receiving
from tools.crashes.subjects import Subject, database, subjects

__all__ = ["points_passed"]


def points_passed() -> dict[str, list[str]]:
    """Perform every action once, and return the failpoints that each passed, in order, by the action's name."""
    with receiving() as receiver, tempfile.TemporaryDirectory() as folder:
        return {subject.name: asyncio.run(_perform(subject, Path(folder))) for subject in subjects(receiver)}


async def _perform(subject: Subject, parent: Path) -> list[str]:
    folder = parent / subject.name
    folder.mkdir()
    passed: list[str] = []
    async with eventlog.open(database(folder)) as log:
        args, output = subject.request(folder)
        proposal = eventlog.propose(subject.name, args, output)
        await eventlog.Runner(log).propose("run-1", proposal)
        await eventlog.Runner(log).approve("run-1", proposal.hash)
    subject.prepare(folder)
    async with eventlog.open(database(folder)) as log:
        await eventlog.Runner(log, actions=[subject.action(folder)], reach=passed.append).resume("run-1")
    return passed
