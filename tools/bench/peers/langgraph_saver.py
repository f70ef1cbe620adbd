"""langgraph-checkpoint-sqlite: one step of a graph is a checkpoint and its writes, as langgraph makes them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from tools.bench.payloads import DICTS, taken
from tools.bench.pragmas import QUERIES, named
from tools.bench.store import Settings, at_once, timed

__all__ = ["LanggraphSaver", "open_store"]

_METADATA: Final = {"source": "loop", "step": 1, "parents": {}}


class LanggraphSaver:
    """A saver, and the last checkpoint of each thread."""

    def __init__(self, saver: Any) -> None:
        self._saver: Final = saver
        self._last: dict[str, Any] = {}

    async def settings(self) -> Settings:
        """Return what the saver's one connection says of itself."""
        answers = []
        for query in QUERIES:
            async with self._saver.conn.execute(query) as cursor:
                answers.append((await cursor.fetchone())[0])
        return named(*answers)

    async def append(self, *, tasks: int, each: int) -> float:
        """Save `each` steps of a thread a task."""

        async def work(number: int) -> None:
            for payload in taken(DICTS, each, first=number):
                await self._step(f"agent-{number}", payload, payload)

        return await at_once(tasks, work)

    async def fill_growing(self, checkpoints: int, *, first: int = 1) -> None:
        """Save checkpoints of one thread whose state is a list that grows by one payload each."""
        state = list(taken(DICTS, first - 1))
        for payload in taken(DICTS, checkpoints - first + 1):
            state.append(payload)
            await self._step("history", list(state), payload)

    async def load_latest(self) -> float:
        """Read the latest checkpoint of that thread, as a resume does."""
        return await timed(lambda: self._saver.aget_tuple(_config("history")))

    async def _step(self, thread: str, state: Any, written: Any) -> None:
        before = self._last.get(thread) or _config(thread)
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"state": state}
        checkpoint["channel_versions"] = {"state": 1}
        after = await self._saver.aput(before, checkpoint, _METADATA, {"state": 1})
        await self._saver.aput_writes(after, [("state", written)], "task-1")
        self._last[thread] = after


@asynccontextmanager
async def open_store(folder: Path) -> AsyncIterator[LanggraphSaver]:
    """Open a saver on a new file."""
    async with AsyncSqliteSaver.from_conn_string(str(folder / "langgraph.db")) as saver:
        await saver.setup()
        yield LanggraphSaver(saver)


def _config(thread: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
