"""A clock that is behind the log: it is said, once each time, and no event is recorded before the last one."""

from __future__ import annotations

from pathlib import Path

import pytest

import eventlog
from eventlog import Expect, NewEvent
from eventlog.testing.clock import FakeClock


async def test_a_clock_that_has_gone_back_is_told_once_each_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    began_us = clock.now_us()
    said = []
    async with eventlog.open(tmp_path / "log.db", clock=clock) as log:
        for hours in (1, 0, 0, 2, 0.0003):
            clock.set(began_us + round(hours * 3_600_000_000))
            await log.append("s", [NewEvent("noted", {})], expect=Expect.any())
            said.append(caplog.text.count("clock_regression"))
        times = [event.recorded_at_us for event in (await log.read_stream("s")).events]
    assert said == [0, 1, 1, 1, 2]
    assert times == sorted(times)


async def test_a_clock_that_is_a_little_behind_is_not_worth_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    async with eventlog.open(tmp_path / "log.db", clock=clock) as log:
        await log.append("s", [NewEvent("noted", {})], expect=Expect.any())
        clock.set(clock.now_us() - 1_000_000)
        await log.append("s", [NewEvent("noted", {})], expect=Expect.any())
    assert "clock_regression" not in caplog.text
