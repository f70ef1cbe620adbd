"""The recorder test cases of the `eventsourcing` package, on real files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar, Protocol, TypeVar
from unittest import TestCase

# The modules, not the classes: whatever test case stands in a module is collected by pytest.
from eventsourcing.dcb import tests as dcb_cases
from eventsourcing.tests import persistence as cases

from tests.conformance.dcb import LogDcbRecorder
from tests.conformance.recorders import LogAggregateRecorder, LogApplicationRecorder, LogProcessRecorder
from tests.conformance.suites import Suite, suite


class Closable(Protocol):
    def close(self) -> None: ...


R = TypeVar("R", bound=Closable)


def new(recorder: Callable[[Path], R], test: TestCase) -> R:
    """Return a recorder on a file of its own, which is checked, closed and removed when the test ends."""
    folder = test.enterContext(TemporaryDirectory())
    made = recorder(Path(folder) / "log.db")
    test.addCleanup(made.close)
    return made


class TestAggregateRecorder(cases.AggregateRecorderTestCase):
    suite: ClassVar[Suite] = suite("AggregateRecorderTestCase")

    def create_recorder(self) -> LogAggregateRecorder:
        return new(LogAggregateRecorder, self)


class TestApplicationRecorder(cases.ApplicationRecorderTestCase[LogApplicationRecorder]):
    suite: ClassVar[Suite] = suite("ApplicationRecorderTestCase")

    def create_recorder(self) -> LogApplicationRecorder:
        return new(LogApplicationRecorder, self)

    def test_insert_subscribe(self) -> None:
        self.optional_test_insert_subscribe()


class TestTrackingRecorder(cases.TrackingRecorderTestCase):
    suite: ClassVar[Suite] = suite("TrackingRecorderTestCase")

    def create_recorder(self) -> LogProcessRecorder:
        return new(LogProcessRecorder, self)


class TestProcessRecorder(cases.ProcessRecorderTestCase):
    suite: ClassVar[Suite] = suite("ProcessRecorderTestCase")

    def create_recorder(self) -> LogProcessRecorder:
        return new(LogProcessRecorder, self)


class TestNonInterleavingNotificationIDs(cases.NonInterleavingNotificationIDsBaseCase):
    suite: ClassVar[Suite] = suite("NonInterleavingNotificationIDsBaseCase")

    def create_recorder(self) -> LogApplicationRecorder:
        return new(LogApplicationRecorder, self)


class TestDcbRecorder(dcb_cases.DCBRecorderTestCase):
    suite: ClassVar[Suite] = suite("DCBRecorderTestCase")

    def test_append_read(self) -> None:
        self._test_append_read(new(LogDcbRecorder, self))

    def test_append_subscribe(self) -> None:
        self._test_append_subscribe(new(LogDcbRecorder, self))
