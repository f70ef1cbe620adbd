"""What the programs of the campaign have in common: logs that stay open, tasks that append, and what was told."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from typing import Any, Final

from eventlog import EventLogError, Expect, NewEvent
from eventlog.stores import SqliteLog
from tools.campaigns.storage.log_files import open_file

__all__ = ["ACKNOWLEDGED", "KEPT", "code_of", "event", "open_for_ever", "start_appending"]

KEPT: Final[list[object]] = []
"""Keeps logs alive to the very end of the interpreter."""

ACKNOWLEDGED: Final = ".acknowledged"
"""Behind the path of the log: the file with a line `id position` for each event whose append has returned."""


async def open_for_ever(path: str, **options: Any) -> SqliteLog:
    """Open a log that nobody closes."""
    log = await open_file(path, **options).__aenter__()
    KEPT.append(log)
    return log


def start_appending(log: SqliteLog, path: str) -> list[asyncio.Task[None]]:
    """Start tasks that append as fast as they can, and write down what was acknowledged."""
    notes = os.open(f"{path}{ACKNOWLEDGED}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    async def appending(number: int) -> None:
        try:
            while True:
                new = event()
                result = await log.append(f"s{number}", [new], expect=Expect.any())
                os.write(notes, f"{new.event_id.hex()} {result.last_position}\n".encode())
        except EventLogError as error:  # as it ends when the log is closed
            os.write(notes, f"told {error.code}\n".encode())

    tasks = [asyncio.create_task(appending(number)) for number in range(5)]
    KEPT.extend(tasks)
    return tasks


async def code_of(doing: Awaitable[Any]) -> str:
    """Return the code of the error that this raises, or `ok`."""
    try:
        await doing
    except EventLogError as error:
        return error.code
    return "ok"


def event() -> NewEvent:
    """Return an event of some size."""
    return NewEvent("noted", {"text": "x" * 100})
