"""Rebuilds a view from a very long log, beside reading the notification feed of `eventsourcing` of the same length.

    python tools/rebuild_at_scale.py [--events 10000000] [--rounds 3] [--folder FOLDER]

Each measurement is a process of its own, so that what it needs of memory can be told; they take turns. Last, a writer
appends one event after another while nothing else goes on, and while the view is built again, and says how long that
took. Needs the `bench` extra. Prints a table and, with `--json`, the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

if __package__ in (None, ""):  # run as a program
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from eventlog import Expect
from projections import BuildProgress, SqliteView, rebuild_in_ranges, rebuild_view
from tools.bench.cases.rebuild import fetch_rows
from tools.bench.cases.steps_view import StepsOfAgents, write_steps
from tools.bench.payloads import STEPS
from tools.bench.peers.ours import open_log

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
WRITES: Final = 3000

Figures = dict[str, Any]


def main(argv: Sequence[str]) -> int:
    """Fill, measure, print."""
    options = _options().parse_args(argv)
    if options.child:
        print(json.dumps(asyncio.run(CHILDREN[options.child](Path(options.folder), options.events))))
        return 0
    with tempfile.TemporaryDirectory(prefix="rebuild-", dir=options.folder) as folder:
        figures = _measure(Path(folder), options.events, options.rounds)
    if options.json:
        print(json.dumps(figures))
    else:
        _print(figures, options.events)
    return 0


def _measure(folder: Path, events: int, rounds: int) -> Figures:
    _say(f"filling {events:,} events into each store")
    for name in ("fill", "fill_feed"):
        _say(f"  {name}: {_child(name, folder, events)['seconds']:.0f} s")
    names = ("rebuild", "rebuild_by_two", "feed", "driver")
    found: dict[str, list[Figures]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names:
            figures = _child(name, folder, events)
            found[name].append(figures)
            rate = events / figures["seconds"]
            _say(f"  round {number + 1}: {name}: {rate:,.0f} events/s, {figures['rss_mib']} MiB")
    return {"rounds": found, "latency": _child("latency", folder, events)}


def _child(name: str, folder: Path, events: int) -> Figures:
    command = [sys.executable, __file__, "--child", name, "--folder", str(folder), "--events", str(events)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


# ── what the children do ─────────────────────────────────────────────────────────────────────────────────────────────


async def _fill(folder: Path, events: int) -> Figures:
    began_s = time.monotonic()
    async with open_log(folder / "log.db") as log:
        await write_steps(log, events)
    return {"seconds": time.monotonic() - began_s}


async def _fill_feed(folder: Path, events: int) -> Figures:
    from tools.bench.peers.eventsourcing_recorder import open_store

    began_s = time.monotonic()
    async with open_store(folder) as recorder:
        recorder.fill_feed(events)
    return {"seconds": time.monotonic() - began_s}


async def _rebuild(folder: Path, events: int) -> Figures:
    meter = _Meter()
    async with open_log(folder / "log.db") as log:
        rebuilt = await rebuild_view(log, SqliteView(StepsOfAgents()), on_progress=meter.note)
    assert rebuilt.events == events, "the whole log was folded"
    return {"seconds": rebuilt.seconds, "rss_mib": meter.at_tenths(), "longest_page_s": meter.longest_s}


async def _rebuild_by_two(folder: Path, events: int) -> Figures:
    meter = _Meter()
    async with open_log(folder / "log.db") as log:
        rebuilt = await rebuild_in_ranges(log, SqliteView(StepsOfAgents()), processes=2, on_progress=meter.note)
    assert rebuilt.events == events, "the whole log was folded"
    return {"seconds": rebuilt.seconds, "rss_mib": meter.at_tenths(), "longest_page_s": meter.longest_s}


async def _feed(folder: Path, events: int) -> Figures:
    from tools.bench.peers.eventsourcing_recorder import open_store

    async with open_store(folder) as recorder:
        return {"seconds": await recorder.read_feed(), "rss_mib": [_rss_mib()]}


async def _driver(folder: Path, events: int) -> Figures:
    return {"seconds": await fetch_rows(folder / "log.db"), "rss_mib": [_rss_mib()]}


async def _latency(folder: Path, events: int) -> Figures:
    """Append one event after another: alone, and while another process builds the view again."""
    alone = await _append_for(folder, lambda: False)
    command = [sys.executable, __file__, "--child", "rebuild_beside", "--folder", str(folder), "--events", str(events)]
    rebuilding = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL)
    during = await _append_for(folder, lambda: rebuilding.returncode is None)
    await rebuilding.wait()
    return {"alone_ms": alone, "during_ms": during}


async def _rebuild_beside(folder: Path, events: int) -> Figures:
    async with open_log(folder / "log.db") as log:
        rebuilt = await rebuild_view(log, SqliteView(StepsOfAgents()), anew=True)
    return {"seconds": rebuilt.seconds}


async def _append_for(folder: Path, goes_on: Callable[[], bool]) -> dict[str, float]:
    times_s: list[float] = []
    async with open_log(folder / "log.db") as log:
        while len(times_s) < WRITES or goes_on():
            began_s = time.perf_counter()
            await log.append("agent-of-the-writer", [STEPS[0]], expect=Expect.any())
            times_s.append(time.perf_counter() - began_s)
            await asyncio.sleep(0.001)
    ordered = sorted(times_s)
    return {
        "count": len(ordered),
        "median": statistics.median(ordered) * 1000,
        "p99": ordered[len(ordered) * 99 // 100] * 1000,
        "longest": ordered[-1] * 1000,
    }


CHILDREN: Final = {
    "fill": _fill,
    "fill_feed": _fill_feed,
    "rebuild": _rebuild,
    "rebuild_by_two": _rebuild_by_two,
    "rebuild_beside": _rebuild_beside,
    "feed": _feed,
    "driver": _driver,
    "latency": _latency,
}


class _Meter:
    """The resident memory at each tenth of the way."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self._last_s = time.monotonic()
        self.longest_s = 0.0

    def note(self, progress: BuildProgress) -> None:
        """Note how it is now."""
        self._seen.setdefault(progress.position * 10 // max(progress.head, 1), _rss_mib())
        self.longest_s = max(self.longest_s, time.monotonic() - self._last_s)
        self._last_s = time.monotonic()

    def at_tenths(self) -> list[int]:
        """Return MiB, from the first tenth that was reached to the last."""
        return [self._seen[tenth] for tenth in sorted(self._seen)]


def _rss_mib() -> int:
    resident = int(Path("/proc/self/statm").read_text().split()[1])
    return resident * PAGE_BYTES // 2**20


# ── what is printed ──────────────────────────────────────────────────────────────────────────────────────────────────


def _print(figures: Figures, events: int) -> None:
    rounds = figures["rounds"]
    for name, each in rounds.items():
        seconds = statistics.median(one["seconds"] for one in each)
        print(f"{name:<16} {events / seconds:>12,.0f} events/s  {seconds:>8.1f} s  MiB {each[-1]['rss_mib']}")
    for name in ("rebuild", "rebuild_by_two"):
        paired = [feed["seconds"] / ours["seconds"] for feed, ours in zip(rounds["feed"], rounds[name], strict=True)]
        print(f"{name} ÷ feed: {statistics.median(paired):.2f} ({min(paired):.2f} – {max(paired):.2f})")
    for when, times in figures["latency"].items():
        print(f"append, {when}: " + ", ".join(f"{name} {value:,.2f}" for name, value in times.items()))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default=None, help="where the stores are made; a temporary folder by default")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", choices=sorted(CHILDREN), help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
