"""Programs that put artifacts and copy logs, to be killed or failed by the system in the middle of it."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Final

from eventlog.errors import EventLogError
from eventlog.events import StepCompleted
from eventlog.log import Append, Expect, Snapshot
from eventlog.stores import SqliteLog
from eventlog.stores.artifacts import artifacts_beside
from tools.campaigns.storage.libc_faults import FOR_EVER, KILLED, Faults, Operation
from tools.campaigns.storage.log_files import assert_whole, open_file

__all__ = [
    "backs_up_and_is_killed",
    "backup_fails_as_it_gets_its_name",
    "data_of",
    "fill",
    "fsync_of_a_snapshot_fails",
    "put_fails",
    "puts_and_is_killed",
    "puts_for_ever",
    "puts_the_same",
    "snapshot_finds_no_room",
    "tears",
    "unsound",
]

COUNT: Final = 8
_SIZES: Final = (0, 1, 700, 70_000, 300_000)


def data_of(number: int) -> bytes:
    """Return the number-th artifact of a scenario."""
    return hashlib.sha256(str(number).encode()).digest() * (_SIZES[number % len(_SIZES)] // 32) + str(number).encode()


def unsound(folder: Path) -> list[str]:
    """Return the names in a folder of artifacts that are none: neither the digest of what they hold nor temporary."""
    files = [path for path in folder.rglob("*") if not path.is_dir() and not path.name.endswith(".tmp")]
    return [path.name for path in files if path.name != hashlib.sha256(path.read_bytes()).hexdigest()]


async def fill(log: SqliteLog, run_id: str = "run-1", count: int = COUNT) -> list[str]:
    """Record steps of a run whose outputs are artifacts; return their digests, in the order of the events."""
    digests = [await log.artifacts.put(data_of(number)) for number in range(count)]
    steps = [StepCompleted(name="s", key=f"s:{number}", artifact=digest) for number, digest in enumerate(digests)]
    await log.append_reserved([Append(f"run:{run_id}", steps, Expect.no_stream())])
    return digests


async def puts_for_ever(path: str) -> None:
    """Put one artifact after the other, and print the digest of each that was said to be durable."""
    async with open_file(path) as log:
        number = 0
        while True:
            print(await log.artifacts.put(data_of(number)), flush=True)
            number += 1


async def puts_and_is_killed(path: str, operation: Operation, skip: str) -> list[str]:
    """Put a few artifacts, and die at the n-th call of an operation on a file or directory of theirs."""
    async with open_file(path) as log:
        Faults().arm(operation, KILLED, files="", skip=int(skip))
        return [await log.artifacts.put(data_of(number)) for number in range(COUNT)]


async def puts_the_same(path: str) -> list[str]:
    """Put what other processes put at the same time."""
    async with open_file(path) as log:
        return [await log.artifacts.put(data_of(number)) for number in range(40)]


async def put_fails(path: str, operation: Operation, error: str, files: str) -> dict[str, Any]:
    """Put one artifact while an operation fails on the files with this ending, and again when it works."""
    faults = Faults()
    data = data_of(3)
    digest = hashlib.sha256(data).hexdigest()
    place = Path(artifacts_beside(path), digest[:2])
    async with open_file(path) as log:
        faults.arm(operation, int(error), files=files.format(shard=digest[:2]), times=FOR_EVER)
        told = await _told(log.artifacts.put(data))
        hits = faults.disarm(operation)
        left = sorted(os.listdir(place)) if place.exists() else []
        again = await _told(log.artifacts.put(data))
        return {
            "told": told,
            "hits": hits,
            "is_there": digest in left,
            "temps": [name for name in left if name != digest],
            "again": again,
            "is_whole": await log.artifacts.get(digest) == data,
        }


def tears(path: str) -> None:
    """The negative control: write an artifact under its own name at once, as a careless store would."""
    data = data_of(4)
    digest = hashlib.sha256(data).hexdigest()
    place = Path(artifacts_beside(path), digest[:2])
    place.mkdir(parents=True)
    descriptor = os.open(place / digest, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    Faults().arm("write", KILLED, files=digest[-20:], skip=1)
    for at in range(0, len(data), 4096):
        os.pwrite(descriptor, data[at : at + 4096], at)


async def backs_up_and_is_killed(path: str, target: str, operation: Operation, skip: str) -> int:
    """Copy the log, and die at the n-th call of an operation."""
    async with open_file(path, is_read_only=True) as log:
        Faults().arm(operation, KILLED, files="", skip=int(skip))
        return await log.backup(target)


async def backup_fails_as_it_gets_its_name(
    path: str, folder: str, operation: Operation, files: str, skip: str, works: str
) -> dict[str, Any]:
    """Copy the log while an operation on files with this ending fails once; say what is left, and copy it again."""
    faults, target = Faults(), Path(folder, "b.db")
    async with open_file(path, is_read_only=True) as log:
        faults.arm(operation, errno.EIO, below=folder, files=files, skip=int(skip), works=works == "works")
        told = await _told(log.backup(target))
        hits = faults.disarm(operation)
        left = sorted(os.listdir(folder))
        return {"told": told, "hits": hits, "left": left, "again": await _told(log.backup(target))}


async def snapshot_finds_no_room(path: str) -> dict[str, Any]:
    """Save a snapshot while the disk is full, then append."""
    faults = Faults()
    async with open_file(path) as log:
        await log.save_snapshot("run:a", Snapshot(1, b"one"))
        faults.arm("write", errno.ENOSPC, files="-wal", times=FOR_EVER)
        saved = await _told(log.save_snapshot("run:a", Snapshot(2, b"x" * 100_000)))
        hits = faults.disarm("write")
        return {"saved": saved, "hits": hits, **await _goes_on(log)}


async def fsync_of_a_snapshot_fails(path: str) -> dict[str, Any]:
    """The fsync of the COMMIT that saves a snapshot fails, then comes an append."""
    faults = Faults()
    async with open_file(path) as log:
        await log.save_snapshot("run:a", Snapshot(1, b"one"))
        faults.arm("sync", errno.EIO, files="-wal")
        saved = await _told(log.save_snapshot("run:a", Snapshot(2, b"two")))
        hits = faults.disarm("sync")
        state = (await log.health()).state
        return {"saved": saved, "hits": hits, "state": state, **await _goes_on(log)}


async def _goes_on(log: SqliteLog) -> dict[str, Any]:
    appended = await _told(fill(log, count=1))
    snapshot = await log.load_snapshot("run:a")
    await log.save_snapshot("run:a", Snapshot(3, b"three"))
    await assert_whole(log)
    return {
        "appended": appended,
        "kept": snapshot.version if snapshot is not None else None,
        "later": await log.load_snapshot("run:a") == Snapshot(3, b"three"),
        "reopened": [event.type async for event in log.read("$log")],
    }


async def _told(asked: Awaitable[object]) -> str:
    try:
        await asked
    except EventLogError as error:
        return error.code
    return "ok"
