"""Several processes on one log: nothing lost or twice, no gap, and the WAL stays bounded."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from eventlog import Expect, NewEvent
from eventlog.stores import SqliteLog
from eventlog.stores.sqlite.wal import WalCheckpoints
from tests import process_scenarios
from tools.campaigns.processes import child
from tools.campaigns.processes.waiting import until
from tools.campaigns.storage.log_files import assert_whole, open_file

MIB = 1024 * 1024


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


def _start_together(path: Path, *programs: tuple[Callable[..., Any], tuple[object, ...]]) -> list[Any]:
    """Start programs, let them begin at the same moment, and return what each returns."""
    processes = [child.start(function, path, *args) for function, args in programs]
    try:
        for process in processes:
            _await_ready(process)
        for process in processes:
            _go_on(process)
        return [_result(process) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


async def test_appends_of_several_processes_are_all_there_once_and_without_a_gap(path: Path) -> None:
    results = _start_together(path, *((process_scenarios.appends, (name, 150)) for name in "abc"))
    acknowledged = [event_id for ids in results for event_id in ids]
    assert len(set(acknowledged)) == 3 * 150 * 2
    async with open_file(path) as log:
        events = [event async for event in log.read_all()]
        await assert_whole(log)
    assert [event.position for event in events] == list(range(1, 901))
    assert sorted(event.event_id.hex() for event in events) == sorted(acknowledged)
    for name in "abc":
        own = [event.data["n"] for event in events if event.stream == f"own-{name}"]
        shared = [event.data["n"] for event in events if event.stream == "shared" and event.data["by"] == name]
        assert own == shared == list(range(150))
    assert [event.version for event in events if event.stream == "shared"] == list(range(1, 451))


async def test_compare_and_append_between_processes_lets_exactly_one_win_each_version(path: Path) -> None:
    results = _start_together(path, *((process_scenarios.counts, (name, 100)) for name in "abc"))
    async with open_file(path) as log:
        events = (await log.read_stream("counter")).events
        await assert_whole(log)
    assert [event.data["to"] for event in events] == list(range(1, 301))
    assert sum(result["lost"] for result in results) > 0, "the processes never met: this test shows nothing"


async def test_subscriber_in_another_process_sees_everything_in_order(path: Path) -> None:
    async with open_file(path) as log:
        await log.append("s", [NewEvent("before", {"n": number}) for number in range(700)], expect=Expect.no_stream())
    seen, *writers = _start_together(
        path,
        (process_scenarios.subscribes, (1_100,)),
        *((process_scenarios.appends, (name, 100)) for name in "ab"),
    )
    assert [position for position, _ in seen] == list(range(1, 1_101))
    async with open_file(path) as log:
        assert [event_id for _, event_id in seen] == [event.event_id.hex() async for event in log.read_all()]
    assert {event_id for ids in writers for event_id in ids} <= {event_id for _, event_id in seen}


# ── the write-ahead log ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.campaign
async def test_wal_stays_bounded_under_20_000_appends_while_another_process_pauses_in_reading(path: Path) -> None:
    async with open_file(path) as log:
        await log.append("s", [NewEvent("noted", {}) for _ in range(1_000)], expect=Expect.no_stream())  # two pages
        reader = child.start(process_scenarios.reads_and_pauses, path)
        try:
            _await_ready(reader)
            largest = await _append_many(log, path, 20_000)
            _go_on(reader)
            _result(reader)
        finally:
            reader.kill()
            reader.wait()
        await assert_whole(log)
    written = path.stat().st_size
    print(f"\n20,000 appends: the WAL grew to {largest / MIB:.0f} MiB at most, the database is {written / MIB:.0f} MiB")
    assert written > 2 * WalCheckpoints.SOFT_LIMIT, "too little was written for the bound to matter"
    assert largest < 2 * WalCheckpoints.SOFT_LIMIT


@pytest.mark.campaign
async def test_control_a_foreign_snapshot_lets_the_wal_grow_and_it_is_cut_afterwards(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(WalCheckpoints, "STARVED_LIMIT", WalCheckpoints.SOFT_LIMIT)
    monkeypatch.setattr(WalCheckpoints, "IDLE_LIMIT", 1)
    async with open_file(path) as log:
        await log.append("s", [NewEvent("noted", {}) for _ in range(10)], expect=Expect.no_stream())
        with closing(sqlite3.connect(path, isolation_level=None)) as foreign:
            foreign.execute("BEGIN")
            foreign.execute("SELECT count(*) FROM events").fetchone()
            largest = await _append_many(log, path, 20_000)
        assert largest > 2 * WalCheckpoints.SOFT_LIMIT, "the bound of the test above would hold without doing anything"
        assert "wal_checkpoint_starved" in caplog.text
        await log.append("s", [NewEvent("noted", {})], expect=Expect.exists())
        await _until_wal_is_cut(path)
        await assert_whole(log)


async def test_wal_is_cut_though_an_iterator_was_left_in_the_middle(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WalCheckpoints, "IDLE_LIMIT", 1)
    monkeypatch.setattr(WalCheckpoints, "CUT_LIMIT", 1)
    async with open_file(path) as log:
        await log.append("s", [NewEvent("noted", {"n": number}) for number in range(2_000)], expect=Expect.no_stream())
        left = [log.read_all(), log.read("s"), log.subscribe()]
        for events in left:
            await anext(events)
        await log.append("s", [NewEvent("noted", {})], expect=Expect.exists())
        await _until_wal_is_cut(path)
        assert len([event async for event in left[0]]) == 2_000


async def _append_many(log: SqliteLog, path: Path, count: int) -> int:
    """Append events of 1 KB each, from many tasks, and return the largest size of the WAL that was seen."""
    wal = Path(f"{path}-wal")
    largest = 0
    text = "x" * 1_000
    for start in range(0, count, 200):
        await asyncio.gather(
            *(log.append(f"s{n % 50}", [NewEvent("noted", {"text": text})], expect=Expect.any()) for n in range(200))
        )
        assert start < count
        largest = max(largest, wal.stat().st_size)
    return largest


async def _until_wal_is_cut(path: Path) -> None:
    """Wait until it is. Only its size is looked at: `health` reads, and a cut does not wait for readers."""
    wal = Path(f"{path}-wal")
    await until(lambda: wal.stat().st_size == 0)


def _await_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line == "READY", process.communicate()


def _go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go on\n")
    process.stdin.flush()


def _result(process: subprocess.Popen[str]) -> Any:
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert errors == ""
    return json.loads(out.rpartition("RESULT ")[2])
