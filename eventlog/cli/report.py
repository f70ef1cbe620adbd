"""`eventlog report`: the whole story of a run, as one HTML file."""

from __future__ import annotations

from typing import Any

import click

from eventlog import __version__
from eventlog.audit.report import Subject, run_report
from eventlog.audit.snapshots import check_snapshots
from eventlog.audit.verify import Finding, Verdicts
from eventlog.audit.verify import verify as verify_log
from eventlog.cli.commands import Command
from eventlog.cli.options import Options
from eventlog.cli.output import note, show_card, write_text
from eventlog.cli.target_file import TargetFile
from eventlog.cli.views_check import check_view_of_run
from eventlog.cli.wiring import Opened, complete, open_to_look, read_run
from eventlog.decide import check_run_id
from eventlog.stores.clock import SystemClock

__all__ = ["report", "subject_of"]


@click.command("report", cls=Command)
@click.argument("run_id", metavar="RUN")
@click.option("--to", "target", metavar="FILE|-", required=True, help="Where to write it; - is standard output.")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@click.pass_obj
def report(options: Options, run_id: str, target: str, force: bool) -> None:
    """Write the story of a run as one HTML file: who proposed, approved, did and was refused what, when and why.

    The file runs nothing and asks for nothing from outside. The run is verified first; the report says what was found,
    and how to verify it again. Of a run whose events are damaged there is no report, but exit status 3.
    """
    complete(options, _report(options, check_run_id(run_id), target, force))


async def _report(options: Options, run_id: str, target: str, force: bool) -> None:
    async with open_to_look(options) as opened:
        subject = await subject_of(options, opened, run_id)
        place = opened.log.place
    page = run_report(subject)
    if target == "-":
        write_text(page)
    else:
        with TargetFile(target, force=force, place=place) as file:
            file.write(page.encode())
            file.publish()
        show_card(options, _card(subject, target, file.size_bytes))
    if subject.verdicts.is_damaged:
        note(options, "the check found damage, which the report shows; see it with `eventlog verify`")


async def subject_of(options: Options, opened: Opened, run_id: str) -> Subject:
    """Return what a report of the run is about, verified. Raises Refused(`unknown_run`), LogCorrupt."""
    run, events = await read_run(opened.log, run_id)
    health = await opened.log.health()
    return Subject(
        run=run,
        events=events,
        verdicts=await _verdicts(opened, run_id),
        path=options.db,
        log_id=health.log_id,
        store_id=health.store_id,
        head=await opened.log.head(),
        made_at_us=SystemClock().now_us(),
        program=f"eventlog {__version__}",
    )


async def _verdicts(opened: Opened, run_id: str) -> Verdicts:
    return await verify_log(
        opened.log,
        run=run_id,
        artifacts=opened.log.artifacts,
        snapshots=lambda: check_snapshots(opened.log, run_id),
        views=lambda: check_view_of_run(opened.log, opened.view, run_id),
    )


def _card(subject: Subject, target: str, size_bytes: int) -> dict[str, Any]:
    findings = {name: getattr(subject.verdicts, name) for name in subject.verdicts.__struct_fields__}
    return {
        "path": target,
        "size_bytes": size_bytes,
        "run_id": subject.run.run_id,
        "version": subject.run.version,
        "status": subject.run.status.value,
        "verified": {name: each.verdict for name, each in findings.items() if isinstance(each, Finding)},
    }
