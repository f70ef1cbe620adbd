"""Rows as effects: in the log's own database with the event that says so, in another database by a unique key.

Every row and every event is read back through another connection, as another program would read it.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import eventlog
from eventlog.errors import (
    ActionConflict,
    ActionFailed,
    ClaimLost,
    EventLogError,
    InvalidInput,
    OutcomeUnknown,
)
from eventlog.events import Owner, RunClaimed, run_stream
from eventlog.log import Append, Expect, NewEvent
from eventlog.run import Status
from eventlog.runtime.effects import Call, Conflicted, Executed, Inspectable, Promise, Recovered
from eventlog.runtime.failpoints import (
    EFFECT_AFTER,
    EFFECT_INSIDE,
    INTENT_AFTER_COMMIT,
    RESULT_AFTER_COMMIT,
    RESULT_BEFORE_COMMIT,
)
from eventlog.stores import SqliteLog
from eventlog.stores.sqlite.foreign_write import WriteAccess
from eventlog.testing.clock import FakeClock
from projections import runs_view
from tests.effect_runs import LEASE_S, Crash, approved, crash_at, runner_of, trace_of, types_of
from tests.needs import need, need_command
from tools.campaigns.storage.log_files import assert_whole, open_file

PAYMENTS = "CREATE TABLE payments (op_key TEXT UNIQUE, payee TEXT NOT NULL, cents INTEGER, note, rate REAL)"
ROW: dict[str, Any] = {"payee": "Ada", "cents": 500, "note": None, "rate": 0.5}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
async def log(path: Path) -> AsyncIterator[SqliteLog]:
    async with open_file(path, views=[runs_view()], busy_timeout_s=5) as log:
        execute(path, PAYMENTS)
        yield log
        await assert_whole(log)


def execute(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as program, program:
        for statement in statements:
            program.execute(statement)


def rows(path: Path, columns: str = "payee, cents, note, rate", table: str = "payments") -> list[Any]:
    with closing(sqlite3.connect(path)) as other:
        return other.execute(f"SELECT {columns} FROM {table} ORDER BY rowid").fetchall()


def types_in_file(path: Path, run_id: str = "run-1") -> list[str]:
    """Read a run's events as another program does."""
    query = "SELECT t.name FROM events JOIN types t USING (type_id) JOIN streams s USING (stream_id) WHERE s.name = ?"
    with closing(sqlite3.connect(path)) as other:
        return [name for (name,) in other.execute(query + " ORDER BY version", (run_stream(run_id),))]


async def pay(log: SqliteLog, action: Any, run_id: str = "run-1", *, reach: Any = None, **row: Any) -> eventlog.Outcome:
    """Approve a payment, if it is new, and resume it."""
    runner = eventlog.Runner(log, actions=[action], **({"reach": reach} if reach is not None else {}))
    if not await trace_of(log, run_id):
        await approved(runner, run_id, action=action.name, output="payments", **(row or ROW))
    return await runner.resume(run_id)


# ── RecordRow: effect and event in one transaction ───────────────────────────────────────────────────────────────────


async def test_a_recorded_row_and_its_event_are_there_together(log: SqliteLog, path: Path) -> None:
    outcome = await pay(log, eventlog.RecordRow("payments"))
    assert (outcome.result, outcome.value) == ("executed", {"rowid": 1})
    (event,) = [each for each in await trace_of(log) if each.type == "action_executed"]
    assert rows(path, "op_key, payee, cents, note, rate") == [(event.data.op_key, "Ada", 500, None, 0.5)]
    assert types_in_file(path)[-2:] == ["resume_started", "action_executed"]
    again = await pay(log, eventlog.RecordRow("payments"))
    assert (again.result, again.value, len(rows(path))) == ("already_completed", {"rowid": 1}, 1)


async def test_inside_the_transaction_another_connection_sees_neither_row_nor_event(log: SqliteLog, path: Path) -> None:
    seen: list[Any] = []

    def look(name: str) -> None:
        if name in (EFFECT_INSIDE, EFFECT_AFTER, RESULT_BEFORE_COMMIT, RESULT_AFTER_COMMIT):
            seen.append((name, len(rows(path)), types_in_file(path)[-1]))

    await pay(log, eventlog.RecordRow("payments"), reach=look)
    assert seen == [
        (EFFECT_INSIDE, 0, "resume_started"),
        (EFFECT_AFTER, 0, "resume_started"),
        (RESULT_BEFORE_COMMIT, 0, "resume_started"),
        (RESULT_AFTER_COMMIT, 1, "action_executed"),
    ]


@pytest.mark.parametrize(
    ("point", "then"),
    [
        (INTENT_AFTER_COMMIT, "executed"),
        (EFFECT_INSIDE, "executed"),
        (EFFECT_AFTER, "executed"),
        (RESULT_BEFORE_COMMIT, "executed"),
        (RESULT_AFTER_COMMIT, "already_completed"),
    ],
)
async def test_a_death_anywhere_leaves_row_and_event_or_neither(
    log: SqliteLog, path: Path, point: str, then: str
) -> None:
    with pytest.raises((Crash, EventLogError)):
        await pay(log, eventlog.RecordRow("payments"), reach=crash_at(point))
    is_recorded = "action_executed" in types_in_file(path)
    assert len(rows(path)) == int(is_recorded)
    outcome = await pay(log, eventlog.RecordRow("payments"))
    assert (outcome.result, outcome.value, len(rows(path))) == (then, {"rowid": 1}, 1)


async def test_a_row_that_its_table_refuses_is_a_definite_failure(log: SqliteLog, path: Path) -> None:
    with pytest.raises(ActionFailed, match=r"nothing was written: IntegrityError: NOT NULL constraint failed"):
        await pay(log, eventlog.RecordRow("payments"), cents=5)
    assert (rows(path), types_in_file(path)[-1]) == ([], "action_failed")
    assert (await eventlog.Runner(log).state("run-1")).status is Status.APPROVED


class Payments:
    """A transactional action of a program's own."""

    name = "pay"
    promise = Promise.TRANSACTIONAL

    def __init__(self, then: Callable[[WriteAccess, Call], Any]) -> None:
        self._then = then

    def check(self, call: Call) -> None:
        """Refuse nothing."""

    def write(self, connection: WriteAccess, call: Call) -> Any:
        """Write a row, and do what the test wants."""
        connection.execute("INSERT INTO payments (op_key, payee) VALUES (?, 'Ada')", (call.op_key,))
        return self._then(connection, call)


def raise_it(error: BaseException) -> Callable[[WriteAccess, Call], Any]:
    def then(connection: WriteAccess, call: Call) -> Any:
        raise error

    return then


@pytest.mark.parametrize(
    ("then", "code"),
    [
        (raise_it(ValueError("no")), "action_failed"),
        (raise_it(ActionFailed("card_declined", "no")), "card_declined"),
        (raise_it(SystemExit(3)), "action_failed"),
        (raise_it(KeyboardInterrupt()), "action_failed"),
        (lambda connection, call: object(), "invalid_arguments"),
        (lambda connection, call: float("nan"), "invalid_arguments"),
        (lambda connection, call: "\ud800", "invalid_arguments"),
        (lambda connection, call: connection.execute("COMMIT"), "action_failed"),
        (lambda connection, call: connection.execute("DELETE FROM events"), "action_failed"),
        (lambda connection, call: connection.execute("UPDATE runs SET status = 'x'"), "action_failed"),
    ],
    ids=[
        "raises",
        "fails",
        "exits",
        "interrupts",
        "no data",
        "nan",
        "no text",
        "commits",
        "writes the log",
        "writes a view",
    ],
)
async def test_a_write_that_does_not_end_well_is_a_definite_failure_and_leaves_nothing(
    log: SqliteLog, path: Path, then: Callable[[WriteAccess, Call], Any], code: str
) -> None:
    with pytest.raises(ActionFailed) as failure:
        await pay(log, Payments(then))
    assert failure.value.code == code
    assert (rows(path), types_in_file(path)[-1]) == ([], "action_failed")
    outcome = await pay(log, Payments(lambda connection, call: {"paid": True}))
    assert (outcome.result, outcome.value, len(rows(path))) == ("executed", {"paid": True}, 1)


async def test_a_write_that_is_too_late_to_begin_has_not_happened_whatever_came_before(
    log: SqliteLog, path: Path, clock: FakeClock
) -> None:
    """Nothing of an earlier attempt can come, as it would have come with its event."""
    action = Payments(lambda connection, call: None)
    await approved(runner_of(log, clock), action="pay", output="payments")
    with pytest.raises(Crash):
        await runner_of(log, clock, action, reach=crash_at(INTENT_AFTER_COMMIT)).resume("run-1")

    def late(point: str) -> None:
        if point == INTENT_AFTER_COMMIT:
            clock.advance(LEASE_S / 2 + 1)

    with pytest.raises(ActionFailed) as failure:
        await runner_of(log, clock, action, reach=late).resume("run-1")
    assert failure.value.code == "lease_used_up"
    assert rows(path) == []
    assert (await runner_of(log, clock, action).resume("run-1")).result == "executed"


async def test_a_final_failure_of_a_write_ends_the_run(log: SqliteLog, path: Path) -> None:
    action = Payments(raise_it(ActionFailed("card_declined", "no", is_final=True)))
    for _ in range(2):
        with pytest.raises(ActionFailed) as failure:
            await pay(log, action)
        assert failure.value.is_final
    assert (rows(path), types_in_file(path)[-2:]) == ([], ["action_failed", "action_replayed"])


@pytest.mark.parametrize("is_swallowing", [False, True])
async def test_a_write_that_ends_the_whole_transaction_is_a_definite_failure_and_others_go_on(
    log: SqliteLog, path: Path, is_swallowing: bool
) -> None:
    execute(path, "CREATE TABLE treacherous (n INTEGER UNIQUE ON CONFLICT ROLLBACK)")
    together: list[asyncio.Task[Any]] = []

    def twice(connection: WriteAccess, call: Call) -> Any:
        with suppress(*([sqlite3.Error] if is_swallowing else [])):
            for _ in range(2):
                connection.execute("INSERT INTO treacherous VALUES (1)")

    def others_too(name: str) -> None:
        if name == INTENT_AFTER_COMMIT and not together:
            for number in range(5):
                event = NewEvent("noted", {})
                together.append(asyncio.create_task(log.append(f"other-{number}", [event], expect=Expect.any())))

    with pytest.raises(ActionFailed) as failure:
        await pay(log, Payments(twice), reach=others_too)
    assert failure.value.code == "action_failed"
    assert [result.version for result in await asyncio.gather(*together)] == [1] * 5
    assert (rows(path), types_in_file(path)[-1]) == ([], "action_failed")
    assert (await pay(log, Payments(lambda connection, call: 1))).result == "executed"
    assert len(rows(path)) == 1


class Late:
    """A log as a process sees it that is stopped between its intent and its transaction, while something happens."""

    def __init__(self, log: SqliteLog, meanwhile: Callable[[], Awaitable[None]]) -> None:
        self._log = log
        self._meanwhile = meanwhile

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append_with(self, *args: Any, **options: Any) -> Any:
        """Let it happen first."""
        await self._meanwhile()
        return await self._log.append_with(*args, **options)


async def test_a_resumer_that_was_fenced_meanwhile_writes_nothing(log: SqliteLog, path: Path) -> None:
    action = eventlog.RecordRow("payments")
    rival = eventlog.Runner(log, actions=[action])
    await approved(rival, action="record_row", output="payments", **ROW)

    async def overtake() -> None:
        run = await rival.state("run-1")
        elsewhere = Owner(host="elsewhere", boot="b", lock="l")
        claim = RunClaimed(epoch=run.version + 1, owner=elsewhere, deadline_us=0, is_stray=True)
        await log.append_reserved([Append(run_stream("run-1"), [claim], Expect.at(run.version))])

    late: Any = Late(log, overtake)
    with pytest.raises(ClaimLost):
        await eventlog.Runner(late, actions=[action]).resume("run-1")
    assert (rows(path), types_in_file(path)[-1]) == ([], "run_claimed")
    assert (await rival.resume("run-1")).result == "executed"
    assert len(rows(path)) == 1


async def test_many_runs_record_their_rows_at_once(log: SqliteLog, path: Path) -> None:
    action = eventlog.RecordRow("payments")
    outcomes, others = await asyncio.gather(
        asyncio.gather(*(pay(log, action, f"run-{n}", payee="Ada", cents=n) for n in range(30))),
        asyncio.gather(*(log.append(f"other-{n}", [NewEvent("noted", {})], expect=Expect.any()) for n in range(30))),
    )
    assert sorted(cents for _, cents, *_ in rows(path)) == list(range(30))
    assert {outcome.value["rowid"] for outcome in outcomes} == set(range(1, 31))
    assert {result.version for result in others} == {1}


OWN_ROWS: dict[str, dict[str, Any]] = {
    "events": {"position": 99},
    "Events": {"position": 99},
    "streams": {"stream_id": 99, "name": "forged"},
    "types": {"type_id": 99, "name": "forged"},
    "actors": {"actor_id": 99, "name": "forged"},
    "meta": {"name": "forged", "value": "x"},
    "log_ids": {"first_position": 99, "log_id": "x"},
    "views": {"name": "forged", "revision": 1, "position": 0},
    "runs": {"request_id": "forged", "status": "COMPLETED", "executed": 1, "version": 1},
    "RUNS": {"request_id": "forged", "status": "COMPLETED", "executed": 1, "version": 1},
}


@pytest.mark.parametrize("table", OWN_ROWS)
async def test_a_table_of_the_log_or_of_a_view_is_never_written(log: SqliteLog, path: Path, table: str) -> None:
    action = eventlog.RecordRow(table, key_column=None)
    runner = eventlog.Runner(log, actions=[action])
    await approved(runner, action="record_row", output=table, **OWN_ROWS[table])
    with pytest.raises(ActionFailed, match="not authorized"):
        await runner.resume("run-1")
    assert types_in_file(path)[-1] == "action_failed"


async def test_a_trigger_that_writes_into_the_log_is_stopped(log: SqliteLog, path: Path) -> None:
    execute(
        path,
        "CREATE TRIGGER leak AFTER INSERT ON payments BEGIN INSERT INTO events SELECT * FROM events; END",
    )
    with pytest.raises(ActionFailed, match="not authorized"):
        await pay(log, eventlog.RecordRow("payments"))
    assert rows(path) == []


async def test_a_row_that_the_table_ignores_is_no_effect(log: SqliteLog, path: Path) -> None:
    execute(path, "CREATE UNIQUE INDEX one_a_payee ON payments (payee)")
    execute(
        path,
        "CREATE TRIGGER silent BEFORE INSERT ON payments WHEN new.cents < 0 BEGIN SELECT RAISE(IGNORE); END",
    )
    with pytest.raises(ActionFailed, match="took no row"):
        await pay(log, eventlog.RecordRow("payments"), payee="Ada", cents=-1)
    assert (rows(path), types_in_file(path)[-1]) == ([], "action_failed")


SEATS = "CREATE TABLE payments (op_key TEXT UNIQUE, payee TEXT UNIQUE ON CONFLICT {policy}, cents, note, rate)"
POLICIES = ["REPLACE", "ROLLBACK", "IGNORE", "FAIL"]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("is_own", [True, False], ids=["RecordRow", "InsertRow"])
async def test_a_row_never_takes_the_place_of_another_whatever_its_table_says(
    tmp_path: Path, policy: str, is_own: bool
) -> None:
    path, shop = tmp_path / "log.db", tmp_path / "shop.db"
    async with open_file(path, busy_timeout_s=5) as log:
        place = path if is_own else shop
        execute(place, SEATS.format(policy=policy))
        action = eventlog.RecordRow("payments") if is_own else inserting(shop)
        assert (await pay(log, action, "run-1", cents=1, payee="Ada")).result == "executed"
        with pytest.raises(ActionFailed, match="UNIQUE constraint failed"):
            await pay(log, action, "run-2", cents=2, payee="Ada")
        assert types_in_file(path, "run-2")[-1] == "action_failed"
        assert rows(place, "payee, cents") == [("Ada", 1)]
        assert (await pay(log, action, "run-1")).result == "already_completed"
        await assert_whole(log)


CHANGED: dict[str, str] = {
    "removed": "DELETE FROM payments WHERE rowid = new.rowid",
    "its key taken": "UPDATE payments SET op_key = NULL WHERE rowid = new.rowid",
    "its key changed": "UPDATE payments SET op_key = op_key || '!' WHERE rowid = new.rowid",
    "a cell changed": "UPDATE payments SET payee = payee || '!' WHERE rowid = new.rowid",
}


def trigger(what: str) -> str:
    return f"CREATE TRIGGER meddling AFTER INSERT ON payments BEGIN {what}; END"


@pytest.mark.parametrize("what", CHANGED.values(), ids=CHANGED)
async def test_a_recorded_row_that_a_trigger_changes_is_no_effect(log: SqliteLog, path: Path, what: str) -> None:
    execute(path, trigger(what))
    with pytest.raises(ActionFailed) as failure:
        await pay(log, eventlog.RecordRow("payments"))
    assert failure.value.code == "target_not_keyed"
    assert (rows(path), types_in_file(path)[-1]) == ([], "action_failed")
    execute(path, "DROP TRIGGER meddling")
    assert (await pay(log, eventlog.RecordRow("payments"))).result == "executed"


@pytest.mark.parametrize("what", [CHANGED["removed"], CHANGED["a cell changed"]], ids=["removed", "a cell changed"])
async def test_a_recorded_row_without_a_key_that_a_trigger_changes_is_no_effect(
    log: SqliteLog, path: Path, what: str
) -> None:
    action = eventlog.RecordRow("payments", key_column=None)
    execute(path, trigger(what))
    with pytest.raises(ActionFailed, match="a trigger may have changed it"):
        await pay(log, action)
    assert (rows(path), types_in_file(path)[-1]) == ([], "action_failed")
    execute(path, "DROP TRIGGER meddling")
    assert (await pay(log, action)).result == "executed"


@pytest.mark.parametrize("row", [{"payee": 5, "cents": "500", "rate": 3}, {"payee": "Ada", "cents": 2.0, "note": "5"}])
@pytest.mark.parametrize("key_column", ["op_key", None])
async def test_a_recorded_row_is_as_approved_also_where_its_column_converts_it(
    log: SqliteLog, path: Path, row: dict[str, Any], key_column: str | None
) -> None:
    assert (await pay(log, eventlog.RecordRow("payments", key_column=key_column), **row)).result == "executed"


LOSSY: list[dict[str, Any]] = [
    {"cents": "12345678901234567890"},
    {"cents": "007"},
    {"cents": "1e400"},
    {"cents": " 5"},
    {"rate": "0.10"},
    {"payee": 0.1 + 0.2},
]


@pytest.mark.parametrize("cell", LOSSY, ids=repr)
@pytest.mark.parametrize("key_column", ["op_key", None])
async def test_a_value_of_which_its_column_would_keep_less_is_not_recorded(
    log: SqliteLog, path: Path, cell: dict[str, Any], key_column: str | None
) -> None:
    with pytest.raises(ActionFailed, match=f"differs: {next(iter(cell))};.*a column that holds another type"):
        await pay(log, eventlog.RecordRow("payments", key_column=key_column), **{**ROW, **cell})
    assert (rows(path), types_in_file(path)[-1]) == ([], "action_failed")


async def test_a_keyed_row_may_be_recorded_in_a_table_without_rowids(log: SqliteLog, path: Path) -> None:
    execute(path, "CREATE TABLE receipts (op_key TEXT PRIMARY KEY, n INTEGER) WITHOUT ROWID")
    runner = eventlog.Runner(log, actions=[eventlog.RecordRow("receipts")])
    await approved(runner, action="record_row", output="receipts", n=5)
    assert (await runner.resume("run-1")).result == "executed"


async def test_a_trigger_that_only_writes_elsewhere_is_welcome(log: SqliteLog, path: Path) -> None:
    execute(path, "CREATE TABLE totals (payee TEXT PRIMARY KEY, cents INTEGER)")
    count = (
        "INSERT INTO totals VALUES (new.payee, new.cents) "
        "ON CONFLICT (payee) DO UPDATE SET cents = cents + excluded.cents"
    )
    execute(path, trigger(count))
    for run_id in ("run-1", "run-2"):
        assert (await pay(log, eventlog.RecordRow("payments"), run_id)).result == "executed"
    assert rows(path, "payee, cents", "totals") == [("Ada", 1000)]


# ── what a row is ────────────────────────────────────────────────────────────────────────────────────────────────────

BAD_ROWS: list[tuple[dict[str, Any], str]] = [
    ({}, "takes a row"),
    ({"op_key": "forged"}, "is no column"),
    ({"OP_KEY": "forged"}, "is no column"),
    ({"rowid": 7}, "is no column"),
    ({"_ROWID_": 7}, "is no column"),
    ({"oid": 7}, "is no column"),
    ({"payee) VALUES ('x'); --": 1}, "is no column"),
    ({"": 1}, "is no column"),
    ({"payee": ["a"]}, "cannot hold this list"),
    ({"payee": {"a": 1}}, "cannot hold this dict"),
    ({"payee": True}, "cannot hold this bool"),
    ({"payee": "Ada", "PAYEE": "Bob"}, "is named twice"),
]


@pytest.mark.parametrize("key_column", ["op_key", "OP_KEY"])
@pytest.mark.parametrize(("row", "why"), BAD_ROWS, ids=[repr(row) for row, _ in BAD_ROWS])
async def test_arguments_that_are_no_row_are_refused_before_any_intent(
    log: SqliteLog, path: Path, row: dict[str, Any], why: str, key_column: str
) -> None:
    actions: list[eventlog.RecordRow | eventlog.InsertRow] = [
        eventlog.RecordRow("payments", key_column=key_column),
        eventlog.InsertRow(path.with_name("shop.db"), "payments", key_column=key_column),
    ]
    for action in actions:
        runner = eventlog.Runner(log, actions=[action])
        run_id = f"run-{action.name}"
        proposal = eventlog.propose(action.name, row, "payments")
        await runner.propose(run_id, proposal)
        await runner.approve(run_id, proposal.hash)
        with pytest.raises(ActionFailed, match=why) as failure:
            await runner.resume(run_id)
        assert failure.value.code == "invalid_arguments"
        assert types_in_file(path, run_id)[-1] == "resume_rejected"
    assert rows(path) == []


@pytest.mark.parametrize("output", ["events", "PAYMENTS", "payments ", "main.payments"])
async def test_a_row_for_another_table_is_refused_before_any_intent(log: SqliteLog, shop: Path, output: str) -> None:
    for action in (eventlog.RecordRow("payments"), inserting(shop)):
        runner = eventlog.Runner(log, actions=[action])
        await approved(runner, action.name, action=action.name, output=output, **ROW)
        with pytest.raises(ActionFailed) as failure:
            await runner.resume(action.name)
        assert failure.value.code == "path_not_allowed"
        assert (await types_of(log, action.name))[-1] == "resume_rejected"


@pytest.mark.parametrize("name", ["", "a b", 'a"b', "1a", "x" * 129, "sqlite_schema", "SQLITE_x", "a;b"])
def test_a_table_or_column_is_named_by_plain_letters(name: str) -> None:
    for make in (
        lambda: eventlog.RecordRow(name),
        lambda: eventlog.RecordRow("payments", key_column=name),
        lambda: eventlog.InsertRow("shop.db", name),
        lambda: eventlog.InsertRow("shop.db", "payments", key_column=name),
    ):
        with pytest.raises(InvalidInput):
            make()


def test_a_row_in_the_log_is_transactional_and_one_elsewhere_checks_itself() -> None:
    assert eventlog.RecordRow("payments").promise is Promise.TRANSACTIONAL
    inserting = eventlog.InsertRow("shop.db", "payments")
    assert (inserting.promise, isinstance(inserting, Inspectable)) == (Promise.CHECKABLE, False)


# ── InsertRow: a database of its own ─────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    execute(path, PAYMENTS)
    return path


def inserting(shop: Path, **options: Any) -> eventlog.InsertRow:
    return eventlog.InsertRow(shop, "payments", **{"busy_timeout_s": 0.05, **options})


async def test_an_inserted_row_is_found_again_after_a_crash_with_its_first_result(log: SqliteLog, shop: Path) -> None:
    execute(shop, "INSERT INTO payments (payee) VALUES ('earlier')")
    with pytest.raises(Crash):
        await pay(log, inserting(shop), reach=crash_at(EFFECT_AFTER))
    execute(shop, "INSERT INTO payments (payee) VALUES ('later')")
    outcome = await pay(log, inserting(shop))
    assert (outcome.result, outcome.value) == ("recovered", {"rowid": 2})
    assert [payee for payee, *_ in rows(shop)] == ["earlier", "Ada", "later"]
    (event,) = [each for each in await trace_of(log) if each.type == "action_recovered"]
    assert event.data.evidence == {"table": "payments", "op_key": event.data.op_key}
    assert (await pay(log, inserting(shop))).value == {"rowid": 2}


@pytest.mark.parametrize("point", [INTENT_AFTER_COMMIT, EFFECT_INSIDE])
async def test_a_crash_before_the_commit_leaves_no_row_and_the_next_attempt_writes_it(
    log: SqliteLog, shop: Path, point: str
) -> None:
    with pytest.raises(SystemExit):
        await pay(log, inserting(shop), reach=crash_at(point, SystemExit))
    assert rows(shop) == []
    outcome = await pay(log, inserting(shop))
    assert (outcome.result, outcome.value, len(rows(shop))) == ("executed", {"rowid": 1}, 1)


async def test_without_its_unique_key_a_row_would_be_written_twice(
    log: SqliteLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: a table without the index, an action that does not look, and a crash."""
    shop = tmp_path / "shop.db"
    execute(shop, PAYMENTS.replace(" UNIQUE", ""))
    monkeypatch.setattr(eventlog.InsertRow, "_require_unique", lambda *_: None)
    monkeypatch.setattr(eventlog.InsertRow, "_existing", see_only_what_was_inserted)
    with pytest.raises(Crash):
        await pay(log, inserting(shop), reach=crash_at(EFFECT_AFTER))
    await pay(log, inserting(shop))
    assert len(rows(shop)) == 2


def see_only_what_was_inserted(action: object, connection: sqlite3.Connection, call: Call) -> Recovered | None:
    """Stand in for the look at the table: find nothing at first, and take what was inserted for good."""
    return Recovered(evidence={}, result=None) if connection.total_changes else None


@pytest.mark.parametrize("what", CHANGED.values(), ids=CHANGED)
async def test_an_inserted_row_that_a_trigger_changes_is_taken_back_before_it_is_there(
    log: SqliteLog, shop: Path, what: str
) -> None:
    execute(shop, "CREATE TABLE consumed (op_key)", trigger(f"INSERT INTO consumed VALUES (new.op_key); {what}"))
    for _ in range(2):
        with pytest.raises(ActionFailed) as failure:
            await pay(log, inserting(shop))
        assert failure.value.code == "target_not_keyed"
        assert (await types_of(log))[-1] == "action_failed"
    assert (rows(shop), rows(shop, "op_key", "consumed")) == ([], [])
    execute(shop, "DROP TRIGGER meddling")
    assert (await pay(log, inserting(shop))).result == "executed"
    assert len(rows(shop)) == 1


@pytest.mark.parametrize("name", ["removed", "its key taken", "its key changed"])
async def test_without_the_second_look_such_a_row_would_take_effect_twice(
    log: SqliteLog, shop: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The negative control: the row is committed, a crash comes, and the next attempt does not find it."""
    monkeypatch.setattr(eventlog.InsertRow, "_existing", see_only_what_was_inserted)
    what = f"INSERT INTO consumed VALUES (new.op_key); {CHANGED[name]}"
    execute(shop, "CREATE TABLE consumed (op_key)", trigger(what))
    with pytest.raises(Crash):
        await pay(log, inserting(shop), reach=crash_at(EFFECT_AFTER))
    monkeypatch.undo()
    execute(shop, "DROP TRIGGER meddling", trigger("INSERT INTO consumed VALUES (new.op_key)"))
    await pay(log, inserting(shop))
    assert len(rows(shop, "op_key", "consumed")) == 2


async def test_a_trigger_that_ends_the_transaction_elsewhere_is_a_definite_failure(log: SqliteLog, shop: Path) -> None:
    execute(shop, trigger("SELECT RAISE(ROLLBACK, 'no')"))
    with pytest.raises(ActionFailed, match="nothing was written to 'payments': no"):
        await pay(log, inserting(shop))
    assert (rows(shop), (await types_of(log))[-1]) == ([], "action_failed")


@pytest.mark.parametrize(
    ("column", "value"),
    [("payee", "Bob"), ("payee", 7), ("cents", 501), ("cents", None), ("note", ""), ("rate", 0.25), ("rate", None)],
)
async def test_a_row_with_this_key_that_holds_something_else_is_an_idempotency_conflict(
    log: SqliteLog, shop: Path, column: str, value: Any
) -> None:
    with pytest.raises(Crash):
        await pay(log, inserting(shop), reach=crash_at(EFFECT_AFTER))
    with closing(sqlite3.connect(shop)) as other, other:
        other.execute(f"UPDATE payments SET {column} = ?", (value,))
    with pytest.raises(ActionConflict) as conflict:
        await pay(log, inserting(shop))
    assert conflict.value.code == "idempotency_conflict"
    last = (await trace_of(log))[-1]
    assert (last.type, column in last.data.reason) == ("action_conflict", True)
    assert len(rows(shop)) == 1


@pytest.mark.parametrize(
    "row",
    [
        {"payee": 5},
        {"payee": 0.5},
        {"payee": "Ada", "cents": "500"},
        {"payee": "Ada", "cents": 2.0},
        {"payee": "Ada", "cents": "no number"},
        {"payee": "Ada", "rate": 3},
        {"payee": "Ada", "rate": "0.5"},
        {"payee": "Ada", "rate": 9007199254740991},
        {"payee": "Ada", "note": 5},
        {"payee": "Ada", "note": "5"},
        {"payee": "草稿\U0001f600", "note": ""},
        {"payee": "nul\0inside"},
    ],
    ids=repr,
)
async def test_a_value_that_its_column_converts_is_still_the_same_row_afterwards(
    log: SqliteLog, shop: Path, row: dict[str, Any]
) -> None:
    with pytest.raises(Crash):
        await pay(log, inserting(shop), reach=crash_at(EFFECT_AFTER), **row)
    assert (await pay(log, inserting(shop))).result == "recovered"
    assert len(rows(shop)) == 1


@pytest.mark.parametrize("cell", LOSSY, ids=repr)
async def test_a_value_of_which_its_column_would_keep_less_is_not_inserted(
    log: SqliteLog, shop: Path, cell: dict[str, Any]
) -> None:
    with pytest.raises(ActionFailed, match=f"something else in {next(iter(cell))}"):
        await pay(log, inserting(shop), **{**ROW, **cell})
    assert rows(shop) == []


async def test_a_row_is_compared_letter_by_letter_whatever_its_column_ignores(log: SqliteLog, tmp_path: Path) -> None:
    shop = tmp_path / "shop.db"
    execute(shop, PAYMENTS.replace("payee TEXT", "payee TEXT COLLATE NOCASE"))
    with pytest.raises(Crash):
        await pay(log, inserting(shop), reach=crash_at(EFFECT_AFTER))
    execute(shop, "UPDATE payments SET payee = 'ADA'")
    with pytest.raises(ActionConflict):
        await pay(log, inserting(shop))


@pytest.mark.parametrize(
    "schema",
    [
        PAYMENTS.replace(" UNIQUE", ""),
        PAYMENTS.replace(" UNIQUE", "") + "; CREATE INDEX i ON payments (op_key)",
        PAYMENTS.replace(" UNIQUE", "") + "; CREATE UNIQUE INDEX i ON payments (op_key, payee)",
        PAYMENTS.replace(" UNIQUE", "") + "; CREATE UNIQUE INDEX i ON payments (op_key) WHERE cents > 0",
        PAYMENTS.replace(" UNIQUE", "") + "; CREATE UNIQUE INDEX i ON payments (lower(op_key))",
        PAYMENTS.replace(" UNIQUE", "") + "; CREATE UNIQUE INDEX i ON payments (payee)",
        "CREATE TABLE payments (payee TEXT UNIQUE)",
        "CREATE TABLE other (op_key TEXT UNIQUE)",
    ],
    ids=["none", "not unique", "two columns", "partial", "expression", "another column", "no column", "no table"],
)
async def test_a_table_that_cannot_refuse_a_second_row_is_refused(log: SqliteLog, tmp_path: Path, schema: str) -> None:
    shop = tmp_path / "shop.db"
    with closing(sqlite3.connect(shop)) as program:
        program.executescript(schema)
    with pytest.raises(ActionFailed) as failure:
        await pay(log, inserting(shop))
    assert failure.value.code == "target_not_keyed"
    assert failure.value.hint
    assert (await types_of(log))[-1] == "action_failed"


@pytest.mark.parametrize(
    "schema",
    [
        "CREATE TABLE payments (op_key TEXT PRIMARY KEY, payee TEXT, cents, note, rate)",
        "CREATE TABLE payments (OP_KEY TEXT UNIQUE, payee TEXT, cents, note, rate)",
        PAYMENTS.replace(" UNIQUE", "") + "; CREATE UNIQUE INDEX i ON payments (op_key DESC)",
    ],
    ids=["primary key", "other letters", "an index of its own"],
)
async def test_any_unique_index_on_the_key_alone_will_do(log: SqliteLog, tmp_path: Path, schema: str) -> None:
    shop = tmp_path / "shop.db"
    with closing(sqlite3.connect(shop)) as program:
        program.executescript(schema)
    with pytest.raises(Crash):
        await pay(log, inserting(shop), reach=crash_at(EFFECT_AFTER))
    assert (await pay(log, inserting(shop))).result == "recovered"


async def test_a_row_that_a_trigger_elsewhere_ignores_is_no_effect(log: SqliteLog, shop: Path) -> None:
    execute(shop, "CREATE TRIGGER silent BEFORE INSERT ON payments BEGIN SELECT RAISE(IGNORE); END")
    with pytest.raises(ActionFailed, match="took no row"):
        await pay(log, inserting(shop))
    assert rows(shop) == []


# ── InsertRow: what keeps it from its database ───────────────────────────────────────────────────────────────────────


@contextmanager
def moved_away(shop: Path) -> Iterator[None]:
    away = shop.with_name("away.db")
    shop.rename(away)
    try:
        yield
    finally:
        away.rename(shop)


@contextmanager
def no_database(shop: Path) -> Iterator[None]:
    with moved_away(shop):
        shop.write_bytes(b"this is no database, and long enough to be taken for one: " + bytes(2_000))
        yield
        shop.unlink()


@contextmanager
def without_its_table(shop: Path) -> Iterator[None]:
    execute(shop, "ALTER TABLE payments RENAME TO hidden")
    try:
        yield
    finally:
        execute(shop, "ALTER TABLE hidden RENAME TO payments")


@contextmanager
def locked(shop: Path) -> Iterator[None]:
    with closing(sqlite3.connect(shop, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


HINDRANCES = [moved_away, no_database, without_its_table, locked]


@pytest.mark.parametrize("hindrance", HINDRANCES, ids=lambda each: each.__name__)
async def test_on_the_first_attempt_a_hindrance_proves_that_nothing_was_done(
    log: SqliteLog, shop: Path, hindrance: Callable[[Path], Any]
) -> None:
    with hindrance(shop), pytest.raises(ActionFailed):
        await pay(log, inserting(shop))
    assert not shop.with_name("away.db").exists()
    assert (await types_of(log))[-1] == "action_failed"
    assert (await pay(log, inserting(shop))).result == "executed"
    assert len(rows(shop)) == 1


@pytest.mark.parametrize("hindrance", HINDRANCES, ids=lambda each: each.__name__)
async def test_on_a_later_attempt_a_hindrance_proves_nothing(
    log: SqliteLog, shop: Path, hindrance: Callable[[Path], Any]
) -> None:
    with pytest.raises(Crash):
        await pay(log, inserting(shop), reach=crash_at(EFFECT_AFTER))
    with hindrance(shop), pytest.raises(OutcomeUnknown):
        await pay(log, inserting(shop))
    assert (await types_of(log))[-1] == "outcome_unknown"
    assert (await pay(log, inserting(shop))).result == "recovered"
    assert len(rows(shop)) == 1


@pytest.mark.parametrize("name", ["nothing.db", "no/folder/nothing.db", "."])
async def test_a_database_that_is_not_there_is_not_made(log: SqliteLog, tmp_path: Path, name: str) -> None:
    with pytest.raises(ActionFailed):
        await pay(log, inserting(tmp_path / name))
    assert not (tmp_path / "nothing.db").exists()
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("is_later", [False, True])
async def test_a_row_that_a_table_elsewhere_refuses_is_a_definite_failure_once_it_was_looked_for(
    log: SqliteLog, shop: Path, is_later: bool
) -> None:
    row: dict[str, Any] = {"cents": 5}  # without a payee
    if is_later:
        with pytest.raises(Crash):
            await pay(log, inserting(shop), reach=crash_at(INTENT_AFTER_COMMIT), **row)
    with pytest.raises(ActionFailed, match=r"nothing was written to 'payments': NOT NULL constraint failed") as failure:
        await pay(log, inserting(shop), **row)
    assert failure.value.details["error"] == "SQLITE_CONSTRAINT_NOTNULL"
    assert (rows(shop), (await types_of(log))[-1]) == ([], "action_failed")


async def test_a_path_with_signs_of_an_address_in_it_is_only_a_path(log: SqliteLog, tmp_path: Path) -> None:
    shop = tmp_path / "shop?mode=memory#%41.db"
    execute(shop, PAYMENTS)
    assert (await pay(log, inserting(shop))).result == "executed"
    assert len(rows(shop)) == 1


async def test_a_relative_path_stays_the_file_that_it_was(
    log: SqliteLog, shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    action = eventlog.InsertRow("shop.db", "payments")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert (await pay(log, action)).result == "executed"
    assert len(rows(shop)) == 1


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    need_command("mount")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, timeout=10
    )
    need(mounted.returncode == 0, "the permission to mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, timeout=10)


LONG_ROW = {"payee": "Ada", "note": "x" * 400_000}


async def test_a_full_disk_never_leaves_half_a_row_and_it_works_again_with_space(log: SqliteLog, disk: Path) -> None:
    shop, filler = disk / "shop.db", disk / "filler"
    execute(shop, PAYMENTS)
    filler.write_bytes(bytes(900_000))
    with pytest.raises((ActionFailed, OutcomeUnknown)):
        await pay(log, inserting(shop), **LONG_ROW)
    assert rows(shop) == []
    filler.unlink()
    assert (await pay(log, inserting(shop))).result == "executed"
    assert len(rows(shop)) == 1


async def test_a_full_disk_under_the_log_leaves_neither_row_nor_event_and_the_run_goes_on_with_space(
    disk: Path,
) -> None:
    """SQLite ends the whole transaction by itself; an append of the same batch is told the same, and is not stored."""
    path, filler = disk / "log.db", disk / "filler"

    def fill_both(connection: WriteAccess, call: Call) -> Any:
        connection.execute("UPDATE payments SET note = ?", ("x" * 4_000_000,))

    action = Payments(fill_both)
    async with open_file(path, busy_timeout_s=5) as log:
        execute(path, PAYMENTS)
        runner = eventlog.Runner(log, actions=[action])
        await approved(runner, action="pay", output="payments", **ROW)
        filler.write_bytes(bytes(600_000))
        with pytest.raises(EventLogError) as failure:
            await runner.resume("run-1")
        assert failure.value.code == "store_full"
        assert (rows(path), "action_executed" in types_in_file(path)) == ([], False)
        filler.unlink()
        assert (await log.health()).state == "open"
        assert (await pay(log, Payments(lambda connection, call: {"paid": 1}))).result == "executed"
        assert (len(rows(path)), types_in_file(path)[-1]) == (1, "action_executed")
        await assert_whole(log)


def same(path: Path) -> Path:
    return path


def hard_link(path: Path) -> Path:
    link = path.with_name("hard.db")
    os.link(path, link)
    return link


def symlink(path: Path) -> Path:
    link = path.with_name("soft.db")
    link.symlink_to(path)
    return link


def symlinked_folder(path: Path) -> Path:
    folder = path.parent.with_name("folder")
    folder.symlink_to(path.parent)
    return folder / path.name


def write_ahead_log(path: Path) -> Path:
    return path.with_name("log.db-wal")


@pytest.mark.parametrize("name", [same, hard_link, symlink, symlinked_folder, write_ahead_log])
async def test_the_logs_own_file_is_refused_by_whatever_name(tmp_path: Path, name: Callable[[Path], Path]) -> None:
    place = tmp_path / "deep" / "log.db"
    place.parent.mkdir()
    async with open_file(place) as log:
        execute(place, PAYMENTS)
        shop = name(place)
        with pytest.raises(ActionFailed, match="belongs to the log; use RecordRow") as failure:
            await pay(log, inserting(shop))
        assert failure.value.code == "path_not_allowed"
        assert (await types_of(log))[-1] == "resume_rejected"
        assert rows(place) == []
        if shop.name == "hard.db":
            shop.unlink()


async def test_cancellation_waits_until_the_row_is_there_or_is_not(log: SqliteLog, shop: Path) -> None:
    is_inside, may_go_on = threading.Event(), threading.Event()

    def hold_up(name: str) -> None:
        if name == EFFECT_INSIDE:
            is_inside.set()
            assert may_go_on.wait(30)

    paying = asyncio.create_task(pay(log, inserting(shop), reach=hold_up))
    await asyncio.to_thread(is_inside.wait, 30)
    paying.cancel()
    done, _ = await asyncio.wait({paying}, timeout=0.05)
    assert not done, "its thread is at work still, and so it is not over"
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await paying
    assert len(rows(shop)) == 1
    outcome = await pay(log, inserting(shop))
    assert (outcome.result, outcome.value) == ("recovered", {"rowid": 1})


async def test_two_that_insert_the_same_row_at_once_write_it_once(shop: Path) -> None:
    action = inserting(shop, busy_timeout_s=5)
    call = Call(run_id="r", action="insert_row", args=ROW, output="payments", op_key="k" * 64, attempt=1)
    reports = await asyncio.gather(*(action.execute(replace(call, attempt=number + 1)) for number in range(8)))
    assert sorted(type(report).__name__ for report in reports) == ["Executed"] + ["Recovered"] * 7
    assert {report.result["rowid"] for report in reports if isinstance(report, Executed | Recovered)} == {1}
    other = await action.execute(replace(call, args={**ROW, "cents": 1}))
    assert isinstance(other, Conflicted)
    assert len(rows(shop)) == 1
