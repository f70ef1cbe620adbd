"""Writers that are killed: forked children that append for ever, and say what was acknowledged to them.

Each append is of a group of events that belong together. What is said of it is one line, written when it is known:
`group first_position version size`. A line that was being written when its process died is nobody's knowledge.
"""

from __future__ import annotations

import asyncio
import os
import random
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

import eventlog
from eventlog import Expect, NewEvent
from eventlog.stores import SqliteLog
from eventlog.stores.sqlite.wal import WalCheckpoints

__all__ = ["Acknowledged", "Writer"]

_TASKS: Final = (1, 4, 4, 50)
_MOST_EVENTS: Final = 6
_SOFT_LIMIT: Final = 64 * 1024
"""So small that kills fall into WAL checkpoints as well."""
_OPEN: Final = b"open"
_ENDS: Final = b"ends: "


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A group that somebody was told is stored, and where: its stream is at `version` with its last event."""

    group: str
    first_position: int
    version: int
    size: int


class Writer:
    """A child that appends until it is killed."""

    def __init__(self, path: Path, name: str, chance: random.Random) -> None:
        self.tasks: Final = chance.choice(_TASKS)
        seed = chance.getrandbits(64)
        from_child, to_parent = os.pipe()
        child = os.fork()  # no log is open here, and no thread runs
        if child == 0:
            os.close(from_child)
            _be_the_child(path, name, self.tasks, random.Random(seed), to_parent)
        os.close(to_parent)
        self._child: Final = child
        self._pipe: Final = from_child
        self._said = b""
        self.has_ended = False
        """The pipe is at its end: the child is gone."""

    @property
    def is_open(self) -> bool:
        return self._said.startswith(_OPEN)

    @property
    def lines(self) -> int:
        """How many lines it has said until now."""
        return self._said.count(b"\n")

    def wait_for_lines(self, count: int, patience_s: float) -> bool:
        """Wait until it has said so many lines; False if it has ended before, or the time is up."""
        give_up_s = time.monotonic() + patience_s
        while self.lines < count and not self.has_ended and time.monotonic() < give_up_s:
            self._listen(0.05)
        return self.lines >= count

    def kill(self) -> str | None:
        """Kill it, and return None, or why it had ended before."""
        os.kill(self._child, signal.SIGKILL)
        _, status = os.waitpid(self._child, 0)
        while not self.has_ended:
            self._listen(None)
        os.close(self._pipe)
        if os.WIFSIGNALED(status):
            return None
        return (
            f"{os.waitstatus_to_exitcode(status)}: {self._said.rpartition(_ENDS)[2].decode(errors='replace').strip()}"
        )

    def acknowledged(self) -> list[Acknowledged]:
        """Return what was acknowledged to it."""
        found = []
        for line in self._said.split(b"\n")[:-1]:
            if line != _OPEN and not line.startswith(_ENDS):
                group, *numbers = line.decode().split()
                found.append(Acknowledged(group, *map(int, numbers)))
        return found

    def _listen(self, patience_s: float | None) -> None:
        ready, _, _ = select.select([self._pipe], [], [], patience_s)
        if ready:
            said = os.read(self._pipe, 1 << 16)
            self._said += said
            self.has_ended = not said


def _be_the_child(path: Path, name: str, tasks: int, chance: random.Random, to_parent: int) -> NoReturn:
    WalCheckpoints.SOFT_LIMIT = _SOFT_LIMIT

    def say(line: bytes) -> None:
        os.write(to_parent, line + b"\n")

    try:
        asyncio.run(_append_for_ever(path, name, tasks, chance, say))
    except BaseException as error:
        say(_ENDS + f"{type(error).__name__}: {error}".replace("\n", " ").encode())
    finally:
        os._exit(9)


async def _append_for_ever(
    path: Path, name: str, tasks: int, chance: random.Random, say: Callable[[bytes], object]
) -> None:
    async with eventlog.open(path) as log:
        say(_OPEN)
        await asyncio.gather(*(_appending(log, f"{name}{number}", chance, say) for number in range(tasks)))


async def _appending(log: SqliteLog, stream: str, chance: random.Random, say: Callable[[bytes], object]) -> None:
    while True:
        size = chance.randint(1, _MOST_EVENTS)
        group = f"{chance.getrandbits(64):016x}"
        text = "x" * chance.randint(0, 600)
        data = [{"group": group, "index": index, "of": size, "text": text} for index in range(size)]
        result = await log.append(stream, [NewEvent("noted", each) for each in data], expect=Expect.any())
        say(f"{group} {result.first_position} {result.version} {size}".encode())
