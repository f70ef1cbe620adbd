"""The one list of outside cases that do not apply to this log, each with its reason.

A single case of a suite that is run otherwise is expected to fail: should it pass, that is an error. A suite that is
left out whole names the port that it tests: should an adapter ever have what the port asks for, that is an error too.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["NOT_APPLICABLE", "SUITES_LEFT_OUT", "Case", "LeftOut"]


class Case(NamedTuple):
    """One case of a suite that is run otherwise."""

    suite: str
    case: str
    reason: str


class LeftOut(NamedTuple):
    """A suite of the eventsource-py package that is not run at all; `port` is a protocol in `eventsource.ports`."""

    suite: str
    cases: int
    port: str
    reason: str


NOT_APPLICABLE: Final = (
    Case(
        "CheckpointRepositoryConformance",
        "test_legacy_int_only_row_reads_none",
        "it is about rows that older versions of that package wrote; the suite itself skips it for other stores",
    ),
)

SUITES_LEFT_OUT: Final = (
    LeftOut(
        "SnapshotStoreConformance",
        11,
        "SnapshotStore",
        "a snapshot is a cached fold that is overwritten and deleted; an append-only log keeps none",
    ),
    LeftOut(
        "ReadModelRepositoryConformance",
        18,
        "readmodels.ReadModelRepository",
        "rows that are written directly; a view here is derived from the log by a projection and never written to",
    ),
    LeftOut(
        "OutboxRepositoryConformance",
        10,
        "OutboxRepository",
        "an outbox is a second list beside a store; here the log itself is read on from a position",
    ),
    LeftOut(
        "DLQRepositoryConformance",
        12,
        "DLQRepository",
        "a list of failed events with retry counts; a view that fails here stops at its position and says so",
    ),
    LeftOut(
        "DistributedLockConformance",
        9,
        "DistributedLock",
        "named locks for any purpose; the log gives expectations on streams, and the runtime its own claims on runs",
    ),
)
