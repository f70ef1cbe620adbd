"""The engine's workflows, through its public API: real steps, every hash, WAL and a sync for each commit."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import eventlog
from eventlog import Outcome, RunContext, Runner
from eventlog.runtime.definitions import Workflow
from eventlog.stores import SqliteLog
from tools.bench.peers.ours import open_log
from tools.bench.pragmas import read_back
from tools.bench.steps import Finished, Steps, run_at_once
from tools.bench.store import Settings

__all__ = ["OurWorkflows", "open_workflows", "require_completed", "workflow_of"]


class OurWorkflows:
    """A log. Each batch of workflows has ids of its own."""

    def __init__(self, log: SqliteLog) -> None:
        self.log: Final = log
        self._batches = 0

    async def settings(self) -> Settings:
        """Return what the writer's connection says of itself."""
        return await self.log.write_view(read_back)

    async def run_workflows(self, *, workflows: int, steps: int) -> Finished:
        """Start that many runs at once, and drive each until it ends."""
        self._batches += 1
        batch, work = self._batches, Steps()
        workflow = workflow_of(work)
        runner = Runner(self.log, workflows=[workflow])

        async def run(number: int) -> None:
            require_completed(await runner.start(workflow, f"batch-{batch}/{number}", number, steps), steps)

        finished = await run_at_once(workflows, run)
        work.require_once(workflows=workflows, steps=steps)
        return finished


def require_completed(outcome: Outcome, steps: int) -> None:
    """Raise ValueError unless the run has completed, and returned how many steps it did."""
    if (outcome.status, outcome.value) != ("COMPLETED", steps):
        raise ValueError(f"run {outcome.run_id} is {outcome.status} and returned {outcome.value!r}")


def workflow_of(work: Steps) -> Workflow:
    """Return a workflow that does so many steps of `work`, one after the other."""

    async def look_at_invoice(number: int, step: int) -> str:
        return await work.answer(number, step)

    @eventlog.workflow(name="invoices", version="1")
    async def invoices(run: RunContext, number: int, steps: int) -> int:
        for step in range(steps):
            await run.step("look_at_invoice", look_at_invoice, number, step)
        return steps

    made: Any = invoices
    assert isinstance(made, Workflow)
    return made


@asynccontextmanager
async def open_workflows(folder: Path) -> AsyncIterator[OurWorkflows]:
    """Open a log as every user gets it."""
    async with open_log(folder / "log.db") as log:
        yield OurWorkflows(log)
