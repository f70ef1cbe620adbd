"""Each scene, crashed in front of each step of its storage, and acted again by the next process."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sqlite3
from collections.abc import Coroutine
from contextlib import closing
from pathlib import Path
from typing import Final

from eventlog.errors import EventLogError
from eventlog.runtime.failpoints import CRASH_STATUS
from eventlog.stores.sqlite import SqliteLog
from tools.campaigns.failpoints.scenes import SCENES, Scene, Wrong, database
from tools.campaigns.failpoints.steps import Steps
from tools.campaigns.frame.campaign import Work
from tools.campaigns.processes.in_child import here, in_child

__all__ = ["crash_storage"]

HOWS: Final = ("SIGKILL", "exit")
SAMPLE: Final = 9
"""About so many steps of each scene are crashed at in the fast tier."""

_Leaves = list[tuple[int, bytes]]


def crash_storage(work: Work, folder: Path) -> None:
    """Crash every scene at every step: in the long tier at every statement, in both ways."""
    wanted = {"migration_in_pieces": "migration"}.get(work.control or "")
    for scene in SCENES if wanted is None else [each for each in SCENES if each.name == wanted]:
        place = folder / scene.name
        place.mkdir()
        asyncio.run(scene.prepare(place))
        steps = _steps(scene, place, work)
        for number in _chosen(steps, work):
            for how in HOWS if work.tier == "long" else HOWS[:1]:
                case = f"{scene.name}-step-{number}-{how}"
                if work.wants(case):
                    _crash(work, scene, number, how, _copy(place, folder / "now"), case)
        work.notes[f"steps of {scene.name}"] = str(steps)


def _is_thorough(work: Work) -> bool:
    """Say whether every single statement is a step."""
    return work.tier == "long" or work.control is not None


def _chosen(steps: int, work: Work) -> range:
    """Return the steps to crash at: all of them in the long tier, else some that are spread evenly."""
    is_sampled = work.tier == "fast" and work.case is None
    stride = max(1, steps // SAMPLE) if is_sampled else 1
    return range(1 + work.seed % stride, steps + 1, stride)


def _steps(scene: Scene, prepared: Path, work: Work) -> int:
    """Return how many steps the scene has, from a process that takes them all; it also loads what it takes."""
    calm = _copy(prepared, prepared.with_name("calm"))
    asyncio.run(scene.act(calm))
    ended = in_child(lambda: _act(scene, _copy(prepared, calm), Steps(every_statement=_is_thorough(work))))
    assert ended.status == 0, f"{scene.name} does not come to its end"
    steps: int = ended.said
    return steps


async def _act(scene: Scene, folder: Path, steps: Steps) -> int:
    steps.watch()
    await scene.act(folder)
    return steps.count


def _crash(work: Work, scene: Scene, number: int, how: str, folder: Path, case: str) -> None:
    """Crash the scene in front of a step, look, let the next process act again, and look again."""
    before = _leaves(folder)
    every = _is_thorough(work)
    status = in_child(lambda: _act(scene, folder, Steps(number, how, every_statement=every))).status
    if status == 0:
        work.count("ended before its step")  # what a thread still does depends on when it is told to end
    elif status == (CRASH_STATUS if how == "exit" else -signal.SIGKILL):
        work.count("crashes in storage")
    else:
        work.violation("I9" if status == -signal.SIGALRM else "I8", case, f"the process ended with {status}")
    seen = _copy(folder, folder.with_name("seen"))
    wrong = _found(scene.holds(seen)) + _found(_look(seen, before))
    again = here(lambda: scene.act(folder)).status
    if again != 0:
        wrong.append(("I9" if again == -signal.SIGALRM else "I8", f"the next process ended with {again}"))
    else:
        wrong += _found(scene.is_done(folder)) + _found(_look(folder, before))
    for invariant, what in wrong:
        work.violation(invariant, case, what)


def _found(look: Coroutine[None, None, list[Wrong]]) -> list[Wrong]:
    """Return what a look has found; a log that cannot be looked at is found wanting."""
    try:
        return asyncio.run(look)
    except (EventLogError, sqlite3.Error) as error:
        return [("I2", f"it cannot be looked at: {error}")]


async def _look(folder: Path, before: _Leaves) -> list[Wrong]:
    """Say what is wrong in a folder with its log, and with what was acknowledged before."""
    if not database(folder).exists():
        return [] if not before else [("I1", "the log is gone")]
    wrong: list[Wrong] = []
    if _leaves(folder)[: len(before)] != before:
        wrong.append(("I1", "an acknowledged event is not where it was, or not as it was"))
    async with SqliteLog(str(database(folder)), actor="audit") as log:
        head = (await log.head()).position
        page = await log.check_page(after=0, limit=head + 1)
        problems = [*page.problems, *await log.check_file()]
    wrong += [("I2", problem.message) for problem in problems]
    if page.events != head:
        wrong.append(("I2", f"{page.events} events lie at {head} positions"))
    return wrong


def _leaves(folder: Path) -> _Leaves:
    """Return position and hash of every event."""
    if not database(folder).exists():
        return []
    with closing(sqlite3.connect(database(folder))) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'events'").fetchone():
            return []
        return connection.execute("SELECT position, leaf FROM events ORDER BY position").fetchall()


def _copy(source: Path, target: Path) -> Path:
    """Copy a folder to where another may have been; what SQLite makes again by itself is left out."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*-shm"))
    return target
