"""Resume: a run of 1000 events brought back to the state that its next step begins from."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Final

from eventlog import Runner
from tools.bench.cases.case import Case, Place
from tools.bench.cases.runs import LONG_RUN, write_long_run
from tools.bench.peers import OURS
from tools.bench.rounds import Side
from tools.bench.store import timed

__all__ = ["RESUME"]

_LANGGRAPH: Final = "langgraph"
_GROWN_TO: Final = 1000


@asynccontextmanager
async def _open(place: Place) -> AsyncIterator[list[Side]]:
    loads = place.scale.loads
    async with AsyncExitStack() as opened:
        sides = []
        for peer in place.peers:
            if peer.name == OURS:
                store = await place.enter(opened, peer)
                await write_long_run(store.log, place.scale.stream)
                sides.append(_milliseconds(OURS, loads, partial(_state, Runner(store.log), place.scale.stream)))
            if peer.name == _LANGGRAPH:
                saver = await place.enter(opened, peer)
                await saver.fill_growing(_GROWN_TO, first=_GROWN_TO - place.scale.checkpoints + 1)
                sides.append(_milliseconds(f"{_LANGGRAPH} aget_tuple", loads, saver.load_latest))
        yield sides


async def _state(runner: Runner, events: int) -> float:
    async def work() -> None:
        run = await runner.state(LONG_RUN)
        assert run.version == events, "the whole run was read"

    return await timed(work)


def _milliseconds(name: str, times: int, work: Callable[[], Awaitable[float]]) -> Side:
    async def measure() -> Mapping[str, float]:
        return {name: 1000 * sum([await work() for _ in range(times)]) / times}

    return Side(name, measure)


RESUME: Final = Case(
    name="resume",
    what="a run of 1000 events loaded, verified and folded; langgraph's latest of 1000 growing checkpoints",
    unit="ms",
    open=_open,
    warm_up=True,
)
