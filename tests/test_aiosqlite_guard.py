"""The private parts of aiosqlite that `eventlog/stores/sqlite/connection.py` uses, pinned one by one.

If one of these fails after an upgrade, read `Worker` against the new aiosqlite before the version range is widened.
"""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
import threading
from functools import partial
from importlib.metadata import version
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import aiosqlite
import pytest

from eventlog.stores.sqlite.connection import Worker
from eventlog.stores.sqlite.file_lock import FileLock

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def connection() -> aiosqlite.Connection:
    return aiosqlite.Connection(_connect, iter_chunk_size=64)


def _connect() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", isolation_level=None)


def test_installed_version_is_in_the_range_that_was_tested() -> None:
    (wanted,) = re.findall(r'"aiosqlite([^"]+)"', (ROOT / "pyproject.toml").read_text())
    assert wanted == ">=0.22.1,<0.23"
    assert (0, 22, 1) <= tuple(int(part) for part in version("aiosqlite").split(".")) < (0, 23)


def test_thread_exists_before_it_is_started_and_can_be_made_a_daemon(connection: aiosqlite.Connection) -> None:
    thread = connection._thread
    assert type(thread) is threading.Thread
    assert not thread.is_alive()
    assert not thread.daemon, "it is no daemon by itself: an unclosed log would keep the process alive"
    thread.daemon = True
    assert thread.daemon


def test_queue_takes_a_future_or_none_and_a_function_and_runs_them_in_order(connection: aiosqlite.Connection) -> None:
    assert type(connection._tx) is SimpleQueue
    ran: list[int] = []
    connection._thread.daemon = True
    connection._thread.start()
    for number in range(3):
        connection._tx.put_nowait((None, partial(ran.append, number)))
    connection._tx.put_nowait((None, lambda: 1 // 0))  # what raises does not end the thread
    connection._tx.put_nowait((None, lambda: ran.append(3)))
    connection._tx.put_nowait((None, lambda: aiosqlite.core._STOP_RUNNING_SENTINEL))
    connection._thread.join(5)
    assert not connection._thread.is_alive(), "the sentinel ends the thread"
    assert ran == [0, 1, 2, 3]


def test_connection_is_kept_where_we_put_it(connection: aiosqlite.Connection) -> None:
    assert connection._connection is None
    with pytest.raises(ValueError, match="no active connection"):
        _ = connection._conn
    raw = connection._connection = _connect()
    assert connection._conn is raw
    raw.close()
    connection._connection = None


def test_running_is_a_plain_flag(connection: aiosqlite.Connection) -> None:
    assert connection._running is True
    connection._running = False
    assert connection._running is False


def test_nothing_that_we_set_is_a_property_or_a_slot(connection: aiosqlite.Connection) -> None:
    assert {"_tx", "_thread", "_connection", "_running"} <= set(vars(connection))


async def test_worker_runs_a_whole_function_in_one_hop_and_ends_its_thread(tmp_path: Path) -> None:
    lock = FileLock(str(tmp_path / "lock"))
    worker = Worker(_connect, lock, "no file")
    await worker.open()
    thread = worker._aiosqlite._thread
    assert thread.daemon
    assert await worker.run(_in_transaction) == (threading.current_thread().ident != thread.ident, True)
    assert await worker.run(lambda connection: connection.in_transaction) is False
    with pytest.raises(ZeroDivisionError):
        await worker.run(lambda connection: 1 // 0)
    assert await worker.close(timeout_s=5)
    assert not thread.is_alive()
    lock.close()


async def test_worker_runs_what_was_queued_to_its_end_though_its_future_is_cancelled(tmp_path: Path) -> None:
    lock = FileLock(str(tmp_path / "lock"))
    worker = Worker(_connect, lock, "no file")
    await worker.open()
    go_on, done = threading.Event(), threading.Event()

    def slow(connection: sqlite3.Connection) -> None:
        go_on.wait(5)
        _in_transaction(connection)
        done.set()

    hop = worker.start(slow)
    hop.cancel()
    go_on.set()
    assert await worker.run(lambda connection: (connection.in_transaction, done.is_set())) == (False, True)
    await worker.close(timeout_s=5)
    lock.close()


def test_bare_aiosqlite_keeps_the_process_alive_which_is_why_we_do_this() -> None:
    lines = [
        "import asyncio, aiosqlite",
        "kept = []",
        "async def main(): kept.append(await aiosqlite.connect(':memory:'))",
        "asyncio.run(main())",
    ]
    program = "\n".join(lines)
    process = subprocess.Popen([sys.executable, "-W", "ignore", "-c", program], stderr=subprocess.DEVNULL)
    try:
        if _ends(process, 1.5):
            pytest.fail("aiosqlite has learned to end by itself: its thread need not be made a daemon any more")
    finally:
        process.kill()
        process.wait()


def _ends(process: subprocess.Popen[Any], timeout_s: float) -> bool:
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _in_transaction(connection: sqlite3.Connection) -> tuple[bool, bool]:
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("CREATE TABLE IF NOT EXISTS t (x)")
    was_in_transaction = connection.in_transaction
    connection.execute("COMMIT")
    return True, was_in_transaction
