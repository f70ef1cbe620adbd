"""The state of the few runs that were signalled last, so that the next signal reads only what is new.

A run that waits may get thousands of signals, and no snapshot is written meanwhile: if each read all events from the
first, they would cost the square of their number.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from eventlog.errors import EventLogError, InvalidInput
from eventlog.progress import ENDED, Progress, fold_stream
from eventlog.run import Run
from eventlog.runtime.run_streams import RunStreams

__all__ = ["Recent"]

_MAX_RUNS: Final = 16


class Recent:
    """The runs that were read last from one log, each as of the last event that was read of it."""

    def __init__(self, streams: RunStreams) -> None:
        self._streams: Final = streams
        self._runs: Final[dict[str, Run]] = {}
        """The one that was read last comes last. Nobody else has them: the fold of what is new changes them."""

    async def read(self, run_id: str) -> Run:
        """Return the run as its events leave it. Raises as `RunStreams.load`."""
        known = self._runs.get(run_id)
        run = await self._go_on(known) if known is not None else None
        if run is None:
            run = await self._streams.load(run_id)
        self._runs.pop(run_id, None)
        progress: Progress | None = run.progress
        if progress is None or run.status in ENDED:
            return run
        self._runs[run_id] = run
        if len(self._runs) > _MAX_RUNS:
            del self._runs[next(iter(self._runs))]
        return replace(run, progress=progress.copied())

    def forget(self, run_id: str) -> None:
        """Read the run from its beginning the next time."""
        self._runs.pop(run_id, None)

    async def _go_on(self, known: Run) -> Run | None:
        """Return a run that was read before with what is new; None if it has to be read from its beginning."""
        events = await self._streams.events(known.run_id, after=known.version)
        now = self._runs.get(known.run_id)
        if now is None or now.version < known.version:
            return None
        new = [event for event in events if event.version > now.version]  # another may have folded some meanwhile
        try:
            return fold_stream(now.run_id, new, now)
        except (EventLogError, InvalidInput):
            self.forget(known.run_id)  # the fold has stopped in the middle; the load says what is wrong
            return None
