"""Recovery: a run of many steps is killed with SIGKILL in the middle of one; how soon does another process do the next?

The process that recovers is killed in turn in the middle of the same step, so every round finds the same work. Time
runs from before the log is opened (DBOS: from before it is made and launched) to the call of the first step that has
not returned yet; what is imported and how long a process takes to start is told apart, as the time from its start.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from tools.bench.cases.case import Case, Place
from tools.bench.peers import DBOS_WAL, OURS
from tools.bench.rounds import Side

__all__ = ["RECOVERY", "recover", "until_killed"]

_MODULES: Final = {OURS: "tools.bench.peers.our_recovery", DBOS_WAL: "tools.bench.peers.dbos_recovery"}
_TIMEOUT_S: Final = 120.0


@asynccontextmanager
async def _open(place: Place) -> AsyncIterator[list[Side]]:
    sides = []
    for peer in place.peers:
        module = _MODULES.get(peer.name)
        if module is not None:
            path = place.folder_for(peer.name) / "log.db"
            begun = await until_killed(module, "start", path, place.scale.recovery_steps)
            if begun["done"] != place.scale.recovery_steps:
                raise ValueError(f"{peer.name} did {begun['done']} of {place.scale.recovery_steps} steps")
            sides.append(Side(peer.name, partial(recover, peer.name, module, path, place.scale.recovery_steps)))
    yield sides


async def recover(name: str, module: str, path: Path, steps: int) -> Mapping[str, float]:
    """Time one recovery. Raises ValueError if a step was done that had been done before."""
    found = await until_killed(module, "recover", path, steps)
    if found["done"]:
        raise ValueError(f"{name} did {found['done']} steps again that had been done")
    return {name: found["seconds"], f"{name}, from the start of its process": found["since_start_s"]}


async def until_killed(module: str, do: str, path: Path, steps: int) -> Mapping[str, Any]:
    """Let a process come to the middle of the step behind these, and kill it there; return what it said."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    began = time.perf_counter()
    command = [sys.executable, "-m", module, do, str(path), str(steps)]
    child = await asyncio.create_subprocess_exec(*command, stdout=PIPE, env=environment)
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            line = await _line(child)
        since_start_s = time.perf_counter() - began
    finally:
        with suppress(ProcessLookupError):
            child.kill()
        await child.wait()
    return {**json.loads(line), "since_start_s": since_start_s}


async def _line(child: Process) -> bytes:
    assert child.stdout is not None
    line = await child.stdout.readline()
    if not line:
        raise RuntimeError(f"a process that recovers ended with status {await child.wait()}")
    return line


RECOVERY: Final = Case(
    name="recovery",
    what="a run of 1000 steps, killed in the middle of the next one: time to the first new step in another process",
    unit="s",
    open=_open,
    rounds=lambda scale: scale.recovery_rounds,
)
