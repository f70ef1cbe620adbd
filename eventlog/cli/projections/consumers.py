"""How the consumers of a log are: up to where each has handled the events, and whether somebody runs it."""

from __future__ import annotations

import os
from typing import Any, Literal

import msgspec

from eventlog.cli.options import Options
from eventlog.cli.projections.place import place_of_views
from eventlog.stores import SqliteLog
from eventlog.stores.sqlite.saved_positions import SavedPosition, positions_at, saved_positions
from projections.consumers import consumer_lock
from projections.sqlite_views.build_lock import is_held

__all__ = ["ConsumerState", "consumer_document", "consumers_of"]

Condition = Literal["running", "ok", "behind", "ahead", "of_another_log"]


class ConsumerState(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer in the database `place`: `running`, or with nobody at work and at the end of the log, or behind it."""

    name: str
    place: str
    condition: Condition
    position: int
    head: int

    @property
    def behind(self) -> int:
        """How many positions it is behind the end of the log; it may be that it wants nothing of what is there."""
        return self.head - self.position


async def consumers_of(options: Options, log: SqliteLog) -> list[ConsumerState]:
    """Return the consumers of the log's own database, and those of the one that `--into` names, if there is one."""
    head = (await log.head()).position
    found = [_state(log, log.place, each, head) for each in await log.look(saved_positions)]
    path = place_of_views(options, log)
    if path is not None and os.path.exists(path):
        place = os.path.realpath(path)
        found += [_state(log, place, each, head) for each in await positions_at(place)]
    return found


def consumer_document(state: ConsumerState) -> dict[str, Any]:
    """Return the state as JSON has it."""
    return {**msgspec.to_builtins(state), "behind": state.behind}


def _state(log: SqliteLog, place: str, saved: SavedPosition, head: int) -> ConsumerState:
    return ConsumerState(
        name=saved.name,
        place=place,
        condition=_condition(log, place, saved, head),
        position=saved.position,
        head=head,
    )


def _condition(log: SqliteLog, place: str, saved: SavedPosition, head: int) -> Condition:
    if saved.store_id != log.store_id:
        return "of_another_log"
    if is_held(place, consumer_lock(saved.name)):
        return "running"
    return "ahead" if saved.position > head else "behind" if saved.position < head else "ok"
