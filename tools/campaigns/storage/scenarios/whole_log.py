"""The audit that all storage scenarios share: what callers were told of their appends, against what the log holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import eventlog
from eventlog import Expect, NewEvent, RecordedEvent
from eventlog.errors import EventLogError
from eventlog.stores import SqliteLog
from tools.campaigns.processes.told import Call
from tools.campaigns.storage.scenarios.scenario import Wrong, open_log

__all__ = ["STREAM", "audit_log", "contradictions", "note", "told_against_stored"]

STREAM: Final = "notes"


def note(number: int, size: int = 200) -> NewEvent:
    """Return the number-th event: the same in every process, so that an append of it can be repeated."""
    return NewEvent("noted", {"n": number, "text": "x" * size}, event_id=number.to_bytes(16, "big"))


async def audit_log(path: Path, calls: Sequence[Call], sizes: Callable[[int], int] = lambda _: 200) -> list[Wrong]:
    """Open the log as the next process would, and say what is wrong; settle what nobody knew, and look again."""
    if not any(call.ids for call in calls) and not path.exists():
        return []
    try:
        async with open_log(path) as log:
            before = await _events(log)
            wrong = [*await contradictions(log), *told_against_stored(calls, before)]
            unsettled = _unsettled(calls)
            for number in unsettled:
                event = note(number, sizes(number))
                await log.append(STREAM, [event], expect=Expect.any())
        if not unsettled:
            return wrong
        async with open_log(path) as log:
            return wrong + _settled(unsettled, before, await _events(log)) + await contradictions(log)
    except EventLogError as error:
        return [Wrong("I1", f"the log cannot be used any more: {error.code}: {error}")]


async def contradictions(log: SqliteLog) -> list[Wrong]:
    """Return what in the log contradicts itself: hashes, links, gaps, its tables and SQLite's own pages."""
    head = (await log.head()).position
    page = await log.check_page(after=0, limit=head + 1)
    wrong = [Wrong("I2", f"position {each.position}: {each.message}") for each in page.problems]
    if (page.position, page.events) != (head, head):
        wrong.append(Wrong("I2", f"{page.events} events up to {page.position}, and the log ends at {head}"))
    return wrong + [Wrong("I2", f"{each.reason}: {each.message}") for each in await log.check_file()]


def told_against_stored(calls: Sequence[Call], events: Sequence[RecordedEvent]) -> list[Wrong]:
    """Compare what callers were told of their events with what is stored."""
    places: dict[str, RecordedEvent] = {event.event_id.hex(): event for event in events}
    wrong = [Wrong("I4", f"event {each} is stored {n} times") for each, n in _twice(events)]
    wrong += [
        Wrong("I2", f"events of one call are half there: {[each in places for each in call.ids]}, {call}")
        for call in calls
        if len({each in places for each in call.ids}) > 1
    ]
    for event_id in dict.fromkeys(each for call in calls for each in call.ids):
        about = [call for call in calls if event_id in call.ids]
        wrong += _wrong_of_event(event_id, about, places.get(event_id))
    return wrong


def _wrong_of_event(event_id: str, about: Sequence[Call], event: RecordedEvent | None) -> list[Wrong]:
    told = [call.told for call in about]
    if event is None:
        if "ok" in told:
            return [Wrong("I1", f"event {event_id} was acknowledged and is not there: {about[told.index('ok')]}")]
        return []
    first = next((index for index, call in enumerate(about) if call.told == "ok"), len(about))
    was_there = first == len(about) or about[first].facts.get("deduplicated", False)
    if was_there and set(told[:first]) == {"failed"}:
        return [Wrong("I3", f"event {event_id} is at {event.position}, and the caller was told: {about[0]}")]
    return [
        Wrong("I1", f"event {event_id} is at {event.position}, {call.facts} was acknowledged")
        for call in about
        if call.told == "ok" and not _is_at(event, call)
    ]


def _is_at(event: RecordedEvent, call: Call) -> bool:
    if not {"stream", "version", "last_position", "leaf"} <= call.facts.keys():
        return True
    behind = len(call.ids) - 1 - call.ids.index(event.event_id.hex())
    place = event.stream, event.version + behind, event.position + behind
    if place != (call.facts["stream"], call.facts["version"], call.facts["last_position"]):
        return False
    return behind > 0 or event.leaf.hex() == call.facts["leaf"]


def _unsettled(calls: Sequence[Call]) -> list[int]:
    """Return the numbers of the events whose callers were told nothing, or that nobody knows, one by one appended."""
    ok = {each for call in calls if call.told == "ok" for each in call.ids}
    asked = [call.ids[0] for call in calls if len(call.ids) == 1 and call.what == "append"]
    doubtful = {each for call in calls if call.told in ("nothing", "unknown") for each in call.ids}
    return [int(each, 16) for each in dict.fromkeys(asked) if each in doubtful - ok]


def _settled(asked: Sequence[int], before: Sequence[RecordedEvent], after: Sequence[RecordedEvent]) -> list[Wrong]:
    """Say what of the log has changed by asking again, other than that what was missing is there, once."""
    wrong = [Wrong("I4", f"event {each} is stored {n} times after asking again") for each, n in _twice(after)]
    if [_place(event) for event in after[: len(before)]] != [_place(event) for event in before]:
        wrong.append(Wrong("I1", "what was stored has changed by asking again"))
    there = {event.event_id for event in after}
    missing = [each for each in asked if each.to_bytes(16, "big") not in there]
    return wrong + [Wrong("I4", f"event {each} was asked for again and is not there") for each in missing]


def _twice(events: Sequence[RecordedEvent]) -> list[tuple[str, int]]:
    return [(each.hex(), n) for each, n in Counter(event.event_id for event in events).items() if n > 1]


def _place(event: RecordedEvent) -> tuple[Any, ...]:
    return event.position, event.stream, event.version, event.event_id, event.leaf


async def _events(log: eventlog.EventReader) -> list[RecordedEvent]:
    return [event async for event in log.read_all()]
