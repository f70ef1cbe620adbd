"""One of several processes that write to one log as fast as they can.

    python -m tools.bench.cases.contender FILE STREAM SECONDS

It opens the log, prints a line, waits for one, and writes from several tasks, so that a commit is always waiting. At
the end it prints as JSON how many events it appended, how many appends failed, and the longest that one took.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any, Final

from eventlog import Expect
from eventlog.errors import StoreUnavailable
from eventlog.stores import SqliteLog
from tools.bench.payloads import STEPS
from tools.bench.peers.ours import open_log

__all__ = ["main"]

TASKS: Final = 10


async def main(path: str, stream: str, seconds: float) -> None:
    """Take part in one contest."""
    async with open_log(Path(path)) as log:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        end_s = time.monotonic() + seconds
        reports = await asyncio.gather(*(_write(log, f"{stream}-{task}", end_s) for task in range(TASKS)))
        print(json.dumps(_joined(reports)), flush=True)


async def _write(log: SqliteLog, stream: str, end_s: float) -> dict[str, Any]:
    appended = errors = 0
    worst_wait_s = 0.0
    while (began_s := time.monotonic()) < end_s:
        try:
            await log.append(stream, [STEPS[appended % len(STEPS)]], expect=Expect.at(appended))
            appended += 1
        except StoreUnavailable:
            errors += 1
        worst_wait_s = max(worst_wait_s, time.monotonic() - began_s)
    return {"appended": appended, "errors": errors, "worst_wait_s": worst_wait_s}


def _joined(reports: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "appended": sum(report["appended"] for report in reports),
        "errors": sum(report["errors"] for report in reports),
        "worst_wait_s": max(report["worst_wait_s"] for report in reports),
    }


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
