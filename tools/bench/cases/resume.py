"""Resume: a run of 1000 events brought back to the state that its next step begins from.

The run has done its steps and waits for a signal, so the log holds a snapshot of it; some events came in behind that.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Final

import eventlog
from eventlog import RunContext, Runner
from eventlog.events import run_stream
from eventlog.progress import fold_stream
from eventlog.stores import SqliteLog
from tools.bench.cases.case import Case, Place
from tools.bench.payloads import DICTS
from tools.bench.peers import LANGGRAPH, OURS
from tools.bench.rounds import Side
from tools.bench.store import timed

__all__ = ["AGET_TUPLE", "RESUME"]

AGET_TUPLE: Final = f"{LANGGRAPH} aget_tuple"
_GROWN_TO: Final = 1000
_TAIL: Final = 20
_AROUND: Final = 3
"""The events of such a run that are no steps: begun, claimed, paused."""
_RUN: Final = "long"


@asynccontextmanager
async def _open(place: Place) -> AsyncIterator[list[Side]]:
    loads = place.scale.loads
    async with AsyncExitStack() as opened:
        sides = []
        for peer in place.peers:
            if peer.name == OURS:
                log: SqliteLog = (await place.enter(opened, peer)).log
                runner = await _written(log, place.scale.stream)
                sides.append(_milliseconds(OURS, loads, partial(_state, runner, log)))
                sides.append(_milliseconds(f"{OURS}, without a snapshot", loads, partial(_folded, log)))
            if peer.name == LANGGRAPH:
                saver = await place.enter(opened, peer)
                await saver.fill_growing(_GROWN_TO, first=_GROWN_TO - place.scale.checkpoints + 1)
                sides.append(_milliseconds(AGET_TUPLE, loads, saver.load_latest))
        yield sides


async def _written(log: SqliteLog, events: int) -> Runner:
    """Write a run of so many events, the last of them behind its snapshot, and return what can resume it."""

    async def look_at_invoice(number: int) -> object:
        return DICTS[number % len(DICTS)]

    @eventlog.workflow(name="invoices", version="1")
    async def invoices(run: RunContext) -> None:
        for number in range(events - _AROUND - _TAIL):
            await run.step("look_at_invoice", look_at_invoice, number)
        await run.wait_for_signal("go_on")

    runner = Runner(log, workflows=[invoices])
    outcome = await runner.start(invoices, _RUN)
    for number in range(events - outcome.run.version):
        outcome = await runner.signal(_RUN, "note", number)
    assert outcome.run.version == events, "as many as are told of"
    assert await log.load_snapshot(run_stream(_RUN)) is not None, "a run that pauses leaves a snapshot"
    return runner


async def _state(runner: Runner, log: SqliteLog) -> float:
    """Load the run as a resume does, and see that nothing of it is missing."""

    version = 0

    async def work() -> None:
        nonlocal version
        version = (await runner.state(_RUN)).version

    seconds = await timed(work)
    slice_ = await log.read_stream(run_stream(_RUN), after=version)
    assert version > 0 and not slice_.events, "the whole run was read"
    return seconds


async def _folded(log: SqliteLog) -> float:
    async def work() -> None:
        fold_stream(_RUN, (await log.read_stream(run_stream(_RUN))).events)

    return await timed(work)


def _milliseconds(name: str, times: int, work: Callable[[], Awaitable[float]]) -> Side:
    async def measure() -> Mapping[str, float]:
        return {name: 1000 * sum([await work() for _ in range(times)]) / times}

    return Side(name, measure)


RESUME: Final = Case(
    name="resume",
    what="a run of 1000 events loaded from its snapshot, the events behind it verified and folded; langgraph's latest "
    "of 1000 growing checkpoints",
    unit="ms",
    open=_open,
    warm_up=True,
)
