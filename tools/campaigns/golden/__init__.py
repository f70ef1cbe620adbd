"""Campaign `golden`: logs of every format and of old schemas are migrated, read, verified and folded as they ever were.

A golden file is what some version of the engine wrote, and what it read in it. Each is copied; the copy is opened,
which migrates it, and everything that was frozen with it has to come back: events, bodies, leaves, links, the state of
every run, the tree and its heads. Leaves and tree are computed once more by code that shares nothing with the engine.
A log of a newer format is refused, and its file stays as it was; an event of a newer schema is plain data, and no fold
takes it for something that it knows.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from eventlog.errors import EventLogError
from tools.campaigns.frame.campaign import Break, Campaign, Control, Goal, Work
from tools.campaigns.golden.replays import expected_of, replay_format, replay_future, replay_schemas
from tools.golden import GOLDEN

__all__ = ["CAMPAIGN", "run"]

_FORMATS: Final = sorted(path.stem for path in GOLDEN.glob("v*.db"))


def run(work: Work) -> None:
    """Replay every golden log, and each of them once more as a log of tomorrow."""
    for name in (*_FORMATS, "schemas"):
        if work.wants(name):
            _judge(work, name, name)
        if work.wants(f"{name}-of-tomorrow"):
            _judge(work, f"{name}-of-tomorrow", name)


def _judge(work: Work, case: str, name: str) -> None:
    """Report what the replay gives; what it raises is a golden log that today's engine cannot read."""
    copy = work.folder / f"{case}.db"
    shutil.copyfile(GOLDEN / f"{name}.db", copy)
    try:
        problems = asyncio.run(_listed(_replay(case, name, copy)))
    except (AssertionError, EventLogError, LookupError, TypeError, ValueError) as error:
        problems = [f"it cannot be read any more: {type(error).__name__}: {error}"]
    for problem in problems:
        work.violation("I1" if "leaf" in problem else "I10", case, problem)
    work.count("replays")
    work.count("events", len(expected_of(name)["events"]))


def _replay(case: str, name: str, copy: Path) -> AsyncIterator[str]:
    if case != name:
        return replay_future(copy)
    return replay_schemas(copy) if name == "schemas" else replay_format(copy, name)


async def _listed(problems: AsyncIterator[str]) -> list[str]:
    return [problem async for problem in problems]


_REPLAYS: Final = 2 * (len(_FORMATS) + 1)

CAMPAIGN: Final = Campaign(
    name="golden",
    title="logs of every format and of old schemas are replayed",
    promise="what was written stays readable, with the same hashes and the same state",
    faults=("F39", "F65"),
    invariants=("I1", "I2", "I10"),
    run=run,
    goals={"replays": Goal(fast=_REPLAYS, long=_REPLAYS, control=1), "events": Goal(fast=500, long=500, control=1)},
    controls=(
        Control(
            name="fold_forgets_the_attempt",
            what="the fold of a run does not take over which attempt has begun",
            breaks=(
                Break(
                    "eventlog/run.py",
                    "        intent=_intent(event),\n        attempts=event.attempt,\n        op_key=event.op_key,",
                    "        intent=_intent(event),\n        attempts=run.attempts,\n        op_key=event.op_key,",
                ),
            ),
            shows="I10 v[0-9]+: .*attempts is",
        ),
        Control(
            name="field_renamed",
            what="a field of a stored event has another name today",
            breaks=(
                Break(
                    "eventlog/events.py",
                    "class StepStarted(_Fact, frozen=True, kw_only=True):",
                    'class StepStarted(_Fact, frozen=True, kw_only=True, rename={"attempt": "try_number"}):',
                ),
            ),
            shows="I10 v[0-9]+: .*cannot be read any more",
        ),
        Control(
            name="entry_without_the_actor",
            what="the actor is left out of the entry that is hashed",
            breaks=(
                Break(
                    "eventlog/entry.py",
                    "    return sha256(_LEAF_LABEL + fixed + texts).digest()",
                    "    return sha256(_LEAF_LABEL + fixed + texts[:-2]).digest()",
                ),
            ),
            shows="cannot be read any more|leaf",
        ),
        Control(
            name="newer_formats_are_opened",
            what="the version of the format is not compared",
            breaks=(
                Break(
                    "eventlog/stores/sqlite/database.py",
                    "    if found > FORMAT_VERSION:",
                    "    if found > FORMAT_VERSION + 1:",
                ),
            ),
            shows="-of-tomorrow: it opens",
        ),
    ),
)
