"""A crowd of subscribers in a process of its own, while another process writes.

    python -m tools.bench.cases.audience FILE SIZE

It prints a line once all have caught up, reads one that says as JSON what was written, and prints another one when
everybody who is quick has been given that.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from tools.bench.crowd import Crowd
from tools.bench.peers.ours import open_log

__all__ = ["main"]


async def main(path: str, size: int) -> None:
    """Follow one log."""
    async with open_log(Path(path)) as log, Crowd(log, size).watching() as crowd:
        print("ready", flush=True)
        written = json.loads(await asyncio.to_thread(sys.stdin.readline))
        await crowd.until_served(written)
        print("served", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
