"""The result: what is kept as JSON, and what a person reads in a terminal or in the README.

The JSON file holds one `Report`: every figure of every round, so that anything else can be computed from it later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from tools.bench.durability import CONTROL, Syncs
from tools.bench.goals import Rating
from tools.bench.machine import Machine
from tools.bench.ratios import spread, summary
from tools.bench.rounds import Series
from tools.bench.store import Settings

__all__ = ["CaseResult", "Report", "as_markdown", "as_text", "load", "save"]


class CaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a case gave: a value a round for each side."""

    name: str
    what: str
    unit: str
    series: Series


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the benchmark. `left_out` are peers that are not installed; loads are those of the minute."""

    command: str
    scale: str
    history: int
    machine: Machine
    load_before: float
    load_after: float
    versions: Mapping[str, str]
    left_out: Sequence[str]
    settings: Mapping[str, Settings]
    syncs: Sequence[Syncs]
    cases: Sequence[CaseResult]
    goals: Sequence[Rating]


Table = list[list[str]]

_FACTS: Final = "{cpu}, {cores} cores, {kernel}, {file_system}, Python {python}, SQLite {sqlite}"


def save(report: Report, path: Path) -> None:
    """Write the report as JSON."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")


def load(path: Path) -> Report:
    """Read a report back. Raises msgspec.ValidationError for another kind of file."""
    return msgspec.json.decode(path.read_bytes(), type=Report)


def as_text(report: Report) -> str:
    """Return the report for a terminal."""
    return "\n".join(_text_lines(report))


def as_markdown(report: Report) -> str:
    """Return the tables for the README, with the command and the machine's facts."""
    return "\n".join(_markdown_lines(report)) + "\n"


def _text_lines(report: Report) -> Iterator[str]:
    yield f"$ {report.command}"
    yield facts(report)
    yield from (f"not installed: {name}" for name in report.left_out)
    for title, table in _tables(report):
        yield f"\n{title}"
        yield from _aligned(table)


def _markdown_lines(report: Report) -> Iterator[str]:
    yield f"`{report.command}` · {facts(report)}"
    if report.left_out:
        yield f"\nnot installed: {', '.join(report.left_out)}"
    for title, table in _tables(report):
        yield f"\n**{title}**\n"
        yield from _markdown_table(table)


def facts(report: Report) -> str:
    """Return the machine's facts in one line."""
    load_average = f"load {report.load_before} before, {report.load_after} after"
    return f"{_FACTS.format(**msgspec.structs.asdict(report.machine))}; {load_average}; events of 461 B on average"


def _tables(report: Report) -> Iterator[tuple[str, Table]]:
    if report.settings:
        yield "Settings, as read back", settings_table(report)
    if report.syncs:
        yield "Syncs, as counted by strace", syncs_table(report.syncs)
    for case in report.cases:
        yield f"{case.name}: {case.what}", case_table(case)
    if report.goals:
        yield f"Goals (medians of paired ratios; history of {report.history:,} events)", goals_table(report.goals)


def settings_table(report: Report) -> Table:
    """Return the version and the durability settings of each store."""
    rows = [["store", "version", "settings"]]
    for name, settings in report.settings.items():
        spelled = ", ".join(f"{key}={value}" for key, value in settings.items())
        rows.append([name, report.versions.get(name, ""), spelled])
    return rows


def syncs_table(syncs: Sequence[Syncs]) -> Table:
    """Return how many syncs came with how many commits."""
    rows = [["store", "commits", "events in each", "syncs", "each commit synced"]]
    for each in syncs:
        verdict = "yes" if each.is_durable else "no (the negative control)" if each.name == CONTROL else "NO"
        rows.append([each.name, str(each.commits), str(each.events), str(each.syncs), verdict])
    return rows


def case_table(case: CaseResult) -> Table:
    """Return median and spread of each side of a case."""
    rows = [["side", case.unit or "figure", "spread"]]
    for name, values in case.series.items():
        is_single = len(values) == 1
        rows.append([name, _number(summary(values).median), "" if is_single else f"{spread(values):.0f} %"])
    return rows


def goals_table(goals: Sequence[Rating]) -> Table:
    """Return the goals, what was found, what the bare engine reached, and whether that is enough."""
    rows = [["#", "figure", "found", "rounds", "bare engine", "goal", ""]]
    signs = {"at least": "≥", "at most": "≤", "below": "<"}
    for goal in goals:
        bound = f"{signs[goal.direction]} {_number(goal.bound)}"
        ends = f"{_number(goal.low)} – {_number(goal.high)}"
        bare = "" if goal.bare is None else _number(goal.bare)
        verdict = "met" if goal.is_met else "MISSED"
        rows.append([goal.number, goal.text, _number(goal.value), ends, bare, bound, verdict])
    return rows


def _number(value: float) -> str:
    """Return a figure with about three digits that mean something."""
    if value == round(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _aligned(table: Table) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        yield ("  " + "  ".join(map(_padded, row, widths))).rstrip()


def _padded(cell: str, width: int) -> str:
    return cell.rjust(width) if _is_figure(cell) else cell.ljust(width)


def _is_figure(cell: str) -> bool:
    return cell.lstrip("-").translate(str.maketrans("", "", "., %")).isdigit()


def _markdown_table(table: Table) -> Iterator[str]:
    head, *rows = table
    yield _markdown_row(head)
    yield _markdown_row(["---:" if all(map(_is_figure, column)) else "---" for column in zip(*rows, strict=True)])
    yield from map(_markdown_row, rows)


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
