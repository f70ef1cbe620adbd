"""Files that are replaced or taken away under an open log: nobody else's events are lost to it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import eventlog
from eventlog.errors import StoreUnavailable
from eventlog.log import Expect, NewEvent

APPEND_AS_ANOTHER_PROCESS = """
import asyncio, sys, eventlog
from eventlog import Expect, NewEvent
async def main():
    async with eventlog.open(sys.argv[1]) as log:
        await log.append("theirs", [NewEvent("happened", {})], expect=Expect.any())
asyncio.run(main())
"""


def append_as_another_process(path: Path) -> None:
    subprocess.run([sys.executable, "-c", APPEND_AS_ANOTHER_PROCESS, str(path)], timeout=30, check=True)


READ_AS_ANOTHER_PROCESS = """
import asyncio, sys, eventlog
async def main():
    async with eventlog.open(sys.argv[1]) as log:
        assert not (await log.check_page(after=0)).problems
        print(" ".join([event.stream async for event in log.read_all()]))
asyncio.run(main())
"""


def streams_of(path: Path) -> list[str]:
    command = [sys.executable, "-c", READ_AS_ANOTHER_PROCESS, str(path)]
    return subprocess.run(command, timeout=30, check=True, capture_output=True, text=True).stdout.split()


async def lose_the_files(log: eventlog.EventLog, path: Path) -> None:
    for end in ("-wal", "-shm"):
        os.unlink(f"{path}{end}")
    with pytest.raises(StoreUnavailable):
        await log.append("ours", [NewEvent("happened", {})], expect=Expect.any())


async def test_a_log_that_lost_its_files_overwrites_nobody_when_it_closes(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with eventlog.open(path) as log:
        await log.append("ours", [NewEvent("happened", {})], expect=Expect.any())
        await lose_the_files(log, path)
        append_as_another_process(path)
    assert streams_of(path)[-1] == "theirs"


async def test_a_log_that_never_noticed_overwrites_nobody_when_it_closes(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    append_as_another_process(path)
    async with eventlog.open(path) as log:
        await log.append("ours", [NewEvent("happened", {})], expect=Expect.any())
        for end in ("-wal", "-shm"):
            os.unlink(f"{path}{end}")
        append_as_another_process(path)
    assert streams_of(path) == ["theirs", "theirs"], "what was only in the lost file is lost, and nothing else"


async def test_a_log_whose_database_was_replaced_leaves_the_new_one_alone(tmp_path: Path) -> None:
    path, other = tmp_path / "log.db", tmp_path / "other.db"
    append_as_another_process(other)
    async with eventlog.open(path) as log:
        await log.append("ours", [NewEvent("happened", {})], expect=Expect.any())
        for end in ("-wal", "-shm"):
            os.rename(f"{path}{end}", tmp_path / f"old{end}")
        os.rename(path, tmp_path / "old")
        os.rename(other, path)
        append_as_another_process(path)
    assert streams_of(path) == ["theirs", "theirs"]


async def test_a_subscriber_notices_that_the_database_was_replaced(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    append_as_another_process(path)
    async with eventlog.open(path) as log:
        events = log.subscribe()
        await anext(events)
        os.rename(path, tmp_path / "old")
        append_as_another_process(path)
        with pytest.raises(StoreUnavailable) as noticed:
            await anext(events)
        assert noticed.value.code == "store_identity_changed"


def test_a_device_is_refused_untouched(tmp_path: Path) -> None:
    for target in ("/dev/null", "/dev/full", str(tmp_path / "fifo")):
        if target.endswith("fifo"):
            os.mkfifo(target)
        with pytest.raises(StoreUnavailable, match="not a regular file"):
            _open(target)
        assert not os.path.exists(f"{target}.lock")


def _open(target: str) -> None:
    import asyncio

    async def opened() -> None:
        async with eventlog.open(target):
            pass

    asyncio.run(opened())
