"""The scenario of a disk that fills up: append until there is no room, then read on, and keep a large value."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from eventlog import EventReader, Expect
from tools.campaigns.processes.told import Call, Said
from tools.campaigns.storage.scenarios.scenario import Scenario, Wrong, database, nothing, open_log, opened
from tools.campaigns.storage.scenarios.whole_log import STREAM, audit_log, note

__all__ = ["FILLING"]

_MOST: Final = 60
_SIZES: Final = (200, 20_000, 3_000, 70_000)


def _size(number: int) -> int:
    return _SIZES[number % len(_SIZES)]


async def _fill(folder: Path, said: Said) -> None:
    async with opened(said, open_log(database(folder))) as log:
        for number in range(1, _MOST + 1):
            event = note(number, _size(number))
            asked = log.append(STREAM, [event], expect=Expect.any())
            if await said.ask("append", asked, ids=[event.event_id]) is None and not said.is_second:
                break
        await said.ask("read", _read(log))
        await said.ask("put", log.artifacts.put(b"large " * 10_000))
        await said.ask("look", _state(log))


async def _read(log: EventReader) -> int:
    return len([event async for event in log.read(STREAM)])


async def _state(log: EventReader) -> int:
    return (await log.head()).position


async def _audit(folder: Path, calls: Sequence[Call]) -> list[Wrong]:
    """Beside the usual: reads go on while the disk is full, and give what was acknowledged."""
    stored, wrong = 0, []
    for call in calls:
        stored += call.what == "append" and call.told == "ok" and not call.is_second
        if call.is_second or call.what not in ("read", "look"):
            continue
        if call.told != "ok":
            wrong.append(Wrong("I8", f"nothing can be read while the disk is full: {call}"))
        elif call.facts["value"] < stored:
            wrong.append(Wrong("I10", f"{stored} events were stored, and a reader got {call.facts['value']}"))
    return wrong + await audit_log(database(folder), calls, _size)


FILLING: Final = Scenario("filling", "events are appended until the disk is full", nothing, _fill, _audit)
