"""`verify` and what was done on approvals: each intent is judged where it stands, and honest runs raise no alarm."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import eventlog
from eventlog.audit.verify import Finding, intents, verify
from eventlog.errors import OutcomeUnknown
from eventlog.events import (
    ActionExecuted,
    ActionRecovered,
    ApprovalRecorded,
    ApprovalRevoked,
    OutcomeReconciled,
    Owner,
    PolicyTerms,
    ProposalRecorded,
    ResumeStarted,
    RunEvent,
)
from eventlog.log import Append, Expect
from eventlog.proposal import Proposal, op_key, propose
from eventlog.run import Status
from eventlog.runtime.approvers import revoke_approver
from eventlog.runtime.policies import Policy
from eventlog.runtime.run_streams import new_event
from eventlog.signing.statements import key_id_of
from eventlog.stores import MemoryLog, SqliteLog
from eventlog.testing.clock import FakeClock
from tests.attacker import attacking
from tests.effect_runs import Receiver, give_verdict, runner_of
from tests.proven_log import check
from tests.signed_runs import ANNA, PAY, SIGNED, events_of, paying, prepared_scene
from tests.test_intent_proofs import Wavering, fail_once, started, wavering

OTHER = propose("pay", {"amount": "2500"}, "account-7")
NOBODY = Owner(host="h" * 8, boot="b" * 8, lock="l" * 8)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def log(clock: FakeClock) -> AsyncIterator[MemoryLog]:
    async with eventlog.open("memory:", clock=clock) as opened:
        yield opened


async def judged(log: MemoryLog | SqliteLog) -> Finding:
    async def no_views() -> Finding:
        return Finding(verdict="ok")

    return (await verify(log, views=no_views)).approvals


async def reasons(log: MemoryLog | SqliteLog) -> list[str]:
    return [problem.reason for problem in (await judged(log)).problems]


async def assert_clean(log: MemoryLog | SqliteLog, intents: int) -> None:
    found = await judged(log)
    assert [problem.message for problem in found.problems] == []
    assert (found.verdict, found.details["unknown"], found.details["intents"]) == ("ok", [], intents)


async def append(log: MemoryLog | SqliteLog, *events: RunEvent, actor: str = "agent", run_id: str = "run-1") -> None:
    """Append as whoever can write the log does: whatever he likes."""
    new = [new_event(event) for event in events]
    await log.append_reserved([Append(f"run:{run_id}", new, Expect.any())], actor=actor)


def asked(proposal: Proposal = PAY, **more: Any) -> ProposalRecorded:
    fields = {"request_id": "approval:run-1", "proposal_hash": proposal.hash, **more}
    return ProposalRecorded(proposal=msgspec.Raw(proposal.canonical), **fields)


def approval(proposal: Proposal = PAY, **more: Any) -> ApprovalRecorded:
    fields = {"request_id": "approval:run-1", "approval_hash": proposal.hash, "decision": "approve", **more}
    return ApprovalRecorded(**{"actor_source": "asserted", **fields})


def key_of(log: MemoryLog | SqliteLog, proposal: Proposal = PAY, run_id: str = "run-1", step: str = "pay") -> str:
    return op_key(log.store_id, run_id, step, proposal.hash)


def intent(log: MemoryLog | SqliteLog, proposal: Proposal = PAY, **more: Any) -> ResumeStarted:
    hashes = {"approval_hash": proposal.hash, "input_hash": proposal.hash, "op_key": key_of(log, proposal)}
    return ResumeStarted(epoch=0, owner=NOBODY, deadline_us=0, **{"attempt": 1, **hashes, **more})


def done(log: MemoryLog | SqliteLog, **more: Any) -> ActionExecuted:
    return ActionExecuted(**{"action": "pay", "op_key": key_of(log), **more})


# ── what honest people do ────────────────────────────────────────────────────────────────────────────────────────────


async def test_runs_that_nobody_has_signed_are_clean(log: MemoryLog, clock: FakeClock) -> None:
    scene = await prepared_scene(log, clock, None, "run-1", "run-2", "run-3")
    for run_id in ("run-1", "run-2"):
        await scene.runner.approve(run_id, PAY.hash)
        await scene.runner.resume(run_id)
        await scene.runner.resume(run_id)
    await scene.runner.reject("run-3", PAY.hash)
    await assert_clean(log, 2)


async def test_a_rule_that_approves_is_an_approval(log: MemoryLog, clock: FakeClock) -> None:
    runner = runner_of(log, clock, paying(Receiver()), policies={"pay": Policy(auto=lambda _: "small", required=2)})
    await runner.propose("run-1", PAY)
    assert (await runner.resume("run-1")).run.status is Status.COMPLETED
    await assert_clean(log, 1)


async def test_a_quorum_is_clean(log: MemoryLog, clock: FakeClock) -> None:
    scene = await prepared_scene(log, clock, Policy(level=2, required=2))
    for approver in ("anna", "bob"):
        await scene.approve(await scene.signed(approver=approver))
    await scene.runner.resume("run-1")
    await assert_clean(log, 1)


async def test_a_quorum_that_nobody_has_signed_is_clean(log: MemoryLog, clock: FakeClock) -> None:
    scene = await prepared_scene(log, clock, Policy(required=2))
    await scene.runner.approve("run-1", PAY.hash, actor="anna")
    await scene.runner.approve("run-1", PAY.hash)
    await scene.runner.resume("run-1")
    await assert_clean(log, 1)


async def test_an_edit_and_a_withdrawal_are_clean(log: MemoryLog, clock: FakeClock) -> None:
    scene = await prepared_scene(log, clock)
    await scene.approve(await scene.signed())
    await scene.runner.revoke("run-1", actor="agent")
    await scene.runner.edit("run-1", args={"amount": "2500"}, actor="agent")
    await scene.approve(await scene.signed(), digest=OTHER.hash)
    await scene.runner.revoke("run-1", actor="agent")
    await scene.approve(await scene.signed(), digest=OTHER.hash)
    await scene.runner.resume("run-1")
    await assert_clean(log, 1)


async def test_another_attempt_after_the_time_is_over_is_clean(log: MemoryLog, clock: FakeClock) -> None:
    scene = await prepared_scene(log, clock, make=wavering())
    await scene.approve(await scene.signed(valid_for_s=60))
    await fail_once(scene)
    await fail_once(scene, ValueError("no answer"))
    clock.advance(hours=1)
    await scene.runner.resume("run-1")
    await assert_clean(log, 3)


async def test_an_intent_in_the_last_moment_is_clean_and_one_a_moment_later_is_not(
    log: MemoryLog, clock: FakeClock
) -> None:
    """The time that counts is that of the event, taken in its append."""
    scene = await prepared_scene(log, clock, SIGNED, "run-1", "run-2")
    for run_id in ("run-1", "run-2"):
        await scene.approve(await scene.signed(run_id, valid_for_s=60), run_id)
    clock.advance(59.999999)
    await append(log, intent(log), done(log))
    await assert_clean(log, 1)
    clock.advance(0.000001)
    key = key_of(log, run_id="run-2")
    await append(log, intent(log, op_key=key), done(log, op_key=key), run_id="run-2")
    assert await reasons(log) == ["statement_expired"]


async def test_a_key_that_is_revoked_after_the_effect_began_is_clean(log: MemoryLog, clock: FakeClock) -> None:
    scene = await prepared_scene(log, clock, make=wavering())
    await scene.approve(await scene.signed())
    await fail_once(scene, ValueError("no answer"))
    scene.receiver.effects.append(key_of(log))
    await revoke_approver(log, key_id_of(ANNA.public))
    assert (await scene.runner.resume("run-1")).result == "recovered"
    await assert_clean(log, 1)


async def test_a_verdict_of_a_person_and_the_undoing_of_an_effect_are_clean(log: MemoryLog, clock: FakeClock) -> None:
    receiver = Receiver()
    action, undoing = paying(receiver), paying(receiver)
    action.compensation, undoing.name = "refund", "refund"
    runner = runner_of(log, clock, action, undoing)
    await runner.propose("run-1", PAY)
    await runner.approve("run-1", PAY.hash)
    await runner.resume("run-1")
    assert (await runner.compensate("run-1")).run.status is Status.COMPENSATED
    scene = await prepared_scene(log, clock, None, "run-2", make=wavering())
    await scene.runner.approve("run-2", PAY.hash)
    assert isinstance(scene.action, Wavering)
    scene.action.fails.append(ValueError("no answer"))
    with pytest.raises(OutcomeUnknown):
        await scene.runner.resume("run-2")
    await give_verdict(scene.runner, "not_executed", run_id="run-2")
    await scene.runner.resume("run-2")
    await assert_clean(log, 3)


async def test_a_result_that_outweighs_what_a_person_said_is_clean(log: MemoryLog) -> None:
    said = OutcomeReconciled(
        action="pay",
        op_key=key_of(log),
        verdict="not_executed",
        status=Status.APPROVED,
        evidence="looked",
        actor_source="asserted",
    )
    late = ActionRecovered(action="pay", op_key=key_of(log))
    await append(log, asked(), approval(), intent(log), said, late)
    await assert_clean(log, 1)


async def test_a_workflow_with_several_effects_is_clean(log: MemoryLog, clock: FakeClock) -> None:
    action = Wavering(Receiver())
    runner = await started(log, clock, action)
    action.fails.append(ValueError("no answer"))
    await runner.resume("one")
    assert (await runner.resume("one")).run.status is Status.COMPLETED

    @eventlog.workflow
    async def thrice(run: eventlog.RunContext) -> Any:
        return len(await run.gather(*(run.act("send", {"n": n}, output=f"to-{n}") for n in range(3))))

    sending = paying(Receiver())
    sending.name = "send"
    runner = runner_of(log, clock, sending, workflows=[thrice], policies={"send": Policy(auto=lambda _: "fine")})
    assert (await runner.start(thrice, "two")).run.status is Status.COMPLETED
    found = await judged(log)
    assert ([problem.message for problem in found.problems], found.verdict) == ([], "ok")
    assert found.details["intents"] >= 4


@pytest.mark.parametrize("budget", [200_000, 0])
async def test_more_open_requests_than_are_remembered_are_read_again(
    log: MemoryLog, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    monkeypatch.setattr(intents, "_REMEMBERED", 2)
    monkeypatch.setattr(intents, "_MIN_READ_AGAIN", budget)
    monkeypatch.setattr(intents, "_MAX_SHARE", 0)
    run_ids = [f"run-{number}" for number in range(8)]
    scene = await prepared_scene(log, clock, None, *run_ids)
    for run_id in run_ids:
        await scene.approve(await scene.signed(run_id), run_id)
    for run_id in run_ids:
        await scene.runner.resume(run_id)
    found = await judged(log)
    assert found.problems == ()
    assert (found.verdict, found.details["intents"]) == ("ok" if budget else "unknown", 8)


async def test_what_is_done_is_forgotten(log: MemoryLog, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    begin = intents.IntentCheck.__init__

    def kept(self: Any, *args: Any) -> None:
        made.append(self)
        begin(self, *args)

    monkeypatch.setattr(intents.IntentCheck, "__init__", kept)
    scene = await prepared_scene(log, clock, None, *(f"run-{number}" for number in range(5)))
    for number in range(4):
        await scene.runner.approve(f"run-{number}", PAY.hash)
        await scene.runner.resume(f"run-{number}")
    await assert_clean(log, 4)
    assert sum(len(each._open) for each in made) == 1


@pytest.mark.parametrize("erased", ["proposal_recorded", "approval_recorded", "resume_started", "action_executed"])
async def test_what_is_erased_raises_no_alarm(tmp_path: Path, clock: FakeClock, erased: str) -> None:
    async with eventlog.open(tmp_path / "log.db", clock=clock) as opened:
        scene = await prepared_scene(opened, clock)
        await scene.approve(await scene.signed())
        await scene.runner.resume("run-1")
        (position,) = [event.position for event in await events_of(opened) if event.type == erased]
        await opened.erase([position], legal_basis="GDPR art. 17")
        assert await reasons(opened) == []


async def test_damage_in_front_of_an_intent_is_told_as_that_alone(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "log.db"
    async with eventlog.open(path, clock=clock) as opened:
        scene = await prepared_scene(opened, clock)
        await scene.approve(await scene.signed())
        await scene.runner.resume("run-1")
        (position,) = [event.position for event in await events_of(opened) if event.type == "approval_recorded"]
    with attacking(path) as attacker:
        attacker.run("UPDATE events SET body = replace(body, 'approve', 'reprove') WHERE position = ?", position)
    found = await check(path)
    assert (found.integrity.verdict, found.approvals.verdict) == ("damaged", "unknown")


# ── attacks ──────────────────────────────────────────────────────────────────────────────────────────────────────────

Attack = Callable[[MemoryLog], list[tuple[str, RunEvent]]]
TWO = PolicyTerms(required=2)

ATTACKS: dict[str, tuple[list[str], Attack]] = {
    "nobody was asked": (["intent_unapproved"], lambda log: [("agent", intent(log)), ("agent", done(log))]),
    "nobody has approved": (["intent_unapproved"], lambda log: [("agent", asked()), ("agent", intent(log))]),
    "one of two has approved": (
        ["intent_unapproved"],
        lambda log: [("agent", asked(policy=TWO)), ("anna", approval()), ("agent", intent(log))],
    ),
    "one of two has approved twice": (
        ["intent_unapproved"],
        lambda log: [("agent", asked(policy=TWO)), ("anna", approval()), ("anna", approval()), ("agent", intent(log))],
    ),
    "the votes decide nothing yet": (
        ["intent_unapproved"],
        lambda log: [("agent", asked()), ("anna", approval(is_deciding=False)), ("agent", intent(log))],
    ),
    "somebody has rejected": (
        ["intent_unapproved"],
        lambda log: [
            ("agent", asked()),
            ("anna", approval()),
            ("bob", approval(decision="reject")),
            ("agent", intent(log)),
        ],
    ),
    "the approval was withdrawn": (
        ["intent_unapproved"],
        lambda log: [
            ("agent", asked()),
            ("anna", approval()),
            ("anna", ApprovalRevoked(request_id="approval:run-1", actor_source="asserted")),
            ("agent", intent(log)),
        ],
    ),
    "it was edited after the approval": (
        ["intent_unapproved"],
        lambda log: [
            ("agent", asked()),
            ("anna", approval()),
            ("agent", asked(OTHER, request_id="approval:run-1#edit-1", supersedes="approval:run-1")),
            ("agent", intent(log, OTHER)),
        ],
    ),
    "another hash": (
        ["intent_mismatch"],
        lambda log: [("agent", asked()), ("anna", approval()), ("agent", intent(log, approval_hash=OTHER.hash))],
    ),
    "another input": (
        ["intent_mismatch"],
        lambda log: [("agent", asked()), ("anna", approval()), ("agent", intent(log, input_hash=OTHER.hash))],
    ),
    "another op_key": (
        ["intent_mismatch"],
        lambda log: [("agent", asked()), ("anna", approval()), ("agent", intent(log, op_key=key_of(log, OTHER)))],
    ),
    "done without an intent": (
        ["effect_without_intent"],
        lambda log: [("agent", asked()), ("anna", approval()), ("agent", done(log))],
    ),
    "recovered without an intent": (
        ["effect_without_intent"],
        lambda log: [
            ("agent", asked()),
            ("anna", approval()),
            ("agent", ActionRecovered(action="pay", op_key=key_of(log))),
        ],
    ),
    "done under another op_key": (
        ["effect_without_intent"],
        lambda log: [
            ("agent", asked()),
            ("anna", approval()),
            ("agent", intent(log)),
            ("agent", done(log, op_key=key_of(log, OTHER))),
        ],
    ),
    "done in another step": (
        ["effect_without_intent"],
        lambda log: [
            ("agent", asked()),
            ("anna", approval()),
            ("agent", intent(log)),
            ("agent", done(log, step="other")),
        ],
    ),
}


@pytest.mark.parametrize(("expected", "attack"), ATTACKS.values(), ids=ATTACKS)
async def test_what_is_done_without_an_approval_is_found(log: MemoryLog, expected: list[str], attack: Attack) -> None:
    for actor, event in attack(log):
        await append(log, event, actor=actor)
    found = await reasons(log)
    assert found[: len(expected)] == expected
    assert set(found) == set(expected) | ({"effect_without_intent"} & set(found))


async def test_the_same_with_an_approval_is_clean(log: MemoryLog) -> None:
    """The control of the attacks above: what they leave out, or change, is all that is wrong with them."""
    await append(log, asked(policy=TWO), approval(is_deciding=False), actor="anna")
    await append(log, approval(), actor="bob")
    await append(log, intent(log), done(log))
    await assert_clean(log, 1)


async def test_an_intent_after_the_key_was_revoked_is_found(log: MemoryLog, clock: FakeClock) -> None:
    scene = await prepared_scene(log, clock)
    await scene.approve(await scene.signed())
    await append(log, intent(log))
    await revoke_approver(log, key_id_of(ANNA.public))
    assert await reasons(log) == []
    await append(log, intent(log, attempt=2), done(log))
    assert await reasons(log) == ["approver_revoked"]


async def test_a_first_intent_after_the_time_was_over_is_found(log: MemoryLog, clock: FakeClock) -> None:
    scene = await prepared_scene(log, clock)
    await scene.approve(await scene.signed(valid_for_s=60))
    clock.advance(hours=1)
    await append(log, intent(log), intent(log, attempt=2), done(log))
    assert await reasons(log) == ["statement_expired"]


async def test_an_approval_that_does_not_count_is_no_ground_for_an_intent(log: MemoryLog, clock: FakeClock) -> None:
    await prepared_scene(log, clock)
    await append(log, approval(), actor="anna")
    await append(log, intent(log), done(log))
    assert await reasons(log) == ["level_required", "intent_unapproved"]


async def test_one_run_alone_is_judged_as_the_whole_log_is(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "log.db"
    async with eventlog.open(path, clock=clock) as opened:
        scene = await prepared_scene(opened, clock, None, "run-1", "run-2")
        await append(opened, intent(opened), done(opened))
        await scene.runner.approve("run-2", PAY.hash)
        await scene.runner.resume("run-2")
    for run, expected in (("run-1", ["intent_unapproved"]), ("run-2", []), (None, ["intent_unapproved"])):
        found = (await check(path, run=run)).approvals
        assert [problem.reason for problem in found.problems] == expected


async def test_a_verify_that_judged_no_intents_would_be_seen(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of this file: with nothing judged, the plainest attack is clean."""
    await append(log, asked(), intent(log))
    assert await reasons(log) == ["intent_unapproved"]

    async def blind(self: Any, event: Any) -> None:
        return None

    monkeypatch.setattr(intents.IntentCheck, "see", blind)
    assert await reasons(log) == []
