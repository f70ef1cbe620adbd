"""Other names of a database: a second hard link is refused, a symbolic one leads to the same log."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

from eventlog.errors import StoreUnavailable
from eventlog.log import RecordedEvent
from tools.campaigns.storage.log_files import open_file

__all__ = ["problems_of_links"]


def problems_of_links(path: Path, events: list[RecordedEvent], *, is_hard: bool) -> Iterator[str]:
    """Give what is wrong with how the log at `path` is met while it has a second name."""
    other = path.with_name("other.db")
    (os.link if is_hard else os.symlink)(path, other)
    try:
        for name in (path, other):
            for is_read_only in (True, False):
                found = asyncio.run(_read(name, is_read_only=is_read_only))
                if is_hard and found != "store_cannot_open":
                    yield f"{name.name} has two hard links and is met with {found!s:.80}"
                if not is_hard and found != events:
                    yield f"{name.name} is read as something else while a symbolic link leads to it: {found!s:.80}"
        if Path(f"{other}-wal").exists():
            yield "the second name has a write-ahead log of its own"
    finally:
        other.unlink()


async def _read(path: Path, *, is_read_only: bool) -> list[RecordedEvent] | str:
    try:
        async with open_file(path, is_read_only=is_read_only) as log:
            return [event async for event in log.read_all()]
    except StoreUnavailable as error:
        return error.code
