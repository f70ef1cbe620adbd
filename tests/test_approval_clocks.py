"""Approvals against clocks: the time of the event counts, and never runs back, wherever the clock stands."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

import eventlog
from eventlog.audit.verify import Finding, verify
from eventlog.errors import AppendTooLate, Refused
from eventlog.log import Append
from eventlog.progress import requests_of
from eventlog.run import Status
from eventlog.runtime.approvers import approver_challenge, enrol_approver, sign_enrolment
from eventlog.runtime.policies import Policy
from eventlog.signing.approver_keys import ED25519
from eventlog.signing.ed25519 import PrivateKey
from eventlog.stores import MemoryLog, SqliteLog
from eventlog.testing.clock import FakeClock
from tests.effect_runs import Receiver, runner_of, types_of
from tests.signed_runs import PAY, last_event, paying, prepared_scene
from tests.test_intent_proofs import started

CAROL = PrivateKey.from_seed(b"carl" * 8)
Log = MemoryLog | SqliteLog


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite"])
async def log(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Any]:
    path = "memory:" if request.param == "memory" else str(tmp_path / "log.db")
    async with eventlog.open(path, clock=clock) as opened:
        yield opened


async def flaws(log: Log) -> list[str]:
    """Return what `verify` has against the approvals of the log."""

    async def no_views() -> Finding:
        return Finding(verdict="ok")

    return [problem.reason for problem in (await verify(log, views=no_views)).approvals.problems]


async def note(log: Log) -> None:
    await log.append("notes", [eventlog.NewEvent("noted", {"n": 1})], expect=eventlog.Expect.any())


async def jump(log: Log, clock: FakeClock, *, hours: float = 1) -> None:
    """Let another stream be appended to while the clock is wrong, and set it right again."""
    now_us = clock.now_us()
    clock.set(now_us + round(hours * 3_600_000_000))
    await note(log)
    clock.set(now_us)


def unbounded(monkeypatch: pytest.MonkeyPatch, log: Log) -> None:
    """Break it on purpose: what is appended may be recorded whenever that comes to be."""
    append = log.append_reserved

    async def whenever(appends: Any, *, before_us: int | None = None, **more: Any) -> Any:
        return await append(appends, **more)

    monkeypatch.setattr(log, "append_reserved", whenever)


def interposing(monkeypatch: pytest.MonkeyPatch, log: Log, of_type: str, do: Callable[[], Any]) -> list[str]:
    """Do something once, right in front of the first append of an event of a type, when everything was checked."""
    append, seen = log.append_reserved, list[str]()

    async def between(appends: Any, **more: Any) -> Any:
        if not seen and any(event.type == of_type for part in appends for event in part.events):
            seen.append(of_type)
            await do()
        return await append(appends, **more)

    monkeypatch.setattr(log, "append_reserved", between)
    return seen


def later(clock: FakeClock) -> Callable[[], Any]:
    async def pass_time() -> None:
        clock.advance(hours=1)

    return pass_time


# ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@eventlog.workflow
async def buy(run: eventlog.RunContext) -> Any:
    await run.wait_for_signal("ready")
    return await run.act("pay", {"amount": "25"}, output="account-7")


async def test_a_request_behind_events_of_a_clock_that_was_ahead_is_not_born_expired(
    log: Log, clock: FakeClock
) -> None:
    await jump(log, clock, hours=24 * 365)
    scene = await prepared_scene(log, clock, Policy(expires_in_s=600))
    clock.advance(5)
    await scene.runner.approve("run-1", PAY.hash, actor="anna")
    assert (await scene.runner.resume("run-1")).run.status is Status.COMPLETED


async def test_an_edit_behind_events_of_a_clock_that_was_ahead_is_not_born_expired(log: Log, clock: FakeClock) -> None:
    scene = await prepared_scene(log, clock, Policy(expires_in_s=7200))
    await jump(log, clock)
    edited = await scene.runner.edit("run-1", args={"amount": "30"}, actor="anna")
    assert edited.run.expires_at_us == (await log.head()).recorded_at_us + 7_200_000_000


async def test_a_request_of_a_workflow_behind_events_of_a_clock_that_was_ahead_is_not_born_expired(
    log: Log, clock: FakeClock
) -> None:
    policies = {"pay": Policy(expires_in_s=600)}
    runner = runner_of(log, clock, paying(Receiver()), policies=policies, workflows=[buy])
    await runner.start(buy, "one")
    await jump(log, clock, hours=24 * 365)
    await runner.signal("one", "ready")
    waiting = (await runner.resume("one")).run
    (request,) = requests_of(waiting)
    assert request.expires_at_us is not None
    await runner.approve("one", request.proposal_hash or "", actor="anna")
    assert (await runner.resume("one")).run.status is Status.COMPLETED


async def test_an_edit_that_approves_is_not_recorded_behind_the_end_of_what_it_asks(
    log: Log, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await runner_of(log, clock, paying(Receiver())).propose("run-1", PAY)
    interposing(monkeypatch, log, "approval_recorded", lambda: jump(log, clock))
    runner = runner_of(log, clock, paying(Receiver()), policies={"pay": Policy(expires_in_s=600)})
    run = (await runner.edit("run-1", args={"amount": "30"}, approves=True, actor="anna")).run
    assert run.status is Status.APPROVED and run.expires_at_us is not None
    assert run.recorded_at_us < run.expires_at_us


AUTOMATIC: Final = {"pay": Policy(expires_in_s=600, auto=True)}


async def test_a_request_that_a_rule_approves_is_not_recorded_behind_its_own_end(
    log: Log, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = interposing(monkeypatch, log, "approval_recorded", lambda: jump(log, clock))
    run = (await runner_of(log, clock, paying(Receiver()), policies=AUTOMATIC).propose("run-1", PAY)).run
    assert seen and run.status is Status.APPROVED and run.expires_at_us is not None
    assert run.recorded_at_us < run.expires_at_us
    assert await flaws(log) == []


async def test_a_request_of_a_workflow_that_a_rule_approves_is_not_recorded_behind_its_own_end(
    log: Log, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = runner_of(log, clock, paying(Receiver()), policies=AUTOMATIC, workflows=[buy])
    await runner.start(buy, "run-1")
    await runner.signal("run-1", "ready")
    seen = interposing(monkeypatch, log, "approval_recorded", lambda: jump(log, clock))
    with suppress(eventlog.errors.EventLogError):  # behind such a jump the lease may be over, which is another matter
        await runner.resume("run-1")
    events = {event.type: event async for event in log.read_all()}
    asked, approved = events["proposal_recorded"], events["approval_recorded"]
    assert seen and approved.recorded_at_us < asked.data.expires_at_us
    assert await flaws(log) == []


# ── the store ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_would_be_recorded_too_late_is_not_written(log: Log, clock: FakeClock) -> None:
    event = eventlog.NewEvent("noted", {"n": 1})
    at_us = clock.now_us()
    with pytest.raises(AppendTooLate) as raised:
        await log.append_reserved([Append("$own", [event], eventlog.Expect.any())], before_us=at_us)
    assert (raised.value.at_us, (await log.head()).position) == (at_us, 0)
    (stored,) = await log.append_reserved([Append("$own", [event], eventlog.Expect.any())], before_us=at_us + 1)
    clock.advance(1)
    (again,) = await log.append_reserved([Append("$own", [event], eventlog.Expect.any())], before_us=at_us + 1)
    assert again.deduplicated and again.leaf == stored.leaf  # what is stored was in time


async def test_the_time_of_the_logs_end_is_told(log: Log, clock: FakeClock) -> None:
    assert (await log.head()).recorded_at_us == 0
    await jump(log, clock)
    assert (await log.head()).recorded_at_us == clock.now_us() + 3_600_000_000


# ── a clock that was set back ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_signed_approval_behind_a_clock_jump_is_refused_and_not_recorded_as_too_late(
    log: Log, clock: FakeClock
) -> None:
    scene = await prepared_scene(log, clock)
    envelope = await scene.signed(valid_for_s=600)
    await jump(log, clock)
    assert (await scene.refusal(envelope)).code == "statement_expired"
    assert "approval_recorded" not in await types_of(log)
    assert await flaws(log) == []
    await scene.approve(await scene.signed(valid_for_s=600))  # counted from the time of the log
    assert (await scene.runner.resume("run-1")).run.status is Status.COMPLETED
    assert await flaws(log) == []


async def test_without_the_bound_a_clock_jump_would_be_damage_for_ever(
    log: Log, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = await prepared_scene(log, clock)
    envelope = await scene.signed(valid_for_s=600)
    unbounded(monkeypatch, log)
    interposing(monkeypatch, log, "approval_recorded", lambda: jump(log, clock))
    await scene.approve(envelope)
    assert await flaws(log) == ["statement_expired"]


@pytest.mark.parametrize("moves", ["the clock", "the log"])
async def test_a_statement_that_expires_between_check_and_commit_is_refused(
    log: Log, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, moves: str
) -> None:
    scene = await prepared_scene(log, clock)
    envelope = await scene.signed(valid_for_s=600)
    do = later(clock) if moves == "the clock" else lambda: jump(log, clock)
    seen = interposing(monkeypatch, log, "approval_recorded", do)
    assert (await scene.refusal(envelope)).code == "statement_expired"
    assert seen and await flaws(log) == []


@pytest.mark.parametrize("moves", ["the clock", "the log"])
async def test_an_effect_whose_statement_expires_between_check_and_intent_does_not_begin(
    log: Log, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, moves: str
) -> None:
    scene = await prepared_scene(log, clock)
    await scene.approve(await scene.signed(valid_for_s=600))
    do = later(clock) if moves == "the clock" else lambda: jump(log, clock)
    seen = interposing(monkeypatch, log, "resume_started", do)
    assert (await scene.refused_resume()).code == "statement_expired"
    assert seen and await flaws(log) == []
    await scene.runner.revoke("run-1")
    await scene.approve(await scene.signed(valid_for_s=600))
    assert (await scene.runner.resume("run-1")).run.status is Status.COMPLETED
    assert await flaws(log) == []


async def test_without_the_bound_an_effect_would_begin_on_a_statement_that_is_over(
    log: Log, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = await prepared_scene(log, clock)
    await scene.approve(await scene.signed(valid_for_s=600))
    unbounded(monkeypatch, log)
    interposing(monkeypatch, log, "resume_started", lambda: jump(log, clock))
    await scene.runner.resume("run-1")
    assert await flaws(log) == ["statement_expired"]


async def test_a_workflow_does_not_begin_an_effect_behind_a_clock_jump_either(
    log: Log, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = Receiver()
    runner = await started(log, clock, paying(receiver))
    seen = interposing(monkeypatch, log, "resume_started", lambda: jump(log, clock, hours=10 * 24))
    with pytest.raises(Refused) as raised:
        await runner.resume("one")
    assert (raised.value.code, receiver.requests) == ("statement_expired", 0)
    assert "resume_rejected" in await types_of(log, "one")
    assert seen and await flaws(log) == []


# ── requests that end, and enrolments ────────────────────────────────────────────────────────────────────────────────


async def test_a_request_that_ends_between_check_and_commit_has_expired(
    log: Log, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = await prepared_scene(log, clock, Policy(expires_in_s=600))
    seen = interposing(monkeypatch, log, "approval_recorded", lambda: jump(log, clock))
    with pytest.raises(Refused) as raised:
        await scene.runner.approve("run-1", PAY.hash, actor="anna")
    assert (raised.value.code, (await last_event(log)).type) == ("approval_expired", "approval_expired")
    assert seen
    assert (await scene.runner.state("run-1")).status is Status.EXPIRED


async def test_a_request_that_has_expired_behind_a_clock_jump_can_be_cancelled(log: Log, clock: FakeClock) -> None:
    scene = await prepared_scene(log, clock, Policy(expires_in_s=600))
    await jump(log, clock)
    assert (await scene.runner.cancel("run-1")).run.status is Status.CANCELLED


async def test_an_enrolment_behind_a_clock_jump_is_refused_and_not_recorded_as_too_late(
    log: Log, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    challenge = await approver_challenge(log, "carol", CAROL.public, valid_for_s=600, clock=clock)
    proof = sign_enrolment(challenge, CAROL)
    seen = interposing(monkeypatch, log, "approver_enrolled", lambda: jump(log, clock))
    with pytest.raises(Refused) as raised:
        await enrol_approver(log, proof, kind=ED25519, public=CAROL.public, clock=clock)
    assert (raised.value.code, seen) == ("statement_expired", ["approver_enrolled"])
    assert await flaws(log) == []
