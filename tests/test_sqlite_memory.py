"""When SQLite runs out of memory: a coded answer, nothing half written, and the log goes on.

SQLite has a limit of its own for what it allocates (`PRAGMA hard_heap_limit`); behind it a statement fails with
SQLITE_NOMEM, for which Python's driver raises MemoryError, which is none of its own errors.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from eventlog import Expect, NewEvent, StoreUnavailable
from eventlog.stores.sqlite.connection import Worker
from eventlog.stores.sqlite.file_lock import FileLock
from eventlog.stores.sqlite.reader import ReadConnections
from tests import memory_scenarios
from tools.campaigns.processes import child
from tools.campaigns.storage.log_files import assert_whole, open_file


@pytest.mark.processes
async def test_append_without_memory_enough_is_told_so_and_is_stored_whole_or_not_at_all(tmp_path: Path) -> None:
    done = child.run(memory_scenarios.append_with_less_and_less, tmp_path / "log.db")
    assert (done.returncode, done.stderr) == (0, "")
    told = Counter(each["told"] for each in done.result)
    assert set(told) <= {"stored", "store_out_of_memory", "commit_outcome_unknown"}
    assert told["stored"] > 10 and told["store_out_of_memory"] > 10
    answers = [each["told"] for each in done.result]
    assert ("store_out_of_memory", "stored") in pairwise(answers), "it did not go on"
    async with open_file(tmp_path / "log.db") as log:
        lengths = Counter([event.stream async for event in log.read_all()])
        for each in done.result:
            stored = lengths[each["stream"]]
            match each["told"]:
                case "stored":
                    assert stored == each["count"]
                case "store_out_of_memory":
                    assert stored == 0
                case _:
                    assert stored in (0, each["count"])
        await assert_whole(log)


@pytest.mark.processes
def test_read_without_memory_enough_is_told_so_and_not_that_the_log_is_damaged(tmp_path: Path) -> None:
    done = child.run(memory_scenarios.read_what_is_larger_than_the_memory, tmp_path / "log.db")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.result == {
        "read": "store_out_of_memory",
        "read_back": "store_out_of_memory",
        "read_stream": "store_out_of_memory",
        "small": 1,
    }


@pytest.mark.processes
def test_command_that_reads_without_memory_enough_does_not_call_that_damage(tmp_path: Path) -> None:
    done = child.run(memory_scenarios.show_what_is_larger_than_the_memory, tmp_path / "log.db")
    assert done.returncode == 0, done.stderr
    assert done.result == 1
    assert '{"error": "store_out_of_memory"}' in done.stdout


async def test_transaction_that_could_not_be_ended_ends_before_the_next_read(tmp_path: Path) -> None:
    """A ROLLBACK that has no memory leaves it open: nothing could begin, and what is read would be what was then."""

    def leave_open(connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM events").fetchone()

    async with open_file(tmp_path / "log.db") as log:
        await log.append("s", [NewEvent("noted", {})], expect=Expect.no_stream())
        await log.read_view(leave_open)
        await log.append("s", [NewEvent("noted", {})], expect=Expect.at(1))
        assert (await log.head()).position == 2
        await log.read_view(leave_open)
        assert (await log.read_stream("s")).version == 2


# ── opening ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def no_room_for_a_thread() -> Iterator[None]:
    """No new thread can start: its stack would be larger than all addresses."""
    threading.stack_size(1 << 50)
    yield
    threading.stack_size(0)


async def test_log_that_finds_no_room_for_its_thread_says_so_and_leaves_nothing_open(
    tmp_path: Path, no_room_for_a_thread: None
) -> None:
    with pytest.raises(StoreUnavailable, match="can't start new thread") as told:
        await open_file(tmp_path / "log.db").__aenter__()
    assert told.value.code == "store_out_of_memory"
    threading.stack_size(0)
    async with open_file(tmp_path / "log.db") as log:
        assert (await log.head()).position == 0


@pytest.mark.parametrize("has_lock", [True, False])
async def test_thread_that_cannot_start_gives_its_share_of_the_lock_back(
    tmp_path: Path, has_lock: bool, no_room_for_a_thread: None
) -> None:
    lock = FileLock(str(tmp_path / "log.db.lock")) if has_lock else None
    worker = Worker(lambda: sqlite3.connect(":memory:"), lock, str(tmp_path / "log.db"))
    with pytest.raises(StoreUnavailable) as told:
        await worker.open()
    assert told.value.code == "store_out_of_memory"
    assert await worker.close(timeout_s=1)
    if lock is not None:
        lock.close()
        assert lock._shares == 0


async def test_read_connection_that_finds_no_memory_on_opening_says_so(tmp_path: Path) -> None:
    def connect() -> sqlite3.Connection:
        bytearray(1 << 62)
        raise AssertionError("there is no such memory")

    reads = ReadConnections(connect, None, str(tmp_path / "log.db"), open_timeout_s=5)
    with pytest.raises(StoreUnavailable) as told:
        await reads.run(lambda connection: None)
    assert told.value.code == "store_out_of_memory"
    await reads.close(timeout_s=1)
