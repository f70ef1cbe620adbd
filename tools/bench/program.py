"""The command line.

    python tools/bench [--quick | --long] [--json FILE] [--only-ours] [--folder DIR] [CASE…]
    python tools/bench --readme FILE

The first measures; `--readme` prints the tables for the README from what an earlier run wrote with `--json`. Stores are
made in a folder below DIR and removed afterwards; DIR should be on the disk that is to be measured.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tools.bench import report as reports
from tools.bench.cases import CASES, Case, Place
from tools.bench.durability import CONTROL, Syncs, count_syncs
from tools.bench.goals import rate_all
from tools.bench.machine import describe, describe_load
from tools.bench.peers import BARE, OURS, RAW, Peer, find
from tools.bench.report import CaseResult, Report
from tools.bench.rounds import run_rounds
from tools.bench.scale import FULL, LONG, QUICK, Scale

__all__ = ["main", "measure"]

ROOT: Final = Path(__file__).resolve().parents[2]
_TOOL: Final = "python3 tools/dev.py bench"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and return the exit status: 1 if the engine does not sync each commit."""
    chosen = _parse(arguments)
    if chosen.readme is not None:
        print(reports.as_markdown(reports.load(chosen.readme)), end="")
        return 0
    peers = find([OURS, RAW, BARE] if chosen.only_ours else None)
    cases = [case for case in CASES if not chosen.cases or case.name in chosen.cases]
    scale = QUICK if chosen.quick else LONG if chosen.long else FULL
    with _scratch(chosen.folder) as folder:
        report = asyncio.run(measure(folder, cases, peers, scale, command=_command(chosen)))
    print(reports.as_text(report))
    if chosen.json is not None:
        reports.save(report, chosen.json)
    return 0 if all(each.is_durable for each in report.syncs if each.name == OURS) else 1


async def measure(
    folder: Path, cases: Sequence[Case], peers: Sequence[Peer], scale: Scale, *, command: str = _TOOL
) -> Report:
    """Measure the cases, one after the other, and return what was found."""
    warnings.simplefilter("ignore", DeprecationWarning)  # peers' own
    left_out = [f"{peer.name} ({peer.package})" for peer in peers if peer.version is None]
    peers = [peer for peer in peers if peer.version is not None]
    load_before = describe_load()
    results, settings = [], {}
    for case in cases:
        place = Place(folder / case.name, peers, scale)
        results.append(await _measure_case(case, place))
        settings.update(place.settings)
        shutil.rmtree(place.folder, ignore_errors=True)
    return Report(
        command=command,
        scale=scale.name,
        history=scale.history,
        machine=describe(folder),
        load_before=load_before,
        load_after=describe_load(),
        versions={peer.name: peer.version or "" for peer in peers},
        left_out=left_out,
        settings=settings,
        syncs=list(_count_syncs(folder, peers, scale)),
        cases=results,
        goals=rate_all({result.name: result.series for result in results}),
    )


async def _measure_case(case: Case, place: Place) -> CaseResult:
    _say(f"{case.name}: {case.what}")
    async with case.open(place) as sides:
        series = await run_rounds(sides, case.rounds(place.scale), warm_up=case.warm_up, say=_say)
    return CaseResult(name=case.name, what=case.what, unit=case.unit, series=series)


def _count_syncs(folder: Path, peers: Sequence[Peer], scale: Scale) -> Iterator[Syncs]:
    """Count the syncs of every store, of the engine's batches, and of the negative control."""
    asked = [(peer.name, 1) for peer in peers]
    if any(peer.name == OURS for peer in peers):
        asked[:1] = [(OURS, 1), (OURS, 100), (CONTROL, 1)]
    for number, (name, events) in enumerate(asked):
        place = folder / f"syncs-{number}"
        place.mkdir()
        counted = count_syncs(name, place, commits=scale.synced_commits, events=events)
        if counted is None:
            _say("syncs are not counted: this machine lacks strace")
            return
        yield counted


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description="The engine beside its limits and its peers.")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(case.name for case in CASES))
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="three short rounds")
    size.add_argument("--long", action="store_true", help="a history and a rebuild of 10 million events")
    parser.add_argument("--only-ours", action="store_true", help="the engine and its limits, without the peers")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep every figure of every round")
    parser.add_argument("--folder", type=Path, default=ROOT / "build", metavar="DIR", help="where the stores are made")
    parser.add_argument("--readme", type=Path, metavar="FILE", help="print the README's tables from such a file")
    chosen = parser.parse_args(arguments)
    unknown = set(chosen.cases) - {case.name for case in CASES}
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    return chosen


def _command(chosen: argparse.Namespace) -> str:
    """Return the command that measures the same again."""
    options = [f"--{name}" for name in ("quick", "long", "only-ours") if getattr(chosen, name.replace("-", "_"))]
    return shlex.join([*_TOOL.split(), *options, *chosen.cases])


@contextmanager
def _scratch(parent: Path) -> Iterator[Path]:
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=parent, ignore_cleanup_errors=True) as name:
        yield Path(name)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
