"""What happens to the tree of a log in processes that die or whose disk fails, for `test_tree` and `test_migration`."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from eventlog import Expect, NewEvent
from eventlog.errors import EventLogError
from eventlog.log import Append
from eventlog.stores import SqliteLog
from eventlog.stores.sqlite import database
from eventlog.testing.log_contract import assert_sound, assert_tree
from tools.campaigns.storage.libc_faults import Faults
from tools.campaigns.storage.log_files import open_file

__all__ = [
    "appends",
    "dies_at_every_statement",
    "dies_in_a_migration",
    "dies_while_restoring",
    "empty",
    "writes_fail_in_turn",
]

ANY = Expect.any()


def _notes(count: int) -> list[NewEvent]:
    return [NewEvent("note_taken", {"text": "x" * 100}) for _ in range(count)]


async def appends(path: str, stream: str, count: str) -> int:
    """Append as a process of its own, and return the size of the tree, which is right."""
    async with open_file(path) as log:
        await log.append(stream, _notes(int(count)), expect=ANY)
        return await assert_tree(log)


async def appends_beside_others(path: str, stream: str) -> int:
    """Append as a process of its own while others do, and return where the log ended then."""
    async with open_file(path) as log:
        await log.append(stream, _notes(1), expect=ANY)
        return (await log.head()).position


async def writes_fail_in_turn(path: str) -> list[Any]:
    """Fail the n-th write, then the n-th sync, of an append that completes a tile; the tree is right every time."""
    faults = Faults()
    told: list[Any] = []
    async with open_file(path) as log:
        await log.append("s", _notes(250), expect=ANY)
        for operation in ("write", "sync"):
            for skip in range(200):
                faults.arm(operation, errno.EIO, files="-wal", skip=skip)
                try:
                    await log.append("s", _notes(257), expect=ANY)
                    answer = "ok"
                except EventLogError as error:
                    answer = error.code
                hits = faults.disarm(operation)
                await log.append("s", _notes(1), expect=ANY)
                size = await assert_tree(log)
                assert await assert_sound(log) == size
                told.append([operation, answer, hits])
                if hits == 0 or skip > 6:
                    break
    return told


def dies_at_every_statement(path: str) -> list[list[int]]:
    """Kill a process at the n-th statement of appends to a log, for n until none is left.

    Return [whether it was killed, the size of the tree behind it] of each.
    """
    asyncio.run(_begin(path))
    found = []
    for number in range(1000):
        was_killed = _in_fork(lambda number=number: asyncio.run(_append_dying(path, number)))  # type: ignore[misc]
        found.append([was_killed, asyncio.run(_checked(path))])
        if not was_killed:
            return found
    raise AssertionError("the appends never end")


async def _begin(path: str) -> None:
    async with open_file(path) as log:
        await log.append("s", _notes(254), expect=ANY)


async def _append_dying(path: str, number: int) -> None:
    log = open_file(path)
    await log.__aenter__()
    await _die_at(log, number)
    await log.append("s", _notes(1), expect=ANY)
    await log.append_many([Append("s", _notes(2), ANY), Append("new", _notes(1), ANY)])
    os._exit(0)


async def _die_at(log: SqliteLog, number: int) -> None:
    assert log._writer is not None
    await log._writer.run_between(lambda connection: connection.set_trace_callback(_dying(number)))


def _dying(number: int) -> Callable[[str], None]:
    seen = 0

    def trace(_: str) -> None:
        nonlocal seen
        seen += 1
        if seen > number:
            os.kill(os.getpid(), signal.SIGKILL)

    return trace


def _in_fork(function: Callable[[], object]) -> bool:
    """Run a function in a fork of this process, which has no threads; say whether that was killed."""
    pid = os.fork()
    if pid == 0:
        try:
            function()
        finally:
            os._exit(3)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return True
    assert os.waitstatus_to_exitcode(status) == 0, "the fork has failed"
    return False


async def _checked(path: str) -> int:
    async with open_file(path) as log:
        assert await log.check_file() == []
        await log.append("behind", _notes(1), expect=ANY)
        return await assert_tree(log)


def dies_in_a_migration(original: str, folder: str) -> list[int]:
    """Kill a process at the n-th statement of a migration, for n until none is left; return the formats behind it."""
    formats = []
    for number in range(1000):
        path = os.path.join(folder, f"{number}.db")
        shutil.copyfile(original, path)
        was_killed = _in_fork(lambda path=path, number=number: _migrate_dying(path, number))  # type: ignore[misc]
        with closing(sqlite3.connect(path)) as connection:
            formats.append(connection.execute("PRAGMA user_version").fetchone()[0])
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
            there = {"tree", "tiles", "heads", "erasures", "subject_streams"} & tables
            assert len(there) == {1: 0, 2: 5}[formats[-1]]
        asyncio.run(_checked(path))
        if not was_killed:
            return formats
    raise AssertionError("the migration never ends")


def empty(path: str | Path) -> None:
    """Make a log of format 1 as if nothing had ever been appended to it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        triggers = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        for table in ("events", "streams", "types", "actors"):
            connection.execute(f"DELETE FROM {table}")
        for _, sql in triggers:
            connection.execute(sql)


def _migrate_dying(path: str, number: int) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.set_trace_callback(_dying(number))
        database.migrate(connection)
        connection.set_trace_callback(None)
    os._exit(0)


def dies_while_restoring(path: str, key: str) -> list[Any]:
    """Kill a process at the n-th statement of a declared restore, for n until none is left.

    Each is tried on a copy of an old log with a copy of its signer. Return [whether it was killed, how many
    incarnations there are, what opening without a declaration says then] of each.
    """
    from eventlog.audit.heads.local_signer import LocalSigner

    found = []
    for number in range(1000):
        copy, signs = f"{path}.{number}", f"{key}.{number}"
        for source, target in ((path, copy), (key, signs), (f"{key}.heads", f"{signs}.heads")):
            shutil.copy(source, target)
        was_killed = _in_fork(lambda c=copy, s=signs, n=number: asyncio.run(_restore_dying(c, s, n)))  # type: ignore[misc]
        found.append([was_killed, *asyncio.run(_undeclared(copy, LocalSigner(signs)))])
        if not was_killed:
            return found
    raise AssertionError("the restore never ends")


async def _restore_dying(path: str, key: str, number: int) -> None:
    from eventlog.audit.heads.local_signer import LocalSigner

    log = open_file(path, signer=LocalSigner(key), restored="the disk was lost")
    begin = log._declare_restored

    async def dying(connection: Any, why: str) -> None:
        await connection.worker.run(lambda each: each.set_trace_callback(_dying(number)))
        await begin(connection, why)
        await connection.worker.run(lambda each: each.set_trace_callback(None))

    log._declare_restored = dying  # type: ignore[method-assign]
    await log.__aenter__()
    os._exit(0)


async def _undeclared(path: str, signer: Any) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        (incarnations,) = connection.execute("SELECT count(*) FROM log_ids").fetchone()
    try:
        async with open_file(path, signer=signer) as log:
            await log.sign_head()
        said = "ok"
    except EventLogError as error:
        said = error.code
    async with open_file(path, signer=signer, restored="once more") as log:
        await log.append("behind", _notes(1), expect=ANY)
        signed = await log.sign_head()
        assert signed is not None and signed.head.size == await assert_tree(log)
        assert await assert_sound(log) == signed.head.size
    return [incarnations, said]
