"""The audit behind the campaigns of failing storage sees each way in which a caller can be told what is not so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from eventlog import Expect, RecordedEvent
from tools.campaigns.processes.told import Call, Said, Told, calls_in
from tools.campaigns.storage.scenarios.scenario import open_log
from tools.campaigns.storage.scenarios.whole_log import STREAM, note, told_against_stored


@pytest.fixture
async def events(tmp_path: Path) -> list[RecordedEvent]:
    """Events 1 and 2, as they are stored."""
    async with open_log(tmp_path / "log.db") as log:
        await log.append(STREAM, [note(1), note(2)], expect=Expect.any())
        return [event async for event in log.read_all()]


def _call(told: Told, *numbers: int, **facts: object) -> Call:
    return Call("append", told, ids=[note(number).event_id.hex() for number in numbers], facts=dict(facts))


def _invariants(calls: list[Call], events: list[RecordedEvent]) -> list[str]:
    return [wrong.invariant for wrong in told_against_stored(calls, events)]


def _place(event: RecordedEvent) -> dict[str, object]:
    place = {"stream": event.stream, "version": event.version, "last_position": event.position}
    return {**place, "leaf": event.leaf.hex()}


async def test_what_is_so_is_no_violation(events: list[RecordedEvent]) -> None:
    acknowledged = _call("ok", 1, 2, **_place(events[1]))
    assert _invariants([acknowledged, _call("failed", 3), _call("unknown", 4)], events) == []
    assert _invariants([_call("unknown", 1), _call("nothing", 2)], events) == []


async def test_acknowledged_event_that_is_missing_or_elsewhere_is_a_violation(events: list[RecordedEvent]) -> None:
    assert _invariants([_call("ok", 3)], events) == ["I1"]
    assert _invariants([_call("ok", 1, **_place(events[1]))], events) == ["I1"]


async def test_failed_event_that_is_there_is_a_violation_also_if_a_retry_found_it(events: list[RecordedEvent]) -> None:
    assert _invariants([_call("failed", 1)], events) == ["I3"]
    found = _call("ok", 1, **_place(events[0]), deduplicated=True)
    stored = _call("ok", 1, **_place(events[0]), deduplicated=False)
    assert _invariants([_call("failed", 1), found], events) == ["I3"]
    assert _invariants([_call("failed", 1), stored], events) == []
    assert _invariants([_call("unknown", 1), _call("failed", 1), found], events) == []


async def test_event_that_is_there_twice_and_call_that_is_half_there_are_violations(
    events: list[RecordedEvent],
) -> None:
    assert _invariants([], [*events, events[0]]) == ["I4"]
    assert _invariants([_call("nothing", 2, 3)], events) == ["I2"]


async def test_call_that_was_begun_and_not_told_is_one_that_nobody_was_told_of() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as pipe:
        said = Said(writing)

        async def dies() -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            await said.ask("append", dies(), ids=[b"\1"])
        os.write(writing, b"[2, {")  # a line that was cut
        os.close(writing)
        (call,) = calls_in(pipe.read())
    assert (call.what, call.told, call.ids) == ("append", "nothing", ["01"])
