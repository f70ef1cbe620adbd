"""What a command on a run left behind."""

from __future__ import annotations

from typing import Any

import msgspec

from eventlog.decide import is_pending
from eventlog.events import Failure
from eventlog.progress import requests_of
from eventlog.run import Run

__all__ = ["Outcome"]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a command left behind.

    `result` is set by `resume` (executed, recovered or already_completed) and by `compensate` (compensated or
    already_compensated). `returned` is what a workflow returned, of the type that it names.
    """

    run: Run
    result: str | None = None
    returned: Any = None

    def __repr__(self) -> str:
        """Return what a person wants to see at once; the whole run is in `run`."""
        value = f", value={self.value!r:.200}" if self.value is not None else ""
        failure = f", failure={self.run.failure.message!r:.200}" if self.run.failure is not None else ""
        return f"Outcome(run_id={self.run_id!r}, status={self.status!r}, result={self.result!r}{value}{failure})"

    @property
    def run_id(self) -> str:
        return self.run.run_id

    @property
    def status(self) -> str:
        return self.run.status.value

    @property
    def value(self) -> Any:
        """What the effect, or the workflow, returned when it happened; the same for every later resume.

        None also once that is erased: `run.redacted` says so.
        """
        return self.run.result if self.run.progress is None else self.returned

    @property
    def requests(self) -> tuple[Run, ...]:
        """The requests that wait for a decision, the oldest first."""
        return tuple(request for request in requests_of(self.run) if is_pending(request))

    @property
    def failure(self) -> Failure | None:
        """Why the effect will never happen, or what the workflow raised."""
        return self.run.failure
