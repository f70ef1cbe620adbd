"""Subscribers: what a writer still reaches while others follow the log, in its own process and in another one.

1010 of them are 1000 on a run each and ten on the whole log; one in ten is slow. The share that is kept is the rate
beside the rate without any, measured one right after the other, and how much of the processor an event takes says where
the rest goes. Behind every measurement each quick subscriber has to have got everything; each checks what it gets.
"""

from __future__ import annotations

import json
import os
import sys
import time
from asyncio import create_subprocess_exec
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

import msgspec

from tools.bench.cases.case import Case, Place
from tools.bench.crowd import Crowd, write_for
from tools.bench.peers import OURS
from tools.bench.peers.ours import open_log
from tools.bench.rounds import Side

__all__ = ["SUBSCRIBERS"]

_MODULE: Final = "tools.bench.cases.audience"
_MANY: Final = 1010
_FEW: Final = 20
_MICRO: Final = 1_000_000


class _Found(msgspec.Struct, frozen=True):
    """What one writer reached: events a second, and how much processor time its process took for one, in µs."""

    rate: float
    cost_us: float


@asynccontextmanager
async def _open(place: Place) -> AsyncIterator[list[Side]]:
    if place.find(OURS) is None:
        yield []
        return
    folder = place.folder_for("subscribers")
    rounds = count(1)

    async def measure(tasks: int) -> Mapping[str, float]:
        path = folder / f"log-{next(rounds)}"
        return await _compare(path, tasks, place.scale.crowd_s)

    yield [Side(_spell(tasks), partial(measure, tasks)) for tasks in (1, 100)]


async def _compare(path: Path, tasks: int, seconds: float) -> Mapping[str, float]:
    """Measure with nobody, with few, with many here, and with many elsewhere, each on a log of its own."""
    ways: dict[str, Callable[[Path], Awaitable[_Found]]] = {
        "nobody": lambda path: _beside(path, 0, tasks, seconds),
        f"{_FEW} here": lambda path: _beside(path, _FEW, tasks, seconds),
        f"{_MANY} here": lambda path: _beside(path, _MANY, tasks, seconds),
        f"{_MANY} elsewhere": lambda path: _beside_another_process(path, tasks, seconds),
    }
    found = {
        name: await way(path.with_name(f"{path.name}-{number}.db")) for number, (name, way) in enumerate(ways.items())
    }
    alone = found["nobody"]
    figures = {}
    for name, each in found.items():
        figures[f"{_spell(tasks)}, {name}: events/s"] = each.rate
        if each is not alone:
            figures[f"{_spell(tasks)}, {name}: share kept"] = each.rate / alone.rate
        figures[f"{_spell(tasks)}, {name}: µs of the writer's process an event"] = each.cost_us
    return figures


def _spell(tasks: int) -> str:
    return "1 task" if tasks == 1 else f"{tasks} tasks"


async def _beside(path: Path, size: int, tasks: int, seconds: float) -> _Found:
    async with open_log(path) as log, Crowd(log, size).watching() as crowd:
        began_s = time.process_time()
        rate, versions = await write_for(log, seconds, tasks=tasks)
        took_s = time.process_time() - began_s
        await crowd.until_served(versions)
    return _Found(rate, took_s / sum(versions.values()) * _MICRO)


async def _beside_another_process(path: Path, tasks: int, seconds: float) -> _Found:
    async with open_log(path) as log:
        audience = await _start(path)
        try:
            await _line(audience)
            began_s = time.process_time()
            rate, versions = await write_for(log, seconds, tasks=tasks)
            took_s = time.process_time() - began_s
            assert audience.stdin is not None
            audience.stdin.write(json.dumps(versions).encode() + b"\n")
            await _line(audience)
            await audience.wait()
        finally:
            if audience.returncode is None:
                with suppress(ProcessLookupError):
                    audience.kill()
    return _Found(rate, took_s / sum(versions.values()) * _MICRO)


async def _start(path: Path) -> Process:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", _MODULE, str(path), str(_MANY)]
    return await create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, env=environment)


async def _line(audience: Process) -> bytes:
    assert audience.stdout is not None
    line = await audience.stdout.readline()
    if not line:
        raise RuntimeError(f"the audience ended with status {await audience.wait()}")
    return line


SUBSCRIBERS: Final = Case(
    name="subscribers",
    what="a writer's rate beside subscribers, 1000 on a run each and ten on the whole log, one in ten slow",
    unit="",
    open=_open,
    rounds=lambda scale: scale.crowd_rounds,
)
