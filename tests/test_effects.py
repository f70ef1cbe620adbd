"""Effects by what their actions promise: what happens once, what is asked about, and what nobody may repeat.

The receiver outside counts what really happened. Each rule that keeps an effect from happening twice has a negative
control beside it: with the rule taken away the receiver counts two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import eventlog
from eventlog.errors import (
    ActionConflict,
    ActionFailed,
    ClaimLost,
    InvalidInput,
    OutcomeUnknown,
    Refused,
    RunConflict,
)
from eventlog.events import Owner
from eventlog.log import RunLog
from eventlog.proposal import op_key
from eventlog.run import Run, Status
from eventlog.runtime import attempts, run_streams
from eventlog.runtime.claims import hold
from eventlog.runtime.effects import (
    Absent,
    Call,
    Conflicted,
    Executed,
    Inconclusive,
    Inspectable,
    Promise,
    Recovered,
    Report,
    recourse,
)
from eventlog.runtime.failpoints import EFFECT_AFTER, INTENT_AFTER_COMMIT, INTENT_BEFORE_COMMIT
from eventlog.testing.clock import FakeClock
from eventlog.times import time_text
from tests.effect_runs import (
    LEASE_S,
    Asked,
    Crash,
    Looking,
    Receiver,
    Sending,
    SlowlyAsked,
    approved,
    assert_refused_as_unknown,
    crash_at,
    end_of,
    give_verdict,
    inside_its_effect,
    intent_of,
    late_owner,
    runner_of,
    trace_of,
    types_of,
)

DAY_S = 86_400.0


@pytest.fixture
def make_runner(log: RunLog, clock: FakeClock) -> Callable[..., eventlog.Runner]:
    def make(*actions: Any, **options: Any) -> eventlog.Runner:
        return runner_of(log, clock, *actions, **options)

    return make


MakeRunner = Callable[..., eventlog.Runner]


# ── an owner that died: every promise at both sides of the effect ────────────────────────────────────────────────────

Kind = Callable[[], Sending]


def checked_by_execute() -> Sending:
    return Looking(Receiver())


def checked_by_inspect() -> Sending:
    return Asked(Receiver())


def keyed() -> Sending:
    return Sending(Receiver(is_refusing=True), Promise.KEYED, key_lifetime_s=DAY_S)


def keyed_and_ended() -> Sending:
    return Sending(Receiver(), Promise.KEYED, key_lifetime_s=60.0)


def keyed_ended_and_asked() -> Sending:
    return Asked(Receiver(), Promise.KEYED, key_lifetime_s=60.0)


def opaque() -> Sending:
    return Sending(Receiver())


AFTER_A_DEATH: list[tuple[str, Kind, str, str]] = [
    ("checkable by execute", checked_by_execute, "executed", "recovered"),
    ("checkable by inspect", checked_by_inspect, "executed", "recovered"),
    ("keyed, its key alive", keyed, "executed", "executed"),
    ("keyed, its key ended", keyed_and_ended, "outcome_unknown", "outcome_unknown"),
    ("keyed, its key ended, can be asked", keyed_ended_and_asked, "executed", "recovered"),
    ("opaque", opaque, "outcome_unknown", "outcome_unknown"),
]


@pytest.mark.parametrize("make", [each[1] for each in AFTER_A_DEATH], ids=[each[0] for each in AFTER_A_DEATH])
async def test_the_first_attempt_does_the_effect_once_and_asks_nobody(make: Kind, make_runner: MakeRunner) -> None:
    action = make()
    runner = make_runner(action)
    await approved(runner)
    outcome = await runner.resume("run-1")
    assert (outcome.result, outcome.status, outcome.value) == ("executed", "COMPLETED", {"number": 1})
    assert (len(action.receiver.effects), action.receiver.questions) == (1, 0)


@pytest.mark.parametrize(
    ("make", "before", "after"), [each[1:] for each in AFTER_A_DEATH], ids=[each[0] for each in AFTER_A_DEATH]
)
@pytest.mark.parametrize("has_happened", [False, True], ids=["it had not happened", "it had happened"])
async def test_after_a_death_the_promise_says_what_the_next_resumer_does(
    log: RunLog,
    clock: FakeClock,
    make_runner: MakeRunner,
    make: Kind,
    before: str,
    after: str,
    has_happened: bool,
) -> None:
    action = make()
    await approved(make_runner())
    with pytest.raises(Crash):
        await make_runner(action, reach=crash_at(EFFECT_AFTER if has_happened else INTENT_AFTER_COMMIT)).resume("run-1")
    clock.advance(100)
    end = await end_of(make_runner(action).resume("run-1"))
    assert end == (after if has_happened else before)
    expected = 1 if has_happened or end == "executed" else 0
    assert len(action.receiver.effects) == expected
    claims = [event for event in await trace_of(log) if event.type == "run_claimed"]
    assert [(claim.data.epoch, claim.data.is_stray) for claim in claims] == [(claims[0].version, False)]


async def test_a_promise_that_is_not_true_makes_the_effect_happen_twice(make_runner: MakeRunner) -> None:
    """The negative control of the table above: its count of effects does see a repetition."""
    action = Sending(Receiver(), Promise.CHECKABLE)
    await approved(make_runner())
    with pytest.raises(Crash):
        await make_runner(action, reach=crash_at(EFFECT_AFTER)).resume("run-1")
    await make_runner(action).resume("run-1")
    assert len(action.receiver.effects) == 2


async def test_who_asks_fences_the_dead_owner_before_the_question(log: RunLog, make_runner: MakeRunner) -> None:
    action = Asked(Receiver())
    await approved(make_runner())
    with pytest.raises(Crash):
        await make_runner(action, reach=crash_at(EFFECT_AFTER)).resume("run-1")
    seen: list[str] = []

    async def ask_and_look() -> None:
        seen.extend(await types_of(log))

    class Slow(Asked):
        async def inspect(self, call: Call) -> Any:
            await ask_and_look()
            return self.look(call)

    slow = Slow(action.receiver)
    assert (await make_runner(slow).resume("run-1")).result == "recovered"
    assert seen[-1] == "run_claimed"
    assert (await types_of(log))[-1] == "action_recovered"


async def test_an_action_is_asked_under_the_op_key_of_the_first_attempt(make_runner: MakeRunner) -> None:
    action = Asked(Receiver())
    asked: list[Call] = []

    def find(call: Call) -> Any:
        asked.append(call)
        return action.look(call)

    action.finding = find
    await approved(make_runner())
    with pytest.raises(Crash):
        await make_runner(action, reach=crash_at(INTENT_AFTER_COMMIT)).resume("run-1")
    await make_runner(action).resume("run-1")
    (question,), (call,) = asked, action.calls
    assert question.op_key == call.op_key == action.receiver.effects[0]
    assert call.attempt == 2


# ── an owner that is late, and alive ─────────────────────────────────────────────────────────────────────────────────


LATE: list[tuple[str, Kind, str]] = [
    ("checkable by execute", lambda: Looking(Receiver(is_refusing=True)), "executed"),
    ("checkable by inspect", checked_by_inspect, "outcome_unknown"),
    ("keyed, its key alive", keyed, "executed"),
    ("keyed, its key ended", keyed_and_ended, "outcome_unknown"),
    ("keyed, its key ended, can be asked", keyed_ended_and_asked, "outcome_unknown"),
    ("opaque", opaque, "outcome_unknown"),
]


@pytest.mark.parametrize(("make", "expected"), [each[1:] for each in LATE], ids=[each[0] for each in LATE])
async def test_a_late_owner_that_goes_on_after_all_never_makes_a_second_effect(
    log: RunLog, clock: FakeClock, make_runner: MakeRunner, make: Kind, expected: str
) -> None:
    action = make()
    holder, gate = await late_owner(log, clock, action)
    assert await end_of(make_runner(action).resume("run-1")) == expected
    claim = next(event for event in await trace_of(log) if event.type == "run_claimed")
    assert claim.data.is_stray
    gate.open()
    with pytest.raises(ClaimLost):
        await holder
    assert len(action.receiver.effects) == 1
    assert (await types_of(log)).count("action_executed") == (1 if expected == "executed" else 0)


async def test_before_its_lease_is_over_a_living_owner_is_left_alone(
    log: RunLog, clock: FakeClock, make_runner: MakeRunner
) -> None:
    action = Asked(Receiver())
    holder, gate = await inside_its_effect(make_runner(action), action)
    clock.advance(LEASE_S)
    version = len(await trace_of(log))
    with pytest.raises(RunConflict):
        await make_runner(action).resume("run-1")
    assert len(await trace_of(log)) == version
    assert action.receiver.questions == 0
    gate.open()
    assert (await holder).result == "executed"


async def test_a_no_is_not_final_while_a_late_owner_may_still_act_and_its_yes_is(
    log: RunLog, clock: FakeClock, make_runner: MakeRunner
) -> None:
    action = Asked(Receiver())
    holder, gate = await late_owner(log, clock, action)
    for _ in range(2):
        with pytest.raises(OutcomeUnknown, match="an earlier attempt may still come"):
            await make_runner(action).resume("run-1")
        clock.advance(DAY_S)
    assert action.receiver.effects == []
    gate.open()
    with pytest.raises(ClaimLost):
        await holder
    outcome = await make_runner(action).resume("run-1")
    assert (outcome.result, outcome.value) == ("recovered", {"number": 1})
    assert len(action.receiver.effects) == 1


async def test_taken_for_dead_a_late_owner_makes_a_second_effect(
    log: RunLog, clock: FakeClock, make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: without the rule about strays a "no" is believed too early."""
    monkeypatch.setattr(attempts, "is_proved_dead", lambda intent, place: True)
    action = Asked(Receiver())
    holder, gate = await late_owner(log, clock, action)
    assert (await make_runner(action).resume("run-1")).result == "executed"
    gate.open()
    with pytest.raises(ClaimLost):
        await holder
    assert len(action.receiver.effects) == 2


async def test_an_owner_on_another_host_is_late_but_never_proved_dead(
    log: RunLog, clock: FakeClock, make_runner: MakeRunner
) -> None:
    action = Asked(Receiver())
    runner = make_runner(action)
    await approved(runner)
    run = await runner.state("run-1")
    key = op_key(log.store_id, "run-1", "send", run.approval_hash or "")
    elsewhere = Owner(host="elsewhere", boot="b", lock="l")
    ends_us = clock.now_us() + 1_000_000
    await intent_of(log, run, elsewhere, op_key=key, deadline_us=ends_us)
    with pytest.raises(RunConflict, match=time_text(ends_us)):
        await runner.resume("run-1")
    clock.advance(2)
    with pytest.raises(OutcomeUnknown, match="may still come"):
        await runner.resume("run-1")
    assert action.calls == []


# ── an outcome that is unknown, resumed again ────────────────────────────────────────────────────────────────────────


async def unknown_run(make_runner: MakeRunner, action: Sending) -> None:
    """Leave a run whose effect ended in a time-out: nobody knows."""

    class TimedOut(Sending):
        async def execute(self, call: Call) -> Report:
            raise TimeoutError("no answer")

    first = TimedOut(action.receiver, action.promise, key_lifetime_s=action.key_lifetime_s)
    await approved(make_runner())
    with pytest.raises(OutcomeUnknown, match="TimeoutError: no answer"):
        await make_runner(first).resume("run-1")


UNKNOWN: list[tuple[str, Kind, str]] = [
    ("checkable by execute", checked_by_execute, "executed"),
    ("checkable by inspect", checked_by_inspect, "executed"),
    ("keyed, its key alive", keyed, "executed"),
    ("keyed, its key ended", keyed_and_ended, "outcome_unknown"),
    ("keyed, its key ended, can be asked", keyed_ended_and_asked, "executed"),
    ("opaque", opaque, "outcome_unknown"),
]


@pytest.mark.parametrize(("make", "expected"), [each[1:] for each in UNKNOWN], ids=[each[0] for each in UNKNOWN])
async def test_an_unknown_outcome_is_settled_by_the_promise_or_refused_with_a_trace(
    log: RunLog, clock: FakeClock, make_runner: MakeRunner, make: Kind, expected: str
) -> None:
    action = make()
    await unknown_run(make_runner, action)
    clock.advance(100)
    assert await end_of(make_runner(action).resume("run-1")) == expected
    if expected == "outcome_unknown":
        last = (await trace_of(log))[-1]
        assert (last.type, last.data.reason) == ("resume_rejected", "outcome_unknown")
        assert action.calls == []
    else:
        assert len(action.receiver.effects) == 1


async def test_an_unknown_outcome_that_the_receiver_knows_is_recovered_with_its_result(
    make_runner: MakeRunner,
) -> None:
    class TimedOut(Sending):
        async def execute(self, call: Call) -> Report:
            self.receiver.receive(call)
            raise TimeoutError("no answer")

    receiver = Receiver()
    await approved(make_runner())
    with pytest.raises(OutcomeUnknown):
        await make_runner(TimedOut(receiver, Promise.CHECKABLE)).resume("run-1")
    outcome = await make_runner(Asked(receiver)).resume("run-1")
    assert (outcome.result, outcome.value, len(receiver.effects)) == ("recovered", {"number": 1}, 1)


async def test_of_two_that_ask_about_an_unknown_outcome_one_acts(log: RunLog, make_runner: MakeRunner) -> None:
    receiver = Receiver()
    action = SlowlyAsked(receiver)
    await unknown_run(make_runner, Asked(receiver))
    slow = asyncio.create_task(make_runner(action).resume("run-1"))
    await action.question.wait_until_reached()
    assert (await make_runner(Asked(receiver)).resume("run-1")).result == "executed"
    action.question.open()
    with pytest.raises(ClaimLost):
        await slow
    assert len(receiver.effects) == 1


@pytest.mark.parametrize("verdict", ["executed", "abandoned"])
@pytest.mark.parametrize("finding", [Inconclusive(why="busy"), Absent()], ids=["inconclusive", "absent"])
async def test_what_a_person_settled_meanwhile_is_not_opened_again_by_who_was_asking(
    log: RunLog, make_runner: MakeRunner, verdict: str, finding: Any
) -> None:
    receiver = Receiver()
    action = SlowlyAsked(receiver)
    action.finding = lambda call: finding
    await unknown_run(make_runner, Asked(receiver))
    slow = asyncio.create_task(make_runner(action).resume("run-1"))
    await action.question.wait_until_reached()
    settled = await give_verdict(make_runner(), verdict, evidence="I looked")
    action.question.open()
    assert await end_of(slow) in ("run_conflict", "claim_lost")
    assert (await make_runner().state("run-1")).status == settled.status
    assert receiver.effects == []


async def test_a_proof_that_it_happened_counts_more_than_a_verdict_that_it_did_not(
    log: RunLog, make_runner: MakeRunner
) -> None:
    receiver = Receiver()
    action = SlowlyAsked(receiver)
    action.finding = lambda call: Recovered(evidence="it is there", result={"number": 7})
    await unknown_run(make_runner, Asked(receiver))
    slow = asyncio.create_task(make_runner(action).resume("run-1"))
    await action.question.wait_until_reached()
    assert (await give_verdict(make_runner(), "not_executed", evidence="I looked")).status == "APPROVED"
    action.question.open()
    assert (await slow).value == {"number": 7}
    assert (await make_runner().state("run-1")).status is Status.COMPLETED


# ── results are stored, and so are failures that are final ───────────────────────────────────────────────────────────


async def test_every_later_resume_returns_the_stored_result(log: RunLog, make_runner: MakeRunner) -> None:
    action = Sending(Receiver())
    await approved(make_runner())
    first = await make_runner(action).resume("run-1")
    for _ in range(2):
        again = await make_runner().resume("run-1")  # not even the action is needed
        assert (again.result, again.value) == ("already_completed", first.value)
    assert first.value == {"number": 1}
    assert (await types_of(log))[-2:] == ["action_replayed", "action_replayed"]
    assert len(action.calls) == 1


async def test_a_failure_that_is_final_ends_the_run_and_every_resume_raises_it_again(
    log: RunLog, make_runner: MakeRunner
) -> None:
    class Declined(Sending):
        async def execute(self, call: Call) -> Report:
            self.calls.append(call)
            raise ActionFailed("card_declined", "the bank said no", is_final=True, answer={"status": 402})

    action = Declined(Receiver())
    await approved(make_runner())
    for number in range(3):
        with pytest.raises(ActionFailed, match="the bank said no") as failure:
            await make_runner(action).resume("run-1")
        assert (failure.value.code, failure.value.is_final) == ("card_declined", True)
        assert failure.value.details == {"answer": {"status": 402}, "run_id": "run-1"}
        run = await make_runner().state("run-1")
        assert (run.status, run.executed) == (Status.FAILED, False)
        assert (await types_of(log)).count("action_replayed") == number
    assert len(action.calls) == 1
    failed = next(event for event in await trace_of(log) if event.type == "action_failed")
    assert failed.data.is_final
    assert (await trace_of(log))[-1].data.reason == "already_failed"


class _Unsaid:
    """Neither true nor false."""

    def __bool__(self) -> bool:
        raise ValueError("nobody can say")


@pytest.mark.parametrize(
    ("is_final", "is_so"),
    [(1, True), ("yes", True), ([0], True), (0, False), ("", False), (None, False), (_Unsaid(), False)],
)
async def test_a_failure_that_is_said_to_be_final_by_something_else_than_true_or_false_is_recorded_all_the_same(
    log: RunLog, make_runner: MakeRunner, is_final: Any, is_so: bool
) -> None:
    class Declined(Sending):
        async def execute(self, call: Call) -> Report:
            raise ActionFailed("mailbox_full", "nothing has happened", is_final=is_final, covers_earlier=is_final)

    await approved(make_runner())
    with pytest.raises(ActionFailed) as failure:
        await make_runner(Declined(Receiver())).resume("run-1")
    assert failure.value.is_final is is_so
    failed = (await trace_of(log))[-1]
    assert (failed.type, failed.data.error.code, failed.data.is_final) == ("action_failed", "mailbox_full", is_so)
    run = await make_runner().state("run-1")
    assert (run.status, run.open_intent) == (Status.FAILED if is_so else Status.APPROVED, None)


async def test_whether_a_failure_covers_earlier_attempts_may_be_unsaid_and_is_then_not_so(
    log: RunLog, make_runner: MakeRunner
) -> None:
    class Blind(Sending):
        async def execute(self, call: Call) -> Report:
            if call.attempt == 1:
                raise OSError("the line is cut")
            raise ActionFailed("mailbox_full", "nothing has happened", covers_earlier=_Unsaid())  # type: ignore[arg-type]

    await approved(make_runner())
    for _ in range(2):
        with pytest.raises(OutcomeUnknown):
            await make_runner(Blind(Receiver(), Promise.KEYED, key_lifetime_s=60.0)).resume("run-1")
    assert (await trace_of(log))[-1].type == "outcome_unknown"


async def test_a_failure_that_is_not_final_leaves_the_run_to_be_resumed(make_runner: MakeRunner) -> None:
    class Refusing(Sending):
        async def execute(self, call: Call) -> Report:
            if call.attempt == 1:
                raise ActionFailed("too_many_requests", "try later", retry_after_s=7)
            return await super().execute(call)

    action = Refusing(Receiver())
    runner = make_runner(action)
    await approved(runner)
    with pytest.raises(ActionFailed) as failure:
        await runner.resume("run-1")
    assert (failure.value.is_final, failure.value.details["retry_after_s"]) == (False, 7)
    assert (await runner.resume("run-1")).result == "executed"


async def test_a_failure_whose_facts_cannot_be_stored_is_stored_without_them(
    log: RunLog, make_runner: MakeRunner
) -> None:
    class Declined(Sending):
        async def execute(self, call: Call) -> Report:
            raise ActionFailed("card_declined", "no \ud800", is_final=True, answer=object())

    await approved(make_runner())
    for _ in range(2):
        with pytest.raises(ActionFailed, match="no ") as failure:
            await make_runner(Declined(Receiver())).resume("run-1")
        assert failure.value.is_final
    failed = next(event for event in await trace_of(log) if event.type == "action_failed")
    assert (failed.data.error.code, failed.data.error.details) == ("card_declined", None)


async def test_the_same_key_with_another_payload_is_a_conflict_of_its_own(log: RunLog, make_runner: MakeRunner) -> None:
    class Used(Sending):
        async def execute(self, call: Call) -> Report:
            return Conflicted(reason="the key was used for 3 EUR", code="idempotency_conflict")

    await approved(make_runner())
    with pytest.raises(ActionConflict, match="knows its op_key with another payload") as conflict:
        await make_runner(Used(Receiver())).resume("run-1")
    assert conflict.value.code == "idempotency_conflict"
    last = (await trace_of(log))[-1]
    assert (last.type, last.data.reason) == ("action_conflict", "the key was used for 3 EUR")
    run = await make_runner().state("run-1")
    assert (run.status, run.unknown) == (Status.OUTCOME_UNKNOWN, "the key was used for 3 EUR")


# ── what a receiver that is asked may answer ─────────────────────────────────────────────────────────────────────────


async def orphaned(make_runner: MakeRunner, action: Sending, point: str = INTENT_AFTER_COMMIT) -> None:
    await approved(make_runner())
    with pytest.raises(Crash):
        await make_runner(action, reach=crash_at(point)).resume("run-1")


def raising(error: Exception) -> Callable[[Call], Any]:
    def find(call: Call) -> Any:
        raise error

    return find


@pytest.mark.parametrize(
    ("find", "why"),
    [
        (lambda call: Inconclusive(why="it is being processed"), "cannot tell: it is being processed"),
        (lambda call: Inconclusive(why="\ud800" * 5_000), "cannot tell: \\?"),
        (raising(ConnectionError("refused")), "cannot tell: ConnectionError: refused"),
        (raising(ActionFailed("action_failed", "not there")), "cannot tell: ActionFailed: not there"),
        (lambda call: None, "returned a NoneType, which is no finding"),
        (lambda call: True, "returned a bool, which is no finding"),
        (lambda call: Executed(), "returned a Executed, which is no finding"),
        (lambda call: Absent, "which is no finding"),
    ],
    ids=["inconclusive", "unprintable", "raises", "raises a failure", "nothing", "a bool", "executed", "a class"],
)
async def test_what_is_no_clear_answer_leaves_the_outcome_unknown(
    log: RunLog, make_runner: MakeRunner, find: Callable[[Call], Any], why: str
) -> None:
    action = Asked(Receiver())
    action.finding = find
    await orphaned(make_runner, action)
    with pytest.raises(OutcomeUnknown, match=why):
        await make_runner(action).resume("run-1")
    assert (await types_of(log))[-2:] == ["run_claimed", "outcome_unknown"]
    assert action.calls == []
    action.finding = action.look
    assert (await make_runner(action).resume("run-1")).result == "executed"


async def test_a_receiver_that_holds_something_else_under_the_key_is_a_conflict(
    log: RunLog, make_runner: MakeRunner
) -> None:
    action = Asked(Receiver())
    action.finding = lambda call: Conflicted(reason="another amount", code="idempotency_conflict")
    await orphaned(make_runner, action)
    with pytest.raises(ActionConflict) as conflict:
        await make_runner(action).resume("run-1")
    assert conflict.value.code == "idempotency_conflict"
    assert (await types_of(log))[-2:] == ["run_claimed", "action_conflict"]


async def test_who_hangs_in_a_question_is_overruled_when_its_lease_is_over(
    log: RunLog, clock: FakeClock, make_runner: MakeRunner
) -> None:
    receiver = Receiver()
    action = SlowlyAsked(receiver)
    await orphaned(make_runner, Asked(receiver), EFFECT_AFTER)
    hanging = asyncio.create_task(make_runner(action).resume("run-1"))
    await action.question.wait_until_reached()
    with pytest.raises(RunConflict):
        await make_runner(Asked(receiver)).resume("run-1")
    clock.advance(LEASE_S + 1)
    assert (await make_runner(Asked(receiver)).resume("run-1")).result == "recovered"
    action.question.open()
    with pytest.raises(ClaimLost):
        await hanging
    assert len(receiver.effects) == 1


async def test_a_question_that_is_cancelled_leaves_the_run_to_the_next_resumer(make_runner: MakeRunner) -> None:
    receiver = Receiver()
    action = SlowlyAsked(receiver)
    await orphaned(make_runner, Asked(receiver), EFFECT_AFTER)
    hanging = asyncio.create_task(make_runner(action).resume("run-1"))
    await action.question.wait_until_reached()
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    assert (await make_runner(Asked(receiver)).resume("run-1")).result == "recovered"


async def test_a_no_is_final_only_when_nothing_can_be_under_way_any_more(
    log: RunLog, clock: FakeClock, make_runner: MakeRunner
) -> None:
    action = Asked(Receiver(), request_life_s=60.0)
    await orphaned(make_runner, action)
    with pytest.raises(OutcomeUnknown, match="an earlier attempt may still come"):
        await make_runner(action).resume("run-1")
    clock.advance(59)
    with pytest.raises(OutcomeUnknown, match="an earlier attempt may still come"):
        await make_runner(action).resume("run-1")
    clock.advance(61)
    assert (await make_runner(action).resume("run-1")).result == "executed"
    assert len(action.receiver.effects) == 1


async def test_a_request_is_under_way_from_the_death_of_its_sender_not_from_its_intent(
    log: RunLog, clock: FakeClock, make_runner: MakeRunner
) -> None:
    action = Asked(Receiver(), request_life_s=60.0)
    holder, _ = await inside_its_effect(make_runner(action), action)
    clock.advance(100)  # it may have sent at any moment of these, the last one included
    holder.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holder
    with pytest.raises(OutcomeUnknown, match="an earlier attempt may still come"):
        await make_runner(action).resume("run-1")
    clock.advance(61)
    assert (await make_runner(action).resume("run-1")).result == "executed"


async def test_a_request_of_an_overruled_sender_is_under_way_from_when_he_is_seen_dead_not_from_when_he_was_overruled(
    log: RunLog, clock: FakeClock, make_runner: MakeRunner
) -> None:
    action = Asked(Receiver(), request_life_s=60.0)
    holder, _ = await late_owner(log, clock, action)
    with pytest.raises(OutcomeUnknown, match="an earlier attempt may still come"):
        await make_runner(action).resume("run-1")
    clock.advance(100)  # he may have sent at any moment of these, the last one included
    holder.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holder
    for _ in range(2):
        with pytest.raises(OutcomeUnknown, match="an earlier attempt may still come"):
            await make_runner(action).resume("run-1")
        clock.advance(40)
    assert (await make_runner(action).resume("run-1")).result == "executed"
    assert len(action.receiver.effects) == 1


async def test_a_no_is_as_old_as_its_question(log: RunLog, clock: FakeClock, make_runner: MakeRunner) -> None:
    class Slow(Asked):
        async def inspect(self, call: Call) -> Any:
            found = self.look(call)
            self.receiver.receive(call)  # what was under way arrives behind the question
            clock.advance(61)
            return found

    action = Slow(Receiver(), request_life_s=60.0)
    await orphaned(make_runner, action)
    with pytest.raises(OutcomeUnknown, match="an earlier attempt may still come"):
        await make_runner(action).resume("run-1")
    assert (await make_runner(action).resume("run-1")).result == "recovered"
    assert action.calls == []


async def test_a_yes_is_final_at_once(make_runner: MakeRunner) -> None:
    action = Asked(Receiver(), request_life_s=DAY_S)
    await orphaned(make_runner, action, EFFECT_AFTER)
    assert (await make_runner(action).resume("run-1")).result == "recovered"


# ── clocks that jump ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_life_of_a_key_is_counted_from_the_first_attempt_only(
    log: RunLog, clock: FakeClock, make_runner: MakeRunner
) -> None:
    action = Sending(Receiver(is_refusing=True), Promise.KEYED, key_lifetime_s=60.0)
    await orphaned(make_runner, action)
    for _ in range(2):
        clock.advance(29)
        with pytest.raises(Crash):
            await make_runner(action, reach=crash_at(INTENT_AFTER_COMMIT)).resume("run-1")
    intents = [event.data for event in await trace_of(log) if event.type == "resume_started"]
    assert len({intent.key_until_us for intent in intents}) == 1
    clock.advance(2)
    with pytest.raises(OutcomeUnknown, match="the receiver knows its op_key no longer"):
        await make_runner(action).resume("run-1")
    assert action.receiver.requests == 0


async def test_a_key_ends_at_its_very_last_microsecond(clock: FakeClock) -> None:
    action = Sending(Receiver(), Promise.KEYED, key_lifetime_s=60.0)
    assert recourse(action, 1_000, 999) == "retry"
    assert recourse(action, 1_000, 1_000) == "unknown"
    assert recourse(action, None, 0) == "unknown", "an intent that was written by an action without a key"
    asked = Asked(Receiver(), Promise.KEYED, key_lifetime_s=60.0)
    assert (recourse(asked, 1_000, 999), recourse(asked, 1_000, 1_000)) == ("retry", "ask")


async def test_nothing_is_sent_again_that_may_arrive_when_the_key_is_forgotten(
    clock: FakeClock, make_runner: MakeRunner
) -> None:
    action = Sending(Receiver(), Promise.KEYED, key_lifetime_s=60.0, request_life_s=10.0)
    assert recourse(action, 60_000_000, 49_999_999) == "retry"
    assert recourse(action, 60_000_000, 50_000_000) == "unknown"
    await orphaned(make_runner, action, EFFECT_AFTER)
    clock.advance(50)
    await assert_refused_as_unknown(make_runner(action))
    assert action.receiver.requests == 1


async def test_a_clock_that_jumps_back_brings_no_key_back_to_life(
    log: RunLog, clock: FakeClock, make_runner: MakeRunner
) -> None:
    action = Sending(Receiver(), Promise.KEYED, key_lifetime_s=60.0)
    start_us = clock.now_us()
    await orphaned(make_runner, action, EFFECT_AFTER)
    clock.advance(61)
    with pytest.raises(OutcomeUnknown):
        await make_runner(action).resume("run-1")
    clock.set(start_us)
    await assert_refused_as_unknown(make_runner(action))
    assert len(action.receiver.effects) == 1


async def test_a_clock_that_jumps_back_makes_no_lease_longer_than_the_log_remembers(
    log: RunLog, clock: FakeClock, make_runner: MakeRunner
) -> None:
    receiver = Receiver()
    action = Asked(receiver)
    holder, _ = await late_owner(log, clock, action)
    receiver.receive(action.calls[0])
    with pytest.raises(Refused):  # an event behind the deadline: from now on the log itself knows that it is over
        await make_runner().approve("run-1", "0" * 64)
    clock.set(clock.now_us() - 10 * round(LEASE_S) * 1_000_000)
    assert (await make_runner(action).resume("run-1")).result == "recovered"
    holder.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holder


async def test_a_clock_that_jumps_forward_costs_an_attempt_and_never_an_effect(
    log: RunLog, clock: FakeClock, make_runner: MakeRunner
) -> None:
    def jump(name: str) -> None:
        if name == INTENT_AFTER_COMMIT:
            clock.set(clock.now_us() + round(LEASE_S * 1_000_000))

    action = Sending(Receiver())
    await approved(make_runner())
    with pytest.raises(ActionFailed, match="half of the lease was used up"):
        await make_runner(action, reach=jump).resume("run-1")
    assert action.calls == []
    assert (await types_of(log))[-1] == "action_failed"
    assert (await make_runner(action).resume("run-1")).result == "executed"


async def test_a_clock_that_jumps_back_under_an_attempt_does_not_stop_it(
    clock: FakeClock, make_runner: MakeRunner
) -> None:
    def jump(name: str) -> None:
        if name == INTENT_AFTER_COMMIT:
            clock.set(clock.now_us() - round(DAY_S * 1_000_000))

    action = Sending(Receiver())
    await approved(make_runner())
    assert (await make_runner(action, reach=jump).resume("run-1")).result == "executed"


@pytest.mark.parametrize("point", [INTENT_BEFORE_COMMIT, INTENT_AFTER_COMMIT])
@pytest.mark.parametrize(("seconds", "end"), [(LEASE_S / 2, "executed"), (LEASE_S / 2 + 0.001, "lease_used_up")])
async def test_nothing_is_begun_in_the_second_half_of_a_lease(
    clock: FakeClock, make_runner: MakeRunner, point: str, seconds: float, end: str
) -> None:
    def wait(name: str) -> None:
        if name == point:
            clock.advance(seconds)

    action = Sending(Receiver())
    await approved(make_runner())
    assert await end_of(make_runner(action, reach=wait).resume("run-1")) == end
    assert len(action.receiver.effects) == (1 if end == "executed" else 0)


async def test_a_key_that_ends_between_the_decision_and_the_attempt_leaves_the_outcome_unknown(
    log: RunLog, make_runner: MakeRunner
) -> None:
    class Ticking(FakeClock):
        """Each look at it takes a second."""

        def now_us(self) -> int:
            self.advance(1)
            return super().now_us()

    for lifetime_s in range(1, 16):  # so that the key ends at each of the looks in turn
        run_id = f"run-{lifetime_s}"
        action = Sending(Receiver(), Promise.KEYED, key_lifetime_s=lifetime_s)

        class TimedOut(Sending):
            async def execute(self, call: Call) -> Report:
                raise TimeoutError("no answer")

        first = TimedOut(Receiver(), Promise.KEYED, key_lifetime_s=lifetime_s)
        await approved(make_runner(), run_id)
        with pytest.raises(OutcomeUnknown):
            await make_runner(first).resume(run_id)
        ticking = Ticking((await trace_of(log, run_id))[-1].recorded_at_us)
        runner = eventlog.Runner(log, actions=[action], clock=ticking, lease_s=LEASE_S)
        assert await end_of(runner.resume(run_id)) in ("executed", "outcome_unknown")


# ── what is refused when a runner is made ────────────────────────────────────────────────────────────────────────────


def test_two_actions_of_one_name_are_refused(make_runner: MakeRunner) -> None:
    with pytest.raises(InvalidInput, match="two actions are called 'send'"):
        make_runner(Sending(Receiver()), Looking(Receiver()))


@pytest.mark.parametrize("promise", ["Opaque", "", None, 7])
def test_a_promise_that_nobody_knows_is_refused(make_runner: MakeRunner, promise: Any) -> None:
    with pytest.raises(InvalidInput, match="a promise is one of transactional, checkable, keyed, opaque"):
        make_runner(Sending(Receiver(), promise))


@pytest.mark.parametrize("lifetime_s", [None, 0, -1, float("nan"), float("inf"), "60", False, 1e12])
def test_a_key_without_a_life_that_ends_is_refused(make_runner: MakeRunner, lifetime_s: Any) -> None:
    with pytest.raises(InvalidInput, match="its `key_lifetime_s` is a number of seconds"):
        make_runner(Sending(Receiver(), Promise.KEYED, key_lifetime_s=lifetime_s))


@pytest.mark.parametrize("life_s", [None, -1, float("nan"), float("inf"), "60", 1e12])
def test_a_request_without_a_life_that_ends_is_refused(make_runner: MakeRunner, life_s: Any) -> None:
    with pytest.raises(InvalidInput, match="its `request_life_s` is a number of seconds"):
        make_runner(Asked(Receiver(), request_life_s=life_s))


def test_an_action_without_what_its_promise_takes_is_refused(make_runner: MakeRunner) -> None:
    with pytest.raises(InvalidInput, match="is transactional and has no `write`"):
        make_runner(Sending(Receiver(), Promise.TRANSACTIONAL))

    class Empty:
        name = "empty"
        promise = Promise.CHECKABLE

        def check(self, call: Call) -> None:
            """Refuse nothing."""

    with pytest.raises(InvalidInput, match="is checkable and has no `execute`"):
        make_runner(Empty())


def test_an_action_whose_check_or_write_would_have_to_be_awaited_is_refused(make_runner: MakeRunner) -> None:
    class Awaited(Sending):
        async def check(self, call: Call) -> None:  # type: ignore[override]
            """Refuse nothing, but later."""

    class Written(eventlog.RecordRow):
        async def write(self, connection: Any, call: Call) -> Any:  # type: ignore[override]
            """Write nothing."""

    for action in (Awaited(Receiver()), Written("payments", name="send")):
        with pytest.raises(InvalidInput, match="wait for nothing: they are no async functions"):
            make_runner(action)


async def test_a_log_without_a_database_refuses_a_transactional_action_before_any_intent(clock: FakeClock) -> None:
    async with eventlog.open("memory:", clock=clock) as log:
        runner = eventlog.Runner(log, actions=[eventlog.RecordRow("payments", name="send")])
        await approved(runner, output="payments", amount=5)
        with pytest.raises(ActionFailed, match="this log has none") as failure:
            await runner.resume("run-1")
        assert failure.value.code == "transaction_unsupported"
        last = (await trace_of(log))[-1]
        assert (last.type, last.data.reason, last.data.status) == (
            "resume_rejected",
            "transaction_unsupported",
            "APPROVED",
        )
        assert "resume_started" not in await types_of(log)


def test_only_an_action_with_inspect_can_be_asked() -> None:
    assert isinstance(Asked(Receiver()), Inspectable)
    assert not isinstance(Looking(Receiver()), Inspectable)


# ── results of attempts that were fenced ─────────────────────────────────────────────────────────────────────────────


async def test_without_the_look_at_the_claim_a_fenced_attempt_would_record_a_second_result(
    log: RunLog, clock: FakeClock, make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control of `claim_lost`: the attempt that was fenced records over the one that fenced it."""

    async def believe_the_version(streams: run_streams.RunStreams, run: Run, *_: Any) -> int:
        return (await streams.load(run.run_id)).version

    monkeypatch.setattr(run_streams.RunStreams, "_version_if_held", believe_the_version)
    action = Looking(Receiver(is_refusing=True))
    holder, gate = await late_owner(log, clock, action)
    await make_runner(action).resume("run-1")
    gate.open()
    await holder
    recorded = [each for each in await types_of(log) if each in ("action_executed", "action_recovered")]
    assert len(recorded) == 2


async def test_a_held_lock_of_this_process_is_no_orphan_and_a_recovered_result_needs_no_result(
    log: RunLog, clock: FakeClock, make_runner: MakeRunner
) -> None:
    action = Asked(Receiver())
    action.finding = lambda call: Recovered(evidence={"seen": "in the ledger"})
    runner = make_runner(action)
    await approved(runner)
    run = await runner.state("run-1")
    key = op_key(log.store_id, "run-1", "send", run.approval_hash or "")
    with hold(log.place) as owner:
        await intent_of(log, run, owner, op_key=key, deadline_us=clock.now_us() + 1_000_000_000)
        with pytest.raises(RunConflict):
            await runner.resume("run-1")
    outcome = await runner.resume("run-1")
    assert (outcome.result, outcome.value, outcome.run.executed) == ("recovered", None, True)
