"""Roles of approvers: who signs does not say of himself what he may decide, where that is bound to his key."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

import eventlog
from eventlog.errors import InvalidInput
from eventlog.run import Status
from eventlog.runtime.approvers import approver_keys
from eventlog.runtime.policies import Policy
from eventlog.signing.approver_keys import ApproverKey
from eventlog.stores import MemoryLog
from eventlog.testing.clock import FakeClock
from tests.signed_runs import ANNA, BOB, PAY, Scene, enrol
from tests.test_verify_intents import reasons

CFO = ("cfo",)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def log(clock: FakeClock) -> AsyncIterator[MemoryLog]:
    async with eventlog.open("memory:", clock=clock) as opened:
        yield opened


async def asked(log: MemoryLog, clock: FakeClock, level: int, bound: tuple[str, ...] = ()) -> Scene:
    """Return a scene in which a request takes a chief financial officer; anna's key is bound to these roles."""
    scene = Scene(log, clock, Policy(level=level, roles=CFO))
    await enrol(log, "anna", ANNA, clock, roles=bound)
    await enrol(log, "bob", BOB, clock)
    await scene.ask()
    return scene


@pytest.mark.parametrize("claimed", [CFO, (), ("ops", "cfo")])
async def test_a_role_that_an_approver_claims_himself_does_not_count_at_level_2(
    log: MemoryLog, clock: FakeClock, claimed: tuple[str, ...]
) -> None:
    scene = await asked(log, clock, 2)
    assert (await scene.refusal(await scene.signed(roles=claimed))).code == "role_required"
    assert await reasons(log) == []


async def test_a_role_that_the_enrolment_binds_counts(log: MemoryLog, clock: FakeClock) -> None:
    scene = await asked(log, clock, 2, ("ops", "cfo"))
    assert (await scene.approve(await scene.signed(roles=CFO))).status is Status.APPROVED
    assert (await scene.runner.resume("run-1")).run.status is Status.COMPLETED
    assert await reasons(log) == []


async def test_a_bound_role_that_is_not_claimed_does_not_count(log: MemoryLog, clock: FakeClock) -> None:
    """A person says as what he decides."""
    scene = await asked(log, clock, 2, CFO)
    assert (await scene.refusal(await scene.signed())).code == "role_required"


@pytest.mark.parametrize("level", [0, 1])
async def test_below_level_2_a_claimed_role_counts_unless_the_key_is_bound_to_others(
    log: MemoryLog, clock: FakeClock, level: int
) -> None:
    scene = await asked(log, clock, level, ("ops",))
    assert (await scene.refusal(await scene.signed(roles=CFO))).code == "role_required"
    assert (await scene.approve(await scene.signed(approver="bob", roles=CFO))).status is Status.APPROVED
    assert await reasons(log) == []


async def test_anybody_may_say_no_whatever_his_roles(log: MemoryLog, clock: FakeClock) -> None:
    scene = await asked(log, clock, 2)
    envelope = await scene.signed(decision="reject")
    outcome = await scene.runner.reject("run-1", PAY.hash, envelope=envelope)
    assert outcome.run.status is Status.REJECTED


async def test_a_check_that_let_every_claim_count_would_be_seen(
    log: MemoryLog, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = await asked(log, clock, 2)

    def every(self: ApproverKey, claimed: Any, level: int) -> tuple[str, ...]:
        return tuple(claimed)

    with monkeypatch.context() as patch:
        patch.setattr(ApproverKey, "counting_roles", every)
        assert (await scene.approve(await scene.signed(roles=CFO))).status is Status.APPROVED
    assert await reasons(log) == ["role_required"]
    assert (await scene.refused_resume()).code == "role_required"


async def test_roles_are_kept_with_the_key_each_once(log: MemoryLog, clock: FakeClock) -> None:
    await enrol(log, "anna", ANNA, clock, roles=["cfo", "ops", "cfo"])
    (key,) = (await approver_keys(log)).values()
    assert key.roles == ("cfo", "ops")
    with pytest.raises(InvalidInput):
        await enrol(log, "bob", BOB, clock, roles=["\n"])
