"""A single effect that is performed, and then undone, by one process: the play about compensations and reconciling."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import eventlog
from eventlog import Append, AppendResult, Call
from eventlog.errors import OutcomeUnknown, Refused
from eventlog.run import Run, Status
from eventlog.runtime.attempts import AnyAction
from eventlog.runtime.failpoints import Reach
from eventlog.stores.sqlite import SqliteLog
from tools.campaigns.failpoints.site import Asked, lines, note

__all__ = ["undo"]

RUN: Final = "run-1"
_MAX_ROUNDS: Final = 20


async def undo(folder: Path, life: int, die_at: int | None, reach: Reach) -> int:
    """Order, cancel the order, and be the person who settles what nobody knows; return how many appends it took."""

    @eventlog.action("order", promise="opaque", compensation="cancel")
    async def order(call: Call) -> str:
        note(folder / "orders", call.op_key)
        return "ordered"

    actions: list[AnyAction] = [order, Asked("cancel", folder / "paint")]
    log = _MortalLog(str(folder / "log.db"), die_at)
    async with log:
        runner = eventlog.Runner(log, actions=actions, reach=reach)
        for _ in range(_MAX_ROUNDS):
            run = await _state(runner)
            if run is not None and run.status is Status.COMPENSATED:
                return log.appends
            await _go_on(runner, run, folder)
    raise AssertionError("the order is never cancelled")


async def _state(runner: eventlog.Runner) -> Run | None:
    try:
        return await runner.state(RUN)
    except Refused:
        return None


async def _go_on(runner: eventlog.Runner, run: Run | None, folder: Path) -> None:
    """Do the next thing that has to be done about a run."""
    proposal = eventlog.propose("order", {"parts": 3}, "shop")
    status = None if run is None else run.status
    try:
        match status:
            case None:
                await runner.propose(RUN, proposal)
            case Status.WAITING_FOR_USER:
                await runner.approve(RUN, proposal.hash)
            case Status.APPROVED:
                await runner.resume(RUN)
            case Status.OUTCOME_UNKNOWN:
                await _settle(runner, is_there=bool(lines(folder / "orders")))
            case _:
                await runner.compensate(RUN)
    except OutcomeUnknown:
        pass  # it is in the log, and the next round settles it


async def _settle(runner: eventlog.Runner, *, is_there: bool) -> None:
    """Be the person who looks at the receiver, and says what the order came to."""
    if is_there:
        await runner.reconcile(RUN, "executed", evidence="its line is there", result="ordered")
    else:
        version = (await runner.state(RUN)).version
        await runner.reconcile(RUN, "not_executed", evidence="its line is not there", at_version=version)


class _MortalLog(SqliteLog):
    """A log whose process dies behind its n-th append; in front of it if `die_at` is -n."""

    def __init__(self, path: str, die_at: int | None) -> None:
        super().__init__(path, actor="crash-test", durability="normal")
        self._die_at: Final = die_at
        self.appends = 0

    async def append_reserved(self, appends: Sequence[Append], **options: Any) -> list[AppendResult]:
        """Append, or die."""
        self._die_if(-(self.appends + 1))
        results = await super().append_reserved(appends, **options)
        self.appends += 1
        self._die_if(self.appends)
        return results

    def _die_if(self, number: int) -> None:
        if number == self._die_at:
            os.kill(os.getpid(), signal.SIGKILL)
