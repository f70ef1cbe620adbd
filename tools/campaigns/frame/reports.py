"""How results are told: a line for each while they come in, and the tables of the README."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from tools.campaigns.frame.campaign import Campaign
from tools.campaigns.frame.results import PASSED, Report, Result

__all__ = ["as_markdown", "described", "last_line", "lines_of"]

_SHOWN_VIOLATIONS: Final = 5
_NAME_WIDTH: Final = 36


def lines_of(result: Result) -> Iterator[str]:
    """Yield the line of a result, and below it what has to be known to go after it."""
    name = result.campaign if result.control is None else f"{result.campaign}, broken: {result.control}"
    facts = [_counted(result.counts), *(f"{name} {value}" for name, value in result.notes.items())]
    told = "; ".join(fact for fact in facts if fact)
    yield f"{name:{_NAME_WIDTH}} {result.verdict:8} {result.seconds:7.1f} s  {told}".rstrip()
    if result.why:
        yield f"    {result.why}"
    if result.control is not None:
        yield from (f"    {each.invariant} {each.case}: {each.what}"[:200] for each in result.violations[-1:])
        return
    for each in result.violations[:_SHOWN_VIOLATIONS]:
        yield f"    {each.invariant} {each.case}: {each.what}"
        yield f"    again: python tools/faults.py {_chosen(result)}--case '{each.case}' {result.campaign}"
    if len(result.violations) > _SHOWN_VIOLATIONS:
        yield f"    and {len(result.violations) - _SHOWN_VIOLATIONS} more"


def _chosen(result: Result) -> str:
    """Return the words that choose the same cases: which of them there are, and what they do, depends on all three."""
    tier = "--long " if result.tier == "long" else ""
    scale = f"--scale {result.scale:g} " if result.scale != 1 else ""
    return f"{tier}{scale}--seed {result.seed} "


def last_line(report: Report) -> str:
    """Return the sum of a report in one line."""
    campaigns = [each for each in report.results if each.control is None]
    controls = [each for each in report.results if each.control is not None]
    violations = sum(len(each.violations) for each in campaigns)
    held, fired = (sum(each.verdict in PASSED for each in some) for some in (campaigns, controls))
    skipped = sum(each.verdict == "skipped" for each in report.results)
    parts = [
        f"{held} of {len(campaigns)} campaigns held",
        f"{violations} violations",
        f"{fired} of {len(controls)} controls fired",
        *([f"{skipped} skipped"] if skipped else []),
    ]
    return f"{', '.join(parts)}; {report.tier} tier, seed {report.seed}, {report.seconds:.0f} s"


def described(campaigns: Iterable[Campaign]) -> Iterator[str]:
    """Yield what each campaign does, checks, and is checked by."""
    for campaign in campaigns:
        yield f"{campaign.name}: {campaign.title} ({', '.join(campaign.faults)}; {', '.join(campaign.invariants)})"
        goals = (f"{name} {goal.fast:,} / {goal.long:,}" for name, goal in campaign.goals.items())
        yield f"    fast / long: {'; '.join(goals)}"
        yield from (f"    broken, {control.name}: {control.what}" for control in campaign.controls)


def as_markdown(report: Report, campaigns: Sequence[Campaign]) -> str:
    """Return the reliability table of the README for a report."""
    results = {each.campaign: each for each in report.results if each.control is None}
    lines = [
        "| what happens (faults) | what is promised (invariants) | campaign | last figures | controls that fired |",
        "|---|---|---|---|---|",
    ]
    for campaign in campaigns:
        if campaign.name in results:
            happens = f"{campaign.title} ({', '.join(campaign.faults)})"
            promised = f"{campaign.promise} ({', '.join(campaign.invariants)})"
            figures, fired = _figures(results[campaign.name], campaign), _fired(report, campaign)
            lines.append(f"| {happens} | {promised} | `{campaign.name}` | {figures} | {fired} |")
    return "\n".join([*lines, "", *_small_print(report)]) + "\n"


def _fired(report: Report, campaign: Campaign) -> str:
    controls = [each for each in report.results if each.campaign == campaign.name and each.control is not None]
    silent = [each.control for each in controls if each.verdict not in PASSED]
    told = f"{len(controls) - len(silent)} of {len(campaign.controls)}"
    return f"{told}; **not {', '.join(map(str, silent))}**" if silent else told


def _small_print(report: Report) -> list[str]:
    machine = report.machine
    later = {f"`{each.campaign}` (seed {each.seed})": None for each in report.results if each.seed != report.seed}
    return [
        f"`{report.command}`, {report.began}, seed {report.seed}: {last_line(report).partition(';')[0]}, in "
        f"{report.seconds / 60:.0f} minutes on {machine.cpu}, {machine.cores} cores, {machine.kernel}, "
        f"{machine.file_system}, Python {machine.python}, SQLite {machine.sqlite}.",
        *([f"Of a later run, behind a change, are the figures of {', '.join(later)}."] if later else []),
    ]


def _figures(result: Result, campaign: Campaign) -> str:
    """Return how often each thing was done that has a goal, and what was wrong."""
    counted = _counted({name: result.counts[name] for name in campaign.goals if name in result.counts})
    violations = f"{len(result.violations) or 'no'} violation{'s' * (len(result.violations) != 1)}"
    verdict = [] if result.verdict == "held" else [f"**{result.verdict}**"]
    return "; ".join([*verdict, *([counted] if counted else []), violations])


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items())
