"""The checkpoints of one drive: what they commit, what they give free, and the snapshots that they commit to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from eventlog.errors import EventLogError
from eventlog.events import CheckpointSaved, RunEvent, run_stream
from eventlog.log import RunLog, Snapshot
from eventlog.progress import ENDED, Progress
from eventlog.run import Run
from eventlog.runtime.drive.suspension import Suspension
from eventlog.runtime.session import Session
from eventlog.snapshots import encode_snapshot, snapshot_hash
from eventlog.stores.telemetry import logger

__all__ = ["PAUSE_TAIL", "RUN_TAIL", "Checkpoints", "committing", "released"]

PAUSE_TAIL: Final = 50
"""How many events behind the last snapshot make a pause take another."""
RUN_TAIL: Final = 500
"""As `PAUSE_TAIL`, for a run that goes on: folding that many takes milliseconds."""


class Checkpoints:
    """Writes the checkpoints of the run that `session` holds, and its snapshots to `log`."""

    def __init__(self, session: Session, log: RunLog, suspension: Suspension) -> None:
        self._session: Final = session
        self._log: Final = log
        self._suspension: Final = suspension
        self._saving: asyncio.Task[None] | None = None

    @property
    def tasks(self) -> tuple[asyncio.Task[None], ...]:
        """What is being written by nobody's order."""
        return () if self._saving is None else (self._saving,)

    async def save(self, *, committed: tuple[str, ...] = ()) -> None:
        """Append a checkpoint of the running run that commits these keys, with a snapshot if the last is far behind."""

        def build(run: Run) -> CheckpointSaved | None:
            progress: Progress = run.progress
            left = _uncommitted(progress, committed)
            if (committed and not left) or run.status in ENDED or progress.owner is None:
                return None
            return CheckpointSaved(status=run.status, state_version=run.state_version + 1, committed=left)

        await self.write(build, _far_while_running)

    async def write(
        self, build: Callable[[Run], CheckpointSaved | None], far: Callable[[Run], int] = lambda _: PAUSE_TAIL
    ) -> None:
        """Append the checkpoint that `build` returns, with a snapshot if the last is `far(run)` events behind."""
        taken: list[bytes] = []

        def make(run: Run) -> Sequence[RunEvent]:
            taken.clear()
            event = build(run)
            if event is None:
                return ()
            if _tail(run) >= far(run):
                taken.append(encode_snapshot(run))
                event = replace(event, snapshot_hash=snapshot_hash(taken[0]))
            return (event,)

        version = await self._session.append(make)
        if taken:
            try:
                await self._log.save_snapshot(run_stream(self._session.run.run_id), Snapshot(version, taken[0]))
            except EventLogError as error:  # the events have everything that it has
                self._warn(error)

    def take_snapshot_if_far(self) -> None:
        """Begin a checkpoint with a snapshot, if the last is far behind."""
        run = self._session.run
        if _tail(run) >= _far_while_running(run) and self._saving is None and not self._suspension.is_on:
            self._saving = asyncio.create_task(self._take_snapshot())

    async def _take_snapshot(self) -> None:
        try:
            await self.save()
        except EventLogError as error:
            self._warn(error)
        finally:
            self._saving = None

    def _warn(self, error: EventLogError) -> None:
        logger.warning("snapshot_not_taken", run_id=self._session.run.run_id, code=error.code)


def committing(keys: tuple[str, ...]) -> Callable[[Run], tuple[RunEvent, ...]]:
    """Return what makes the checkpoint that commits these keys, as far as they are not committed already."""

    def make(run: Run) -> tuple[RunEvent, ...]:
        left = _uncommitted(run.progress, keys)
        if not left:
            return ()
        return (CheckpointSaved(status=run.status, state_version=run.state_version + 1, committed=left),)

    return make


def released(run: Run) -> CheckpointSaved:
    """Return the checkpoint that gives the run free, and changes nothing else."""
    return CheckpointSaved(status=run.status, state_version=run.state_version, is_released=True)


def _uncommitted(progress: Progress, keys: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(key for key in keys if key not in progress.committed)


def _tail(run: Run) -> int:
    progress: Progress = run.progress
    return run.version - progress.snapshot_version


def _far_while_running(run: Run) -> int:
    return max(RUN_TAIL, run.version // 2)
