"""Approvals against restores and erasures: nothing acts on what may have acted before, or on what is not there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import eventlog
from eventlog.errors import OutcomeUnknown, Refused
from eventlog.run import Status
from eventlog.runtime.effect_grounds import EffectGrounds
from eventlog.runtime.effects import Inconclusive, Promise
from eventlog.runtime.policies import Policy
from eventlog.stores import SqliteLog
from eventlog.stores.subject_keys import SubjectKeys
from eventlog.testing.clock import FakeClock
from tests.effect_runs import Looking, Receiver, Sending, give_verdict, runner_of, types_of
from tests.signed_runs import PAY, SIGNED, Scene, events_of, paying, prepared_scene
from tests.test_intent_proofs import Wavering, buy, fail_once, started, wavering
from tests.test_verify_intents import append, done, intent, reasons

Acts = Callable[[SqliteLog], Awaitable[Any]]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@asynccontextmanager
async def put_back(folder: Path, clock: FakeClock, before: Acts, lost: Acts) -> AsyncIterator[SqliteLog]:
    """Do something, take a copy, do something more, lose that, and open the copy as what it is."""
    copy = folder / "copy.db"
    async with eventlog.open(folder / "log.db", clock=clock) as log:
        await before(log)
        await log.backup(str(copy))
        await lost(log)
    async with eventlog.open(copy, clock=clock, restored="the disk was lost") as log:
        yield log


class Acting:
    """A run that is approved, and acts in what is lost; `receiver` outlives that."""

    def __init__(self, clock: FakeClock, policy: Policy | None, make: Callable[[Receiver], Sending] = paying) -> None:
        self.clock = clock
        self.policy = policy
        self.make = make
        self.receiver = Receiver()

    def scene(self, log: SqliteLog) -> Scene:
        scene = Scene(log, self.clock, self.policy, lambda _: self.make(self.receiver))
        scene.receiver = self.receiver  # type: ignore[misc]
        return scene

    async def approve(self, log: SqliteLog) -> None:
        scene = self.scene(log)
        if self.policy is SIGNED:
            await scene.approve(await scene.signed())
        else:
            await scene.runner.approve("run-1", PAY.hash, actor="anna")

    async def ask(self, log: SqliteLog) -> None:
        await prepared_scene(log, self.clock, self.policy)

    async def ask_and_approve(self, log: SqliteLog) -> None:
        await self.ask(log)
        await self.approve(log)

    async def act(self, log: SqliteLog) -> None:
        assert (await self.scene(log).runner.resume("run-1")).run.status is Status.COMPLETED
        assert self.receiver.requests == 1


def looking(receiver: Receiver) -> Sending:
    """Return an action `pay` that looks before it sends."""
    action = Looking(receiver)
    action.name = "pay"
    return action


POLICIES = {"signed": SIGNED, "unsigned": None, "by a rule": Policy(auto=True)}


# ── restores ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("policy", ["signed", "unsigned"])
async def test_an_approval_that_was_spent_in_a_lost_tail_does_not_act_again_after_a_restore(
    tmp_path: Path, clock: FakeClock, policy: str
) -> None:
    acting = Acting(clock, POLICIES[policy])
    async with put_back(tmp_path, clock, acting.ask_and_approve, acting.act) as log:
        scene = acting.scene(log)
        assert (await scene.refused_resume()).code == "approval_before_restore"
        await scene.runner.revoke("run-1")
        await acting.approve(log)
        assert (await scene.runner.resume("run-1")).run.status is Status.COMPLETED
        assert acting.receiver.requests == 2
        assert await reasons(log) == []


async def test_what_a_rule_approved_before_a_restore_asks_a_person_after_it(tmp_path: Path, clock: FakeClock) -> None:
    acting = Acting(clock, POLICIES["by a rule"])
    async with put_back(tmp_path, clock, acting.ask, acting.act) as log:
        scene = acting.scene(log)
        assert (await scene.refused_resume()).code == "approval_before_restore"
        await scene.runner.revoke("run-1")
        await acting.approve(log)
        assert (await scene.runner.resume("run-1")).run.status is Status.COMPLETED


async def test_without_the_look_at_the_restore_the_effect_would_happen_twice(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never_restored(*_: Any) -> int:
        return 1

    monkeypatch.setattr(EffectGrounds, "_first_of_incarnation", never_restored)
    acting = Acting(clock, None)
    async with put_back(tmp_path, clock, acting.ask_and_approve, acting.act) as log:
        await acting.scene(log).runner.resume("run-1")
        assert acting.receiver.requests == 2


async def test_an_approval_after_the_restore_acts(tmp_path: Path, clock: FakeClock) -> None:
    acting = Acting(clock, None)
    async with put_back(tmp_path, clock, acting.ask, acting.approve) as log:
        await acting.approve(log)
        await acting.act(log)


@pytest.mark.parametrize("promise", [Promise.KEYED, Promise.CHECKABLE])
async def test_an_action_that_is_keyed_or_can_be_asked_goes_on_after_a_restore(
    tmp_path: Path, clock: FakeClock, promise: Promise
) -> None:
    acting = Acting(clock, None, wavering(promise) if promise is Promise.KEYED else looking)
    acting.receiver.is_refusing = promise is Promise.KEYED
    async with put_back(tmp_path, clock, acting.ask_and_approve, acting.act) as log:
        outcome = await acting.scene(log).runner.resume("run-1")
        assert outcome.run.status is Status.COMPLETED
        assert len(acting.receiver.effects) == 1


async def test_an_action_that_only_its_inspect_can_ask_is_asked_after_a_restore_and_does_not_act_twice(
    tmp_path: Path, clock: FakeClock
) -> None:
    acting = Acting(clock, None, wavering(Promise.CHECKABLE))
    async with put_back(tmp_path, clock, acting.ask_and_approve, acting.act) as log:
        outcome = await acting.scene(log).runner.resume("run-1")
        assert outcome.run.status is Status.COMPLETED
        assert "action_recovered" in await types_of(log, "run-1")
        assert len(acting.receiver.effects) == 1


async def test_and_acts_where_the_receiver_says_that_nothing_happened(tmp_path: Path, clock: FakeClock) -> None:
    acting = Acting(clock, None, wavering(Promise.CHECKABLE))

    async def nothing(_: SqliteLog) -> None:
        """Nothing is lost, as far as anybody knows."""

    async with put_back(tmp_path, clock, acting.ask_and_approve, nothing) as log:
        assert (await acting.scene(log).runner.resume("run-1")).run.status is Status.COMPLETED
        assert "action_executed" in await types_of(log, "run-1")
        assert len(acting.receiver.effects) == 1


async def test_and_leaves_it_to_a_person_where_the_receiver_cannot_tell(tmp_path: Path, clock: FakeClock) -> None:
    acting = Acting(clock, None, wavering(Promise.CHECKABLE))
    async with put_back(tmp_path, clock, acting.ask_and_approve, acting.act) as log:
        scene = acting.scene(log)
        assert isinstance(scene.action, Wavering)
        scene.action.finding = lambda _: Inconclusive(why="closed on Sundays")
        with pytest.raises(OutcomeUnknown, match="closed on Sundays"):
            await scene.runner.resume("run-1")
        assert (await types_of(log, "run-1"))[-1] == "outcome_unknown"
        assert len(acting.receiver.effects) == 1


async def test_another_attempt_after_a_restore_is_refused_as_the_first_is(tmp_path: Path, clock: FakeClock) -> None:
    """The attempt that failed before the copy says nothing of the one that followed it in what was lost."""
    acting = Acting(clock, None, wavering(Promise.OPAQUE))

    async def fail(log: SqliteLog) -> None:
        await acting.ask_and_approve(log)
        await fail_once(acting.scene(log))

    async with put_back(tmp_path, clock, fail, acting.act) as log:
        scene = acting.scene(log)
        refusal = await scene.refused_resume()
        assert refusal.code == "approval_before_restore" and "cancel the run" in str(refusal)
        assert (await scene.runner.cancel("run-1")).run.status is Status.CANCELLED


async def test_what_a_person_has_found_out_after_the_restore_counts(tmp_path: Path, clock: FakeClock) -> None:
    acting = Acting(clock, None, wavering(Promise.OPAQUE))

    async def end_unknown(log: SqliteLog) -> None:
        await acting.ask_and_approve(log)
        await fail_once(acting.scene(log), ValueError("no answer"))

    async def nothing(_: SqliteLog) -> None:
        """Nothing is lost, as far as anybody knows."""

    async with put_back(tmp_path, clock, end_unknown, nothing) as log:
        scene = acting.scene(log)
        assert (await scene.refused_resume()).code == "outcome_unknown"
        await give_verdict(scene.runner, "not_executed", evidence="the receiver was asked by telephone")
        assert (await scene.runner.resume("run-1")).run.status is Status.COMPLETED


async def test_an_attempt_that_failed_after_the_restore_is_repeated(tmp_path: Path, clock: FakeClock) -> None:
    acting = Acting(clock, None, wavering(Promise.OPAQUE))
    async with put_back(tmp_path, clock, acting.ask, acting.approve) as log:
        scene = acting.scene(log)
        await acting.approve(log)
        await fail_once(scene)
        assert (await scene.runner.resume("run-1")).run.status is Status.COMPLETED


@pytest.mark.parametrize("policy", ["signed", "unsigned"])
async def test_a_workflow_does_not_act_again_after_a_restore_either(
    tmp_path: Path, clock: FakeClock, policy: str
) -> None:
    receiver = Receiver()

    def runner(log: SqliteLog) -> eventlog.Runner:
        policies = {"pay": SIGNED} if policy == "signed" else {}
        return runner_of(log, clock, paying(receiver), policies=policies, workflows=[buy])

    async def ask(log: SqliteLog) -> None:
        if policy == "signed":
            await started(log, clock, paying(receiver))
        else:
            await runner(log).start(buy, "one")
            await runner(log).approve("one", PAY.hash, actor="anna")

    async def act(log: SqliteLog) -> None:
        assert (await runner(log).resume("one")).run.status is Status.COMPLETED

    async with put_back(tmp_path, clock, ask, act) as log:
        with pytest.raises(Refused) as raised:
            await runner(log).resume("one")
        assert (raised.value.code, receiver.requests) == ("approval_before_restore", 1)
        assert "resume_rejected" in await types_of(log, "one")
        await runner(log).revoke("one")
        scene = Scene(log, clock)
        envelope = await scene.signed("one") if policy == "signed" else None
        await runner(log).approve("one", PAY.hash, actor="anna", envelope=envelope)
        assert (await runner(log).resume("one")).run.status is Status.COMPLETED


# ── erasures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def erase(log: SqliteLog, kind: str, run_id: str = "run-1") -> int:
    (position,) = [event.position for event in await events_of(log, run_id) if event.type == kind]
    await log.erase([position], legal_basis="GDPR art. 17")
    return position


@pytest.mark.parametrize("kind", ["proposal_recorded", "approval_recorded"])
@pytest.mark.parametrize("policy", ["signed", "unsigned"])
async def test_an_effect_whose_proposal_or_approval_is_erased_does_not_begin(
    tmp_path: Path, clock: FakeClock, policy: str, kind: str
) -> None:
    acting = Acting(clock, POLICIES[policy])
    async with eventlog.open(tmp_path / "log.db", clock=clock) as log:
        await acting.ask_and_approve(log)
        position = await erase(log, kind)
        refusal = await acting.scene(log).refused_resume()
        assert (refusal.code, refusal.details["position"]) == ("run_erased", position)
        assert await reasons(log) == []


async def test_what_was_approved_anew_after_its_approval_was_erased_acts(tmp_path: Path, clock: FakeClock) -> None:
    acting = Acting(clock, None)
    async with eventlog.open(tmp_path / "log.db", clock=clock) as log:
        await acting.ask_and_approve(log)
        await erase(log, "approval_recorded")
        await acting.scene(log).runner.revoke("run-1")
        await acting.approve(log)
        await acting.act(log)
        assert await reasons(log) == []


@pytest.mark.parametrize("kind", ["proposal_recorded", "approval_recorded"])
async def test_another_attempt_does_not_begin_on_what_is_erased(tmp_path: Path, clock: FakeClock, kind: str) -> None:
    acting = Acting(clock, None, wavering(Promise.OPAQUE))
    async with eventlog.open(tmp_path / "log.db", clock=clock) as log:
        await acting.ask_and_approve(log)
        scene = acting.scene(log)
        await fail_once(scene)
        await erase(log, kind)
        assert (await scene.refused_resume()).code == "run_erased"


async def test_what_happened_is_found_out_although_the_approval_is_erased(tmp_path: Path, clock: FakeClock) -> None:
    acting = Acting(clock, None, wavering(Promise.CHECKABLE))
    async with eventlog.open(tmp_path / "log.db", clock=clock) as log:
        await acting.ask_and_approve(log)
        scene = acting.scene(log)
        assert isinstance(scene.action, Wavering)
        scene.action.finding = lambda _: Inconclusive(why="closed")
        await fail_once(scene, ValueError("no answer"))
        await erase(log, "approval_recorded")
        scene.action.finding = scene.action.look
        run = await scene.runner.state("run-1")
        acting.receiver.effects.append(run.op_key or "")
        outcome = await scene.runner.resume("run-1")
        assert (outcome.run.status, outcome.result) == (Status.COMPLETED, "recovered")
        assert acting.receiver.requests == 0


@pytest.mark.parametrize("kind", [None, "proposal_recorded", "approval_recorded"])
async def test_what_was_asked_and_approved_is_looked_at_however_much_came_between(
    tmp_path: Path, clock: FakeClock, kind: str | None
) -> None:
    receiver = Receiver()
    async with eventlog.open(tmp_path / "log.db", clock=clock) as log:
        runner = runner_of(log, clock, paying(receiver), workflows=[buy])
        await runner.start(buy, "one")
        for number in range(50):
            await runner.signal("one", "note", number)
        await runner.approve("one", PAY.hash, actor="anna")
        if kind is None:
            assert (await runner.resume("one")).run.status is Status.COMPLETED
        else:
            await erase(log, kind, "one")
            with pytest.raises(Refused) as raised:
                await runner.resume("one")
            assert raised.value.code == "run_erased"
        assert receiver.requests == (1 if kind is None else 0)


@pytest.mark.parametrize("kind", ["proposal_recorded", "approval_recorded"])
async def test_a_workflow_does_not_begin_an_effect_on_what_is_erased(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Also where it is erased while the run is driven, between the check of the action and the intent."""
    receiver = Receiver()
    action = paying(receiver)
    async with eventlog.open(tmp_path / "log.db", clock=clock) as log:
        runner = runner_of(log, clock, action, workflows=[buy])
        await runner.start(buy, "one")
        await runner.approve("one", PAY.hash, actor="anna")
        refused = EffectGrounds.refusal_before_effect

        async def erased_meanwhile(self: EffectGrounds, *args: Any) -> Any:
            found = await refused(self, *args)
            await erase(log, kind, "one")
            return found

        monkeypatch.setattr(EffectGrounds, "refusal_before_effect", erased_meanwhile)
        with pytest.raises(Refused) as raised:
            await runner.resume("one")
        assert (raised.value.code, receiver.requests) == ("run_erased", 0)
        assert "resume_rejected" in await types_of(log, "one")
        assert "resume_started" not in await types_of(log, "one")


async def test_an_effect_does_not_begin_where_the_key_of_its_subject_is_missing(
    tmp_path: Path, clock: FakeClock
) -> None:
    keys = SubjectKeys(tmp_path / "keys", wrapping_key=b"w" * 32)
    receiver = Receiver()
    async with eventlog.open(tmp_path / "log.db", clock=clock, subject_keys=keys) as log:
        runner = runner_of(log, clock, paying(receiver))
        await runner.propose("run-1", PAY, subject="customer-17")
        await runner.approve("run-1", PAY.hash, actor="anna")
    async with eventlog.open(tmp_path / "log.db", clock=clock) as log:
        with pytest.raises(eventlog.EventLogError) as raised:
            await runner_of(log, clock, paying(receiver)).resume("run-1")
        assert raised.value.code in ("run_erased", "subject_key_missing")
        assert receiver.requests == 0
    async with eventlog.open(tmp_path / "log.db", clock=clock, subject_keys=keys) as log:
        assert (await runner_of(log, clock, paying(receiver)).resume("run-1")).run.status is Status.COMPLETED


@pytest.mark.parametrize("kind", ["proposal_recorded", "approval_recorded"])
async def test_an_intent_behind_an_erasure_of_what_it_rests_on_is_found(
    tmp_path: Path, clock: FakeClock, kind: str
) -> None:
    acting = Acting(clock, None)
    async with eventlog.open(tmp_path / "log.db", clock=clock) as log:
        await acting.ask_and_approve(log)
        await erase(log, kind)
        assert await reasons(log) == []
        await append(log, intent(log), done(log))
        assert await reasons(log) == ["intent_erased"]


@pytest.mark.parametrize("kind", ["proposal_recorded", "approval_recorded"])
async def test_an_erasure_after_the_intent_is_clean(tmp_path: Path, clock: FakeClock, kind: str) -> None:
    acting = Acting(clock, None)
    async with eventlog.open(tmp_path / "log.db", clock=clock) as log:
        await acting.ask_and_approve(log)
        await acting.act(log)
        await erase(log, kind)
        assert await reasons(log) == []


async def test_a_program_that_did_not_look_would_act_on_what_is_erased_and_verify_says_so(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: Any) -> None:
        return None

    acting = Acting(clock, None)
    async with eventlog.open(tmp_path / "log.db", clock=clock) as log:
        await acting.ask_and_approve(log)
        await erase(log, "approval_recorded")
        monkeypatch.setattr(EffectGrounds, "_refusal", nothing)
        monkeypatch.setattr(EffectGrounds, "refuse_erased", nothing)
        await acting.act(log)
        assert await reasons(log) == ["intent_erased"]
