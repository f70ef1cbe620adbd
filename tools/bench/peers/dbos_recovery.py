"""DBOS killed in the middle of a workflow, and the process that goes on with it: see `cases/recovery.py`.

    python -m tools.bench.peers.dbos_recovery start|recover FILE STEPS

DBOS looks for what it has to recover when it is launched, and does so by its own settings, as they come.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Final

import pysqlite3
import pysqlite3.dbapi2

sys.modules["sqlite3"] = pysqlite3  # before anything imports the other SQLite
sys.modules["sqlite3.dbapi2"] = pysqlite3.dbapi2

from dbos import DBOS, SetWorkflowID

from tools.bench.steps import answer

__all__ = ["main"]

WORKFLOW_ID: Final = "long"


def main(do: str, path: str, steps: int) -> None:
    """Drive the workflow until its last step, which never returns."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever DBOS prints
    began = time.perf_counter()
    if do == "start":
        connection = pysqlite3.connect(path)
        connection.execute("PRAGMA journal_mode=wal").fetchone()
        connection.close()
    DBOS(config={"name": "bench", "system_database_url": f"sqlite:///{path}", "log_level": "ERROR"})
    done = 0

    async def look_at_invoice(number: int) -> str:
        nonlocal done
        if number == steps:
            seconds = time.perf_counter() - began
            answers.write(json.dumps({"done": done, "seconds": seconds}) + "\n")
            await asyncio.Event().wait()
        done += 1
        return answer(0, number)

    step = DBOS.step()(look_at_invoice)

    async def invoices() -> None:
        for number in range(steps + 1):
            await step(number)

    workflow = DBOS.workflow()(invoices)
    DBOS.launch()
    asyncio.run(_start(workflow) if do == "start" else asyncio.sleep(3600))


async def _start(workflow: object) -> None:
    assert callable(workflow)
    with SetWorkflowID(WORKFLOW_ID):
        await workflow()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
