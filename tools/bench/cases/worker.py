"""One of several processes that drive the runs of one log until nothing is left to drive.

    python -m tools.bench.cases.worker FILE

It opens the log, prints a line, waits for one, and works. At the end it prints as JSON how often it did which step.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Final

from eventlog import Runner, Worker
from tools.bench.peers.our_workflows import workflow_of
from tools.bench.peers.ours import open_log
from tools.bench.steps import Steps

__all__ = ["main"]

CONCURRENT: Final = 50


async def main(path: str) -> None:
    """Take part in the work on one log."""
    work = Steps()
    async with open_log(Path(path)) as log:
        worker = Worker(Runner(log, workflows=[workflow_of(work)]), max_concurrent=CONCURRENT)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await worker.run(until_idle=True)
        print(json.dumps(work.counts()), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
