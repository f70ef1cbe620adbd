"""What a report is about: everything it is made of, read and checked before."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from eventlog.audit.verify import Verdicts
from eventlog.log import Head, RecordedEvent
from eventlog.run import Run

__all__ = ["Subject"]


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """A run with all of its events, of which it is the fold, and what a check of it has found.

    `path` is where the log was, as it was named; `log_id` and `store_id` are hex; `head` is the end of the log when the
    run was read. `made_at_us` is when the report is made, by which `program` and version.
    """

    run: Run
    events: Sequence[RecordedEvent]
    verdicts: Verdicts
    path: str
    log_id: str
    store_id: str
    head: Head
    made_at_us: int
    program: str
