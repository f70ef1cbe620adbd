"""Where to decide instead, when a run asks nothing itself and waits for a run that it has started and that does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from eventlog.cli.wiring import read_run
from eventlog.decide import is_pending
from eventlog.errors import EventTypeUnknown, Refused
from eventlog.log import EventReader
from eventlog.progress import requests_of
from eventlog.run import Run
from projections import wanted_requests

__all__ = ["Place", "asked_elsewhere", "decide_there", "refuse_where_others_ask", "sends_there"]


class Place(NamedTuple):
    """A request of another run that waits for a decision."""

    run_id: str
    request_id: str

    def __str__(self) -> str:
        return f"waits for {self.run_id}: decide there ({self.request_id})"


async def asked_elsewhere(log: EventReader, run: Run) -> Sequence[Place]:
    """Return what the runs ask that this one waits for, and theirs; nothing if a decision is wanted on itself."""
    if _has_pending(run):
        return []
    found: list[Place] = []
    waiting = list(_awaited(run))
    while waiting:
        try:
            child, _ = await read_run(log, waiting.pop(0))
        except EventTypeUnknown:  # a newer program's run: nothing can be said about it here
            continue
        found += [Place(child.run_id, str(each.request_id)) for each in wanted_requests(child) if is_pending(each)]
        waiting += _awaited(child)
    return found


async def refuse_where_others_ask(log: EventReader, run: Run) -> Sequence[Place]:
    """Return where to decide instead. Raises Refused(`approval_not_pending`) for a run that never asked anything."""
    places = await asked_elsewhere(log, run)
    if places and not requests_of(run):
        raise _refused(run.run_id, places)
    return places


@asynccontextmanager
async def sends_there(log: EventReader, run_id: str) -> AsyncIterator[None]:
    """Say with a refusal that nothing waits for a decision where to decide instead."""
    try:
        yield
    except Refused as error:
        if error.code != "approval_not_pending":
            raise
        run, _ = await read_run(log, run_id)
        places = await asked_elsewhere(log, run)
        if not places:
            raise
        raise _refused(run_id, places, str(error)) from error


def decide_there(places: Sequence[Place]) -> str:
    """Return in words where to decide instead."""
    return "; ".join(map(str, places))


def _refused(run_id: str, places: Sequence[Place], why: str | None = None) -> Refused:
    said = why or f"run {run_id!r} has not asked for anything"
    return Refused(
        "approval_not_pending",
        f"{said}; it {decide_there(places)}",
        run_id=run_id,
        requests=[place.request_id for place in places],
    )


def _awaited(run: Run) -> Iterator[str]:
    """Give the runs that this one has started and whose end it waits for."""
    if run.progress is not None:
        yield from (
            child.run_id
            for child in run.progress.children.values()
            if child.relation == "child" and child.status is None
        )


def _has_pending(run: Run) -> bool:
    return any(map(is_pending, wanted_requests(run)))
