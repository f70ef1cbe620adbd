"""People who decide at the same moment, in processes of their own: started by `tests/test_people.py`."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Sequence
from typing import Any

import eventlog
from eventlog.errors import Refused
from eventlog.log import Append, AppendResult, Expect, RunLog
from eventlog.stores import SqliteLog

__all__ = ["approves_one_in_threads", "decides_in_threads", "resumes"]


class _Gathered:
    """A log whose first append waits until everybody has read and decided: the tightest race there can be.

    One that `is_careless` does not expect the run to be where it was read, as the negative control.
    """

    def __init__(self, log: SqliteLog, barrier: threading.Barrier, *, is_careless: bool) -> None:
        self._log = log
        self._barrier = barrier
        self._is_careless = is_careless
        self._has_waited = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append_reserved(self, appends: Sequence[Append], **options: Any) -> list[AppendResult]:
        if not self._has_waited:
            self._has_waited = True
            await asyncio.to_thread(self._barrier.wait)
        if self._is_careless:
            appends = [Append(append.stream, append.events, Expect.exists()) for append in appends]
        return await self._log.append_reserved(appends, **options)


def decides_in_threads(path: str, run_id: str, proposal_hash: str, threads: str, care: str) -> list[Any]:
    """Let the threads of this process approve and reject one run by turns; return what each was told."""
    return _in_threads(path, run_id, proposal_hash, int(threads), is_careless=care == "careless", rejects=True)


def approves_one_in_threads(path: str, run_id: str, proposal_hash: str, threads: str, care: str) -> list[Any]:
    """Let the threads of this process approve one run, each as another person."""
    return _in_threads(path, run_id, proposal_hash, int(threads), is_careless=care == "careless", rejects=False)


async def resumes(path: str, run_id: str) -> str:
    """Resume a run in a program that has no policies, and return the status or the refusal."""
    async with eventlog.open(path) as log:
        try:
            return (await eventlog.Runner(log).resume(run_id)).status
        except Refused as error:
            return error.label


def _in_threads(
    path: str, run_id: str, proposal_hash: str, threads: int, *, is_careless: bool, rejects: bool
) -> list[Any]:
    process = sys.stdin.readline().strip()  # the name that the test has given to this process
    barrier = threading.Barrier(threads)
    told: list[Any] = []

    async def decide(number: int) -> None:
        async with eventlog.open(path, busy_timeout_s=30) as log:
            gathered: RunLog = _Gathered(log, barrier, is_careless=is_careless)
            runner = eventlog.Runner(gathered)
            command = runner.reject if rejects and number % 2 else runner.approve
            actor = f"{process}-{number}"
            try:
                await command(run_id, proposal_hash, actor=actor, reason=f"because of {actor}")
            except Refused as error:
                facts = [error.details.get(name) for name in ("existing_approval", "decided_by", "reason")]
                told.append([actor, error.code, *facts])
            else:
                told.append([actor, "decided", "reject" if command == runner.reject else "approve"])

    started = [threading.Thread(target=lambda n=number: asyncio.run(decide(n))) for number in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    return told
