"""Which events an erasure is about, and that no run goes on from them any more.

A run is erased with the runs that it has started for itself, at any depth, and with the event by which the run that
started it was told what it has come to: those hold copies. A run that another one was handed off to is a run of its
own, and is only named.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from eventlog.decide import check_run_id, require_run
from eventlog.errors import InvalidInput, LogCorrupt, Misuse, Refused
from eventlog.events import RUN_PREFIX, ChildFinished, Status, run_stream
from eventlog.log import Expect
from eventlog.progress import fold_stream, requests_of
from eventlog.run import Run
from eventlog.stores.requests import check_position
from eventlog.stores.sqlite import SqliteLog
from eventlog.stores.sqlite.erasable import PlacedEvent, events_at, events_of_stream

__all__ = ["Scope", "require_over", "scope_of_positions", "scope_of_run", "scope_of_stream"]

_OVER: Final = frozenset(
    {Status.COMPLETED, Status.CANCELLED, Status.COMPENSATED, Status.EXPIRED, Status.FAILED, Status.REJECTED}
)


class Scope(msgspec.Struct, frozen=True):
    """The events to erase by position, and the runs they are of. `handed_on` are runs that were only handed the work.

    `versions` are those at which the runs were found to have ended, by stream.
    """

    events: tuple[PlacedEvent, ...]
    versions: dict[str, int] = {}
    handed_on: tuple[str, ...] = ()

    @property
    def positions(self) -> tuple[int, ...]:
        """All positions, those that are erased already among them."""
        return tuple(event.position for event in self.events)

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams of the events, in the order in which they come."""
        return tuple(dict.fromkeys(event.stream for event in self.events))

    @property
    def already(self) -> int:
        """How many of the events are erased already."""
        return sum(event.is_erased for event in self.events)

    @property
    def checks(self) -> list[tuple[str, Expect]]:
        """What has to hold still when they are erased: that no run has gone on."""
        return [(stream, Expect.at(version)) for stream, version in self.versions.items()]

    @property
    def artifacts(self) -> frozenset[str]:
        """The artifacts that events name which are not erased yet."""
        return frozenset(event.artifact for event in self.events if event.artifact is not None)

    @property
    def held(self) -> frozenset[tuple[str, str]]:
        """The stored type and the stream of each event: what a view may have selected."""
        return frozenset((event.type, event.stream) for event in self.events)


async def scope_of_positions(log: SqliteLog, positions: Iterable[int]) -> Scope:
    """Return these events. Raises InvalidInput for one that the log has not, Misuse(`not_erasable`), `run_open`."""
    wanted = sorted({check_position(position, "position") for position in positions})
    events = await log.look(events_at, wanted)
    missing = set(wanted) - {event.position for event in events}
    if missing or not wanted:
        which = f"no event at position {min(missing)}" if missing else "to be told at least one position"
        raise InvalidInput("invalid_argument", f"the log has {which}" if missing else f"an erasure has {which}")
    return Scope(tuple(events), await require_over(log, dict.fromkeys(event.stream for event in events)))


async def scope_of_stream(log: SqliteLog, stream: str) -> Scope:
    """Return all events of a stream; one of a run is erased as `scope_of_run` says. Raises InvalidInput, as above."""
    if stream.startswith(RUN_PREFIX):
        return await scope_of_run(log, stream.removeprefix(RUN_PREFIX))
    events = await log.look(events_of_stream, stream)
    if not events:
        raise InvalidInput("invalid_argument", f"the log has no stream {stream!r}")
    return Scope(tuple(events), await require_over(log, [stream]))


async def scope_of_run(log: SqliteLog, run_id: str) -> Scope:
    """Return the events of a run and of what it has started. Raises Refused (`unknown_run`, `run_open`)."""
    run = await _run(log, check_run_id(run_id))
    require_run(run)
    family, handed_on = [run], list[str]()
    for each in family:  # grows while it is gone through
        children = each.progress.children.values() if each.progress is not None else ()
        for child in children:
            if child.relation == "child":
                found = await _run(log, child.run_id)
                family += [found] if found.version else []
            else:
                handed_on.append(child.run_id)
    told = await _told_of(log, run)
    streams = [run_stream(each.run_id) for each in family]
    versions = await require_over(log, [*streams, *dict.fromkeys(event.stream for event in told)])
    events = [event for stream in streams for event in await log.look(events_of_stream, stream)]
    return Scope(tuple(sorted([*events, *told], key=_by_position)), versions, tuple(handed_on))


async def require_over(log: SqliteLog, streams: Iterable[str]) -> dict[str, int]:
    """Return the versions of those of these streams that are of runs; all of them have ended.

    Raises Refused(`run_open`) for one that has not: it goes on from its events. Misuse(`not_erasable`) for a stream
    about the log itself.
    """
    versions = {}
    for stream in streams:
        if stream.startswith("$"):
            message = f"the stream {stream!r} is about the log itself, and what is proved needs it"
            raise Misuse("not_erasable", message, stream=stream)
        if stream.startswith(RUN_PREFIX):
            run = await _run(log, stream.removeprefix(RUN_PREFIX))
            if not _is_over(run):
                message = f"the run {run.run_id!r} has not ended ({run.status.value}); nothing was erased"
                raise Refused("run_open", message, subject=run.run_id, run_id=run.run_id, status=run.status.value)
            versions[stream] = run.version
    return versions


def _is_over(run: Run) -> bool:
    """Say whether nothing of the run is under way, or left for a person to settle."""
    return run.status in _OVER and all(
        request.open_intent is None and request.status is not Status.OUTCOME_UNKNOWN for request in requests_of(run)
    )


async def _told_of(log: SqliteLog, run: Run) -> Sequence[PlacedEvent]:
    """Return the events by which the run that started this one was told of its end."""
    parent = run.progress.parent if run.progress is not None else None
    if parent is None:
        return []
    told = [
        event.position
        for event in (await log.read_stream(run_stream(parent.run_id))).events
        if isinstance(event.data, ChildFinished) and event.data.child_run_id == run.run_id
    ]
    return await log.look(events_at, told)


async def _run(log: SqliteLog, run_id: str) -> Run:
    stream = run_stream(run_id)
    try:
        return fold_stream(run_id, (await log.read_stream(stream)).events)
    except InvalidInput as error:
        raise LogCorrupt("event_malformed", str(error), stream=stream) from error


def _by_position(event: PlacedEvent) -> int:
    return event.position
