"""The outside suites: where each comes from, and how many cases it has in the pinned version.

A test class names its suite in the attribute `suite`. The numbers are asserted: a new version of a package with more or
fewer cases is a change that somebody has to look at.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final, NamedTuple

__all__ = ["LEAST_PASSED", "SUITES", "Suite", "missing_packages", "suite"]


class Suite(NamedTuple):
    """One class of cases of one package."""

    package: str
    name: str
    cases: int


SUITES: Final = (
    Suite("eventsource-py 0.8.1", "AppenderConformance", 12),
    Suite("eventsource-py 0.8.1", "StreamReaderConformance", 11),
    Suite("eventsource-py 0.8.1", "EventLookupConformance", 3),
    Suite("eventsource-py 0.8.1", "GlobalFeedConformance", 8),
    Suite("eventsource-py 0.8.1", "CategoryQueryConformance", 8),
    Suite("eventsource-py 0.8.1", "StoreStateMachine", 1),
    Suite("eventsource-py 0.8.1", "CheckpointRepositoryConformance", 19),
    Suite("eventsourcing 9.5.6", "AggregateRecorderTestCase", 2),
    Suite("eventsourcing 9.5.6", "ApplicationRecorderTestCase", 5),
    Suite("eventsourcing 9.5.6", "TrackingRecorderTestCase", 2),
    Suite("eventsourcing 9.5.6", "ProcessRecorderTestCase", 4),
    Suite("eventsourcing 9.5.6", "NonInterleavingNotificationIDsBaseCase", 1),
    Suite("eventsourcing 9.5.6", "DCBRecorderTestCase", 2),
    Suite("umadb 0.7.8", "differential test of conditional appends", 1),
)

LEAST_PASSED: Final = {"eventsource-py 0.8.1": 43, "eventsourcing 9.5.6": 16, "umadb 0.7.8": 1}
"""How many cases of each package have to pass, whatever else is changed here."""

_MODULES: Final = ("eventsource", "eventsourcing", "Crypto", "umadb")


def suite(name: str) -> Suite:
    """Return the suite of this name."""
    return next(suite for suite in SUITES if suite.name == name)


def missing_packages() -> list[str]:
    """Return the modules of the outside suites that cannot be imported here."""
    return [name for name in _MODULES if find_spec(name) is None]
