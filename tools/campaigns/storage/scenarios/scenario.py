"""What a storage scenario is: something a program does with a log, and what must hold of it whatever went wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import eventlog
from eventlog.stores import SqliteLog
from tools.campaigns.processes.told import Call, Said, StoppedEarly

__all__ = ["Scenario", "Wrong", "database", "nothing", "open_log", "opened"]

IMPATIENCE: Final = {"busy_timeout_s": 0.5, "settle_timeout_s": 0.05}
"""How long the engine waits, in a program on which faults that last are to be tried thousands of times."""


class Wrong(NamedTuple):
    """An invariant that did not hold, and what shows it."""

    invariant: str
    what: str


@dataclass(frozen=True, slots=True)
class Scenario:
    """`prepare` makes a folder once; `work` is done in copies of it, again where it has failed; then `audit` looks.

    `work` runs where calls of the system fail, and may be killed anywhere. `audit` runs in another process, where they
    do not; it gets what the callers were told, and repairs what there is to repair, as the next process would.
    """

    name: str
    what: str
    prepare: Callable[[Path], Awaitable[None]]
    work: Callable[[Path, Said], Awaitable[None]]
    audit: Callable[[Path, Sequence[Call]], Awaitable[list[Wrong]]]


def database(folder: Path) -> Path:
    """Return where the log of a scenario is."""
    return folder / "log.db"


async def nothing(folder: Path) -> None:
    """Prepare nothing."""


def open_log(path: Path, **options: Any) -> SqliteLog:
    """Return the log in a file, not opened yet."""
    log = eventlog.open(path, **{**IMPATIENCE, **options})
    assert isinstance(log, SqliteLog)
    return log


@asynccontextmanager
async def opened(said: Said, log: SqliteLog) -> AsyncIterator[SqliteLog]:
    """Open a log and close it, both as calls that are told of. Raises StoppedEarly if it does not open."""
    if await said.ask("open", log.__aenter__()) is None:
        raise StoppedEarly
    try:
        yield log
    finally:
        await said.ask("close", log.close())
