"""Who is told what when storage fails: the table in `eventlog/stores/sqlite/failures.py`, each row made to happen.

A fault of the operating system is injected into a child process by a shim in front of libc
(`tools/campaigns/storage/libc_faults.py`). What a caller was told is compared with what is stored: told "ok" is
stored, told a definite failure is absent, and told "unknown" is stored at most once, and exactly once after the same
append was repeated.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import itertools
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from eventlog import CommitOutcomeUnknown, EventLogError, Expect, LogCorrupt, NewEvent, StoreBusy, StoreUnavailable
from eventlog.audit.heads.new_file import write_new_file
from eventlog.runtime.claims import Holder
from eventlog.stores.sqlite.connection import _NO_CHECKPOINT_ON_CLOSE, Settings, _abandon, connect
from eventlog.stores.sqlite.database import open_for_reading, open_for_writing
from eventlog.stores.sqlite.failures import translate
from eventlog.stores.sqlite.file_lock import FileLock
from eventlog.stores.sqlite.foreign_write import ConnectionBroken
from eventlog.stores.sqlite.schema import APPLICATION_ID, FORMAT_VERSION
from tests import failure_scenarios
from tests.needs import need, need_command
from tools.campaigns.bit_flips.damages import drop_guards
from tools.campaigns.processes import child
from tools.campaigns.processes.waiting import until
from tools.campaigns.storage.libc_faults import build_shim, shim_environment
from tools.campaigns.storage.log_files import file_lock_held, is_lock_free, open_file


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need(sys.platform == "linux", "LD_PRELOAD, as Linux has it")
    return build_shim(tmp_path_factory.mktemp("shim"), need_command("gcc"))


@pytest.fixture
def under_faults(shim: Path, tmp_path: Path) -> Callable[..., Any]:
    """Runs a scenario in a child whose system calls can be made to fail, and returns what it returns."""

    def run(scenario: Callable[..., Any], *args: object) -> Any:
        done = child.run(scenario, tmp_path / "log.db", *args, env=shim_environment(shim, tmp_path / "faults"))
        assert done.returncode == 0, done.stderr
        return done.result

    return run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


# ── COMMIT ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("works", ["works", "does not work"])
def test_failed_sync_of_a_commit_is_never_told_as_a_failure_and_the_event_is_stored_once(
    under_faults: Callable[..., Any], works: str
) -> None:
    seen = under_faults(failure_scenarios.commit_sync_fails_once, works)
    assert seen["hits"] == 1, "the fault was not injected"
    assert seen["told"] == "ok"
    assert seen["after"] == "ok"
    assert seen["events"] == [0, 1, 2]
    assert seen["barriers"] == 1
    assert seen["problems"] == []
    assert seen["state"] == "open"


def test_sync_that_keeps_failing_ends_in_unknown_and_the_retry_settles_it(under_faults: Callable[..., Any]) -> None:
    seen = under_faults(failure_scenarios.commit_sync_keeps_failing)
    assert seen["told"] == {"unknown": [seen["id"]]}
    assert seen["while_failing"] == "poisoned"
    assert seen["definite"] == "store_io_error"
    assert seen["readable"] in ([1], [1, 2])
    assert seen["retried"] == "ok"
    assert seen["events"] == [0, 1], "one event once, and the definite failure is absent"
    assert seen["barriers"] >= 1
    assert seen["problems"] == []
    assert seen["state"] == "open"


def test_after_an_unknown_first_try_no_failure_of_the_second_is_told_as_definite(
    under_faults: Callable[..., Any],
) -> None:
    *tries, stored = under_faults(failure_scenarios.every_write_behind_a_failed_sync_fails_in_turn)
    for each in tries:
        if each["syncs"]:
            assert each["told"] == "ok" or "unknown" in each["told"], each
        assert each["retried"] == "ok"
        assert each["found"] == 1
    failed_behind_barrier = [each for each in tries if each["barriers"] and each["writes"] and each["told"] != "ok"]
    assert failed_behind_barrier, "no run failed between the barrier and the second try"
    assert stored["problems"] == []


async def test_commit_that_does_not_end_is_unknown_after_a_bounded_time_and_settled_by_a_retry(path: Path) -> None:
    view = failure_scenarios.StuckView()
    event = _event("slow")
    async with open_file(path, views=[view], busy_timeout_s=0.2, settle_timeout_s=0.2) as log:
        await log.append("s", [_event("first")], expect=Expect.no_stream())
        view.is_stuck.set()
        began_s = time.monotonic()
        slow = asyncio.ensure_future(log.append("s", [event], expect=Expect.at(1)))
        await until(view.has_begun.is_set)
        behind = asyncio.ensure_future(log.append("s", [_event("behind")], expect=Expect.any()))
        with pytest.raises(StoreBusy):
            await behind
        with pytest.raises(CommitOutcomeUnknown) as unknown:
            await slow
        assert time.monotonic() - began_s < 1.5
        assert unknown.value.event_ids == (event.event_id.hex(),)
        view.is_stuck.clear()
        view.may_go_on.set()
        result = await log.append("s", [event], expect=Expect.at(1))
        assert (result.version, result.deduplicated) == (2, True)
        assert [each.data["text"] async for each in log.read("s")] == ["first", "slow"]
        assert (await log.health()).state == "open"


async def test_program_ends_though_its_commit_does_not(path: Path) -> None:
    done = child.run(failure_scenarios.program_ends_while_the_disk_does_not_answer, path)
    assert done.returncode == 0, done.stderr
    assert done.exit_s < 2
    assert done.stderr == ""
    async with open_file(path) as log:
        assert (await log.read_stream("s")).version == 0, "what had not been committed is gone with the process"


async def test_log_that_lost_its_identity_while_poisoned_is_not_gone_on_with(path: Path) -> None:
    def breaks(connection: sqlite3.Connection) -> None:
        raise ConnectionBroken("a write could not be ended")

    async with open_file(path, busy_timeout_s=1) as log:
        await log.append("s", [_event("first")], expect=Expect.no_stream())
        with pytest.raises(StoreUnavailable):
            await log.write_view(breaks)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            drop_guards(other)
            other.execute("DELETE FROM log_ids")
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="cannot be reopened after: a write could not be ended"):
                await log.append("s", [_event("second")], expect=Expect.any())
        assert [event.data["text"] async for event in log.read("s")] == ["first"]


async def test_other_log_in_the_place_of_a_poisoned_one_is_not_written_to(
    under_faults: Callable[..., Any], path: Path
) -> None:
    other = path.with_name("other.db")
    async with open_file(other) as log:
        await log.append("theirs", [_event("first")], expect=Expect.no_stream())
    before = _digest(other)
    seen = under_faults(failure_scenarios.log_is_replaced_while_poisoned, other)
    assert seen["told"] == "store_io_error"
    assert set(seen["after"]) <= {"store_io_error", "store_identity_changed"}
    assert _digest(path) == before
    async with open_file(path) as log:
        assert [event.stream async for event in log.read_all()] == ["theirs"]


@pytest.mark.parametrize(
    ("error", "code", "state"),
    [(errno.EIO, "store_io_error", "poisoned"), (errno.ENOSPC, "store_full", "open")],
    ids=["EIO", "ENOSPC"],
)
def test_failed_write_of_a_commit_is_definite_and_the_log_goes_on(
    under_faults: Callable[..., Any], error: int, code: str, state: str
) -> None:
    *tries, stored = under_faults(failure_scenarios.every_write_of_a_commit_fails_in_turn, error)
    failing, last = tries[:-1], tries[-1]
    assert len(failing) >= 6, "an append of several pages has more writes than that"
    for each in failing:
        assert (each["told"], each["found"], each["state"], each["hits"]) == (code, 0, state, 1)
    assert (last["told"], last["found"], last["hits"]) == ("ok", 1, 0)
    assert stored["problems"] == []
    assert stored["state"] == "open"
    assert bool(stored["barriers"]) == (state == "poisoned"), "after EIO the log is reopened behind a barrier"


# ── a full disk, failing reads ────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _small_disk(folder: Path, options: str = "size=1m") -> Iterator[Path]:
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, timeout=10
    )
    need(mounted.returncode == 0, "the permission to mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, timeout=10)


def test_log_whose_index_finds_no_room_cannot_be_opened_and_opens_when_there_is_some(
    under_faults: Callable[..., Any],
) -> None:
    seen = under_faults(failure_scenarios.opens_where_the_index_finds_no_room)
    assert seen["hits"] > 0, "the fault was not injected"
    assert seen["told"] == "store_cannot_open"
    assert (seen["events"], seen["problems"], seen["state"]) == ([0], [], "open")


def test_full_disk_is_definite_reads_go_on_and_it_works_again_after_space_is_freed(tmp_path: Path) -> None:
    need_command("mount")
    with _small_disk(tmp_path / "disk") as disk:
        done = child.run(failure_scenarios.disk_is_full, disk / "log.db", disk / "filler")
        seen = done.result
    assert seen["told"] == "store_full"
    assert seen["appended"] > 3
    assert seen["readable"] == seen["appended"]
    assert seen["state"] == "open"
    assert seen["after"] == "ok"
    assert seen["events"] == list(range(seen["appended"] + 1))
    assert seen["problems"] == []


async def test_where_no_file_can_be_made_any_more_the_disk_is_told_as_full(tmp_path: Path) -> None:
    need_command("mount")
    with _small_disk(tmp_path / "disk", "size=1m,nr_inodes=1") as disk:  # the one that the disk itself has
        makers: list[Callable[[], Any]] = [
            lambda: Holder(str(disk / "log.db")).claim(),
            lambda: FileLock(str(disk / "log.db.lock")),
            lambda: write_new_file(str(disk / "log.key"), b"key"),
        ]
        for make in makers:
            with pytest.raises(StoreUnavailable, match="No space left on device") as failure:
                make()
            assert failure.value.code == "store_full"
        async with open_file(tmp_path / "log.db") as log:
            with pytest.raises(StoreUnavailable, match="No space left on device") as failure:
                await log.backup(disk / "copy.db")
        assert failure.value.code == "store_full"


async def test_copy_that_finds_no_room_is_told_as_one_that_cannot_be_made_and_leaves_nothing(tmp_path: Path) -> None:
    need_command("mount")
    with _small_disk(tmp_path / "disk") as disk:
        async with open_file(tmp_path / "log.db") as log:
            await log.append("s", [_event("x" * 100_000) for _ in range(20)], expect=Expect.no_stream())
            with pytest.raises(StoreUnavailable) as failure:
                await log.backup(disk / "copy.db")
        assert failure.value.code == "store_full"
        assert str(failure.value).startswith(f"cannot make the copy {str(disk / 'copy.db')!r}: ")
        assert list(disk.iterdir()) == []


def test_file_size_limit_is_definite_and_the_log_works_once_it_is_lifted(path: Path) -> None:
    need(resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY, "an open limit of the file size")
    seen = child.run(failure_scenarios.files_may_not_grow, path).result
    assert seen["told"] == "store_io_error"
    assert seen["after"] == "ok"
    assert seen["events"] == [0, 2]
    assert seen["problems"] == []


def test_failed_read_is_a_coded_error_and_nothing_partial(under_faults: Callable[..., Any]) -> None:
    seen = under_faults(failure_scenarios.reads_fail)
    assert seen["hits"] > 0, "the fault was not injected"
    assert seen["told"] in {"store_io_error", "log_corrupt"}, (
        "newer SQLite itself calls EIO of a read a corrupt database"
    )
    assert seen["then"] == 50


def test_failed_wal_checkpoints_are_reported_and_appends_go_on(under_faults: Callable[..., Any]) -> None:
    seen = under_faults(failure_scenarios.wal_checkpoints_fail)
    assert seen["hits"] >= 3, "the fault was not injected"
    assert set(seen["told"]) == {"ok"}
    assert "disk I/O error" in seen["error"]
    assert seen["healed"] is None
    assert seen["wal_bytes"] == 0
    assert seen["events"] == list(range(len(seen["told"])))
    assert seen["problems"] == []


# ── files that change under an open log ───────────────────────────────────────────────────────────────────────────────


def _delete_wal(path: Path) -> None:
    os.unlink(f"{path}-wal")


def _replace_wal(path: Path) -> None:
    shutil.copy(f"{path}-wal", f"{path}-copy")
    os.replace(f"{path}-copy", f"{path}-wal")


def _rename(path: Path) -> None:
    os.rename(path, path.with_suffix(".old"))


def _replace(path: Path) -> None:
    _copy(path, f"{path}-copy")
    os.replace(f"{path}-copy", path)


@pytest.mark.parametrize("change", [_delete_wal, _replace_wal, _rename, _replace])
async def test_file_that_changes_under_an_open_log_is_noticed_at_the_next_commit(
    path: Path, change: Callable[[Path], None]
) -> None:
    event = _event("unlucky")
    async with open_file(path) as log:
        await log.append("s", [_event("before")], expect=Expect.no_stream())
        change(path)
        with pytest.raises(CommitOutcomeUnknown) as unknown:
            await log.append("s", [event], expect=Expect.any())
        assert unknown.value.event_ids == (event.event_id.hex(),)
        with pytest.raises(EventLogError) as refused:
            await log.append("s", [_event("after")], expect=Expect.any())
        assert refused.value.code == "store_identity_changed"
        assert (await log.health()).state == "poisoned"


# ── locks that somebody else holds ────────────────────────────────────────────────────────────────────────────────────


async def test_file_lock_held_elsewhere_ends_in_store_busy_in_time_and_nothing_is_written(path: Path) -> None:
    async with open_file(path, busy_timeout_s=0.3) as log:
        await log.append("s", [_event("first")], expect=Expect.no_stream())
        threads = threading.active_count()
        with file_lock_held(path):
            for _ in range(3):
                began_s = time.monotonic()
                with pytest.raises(StoreBusy):
                    await log.append("s", [_event("never")], expect=Expect.any())
                assert 0.25 < time.monotonic() - began_s < 1.3
            assert [event.version async for event in log.read("s")] == [1], "reads go on"
            assert (await log.health()).state == "open"
        result = await log.append("s", [_event("second")], expect=Expect.at(1))
        assert result.last_position == 2
        assert threading.active_count() == threads


async def test_sqlite_lock_held_without_the_file_lock_ends_in_store_busy_in_time(path: Path) -> None:
    async with open_file(path, busy_timeout_s=0.3) as log:
        await log.append("s", [_event("first")], expect=Expect.no_stream())
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            began_s = time.monotonic()
            with pytest.raises(StoreBusy):
                await log.append("s", [_event("never")], expect=Expect.any())
            assert time.monotonic() - began_s < 1.3
            other.execute("ROLLBACK")
        result = await log.append("s", [_event("second")], expect=Expect.at(1))
        assert result.last_position == 2


async def test_open_under_a_held_lock_ends_in_store_busy_and_leaves_no_thread_and_no_database(path: Path) -> None:
    threads = threading.active_count()
    with file_lock_held(path):
        with pytest.raises(StoreBusy):
            await open_file(path, busy_timeout_s=0.05).__aenter__()
        assert not path.exists()
    await until(lambda: threading.active_count() == threads)
    assert not path.exists(), "what was given up must not be done later"
    async with open_file(path) as log:
        assert (await log.head()).position == 0


async def test_cancelled_open_waits_for_nobody_and_leaves_no_thread(path: Path) -> None:
    threads = threading.active_count()
    with file_lock_held(path):
        opening = asyncio.ensure_future(open_file(path).__aenter__())
        await asyncio.sleep(0.05)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
    await until(lambda: threading.active_count() == threads)
    assert not path.exists()


def test_threads_of_one_process_exclude_one_another(tmp_path: Path) -> None:
    lock = FileLock(str(tmp_path / "log.db.lock"))
    lock.acquire()
    second_has_it = threading.Event()

    def second() -> None:
        with lock:
            second_has_it.set()

    thread = threading.Thread(target=second)
    thread.start()
    try:
        assert not second_has_it.wait(0.1), "flock alone lets a second thread of the same descriptor in"
        assert not is_lock_free(tmp_path / "log.db")
    finally:
        lock.release()
        thread.join()
    assert second_has_it.is_set()
    assert is_lock_free(tmp_path / "log.db")
    lock.close()


async def test_read_connection_that_is_opened_during_a_transaction_leaves_the_writers_lock_alone(path: Path) -> None:
    async with open_file(path) as log:
        await log.append("s", [_event("first")], expect=Expect.no_stream())
        inside, go_on = threading.Event(), threading.Event()

        def hold(connection: sqlite3.Connection) -> bool:
            inside.set()
            go_on.wait(5)
            return is_lock_free(path)

        writing = asyncio.ensure_future(log.write_view(hold))
        await until(inside.is_set)
        readers = [asyncio.ensure_future(log.head()) for _ in range(8)]  # more than there are read connections
        await asyncio.sleep(0.1)
        go_on.set()
        assert await writing is False, "the lock was free in the middle of a write transaction"
        assert {head.position for head in await asyncio.gather(*readers)} == {1}


# ── what is no log, or cannot be opened ───────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that another user can reach, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp())
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


async def test_folder_that_cannot_be_written_gives_a_coded_error_and_can_be_read(public_folder: Path) -> None:
    path = public_folder / "log.db"
    async with open_file(path) as log:
        await log.append("s", [_event("first")], expect=Expect.no_stream())
    for file in public_folder.iterdir():
        file.chmod(0o644)
    public_folder.chmod(0o555)
    before = _digest(path)
    written = child.run(failure_scenarios.opens_as_nobody, path, "for writing").result
    assert written["opened"] in {"store_cannot_open", "store_readonly"}
    read = child.run(failure_scenarios.opens_as_nobody, path, "read-only").result
    assert read == {"opened": "ok", "told": "store_readonly", "readable": 1}
    assert _digest(path) == before


async def test_database_file_that_cannot_be_written_gives_a_coded_error(public_folder: Path) -> None:
    path = public_folder / "log.db"
    async with open_file(path) as log:
        await log.append("s", [_event("first")], expect=Expect.no_stream())
    path.chmod(0o444)
    Path(f"{path}.lock").unlink()
    public_folder.chmod(0o777)
    written = child.run(failure_scenarios.opens_as_nobody, path, "for writing").result
    assert written == {"opened": "store_readonly"}


def _text(path: Path) -> None:
    path.write_text("not a database, though long enough to be looked at as one\n" * 100)


def _short(path: Path) -> None:
    path.write_bytes(b"?")


def _other_program(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA application_id=42")
        other.execute("CREATE TABLE theirs (x)")


def _other_program_without_id(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA journal_mode=WAL")
        other.execute("CREATE TABLE theirs (x)")


def _newer(path: Path) -> None:
    with closing(sqlite3.connect(path)) as newer:
        newer.execute(f"PRAGMA application_id={APPLICATION_ID}")
        newer.execute(f"PRAGMA user_version={FORMAT_VERSION + 1}")
        newer.execute("CREATE TABLE meta (x)")


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (_text, "store_not_eventlog"),
        (_short, "store_not_eventlog"),
        (_other_program, "store_not_eventlog"),
        (_other_program_without_id, "store_not_eventlog"),
        (_newer, "schema_too_new"),
    ],
)
async def test_foreign_file_is_refused_and_stays_byte_for_byte(
    path: Path, make: Callable[[Path], None], code: str
) -> None:
    make(path)
    before = _digest(path)
    for is_read_only in (False, True):
        with pytest.raises(EventLogError) as refused:
            await open_file(path, is_read_only=is_read_only).__aenter__()
        assert refused.value.code == code
    assert _digest(path) == before


@pytest.mark.campaign
@pytest.mark.parametrize("operation", ["write", "sync"])
async def test_log_whose_creation_was_killed_at_any_write_or_sync_can_be_created_again(
    shim: Path, tmp_path: Path, operation: str, is_long: bool
) -> None:
    stride = 1 if is_long or operation == "sync" else 8
    first = random.SystemRandom().randrange(stride)
    kills = 0
    for skip in itertools.count(first, stride):
        path = tmp_path / f"log{skip}.db"
        env = shim_environment(shim, tmp_path / "faults")
        done = child.run(failure_scenarios.is_killed_while_opening, path, operation, skip, env=env)
        async with open_file(path) as log:
            assert (await log.append("s", [_event("first")], expect=Expect.no_stream())).last_position == 1
            assert not (await log.check_page(after=0)).problems
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        kills += 1
    print(f"\ncreation killed at {kills} calls of {operation}, every {stride} from {first}")
    assert kills >= 5


async def test_foreign_database_with_an_unfinished_transaction_is_refused_and_not_rolled_back(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA cache_size=1")
        other.execute("CREATE TABLE theirs (x)")
        other.execute("INSERT INTO theirs VALUES (zeroblob(100000))")
        other.execute("BEGIN")
        other.execute(
            "UPDATE theirs SET x = randomblob(100000)"
        )  # more than the cache holds: it is in the file already
        hot = path.with_name("hot.db")
        _copy(path, hot)
        _copy(f"{path}-journal", f"{hot}-journal")
        other.execute("ROLLBACK")
    before = _digest(hot)
    with pytest.raises(EventLogError) as refused:
        await open_file(hot).__aenter__()
    assert refused.value.code == "store_not_eventlog"
    assert _digest(hot) == before
    with closing(sqlite3.connect(hot)) as control:
        assert control.execute("SELECT count(*) FROM theirs").fetchone() == (1,)
    assert _digest(hot) != before, "the journal was not hot: this test shows nothing"


async def test_hard_link_is_refused_and_a_symbolic_link_is_followed_to_the_real_name(path: Path) -> None:
    async with open_file(path) as log:
        await log.append("s", [_event("first")], expect=Expect.no_stream())
    link = path.with_name("link.db")
    link.symlink_to(path)
    async with open_file(link) as log:
        assert log.place == str(path.resolve())
        await log.append("s", [_event("second")], expect=Expect.at(1))
        assert not link.with_name("link.db-wal").exists()
    link.unlink()
    os.link(path, link)
    for name in (path, link):
        with pytest.raises(EventLogError) as refused:
            await open_file(name).__aenter__()
        assert refused.value.code == "store_cannot_open"


async def test_folder_or_missing_folder_as_path_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing" / "log.db"):
        with pytest.raises(EventLogError) as refused:
            await open_file(path).__aenter__()
        assert refused.value.code == "store_cannot_open"


async def test_garbage_in_the_pages_is_log_corrupt(path: Path) -> None:
    async with open_file(path) as log:
        await log.append("s", [_event("x" * 3_000) for _ in range(40)], expect=Expect.no_stream())
    data = bytearray(path.read_bytes())
    data[8_192:] = b"\x5a" * (len(data) - 8_192)
    path.write_bytes(data)
    with pytest.raises(LogCorrupt) as corrupt:
        async with open_file(path) as log:
            async for _ in log.read_all():
                pass
    assert corrupt.value.reason == "store_corrupt"


async def test_log_of_a_format_that_never_was_is_log_corrupt(path: Path) -> None:
    async with open_file(path):
        pass
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version=0")
    for options in ({}, {"is_read_only": True}):
        with pytest.raises(LogCorrupt) as corrupt:
            await open_file(path, **options).__aenter__()
        assert corrupt.value.reason == "store_corrupt"


async def test_creation_that_ended_half_written_is_rolled_back_and_the_log_is_created(path: Path) -> None:
    """What the file says is nonsense until its journal is played back, which only a writer can do."""
    with closing(sqlite3.connect(path, isolation_level=None)) as dying:
        dying.execute("PRAGMA cache_size=1")
        dying.execute("CREATE TABLE gone (x)")
        dying.execute("DROP TABLE gone")
        dying.execute("BEGIN")
        dying.execute("CREATE TABLE events (x)")
        dying.execute("INSERT INTO events VALUES (randomblob(100000))")  # more than the cache holds
        hot = path.with_name("hot.db")
        _copy(path, hot)
        _copy(f"{path}-journal", f"{hot}-journal")
        dying.execute("ROLLBACK")
    data = bytearray(hot.read_bytes())
    data[68:72] = APPLICATION_ID.to_bytes(4, "big")  # the first page as a disk may leave it: this, and nothing else
    hot.write_bytes(data)
    with closing(sqlite3.connect(f"file:{hot}?immutable=1", uri=True)) as control:
        assert control.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert control.execute("PRAGMA user_version").fetchone() == (0,)
    async with open_file(hot) as log:
        await log.append("s", [_event("first")], expect=Expect.no_stream())
        assert await log.check_file() == []


class TestConnections:
    """How one is opened and closed, below everything that a log does before it comes to that."""

    @staticmethod
    def settings(path: Path) -> Settings:
        return Settings(str(path), durability="full", busy_timeout_s=1)

    def test_path_without_a_folder_cannot_be_opened(self, path: Path) -> None:
        with pytest.raises(StoreUnavailable) as refused:
            connect(self.settings(path / "none" / "log.db"), "rwc")
        assert refused.value.code == "store_cannot_open"

    def test_log_that_went_away_in_the_last_moment_is_not_made_anew(self, path: Path) -> None:
        lock = FileLock(f"{path}.lock")
        with closing(lock):
            openings: list[Callable[[], sqlite3.Connection]] = [
                lambda: open_for_writing(self.settings(path), lock, may_create=False),
                lambda: open_for_reading(self.settings(path), lock),
                lambda: open_for_reading(self.settings(path), None),
            ]
            for opening in openings:
                with pytest.raises(StoreUnavailable) as refused:
                    opening()
                assert refused.value.code == "store_not_found"
        assert not path.exists()

    def test_migration_that_fails_leaves_the_log_as_it_was_and_nothing_open(self, path: Path) -> None:
        given: list[sqlite3.Connection] = []

        def fails(connection: sqlite3.Connection) -> None:
            given.append(connection)
            connection.execute("DROP TABLE actors")
            raise ZeroDivisionError

        lock = FileLock(f"{path}.lock")
        with closing(lock):
            open_for_writing(self.settings(path), lock, may_create=True).close()
            before = _digest(path)
            with pytest.raises(ZeroDivisionError):
                open_for_writing(self.settings(path), lock, may_create=False, migrations={FORMAT_VERSION: fails})
            assert _digest(path) == before
            with pytest.raises(sqlite3.ProgrammingError):
                given[-1].execute("SELECT 1")

    @pytest.mark.parametrize("has_setconfig", [True, False], ids=["can be told", "cannot be told"])
    def test_connection_that_is_given_up_moves_nothing_into_the_database(self, path: Path, has_setconfig: bool) -> None:
        """Before Python 3.12 nothing can tell SQLite so, and the connection stays open."""
        told: list[tuple[int, bool]] = []

        class Told(sqlite3.Connection):
            def setconfig(self, name: int, value: bool = True, /) -> None:
                told.append((name, value))

        class Untold(sqlite3.Connection):
            setconfig = None  # type: ignore[assignment,unused-ignore]

        connection = sqlite3.connect(path, factory=Told if has_setconfig else Untold, isolation_level=None)
        connection.execute("PRAGMA journal_mode=WAL")
        _abandon(connection)
        assert told == ([(_NO_CHECKPOINT_ON_CLOSE, True)] if has_setconfig else [])
        try:
            connection.execute("SELECT 1")
            is_open = True
        except sqlite3.ProgrammingError:
            is_open = False
        assert is_open is not has_setconfig
        connection.close()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("SQLITE_BUSY", "store_busy"),
        ("SQLITE_LOCKED_SHAREDCACHE", "store_busy"),
        ("SQLITE_FULL", "store_full"),
        ("SQLITE_READONLY_DBMOVED", "store_readonly"),
        ("SQLITE_PERM", "store_readonly"),
        ("SQLITE_CANTOPEN", "store_cannot_open"),
        ("SQLITE_IOERR_SHMSIZE", "store_cannot_open"),
        ("SQLITE_IOERR_SHMMAP", "wal_unavailable"),
        ("SQLITE_IOERR_READ", "store_io_error"),
        ("SQLITE_AUTH", "store_io_error"),
        ("SQLITE_ERROR", "schema_changed"),
        ("SQLITE_CORRUPT_INDEX", "store_corrupt"),
        ("SQLITE_NOTADB", "store_corrupt"),
    ],
)
def test_each_error_of_sqlite_is_told_as_what_it_means(name: str, told: str) -> None:
    error = sqlite3.OperationalError("something")
    error.sqlite_errorcode, error.sqlite_errorname = getattr(sqlite3, name), name
    translated = translate(error, "cannot read")
    assert getattr(translated, "reason", translated.code) == told
    assert str(translated).startswith(f"cannot read: something ({name})")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (MemoryError(), "store_out_of_memory"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "store_corrupt"),
        (sqlite3.ProgrammingError("Cannot operate on a closed database."), "store_io_error"),
    ],
    ids=["memory", "text", "closed"],
)
def test_each_error_of_the_driver_itself_is_told_as_what_it_means(error: Any, told: str) -> None:
    translated = translate(error, "cannot read")
    assert getattr(translated, "reason", translated.code) == told


def _copy(source: str | Path, target: str | Path) -> None:
    """Copy a file that SQLite has open here: in another process, for closing it here would drop SQLite's locks."""
    subprocess.run(["cp", str(source), str(target)], check=True, timeout=10)


def _event(text: str) -> NewEvent:
    return NewEvent("noted", {"text": text})


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
