"""Fixtures for pytest, there as soon as the engine is installed; nothing of the engine is imported before one is used.

    eventlog_clock        a `FakeClock`, the same for all that one test uses
    eventlog_log          opens a log in an SQLite file of the test's own folder; its events are verified in the end
    eventlog_memory_log   opens a log in memory; likewise
    eventlog_runner       makes a `Runner` that goes by that clock and waits for nothing in memory

They are plain fixtures that give functions, so that they work under whatever runs async tests, and under nothing at
all: with pytest-asyncio (strict or auto), with anyio on asyncio, and in a test that calls `asyncio.run`.

    async def test_an_incident_waits_for_its_patch(eventlog_log, eventlog_runner, eventlog_clock) -> None:
        async with eventlog_log() as log:
            outcome = await eventlog_runner(log, workflows=[fix_incident]).start(fix_incident, "run-1", "INC-7")
            assert outcome.status == "WAITING"
        eventlog_clock.advance(hours=2)
        async with eventlog_log() as log:  # the same file again: what another process finds there
            ...
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from eventlog.log import RunLog
    from eventlog.runtime.runner import Runner
    from eventlog.stores.memory import MemoryLog
    from eventlog.stores.sqlite import SqliteLog
    from eventlog.testing.clock import FakeClock

__all__ = ["OpenLog", "OpenMemoryLog", "RunnerOf"]


class OpenLog(Protocol):
    """Opens the SQLite log `name` of the test's folder, made if it is missing. `options` as for `eventlog.open`."""

    def __call__(self, name: str = "log.db", **options: Any) -> AbstractAsyncContextManager[SqliteLog]: ...


class OpenMemoryLog(Protocol):
    """Opens a new log in memory. `options` as for `eventlog.open`."""

    def __call__(self, **options: Any) -> AbstractAsyncContextManager[MemoryLog]: ...


class RunnerOf(Protocol):
    """Makes a runner of this log. `options` as for `eventlog.Runner`, the clock and `patience_s=0` if not said."""

    def __call__(self, log: RunLog, **options: Any) -> Runner: ...


@pytest.fixture
def eventlog_clock() -> FakeClock:
    """A clock that stands still until the test moves it."""
    from eventlog.testing.clock import FakeClock

    return FakeClock()


@pytest.fixture
def eventlog_log(tmp_path: Path, eventlog_clock: FakeClock) -> OpenLog:
    """A function that opens a log in a file: `async with eventlog_log() as log`."""

    def opened(name: str = "log.db", **options: Any) -> AbstractAsyncContextManager[SqliteLog]:
        from eventlog.stores import open

        return _verified(open(tmp_path / name, **{"clock": eventlog_clock, "actor": "test", **options}))

    return opened


@pytest.fixture
def eventlog_memory_log(eventlog_clock: FakeClock) -> OpenMemoryLog:
    """A function that opens a log in memory: `async with eventlog_memory_log() as log`."""

    def opened(**options: Any) -> AbstractAsyncContextManager[MemoryLog]:
        from eventlog.stores import open

        return _verified(open("memory:", **{"clock": eventlog_clock, "actor": "test", **options}))

    return opened


@pytest.fixture
def eventlog_runner(eventlog_clock: FakeClock) -> RunnerOf:
    """A function that makes a runner: `eventlog_runner(log, workflows=[…], actions=[…])`."""

    def runner(log: RunLog, **options: Any) -> Runner:
        from eventlog.runtime.runner import Runner

        return Runner(log, **{"clock": eventlog_clock, "patience_s": 0, **options})

    return runner


@asynccontextmanager
async def _verified(log: Any) -> AsyncIterator[Any]:
    """Open the log, and verify every event of it before it is closed, unless the test has failed already."""
    async with log:
        yield log
        position = 0
        while (page := await log.check_page(after=position)).events:
            problems = "\n".join(f"{problem.reason}: {problem.message}" for problem in page.problems)
            if problems:
                raise AssertionError(f"the log is damaged:\n{problems}")
            position = page.position
