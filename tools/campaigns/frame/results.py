"""What a campaign or a control came to, and the verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from tools.bench.machine import Machine

__all__ = ["PASSED", "Report", "Result", "Shown", "Verdict", "load", "save", "with_results_of", "without_details"]

Verdict: TypeAlias = Literal["held", "violated", "short", "stuck", "died", "skipped", "fired", "silent"]
PASSED: Final[frozenset[Verdict]] = frozenset({"held", "fired"})
"""A campaign has to hold, and a control to fire. What was skipped has not passed, but is no failure outside CI."""


class Shown(msgspec.Struct, frozen=True):
    """A violation: the invariant, the case that shows it again, and what was seen."""

    invariant: str
    case: str
    what: str


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One campaign, or one control of it.

    *held*: no violation, and all goals reached; *short*: none, but less was done than the goals ask for; *stuck*: it
    had to be ended; *died*: it ended by itself, with an exception or a signal. A control has *fired* or was *silent*.
    """

    campaign: str
    control: str | None
    seed: int
    tier: str = "fast"
    scale: float = 1.0
    verdict: Verdict
    seconds: float = 0.0
    counts: dict[str, int] = {}
    notes: dict[str, str] = {}
    violations: list[Shown] = []
    why: str = ""
    """What the verdict needs to be understood: missed goals, what is lacking, the end of what a process said."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All results of one run of the tool."""

    command: str
    tier: str
    seed: int
    began: str
    """The day, as YYYY-MM-DD."""
    seconds: float
    machine: Machine
    results: list[Result]


def save(report: Report, path: Path) -> None:
    """Write a report as JSON."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")


def without_details(report: Report) -> Report:
    """Return a report for others to read: without what was seen in each violation, which names places and processes."""
    results = [replace(each, violations=[replace(one, what="") for one in each.violations]) for each in report.results]
    return replace(report, results=results)


def with_results_of(again: Report, whole: Report) -> Report:
    """Return the whole report, with the results of a later run of some campaigns in place of those that it has."""
    later = {(each.campaign, each.control): each for each in again.results}
    return replace(whole, results=[later.get((each.campaign, each.control), each) for each in whole.results])


def load(path: Path) -> Report:
    """Read a report that `save` has written."""
    return msgspec.json.decode(path.read_bytes(), type=Report)
