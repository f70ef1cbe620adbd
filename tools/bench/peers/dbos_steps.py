"""DBOS on SQLite: one event is one step of a workflow. It runs in a process of its own (`dbos_child.py`).

DBOS 3.4 does not start on the SQLite that many systems have, so its process uses that of pysqlite3; and a process
holds only one SQLite library. It is the round that interleaves: the child is stopped while others are measured, or
its polling would take the second processor from them.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from tools.bench.steps import Finished
from tools.bench.store import Settings

__all__ = ["DbosSteps", "open_as_it_comes", "open_in_wal"]

_MODULE: Final = "tools.bench.peers.dbos_child"
_SETTLE_S: Final = 0.2
"""For what it missed while it was stopped."""


class DbosSteps:
    """The child, spoken to in lines of JSON."""

    def __init__(self, child: Process) -> None:
        self._child: Final = child

    async def settings(self) -> Settings:
        """Return what a connection of the child's engine says of itself."""
        settings: Settings = await self._ask({"do": "settings"})
        return settings

    async def append(self, *, tasks: int, each: int) -> float:
        """Run `tasks` workflows at once, of `each` steps."""
        seconds: float = await self._ask({"do": "append", "tasks": tasks, "each": each})
        return seconds

    async def run_workflows(self, *, workflows: int, steps: int) -> Finished:
        """Run that many workflows at once, of so many steps each."""
        answer = await self._ask({"do": "workflows", "workflows": workflows, "steps": steps})
        return msgspec.convert(answer, Finished)

    async def _ask(self, question: dict[str, Any]) -> Any:
        reader, writer = self._child.stdout, self._child.stdin
        assert reader is not None and writer is not None, "the child was started with pipes"
        self._child.send_signal(signal.SIGCONT)
        await asyncio.sleep(_SETTLE_S)
        writer.write(json.dumps(question).encode() + b"\n")
        await writer.drain()
        line = await reader.readline()
        if not line:
            raise RuntimeError(f"the DBOS child ended with status {await self._child.wait()}")
        self._child.send_signal(signal.SIGSTOP)
        return json.loads(line)


@asynccontextmanager
async def open_as_it_comes(folder: Path) -> AsyncIterator[DbosSteps]:
    """Start DBOS on a new file: a rollback journal with synchronous=FULL."""
    async with _started(folder, "delete") as steps:
        yield steps


@asynccontextmanager
async def open_in_wal(folder: Path) -> AsyncIterator[DbosSteps]:
    """Start DBOS on a file that is in WAL mode already, which it keeps."""
    async with _started(folder, "wal") as steps:
        yield steps


@asynccontextmanager
async def _started(folder: Path, journal_mode: str) -> AsyncIterator[DbosSteps]:
    command = [sys.executable, "-m", _MODULE, str(folder / "dbos.db"), journal_mode]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    child = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, env=environment)
    try:
        yield DbosSteps(child)
    finally:
        assert child.stdin is not None
        with suppress(ProcessLookupError):
            child.send_signal(signal.SIGCONT)
        child.stdin.close()
        await child.wait()
