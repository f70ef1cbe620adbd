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


async def _answer(worker: _Worker, answers: Any) -> None:
    while line := await asyncio.to_thread(sys.stdin.readline):
        question = json.loads(line)
        answer = (
            worker.settings()
            if question["do"] == "settings"
            else await worker.append(question["tasks"], question["each"])
        )
        answers.write(json.dumps(answer) + "\n")


def _config(path: str) -> dict[str, Any]:
    return {
        "name": "bench",
        "system_database_url": f"sqlite:///{path}",
        "log_level": "ERROR",
        "scheduler_polling_interval_sec": _FAR_S,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
