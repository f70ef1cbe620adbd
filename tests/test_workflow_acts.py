"""Effects of a workflow: asked for, decided by people, done once, and told the workflow the same ever after."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import eventlog
from eventlog import Policy, RunContext
from eventlog.errors import (
    ActionConflict,
    ActionFailed,
    ApprovalExpired,
    ApprovalRejected,
    ClaimLost,
    OutcomeUnknown,
    Refused,
    RunConflict,
)
from eventlog.events import ResultRejected, ResumeStarted
from eventlog.log import RunLog
from eventlog.progress import request_of
from eventlog.run import Status
from eventlog.runtime.effects import Call, Report
from eventlog.runtime.failpoints import INTENT_AFTER_COMMIT
from eventlog.testing.clock import FakeClock
from tests.effect_runs import LEASE_S, Asked, Gate, Looking, Receiver, Sending, SlowlyAsked, give_verdict
from tests.workflow_runs import (
    Calls,
    commits_in,
    effect,
    events_of,
    log_until,
    progress_of,
    runner_for,
    tidy,
    types_in,
    until,
    until_logged,
)


@pytest.fixture(autouse=True)
async def leaves_nothing() -> AsyncIterator[None]:
    async with tidy():
        yield


@pytest.fixture
def calls() -> Calls:
    return Calls()


@eventlog.workflow(name="flow")
async def three(run: RunContext) -> Any:
    """Ask for three effects at once."""
    return list(await run.gather(*(run.act("apply", {"number": each}, output=f"place {each}") for each in range(3))))


async def approve(runner: eventlog.Runner, key: str, run_id: str = "run-1", **options: Any) -> eventlog.Outcome:
    """Approve the request of a step as it is now."""
    request = request_of(await runner.state(run_id), key)
    assert request is not None and request.proposal_hash is not None
    return await runner.approve(run_id, request.proposal_hash, request=request.request_id, **options)


class TestApprovals:
    async def test_an_effect_waits_for_a_person_and_is_done_once(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            first = await run.act("apply", {"n": 1}, output="x")
            await run.wait_for_signal("go")
            return [first, await run.act("apply", {"n": 2}, output="x")]

        runner = runner_for(log, clock, flow, actions=[effect(calls)])
        outcome = await runner.start(flow, "run-1")
        assert outcome.status == "WAITING_FOR_USER" and not calls.names
        with pytest.raises(Refused) as refusal:
            await runner.resume("run-1")
        assert refusal.value.code == "approval_required"
        assert (await types_in(log))[-1] == "resume_rejected"
        await approve(runner, "apply")
        await runner.resume("run-1")
        await runner.signal("run-1", "go")
        await runner.resume("run-1")
        await approve(runner, "apply#2")
        outcome = await runner.resume("run-1")
        assert outcome.value == [{"done": {"n": 1}}, {"done": {"n": 2}}]
        assert calls.names == ["apply", "apply"]
        keys = {event.op_key for event in await events_of(log) if isinstance(event, ResumeStarted)}
        assert len(keys) == 2

    async def test_of_three_pending_requests_only_the_approved_one_runs(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        """run-06: each has an id of its own; the other two stay pending and are not asked again."""
        runner = runner_for(log, clock, three, actions=[effect(calls)])
        outcome = await runner.start(three, "run-1")
        ids = [request.request_id for request in outcome.requests]
        assert ids == ["approval:run-1:apply", "approval:run-1:apply#2", "approval:run-1:apply#3"]
        request = outcome.requests[1]
        with pytest.raises(Refused) as refusal:
            await runner.approve("run-1", outcome.requests[0].proposal_hash or "", request=request.request_id)
        assert refusal.value.code == "proposal_hash_mismatch"
        outcome = await approve(runner, "apply#2")
        assert outcome.status == "WAITING_FOR_USER"
        outcome = await runner.resume("run-1")
        assert calls.names == ["apply"] and outcome.status == "WAITING_FOR_USER"
        assert [each.request_id for each in outcome.requests] == [ids[0], ids[2]]
        assert list(progress_of(outcome.run).pending_writes()) == ["apply#2"]
        assert (await types_in(log)).count("proposal_recorded") == 3
        await approve(runner, "apply")
        await approve(runner, "apply#3")
        outcome = await runner.resume("run-1")
        assert outcome.value == [{"done": {"number": each}} for each in range(3)]
        assert calls.names == ["apply"] * 3
        assert commits_in(await events_of(log)) == [("apply", "apply#2", "apply#3")]

    async def test_an_approval_counts_for_one_request_of_one_run(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return await run.act("apply", {}, output="x")

        runner = runner_for(log, clock, flow, actions=[effect(calls)])
        for run_id in ("run-1", "run-2"):
            await runner.start(flow, run_id)
        await approve(runner, "apply", "run-1")
        with pytest.raises(Refused) as refusal:
            await runner.resume("run-2")
        assert refusal.value.code == "approval_required"
        assert (await runner.resume("run-1")).status == "COMPLETED"
        with pytest.raises(Refused):
            await approve(runner, "apply", "run-1")
        assert calls.names == ["apply"]

    async def test_a_policy_that_approves_by_rule_lets_the_run_go_on_at_once(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        policies = {"apply": Policy(auto=lambda proposal: bool(proposal.args["number"] < 2))}
        runner = runner_for(log, clock, three, actions=[effect(calls)], policies=policies)
        outcome = await runner.start(three, "run-1")
        assert calls.names == ["apply", "apply"]
        assert [request.step for request in outcome.requests] == ["apply#3"]

    async def test_two_people_have_to_agree_where_the_policy_says_so(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return await run.act("apply", {}, output="x")

        policies = {"apply": Policy(required=2)}
        runner = runner_for(log, clock, flow, actions=[effect(calls)], policies=policies)
        await runner.start(flow, "run-1")
        await approve(runner, "apply", actor="ann")
        with pytest.raises(Refused):
            await runner.resume("run-1")
        await approve(runner, "apply", actor="bob")
        assert (await runner.resume("run-1")).status == "COMPLETED"
        assert calls.names == ["apply"]

    async def test_an_approval_that_comes_while_the_run_is_driven_is_used_by_that_drive(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        gate = Gate()

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return list(await run.gather(run.step("slow", gate.pass_through), run.act("apply", {}, output="x")))

        runner = runner_for(log, clock, flow, actions=[effect(calls)])
        task = asyncio.create_task(runner.start(flow, "run-1"))
        await until_logged(log, "proposal_recorded")
        await approve(runner, "apply")
        await until(lambda: bool(calls.names))
        gate.open()
        assert (await task).value == [None, {"done": {}}]

    async def test_an_approval_that_is_revoked_is_waited_for_again(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return await run.act("apply", {}, output="x")

        runner = runner_for(log, clock, flow, actions=[effect(calls)])
        await runner.start(flow, "run-1")
        await approve(runner, "apply")
        await runner.revoke("run-1", request="approval:run-1:apply")
        with pytest.raises(Refused) as refusal:
            await runner.resume("run-1")
        assert refusal.value.code == "approval_required" and not calls.names

    async def test_one_that_is_revoked_just_before_the_act_does_not_fail_the_run(
        self, clock: FakeClock, calls: Calls, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The intent is decided on, and the approval is gone before it is written."""

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return await run.act("apply", {}, output="x")

        async with eventlog.open("memory:", clock=clock) as log:
            runner = runner_for(log, clock, flow, actions=[effect(calls)])
            await runner.start(flow, "run-1")
            await approve(runner, "apply")
            append = log.append_reserved

            async def late(appends: Any, **options: Any) -> Any:
                if any(event.type == "resume_started" for event in appends[0].events):
                    monkeypatch.undo()
                    await runner_for(log, clock).revoke("run-1")
                return await append(appends, **options)

            monkeypatch.setattr(log, "append_reserved", late)
            outcome = await runner.resume("run-1")
            assert outcome.status == "WAITING_FOR_USER" and not calls.names
            await approve(runner, "apply")
            assert (await runner.resume("run-1")).status == "COMPLETED"
            assert calls.names == ["apply"]

    async def test_an_action_that_nobody_registered_is_refused_before_anything_is_asked(
        self, log: RunLog, clock: FakeClock
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return await run.act("apply", {}, output="x")

        with pytest.raises(Refused) as refusal:
            await runner_for(log, clock, flow).start(flow, "run-1")
        assert refusal.value.code == "unknown_action"
        assert await types_in(log) == ["checkpoint_saved", "run_claimed", "resume_rejected", "checkpoint_saved"]
        runner = runner_for(log, clock, flow, actions=[effect(Calls())])
        assert (await runner.resume("run-1")).status == "WAITING_FOR_USER"


class TestOtherDecisions:
    @staticmethod
    def flow(told: list[Any]) -> eventlog.Workflow:
        @eventlog.workflow(name="flow")
        async def flow(run: RunContext) -> Any:
            try:
                value = await run.act("apply", {"n": 1}, output="x")
            except (ApprovalRejected, ApprovalExpired, ActionFailed, ActionConflict, OutcomeUnknown) as error:
                told.append(error)
                value = error.code
            await run.wait_for_signal("go")
            return value

        return flow

    async def test_a_rejection_is_told_with_who_and_why_live_and_on_replay(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        told: list[Any] = []
        flow = self.flow(told)
        runner = runner_for(log, clock, flow, actions=[effect(calls)])
        outcome = await runner.start(flow, "run-1")
        await runner.reject("run-1", outcome.requests[0].proposal_hash or "", reason="too risky", actor="ann")
        await runner.resume("run-1")
        await runner.signal("run-1", "go")
        assert (await runner.resume("run-1")).value == "approval_rejected"
        assert not calls.names
        live, replayed = told
        assert isinstance(live, ApprovalRejected) and (live.reason, live.actor) == ("too risky", "ann")
        assert str(live) == str(replayed) and live.details == replayed.details
        assert commits_in(await events_of(log)) == [("apply",)]

    async def test_a_rejection_that_nobody_handles_ends_the_run_and_is_final(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return await run.act("apply", {}, output="x")

        runner = runner_for(log, clock, flow, actions=[effect(calls)])
        outcome = await runner.start(flow, "run-1")
        proposal_hash = outcome.requests[0].proposal_hash or ""
        await runner.reject("run-1", proposal_hash)
        assert (await runner.resume("run-1")).status == "REJECTED"
        with pytest.raises(Refused) as refusal:
            await runner.resume("run-1")
        assert refusal.value.code == "approval_rejected"
        with pytest.raises(Refused) as refusal:
            await runner.approve("run-1", proposal_hash)
        assert refusal.value.code == "approval_not_pending"
        with pytest.raises(Refused) as refusal:
            await runner.start(flow, "run-1")
        assert refusal.value.code == "run_exists" and not calls.names

    async def test_a_request_that_nobody_decides_on_in_time_is_told_as_expired(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        told: list[Any] = []
        flow = self.flow(told)
        policies = {"apply": Policy(expires_in_s=60)}
        runner = runner_for(log, clock, flow, actions=[effect(calls)], policies=policies)
        outcome = await runner.start(flow, "run-1")
        assert outcome.run.waiting is not None and outcome.run.waiting.due_us is not None
        clock.advance(61)
        outcome = await runner.resume("run-1")
        assert (await types_in(log)).count("approval_expired") == 1
        await runner.signal("run-1", "go")
        assert (await runner.resume("run-1")).value == "approval_expired"
        assert isinstance(told[0], ApprovalExpired) and str(told[0]) == str(told[1])
        assert not calls.names

    async def test_one_that_expired_and_is_not_handled_ends_the_run_as_expired(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        policies = {"apply": Policy(expires_in_s=60)}
        runner = runner_for(log, clock, three, actions=[effect(calls)], policies=policies)
        await runner.start(three, "run-1")
        clock.advance(61)
        await runner.expire("run-1")
        assert (await runner.resume("run-1")).status == "EXPIRED"
        with pytest.raises(Refused) as refusal:
            await runner.resume("run-1")
        assert refusal.value.code == "approval_expired" and not calls.names

    async def test_what_a_person_edited_is_what_runs_and_replay_knows_it(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        told: list[Any] = []
        flow = self.flow(told)
        runner = runner_for(log, clock, flow, actions=[effect(calls)])
        outcome = await runner.start(flow, "run-1")
        old = outcome.requests[0]
        outcome = await runner.edit("run-1", args={"n": 2}, approves=True, actor="ann")
        with pytest.raises(Refused):
            await runner.approve("run-1", old.proposal_hash or "", request=old.request_id)
        outcome = await runner.resume("run-1")
        assert outcome.status == "WAITING"
        await runner.signal("run-1", "go")
        outcome = await runner.resume("run-1")
        assert outcome.value == {"done": {"n": 2}} and not told and calls.names == ["apply"]
        request = progress_of(outcome.run).requests["apply"]
        assert (request.request_id, request.superseded) == (
            "approval:run-1:apply#edit-1",
            ("approval:run-1:apply",),
        )

    async def test_an_edit_into_a_gated_action_waits_for_its_own_approval(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        """run-20"""
        told: list[Any] = []
        flow = self.flow(told)
        policies = {"gated": Policy(required=2, roles=("admin",))}
        actions = [effect(calls), effect(calls, "gated")]
        runner = runner_for(log, clock, flow, actions=actions, policies=policies)
        await runner.start(flow, "run-1")
        await runner.edit("run-1", action="gated", approves=True, actor="ann", roles=("admin",))
        with pytest.raises(Refused):
            await runner.resume("run-1")
        assert not calls.names
        request = request_of(await runner.state("run-1"), "apply")
        assert request is not None and request.status is Status.WAITING_FOR_USER
        await approve(runner, "apply", actor="bob", roles=("admin",))
        await runner.resume("run-1")
        assert calls.names == ["gated"]


class TestOutcomes:
    async def test_an_effect_that_failed_for_good_is_told_and_one_that_did_not_is_tried_again(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        @eventlog.action("apply")
        async def apply(call: eventlog.Call) -> Any:
            calls.names.append(call.op_key)
            if len(calls.names) == 1:
                raise ActionFailed("action_failed", "refused at the door")
            return "done"

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return await run.act("apply", {}, output="x")

        policies = {"apply": Policy(auto=True)}
        runner = runner_for(log, clock, flow, actions=[apply], policies=policies)
        outcome = await runner.start(flow, "run-1")
        assert outcome.status == "FAILED" and outcome.failure is not None
        assert outcome.failure.code == "action_failed"
        assert (await runner.resume("run-1")).value == "done"
        assert len(calls.names) == 2 and len(set(calls.names)) == 1

    async def test_a_failure_that_says_1_and_not_true_of_being_final_does_not_leave_an_open_intent_behind(
        self, log: RunLog, clock: FakeClock
    ) -> None:
        @eventlog.action("apply", promise="opaque")
        async def apply(call: Call) -> None:
            raise ActionFailed("mailbox_full", "nothing has happened", is_final=1)  # type: ignore[arg-type]

        @eventlog.workflow
        async def tells(run: RunContext) -> str:
            try:
                await run.act("apply", {}, output="there")
            except ActionFailed as error:
                return f"{error.code} {error.is_final}"
            return "done"

        runner = runner_for(log, clock, tells, actions=[apply], policies={"apply": Policy(auto=True)})
        assert (await runner.start(tells, "run-1")).value == "mailbox_full True"
        assert (await types_in(log)).count("action_failed") == 1

    @pytest.mark.parametrize("verdict", ["executed", "not_executed", "abandoned"])
    async def test_an_outcome_that_nobody_knows_waits_for_a_person(
        self, log: RunLog, clock: FakeClock, calls: Calls, verdict: str
    ) -> None:
        @eventlog.action("apply", promise="opaque")
        async def apply(call: eventlog.Call) -> Any:
            calls.names.append(call.op_key)
            if len(calls.names) == 1:
                raise TimeoutError("no answer")
            return "done now"

        told: list[Any] = []
        flow = TestOtherDecisions.flow(told)
        policies = {"apply": Policy(auto=True)}
        runner = runner_for(log, clock, flow, actions=[apply], policies=policies)
        outcome = await runner.start(flow, "run-1")
        assert outcome.status == "OUTCOME_UNKNOWN" and outcome.run.waiting is not None
        assert outcome.run.waiting.type == "outcome"
        with pytest.raises(Refused) as refusal:
            await runner.resume("run-1")
        assert refusal.value.code == "outcome_unknown" and len(calls.names) == 1
        result = "done then" if verdict == "executed" else None
        await give_verdict(runner, verdict, evidence="we looked", result=result)
        await runner.resume("run-1")
        await runner.signal("run-1", "go")
        outcome = await runner.resume("run-1")
        expected = {"executed": "done then", "not_executed": "done now", "abandoned": "outcome_unknown"}
        assert outcome.value == expected[verdict]
        assert len(calls.names) == (2 if verdict == "not_executed" else 1) and len(set(calls.names)) == 1

    async def test_a_run_goes_on_behind_the_verdict_on_an_effect_in_which_its_process_died(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return [await run.act("apply", {}, output="x"), await run.step("after", calls("after"))]

        def runner(log: RunLog) -> eventlog.Runner:
            policies = {"apply": Policy(auto=True)}
            return runner_for(log, clock, flow, actions=[effect(calls)], policies=policies)

        await runner(log).start(flow, "run-1")
        calls.forget()
        (begun,) = [event.position async for event in log.read_all() if event.type == "resume_started"]
        async with log_until(log, begun, clock) as left:
            settled = await give_verdict(runner(left), "executed", evidence="it is there", result="done then")
            assert settled.status == "RUNNING" and progress_of(settled.run).owner is None
            assert (await runner(left).resume("run-1")).value == ["done then", "after"]
            assert calls.names == ["after"]

    @pytest.mark.parametrize(("action", "result"), [(Looking, "action_recovered"), (Asked, "action_recovered")])
    async def test_an_effect_whose_result_was_lost_is_found_and_not_repeated(
        self, log: RunLog, clock: FakeClock, action: Any, result: str
    ) -> None:
        """run-10: the drive breaks off between the effect and its result."""
        receiver = Receiver()
        acting = action(receiver)

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return await run.act("send", {}, output="x")

        class Dead(BaseException):
            pass

        def reach(point: str) -> None:
            if point == "effect.after" and len(receiver.effects) == 1 and not died:
                died.append(point)
                raise Dead

        died: list[str] = []
        policies = {"send": Policy(auto=True)}
        runner = runner_for(log, clock, flow, actions=[acting], policies=policies, reach=reach)
        with pytest.raises(Dead):
            await runner.start(flow, "run-1")
        assert died and len(receiver.effects) == 1
        outcome = await runner_for(log, clock, flow, actions=[action(receiver)], policies=policies).resume("run-1")
        assert outcome.value == {"number": 1} and len(receiver.effects) == 1
        assert result in await types_in(log)

    async def test_a_sibling_of_an_unknown_outcome_is_not_lost_and_not_done_again(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        @eventlog.action("apply", promise="opaque")
        async def apply(call: eventlog.Call) -> Any:
            calls.names.append("apply")
            raise TimeoutError("no answer")

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return list(await run.gather(run.act("apply", {}, output="x"), run.step("a", calls("a"))))

        runner = runner_for(log, clock, flow, actions=[apply], policies={"apply": Policy(auto=True)})
        outcome = await runner.start(flow, "run-1")
        assert outcome.status == "OUTCOME_UNKNOWN"
        assert list(progress_of(outcome.run).pending_writes()) == ["a"]
        await runner.reconcile("run-1", "executed", evidence="it is there", result=1)
        assert (await runner.resume("run-1")).value == [1, "a"]
        assert calls.counts() == {"apply": 1, "a": 1}


class TestTwoDrives:
    async def test_of_two_who_resume_one_is_refused_and_has_changed_nothing(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        gate = Gate()

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            await run.wait_for_signal("go")
            return await run.step("slow", gate.pass_through)

        one, two = (runner_for(log, clock, flow) for _ in range(2))
        await one.start(flow, "run-1")
        await one.signal("run-1", "go")
        task = asyncio.create_task(one.resume("run-1"))
        await gate.wait_until_reached()
        before = await types_in(log)
        with pytest.raises(RunConflict):
            await two.resume("run-1")
        assert await types_in(log) == before
        gate.open()
        assert (await task).status == "COMPLETED"

    async def test_two_who_resume_at_the_same_time_drive_it_once(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            await run.wait_for_signal("go")
            return await run.step("a", calls("a"))

        runners = [runner_for(log, clock, flow) for _ in range(5)]
        await runners[0].start(flow, "run-1")
        await runners[0].signal("run-1", "go")
        ends = await asyncio.gather(*(runner.resume("run-1") for runner in runners), return_exceptions=True)
        assert calls.names == ["a"]
        assert all(isinstance(end, RunConflict) or end.status == "COMPLETED" for end in ends)  # type: ignore[union-attr]
        assert (await types_in(log)).count("run_completed") == 1

    async def test_an_overruled_drive_records_nothing_and_what_its_effect_came_to_is_kept(
        self, log: RunLog, clock: FakeClock
    ) -> None:
        receiver = Receiver(is_refusing=True)
        slow, quick = Sending(receiver), Looking(receiver)
        gate = slow.gate = Gate()

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return await run.act("send", {}, output="x")

        policies = {"send": Policy(auto=True)}
        one = runner_for(log, clock, flow, actions=[slow], policies=policies)
        two = runner_for(log, clock, flow, actions=[quick], policies=policies)
        task = asyncio.create_task(one.start(flow, "run-1"))
        await gate.wait_until_reached()
        clock.advance(LEASE_S + 1)
        assert (await two.resume("run-1")).value == {"number": 1}
        before = len(await types_in(log))
        gate.open()
        with pytest.raises(ClaimLost):
            await task
        (late,) = await events_of(log, after=before)
        assert isinstance(late, ResultRejected)
        assert (late.rejected, late.reason, late.step) == ("action_executed", "claim_lost", "send")
        assert {event.correlation_id for event in (await log.read_stream("run:run-1")).events} == {"run-1"}
        assert len(receiver.effects) == 1

    async def test_a_step_of_an_overruled_drive_is_not_recorded(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        gate = Gate()

        async def work() -> str:
            calls.names.append("work")
            if calls.count("work") == 1:
                await gate.pass_through()
                return "late"
            return "in time"

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return await run.step("work", work)

        one, two = (runner_for(log, clock, flow) for _ in range(2))
        task = asyncio.create_task(one.start(flow, "run-1"))
        await gate.wait_until_reached()
        clock.advance(LEASE_S + 1)
        assert (await two.resume("run-1")).value == "in time"
        before = await types_in(log)
        gate.open()
        with pytest.raises(ClaimLost):
            await task
        assert await types_in(log) == before


class TestLateAnswers:
    async def test_a_drive_does_not_lose_the_run_to_itself_by_asking_what_became_of_an_effect(
        self, log: RunLog, clock: FakeClock
    ) -> None:
        class Unanswered(SlowlyAsked):
            async def execute(self, call: Call) -> Report:
                self.receiver.receive(call)
                raise TimeoutError("no answer")

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return await run.act("send", {}, output="x")

        action = Unanswered(Receiver())
        runner = runner_for(log, clock, flow, actions=[action], policies={"send": Policy(auto=True)})
        await runner.start(flow, "run-1")
        resuming = asyncio.create_task(runner.resume("run-1"))
        await action.question.wait_until_reached()
        session = runner.workflows._drives["run-1"].session
        await runner.signal("run-1", "hello")
        await until(lambda: session.changes > 0)
        action.question.open()
        assert (await resuming).value == {"number": 1}
        assert "result_rejected" not in await types_in(log)

    async def test_a_store_that_is_too_slow_for_the_lease_ends_the_call_and_not_the_run(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        stands_still = 5

        def reach(point: str) -> None:
            nonlocal stands_still
            if point == INTENT_AFTER_COMMIT and stands_still:
                stands_still -= 1
                clock.advance(LEASE_S / 2 + 1)

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return await run.act("apply", {}, output="x")

        policies = {"apply": Policy(auto=True)}
        runner = runner_for(log, clock, flow, actions=[effect(calls)], policies=policies, reach=reach)
        with pytest.raises(ActionFailed) as failure:
            await runner.start(flow, "run-1")
        assert (failure.value.code, stands_still) == ("lease_used_up", 2)
        assert (await runner.resume("run-1")).status == "COMPLETED"
        assert (stands_still, calls.names) == (0, ["apply"])
