"""What once broke a drive: each test is named after the symptom, and fails without what mends it."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

import eventlog
from eventlog import Policy, RunContext
from eventlog.errors import (
    EventTypeUnknown,
    LogCorrupt,
    Refused,
    RunConflict,
    StepFailed,
    StoreBusy,
    StoreUnavailable,
    WrongExpectedVersion,
)
from eventlog.events import ActionExecuted, ApprovalExpired, ClaimRenewed, ResumeRejected, RunClaimed, run_stream
from eventlog.log import Append, Expect, NewEvent, RecordedEvent, RunLog
from eventlog.progress import request_of
from eventlog.run import Run
from eventlog.runtime.actions.threads import run_to_the_end
from eventlog.runtime.effects import Promise
from eventlog.runtime.session import RequestStreams, Session
from eventlog.testing.clock import FakeClock
from tests.workflow_runs import Calls, effect, events_of, progress_of, runner_for, tidy, types_in, until, until_logged

AUTO = Policy(auto=True)


@pytest.fixture(autouse=True)
async def leaves_nothing() -> AsyncIterator[None]:
    async with tidy():
        yield


@pytest.fixture
def calls() -> Calls:
    return Calls()


def session_of(runner: eventlog.Runner) -> Session:
    """Return the session of the one run that is driven."""
    (drive,) = runner.workflows._drives.values()
    return drive.session


class Row:
    """A transactional effect that inserts a row, and stands still in its transaction until it is let go on."""

    name = "row"
    promise = Promise.TRANSACTIONAL

    def __init__(self) -> None:
        self.writes = 0
        self.may_go_on = threading.Event()

    def check(self, call: eventlog.Call) -> None:
        """Refuse nothing."""

    def write(self, connection: Any, call: eventlog.Call) -> Any:
        self.writes += 1
        assert self.may_go_on.wait(timeout=60)  # a test that fails must not hold the process
        connection.execute("INSERT INTO app_rows VALUES (1)")
        return self.writes


@eventlog.workflow
async def one_row(run: RunContext) -> Any:
    """Write one row."""
    return await run.act("row", {}, output="table")


@eventlog.workflow
async def one_effect(run: RunContext) -> Any:
    """Do one thing."""
    return await run.act("apply", {}, output="x")


def rows_in(path: Path) -> int:
    """Return how many rows the effects have written."""
    connection = sqlite3.connect(path)
    try:
        (count,) = connection.execute("SELECT count(*) FROM app_rows").fetchone()
    finally:
        connection.close()
    return int(count)


class TestTransactionalEffects:
    async def test_a_commit_slower_than_every_time_out_writes_once(self, tmp_path: Path) -> None:
        row = Row()
        path = tmp_path / "log.db"
        async with eventlog.open(path, busy_timeout_s=0.05, settle_timeout_s=0.05) as log:
            await log.create_table("CREATE TABLE app_rows (x)")
            runner = eventlog.Runner(log, workflows=[one_row], actions=[row], policies={"row": AUTO})
            append_with, tries = log.append_with, 0

            async def counted(*args: Any, **options: Any) -> Any:
                nonlocal tries
                tries += 1
                return await append_with(*args, **options)

            log.append_with = counted  # type: ignore[method-assign]
            running = asyncio.create_task(runner.start(one_row, "run-1"))
            await until(lambda: tries == 2)  # nobody has told the session what became of the first
            row.may_go_on.set()
            outcome = await running
            assert (outcome.status, outcome.value, row.writes) == ("COMPLETED", 1, 1)
            assert (await types_in(log)).count("action_executed") == 1
        assert rows_in(path) == 1

    async def test_an_effect_that_was_settled_while_the_store_was_busy_is_not_written(
        self, tmp_path: Path, clock: FakeClock
    ) -> None:
        row = Row()
        row.may_go_on.set()
        path = tmp_path / "log.db"
        async with eventlog.open(path, clock=clock) as log:
            await log.create_table("CREATE TABLE app_rows (x)")
            runner = runner_for(log, clock, one_row, actions=[row], policies={"row": AUTO})
            append_with, tries = log.append_with, 0

            async def others_are_first(*args: Any, **options: Any) -> Any:
                nonlocal tries
                tries += 1
                if tries == 1:
                    (intent,) = [event for event in await events_of(log) if type(event).__name__ == "ResumeStarted"]
                    event = ActionExecuted(action="row", op_key=intent.op_key, step="row", result="by others")
                    await log.append_reserved(
                        [Append(run_stream("run-1"), [NewEvent("action_executed", event)], Expect.exists())]
                    )
                return await append_with(*args, **options)

            log.append_with = others_are_first  # type: ignore[method-assign]
            outcome = await runner.start(one_row, "run-1")
            assert (outcome.status, outcome.value) == ("COMPLETED", "by others")
            assert (tries, row.writes) == (1, 0)
        assert rows_in(path) == 0

    async def test_an_append_that_is_asked_for_again_under_its_id_is_not_written_again(self, tmp_path: Path) -> None:
        made: list[int] = []

        class Noted(msgspec.Struct, frozen=True):
            number: int

        registry = eventlog.Registry()
        registry.register(Noted, "noted")
        async with eventlog.open(tmp_path / "log.db", registry=registry) as log:

            def make(connection: Any) -> Noted:
                made.append(1)
                return Noted(len(made))

            event_id = b"0123456789abcdef"
            first = await log.append_with("s", "noted", make, expect=Expect.at(0), event_id=event_id)
            again = await log.append_with("s", "noted", make, expect=Expect.at(0), event_id=event_id)
            assert (again.deduplicated, again.version, len(made)) == (True, first.version, 1)
            other = await log.append_with("s", "noted", make, expect=Expect.at(1))
            assert (other.deduplicated, len(made)) == (False, 2)


class TestCancelledCallers:
    @pytest.mark.parametrize("times", [1, 2, 5])
    async def test_a_caller_cancelled_again_and_again_leaves_no_effect_at_work_behind_it(
        self, log: RunLog, clock: FakeClock, times: int
    ) -> None:
        may_end, at_work, most = threading.Event(), 0, 0

        def work() -> int:
            nonlocal at_work, most
            at_work += 1
            most = max(most, at_work)
            may_end.wait()
            at_work -= 1
            return 1

        async def inspect(call: eventlog.Call) -> Any:
            return eventlog.Recovered(result="found")

        @eventlog.action("apply", promise="checkable", inspect=inspect)
        async def apply(call: eventlog.Call) -> Any:
            return await run_to_the_end(work)

        runner = runner_for(log, clock, one_effect, actions=[apply], policies={"apply": AUTO})
        caller = asyncio.create_task(runner.start(one_effect, "run-1"))
        await until(lambda: at_work == 1)
        try:
            for _ in range(times):
                caller.cancel()
                for _ in range(20):
                    await asyncio.sleep(0)
            assert not caller.done() and at_work == 1
            with pytest.raises(RunConflict):  # it is held as long as it may act
                await runner.resume("run-1")
        finally:
            may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await caller
        outcome = await runner.resume("run-1")
        assert (outcome.status, outcome.value, most) == ("COMPLETED", "found", 1)


class TestDrivesThatNeverEnded:
    async def test_a_pause_while_the_main_line_waits_for_a_queue_returns(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            queue: asyncio.Queue[int] = asyncio.Queue()
            done: list[Any] = []

            async def consume() -> None:
                while True:
                    number = await queue.get()
                    done.append(await run.act("apply", {"n": number}, output="x", key=str(number)))
                    queue.task_done()

            consumer = asyncio.create_task(consume())
            try:
                for number in range(2):
                    queue.put_nowait(number)
                await queue.join()
            finally:
                consumer.cancel()
            return len(done)

        runner = runner_for(log, clock, flow, actions=[effect(calls)])
        outcome = await runner.start(flow, "run-1")
        for number in range(2):
            assert outcome.status == "WAITING_FOR_USER"
            request = request_of(outcome.run, f"apply:{number}")
            assert request is not None and request.proposal_hash is not None
            await runner.approve("run-1", request.proposal_hash, request=request.request_id)
            outcome = await runner.resume("run-1")
        assert (outcome.status, outcome.value, calls.names) == ("COMPLETED", 2, ["apply", "apply"])

    async def test_a_refusal_in_a_task_is_written_though_the_main_line_waits_for_an_event(
        self, log: RunLog, clock: FakeClock
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> None:
            asking = asyncio.create_task(run.act("nobody", {}, output="x"))
            await asyncio.Event().wait()
            await asking

        runner = runner_for(log, clock, flow)
        with pytest.raises(Refused) as refusal:
            await runner.start(flow, "run-1")
        assert refusal.value.code == "unknown_action"
        run = await runner.state("run-1")
        assert progress_of(run).owner is None
        assert [event.reason for event in await events_of(log) if isinstance(event, ResumeRejected)] == [
            "unknown_action"
        ]

    async def test_code_that_swallows_the_first_cancellation_is_cancelled_again(
        self, log: RunLog, clock: FakeClock
    ) -> None:
        swallowed = 0

        @eventlog.workflow
        async def flow(run: RunContext) -> None:
            nonlocal swallowed
            asking = asyncio.create_task(run.wait_for_signal("go"))
            while swallowed < 3:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    swallowed += 1
            await asking

        outcome = await runner_for(log, clock, flow).start(flow, "run-1")
        assert (outcome.status, swallowed) == ("WAITING", 3)

    async def test_a_step_at_work_is_let_come_to_its_end_before_the_code_is_cancelled(
        self, log: RunLog, clock: FakeClock
    ) -> None:
        may_end = asyncio.Event()

        async def slow() -> str:
            await may_end.wait()
            return "slow"

        @eventlog.workflow
        async def flow(run: RunContext) -> None:
            async def refused() -> None:
                await run.act("nobody", {}, output="x")

            await run.gather(run.step("slow", slow), refused())

        running = asyncio.create_task(runner_for(log, clock, flow).start(flow, "run-1"))
        await asyncio.sleep(0.1)  # many times what the code is given once it is refused
        assert not running.done()
        may_end.set()
        with pytest.raises(Refused):
            await running
        assert "step_completed" in await types_in(log)


class TestResultsThatChange:
    @pytest.mark.parametrize("steps", [1, 60])
    async def test_a_workflow_that_changes_what_an_effect_returned_changes_no_state(
        self, log: RunLog, clock: FakeClock, steps: int
    ) -> None:
        @eventlog.action("apply", promise="opaque")
        async def apply(call: eventlog.Call) -> Any:
            return {"items": [{"n": 1}]}

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            got = await run.act("apply", {}, output="x")
            seen = [dict(item) for item in got["items"]]
            got["items"][0]["n"] = 2
            got["items"].append("changed")
            for _ in range(steps):
                await run.step("s", lambda: 1)
            await run.wait_for_signal("go")
            return seen

        runner = runner_for(log, clock, flow, actions=[apply], policies={"apply": AUTO})
        outcome = await runner.start(flow, "run-1")
        for run in (outcome.run, await runner.state("run-1")):
            assert progress_of(run).requests["apply"].result == {"items": [{"n": 1}]}
        await runner.signal("run-1", "go")
        assert (await runner.resume("run-1")).value == [{"n": 1}]

    @pytest.mark.parametrize("is_failing", [False, True])
    async def test_an_action_that_changes_what_it_has_returned_changes_no_state(
        self, log: RunLog, clock: FakeClock, is_failing: bool
    ) -> None:
        kept: dict[str, Any] = {"items": [1]}

        @eventlog.action("apply", promise="opaque")
        async def apply(call: eventlog.Call) -> Any:
            if is_failing:
                raise eventlog.ActionFailed("card_declined", "no", is_final=True, facts=kept)
            return kept

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            try:
                result = await run.act("apply", {}, output="x")
            except eventlog.ActionFailed as error:
                result = error.details["facts"]
            kept["items"].append("changed")
            seen = list(result["items"])
            result["items"].append("changed as well")
            await run.wait_for_signal("go")
            return seen

        runner = runner_for(log, clock, flow, actions=[apply], policies={"apply": AUTO})
        outcome = await runner.start(flow, "run-1")
        request = progress_of(outcome.run).requests["apply"]
        held = request.failure.details["facts"] if is_failing and request.failure else request.result
        assert held == {"items": [1]}
        await runner.signal("run-1", "go")
        assert (await runner.resume("run-1")).value == [1]


class Stop(BaseException):
    """An exception of the code's own that no `except Exception` catches."""


class TestEndsThatWereNone:
    async def test_code_that_raises_an_exception_of_its_own_kind_fails_the_run(
        self, log: RunLog, clock: FakeClock
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> None:
            raise Stop("enough")

        outcome = await runner_for(log, clock, flow).start(flow, "run-1")
        assert outcome.status == "FAILED" and outcome.failure is not None
        assert (outcome.failure.type, outcome.failure.message) == ("Stop", "enough")

    async def test_a_result_whose_own_code_raises_fails_the_run(self, log: RunLog, clock: FakeClock) -> None:
        class Broken:
            @property  # type: ignore[misc]
            def __class__(self) -> Any:
                raise RuntimeError("nobody looks at me")

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return Broken()

        outcome = await runner_for(log, clock, flow).start(flow, "run-1")
        assert outcome.status == "FAILED"

    async def test_a_lost_artifact_is_told_in_the_log_and_the_worker_leaves_the_run_alone(
        self, tmp_path: Path, clock: FakeClock
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> int:
            text = await run.step("big", lambda: "x" * 100_000)
            await run.wait_for_signal("go")
            return len(text)

        async with eventlog.open(tmp_path / "log.db", clock=clock) as log:
            runner = runner_for(log, clock, flow)
            await runner.start(flow, "run-1")
            (artifact,) = [each for each in tmp_path.rglob("*") if len(each.name) == 64]
            artifact.unlink()
            await runner.signal("run-1", "go")
            before = len(await types_in(log))
            worker = eventlog.Worker(runner)
            await worker.run(until_idle=True)
            told = await events_of(log, after=before)
            assert [event.reason for event in told if isinstance(event, ResumeRejected)] == ["log_corrupt"]
            assert len([event for event in told if isinstance(event, RunClaimed)]) == 1
            with pytest.raises(LogCorrupt):
                await runner.resume("run-1")


class Newer(msgspec.Struct, frozen=True):
    """What a later version of this program may write."""

    number: int = 1


class TestReads:
    @pytest.mark.parametrize("error", [StoreBusy("locked"), OSError("the disk"), MemoryError()])
    async def test_a_read_that_fails_takes_no_result_of_an_effect_with_it(
        self, log: RunLog, clock: FakeClock, calls: Calls, error: Exception
    ) -> None:
        may_end, reads = asyncio.Event(), 0

        @eventlog.action("apply", promise="opaque")
        async def apply(call: eventlog.Call) -> Any:
            calls.names.append("apply")
            await may_end.wait()
            return 1

        runner = runner_for(log, clock, one_effect, actions=[apply], policies={"apply": AUTO})
        running = asyncio.create_task(runner.start(one_effect, "run-1"))
        await until_logged(log, "resume_started")
        session = session_of(runner)
        catch_up = session._catch_up

        async def fails_once() -> None:
            nonlocal reads
            reads += 1
            if reads == 1:
                may_end.set()
                await until(lambda: bool(session._queue))  # the result waits behind this read
                raise error
            await catch_up()

        session._catch_up = fails_once  # type: ignore[method-assign]
        runner.workflows.notify("run-1")
        outcome = await running
        assert (outcome.status, outcome.value, calls.names, reads) == ("COMPLETED", 1, ["apply"], 1)

    async def test_news_behind_a_read_that_failed_is_seen_later(self, log: RunLog, clock: FakeClock) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            held = run.step("held", may_end.wait)
            return (await run.gather(held, run.wait_for_signal("go")))[1]

        may_end = asyncio.Event()
        runner = runner_for(log, clock, flow)
        runner.workflows.is_told = True  # so that the drive looks only when it is told, and where that has failed
        running = asyncio.create_task(runner.start(flow, "run-1"))
        await until(lambda: bool(runner.workflows._drives))
        session, failed = session_of(runner), 0
        catch_up = session._catch_up

        async def fails_twice() -> None:
            nonlocal failed
            if failed < 2:
                failed += 1
                raise StoreBusy("locked")
            await catch_up()

        session._catch_up = fails_twice  # type: ignore[method-assign]
        await runner.signal("run-1", "go", "payload")
        await until_logged(log, "step_completed")  # the signal is taken while the step is still at work
        assert failed == 2
        may_end.set()
        assert (await running).value == "payload"

    async def test_a_result_whose_run_has_moved_survives_a_busy_read(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        failed = 0

        @eventlog.action("apply", promise="opaque")
        async def apply(call: eventlog.Call) -> Any:
            calls.names.append("apply")
            session = session_of(runner)
            session._streams.events = busy_once  # type: ignore[method-assign]
            renewed = ClaimRenewed(epoch=session.epoch, deadline_us=session.progress.deadline_us)
            await log.append_reserved(
                [Append(run_stream("run-1"), [NewEvent("claim_renewed", renewed)], Expect.exists())]
            )
            return 1

        async def busy_once(run_id: str, *, after: int = 0) -> Sequence[RecordedEvent]:
            nonlocal failed
            failed += 1
            if failed == 1:
                raise StoreBusy("locked")
            return await events(run_id, after=after)

        runner = runner_for(log, clock, one_effect, actions=[apply], policies={"apply": AUTO})
        events = runner.workflows._streams.events
        outcome = await runner.start(one_effect, "run-1")
        assert (outcome.status, outcome.value, calls.names, failed) == ("COMPLETED", 1, ["apply"], 2)

    async def test_a_failure_of_the_store_is_not_told_to_the_workflow_as_its_own(
        self, log: RunLog, clock: FakeClock
    ) -> None:
        told: list[BaseException] = []

        @eventlog.workflow
        async def flow(run: RunContext) -> None:
            try:
                await run.step("s", breaks)
            except Exception as error:
                told.append(error)
                raise

        def breaks() -> int:
            async def append_at(*_: Any, **__: Any) -> Any:
                runner.workflows._streams.append_at = kept  # type: ignore[method-assign]
                raise RuntimeError("a bug of the store")

            runner.workflows._streams.append_at = append_at  # type: ignore[method-assign]
            return 1

        runner = runner_for(log, clock, flow)
        kept = runner.workflows._streams.append_at
        with pytest.raises(StoreUnavailable):
            await runner.start(flow, "run-1")
        assert not told and "run_failed" not in await types_in(log)

    async def test_an_event_of_a_newer_program_ends_the_drive_and_the_result_leaves_a_trace(
        self, tmp_path: Path, clock: FakeClock
    ) -> None:
        registry = eventlog.Registry()
        registry.register(Newer, "newer_thing")
        path = tmp_path / "log.db"
        async with (
            eventlog.open(path, clock=clock) as log,
            eventlog.open(path, clock=clock, registry=registry) as newer,
        ):

            @eventlog.action("apply", promise="opaque")
            async def apply(call: eventlog.Call) -> Any:
                await newer.append_reserved(
                    [Append(run_stream("run-1"), [NewEvent("newer_thing", Newer())], Expect.exists())]
                )
                return 1

            runner = runner_for(log, clock, one_effect, actions=[apply], policies={"apply": AUTO})
            with pytest.raises(EventTypeUnknown):
                await runner.start(one_effect, "run-1")
            assert (await types_in(log))[-2:] == ["newer_thing", "result_rejected"]


class TestStorage:
    async def test_a_full_disk_fails_no_step(self, log: RunLog, clock: FakeClock, calls: Calls) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> int:
            try:
                return len(await run.step("big", big))
            except StepFailed:
                return -1

        def big() -> str:
            calls.names.append("big")
            return "x" * 100_000

        async def full(data: bytes) -> str:
            raise StoreUnavailable("store_full", "no space left on device")

        runner = runner_for(log, clock, flow)
        put = log.artifacts.put
        log.artifacts.put = full  # type: ignore[method-assign]
        with pytest.raises(StoreUnavailable):
            await runner.start(flow, "run-1")
        assert "step_failed" not in await types_in(log)
        log.artifacts.put = put  # type: ignore[method-assign]
        outcome = await runner.resume("run-1")
        assert (outcome.status, outcome.value, calls.names) == ("COMPLETED", 100_000, ["big", "big"])

    async def test_a_store_that_a_step_itself_uses_may_fail_the_step(self, log: RunLog, clock: FakeClock) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> str:
            try:
                await run.step("other", other)
            except StepFailed as error:
                return str(error.error_type)
            return ""

        async def other() -> None:
            raise StoreUnavailable("store_full", "another log, which is full")

        outcome = await runner_for(log, clock, flow).start(flow, "run-1")
        assert (outcome.status, outcome.value) == ("COMPLETED", "StoreUnavailable")


class TestAppendsOfOneBatch:
    async def test_two_decisions_on_one_request_are_not_both_made_on_the_same_state(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        results: list[Any] = []

        async def decides_twice() -> None:
            session = session_of(runner)
            await until(lambda: request_of(session.run, "apply") is not None)
            streams = RequestStreams(session, log, lambda _: None)
            request = request_of(session.run, "apply")
            assert request is not None
            expired = ApprovalExpired(request_id=request.request_id or "", expires_at_us=0)
            appends = (streams.append(request, (expired,), None) for _ in range(2))
            results.extend(await asyncio.gather(*appends, return_exceptions=True))

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            return await run.gather(run.act("apply", {}, output="x"), run.step("decides", decides_twice))

        runner = runner_for(log, clock, flow, actions=[effect(calls)])
        await runner.start(flow, "run-1")
        assert [type(each) for each in results] == [Run, WrongExpectedVersion]
        assert (await types_in(log)).count("approval_expired") == 1


class TestMisuse:
    async def test_an_action_that_asks_its_own_run_is_refused_and_the_run_can_be_replayed(
        self, log: RunLog, clock: FakeClock
    ) -> None:
        contexts: list[RunContext] = []

        @eventlog.action("apply", promise="opaque")
        async def apply(call: eventlog.Call) -> Any:
            try:
                return await contexts[-1].step("inside", lambda: "inside")
            except eventlog.Misuse as error:
                return error.code

        async def mine(run: RunContext) -> int:
            return await run.step("mine", lambda: 1)

        @eventlog.workflow
        async def flow(run: RunContext) -> Any:
            contexts.append(run)
            first = await run.act("apply", {}, output="x")
            await asyncio.create_task(mine(run))
            await run.wait_for_signal("go")
            return first

        runner = runner_for(log, clock, flow, actions=[apply], policies={"apply": AUTO})
        assert (await runner.start(flow, "run-1")).status == "WAITING"
        await runner.signal("run-1", "go")
        outcome = await runner.resume("run-1")
        assert (outcome.status, outcome.value) == ("COMPLETED", "nested_step")
        assert list(progress_of(outcome.run).steps) == ["task#1/mine", "go:signal"]

    async def test_a_workflow_that_never_awaits_what_it_asked_for_fails_and_says_what(
        self, log: RunLog, clock: FakeClock, calls: Calls
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> int:
            run.act("apply", {}, output="x")  # type: ignore[unused-coroutine]
            kept = [run.step("kept", calls("kept"))]
            await run.step("awaited", calls("awaited"))
            return len(kept)

        outcome = await runner_for(log, clock, flow, actions=[effect(calls)]).start(flow, "run-1")
        assert outcome.status == "FAILED" and outcome.failure is not None
        assert (outcome.failure.code, calls.names) == ("never_awaited", ["awaited"])
        assert "'apply', 'kept'" in outcome.failure.message and "'awaited'" not in outcome.failure.message

    @pytest.mark.parametrize("kind", ["task", "gather", "closed", "left behind"])
    async def test_what_was_given_to_a_task_that_was_cancelled_or_was_closed_fails_nothing(
        self, log: RunLog, clock: FakeClock, kind: str
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> int:
            asked = run.step("s", lambda: 1)
            if kind == "closed":
                asked.close()
                return 1
            task: asyncio.Future[Any] = asyncio.ensure_future(run.gather(asked) if kind == "gather" else asked)
            if kind == "left behind":
                return 1
            if kind == "gather":
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            return 1

        outcome = await runner_for(log, clock, flow).start(flow, "run-1")
        assert (outcome.status, outcome.value) == ("COMPLETED", 1)

    @pytest.mark.parametrize("end", ["pause", "failure"])
    async def test_a_pause_or_a_failure_says_nothing_of_what_was_not_awaited_yet(
        self, log: RunLog, clock: FakeClock, end: str
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> int:
            later = run.step("later", lambda: 1)
            if end == "failure":
                raise ValueError("no")
            await run.wait_for_signal("go")
            return await later

        runner = runner_for(log, clock, flow)
        outcome = await runner.start(flow, "run-1")
        if end == "failure":
            assert outcome.failure is not None and outcome.failure.code == "workflow_failed"
            return
        assert outcome.status == "WAITING"
        await runner.signal("run-1", "go")
        assert (await runner.resume("run-1")).value == 1
