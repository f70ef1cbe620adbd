"""What a drive does at moments that come about when others act just then, or when the code asks in tasks of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

import eventlog
from eventlog import Policy, RunContext
from eventlog.errors import ActionFailed, Refused, RunConflict, StoreUnavailable
from eventlog.log import RunLog
from eventlog.progress import request_of
from eventlog.runtime.drive.pauses import Pauses
from eventlog.runtime.drive.replay import _REPLAY_TICKS
from eventlog.testing.clock import FakeClock
from tests.effect_runs import LEASE_S
from tests.test_broken_drives import AUTO, one_effect, session_of
from tests.test_drives import before, failing, note
from tests.workflow_runs import Calls, effect, events_of, progress_of, runner_for, tidy, types_in, until, until_logged


@pytest.fixture
async def log(clock: FakeClock) -> AsyncIterator[RunLog]:
    async with eventlog.open("memory:", clock=clock) as log:
        yield log


@pytest.fixture(autouse=True)
async def leaves_nothing() -> AsyncIterator[None]:
    async with tidy():
        yield


@pytest.fixture
def calls() -> Calls:
    return Calls()


def unknown_effect(calls: Calls, promise: str, **options: Any) -> Any:
    """Return an action of which nobody can tell what its first attempt has come to."""

    @eventlog.action("apply", promise=promise, **options)
    async def apply(call: eventlog.Call) -> Any:
        calls.names.append("apply")
        raise TimeoutError("no answer")

    return apply


class TestWatching:
    async def test_a_claim_is_renewed_while_a_step_takes_longer_than_the_lease(
        self, log: RunLog, clock: FakeClock
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return await run.step("slow", lambda: asyncio.sleep(0.3, "done"))

        assert (await runner_for(log, clock, flow, lease_s=0.15).start(flow, "run-1")).value == "done"
        assert (await types_in(log)).count("claim_renewed") >= 2

    async def test_a_claim_that_the_store_does_not_renew_is_told_and_renewed_later(
        self, log: RunLog, clock: FakeClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        may_end = asyncio.Event()

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return await run.step("slow", may_end.wait)

        before(log, "claim_renewed", failing(StoreUnavailable("store_full", "no room")))
        running = asyncio.create_task(runner_for(log, clock, flow, lease_s=0.15).start(flow, "run-1"))
        await until_logged(log, "claim_renewed")
        may_end.set()
        assert (await running).value is True
        assert "claim_not_renewed" in caplog.text and "store_full" in caplog.text

    async def test_a_run_that_another_program_cancels_knows_it_long_before_the_claim_is_renewed(
        self, log: RunLog, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("eventlog.runtime.drive.watch._WATCH_S", 0.01)
        may_end = asyncio.Event()

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return await run.step("slow", may_end.wait)

        runner = runner_for(log, clock, flow)
        running = asyncio.create_task(runner.start(flow, "run-1"))
        await until(lambda: bool(runner.workflows._drives))
        session = session_of(runner)
        await runner_for(log, clock).cancel("run-1")
        await until(lambda: session.run.status == "CANCELLED")
        may_end.set()
        assert (await running).status == "CANCELLED"
        assert "claim_renewed" not in await types_in(log)


class TestStops:
    @pytest.mark.parametrize("waits_too", [False, True], ids=["alone", "beside one that waits"])
    async def test_a_step_that_is_asked_for_behind_a_stop_gives_the_run_free(
        self, log: RunLog, clock: FakeClock, calls: Calls, waits_too: bool
    ) -> None:
        async def first() -> None:
            runner.workflows.stop()

        async def both(run: RunContext) -> Any:
            await run.step("first", first)
            return await run.step("second", calls("second"))

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            if not waits_too:
                return [await both(run)]
            return list(await run.gather(both(run), run.wait_for_signal("go")))

        runner = runner_for(log, clock, flow)
        outcome = await runner.start(flow, "run-1")
        assert calls.names == [] and progress_of(outcome.run).owner is None
        await runner_for(log, clock).signal("run-1", "go", 1)
        outcome = await runner_for(log, clock, flow).resume("run-1")
        assert outcome.value == (["second", 1] if waits_too else ["second"]) and calls.names == ["second"]


class TestTasksOfTheCodeItself:
    async def test_a_branch_that_has_asked_for_nothing_yet_is_waited_for_in_a_replay(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            async def late() -> Any:
                for _ in range(turns):
                    await asyncio.sleep(0)
                return await run.step("late", calls("late"))

            async def behind() -> Any:
                await run.wait_for_signal("go")
                return await run.step("behind", calls("behind"))

            return list(await run.gather(late(), behind()))

        turns, runner = 0, runner_for(log, clock, flow)
        assert (await runner.start(flow, "run-1")).status == "WAITING"
        await runner.signal("run-1", "go")
        turns = 2 * _REPLAY_TICKS
        assert (await runner_for(log, clock, flow).resume("run-1")).value == ["late", "behind"]
        assert calls.names == ["late", "behind"]

    async def test_a_task_of_the_code_that_asks_of_a_cancelled_run_is_suspended(
        self, log: RunLog, clock: FakeClock
    ) -> None:
        await self._cancel_under_a_task(log, clock, "step_completed", lambda run: run.random())
        assert "step_completed" not in await types_in(log)

    async def test_a_task_of_the_code_whose_effect_is_about_to_begin_in_a_cancelled_run_does_nothing(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        ask: Callable[[RunContext], Any] = lambda run: run.act("apply", {}, output="x")  # noqa: E731
        await self._cancel_under_a_task(log, clock, "resume_started", ask, actions=[effect(calls)])
        assert calls.names == [] and "resume_started" not in await types_in(log)

    async def _cancel_under_a_task(
        self, log: RunLog, clock: FakeClock, kind: str, ask: Callable[[RunContext], Any], **options: Any
    ) -> None:
        """Cancel the run before an event of this type, while a task that nobody awaits directly asks for it."""
        told: list[str] = []

        @eventlog.workflow
        async def flow(run: RunContext) -> None:
            async def asks() -> None:
                try:
                    await ask(run)
                except BaseException as error:
                    told.append(type(error).__name__)
                    raise

            await asyncio.wait([asyncio.create_task(asks())])

        runner = runner_for(log, clock, flow, policies={"apply": AUTO}, **options)
        before(log, kind, lambda: runner_for(log, clock).cancel("run-1"))
        assert (await runner.start(flow, "run-1")).status == "CANCELLED"
        assert told == ["Suspended"]

    async def test_a_process_that_stood_still_and_was_not_replaced_goes_on(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            await run.step("first", calls("first"))
            clock.advance(LEASE_S + 1)
            return await run.step("second", calls("second"))

        assert (await runner_for(log, clock, flow).start(flow, "run-1")).value == "second"
        assert calls.names == ["first", "second"]


class TestPauses:
    async def test_an_approval_that_comes_in_the_turn_in_which_the_run_pauses_lets_it_go_on(
        self, log: RunLog, clock: FakeClock, calls: Calls, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Once the run paused behind it, waited for what it had, and was refused each time it was resumed."""
        runner, pause, times = runner_for(log, clock, one_effect, actions=[effect(calls)]), Pauses._pause, 0

        async def just_behind(pauses: Pauses) -> None:
            nonlocal times
            times += 1
            if times == 1:
                await approve(log, clock)
                await pauses._session._catch_up()  # in memory nobody else has a turn meanwhile
            await pause(pauses)

        monkeypatch.setattr(Pauses, "_pause", just_behind)
        assert (await runner.start(one_effect, "run-1")).status == "COMPLETED"
        assert times == 1 and calls.names == ["apply"]

    async def test_a_run_that_waits_for_what_was_decided_before_it_paused_goes_on_when_it_is_resumed(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        """As an earlier version may have left it."""
        runner = runner_for(log, clock, one_effect, actions=[effect(calls)])
        assert (await runner.start(one_effect, "run-1")).status == "WAITING_FOR_USER"
        (*_, pause) = await events_of(log)
        with pytest.raises(Refused, match="waits for a decision"):
            await runner.resume("run-1")
        await approve(log, clock)
        await note(log, msgspec.structs.replace(pause, state_version=pause.state_version + 1))
        assert (await runner.state("run-1")).status == "WAITING_FOR_USER"
        assert (await runner.resume("run-1")).status == "COMPLETED" and calls.names == ["apply"]


async def approve(log: RunLog, clock: FakeClock) -> None:
    """Approve what the run asks for, as another program."""
    run = await runner_for(log, clock).state("run-1")
    request = request_of(run, "apply")
    assert request is not None and request.proposal_hash is not None
    await runner_for(log, clock).approve("run-1", request.proposal_hash)


class TestEffects:
    async def test_a_request_whose_approval_is_over_whenever_it_is_recorded_is_a_conflict(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        policies = {"apply": Policy(auto=True, expires_in_s=10)}
        runner = runner_for(log, clock, one_effect, actions=[effect(calls)], policies=policies)

        async def time_passes() -> None:
            clock.advance(11)

        end = before(log, "proposal_recorded", time_passes, times=1000)
        with pytest.raises(RunConflict, match="faster than a request can be recorded"):
            await runner.start(one_effect, "run-1")
        assert "proposal_recorded" not in await types_in(log)
        end()
        assert (await runner.resume("run-1")).status == "COMPLETED" and calls.names == ["apply"]

    async def test_an_outcome_that_a_person_reports_while_the_run_works_is_taken_by_that_drive(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        may_end = asyncio.Event()

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return list(await run.gather(run.act("apply", {}, output="x"), run.step("holds", may_end.wait)))

        runner = runner_for(log, clock, flow, actions=[unknown_effect(calls, "opaque")], policies={"apply": AUTO})
        running = asyncio.create_task(runner.start(flow, "run-1"))
        await until_logged(log, "outcome_unknown")
        other = runner_for(log, clock, actions=[unknown_effect(calls, "opaque")])
        await until(lambda: _waits(runner))
        changes = session_of(runner).changes
        await other.signal("run-1", "news")  # which says nothing of the effect: it is still unknown
        runner.workflows.notify("run-1")
        await until(lambda: session_of(runner).changes > changes and _waits(runner))
        await other.reconcile("run-1", "executed", evidence="I looked", result={"done": 1})
        runner.workflows.notify("run-1")
        await until(lambda: _is_told(runner))
        may_end.set()
        outcome = await running
        assert outcome.status == "COMPLETED" and calls.names == ["apply"]

    async def test_a_check_that_refuses_an_unknown_effect_is_asked_again_when_something_has_come(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        may_end = asyncio.Event()

        def check(call: eventlog.Call) -> None:
            if calls.names == ["apply"]:
                raise ActionFailed("closed", "no more today", is_final=True)

        action = unknown_effect(calls, "keyed", key_lifetime_s=86_400, check=check)

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return list(await run.gather(run.act("apply", {}, output="x"), run.step("holds", may_end.wait)))

        runner = runner_for(log, clock, flow, actions=[action], policies={"apply": AUTO})
        running = asyncio.create_task(runner.start(flow, "run-1"))
        await until_logged(log, "outcome_unknown")
        for count in (1, 2):
            await until(lambda: _waits(runner))
            await runner_for(log, clock).signal("run-1", "news", count)
            runner.workflows.notify("run-1")
            while (await types_in(log)).count("resume_rejected") < count:  # noqa: ASYNC110 - nothing tells when it is
                await asyncio.sleep(0.001)
        may_end.set()
        outcome = await running
        assert outcome.status == "OUTCOME_UNKNOWN" and calls.names == ["apply"]


def _waits(runner: eventlog.Runner) -> bool:
    (drive,) = runner.workflows._drives.values()
    return bool(drive._pauses._blocked)


def _is_told(runner: eventlog.Runner) -> bool:
    (drive,) = runner.workflows._drives.values()
    request = request_of(drive.run, "apply")
    return request is not None and not request.is_unknown
