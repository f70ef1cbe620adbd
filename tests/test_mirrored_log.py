"""A log with a mirror keeps the contract of logs, whatever log it is.

What a mirrored log only hands on is tried over one of the two logs. One test of subscribers is left out: it takes half
a minute of a core, and no mirror stands between a log and its subscribers.

The transcripts lie in memory where the machine has such a folder: what they do when a disk fails is in `test_mirrors`,
and here each of a thousand tests would wait for it.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import eventlog
from eventlog.stores import SqliteLog
from eventlog.stores.memory import MemoryLog
from eventlog.testing.log_contract import (
    AppendContract,
    AppendManyContract,
    ConcurrencyContract,
    ExpectContract,
    LifeContract,
    LogContract,
    NewLog,
    OpenableLog,
    ReservedContract,
    RetryContract,
)
from projections import TranscriptMirror, mirrored

IN_MEMORY = Path("/dev/shm")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for transcripts."""
    place = IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="eventlog-mirrors-", dir=place) as folder:
        yield Path(folder)


class TestMirroredSqliteLog(LogContract):
    test_200_subscribers_of_all_kinds_get_exactly_what_is_read = None  # type: ignore[assignment]

    @pytest.fixture
    def new_log(self, tmp_path: Path, folder: Path) -> NewLog:
        names = itertools.count()

        def new(**options: Any) -> OpenableLog:
            number = next(names)
            log: SqliteLog = eventlog.open(tmp_path / f"{number}.db", **options)
            return mirrored(log, TranscriptMirror(folder / f"{number}", streams=""))

        return new


class TestMirroredMemoryLog(
    ExpectContract,
    AppendContract,
    AppendManyContract,
    RetryContract,
    ConcurrencyContract,
    ReservedContract,
    LifeContract,
):
    @pytest.fixture
    def new_log(self, folder: Path) -> NewLog:
        names = itertools.count()

        def new(**options: Any) -> OpenableLog:
            log: MemoryLog = eventlog.open("memory:", **options)
            return mirrored(log, TranscriptMirror(folder / f"{next(names)}", streams=""))

        return new
