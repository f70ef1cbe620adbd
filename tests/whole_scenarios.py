"""Erasures, restores and kept heads on storage that fails. Each function runs in a child."""

from __future__ import annotations

import asyncio
import errno
import sqlite3
from contextlib import closing
from typing import Any, Final

from eventlog import EventLogError, Expect, NewEvent
from eventlog.stores import SqliteLog
from eventlog.stores.sqlite.file_lock import FileLock
from tests.signers import MemorySigner
from tools.campaigns.storage.libc_faults import FOR_EVER, Faults, Operation
from tools.campaigns.storage.log_files import open_file

Answer = dict[str, Any]
_ANY: Final = Expect.any()
_BASIS: Final = "asked for"
_SOME: Final = [NewEvent("noted", {"n": number}) for number in range(2)]


async def erasure_sync_fails(path: str, times: str, works: str) -> Answer:
    """The sync of an erasure's COMMIT fails, `times` syncs of the write-ahead log in all."""
    faults = Faults()
    async with open_file(path, settle_timeout_s=0.3, busy_timeout_s=2) as log:
        await log.append("a", _SOME, expect=_ANY)
        faults.arm("sync", errno.EIO, files="-wal", times=int(times), works=works == "works")
        told: Any = None
        try:
            told = [each.erased_by for each in await log.erase([1], legal_basis=_BASIS)]
        except EventLogError as error:
            told = error.code
        state = (await log.health()).state
        hits = faults.disarm("sync")
        again = [each.position for each in await log.erase([1], legal_basis=_BASIS)]
        return {"told": told, "state": state, "hits": hits, "again": again, **await _erasures(log)}


async def append_meets_what_an_erasure_has_left(path: str) -> Answer:
    """The COMMIT of an erasure fails while an append waits behind it on the same thread."""
    faults = Faults()
    async with open_file(path) as log:
        await log.append("a", _SOME, expect=_ANY)
        faults.arm("sync", errno.EIO, files="-wal")
        held = FileLock(f"{log.place}.lock")  # as another process would, until both wait on the one thread
        held.acquire()
        erasing = asyncio.ensure_future(log.erase([1], legal_basis=_BASIS))
        await asyncio.sleep(0.05)
        appending = asyncio.ensure_future(log.append("b", [NewEvent("noted", 1)], expect=Expect.no_stream()))
        await asyncio.sleep(0.05)
        held.release()
        held.close()
        await asyncio.wait({erasing, appending})
        result = await appending
        types = [event.type async for event in log.read_all()]
        return {
            "erased": len(await erasing),
            "version": result.version,
            "position": result.last_position,
            "barrier": types.index("barrier_recorded") + 1,
            **await _erasures(log),
        }


async def view_write_fails(path: str, operation: Operation) -> Answer:
    """The sync of a view's COMMIT fails once, or its first write."""
    faults = Faults()
    async with open_file(path) as log:
        await log.append("a", _SOME, expect=_ANY)
        await log.create_table("CREATE TABLE own_counts (n INTEGER)")
        faults.arm(operation, errno.EIO, files="-wal")
        try:
            told = str(await log.write_view(_count))
        except EventLogError as error:
            told = error.code
        hits, state = faults.disarm(operation), (await log.health()).state
        counted = await log.write_view(_count)
        return {"told": told, "hits": hits, "state": state, "counted": counted, "barriers": await _barriers(log)}


async def kept_head_sync_fails(path: str) -> Answer:
    """The sync of the COMMIT that keeps a head fails once; the head is kept by the next one at the latest."""
    faults, signer = Faults(), MemorySigner()
    async with open_file(path, signer=signer, head_every_s=3600.0, head_every_events=10**6) as log:
        await log.append("a", _SOME, expect=_ANY)
        await log.sign_head()
        faults.arm("sync", errno.EIO, files="-wal")
        assert log._heads is not None
        await log._heads._keep()
        hits, state = faults.disarm("sync"), (await log.health()).state
        barriers = await _barriers(log)
    async with open_file(path) as log:
        kept = [each.head.size for each in await log.signed_heads()]
        return {"hits": hits, "state": state, "barriers": barriers, "kept": kept, "signed": signer.sizes}


async def restore_fails(path: str, operation: Operation, times: str, works: str) -> Answer:
    """The sync of the COMMIT that begins an incarnation fails, or its first write."""
    faults = Faults()
    async with open_file(path) as log:
        await log.append("a", _SOME, expect=_ANY)
    faults.arm(operation, errno.EIO, files="-wal", times=int(times), works=works == "works")
    try:
        async with open_file(path, restored="the disk broke"):
            told = "declared"
    except EventLogError as error:
        told = error.code
    hits = faults.disarm(operation)
    async with open_file(path) as log:
        ids = len(await log.log_ids())
        types = [event.type async for event in log.read_all()]
    return {"told": told, "hits": hits, "incarnations": ids, "types": types}


def _count(connection: sqlite3.Connection) -> int:
    connection.execute("INSERT INTO own_counts VALUES (1)")
    count: int = connection.execute("SELECT count(*) FROM own_counts").fetchone()[0]
    return count


async def _barriers(log: SqliteLog) -> int:
    return [event.type async for event in log.read_all()].count("barrier_recorded")


async def _erasures(log: SqliteLog) -> Answer:
    types = [event.type async for event in log.read_all()]
    with closing(sqlite3.connect(log.place)) as database:
        noted = database.execute("SELECT position, erased_by FROM erasures").fetchall()
        left = database.execute("SELECT count(*) FROM events WHERE position = 1 AND body IS NULL").fetchone()[0]
    return {"types": types, "noted": noted, "gone": left, "problems": len(await log.check_file())}


KEEPS_FAILING: Final = str(FOR_EVER)
