"""How much work an append and a read are: statements, thread hops, syncs and hashes, counted; times are for the bench.

A number that rises here is a regression, whatever a clock says on a busy machine; one that falls is an improvement to
write down. Each append is one transaction in one hop with one sync, however many events and callers it serves.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

import eventlog
from eventlog import Expect, NewEvent, entry
from eventlog.stores import SqliteLog
from eventlog.stores.sqlite.connection import Worker
from eventlog.stores.sqlite.wal import WalCheckpoints
from projections import runs_view
from tests.needs import need_command
from tools.bench.durability import count_syncs

BATCH: Final = 100
HASHES_OF_AN_EVENT: Final = 2
"""The commitment to the body, and the leaf."""

STATEMENTS_AROUND: Final = 4
"""BEGIN IMMEDIATE, PRAGMA data_version, the UPDATE of the tree, COMMIT."""


class Work(msgspec.Struct):
    """What was counted."""

    statements: list[str] = []
    hops: int = 0
    hashes: int = 0


class Counter:
    """Counts what one log does between two moments. Statements are those of the writer's connection."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._work: Work | None = None
        self._last = ""
        queue, sha256 = Worker._queue, hashlib.sha256

        def counted_queue(worker: Worker, *args: Any) -> Any:
            if self._work is not None:
                self._work.hops += 1
            return queue(worker, *args)

        def counted_sha256(data: bytes) -> Any:
            if self._work is not None:
                self._work.hashes += 1
            return sha256(data)

        monkeypatch.setattr(Worker, "_queue", counted_queue)
        monkeypatch.setattr(entry, "sha256", counted_sha256)

    async def watch(self, log: SqliteLog) -> None:
        """Trace the statements of the writer."""

        def trace(connection: sqlite3.Connection) -> None:
            connection.set_trace_callback(self._statement)

        assert log._writer is not None
        await log._writer.run_between(trace)

    @contextmanager
    def counting(self) -> Iterator[Work]:
        """Count until the end of the block."""
        work = self._work = Work()
        try:
            yield work
        finally:
            self._work = None

    def _statement(self, statement: str) -> None:
        """Keep a statement. An INSERT with a trigger is traced twice, with the same values, and counts once."""
        if self._work is not None and statement != self._last:
            self._last = statement
            self._work.statements.append(statement.split()[0])


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Counter:
    return Counter(monkeypatch)


@pytest.fixture
async def log(tmp_path: Path, counter: Counter) -> AsyncIterator[SqliteLog]:
    """A log that knows the streams `s` and `t0` to `t99`, the type and the actor already."""
    async with eventlog.open(tmp_path / "log.db", actor="test") as log:
        assert isinstance(log, SqliteLog)
        for stream in ("s", *(f"t{number}" for number in range(BATCH))):
            await log.append(stream, events(1), expect=Expect.no_stream())
        await counter.watch(log)
        yield log


def events(count: int) -> list[NewEvent]:
    return [NewEvent("noted", {"text": "word " * 80}) for _ in range(count)]


async def test_a_single_append_is_one_hop_and_five_statements(log: SqliteLog, counter: Counter) -> None:
    with counter.counting() as work:
        await log.append("s", events(1), expect=Expect.at(1))
    assert work.hops == 1
    assert work.statements == ["BEGIN", "PRAGMA", "INSERT", "UPDATE", "COMMIT"]
    assert work.hashes == HASHES_OF_AN_EVENT


async def test_the_first_append_to_a_stream_looks_its_name_up_and_writes_it(log: SqliteLog, counter: Counter) -> None:
    with counter.counting() as work:
        await log.append("new", events(1), expect=Expect.no_stream())
    assert work.hops == 1
    assert work.statements == ["BEGIN", "PRAGMA", "SELECT", "INSERT", "INSERT", "UPDATE", "COMMIT"]


async def test_a_batch_is_one_hop_and_one_statement_an_event(log: SqliteLog, counter: Counter) -> None:
    with counter.counting() as work:
        await log.append("s", events(BATCH), expect=Expect.at(1))
    assert work.hops == 1
    assert len(work.statements) == STATEMENTS_AROUND + BATCH
    assert work.hashes == HASHES_OF_AN_EVENT * BATCH


async def test_a_hundred_callers_at_once_share_their_commits(log: SqliteLog, counter: Counter) -> None:
    with counter.counting() as work:
        await asyncio.gather(*(log.append(f"t{number}", events(1), expect=Expect.at(1)) for number in range(BATCH)))
    assert work.hops <= 2
    assert len(work.statements) <= work.hops * STATEMENTS_AROUND + BATCH
    assert work.hashes == HASHES_OF_AN_EVENT * BATCH


async def test_a_repeated_append_hashes_nothing_that_is_stored(log: SqliteLog, counter: Counter) -> None:
    again = events(1)
    await log.append("s", again, expect=Expect.at(1))
    with counter.counting() as work:
        result = await log.append("s", again, expect=Expect.at(1))
    assert result.deduplicated
    assert (work.hops, work.hashes) == (1, 0)
    assert work.statements == ["BEGIN", "PRAGMA", "SELECT", "COMMIT"]


async def test_a_refused_append_writes_nothing(log: SqliteLog, counter: Counter) -> None:
    with counter.counting() as work, pytest.raises(eventlog.WrongExpectedVersion):
        await log.append("s", events(1), expect=Expect.at(7))
    assert (work.hops, work.hashes) == (1, 0)
    assert "INSERT" not in work.statements


async def test_reading_a_stream_is_one_hop_and_verifies_each_event_once(log: SqliteLog, counter: Counter) -> None:
    await log.append("s", events(BATCH), expect=Expect.at(1))
    await log.head()  # opens the connection
    with counter.counting() as work:
        found = await log.read_stream("s")
    assert len(found.events) == BATCH + 1
    assert work.hops == 1
    assert work.hashes == HASHES_OF_AN_EVENT * (BATCH + 1)


async def test_the_feed_is_one_hop_a_page(log: SqliteLog, counter: Counter) -> None:
    await log.append("s", events(500), expect=Expect.at(1))
    await log.head()
    with counter.counting() as work:
        found = [event async for event in log.read_all()]
    assert len(found) == 601
    assert work.hops == 2
    assert work.hashes == HASHES_OF_AN_EVENT * 601


async def test_a_view_that_wants_nothing_costs_an_append_one_statement(tmp_path: Path, counter: Counter) -> None:
    async with eventlog.open(tmp_path / "viewed.db", actor="test", views=[runs_view()]) as log:
        assert isinstance(log, SqliteLog)
        await log.append("s", events(1), expect=Expect.no_stream())
        await counter.watch(log)
        with counter.counting() as work:
            await log.append("s", events(1), expect=Expect.at(1))
    assert work.hops == 1
    assert work.statements == ["BEGIN", "PRAGMA", "INSERT", "UPDATE", "UPDATE", "COMMIT"]


@pytest.mark.parametrize("tasks", [1, 10])
async def test_the_write_ahead_log_is_written_over_and_cut_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: int
) -> None:
    limit = 1024 * 1024
    monkeypatch.setattr(WalCheckpoints, "SOFT_LIMIT", limit)
    monkeypatch.setattr(WalCheckpoints, "CUT_LIMIT", 2 * limit)
    path = tmp_path / "log.db"
    wal = path.with_name("log.db-wal")
    sizes = [0]
    async with eventlog.open(path, actor="test") as log, eventlog.open(path, actor="other"):
        for _ in range(400):
            await asyncio.gather(*(log.append(f"s{task}", events(1), expect=Expect.any()) for task in range(tasks)))
            sizes.append(wal.stat().st_size)
        await log.close()
        cut = wal.stat().st_size
    growth = [after - before for before, after in itertools.pairwise(sizes)]
    assert sum(each == 0 for each in growth) > len(growth) / 2, "most commits make the file longer"
    assert max(sizes) < 2 * limit + max(growth)
    assert cut == 0


@pytest.mark.parametrize("size", [1, BATCH])
def test_each_commit_is_one_sync(tmp_path: Path, size: int) -> None:
    need_command("strace")
    syncs = count_syncs("eventlog", tmp_path, commits=10, events=size)
    assert syncs is not None
    assert syncs.syncs == 10
