"""Runs whose approvals are signed: approvers with keys, a log that has enrolled them, and what one has signed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest
from msgspec.structs import replace

import eventlog
from eventlog.events import Envelope
from eventlog.log import RecordedEvent, RunLog
from eventlog.proposal import Proposal, propose
from eventlog.run import Run
from eventlog.runtime.approval_statements import approval_statement, sign_approval
from eventlog.runtime.approvers import approver_challenge, enrol_approver, sign_enrolment
from eventlog.runtime.policies import Policy
from eventlog.signing.approver_keys import ED25519, ApproverKey
from eventlog.signing.ed25519 import PrivateKey
from eventlog.signing.statements import ApprovalStatement
from eventlog.stores import MemoryLog, SqliteLog
from eventlog.testing.clock import FakeClock
from tests.effect_runs import Receiver, Sending, runner_of

__all__ = [
    "ANNA",
    "BOB",
    "PAY",
    "SIGNED",
    "Scene",
    "altered",
    "enrol",
    "events_of",
    "last_event",
    "paying",
    "prepared_scene",
]

ANNA: Final = PrivateKey.from_seed(b"anna" * 8)
BOB: Final = PrivateKey.from_seed(b"bob." * 8)
PAY: Final = propose("pay", {"amount": "25"}, "account-7")
SIGNED: Final = Policy(level=2)


class Scene:
    """A log in which anna and bob are enrolled, with a runner whose action `pay` does what `receiver` counts.

    `make` makes that action; `paying` makes one that only sends.
    """

    def __init__(
        self,
        log: MemoryLog | SqliteLog,
        clock: FakeClock,
        policy: Policy | None = SIGNED,
        make: Callable[[Receiver], Sending] | None = None,
    ) -> None:
        self.log: Final = log
        self.clock: Final = clock
        self.receiver: Final = Receiver()
        self.policies: Final = {} if policy is None else {"pay": policy}
        self.action: Final = (make or paying)(self.receiver)
        self.runner: Final = runner_of(log, clock, self.action, policies=self.policies)

    async def ask(self, run_id: str = "run-1", proposal: Proposal = PAY) -> None:
        """Propose a run, as the agent."""
        await self.runner.propose(run_id, proposal, actor="agent")

    async def statement(self, run_id: str = "run-1", approver: str = "anna", **more: Any) -> ApprovalStatement:
        """Return what an approver would sign now."""
        return await approval_statement(self.log, run_id, approver=approver, clock=self.clock, **more)

    async def signed(
        self, run_id: str = "run-1", approver: str = "anna", key: PrivateKey | None = None, **more: Any
    ) -> Envelope:
        """Return what an approver has signed."""
        key = key or {"anna": ANNA, "bob": BOB}[approver]
        return sign_approval(await self.statement(run_id, approver, **more), key)

    async def approve(self, envelope: Envelope, run_id: str = "run-1", digest: str = PAY.hash) -> Run:
        """Hand a signed approval in, as whoever runs the agent."""
        return (await self.runner.approve(run_id, digest, envelope=envelope)).run

    async def refusal(self, envelope: Envelope, run_id: str = "run-1", digest: str = PAY.hash) -> eventlog.Refused:
        """Hand a signed approval in that is refused; return the refusal. It is the last event of the run as well."""
        with pytest.raises(eventlog.Refused) as raised:
            await self.approve(envelope, run_id, digest)
        event = await last_event(self.log, run_id)
        assert (event.type, event.data.reason) == ("transition_rejected", raised.value.code)
        assert event.data.attempted_decision == "approve"
        return raised.value

    async def refused_resume(self, run_id: str = "run-1") -> eventlog.Refused:
        """Resume a run and see it refused without any effect; the refusal is the last event of the run as well."""
        before = self.receiver.requests
        with pytest.raises(eventlog.Refused) as raised:
            await self.runner.resume(run_id)
        event = await last_event(self.log, run_id)
        assert (event.type, event.data.reason) == ("resume_rejected", raised.value.code)
        assert self.receiver.requests == before
        return raised.value


def paying(receiver: Receiver) -> Sending:
    """Return an action `pay` that only sends."""
    action = Sending(receiver)
    action.name = "pay"
    return action


async def enrol(
    log: RunLog, approver: str, key: PrivateKey, clock: FakeClock | None = None, *, roles: Sequence[str] = ()
) -> ApproverKey:
    """Enrol a key by a proof that its holder makes."""
    challenge = await approver_challenge(log, approver, key.public, clock=clock)
    proof = sign_enrolment(challenge, key)
    return await enrol_approver(log, proof, kind=ED25519, public=key.public, roles=roles, clock=clock)


async def prepared_scene(
    log: MemoryLog | SqliteLog,
    clock: FakeClock,
    policy: Policy | None = SIGNED,
    *run_ids: str,
    make: Callable[[Receiver], Sending] | None = None,
) -> Scene:
    """Return a scene with both approvers and these runs, `run-1` if none is named."""
    scene = Scene(log, clock, policy, make)
    await enrol(log, "anna", ANNA, clock)
    await enrol(log, "bob", BOB, clock)
    for run_id in run_ids or ("run-1",):
        await scene.ask(run_id)
    return scene


def altered(statement: ApprovalStatement, key: PrivateKey = ANNA, **fields: Any) -> Envelope:
    """Return the envelope of a statement that says something else in these fields, signed all the same."""
    return sign_approval(replace(statement, **fields), key)


async def events_of(log: RunLog, run_id: str = "run-1") -> list[RecordedEvent]:
    """Return the events of a run."""
    return list((await log.read_stream(f"run:{run_id}")).events)


async def last_event(log: RunLog, run_id: str = "run-1") -> RecordedEvent:
    """Return the last event of a run."""
    return (await events_of(log, run_id))[-1]
