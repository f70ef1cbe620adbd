"""Proves that each snapshot of a run is what its events add up to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from eventlog.audit.verify import Finding
from eventlog.errors import EventLogError
from eventlog.events import CheckpointSaved, run_stream
from eventlog.log import EventReader, Problem, Snapshot
from eventlog.progress import fold_stream
from eventlog.snapshots import encode_snapshot, has_own_shape, snapshot_hash

__all__ = ["SnapshotReader", "check_snapshots"]

_SHOWN: Final = 20


class SnapshotReader(EventReader, Protocol):
    """A log whose snapshots can be read."""

    async def load_snapshot(self, stream: str) -> Snapshot | None:
        """Return the snapshot of a stream."""

    async def snapshot_streams(self) -> Sequence[str]:
        """Return the streams that have a snapshot."""


async def check_snapshots(log: SnapshotReader, run: str | None = None) -> Finding:
    """Fold each run that has a snapshot from its first event on, up to there, and compare the two byte by byte.

    Of the one run that is named, or of all. A snapshot that differs is never used, and tells that somebody wrote it.
    """
    problems = []
    for stream in await log.snapshot_streams():
        if run is None or stream == run_stream(run):
            problem = await _difference(log, stream)
            if problem is not None:
                problems.append(problem)
    return Finding(verdict="differs" if problems else "ok", problems=tuple(problems[:_SHOWN]), count=len(problems))


async def _difference(log: SnapshotReader, stream: str) -> Problem | None:
    snapshot = await log.load_snapshot(stream)
    if snapshot is None:
        return None
    try:
        why = await _why_differs(log, stream, snapshot)
    except EventLogError as error:
        why = f"it cannot be compared: {error}"
    if why is None:
        return None
    return Problem(reason="snapshot_differs", message=f"the snapshot of {stream!r}: {why}", stream=stream)


async def _why_differs(log: SnapshotReader, stream: str, snapshot: Snapshot) -> str | None:
    events = [event async for event in log.read(stream, limit=snapshot.version)]
    last = events[-1].data if len(events) == snapshot.version else None
    if not isinstance(last, CheckpointSaved) or last.snapshot_hash is None:
        return f"no checkpoint at version {snapshot.version} commits to it"
    if last.snapshot_hash != snapshot_hash(snapshot.state):
        return "it is not the one that its checkpoint commits to"
    if not has_own_shape(snapshot.state):
        return None  # another version of this program has written it, and only such a one uses it
    folded = encode_snapshot(fold_stream(stream.removeprefix("run:"), events[:-1]))
    return None if folded == snapshot.state else "it is not what the events in front of it add up to"
