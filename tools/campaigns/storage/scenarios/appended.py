"""Scenarios of a log alone: it is created, it grows, it is read, it is brought to the current format."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from eventlog import EventReader, Expect
from eventlog.stores.sqlite.wal import WalCheckpoints
from tools.campaigns.frame.copies import ROOT
from tools.campaigns.processes.told import Call, Said
from tools.campaigns.storage.scenarios.scenario import Scenario, Wrong, database, nothing, open_log, opened
from tools.campaigns.storage.scenarios.whole_log import STREAM, audit_log, note

__all__ = ["CREATION", "GROWTH", "MIGRATION", "READING", "filled"]

_GOLDEN: Final = ROOT / "tests" / "golden"
_PAGES: Final = 9_000
"""A body that is more than two pages of the database."""
_FIRST: Final = 6


def _size(number: int) -> int:
    return _PAGES if number % 3 == 0 else 200


async def filled(folder: Path) -> None:
    """Make a log with a few events."""
    async with open_log(database(folder)) as log:
        await log.append(STREAM, [note(number, _size(number)) for number in range(1, _FIRST)], expect=Expect.any())


# ── creation: the log is made, and takes its first events ─────────────────────────────────────────────────────────────


async def _create(folder: Path, said: Said) -> None:
    async with opened(said, open_log(database(folder))) as log:
        for number in (1, 2):
            event = note(number, _size(number))
            await said.ask("append", log.append(STREAM, [event], expect=Expect.any()), ids=[event.event_id])


async def _audit(folder: Path, calls: Sequence[Call]) -> list[Wrong]:
    return await audit_log(database(folder), calls, _size)


CREATION: Final = Scenario("creation", "a log is created and takes events", nothing, _create, _audit)


# ── growth: transactions of several pages, WAL checkpoints between and at the end ─────────────────────────────────────


async def _grow(folder: Path, said: Said) -> None:
    with _small_wal():
        await _grow_beyond(folder, said)


@contextmanager
def _small_wal() -> Iterator[None]:
    """Have WAL checkpoints come early. The limits are the engine's own, which other scenarios have in this process."""
    before = WalCheckpoints.SOFT_LIMIT, WalCheckpoints.IDLE_LIMIT, WalCheckpoints.CUT_LIMIT
    WalCheckpoints.SOFT_LIMIT = 16 * 1024
    WalCheckpoints.IDLE_LIMIT = WalCheckpoints.CUT_LIMIT = 32 * 1024
    try:
        yield
    finally:
        WalCheckpoints.SOFT_LIMIT, WalCheckpoints.IDLE_LIMIT, WalCheckpoints.CUT_LIMIT = before


async def _grow_beyond(folder: Path, said: Said) -> None:
    async with opened(said, open_log(database(folder))) as log:
        for number in range(_FIRST, _FIRST + 4):
            event = note(number, _size(number))
            await said.ask("append", log.append(STREAM, [event], expect=Expect.any()), ids=[event.event_id])
        pair = [note(number, _size(number)) for number in (_FIRST + 4, _FIRST + 5)]
        asked = log.append(STREAM, pair, expect=Expect.any())
        await said.ask("append together", asked, ids=[event.event_id for event in pair])
        await said.ask("read", _count(log))


async def _count(log: EventReader) -> int:
    return len([event async for event in log.read(STREAM)])


async def _audit_growth(folder: Path, calls: Sequence[Call]) -> list[Wrong]:
    """Beside the usual: what a reader got was not less than what was acknowledged before."""
    wrong, known = [], _FIRST - 1
    for call in calls:
        known += len(call.ids) if call.told == "ok" and not call.is_second else 0
        if call.what == "read" and call.told == "ok" and call.facts["value"] < known:
            wrong.append(
                Wrong("I10", f"{known} events were stored and a reader got {call.facts['value']}, and no error")
            )
    return wrong + await _audit(folder, calls)


GROWTH: Final = Scenario("growth", "events are appended between WAL checkpoints", filled, _grow, _audit_growth)


# ── reading: nothing is written but what opening needs ────────────────────────────────────────────────────────────────


async def _read(folder: Path, said: Said) -> None:
    async with opened(said, open_log(database(folder), is_read_only=True)) as log:
        await said.ask("read", _count(log))
        await said.ask("find", _found(log))
        await said.ask("check", _checked(log))


async def _found(log: EventReader) -> int:
    return int(await log.find(note(2).event_id) is not None)


async def _checked(log: EventReader) -> int:
    page = await log.check_page(after=0)
    return page.events if not page.problems else -1


async def _audit_reading(folder: Path, calls: Sequence[Call]) -> list[Wrong]:
    expected = {"read": _FIRST - 1, "find": 1, "check": _FIRST - 1}
    return [
        Wrong("I10", f"{call.what} gave {call.facts['value']} instead of {expected[call.what]}, and no error")
        for call in calls
        if call.told == "ok" and call.what in expected and call.facts["value"] != expected[call.what]
    ] + await _audit(folder, calls)


READING: Final = Scenario("reading", "a log is opened for reading and read", filled, _read, _audit_reading)


# ── migration: a log of format 1 is brought to the current one ────────────────────────────────────────────────────────


async def _old(folder: Path) -> None:
    shutil.copy(_GOLDEN / "v1.db", database(folder))


async def _migrate(folder: Path, said: Said) -> None:
    async with opened(said, open_log(database(folder))) as log:
        event = note(1)
        await said.ask("append", log.append(STREAM, [event], expect=Expect.any()), ids=[event.event_id])


async def _audit_migration(folder: Path, calls: Sequence[Call]) -> list[Wrong]:
    wrong = await audit_log(database(folder), calls)
    golden = json.loads((_GOLDEN / "v1.json").read_text())["events"]
    async with open_log(database(folder), is_read_only=True) as log:
        leaves = [event.leaf.hex() async for event in log.read_all(limit=len(golden))]
    if leaves != [event["leaf"] for event in golden]:
        wrong.append(Wrong("I1", "the events of the older format are not what they were"))
    return wrong


MIGRATION: Final = Scenario("migration", "a log of format 1 is migrated", _old, _migrate, _audit_migration)
