"""What is at work in a drive, what waits, and the pause that follows when all of it waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from eventlog.events import CheckpointSaved, Status, Waiting
from eventlog.run import Run
from eventlog.runtime.drive.checkpoints import Checkpoints, released
from eventlog.runtime.drive.replay import Replay
from eventlog.runtime.drive.suspension import Suspended, Suspension
from eventlog.runtime.session import Session

__all__ = ["Pauses", "Working"]

_TICKS: Final = 20
"""Turns of the loop after which code that was given something has asked for the next thing."""

_FREE: Final = Waiting(type="free", node_id="")
"""Waits for nothing but to be given free."""

_NEAR: Final = Waiting(type="near", node_id="")
"""A time that is waited for in memory."""

_STATUS_OF: Final = {"approval": Status.WAITING_FOR_USER, "outcome": Status.OUTCOME_UNKNOWN}


class _Moved(Exception):
    """Something has come while the pause was being written."""


class Working:
    """Counts what is at work. A class: every step enters it, and a generator would take several times as long."""

    __slots__ = ("_pauses",)

    def __init__(self, pauses: Pauses) -> None:
        self._pauses: Final = pauses

    def __enter__(self) -> None:
        self._pauses.begin_work()

    def __exit__(self, *_: object) -> None:
        self._pauses.end_work()


class Pauses:
    """Pauses the run that `session` holds once nothing of it is at work and something waits."""

    def __init__(
        self,
        session: Session,
        replay: Replay,
        checkpoints: Checkpoints,
        suspension: Suspension,
        *,
        patience_s: float,
    ) -> None:
        self._session: Final = session
        self._replay: Final = replay
        self._checkpoints: Final = checkpoints
        self._suspension: Final = suspension
        self._patience_s: Final = patience_s
        self.working: Final = Working(self)
        """Keeps the run from pausing, as a context, while something of it is at work."""
        self.is_stopping = False
        """Whether nothing new is to begin."""
        self.is_free = False
        """Whether the run was paused or given free, in the log."""
        self._active = 0
        self._moves = 0
        self._is_looking = False
        self._blocked: Final[dict[asyncio.Future[None], Waiting]] = {}
        self._pausing: asyncio.Task[None] | None = None
        suspension.on_suspend = self._unwind

    @property
    def tasks(self) -> tuple[asyncio.Task[None], ...]:
        """The pause that is being written."""
        return () if self._pausing is None else (self._pausing,)

    async def let_pass(self) -> None:
        """Wait for a pause that is being written: it may come to nothing. Raises Suspended if the run has paused."""
        while self._pausing is not None and not self._suspension.is_on:
            await asyncio.wait([self._pausing])
        self._suspension.require_off()

    # ── at work ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def is_at_work(self) -> bool:
        """Whether something of the run is at work."""
        return self._active > 0

    def note_move(self) -> None:
        """Note that the code has asked for something: it has not come to rest."""
        self._moves += 1

    def begin_work(self) -> None:
        """Count one more at work."""
        self._active += 1
        self._moves += 1

    def end_work(self) -> None:
        """Count one less, and see what has to follow."""
        self._active -= 1
        self._look()
        self._checkpoints.take_snapshot_if_far()

    # ── waiting ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def block(self, waiting: Waiting | None) -> None:
        """Wait until something has come that may be what `waiting` waits for; ask again then. Raises Suspended.

        A time that is near is waited for here; None waits for the run to be given free.
        """
        self._suspension.require_off()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        left_s = self._left_s(waiting)
        if left_s is not None:
            handle = asyncio.get_running_loop().call_later(left_s, _wake, future)
            try:
                with self.working:
                    self._blocked[future] = _NEAR
                    await future
            finally:
                handle.cancel()
                self._blocked.pop(future, None)
            return
        self._blocked[future] = waiting if waiting is not None else _FREE
        self._look()
        try:
            await future
        finally:
            self._blocked.pop(future, None)

    def _left_s(self, waiting: Waiting | None) -> float | None:
        """Return for how many seconds to wait here, None if the run is to pause instead."""
        if waiting is None or waiting.due_us is None or waiting.type == "approval" or self.is_stopping:
            return None
        left_s = self._session.until_s(waiting.due_us)
        return left_s if left_s <= self._patience_s else None

    def wake_all(self) -> None:
        """Let whoever waits look again: the run has changed."""
        self._moves += 1
        for future in list(self._blocked):
            _wake(future)

    def stop(self) -> None:
        """Let nothing new begin, and give the run free once nothing is at work."""
        self.is_stopping = True
        for future, waiting in list(self._blocked.items()):
            if waiting is _NEAR:
                _wake(future)
        self._look()

    def _unwind(self) -> None:
        for future in list(self._blocked):
            if not future.done():
                future.set_exception(Suspended())

    # ── coming to rest ───────────────────────────────────────────────────────────────────────────────────────────────

    def _look(self) -> None:
        """Look, some turns from now, whether the run has to pause."""
        if self._blocked and self._active == 0 and not self._is_looking and not self._suspension.is_on:
            self._is_looking = True
            asyncio.get_running_loop().call_soon(self._tick, self._moves, _TICKS)

    def _tick(self, moves: int, left: int) -> None:
        if self._active > 0 or self._suspension.is_on or not any(not future.done() for future in self._blocked):
            self._is_looking = False
        elif moves != self._moves:
            asyncio.get_running_loop().call_soon(self._tick, self._moves, _TICKS)
        elif left > 0:
            asyncio.get_running_loop().call_soon(self._tick, moves, left - 1)
        else:
            self._is_looking = False
            if self._pausing is None:
                self._pausing = asyncio.create_task(self._pause())

    async def _pause(self) -> None:
        if any(future.done() for future in self._blocked):  # something has come since: they look at it first
            self._pausing = None
            self._look()
            return
        if not self._replay.is_over and not self.is_stopping:
            await self._replay.end()
            self._pausing = None
            if not self._suspension.is_on:
                self.wake_all()
            return
        try:
            await self._checkpoints.write(self._pausing_checkpoint())
        except _Moved:
            self._pausing = None
            self.wake_all()
        except Exception as error:
            self._suspension.fatal = error
            self._suspension.suspend()
        else:
            self.is_free = True
            self._suspension.suspend()

    def _pausing_checkpoint(self) -> Callable[[Run], CheckpointSaved]:
        """Return what makes the checkpoint of the pause; it raises _Moved if something has come meanwhile."""
        changes = self._session.changes
        waits = tuple(wait for wait in self._blocked.values() if wait is not _FREE)
        is_free = len(waits) < len(self._blocked)

        def build(run: Run) -> CheckpointSaved:
            if self._session.changes != changes:
                raise _Moved
            if is_free or not waits:
                return released(run)
            return CheckpointSaved(
                status=_status_of(waits),
                state_version=run.state_version + 1,
                waiting=waits[0],
                also_waiting=waits[1:],
            )

        return build


def _status_of(waits: Sequence[Waiting]) -> Status:
    """Return the status of a run that waits for these: people are wanted for some, others come by themselves."""
    wanted = {_STATUS_OF.get(wait.type, Status.WAITING) for wait in waits}
    return next(
        status for status in (Status.WAITING_FOR_USER, Status.OUTCOME_UNKNOWN, Status.WAITING) if status in wanted
    )


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
