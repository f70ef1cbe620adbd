"""Waiting for signals and for time: no process is needed meanwhile, and nothing that comes is lost."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

import eventlog
from eventlog import RunContext
from eventlog.errors import EventTypeUnknown, InvalidInput, Refused, WaitTimedOut
from eventlog.events import SignalReceived, run_stream
from eventlog.log import Append, Expect, NewEvent, RunLog
from eventlog.testing.clock import FakeClock
from tests.workflow_runs import (
    Calls,
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


@dataclass
class Answer:
    """What a signal says."""

    yes: bool
    when: datetime.date


class TestSignals:
    async def test_one_that_comes_before_it_is_waited_for_is_kept(self, log: RunLog, clock: FakeClock) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            await run.wait_for_signal("first")
            return await run.wait_for_signal("second")

        runner = runner_for(log, clock, flow)
        await runner.start(flow, "run-1")
        await runner.signal("run-1", "second", "early")
        assert (await runner.resume("run-1")).status == "WAITING"
        await runner.signal("run-1", "first")
        outcome = await runner.resume("run-1")
        assert outcome.value == "early"

    async def test_one_that_comes_to_a_submitted_run_is_kept(self, log: RunLog, clock: FakeClock) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return await run.wait_for_signal("go")

        runner = runner_for(log, clock, flow)
        assert (await runner.submit(flow, "run-1")).status == "RUNNING"
        await runner.signal("run-1", "go", 5)
        assert (await runner.resume("run-1")).value == 5

    async def test_several_of_a_name_are_taken_in_the_order_of_their_coming(
        self, log: RunLog, clock: FakeClock
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return [await run.wait_for_signal("next") for _ in range(3)]

        runner = runner_for(log, clock, flow)
        await runner.start(flow, "run-1")
        for number in range(3):
            await runner.signal("run-1", "next", number)
        outcome = await runner.resume("run-1")
        assert outcome.value == [0, 1, 2]

    async def test_a_question_in_a_loop_needs_one_resume_an_answer(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        """run-02: every answer is used once, and what was answered is not asked again."""

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            answers = []
            for number in range(3):
                await run.step("ask", calls(f"ask {number}"))
                answers.append(await run.wait_for_signal("answer"))
            return answers

        await runner_for(log, clock, flow).start(flow, "run-1")
        for answer in "abc":
            await runner_for(log, clock).signal("run-1", "answer", answer)
            outcome = await runner_for(log, clock, flow).resume("run-1")
        assert outcome.value == ["a", "b", "c"]
        assert calls.names == ["ask 0", "ask 1", "ask 2"]

    async def test_two_waits_at_once_take_one_each(self, log: RunLog, clock: FakeClock) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            waits = [run.wait_for_signal("a"), run.wait_for_signal("b"), run.wait_for_signal("a")]
            return list(await run.gather(*waits))

        runner = runner_for(log, clock, flow)
        outcome = await runner.start(flow, "run-1")
        assert [wait.signal for wait in progress_of(outcome.run).waits] == ["a", "b", "a"]
        await runner.signal("run-1", "b", "b1")
        outcome = await runner.resume("run-1")
        assert [wait.signal for wait in progress_of(outcome.run).waits] == ["a", "a"]
        assert list(progress_of(outcome.run).pending_writes()) == ["b:signal"]
        await runner.signal("run-1", "a", "a1")
        await runner.signal("run-1", "a", "a2")
        assert (await runner.resume("run-1")).value == ["a1", "b1", "a2"]

    async def test_a_payload_has_the_type_that_is_asked_for_also_when_it_is_large(
        self, log: RunLog, clock: FakeClock
    ) -> None:
        seen: list[Any] = []

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            seen.append(await run.wait_for_signal("answer", type=Answer))
            text = await run.wait_for_signal("text", type=str)
            await run.wait_for_signal("end")
            return len(text)

        runner = runner_for(log, clock, flow)
        await runner.start(flow, "run-1")
        await runner.signal("run-1", "answer", {"yes": True, "when": "2026-01-02"})
        await runner.signal("run-1", "text", "x" * 70_000)
        await runner.resume("run-1")
        await runner.signal("run-1", "end")
        assert (await runner.resume("run-1")).value == 70_000
        assert seen == [Answer(True, datetime.date(2026, 1, 2))] * 2
        _, large, _ = [event for event in await events_of(log) if isinstance(event, SignalReceived)]
        assert large.artifact is not None and not bytes(large.payload)

    async def test_a_payload_that_cannot_be_stored_is_refused_with_its_place(
        self, log: RunLog, clock: FakeClock
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return await run.wait_for_signal("go")

        runner = runner_for(log, clock, flow)
        await runner.start(flow, "run-1")
        before = await types_in(log)
        with pytest.raises(InvalidInput) as refusal:
            await runner.signal("run-1", "go", {"a": [object()]})
        assert refusal.value.path == "$.a[0]"
        assert await types_in(log) == before

    async def test_a_run_that_has_ended_and_one_of_one_action_take_none(self, log: RunLog, clock: FakeClock) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> None: ...

        runner = runner_for(log, clock, flow)
        await runner.start(flow, "run-1")
        await runner.propose("run-2", eventlog.propose("apply", {}, "x"))
        for run_id in ("run-1", "run-2"):
            with pytest.raises(Refused) as refusal:
                await runner.signal(run_id, "go")
            assert refusal.value.code == "cannot_signal"
            assert (await types_in(log, run_id))[-1] == "transition_rejected"
        with pytest.raises(Refused) as refusal:
            await runner.signal("run-3", "go")
        assert refusal.value.code == "unknown_run" and not await types_in(log, "run-3")

    async def test_a_run_that_still_waits_is_returned_as_it_is_and_nothing_is_written(
        self, log: RunLog, clock: FakeClock
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return await run.wait_for_signal("go")

        runner = runner_for(log, clock, flow)
        first = await runner.start(flow, "run-1")
        again = await runner.resume("run-1")
        assert (again.status, again.run.version) == ("WAITING", first.run.version)

    async def test_one_that_comes_while_the_run_is_driven_is_seen_at_once(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        gate = asyncio.Event()

        async def slow() -> None:
            calls.names.append("slow")
            await gate.wait()

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            async def listener() -> Any:
                value = await run.wait_for_signal("go")
                gate.set()
                return value

            return list(await run.gather(run.step("slow", slow), listener()))

        runner = runner_for(log, clock, flow)
        task = asyncio.create_task(runner.start(flow, "run-1"))
        await until(lambda: "slow" in calls.names)
        await runner.signal("run-1", "go", "now")
        assert (await task).value == [None, "now"]

    @pytest.mark.parametrize("turns", range(0, 40, 3))
    async def test_one_that_comes_around_the_pause_is_not_lost(
        self, clock: FakeClock, calls: Calls, turns: int
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            await run.step("a", calls("a"))
            return await run.wait_for_signal("go")

        async with eventlog.open("memory:", clock=clock) as log:
            runner, other = runner_for(log, clock, flow), runner_for(log, clock)
            task = asyncio.create_task(runner.start(flow, "run-1"))
            for _ in range(turns):
                await asyncio.sleep(0)
            await until_logged(log, "")
            await other.signal("run-1", "go", "here")
            outcome = await task
            if outcome.status != "COMPLETED":
                assert progress_of(await runner.state("run-1")).is_ready
                outcome = await runner.resume("run-1")
            assert outcome.value == "here"

    async def test_one_to_a_run_that_a_newer_program_has_written_to_is_not_stored(
        self, log: RunLog, clock: FakeClock
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return await run.wait_for_signal("go")

        runner = runner_for(log, clock, flow)
        await runner.start(flow, "run-1")
        await runner.signal("run-1", "other")
        newer = NewEvent("thing_of_a_newer_program", {})
        await log.append_reserved([Append(run_stream("run-1"), [newer], Expect.exists())])
        for _ in range(2):
            with pytest.raises(EventTypeUnknown):
                await runner.signal("run-1", "go")
        assert (await types_in(log))[-2:] == ["signal_received", "thing_of_a_newer_program"]


class TestTimers:
    async def test_a_sleep_is_counted_from_when_it_was_reached_first(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            await run.sleep(100)
            await run.step("after", calls("after"))
            await run.sleep(50)
            return "end"

        runner = runner_for(log, clock, flow)
        outcome = await runner.start(flow, "run-1")
        assert outcome.status == "WAITING" and outcome.run.waiting is not None
        assert outcome.run.waiting.type == "timer"
        assert outcome.run.waiting.due_us == progress_of(outcome.run).due_us
        clock.advance(99)
        assert (await runner_for(log, clock, flow).resume("run-1")).status == "WAITING"
        assert not calls.names
        clock.advance(1)
        assert (await runner_for(log, clock, flow).resume("run-1")).status == "WAITING"
        assert calls.names == ["after"]
        clock.advance(1000)
        assert (await runner_for(log, clock, flow).resume("run-1")).value == "end"
        assert list(progress_of(await runner.state("run-1")).timers) == ["sleep", "sleep#2"]

    async def test_a_time_that_is_over_is_not_waited_for(self, log: RunLog, clock: FakeClock) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            await run.sleep_until(datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC))
            await run.sleep(0)
            return (await run.now()).year

        outcome = await runner_for(log, clock, flow).start(flow, "run-1")
        assert outcome.status == "COMPLETED"

    async def test_a_time_with_another_zone_is_that_moment(self, log: RunLog, clock: FakeClock) -> None:
        zone = datetime.timezone(datetime.timedelta(hours=5))
        moment = datetime.datetime.fromtimestamp(clock.now_us() / 1_000_000 + 3600, datetime.UTC)

        @eventlog.workflow
        async def flow(run: RunContext) -> None:
            await run.sleep_until(moment.astimezone(zone))

        runner = runner_for(log, clock, flow)
        outcome = await runner.start(flow, "run-1")
        assert progress_of(outcome.run).due_us == clock.now_us() + 3600 * 1_000_000
        clock.advance(3600)
        assert (await runner.resume("run-1")).status == "COMPLETED"

    @pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), True, "1", None])
    async def test_a_time_that_is_none_is_refused(self, log: RunLog, clock: FakeClock, seconds: Any) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> None:
            await run.sleep(seconds)

        outcome = await runner_for(log, clock, flow).start(flow, "run-1")
        assert outcome.failure is not None and outcome.failure.code == "invalid_argument"

    async def test_a_near_time_is_waited_for_in_memory(self, log: RunLog, clock: FakeClock) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> None:
            await run.sleep(0.01)

        runner = runner_for(log, clock, flow, patience_s=1)
        task = asyncio.create_task(runner.start(flow, "run-1"))
        await until_logged(log, "timer_set")
        clock.advance(0.01)
        assert (await task).status == "COMPLETED"
        assert await types_in(log) == ["checkpoint_saved", "run_claimed", "timer_set", "timer_fired", "run_completed"]

    async def test_two_sleeps_beside_each_other_pause_the_run_until_the_first(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            async def nap(seconds: float) -> Any:
                await run.sleep(seconds)
                return await run.step("woke", calls(f"woke {seconds}"), key=str(seconds))

            return list(await run.gather(nap(100), nap(10)))

        runner = runner_for(log, clock, flow)
        await runner.start(flow, "run-1")
        clock.advance(10)
        await runner.resume("run-1")
        assert calls.names == ["woke 10"]
        clock.advance(90)
        assert (await runner.resume("run-1")).value == ["woke 100", "woke 10"]
        assert calls.names == ["woke 10", "woke 100"]


class TestTimeOuts:
    @staticmethod
    def flow(told: list[Any]) -> eventlog.Workflow:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            try:
                value = await run.wait_for_signal("go", timeout_s=60)
            except WaitTimedOut as error:
                told.append((str(error), error.code, error.details))
                value = "too late"
            return [value, await run.wait_for_signal("end")]

        return flow

    async def test_it_is_told_the_same_live_and_on_replay(self, log: RunLog, clock: FakeClock) -> None:
        told: list[Any] = []
        flow = self.flow(told)
        runner = runner_for(log, clock, flow)
        outcome = await runner.start(flow, "run-1")
        (wait,) = progress_of(outcome.run).waits
        assert (wait.type, wait.signal) == ("signal", "go") and wait.due_us is not None
        clock.advance(61)
        await runner.resume("run-1")
        await runner.signal("run-1", "end", 1)
        assert (await runner.resume("run-1")).value == ["too late", 1]
        live, replayed = told
        assert live == replayed and live[1] == "wait_timed_out"

    async def test_a_signal_that_came_in_time_is_taken_though_the_run_was_resumed_late(
        self, log: RunLog, clock: FakeClock
    ) -> None:
        told: list[Any] = []
        flow = self.flow(told)
        runner = runner_for(log, clock, flow)
        await runner.start(flow, "run-1")
        clock.advance(59)
        await runner.signal("run-1", "go", "in time")
        clock.advance(1000)
        await runner.resume("run-1")
        await runner.signal("run-1", "end", 1)
        assert (await runner.resume("run-1")).value == ["in time", 1]
        assert not told

    async def test_a_signal_behind_the_time_out_waits_for_who_asks_next(self, log: RunLog, clock: FakeClock) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            try:
                return await run.wait_for_signal("go", timeout_s=60)
            except WaitTimedOut:
                return ["late", await run.wait_for_signal("go")]

        runner = runner_for(log, clock, flow)
        await runner.start(flow, "run-1")
        clock.advance(61)
        await runner.resume("run-1")
        await runner.signal("run-1", "go", "behind")
        assert (await runner.resume("run-1")).value == ["late", "behind"]

    async def test_wherever_the_log_ends_the_same_side_wins(self, clock: FakeClock) -> None:
        told: list[Any] = []
        flow = self.flow(told)
        async with eventlog.open("memory:", clock=clock) as log:
            runner = runner_for(log, clock, flow)
            await runner.start(flow, "run-1")
            clock.advance(61)
            await runner.resume("run-1")
            await runner.signal("run-1", "go", "too late")
            await runner.signal("run-1", "end", 1)
            await runner.resume("run-1")
            events = [event async for event in log.read_all()]
            (fired,) = [event.position for event in events if event.type == "timer_fired"]
            for left in range(fired, len(events)):
                async with log_until(log, left, clock) as short:
                    runner = runner_for(short, clock, flow)
                    await runner.resume("run-1")
                    if (await runner.state("run-1")).status == "WAITING":
                        await runner.signal("run-1", "end", 1)
                    assert (await runner.resume("run-1")).value == ["too late", 1], left

    async def test_a_time_out_that_nobody_handles_ends_the_run_as_failed(self, log: RunLog, clock: FakeClock) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return await run.wait_for_signal("go", timeout_s=1)

        runner = runner_for(log, clock, flow)
        await runner.start(flow, "run-1")
        clock.advance(2)
        outcome = await runner.resume("run-1")
        assert outcome.status == "FAILED" and outcome.failure is not None
        assert outcome.failure.code == "wait_timed_out"
