"""Runs that start runs: a child that is waited for, a run that takes the work over, a family that is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import eventlog
from eventlog import Policy, RunContext
from eventlog.errors import InvalidInput, Refused, StepFailed
from eventlog.events import CheckpointSaved, ChildFinished, ChildStarted, run_stream
from eventlog.log import RunLog
from eventlog.progress import is_workflow
from eventlog.testing.clock import FakeClock
from tests.effect_runs import Gate
from tests.workflow_runs import (
    Calls,
    effect,
    events_of,
    log_until,
    progress_of,
    runner_for,
    tidy,
    types_in,
    until_logged,
)


@pytest.fixture(autouse=True)
async def leaves_nothing() -> AsyncIterator[None]:
    async with tidy():
        yield


@pytest.fixture
def calls() -> Calls:
    return Calls()


@eventlog.workflow(name="inner")
async def inner(run: RunContext, number: int) -> Any:
    """Ask for an effect, and return what it came to."""
    return await run.act("apply", {"number": number}, output="x")


@eventlog.workflow(name="outer")
async def outer(run: RunContext) -> Any:
    """Let two others do it."""
    return list(await run.gather(run.child(inner, 1), run.child(inner, 2)))


async def approve(runner: eventlog.Runner, run_id: str) -> None:
    (request,) = progress_of(await runner.state(run_id)).requests.values()
    await runner.approve(run_id, request.proposal_hash or "")


class TestChildren:
    async def test_a_parent_returns_what_its_child_returned_and_both_streams_say_so(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        @eventlog.workflow
        async def single(run: RunContext) -> Any:
            return await run.child(inner, 7)

        runner = runner_for(log, clock, single, inner, actions=[effect(calls)], policies={"apply": Policy(auto=True)})
        outcome = await runner.start(single, "run-1")
        assert outcome.value == {"done": {"number": 7}}
        parent = (await log.read_stream("run:run-1")).events
        child = (await log.read_stream("run:run-1/inner")).events
        (started,) = [event for event in parent if isinstance(event.data, ChildStarted)]
        (finished,) = [event for event in parent if isinstance(event.data, ChildFinished)]
        assert child[0].causation_id == started.event_id
        assert finished.causation_id == child[-1].event_id and child[-1].type == "run_completed"
        assert isinstance(child[0].data, CheckpointSaved) and child[0].data.parent is not None
        assert (child[0].data.parent.run_id, child[0].data.parent.step) == ("run-1", "inner")
        assert {event.correlation_id for event in (*parent, *child)} == {"run-1"}

    async def test_a_child_that_waits_lets_its_parent_wait_and_neither_is_started_again(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        """run-34: the child's request is answered in another process, and the parent goes on with its result."""
        action = effect(calls)
        outcome = await runner_for(log, clock, outer, inner, actions=[action]).start(outer, "run-1")
        assert outcome.status == "WAITING"
        assert {wait.child_run_id for wait in progress_of(outcome.run).waits} == {"run-1/inner", "run-1/inner#2"}
        runner = runner_for(log, clock, outer, inner, actions=[action])
        await approve(runner, "run-1/inner#2")
        assert (await runner.resume("run-1/inner#2")).status == "COMPLETED"
        assert progress_of(await runner.state("run-1")).is_ready
        outcome = await runner.resume("run-1")
        assert outcome.status == "WAITING"
        assert list(progress_of(outcome.run).pending_writes()) == ["inner#2"]
        await approve(runner, "run-1/inner")
        outcome = await runner.resume("run-1")  # drives the child, as it can go on
        assert outcome.value == [{"done": {"number": 1}}, {"done": {"number": 2}}]
        assert calls.names == ["apply", "apply"]
        assert (await types_in(log)).count("child_started") == 2

    async def test_an_approval_of_one_childs_request_is_no_other_childs(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        runner = runner_for(log, clock, outer, inner, actions=[effect(calls)])
        await runner.start(outer, "run-1")
        (one,) = progress_of(await runner.state("run-1/inner")).requests.values()
        with pytest.raises(Refused):
            await runner.approve("run-1/inner#2", one.proposal_hash or "")
        with pytest.raises(Refused):
            await runner.approve("run-1/inner#2", one.proposal_hash or "", request=one.request_id)
        with pytest.raises(Refused):
            await runner.resume("run-1/inner#2")
        assert not calls.names

    @pytest.mark.parametrize("attempts", [1, 3])
    async def test_a_child_that_failed_is_told_as_a_step_and_tried_again_with_its_parent(
        self, log: RunLog, clock: FakeClock, calls: Calls, attempts: int
    ) -> None:
        told: list[StepFailed] = []

        @eventlog.workflow
        async def broken(run: RunContext) -> Any:
            await run.step("before", calls("before"))
            return await run.step("broken", calls("broken", fails=attempts))

        @eventlog.workflow
        async def parent(run: RunContext) -> Any:
            try:
                return await run.child(broken)
            except StepFailed as error:
                told.append(error)
                raise

        runner = runner_for(log, clock, parent, broken)
        outcome = await runner.start(parent, "run-1")
        for _ in range(attempts):
            assert outcome.status == "FAILED" and told[-1].step == "broken"
            assert "broken is out of order" in str(told[-1])
            outcome = await runner.resume("run-1")
        assert outcome.value == "broken" and len(told) == attempts
        assert calls.counts() == {"before": 1, "broken": attempts + 1}

    async def test_a_failure_of_a_child_that_the_parent_handled_stays_as_it_was(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        @eventlog.workflow
        async def broken(run: RunContext) -> Any:
            return await run.step("broken", calls("broken", fails=1))

        @eventlog.workflow
        async def parent(run: RunContext) -> Any:
            try:
                value = await run.child(broken)
            except StepFailed as error:
                value = error.code
            await run.wait_for_signal("go")
            return value

        runner = runner_for(log, clock, parent, broken)
        assert (await runner.start(parent, "run-1")).status == "WAITING"
        assert (await runner.resume("run-1/broken")).value == "broken"
        await runner.signal("run-1", "go")
        assert (await runner.resume("run-1")).value == "step_failed"

    async def test_a_rejection_in_a_child_is_final_for_the_parent_too(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        @eventlog.workflow
        async def single(run: RunContext) -> Any:
            return await run.child(inner, 1)

        runner = runner_for(log, clock, single, inner, actions=[effect(calls)])
        await runner.start(single, "run-1")
        (request,) = progress_of(await runner.state("run-1/inner")).requests.values()
        await runner.reject("run-1/inner", request.proposal_hash or "", reason="no")
        for _ in range(3):
            outcome = await runner.resume("run-1")
            assert outcome.status == "FAILED" and outcome.failure is not None
            assert outcome.failure.code == "step_failed"
        assert (await runner.state("run-1/inner")).status == "REJECTED" and not calls.names

    async def test_a_run_that_exists_already_is_no_child_and_that_is_told_the_same_on_replay(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        told: list[StepFailed] = []

        @eventlog.workflow
        async def parent(run: RunContext) -> Any:
            try:
                await run.child(inner, 1, run_id="taken")
            except StepFailed as error:
                told.append(error)
            await run.step("a", calls("a"))
            await run.wait_for_signal("go")
            return "end"

        runner = runner_for(log, clock, parent, inner, actions=[effect(calls)])
        await runner.propose("taken", eventlog.propose("apply", {}, "x"))
        await runner.start(parent, "run-1")
        await runner.signal("run-1", "go")
        assert (await runner.resume("run-1")).value == "end"
        assert str(told[0]) == str(told[1]) and "'taken'" in str(told[0])
        assert not is_workflow((await log.read_stream("run:taken")).events) and calls.names == ["a"]

    async def test_a_child_of_another_workflow_than_before_is_a_divergence(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        numbers = iter([1, 2])

        @eventlog.workflow
        async def parent(run: RunContext) -> Any:
            return await run.child(inner, next(numbers))

        runner = runner_for(log, clock, parent, inner, actions=[effect(calls)])
        await runner.start(parent, "run-1")
        await approve(runner, "run-1/inner")
        before = len(await types_in(log))
        with pytest.raises(Refused) as refusal:
            await runner.resume("run-1")
        assert refusal.value.code == "nondeterministic_replay" and not calls.names
        assert await types_in(log, after=before) == ["run_claimed", "resume_rejected", "checkpoint_saved"]

    async def test_a_child_that_is_no_workflow_or_not_registered_is_refused(
        self, log: RunLog, clock: FakeClock
    ) -> None:
        @eventlog.workflow
        async def parent(run: RunContext) -> Any:
            return await run.child(inner, 1)

        @eventlog.workflow
        async def strange(run: RunContext) -> Any:
            return await run.child(lambda run: 1)  # type: ignore[arg-type]

        runner = runner_for(log, clock, parent, strange)
        with pytest.raises(Refused) as refusal:
            await runner.start(parent, "run-1")
        assert refusal.value.code == "unknown_workflow"
        assert not await types_in(log, "run-1/inner")
        outcome = await runner.start(strange, "run-2")
        assert outcome.failure is not None and outcome.failure.code == "invalid_argument"

    async def test_arguments_of_a_child_that_cannot_be_stored_are_refused_with_their_place(
        self, log: RunLog, clock: FakeClock
    ) -> None:
        places: list[str | None] = []

        @eventlog.workflow
        async def child(run: RunContext, value: Any) -> None: ...

        @eventlog.workflow
        async def parent(run: RunContext) -> Any:
            try:
                await run.child(child, [object()])
            except InvalidInput as error:
                places.append(error.path)
            return await run.child(child, [1], key="again")

        outcome = await runner_for(log, clock, parent, child).start(parent, "run-1")
        assert outcome.status == "COMPLETED" and places == ["$[0][0]"]

    async def test_large_values_go_to_a_child_and_back_beside_the_log(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        @eventlog.workflow
        async def child(run: RunContext, text: str) -> str:
            return text + "!"

        @eventlog.workflow
        async def parent(run: RunContext) -> int:
            return len(await run.child(child, "x" * 70_000))

        assert (await runner_for(log, clock, parent, child).start(parent, "run-1")).value == 70_001
        for run_id in ("run-1", "run-1/child"):
            assert all(len(event.body) < 1000 for event in (await log.read_stream(run_stream(run_id))).events)

    async def test_a_family_converges_wherever_its_log_ends(self, clock: FakeClock, calls: Calls) -> None:
        @eventlog.workflow
        async def leaf(run: RunContext, name: str) -> Any:
            value = await run.step("work", calls(name))
            await run.sleep(10)
            return value

        @eventlog.workflow
        async def middle(run: RunContext) -> Any:
            return list(await run.gather(run.child(leaf, "a", key="a"), run.child(leaf, "b", key="b")))

        @eventlog.workflow
        async def top(run: RunContext) -> Any:
            return await run.child(middle)

        async def drive(log: RunLog, *, is_new: bool) -> eventlog.Outcome:
            runner = runner_for(log, clock, leaf, middle, top)
            outcome = await (runner.start(top, "run-1") if is_new else runner.resume("run-1"))
            if outcome.status == "WAITING":
                clock.advance(11)
                outcome = await runner.resume("run-1")
            return outcome

        async with eventlog.open("memory:", clock=clock) as log:
            assert (await drive(log, is_new=True)).value == ["a", "b"]
            events = [event async for event in log.read_all()]
            assert {event.correlation_id for event in events} == {"run-1"}
            for left in range(1, len(events)):
                if events[left].version == 1 or events[left].type == "child_finished":
                    continue  # it is in one transaction with the event in front of it
                calls.forget()
                done = sum(event.type == "step_completed" for event in events[:left])
                async with log_until(log, left, clock) as short:
                    outcome = await drive(short, is_new=False)
                    assert (outcome.status, outcome.value) == ("COMPLETED", ["a", "b"]), left
                    streams = {event.stream for event in [event async for event in short.read_all()]}
                assert len(calls.names) == 2 - done, left
                assert len(streams) == 4, left


class TestHandOffs:
    async def test_the_other_run_is_recorded_and_not_waited_for(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        @eventlog.workflow
        async def first(run: RunContext) -> Any:
            await run.step("a", calls("a"))
            return await run.hand_off(inner, 1, run_id="next")

        runner = runner_for(log, clock, first, inner, actions=[effect(calls)], policies={"apply": Policy(auto=True)})
        outcome = await runner.start(first, "run-1")
        assert outcome.value == "next" and calls.names == ["a"]
        assert (await runner.state("next")).status == "RUNNING"
        assert (await runner.resume("next")).value == {"done": {"number": 1}}
        assert (await runner.resume("run-1")).value == "next"
        events = [event for run_id in ("run-1", "next") for event in (await log.read_stream(f"run:{run_id}")).events]
        assert {event.correlation_id for event in events} == {"run-1"}
        started = next(event for event in events if event.type == "child_started")
        parent = progress_of(await runner.state("next")).parent
        assert parent is not None and (parent.run_id, parent.relation) == ("run-1", "handoff")
        assert next(event for event in events if event.stream == "run:next").causation_id == started.event_id

    async def test_it_is_not_begun_again_on_replay(self, log: RunLog, clock: FakeClock) -> None:
        @eventlog.workflow
        async def first(run: RunContext) -> Any:
            name = await run.hand_off(inner, 1)
            await run.wait_for_signal("go")
            return name

        runner = runner_for(log, clock, first, inner)
        await runner.start(first, "run-1")
        await runner.signal("run-1", "go")
        assert (await runner.resume("run-1")).value == "run-1/inner"
        assert await types_in(log, "run-1/inner") == ["checkpoint_saved"]


class TestCancel:
    async def test_a_family_is_cancelled_together_and_a_run_that_took_over_is_not(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        @eventlog.workflow
        async def waiting(run: RunContext) -> Any:
            return await run.wait_for_signal("never")

        @eventlog.workflow
        async def middle(run: RunContext) -> Any:
            return await run.child(waiting)

        @eventlog.workflow
        async def top(run: RunContext) -> Any:
            await run.hand_off(waiting, run_id="other")
            return await run.child(middle)

        runner = runner_for(log, clock, waiting, middle, top)
        await runner.start(top, "run-1")
        outcome = await runner.cancel("run-1", reason="enough", actor="ann")
        assert outcome.status == "CANCELLED"
        for run_id in ("run-1", "run-1/middle", "run-1/middle/waiting"):
            assert (await runner.state(run_id)).status == "CANCELLED"
            with pytest.raises(Refused) as refusal:
                await runner.resume(run_id)
            assert refusal.value.code == "cannot_resume" and "CANCELLED" in str(refusal.value)
        assert (await runner.state("other")).status == "RUNNING"

    async def test_a_child_that_is_cancelled_is_told_to_its_parent_for_good(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        runner = runner_for(log, clock, outer, inner, actions=[effect(calls)])
        await runner.start(outer, "run-1")
        await runner.cancel("run-1/inner", reason="not this one")
        await approve(runner, "run-1/inner#2")
        for _ in range(2):
            outcome = await runner.resume("run-1")
            assert outcome.status == "FAILED" and outcome.failure is not None
            assert "not this one" in outcome.failure.message
        assert calls.names == ["apply"]

    async def test_a_child_that_is_driven_here_is_ended_with_its_parent(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        gate = Gate()

        @eventlog.workflow
        async def child(run: RunContext) -> Any:
            await run.step("slow", gate.pass_through)
            return await run.step("after", calls("after"))

        @eventlog.workflow
        async def parent(run: RunContext) -> Any:
            return await run.child(child)

        runner = runner_for(log, clock, parent, child)
        task = asyncio.create_task(runner.start(parent, "run-1"))
        await gate.wait_until_reached()
        await runner.cancel("run-1")
        assert (await task).status == "CANCELLED"
        assert (await runner.state("run-1/child")).status == "CANCELLED"
        assert not calls.names
        assert (await types_in(log, "run-1/child"))[-1] == "run_cancelled"

    @pytest.mark.parametrize("turns", range(0, 60, 4))
    async def test_no_child_is_born_of_a_run_that_was_cancelled(
        self, clock: FakeClock, calls: Calls, turns: int
    ) -> None:
        @eventlog.workflow
        async def child(run: RunContext, number: int) -> Any:
            await run.wait_for_signal("never")

        @eventlog.workflow
        async def parent(run: RunContext) -> Any:
            for number in range(5):
                await run.hand_off(child, number)
            await run.gather(*(run.child(child, number) for number in range(3)))

        async with eventlog.open("memory:", clock=clock) as log:
            runner, other = runner_for(log, clock, parent, child), runner_for(log, clock)
            task = asyncio.create_task(runner.start(parent, "run-1"))
            await until_logged(log, "")
            for _ in range(turns):
                await asyncio.sleep(0)
            await other.cancel("run-1")
            position = (await log.head()).position
            runner.workflows.notify("run-1")
            outcome = await task
            assert outcome.status == "CANCELLED"
            later = [event async for event in log.read_all(after=position)]
            assert not [event for event in later if event.stream == "run:run-1"]
            assert not [event for event in later if event.version == 1]
            for event in await events_of(log):
                if isinstance(event, ChildStarted) and event.relation == "child":
                    assert (await runner.state(event.child_run_id)).status == "CANCELLED"
