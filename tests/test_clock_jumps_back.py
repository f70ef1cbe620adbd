"""A wall clock that jumps back while a run is driven: the time of the run stands still, and nobody waits for it."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from eventlog.run import Status
from eventlog.runtime.context import RunContext
from eventlog.runtime.definitions import workflow
from eventlog.runtime.runner import Runner
from eventlog.stores import MemoryLog
from eventlog.testing.clock import FakeClock

_YEAR_US = 365 * 24 * 3600 * 1_000_000


@workflow
async def nap(run: RunContext) -> None:
    """Sleep for a moment that is waited for in memory."""
    await run.sleep(0.05)


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
