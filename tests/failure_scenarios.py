"""What a program sees when the storage below it fails. Each function runs in a child of its own."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import sqlite3
import threading
import time
from collections.abc import Awaitable
from typing import Any, Final

from eventlog import CommitOutcomeUnknown, EventLogError, Expect, NewEvent
from eventlog.stores import SqliteLog
from eventlog.stores.sqlite.wal import WalCheckpoints
from eventlog.stores.subject_keys import SubjectKeys
from eventlog.views import Selection, ViewEntry
from tools.campaigns.processes.child import leaving
from tools.campaigns.processes.waiting import until
from tools.campaigns.storage.libc_faults import FOR_EVER, KILLED, Faults, Operation
from tools.campaigns.storage.log_files import open_file

Answer = dict[str, Any]
_NOBODY: Final = 65534


async def is_killed_while_opening(path: str, operation: Operation, skip: str) -> str:
    """Die at the n-th call of an operation while the log is created."""
    Faults().arm(operation, KILLED, files="", skip=int(skip))
    async with open_file(path):
        return "opened"


async def commit_sync_fails_once(path: str, works: str) -> Answer:
    """The fdatasync of one COMMIT fails, after it has worked or instead."""
    faults = Faults()
    async with open_file(path) as log:
        await log.append("s", [_event(0)], expect=Expect.no_stream())
        faults.arm("sync", errno.EIO, files="-wal", works=works == "works")
        told = await _told(log.append("s", [_event(1)], expect=Expect.at(1)))
        hits = faults.disarm("sync")
        after = await _told(log.append("s", [_event(2)], expect=Expect.at(2)))
        return {"told": told, "after": after, "hits": hits, **await _stored(log)}


async def commit_sync_keeps_failing(path: str) -> Answer:
    """Every sync fails for longer than the store tries to settle; then the disk is well again."""
    faults = Faults()
    first, second = _event(1), _event(2)
    async with open_file(path, settle_timeout_s=0.3, busy_timeout_s=1) as log:
        await log.append("s", [_event(0)], expect=Expect.no_stream())
        faults.arm("sync", errno.EIO, files="-wal", times=FOR_EVER)
        told = await _told(log.append("s", [first], expect=Expect.at(1)))
        while_failing = (await log.health()).state
        definite = await _told(log.append("s", [second], expect=Expect.any()))
        readable = [event.version async for event in log.read("s")]
        faults.disarm("sync")
        retried = await _told(log.append("s", [first], expect=Expect.at(1)))
        return {
            "told": told,
            "id": first.event_id.hex(),
            "while_failing": while_failing,
            "definite": definite,
            "readable": readable,
            "retried": retried,
            **await _stored(log),
        }


async def every_write_behind_a_failed_sync_fails_in_turn(path: str) -> list[Answer]:
    """The sync of a COMMIT fails, and from the n-th write on, barrier and retry included, the disk is full as well."""
    faults = Faults()
    answers = []
    async with open_file(path, settle_timeout_s=0.05, busy_timeout_s=1) as log:
        await log.append("s", [_event(0)], expect=Expect.no_stream())
        for skip in range(100):
            event = _event(skip)
            before = await _barriers(log)
            faults.arm("sync", errno.EIO, files="-wal")
            faults.arm("write", errno.ENOSPC, files="-wal", skip=skip, times=FOR_EVER)
            told = await _told(log.append("s", [event], expect=Expect.any()))
            syncs, writes = faults.disarm("sync"), faults.disarm("write")
            barriers = await _barriers(log) - before
            retried = await _told(log.append("s", [event], expect=Expect.any()))
            found = [each.event_id async for each in log.read("s")].count(event.event_id)
            answers.append(
                {
                    "told": told,
                    "syncs": syncs,
                    "writes": writes,
                    "barriers": barriers,
                    "retried": retried,
                    "found": found,
                }
            )
            if writes == 0:
                break
        answers.append(await _stored(log))
    return answers


async def log_is_replaced_while_poisoned(path: str, other: str) -> Answer:
    """A write fails, and before the store has reopened, another log stands in the place of this one."""
    faults = Faults()
    async with open_file(path, busy_timeout_s=1) as log:
        await log.append("s", [_event(0)], expect=Expect.no_stream())
        faults.arm("write", errno.EIO, files="-wal")
        told = await _told(log.append("s", [_event(1)], expect=Expect.at(1)))
        for tail in ("", "-wal", "-shm"):
            os.rename(f"{path}{tail}", f"{path}.away{tail}")
        os.rename(other, path)
        after = [await _told(log.append("s", [_event(2)], expect=Expect.any())) for _ in range(2)]
        return {"told": told, "after": after}


async def program_ends_while_the_disk_does_not_answer(path: str) -> None:
    """Let asyncio.run end everything while a transaction has begun and does not come back."""
    view = StuckView()
    log = await open_file(path, views=[view]).__aenter__()
    _KEPT.extend(asyncio.ensure_future(log.append("s", [_event(n)], expect=Expect.any())) for n in range(3))
    _KEPT.append(log)
    view.is_stuck.set()
    await until(view.has_begun.is_set)
    leaving()


_KEPT: list[object] = []


class StuckView:
    """An inline view that holds a transaction up in the middle, as a disk does that does not answer."""

    name = "stuck"
    revision = 1
    shape = ""
    selection = Selection(frozenset({"noted"}))

    def __init__(self) -> None:
        self.is_stuck = threading.Event()
        self.has_begun = threading.Event()
        self.may_go_on = threading.Event()

    def exists(self, connection: sqlite3.Connection, entry: ViewEntry) -> bool:
        """There is nothing that could be missing."""
        return True

    def is_own(self, connection: sqlite3.Connection, entry: ViewEntry) -> bool:
        """Say that what is there was made here."""
        return True

    def create(self, connection: sqlite3.Connection, entry: ViewEntry) -> None:
        """There is nothing to create."""

    def drop(self, connection: sqlite3.Connection, entry: ViewEntry) -> None:
        """There is nothing to drop."""

    def delete_page(self, connection: sqlite3.Connection, entry: ViewEntry, limit: int) -> int:
        """There is nothing to delete."""
        return 0

    def rename(self, connection: sqlite3.Connection, before: ViewEntry, after: ViewEntry) -> None:
        """There is nothing to rename."""

    def apply(self, connection: sqlite3.Connection, entry: ViewEntry, events: Any, cache: Any = None) -> None:
        """Wait, if told to."""
        if self.is_stuck.is_set():
            self.has_begun.set()
            self.may_go_on.wait(60)


async def every_write_of_a_commit_fails_in_turn(path: str, error: str) -> list[Answer]:
    """Fail the n-th write of an append, for n until an append needs no n-th write."""
    faults = Faults()
    answers = []
    async with open_file(path) as log:
        await log.append("s", [_event(0)], expect=Expect.no_stream())
        for skip in range(100):
            event = _event(skip, size=9_000)
            faults.arm("write", int(error), files="-wal", skip=skip)
            told = await _told(log.append("s", [event], expect=Expect.any()))
            hits = faults.disarm("write")
            state = (await log.health()).state
            found = [each.event_id async for each in log.read("s")].count(event.event_id)
            answers.append({"told": told, "hits": hits, "found": found, "state": state})
            if hits == 0:
                break
        answers.append(await _stored(log))
    return answers


async def reads_fail(path: str) -> Answer:
    """A read of the database fails with EIO; afterwards reading works."""
    async with open_file(path) as log:
        await log.append("s", [_event(n, size=3_000) for n in range(50)], expect=Expect.no_stream())
    faults = Faults()
    async with open_file(path) as log:
        faults.arm("read", errno.EIO, files=".db", times=FOR_EVER)
        told = await _told(_read(log))
        hits = faults.disarm("read")
        return {"told": told, "hits": hits, "then": len(await _read(log))}


async def disk_is_full(path: str, filler: str) -> Answer:
    """Fill the small disk that `path` lies on, read on, free some space, and append again."""
    _fill(filler)
    async with open_file(path) as log:
        appended = 0
        while (told := await _told(log.append("s", [_event(appended, size=20_000)], expect=Expect.any()))) == "ok":
            appended += 1
        state = (await log.health()).state
        readable = len(await _read(log))
        os.unlink(filler)
        after = await _told(log.append("s", [_event(appended)], expect=Expect.at(appended)))
        return {
            "told": told,
            "appended": appended,
            "state": state,
            "readable": readable,
            "after": after,
            **await _stored(log),
        }


async def opens_where_the_index_finds_no_room(path: str) -> Answer:
    """The disk is full when the index of the write-ahead log is made; then there is room."""
    async with open_file(path) as log:
        await log.append("s", [_event(0)], expect=Expect.no_stream())
    faults = Faults()
    faults.arm("write", errno.ENOSPC, files="-shm", times=FOR_EVER)
    told = await _told(open_file(path).__aenter__())
    hits = faults.disarm("write")
    async with open_file(path) as log:
        return {"told": told, "hits": hits, **await _stored(log)}


async def files_may_not_grow(path: str) -> Answer:
    """RLIMIT_FSIZE stops the write-ahead log from growing, and is lifted again."""
    async with open_file(path) as log:
        await log.append("s", [_event(0)], expect=Expect.no_stream())
        wal_bytes = (await log.health()).wal_bytes
        assert wal_bytes is not None
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (wal_bytes + 8_192, hard))
        told = await _told(log.append("s", [_event(1, size=200_000)], expect=Expect.at(1)))
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        after = await _told(log.append("s", [_event(2)], expect=Expect.at(1)))
        return {"told": told, "after": after, **await _stored(log)}


async def wal_checkpoints_fail(path: str) -> Answer:
    """Copying the write-ahead log into the database fails, again and again, while events are appended."""
    WalCheckpoints.IDLE_LIMIT = WalCheckpoints.CUT_LIMIT = 1
    faults = Faults()
    async with open_file(path) as log:
        faults.arm("write", errno.EIO, files=".db", times=FOR_EVER)
        told: list[Any] = []
        errors = 0
        end_s = time.monotonic() + 10
        while errors < WalCheckpoints.MAX_FAILURES + 1 and time.monotonic() < end_s:
            told.append(await _told(log.append("s", [_event(len(told))], expect=Expect.at(len(told)))))
            await asyncio.sleep(0.35)
            errors += (await log.health()).last_wal_checkpoint_error is not None
        health = await log.health()
        hits = faults.disarm("write")
        told.append(await _told(log.append("s", [_event(len(told))], expect=Expect.at(len(told)))))
        await until(lambda: _is_wal_cut(log))
        healed = await log.health()
        return {
            "told": told,
            "hits": hits,
            "error": health.last_wal_checkpoint_error,
            "healed": healed.last_wal_checkpoint_error,
            "wal_bytes": healed.wal_bytes,
            **await _stored(log),
        }


async def opens_as_nobody(path: str, is_read_only: str) -> Answer:
    """Become a user who owns nothing, if we are one who may do everything; open a log, and say what happened."""
    is_root = os.getuid() == 0
    if is_root:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, 0)
        os.setresuid(_NOBODY, _NOBODY, 0)
    try:
        async with open_file(path, is_read_only=is_read_only == "read-only") as log:
            told = await _told(log.append("s", [_event(0)], expect=Expect.any()))
            return {"opened": "ok", "told": told, "readable": len(await _read(log))}
    except EventLogError as error:
        return {"opened": error.code}
    finally:
        if is_root:  # whoever measures what was run here writes that down as the user who began
            os.setresuid(0, 0, 0)
            os.setresgid(0, 0, 0)


def makes_keys_where_a_name_cannot_be_flushed(path: str, error: str) -> str:
    """Make a folder of keys in a folder whose own names cannot be flushed, and return what is told."""
    folder = os.path.dirname(path)
    Faults().arm("sync", int(error), below=folder, files=os.path.basename(folder), times=FOR_EVER)
    try:
        SubjectKeys(os.path.join(folder, "keys"), wrapping_key=bytes(32))
    except EventLogError as refused:
        return refused.code
    return "ok"


async def _is_wal_cut(log: SqliteLog) -> bool:
    """Say whether the file is cut and the writer has said so: the one happens a moment before the other."""
    health = await log.health()
    return health.wal_bytes == 0 and health.last_wal_checkpoint_error is None


async def _told(appending: Awaitable[Any]) -> Any:
    """Return what a caller is told: "ok", a code, or for an unknown outcome the ids to retry with."""
    try:
        await appending
    except CommitOutcomeUnknown as error:
        return {"unknown": list(error.event_ids)}
    except EventLogError as error:
        return error.code
    return "ok"


async def _stored(log: SqliteLog) -> Answer:
    page = await log.check_page(after=0, limit=10_000)
    return {
        "events": [event.data["n"] async for event in log.read("s")],
        "barriers": await _barriers(log),
        "problems": [problem.message for problem in page.problems],
        "state": (await log.health()).state,
    }


async def _barriers(log: SqliteLog) -> int:
    return len([event async for event in log.read("$log") if event.type == "barrier_recorded"])


async def _read(log: SqliteLog) -> list[int]:
    return [event.version async for event in log.read("s")]


def _event(number: int, *, size: int = 0) -> NewEvent:
    return NewEvent("noted", {"n": number, "text": "x" * size})


def _fill(filler: str) -> None:
    with open(filler, "wb") as file:
        file.write(bytes(400_000))
