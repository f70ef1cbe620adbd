"""Workers: the workflows of the case `workflows`, recorded first and then driven by several processes on one file.

Time runs from the word that lets all workers begin to the end of each run, as the log itself dates it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

from eventlog import Runner
from eventlog.stores import SqliteLog
from tools.bench.cases.case import Case, Place
from tools.bench.peers import OURS
from tools.bench.peers.our_workflows import workflow_of
from tools.bench.peers.ours import open_log
from tools.bench.rounds import Side
from tools.bench.steps import Finished, Steps, figures, require_once

__all__ = ["WORKERS", "together"]

_PROCESSES: Final = 4
_MODULE: Final = "tools.bench.cases.worker"
_MICRO: Final = 1_000_000
_TIMEOUT_S: Final = 300.0


@asynccontextmanager
async def _open(place: Place) -> AsyncIterator[list[Side]]:
    if place.find(OURS) is None:
        yield []
        return
    folder = place.folder_for("workers")
    rounds = count(1)

    async def measure(processes: int, name: str) -> Mapping[str, float]:
        path = folder / f"log-{next(rounds)}.db"
        workflows, steps = place.scale.workflows, place.scale.steps
        return figures(name, await _driven(path, processes, workflows, steps), steps)

    names = {1: "1 process", _PROCESSES: f"{_PROCESSES} processes"}
    yield [Side(name, partial(measure, processes, name)) for processes, name in names.items()]


async def _driven(path: Path, processes: int, workflows: int, steps: int) -> Finished:
    """Record the runs, let the workers drive all of them, and see that each ended with every step done once."""
    async with open_log(path) as log:
        await _record(log, workflows, steps)
        workers = [await _start(path) for _ in range(processes)]
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await asyncio.gather(*map(_line, workers))  # each has opened the log
                began_us = time.time_ns() // 1000
                for worker in workers:
                    assert worker.stdin is not None
                    worker.stdin.write(b"go\n")
                counts = [json.loads(line) for line in await asyncio.gather(*map(_line, workers))]
                await asyncio.gather(*(worker.wait() for worker in workers))
        finally:
            _end(workers)
        require_once(together(counts), workflows=workflows, steps=steps)
        ends_us = [event.recorded_at_us async for event in log.read_all(types=["run_completed"])]
    if len(ends_us) != workflows:
        raise ValueError(f"{len(ends_us)} of {workflows} runs have completed")
    each_s = [(end_us - began_us) / _MICRO for end_us in ends_us]
    return Finished(seconds=max(each_s), each_s=each_s)


def together(counts: Sequence[Mapping[str, int]]) -> Mapping[str, int]:
    """Return how often each step was done in all processes together."""
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return total


async def _record(log: SqliteLog, workflows: int, steps: int) -> None:
    workflow = workflow_of(Steps())
    runner = Runner(log, workflows=[workflow])
    await asyncio.gather(*(runner.submit(workflow, str(number), number, steps) for number in range(workflows)))


async def _start(path: Path) -> Process:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", _MODULE, str(path)]
    limit_bytes = 16 * 1024 * 1024  # a worker's report is one long line
    return await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, env=environment, limit=limit_bytes)


async def _line(worker: Process) -> bytes:
    assert worker.stdout is not None
    line = await worker.stdout.readline()
    if not line:
        raise RuntimeError(f"a worker ended with status {await worker.wait()}")
    return line


def _end(workers: Sequence[Process]) -> None:
    for worker in workers:
        if worker.returncode is None:
            with suppress(ProcessLookupError):
                worker.kill()


WORKERS: Final = Case(
    name="workers",
    what="1000 workflows of 10 steps of 100 B, recorded before and driven by worker processes on one file",
    unit="",
    open=_open,
    rounds=lambda scale: scale.worker_rounds,
)
