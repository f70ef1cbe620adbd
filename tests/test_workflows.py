"""Steps of a workflow: recorded once, given from the log ever after; and code that asks for something else is found."""

from __future__ import annotations

import asyncio
import datetime
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import eventlog
from eventlog import Retry, RunContext
from eventlog.errors import InvalidInput, LogCorrupt, Misuse, Refused, StepFailed
from eventlog.events import ResumeRejected, StepCompleted
from eventlog.log import RunLog
from eventlog.stores import SqliteLog
from eventlog.testing.clock import FakeClock
from tests.effect_runs import whole_log
from tests.workflow_runs import (
    Calls,
    by_code_of,
    commits_in,
    effect,
    events_of,
    log_until,
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


@dataclass
class Place:
    """Something with a type."""

    name: str
    at: tuple[float, float]
    seen: datetime.date


class TestSteps:
    async def test_an_output_is_durable_before_the_workflow_sees_it(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        seen: list[list[str]] = []

        @eventlog.workflow
        async def flow(run: RunContext) -> str:
            value = await run.step("one", calls("one"))
            seen.append(await types_in(log))
            return str(value)

        outcome = await runner_for(log, clock, flow).start(flow, "run-1")
        assert (outcome.status, outcome.value) == ("COMPLETED", "one")
        assert seen == [["checkpoint_saved", "run_claimed", "step_completed"]]

    async def test_a_replay_returns_what_is_recorded_and_calls_nothing(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            values = [await run.step("one", calls("one")), await run.step("one", calls("two"))]
            values.append(await run.step("one", calls("three"), key="k"))
            await run.wait_for_signal("go")
            return [*values, await run.step("last", calls("last"))]

        outcome = await runner_for(log, clock, flow).start(flow, "run-1")
        assert list(progress_of(outcome.run).steps) == ["one", "one#2", "one:k"]
        await runner_for(log, clock).signal("run-1", "go")
        outcome = await runner_for(log, clock, flow).resume("run-1")
        assert outcome.value == ["one", "two", "three", "last"]
        assert calls.names == ["one", "two", "three", "last"]

    async def test_a_replayed_output_has_the_type_of_the_annotation(self, log: RunLog, clock: FakeClock) -> None:
        seen: list[Any] = []

        async def find() -> Place:
            return Place("here", (1.5, 2.0), datetime.date(2026, 1, 2))

        @eventlog.workflow
        async def flow(run: RunContext) -> set[str]:
            seen.append(await run.step("find", find))
            await run.wait_for_signal("go")
            return {"a", "b"}

        await runner_for(log, clock, flow).start(flow, "run-1")
        await runner_for(log, clock).signal("run-1", "go")
        outcome = await runner_for(log, clock, flow).resume("run-1")
        assert seen == [Place("here", (1.5, 2.0), datetime.date(2026, 1, 2))] * 2
        assert outcome.value == {"a", "b"}
        assert (await runner_for(log, clock, flow).resume("run-1")).value == {"a", "b"}
        assert (await runner_for(log, clock).resume("run-1")).value in (["a", "b"], ["b", "a"])  # no type known there

    async def test_an_output_that_cannot_be_stored_exactly_fails_the_step_for_good_and_says_where(
        self, log: RunLog, clock: FakeClock
    ) -> None:
        told: list[StepFailed] = []

        @eventlog.workflow
        async def flow(run: RunContext) -> str:
            try:
                await run.step("bad", lambda: {"a": [{"b": {"c": object()}}]}, retry=Retry(attempts=5))
            except StepFailed as error:
                told.append(error)
            await run.wait_for_signal("go")
            return "handled"

        runner = runner_for(log, clock, flow)
        await runner.start(flow, "run-1")
        await runner.signal("run-1", "go")
        assert (await runner.resume("run-1")).value == "handled"
        live, replayed = told
        assert live.details["path"] == replayed.details["path"] == "$.a[0].b.c"
        assert (live.error_type, live.attempts) == (replayed.error_type, replayed.attempts) == ("InvalidInput", 1)
        assert str(live) == str(replayed)

    async def test_a_result_of_the_workflow_that_cannot_be_stored_fails_the_run(
        self, log: RunLog, clock: FakeClock
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return [object()]

        outcome = await runner_for(log, clock, flow).start(flow, "run-1")
        assert outcome.status == "FAILED" and outcome.failure is not None
        assert outcome.failure.details == {"code": outcome.failure.code, "path": "$[0]"}

    async def test_arguments_that_cannot_be_stored_are_refused_and_no_run_begins(
        self, log: RunLog, clock: FakeClock
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext, value: Any) -> None: ...

        with pytest.raises(InvalidInput) as refusal:
            await runner_for(log, clock, flow).start(flow, "run-1", {"x": float("nan")})
        assert refusal.value.path == "$[0].x"
        with pytest.raises(InvalidInput):
            await runner_for(log, clock, flow).start(flow, "run-1")
        assert not await types_in(log)

    async def test_what_a_workflow_does_to_an_output_does_not_change_what_is_recorded(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            value = await run.step("one", calls("one", [1]))
            value.append(2)
            await run.wait_for_signal("go")
            return value

        runner = runner_for(log, clock, flow)
        await runner.start(flow, "run-1")
        await runner.signal("run-1", "go")
        assert (await runner.resume("run-1")).value == [1, 2]

    async def test_time_and_chance_are_the_same_on_every_replay(self, log: RunLog, clock: FakeClock) -> None:
        seen: list[Any] = []

        @eventlog.workflow
        async def flow(run: RunContext) -> None:
            seen.append((await run.now(), await run.random(), await run.uuid(), await run.uuid()))
            await run.wait_for_signal("go")

        runner = runner_for(log, clock, flow)
        await runner.start(flow, "run-1")
        clock.advance(60)
        await runner.signal("run-1", "go")
        await runner.resume("run-1")
        first, second = seen
        assert first == second
        now, chance, one, two = first
        assert now.tzinfo is datetime.UTC and 0 <= chance < 1
        assert isinstance(one, uuid.UUID) and one != two

    async def test_only_the_workflow_asks_and_not_a_step_of_it(self, log: RunLog, clock: FakeClock) -> None:
        codes: list[str] = []

        @eventlog.workflow
        async def flow(run: RunContext) -> None:
            async def outer() -> None:
                try:
                    await run.step("inner", lambda: 1)
                except Misuse as error:
                    codes.append(error.code)

            await run.step("outer", outer)

        outcome = await runner_for(log, clock, flow).start(flow, "run-1")
        assert (outcome.status, codes) == ("COMPLETED", ["nested_step"])
        assert list(progress_of(outcome.run).steps) == ["outer"]

    @pytest.mark.parametrize("name", ["a#2", "a:b", "", "x" * 200])
    async def test_a_name_that_could_be_a_key_is_refused(self, log: RunLog, clock: FakeClock, name: str) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> None:
            await run.step(name, lambda: 1)

        outcome = await runner_for(log, clock, flow).start(flow, "run-1")
        assert outcome.failure is not None and outcome.failure.code in ("invalid_id", "invalid_argument")
        assert "step_completed" not in await types_in(log)

    async def test_a_step_of_a_step_function_may_start_another_run(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        @eventlog.workflow
        async def inner(run: RunContext) -> Any:
            return await run.step("deep", calls("deep"))

        @eventlog.workflow
        async def outer(run: RunContext) -> Any:
            async def start() -> str:
                return str((await runner.start(inner, "run-2")).value)

            return list(await run.gather(run.step("start", start)))

        runner = runner_for(log, clock, inner, outer)
        assert (await runner.start(outer, "run-1")).value == ["deep"]
        (deep,) = [event for event in await events_of(log, "run-2") if isinstance(event, StepCompleted)]
        assert deep.group is None


class TestLargeValues:
    BIG = "x" * 70_000

    async def test_inputs_outputs_and_results_over_the_limit_go_beside_the_log(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext, text: str) -> str:
            value = await run.step("big", calls("big", text))
            await run.wait_for_signal("go")
            return str(value)

        runner = runner_for(log, clock, flow)
        await runner.start(flow, "run-1", self.BIG)
        await runner.signal("run-1", "go")
        outcome = await runner.resume("run-1")
        assert outcome.value == self.BIG and calls.count("big") == 1
        assert (await runner.resume("run-1")).value == self.BIG
        events = (await log.read_stream("run:run-1")).events
        assert all(len(event.body) < 1000 for event in events)
        named = [event.data.artifact for event in events if getattr(event.data, "artifact", None)]
        assert len(named) == 3 and all(len(digest) == 64 for digest in named)

    @pytest.mark.parametrize("damage", ["missing", "altered"])
    async def test_a_value_that_is_damaged_stops_the_run_and_does_not_lose_it(
        self, tmp_path: Path, clock: FakeClock, calls: Calls, damage: str
    ) -> None:
        handled: list[BaseException] = []

        @eventlog.workflow
        async def flow(run: RunContext) -> int:
            try:
                value = await run.step("big", calls("big", self.BIG))
            except Exception as error:
                handled.append(error)
                value = ""
            await run.wait_for_signal("go")
            return len(value)

        async with whole_log("sqlite", tmp_path, clock=clock) as log:
            assert isinstance(log, SqliteLog)
            runner = runner_for(log, clock, flow)
            outcome = await runner.start(flow, "run-1")
            digest = progress_of(outcome.run).steps["big"].value.artifact
            assert digest is not None
            (file,) = [path for path in tmp_path.rglob("*") if path.is_file() and digest[2:] in str(path)]
            whole = file.read_bytes()
            file.chmod(0o600)
            file.unlink() if damage == "missing" else file.write_bytes(whole[:-2] + b'y"')
            await runner.signal("run-1", "go")
            with pytest.raises(LogCorrupt):
                await runner.resume("run-1")
            assert not handled and calls.count("big") == 1
            assert (await state_of(runner)).status == "RUNNING"
            if damage == "missing":
                file.parent.mkdir(exist_ok=True)
            file.write_bytes(whole)
            assert (await runner.resume("run-1")).value == len(self.BIG)


class TestGather:
    async def test_results_come_in_the_order_of_the_call_and_one_checkpoint_commits_them(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        gate = asyncio.Event()

        async def slow() -> str:
            await gate.wait()
            return "slow"

        async def quick() -> str:
            gate.set()
            return "quick"

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return list(await run.gather(run.step("slow", slow), run.step("quick", quick), run.now()))[:2]

        outcome = await runner_for(log, clock, flow).start(flow, "run-1")
        assert outcome.value == ["slow", "quick"]
        events = await events_of(log)
        assert commits_in(events) == [("slow", "quick", "now")]
        assert len(set(progress_of(outcome.run).committed.values())) == 1

    async def test_an_empty_group_is_nothing(self, log: RunLog, clock: FakeClock) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return list(await run.gather())

        assert (await runner_for(log, clock, flow).start(flow, "run-1")).value == []
        assert commits_in(await events_of(log)) == []

    async def test_every_sibling_is_let_come_to_its_end_and_only_the_failed_one_is_done_again(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        gate = asyncio.Event()

        async def slow() -> str:
            calls.names.append("slow")
            await gate.wait()
            return "slow"

        async def fails() -> str:
            calls.names.append("fails")
            asyncio.get_running_loop().call_later(0.01, gate.set)
            if calls.count("fails") == 1:
                raise OSError("no")
            return "came right"

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            steps = run.step("fails", fails), run.step("slow", slow), run.step("quick", calls("quick"))
            return list(await run.gather(*steps))

        runner = runner_for(log, clock, flow)
        outcome = await runner.start(flow, "run-1")
        assert outcome.status == "FAILED"
        assert set(progress_of(outcome.run).pending_writes()) == {"slow", "quick"}
        outcome = await runner.resume("run-1")
        assert outcome.value == ["came right", "slow", "quick"]
        assert calls.counts() == {"fails": 2, "slow": 1, "quick": 1}
        assert commits_in(await events_of(log)) == [("fails", "slow", "quick")]

    async def test_the_paused_state_is_that_of_the_article(self, log: RunLog, clock: FakeClock, calls: Calls) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            await run.step("search_logs", calls("search_logs"))
            prepare = run.step("prepare_patch", calls("prepare_patch"))
            return list(await run.gather(prepare, run.act("apply_patch", {}, output="repo")))

        action = effect(calls, "apply_patch")
        outcome = await runner_for(log, clock, flow, actions=[action]).start(flow, "run-1")
        progress = progress_of(outcome.run)
        assert outcome.status == "WAITING_FOR_USER"
        assert list(progress.committed) == ["search_logs"]
        assert list(progress.pending_writes()) == ["prepare_patch"]
        waiting = outcome.run.waiting
        assert waiting is not None
        assert (waiting.type, waiting.node_id, waiting.approval_id) == (
            "approval",
            "apply_patch",
            "approval:run-1:apply_patch",
        )
        runner = runner_for(log, clock, flow, actions=[action])
        await runner.approve("run-1", outcome.requests[0].proposal_hash or "")
        outcome = await runner.resume("run-1")
        assert outcome.value == ["prepare_patch", {"done": {}}]
        assert calls.names == ["search_logs", "prepare_patch", "apply_patch"]
        assert commits_in(await events_of(log)) == [("prepare_patch", "apply_patch")]

    async def test_whole_agents_run_beside_each_other(self, log: RunLog, clock: FakeClock, calls: Calls) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            async def agent(name: str) -> str:
                first = await run.step("think", calls(f"think {name}"), key=name)
                return str(first) + str(await run.step("act", calls(f"act {name}"), key=name))

            one, two, both = await run.gather(agent("a"), agent("b"), run.gather(agent("c"), agent("d")))
            return [one, two, *both]

        runner = runner_for(log, clock, flow)
        outcome = await runner.start(flow, "run-1")
        assert outcome.value == [f"think {name}act {name}" for name in "abcd"]
        assert len(progress_of(outcome.run).committed) == 8

    async def test_an_agent_that_handled_a_failure_goes_on_behind_it_when_its_sibling_is_tried_again(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            async def careful() -> Any:
                try:
                    return await run.step("first", calls("first", fails=9))
                except StepFailed:
                    return await run.step("second", calls("second"))

            return list(await run.gather(careful(), run.step("other", calls("other", fails=1))))

        runner = runner_for(log, clock, flow)
        assert (await runner.start(flow, "run-1")).status == "FAILED"
        outcome = await runner.resume("run-1")
        assert outcome.value == ["second", "other"]
        assert calls.counts() == {"first": 1, "second": 1, "other": 2}


async def journey(run: RunContext, calls: Calls) -> Any:
    """Ask for a bit of everything."""
    values: list[Any] = [await run.step("one", calls("one")), str(await run.uuid())]
    values += await run.gather(
        run.step("left", calls("left")),
        run.step("right", calls("right", fails=1), retry=Retry(attempts=3, first_delay_s=0)),
        run.wait_for_signal("go"),
    )
    try:
        await run.step("broken", calls("broken", fails=99))
    except StepFailed as error:
        values.append(error.attempts)
    await run.sleep(60)
    values.append(await run.step("one", calls("again")))
    return values


class TestCrashes:
    async def test_a_run_converges_wherever_its_log_ends_and_nothing_recorded_is_done_again(
        self, clock: FakeClock, calls: Calls
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return await journey(run, calls)

        async def drive(log: RunLog, *, is_new: bool) -> eventlog.Outcome:
            runner = runner_for(log, clock, flow)
            outcome = await (runner.start(flow, "run-1") if is_new else runner.resume("run-1"))
            if "go" not in [getattr(event, "name", None) for event in await events_of(log)]:
                await runner.signal("run-1", "go", 7)
                outcome = await runner.resume("run-1")
            if outcome.status == "WAITING":
                clock.advance(61)
                outcome = await runner.resume("run-1")
            return outcome

        async with eventlog.open("memory:", clock=clock) as log:
            whole = await drive(log, is_new=True)
            assert whole.value[2:] == ["left", "right", 7, 1, "again"]
            events = [event async for event in log.read_all()]
            for left in range(1, len(events)):
                calls.forget()
                calls.names += ["right"] * sum(event.type == "step_started" for event in events[:left])
                done = [event.data.key for event in events[:left] if event.type == "step_completed"]
                before = calls.counts()
                async with log_until(log, left, clock) as short:
                    outcome = await drive(short, is_new=False)
                assert outcome.status == "COMPLETED", left
                assert outcome.value[2:] == whole.value[2:], left
                again = calls.counts() - before
                assert not {key for key in done if again[key]} - {"one"}, left
                assert again["one"] == (0 if "one" in done else 1), left


class TestDivergence:
    """A run has done steps `a` and `b` and is to go on with `c`; it is replayed by other code."""

    async def paused(self, log: RunLog, clock: FakeClock, calls: Calls) -> Any:
        @eventlog.workflow(name="flow")
        async def old(run: RunContext) -> Any:
            await run.step("a", calls("a"), 1)
            await run.step("b", calls("b"))
            await run.wait_for_signal("go")
            return await run.step("c", calls("c"))

        runner = runner_for(log, clock, old)
        await runner.start(old, "run-1")
        await runner.signal("run-1", "go")
        calls.forget()
        return old

    async def refused(self, log: RunLog, clock: FakeClock, code: Any, old: eventlog.Workflow) -> Refused:
        """Resume with `code`, see it refused with nothing new in the log, and the run completed with the old code."""
        before = len(await types_in(log))
        new = by_code_of(old)(code)
        with pytest.raises(Refused) as refusal:
            await runner_for(log, clock, new, actions=[effect(Calls())]).resume("run-1")
        assert refusal.value.code == "nondeterministic_replay"
        assert await types_in(log, after=before) == ["run_claimed", "resume_rejected", "checkpoint_saved"]
        (rejected,) = [each for each in await events_of(log, after=before) if isinstance(each, ResumeRejected)]
        assert rejected.reason == "nondeterministic_replay" and rejected.detail is not None
        assert "asked" in rejected.detail and "recorded" in rejected.detail
        return refusal.value

    async def test_another_name(self, log: RunLog, clock: FakeClock, calls: Calls) -> None:
        old = await self.paused(log, clock, calls)

        async def code(run: RunContext) -> Any:
            await run.step("x", calls("x"), 1)
            await run.step("b", calls("b"))

        refusal = await self.refused(log, clock, code, old)
        assert refusal.details["asked"] == "x" and "a" in refusal.details["recorded"]
        assert not calls.names
        outcome = await runner_for(log, clock, old).resume("run-1")
        assert outcome.status == "COMPLETED" and calls.names == ["c"]

    async def test_other_arguments(self, log: RunLog, clock: FakeClock, calls: Calls) -> None:
        old = await self.paused(log, clock, calls)

        async def code(run: RunContext) -> Any:
            await run.step("a", calls("a"), 2)

        refusal = await self.refused(log, clock, code, old)
        assert "'a'" in refusal.details["asked"]
        assert not calls.names

    async def test_another_kind(self, log: RunLog, clock: FakeClock, calls: Calls) -> None:
        old = await self.paused(log, clock, calls)

        async def code(run: RunContext) -> Any:
            await run.act("a", {}, output="x")

        refusal = await self.refused(log, clock, code, old)
        assert "'a'" in refusal.details["asked"] and "step" in refusal.details["recorded"]

    async def test_a_step_that_is_gone(self, log: RunLog, clock: FakeClock, calls: Calls) -> None:
        old = await self.paused(log, clock, calls)

        async def code(run: RunContext) -> Any:
            await run.step("a", calls("a"), 1)
            await run.wait_for_signal("go")
            return await run.step("c", calls("c"))

        refusal = await self.refused(log, clock, code, old)
        assert refusal.details["recorded"] == "b"
        assert not calls.names

    async def test_a_step_that_is_new_in_front(self, log: RunLog, clock: FakeClock, calls: Calls) -> None:
        old = await self.paused(log, clock, calls)

        async def code(run: RunContext) -> Any:
            await run.step("new", calls("new"))
            await run.step("a", calls("a"), 1)
            await run.step("b", calls("b"))

        refusal = await self.refused(log, clock, code, old)
        assert refusal.details["asked"] == "new"
        assert not calls.names

    async def test_an_early_end(self, log: RunLog, clock: FakeClock, calls: Calls) -> None:
        old = await self.paused(log, clock, calls)

        async def code(run: RunContext) -> Any:
            return await run.step("a", calls("a"), 1)

        refusal = await self.refused(log, clock, code, old)
        assert refusal.details["asked"] == "the end of the workflow"

    async def test_code_that_only_waits_is_found_out_before_it_pauses(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        """It asks for nothing that is new, so nothing but the pause is left at which to find it out."""

        @eventlog.workflow(name="flow")
        async def old(run: RunContext) -> None:
            await run.step("b", calls("b"))
            await run.gather(run.act("apply", {}, output="x"), run.wait_for_signal("go"))

        async def code(run: RunContext) -> None:
            await run.act("apply", {}, output="x")

        runner = runner_for(log, clock, old, actions=[effect(calls)])
        await runner.start(old, "run-1")
        await runner.signal("run-1", "go")
        refusal = await self.refused(log, clock, code, old)
        assert refusal.details["recorded"] == "b"
        outcome = await runner.resume("run-1")
        assert outcome.status == "WAITING_FOR_USER" and calls.names == ["b"]

    async def test_a_pause_waits_for_code_that_is_late_to_ask_for_what_it_had(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        executions: list[int] = []

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            executions.append(1)

            async def late() -> None:
                await asyncio.sleep(0.03 if len(executions) > 2 else 0)
                await run.sleep(10)

            async with asyncio.TaskGroup() as group:
                task = group.create_task(run.act("apply", {}, output="x"))
                group.create_task(late())
                if len(executions) < 3:
                    group.create_task(run.wait_for_signal("go"))
            return task.result()

        runner = runner_for(log, clock, flow, actions=[effect(calls)], patience_s=5)
        await runner.start(flow, "run-1")
        clock.advance(11)
        await runner.resume("run-1")
        await runner.signal("run-1", "go")
        outcome = await runner.resume("run-1")
        assert (outcome.status, len(executions)) == ("WAITING_FOR_USER", 3)
        await runner.approve("run-1", outcome.requests[0].proposal_hash or "")
        assert (await runner.resume("run-1")).value == {"done": {}}

    async def test_code_that_catches_everything_is_not_let_on(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        old = await self.paused(log, clock, calls)

        async def code(run: RunContext) -> Any:
            for name in ("x", "y", "z"):
                try:
                    await run.step(name, calls(name))
                except BaseException:
                    continue
            return "done"

        await self.refused(log, clock, code, old)
        assert not calls.names

    async def test_the_order_of_steps_that_stand_beside_each_other_does_not_matter(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        old = await self.paused(log, clock, calls)

        async def code(run: RunContext) -> Any:
            await run.gather(run.wait_for_signal("go"), run.step("b", calls("b")), run.step("a", calls("a"), 1))
            return await run.step("c", calls("c"))

        outcome = await runner_for(log, clock, by_code_of(old)(code)).resume("run-1")
        assert outcome.value == "c" and calls.names == ["c"]

    @pytest.mark.parametrize(
        ("was", "becomes"),
        [
            ("step", "act"),
            ("step", "child"),
            ("step", "sleep"),
            ("act", "step"),
            ("child", "step"),
            ("child", "act"),
            ("child", "hand_off"),
            ("sleep", "step"),
            ("now", "step"),
            ("step", "now"),
        ],
    )
    async def test_the_same_key_for_something_else(
        self, log: RunLog, clock: FakeClock, calls: Calls, was: str, becomes: str
    ) -> None:
        names = {"sleep": "sleep", "now": "now"}
        name = names.get(was) or names.get(becomes) or "it"

        @eventlog.workflow(name="it")
        async def it(run: RunContext) -> None: ...

        async def ask(run: RunContext, kind: str) -> Any:
            match kind:
                case "step":
                    return await run.step(name, calls("step"))
                case "act":
                    return await run.act(name, {}, output="x")
                case "child":
                    return await run.child(it)
                case "hand_off":
                    return await run.hand_off(it)
                case "sleep":
                    return await run.sleep(1)
                case _:
                    return await run.now()

        @eventlog.workflow(name="flow")
        async def old(run: RunContext) -> None:
            await ask(run, was)
            await run.wait_for_signal("go")

        async def code(run: RunContext) -> None:
            await ask(run, becomes)
            await run.wait_for_signal("go")

        action = effect(calls, "it")
        policies = {"it": eventlog.Policy(auto=True)}
        runner = runner_for(log, clock, old, it, actions=[action], policies=policies)
        await runner.start(old, "run-1")
        if was == "sleep":
            clock.advance(2)
            await runner.resume("run-1")
        await runner.signal("run-1", "go")
        calls.forget()
        before = len(await types_in(log))
        new = by_code_of(old)(code)
        with pytest.raises(Refused) as refusal:
            await runner_for(log, clock, new, it, actions=[action], policies=policies).resume("run-1")
        assert refusal.value.code == "nondeterministic_replay"
        assert await types_in(log, after=before) == ["run_claimed", "resume_rejected", "checkpoint_saved"]
        assert not calls.names

    async def test_another_proposal_under_the_same_key_is_refused_and_nothing_is_done(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        values = iter(["reviewed-value", "changed-value", "reviewed-value"])

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return await run.act("apply", {"value": next(values)}, output="x")

        runner = runner_for(log, clock, flow, actions=[effect(calls)])
        outcome = await runner.start(flow, "run-1")
        await runner.approve("run-1", outcome.requests[0].proposal_hash or "")
        before = len(await types_in(log))
        with pytest.raises(Refused) as refusal:
            await runner.resume("run-1")
        assert refusal.value.code == "proposal_hash_mismatch"
        assert not calls.names
        assert await types_in(log, after=before) == [
            "run_claimed",
            "proposal_rejected",
            "resume_rejected",
            "checkpoint_saved",
        ]
        assert (await runner.resume("run-1")).value == {"done": {"value": "reviewed-value"}}
        assert calls.names == ["apply"]

    @pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
    async def test_tasks_of_its_own_may_end_in_another_order(
        self, log: RunLog, clock: FakeClock, calls: Calls, order: tuple[str, str]
    ) -> None:
        executions: list[tuple[str, str]] = [("a", "b"), order]

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            _, second = executions.pop(0)
            turn = asyncio.Event()

            async def agent(name: str) -> str:
                if name == second:
                    await turn.wait()
                for number in range(3):
                    await run.step("work", calls(f"{name}{number}"), key=f"{name}{number}")
                    await asyncio.sleep(0.002)
                turn.set()
                return name

            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(agent(name)) for name in ("a", "b")]
            names = await asyncio.gather(*(run.step("end", calls(f"end {name}"), key=name) for name in "ab"))
            await run.wait_for_signal("go")
            return [*(task.result() for task in tasks), *names]

        runner = runner_for(log, clock, flow)
        await runner.start(flow, "run-1")
        await runner.signal("run-1", "go")
        outcome = await runner.resume("run-1")
        assert outcome.value == ["a", "b", "end a", "end b"]
        assert all(count == 1 for count in calls.counts().values())

    async def test_a_task_that_does_something_of_its_own_first_is_waited_for(
        self, log: RunLog, clock: FakeClock, calls: Calls, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The one step was done, and the other not yet, when the process died; the replay asks the other first."""
        monkeypatch.setattr("eventlog.runtime.drive.replay._REPLAY_NAPS", 1)
        stuck = asyncio.Event()

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            async def late() -> Any:
                await asyncio.sleep(0.05 if calls.count("late") else 0)
                return await run.step("late", calls("late"))

            async def early() -> Any:
                async def wait() -> str:
                    calls.names.append("early")
                    await stuck.wait()
                    return "early"

                return await run.step("early", wait)

            return await asyncio.gather(early(), late())

        runner = runner_for(log, clock, flow)
        task = asyncio.create_task(runner.start(flow, "run-1"))
        await until(lambda: {"early", "late"} <= set(calls.names))
        await until_logged(log, "step_completed")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        stuck.set()
        outcome = await runner_for(log, clock, flow, patience_s=5).resume("run-1")
        assert outcome.value == ["early", "late"]
        assert calls.counts() == {"early": 2, "late": 1}


class TestDefinitions:
    async def test_other_code_under_a_paused_run_is_refused_with_the_names_that_differ_and_runs_nothing(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        @eventlog.workflow(name="flow")
        async def old(run: RunContext) -> None:
            await run.step("a", calls("a"))
            await run.wait_for_signal("go")
            await run.step("b", calls("b"))
            await run.step("c", calls("c"))

        @eventlog.workflow(name="flow")
        async def new(run: RunContext) -> None:
            await run.step("a", calls("a"))
            await run.wait_for_signal("go")
            await run.step("x", calls("x"))
            await run.step("c", calls("c"))

        await runner_for(log, clock, old).start(old, "run-1")
        await runner_for(log, clock).signal("run-1", "go")
        calls.forget()
        before = len(await types_in(log))
        with pytest.raises(Refused) as refusal:
            await runner_for(log, clock, new).resume("run-1")
        assert refusal.value.code == "definition_mismatch"
        assert "adds 'x'" in str(refusal.value) and "lacks 'b'" in str(refusal.value)
        assert await types_in(log, after=before) == ["resume_rejected"] and not calls.names
        continuing = by_code_of(old)(new.function)
        await runner_for(log, clock, continuing).resume("run-1")
        assert calls.names == ["x", "c"]

    async def test_a_version_that_is_continued_goes_on(self, log: RunLog, clock: FakeClock, calls: Calls) -> None:
        @eventlog.workflow(name="flow", version="1")
        async def old(run: RunContext) -> Any:
            return await run.wait_for_signal("go")

        @eventlog.workflow(name="flow", version="2", continues=["1"])
        async def new(run: RunContext) -> Any:
            return [await run.wait_for_signal("go"), await run.step("more", calls("more"))]

        await runner_for(log, clock, old).start(old, "run-1")
        await runner_for(log, clock).signal("run-1", "go", 1)
        assert (await runner_for(log, clock, new).resume("run-1")).value == [1, "more"]

    async def test_a_workflow_that_nobody_registered_is_refused_by_name(self, log: RunLog, clock: FakeClock) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> None:
            await run.wait_for_signal("go")

        await runner_for(log, clock, flow).start(flow, "run-1")
        await runner_for(log, clock).signal("run-1", "go")
        with pytest.raises(Refused) as refusal:
            await runner_for(log, clock).resume("run-1")
        assert refusal.value.code == "unknown_workflow" and "flow" in str(refusal.value)
        with pytest.raises(InvalidInput):
            await runner_for(log, clock).start(flow, "run-2")
        with pytest.raises(Refused) as refusal:
            await runner_for(log, clock, flow).start(flow, "run-1")
        assert refusal.value.code == "run_exists"


class TestBranches:
    """What stands side by side counts its names for itself, so that it does not matter who comes first."""

    @pytest.mark.parametrize("first", ["a", "b"])
    async def test_sleeps_behind_steps_of_unequal_length_keep_to_their_branches(
        self, log: RunLog, clock: FakeClock, first: str
    ) -> None:
        woke: list[str] = []

        @eventlog.workflow
        async def flow(run: RunContext) -> None:
            async def branch(name: str, seconds: float) -> None:
                await run.step(name, quick if name == first else slow)
                await run.sleep(seconds)
                woke.append(name)

            await run.gather(branch("a", 10), branch("b", 7200))

        runner = runner_for(log, clock, flow, patience_s=0)
        assert (await runner.start(flow, "run-1")).status == "WAITING"
        clock.advance(20)
        assert (await runner.resume("run-1")).status == "WAITING"
        assert woke == ["a"]
        progress = progress_of(await runner.state("run-1"))
        assert set(progress.timers) == {"gather#1.1/sleep", "gather#1.2/sleep"}

    async def test_tasks_of_its_own_are_numbered_and_groups_in_groups_as_well(
        self, log: RunLog, clock: FakeClock
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> list[str]:
            async def inner(name: str) -> str:
                first, second = await run.gather(run.step("leaf", quick), run.step("leaf", quick))
                return f"{name}{first}{second}"

            await run.gather(inner("x"), inner("y"))
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(inner(name)) for name in "pq"]
            return [task.result() for task in tasks]

        runner = runner_for(log, clock, flow)
        outcome = await runner.start(flow, "run-1")
        assert outcome.status == "COMPLETED", outcome.failure
        assert set(progress_of(outcome.run).steps) == {
            f"{branch}/{leaf}"
            for branch in ("gather#1.1", "gather#1.2", "task#1", "task#2")
            for leaf in ("leaf", "leaf#2")
        }

    async def test_a_key_of_the_programs_own_is_the_same_in_every_branch_and_is_not_taken_for_a_second_use(
        self, log: RunLog, clock: FakeClock
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> None:
            async def branch(key: str) -> None:
                await run.step("fetch", quick, key=key)

            await run.gather(branch("x"), branch("x#2"))
            await run.step("fetch", quick, key="x")
            await run.sleep(0, key="nap")

        outcome = await runner_for(log, clock, flow).start(flow, "run-1")
        assert outcome.status == "COMPLETED", outcome.failure
        progress = progress_of(outcome.run)
        assert set(progress.steps) == {"fetch:x", "fetch:x##2", "fetch:x#2"}
        assert set(progress.timers) == {"sleep:nap"}


async def quick() -> str:
    return "."


async def slow() -> str:
    for _ in range(30):
        await asyncio.sleep(0)
    return "."
