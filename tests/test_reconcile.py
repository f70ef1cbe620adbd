"""What a person settles when nobody else can tell: three verdicts, each with evidence, and no verdict on the living."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import eventlog
from eventlog.decide import effects as decide_effects
from eventlog.errors import ClaimLost, InvalidInput, OutcomeUnknown, Refused, RunConflict
from eventlog.log import RunLog
from eventlog.run import Status
from eventlog.runtime import attempts
from eventlog.runtime.effects import Inconclusive, Promise
from eventlog.runtime.failpoints import EFFECT_AFTER, INTENT_AFTER_COMMIT
from eventlog.testing.clock import FakeClock
from projections import RunsTable, runs_view
from tests.effect_runs import (
    Asked,
    Crash,
    Receiver,
    Sending,
    approved,
    crash_at,
    give_verdict,
    inside_its_effect,
    late_owner,
    runner_of,
    trace_of,
    types_of,
)
from tools.campaigns.storage.log_files import open_file

VERDICTS = [("executed", Status.COMPLETED), ("not_executed", Status.APPROVED), ("abandoned", Status.CANCELLED)]


async def unknown_run(log: RunLog, clock: FakeClock, run_id: str = "run-1") -> Sending:
    """Leave a run of an opaque action whose owner died behind the effect."""
    action = Sending(Receiver())
    await approved(runner_of(log, clock), run_id)
    with pytest.raises(Crash):
        await runner_of(log, clock, action, reach=crash_at(EFFECT_AFTER)).resume(run_id)
    with pytest.raises(OutcomeUnknown):
        await runner_of(log, clock, action).resume(run_id)
    return action


# ── three verdicts ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_executed_completes_the_run_with_the_result_that_was_found(log: RunLog, clock: FakeClock) -> None:
    action = await unknown_run(log, clock)
    runner = runner_of(log, clock, action)
    outcome = await runner.reconcile(
        "run-1", "executed", evidence="entry 7 of the ledger", result={"number": 7}, actor="person:3"
    )
    assert (outcome.status, outcome.run.executed, outcome.value) == ("COMPLETED", True, {"number": 7})
    event = (await trace_of(log))[-1]
    assert (event.type, event.actor) == ("outcome_reconciled", "person:3")
    assert (event.data.verdict, event.data.evidence, event.data.actor_source) == (
        "executed",
        "entry 7 of the ledger",
        "asserted",
    )
    again = await runner.resume("run-1")
    assert (again.result, again.value) == ("already_completed", {"number": 7})
    assert len(action.calls) == 1


async def test_not_executed_lets_it_be_tried_again_under_the_same_op_key(log: RunLog, clock: FakeClock) -> None:
    action = await unknown_run(log, clock)
    runner = runner_of(log, clock, action)
    assert (await give_verdict(runner, "not_executed", evidence="it is not in the ledger")).status == "APPROVED"
    assert (await runner.resume("run-1")).result == "executed"
    assert len({call.op_key for call in action.calls}) == 1
    assert [call.attempt for call in action.calls] == [1, 2]
    assert (await trace_of(log))[-4].data.actor_source == "os"


async def test_abandoned_ends_the_run_for_ever(log: RunLog, clock: FakeClock) -> None:
    action = await unknown_run(log, clock)
    runner = runner_of(log, clock, action)
    assert (await runner.reconcile("run-1", "abandoned", evidence="the bank is gone")).status == "CANCELLED"
    with pytest.raises(Refused) as refusal:
        await runner.resume("run-1")
    assert refusal.value.label == "cannot_resume:CANCELLED"
    assert len(action.calls) == 1


async def test_a_key_that_ended_stays_ended_behind_a_verdict(log: RunLog, clock: FakeClock) -> None:
    action = Sending(Receiver(), Promise.KEYED, key_lifetime_s=60.0)
    await approved(runner_of(log, clock))
    with pytest.raises(Crash):
        await runner_of(log, clock, action, reach=crash_at(INTENT_AFTER_COMMIT)).resume("run-1")
    clock.advance(61)
    runner = runner_of(log, clock, action)
    with pytest.raises(OutcomeUnknown):
        await runner.resume("run-1")
    await give_verdict(runner, "not_executed", evidence="I looked")
    with pytest.raises(Crash):
        await runner_of(log, clock, action, reach=crash_at(EFFECT_AFTER)).resume("run-1")
    with pytest.raises(OutcomeUnknown):
        await runner.resume("run-1")
    assert len(action.receiver.effects) == 1


# ── what is settled is what was looked at ────────────────────────────────────────────────────────────────────────────


async def looked_too_early(log: RunLog, clock: FakeClock) -> tuple[Sending, int]:
    """Let somebody look before the effect of `run-1` happens, which nobody knows of then; return the version seen."""
    action = Sending(Receiver())
    runner = runner_of(log, clock, action, reach=crash_at(EFFECT_AFTER))
    holder, gate = await inside_its_effect(runner, action)
    version = (await runner.state("run-1")).version
    assert action.receiver.effects == [], "this is what is seen"
    gate.open()
    with pytest.raises(Crash):
        await holder
    with pytest.raises(OutcomeUnknown):
        await runner_of(log, clock, action).resume("run-1")
    action.gate = None
    return action, version


async def test_who_looked_before_it_happened_does_not_make_it_happen_twice(log: RunLog, clock: FakeClock) -> None:
    action, version = await looked_too_early(log, clock)
    runner = runner_of(log, clock, action)
    with pytest.raises(Refused, match="look at the receiver again") as refusal:
        await runner.reconcile("run-1", "not_executed", evidence="I looked", at_version=version)
    assert (refusal.value.code, refusal.value.details["attempt"]) == ("verdict_stale", 1)
    last = (await trace_of(log))[-1]
    assert (last.type, last.data.reason, last.data.attempted_decision, last.data.detail) == (
        "transition_rejected",
        "verdict_stale",
        "reconcile:not_executed",
        f"version {version}",
    )
    with pytest.raises(Refused) as refusal:
        await runner.resume("run-1")
    assert refusal.value.code == "outcome_unknown"
    assert len(action.receiver.effects) == 1


async def test_a_verdict_that_is_taken_whenever_it_was_found_makes_a_second_effect(
    log: RunLog, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control."""
    monkeypatch.setattr(decide_effects, "_is_stale", lambda *_, **__: False)
    action, version = await looked_too_early(log, clock)
    runner = runner_of(log, clock, action)
    await runner.reconcile("run-1", "not_executed", evidence="I looked", at_version=version)
    await runner.resume("run-1")
    assert len(action.receiver.effects) == 2


async def test_who_looked_too_early_may_still_say_that_it_happened(log: RunLog, clock: FakeClock) -> None:
    _, version = await looked_too_early(log, clock)
    outcome = await runner_of(log, clock).reconcile("run-1", "executed", evidence="I looked", at_version=version)
    assert outcome.status == "COMPLETED"


@pytest.mark.parametrize(("verdict", "status"), VERDICTS)
async def test_a_verdict_on_an_earlier_attempt_does_not_settle_a_later_one(
    log: RunLog, clock: FakeClock, verdict: str, status: Status
) -> None:
    action = await unknown_run(log, clock)
    runner = runner_of(log, clock, action)
    version = (await runner.state("run-1")).version
    await runner.reconcile("run-1", "not_executed", evidence="another looked", at_version=version)
    with pytest.raises(Crash):
        await runner_of(log, clock, action, reach=crash_at(EFFECT_AFTER)).resume("run-1")
    with pytest.raises(OutcomeUnknown):
        await runner.resume("run-1")
    with pytest.raises(Refused) as refusal:
        await runner.reconcile("run-1", verdict, evidence="I looked", at_version=version)
    assert (refusal.value.code, refusal.value.details["attempt"]) == ("verdict_stale", 2)
    assert (await give_verdict(runner, verdict)).run.status is status


async def test_what_happens_beside_the_effect_leaves_a_verdict_as_it_is(log: RunLog, clock: FakeClock) -> None:
    await unknown_run(log, clock)
    runner = runner_of(log, clock)
    version = (await runner.state("run-1")).version
    with pytest.raises(Refused):
        await runner.approve("run-1", "0" * 64)  # leaves a trace
    asked = Asked(Receiver())
    asked.finding = lambda call: Inconclusive(why="it does not answer")
    with pytest.raises(OutcomeUnknown):
        await runner_of(log, clock, asked).resume("run-1")
    assert (await runner.state("run-1")).version > version
    outcome = await runner.reconcile("run-1", "not_executed", evidence="I looked", at_version=version)
    assert outcome.status == "APPROVED"


@pytest.mark.parametrize("at_version", [None, 0, -1, True, 1.0, "7", 1000])
async def test_who_says_that_nothing_happened_says_at_which_version_that_was_seen(
    log: RunLog, clock: FakeClock, at_version: Any
) -> None:
    await unknown_run(log, clock)
    before = len(await trace_of(log))
    with pytest.raises(InvalidInput) as refusal:
        await runner_of(log, clock).reconcile("run-1", "not_executed", evidence="I looked", at_version=at_version)
    assert refusal.value.code == "invalid_argument"
    assert len(await trace_of(log)) == before


async def test_whoever_was_overruled_has_to_be_dead_before_somebody_looks(log: RunLog, clock: FakeClock) -> None:
    """He may have acted until he died, and nobody knows when that was: the first verdict records that it is over."""
    action = Sending(Receiver())
    holder, _ = await late_owner(log, clock, action)
    with pytest.raises(OutcomeUnknown):
        await runner_of(log, clock, action).resume("run-1")
    runner = runner_of(log, clock, action)
    version = (await runner.state("run-1")).version
    action.receiver.effects.append(action.calls[0].op_key)  # he acts, and dies before he can say so
    holder.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holder
    with pytest.raises(Refused) as refusal:
        await runner.reconcile("run-1", "not_executed", evidence="I looked", at_version=version)
    assert refusal.value.code == "verdict_stale"
    assert (await types_of(log))[-2:] == ["outcome_unknown", "transition_rejected"]
    run = await runner.state("run-1")
    assert run.strays_are_over
    await runner.reconcile("run-1", "not_executed", evidence="I looked again", at_version=run.version)


# ── refusals, each with a trace ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("verdict", "status"), VERDICTS)
async def test_a_second_verdict_is_refused_and_recorded(
    log: RunLog, clock: FakeClock, verdict: str, status: Status
) -> None:
    await unknown_run(log, clock)
    runner = runner_of(log, clock)
    await give_verdict(runner, verdict, evidence="I looked")
    with pytest.raises(Refused) as refusal:
        await runner.reconcile("run-1", "executed", evidence="I looked again")
    assert refusal.value.code == "outcome_not_unknown"
    event = (await trace_of(log))[-1]
    assert (event.type, event.data.reason, event.data.attempted_decision, event.data.current_status) == (
        "transition_rejected",
        "outcome_not_unknown",
        "reconcile:executed",
        status.value,
    )
    assert (await runner.state("run-1")).status is status


async def test_of_ten_verdicts_at_once_one_is_recorded(log: RunLog, clock: FakeClock) -> None:
    await unknown_run(log, clock)
    runner = runner_of(log, clock)
    answers = await asyncio.gather(
        *(runner.reconcile("run-1", ["executed", "abandoned"][n % 2], evidence=f"{n}") for n in range(10)),
        return_exceptions=True,
    )
    assert sum(isinstance(answer, eventlog.Outcome) for answer in answers) == 1
    assert {answer.code for answer in answers if isinstance(answer, Refused)} == {"outcome_not_unknown"}
    assert (await types_of(log)).count("outcome_reconciled") == 1
    assert (await types_of(log)).count("transition_rejected") == 9


async def test_a_run_that_is_not_there_gets_no_verdict_and_no_stream(log: RunLog, clock: FakeClock) -> None:
    with pytest.raises(Refused) as refusal:
        await runner_of(log, clock).reconcile("nope", "executed", evidence="I looked")
    assert refusal.value.label == "unknown_run:nope"
    assert (await log.head()).position == 0


@pytest.mark.parametrize(
    ("verdict", "options", "code"),
    [
        ("maybe", {"evidence": "x"}, "invalid_verdict"),
        ("executed", {"evidence": ""}, "invalid_argument"),
        ("executed", {"evidence": "   "}, "invalid_argument"),
        ("executed", {"evidence": None}, "invalid_argument"),
        ("executed", {"evidence": "\ud800"}, "invalid_text"),
        ("executed", {"evidence": "x" * 1025}, "payload_too_large"),
        ("abandoned", {"evidence": "x", "result": 1}, "invalid_argument"),
        ("not_executed", {"evidence": "x", "result": 0}, "invalid_argument"),
        ("executed", {"evidence": "x", "result": float("nan")}, "non_finite_number"),
        ("executed", {"evidence": "x", "result": object()}, "invalid_event"),
    ],
)
async def test_a_verdict_that_could_not_be_recorded_is_refused_as_input_and_changes_nothing(
    log: RunLog, clock: FakeClock, verdict: str, options: dict[str, Any], code: str
) -> None:
    await unknown_run(log, clock)
    version = len(await trace_of(log))
    with pytest.raises(InvalidInput) as refusal:
        await give_verdict(runner_of(log, clock), verdict, **options)
    assert refusal.value.code == code
    assert len(await trace_of(log)) == version


# ── an intent that nobody has found out about yet ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("verdict", "status"), VERDICTS)
async def test_the_open_intent_of_a_dead_owner_is_fenced_first(
    log: RunLog, clock: FakeClock, verdict: str, status: Status
) -> None:
    action = Sending(Receiver())
    await approved(runner_of(log, clock))
    with pytest.raises(Crash):
        await runner_of(log, clock, action, reach=crash_at(EFFECT_AFTER)).resume("run-1")
    outcome = await give_verdict(runner_of(log, clock), verdict, evidence="I looked")
    assert outcome.run.status is status
    # Who says that nothing happened has looked too early, and looks again now that it is recorded that it is over.
    refused = ["transition_rejected"] if verdict == "not_executed" else []
    behind = ["run_claimed", "outcome_unknown", *refused, "outcome_reconciled"]
    assert (await types_of(log))[-len(behind) :] == behind
    claim = (await trace_of(log))[-len(behind)]
    assert (claim.data.epoch, claim.data.is_stray) == (claim.version, False)


async def test_a_living_owner_gets_no_verdict(log: RunLog, clock: FakeClock) -> None:
    action = Sending(Receiver())
    holder, gate = await inside_its_effect(runner_of(log, clock, action), action)
    version = len(await trace_of(log))
    with pytest.raises(RunConflict):
        await give_verdict(runner_of(log, clock), "not_executed", evidence="I looked")
    assert len(await trace_of(log)) == version
    gate.open()
    assert (await holder).result == "executed"


@pytest.mark.parametrize(("verdict", "status"), [("executed", Status.COMPLETED), ("abandoned", Status.CANCELLED)])
async def test_a_late_owner_is_fenced_by_the_verdict_and_its_result_is_kept_as_evidence_only(
    log: RunLog, clock: FakeClock, verdict: str, status: Status
) -> None:
    action = Sending(Receiver())
    holder, gate = await late_owner(log, clock, action)
    await give_verdict(runner_of(log, clock), verdict, evidence="I looked")
    gate.open()
    with pytest.raises(ClaimLost):
        await holder
    assert (await runner_of(log, clock).state("run-1")).status is status
    assert "action_executed" not in await types_of(log)
    trace = await trace_of(log)
    assert next(event for event in trace if event.type == "run_claimed").data.is_stray
    late = trace[-1].data
    assert (late.reason, late.rejected, late.epoch, late.attempt) == ("claim_lost", "action_executed", 0, 1)


async def test_nobody_may_say_not_executed_while_an_overruled_resumer_can_be_seen_to_live(
    log: RunLog, clock: FakeClock
) -> None:
    action = Sending(Receiver())
    holder, _ = await late_owner(log, clock, action)
    with pytest.raises(RunConflict, match="still alive"):  # by this verdict it would be overruled
        await give_verdict(runner_of(log, clock), "not_executed", evidence="I looked")
    with pytest.raises(OutcomeUnknown):
        await runner_of(log, clock, action).resume("run-1")
    version = len(await trace_of(log))
    with pytest.raises(RunConflict, match="still alive"):  # and now it is
        await give_verdict(runner_of(log, clock), "not_executed", evidence="I looked")
    assert len(await trace_of(log)) == version
    holder.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holder
    assert (await give_verdict(runner_of(log, clock), "not_executed", evidence="I looked")).status == "APPROVED"


async def test_without_the_look_at_the_overruled_one_effect_would_be_two(
    log: RunLog, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: the verdict is taken while the overruled resumer sleeps, and both act."""
    monkeypatch.setattr(attempts, "is_proved_alive", lambda *_: False)
    action = Sending(Receiver())
    holder, gate = await late_owner(log, clock, action)
    await give_verdict(runner_of(log, clock), "not_executed", evidence="I looked")
    other = Sending(action.receiver)
    assert (await runner_of(log, clock, other).resume("run-1")).result == "executed"
    gate.open()
    with pytest.raises(ClaimLost):
        await holder
    assert len(action.receiver.effects) == 2


async def test_without_the_look_at_the_owner_a_verdict_would_be_given_on_the_living(
    log: RunLog, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: taken for an orphan, an intent gets a verdict while its effect is under way."""
    monkeypatch.setattr(attempts, "is_orphaned", lambda *_: True)
    action = Sending(Receiver())
    holder, gate = await inside_its_effect(runner_of(log, clock, action), action)
    outcome = await runner_of(log, clock).reconcile("run-1", "abandoned", evidence="I looked")
    assert outcome.status == "CANCELLED"
    gate.open()
    with pytest.raises(ClaimLost):
        await holder
    assert len(action.receiver.effects) == 1, "given up by the log, and done all the same"


async def test_behind_a_verdict_of_not_executed_a_stray_is_still_remembered(
    log: RunLog, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that cannot be seen from here, on another host: the person who gives the verdict has to know."""
    monkeypatch.setattr(attempts, "is_proved_alive", lambda *_: False)
    action = Asked(Receiver())
    holder, _ = await late_owner(log, clock, action)
    await give_verdict(runner_of(log, clock), "not_executed", evidence="I looked")
    with pytest.raises(Crash):
        await runner_of(log, clock, action, reach=crash_at(INTENT_AFTER_COMMIT)).resume("run-1")
    with pytest.raises(OutcomeUnknown, match="may still come"):
        await runner_of(log, clock, action).resume("run-1")
    holder.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holder


# ── the view that people look at ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("verdict", "status"), VERDICTS)
async def test_the_view_of_runs_says_what_was_settled_and_lets_the_next_effect_through(
    tmp_path: Path, clock: FakeClock, verdict: str, status: Status
) -> None:
    view = runs_view()
    async with open_file(tmp_path / "log.db", views=[view], clock=clock) as log:
        table = RunsTable(log, view)
        action = await unknown_run(log, clock)
        runner = runner_of(log, clock, action, view=table)
        await give_verdict(runner, verdict, evidence="I looked")
        (row,) = await table.page()
        assert (row["status"], row["executed"]) == (status.value, int(verdict == "executed"))
        if verdict == "not_executed":
            assert (await runner.resume("run-1")).result == "executed"


async def test_a_verdict_on_a_run_that_has_asked_for_nothing_is_refused_and_no_fault_of_the_program(
    log: RunLog, clock: FakeClock
) -> None:
    @eventlog.workflow
    async def idle(run: eventlog.RunContext) -> None:
        """Ask for nothing."""

    runner = eventlog.Runner(log, workflows=[idle], clock=clock)
    await runner.submit(idle, "run-1")
    with pytest.raises(Refused) as refused:
        await runner.reconcile("run-1", "executed", evidence="looked")
    assert refused.value.code == "outcome_not_unknown"
    assert (await runner.trace("run-1"))[-1].data.reason == "outcome_not_unknown"
