"""A wall clock that jumps back while a run is driven: the time of the run stands still, and nobody waits for it.

A claim names the time at which it ends. If the clock is set back before it is recorded, that is later than a lease.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from eventlog.errors import RunConflict
from eventlog.events import Owner, RunClaimed, run_stream
from eventlog.log import Append, Expect
from eventlog.run import Status
from eventlog.runtime.context import RunContext
from eventlog.runtime.definitions import workflow
from eventlog.runtime.run_streams import new_event
from eventlog.runtime.runner import Runner
from eventlog.stores import MemoryLog
from eventlog.testing.clock import FakeClock
from eventlog.times import time_text

_ELSEWHERE = Owner(host="e" * 16, boot="b" * 16, lock="f" * 32 + ".1")
_HOUR_US = 3600 * 1_000_000
_YEAR_US = 365 * 24 * 3600 * 1_000_000


@workflow
async def nap(run: RunContext) -> None:
    """Sleep for a moment that is waited for in memory."""
    await run.sleep(0.05)


@workflow
async def nothing(run: RunContext) -> None:
    """Do nothing."""


async def test_run_whose_near_time_is_moved_years_away_pauses_instead_of_waiting_in_memory() -> None:
    clock = FakeClock()
    async with MemoryLog(actor="test", clock=clock) as log:
        runner = Runner(log, workflows=[nap], clock=clock)
        starting = asyncio.create_task(runner.start(nap, "run-1"))
        async with aclosing(log.subscribe(types=["timer_set"])) as set_timers:
            await anext(set_timers)
        clock.set(clock.now_us() - 10 * _YEAR_US)
        paused = await asyncio.wait_for(starting, 10)
        assert paused.run.status is Status.WAITING
        clock.set(clock.now_us() + 11 * _YEAR_US)
        assert (await runner.resume("run-1")).run.status is Status.COMPLETED


async def test_run_that_another_host_claimed_for_too_long_says_until_when_and_goes_on_then() -> None:
    clock = FakeClock()
    async with MemoryLog(actor="test", clock=clock) as log:
        runner = Runner(log, workflows=[nothing], clock=clock)
        await runner.submit(nothing, "run-1")
        ends_us = clock.now_us() + _HOUR_US
        claim = new_event(RunClaimed(epoch=2, owner=_ELSEWHERE, deadline_us=ends_us))
        await log.append_reserved([Append(run_stream("run-1"), [claim], Expect.at(1))])
        with pytest.raises(RunConflict, match=time_text(ends_us)):
            await runner.resume("run-1")
        clock.set(ends_us + 1)
        assert (await runner.resume("run-1")).run.status is Status.COMPLETED
