"""The process that DBOS runs in: questions come in and answers go out as lines of JSON, until the input ends.

python -m tools.bench.peers.dbos_child FILE delete|wal
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any, Final

import pysqlite3
import pysqlite3.dbapi2

sys.modules["sqlite3"] = pysqlite3  # before anything imports the other SQLite
sys.modules["sqlite3.dbapi2"] = pysqlite3.dbapi2

from dbos import DBOS

_FAR_S: Final = 3600.0


async def step(payload: Any) -> Any:
    """Return what is to be recorded."""
    return payload


def main(path: str, journal_mode: str) -> None:
    """Start DBOS on a file in this journal mode, answer questions, and stop it."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever DBOS prints
    connection = pysqlite3.connect(path)
    connection.execute(f"PRAGMA journal_mode={journal_mode}").fetchone()
    connection.close()
    dbos = DBOS(config=_config(path))
    worker = _Worker(dbos)
    DBOS.launch()
    try:
        asyncio.run(_answer(worker, answers))
    finally:
        DBOS.destroy()


class _Worker:
    def __init__(self, dbos: Any) -> None:
        self._dbos = dbos
        recorded = DBOS.step()(step)

        async def workflow(payloads: list[Any]) -> None:
            for payload in payloads:
                await recorded(payload)

        self._workflow = DBOS.workflow()(workflow)
        self._work: Any = None

        async def answer(number: int, at: int) -> str:
            text: str = await self._work.answer(number, at)
            return text

        answered = DBOS.step()(answer)

        async def invoices(number: int, steps: int) -> int:
            for at in range(steps):
                await answered(number, at)
            return steps

        self._invoices = DBOS.workflow()(invoices)

    def settings(self) -> dict[str, str]:
        from tools.bench.pragmas import QUERIES, named

        with self._dbos._sys_db.engine.connect() as connection:
            found = named(*(connection.exec_driver_sql(query).fetchone()[0] for query in QUERIES))
        return {**found, "sqlite": pysqlite3.sqlite_version}

    async def append(self, tasks: int, each: int) -> float:
        from tools.bench.payloads import DICTS, taken

        prepared = [list(taken(DICTS, each, first=number)) for number in range(tasks)]
        began = time.perf_counter()
        await asyncio.gather(*(self._workflow(payloads) for payloads in prepared))
        return time.perf_counter() - began

    async def run_workflows(self, workflows: int, steps: int) -> dict[str, Any]:
        from tools.bench.steps import Steps, run_at_once

        self._work = Steps()

        async def run(number: int) -> None:
            if await self._invoices(number, steps) != steps:
                raise ValueError(f"workflow {number} did not come to its end")

        finished = await run_at_once(workflows, run)
        self._work.require_once(workflows=workflows, steps=steps)
        return {"seconds": finished.seconds, "each_s": finished.each_s}


async def _answer(worker: _Worker, answers: Any) -> None:
    while line := await asyncio.to_thread(sys.stdin.readline):
        question = json.loads(line)
        answers.write(json.dumps(await _answer_to(worker, question)) + "\n")


async def _answer_to(worker: _Worker, question: dict[str, Any]) -> Any:
    match question["do"]:
        case "settings":
            return worker.settings()
        case "append":
            return await worker.append(question["tasks"], question["each"])
        case asked:
            assert asked == "workflows"
            return await worker.run_workflows(question["workflows"], question["steps"])


def _config(path: str) -> dict[str, Any]:
    return {
        "name": "bench",
        "system_database_url": f"sqlite:///{path}",
        "log_level": "ERROR",
        "scheduler_polling_interval_sec": _FAR_S,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
