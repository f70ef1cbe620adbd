"""Holders that stop in the middle of an effect and wake up behind a take-over; and what their clocks say meanwhile."""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import eventlog
from eventlog import Call, ClaimLost, Executed, Promise
from eventlog.errors import ActionFailed, RunConflict
from eventlog.runtime.effects import Report
from eventlog.runtime.failpoints import INTENT_AFTER_COMMIT
from eventlog.stores import SqliteLog
from eventlog.testing.clock import FakeClock
from tests.logs import assert_whole, open_file

TAKE_OVERS = Path(__file__).parent.parent / "tools" / "take_overs.py"
LEASE_S = 60.0
TEN_YEARS_US = 10 * 365 * 24 * 3600 * 1_000_000


# ── real processes, really stopped ────────────────────────────────────────────────────────────────────────────────────
def take_over(*arguments: str, timeout_s: float = 1500) -> tuple[int, dict[str, Any]]:
    """Run the campaign in a process of its own and return its exit status and its report."""
    command = [sys.executable, str(TAKE_OVERS), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print("take_overs.py", *arguments, report)
    return done.returncode, report


@pytest.mark.campaign
@pytest.mark.timeout(1600)
def test_a_holder_that_wakes_up_behind_a_take_over_does_no_second_effect_at_any_receiver(is_long: bool) -> None:
    count = 300 if is_long else 30
    status, report = take_over("--count", str(count))
    assert (status, report["wrong"], report["take_overs"]) == (0, [], count)
    assert report["told"]["holder"]["claim_lost"] == count * 21 // 30, "five points by six receivers, nine of them late"
    assert report["claims"] >= count * 21 // 30


@pytest.mark.campaign
@pytest.mark.timeout(1600)
def test_a_holder_that_is_stopped_at_any_moment_does_no_second_effect(is_long: bool) -> None:
    count = 300 if is_long else 15
    status, report = take_over("--count", str(count), "--anywhere", "--seed", str(secrets.randbits(32)))
    assert (status, report["wrong"], report["take_overs"]) == (0, [], count)
    assert report["claims"] > 0, "no holder was stopped while it held the run"


@pytest.mark.campaign
def test_a_receiver_that_forgets_its_keys_is_reported_by_the_take_over_check() -> None:
    status, report = take_over("--count", "5", "--receiver", "http", "--control", "forgetful")
    assert status == 1
    assert "http stopped at effect.inside: 2 effects" in report["wrong"]


@pytest.mark.campaign
def test_a_holder_that_is_not_fenced_is_reported_by_the_take_over_check() -> None:
    status, report = take_over("--count", "5", "--receiver", "file", "--control", "unfenced")
    assert status == 1
    assert "file stopped at effect.after: the holder was told executed, not claim_lost" in report["wrong"]


# ── clocks ────────────────────────────────────────────────────────────────────────────────────────────────────────────
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
