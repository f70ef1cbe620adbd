"""The conformance suites of the eventsource-py package, on real files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

import pytest
from eventsource.domain.exceptions import PositionForeignError
from eventsource.ports import ExpectedVersion, Position, collect
from eventsource.testing.conformance_ports import (
    AppenderConformance,
    CategoryQueryConformance,
    CheckpointRepositoryConformance,
    EventLookupConformance,
    GlobalFeedConformance,
    StreamReaderConformance,
)
from eventsource.testing.conformance_ports._fixtures import ConformanceEvent, make_stream
from eventsource.testing.conformance_ports.stateful import StoreStateMachine
from eventsource.testing.sync_facade import SyncStoreFacade
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.conformance.eventsource_adapter import LogCheckpoints, LogStore
from tests.conformance.suites import Suite, suite


class StoreInAFile:
    """Gives a suite its store."""

    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[LogStore]:
        store = LogStore(tmp_path / "log.db", ConformanceEvent)
        yield store
        await store.close()


class TestAppender(StoreInAFile, AppenderConformance):
    suite: ClassVar[Suite] = suite("AppenderConformance")


class TestStreamReader(StoreInAFile, StreamReaderConformance):
    suite: ClassVar[Suite] = suite("StreamReaderConformance")


class TestEventLookup(StoreInAFile, EventLookupConformance):
    suite: ClassVar[Suite] = suite("EventLookupConformance")


class TestGlobalFeed(StoreInAFile, GlobalFeedConformance):
    suite: ClassVar[Suite] = suite("GlobalFeedConformance")


class TestCategoryQuery(StoreInAFile, CategoryQueryConformance):
    suite: ClassVar[Suite] = suite("CategoryQueryConformance")


class TestCheckpoints(CheckpointRepositoryConformance):
    suite: ClassVar[Suite] = suite("CheckpointRepositoryConformance")

    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[LogCheckpoints]:
        store = LogCheckpoints(tmp_path / "log.db")
        yield store
        await store.close()


class LogMachine(StoreStateMachine):
    """Random appends and reads, each example on a file of its own."""

    def make_store(self) -> SyncStoreFacade:
        self._folder = TemporaryDirectory()
        return SyncStoreFacade(LogStore(Path(self._folder.name) / "log.db", ConformanceEvent))

    def teardown(self) -> None:
        super().teardown()
        self._folder.cleanup()


class TestStoreStateMachine:
    suite: ClassVar[Suite] = suite("StoreStateMachine")

    def test_random_appends_and_reads_agree_with_a_model(self) -> None:
        bounds = settings(max_examples=10, stateful_step_count=20, deadline=None, database=None)
        run_state_machine_as_test(LogMachine, settings=bounds)


async def test_a_category_is_not_its_name_with_something_behind(tmp_path: Path) -> None:
    store = LogStore(tmp_path / "log.db", ConformanceEvent)
    try:
        for category in ("A", "AB", "A.B", "A-", "run"):
            stream = make_stream(category=category)
            await store.append(stream, [ConformanceEvent(aggregate_id=stream.aggregate_id)], ExpectedVersion.any_())
        for category in ("A", "AB", "A.B", "A-", "run"):
            found = await collect(store.read_category(category))
            assert [envelope.stream_id.category for envelope in found] == [category]
    finally:
        await store.close()


async def test_a_position_of_another_log_is_refused(tmp_path: Path) -> None:
    store = LogStore(tmp_path / "log.db", ConformanceEvent)
    try:
        with pytest.raises(PositionForeignError):
            await collect(store.read_all(Position("another log", (0,))))
    finally:
        await store.close()
