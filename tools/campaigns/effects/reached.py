"""Which failpoints are passed when nothing crashes: a failpoint that no scenario reaches protects nothing."""

from __future__ import annotations

import asyncio
import gc
import tempfile
from collections.abc import Iterable
from pathlib import Path

import eventlog
from tools.campaigns.effects.http_receiver import receiving
from tools.campaigns.effects.subjects import Subject, database, subjects

__all__ = ["passed_by", "points_passed"]


def points_passed() -> dict[str, list[str]]:
    """Perform every action once, and return the failpoints that each passed, in order, by the action's name."""
    with receiving() as receiver, tempfile.TemporaryDirectory() as folder:
        return passed_by(subjects(receiver), Path(folder))


def passed_by(known: Iterable[Subject], parent: Path) -> dict[str, list[str]]:
    """Perform these actions in this process, each in a folder of its own below `parent`, as `points_passed` does.

    Afterwards all that it takes is loaded, so that children, which are forked from here, begin at once.
    """
    passed = {subject.name: asyncio.run(_perform(subject, parent)) for subject in known}
    gc.collect()
    gc.freeze()  # a child's collector would touch, and so copy, every page of what is here
    return passed


async def _perform(subject: Subject, parent: Path) -> list[str]:
    folder = parent / subject.name
    folder.mkdir(parents=True)
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
