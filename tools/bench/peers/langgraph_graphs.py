"""langgraph: a StateGraph of one node a step. An AsyncSqliteSaver writes each checkpoint before the next node."""

from __future__ import annotations

import operator
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final, TypedDict

from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph

from tools.bench.pragmas import QUERIES, named
from tools.bench.steps import Finished, Steps, run_at_once
from tools.bench.store import Settings

__all__ = ["LanggraphGraphs", "open_graphs"]

_DURABILITY: Final = "sync"


class _Last(TypedDict):
    """The state that is the lightest for langgraph: of all answers it keeps the last."""

    workflow: int
    answer: str


class _All(TypedDict):
    """The state of an agent that keeps what its steps have answered."""

    workflow: int
    answer: Annotated[list[str], operator.add]


class LanggraphGraphs:
    """The graphs of one saver. Each batch of threads has ids of its own."""

    def __init__(self, saver: Any) -> None:
        self._saver: Final = saver
        self._batches = 0

    async def settings(self) -> Settings:
        """Return what the saver's one connection says of itself, and the durability that the graphs are run with."""
        answers = []
        for query in QUERIES:
            async with self._saver.conn.execute(query) as cursor:
                answers.append((await cursor.fetchone())[0])
        return {**named(*answers), "durability": _DURABILITY, "langgraph": version("langgraph")}

    async def run_workflows(self, *, workflows: int, steps: int) -> Finished:
        """Invoke the graph for that many threads at once. Its state keeps the last answer only."""
        work = Steps()
        graph = self._graph(work, steps, _Last)

        async def run(number: int) -> None:
            await self._invoke(graph, steps, {"workflow": number, "answer": ""}, number)

        self._batches += 1
        finished = await run_at_once(workflows, run)
        work.require_once(workflows=workflows, steps=steps)
        return finished

    async def keep_all(self, *, steps: int, size_bytes: int) -> None:
        """Invoke the graph for one thread, whose state keeps every answer, of so many bytes each."""
        self._batches += 1
        graph = self._graph(Steps(size_bytes), steps, _All)
        await self._invoke(graph, steps, {"workflow": 0, "answer": []}, 0)

    async def _invoke(self, graph: Any, steps: int, state: dict[str, Any], number: int) -> None:
        config = {"configurable": {"thread_id": f"batch-{self._batches}/{number}"}, "recursion_limit": steps + 1}
        await graph.ainvoke(state, config, durability=_DURABILITY)

    def _graph(self, work: Steps, steps: int, state: Any) -> Any:
        graph: Any = StateGraph(state)
        before = START
        for step in range(steps):
            name = f"look_at_invoice_{step}"
            graph.add_node(name, _node(work, step, is_list=state is _All))
            graph.add_edge(before, name)
            before = name
        graph.add_edge(before, END)
        return graph.compile(checkpointer=self._saver)


def _node(work: Steps, step: int, *, is_list: bool) -> Callable[[Any], Any]:
    async def node(state: Any) -> dict[str, Any]:
        answer = await work.answer(state["workflow"], step)
        return {"answer": [answer] if is_list else answer}

    return node


@asynccontextmanager
async def open_graphs(folder: Path) -> AsyncIterator[LanggraphGraphs]:
    """Open a saver on a new file."""
    async with AsyncSqliteSaver.from_conn_string(str(folder / "langgraph.db")) as saver:
        await saver.setup()
        yield LanggraphGraphs(saver)
