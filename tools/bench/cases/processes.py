"""Processes: four of them, each writing to one file as fast as it can (`contender.py`), for some seconds."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

from tools.bench.cases.case import Case, Place
from tools.bench.peers import OURS
from tools.bench.rounds import Side

__all__ = ["CONTENDERS", "LARGEST_SHARE", "LOCK_ERRORS", "PROCESSES", "WORST_WAIT", "figures"]

CONTENDERS: Final = 4
LOCK_ERRORS: Final = "lock errors"
WORST_WAIT: Final = "worst wait, s"
LARGEST_SHARE: Final = "largest share"
EVENTS: Final = "events/s of all"
_MODULE: Final = "tools.bench.cases.contender"


@asynccontextmanager
async def _open(place: Place) -> AsyncIterator[list[Side]]:
    if place.find(OURS) is None:
        yield []
        return
    folder = place.folder_for("processes")
    rounds = count(1)

    async def measure() -> Mapping[str, float]:
        return await _contest(folder / f"log-{next(rounds)}.db", place.scale.contest_s)

    yield [Side("eventlog", measure)]


async def _contest(path: Path, seconds: float) -> Mapping[str, float]:
    contenders = [await _start(path, f"agent-{number}", seconds) for number in range(CONTENDERS)]
    await asyncio.gather(*map(_line, contenders))  # each says that it has opened the log
    for contender in contenders:
        assert contender.stdin is not None
        contender.stdin.write(b"go\n")
    reports = [json.loads(line) for line in await asyncio.gather(*map(_line, contenders))]
    await asyncio.gather(*(contender.wait() for contender in contenders))
    return figures(reports, seconds)


def figures(reports: Sequence[Mapping[str, Any]], seconds: float) -> Mapping[str, float]:
    """Return what the contenders' reports add up to."""
    total = sum(report["appended"] for report in reports)
    return {
        LOCK_ERRORS: sum(report["errors"] for report in reports),
        WORST_WAIT: max(report["worst_wait_s"] for report in reports),
        LARGEST_SHARE: max(report["appended"] for report in reports) / total if total else 1.0,
        EVENTS: total / seconds,
    }


async def _start(path: Path, stream: str, seconds: float) -> Process:
    command = [sys.executable, "-m", _MODULE, str(path), stream, str(seconds)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, env=environment)


async def _line(contender: Process) -> bytes:
    assert contender.stdout is not None
    line = await contender.stdout.readline()
    if not line:
        raise RuntimeError(f"a contender ended with status {await contender.wait()}")
    return line


PROCESSES: Final = Case(
    name="processes",
    what="four processes that write to one file as fast as they can",
    unit="",
    open=_open,
    rounds=lambda scale: scale.contest_rounds,
)
