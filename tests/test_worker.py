"""Workers: what they pick up, what they leave alone, and that they rest while nothing can go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import eventlog
from eventlog import Policy, RunContext, Worker
from eventlog.errors import InvalidInput, LogCorrupt, StoreBusy, StoreUnavailable
from eventlog.events import ClaimRenewed
from eventlog.log import Append, AppendResult, CaughtUp, RunLog, Snapshot, StreamSlice
from eventlog.testing.clock import FakeClock
from tests.workflow_runs import Calls, effect, events_of, runner_for, types_in, until, until_logged

Turn = Callable[[], None]


@eventlog.workflow
async def waits_for_two(run: RunContext) -> list[int]:
    first = await run.wait_for_signal("first", type=int)
    return [first, await run.wait_for_signal("second", type=int)]


@eventlog.workflow
async def naps(run: RunContext) -> str:
    await run.sleep(3600)
    return "rested"


@asynccontextmanager
async def working(worker: Worker) -> AsyncIterator[Worker]:
    """Let a worker run, and stop it in the end."""
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await task


async def settled(log: RunLog) -> int:
    """Return the end of the log once nothing has been appended for a while."""
    before = -1
    while before != (now := (await log.head()).position):
        before = now
        await asyncio.sleep(0.1)
    return now


@pytest.mark.parametrize("bad", [0, -1, True, 1.5, "20"])
async def test_a_number_of_runs_that_is_none_is_refused(log: RunLog, clock: FakeClock, bad: object) -> None:
    with pytest.raises(InvalidInput, match="`max_concurrent` is an int from 1"):
        Worker(runner_for(log, clock), max_concurrent=bad)  # type: ignore[arg-type]


async def test_runs_that_were_only_recorded_are_driven_and_no_more_at_a_time_than_allowed(
    log: RunLog, clock: FakeClock
) -> None:
    at_work = most = 0

    async def work() -> None:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(0.001)
        at_work -= 1

    @eventlog.workflow
    async def flow(run: RunContext) -> None:
        await run.step("work", work)

    runner = runner_for(log, clock, flow)
    for number in range(10):
        await runner.submit(flow, f"run-{number}")
    worker = Worker(runner, max_concurrent=3)
    await worker.run(until_idle=True)
    assert worker.driven == 10 and most <= 3
    assert {(await runner.state(f"run-{number}")).status for number in range(10)} == {"COMPLETED"}


async def test_a_signal_wakes_a_run_whatever_other_signals_came_before(log: RunLog, clock: FakeClock) -> None:
    """What wakes it first may not be what it waits for; it goes on waiting, and is woken again."""
    runner = runner_for(log, clock, waits_for_two)
    async with working(Worker(runner_for(log, clock, waits_for_two))):
        await runner.submit(waits_for_two, "run-1")
        await until_status(runner, "WAITING")
        for name, value in (("unrelated", 0), ("second", 2), ("unrelated", 0)):
            await runner.signal("run-1", name, value)
            await settled(log)
        await runner.signal("run-1", "first", 1)
        await until_status(runner, "COMPLETED")
    assert (await runner.resume("run-1")).value == [1, 2]


async def test_a_timer_wakes_a_run_when_the_clock_says_so(log: RunLog, clock: FakeClock) -> None:
    runner = runner_for(log, clock, naps)
    async with working(Worker(runner)) as worker:
        await runner.submit(naps, "run-1")
        await until_status(runner, "WAITING")
        clock.advance(3599)
        worker.wake()
        await settled(log)
        assert (await runner.state("run-1")).status == "WAITING"
        clock.advance(2)
        worker.wake()
        await until_status(runner, "COMPLETED")


async def test_a_run_that_is_refused_is_left_alone_until_something_new_happens_to_it(
    log: RunLog, clock: FakeClock
) -> None:
    """A drive that refuses leaves events; taken for news they would drive it for ever."""
    calls = Calls()

    @eventlog.workflow(name="flow", version="1")
    async def before(run: RunContext) -> None:
        await run.step("a", calls("a"))
        await run.wait_for_signal("go")

    @eventlog.workflow(name="flow", version="2", continues=["1"])
    async def after(run: RunContext) -> None:
        await run.step("b", calls("b"))
        await run.wait_for_signal("go")

    await runner_for(log, clock, before).start(before, "run-1")
    runner = runner_for(log, clock, after)
    async with working(Worker(runner)):
        await runner.signal("run-1", "go")
        await until_logged(log, "resume_rejected")
        end = await settled(log)
        assert (await types_in(log)).count("resume_rejected") == 1
        await runner.signal("run-1", "other")
        while (await types_in(log)).count("resume_rejected") == 1:  # noqa: ASYNC110 - nothing tells when it is
            await asyncio.sleep(0.01)
        assert await settled(log) > end
        assert (await types_in(log)).count("resume_rejected") == 2
    assert calls.names == ["a"]

    async with working(Worker(runner_for(log, clock, before))):  # the code that began it, in a program of its own
        await until_status(runner, "COMPLETED")


async def test_a_worker_is_idle_though_a_run_was_refused(log: RunLog, clock: FakeClock) -> None:
    calls = Calls()

    @eventlog.workflow
    async def flow(run: RunContext) -> None:
        await run.act("gone", {}, output="x")

    runner = runner_for(log, clock, flow, actions=[effect(calls, "other")])
    await runner.submit(flow, "run-1")
    await Worker(runner).run(until_idle=True)
    assert (await types_in(log))[-2:] == ["resume_rejected", "checkpoint_saved"]
    repaired = runner_for(log, clock, flow, actions=[effect(calls, "gone")], policies={"gone": Policy(auto=True)})
    await Worker(repaired).run(until_idle=True)
    assert (await runner.state("run-1")).status == "COMPLETED" and calls.names == ["gone"]


async def test_a_signal_that_is_no_value_of_the_type_that_is_waited_for_is_refused_and_the_next_is_taken(
    log: RunLog, clock: FakeClock
) -> None:
    runner = runner_for(log, clock, waits_for_two)
    await runner.start(waits_for_two, "run-1")
    await runner.signal("run-1", "first", "one")
    assert (await runner.resume("run-1")).status == "WAITING"
    (refused,) = [event for event in await events_of(log) if type(event).__name__ == "SignalRejected"]
    assert (refused.name, refused.key) == ("first", "first:signal") and "int" in refused.reason
    await runner.signal("run-1", "first", 1)
    await runner.signal("run-1", "second", 2)
    assert (await runner.resume("run-1")).value == [1, 2]


def test_a_policy_of_an_action_that_the_program_does_not_have_is_refused(log_free: Calls) -> None:
    """A misspelt name would be no policy at all."""
    with pytest.raises(InvalidInput, match="'aply'"):
        eventlog.Runner(
            eventlog.open("memory:"), actions=[effect(log_free, "apply")], policies={"aply": Policy(required=2)}
        )
    eventlog.Runner(eventlog.open("memory:"), policies={"apply": Policy(required=2)})  # only lets people decide


@pytest.fixture
def log_free() -> Calls:
    return Calls()


# ── runs that nobody picked up ───────────────────────────────────────────────────────────────────────────────────────


class _Failing:
    """A log of which the next reads of run-1 fail, one by one, as `errors` say."""

    def __init__(self, log: RunLog) -> None:
        self._log = log
        self.errors: list[Exception] = []
        self.failed = 0
        self.before_read: Callable[[], Awaitable[None]] | None = None
        self.before_append: Callable[[], Awaitable[None]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def read_from_snapshot(self, stream: str) -> tuple[Snapshot | None, StreamSlice]:
        if self.before_read is not None:
            before, self.before_read = self.before_read, None
            await before()
        if self.errors and stream == "run:run-1":
            self.failed += 1
            raise self.errors.pop(0)
        return await self._log.read_from_snapshot(stream)

    async def append_reserved(self, appends: Sequence[Append], **options: Any) -> list[AppendResult]:
        if self.before_append is not None:
            before, self.before_append = self.before_append, None
            await before()
        return await self._log.append_reserved(appends, **options)


@eventlog.workflow
async def quick(run: RunContext) -> int:
    return 1


@pytest.mark.parametrize(
    "error", [StoreBusy("locked"), StoreUnavailable("store_full", "gone"), OSError("of the system")]
)
async def test_a_run_that_could_not_be_read_for_a_moment_is_tried_again(
    log: RunLog, clock: FakeClock, error: Exception
) -> None:
    failing = _Failing(log)
    runner = runner_for(log, clock, quick)
    async with working(Worker(runner_for(failing, clock, quick))):
        await settled(log)
        failing.errors = [error]
        await runner.submit(quick, "run-1")
        await until_status(runner, "COMPLETED")
    assert failing.failed == 1


async def test_a_worker_is_not_idle_while_a_store_is_busy(log: RunLog, clock: FakeClock) -> None:
    failing = _Failing(log)
    runner = runner_for(log, clock, quick)
    await runner.submit(quick, "run-1")
    failing.errors = [StoreBusy("locked"), StoreBusy("locked")]
    await Worker(runner_for(failing, clock, quick)).run(until_idle=True)
    assert (failing.failed, (await runner.state("run-1")).status) == (2, "COMPLETED")


async def test_a_run_that_fails_again_and_again_is_not_tried_again_at_once_and_keeps_no_other_from_going_on(
    log: RunLog, clock: FakeClock
) -> None:
    """It used to be read as often as the machine could."""
    failing = _Failing(log)
    runner = runner_for(log, clock, quick)
    async with working(Worker(runner_for(failing, clock, quick), max_concurrent=1)):
        await settled(log)
        failing.errors = [OSError("of the disk")] * 1000
        await runner.submit(quick, "run-1")
        await until(lambda: failing.failed == 1)
        for number in range(2, 20):
            await runner.submit(quick, f"run-{number}")
        for number in range(2, 20):
            await until_logged(log, "run_completed", f"run-{number}")
        assert failing.failed < 10
        failing.errors = []
        await until_status(runner, "COMPLETED")


async def test_a_worker_that_is_cancelled_twice_ends_behind_its_effects(log: RunLog, clock: FakeClock) -> None:
    """Its second cancellation must not give a run free under an effect that is at work."""
    at_work, may_end = asyncio.Event(), asyncio.Event()

    @eventlog.action("apply", promise="opaque")
    async def apply(call: eventlog.Call) -> int:
        at_work.set()
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue  # as a thread that nobody can stop
        return 1

    runner = runner_for(log, clock, asks_in_time, actions=[apply], policies={"apply": Policy(auto=True)})
    await runner.submit(asks_in_time, "run-1")
    worker = Worker(runner, grace_s=0)
    task = asyncio.create_task(worker.run())
    await at_work.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.05)
    assert not task.done() and worker._driving
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not worker._driving and "action_executed" in await types_in(log)


async def test_a_refusal_of_a_run_that_has_moved_meanwhile_is_no_refusal(log: RunLog, clock: FakeClock) -> None:
    """It left no trace, so nothing said that the run had been refused, and nobody tried it again."""
    failing = _Failing(log)
    await runner_for(log, clock, quick).submit(quick, "run-1")
    elsewhere = runner_for(log, clock)

    async def signal() -> None:
        await elsewhere.signal("run-1", "other")

    failing.before_append = signal
    await Worker(runner_for(failing, clock)).run(until_idle=True)
    assert await types_in(log) == ["checkpoint_saved", "signal_received", "resume_rejected"]


async def test_a_worker_is_idle_though_a_run_cannot_be_driven_here(log: RunLog, clock: FakeClock) -> None:
    """A store that is busy will not be so for long; what else keeps a run from being read may be so for ever."""
    failing = _Failing(log)
    await runner_for(log, clock, quick).submit(quick, "run-1")
    failing.errors = [OSError("of the disk")] * 1000
    await Worker(runner_for(failing, clock, quick)).run(until_idle=True)
    assert failing.failed == 1


async def test_a_feed_that_breaks_ends_the_worker_and_says_why(log: RunLog, clock: FakeClock) -> None:
    async def breaks(**_: Any) -> AsyncIterator[Any]:
        yield CaughtUp(0)
        yield CaughtUp(0)
        raise LogCorrupt("hash_mismatch", "an event was changed", stream="run:run-1")

    log.subscribe = breaks  # type: ignore[method-assign, assignment]
    with pytest.raises(LogCorrupt):
        await Worker(runner_for(log, clock, quick)).run()


async def test_two_runs_of_one_dead_process_are_both_taken_up(tmp_path: Path, clock: FakeClock) -> None:
    @eventlog.workflow
    async def long(run: RunContext) -> None:
        await run.step("work", asyncio.sleep, 1000 if stuck else 0)

    stuck = [True]
    async with eventlog.open(tmp_path / "log.db", clock=clock) as log:
        holder = runner_for(log, clock, long)
        holding = [asyncio.create_task(holder.start(long, run_id)) for run_id in ("run-1", "run-2")]
        for run_id in ("run-1", "run-2"):
            await until_logged(log, "run_claimed", run_id)
        await until(lambda: len(holder.workflows._drives) == 2)
        stuck.clear()
        holder.workflows._holder.close()  # it is dead now, for all that others can see
        other = runner_for(log, clock, long)
        await Worker(other).run(until_idle=True)
        for run_id in ("run-1", "run-2"):
            assert (await other.state(run_id)).status == "COMPLETED"
        for task in holding:
            task.cancel()
        await asyncio.gather(*holding, return_exceptions=True)


async def test_a_holder_that_renewed_its_claim_at_the_last_moment_is_still_looked_after(
    tmp_path: Path, clock: FakeClock
) -> None:
    """The worker saw that the lease had ended, and when it read the run that was true no more; then the holder died."""

    @eventlog.workflow
    async def long(run: RunContext) -> None:
        await run.step("work", asyncio.sleep, 1000 if run.run_id in stuck else 0)

    stuck = {"run-1"}
    async with eventlog.open(tmp_path / "log.db", clock=clock) as log:
        holder = runner_for(log, clock, long)
        holding = asyncio.create_task(holder.start(long, "run-1"))
        await until_logged(log, "run_claimed")
        failing = _Failing(log)
        await until(lambda: "run-1" in holder.workflows._drives)  # the log tells of the claim a moment earlier
        drive = holder.workflows._drives["run-1"]

        async def renew() -> None:
            renewed = ClaimRenewed(epoch=drive.session.epoch, deadline_us=clock.now_us() + 300_000_000)
            await drive.session.add(renewed)

        failing.before_read = renew
        async with working(Worker(runner_for(failing, clock, long))) as worker:
            await settled(log)
            clock.advance(301)
            worker.wake()
            await until_logged(log, "claim_renewed")
            await settled(log)
            assert (await types_in(log)).count("run_claimed") == 1
            stuck.clear()
            holder.workflows._holder.close()  # it is dead now, for all that others can see
            await until_status(holder, "COMPLETED")
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)


@eventlog.workflow
async def asks_in_time(run: RunContext) -> str:
    try:
        await run.act("apply", {"n": 1}, output="x")
    except eventlog.ApprovalExpired:
        return "nobody decided"
    return "done"


async def test_an_edit_that_gives_more_time_is_followed_by_the_end_of_that_time(log: RunLog, clock: FakeClock) -> None:
    """The timer of the first deadline came, and was the last."""
    runner = runner_for(
        log,
        clock,
        asks_in_time,
        actions=[effect(Calls(), "apply")],
        policies={"apply": Policy(expires_in_s=100)},
    )
    async with working(Worker(runner)) as worker:
        await runner.submit(asks_in_time, "run-1")
        await until_status(runner, "WAITING_FOR_USER")
        clock.advance(50)
        await runner.edit("run-1", args={"n": 2})
        clock.advance(60)
        worker.wake()
        await settled(log)
        assert (await runner.state("run-1")).status == "WAITING_FOR_USER"
        clock.advance(40)
        worker.wake()
        await until_status(runner, "COMPLETED")
    assert (await runner.resume("run-1")).value == "nobody decided"


async def test_an_edit_that_sets_a_time_first_is_followed_by_the_end_of_it(log: RunLog, clock: FakeClock) -> None:
    calls = Calls()
    actions = [effect(calls, "apply"), effect(calls, "urgent")]
    runner = runner_for(log, clock, asks_in_time, actions=actions, policies={"urgent": Policy(expires_in_s=5)})
    async with working(Worker(runner)) as worker:
        await runner.submit(asks_in_time, "run-1")
        await until_status(runner, "WAITING_FOR_USER")
        await runner.edit("run-1", action="urgent")
        await settled(log)
        clock.advance(6)
        worker.wake()
        await until_status(runner, "COMPLETED")
    assert (await runner.resume("run-1")).value == "nobody decided" and calls.names == []


async def test_an_approval_that_is_withdrawn_expires_again(log: RunLog, clock: FakeClock) -> None:
    """The worker is busy with another run when it is given, and it is withdrawn before anybody goes on behind it."""
    policies = {"apply": Policy(expires_in_s=100)}
    runner = runner_for(log, clock, asks_in_time, actions=[effect(Calls(), "apply")], policies=policies)
    (request,) = (await runner.start(asks_in_time, "run-1")).requests
    await runner.approve("run-1", request.proposal_hash or "")
    await runner.revoke("run-1")
    async with working(Worker(runner)) as worker:
        await settled(log)
        clock.advance(101)
        worker.wake()
        await until_status(runner, "COMPLETED")
    assert (await runner.resume("run-1")).value == "nobody decided"


async def until_status(runner: eventlog.Runner, status: str) -> None:
    """Wait until the run has this status. A test that waits in vain is ended by its time-out."""
    while (await runner.state("run-1")).status != status:  # noqa: ASYNC110 - nothing tells when it is
        await asyncio.sleep(0.005)
