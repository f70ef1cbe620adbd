"""The process that is killed in the middle of a run, and the one that goes on with it: see `cases/recovery.py`.

python -m tools.bench.peers.our_recovery start|recover FILE STEPS
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Final

import eventlog
from eventlog import RunContext, Runner
from tools.bench.peers.ours import open_log
from tools.bench.steps import answer

__all__ = ["main"]

RUN: Final = "long"


async def main(do: str, path: str, steps: int) -> None:
    """Drive the run until its last step, which never returns."""
    began = time.perf_counter()
    done = 0

    async def look_at_invoice(number: int) -> str:
        nonlocal done
        if number == steps:
            seconds = time.perf_counter() - began
            print(json.dumps({"done": done, "seconds": seconds}), flush=True)
            await asyncio.Event().wait()
        done += 1
        return answer(0, number)

    @eventlog.workflow(name="invoices", version="1")
    async def invoices(run: RunContext) -> None:
        for number in range(steps + 1):
            await run.step("look_at_invoice", look_at_invoice, number)

    async with open_log(Path(path)) as log:
        runner = Runner(log, workflows=[invoices])
        await (runner.start(invoices, RUN) if do == "start" else runner.resume(RUN))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
