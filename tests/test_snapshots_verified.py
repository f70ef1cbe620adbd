"""`verify` proves that each snapshot is what its events add up to; a run is never resumed from any other."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from pathlib import Path

import pytest

import eventlog
from eventlog import Call, RunContext, Runner
from eventlog.audit.snapshots import check_snapshots
from eventlog.events import run_stream
from eventlog.log import Snapshot
from eventlog.progress import requests_of
from eventlog.stores import SqliteLog

STEPS = 60
RUN = "run-1"


async def work(number: int) -> str:
    return f"{number} of {STEPS}"


@eventlog.action("publish", promise="opaque")
async def publish(call: Call) -> str:
    return str(call.args["text"])


@eventlog.workflow
async def many_steps(run: RunContext) -> str:
    texts = [await run.step("work", work, number) for number in range(STEPS)]
    result: str = await run.act("publish", {"text": texts[-1]}, output="page")
    return result


def runner_of(log: SqliteLog) -> Runner:
    return Runner(log, workflows=[many_steps], actions=[publish])


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[SqliteLog]:
    """A log with one run that is paused and has a snapshot."""
    async with eventlog.open(tmp_path / "log.db") as log:
        await runner_of(log).start(many_steps, RUN)
        yield log


def edit(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    """Change the stored snapshot behind the log's back."""
    with sqlite3.connect(tmp_path / "log.db") as connection:
        ((state,),) = connection.execute("SELECT state FROM snapshots").fetchall()
        changed = change(state)
        assert changed != state
        connection.execute("UPDATE snapshots SET state = ?", (changed,))
    connection.close()


async def test_a_snapshot_that_the_run_has_left_behind_is_sound(log: SqliteLog) -> None:
    assert await log.snapshot_streams() == [run_stream(RUN)]
    assert (await check_snapshots(log)).verdict == "ok"
    assert (await check_snapshots(log, RUN)).verdict == "ok"
    assert (await check_snapshots(log, "another")).verdict == "ok"


async def test_an_edited_snapshot_is_reported_and_not_used(log: SqliteLog, tmp_path: Path) -> None:
    edit(tmp_path, lambda state: state.replace(b"59 of 60", b"99 of 60"))
    found = await check_snapshots(log)
    assert (found.verdict, found.count) == ("differs", 1)
    assert "not the one that its checkpoint commits to" in found.problems[0].message

    (request,) = requests_of(await runner_of(log).state(RUN))
    await runner_of(log).approve(RUN, request.proposal_hash or "")
    assert (await runner_of(log).resume(RUN)).value == "59 of 60"


async def test_a_snapshot_without_its_checkpoint_is_reported(log: SqliteLog) -> None:
    snapshot = await log.load_snapshot(run_stream(RUN))
    assert snapshot is not None
    await log.save_snapshot(run_stream(RUN), Snapshot(snapshot.version + 1, snapshot.state))
    found = await check_snapshots(log)
    assert found.verdict == "differs" and "no checkpoint" in found.problems[0].message


async def test_a_snapshot_that_its_checkpoint_commits_to_and_its_events_do_not_add_up_to_is_reported(
    log: SqliteLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one lie that the hash cannot tell: an engine that commits to a wrong state."""
    snapshot = await log.load_snapshot(run_stream(RUN))
    assert snapshot is not None
    wrong = snapshot.state.replace(b"59 of 60", b"99 of 60")
    monkeypatch.setattr("eventlog.audit.snapshots.snapshot_hash", lambda _: sha256(snapshot.state).hexdigest())
    await log.save_snapshot(run_stream(RUN), Snapshot(snapshot.version, wrong))
    found = await check_snapshots(log)
    assert found.verdict == "differs" and "add up to" in found.problems[0].message
