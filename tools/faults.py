"""The fault campaigns: break the engine in every way that is listed, and see what it promised hold.

    python tools/faults.py [--fast | --long] [--seed N] [--json FILE] [CAMPAIGN…]
    python tools/faults.py --seed N --case CASE CAMPAIGN       one case again, as a violation names it
    python tools/faults.py --control NAME CAMPAIGN             one control alone: the engine, broken on purpose
    python tools/faults.py --list                              the campaigns, their faults and their controls
    python tools/faults.py --readme FILE                       the table of the README, from what --json wrote

`--fast`, the default, takes a few minutes; `--long` three quarters of an hour to an hour and a quarter on two cores.
Behind the campaigns their controls run: something is broken in a copy of the engine, and the campaign has to say so.
`--scale X` multiplies all counts. Which cases there are depends on tier, scale and seed: to see one again, name all of
them as they were. `--publish` keeps the report for the README: that of some campaigns in place of what it has of them.

The exit status is 0 only if every campaign held with the counts that it is meant to reach and every control fired; what
this machine cannot do is skipped with a visible line, and with CI=true has failed.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # this is a program: it runs from a clone

from tools.environment import continue_in_environment

if __name__ == "__main__":
    continue_in_environment()

import msgspec

from tools.bench.machine import describe
from tools.campaigns import catalogue
from tools.campaigns.frame import reports
from tools.campaigns.frame.campaign import Campaign, Tier
from tools.campaigns.frame.performing import Task, WorkOrder, perform_all, work_here
from tools.campaigns.frame.results import PASSED, Report, Result, load, save, with_results_of, without_details
from tools.campaigns.frame.signals import NotedSignals

__all__ = ["main"]

_PUBLISHED: Final = Path(__file__).resolve().parent / "campaigns" / "published.json"
_JOBS: Final = len(os.sched_getaffinity(0)) + 1
"""One more than there are cores: some campaigns sleep most of the time, until it is time to kill."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen campaigns and print a line for each; the exit status says whether all is well."""
    parser = _parser()
    chosen = parser.parse_args(arguments)
    if chosen.work_order is not None:
        order = msgspec.json.decode(chosen.work_order, type=WorkOrder)
        work_here(order, catalogue.find(order.campaign))
        return 0
    if chosen.readme is not None:
        report = _loaded(parser, chosen.readme)
        print(reports.as_markdown(report, [catalogue.find(name) for name in catalogue.NAMES]), end="")
        return 0
    campaigns = _chosen(parser, chosen)
    if chosen.list:
        print("\n".join(reports.described(campaigns)))
        return 0
    report = _run(campaigns, chosen)
    print(reports.last_line(report), flush=True)
    if chosen.publish:
        save(without_details(with_results_of(report, load(_PUBLISHED)) if chosen.campaigns else report), _PUBLISHED)
    if chosen.json is not None:
        try:
            save(report, chosen.json)
        except OSError as error:
            sys.exit(f"the report is not written: {error}")
    return 0 if all(_is_well(each) for each in report.results) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tier = parser.add_mutually_exclusive_group()
    tier.add_argument("--fast", action="store_true", help="the counts for every day (the default)")
    tier.add_argument("--long", action="store_true", help="the full counts")
    parser.add_argument("--seed", type=int, help="where chance begins; another one each time by default")
    parser.add_argument("--scale", type=float, default=1.0, metavar="X", help="multiply all counts")
    parser.add_argument("--case", help="run this case alone")
    parser.add_argument("--control", metavar="NAME", help="run this control alone")
    parser.add_argument("--no-controls", action="store_true", help="leave the controls out")
    parser.add_argument("--jobs", type=int, default=_JOBS, metavar="N", help=f"how many at a time (here: {_JOBS})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there")
    parser.add_argument("--publish", action="store_true", help="keep the report as the README's, or as that part of it")
    parser.add_argument("--list", action="store_true", help="say what there is, and run nothing")
    parser.add_argument("--readme", type=Path, metavar="FILE", help="print the README's table from a report")
    parser.add_argument("--work-order", help=argparse.SUPPRESS)
    parser.add_argument("campaigns", nargs="*", metavar="CAMPAIGN", help="all of them by default")
    return parser


def _loaded(parser: argparse.ArgumentParser, path: Path) -> Report:
    try:
        return load(path)
    except (OSError, msgspec.MsgspecError) as error:
        parser.error(f"{path} cannot be read as a report: {error}")


def _chosen(parser: argparse.ArgumentParser, chosen: argparse.Namespace) -> list[Campaign]:
    unknown = [name for name in chosen.campaigns if name not in catalogue.NAMES]
    if unknown:
        parser.error(f"no campaign is called {', '.join(unknown)}; there are {', '.join(catalogue.NAMES)}")
    wanted = [name for name in catalogue.NAMES if not chosen.campaigns or name in chosen.campaigns]
    try:
        campaigns = [catalogue.find(name) for name in wanted]
    except ModuleNotFoundError as missing:
        parser.error(f"a campaign needs the package {missing.name}, which the extra `dev` brings; or name others")
    if (chosen.case is not None or chosen.control is not None) and len(campaigns) != 1:
        parser.error("--case and --control are of one campaign: name it")
    if chosen.case is not None and chosen.seed is None:
        parser.error("--case needs the --seed with which the case was seen")
    if chosen.case is not None and not re.fullmatch(campaigns[0].cases, chosen.case):
        parser.error(f"{campaigns[0].name} has no case {chosen.case!r}: their names match {campaigns[0].cases}")
    if chosen.control is not None and chosen.control not in [each.name for each in campaigns[0].controls]:
        names = ", ".join(each.name for each in campaigns[0].controls)
        parser.error(f"{campaigns[0].name} has no control called {chosen.control}; it has {names}")
    if chosen.publish and (chosen.case or chosen.control or chosen.no_controls or chosen.scale != 1):
        parser.error("only whole campaigns are published, with their controls")
    if chosen.publish and chosen.campaigns and load(_PUBLISHED).tier != ("long" if chosen.long else "fast"):
        parser.error("what is published is of the other tier; a part of it has to be of the same")
    if not chosen.scale > 0 or chosen.jobs < 1:
        parser.error("--scale has to be above 0, and --jobs at least 1")
    if chosen.json is not None and not _can_be_written(chosen.json):
        parser.error(f"--json: no file can be written at {chosen.json}")
    return campaigns


def _can_be_written(path: Path) -> bool:
    if path.is_dir():
        return False
    return os.access(path if path.exists() else path.absolute().parent, os.W_OK)


def _run(campaigns: Sequence[Campaign], chosen: argparse.Namespace) -> Report:
    seed = chosen.seed if chosen.seed is not None else random.SystemRandom().getrandbits(32)
    tier: Tier = "long" if chosen.long else "fast"
    began_s, began = time.monotonic(), datetime.now(UTC)
    with NotedSignals() as signals:
        print(f"{tier} tier, seed {seed}", flush=True)
        results = perform_all(_tasks(campaigns, chosen, tier, seed), chosen.jobs, _tell, signals.end_if_asked)
    return Report(
        command=_command(chosen),
        tier=tier,
        seed=seed,
        began=began.strftime("%Y-%m-%d"),
        seconds=round(time.monotonic() - began_s, 1),
        machine=describe(Path.cwd()),
        results=results,
    )


def _tell(result: Result) -> None:
    print("\n".join(reports.lines_of(result)), flush=True)


def _tasks(campaigns: Sequence[Campaign], chosen: argparse.Namespace, tier: Tier, seed: int) -> list[Task]:
    """Return the campaigns, those that take longest first, and behind them their controls, which are short."""
    whole = [Task(campaign, None, tier, seed, chosen.case, chosen.scale) for campaign in campaigns]
    controls = [Task(each, control, tier, seed, chosen.case) for each in campaigns for control in each.controls]
    if chosen.control is not None:
        return [task for task in controls if task.control is not None and task.control.name == chosen.control]
    return whole if chosen.no_controls or chosen.case is not None else whole + controls


def _is_well(result: Result) -> bool:
    return result.verdict in PASSED or (result.verdict == "skipped" and os.environ.get("CI") != "true")


def _command(chosen: argparse.Namespace) -> str:
    words = ["python", "tools/faults.py", "--long" if chosen.long else "--fast"]
    words += ["--scale", f"{chosen.scale:g}"] if chosen.scale != 1 else []
    words += ["--seed", str(chosen.seed)] if chosen.seed is not None else []
    words += ["--case", chosen.case] if chosen.case is not None else []
    words += ["--control", chosen.control] if chosen.control is not None else []
    words += ["--no-controls"] if chosen.no_controls else []
    return shlex.join([*words, *chosen.campaigns])


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
