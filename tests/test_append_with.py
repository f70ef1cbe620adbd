"""The store's door for effects of its own: an event and what is written with it are one, or nothing.

Both are always read back through another connection, as another program would.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

import eventlog
from eventlog import Expect, NewEvent
from eventlog.codec import Registry, event
from eventlog.errors import (
    ActionFailed,
    EventLogError,
    InvalidInput,
    StoreBusy,
    StoreUnavailable,
    WrongExpectedVersion,
)
from eventlog.log import TransactionalLog
from eventlog.stores import SqliteLog
from eventlog.stores.sqlite import foreign_write, transaction
from eventlog.stores.sqlite.foreign_write import WriteAccess, WriteCursor
from eventlog.views import Selection, ViewEntry
from projections import runs_view
from tools.campaigns.storage.log_files import assert_whole, open_file

REGISTRY = Registry()
ANY = Expect.any()

TABLES = """
CREATE TABLE ledger (op_key TEXT UNIQUE, amount INTEGER NOT NULL CHECK (amount > 0)) STRICT;
CREATE TABLE treacherous (n INTEGER UNIQUE ON CONFLICT ROLLBACK) STRICT;
CREATE TABLE raising (n INTEGER) STRICT;
CREATE TRIGGER raises BEFORE INSERT ON raising BEGIN SELECT RAISE(ROLLBACK, 'no'); END;
CREATE TABLE leaking (n INTEGER) STRICT;
CREATE TRIGGER leak AFTER INSERT ON leaking BEGIN INSERT INTO streams (stream_id, name) VALUES (999, 'forged'); END;
CREATE TABLE leaking_events (n INTEGER) STRICT;
CREATE TRIGGER leak_events AFTER INSERT ON leaking_events BEGIN
    INSERT INTO events SELECT * FROM events WHERE position = 1;
END;
"""


READ_HALF = "INSERT INTO ledger VALUES ('x', 1), ('y', 2) RETURNING amount"
"""A statement that is in progress until both of its rows are read."""


@event("booked", registry=REGISTRY)
class Booked(msgspec.Struct, frozen=True):
    amount: int


@event("other_thing", registry=REGISTRY)
class OtherThing(msgspec.Struct, frozen=True):
    text: str


class ViewOfTheUpperCase:
    """An inline view whose table has a capital letter."""

    name = "Upper"
    revision = 1
    shape = "n INTEGER"
    selection = Selection(frozenset({"booked"}))

    def exists(self, connection: sqlite3.Connection, entry: ViewEntry) -> bool:
        """Say whether the table is there."""
        return connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'Upper'").fetchone() is not None

    def is_own(self, connection: sqlite3.Connection, entry: ViewEntry) -> bool:
        """Say that what is there was made here."""
        return True

    def create(self, connection: sqlite3.Connection, entry: ViewEntry) -> None:
        """Create it."""
        connection.execute("CREATE TABLE Upper (n INTEGER) STRICT")

    def drop(self, connection: sqlite3.Connection, entry: ViewEntry) -> None:
        """Drop it."""
        connection.execute("DROP TABLE IF EXISTS Upper")

    def delete_page(self, connection: sqlite3.Connection, entry: ViewEntry, limit: int) -> int:
        """Never needed either."""
        raise AssertionError

    def rename(self, connection: sqlite3.Connection, before: ViewEntry, after: ViewEntry) -> None:
        """Never needed: its revision is not raised."""
        raise AssertionError

    def apply(self, connection: sqlite3.Connection, entry: ViewEntry, events: Any, cache: Any = None) -> None:
        """Write nothing."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
async def log(path: Path) -> AsyncIterator[SqliteLog]:
    views = [runs_view(), ViewOfTheUpperCase()]
    async with open_file(path, registry=REGISTRY, views=views, settle_timeout_s=0.5) as log:
        await log.append("orders", [Booked(1)], expect=Expect.no_stream())
        with closing(sqlite3.connect(path)) as program:
            program.executescript(TABLES)
        yield log
        await assert_whole(log)


def booking(amount: int = 5, op_key: str = "k") -> Callable[[WriteAccess], Booked]:
    """Return what writes one row and says so."""

    def make(connection: WriteAccess) -> Booked:
        connection.execute("INSERT INTO ledger VALUES (?, ?)", (op_key, amount))
        return Booked(amount)

    return make


def rows(path: Path, table: str = "ledger") -> list[Any]:
    """Read a table as another program does."""
    with closing(sqlite3.connect(path)) as other:
        return other.execute(f"SELECT * FROM {table} ORDER BY rowid").fetchall()


def amounts(path: Path) -> list[int]:
    """Read the bookings in the log as another program does."""
    query = "SELECT CAST(body AS TEXT) FROM events JOIN streams USING (stream_id) WHERE name = 'book' ORDER BY version"
    with closing(sqlite3.connect(path)) as other:
        return [msgspec.json.decode(body)["amount"] for (body,) in other.execute(query)]


async def book(log: SqliteLog, make: Callable[[Any], Any], expect: Expect = ANY) -> eventlog.AppendResult:
    return await log.append_with("book", "booked", make, expect=expect)


class Speechless(Exception):
    """An error that cannot even say what it is."""

    def __str__(self) -> str:
        raise ValueError("no words")


# ── one, or nothing ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_row_and_the_event_are_there_together(log: SqliteLog, path: Path) -> None:
    assert isinstance(log, TransactionalLog)
    result = await book(log, booking(), Expect.no_stream())
    assert (result.version, result.last_position, result.deduplicated) == (1, 2, False)
    assert (rows(path), amounts(path)) == ([("k", 5)], [5])


async def test_until_the_commit_another_connection_sees_neither(log: SqliteLog, path: Path) -> None:
    seen: list[Any] = []

    def make(connection: WriteAccess) -> Booked:
        booked = booking()(connection)
        seen.append((rows(path), amounts(path)))
        return booked

    await book(log, make)
    assert seen == [([], [])]


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        ActionFailed("card_declined", "no"),
        sqlite3.IntegrityError("no"),
        KeyboardInterrupt(),
        SystemExit(3),
        asyncio.CancelledError(),
        Speechless(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_write_that_raises_anything_has_definitely_failed_and_leaves_neither(
    log: SqliteLog, path: Path, error: BaseException
) -> None:
    def make(connection: WriteAccess) -> Booked:
        booking()(connection)
        raise error

    with pytest.raises(ActionFailed) as raised:
        await book(log, make)
    assert raised.value is error or (raised.value.code, raised.value.__cause__) == ("action_failed", error)
    assert (rows(path), amounts(path)) == ([], [])
    await book(log, booking())
    assert (rows(path), amounts(path)) == ([("k", 5)], [5])


@pytest.mark.parametrize(
    ("made", "code"),
    [
        (OtherThing("x"), "invalid_event"),
        ({"amount": 5}, "unsupported_type"),
        (None, "unsupported_type"),
        (Booked("x" * 17_000_000), "payload_too_large"),  # type: ignore[arg-type]
    ],
    ids=["another type", "plain data", "nothing", "too large"],
)
async def test_an_event_that_cannot_be_stored_takes_its_row_with_it(
    log: SqliteLog, path: Path, made: Any, code: str
) -> None:
    def make(connection: WriteAccess) -> Any:
        booking()(connection)
        return made

    with pytest.raises(InvalidInput) as refusal:
        await book(log, make)
    assert refusal.value.code == code
    assert (rows(path), amounts(path)) == ([], [])


async def test_a_type_that_nobody_registered_is_refused_before_anything_is_called(log: SqliteLog) -> None:
    called: list[Any] = []
    with pytest.raises(InvalidInput) as refusal:
        await log.append_with("book", "never_heard_of", called.append, expect=ANY)
    assert refusal.value.code == "unsupported_type"
    assert called == []


async def test_an_expectation_that_is_missed_calls_nothing(log: SqliteLog, path: Path) -> None:
    called: list[Any] = []
    with pytest.raises(WrongExpectedVersion) as missed:
        await book(log, called.append, Expect.at(3))
    assert (missed.value.actual, called) == (0, [])
    assert (rows(path), amounts(path)) == ([], [])


async def test_a_log_that_is_open_for_reading_calls_nothing(log: SqliteLog, path: Path) -> None:
    called: list[Any] = []
    async with open_file(path, registry=REGISTRY, is_read_only=True) as reading:
        with pytest.raises(StoreUnavailable) as refusal:
            await book(reading, called.append)
    assert (refusal.value.code, called) == ("store_readonly", [])


async def test_a_log_in_memory_has_no_such_door() -> None:
    async with eventlog.open("memory:") as log:
        assert not isinstance(log, TransactionalLog)


async def test_an_actor_is_recorded_as_with_any_append(log: SqliteLog) -> None:
    await log.append_with("book", "booked", booking(), expect=ANY, actor="person:3")
    (stored,) = [each async for each in log.read("book")]
    assert (stored.actor, stored.data, stored.is_known) == ("person:3", Booked(5), True)


# ── others of the same batch ─────────────────────────────────────────────────────────────────────────────────────────


async def test_what_one_request_does_wrong_is_no_harm_to_the_others_of_its_batch(log: SqliteLog, path: Path) -> None:
    def fail(connection: WriteAccess) -> Booked:
        booking(99, "bad")(connection)
        raise ValueError("no")

    requests = [
        log.append("orders", [Booked(2)], expect=ANY),
        book(log, booking(5, "a")),
        book(log, fail),
        book(log, booking(6, "a")),  # the same key: refused by the table
        book(log, booking(7, "b")),
        log.append("orders", [Booked(3)], expect=ANY),
    ]
    answers = await asyncio.gather(*requests, return_exceptions=True)
    assert [isinstance(answer, EventLogError) for answer in answers] == [False, False, True, True, False, False]
    assert rows(path) == [("a", 5), ("b", 7)]
    assert amounts(path) == [5, 7]


async def test_a_repeated_id_in_the_same_batch_does_not_write_the_row_twice(log: SqliteLog, path: Path) -> None:
    stored = NewEvent("booked", {"amount": 1})
    await log.append("orders", [stored], expect=ANY)
    calls: list[int] = []

    def make(connection: WriteAccess) -> Booked:
        calls.append(5)
        return booking(5, "a")(connection)

    answers = await asyncio.gather(
        book(log, make),
        log.append("orders", [stored], expect=ANY),  # makes the transaction start over, trusting nothing
        book(log, booking(6, "b")),
    )
    assert [answer.deduplicated for answer in answers] == [False, True, False]
    assert (rows(path), amounts(path)) == ([("a", 5), ("b", 6)], [5, 6])
    assert len(calls) == 2, "it was called again, and its first row is gone"


def twice(connection: WriteAccess) -> Booked:
    """Break a constraint at which SQLite ends the whole transaction."""
    connection.execute("INSERT INTO treacherous VALUES (1)")
    connection.execute("INSERT INTO treacherous VALUES (1)")
    return Booked(5)


def raising(connection: WriteAccess) -> Booked:
    """Meet a trigger that ends the whole transaction."""
    connection.execute("INSERT INTO raising VALUES (1)")
    return Booked(5)


def swallowing(connection: WriteAccess) -> Booked:
    """End the whole transaction and not mind."""
    with suppress(sqlite3.Error):
        twice(connection)
    return Booked(5)


@pytest.mark.parametrize("bad", [twice, raising, swallowing])
async def test_a_write_that_ends_the_whole_transaction_fails_alone(
    log: SqliteLog, path: Path, bad: Callable[[WriteAccess], Booked]
) -> None:
    stored = NewEvent("booked", {"amount": 2})
    answers = await asyncio.gather(
        book(log, booking(5, "a")),
        book(log, bad),
        log.append("orders", [stored], expect=Expect.at(1)),
        book(log, booking(6, "b")),
        book(log, bad),
        log.append("orders", [stored], expect=Expect.at(1)),  # a repeat: the transaction starts over for it as well
        log.append("new-stream", [Booked(3)], expect=Expect.no_stream(), actor="person:9"),
        return_exceptions=True,
    )
    failures = [answer for answer in answers if isinstance(answer, BaseException)]
    assert answers[1] in failures and answers[4] in failures and len(failures) == 2
    assert {(type(failure), getattr(failure, "code", None)) for failure in failures} == {
        (ActionFailed, "action_failed")
    }
    assert (rows(path), rows(path, "treacherous"), amounts(path)) == ([("a", 5), ("b", 6)], [], [5, 6])
    assert [each.data.amount async for each in log.read("orders")] == [1, 2]
    assert (await log.health()).state == "open"


async def test_a_write_that_goes_on_behind_the_end_of_its_transaction_writes_nothing(
    log: SqliteLog, path: Path
) -> None:
    def swallow(connection: WriteAccess) -> Booked:
        connection.execute("INSERT INTO treacherous VALUES (1)")
        try:
            connection.execute("INSERT INTO treacherous VALUES (1)")
        except sqlite3.IntegrityError:
            pass
        connection.execute("INSERT INTO ledger VALUES ('outside', 5)")
        return Booked(5)

    with pytest.raises(EventLogError):
        await book(log, swallow)
    assert (rows(path), rows(path, "treacherous"), amounts(path)) == ([], [], [])
    await book(log, booking())
    assert (rows(path), amounts(path)) == ([("k", 5)], [5])


def going_on(connection: WriteAccess) -> Booked:
    """End the whole transaction, and go on with a statement that SQLite has prepared and would not ask about again."""
    for key in ("before", "behind"):
        with suppress(sqlite3.Error):
            connection.execute("INSERT INTO ledger VALUES (?, 1)", (key,))
            twice(connection)
    return Booked(5)


async def test_a_loop_that_goes_on_behind_the_end_of_its_transaction_writes_nothing(log: SqliteLog, path: Path) -> None:
    with pytest.raises(ActionFailed):
        await book(log, going_on)
    assert (rows(path), rows(path, "treacherous"), amounts(path)) == ([], [], [])
    await book(log, booking())
    assert (rows(path), amounts(path)) == ([("k", 5)], [5])


async def test_without_asking_for_its_transaction_a_write_leaves_rows_outside_of_it(
    log: SqliteLog, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: what goes on is committed alone, and no event says so."""
    monkeypatch.setattr(foreign_write, "_require_transaction", lambda connection: None)
    with pytest.raises(ActionFailed):
        await book(log, going_on)
    assert (rows(path), amounts(path)) == ([("behind", 1)], [])


class Ending:
    """A parameter that ends the transaction while the statement that takes it is about to run."""

    def __init__(self, connection: WriteAccess) -> None:
        self._connection = connection

    def __conform__(self, protocol: object) -> int:
        with suppress(sqlite3.Error):
            twice(self._connection)
        return 7


@pytest.mark.parametrize("many", [False, True])
async def test_parameters_that_end_the_transaction_leave_no_row_outside_of_it(
    log: SqliteLog, path: Path, many: bool
) -> None:
    def make(connection: WriteAccess) -> Booked:
        def numbers() -> Iterator[tuple[object]]:
            yield (3,)
            with suppress(sqlite3.Error):
                twice(connection)
            yield (Ending(connection),)

        with suppress(sqlite3.Error):
            if many:
                connection.executemany("INSERT INTO treacherous VALUES (?)", numbers())
            else:
                connection.execute("INSERT INTO treacherous VALUES (?)", (Ending(connection),))
        raise ValueError("no")

    with pytest.raises(ActionFailed):
        await book(log, make)
    assert (rows(path, "treacherous"), amounts(path)) == ([], [])


# ── what a write may do ──────────────────────────────────────────────────────────────────────────────────────────────

FORBIDDEN = [
    "COMMIT",
    "ROLLBACK",
    "END",
    "BEGIN",
    "SAVEPOINT mine",
    "RELEASE own_write",
    "ROLLBACK TO own_write",
    "PRAGMA synchronous = OFF",
    "PRAGMA writable_schema = ON",
    "PRAGMA user_version = 7",
    "ATTACH ':memory:' AS other",
    "DETACH main",
    "VACUUM",
    "ANALYZE",
    "REINDEX",
    "CREATE TABLE mine (n)",
    "CREATE TEMP TABLE mine (n)",
    "CREATE INDEX mine ON ledger (amount)",
    "CREATE VIEW mine AS SELECT 1",
    "CREATE TRIGGER mine AFTER INSERT ON ledger BEGIN SELECT 1; END",
    "ALTER TABLE ledger RENAME TO mine",
    "DROP TABLE ledger",
    "DROP TABLE events",
    "DROP TRIGGER events_update",
    "UPDATE events SET body = '{}'",
    "DELETE FROM events",
    "INSERT INTO events SELECT * FROM events",
    "INSERT OR REPLACE INTO EVENTS SELECT * FROM events",
    "UPDATE main.events SET body = '{}'",
    "UPDATE meta SET value = zeroblob(16)",
    "UPDATE log_ids SET log_id = zeroblob(16)",
    "INSERT INTO streams VALUES (99, 'forged')",
    "INSERT INTO types VALUES (99, 'forged')",
    "INSERT INTO actors VALUES (99, 'forged')",
    "UPDATE views SET position = 0",
    "UPDATE runs SET status = 'COMPLETED'",
    "DELETE FROM RUNS",
    "INSERT INTO Upper VALUES (1)",
    "INSERT INTO upper VALUES (1)",
    "DELETE FROM sqlite_schema",
    "INSERT INTO leaking VALUES (1)",
    "INSERT INTO leaking_events VALUES (1)",
]


@pytest.mark.parametrize("statement", FORBIDDEN)
async def test_a_write_may_not_end_the_transaction_nor_touch_what_is_the_logs(
    log: SqliteLog, path: Path, statement: str
) -> None:
    with closing(sqlite3.connect(path)) as other:
        before = list(other.iterdump())
    refused: list[str] = []

    def make(connection: WriteAccess) -> Booked:
        booking()(connection)
        try:
            connection.execute(statement)
        except sqlite3.DatabaseError as error:
            refused.append(str(error))
            raise
        return Booked(5)

    with pytest.raises(EventLogError):
        await book(log, make)
    (why,) = refused
    assert any(word in why for word in ("not authorized", "prohibited", "may not be modified", "cannot VACUUM")), why
    with closing(sqlite3.connect(path)) as other:
        assert list(other.iterdump()) == before
    assert (await log.health()).state == "open"
    await book(log, booking())
    assert (rows(path), amounts(path)) == ([("k", 5)], [5])


@pytest.mark.parametrize("name", [name for name in dir(sqlite3.Connection) if name[:2] != "__"])
async def test_a_write_has_nothing_of_the_drivers_connection_but_the_execution_of_statements(
    log: SqliteLog, path: Path, name: str
) -> None:
    found: list[bool] = []

    def make(connection: WriteAccess) -> Booked:
        found.append(hasattr(connection, name))
        if not found[0]:
            with pytest.raises(AttributeError):
                setattr(connection, name, None)
        return booking()(connection)

    await book(log, make)
    assert found == [name in ("execute", "executemany")]
    assert (rows(path), amounts(path)) == ([("k", 5)], [5])


async def test_a_write_reads_its_cursors_as_the_drivers(log: SqliteLog, path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        expected = other.execute("SELECT 1 AS n").description

    def make(connection: WriteAccess) -> Booked:
        first = connection.execute("INSERT INTO ledger VALUES ('a', :amount)", {"amount": 1})
        assert (first.lastrowid, first.rowcount, first.description) == (1, 1, None)
        ten = connection.executemany("INSERT INTO ledger VALUES (?, ?)", ((f"k{n}", n) for n in range(1, 11)))
        assert ten.rowcount == 10
        read = connection.execute("SELECT amount FROM ledger ORDER BY rowid")
        assert (read.fetchone(), read.fetchmany(), read.fetchmany(2), next(read)) == ((1,), [(1,)], [(2,), (3,)], (4,))
        assert list(read) == [(n,) for n in range(5, 11)]
        assert (read.fetchone(), read.fetchall()) == (None, [])
        source = connection.execute("SELECT op_key || '!', amount FROM ledger WHERE amount = 1")
        connection.executemany("INSERT INTO ledger VALUES (?, ? + 100)", source)
        assert connection.execute("SELECT 1 AS n").description == expected
        assert not {name for name in dir(WriteCursor) if name[0] != "_"} - set(dir(sqlite3.Cursor))
        assert not hasattr(read, "connection") and not hasattr(read, "execute")
        return Booked(5)

    await book(log, make)
    assert [key for key, _ in rows(path)][-2:] == ["a!", "k1!"]


USES: list[Callable[[WriteAccess, WriteCursor], object]] = [
    lambda connection, cursor: connection.execute("INSERT INTO ledger VALUES ('late', 1)"),
    lambda connection, cursor: connection.executemany("INSERT INTO ledger VALUES ('late', ?)", [(1,)]),
    lambda connection, cursor: cursor.fetchone(),
    lambda connection, cursor: cursor.fetchmany(),
    lambda connection, cursor: cursor.fetchall(),
    lambda connection, cursor: list(cursor),
    lambda connection, cursor: cursor.rowcount,
    lambda connection, cursor: cursor.lastrowid,
    lambda connection, cursor: cursor.description,
]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("is_failing", [False, True])
async def test_what_a_write_keeps_of_its_access_is_of_no_use_afterwards(
    log: SqliteLog, path: Path, use: Callable[[WriteAccess, WriteCursor], object], is_failing: bool
) -> None:
    kept: list[tuple[WriteAccess, WriteCursor]] = []

    def keep(connection: WriteAccess) -> Booked:
        kept.append((connection, connection.execute("SELECT position FROM events UNION ALL SELECT 7")))
        if is_failing:
            raise ValueError("no")
        return Booked(4)

    def use_it(connection: WriteAccess) -> Booked:
        use(*kept[0])
        return Booked(5)

    with suppress(ActionFailed):
        await book(log, keep)
    with pytest.raises(ActionFailed, match="the write is over"):
        await book(log, use_it)  # on the same thread, in a transaction
    with pytest.raises(sqlite3.ProgrammingError, match="on the thread of its write only"):
        use(*kept[0])
    assert rows(path) == []


@pytest.mark.parametrize("use", USES)
async def test_another_thread_has_no_use_of_the_access_while_the_write_goes_on(
    log: SqliteLog, path: Path, use: Callable[[WriteAccess, WriteCursor], object]
) -> None:
    def make(connection: WriteAccess) -> Booked:
        cursor = connection.execute("SELECT position FROM events UNION ALL SELECT 7")
        refusal = pytest.raises(sqlite3.ProgrammingError, match="on the thread of its write only")
        with ThreadPoolExecutor(1) as other, refusal:
            other.submit(use, connection, cursor).result(timeout=30)
        assert len(cursor.fetchall()) == 2
        return booking()(connection)

    await book(log, make)
    assert (rows(path), amounts(path)) == ([("k", 5)], [5])


async def test_without_the_watch_over_statements_a_write_commits_on_its_own(
    log: SqliteLog, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: let through, a COMMIT makes a row durable whose event is refused."""
    monkeypatch.setattr(foreign_write, "_may_write", lambda *_: sqlite3.SQLITE_OK)

    def make(connection: WriteAccess) -> Booked:
        booking()(connection)
        connection.execute("COMMIT")
        raise ValueError("no")

    with pytest.raises(EventLogError):
        await book(log, make)
    assert (rows(path), amounts(path)) == ([("k", 5)], [])


async def test_a_write_may_read_everything_and_change_its_own_rows(log: SqliteLog, path: Path) -> None:
    def make(connection: WriteAccess) -> Booked:
        (events,) = connection.execute("SELECT count(*) FROM events").fetchone()
        connection.execute("INSERT INTO ledger VALUES ('a', ?), ('b', 2), ('c', 3)", (events,))
        connection.execute("UPDATE ledger SET amount = amount + 10 WHERE op_key = 'b'")
        connection.execute("DELETE FROM ledger WHERE op_key = 'c'")
        connection.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3) "
            "INSERT INTO ledger SELECT 'n' || i, i FROM n"
        )
        return Booked(5)

    await book(log, make)
    assert rows(path) == [("a", 1), ("b", 12), ("n1", 1), ("n2", 2), ("n3", 3)]


async def test_the_watch_is_over_when_the_write_is(log: SqliteLog, path: Path) -> None:
    """The log's own statements come right behind, in the same transaction, and views are written too."""
    await asyncio.gather(book(log, booking(5, "a")), log.append("new-stream", [Booked(7)], expect=ANY))
    await log.append("newer-stream", [OtherThing("a type that is new")], expect=ANY, actor="person:9")
    assert (await log.head()).position == 4


@pytest.mark.parametrize("is_failing", [False, True])
@pytest.mark.parametrize("statement", ["SELECT position FROM events UNION ALL SELECT 7", READ_HALF])
async def test_a_cursor_that_a_write_leaves_open_holds_nobody_up(
    log: SqliteLog, path: Path, statement: str, is_failing: bool
) -> None:
    kept: list[WriteCursor] = []

    def make(connection: WriteAccess) -> Booked:
        kept.append(connection.execute(statement))
        kept[0].fetchone()
        if is_failing:
            raise ValueError("no")
        return booking()(connection)

    error: EventLogError | None = None
    try:
        await book(log, make)
    except ActionFailed as failure:
        error = failure  # its frames are kept as well
    assert (error is not None) is is_failing
    async with open_file(path, registry=REGISTRY) as other:
        await other.append("orders", [Booked(2)], expect=ANY)
    await log.append("orders", [Booked(3)], expect=Expect.at(2))
    await book(log, booking(6, "next"))
    assert amounts(path) == ([6] if is_failing else [5, 6])
    assert "barrier_recorded" not in await types(log), "nothing had to be opened again"


async def test_without_its_end_a_cursor_that_is_kept_holds_up_the_log(
    log: SqliteLog, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: an open cursor keeps the snapshot, behind which nothing can be written."""
    monkeypatch.setattr(foreign_write._Gate, "shut", lambda gate: None)
    kept: list[WriteCursor] = []

    def make(connection: WriteAccess) -> Booked:
        kept.append(connection.execute("SELECT position FROM events UNION ALL SELECT 7"))
        kept[0].fetchone()
        return booking()(connection)

    await book(log, make)
    async with open_file(path, registry=REGISTRY) as other:
        await other.append("orders", [Booked(2)], expect=ANY)
    with pytest.raises(StoreBusy):
        await log.append("orders", [Booked(3)], expect=ANY)
    kept.clear()


# ── when a transaction cannot be ended ───────────────────────────────────────────────────────────────────────────────


def connection_of(log: SqliteLog) -> sqlite3.Connection:
    """Return what no write is given."""
    assert log._writer is not None
    return log._writer.connection.worker._aiosqlite._conn


async def types(log: SqliteLog) -> list[str]:
    return [each.type async for each in log.read_all()]


@pytest.mark.parametrize("then", ["raises", "returns", "goes on"])
async def test_a_write_that_breaks_the_connection_costs_its_batch_and_not_the_log(
    log: SqliteLog, path: Path, then: str
) -> None:
    def make(connection: WriteAccess) -> Booked:
        booking(9, "bad")(connection)
        connection_of(log).close()
        if then == "raises":
            raise KeyboardInterrupt
        return Booked(9) if then == "returns" else booking()(connection)

    answers = await asyncio.gather(
        book(log, make), log.append("orders", [Booked(2)], expect=ANY), return_exceptions=True
    )
    assert [getattr(answer, "code", None) for answer in answers] == ["store_io_error"] * 2
    await log.append("orders", [Booked(3)], expect=Expect.at(1))
    await book(log, booking())
    assert (rows(path), amounts(path)) == ([("k", 5)], [5])
    assert (await types(log)).count("barrier_recorded") == 1
    assert (await log.health()).state == "open"


async def test_a_statement_for_many_rows_ends_with_its_transaction_whatever_ended_that(
    log: SqliteLog, path: Path
) -> None:
    def make(connection: WriteAccess) -> Booked:
        def numbers() -> Iterator[tuple[int]]:
            yield (1,)
            connection_of(log).set_authorizer(None)
            connection_of(log).execute("ROLLBACK")
            yield (2,)

        with suppress(sqlite3.OperationalError):
            connection.executemany("INSERT INTO treacherous VALUES (?)", numbers())
        return Booked(5)

    with pytest.raises(StoreUnavailable):
        await book(log, make)
    assert (rows(path, "treacherous"), amounts(path)) == ([], [])
    await book(log, booking())
    assert (rows(path), amounts(path)) == ([("k", 5)], [5])


async def test_a_savepoint_that_cannot_be_released_costs_its_batch_and_not_the_log(log: SqliteLog, path: Path) -> None:
    kept: list[sqlite3.Cursor] = []

    def make(connection: WriteAccess) -> Booked:
        kept.append(connection_of(log).execute(READ_HALF))
        return booking()(connection)

    with pytest.raises(StoreUnavailable, match="statements in progress"):
        await book(log, make)
    await log.append("orders", [Booked(3)], expect=Expect.at(1))
    await book(log, booking())
    assert kept, "it is open still"
    assert (rows(path), amounts(path)) == ([("k", 5)], [5])
    assert (await types(log)).count("barrier_recorded") == 1


async def test_a_commit_that_is_busy_under_the_lock_is_definite_and_the_next_one_goes_through(
    log: SqliteLog, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement of the writer's own is in progress: it would be for as long as the connection is used."""
    kept: list[sqlite3.Cursor] = []
    write = transaction.Transactions._write

    def leave_one_open(self: Any, connection: sqlite3.Connection, requests: Any) -> Any:
        answers = write(self, connection, requests)
        if not kept:
            kept.append(connection.execute(READ_HALF))
        return answers

    monkeypatch.setattr(transaction.Transactions, "_write", leave_one_open)
    with pytest.raises(StoreBusy, match="statements in progress"):
        await log.append("orders", [Booked(2)], expect=ANY)
    await log.append("orders", [Booked(3)], expect=Expect.at(1))
    await book(log, booking())
    assert kept, "it is open still"
    assert (rows(path), amounts(path)) == ([("k", 5)], [5])
    assert (await types(log)).count("barrier_recorded") == 1


class ClosingView(ViewOfTheUpperCase):
    """A view that closes the connection which it was lent, once."""

    has_closed = False

    def apply(self, connection: sqlite3.Connection, entry: ViewEntry, events: Any, cache: Any = None) -> None:
        """Close it, the first time."""
        if not self.has_closed:
            self.has_closed = True
            connection.close()


async def test_a_view_that_closes_the_connection_costs_one_append_and_not_the_log(path: Path) -> None:
    async with open_file(path, registry=REGISTRY, views=[ClosingView()], settle_timeout_s=0.5) as log:
        with pytest.raises(EventLogError) as failure:
            await log.append("orders", [Booked(1)], expect=ANY)
        assert failure.value.code == "store_io_error"
        await log.append("orders", [Booked(2)], expect=Expect.no_stream())
        assert [each.data async for each in log.read("orders")] == [Booked(2)]
        assert (await log.health()).state == "open"


# ── a commit of which nobody knows ───────────────────────────────────────────────────────────────────────────────────


class FailingOnce:
    """Makes the first COMMIT of a log raise, before it or behind it, as a failed sync does."""

    def __init__(self, log: SqliteLog, *, has_committed: bool) -> None:
        writer = log._writer
        assert writer is not None
        self.failures = 0
        transactions = writer.connection.transactions
        finish = transactions._finish

        def fail(connection: Any, batch: Any, answers: Any) -> Any:
            transactions._finish = finish  # type: ignore[method-assign]
            self.failures += 1
            connection.execute("COMMIT" if has_committed else "ROLLBACK")
            transactions._forget()
            return transaction.BatchOutcome(unknown="the sync failed", poison="the sync failed")

        transactions._finish = fail  # type: ignore[method-assign]


@pytest.mark.parametrize("has_committed", [True, False])
@pytest.mark.parametrize("expect", [Expect.no_stream(), ANY], ids=["expecting", "expecting nothing"])
async def test_behind_an_unknown_commit_the_write_is_asked_for_again_and_done_once(
    log: SqliteLog, path: Path, has_committed: bool, expect: Expect
) -> None:
    failing = FailingOnce(log, has_committed=has_committed)
    result = await book(log, booking(), expect)
    assert failing.failures == 1
    assert result.deduplicated is has_committed
    assert (rows(path), amounts(path)) == ([("k", 5)], [5])
    (barrier,) = [each async for each in log.read("$log")]
    assert barrier.type == "barrier_recorded"


async def test_a_cancelled_caller_gets_both_or_neither(log: SqliteLog, path: Path) -> None:
    for number in range(20):
        appending = asyncio.create_task(book(log, booking(number + 1, f"k{number}")))
        for _ in range(number % 4):
            await asyncio.sleep(0)
        appending.cancel()
        await asyncio.gather(appending, return_exceptions=True)
    await log.append("orders", [Booked(2)], expect=ANY)  # behind all of them
    assert [amount for _, amount in rows(path)] == amounts(path)
