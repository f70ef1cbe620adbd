"""Rebuild: a view of six columns built again from the whole log, by one process and by two.

Beside that the whole notification feed of `eventsourcing` is read and decoded, which is what its projections do before
they fold anything, and the rows of the log are fetched by the driver alone, which nothing in Python can outrun.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Final

from projections import SqliteView, rebuild_in_ranges, rebuild_view
from tools.bench.cases.case import Case, Place, rate
from tools.bench.cases.steps_view import EVENTS_OF_AN_AGENT, StepsOfAgents, write_steps
from tools.bench.peers import OURS
from tools.bench.peers.ours import open_log
from tools.bench.rounds import Side

__all__ = ["BY_TWO", "FEED_OF_EVENTSOURCING", "REBUILD", "fetch_rows", "rebuild"]

FEED_OF_EVENTSOURCING: Final = "eventsourcing feed"
BY_TWO: Final = "eventlog, two processes"
BY_THE_DRIVER: Final = "the driver alone, six columns"
_EVENTSOURCING: Final = "eventsourcing"
_FETCH: Final = "SELECT position, stream_id, version, type_id, recorded_at_us, CAST(body AS BLOB) FROM events"


@asynccontextmanager
async def _open(place: Place) -> AsyncIterator[list[Side]]:
    events = place.scale.rebuilt
    async with AsyncExitStack() as opened:
        sides = []
        for peer in place.peers:
            if peer.name == OURS:
                path = place.folder_for(OURS) / "log.db"
                async with open_log(path) as log:
                    await write_steps(log, events)
                sides.append(rate(OURS, events, partial(rebuild, path, events, processes=1)))
                sides.append(rate(BY_TWO, events, partial(rebuild, path, events, processes=2)))
                sides.append(rate(BY_THE_DRIVER, events, partial(fetch_rows, path)))
            if peer.name == _EVENTSOURCING:
                recorder = await place.enter(opened, peer)
                recorder.fill_feed(place.scale.rebuilt)
                sides.append(rate(FEED_OF_EVENTSOURCING, place.scale.rebuilt, recorder.read_feed))
        yield sides


async def rebuild(path: Path, events: int, *, processes: int) -> float:
    """Build the view again, exchange it, and return the seconds that took."""
    view = SqliteView(StepsOfAgents())
    async with open_log(path) as log:
        if processes == 1:
            rebuilt = await rebuild_view(log, view)
        else:
            rebuilt = await rebuild_in_ranges(log, view, processes=processes)
        assert (rebuilt.events, rebuilt.outcome) == (events, "exchanged")
        assert await log.look(view.count) == events // EVENTS_OF_AN_AGENT, "the view has a row for each agent"
    return rebuilt.seconds


async def fetch_rows(path: Path) -> float:
    """Fetch the rows of the log with nothing but the driver, and return the seconds that took."""
    began_s = time.perf_counter()
    with closing(sqlite3.connect(path)) as connection:
        for _ in connection.execute(_FETCH):
            pass
    return time.perf_counter() - began_s


REBUILD: Final = Case(
    name="rebuild",
    what="a view of six columns built again from the whole log",
    unit="events/s",
    open=_open,
)
