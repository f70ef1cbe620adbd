"""What must be true of a log whose writers were killed, and is looked at behind each kill."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import eventlog
from eventlog import RecordedEvent
from eventlog.errors import EventLogError
from eventlog.merkle import Frontier
from eventlog.stores import SqliteLog
from tools.campaigns.kills.writers import Acknowledged

__all__ = ["Audited", "Fault", "audit", "faults_of_groups"]


class Fault(NamedTuple):
    """An invariant that the log contradicts, and how."""

    invariant: str
    what: str


@dataclass(frozen=True, slots=True)
class Audited:
    """The end of the log, and what is wrong in the part that was looked at."""

    head: int
    faults: list[Fault]


async def audit(path: Path, acknowledged: Sequence[Acknowledged], *, after: int, head: int) -> Audited:
    """Look at the events behind position `after`, which was an end of a group; the log had `head` events at least.

    What was `acknowledged` lies behind `after`. With `after` 0, the tree and the database are looked at as well.
    """
    try:
        async with eventlog.open(path) as log:
            return await _audit(log, acknowledged, after, head)
    except EventLogError as error:
        return Audited(head, [Fault("I10", f"the log cannot be read: {error.code}: {error}")])


async def _audit(log: SqliteLog, acknowledged: Sequence[Acknowledged], after: int, head: int) -> Audited:
    end = (await log.head()).position
    if end < head:
        return Audited(end, [Fault("I1", f"the log ends at {end}, and had {head} events")])
    page = await log.check_page(after=after, limit=end - after + 1)
    faults = [Fault("I2", problem.message) for problem in page.problems]
    if page.position != end or page.events != end - after:
        faults.append(
            Fault("I2", f"{page.events} events lie between {after} and {end}, the check ends at {page.position}")
        )
    size, _ = await log.tree_state()
    if size != end:
        faults.append(Fault("I2", f"the log ends at {end}, its tree at {size}"))
    events = [event async for event in log.read_all(after=after)]
    faults += faults_of_groups(events, acknowledged)
    return Audited(end, faults if after else [*faults, *await _faults_of_whole(log, events)])


async def _faults_of_whole(log: SqliteLog, events: Iterable[RecordedEvent]) -> list[Fault]:
    faults = []
    tree = Frontier()
    tree.extend(event.leaf for event in events)
    if await log.tree_state() != (tree.size, tree.to_bytes()) or (await log.tree_head()).root != tree.root():
        faults.append(Fault("I2", "the tree is not that of the leaves"))
    damage = await log.read_view(_integrity)
    if damage != "ok":
        faults.append(Fault("I10", f"integrity_check: {damage}"))
    return faults


def _integrity(connection: Any) -> str:
    return str(connection.execute("PRAGMA integrity_check").fetchone()[0])


def faults_of_groups(events: Iterable[RecordedEvent], acknowledged: Iterable[Acknowledged]) -> list[Fault]:
    """Find acknowledged groups that are lost or moved, groups that are half there, torn apart, or there twice."""
    groups: dict[str, list[RecordedEvent]] = {}
    for event in events:
        if event.type != "noted":
            continue  # a barrier, which the engine has set behind a commit that proved nothing
        groups.setdefault(event.data["group"], []).append(event)
    faults = []
    for name, group in groups.items():
        first = group[0]
        expected = [(first.position + index, first.version + index, index) for index in range(first.data["of"])]
        if [(event.position, event.version, event.data["index"]) for event in group] != expected:
            faults.append(Fault("I4", f"half there: of group {name} {len(group)} of {len(expected)} are in a row"))
    for told in acknowledged:
        found = groups.get(told.group)
        if found is None:
            faults.append(Fault("I1", f"lost: the group {told.group} was acknowledged, and is not stored"))
        elif (found[0].position, found[-1].version, len(found)) != (told.first_position, told.version, told.size):
            faults.append(Fault("I1", f"moved: {told} was acknowledged, and it begins at {found[0].position}"))
    return faults
