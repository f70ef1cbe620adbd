"""An effect that is undone by another effect: with a key, an intent and a result of its own, and once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import eventlog
from eventlog.errors import ActionConflict, ActionFailed, ClaimLost, OutcomeUnknown, Refused, RunConflict
from eventlog.log import RunLog
from eventlog.proposal import op_key
from eventlog.run import Status
from eventlog.runtime.effects import Call, Conflicted, Promise, Report
from eventlog.runtime.failpoints import (
    EFFECT_AFTER,
    INTENT_AFTER_COMMIT,
    INTENT_BEFORE_COMMIT,
    RESULT_AFTER_COMMIT,
    RESULT_BEFORE_COMMIT,
)
from eventlog.testing.clock import FakeClock
from projections import RunsTable, runs_view
from tests.effect_runs import (
    LEASE_S,
    Asked,
    Crash,
    Gate,
    Looking,
    Receiver,
    Sending,
    SlowlyAsked,
    approved,
    crash_at,
    end_of,
    give_verdict,
    runner_of,
    trace_of,
    types_of,
)
from tools.campaigns.storage.log_files import open_file


def named(action: Sending, name: str) -> Sending:
    action.name = name
    return action


def booking() -> Sending:
    """The action that is undone."""
    return Sending(Receiver(), compensation="cancel")


async def executed(log: RunLog, clock: FakeClock, run_id: str = "run-1", **args: Any) -> Sending:
    """Leave a run whose effect was executed."""
    action = booking()
    runner = runner_of(log, clock, action)
    await approved(runner, run_id, **args)
    await runner.resume(run_id)
    return action


# ── the straight path ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_effect_is_undone_by_the_action_that_its_action_names(log: RunLog, clock: FakeClock) -> None:
    action = await executed(log, clock, seat=7)
    undo = named(Sending(Receiver()), "cancel")
    version = len(await trace_of(log))
    runner = runner_of(log, clock, action, undo)
    outcome = await runner.compensate("run-1", reason="ordered twice", actor="person:3")
    assert (outcome.result, outcome.status, outcome.run.executed) == ("compensated", "COMPENSATED", True)
    assert outcome.value == {"number": 1}, "what the effect returned when it happened"
    started, done = (await trace_of(log))[version:]
    assert (started.type, done.type) == ("compensation_started", "compensation_executed")
    assert (started.data.reason, started.data.attempt, started.actor) == ("ordered twice", 1, "person:3")
    assert done.data.result == {"number": 1}
    assert done.data.evidence is None
    (call,) = undo.calls
    assert call.args == {"args": {"seat": 7}, "result": {"number": 1}}
    assert (call.action, call.output, call.run_id, call.attempt) == ("cancel", "target", "run-1", 1)


async def test_undoing_has_a_key_of_its_own_that_names_the_key_of_the_effect(log: RunLog, clock: FakeClock) -> None:
    action = await executed(log, clock)
    undo = named(Sending(Receiver()), "cancel")
    run = (await runner_of(log, clock, action, undo).compensate("run-1")).run
    expected = op_key(log.store_id, "run-1", "compensate:send", run.approval_hash or "")
    assert undo.calls[0].op_key == expected != action.calls[0].op_key
    for event in (await trace_of(log))[-2:]:
        assert (event.data.op_key, event.data.compensates) == (expected, action.calls[0].op_key)


async def test_undoing_is_done_once_and_every_later_call_says_so(log: RunLog, clock: FakeClock) -> None:
    action = await executed(log, clock)
    undo = named(Sending(Receiver()), "cancel")
    runner = runner_of(log, clock, action, undo)
    await runner.compensate("run-1")
    for _ in range(2):
        outcome = await runner.compensate("run-1")
        assert (outcome.result, outcome.status, outcome.value) == (
            "already_compensated",
            "COMPENSATED",
            {"number": 1},
        )
    assert len(undo.receiver.effects) == 1
    assert [event.data.reason for event in (await trace_of(log))[-2:]] == ["already_compensated"] * 2
    with pytest.raises(Refused) as refusal:
        await runner.resume("run-1")
    assert refusal.value.label == "cannot_resume:COMPENSATED"


async def test_of_many_that_undo_at_once_one_does(log: RunLog, clock: FakeClock) -> None:
    action = await executed(log, clock)
    undo = named(Sending(Receiver()), "cancel")
    runner = runner_of(log, clock, action, undo)
    ends = await asyncio.gather(*(end_of(runner.compensate("run-1")) for _ in range(10)))
    assert ends.count("compensated") == 1
    assert set(ends) <= {"compensated", "already_compensated", "run_conflict"}
    assert len(undo.receiver.effects) == 1


async def test_what_undoes_an_effect_may_be_a_row_in_the_logs_own_database(tmp_path: Path, clock: FakeClock) -> None:
    class Cancel:
        name = "cancel"
        promise = Promise.TRANSACTIONAL

        def check(self, call: Call) -> None:
            """Refuse nothing."""

        def write(self, connection: Any, call: Call) -> Any:
            """Write the cancellation."""
            connection.execute("INSERT INTO cancelled VALUES (?)", (call.args["result"]["number"],))
            return {"cancelled": True}

    def make_table(connection: Any) -> None:
        connection.execute("CREATE TABLE cancelled (number INTEGER) STRICT")

    def count(connection: Any) -> int:
        return int(connection.execute("SELECT count(*) FROM cancelled").fetchone()[0])

    async with open_file(tmp_path / "log.db", clock=clock) as log:
        action = await executed(log, clock)
        await log.write_view(make_table)
        with pytest.raises((Crash, eventlog.EventLogError)):
            await runner_of(log, clock, action, Cancel(), reach=crash_at(EFFECT_AFTER)).compensate("run-1")
        assert await log.read_view(count) == 0
        outcome = await runner_of(log, clock, action, Cancel()).compensate("run-1")
        assert (outcome.status, await log.read_view(count)) == ("COMPENSATED", 1)
        assert (await trace_of(log))[-1].data.result == {"cancelled": True}


# ── a death on the way ───────────────────────────────────────────────────────────────────────────────────────────────

Make = Callable[[], Sending]
POINTS = [INTENT_BEFORE_COMMIT, INTENT_AFTER_COMMIT, EFFECT_AFTER, RESULT_BEFORE_COMMIT, RESULT_AFTER_COMMIT]
UNDOING: list[tuple[str, Make, str]] = [
    ("checkable by execute", lambda: Looking(Receiver()), "compensated"),
    ("checkable by inspect", lambda: Asked(Receiver()), "compensated"),
    ("keyed", lambda: Sending(Receiver(is_refusing=True), Promise.KEYED, key_lifetime_s=3600.0), "compensated"),
    ("opaque", lambda: Sending(Receiver()), "outcome_unknown"),
]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize(("make", "expected"), [each[1:] for each in UNDOING], ids=[each[0] for each in UNDOING])
async def test_a_death_anywhere_never_undoes_twice(
    log: RunLog, clock: FakeClock, point: str, make: Make, expected: str
) -> None:
    action = await executed(log, clock)
    undo = named(make(), "cancel")
    with pytest.raises(Crash):
        await runner_of(log, clock, action, undo, reach=crash_at(point)).compensate("run-1")
    clock.advance(1)
    end = await end_of(runner_of(log, clock, action, undo).compensate("run-1"))
    if point == RESULT_AFTER_COMMIT:
        expected = "already_compensated"
    elif point == INTENT_BEFORE_COMMIT:
        expected = "compensated"
    assert end == expected
    assert len(undo.receiver.effects) == (0 if end == "outcome_unknown" and point == INTENT_AFTER_COMMIT else 1)
    assert len(action.receiver.effects) == 1
    assert len({call.op_key for call in undo.calls}) <= 1


async def test_an_action_that_forgets_undoes_twice(log: RunLog, clock: FakeClock) -> None:
    """The negative control of the test above: its count does see a repetition."""
    action = await executed(log, clock)
    undo = named(Sending(Receiver(), Promise.CHECKABLE), "cancel")
    with pytest.raises(Crash):
        await runner_of(log, clock, action, undo, reach=crash_at(EFFECT_AFTER)).compensate("run-1")
    await runner_of(log, clock, action, undo).compensate("run-1")
    assert len(undo.receiver.effects) == 2


async def test_who_takes_over_fences_the_dead_one_and_finds_it_undone(log: RunLog, clock: FakeClock) -> None:
    action = await executed(log, clock)
    undo = named(Asked(Receiver()), "cancel")
    with pytest.raises(Crash):
        await runner_of(log, clock, action, undo, reach=crash_at(EFFECT_AFTER)).compensate("run-1")
    assert (await runner_of(log, clock, action, undo).compensate("run-1")).status == "COMPENSATED"
    assert (await types_of(log))[-3:] == ["compensation_started", "run_claimed", "compensation_executed"]
    done = (await trace_of(log))[-1]
    assert (done.data.evidence, done.data.result) == ("it is there", {"number": 1})


async def test_while_one_undoes_another_is_told_and_a_late_one_is_fenced(log: RunLog, clock: FakeClock) -> None:
    action = await executed(log, clock)
    undo = named(Looking(Receiver()), "cancel")
    gate = undo.gate = Gate()
    holder = asyncio.create_task(runner_of(log, clock, action, undo).compensate("run-1"))
    await gate.wait_until_reached()
    undo.gate = None
    for command in (
        runner_of(log, clock, action, undo).compensate("run-1"),
        runner_of(log, clock).reconcile("run-1", "executed", evidence="I looked"),
    ):
        with pytest.raises(RunConflict):
            await command
    clock.advance(LEASE_S + 1)
    assert (await runner_of(log, clock, action, undo).compensate("run-1")).status == "COMPENSATED"
    gate.open()
    with pytest.raises(ClaimLost):
        await holder
    assert len(undo.receiver.effects) == 1
    assert (await types_of(log)).count("compensation_executed") == 1


async def test_a_resume_while_it_is_being_undone_returns_the_stored_result(log: RunLog, clock: FakeClock) -> None:
    action = await executed(log, clock)
    undo = named(Sending(Receiver()), "cancel")
    with pytest.raises(Crash):
        await runner_of(log, clock, action, undo, reach=crash_at(INTENT_AFTER_COMMIT)).compensate("run-1")
    outcome = await runner_of(log, clock, action, undo).resume("run-1")
    assert (outcome.result, outcome.value, len(action.calls)) == ("already_completed", {"number": 1}, 1)


# ── how undoing ends otherwise ───────────────────────────────────────────────────────────────────────────────────────


class Answering(Sending):
    """Does what the test tells it."""

    def __init__(self, *answers: Any) -> None:
        super().__init__(Receiver(), Promise.CHECKABLE)
        self.name = "cancel"
        self.answers = list(answers)

    async def execute(self, call: Call) -> Report:
        self.calls.append(call)
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer or await super().execute(call)


async def test_undoing_that_definitely_failed_leaves_the_run_completed_and_may_be_repeated(
    log: RunLog, clock: FakeClock
) -> None:
    action = await executed(log, clock)
    undo = Answering(ActionFailed("action_failed", "busy", errno=5), Conflicted(reason="it is another booking"))
    runner = runner_of(log, clock, action, undo)
    with pytest.raises(ActionFailed, match="busy"):
        await runner.compensate("run-1")
    with pytest.raises(ActionConflict):
        await runner.compensate("run-1")
    failed = [event.data for event in await trace_of(log) if event.type == "compensation_failed"]
    assert [(each.error.code, each.error.message, each.is_final) for each in failed] == [
        ("action_failed", "busy", False),
        ("output_conflict", "it is another booking", False),
    ]
    run = await runner.state("run-1")
    assert (run.status, run.executed) == (Status.COMPLETED, True)
    assert (await runner.compensate("run-1")).status == "COMPENSATED"
    assert len({call.op_key for call in undo.calls}) == 1
    attempts = [event.data.attempt for event in await trace_of(log) if event.type == "compensation_started"]
    assert attempts == [1, 2, 3]


async def test_what_undoing_returned_is_recorded_as_far_as_it_can_be_stored(log: RunLog, clock: FakeClock) -> None:
    action = await executed(log, clock)
    undo = Answering(eventlog.Executed(result=object()))
    outcome = await runner_of(log, clock, action, undo).compensate("run-1")
    assert outcome.status == "COMPENSATED"
    assert (await trace_of(log))[-1].data.not_stored == "invalid_event at $"


async def test_undoing_that_failed_for_good_is_not_tried_again(log: RunLog, clock: FakeClock) -> None:
    action = await executed(log, clock)
    undo = Answering(ActionFailed("refund_refused", "too late", is_final=True))
    runner = runner_of(log, clock, action, undo)
    with pytest.raises(ActionFailed) as failure:
        await runner.compensate("run-1")
    assert failure.value.is_final
    with pytest.raises(Refused) as refusal:
        await runner.compensate("run-1")
    assert refusal.value.code == "cannot_compensate"
    assert (await types_of(log))[-2:] == ["compensation_failed", "transition_rejected"]
    assert len(undo.calls) == 1
    assert (await runner.resume("run-1")).result == "already_completed"


async def unknown_undoing(log: RunLog, clock: FakeClock) -> tuple[Sending, Sending]:
    """Leave a run of which nobody knows whether it was undone."""
    action = await executed(log, clock)
    undo = named(Sending(Receiver()), "cancel")
    with pytest.raises(Crash):
        await runner_of(log, clock, action, undo, reach=crash_at(EFFECT_AFTER)).compensate("run-1")
    with pytest.raises(OutcomeUnknown):
        await runner_of(log, clock, action, undo).compensate("run-1")
    return action, undo


async def test_undoing_of_which_nobody_knows_is_refused_until_it_is_settled(log: RunLog, clock: FakeClock) -> None:
    action, undo = await unknown_undoing(log, clock)
    runner = runner_of(log, clock, action, undo)
    assert (await types_of(log))[-2:] == ["run_claimed", "outcome_unknown"]
    for command in (runner.compensate("run-1"), runner.resume("run-1")):
        with pytest.raises(Refused) as refusal:
            await command
        assert refusal.value.code == "outcome_unknown"
        last = (await trace_of(log))[-1]
        assert (last.type, last.data.reason, last.data.status) == (
            "resume_rejected",
            "outcome_unknown",
            "OUTCOME_UNKNOWN",
        )
    assert (len(undo.receiver.effects), len(action.receiver.effects)) == (1, 1)


@pytest.mark.parametrize(
    ("verdict", "status", "then"),
    [
        ("executed", "COMPENSATED", "already_compensated"),
        ("not_executed", "COMPLETED", "compensated"),
        ("abandoned", "COMPLETED", "cannot_compensate"),
    ],
)
async def test_a_verdict_on_the_undoing_settles_it(
    log: RunLog, clock: FakeClock, verdict: str, status: str, then: str
) -> None:
    action, undo = await unknown_undoing(log, clock)
    runner = runner_of(log, clock, action, undo)
    outcome = await give_verdict(runner, verdict, evidence="I asked the hotel")
    assert (outcome.status, outcome.run.executed, outcome.value) == (status, True, {"number": 1})
    event = (await trace_of(log))[-1]
    assert (event.data.action, event.data.op_key) == ("cancel", undo.calls[0].op_key)
    assert await end_of(runner.compensate("run-1")) == then
    assert len({call.op_key for call in undo.calls}) == 1


@pytest.mark.parametrize("verdict", ["executed", "not_executed", "abandoned"])
async def test_a_verdict_on_undoing_whose_owner_died_fences_it_first(
    log: RunLog, clock: FakeClock, verdict: str
) -> None:
    action = await executed(log, clock)
    undo = named(Sending(Receiver()), "cancel")
    with pytest.raises(Crash):
        await runner_of(log, clock, action, undo, reach=crash_at(EFFECT_AFTER)).compensate("run-1")
    await give_verdict(runner_of(log, clock), verdict, evidence="I looked")
    refused = ["transition_rejected"] if verdict == "not_executed" else []  # it was looked at too early, and again
    behind = ["run_claimed", "outcome_unknown", *refused, "outcome_reconciled"]
    assert (await types_of(log))[-len(behind) :] == behind


@pytest.mark.parametrize(
    ("verdict", "status"), [("executed", "COMPENSATED"), ("not_executed", "COMPENSATED"), ("abandoned", "COMPLETED")]
)
async def test_who_asks_about_undoing_does_not_open_again_what_a_person_settled(
    log: RunLog, clock: FakeClock, verdict: str, status: str
) -> None:
    action, undo = await unknown_undoing(log, clock)
    slow = SlowlyAsked(undo.receiver)
    asking = asyncio.create_task(runner_of(log, clock, action, named(slow, "cancel")).compensate("run-1"))
    await slow.question.wait_until_reached()
    await give_verdict(runner_of(log, clock), verdict, evidence="I looked")
    slow.question.open()
    assert await end_of(asking) == ("compensated" if verdict == "not_executed" else "run_conflict")
    assert (await runner_of(log, clock).state("run-1")).status == status


# ── what cannot be undone ────────────────────────────────────────────────────────────────────────────────────────────


async def refused(log: RunLog, runner: eventlog.Runner, code: str, event: str) -> None:
    with pytest.raises(Refused) as refusal:
        await runner.compensate("run-1")
    assert refusal.value.code == code
    last = (await trace_of(log))[-1]
    assert (last.type, last.data.reason) == (event, code)
    assert "compensation_started" not in await types_of(log)


async def test_what_was_not_executed_cannot_be_undone(log: RunLog, clock: FakeClock) -> None:
    action, undo = booking(), named(Sending(Receiver()), "cancel")
    runner = runner_of(log, clock, action, undo)
    with pytest.raises(Refused) as refusal:
        await runner.compensate("run-1")
    assert refusal.value.label == "unknown_run:run-1"
    assert (await log.head()).position == 0
    await approved(runner)
    await refused(log, runner, "cannot_compensate", "transition_rejected")


async def test_an_action_that_names_no_other_cannot_be_undone(log: RunLog, clock: FakeClock) -> None:
    action = await executed(log, clock)
    action.compensation = None
    await refused(log, runner_of(log, clock, action), "cannot_compensate", "transition_rejected")


async def test_a_program_that_does_not_know_the_action_cannot_undo_it(log: RunLog, clock: FakeClock) -> None:
    await executed(log, clock)
    await refused(log, runner_of(log, clock), "cannot_compensate", "transition_rejected")


async def test_an_undoing_action_that_is_not_registered_is_refused_before_any_intent(
    log: RunLog, clock: FakeClock
) -> None:
    action = await executed(log, clock)
    await refused(log, runner_of(log, clock, action), "unknown_action", "resume_rejected")


async def test_what_the_undoing_action_refuses_is_refused_before_any_intent(log: RunLog, clock: FakeClock) -> None:
    class Checked(Sending):
        def check(self, call: Call) -> None:
            raise ActionFailed("too_late", f"booking {call.args['result']['number']} has begun")

    action = await executed(log, clock)
    undo = named(Checked(Receiver()), "cancel")
    with pytest.raises(ActionFailed, match="booking 1 has begun"):
        await runner_of(log, clock, action, undo).compensate("run-1")
    last = (await trace_of(log))[-1]
    assert (last.type, last.data.reason, last.data.status) == ("resume_rejected", "too_late", "COMPLETED")
    assert "compensation_started" not in await types_of(log)


async def test_undoing_that_has_begun_goes_on_with_the_same_action_only(log: RunLog, clock: FakeClock) -> None:
    action, undo = await unknown_undoing(log, clock)
    other = named(Asked(undo.receiver), "cancel_v2")
    action.compensation = "cancel_v2"
    with pytest.raises(Refused, match="has begun with 'cancel', not 'cancel_v2'") as refusal:
        await runner_of(log, clock, action, undo, other).compensate("run-1")
    assert refusal.value.code == "cannot_compensate"
    assert other.calls == []


async def test_undoing_that_has_begun_goes_on_where_the_first_action_is_not_known(
    log: RunLog, clock: FakeClock
) -> None:
    action = await executed(log, clock)
    undo = named(Asked(Receiver()), "cancel")
    with pytest.raises(Crash):
        await runner_of(log, clock, action, undo, reach=crash_at(EFFECT_AFTER)).compensate("run-1")
    assert (await runner_of(log, clock, undo).compensate("run-1")).status == "COMPENSATED"


# ── the view that people look at ─────────────────────────────────────────────────────────────────────────────────────


async def test_the_view_of_runs_follows_the_undoing(tmp_path: Path, clock: FakeClock) -> None:
    view = runs_view()
    async with open_file(tmp_path / "log.db", views=[view], clock=clock) as log:
        table = RunsTable(log, view)
        action, undo = await unknown_undoing(log, clock)
        runner = runner_of(log, clock, action, undo, view=table)
        seen: list[tuple[str, int]] = []

        async def look() -> None:
            (row,) = await table.page()
            assert row["status"] == (await runner.state("run-1")).status.value
            seen.append((row["status"], row["executed"]))

        await look()
        await give_verdict(runner, "not_executed", evidence="I looked")
        await look()
        await runner.compensate("run-1")
        await look()
        assert seen == [("OUTCOME_UNKNOWN", 1), ("COMPLETED", 1), ("COMPENSATED", 1)]
