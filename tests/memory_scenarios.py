"""A program whose SQLite gets less and less memory while it appends; it says what it was told each time."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import eventlog
from eventlog import Expect, NewEvent
from eventlog.errors import EventLogError
from eventlog.stores import SqliteLog

__all__ = ["LIMITS", "append_with_less_and_less"]

LIMITS: Final = range(3_000_000, 200_000, -50_000)
"""Bytes; the limit of a process can be lowered and not raised again."""


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


async def _append(log: SqliteLog, stream: str, count: int, text: str) -> dict[str, Any]:
    try:
        result = await log.append(stream, _events(count, text), expect=Expect.any())
    except EventLogError as error:
        return {"stream": stream, "told": error.code, "count": count}
    return {"stream": stream, "told": "stored", "count": count, "version": result.version}


def _events(count: int, text: str) -> list[NewEvent]:
    return [NewEvent("noted", {"text": text, "number": number}) for number in range(count)]
