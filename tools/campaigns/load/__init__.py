"""Campaign `load`: very many runs at once in one process, slow and dead subscribers, views, and a queue that is full.

Half of the runs are workflows that a worker drives, half are single actions; each writes a file of its own. Subscribers
follow the whole log, slowly; some have stopped looking, and some have left an iterator in the middle. One view is
written with each append and one follows. In the end more is appended at once than the queue takes. Everybody gets what
he was promised, and neither memory nor the write-ahead log grows without bound.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar, Final

import eventlog
from eventlog import EventLogError, Expect, NewEvent, Policy, RunContext, Runner, WriteFile
from eventlog.events import run_stream
from eventlog.stores import SqliteLog
from eventlog.views import ViewEvent
from projections import ProjectionRunner, Row, RowProjection, SqliteView, check_view
from tools.campaigns.frame.campaign import Break, Campaign, Control, Goal, Work
from tools.campaigns.load.sizes import Sizes
from tools.campaigns.load.subscribers import Subscribers
from tools.campaigns.storage.log_files import file_lock_held, open_file

__all__ = ["CAMPAIGN"]

MIB: Final = 1024 * 1024
LARGEST_WAL: Final = 64 * MIB
"""Four times what a WAL checkpoint cuts."""
LARGEST_GROWTH: Final = 1024 * MIB
FULL_QUEUE: Final = 20_000
"""How many requests may wait at a time."""
_TOO_MANY: Final = 1_000
_STUCK_S: Final = 60.0
_AT_ONCE: Final = 50
ANY: Final = Expect.any()


class Counted(RowProjection):
    """How many events each stream has, of those that this campaign appends itself."""

    name = "load_counted"
    revision = 1
    columns: ClassVar[Mapping[str, str]] = {"stream": "TEXT PRIMARY KEY", "events": "INTEGER NOT NULL"}
    event_types = frozenset({"load_noted"})

    def key(self, event: ViewEvent) -> str:
        """Return the stream."""
        return event.stream

    def apply(self, row: Row | None, event: ViewEvent) -> Row:
        """Count the event."""
        return {"stream": event.stream, "events": (row["events"] if row else 0) + 1}


class CountedLater(Counted):
    """The same, for the view that follows."""

    name = "load_counted_later"


async def adds(number: int) -> int:
    """Take a turn of the loop."""
    await asyncio.sleep(0)
    return number + 1


@eventlog.workflow
async def writes(run: RunContext, folder: str) -> int:
    """Do two steps, and write a file."""
    first = await run.step("first", adds, 1)
    second = await run.step("second", adds, first)
    await run.act("write_file", {"content": run.run_id}, output=f"{folder}/{run.run_id}")
    return second


def run(work: Work) -> None:
    """Put the load on."""
    case = "load"
    if work.wants(case):
        asyncio.run(_put_on(work, case))


async def _put_on(work: Work, case: str) -> None:
    path, files = work.folder / "log.db", work.folder / "files"
    files.mkdir()
    async with open_file(path, views=[SqliteView(Counted())], busy_timeout_s=60) as log, Sizes(path) as sizes:
        await _leave_iterators(work, case, log, path)
        async with (
            ProjectionRunner(log, [SqliteView(CountedLater())], allows_unknown_types=True) as views,
            Subscribers(log, work.goal("subscribers"), work.chance(case)) as subscribers,
        ):
            work.count("subscribers", len(subscribers.all))
            await _run_all(work, case, log, files)
            await _overfill(work, case, log, path)
            await _judge(work, case, log, subscribers, views)
        work.notes["WAL at most"] = f"{sizes.wal_bytes / MIB:.0f} MiB"
        work.notes["memory grew by"] = f"{sizes.grown_bytes / MIB:.0f} MiB"
        if sizes.wal_bytes > LARGEST_WAL:
            work.violation("I9", case, f"the write-ahead log grew to {sizes.wal_bytes / MIB:.0f} MiB")
        if sizes.grown_bytes > LARGEST_GROWTH:
            work.violation("I9", case, f"the process grew by {sizes.grown_bytes / MIB:.0f} MiB")


_LEFT: Final[list[AsyncIterator[Any]]] = []
"""Iterators that nobody goes on with."""


async def _leave_iterators(work: Work, case: str, log: SqliteLog, path: Path) -> None:
    """Leave iterators in the middle, and see that none of them keeps the write-ahead log from being cut."""
    await log.append("before", [NewEvent("load_noted", {"n": number}) for number in range(2_000)], expect=ANY)
    for _ in range(5):
        left = [log.read_all(), log.read("before"), log.subscribe()]
        _LEFT.extend(left)
        for events in left:
            await anext(events)
    await log.append("before", [NewEvent("load_noted", {"n": -1})], expect=ANY)
    with file_lock_held(path), closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as raw:
        is_busy, _, _ = raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    if is_busy:
        work.violation("I9", case, "an iterator that was left in the middle keeps the write-ahead log from being cut")


# ── runs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _run_all(work: Work, case: str, log: SqliteLog, files: Path) -> None:
    """Let all runs begin at once, and end; none may be left behind."""
    count = work.goal("runs")
    runner = Runner(
        log,
        workflows=[writes],
        actions=[WriteFile()],
        policies={"write_file": Policy(auto=True)},
        folder=str(files),
    )
    ended_s: dict[str, float] = {}
    began_s = time.monotonic()
    worker = eventlog.Worker(runner, max_concurrent=_AT_ONCE)
    working = asyncio.create_task(worker.run())
    watching = asyncio.create_task(_watch(log, count // 2, ended_s))
    slots = asyncio.Semaphore(_AT_ONCE)

    async def act(number: int) -> None:
        run_id = f"a-{number}"
        async with slots:
            proposal = eventlog.propose("write_file", {"content": run_id}, f"{files}/{run_id}")
            await runner.propose(run_id, proposal)
            await runner.resume(run_id)
        ended_s[run_id] = time.monotonic()

    async with asyncio.TaskGroup() as group:
        for number in range(count - count // 2):
            group.create_task(act(number))
        for number in range(count // 2):
            group.create_task(runner.submit(writes, f"w-{number}", str(files)))
    await _until_done(working, watching, ended_s)
    worker.stop()
    watching.cancel()
    await asyncio.gather(working, watching, return_exceptions=True)
    work.notes["longest run"] = f"{max(ended_s.values(), default=began_s) - began_s:.1f} s"
    work.notes["rate"] = f"{len(ended_s) / (time.monotonic() - began_s):.0f} runs/s"
    await _judge_runs(work, case, runner, files, count)


async def _watch(log: SqliteLog, count: int, ended_s: dict[str, float]) -> None:
    """Take note of when each workflow run ends."""
    left = count
    async for event in log.subscribe(types=["run_completed", "run_failed"]):
        assert isinstance(event, eventlog.RecordedEvent)
        if event.stream.startswith(run_stream("w-")):
            ended_s[event.stream] = time.monotonic()
            left -= 1
        if not left:
            return


async def _until_done(working: asyncio.Task[None], watching: asyncio.Task[None], ended_s: Mapping[str, float]) -> None:
    """Wait until all have ended, or nothing has for a long time."""
    before = -1
    while before < len(ended_s):
        before = len(ended_s)
        done, _ = await asyncio.wait({working, watching}, timeout=_STUCK_S, return_when=asyncio.FIRST_COMPLETED)
        if done:
            return


async def _judge_runs(work: Work, case: str, runner: Runner, files: Path, count: int) -> None:
    names = [f"w-{number}" for number in range(count // 2)] + [f"a-{number}" for number in range(count - count // 2)]
    for name in names:
        found = await runner.state(name)
        if found.status.value != "COMPLETED":
            work.violation("I9", case, f"run {name} is {found.status.value}: it was left behind")
        elif not (files / name).exists() or (files / name).read_text() != name:
            work.violation("I6", case, f"run {name} is COMPLETED, and its file is not what was approved")
        work.count("runs")
    left = {each.name for each in files.iterdir()} - set(names)
    if left:
        work.violation("I5", case, f"there are files of nobody: {sorted(left)[:5]}")


# ── a full queue ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def _overfill(work: Work, case: str, log: SqliteLog, path: Path) -> None:
    """Append more at once than the queue takes, while nothing can be written: the rest is refused, and not written."""
    with file_lock_held(path):
        appends = [
            asyncio.create_task(log.append(f"o-{number % 100}", [NewEvent("load_noted", {"n": number})], expect=ANY))
            for number in range(FULL_QUEUE + _TOO_MANY)
        ]
        await asyncio.sleep(0)
        for _ in range(3):
            await asyncio.sleep(0.01)
        queued = (await log.health()).queued
    answers = await asyncio.gather(*appends, return_exceptions=True)
    told = Counter(each.code if isinstance(each, EventLogError) else type(each).__name__ for each in answers)
    if queued > FULL_QUEUE or not told["store_busy"]:
        work.violation("I9", case, f"the queue took {queued} requests at a time: {dict(told)}")
    if set(told) - {"store_busy", "AppendResult"}:
        work.violation("I8", case, f"a full queue was told as {dict(told)}")
    stored = 0
    for number in range(100):
        stored += (await log.read_stream(f"o-{number}")).version
    if stored != told["AppendResult"]:
        work.violation("I3", case, f"{told['AppendResult']} appends were acknowledged, and {stored} events are there")
    work.notes["a full queue"] = f"{told['store_busy']} of {len(answers)} appends at once were refused"


async def _judge(work: Work, case: str, log: SqliteLog, subscribers: Subscribers, views: ProjectionRunner) -> None:
    """See that subscribers and views get to the end of the log, and that the log is whole."""
    head = (await log.head()).position
    for what in await subscribers.reach(head, stuck_s=_STUCK_S):
        work.violation("I9", case, what)
    for what in subscribers.failures():
        work.violation("I1", case, f"an event was lost or given twice: {what}")
    await views.wait_for(CountedLater.name, head, timeout_s=_STUCK_S)
    for view in (Counted(), CountedLater()):
        checked = await check_view(log, SqliteView(view))
        if checked is None or checked.differing:
            work.violation("I10", case, f"the view {view.name} is not what the log says")
    after = 0
    while after < head:
        page = await log.check_page(after=after, limit=5_000)
        for problem in page.problems:
            work.violation("I2", case, str(problem))
        after = page.position
    work.count("events", head)


CAMPAIGN: Final = Campaign(
    name="load",
    title="hundreds or thousands of runs at once, slow and dead subscribers, views, and a queue that is full",
    promise="no run is left behind, no subscriber loses an event, and queue, memory and WAL are bounded",
    faults=("F51", "F52", "F53"),
    invariants=("I1", "I2", "I3", "I5", "I6", "I8", "I9", "I10"),
    run=run,
    goals={"runs": Goal(500, 5_000, 10), "subscribers": Goal(20, 100, 8), "events": Goal(20_000, 40_000, 0)},
    controls=(
        Control(
            "subscriber_drops",
            "what does not fit into a slow subscriber's window is dropped",
            (
                Break(
                    "eventlog/stores/subscription/subscriber.py",
                    "            return False\n",
                    "            return True\n",
                ),
            ),
            shows="I1 .*lost or given twice",
        ),
        Control(
            "queue_unbounded",
            "the queue in front of the writer has no end",
            (
                Break(
                    "eventlog/stores/sqlite/writer.py",
                    "MAX_QUEUED_REQUESTS: Final = 20_000",
                    "MAX_QUEUED_REQUESTS: Final = 20_000_000",
                ),
            ),
            shows="I9 .*the queue took",
        ),
        Control(
            "snapshot_held",
            "a read transaction is held beyond the page that was read",
            (
                Break(
                    "eventlog/stores/sqlite/reader.py",
                    "worker.start(behind_nothing, function, *args)\n",
                    "worker.start(behind_nothing, _holding(function), *args)\n",
                ),
                Break(
                    "eventlog/stores/sqlite/reader.py",
                    "class ReadConnections:\n",
                    "_HELD: list[Any] = []\n\n\n"
                    "def _holding(function: Any) -> Any:\n"
                    "    def hold(connection: sqlite3.Connection, *args: Any) -> Any:\n"
                    "        _HELD.append(connection.execute('SELECT position FROM events'))\n"
                    "        _HELD[-1].fetchone()\n"
                    "        return function(connection, *args)\n\n"
                    "    return hold\n\n\n"
                    "class ReadConnections:\n",
                ),
            ),
            shows="I9 .*keeps the write-ahead log",
        ),
    ),
    limit_s=Goal(fast=180, long=1_200, control=120),
)
