"""Steps that fail: told the workflow the same live and on replay, tried as often as they may be, and resumed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import eventlog
from eventlog import Retry, RunContext
from eventlog.errors import CommitOutcomeUnknown, InvalidInput, StepFailed, StoreBusy, StoreUnavailable
from eventlog.events import StepFailed as StepFailedEvent
from eventlog.log import RunLog
from eventlog.testing.clock import FakeClock
from tests.effect_runs import whole_log
from tests.workflow_runs import (
    Calls,
    commits_in,
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


class TestUnhandled:
    async def test_the_run_has_failed_and_resume_tries_only_the_failed_step_and_what_comes_behind(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        """run-14: five steps, of which the third raises once."""

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return [await run.step(name, calls(name, fails=int(name == "c"))) for name in "abcde"]

        runner = runner_for(log, clock, flow)
        outcome = await runner.start(flow, "run-1")
        assert outcome.status == "FAILED" and outcome.failure is not None
        assert (outcome.failure.code, outcome.failure.type) == ("step_failed", "OSError")
        assert "c is out of order" in outcome.failure.message
        assert outcome.failure.details == {"step": "c", "attempts": 1}
        assert not commits_in(await events_of(log))
        outcome = await runner.resume("run-1")
        assert outcome.value == list("abcde")
        assert calls.names == list("abccde")
        assert outcome.failure is None

    async def test_a_resumed_run_may_fail_again_and_again(self, log: RunLog, clock: FakeClock, calls: Calls) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return await run.step("a", calls("a", fails=6), retry=Retry(attempts=2, first_delay_s=0))

        runner = runner_for(log, clock, flow)
        assert (await runner.start(flow, "run-1")).status == "FAILED"
        assert (await runner.resume("run-1")).status == "FAILED"
        assert (await runner.resume("run-1")).status == "FAILED"
        assert calls.count("a") == 6
        outcome = await runner.resume("run-1")
        assert (outcome.status, calls.count("a")) == ("COMPLETED", 7)
        attempts = [event.attempt for event in await events_of(log) if hasattr(event, "attempt")]
        assert attempts == sorted(attempts) and attempts[-1] == 7

    async def test_what_the_workflows_own_code_raises_fails_the_run_by_name(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        is_mended = False

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            value = await run.step("a", calls("a"))
            if not is_mended:
                raise KeyError("nothing here")
            return value

        runner = runner_for(log, clock, flow, keeps_tracebacks=True)
        outcome = await runner.start(flow, "run-1")
        assert outcome.failure is not None
        assert (outcome.failure.code, outcome.failure.type) == ("workflow_failed", "KeyError")
        assert outcome.failure.traceback is not None and "nothing here" in outcome.failure.traceback
        is_mended = True
        assert (await runner.resume("run-1")).value == "a"
        assert calls.names == ["a"]

    async def test_a_failure_in_a_task_group_of_the_workflow_is_told_as_the_step(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            async with asyncio.TaskGroup() as group:
                one = group.create_task(run.step("one", calls("one")))
                two = group.create_task(run.step("two", calls("two", fails=1)))
            return [one.result(), two.result()]

        runner = runner_for(log, clock, flow)
        outcome = await runner.start(flow, "run-1")
        assert outcome.failure is not None
        assert (outcome.status, outcome.failure.code, outcome.failure.details) == (
            "FAILED",
            "step_failed",
            {"step": "two", "attempts": 1},
        )
        assert (await runner.resume("run-1")).value == ["one", "two"]
        assert calls.count("two") == 2

    async def test_a_sibling_that_goes_on_does_not_commit_a_failure_that_it_knows_nothing_of(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        """`asyncio.gather` lets the others go on: they are not behind the failure, and it is tried again."""
        ended = asyncio.Event()

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            async def agent() -> str:
                await run.step("first", calls("first"))
                await ended.wait()
                await run.step("second", calls("second"))
                return "agent"

            async def failing() -> Any:
                try:
                    return await run.step("broken", calls("broken", fails=1))
                finally:
                    asyncio.get_running_loop().call_later(0.005, ended.set)

            other = asyncio.create_task(agent())
            try:
                value = await failing()
            finally:
                await other
            return [await other, value]

        runner = runner_for(log, clock, flow)
        assert (await runner.start(flow, "run-1")).status == "FAILED"
        assert "second" in calls.names
        assert not commits_in(await events_of(log))
        outcome = await runner.resume("run-1")
        assert outcome.value == ["agent", "broken"]
        assert calls.counts() == {"first": 1, "second": 1, "broken": 2}

    async def test_a_completed_run_keeps_its_result_when_it_is_resumed(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return await run.step("a", calls("a"))

        runner = runner_for(log, clock, flow)
        await runner.start(flow, "run-1")
        outcome = await runner.resume("run-1")
        assert (outcome.value, outcome.result, calls.count("a")) == ("a", "already_completed", 1)
        assert (await types_in(log))[-1] == "action_replayed"


class TestHandled:
    async def test_it_is_told_the_same_live_and_on_replay_and_a_checkpoint_commits_it(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        told: list[StepFailed] = []

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            try:
                await run.step("a", calls("a", fails=9), retry=Retry(attempts=2, first_delay_s=0))
            except StepFailed as error:
                told.append(error)
            await run.step("b", calls("b"))
            await run.wait_for_signal("go")
            return "end"

        runner = runner_for(log, clock, flow, keeps_tracebacks=True)
        await runner.start(flow, "run-1")
        await runner.signal("run-1", "go")
        assert (await runner.resume("run-1")).value == "end"
        live, replayed = told
        assert (live.code, live.step, live.error_type, live.attempts) == ("step_failed", "a", "OSError", 2)
        assert str(live) == str(replayed) and live.details == replayed.details
        assert live.traceback == replayed.traceback is not None
        assert commits_in(await events_of(log)) == [("a",)]
        assert calls.counts() == {"a": 2, "b": 1}
        types = await types_in(log)
        assert types.index("checkpoint_saved", 1) < types.index("step_completed")

    async def test_one_that_the_end_of_the_workflow_handles_is_committed_with_it(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            try:
                await run.step("a", calls("a", fails=9))
            except StepFailed:
                return "fine"

        outcome = await runner_for(log, clock, flow).start(flow, "run-1")
        assert outcome.value == "fine"
        assert commits_in(await events_of(log)) == [("a",)]
        assert (await types_in(log))[-2:] == ["checkpoint_saved", "run_completed"]

    async def test_a_failure_that_was_handled_is_not_tried_again_when_the_run_fails_later(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            try:
                await run.step("a", calls("a", fails=1))
            except StepFailed:
                await run.step("instead", calls("instead"))
            return await run.step("b", calls("b", fails=1))

        runner = runner_for(log, clock, flow)
        assert (await runner.start(flow, "run-1")).status == "FAILED"
        assert (await runner.resume("run-1")).value == "b"
        assert calls.counts() == {"a": 1, "instead": 1, "b": 2}

    async def test_a_group_whose_failure_is_handled_is_committed_whole(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            try:
                await run.gather(run.step("a", calls("a", fails=9)), run.step("b", calls("b")))
            except StepFailed:
                pass
            return await run.step("c", calls("c", fails=1))

        runner = runner_for(log, clock, flow)
        assert (await runner.start(flow, "run-1")).status == "FAILED"
        assert commits_in(await events_of(log)) == [("a", "b")]
        assert (await runner.resume("run-1")).value == "c"
        assert calls.counts() == {"a": 1, "b": 1, "c": 2}

    async def test_code_that_ignores_an_error_of_the_store_is_not_let_on(
        self, tmp_path: Path, clock: FakeClock, calls: Calls, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What the workflow has not seen recorded must not count as a failure that it can handle."""

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            values = []
            for name in "abc":
                try:
                    values.append(await run.step(name, calls(name)))
                except Exception:
                    values.append("failed")
            return values

        async with whole_log("sqlite", tmp_path, clock=clock) as log:
            append = log.append_reserved

            async def unavailable(appends: Any, **options: Any) -> Any:
                if any(getattr(event.data, "name", None) == "b" for each in appends for event in each.events):
                    raise StoreUnavailable("store_readonly", "not now")
                return await append(appends, **options)

            runner = runner_for(log, clock, flow)
            with monkeypatch.context() as patch:
                patch.setattr(log, "append_reserved", unavailable)
                with pytest.raises(StoreUnavailable):
                    await runner.start(flow, "run-1")
            assert calls.names == ["a", "b"]
            outcome = await runner.resume("run-1")
            assert outcome.value == ["a", "b", "c"] and calls.names == ["a", "b", "b", "c"]

    @pytest.mark.parametrize(
        ("error", "is_stored"),
        [
            (StoreBusy("it is busy"), False),
            (CommitOutcomeUnknown([], "nobody knows"), False),
            (CommitOutcomeUnknown([], "nobody knows"), True),
        ],
        ids=["busy", "lost", "stored"],
    )
    async def test_an_append_that_may_be_stored_is_made_once(
        self, clock: FakeClock, calls: Calls, monkeypatch: pytest.MonkeyPatch, error: Exception, is_stored: bool
    ) -> None:
        """Also where it goes to two streams: a child that begins, and one that ends."""
        monkeypatch.setattr("eventlog.runtime.session._BUSY_PAUSE_S", 0)

        @eventlog.workflow
        async def inner(run: RunContext) -> Any:
            return await run.step("b", calls("b"))

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return [await run.step("a", calls("a")), await run.child(inner)]

        async with eventlog.open("memory:", clock=clock) as log:
            append = log.append_reserved
            failed: set[bytes] = set()

            async def unsure(appends: Any, **options: Any) -> Any:
                first = appends[0].events[0]
                is_first_time = first.event_id not in failed
                failed.add(first.event_id)
                if not is_first_time or first.type in ("checkpoint_saved", "run_claimed"):
                    return await append(appends, **options)
                if is_stored:
                    await append(appends, **options)
                raise error

            monkeypatch.setattr(log, "append_reserved", unsure)
            outcome = await runner_for(log, clock, flow, inner).start(flow, "run-1")
            assert outcome.value == ["a", "b"]
            assert calls.names == ["a", "b"]
            assert await types_in(log) == [
                "checkpoint_saved",
                "run_claimed",
                "step_completed",
                "child_started",
                "child_finished",
                "run_completed",
            ]
            assert await types_in(log, "run-1/inner") == [
                "checkpoint_saved",
                "run_claimed",
                "step_completed",
                "run_completed",
            ]


class TestRetries:
    async def test_each_attempt_is_in_the_log_before_it_begins(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        seen: list[str] = []

        async def function() -> str:
            seen.append((await types_in(log))[-1])
            return str(await calls("a", fails=2)())

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return await run.step("a", function, retry=Retry(attempts=3, first_delay_s=0))

        outcome = await runner_for(log, clock, flow).start(flow, "run-1")
        assert outcome.value == "a" and seen == ["step_started"] * 3
        assert [event.attempt for event in await events_of(log) if isinstance(event, StepFailedEvent)] == [1, 2]
        assert progress_of(outcome.run).steps["a"].attempts == 3

    async def test_a_far_delay_pauses_the_run_and_survives_its_process(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            retry = Retry(attempts=4, first_delay_s=10, factor=3, max_delay_s=60)
            return await run.step("a", calls("a", fails=3), retry=retry)

        runner = runner_for(log, clock, flow)
        outcome = await runner.start(flow, "run-1")
        assert outcome.status == "WAITING" and outcome.run.waiting is not None
        assert outcome.run.waiting.type == "retry"
        for attempt, delay_s in enumerate((10, 30, 60), start=1):
            assert calls.count("a") == attempt
            clock.advance(delay_s - 1)
            version = outcome.run.version
            outcome = await runner_for(log, clock, flow).resume("run-1")
            assert (outcome.status, outcome.run.version) == ("WAITING", version)  # nothing happened
            clock.advance(1)
            outcome = await runner_for(log, clock, flow).resume("run-1")
        assert outcome.value == "a" and calls.count("a") == 4

    async def test_a_near_delay_is_waited_for_in_memory(self, log: RunLog, clock: FakeClock, calls: Calls) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return await run.step("a", calls("a", fails=1), retry=Retry(attempts=2, first_delay_s=0.005))

        runner = runner_for(log, clock, flow, patience_s=1)
        task = asyncio.create_task(runner.start(flow, "run-1"))
        await until_logged(log, "step_failed")
        clock.advance(1)
        outcome = await task
        assert outcome.value == "a"
        assert "checkpoint_saved" not in (await types_in(log))[1:]

    @pytest.mark.parametrize("died_at", ["step_started", "step_failed"])
    async def test_attempts_are_counted_across_processes_and_never_more_than_allowed(
        self, clock: FakeClock, calls: Calls, died_at: str
    ) -> None:
        """run-48: the process dies again and again, in the middle of an attempt or of a delay."""

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return await run.step("a", calls("a", fails=99), retry=Retry(attempts=3, first_delay_s=5))

        async with eventlog.open("memory:", clock=clock) as first:
            await runner_for(first, clock, flow).start(flow, "run-1")
            events = [event async for event in first.read_all()]
            (position,) = [event.position for event in events if event.type == died_at]
            log: RunLog
            async with log_until(first, position, clock) as second:
                clock.advance(6)
                await runner_for(second, clock, flow).resume("run-1")
                events = [event async for event in second.read_all()]
                position = [event.position for event in events if event.type == died_at][-1]
                async with log_until(second, position, clock) as log:
                    clock.advance(11)
                    outcome = await runner_for(log, clock, flow).resume("run-1")
                    while outcome.status == "WAITING":
                        clock.advance(60)
                        outcome = await runner_for(log, clock, flow).resume("run-1")
                    assert outcome.status == "FAILED"
                    started = [each for each in await types_in(log) if each == "step_started"]
                    assert len(started) == 3 and calls.count("a") == 3

    async def test_an_attempt_that_ended_with_its_process_was_the_last_if_no_other_is_allowed(
        self, clock: FakeClock, calls: Calls
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return await run.step("a", calls("a"), retry=Retry(attempts=1))

        async with eventlog.open("memory:", clock=clock) as first:
            await runner_for(first, clock, flow).start(flow, "run-1")
            async with log_until(first, 3, clock) as log:
                assert (await types_in(log))[-1] == "step_started"
                outcome = await runner_for(log, clock, flow).resume("run-1")
                assert outcome.status == "FAILED" and calls.count("a") == 1
                assert outcome.failure is not None and "ended with its process" in outcome.failure.message
                outcome = await runner_for(log, clock, flow).resume("run-1")  # a fresh allowance
                assert outcome.value == "a" and calls.count("a") == 2

    async def test_only_what_the_policy_names_is_tried_again(self, log: RunLog, clock: FakeClock, calls: Calls) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            codes = []
            for name, retry in (
                ("only", Retry(attempts=3, first_delay_s=0, only=(ValueError,))),
                ("never", Retry(attempts=3, first_delay_s=0, never=(OSError,))),
                ("all", Retry(attempts=3, first_delay_s=0)),
            ):
                try:
                    await run.step(name, calls(name, fails=9), retry=retry)
                except StepFailed as error:
                    codes.append(error.attempts)
            return codes

        outcome = await runner_for(log, clock, flow).start(flow, "run-1")
        assert outcome.value == [1, 1, 3]
        assert calls.counts() == {"only": 1, "never": 1, "all": 3}

    async def test_a_time_out_is_for_one_attempt(self, log: RunLog, clock: FakeClock, calls: Calls) -> None:
        async def slow() -> str:
            calls.names.append("slow")
            await asyncio.sleep(60 if calls.count("slow") == 1 else 0)
            return "slow"

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return await run.step("slow", slow, timeout_s=0.01, retry=Retry(attempts=2, first_delay_s=0))

        outcome = await runner_for(log, clock, flow).start(flow, "run-1")
        assert outcome.value == "slow" and calls.count("slow") == 2
        (failed,) = [event for event in await events_of(log) if isinstance(event, StepFailedEvent)]
        assert failed.error.type == "TimeoutError"

    async def test_a_function_that_raises_a_cancellation_of_its_own_has_failed(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        """A task that the function awaits was cancelled; nobody has cancelled the step."""

        async def function() -> Any:
            calls.names.append("a")
            if calls.count("a") == 1:
                task = asyncio.create_task(asyncio.sleep(60))
                task.cancel()
                await task
            return "a"

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return await run.step("a", function, retry=Retry(attempts=2, first_delay_s=0))

        outcome = await runner_for(log, clock, flow).start(flow, "run-1")
        assert outcome.value == "a" and calls.count("a") == 2

    @pytest.mark.parametrize(
        "options", [{"attempts": 0}, {"attempts": True}, {"first_delay_s": -1}, {"factor": 0.5}, {"max_delay_s": None}]
    )
    def test_a_policy_that_makes_no_sense_is_refused(self, options: Any) -> None:
        with pytest.raises(InvalidInput):
            Retry(**options)

    def test_delays_grow_up_to_the_longest(self) -> None:
        retry = Retry(attempts=2000, first_delay_s=1, factor=2, max_delay_s=10)
        assert [retry.delay_s(attempt) for attempt in (1, 2, 3, 4, 5, 1999)] == [1, 2, 4, 8, 10, 10]


class TestBesideOthers:
    async def test_a_retry_does_not_hold_up_its_siblings(self, log: RunLog, clock: FakeClock, calls: Calls) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            retry = Retry(attempts=2, first_delay_s=60)
            return list(await run.gather(run.step("a", calls("a", fails=1), retry=retry), run.step("b", calls("b"))))

        runner = runner_for(log, clock, flow)
        outcome = await runner.start(flow, "run-1")
        assert outcome.status == "WAITING"
        assert list(progress_of(outcome.run).pending_writes()) == ["b"]
        clock.advance(61)
        outcome = await runner.resume("run-1")
        assert outcome.value == ["a", "b"] and calls.counts() == {"a": 2, "b": 1}

    async def test_a_step_that_is_under_way_keeps_the_run_from_pausing(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        gate = asyncio.Event()

        async def slow() -> str:
            calls.names.append("slow")
            await gate.wait()
            return "slow"

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return list(await run.gather(run.step("slow", slow), run.wait_for_signal("go")))

        runner = runner_for(log, clock, flow)
        task = asyncio.create_task(runner.start(flow, "run-1"))
        await until(lambda: "slow" in calls.names)
        await asyncio.sleep(0.02)
        assert (await types_in(log)) == ["checkpoint_saved", "run_claimed"]
        gate.set()
        assert (await task).status == "WAITING"
