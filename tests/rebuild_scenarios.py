"""What one of several processes does while a view is built again. Each function runs in a child."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import sys
import time

from eventlog import Expect
from eventlog.stores.sqlite.view_registry import move_entry
from projections import SqliteView, rebuild_view
from projections.sqlite_views.following import Follower
from tests.totals import Totals, TotalsOfAmounts, orders
from tools.campaigns.storage.log_files import open_file


async def appends_at_a_rate(path: str, rate: str, seconds: str) -> dict[str, float]:
    """Append so many orders a second, with the first revision of the view inline, until told to stop."""
    async with open_file(path, views=[SqliteView(Totals())], busy_timeout_s=30) as log:
        print("READY", flush=True)
        loop = asyncio.get_running_loop()
        told = loop.run_in_executor(None, sys.stdin.readline)
        began_s, count, slowest_s = time.monotonic(), 0, 0.0
        while not told.done() and time.monotonic() - began_s < float(seconds):
            due = int((time.monotonic() - began_s) * float(rate)) - count
            if due > 0:
                before_s = time.monotonic()
                await log.append("orders", list(orders(count, due)), expect=Expect.any())
                slowest_s = max(slowest_s, time.monotonic() - before_s)
                count += due
            await asyncio.sleep(0.005)
        return {"count": count, "seconds": time.monotonic() - began_s, "slowest_s": slowest_s}


def polls(path: str, seconds: str) -> dict[str, object]:
    """Read the live view all the time, and say what was wrong: every order in it once, up to the view's position."""
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None, timeout=30)
    revisions: list[int] = []
    wrong: list[str] = []
    count, position = 0, 0
    print("READY", flush=True)
    end_s = time.monotonic() + float(seconds)
    while time.monotonic() < end_s and not (revisions and revisions[-1] == 2 and count > 1000 + revisions.index(2)):
        connection.execute("BEGIN")
        revision, at = connection.execute(
            "SELECT revision, position FROM views WHERE name = 'totals' AND state = 'live'"
        ).fetchone()
        (placed,) = connection.execute("SELECT coalesce(sum(orders), 0) FROM totals").fetchone()
        columns = [name for (name,) in connection.execute("SELECT name FROM pragma_table_info('totals')")]
        connection.execute("COMMIT")
        count += 1
        if placed != at:
            wrong.append(f"{placed} orders at position {at} of revision {revision}")
        if at < position:
            wrong.append(f"the view went back from {position} to {at}")
        if ("amount" in columns) != (revision == 2):
            wrong.append(f"revision {revision} has the columns {columns}")
        position = at
        if not revisions or revisions[-1] != revision:
            revisions.append(revision)
        time.sleep(0.001)
    connection.close()
    return {"polls": count, "revisions": revisions, "wrong": wrong}


def killed_rebuilds(path: str, count: str, seed: str, writes_first: str = "") -> dict[str, object]:
    """Kill a process that rebuilds the view, again and again at random moments; say what each kill left.

    The processes are forked from this one, which has loaded everything and has no threads. `writes_first` is the
    negative control: a rebuild that writes a page's rows and its position in two transactions.
    """
    chance = random.Random(int(seed))
    if writes_first:
        Follower.step = _step_in_two_transactions  # type: ignore[method-assign]
    left: list[tuple[str, int, int]] = []
    wrong: list[str] = []
    for _ in range(int(count)):
        child = os.fork()
        if child == 0:
            asyncio.run(_rebuild_for_ever(path))
        time.sleep(chance.uniform(0.02, 0.6))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        connection = sqlite3.connect(path, isolation_level=None)
        for name, state, revision, position in connection.execute("SELECT name, state, revision, position FROM views"):
            left.append((state, revision, position))
            table = name if state == "live" else f"{name}__g{_generation(connection, name, state)}"
            (placed,) = connection.execute(f"SELECT coalesce(sum(orders), 0) FROM {table}").fetchone()
            is_being_dropped = state == "kept" and placed < position  # its rows go first, a page at a time
            if placed != position and not is_being_dropped:
                wrong.append(f"{placed} orders at position {position}, {state}, revision {revision}")
        connection.close()
    return {"left": left, "wrong": wrong}


async def _rebuild_for_ever(path: str) -> None:
    async with open_file(path, busy_timeout_s=30) as log:
        while True:
            await rebuild_view(log, SqliteView(TotalsOfAmounts()))


def _generation(connection: sqlite3.Connection, name: str, state: str) -> int:
    sql = "SELECT generation FROM views WHERE name = ? AND state = ?"
    generation: int = connection.execute(sql, (name, state)).fetchone()[0]
    return generation


async def _step_in_two_transactions(self: Follower) -> bool:
    changes, upto = await self._database.look(self._fold, self.entry.position)
    if upto == self.entry.position:
        return False
    await self._database.write_view(self._view.write, self.entry, changes)
    self.entry = await self._database.write_view(move_entry, self.entry, upto)
    return upto < self.head
