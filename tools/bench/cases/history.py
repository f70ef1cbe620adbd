"""History: batches of 1000 events over the 1000 newest streams, in a log without history and in one with a long one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Final

from eventlog import Append, Expect
from eventlog.stores import SqliteLog
from tools.bench.cases.case import Case, Place, rate
from tools.bench.payloads import STEPS, taken
from tools.bench.peers import OURS
from tools.bench.peers.ours import Ours, open_log
from tools.bench.rounds import Side

__all__ = ["AT_NONE", "HISTORY", "WITH_HISTORY"]

AT_NONE: Final = "eventlog, no history"
WITH_HISTORY: Final = "eventlog, with history"
_STREAMS: Final = 1000
_EVENTS_OF_A_STREAM: Final = 100
_STREAMS_A_CALL: Final = 10


@asynccontextmanager
async def _open(place: Place) -> AsyncIterator[list[Side]]:
    async with AsyncExitStack() as opened:
        if place.find(OURS) is None:
            yield []
            return
        sides = []
        for name, events in ((AT_NONE, 0), (WITH_HISTORY, place.scale.history)):
            log = await opened.enter_async_context(open_log(place.folder_for(name) / "log.db"))
            streams = await _fill(log, events)
            newest = [f"agent-{number}" for number in range(max(0, streams - _STREAMS), max(streams, _STREAMS))]
            work = partial(Ours(log).append_rounds, newest, batches=place.scale.history_batches)
            sides.append(rate(name, place.scale.history_batches * _STREAMS, work))
        yield sides


async def _fill(log: SqliteLog, events: int) -> int:
    """Append this many events to streams that come one after the other; return how many streams that makes."""
    streams = events // _EVENTS_OF_A_STREAM
    steps = list(taken(STEPS, _EVENTS_OF_A_STREAM))
    for first in range(0, streams, _STREAMS_A_CALL):
        numbers = range(first, min(streams, first + _STREAMS_A_CALL))
        await log.append_many([Append(f"agent-{number}", steps, Expect.no_stream()) for number in numbers])
    return streams


HISTORY: Final = Case(
    name="history",
    what="batches of 1000 over the 1000 newest streams, with and without a long history",
    unit="events/s",
    open=_open,
    warm_up=True,
)
