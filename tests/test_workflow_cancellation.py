"""Cancelling the caller is not cancelling the run; cancelling the run is final; and no code swallows a pause."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import eventlog
from eventlog import Policy, RunContext, Suspended
from eventlog.errors import Refused, StepFailed
from eventlog.events import CheckpointSaved
from eventlog.log import RunLog
from eventlog.run import Status
from eventlog.testing.clock import FakeClock
from tests.effect_runs import Gate, Receiver, Sending
from tests.workflow_runs import (
    Calls,
    commits_in,
    effect,
    events_of,
    progress_of,
    runner_for,
    state_of,
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


def everything(calls: Calls) -> eventlog.Workflow:
    """Return a workflow with a bit of everything that can be cancelled; it ends without waiting for anybody."""

    @eventlog.workflow(name="child")
    async def child(run: RunContext) -> Any:
        return await run.step("deep", calls("deep"))

    @eventlog.workflow(name="everything")
    async def everything(run: RunContext) -> Any:
        values = [await run.step("one", calls("one"))]
        values += await run.gather(run.step("left", calls("left")), run.step("right", calls("right")), run.child(child))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run.step("own", calls(f"own {each}"), key=each)) for each in "ab"]
        try:
            await run.step("broken", calls("broken", fails=99))
        except StepFailed:
            values.append("handled")
        values += [task.result() for task in tasks]
        values.append(await run.act("apply", {}, output="x"))
        return values

    setattr(everything, "child", child)  # noqa: B010
    return everything


EVERYTHING = ["one", "left", "right", "deep", "handled", "own a", "own b", {"number": 1}]


class TestCaller:
    @pytest.mark.parametrize("turns", [*range(0, 60, 2), *range(60, 200, 9)])
    async def test_the_run_goes_on_wherever_its_caller_was_cancelled(
        self, log: RunLog, clock: FakeClock, calls: Calls, turns: int
    ) -> None:
        flow = everything(calls)
        receiver = Receiver(is_refusing=True)

        def runner() -> eventlog.Runner:
            action = Sending(receiver, eventlog.Promise.KEYED, key_lifetime_s=1000)
            action.name = "apply"
            workflows = (flow, flow.child)  # type: ignore[attr-defined]
            return runner_for(log, clock, *workflows, actions=[action], policies={"apply": Policy(auto=True)})

        task = asyncio.create_task(runner().start(flow, "run-1"))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        ended = (await asyncio.gather(task, return_exceptions=True))[0]
        if not await types_in(log):
            assert isinstance(ended, asyncio.CancelledError)
            return
        state = await state_of(runner())
        assert state.status in (Status.RUNNING, Status.COMPLETED)
        assert progress_of(state).owner is None or state.version == 2  # the claim was just being written
        done = [key for key, step in progress_of(state).steps.items() if step.is_done]
        before = calls.counts()
        outcome = await runner().resume("run-1")
        assert outcome.value == EVERYTHING
        again = calls.counts() - before
        assert not [key for key in done if again[key.replace(":", " ")]]
        assert len(receiver.effects) == 1

    async def test_a_time_out_of_the_caller_leaves_the_run_free_at_once(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        gate = Gate()

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            await run.step("first", calls("first"))
            return await run.step("slow", gate.pass_through)

        runner = runner_for(log, clock, flow)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(runner.start(flow, "run-1"), 0.05)
        last = (await events_of(log))[-1]
        assert isinstance(last, CheckpointSaved) and last.is_released
        gate.open()
        assert (await runner_for(log, clock, flow).resume("run-1")).status == "COMPLETED"
        assert calls.names == ["first"]

    async def test_a_step_that_is_cancelled_can_clean_up_and_is_not_recorded(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        async def slow() -> str:
            calls.names.append("begun")
            try:
                await asyncio.sleep(60 if calls.count("begun") == 1 else 0)
            finally:
                calls.names.append("cleaned up")
            return "done"

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            try:
                return await run.step("slow", slow)
            finally:
                if calls.count("begun") == 1:
                    with pytest.raises(Suspended):
                        await run.step("clean", calls("clean"))

        runner = runner_for(log, clock, flow)
        task = asyncio.create_task(runner.start(flow, "run-1"))
        await until(lambda: "begun" in calls.names)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert calls.names == ["begun", "cleaned up"]
        assert await types_in(log) == ["checkpoint_saved", "run_claimed", "checkpoint_saved"]
        assert (await runner.resume("run-1")).value == "done"

    async def test_code_that_turns_a_cancellation_into_an_error_does_not_fail_its_run(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        gate = Gate()

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            try:
                return await run.step("slow", gate.pass_through)
            except asyncio.CancelledError:
                raise RuntimeError("somebody cancelled me") from None

        runner = runner_for(log, clock, flow)
        task = asyncio.create_task(runner.start(flow, "run-1"))
        await gate.wait_until_reached()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await state_of(runner)).status == "RUNNING"
        gate.open()
        assert (await runner.resume("run-1")).status == "COMPLETED"

    async def test_a_caller_that_is_cancelled_twice_loses_nothing(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        gate, leaving = Gate(), Gate()

        async def slow() -> str:
            try:
                await gate.pass_through()
            finally:
                await asyncio.shield(asyncio.ensure_future(leaving.pass_through()))
            return "done"

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return await run.step("slow", slow)

        runner = runner_for(log, clock, flow)
        task = asyncio.create_task(runner.start(flow, "run-1"))
        await gate.wait_until_reached()
        for _ in range(2):
            task.cancel()
            await leaving.wait_until_reached()
        assert not task.done()  # the run is given free once nothing of it is at work, and not before
        leaving.open()
        gate.open()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert progress_of(await state_of(runner)).owner is None
        assert (await runner.resume("run-1")).value == "done"


class TestRun:
    async def test_it_is_durable_before_the_step_under_way_is_ended_and_resume_refuses(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        """run-66"""
        seen: list[list[str]] = []
        gate = Gate()

        async def slow() -> None:
            try:
                await gate.pass_through()
            finally:
                seen.append(await types_in(log))

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            await run.step("slow", slow)
            return await run.step("after", calls("after"))

        runner = runner_for(log, clock, flow)
        task = asyncio.create_task(runner.start(flow, "run-1"))
        await gate.wait_until_reached()
        await runner.cancel("run-1", reason="enough", actor="ann")
        outcome = await task
        assert outcome.status == "CANCELLED" and not calls.names
        assert seen == [["checkpoint_saved", "run_claimed", "run_cancelled"]]
        assert (await types_in(log))[-1] == "run_cancelled"
        with pytest.raises(Refused) as refusal:
            await runner.resume("run-1")
        assert refusal.value.code == "cannot_resume" and "CANCELLED" in str(refusal.value)
        with pytest.raises(Refused) as refusal:
            await runner.cancel("run-1")
        assert refusal.value.code == "cannot_cancel"

    async def test_a_run_that_waits_is_cancelled_with_its_requests(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return await run.act("apply", {}, output="x")

        runner = runner_for(log, clock, flow, actions=[effect(calls)])
        outcome = await runner.start(flow, "run-1")
        assert (await runner.cancel("run-1")).requests == ()
        with pytest.raises(Refused):
            await runner.approve("run-1", outcome.requests[0].proposal_hash or "")
        with pytest.raises(Refused):
            await runner.signal("run-1", "go")
        assert (await state_of(runner)).status == "CANCELLED" and not calls.names

    async def test_an_effect_that_is_under_way_is_finished_and_recorded(self, log: RunLog, clock: FakeClock) -> None:
        receiver = Receiver()
        action = Sending(receiver)
        gate = action.gate = Gate()
        later = Calls()

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            await run.act("send", {}, output="x")
            return await run.step("after", later("after"))

        runner = runner_for(log, clock, flow, actions=[action], policies={"send": Policy(auto=True)})
        task = asyncio.create_task(runner.start(flow, "run-1"))
        await gate.wait_until_reached()
        await runner.cancel("run-1")
        gate.open()
        outcome = await task
        assert outcome.status == "CANCELLED" and not later.names
        assert len(receiver.effects) == 1
        assert (await types_in(log))[-2:] == ["run_cancelled", "action_executed"]
        request = progress_of(outcome.run).requests["send"]
        assert request.executed and request.result == {"number": 1}

    @pytest.mark.parametrize("turns", range(0, 120, 5))
    async def test_once_it_is_cancelled_nothing_begins_any_more(
        self, log: RunLog, clock: FakeClock, calls: Calls, turns: int
    ) -> None:
        """Whoever cancels it elsewhere, and however far the drive is: the run stays as it was told to be."""
        flow = everything(calls)
        action = effect(calls)
        workflows = (flow, flow.child)  # type: ignore[attr-defined]
        runner = runner_for(log, clock, *workflows, actions=[action], policies={"apply": Policy(auto=True)})
        task = asyncio.create_task(runner.start(flow, "run-1"))
        await until_logged(log, "")
        for _ in range(turns):
            await asyncio.sleep(0)
        try:
            await runner_for(log, clock).cancel("run-1")
        except Refused:
            assert (await task).status == "COMPLETED"
            return
        outcome = await task
        assert outcome.status == "CANCELLED"
        types = await types_in(log)
        results = {"step_completed", "step_failed", "action_executed", "child_finished"}
        assert set(types[types.index("run_cancelled") + 1 :]) <= results
        assert (await state_of(runner)).status == "CANCELLED"

    async def test_the_code_can_ask_whether_it_is_cancelled(self, log: RunLog, clock: FakeClock, calls: Calls) -> None:
        gate = Gate()
        seen: list[bool] = []

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            seen.append(run.cancelled)
            try:
                await run.step("slow", gate.pass_through)
            finally:
                seen.append(run.cancelled)

        runner = runner_for(log, clock, flow)
        task = asyncio.create_task(runner.start(flow, "run-1"))
        await gate.wait_until_reached()
        await runner.cancel("run-1")
        await task
        assert seen == [False, True]

    async def test_code_that_ignores_the_cancellation_is_not_let_on(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        gate = Gate()

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            for name in ("a", "b", "c"):
                try:
                    await run.step(name, gate.pass_through if name == "a" else calls(name))
                except BaseException:
                    continue
            return "done"

        runner = runner_for(log, clock, flow)
        task = asyncio.create_task(runner.start(flow, "run-1"))
        await gate.wait_until_reached()
        await runner.cancel("run-1")
        assert (await task).status == "CANCELLED" and not calls.names


async def plain(run: RunContext, calls: Calls) -> Any:
    return await run.wait_for_signal("go")


async def catching_exceptions(run: RunContext, calls: Calls) -> Any:
    try:
        return await run.wait_for_signal("go")
    except Exception:
        calls.names.append("caught")
        return await run.step("new", calls("new"))


async def catching_everything(run: RunContext, calls: Calls) -> Any:
    value: Any = None
    for _ in range(3):
        try:
            value = await run.wait_for_signal("go")
            break
        except BaseException:
            try:
                await run.step("new", calls("new"))
            except BaseException:
                pass
    return value


async def cleaning_up(run: RunContext, calls: Calls) -> Any:
    is_paused = False
    try:
        return await run.wait_for_signal("go")
    except Suspended:
        is_paused = True
        raise
    finally:
        if is_paused:
            await run.step("new", calls("new"))


async def in_a_task_group(run: RunContext, calls: Calls) -> Any:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(run.wait_for_signal("go"))
        group.create_task(run.step("beside", calls("beside")))
    return task.result()


async def in_nested_groups(run: RunContext, calls: Calls) -> Any:
    async def inner() -> Any:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(run.wait_for_signal("go"))
        return task.result()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(inner())
        group.create_task(run.step("beside", calls("beside")))
    return task.result()


async def in_gathered_groups(run: RunContext, calls: Calls) -> Any:
    async def inner() -> Any:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(run.wait_for_signal("go"))
        return task.result()

    value, _ = await run.gather(inner(), run.step("beside", calls("beside")))
    return value


async def catching_groups(run: RunContext, calls: Calls) -> Any:
    value: Any = None
    try:
        value = await in_a_task_group(run, calls)
    except* Exception:
        await run.step("new", calls("new"))
    return value


async def gathering_by_asyncio(run: RunContext, calls: Calls) -> Any:
    values = await asyncio.gather(run.wait_for_signal("go"), run.step("beside", calls("beside")))
    return values[0]


async def gathering_what_is_raised(run: RunContext, calls: Calls) -> Any:
    values = await asyncio.gather(run.wait_for_signal("go"), return_exceptions=True)
    if isinstance(values[0], BaseException):
        return await run.step("new", calls("new"))
    return values[0]


async def waiting_with_a_time_out(run: RunContext, calls: Calls) -> Any:
    async with asyncio.timeout(60):
        return await run.wait_for_signal("go")


async def leaving_a_task_behind(run: RunContext, calls: Calls) -> Any:
    async def behind() -> None:
        await run.wait_for_signal("never")

    task = asyncio.create_task(behind())
    value = await run.wait_for_signal("go")
    task.cancel()
    return value


PAUSING: list[Callable[[RunContext, Calls], Any]] = [
    plain,
    catching_exceptions,
    catching_everything,
    cleaning_up,
    in_a_task_group,
    in_nested_groups,
    in_gathered_groups,
    catching_groups,
    gathering_by_asyncio,
    gathering_what_is_raised,
    waiting_with_a_time_out,
    leaving_a_task_behind,
]


class TestPauses:
    @pytest.mark.parametrize("code", PAUSING, ids=lambda code: code.__name__)
    async def test_a_pause_gets_through_and_nothing_new_runs_behind_it(
        self, log: RunLog, clock: FakeClock, calls: Calls, code: Callable[[RunContext, Calls], Any]
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return await code(run, calls)

        runner = runner_for(log, clock, flow)
        outcome = await runner.start(flow, "run-1")
        assert outcome.status == "WAITING"
        (*_, last) = await events_of(log)
        assert isinstance(last, CheckpointSaved) and last.waiting is not None
        assert not {"new", "caught"} & set(calls.names)
        await runner.signal("run-1", "go", "here")
        outcome = await runner_for(log, clock, flow).resume("run-1")
        assert outcome.value == "here"
        assert not {"new", "caught"} & set(calls.names)
        assert calls.count("beside") <= 1

    async def test_code_that_never_lets_a_pause_through_does_not_stop_the_others(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        """It cannot be ended; but the pause is in the log, and the loop goes on."""
        is_over = asyncio.Event()

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            while not is_over.is_set():
                try:
                    return await run.wait_for_signal("go")
                except BaseException:
                    calls.names.append("caught")

        runner = runner_for(log, clock, flow)
        task = asyncio.create_task(runner.start(flow, "run-1"))
        await until(lambda: calls.count("caught") > 10)
        assert (await state_of(runner)).status == "WAITING"
        is_over.set()
        assert (await task).status == "WAITING"

    async def test_a_pause_in_a_group_keeps_what_has_finished_and_what_has_failed(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        told: list[str] = []

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            bad = run.step("bad", calls("bad", fails=1))
            try:
                return list(await run.gather(run.step("good", calls("good")), bad, run.wait_for_signal("go")))
            except StepFailed:
                told.append("bad")
                raise

        runner = runner_for(log, clock, flow)
        outcome = await runner.start(flow, "run-1")
        assert outcome.status == "WAITING"
        assert list(progress_of(outcome.run).pending_writes()) == ["good"]
        assert not told, "the group has not come to its end"
        await runner.signal("run-1", "go", 1)
        outcome = await runner.resume("run-1")
        assert outcome.status == "FAILED" and calls.counts() == {"good": 1, "bad": 1}
        assert (await runner.resume("run-1")).value == ["good", "bad", 1]
        assert calls.counts() == {"good": 1, "bad": 2}
        assert commits_in(await events_of(log)) == [("good", "bad", "go:signal")]

    async def test_a_task_that_is_left_behind_ends_with_the_run_and_records_nothing_more(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        gate = Gate()

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            asyncio.get_running_loop().create_task(run.step("behind", gate.pass_through)).add_done_callback(
                lambda task: calls.names.append("ended")
            )
            await gate.wait_until_reached()
            return "end"

        outcome = await runner_for(log, clock, flow).start(flow, "run-1")
        assert outcome.value == "end" and calls.names == ["ended"]
        gate.open()
        assert (await types_in(log))[-1] == "run_completed"

    @pytest.mark.parametrize("turns", [*range(10, 60, 3), 80, 150])
    async def test_what_is_asked_while_the_pause_is_being_written_is_not_lost(
        self, log: RunLog, clock: FakeClock, calls: Calls, turns: int
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            async def late() -> Any:
                for _ in range(turns):
                    await asyncio.sleep(0)
                await run.step("late", calls("late"))
                return await run.wait_for_signal("second")

            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(run.wait_for_signal("first")), group.create_task(late())]
            return [task.result() for task in tasks]

        runner = runner_for(log, clock, flow)
        assert (await runner.start(flow, "run-1")).status == "WAITING"
        await runner.signal("run-1", "second", 2)
        outcome = await runner.resume("run-1")
        if outcome.status == "WAITING":
            await runner.signal("run-1", "first", 1)
            outcome = await runner.resume("run-1")
        assert outcome.value == [1, 2] and calls.names == ["late"]

    async def test_a_signal_that_is_seen_just_behind_the_pause_leaves_the_run_ready(
        self, clock: FakeClock, calls: Calls, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return await run.wait_for_signal("go")

        async with eventlog.open("memory:", clock=clock) as log:
            runner = runner_for(log, clock, flow)
            append = log.append_reserved

            async def append_and_signal(appends: Any, **options: Any) -> Any:
                results = await append(appends, **options)
                if getattr(appends[0].events[0].data, "waiting", None) is not None:
                    monkeypatch.undo()
                    await runner.signal("run-1", "go", 1)
                return results

            monkeypatch.setattr(log, "append_reserved", append_and_signal)
            await runner.start(flow, "run-1")
            assert (await runner.resume("run-1")).value == 1

    async def test_many_runs_pause_and_go_on_in_one_loop(self, log: RunLog, clock: FakeClock, calls: Calls) -> None:
        @eventlog.workflow
        async def flow(run: RunContext, number: int) -> Any:
            await run.gather(run.step("a", calls("a")), run.step("b", calls("b")))
            return await run.wait_for_signal("go")

        runner = runner_for(log, clock, flow)
        await asyncio.gather(*(runner.start(flow, f"run-{each}", each) for each in range(50)))
        await asyncio.gather(*(runner.signal(f"run-{each}", "go", each) for each in range(50)))
        outcomes = await asyncio.gather(*(runner.resume(f"run-{each}") for each in range(50)))
        assert [outcome.value for outcome in outcomes] == list(range(50))
        assert calls.counts() == {"a": 50, "b": 50}


class TestUvloop:
    def test_a_run_pauses_and_goes_on_under_uvloop(self, calls: Calls) -> None:
        uvloop = pytest.importorskip("uvloop")

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            async with asyncio.TaskGroup() as group:
                group.create_task(run.step("a", calls("a")))
                task = group.create_task(run.wait_for_signal("go"))
            return task.result()

        async def main() -> Any:
            async with tidy(), eventlog.open("memory:") as log:
                runner = eventlog.Runner(log, workflows=[flow])
                assert (await runner.start(flow, "run-1")).status == "WAITING"
                await runner.signal("run-1", "go", 1)
                return (await runner.resume("run-1")).value

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
            assert loop.run(main()) == 1
        assert calls.names == ["a"]
