"""A program with an action of its own, which a crash leaves unknown.

Each function runs in a child of its own; `EVENTLOG_FAILPOINT` says where that one dies.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import eventlog
from eventlog import Call, EventLogError
from eventlog.runtime.actions.function import FunctionAction
from eventlog.runtime.failpoints import crash_at, pass_by
from tools.campaigns.storage.log_files import open_file


async def resumes(path: str, promise: str, *run_ids: str) -> list[Any]:
    """Resume the runs one after the other; return what each came to, or the code of the error."""
    failpoint = os.environ.get("EVENTLOG_FAILPOINT")
    async with open_file(path, may_create=False) as log:
        reach = crash_at(failpoint) if failpoint else pass_by
        runner = eventlog.Runner(log, actions=[_letters(promise)], reach=reach)
        return [await _answer(runner, run_id) for run_id in run_ids]


async def resumes_and_waits(path: str, run_id: str) -> list[Any]:
    """Say READY in the middle of the effect, and finish it when told to."""
    async with open_file(path, may_create=False) as log:
        runner = eventlog.Runner(log, actions=[_letters("opaque", waits=True)])
        return [await _answer(runner, run_id)]


async def _answer(runner: eventlog.Runner, run_id: str) -> Any:
    try:
        outcome = await runner.resume(run_id)
    except EventLogError as error:
        return error.code
    return [outcome.result, outcome.value]


def _put_into(box: Path, letter: str) -> None:
    with box.open("a", encoding="utf-8") as letters:
        letters.write(letter + "\n")


def _letters(promise: str, *, waits: bool = False) -> FunctionAction:
    @eventlog.action("send_letter", promise=promise, key_lifetime_s=3600 if promise == "keyed" else None)
    async def send_letter(call: Call) -> dict[str, Any]:
        """Put a letter into a box that nobody can look into: one line, in the file that the run names."""
        if waits:
            print("READY", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
        await asyncio.to_thread(_put_into, Path(call.output), call.op_key)
        return {"attempt": call.attempt}

    return send_letter
