"""The process whose syncs are counted: it makes so many commits between two marks.

python -m tools.bench.durability_child STORE FOLDER COMMITS EVENTS
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from eventlog import Expect
from tools.bench.durability import BEGIN, CONTROL, END
from tools.bench.payloads import STEPS, taken
from tools.bench.peers import find
from tools.bench.peers.ours import Ours, open_with_normal_durability
from tools.bench.store import OpenStore

__all__ = ["main"]


async def main(name: str, folder: str, commits: int, events: int) -> None:
    """Commit `commits` times `events` events, with one task."""
    async with _opener(name)(Path(folder)) as store:
        await store.append(tasks=1, each=1)  # what is done once is done
        commit = _commits(store, commits, events)
        os.access(BEGIN, os.F_OK)
        await commit()
        os.access(END, os.F_OK)


def _opener(name: str) -> OpenStore:
    return open_with_normal_durability if name == CONTROL else find([name])[0].open()


def _commits(store: Any, commits: int, events: int) -> Callable[[], Any]:
    if events == 1:
        return partial(store.append, tasks=1, each=commits)
    assert isinstance(store, Ours), "only the engine is asked for batches"
    return partial(_append_batches, store, commits, events)


async def _append_batches(store: Ours, commits: int, events: int) -> None:
    steps = list(taken(STEPS, events))
    for _ in range(commits):
        await store.log.append("batches", steps, expect=Expect.any())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
