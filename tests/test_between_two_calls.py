"""What stores do when something happens between two calls of theirs, or one of them fails: moments that no machine
brings about when it is asked to. Each is brought about here in one process, by a call that fails or does more once.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import eventlog
from eventlog.errors import EventLogError, InvalidInput, LogCorrupt, Misuse, Refused, StoreBusy, StoreUnavailable
from eventlog.events import BarrierRecorded
from eventlog.log import Append, Expect, NewEvent
from eventlog.run import Run
from eventlog.runtime import claims, endings
from eventlog.runtime.claims import Holder, hold
from eventlog.runtime.outcomes import Outcome
from eventlog.runtime.retries import Retry
from eventlog.runtime.undisturbed import undisturbed
from eventlog.scanning import Scanner
from eventlog.stores import (
    MemoryLog,
    SqliteLog,
    artifacts,
    erased_artifacts,
    refused_secrets,
    signer_calls,
    subject_keys,
)
from eventlog.stores.artifacts import ArtifactFolder
from eventlog.stores.signer_calls import SignerCalls
from eventlog.stores.sqlite import connection as connections
from eventlog.stores.sqlite import database, writer
from eventlog.stores.sqlite.commits import Commits
from eventlog.stores.sqlite.connection import Settings, connect, sqlite_has_wal_reset_fix
from eventlog.stores.sqlite.failures import translate
from eventlog.stores.sqlite.file_lock import FileLock
from eventlog.stores.sqlite.identity import canonical_path
from eventlog.stores.sqlite.whole import ConnectionUnusable, in_one_transaction
from eventlog.stores.subject_keys import SubjectKeys
from eventlog.stores.telemetry import logger
from tools.campaigns.storage.log_files import open_file

ANY = Expect.any()
DATA = b"kept"
DIGEST = sha256(DATA).hexdigest()


def failing(number: int) -> Callable[..., Any]:
    def fail(*arguments: Any, **options: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def open_files() -> Iterator[None]:
    """Sees that what was opened is closed again."""
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) == before


# ── artifacts ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_temporary_file_that_is_swept_before_its_writer_has_locked_it_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, swept = fcntl.flock, list[str]()

    def sweeps_first(fd: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX and not swept:
            directory = os.open(os.path.dirname(os.readlink(f"/proc/self/fd/{fd}")), os.O_RDONLY)
            swept.extend(os.listdir(directory))
            artifacts._remove_if_left(directory, swept[0])
            os.close(directory)
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", sweeps_first)
    folder = ArtifactFolder(str(tmp_path / "artifacts"))
    assert folder.put(DATA) == DIGEST and folder.get(DIGEST) == DATA
    assert len(swept) == 1


def test_an_artifact_is_kept_where_the_file_system_has_no_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ArtifactFolder(str(tmp_path / "artifacts"))
    monkeypatch.setattr(os, "link", failing(errno.EPERM))
    assert folder.put(DATA) == DIGEST
    assert folder.get(DIGEST) == DATA
    assert [file.name for file in (tmp_path / "artifacts" / DIGEST[:2]).iterdir()] == [DIGEST]


@pytest.mark.usefixtures("open_files")
@pytest.mark.parametrize(("module", "call"), [(os, "link"), (fcntl, "flock"), (os, "pwrite")])
def test_an_artifact_whose_making_fails_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, call: str
) -> None:
    folder = ArtifactFolder(str(tmp_path / "artifacts"))
    monkeypatch.setattr(module, call, failing(errno.EIO))
    with pytest.raises(StoreUnavailable):
        folder.put(DATA)
    monkeypatch.undo()
    assert not (tmp_path / "artifacts" / DIGEST[:2] / DIGEST).exists()
    assert folder.put(DATA) == DIGEST


@pytest.mark.usefixtures("open_files")
def test_an_artifact_that_cannot_be_read_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ArtifactFolder(str(tmp_path / "artifacts"))
    folder.put(DATA)
    monkeypatch.setattr(artifacts, "_read_file", failing(errno.EIO))
    for ask in (lambda: folder.get(DIGEST), lambda: folder.put(DATA)):
        with pytest.raises(StoreUnavailable) as caught:
            ask()
        assert caught.value.code == "store_io_error"


def test_a_file_in_the_way_of_an_artifact_that_goes_again_is_an_error_and_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ArtifactFolder(str(tmp_path / "artifacts"))
    monkeypatch.setattr(artifacts, "_publish", lambda *_: False)
    with pytest.raises(StoreUnavailable):
        folder.put(DATA)


def test_what_is_erased_meanwhile_by_another_is_erased(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert not erased_artifacts._erase_if_left(fd, "gone")
        os.mkdir(tmp_path / "a folder")
        file = os.open(tmp_path / "held", os.O_RDWR | os.O_CREAT)
        fcntl.flock(file, fcntl.LOCK_EX)
        assert not erased_artifacts._erase_if_left(fd, "held")
        os.close(file)
        assert erased_artifacts._erase_if_left(fd, "held")
    finally:
        os.close(fd)


# ── the database ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("version", "is_fixed"),
    [
        ((3, 40, 1), False),
        ((3, 44, 5), False),
        ((3, 44, 6), True),
        ((3, 50, 6), False),
        ((3, 50, 7), True),
        ((3, 51, 2), False),
        ((3, 51, 3), True),
        ((3, 52, 0), False),
        ((3, 53, 0), True),
    ],
)
def test_which_versions_have_the_fix_of_the_wal_reset_race(version: tuple[int, int, int], is_fixed: bool) -> None:
    assert sqlite_has_wal_reset_fix(version) is is_fixed


def settings_of(path: Path) -> Settings:
    return Settings(str(path), durability="full", busy_timeout_s=0.1)


def test_an_sqlite_without_strict_tables_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SQLITE_FLOOR", (99, 0, 0))
    with pytest.raises(StoreUnavailable) as caught:
        connect(settings_of(path), "rwc")
    assert caught.value.code == "sqlite_too_old"
    assert not path.exists()


@pytest.mark.parametrize(("name", "code"), [("journal_mode", "wal_unavailable"), ("synchronous", "store_cannot_open")])
def test_a_setting_that_is_not_in_force_refuses_the_connection(
    path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: str
) -> None:
    monkeypatch.setattr(connections, "_pragmas", lambda *_: [(name, "0" if name == "synchronous" else "off", "7")])
    with pytest.raises(StoreUnavailable) as caught:
        connect(settings_of(path), "rwc")
    assert caught.value.code == code


def test_a_setting_that_fails_is_a_coded_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_pragmas", lambda *_: [("journal_mode", "wal; nonsense", "wal")])
    with pytest.raises(EventLogError):
        connect(settings_of(path), "rwc")


@pytest.mark.parametrize("error", [StopIteration(1), asyncio.CancelledError("x"), GeneratorExit()])
def test_what_a_future_does_not_take_is_told_all_the_same(error: BaseException) -> None:
    settable = connections._settable(error)
    assert type(error).__name__ in str(settable)
    assert settable.__cause__ is error


class Unsettable(asyncio.Future[Any]):
    """Refuses the first error that it is given."""

    has_refused = False

    def set_exception(self, exception: Any) -> None:
        """Refuse once."""
        if not self.has_refused:
            self.has_refused = True
            raise TypeError("not that one")
        super().set_exception(exception)


async def test_no_hop_leaves_its_caller_waiting_for_an_error_that_cannot_be_told() -> None:
    future = Unsettable()
    connections._deliver(future, (None, ValueError("lost")), None)
    with pytest.raises(RuntimeError, match="ValueError cannot be told: not that one"):
        await future


@pytest.mark.parametrize(
    ("statement", "code"),
    [("INSERT INTO nothing VALUES (1)", "schema_changed"), ("not sql", "schema_changed")],
)
def test_a_whole_transaction_that_fails_is_rolled_back_with_a_code(statement: str, code: str) -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("CREATE TABLE kept (x)")

    def work() -> None:
        connection.execute("INSERT INTO kept VALUES (1)")
        connection.execute(statement)

    with pytest.raises(LogCorrupt) as caught:
        in_one_transaction(connection, "for a test", work)
    assert caught.value.reason == code
    assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)
    connection.close()


class Broken:
    """A connection on which some statements fail with `code`."""

    def __init__(self, code: int, *statements: str) -> None:
        self._code = code
        self._statements = statements
        self.in_transaction = True

    def execute(self, statement: str) -> None:
        """Fail, if that was asked for."""
        if statement in self._statements:
            error = sqlite3.OperationalError("broken")
            error.sqlite_errorcode = self._code
            raise error


def works() -> int:
    return 1


def fails() -> int:
    raise ZeroDivisionError("no")


@pytest.mark.parametrize(
    ("code", "statements", "work", "told"),
    [
        (sqlite3.SQLITE_BUSY, ["BEGIN IMMEDIATE"], works, "store_busy"),
        (sqlite3.SQLITE_FULL, ["COMMIT"], works, "store_full"),
    ],
)
def test_a_definite_failure_leaves_the_connection_usable(
    code: int, statements: list[str], work: Callable[[], int], told: str
) -> None:
    broken: Any = Broken(code, *statements)
    with pytest.raises(EventLogError) as caught:
        in_one_transaction(broken, "for a test", work)
    assert caught.value.code == told


@pytest.mark.parametrize(
    ("code", "statements", "work", "told"),
    [
        (sqlite3.SQLITE_IOERR, ["BEGIN IMMEDIATE"], works, "store_io_error"),
        (sqlite3.SQLITE_IOERR, ["ROLLBACK"], fails, "unexpected"),
        (sqlite3.SQLITE_IOERR, ["COMMIT"], works, None),
        (sqlite3.SQLITE_FULL, ["COMMIT", "ROLLBACK"], works, "store_full"),
    ],
)
def test_a_connection_that_cannot_be_trusted_any_more_says_so(
    code: int, statements: list[str], work: Callable[[], int], told: str | None
) -> None:
    broken: Any = Broken(code, *statements)
    with pytest.raises(ConnectionUnusable) as caught:
        in_one_transaction(broken, "for a test", work)
    assert (caught.value.told and caught.value.told.code) == told


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (sqlite3.SQLITE_READONLY, "store_readonly"),
        (sqlite3.SQLITE_PERM, "store_readonly"),
        (sqlite3.SQLITE_CANTOPEN, "store_cannot_open"),
        (sqlite3.SQLITE_FULL, "store_full"),
        (sqlite3.SQLITE_LOCKED, "store_busy"),
        (sqlite3.SQLITE_IOERR, "store_io_error"),
        (sqlite3.SQLITE_NOTADB, "log_corrupt"),
        (sqlite3.SQLITE_INTERNAL, "store_io_error"),
    ],
)
def test_each_kind_of_error_of_the_driver_has_its_code(code: int, told: str) -> None:
    error = sqlite3.OperationalError("broken")
    error.sqlite_errorcode = code
    assert translate(error, "for a test").code == told


async def test_a_migration_that_fails_leaves_the_file_as_it_was(path: Path) -> None:
    def fails_halfway(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE half (x)")
        raise sqlite3.OperationalError("the disk is broken")

    async with open_file(path) as log:
        await log.append("a", [NewEvent("noted", 1)], expect=ANY)
    with sqlite3.connect(path) as other:
        (version,) = other.execute("PRAGMA user_version").fetchone()
    other.close()
    connection = sqlite3.connect(path, isolation_level=None)
    with pytest.raises(EventLogError):
        database.migrate(connection, migrations={version: fails_halfway})
    assert connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'half'").fetchone() == (0,)
    connection.close()


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_a_path_that_cannot_be_looked_at_cannot_be_opened(
    path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    real = os.path.realpath
    monkeypatch.setattr(os.path, "realpath", lambda given: real(given))
    monkeypatch.setattr(os, "stat", failing(number))
    with pytest.raises(StoreUnavailable) as caught:
        canonical_path(str(path))
    monkeypatch.undo()
    assert caught.value.code == "store_cannot_open"


def test_a_lock_file_that_cannot_be_locked_frees_its_threads_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = FileLock(f"{path}.lock")
    monkeypatch.setattr(fcntl, "flock", failing(errno.ENOLCK))
    with pytest.raises(StoreUnavailable) as caught:
        lock.acquire()
    monkeypatch.undo()
    assert caught.value.code == "store_cannot_open"
    lock.acquire()
    lock.release()
    lock.close()
    lock.close()
    with pytest.raises(StoreUnavailable) as closed:
        lock.acquire()
    assert closed.value.code == "engine_closed"


async def test_a_full_queue_and_a_closed_log_take_no_more(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "MAX_QUEUED_REQUESTS", 0)
    async with open_file(path) as log:
        with pytest.raises(StoreBusy):
            await log.append("a", [NewEvent("noted", 1)], expect=ANY)


async def test_a_call_that_gives_something_unfinished_is_refused(path: Path) -> None:
    async def unfinished(connection: sqlite3.Connection) -> None:
        """Never begun."""

    async with open_file(path) as log:
        for function in (lambda connection: connection.execute("SELECT 1"), unfinished):
            given: Any = function
            with pytest.raises(Misuse) as caught:
                await log.read_view(given)
            assert caught.value.code == "result_unfinished"


async def test_who_waits_for_a_commit_is_woken_by_it_and_not_by_the_one_before() -> None:
    commits = Commits()
    first, second = commits.next(), commits.next()
    commits.wake()
    await asyncio.wait_for(first(60), 10)
    third = commits.next()
    commits.wake()
    commits.wake()
    await asyncio.wait_for(asyncio.gather(second(60), third(60)), 10)
    await commits.next()(0.0)


# ── both logs ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("given", [b"log.db", "", "a\0b"])
def test_a_path_that_names_no_file_is_refused(given: Any) -> None:
    with pytest.raises(InvalidInput):
        eventlog.open(given)


async def test_a_log_shows_its_registry_and_limits(log: MemoryLog | SqliteLog) -> None:
    assert log.limits.depth > 0
    assert log.registry.is_known("run_completed")


async def test_the_streams_of_the_log_itself_are_about_nobody(log: MemoryLog | SqliteLog) -> None:
    with pytest.raises(InvalidInput, match="about nobody"):
        await log.append_reserved([Append("$log", [BarrierRecorded(reason="a test")], ANY, "ann")])


# ── keys, signers, claims ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_key_that_another_process_destroys_between_two_looks_is_destroyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = SubjectKeys(tmp_path / "keys", wrapping_key=bytes(32))
    keys.key_for("ann", may_create=True)
    answers = iter([False, True])
    monkeypatch.setattr(keys, "is_destroyed", lambda key_id: next(answers))
    monkeypatch.setattr(keys, "key", lambda key_id: None)
    with pytest.raises(Refused) as caught:
        keys.key_for("ann", may_create=False)
    assert caught.value.code == "subject_erased"


def test_of_two_that_make_the_key_of_a_subject_at_the_same_moment_the_first_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = (SubjectKeys(tmp_path / "keys", wrapping_key=bytes(32)) for _ in range(2))
    link_new, made = subject_keys._link_new, list[tuple[bytes, bytes]]()

    def they_are_first(path: str, data: bytes) -> bool:
        if path.split("/")[-2] == "subjects" and not made:
            made.append((b"", b""))
            made[0] = theirs.key_for("ann", may_create=True)
        return link_new(path, data)

    monkeypatch.setattr(subject_keys, "_link_new", they_are_first)
    assert ours.key_for("ann", may_create=True) == made[0]
    assert ours.key_ids() == [made[0][0]]


def test_a_key_whose_maker_has_not_flushed_its_name_is_used_only_when_the_name_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = SubjectKeys(tmp_path / "keys", wrapping_key=bytes(32)).key_for("ann", may_create=True)
    others = SubjectKeys(tmp_path / "keys", wrapping_key=bytes(32))
    sync_folder, synced = subject_keys._sync_folder, list[str]()

    def noted(path: str | Path) -> None:
        synced.append(str(path))
        sync_folder(path)

    monkeypatch.setattr(subject_keys, "_sync_folder", noted)
    assert [others.key_for("ann", may_create=True) for _ in range(2)] == [made, made]
    assert synced == [str(tmp_path / "keys" / "subjects")]


class Signer:
    """Raises what it is told to raise."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def last(self) -> None:
        """Raise it."""
        raise self._error


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), StopIteration(), ValueError("no")])
async def test_whatever_a_signer_raises_is_an_unavailable_signer(error: BaseException) -> None:
    signer: Any = Signer(error)
    with pytest.raises(StoreUnavailable) as caught:
        await SignerCalls(signer).last()
    assert caught.value.code == "signer_unavailable"
    assert type(error).__name__ in str(caught.value)


async def test_an_answer_that_nobody_waits_for_is_dropped() -> None:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.cancel()
    signer_calls._deliver(future, 1, None)
    signer_calls._look_at(future)
    assert future.cancelled()


@pytest.mark.usefixtures("open_files")
def test_a_claim_whose_file_cannot_be_locked_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", failing(errno.ENOLCK))
    with pytest.raises(StoreUnavailable) as caught, hold(str(path)):
        pass
    assert caught.value.code == "store_cannot_open"


def test_a_claim_that_loses_its_file_while_it_is_given_is_on_another(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = Holder(str(path))
    give = claims._LockFile.give
    times: list[claims._LockFile] = []

    def given(file: claims._LockFile) -> int:
        number = give(file)
        if not times:
            times.append(file)
            holder._let_go(file)
        return number

    monkeypatch.setattr(claims._LockFile, "give", given)
    owner = holder.claim()
    assert claims.is_proved_alive(owner, str(path))
    holder.close()


def test_a_lock_file_that_cannot_be_dated_is_as_old_as_can_be(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = Holder(str(path))
    holder.claim()
    file = holder._file
    assert file is not None
    monkeypatch.setattr(os, "utime", failing(errno.EPERM))
    assert file.date() == 0.0
    holder.close()


def test_a_machine_that_says_nothing_of_itself_says_nothing(tmp_path: Path) -> None:
    assert claims._first_line(str(tmp_path / "none")) == ""
    assert claims._boot_session_of_macos() == "" or os.uname().sysname == "Darwin"


# ── small things ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_line_that_nobody_will_see_is_not_written(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL, "eventlog"):
        for write in (logger.debug, logger.info, logger.warning, logger.error, logger.exception):
            write("unseen")
    assert caplog.records == []


@pytest.mark.parametrize(
    "make",
    [
        partial(Retry, attempts=0),
        partial(Retry, first_delay_s=-1),
        partial(Retry, first_delay_s=10, max_delay_s=5),
        partial(Retry, factor=0.5),
    ],
)
def test_retries_that_make_no_sense_are_refused(make: Callable[[], Retry]) -> None:
    with pytest.raises(InvalidInput):
        make()


def test_a_delay_that_no_number_holds_is_the_longest_one() -> None:
    assert Retry(attempts=1_000_000, factor=1000, max_delay_s=60).delay_s(1_000_000) == 60


def test_an_outcome_shows_its_run_and_what_came_of_it() -> None:
    outcome = Outcome(run=Run(run_id="run-1", result={"number": 1}), result="executed")
    assert outcome.run_id == "run-1"
    assert repr(outcome) == (
        "Outcome(run_id='run-1', status='WAITING_FOR_USER', result='executed', value={'number': 1})"
    )


async def test_what_is_not_to_be_disturbed_and_cancels_itself_ends_with_the_cancellation_from_outside() -> None:
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def gives_up() -> None:
        begun.set()
        await goes_on.wait()
        raise asyncio.CancelledError("from within")

    task = asyncio.create_task(undisturbed(gives_up()))
    await begun.wait()
    task.cancel("from outside")
    await asyncio.sleep(0)
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_an_exit_ends_no_run() -> None:
    nothing: Any = None
    with pytest.raises(SystemExit):
        await endings.fail(nothing, nothing, SystemExit(3))


def test_a_scanner_that_fails_at_the_second_look_is_a_failed_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails_to_say_where(scanner: Any, body: bytes) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr(refused_secrets, "place_of", fails_to_say_where)
    with pytest.raises(InvalidInput) as caught:
        refused_secrets.refuse_secret(Scanner(), b'{"key":"AKIAIOSFODNN7EXAMPLQ"}')
    assert caught.value.code == "secret_scan_failed"
