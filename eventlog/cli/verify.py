"""`eventlog verify`: whether the log is what was appended, and the views what the log says."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import click
from msgspec import to_builtins

from eventlog.audit.snapshots import check_snapshots
from eventlog.audit.verify import Finding, Verdicts, damage
from eventlog.audit.verify import verify as verify_log
from eventlog.cli.advice import spelled
from eventlog.cli.failures import CannotVerify
from eventlog.cli.options import Options
from eventlog.cli.output import counted, grouped, note, progress, show_lines, write_document
from eventlog.cli.projections.command import ViewCommand
from eventlog.cli.projections.known import Known, known_views
from eventlog.cli.text import visible
from eventlog.cli.views_check import check_view_of_run, check_views
from eventlog.cli.wiring import Opened, complete, open_log
from eventlog.decide import check_run_id
from eventlog.errors import LogCorrupt, StoreBusy, StoreUnavailable
from eventlog.log import Problem

__all__ = ["verify"]

_MEANING: Final = {
    "integrity": "every event is what its hash says",
    "order": "positions, versions and times follow one another",
    "artifacts": "every large value that an event names is there, and is what its name says",
    "snapshots": "the states that runs may be resumed from are what their events add up to",
    "views": "the views that are known here are what the log says",
}


@click.command("verify", cls=ViewCommand)
@click.option("--run", "run_id", metavar="RUN", help="Only this run.")
@click.pass_obj
def verify(options: Options, run_id: str | None) -> int:
    """Check the log against its hashes, its order, its artifacts, its snapshots and its views.

    Views that this program does not know are named, and not checked. --projections names your own, and is imported with
    its event types; what --app names is not run.

    Appends nothing and changes no data; the side files of SQLite and of the lock may appear beside the log.

    Exit status 0: clean. 3: damage found. 4: cannot verify.
    """
    if run_id is not None:
        check_run_id(run_id)
    verdicts = complete(options, _verify(options, run_id))
    _show(options, verdicts)
    return 3 if verdicts.is_damaged else 0 if verdicts.is_known else 4


async def _verify(options: Options, run_id: str | None) -> Verdicts:
    known = known_views(options)
    try:
        async with open_log(options, is_read_only=True) as opened:
            with progress(options, "verifying") as bar:
                return await verify_log(
                    opened.log,
                    run=run_id,
                    files=opened.log.check_file if run_id is None else None,
                    artifacts=opened.log.artifacts,
                    snapshots=lambda: check_snapshots(opened.log, run_id),
                    views=lambda: _check_views(options, opened, known, run_id),
                    progress=bar,
                )
    except LogCorrupt as error:
        return _cannot_even_open(error)
    except StoreBusy:
        raise
    except StoreUnavailable as error:
        raise CannotVerify(error) from error


async def _check_views(options: Options, opened: Opened, known: Known, run_id: str | None) -> Finding:
    spell = partial(spelled, options)
    if run_id is not None:
        return await check_view_of_run(opened.log, opened.view, run_id, spell=spell)
    return await check_views(opened.log, known, spell=spell)


def _cannot_even_open(error: LogCorrupt) -> Verdicts:
    found = Finding(verdict="damaged", problems=(damage(error),), count=1)
    unknown = Finding(verdict="unknown")
    return Verdicts(
        integrity=found, order=unknown, artifacts=unknown, snapshots=unknown, views=unknown, events=0, head=0
    )


def _findings(verdicts: Verdicts) -> dict[str, Finding]:
    return {
        "integrity": verdicts.integrity,
        "order": verdicts.order,
        "artifacts": verdicts.artifacts,
        "snapshots": verdicts.snapshots,
        "views": verdicts.views,
    }


def _show(options: Options, verdicts: Verdicts) -> None:
    findings = _findings(verdicts)
    if options.is_json:
        documents = {name: _document(finding) for name, finding in findings.items()}
        write_document({**documents, "events": verdicts.events, "head": verdicts.head})
        return
    is_plain = options.format == "plain"
    spell = _plain_lines if is_plain else _human_lines
    show_lines([line for name, finding in findings.items() for line in spell(name, finding)], tabs=is_plain)
    note(options, f"checked {counted(verdicts.events, 'event')}; the log ends at position {verdicts.head}")


def _document(finding: Finding) -> dict[str, Any]:
    problems: Any = to_builtins(finding.problems)
    return {"verdict": finding.verdict, "problems": problems, "problem_count": finding.count, **finding.details}


def _plain_lines(name: str, finding: Finding) -> list[str]:
    problems = [
        "\t".join((name, "problem", str(problem.position or "-"), problem.reason, visible(problem.message)))
        for problem in finding.problems
    ]
    return [f"{name}\t{finding.verdict}\t{finding.count}", *problems, *_plain_details(name, finding)]


def _plain_details(name: str, finding: Finding) -> Iterator[str]:
    for each in finding.details.get("checked", ()):
        yield "\t".join((name, "checked", visible(each["name"]), each["verdict"]))
    for each in finding.details.get("not_checked", ()):
        yield "\t".join((name, "not_checked", visible(each["name"]), visible(each["why"])))


def _human_lines(name: str, finding: Finding) -> list[str]:
    lines = [f"{name:<10} {finding.verdict:<8} {_MEANING[name]}"]
    lines += [f"    {_sentence(problem)}" for problem in finding.problems]
    left = finding.count - len(finding.problems)
    lines += [f"    … and {left} more"] if left else []
    return [*lines, *_human_details(finding)]


def _human_details(finding: Finding) -> Iterator[str]:
    for each in finding.details.get("checked", ()):
        rows = "" if "rows" not in each else f", {grouped(each['rows'])} rows up to position {each['position']}"
        yield f"    {each['name']}, revision {each['revision']}: {each['verdict']}{rows}"
    for each in finding.details.get("not_checked", ()):
        yield f"    {each['name']}, revision {each['revision']}: not checked, {each['why']}"


def _sentence(problem: Problem) -> str:
    where = f"position {problem.position}: " if problem.position is not None else ""
    return f"{where}{problem.message} [{problem.reason}]"
