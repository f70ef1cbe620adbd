"""Size: what an event costs on the disk beyond its body, from files whose stores are closed."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Final

from tools.bench.cases.case import Case, Place
from tools.bench.payloads import COUNT, MEAN_BYTES
from tools.bench.peers import Peer
from tools.bench.rounds import Side

__all__ = ["SIZE", "size_of"]

_TASKS: Final = 5


@asynccontextmanager
async def _open(place: Place) -> AsyncIterator[list[Side]]:
    yield [Side(peer.name, partial(_measure, place, peer)) for peer in place.peers]


async def _measure(place: Place, peer: Peer) -> Mapping[str, float]:
    each = COUNT * max(1, round(place.scale.size_repetitions * peer.pace))  # so that the bodies have their average
    empty, full = place.folder_for(f"{peer.name} empty"), place.folder_for(f"{peer.name} full")
    async with peer.open()(empty):
        pass
    async with peer.open()(full) as store:
        place.settings[peer.name] = await store.settings()
        await store.append(tasks=_TASKS, each=each)
    return {peer.name: (size_of(full) - size_of(empty)) / (_TASKS * each) - MEAN_BYTES}


def size_of(folder: Path) -> int:
    """Return the bytes of all files of a store that is closed, snapshots and large values with them."""
    for path in folder.glob("*.db"):
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # not every library empties its write-ahead log
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


SIZE: Final = Case(
    name="size",
    what="bytes on the disk for an event, less its body of 461 bytes",
    unit="bytes/event",
    open=_open,
    rounds=lambda _: 1,
)
