"""What an earlier attempt may have done is never forgotten: not by a later one, a verdict, a clock or an action's word.

Each test drives a run to where an effect happened, or may have, and nobody recorded it. The receiver counts what really
happened. Where a rule keeps the second effect away, a negative control takes that rule away and sees the receiver count
two.
"""

from __future__ import annotations

import asyncio
import dataclasses
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import eventlog
from eventlog import decide
from eventlog.decide import Refusal
from eventlog.decide import effects as decide_effects
from eventlog.errors import ActionConflict, ActionFailed, ClaimLost, InvalidInput, OutcomeUnknown, Refused
from eventlog.events import ActionConflict as ConflictEvent
from eventlog.events import CompensationFailed, Failure
from eventlog.log import RunLog
from eventlog.run import Run, Status
from eventlog.runtime import attempts, run_streams
from eventlog.runtime.effect_events import Undoing
from eventlog.runtime.effects import Absent, Call, Conflicted, Executed, Inconclusive, Promise, Recovered, Report
from eventlog.runtime.failpoints import EFFECT_AFTER, INTENT_AFTER_COMMIT, INTENT_BEFORE_COMMIT
from eventlog.runtime.single_actions import SingleActions
from eventlog.stores import SqliteLog
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
    approved,
    assert_refused_as_unknown,
    crash_at,
    end_of,
    give_verdict,
    late_owner,
    runner_of,
    trace_of,
    types_of,
)
from tools.campaigns.storage.log_files import open_file

KEY_S = 1_000.0
"""For how long a `Forgetting` receiver knows an op_key: longer than a lease."""

DAY_S = 86_400.0

MakeRunner = Callable[..., eventlog.Runner]
Drive = Callable[..., Awaitable[eventlog.Outcome]]


class Forgetting(Receiver):
    """Knows an op_key for `KEY_S` seconds by its own clock; behind that it takes the same request for a new one."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.clock = clock
        self.known_at_s: dict[str, float] = {}

    def receive(self, call: Call) -> dict[str, Any]:
        """Let the effect happen, unless its key is known still."""
        self.requests += 1
        known_at_s = self.known_at_s.get(call.op_key)
        if known_at_s is None or self.clock.monotonic_s() - known_at_s >= KEY_S:
            self.known_at_s[call.op_key] = self.clock.monotonic_s()
            self.effects.append(call.op_key)
        return self.answer(call)


class Scripted(Sending):
    """Sends, except that its first attempts come to what `script` says, in order."""

    def __init__(self, receiver: Receiver, promise: Promise = Promise.KEYED, **rest: Any) -> None:
        super().__init__(receiver, promise, **({"key_lifetime_s": KEY_S} if promise is Promise.KEYED else {}) | rest)
        self.script: list[Callable[[Call], Report]] = []

    def lose_answer(self, call: Call) -> Report:
        """Let the effect happen, and hear nothing of it."""
        self.receiver.receive(call)
        raise OSError("the answer was lost")

    async def execute(self, call: Call) -> Report:
        """Do what the script says, and then send."""
        if self.script:
            return self.script.pop(0)(call)
        return await super().execute(call)


def fails(error: Exception) -> Callable[[Call], Report]:
    def step(_: Call) -> Report:
        raise error

    return step


def knows_another_payload(_: Call) -> Report:
    return Conflicted(reason="422", code="idempotency_conflict")


def jumping(clock: FakeClock, point: str, seconds: float) -> Callable[[str], None]:
    """Return a `reach` at whose `point` time passes."""

    def reach(name: str) -> None:
        if name == point:
            clock.advance(seconds)

    return reach


@pytest.fixture
def make_runner(log: RunLog, clock: FakeClock) -> MakeRunner:
    def make(*actions: Any, **options: Any) -> eventlog.Runner:
        return runner_of(log, clock, *actions, **options)

    return make


async def ready(make_runner: MakeRunner, action: Sending, is_undoing: bool) -> Drive:
    """Return what performs `action`: as the effect of `run-1`, which is approved, or as what undoes it."""
    if not is_undoing:
        await approved(make_runner())
        return lambda **options: make_runner(action, **options).resume("run-1")
    action.name = "undo"
    first = Sending(Receiver(), compensation="undo")
    await approved(make_runner())
    await make_runner(first).resume("run-1")
    return lambda **options: make_runner(first, action, **options).compensate("run-1")


both = pytest.mark.parametrize("is_undoing", [False, True], ids=["the effect", "its undoing"])


# ── a later attempt that did nothing says nothing of the earlier one ─────────────────────────────────────────────────


async def late_then_forgotten(clock: FakeClock, drive: Drive) -> tuple[str | None, str | None]:
    """Let an attempt act and die, the next be too late to begin, and another come when the key has ended."""
    with pytest.raises(Crash):
        await drive(reach=crash_at(EFFECT_AFTER))
    second = await end_of(drive(reach=jumping(clock, INTENT_AFTER_COMMIT, LEASE_S / 2 + 1)))
    clock.advance(KEY_S)
    return second, await end_of(drive())


@both
async def test_an_attempt_that_was_too_late_to_begin_does_not_forget_the_one_before_it(
    clock: FakeClock, make_runner: MakeRunner, is_undoing: bool
) -> None:
    action = Scripted(Forgetting(clock))
    drive = await ready(make_runner, action, is_undoing)
    assert await late_then_forgotten(clock, drive) == ("outcome_unknown", "outcome_unknown")
    assert len(action.receiver.effects) == 1
    assert (await make_runner().state("run-1")).status is Status.OUTCOME_UNKNOWN


@both
async def test_taken_for_the_whole_truth_a_late_attempt_makes_a_second_effect(
    clock: FakeClock, make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch, is_undoing: bool
) -> None:
    """The negative control: a failure of one attempt is believed of all."""
    monkeypatch.setattr(attempts._Attempt, "_is_blind", lambda attempt, has_looked: False)
    action = Scripted(Forgetting(clock))
    drive = await ready(make_runner, action, is_undoing)
    assert (await late_then_forgotten(clock, drive))[0] == "lease_used_up"
    assert len(action.receiver.effects) == 2


@both
async def test_an_attempt_that_was_too_late_to_look_does_not_say_that_nothing_was_done(
    clock: FakeClock, make_runner: MakeRunner, is_undoing: bool
) -> None:
    action = Looking(Receiver())
    drive = await ready(make_runner, action, is_undoing)
    assert (await late_then_forgotten(clock, drive))[0] == "outcome_unknown"
    assert action.calls[-1].may_have_happened
    assert len(action.receiver.effects) == 1
    run = await make_runner().state("run-1")
    assert run.status is (Status.COMPENSATED if is_undoing else Status.COMPLETED)


async def test_believed_though_it_has_not_looked_a_late_attempt_denies_an_effect_that_happened(
    log: RunLog, clock: FakeClock, make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control."""
    monkeypatch.setattr(attempts._Attempt, "_is_blind", lambda attempt, has_looked: False)
    action = Looking(Receiver())
    drive = await ready(make_runner, action, is_undoing=False)
    assert (await late_then_forgotten(clock, drive))[0] == "lease_used_up"
    assert "action_failed" in await types_of(log)
    assert len(action.receiver.effects) == 1


async def refused_then_forgotten(clock: FakeClock, make_runner: MakeRunner, error: ActionFailed) -> tuple[Any, ...]:
    """Let an attempt's answer be lost, the next fail with `error`, and another come when the key has ended."""
    receiver = Forgetting(clock)
    attempts_made: list[int] = []

    @eventlog.action("send", promise="keyed", key_lifetime_s=KEY_S)
    async def send(call: Call) -> dict[str, Any]:
        attempts_made.append(call.attempt)
        if len(attempts_made) == 2:
            raise error
        answer = receiver.receive(call)
        if len(attempts_made) == 1:
            raise OSError("the answer was lost")
        return answer

    runner = make_runner(send)
    await approved(runner)
    ends = [await end_of(runner.resume("run-1")) for _ in range(2)]
    status = (await runner.state("run-1")).status
    clock.advance(KEY_S)
    ends.append(await end_of(runner.resume("run-1")))
    return ends, status, len(receiver.effects)


async def test_a_failure_of_a_later_attempt_of_a_keyed_action_leaves_the_outcome_unknown(
    log: RunLog, clock: FakeClock, make_runner: MakeRunner
) -> None:
    refused = ActionFailed("action_failed", "connection refused: nothing was sent")
    ends, status, effects = await refused_then_forgotten(clock, make_runner, refused)
    assert ends == ["outcome_unknown"] * 3
    assert (status, effects) == (Status.OUTCOME_UNKNOWN, 1)
    unknown = [event.data for event in await trace_of(log) if event.type == "outcome_unknown"]
    assert "connection refused" in unknown[-1].why


async def test_a_failure_that_covers_earlier_attempts_is_recorded_as_failed(
    log: RunLog, clock: FakeClock, make_runner: MakeRunner
) -> None:
    action = Scripted(Receiver())
    action.script = [
        fails(OSError("lost before it arrived")),
        fails(ActionFailed("action_failed", "it knows no such request", covers_earlier=True)),
    ]
    runner = make_runner(action)
    await approved(runner)
    assert [await end_of(runner.resume("run-1")) for _ in range(2)] == ["outcome_unknown", "action_failed"]
    assert (await types_of(log))[-1] == "action_failed"
    assert (await runner.state("run-1")).status is Status.APPROVED
    assert await end_of(runner.resume("run-1")) == "executed"
    assert len(action.receiver.effects) == 1


async def test_believed_of_all_attempts_a_natural_failure_makes_a_second_effect(
    clock: FakeClock, make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control of the two above, and what becomes of a `covers_earlier` that is not true."""
    wrong = ActionFailed("action_failed", "nothing was sent", covers_earlier=True)
    assert (await refused_then_forgotten(clock, make_runner, wrong))[2] == 2


async def conflict_then_forgotten(clock: FakeClock, action: Scripted, drive: Drive) -> list[str | None]:
    """Let an attempt's answer be lost, its key be called another's, and an attempt come when the key has ended."""
    action.script = [action.lose_answer, knows_another_payload]
    ends = [await end_of(drive()) for _ in range(2)]
    clock.advance(KEY_S)
    return [*ends, await end_of(drive())]


@both
async def test_a_key_that_is_called_anothers_leaves_the_outcome_unknown(
    clock: FakeClock, make_runner: MakeRunner, is_undoing: bool
) -> None:
    action = Scripted(Forgetting(clock))
    drive = await ready(make_runner, action, is_undoing)
    ends = await conflict_then_forgotten(clock, action, drive)
    assert ends == ["outcome_unknown", "idempotency_conflict", "outcome_unknown"]
    assert len(action.receiver.effects) == 1
    assert (await make_runner().state("run-1")).status is Status.OUTCOME_UNKNOWN


@both
async def test_taken_for_a_conflict_that_can_be_cleared_it_makes_a_second_effect(
    clock: FakeClock, make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch, is_undoing: bool
) -> None:
    """The negative control: the conflict opens the run again, as that of a target does."""

    def cleared(run: Run, event: ConflictEvent) -> Run:
        return replace(run, status=Status.APPROVED, intent=None, unknown=None)

    def failed(undoing: Undoing, report: Conflicted) -> CompensationFailed:
        failure = Failure(code=report.code, message=report.reason)
        return CompensationFailed(action=undoing.action, op_key=undoing.op_key, compensates="", error=failure)

    monkeypatch.setattr("eventlog.run._conflicted", cleared)
    monkeypatch.setattr(Undoing, "conflict", failed)
    action = Scripted(Forgetting(clock))
    drive = await ready(make_runner, action, is_undoing)
    assert (await conflict_then_forgotten(clock, action, drive))[-1] in ("executed", "compensated")
    assert len(action.receiver.effects) == 2


async def test_an_undoing_whose_key_is_called_anothers_twice_is_an_unknown_outcome(
    log: RunLog, clock: FakeClock, make_runner: MakeRunner
) -> None:
    action = Scripted(Forgetting(clock))
    drive = await ready(make_runner, action, is_undoing=True)
    action.script = [knows_another_payload] * 2
    version = len(await trace_of(log))
    for _ in range(2):
        with pytest.raises(ActionConflict) as conflict:
            await drive()
        assert conflict.value.code == "idempotency_conflict"
        run = await make_runner().state("run-1")
        assert (run.status, run.unknown) == (Status.OUTCOME_UNKNOWN, "422")
        assert run.compensation is not None
        assert not run.compensation.is_settled
    assert await types_of(log, after=version) == ["compensation_started", "outcome_unknown"] * 2
    clock.advance(KEY_S)
    assert await end_of(drive()) == "outcome_unknown"
    assert action.receiver.effects == []


# ── keys and clocks ──────────────────────────────────────────────────────────────────────────────────────────────────


async def key_ends_on_the_way(clock: FakeClock, drive: Drive, point: str) -> str | None:
    """Let an attempt act and die, and the key end between the decision of the next one and its effect."""
    with pytest.raises(Crash):
        await drive(reach=crash_at(EFFECT_AFTER))
    clock.advance(KEY_S - 2)
    return await end_of(drive(reach=jumping(clock, point, 5)))


@both
@pytest.mark.parametrize("point", [INTENT_BEFORE_COMMIT, INTENT_AFTER_COMMIT])
async def test_a_key_is_looked_at_again_behind_the_intent(
    clock: FakeClock, make_runner: MakeRunner, is_undoing: bool, point: str
) -> None:
    action = Scripted(Forgetting(clock))
    drive = await ready(make_runner, action, is_undoing)
    assert await key_ends_on_the_way(clock, drive, point) == "outcome_unknown"
    assert len(action.receiver.effects) == 1


@both
async def test_a_key_that_is_looked_at_only_once_makes_a_second_effect(
    clock: FakeClock, make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch, is_undoing: bool
) -> None:
    """The negative control."""
    monkeypatch.setattr(attempts._Attempt, "_is_key_over", lambda attempt: False)
    action = Scripted(Forgetting(clock))
    drive = await ready(make_runner, action, is_undoing)
    await key_ends_on_the_way(clock, drive, INTENT_BEFORE_COMMIT)
    assert len(action.receiver.effects) == 2


async def clock_set_right(clock: FakeClock, drive: Drive, receivers: FakeClock) -> str | None:
    """Let an attempt act and die while the clock is a year ahead, and another come a day later by the right time."""
    right_us = clock.now_us()
    clock.set(right_us + round(365 * DAY_S * 1_000_000))
    with pytest.raises(Crash):
        await drive(reach=crash_at(EFFECT_AFTER))
    receivers.advance(DAY_S)
    clock.set(right_us + round(DAY_S * 1_000_000))
    return await end_of(drive())


async def test_behind_the_log_a_clock_cannot_tell_how_old_a_key_is(clock: FakeClock, make_runner: MakeRunner) -> None:
    receivers = FakeClock()
    action = Scripted(Forgetting(receivers))
    drive = await ready(make_runner, action, is_undoing=False)
    assert await clock_set_right(clock, drive, receivers) == "outcome_unknown"
    assert len(action.receiver.effects) == 1


async def test_believed_a_clock_that_was_set_right_makes_a_second_effect(
    clock: FakeClock, make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: the clock may be behind the log as far as it likes."""
    monkeypatch.setattr(attempts, "_CLOCK_TOLERANCE_US", 10**18)
    receivers = FakeClock()
    action = Scripted(Forgetting(receivers))
    drive = await ready(make_runner, action, is_undoing=False)
    assert await clock_set_right(clock, drive, receivers) == "executed"
    assert len(action.receiver.effects) == 2


async def test_a_clock_that_is_only_a_second_behind_goes_on(clock: FakeClock, make_runner: MakeRunner) -> None:
    action = Scripted(Forgetting(clock))
    drive = await ready(make_runner, action, is_undoing=False)
    with pytest.raises(Crash):
        await drive(reach=crash_at(EFFECT_AFTER))
    clock.set(clock.now_us() - 1_000_000)
    assert await end_of(drive()) == "executed"
    assert (len(action.receiver.effects), action.receiver.requests) == (1, 2)


async def polled(clock: FakeClock, make_runner: MakeRunner) -> list[str | None]:
    """Leave a run whose sender died before its effect, and resume it every 6 s: requests may be on the way for 10 s."""
    action = Asked(Receiver(), request_life_s=10.0)
    drive = await ready(make_runner, action, is_undoing=False)
    with pytest.raises(Crash):
        await drive(reach=crash_at(INTENT_AFTER_COMMIT))
    ends: list[str | None] = []
    for _ in range(5):
        clock.advance(6)
        ends.append(await end_of(drive()))
    assert len(action.receiver.effects) == ends.count("executed")
    return ends


async def test_who_asks_more_often_than_a_request_lives_is_answered_in_the_end(
    clock: FakeClock, make_runner: MakeRunner
) -> None:
    ends = await polled(clock, make_runner)
    assert ends == ["outcome_unknown", "outcome_unknown", "executed", "already_completed", "already_completed"]


async def test_counted_from_each_question_a_request_would_live_for_ever(
    clock: FakeClock, make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control."""
    is_all_over = attempts._Attempt._is_all_over
    monkeypatch.setattr(
        attempts._Attempt,
        "_is_all_over",
        lambda attempt, _: is_all_over(attempt, attempt._attempts.now_us(attempt._run)),
    )
    assert await polled(clock, make_runner) == ["outcome_unknown"] * 5


# ── an owner that was overruled and lives ────────────────────────────────────────────────────────────────────────────


class LookingThenSlow(Looking):
    """Checkable by `execute`: it looks, waits at its gate, and sends. Its receiver takes whatever comes."""

    is_fenced = False

    async def execute(self, call: Call) -> Report:
        """Send, unless it was there a while ago."""
        self.calls.append(call)
        if call.op_key in self.receiver.effects:
            return Recovered(evidence="it is there", result=self.receiver.answer(call))
        if self.gate is not None:
            await self.gate.pass_through()
        return Executed(result=self.receiver.receive(call))


class Fenced(LookingThenSlow):
    """One that says, truly, that its receiver refuses a second effect by itself."""

    is_fenced = True


async def test_nothing_is_looked_up_by_acting_while_an_overruled_owner_may_be_between_its_look_and_its_effect(
    log: RunLog, clock: FakeClock, make_runner: MakeRunner
) -> None:
    action = LookingThenSlow(Receiver())
    holder, gate = await late_owner(log, clock, action)
    for _ in range(3):
        with pytest.raises(OutcomeUnknown, match="may still be at work"):
            await make_runner(action).resume("run-1")
    assert len(action.calls) == 1
    gate.open()
    with pytest.raises(ClaimLost):
        await holder
    assert (await make_runner(action).resume("run-1")).result == "recovered"
    assert len(action.receiver.effects) == 1


async def test_taken_for_dead_an_owner_between_its_look_and_its_effect_makes_a_second_one(
    log: RunLog, clock: FakeClock, make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: whoever looks by acting acts at once."""
    monkeypatch.setattr(attempts._Attempt, "_are_all_dead", lambda attempt, claims: True)
    action = LookingThenSlow(Receiver())
    holder, gate = await late_owner(log, clock, action)
    assert (await make_runner(action).resume("run-1")).result == "executed"
    gate.open()
    with pytest.raises(ClaimLost):
        await holder
    assert len(action.receiver.effects) == 2


async def test_an_action_whose_receiver_refuses_a_second_effect_goes_on_beside_an_overruled_owner(
    log: RunLog, clock: FakeClock, make_runner: MakeRunner
) -> None:
    action = Fenced(Receiver(is_refusing=True))
    holder, gate = await late_owner(log, clock, action)
    assert (await make_runner(action).resume("run-1")).result == "executed"
    gate.open()
    with pytest.raises(ClaimLost):
        await holder
    assert (len(action.receiver.effects), action.receiver.requests) == (1, 2)


async def test_an_action_that_claims_such_a_receiver_and_has_none_makes_a_second_effect(
    log: RunLog, clock: FakeClock, make_runner: MakeRunner
) -> None:
    """The negative control of the two above."""
    action = Fenced(Receiver())
    holder, gate = await late_owner(log, clock, action)
    await make_runner(action).resume("run-1")
    gate.open()
    with pytest.raises(ClaimLost):
        await holder
    assert len(action.receiver.effects) == 2


async def conflict_beside_an_owner(
    log: RunLog, clock: FakeClock, make_runner: MakeRunner
) -> tuple[Asked, list[str | None]]:
    """Let the receiver hold something else while an overruled owner lives, then clear it, resume, and let that go on.

    Return how the one that saw the conflict, the next one, and the owner ended.
    """
    action = Asked(Receiver())
    holder, gate = await late_owner(log, clock, action)
    action.finding = lambda call: Conflicted(reason="a foreign object is there")
    ends = [await end_of(make_runner(action).resume("run-1"))]
    action.finding = action.look
    ends.append(await end_of(make_runner(action).resume("run-1")))
    gate.open()
    return action, [*ends, await end_of(holder)]


async def test_a_conflict_opens_no_run_again_while_an_overruled_owner_may_still_act(
    log: RunLog, clock: FakeClock, make_runner: MakeRunner
) -> None:
    action, ends = await conflict_beside_an_owner(log, clock, make_runner)
    assert ends == ["outcome_unknown", "outcome_unknown", "claim_lost"]
    assert (await make_runner(action).resume("run-1")).result == "recovered"
    assert len(action.receiver.effects) == 1


async def test_a_conflict_that_opens_the_run_beside_a_living_owner_makes_a_second_effect(
    log: RunLog, clock: FakeClock, make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: every answer of the receiver is final."""
    monkeypatch.setattr(attempts._Attempt, "_is_all_over", lambda attempt, since_us: True)
    action, ends = await conflict_beside_an_owner(log, clock, make_runner)
    assert ends == ["output_conflict", "executed", "claim_lost"]
    assert len(action.receiver.effects) == 2


async def test_a_conflict_opens_no_run_again_while_a_request_may_be_under_way(
    clock: FakeClock, make_runner: MakeRunner
) -> None:
    action = Asked(Receiver(), request_life_s=60.0)
    drive = await ready(make_runner, action, is_undoing=False)
    with pytest.raises(Crash):
        await drive(reach=crash_at(INTENT_AFTER_COMMIT))
    action.finding = lambda call: Conflicted(reason="a foreign object is there")
    assert await end_of(drive()) == "outcome_unknown"
    clock.advance(60)
    assert await end_of(drive()) == "output_conflict"
    action.finding = action.look
    assert await end_of(drive()) == "executed"
    assert len(action.receiver.effects) == 1


# ── what comes late into a run that has moved on ─────────────────────────────────────────────────────────────────────


class AskedOnceSlowly(Asked):
    """Its first question waits at `question`, and its answer is `first_answer`; later ones tell the truth."""

    def __init__(self, receiver: Receiver, first_answer: Any) -> None:
        super().__init__(receiver)
        self.question = Gate()
        self.answers = [first_answer]
        self.script: list[Callable[[Call], Report]] = []

    async def inspect(self, call: Call) -> Any:
        """Wait, the first time."""
        if self.answers:
            answer = self.answers.pop()
            await self.question.pass_through()
            return answer
        return self.look(call)

    async def execute(self, call: Call) -> Report:
        """Send, and lose the answer at the first two attempts, the request too at the first."""
        self.calls.append(call)
        if len(self.calls) == 1:
            raise OSError("lost before it arrived")
        answer = self.receiver.receive(call)
        if len(self.calls) == 2:
            raise OSError("the answer was lost")
        return Executed(result=answer)


async def old_conflict(make_runner: MakeRunner) -> tuple[AskedOnceSlowly, str | None, str | None]:
    """Let a conflict that somebody saw before the last attempt be reported behind it, and resume."""
    action = AskedOnceSlowly(Receiver(), Conflicted(reason="a foreign object was there"))
    runner = make_runner(action)
    await approved(runner)
    assert await end_of(runner.resume("run-1")) == "outcome_unknown"
    asker = asyncio.create_task(runner.resume("run-1"))
    await action.question.wait_until_reached()
    await give_verdict(runner, "not_executed", evidence="I looked, and removed the foreign object")
    assert await end_of(runner.resume("run-1")) == "outcome_unknown"
    action.question.open()
    return action, await end_of(asker), await end_of(runner.resume("run-1"))


async def test_an_old_conflict_does_not_settle_what_a_later_attempt_left_unknown(
    log: RunLog, make_runner: MakeRunner
) -> None:
    action, asker, last = await old_conflict(make_runner)
    assert (asker, last) == ("claim_lost", "recovered")
    assert len(action.receiver.effects) == 1
    assert "action_conflict" not in await types_of(log)


async def test_an_old_conflict_that_settles_a_later_attempt_makes_a_second_effect(
    make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: only a claim ends a hold, and another attempt does not."""
    monkeypatch.setattr(run_streams, "_held", lambda run: run.epoch)
    action, asker, last = await old_conflict(make_runner)
    assert (asker, last) == ("output_conflict", "executed")
    assert len(action.receiver.effects) == 2


async def undone_while_asked(make_runner: MakeRunner) -> tuple[Receiver, str | None, str | None]:
    """Let who asks about the effect hear "yes" when its undoing is unknown already, and undo again."""
    pay = AskedOnceSlowly(Receiver(), Recovered(evidence="paid"))
    pay.compensation = "refund"
    refund = Scripted(Receiver(), Promise.OPAQUE)
    refund.name = "refund"
    refund.script = [refund.lose_answer]
    runner = make_runner(pay, refund)
    await approved(runner)
    assert await end_of(runner.resume("run-1")) == "outcome_unknown"
    asker = asyncio.create_task(runner.resume("run-1"))
    await pay.question.wait_until_reached()
    await runner.reconcile("run-1", "executed", evidence="the bank statement", result={"id": 1})
    assert [await end_of(runner.compensate("run-1")) for _ in range(2)] == ["outcome_unknown"] * 2
    pay.question.open()
    return refund.receiver, await end_of(asker), await end_of(runner.compensate("run-1"))


async def test_a_late_yes_about_the_effect_does_not_settle_its_undoing(make_runner: MakeRunner) -> None:
    receiver, asker, last = await undone_while_asked(make_runner)
    assert (asker, last) == ("claim_lost", "outcome_unknown")
    assert len(receiver.effects) == 1
    run = await make_runner().state("run-1")
    assert (run.status, run.result) == (Status.OUTCOME_UNKNOWN, {"id": 1})


async def test_a_late_yes_that_settles_an_undoing_makes_a_second_one(
    make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: an undoing that began meanwhile does not end a hold."""
    monkeypatch.setattr(run_streams, "_held", lambda run: run.epoch)
    receiver, asker, last = await undone_while_asked(make_runner)
    assert (asker, last) == ("recovered", "compensated")
    assert len(receiver.effects) == 2


# ── a verdict against what the log knows ─────────────────────────────────────────────────────────────────────────────


async def reported_late(log: RunLog, clock: FakeClock) -> Sending:
    """Leave `run-1` unknown, with the report of a late owner beside it that its effect happened."""
    action = Sending(Receiver())
    holder, gate = await late_owner(log, clock, action)
    assert await end_of(runner_of(log, clock, action).resume("run-1")) == "outcome_unknown"
    gate.open()
    assert await end_of(holder) == "claim_lost"
    assert (await types_of(log))[-1] == "result_rejected"
    return action


async def test_a_verdict_that_it_did_not_happen_is_refused_against_a_report_that_it_did(
    log: RunLog, clock: FakeClock, make_runner: MakeRunner
) -> None:
    action = await reported_late(log, clock)
    runner = make_runner(action)
    with pytest.raises(Refused, match="has reported that the effect happened") as refusal:
        await give_verdict(runner, "not_executed", evidence="I think not")
    assert refusal.value.code == "verdict_contradicted"
    last = (await trace_of(log))[-1]
    assert (last.type, last.data.reason) == ("transition_rejected", "verdict_contradicted")
    assert last.data.attempted_decision == "reconcile:not_executed"
    await assert_refused_as_unknown(runner)
    settled = await runner.reconcile("run-1", "executed", evidence="its report", result={"number": 1})
    assert (settled.status, settled.value) == ("COMPLETED", {"number": 1})
    assert len(action.receiver.effects) == 1


async def test_a_verdict_that_is_believed_against_the_report_makes_a_second_effect(
    log: RunLog, clock: FakeClock, make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control."""
    monkeypatch.setattr(decide_effects, "_is_known_to_have_happened", lambda run, key: False)
    action = await reported_late(log, clock)
    await give_verdict(make_runner(action), "not_executed", evidence="I think not")
    assert (await make_runner(action).resume("run-1")).result == "executed"
    assert len(action.receiver.effects) == 2


# ── an overruled sender, and a verdict that nothing has happened ─────────────────────────────────────────────────────


class Silent(Sending):
    """Sends nothing that arrives, and gets no answer."""

    async def execute(self, call: Call) -> Report:
        """Wait for nothing."""
        self.calls.append(call)
        raise TimeoutError("no answer")


@pytest.mark.parametrize("can_be_seen", [True, False], ids=["seen dead", "on another host"])
async def test_a_keyed_effect_with_an_overruled_sender_still_ends_once_its_key_is_over(
    log: RunLog, clock: FakeClock, make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch, can_be_seen: bool
) -> None:
    action = Sending(Receiver(), Promise.KEYED, key_lifetime_s=2 * LEASE_S)
    holder, _ = await late_owner(log, clock, action)
    silent = Silent(action.receiver, Promise.KEYED, key_lifetime_s=2 * LEASE_S)
    assert await end_of(make_runner(silent).resume("run-1")) == "outcome_unknown"
    holder.cancel()
    assert isinstance((await asyncio.gather(holder, return_exceptions=True))[0], asyncio.CancelledError)
    if not can_be_seen:
        monkeypatch.setattr(attempts, "is_proved_dead", lambda *_: False)
    clock.advance(3 * LEASE_S)
    assert await end_of(make_runner(silent).resume("run-1")) == "outcome_unknown"
    await give_verdict(make_runner(silent), "not_executed")
    assert await end_of(make_runner(silent).resume("run-1")) == "outcome_unknown", "no answer, again"
    action.gate = None
    await give_verdict(make_runner(action), "not_executed")
    assert await end_of(make_runner(action).resume("run-1")) == "executed"
    assert action.calls[-1].may_have_happened is not can_be_seen
    assert len(action.receiver.effects) == 1


async def test_without_a_verdict_a_key_that_is_over_keeps_an_effect_from_happening_beside_an_overruled_sender(
    log: RunLog, clock: FakeClock, make_runner: MakeRunner
) -> None:
    class Declining(Silent):
        async def execute(self, call: Call) -> Report:
            raise ActionFailed("declined", "nothing has happened so far", covers_earlier=True)

    action = Sending(Receiver(), Promise.KEYED, key_lifetime_s=2 * LEASE_S)
    holder, gate = await late_owner(log, clock, action)
    declining = Declining(action.receiver, Promise.KEYED, key_lifetime_s=2 * LEASE_S)
    assert await end_of(make_runner(declining).resume("run-1")) == "declined"
    gate.open()
    assert await end_of(holder) == "claim_lost"
    clock.advance(3 * LEASE_S)
    assert await end_of(make_runner(action).resume("run-1")) == "outcome_unknown"
    assert len(action.receiver.effects) == 1


# ── the arguments of every call are those that were approved ─────────────────────────────────────────────────────────


class Meddling(Asked):
    """Changes the arguments of every call it gets, and remembers how it got them."""

    def __init__(self, receiver: Receiver, **rest: Any) -> None:
        super().__init__(receiver, **rest)
        self.seen: list[tuple[str, Any]] = []

    def meddle(self, member: str, call: Call) -> None:
        """Remember, then change at every depth."""
        self.seen.append((member, deepcopy(call.args)))
        for value in (call.args, *call.args.values()):
            if isinstance(value, dict):
                value["to"] = "mallory"

    def check(self, call: Call) -> None:
        """Allow."""
        self.meddle("check", call)

    async def inspect(self, call: Call) -> Any:
        """Ask the receiver."""
        self.meddle("inspect", call)
        return self.look(call)

    async def execute(self, call: Call) -> Report:
        """Send."""
        self.meddle("execute", call)
        return await super().execute(call)


async def meddled(make_runner: MakeRunner, is_undoing: bool) -> list[tuple[str, Any]]:
    """Return what an action got that changes its arguments: an attempt dies before its effect, another asks and acts.

    The approved arguments are `{"to": "ada"}`.
    """
    action = Meddling(Receiver())
    first = Sending(Receiver(), compensation="undo")
    await approved(make_runner(), to="ada")
    if is_undoing:
        action.name = "undo"
        await make_runner(first).resume("run-1")

    def drive(**options: Any) -> Awaitable[eventlog.Outcome]:
        if is_undoing:
            return make_runner(first, action, **options).compensate("run-1")
        return make_runner(action, **options).resume("run-1")

    with pytest.raises(Crash):
        await drive(reach=crash_at(INTENT_AFTER_COMMIT))
    assert await end_of(drive()) in ("executed", "compensated")
    return action.seen


@both
async def test_what_an_action_does_to_its_arguments_no_other_call_sees(
    make_runner: MakeRunner, is_undoing: bool
) -> None:
    seen = await meddled(make_runner, is_undoing)
    assert [member for member, _ in seen] == ["check", "check", "inspect", "execute"]
    expected = {"args": {"to": "ada"}, "result": {"number": 1}} if is_undoing else {"to": "ada"}
    assert all(args == expected for _, args in seen)


@both
async def test_calls_that_share_their_arguments_are_seen_to_execute_others_than_the_approved(
    make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch, is_undoing: bool
) -> None:
    """The negative control."""
    make_call = SingleActions._call
    shared: dict[str, Any] = {}

    def call_with_shared_args(actions: SingleActions, run: Run, effect: Any, attempt: int) -> Call:
        call = make_call(actions, run, effect, attempt)
        return dataclasses.replace(call, args=shared.setdefault(effect.action, call.args))

    monkeypatch.setattr(SingleActions, "_call", call_with_shared_args)
    (_, checked), *_, (_, executed) = await meddled(make_runner, is_undoing)
    assert executed != checked


async def test_a_write_that_is_called_again_gets_the_approved_arguments_again(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_with = SqliteLog.append_with

    async def starting_over(log: SqliteLog, stream: str, type: str, make: Any, **options: Any) -> Any:
        """Call `make` twice, as a transaction does that has to start over."""

        def twice(connection: Any) -> Any:
            make(connection)
            return make(connection)

        return await append_with(log, stream, type, twice, **options)

    class Doubling:
        name = "send"
        promise = Promise.TRANSACTIONAL

        def __init__(self) -> None:
            self.seen: list[int] = []

        def check(self, call: Call) -> None:
            call.args["cents"] += 1

        def write(self, connection: Any, call: Call) -> int:
            self.seen.append(call.args["cents"])
            call.args["cents"] *= 2
            return self.seen[-1]

    monkeypatch.setattr(SqliteLog, "append_with", starting_over)
    async with open_file(tmp_path / "log.db", clock=clock) as log:
        action = Doubling()
        runner = runner_of(log, clock, action)
        await approved(runner, cents=500)
        assert (await runner.resume("run-1")).value == 500
        assert action.seen == [500, 500]


# ── what an action says out of turn ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("finding", [Absent(), Inconclusive(why="busy")], ids=["absent", "inconclusive"])
@pytest.mark.parametrize("kind", ["function", "class"])
async def test_an_effect_that_returns_what_only_a_question_may_is_an_unknown_outcome(
    log: RunLog, make_runner: MakeRunner, finding: Any, kind: str
) -> None:
    @eventlog.action("send")
    async def send(call: Call) -> Any:
        return finding

    scripted = Scripted(Receiver(), Promise.OPAQUE)
    scripted.script = [lambda call: finding]
    runner = make_runner(send if kind == "function" else scripted)
    await approved(runner)
    with pytest.raises(OutcomeUnknown, match=type(finding).__name__):
        await runner.resume("run-1")
    assert (await types_of(log))[-1] == "outcome_unknown"
    await assert_refused_as_unknown(runner)


async def test_a_check_that_fails_over_an_open_attempt_does_not_say_that_nothing_was_done(
    log: RunLog, make_runner: MakeRunner
) -> None:
    class Regretting(Looking):
        def check(self, call: Call) -> None:
            if self.receiver.effects:
                raise ActionFailed("action_failed", "nothing was sent")

    action = Regretting(Receiver())
    await approved(make_runner())
    with pytest.raises(Crash):
        await make_runner(action, reach=crash_at(EFFECT_AFTER)).resume("run-1")
    with pytest.raises(Refused, match="an earlier attempt of run 'run-1' may have happened") as refusal:
        await make_runner(action).resume("run-1")
    assert (type(refusal.value), refusal.value.code) == (Refused, "outcome_unknown")
    last = (await trace_of(log))[-1]
    assert (last.type, last.data.reason) == ("resume_rejected", "outcome_unknown")
    assert last.data.detail == "action_failed: nothing was sent"
    assert (await make_runner(Looking(action.receiver)).resume("run-1")).result == "recovered"


async def test_a_check_whose_error_cannot_even_be_read_is_a_refusal_with_a_trace(
    log: RunLog, make_runner: MakeRunner
) -> None:
    class Liar(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not even that")

    class Lying(Sending):
        def check(self, call: Call) -> None:
            raise Liar

    action = Lying(Receiver())
    await approved(make_runner())
    with pytest.raises(ActionFailed, match="Liar: its text cannot be read") as refusal:
        await make_runner(action).resume("run-1")
    assert refusal.value.code == "action_failed"
    assert (await types_of(log))[4:] == ["resume_rejected"]
    assert (await make_runner().state("run-1")).status is Status.APPROVED


# ── undoing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_effect_whose_result_the_log_does_not_hold_is_not_undone_without_it(
    log: RunLog, make_runner: MakeRunner
) -> None:
    undo = Sending(Receiver())
    undo.name = "undo"

    @eventlog.action("send", compensation="undo")
    async def send(call: Call) -> set[int]:
        return {1, 2}

    runner = make_runner(send, undo)
    await approved(runner)
    assert (await runner.resume("run-1")).run.not_stored is not None
    with pytest.raises(Refused, match="the log does not hold what the effect of run 'run-1' returned") as refusal:
        await runner.compensate("run-1")
    assert refusal.value.code == "cannot_compensate"
    assert (await types_of(log))[-1] == "transition_rejected"
    assert undo.calls == []


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"approval_hash": "0" * 64}, "proposal_hash_mismatch"),
        ({"proposal_hash": "0" * 64}, "proposal_hash_mismatch"),
        ({"approval_request_id": "another"}, "approval_request_mismatch"),
    ],
    ids=lambda each: "-".join(each) if isinstance(each, dict) else "",
)
async def test_what_is_undone_has_to_be_what_was_approved(
    make_runner: MakeRunner, changed: dict[str, str], code: str
) -> None:
    runner = make_runner(Sending(Receiver(), compensation="undo"))
    await approved(runner)
    run = (await runner.resume("run-1")).run
    assert decide.compensate(run, "undo") is None
    refusal = decide.compensate(replace(run, **changed), "undo")
    assert isinstance(refusal, Refusal)
    assert refusal.error.code == code


@pytest.mark.parametrize("is_compared", [True, False], ids=["with a view", "without"])
async def test_an_edited_row_of_the_view_refuses_the_undoing(
    tmp_path: Path, clock: FakeClock, is_compared: bool
) -> None:
    """The negative control is the program that shows people no view: it undoes."""
    view = runs_view()
    undo = Sending(Receiver())
    undo.name = "undo"
    async with open_file(tmp_path / "log.db", views=[view], clock=clock) as log:
        options = {"view": RunsTable(log, view)} if is_compared else {}
        runner = runner_of(log, clock, Sending(Receiver(), compensation="undo"), undo, **options)
        await approved(runner, to="ada")
        await runner.resume("run-1")
        with closing(sqlite3.connect(tmp_path / "log.db")) as editor, editor:
            editor.execute('UPDATE runs SET args = \'{"to":"mallory"}\'')
        end = await end_of(runner.compensate("run-1"))
        assert end == ("proposal_hash_mismatch" if is_compared else "compensated")
        assert len(undo.receiver.effects) == (0 if is_compared else 1)
        assert ("compensation_started" in await types_of(log)) is not is_compared


# ── what a runner is made of ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_folder_that_means_another_one_in_each_process_is_refused(make_runner: MakeRunner) -> None:
    with pytest.raises(InvalidInput, match="`folder` is an absolute path, not 'work'") as refusal:
        make_runner(folder="work")
    assert refusal.value.code == "invalid_argument"


ODD_NAMES: list[tuple[str, Any]] = [
    ("a lone surrogate", "\ud800"),
    ("a line break", "a\nb"),
    ("endless", "x" * 70_000),
    ("empty", ""),
    ("no text", 5),
]


@pytest.mark.parametrize("member", ["name", "compensation"])
@pytest.mark.parametrize("name", [each[1] for each in ODD_NAMES], ids=[each[0] for each in ODD_NAMES])
def test_a_name_that_no_event_could_hold_is_refused_before_any_run(
    make_runner: MakeRunner, member: str, name: Any
) -> None:
    action = Sending(Receiver())
    setattr(action, member, name)
    with pytest.raises(InvalidInput) as refusal:
        make_runner(action)
    assert refusal.value.code == "invalid_id"


async def test_an_undoing_whose_name_looks_like_the_engines_own_has_a_key_of_its_own(make_runner: MakeRunner) -> None:
    action, undo = Sending(Receiver(), compensation="compensate:send"), Sending(Receiver())
    undo.name = "compensate:send"
    runner = make_runner(action, undo)
    await approved(runner)
    await runner.resume("run-1")
    assert (await runner.compensate("run-1")).result == "compensated"
    assert action.receiver.effects != undo.receiver.effects
