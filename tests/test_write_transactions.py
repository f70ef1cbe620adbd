"""Transactions of one write connection whose statements fail: what the callers are told, and what becomes of it.

The storage is really made to fail in `test_sqlite_failures`. Here a real connection raises, at a statement of the
test's choice, what SQLite would raise there, so that each kind of error meets each statement.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from eventlog import EventLogError, Expect, NewEvent
from eventlog.codec import REGISTRY
from eventlog.log import Append, Snapshot
from eventlog.plain import Limits
from eventlog.stores.requests import Request, make_request
from eventlog.stores.sqlite import plan as plans
from eventlog.stores.sqlite.connection import Settings
from eventlog.stores.sqlite.database import migrate, open_for_writing, read_facts
from eventlog.stores.sqlite.file_lock import FileLock
from eventlog.stores.sqlite.identity import Identity
from eventlog.stores.sqlite.rows import Rows
from eventlog.stores.sqlite.schema import FORMAT_VERSION
from eventlog.stores.sqlite.signed_heads import _flush_wal
from eventlog.stores.sqlite.snapshots import load_snapshot, save_snapshot
from eventlog.stores.sqlite.transaction import Batch, BatchOutcome, Transactions
from eventlog.stores.sqlite.tree import tree_head
from eventlog.stores.sqlite.view_tables import generations_without_table
from eventlog.stores.sqlite.views import _in_transaction
from eventlog.stores.sqlite.whole import ConnectionUnusable
from eventlog.testing.clock import FakeClock
from projections.sqlite_views.cursors import CursorFile, Handled
from projections.sqlite_views.database import ViewFile
from projections.sqlite_views.entries import _read as read_entries
from tools.campaigns.storage.log_files import open_file

Failures = dict[str, Exception]


class Failing(sqlite3.Connection):
    """Raises, at each statement that begins so, what `failures` holds for it."""

    failures: Failures

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        """Execute the statement, unless it fails."""
        for begin, error in self.failures.items():
            if sql.lstrip().startswith(begin):
                raise error
        return super().execute(sql, *args)


def error_of(name: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(name)
    error.sqlite_errorcode, error.sqlite_errorname = getattr(sqlite3, name), name
    return error


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def lock(path: Path) -> Iterator[FileLock]:
    with closing(FileLock(f"{path}.lock")) as lock:
        yield lock


@pytest.fixture
def connection(path: Path, lock: FileLock) -> Iterator[Failing]:
    """A connection to a new log, of which nothing fails yet."""
    open_for_writing(Settings(str(path), durability="full", busy_timeout_s=1), lock, may_create=True).close()
    with closing(sqlite3.connect(path, factory=Failing, isolation_level=None)) as connection:
        connection.failures = {}
        yield connection


@pytest.fixture
def transactions(path: Path, lock: FileLock, connection: Failing) -> Transactions:
    connection.execute("SELECT count(*) FROM events")  # so that there is a write-ahead log
    return Transactions(lock, Identity(str(path)), FakeClock(), None)


def request(stream: str, expect: Expect | None = None) -> Request:
    return make_request(
        [Append(stream, [NewEvent("noted", {})], expect or Expect.any())],
        (),
        actor="test",
        correlation_id=None,
        causation_id=None,
        registry=REGISTRY,
        limits=Limits(),
    )


def told(outcome: BatchOutcome) -> list[str]:
    return [getattr(answer, "code", "ok") for answer in outcome.answers]


def commit(transactions: Transactions, connection: Failing, **failures: Exception) -> BatchOutcome:
    """Commit two requests while statements fail that begin as the names of these arguments; then they fail no more."""
    connection.failures = failures
    try:
        return transactions.commit(connection, Batch([request(f"s{number}") for number in range(2)]))
    finally:
        connection.failures = {}


def events_in(connection: sqlite3.Connection) -> int:
    count: int = connection.execute("SELECT count(*) FROM events").fetchone()[0]
    return count


# ── batches ───────────────────────────────────────────────────────────────────────────────────────────────────────────

DEFINITE: Final = [
    ("BEGIN", "SQLITE_BUSY", "store_busy", False),
    ("BEGIN", "SQLITE_BUSY_SNAPSHOT", "store_busy", True),
    ("BEGIN", "SQLITE_IOERR_READ", "store_io_error", True),
    ("BEGIN", "SQLITE_FULL", "store_full", False),
    ("INSERT", "SQLITE_FULL", "store_full", False),
    ("INSERT", "SQLITE_BUSY", "store_busy", True),
    ("INSERT", "SQLITE_IOERR_WRITE", "store_io_error", True),
    ("COMMIT", "SQLITE_FULL", "store_full", False),
    ("COMMIT", "SQLITE_BUSY", "store_busy", True),
    ("COMMIT", "SQLITE_IOERR_WRITE", "store_io_error", True),
]


@pytest.mark.parametrize(("statement", "name", "code", "is_poison"), DEFINITE)
def test_statement_that_fails_is_told_as_definite_and_nothing_is_written(
    transactions: Transactions, connection: Failing, statement: str, name: str, code: str, is_poison: bool
) -> None:
    outcome = commit(transactions, connection, **{statement: error_of(name)})
    assert (told(outcome), outcome.unknown, outcome.poison is not None) == ([code, code], None, is_poison)
    assert not connection.in_transaction
    assert events_in(connection) == 0
    assert told(commit(transactions, connection)) == ["ok", "ok"]


@pytest.mark.parametrize("name", ["SQLITE_IOERR_FSYNC", "SQLITE_IOERR", "SQLITE_INTERRUPT"])
def test_commit_that_proves_nothing_is_told_to_nobody_as_a_failure(
    transactions: Transactions, connection: Failing, name: str
) -> None:
    outcome = commit(transactions, connection, COMMIT=error_of(name))
    assert (outcome.answers, outcome.unknown, outcome.poison) == ([], name, f"COMMIT failed: {name}")


def test_transaction_that_cannot_be_rolled_back_ends_its_connection(
    transactions: Transactions, connection: Failing
) -> None:
    broken = {"INSERT": error_of("SQLITE_FULL"), "ROLLBACK": error_of("SQLITE_BUSY")}
    outcome = commit(transactions, connection, **broken)
    assert told(outcome) == ["store_full", "store_full"]
    assert outcome.poison == "a transaction could not be rolled back: SQLITE_BUSY"


def test_batch_behind_a_lock_that_was_closed_is_answered(
    transactions: Transactions, connection: Failing, lock: FileLock
) -> None:
    lock.close()
    outcome = commit(transactions, connection)
    assert (told(outcome), outcome.poison) == (["engine_closed", "engine_closed"], None)


def test_error_that_nobody_thought_of_is_told_with_a_code_and_rolled_back(
    transactions: Transactions, connection: Failing
) -> None:
    outcome = commit(transactions, connection, INSERT=ZeroDivisionError("nobody thought of it"))
    assert told(outcome) == ["unexpected", "unexpected"]
    assert "ZeroDivisionError: nobody thought of it" in str(outcome.answers[0])
    assert (connection.in_transaction, events_in(connection)) == (False, 0)


def test_event_that_the_database_refuses_though_nothing_was_trusted_is_damage(
    transactions: Transactions, connection: Failing
) -> None:
    connection.execute("CREATE TRIGGER theirs BEFORE INSERT ON events BEGIN SELECT raise(ABORT, 'not here'); END")
    outcome = commit(transactions, connection)
    assert [getattr(answer, "reason", None) for answer in outcome.answers] == ["append_refused", "append_refused"]
    assert "not here" in str(outcome.answers[0])


def test_what_is_remembered_of_streams_is_bounded(
    transactions: Transactions, connection: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "_MAX_CACHED_STREAMS", 2)
    for _ in range(3):
        for number in range(4):
            batch = Batch([request(f"s{number}")])
            assert told(transactions.commit(connection, batch)) == ["ok"]
    assert len(transactions._known.heads) <= 2
    versions = connection.execute("SELECT max(version) FROM events GROUP BY stream_id").fetchall()
    assert versions == [(3,)] * 4


# ── transactions of other things ──────────────────────────────────────────────────────────────────────────────────────


def test_connection_that_is_in_doubt_takes_no_transaction_any_more(
    transactions: Transactions, connection: Failing
) -> None:
    connection.failures = {"COMMIT": error_of("SQLITE_IOERR_FSYNC")}
    with pytest.raises(ConnectionUnusable) as doubt:
        transactions.between(connection, "cannot write", lambda: "done")
    assert (doubt.value.told, doubt.value.result) == (None, "done")
    connection.failures = {}
    with pytest.raises(ConnectionUnusable) as refused:
        transactions.between(connection, "cannot write", lambda: "done")
    assert refused.value.told is not None and refused.value.told.code == "store_io_error"
    outcome = commit(transactions, connection)
    assert (outcome.answers, outcome.unknown, outcome.poison) == ([], doubt.value.why, doubt.value.why)


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(("name", "is_told"), [("SQLITE_IOERR_READ", True), ("SQLITE_CONSTRAINT", False)])
def test_work_that_makes_its_own_transactions_ends_the_connection_only_where_the_disk_is_at_fault(
    transactions: Transactions, connection: Failing, name: str, is_told: bool
) -> None:
    with pytest.raises(ConnectionUnusable if is_told else sqlite3.OperationalError) as failure:
        transactions.apart(connection, "cannot prepare", lambda: _raise(error_of(name)))
    if isinstance(failure.value, ConnectionUnusable):
        assert failure.value.told is not None and failure.value.told.code == "store_io_error"
    outcome = commit(transactions, connection)
    assert (outcome.unknown is not None) is is_told


def test_erasure_that_is_refused_erases_nothing(transactions: Transactions, connection: Failing) -> None:
    assert told(commit(transactions, connection)) == ["ok", "ok"]
    rows = Rows(read_facts(connection), REGISTRY)

    with pytest.raises(EventLogError) as conflict:
        transactions.erase(connection, rows, [1], lambda _: request("s0", Expect.at(7)))
    assert conflict.value.code == "version_conflict"
    assert connection.execute("SELECT count(*) FROM events WHERE body IS NULL").fetchone() == (0,)


# ── what is kept beside the events ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("failures", "why"),
    [
        ({"COMMIT": "SQLITE_FULL"}, None),
        ({"COMMIT": "SQLITE_IOERR_FSYNC"}, "SQLITE_IOERR_FSYNC"),
        ({"BEGIN": "SQLITE_BUSY"}, None),
        (
            {"COMMIT": "SQLITE_FULL", "ROLLBACK": "SQLITE_BUSY"},
            "a transaction could not be rolled back: SQLITE_BUSY",
        ),
    ],
)
def test_snapshot_that_cannot_be_saved_is_given_up_and_says_what_becomes_of_its_connection(
    connection: Failing, lock: FileLock, failures: dict[str, str], why: str | None
) -> None:
    assert save_snapshot(connection, lock, "s", Snapshot(1, b"one")) is None
    connection.failures = {statement: error_of(name) for statement, name in failures.items()}
    assert save_snapshot(connection, lock, "s", Snapshot(2, b"two")) == why
    connection.failures = {}
    if connection.in_transaction:
        connection.execute("ROLLBACK")
    assert load_snapshot(connection, "s") == Snapshot(1, b"one")


def test_identity_takes_a_write_ahead_log_that_comes_later_for_its_own_and_no_second_one(path: Path) -> None:
    wal = path.with_name("log.db-wal")
    path.write_bytes(b"")
    identity = Identity(str(path))
    with pytest.raises(EventLogError):
        identity.check()
    wal.write_bytes(b"123")
    assert identity.check() == 3
    wal.rename(path.with_name("away"))
    wal.write_bytes(b"12345")
    with pytest.raises(EventLogError) as changed:
        identity.check()
    assert changed.value.code == "store_identity_changed"


def test_write_ahead_log_that_is_not_there_has_nothing_to_be_flushed(connection: Failing, path: Path) -> None:
    _flush_wal(connection, f"{path}-gone")
    _flush_wal(connection, str(path))


# ── transactions that SQLite has ended by itself ──────────────────────────────────────────────────────────────────────


class EndsBehind(sqlite3.Connection):
    """Does what SQLite does where memory runs out in a statement: ends the transaction, and the statement fails."""

    at: str | None = None

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        """Execute the statement, unless it is one that has no memory enough."""
        if self.at is not None and self.at in sql and self.in_transaction:
            super().execute("ROLLBACK")
            raise MemoryError
        return super().execute(sql, *args)


def _read_types(connection: sqlite3.Connection) -> None:
    connection.execute("SELECT count(*) FROM types")


@pytest.mark.parametrize(
    ("at", "read"),
    [
        ("FROM streams", lambda connection: Rows(read_facts(connection), REGISTRY).stream_page(connection, "s0", 0, 9)),
        (
            "FROM streams",
            lambda connection: Rows(read_facts(connection), REGISTRY).stream_page_back(connection, "s0", None, 9),
        ),
        ("SELECT", lambda connection: tree_head(connection, None)),
        ("SELECT", generations_without_table),
        ("SELECT", lambda connection: read_entries(connection, False)),
    ],
    ids=["stream", "stream back", "tree", "tables", "entries"],
)
def test_reader_that_runs_out_of_memory_is_told_so_and_not_that_no_transaction_is_active(
    path: Path, transactions: Transactions, connection: Failing, at: str, read: Callable[[sqlite3.Connection], object]
) -> None:
    assert told(commit(transactions, connection)) == ["ok", "ok"]
    with closing(sqlite3.connect(path, factory=EndsBehind, isolation_level=None)) as reader:
        expected = read(reader)
        reader.at = at
        with pytest.raises(MemoryError):
            read(reader)
        reader.at = None
        assert read(reader) == expected


def test_migration_that_runs_out_of_memory_is_told_so_and_not_as_damage(path: Path, connection: Failing) -> None:
    with closing(sqlite3.connect(path, factory=EndsBehind, isolation_level=None)) as opening:
        opening.at = "FROM types"
        with pytest.raises(EventLogError) as told:
            migrate(opening, migrations={FORMAT_VERSION: _read_types})
        assert told.value.code == "store_out_of_memory"


async def test_file_of_views_that_finds_no_memory_on_opening_says_so_and_not_that_it_is_damaged(path: Path) -> None:
    async with open_file(path) as log:
        views = ViewFile(path.with_name("views.db"), log)
        with closing(sqlite3.connect(":memory:", factory=EndsBehind, isolation_level=None)) as opening:
            opening.at = "FROM sqlite_schema"
            with pytest.raises(MemoryError):
                views._prepare(opening)


async def test_file_of_views_ends_a_transaction_that_could_not_be_ended_before_it_begins_one(path: Path) -> None:
    async with open_file(path) as log, ViewFile(path.with_name("views.db"), log) as views:
        await views.look(lambda connection: connection.execute("BEGIN").fetchone())
        await views.write_view(lambda connection: connection.execute("CREATE TABLE kept (x)").fetchone())
        await views.look(lambda connection: connection.execute("BEGIN").fetchone())
        assert await views.look(lambda connection: connection.execute("SELECT count(*) FROM kept").fetchone()) == (0,)


async def test_file_of_positions_ends_a_transaction_that_could_not_be_ended_before_it_begins_one(path: Path) -> None:
    async with CursorFile(path, b"s" * 16) as positions:
        await positions._worker.run(lambda connection: connection.execute("BEGIN").fetchone())
        start = Handled(name="letters", position=0, leaf=None)
        assert await positions.begin(start, 0) == start


def test_commit_of_a_view_s_table_that_fails_leaves_no_transaction_to_the_next_append(
    transactions: Transactions, connection: Failing
) -> None:
    connection.failures = {"COMMIT": MemoryError()}
    with pytest.raises(MemoryError):
        transactions.apart(connection, "preparing", lambda: _in_transaction(connection, lambda _: None))
    assert told(commit(transactions, connection)) == ["ok", "ok"]


def test_view_s_transaction_that_cannot_be_rolled_back_is_told_by_its_cause_and_ends_its_connection(
    transactions: Transactions, connection: Failing
) -> None:
    connection.failures = {"COMMIT": MemoryError(), "ROLLBACK": error_of("SQLITE_NOMEM")}
    with pytest.raises(ConnectionUnusable, match="could not be rolled back") as unusable:
        transactions.apart(connection, "preparing", lambda: _in_transaction(connection, lambda _: None))
    assert isinstance(unusable.value.told, EventLogError)
    assert unusable.value.told.code == "store_out_of_memory"


def test_append_whose_transaction_a_trigger_has_rolled_back_is_refused_for_that_reason(
    transactions: Transactions, connection: Failing
) -> None:
    connection.execute(
        "CREATE TRIGGER treacherous BEFORE INSERT ON events BEGIN SELECT raise(ROLLBACK, 'not with me'); END"
    )
    outcome = commit(transactions, connection)
    assert [str(answer) for answer in outcome.answers] == ["the database refuses the next event: not with me"] * 2
