"""Drives of a run while others come between: people, other programs, stores that fail, and processes that end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pytest

import eventlog
from eventlog import Policy, RunContext
from eventlog.errors import (
    ActionConflict,
    ActionFailed,
    ClaimLost,
    InvalidInput,
    LogCorrupt,
    Misuse,
    Refused,
    RunConflict,
    StepFailed,
    StoreBusy,
    StoreUnavailable,
)
from eventlog.events import (
    ApprovalRecorded,
    ChildStarted,
    ClaimRenewed,
    Owner,
    ProposalRecorded,
    RunClaimed,
    RunEvent,
    SignalReceived,
    StepCompleted,
    run_stream,
)
from eventlog.log import Append, Expect, RunLog
from eventlog.progress import request_of
from eventlog.runtime.drive.checkpoints import Checkpoints
from eventlog.runtime.drive.suspension import Suspension
from eventlog.runtime.failpoints import pass_by
from eventlog.runtime.run_streams import RunStreams
from eventlog.runtime.session import Session
from eventlog.testing.clock import FakeClock
from tests.effect_runs import LEASE_S
from tests.test_broken_drives import AUTO, one_effect, session_of
from tests.workflow_runs import Calls, by_code_of, effect, progress_of, runner_for, tidy, types_in, until, until_logged

OTHERS = Owner(host="elsewhere", boot="b", lock="l")


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


def before(log: RunLog, kind: str, act: Callable[[], Awaitable[object]], *, times: int = 1) -> Callable[[], None]:
    """Do something before each of the next appends of an event of this type; return what ends that."""
    append, left = log.append_reserved, times

    async def append_reserved(appends: Sequence[Append], **options: Any) -> Any:
        nonlocal left
        if left and any(getattr(event, "type", None) == kind for each in appends for event in each.events):
            left -= 1
            await act()
        return await append(appends, **options)

    def end() -> None:
        nonlocal left
        left = 0

    log.append_reserved = append_reserved  # type: ignore[method-assign]
    return end


async def note(log: RunLog, *events: RunEvent) -> None:
    """Append to the run what another program would."""
    await log.append_reserved([Append(run_stream("run-1"), list(events), Expect.exists())])


def failing(error: Exception) -> Callable[[], Awaitable[None]]:
    async def fail() -> None:
        raise error

    return fail


@eventlog.workflow
async def one_step(run: RunContext) -> Any:
    return await run.step("work", lambda: 1)


@eventlog.workflow
async def waits_and_works(run: RunContext) -> Any:
    await run.wait_for_signal("go")
    return await run.step("work", lambda: 1)


class TestAppends:
    async def test_an_end_that_is_overtaken_again_and_again_is_a_conflict_and_the_run_goes_on_later(
        self, log: RunLog, clock: FakeClock
    ) -> None:
        runner = runner_for(log, clock, one_step)
        end = before(log, "run_completed", lambda: note(log, SignalReceived(name="go")), times=1000)
        with pytest.raises(RunConflict, match="changes faster than a result can be recorded"):
            await runner.start(one_step, "run-1")
        end()
        assert (await runner.resume("run-1")).value == 1

    async def test_a_store_that_stays_busy_is_told_and_the_run_goes_on_later(
        self, log: RunLog, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("eventlog.runtime.session._BUSY_PAUSE_S", 0)
        runner = runner_for(log, clock, one_step)
        end = before(log, "step_completed", failing(StoreBusy("not now")), times=1000)
        with pytest.raises(StoreBusy):
            await runner.start(one_step, "run-1")
        end()
        assert (await runner.resume("run-1")).value == 1

    async def test_one_event_that_cannot_be_stored_takes_no_other_of_its_batch_with_it(
        self, log: RunLog, clock: FakeClock
    ) -> None:
        async def adds() -> list[str]:
            session = session_of(runner)
            renewed = ClaimRenewed(epoch=session.epoch, deadline_us=session.progress.deadline_us)
            both = (session.add(SignalReceived(name="\ud800")), session.add(renewed))
            return [type(each).__name__ for each in await asyncio.gather(*both, return_exceptions=True)]

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return await run.step("adds", adds)

        runner = runner_for(log, clock, flow)
        assert (await runner.start(flow, "run-1")).value == ["InvalidInput", "int"]
        assert "claim_renewed" in await types_in(log)

    async def test_a_result_that_cannot_be_stored_is_recorded_without_it(self, log: RunLog, clock: FakeClock) -> None:
        @eventlog.action("apply", promise="opaque")
        async def apply(call: eventlog.Call) -> Any:
            return {"text": "\ud800"}

        runner = runner_for(log, clock, one_effect, actions=[apply], policies={"apply": AUTO})
        outcome = await runner.start(one_effect, "run-1")
        assert outcome.status == "COMPLETED" and outcome.value is None
        assert (await types_in(log)).count("action_executed") == 1

    async def test_a_result_that_the_store_does_not_take_leaves_the_effect_unknown(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        runner = runner_for(log, clock, one_effect, actions=[effect(calls)], policies={"apply": AUTO})
        end = before(log, "action_executed", failing(StoreUnavailable("store_full", "no room")), times=1000)
        with pytest.raises(StoreUnavailable):
            await runner.start(one_effect, "run-1")
        end()
        assert (await runner.resume("run-1")).status == "OUTCOME_UNKNOWN" and calls.names == ["apply"]

    async def test_two_results_that_the_store_does_not_take_stop_the_run_once(
        self, log: RunLog, clock: FakeClock
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return list(await run.gather(run.step("a", lambda: 1), run.step("b", lambda: 2)))

        runner = runner_for(log, clock, flow)
        before(log, "step_completed", failing(StoreUnavailable("store_full", "no room")))
        with pytest.raises(StoreUnavailable):
            await runner.start(flow, "run-1")
        assert (await runner.resume("run-1")).value == [1, 2]

    async def test_a_failure_that_two_branches_go_on_behind_is_committed_once(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            is_handled = asyncio.Event()

            async def handles() -> None:
                with suppress(StepFailed):
                    await run.step("bad", calls("bad", fails=9))

            async def goes_on() -> int:
                await asyncio.create_task(handles())
                is_handled.set()
                return await run.step("a", lambda: 1)

            going_on = asyncio.create_task(goes_on())
            await is_handled.wait()
            return [await run.step("b", lambda: 2), await going_on]

        assert (await runner_for(log, clock, flow).start(flow, "run-1")).value == [2, 1]
        events = (await log.read_stream(run_stream("run-1"))).events
        committed = [key for event in events if event.type == "checkpoint_saved" for key in event.data.committed]
        assert [key for key in committed if key.endswith("bad")] == [key for key in set(committed) if "bad" in key]
        assert committed and calls.names == ["bad"]

    async def test_a_checkpoint_of_a_run_that_is_free_or_with_nothing_to_commit_is_not_written(
        self, log: RunLog, clock: FakeClock
    ) -> None:
        """It waited for its turn behind the pause, or behind one that has committed the same."""
        run = (await runner_for(log, clock, waits_and_works).start(waits_and_works, "run-1")).run
        session = Session(RunStreams(log, pass_by), run, OTHERS, clock, "ann")
        checkpoints = Checkpoints(session, log, Suspension())
        written = await types_in(log)
        await checkpoints.save()
        await checkpoints.save(committed=("nothing",))
        assert await types_in(log) == written
        await session.end()

    async def test_a_snapshot_that_the_store_does_not_take_stops_no_run(
        self, log: RunLog, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr("eventlog.runtime.drive.checkpoints.RUN_TAIL", 5)

        @eventlog.workflow
        async def flow(run: RunContext) -> int:
            for number in range(20):
                await run.step("work", lambda: 1, key=str(number))
            return 20

        runner = runner_for(log, clock, flow)
        await runner.submit(flow, "run-1")
        before(log, "checkpoint_saved", failing(StoreUnavailable("store_full", "no room")))
        assert (await runner.resume("run-1")).value == 20
        assert "snapshot_not_taken" in caplog.text

    @pytest.mark.parametrize("is_appending", [False, True], ids=["before an append begins", "in an append"])
    async def test_a_program_that_cancels_all_its_tasks_ends_and_leaves_a_run_that_goes_on(
        self, log: RunLog, clock: FakeClock, is_appending: bool
    ) -> None:
        stands_still = asyncio.Event()

        async def never() -> None:
            stands_still.set()
            await asyncio.Event().wait()

        async def later() -> int:
            if is_appending:
                await stands_still.wait()
            return 2

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return list(await run.gather(run.step("a", lambda: 1), run.step("b", later)))

        if is_appending:
            before(log, "step_completed", never)
        runner, others = runner_for(log, clock, flow), {asyncio.current_task()}
        running = asyncio.create_task(runner.start(flow, "run-1"))
        for _ in range(100_000):  # a turn at a time: in the next one the append begins
            if runner.workflows._drives and session_of(runner)._queue:
                break
            await asyncio.sleep(0)
        if is_appending:
            await until(lambda: stands_still.is_set() and bool(session_of(runner)._queue))
        for task in asyncio.all_tasks() - others:
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await runner.resume("run-1")).value == [1, 2]

    async def test_a_session_that_is_lost_does_not_look_again(
        self, log: RunLog, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("eventlog.runtime.session._BUSY_PAUSE_S", 0.001)
        runner = runner_for(log, clock, waits_and_works)
        run = (await runner.start(waits_and_works, "run-1")).run
        session = Session(RunStreams(log, pass_by), run, OTHERS, clock, "ann")
        session.on_change = lambda: None
        looks = 0

        async def fails(*_: Any, **__: Any) -> Any:
            nonlocal looks
            looks += 1
            raise StoreBusy("not now")

        session._streams.events = fails  # type: ignore[method-assign]
        await session.catch_up()
        await until(lambda: looks > 2)
        session.lost = ClaimLost("run-1", 2, 1)
        await session.drain()
        seen = looks
        await asyncio.sleep(0.05)
        assert looks == seen
        await session.end()


class TestOthers:
    async def test_an_event_of_others_that_cannot_be_read_ends_the_drive(self, log: RunLog, clock: FakeClock) -> None:
        broken = ProposalRecorded(step="s", request_id="r", proposal=msgspec.Raw(b"{}"), proposal_hash="0" * 64)
        before(log, "step_completed", lambda: note(log, broken))
        with pytest.raises(LogCorrupt):
            await runner_for(log, clock, one_step).start(one_step, "run-1")

    async def test_a_process_that_stood_still_calls_no_step_of_a_run_that_another_has_taken_over(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> None:
            await run.step("first", calls("first"))
            clock.advance(LEASE_S + 1)
            version = (await log.read_stream(run_stream("run-1"))).version
            await note(log, RunClaimed(epoch=version + 1, owner=OTHERS, deadline_us=2**50))
            await run.step("second", calls("second"))

        with pytest.raises(ClaimLost):
            await runner_for(log, clock, flow).start(flow, "run-1")
        assert calls.names == ["first"]

    async def test_a_run_that_is_cancelled_while_its_effect_is_about_to_begin_does_nothing(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        runner = runner_for(log, clock, one_effect, actions=[effect(calls)], policies={"apply": AUTO})
        before(log, "resume_started", lambda: runner_for(log, clock).cancel("run-1"))
        assert (await runner.start(one_effect, "run-1")).status == "CANCELLED"
        assert calls.names == []

    async def test_a_run_that_is_cancelled_while_it_is_refused_stays_cancelled(
        self, log: RunLog, clock: FakeClock
    ) -> None:
        @eventlog.workflow(name="flow", version="1")
        async def old(run: RunContext, text: str) -> None:
            await run.wait_for_signal("go")

        @eventlog.workflow(name="flow", version="2", continues=["1"])
        async def new(run: RunContext, number: int) -> None:
            await run.wait_for_signal("go")

        await runner_for(log, clock, old).start(old, "run-1", "a text")
        before(log, "resume_rejected", lambda: runner_for(log, clock).cancel("run-1"))
        await runner_for(log, clock).signal("run-1", "go")
        with pytest.raises((RunConflict, Refused)):
            await runner_for(log, clock, new).resume("run-1")
        assert (await runner_for(log, clock).state("run-1")).status == "CANCELLED"

    async def test_a_request_that_others_have_let_expire_is_told_once(self, log: RunLog, clock: FakeClock) -> None:
        policies = {"apply": Policy(expires_in_s=10)}
        runner = runner_for(log, clock, one_effect, actions=[effect(Calls())], policies=policies)
        outcome = await runner.start(one_effect, "run-1")
        clock.advance(11)

        async def decides() -> None:
            with pytest.raises(Refused):
                await runner_for(log, clock).approve("run-1", outcome.requests[0].proposal_hash or "")

        before(log, "approval_expired", decides)
        assert (await runner.resume("run-1")).status == "EXPIRED"
        assert (await types_in(log)).count("approval_expired") == 1

    async def test_a_pause_that_is_being_written_is_not_written_again_on_a_stop(
        self, log: RunLog, clock: FakeClock
    ) -> None:
        async def stops() -> None:
            runner.workflows.stop()
            for _ in range(100):
                await asyncio.sleep(0)

        runner = runner_for(log, clock, waits_and_works)
        before(log, "checkpoint_saved", lambda: asyncio.sleep(0))  # that of the beginning
        await runner.submit(waits_and_works, "run-1")
        before(log, "checkpoint_saved", stops)
        assert (await runner.resume("run-1")).status == "WAITING"
        assert (await types_in(log)).count("checkpoint_saved") == 2

    async def test_a_stop_does_not_wait_for_a_time_that_is_near(self, log: RunLog, clock: FakeClock) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> None:
            await run.sleep(30)

        runner = runner_for(log, clock, flow, patience_s=60)
        running = asyncio.create_task(runner.start(flow, "run-1"))
        await until_logged(log, "timer_set")
        await asyncio.sleep(0.01)
        runner.workflows.stop()
        outcome = await running
        assert progress_of(outcome.run).owner is None and "timer_fired" not in await types_in(log)
        clock.advance(31)
        assert (await runner.resume("run-1")).status == "COMPLETED"

    async def test_a_claim_is_not_renewed_once_the_run_has_paused(self, log: RunLog, clock: FakeClock) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> None:
            async def tidies_up() -> None:
                try:
                    await run.wait_for_signal("never")
                finally:
                    for _ in range(20):
                        with suppress(asyncio.CancelledError):
                            await asyncio.sleep(0.01)

            await asyncio.gather(tidies_up(), run.wait_for_signal("go"))

        runner = runner_for(log, clock, flow, lease_s=0.15)
        assert (await runner.start(flow, "run-1")).status == "WAITING"
        assert (await types_in(log))[-1] == "checkpoint_saved"


class TestReplays:
    async def test_a_value_that_is_no_longer_of_the_type_that_is_asked_for_stops_the_run(
        self, log: RunLog, clock: FakeClock
    ) -> None:
        def text() -> str:
            return "a text"

        def number() -> int:
            return 1

        @eventlog.workflow(name="flow")
        async def old(run: RunContext) -> None:
            await run.step("work", text)
            await run.wait_for_signal("go")

        @eventlog.workflow(name="flow")
        async def new(run: RunContext) -> None:
            await run.step("work", number)
            await run.wait_for_signal("go")

        await runner_for(log, clock, old).start(old, "run-1")
        await runner_for(log, clock).signal("run-1", "go")
        with pytest.raises(Refused, match="as another type") as refusal:
            await runner_for(log, clock, by_code_of(old)(new.function)).resume("run-1")
        assert refusal.value.code == "nondeterministic_replay"

    @pytest.mark.parametrize("kind", ["step", "child"])
    async def test_what_the_log_has_under_the_name_of_another_stops_the_run(
        self, log: RunLog, clock: FakeClock, kind: str
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> None:
            await (run.step("work", lambda: 1) if kind == "step" else run.child(one_step))

        runner = runner_for(log, clock, flow, one_step)
        await runner.submit(flow, "run-1")
        if kind == "step":
            await note(log, StepCompleted(name="other", key="work", output=msgspec.Raw(b"1")))
        else:
            await note(log, ChildStarted(key="one_step", child_run_id="c", workflow="other"))
        with pytest.raises(Refused) as refusal:
            await runner.resume("run-1")
        assert refusal.value.code == "nondeterministic_replay" and "other" in str(refusal.value)

    async def test_code_that_waits_for_something_of_its_own_may_still_ask_for_what_the_log_holds(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            async def late() -> Any:
                for _ in range(3000):
                    await asyncio.sleep(0)
                return await run.step("late", calls("late"))

            return list(await run.gather(late(), run.wait_for_signal("go")))

        runner = runner_for(log, clock, flow)
        assert (await runner.start(flow, "run-1")).status == "WAITING"
        await runner.signal("run-1", "go", 1)
        assert (await runner_for(log, clock, flow).resume("run-1")).value == ["late", 1]
        assert calls.names == ["late"]

    async def test_a_wait_under_a_key_of_its_own_is_the_same_in_every_replay(
        self, log: RunLog, clock: FakeClock
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            first = await run.wait_for_signal("go", key="first")
            return [first, await run.wait_for_signal("go", key="second")]

        runner = runner_for(log, clock, flow)
        await runner.start(flow, "run-1")
        for number in range(2):
            await runner.signal("run-1", "go", number)
            outcome = await runner_for(log, clock, flow).resume("run-1")
        assert outcome.value == [0, 1]

    async def test_a_run_that_is_asked_from_outside_of_its_tasks_is_refused(
        self, log: RunLog, clock: FakeClock
    ) -> None:
        contexts: list[RunContext] = []
        may_end = asyncio.Event()

        @eventlog.workflow
        async def flow(run: RunContext) -> int:
            contexts.append(run)
            await run.step("holds", may_end.wait)
            return 1

        running = asyncio.create_task(runner_for(log, clock, flow).start(flow, "run-1"))
        await until(lambda: bool(contexts))
        with pytest.raises(Misuse) as refusal:
            await contexts[0].step("outside", lambda: 1)
        assert refusal.value.code == "nested_step"
        may_end.set()
        assert (await running).value == 1


class TestEffects:
    async def test_a_conflict_is_told_as_one(self, log: RunLog, clock: FakeClock) -> None:
        told: list[Exception] = []

        async def inspect(call: eventlog.Call) -> Any:
            return eventlog.Absent()

        @eventlog.action("apply", promise="checkable", inspect=inspect)
        async def apply(call: eventlog.Call) -> Any:
            return eventlog.Conflicted(reason="another is there")

        @eventlog.workflow
        async def flow(run: RunContext) -> str:
            try:
                await run.act("apply", {}, output="x")
            except ActionConflict as error:
                told.append(error)
            return "told"

        runner = runner_for(log, clock, flow, actions=[apply], policies={"apply": AUTO})
        assert (await runner.start(flow, "run-1")).value == "told" and len(told) == 1

    async def test_an_approved_effect_that_this_program_does_not_know_is_refused_and_done_by_one_that_does(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        outcome = await runner_for(log, clock, one_effect, actions=[effect(calls)]).start(one_effect, "run-1")
        await runner_for(log, clock).approve("run-1", outcome.requests[0].proposal_hash or "")
        with pytest.raises(Refused) as refusal:
            await runner_for(log, clock, one_effect).resume("run-1")
        assert refusal.value.code == "unknown_action" and not calls.names
        outcome = await runner_for(log, clock, one_effect, actions=[effect(calls)]).resume("run-1")
        assert outcome.status == "COMPLETED" and calls.names == ["apply"]

    async def test_an_approval_of_something_else_lets_no_effect_begin(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        """As a program would write it that has stolen the log: the decisions of people are checked before."""
        runner = runner_for(log, clock, one_effect, actions=[effect(calls)])
        request = (await runner.start(one_effect, "run-1")).requests[0]
        forged = ApprovalRecorded(
            step="apply",
            request_id=request.request_id or "",
            decision="approve",
            approval_hash="0" * 64,
            actor_source="os",
        )
        await note(log, forged)
        with pytest.raises(Refused) as refusal:
            await runner.resume("run-1")
        assert refusal.value.code == "proposal_hash_mismatch" and not calls.names
        assert "resume_started" not in await types_in(log)

    async def test_a_check_that_refuses_behind_an_attempt_that_nobody_knows_of_leaves_it_to_a_person(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        def check(call: eventlog.Call) -> None:
            if calls.names:
                raise ActionFailed("closed", "no more today", is_final=True)

        @eventlog.action("apply", promise="keyed", key_lifetime_s=86_400, check=check)
        async def apply(call: eventlog.Call) -> Any:
            calls.names.append("apply")
            raise TimeoutError("no answer")

        runner = runner_for(log, clock, one_effect, actions=[apply], policies={"apply": AUTO})
        assert (await runner.start(one_effect, "run-1")).status == "OUTCOME_UNKNOWN"
        outcome = await runner.resume("run-1")
        assert outcome.status == "OUTCOME_UNKNOWN" and calls.names == ["apply"]
        request = request_of(outcome.run, "apply")
        assert request is not None and request.is_unknown
        assert "resume_rejected" in await types_in(log)

    async def test_a_child_that_ends_while_its_parent_still_works_is_taken_by_that_drive(
        self, log: RunLog, clock: FakeClock
    ) -> None:
        may_end = asyncio.Event()

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return list(await run.gather(run.child(waits_and_works), run.step("holds", may_end.wait)))

        runner = runner_for(log, clock, flow, waits_and_works)
        running = asyncio.create_task(runner.start(flow, "run-1"))
        child = "run-1/waits_and_works"
        await until_logged(log, "checkpoint_saved", child)
        while (await runner.state(child)).status != "WAITING":  # noqa: ASYNC110 - nothing tells when it is
            await asyncio.sleep(0.001)
        other = runner_for(log, clock, waits_and_works)
        await other.signal(child, "go")
        assert (await other.resume(child)).value == 1
        runner.workflows.notify("run-1")
        await asyncio.sleep(0.01)
        may_end.set()
        assert (await running).value == [1, True]


@pytest.mark.parametrize("when", ["tomorrow", 7, None])
async def test_a_time_that_is_none_is_refused(log: RunLog, clock: FakeClock, when: Any) -> None:
    @eventlog.workflow
    async def flow(run: RunContext) -> str:
        try:
            await run.sleep_until(when)
        except InvalidInput as error:
            return error.code
        return ""

    assert (await runner_for(log, clock, flow).start(flow, "run-1")).value == "invalid_argument"
