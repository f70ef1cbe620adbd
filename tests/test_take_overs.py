"""Holders that sleep in the middle of an effect and wake up behind a take-over: what their clocks say meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

import eventlog
from eventlog import Call, ClaimLost, Executed, Promise
from eventlog.errors import ActionFailed, RunConflict
from eventlog.runtime.effects import Report
from eventlog.runtime.failpoints import INTENT_AFTER_COMMIT
from eventlog.stores import SqliteLog
from eventlog.testing.clock import FakeClock
from tools.campaigns.storage.log_files import assert_whole, open_file

LEASE_S = 60.0
TEN_YEARS_US = 10 * 365 * 24 * 3600 * 1_000_000


class Slow:
    """Counts its effects, and waits in the middle of the first as long as the test wants."""

    name = "slow"
    promise = Promise.CHECKABLE
    is_fenced = True  # so that it is retried beside a holder that is only late

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.is_inside, self.may_end = asyncio.Event(), asyncio.Event()

    def check(self, call: Call) -> None:
        """Nothing to refuse."""

    async def execute(self, call: Call) -> Report:
        self.calls.append(call.attempt)
        if call.attempt == 1:
            self.is_inside.set()
            await self.may_end.wait()
        return Executed()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def log(tmp_path: Path, clock: FakeClock) -> AsyncIterator[SqliteLog]:
    async with open_file(tmp_path / "log.db", clock=clock) as log:
        yield log
        await assert_whole(log)


async def approved(runner: eventlog.Runner) -> eventlog.Proposal:
    proposal = eventlog.propose("slow", {}, "target")
    await runner.propose("run-1", proposal)
    await runner.approve("run-1", proposal.hash)
    return proposal


def both_clocks_go_on(clock: FakeClock) -> None:
    clock.advance(LEASE_S * 0.6)


def only_the_wall_clock_goes_on(clock: FakeClock) -> None:
    clock.set(clock.now_us() + round(LEASE_S * 0.6e6))


def the_wall_clock_is_set_back_meanwhile(clock: FakeClock) -> None:
    now_us = clock.now_us()
    clock.advance(LEASE_S * 0.6)
    clock.set(now_us - TEN_YEARS_US)


@pytest.mark.parametrize(
    "time_passes", [both_clocks_go_on, only_the_wall_clock_goes_on, the_wall_clock_is_set_back_meanwhile]
)
async def test_a_holder_whose_lease_is_half_over_by_either_clock_begins_no_effect(
    log: SqliteLog, clock: FakeClock, time_passes: Callable[[FakeClock], None]
) -> None:
    """Faults F80, F81, F82: a suspended machine's monotonic clock may stand still, and a wall clock may jump."""
    action = Slow()

    def reach(name: str) -> None:
        if name == INTENT_AFTER_COMMIT:
            time_passes(clock)

    runner = eventlog.Runner(log, actions=[action], lease_s=LEASE_S, clock=clock, reach=reach)
    await approved(runner)
    with pytest.raises(ActionFailed, match="half of the lease"):
        await runner.resume("run-1")
    assert action.calls == []
    assert (await runner.state("run-1")).status == "APPROVED"


async def test_a_holder_whose_lease_is_hardly_used_begins_its_effect(log: SqliteLog, clock: FakeClock) -> None:
    action = Slow()
    action.may_end.set()

    def reach(name: str) -> None:
        if name == INTENT_AFTER_COMMIT:
            clock.advance(LEASE_S * 0.4)

    runner = eventlog.Runner(log, actions=[action], lease_s=LEASE_S, clock=clock, reach=reach)
    await approved(runner)
    assert (await runner.resume("run-1")).result == "executed"
    assert action.calls == [1]


@pytest.mark.parametrize("back_us", [1_000_000, TEN_YEARS_US])
async def test_a_clock_that_jumps_back_gives_a_fenced_holder_nothing_back(
    log: SqliteLog, clock: FakeClock, back_us: int
) -> None:
    """Faults F50, F80: the claim is in the log, and no time undoes it."""
    action = Slow()
    holder = eventlog.Runner(log, actions=[action], lease_s=LEASE_S, clock=clock)
    taker = eventlog.Runner(log, actions=[action], lease_s=LEASE_S, clock=clock)
    await approved(holder)
    held = asyncio.create_task(holder.resume("run-1"))
    await action.is_inside.wait()
    with pytest.raises(RunConflict):
        await taker.resume("run-1")
    clock.advance(LEASE_S + 1)
    assert (await taker.resume("run-1")).result == "executed"
    clock.set(clock.now_us() - back_us)
    action.may_end.set()
    with pytest.raises(ClaimLost):
        await held
    assert action.calls == [1, 2], "the second attempt is what a receiver that can refuse is there for"
    types = [event.type for event in await taker.trace("run-1")]
    assert types.count("action_executed") == 1


async def test_a_lease_that_was_seen_to_be_over_stays_over_when_the_clock_jumps_back(
    log: SqliteLog, clock: FakeClock
) -> None:
    """Fault F80: the time of the run's last event is the earliest that it can be."""
    action = Slow()
    runner = eventlog.Runner(log, actions=[action], lease_s=LEASE_S, clock=clock)
    proposal = await approved(runner)
    held = asyncio.create_task(runner.resume("run-1"))
    await action.is_inside.wait()
    clock.advance(LEASE_S + 1)
    with pytest.raises(eventlog.Refused, match="decided already"):
        await runner.approve("run-1", proposal.hash)
    clock.set(clock.now_us() - TEN_YEARS_US)
    assert (await runner.resume("run-1")).result == "executed"
    action.may_end.set()
    with pytest.raises(ClaimLost):
        await held


async def test_the_order_of_events_does_not_depend_on_any_clock(log: SqliteLog, clock: FakeClock) -> None:
    """Fault F80: times in the log never go back either."""
    runner = eventlog.Runner(log, clock=clock)
    proposal = eventlog.propose("slow", {}, "target")
    for number in range(5):
        await runner.propose(f"run-{number}", proposal)
        clock.set(clock.now_us() - 10 ** (number + 6))
    events = [event async for event in log.read_all()]
    assert [event.position for event in events] == list(range(1, 11))
    times = [event.recorded_at_us for event in events]
    assert times == sorted(times)
