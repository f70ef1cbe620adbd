"""Rebuild: the view `runs` made anew from the whole log, by opening the log with a view that it does not have yet."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import eventlog
from projections import runs_view
from tools.bench.cases.case import Case, Place, rate
from tools.bench.cases.runs import EVENTS_OF_A_RUN, write_runs
from tools.bench.peers import OURS
from tools.bench.peers.ours import open_log
from tools.bench.rounds import Side
from tools.bench.store import timed

__all__ = ["FEED_OF_EVENTSOURCING", "REBUILD"]

FEED_OF_EVENTSOURCING: Final = "eventsourcing feed"
_EVENTSOURCING: Final = "eventsourcing"


@asynccontextmanager
async def _open(place: Place) -> AsyncIterator[list[Side]]:
    events = place.scale.runs * EVENTS_OF_A_RUN
    async with AsyncExitStack() as opened:
        sides = []
        for peer in place.peers:
            if peer.name == OURS:
                path = place.folder_for(OURS) / "log.db"
                async with open_log(path) as log:
                    await write_runs(log, place.scale.runs)
                sides.append(rate(OURS, events, partial(_rebuild, path, place.scale.runs)))
            if peer.name == _EVENTSOURCING:
                recorder = await place.enter(opened, peer)
                recorder.fill_feed(place.scale.feed)
                sides.append(rate(FEED_OF_EVENTSOURCING, place.scale.feed, recorder.read_feed))
        yield sides


async def _rebuild(path: Path, runs: int) -> float:
    async def work() -> None:
        async with eventlog.open(path, views=[runs_view()], busy_timeout_s=600) as log:
            await log.head()

    seconds = await timed(work)
    async with open_log(path) as log:
        assert await log.read_view(_count) == runs, "the view has a row for each run"
        await log.write_view(_drop)
    return seconds


def _count(connection: sqlite3.Connection) -> int:
    count: int = connection.execute("SELECT count(*) FROM runs").fetchone()[0]
    return count


def _drop(connection: sqlite3.Connection) -> None:
    connection.execute("DROP TABLE runs")
    connection.execute("DELETE FROM views")


REBUILD: Final = Case(
    name="rebuild",
    what="the view of runs made anew from the whole log, with its file opened",
    unit="events/s",
    open=_open,
)
