"""Scenarios of what is removed: events that are erased, and the key of a subject that is destroyed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import eventlog
from eventlog import Append, Expect, NewEvent, SubjectKeys
from eventlog.errors import EventLogError
from eventlog.stores import SqliteLog
from projections import RebuildableViews
from tools.campaigns.processes.told import Call, Said, StoppedEarly
from tools.campaigns.storage.scenarios.appended import filled
from tools.campaigns.storage.scenarios.scenario import (
    Scenario,
    Wrong,
    database,
    nothing,
    open_log,
    opened,
)
from tools.campaigns.storage.scenarios.whole_log import audit_log, contradictions

__all__ = ["ERASURE", "SUBJECT"]

_BASIS: Final = "asked for"


# ── the bodies of events ──────────────────────────────────────────────────────────────────────────────────────────────


async def _erase(folder: Path, said: Said) -> None:
    async with opened(said, open_log(database(folder))) as log:
        await said.ask("erase", log.erase([2], legal_basis=_BASIS))
        said.note("look", is_erased=await _is_erased(log, 2, default=None))
        everywhere = eventlog.erase(log, legal_basis=_BASIS, views=RebuildableViews(log, []), positions=[3])
        await said.ask("erase everywhere", everywhere)


async def _is_erased(log: SqliteLog, position: int, *, default: bool | None) -> bool | None:
    """Say whether an event is erased; `default` if the log cannot be read."""
    try:
        (event,) = [event async for event in log.read_all(after=position - 1, limit=1)]
    except EventLogError:
        return default
    return event.redacted == "erased"


async def _audit_erasure(folder: Path, calls: Sequence[Call]) -> list[Wrong]:
    wrong = [*await audit_log(database(folder), calls), *_told_of_erasure(calls)]
    try:
        async with open_log(database(folder)) as log:
            if any(call.what == "erase" and call.told == "ok" for call in calls) and not await _is_erased(
                log, 2, default=False
            ):
                wrong.append(Wrong("I1", "an event was told to be erased, and is there"))
            await eventlog.erase(log, legal_basis=_BASIS, views=RebuildableViews(log, []), positions=[2, 3])
            if [await _is_erased(log, each, default=False) for each in (1, 2, 3, 4)] != [False, True, True, False]:
                wrong.append(Wrong("I10", "other events are erased than were asked for"))
            wrong += await contradictions(log)
    except EventLogError as error:
        wrong.append(Wrong("I8", f"what was begun cannot be erased: {error.code}: {error}"))
    return wrong


def _told_of_erasure(calls: Sequence[Call]) -> list[Wrong]:
    """A definite failure, with nothing unknown before it, has left the event as it was."""
    wrong, asked, may_be_gone = [], None, False
    for call in calls:
        if call.what == "erase":
            asked = call
            may_be_gone = may_be_gone or call.told in ("ok", "unknown", "nothing")
        elif call.what == "look" and asked is not None and call.facts["is_erased"]:
            if not may_be_gone:
                wrong.append(Wrong("I3", f"the event is erased, and the caller was told: {asked}"))
            asked = None
    return wrong


ERASURE: Final = Scenario("erasure", "events are erased, and the file is purged", filled, _erase, _audit_erasure)


# ── the key of a subject ──────────────────────────────────────────────────────────────────────────────────────────────

_SUBJECT: Final = "customer-7"
_STREAM: Final = "case-7"
_EVENT: Final = NewEvent("noted", {"text": "in confidence"}, event_id=(1_000).to_bytes(16, "big"))


async def _keys(folder: Path) -> SubjectKeys:
    return SubjectKeys(folder / "keys", wrapping_key=b"w" * 32)


async def _seal(folder: Path, said: Said) -> None:
    keys = await said.ask("keys", _keys(folder))
    if keys is None:
        raise StoppedEarly
    async with opened(said, open_log(database(folder), subject_keys=keys)) as log:
        part = Append(_STREAM, [_EVENT], Expect.any(), subject=_SUBJECT)
        await said.ask("append sealed", log.append_many([part]), ids=[_EVENT.event_id])
        await said.ask("read sealed", _text(log))


async def _text(log: SqliteLog) -> str:
    """Return what the sealed event says; nothing if there is none."""
    event = await log.find(_EVENT.event_id)
    return "" if event is None else str(event.redacted or event.data["text"])


async def _audit_subject(folder: Path, calls: Sequence[Call]) -> list[Wrong]:
    wrong = await audit_log(database(folder), calls)
    wrong += [
        Wrong("I10", f"a sealed event was read as {call.facts['value']!r}")
        for call in calls
        if call.what == "read sealed" and call.told == "ok" and call.facts["value"] not in ("", "in confidence")
    ]
    try:
        async with open_log(database(folder), subject_keys=await _keys(folder)) as log:
            if await _text(log) not in ("", "in confidence"):
                wrong.append(Wrong("I1", "a sealed event is there, and its key is not"))
            await log.append_many([Append(_STREAM, [_EVENT], Expect.any(), subject=_SUBJECT)])
            if await _text(log) != "in confidence":
                wrong.append(Wrong("I1", f"a sealed event that was stored is read as {await _text(log)!r}"))
            await log.erase_subject(_SUBJECT, legal_basis=_BASIS)
        async with open_log(database(folder), subject_keys=await _keys(folder)) as log:
            if await _text(log) != "subject_erased":
                wrong.append(Wrong("I10", f"the subject is erased, and its event is {await _text(log)!r}"))
            wrong += await contradictions(log)
    except EventLogError as error:
        wrong.append(Wrong("I8", f"the sealed stream cannot be used any more: {error.code}: {error}"))
    return wrong


SUBJECT: Final = Scenario("subject", "a stream is encrypted under a key in a folder", nothing, _seal, _audit_subject)
