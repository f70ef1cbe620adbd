"""Signed approvals at the moment of the intent: no revocation is overtaken, and what has begun can be found out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import eventlog
from eventlog.decide import Refusal
from eventlog.errors import ActionFailed, OutcomeUnknown, Refused, RunConflict
from eventlog.run import Status
from eventlog.runtime.approval_statements import approval_statement, sign_approval
from eventlog.runtime.approvers import revoke_approver
from eventlog.runtime.effects import Call, Inconclusive, Promise, Report
from eventlog.runtime.grounds import Grounds, no_proof
from eventlog.runtime.signed_decisions import SignedDecisions
from eventlog.signing.ed25519 import PrivateKey
from eventlog.signing.statements import key_id_of
from eventlog.stores import MemoryLog, SqliteLog
from eventlog.testing.clock import FakeClock
from tests.effect_runs import Asked, Crash, Receiver, Sending, crash_at, give_verdict, runner_of, trace_of, types_of
from tests.signed_runs import ANNA, SIGNED, Scene, enrol, last_event, paying, prepared_scene

HOUR_S = 3600


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Any]:
    path = "memory:" if request.param == "memory" else str(tmp_path / "log.db")
    async with eventlog.open(path, clock=clock) as log:
        yield log


@pytest.fixture
async def scene(store: MemoryLog | SqliteLog, clock: FakeClock) -> Scene:
    """A run that waits for an approval of level 2."""
    return await prepared_scene(store, clock)


@eventlog.workflow
async def buy(run: eventlog.RunContext) -> Any:
    try:
        return await run.act("pay", {"amount": "25"}, output="account-7")
    except ActionFailed as error:
        return f"told: {error.code}"


class Wavering(Asked):
    """An action `pay` whose receiver can be asked, if its promise says so; each of `fails` ends one attempt first."""

    name = "pay"

    def __init__(self, receiver: Receiver, promise: Promise = Promise.CHECKABLE) -> None:
        super().__init__(receiver, promise, key_lifetime_s=86_400.0 if promise is Promise.KEYED else None)
        self.fails: list[Exception] = []

    async def execute(self, call: Call) -> Report:
        if self.fails:
            raise self.fails.pop()
        return await super().execute(call)


def wavering(promise: Promise = Promise.CHECKABLE) -> Callable[[Receiver], Sending]:
    """Return what makes such an action, for a scene."""
    return lambda receiver: Wavering(receiver, promise)


async def fail_once(scene: Scene, error: Exception | None = None) -> None:
    """Make an attempt that comes to nothing: definitely, or with an error of which nobody knows what it means."""
    assert isinstance(scene.action, Wavering)
    scene.action.fails.append(error or ActionFailed("action_failed", "the receiver is closed today"))
    with pytest.raises(ActionFailed if error is None else OutcomeUnknown):
        await scene.runner.resume("run-1")


async def crash_once(scene: Scene, point: str, run_id: str = "run-1") -> None:
    """Make an attempt whose process dies."""
    crashing = runner_of(scene.log, scene.clock, scene.action, policies=scene.policies, reach=crash_at(point))
    with pytest.raises(Crash):
        await crashing.resume(run_id)


async def revoke_anna(log: Any) -> None:
    await revoke_approver(log, key_id_of(ANNA.public))


def interposing(
    log: MemoryLog | SqliteLog, monkeypatch: pytest.MonkeyPatch, do: Callable[[int], Any], at: str = "resume_started"
) -> list[int]:
    """Call `do` with its number right in front of each append of an intent, once everything was checked for it."""
    append, seen = log.append_reserved, list[int]()

    async def between(appends: Any, **more: Any) -> Any:
        if any(event.type == at for part in appends for event in part.events):
            seen.append(len(seen) + 1)
            await do(seen[-1])
        return await append(appends, **more)

    monkeypatch.setattr(log, "append_reserved", between)
    return seen


def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Break it on purpose: the intent is appended whatever has become of the keys."""
    prove = SignedDecisions.prove

    async def without_checks(self: SignedDecisions, request: Any) -> Any:
        found = await prove(self, request)
        return found if isinstance(found, Refusal) else Grounds()

    monkeypatch.setattr(SignedDecisions, "prove", without_checks)


async def started(log: MemoryLog | SqliteLog, clock: FakeClock, action: Any, run_id: str = "one") -> eventlog.Runner:
    """Start the workflow, and hand in what anna has signed for its effect."""
    runner = runner_of(log, clock, action, policies={"pay": SIGNED}, workflows=[buy])
    await enrol(log, "anna", ANNA, clock)
    await runner.start(buy, run_id)
    statement = await approval_statement(log, run_id, approver="anna", clock=clock)
    await runner.approve(run_id, statement.proposal_sha256, envelope=sign_approval(statement, ANNA))
    return runner


# ── a revocation that comes first ────────────────────────────────────────────────────────────────────────────────────


async def test_a_revocation_between_check_and_intent_is_not_overtaken(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.approve(await scene.signed())

    async def revoked(number: int) -> None:
        await revoke_anna(scene.log)

    tried = interposing(scene.log, monkeypatch, revoked)
    assert (await scene.refused_resume()).code == "approver_revoked"
    assert tried == [1]
    assert "resume_started" not in await types_of(scene.log)


async def test_without_the_check_the_revocation_would_be_overtaken(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the very same race is lost where the intent does not look at `$log`."""
    await scene.approve(await scene.signed())

    async def revoked(number: int) -> None:
        await revoke_anna(scene.log)

    interposing(scene.log, monkeypatch, revoked)
    unchecked(monkeypatch)
    assert (await scene.runner.resume("run-1")).run.status is Status.COMPLETED


async def test_what_else_is_added_to_the_log_of_keys_costs_another_look_and_no_more(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.approve(await scene.signed())

    async def enrolled(number: int) -> None:
        if number < 3:
            await enrol(scene.log, f"new-{number}", PrivateKey.from_seed(bytes([number]) * 32), scene.clock)

    tried = interposing(scene.log, monkeypatch, enrolled)
    assert (await scene.runner.resume("run-1")).run.status is Status.COMPLETED
    assert tried == [1, 2, 3]
    assert (await types_of(scene.log)).count("resume_started") == 1
    assert scene.receiver.requests == 1


async def test_keys_that_never_rest_end_the_attempt_before_it_begins(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.approve(await scene.signed())
    monkeypatch.setattr("eventlog.runtime.attempts.MAX_REDECISIONS", 3)

    async def enrolled(number: int) -> None:
        await enrol(scene.log, f"new-{number}", PrivateKey.from_seed(bytes([number]) * 32), scene.clock)

    tried = interposing(scene.log, monkeypatch, enrolled)
    with pytest.raises(RunConflict):
        await scene.runner.resume("run-1")
    assert tried == [1, 2, 3]
    assert "resume_started" not in await types_of(scene.log)
    assert scene.receiver.requests == 0


async def test_an_effect_that_nobody_has_signed_does_not_wait_for_the_keys(
    store: MemoryLog | SqliteLog, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = await prepared_scene(store, clock, None)
    await scene.runner.approve("run-1", (await scene.statement()).proposal_sha256)

    async def revoked(number: int) -> None:
        await revoke_anna(store)

    tried = interposing(store, monkeypatch, revoked)
    assert (await scene.runner.resume("run-1")).run.status is Status.COMPLETED
    assert tried == [1]


@pytest.mark.parametrize("is_checked", [True, False], ids=["as it is", "without the check"])
async def test_a_workflow_does_not_overtake_a_revocation_either(
    store: MemoryLog | SqliteLog, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, is_checked: bool
) -> None:
    receiver = Receiver()
    runner = await started(store, clock, paying(receiver))

    async def revoked(number: int) -> None:
        await revoke_anna(store)

    interposing(store, monkeypatch, revoked)
    if not is_checked:
        unchecked(monkeypatch)
        assert (await runner.resume("one")).run.status is Status.COMPLETED
        return
    with pytest.raises(Refused) as raised:
        await runner.resume("one")
    assert raised.value.code == "approver_revoked"
    kinds = await types_of(store, "one")
    assert "resume_rejected" in kinds
    assert "resume_started" not in kinds
    assert receiver.requests == 0


@pytest.mark.parametrize("is_checked", [True, False], ids=["as it is", "without the check"])
async def test_another_attempt_does_not_overtake_a_revocation_either(
    store: MemoryLog | SqliteLog, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, is_checked: bool
) -> None:
    scene = await prepared_scene(store, clock, make=wavering())
    await scene.approve(await scene.signed())
    await fail_once(scene)

    async def revoked(number: int) -> None:
        await revoke_anna(scene.log)

    interposing(scene.log, monkeypatch, revoked)
    if is_checked:
        assert (await scene.refused_resume()).code == "approver_revoked"
        assert (await types_of(scene.log)).count("resume_started") == 1
    else:
        unchecked(monkeypatch)
        assert (await scene.runner.resume("run-1")).run.status is Status.COMPLETED


# ── the time of a statement binds the first intent ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("promise", [Promise.KEYED, Promise.CHECKABLE])
async def test_an_attempt_that_a_crash_cut_short_is_repeated_although_the_time_is_over(
    store: MemoryLog | SqliteLog, clock: FakeClock, promise: Promise
) -> None:
    scene = await prepared_scene(store, clock, make=wavering(promise))
    await scene.approve(await scene.signed(valid_for_s=60))
    await crash_once(scene, "intent.after_commit")
    clock.advance(HOUR_S)
    assert (await scene.runner.resume("run-1")).run.status is Status.COMPLETED
    assert (await types_of(store)).count("resume_started") == 2
    assert len(scene.receiver.effects) == 1


async def test_an_attempt_that_failed_is_repeated_although_the_time_is_over(
    store: MemoryLog | SqliteLog, clock: FakeClock
) -> None:
    scene = await prepared_scene(store, clock, make=wavering())
    await scene.approve(await scene.signed(valid_for_s=60))
    await fail_once(scene)
    clock.advance(HOUR_S)
    assert (await scene.runner.resume("run-1")).run.status is Status.COMPLETED


async def test_what_a_person_found_not_to_have_happened_is_done_although_the_time_is_over(
    store: MemoryLog | SqliteLog, clock: FakeClock
) -> None:
    scene = await prepared_scene(store, clock)
    await scene.approve(await scene.signed(valid_for_s=60))
    await crash_once(scene, "intent.after_commit")
    clock.advance(HOUR_S)
    with pytest.raises(OutcomeUnknown):
        await scene.runner.resume("run-1")
    await give_verdict(scene.runner, "not_executed", evidence="the account was looked at")
    assert (await scene.runner.resume("run-1")).run.status is Status.COMPLETED


async def test_the_first_attempt_does_not_begin_when_the_time_is_over(scene: Scene, clock: FakeClock) -> None:
    await scene.approve(await scene.signed(valid_for_s=60))
    await crash_once(scene, "intent.before_commit")
    clock.advance(59)
    await crash_once(scene, "intent.before_commit")
    clock.advance(1)
    assert (await scene.refused_resume()).code == "statement_expired"


async def test_a_first_attempt_that_began_when_the_time_was_over_lets_no_other_begin(
    store: MemoryLog | SqliteLog, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a runtime does that has been taken over: its own intent does not make the time right."""
    scene = await prepared_scene(store, clock, make=wavering())
    await scene.approve(await scene.signed(valid_for_s=60))
    clock.advance(HOUR_S)
    with monkeypatch.context() as patched:
        patched.setattr(SignedDecisions, "prove", lambda *_: no_proof(_[1]))
        await fail_once(scene)
    assert (await scene.refused_resume()).code == "statement_expired"


async def test_an_edited_request_is_another_effect_and_needs_a_statement_in_time(
    store: MemoryLog | SqliteLog, clock: FakeClock
) -> None:
    scene = await prepared_scene(store, clock, make=wavering())
    await scene.runner.edit("run-1", args={"amount": "2500"}, actor="agent")
    envelope = await scene.signed(valid_for_s=60)
    await scene.approve(envelope, digest=(await scene.statement()).proposal_sha256)
    clock.advance(60)
    assert (await scene.refused_resume()).code == "statement_expired"


# ── a key that is revoked between two attempts ───────────────────────────────────────────────────────────────────────


async def test_a_revoked_key_lets_no_attempt_follow_one_that_failed(
    store: MemoryLog | SqliteLog, clock: FakeClock
) -> None:
    scene = await prepared_scene(store, clock, make=wavering())
    await scene.approve(await scene.signed())
    await fail_once(scene)
    await revoke_anna(store)
    assert (await scene.refused_resume()).code == "approver_revoked"
    assert (await types_of(store)).count("resume_started") == 1


@pytest.mark.parametrize("is_unknown", [False, True], ids=["crashed", "unknown"])
async def test_what_happened_is_found_out_and_recorded_whatever_became_of_the_key(
    store: MemoryLog | SqliteLog, clock: FakeClock, is_unknown: bool
) -> None:
    scene = await prepared_scene(store, clock, make=wavering())
    await scene.approve(await scene.signed(valid_for_s=60))
    if is_unknown:
        await fail_once(scene, ValueError("no answer"))
        scene.receiver.effects.append((await last_event(store)).data.op_key)  # it had come to happen
    else:
        await crash_once(scene, "effect.after")
    await revoke_anna(store)
    clock.advance(HOUR_S)
    ended = await scene.runner.resume("run-1")
    assert (ended.result, ended.run.status) == ("recovered", Status.COMPLETED)
    assert len(scene.receiver.effects) == 1


@pytest.mark.parametrize("is_unknown", [False, True], ids=["crashed", "unknown"])
async def test_that_nothing_happened_is_recorded_too_and_nothing_is_tried_again(
    store: MemoryLog | SqliteLog, clock: FakeClock, is_unknown: bool
) -> None:
    scene = await prepared_scene(store, clock, make=wavering())
    await scene.approve(await scene.signed())
    if is_unknown:
        await fail_once(scene, ValueError("no answer"))
    else:
        await crash_once(scene, "intent.after_commit")
    await revoke_anna(store)
    assert (await scene.refused_resume()).code == "approver_revoked"
    assert (await types_of(store))[-3:] == ["run_claimed", "action_failed", "resume_rejected"]
    run = await scene.runner.state("run-1")
    assert (run.status, run.open_intent, run.is_unknown) == (Status.APPROVED, None, False)
    assert run.problem is not None
    assert run.problem.code == "approval_lost"
    assert (await scene.refused_resume()).code == "approver_revoked"
    assert (await scene.runner.cancel("run-1")).run.status is Status.CANCELLED
    assert scene.receiver.effects == []


async def test_what_could_only_be_tried_again_waits_for_a_person_when_the_key_is_revoked(
    store: MemoryLog | SqliteLog, clock: FakeClock
) -> None:
    """Whoever sends again to learn what happened might do it for the first time."""
    scene = await prepared_scene(store, clock, make=wavering(Promise.KEYED))
    await scene.approve(await scene.signed())
    await crash_once(scene, "effect.after")
    await revoke_anna(store)
    error = await scene.refused_resume()
    assert error.code == "approver_revoked"
    assert "reconcile" in str(error)
    settled = await scene.runner.reconcile("run-1", "executed", evidence="it is in the books")
    assert settled.run.status is Status.COMPLETED


async def test_what_nobody_can_find_out_is_unknown_whatever_became_of_the_key(
    scene: Scene, store: MemoryLog | SqliteLog
) -> None:
    await scene.approve(await scene.signed())
    await crash_once(scene, "effect.after")
    await revoke_anna(store)
    with pytest.raises(OutcomeUnknown):
        await scene.runner.resume("run-1")
    settled = await scene.runner.reconcile("run-1", "executed", evidence="it is in the books")
    assert settled.run.status is Status.COMPLETED


# ── the same in workflows ────────────────────────────────────────────────────────────────────────────────────────────


async def unanswered(store: MemoryLog | SqliteLog, clock: FakeClock, action: Wavering) -> eventlog.Runner:
    """Return a runner of the workflow; nobody knows what became of its first attempt, and the receiver can be asked."""
    runner = await started(store, clock, action)
    action.fails.append(ValueError("no answer"))
    action.finding = lambda _: Inconclusive(why="closed")
    assert (await runner.resume("one")).run.status is Status.OUTCOME_UNKNOWN
    action.finding = action.look
    return runner


async def test_a_workflow_finds_out_what_happened_whatever_became_of_the_key(
    store: MemoryLog | SqliteLog, clock: FakeClock
) -> None:
    action = Wavering(Receiver())
    runner = await unanswered(store, clock, action)
    (unknown,) = [event for event in await trace_of(store, "one") if event.type == "outcome_unknown"]
    action.receiver.effects.append(unknown.data.op_key)  # it had come to happen
    await revoke_anna(store)
    clock.advance(HOUR_S)
    assert (await runner.resume("one")).run.status is Status.COMPLETED
    assert "action_recovered" in await types_of(store, "one")


async def test_a_workflow_goes_on_with_an_effect_that_began_in_time(
    store: MemoryLog | SqliteLog, clock: FakeClock
) -> None:
    runner = await unanswered(store, clock, Wavering(Receiver()))
    clock.advance(HOUR_S)
    assert (await runner.resume("one")).run.status is Status.COMPLETED


async def test_a_workflow_is_not_told_that_its_approvals_are_lost_and_waits(
    store: MemoryLog | SqliteLog, clock: FakeClock
) -> None:
    """It might go on behind that as behind a failure of the action; a person has to look."""
    action = Wavering(Receiver())
    runner = await unanswered(store, clock, action)
    await revoke_anna(store)
    for _ in range(2):
        with pytest.raises(Refused) as raised:
            await runner.resume("one")
        assert raised.value.code == "approver_revoked"
    kinds = await types_of(store, "one")
    assert (kinds.count("action_failed"), kinds.count("resume_started")) == (1, 1)
    assert "resume_rejected" in kinds
    assert "run_completed" not in kinds
    assert action.receiver.effects == []
    assert (await runner.cancel("one")).run.status is Status.CANCELLED
