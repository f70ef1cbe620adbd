"""Storage: what a run of many steps takes on the disk, and of twice as many, from files whose stores are closed.

The engine stores each output once; a graph whose state keeps all answers stores them again with every checkpoint.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import eventlog
from eventlog import RunContext, Runner
from tools.bench.cases.case import Case, Place
from tools.bench.cases.size import size_of
from tools.bench.peers import LANGGRAPH, OURS, Peer
from tools.bench.rounds import Side
from tools.bench.steps import Steps

__all__ = ["STORAGE", "measure_storage", "twice"]

SIZE_BYTES: Final = 1000


@asynccontextmanager
async def _open(place: Place) -> AsyncIterator[list[Side]]:
    works: dict[str, Callable[[Any, int], Awaitable[None]]] = {OURS: _run, LANGGRAPH: _invoke}
    peers = [peer for peer in place.peers if peer.name in works]
    yield [Side(peer.name, partial(measure_storage, place, peer, works[peer.name])) for peer in peers]


async def measure_storage(place: Place, peer: Peer, work: Callable[[Any, int], Awaitable[None]]) -> Mapping[str, float]:
    """Return the bytes that `work(store, steps)` takes, with once and twice the steps, and their ratio."""
    steps = place.scale.storage_steps
    empty = await _size(place, peer, work, 0)
    once, double = [await _size(place, peer, work, count) - empty for count in (steps, 2 * steps)]
    return {
        f"{peer.name}, {steps} steps: bytes": once,
        f"{peer.name}, {2 * steps} steps: bytes": double,
        twice(peer.name): double / once,
    }


def twice(name: str) -> str:
    """Return what the ratio of a side is called."""
    return f"{name}, twice the steps ÷ once"


async def _size(place: Place, peer: Peer, work: Callable[[Any, int], Awaitable[None]], steps: int) -> int:
    """Return the bytes of the files of one run of so many steps, without a run if there are none."""
    folder: Path = place.folder_for(f"{peer.name} {steps}")
    async with peer.open_workflows()(folder) as runs:
        place.settings[peer.name] = await runs.settings()
        if steps:
            await work(runs, steps)
    return size_of(folder)


async def _run(ours: Any, steps: int) -> None:
    work = Steps(SIZE_BYTES)

    async def look_at_invoice(number: int) -> str:
        return await work.answer(0, number)

    @eventlog.workflow(name="invoices", version="1")
    async def invoices(run: RunContext) -> None:
        for number in range(steps):
            await run.step("look_at_invoice", look_at_invoice, number)

    outcome = await Runner(ours.log, workflows=[invoices]).start(invoices, "long")
    assert outcome.status == "COMPLETED", "nothing can go wrong in it"
    work.require_once(workflows=1, steps=steps)


async def _invoke(graphs: Any, steps: int) -> None:
    await graphs.keep_all(steps=steps, size_bytes=SIZE_BYTES)


STORAGE: Final = Case(
    name="storage",
    what="a run of steps of 1 kB each, once and with twice the steps, less the bytes of an empty store",
    unit="",
    open=_open,
    rounds=lambda _: 1,
)
