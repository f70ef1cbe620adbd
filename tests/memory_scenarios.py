"""A program whose SQLite gets less and less memory while it appends; it says what it was told each time."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import eventlog
from eventlog import Expect, NewEvent
from eventlog.cli.app import run
from eventlog.errors import EventLogError
from eventlog.stores import SqliteLog

__all__ = [
    "LIMITS",
    "append_with_less_and_less",
    "read_what_is_larger_than_the_memory",
    "show_what_is_larger_than_the_memory",
]

LIMITS: Final = range(3_000_000, 200_000, -50_000)
"""Bytes; the limit of a process can be lowered and not raised again."""

LARGE: Final = "x" * 8_000_000
LESS: Final = 6_000_000
"""Less bytes than the large event has: whoever reads it ends in SQLITE_NOMEM, in the middle of a statement."""


async def append_with_less_and_less(path: str) -> list[dict[str, Any]]:
    """Append 500 events of 2 KiB at once and then one small one, under each limit; return what each call was told."""
    told = []
    async with eventlog.open(Path(path)) as log:
        assert isinstance(log, SqliteLog)
        for limit in LIMITS:
            connection_pragma = f"PRAGMA hard_heap_limit={limit}"
            try:
                await log.read_view(lambda connection, pragma=connection_pragma: connection.execute(pragma).fetchone())
            except EventLogError:
                break  # not even this has memory enough
            for count, text in ((500, "x" * 2000), (1, "small")):
                told.append({"limit": limit, **await _append(log, f"at-{limit}-{count}", count, text)})
    return told


async def read_what_is_larger_than_the_memory(path: str) -> dict[str, Any]:
    """Return what each way of reading a stream is told whose event does not fit; another stream is read behind it."""
    await _write_large(path)
    told: dict[str, Any] = {}
    async with eventlog.open(Path(path)) as log:
        assert isinstance(log, SqliteLog)
        await log.read_view(_limit)
        for name in ("read", "read_back", "read_stream"):
            try:
                if name == "read_stream":
                    await log.read_stream("large")
                else:
                    [event async for event in getattr(log, name)("large")]
            except EventLogError as error:
                told[name] = error.code
        told["small"] = (await log.read_stream("small")).version
    return told


def show_what_is_larger_than_the_memory(path: str) -> int:
    """Return the status with which the command ends that shows a run whose proposal does not fit."""
    asyncio.run(_propose_large(path))
    assert run(["--db", path, "runs", "list"]) == 0, "the views are built while there is memory"
    with closing(sqlite3.connect(":memory:")) as any_database:
        _limit(any_database)
    return run(["--db", path, "show-trace", "large"])


async def _propose_large(path: str) -> None:
    async with eventlog.open(Path(path)) as log:
        await eventlog.Runner(log).propose("large", eventlog.propose("write_file", {"content": LARGE}, "out.txt"))


async def _write_large(path: str) -> None:
    async with eventlog.open(Path(path)) as log:
        await log.append("large", [NewEvent("noted", {"text": LARGE})], expect=Expect.any())
        await log.append("small", _events(1, "small"), expect=Expect.any())


def _limit(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA hard_heap_limit={LESS}").fetchone()


async def _append(log: SqliteLog, stream: str, count: int, text: str) -> dict[str, Any]:
    try:
        result = await log.append(stream, _events(count, text), expect=Expect.any())
    except EventLogError as error:
        return {"stream": stream, "told": error.code, "count": count}
    return {"stream": stream, "told": "stored", "count": count, "version": result.version}


def _events(count: int, text: str) -> list[NewEvent]:
    return [NewEvent("noted", {"text": text, "number": number}) for number in range(count)]
