"""`eventlog projections check`: whether a view is what its log says, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import click
from msgspec import to_builtins

from eventlog.cli.advice import spelled
from eventlog.cli.options import Options
from eventlog.cli.output import grouped, note, progress, show_lines, to_json, write_document, write_text
from eventlog.cli.projections.command import PlacedViewCommand
from eventlog.cli.projections.difference_lines import difference_documents, difference_fields, difference_lines
from eventlog.cli.projections.known import known_views, unknown_view
from eventlog.cli.projections.place import open_place
from eventlog.cli.text import visible
from eventlog.cli.views_check import ViewCheck, check_one
from eventlog.cli.wiring import complete
from projections.sqlite_views.entries import read_entries

__all__ = ["check"]


@click.command("check", cls=PlacedViewCommand)
@click.argument("name", required=False)
@click.option("--all", "takes_all", is_flag=True, help="Every view of the log that is known here; so without NAME.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many rows to show.")
@click.pass_obj
def check(options: Options, name: str | None, takes_all: bool, limit: int) -> int:
    """Fold the log afresh and compare a view with it row by row, up to where the view is.

    Writes nothing. A view that is late, or has stopped, is right if its rows are right up to there.

    Exit status 0: equal. 3: rows differ. 4: it cannot be compared, or there are views and none is known here.
    """
    if name is not None and takes_all:
        raise click.UsageError("Either NAME or --all.")
    checks, unknown = complete(options, _check(options, name, limit))
    _show(options, checks, unknown)
    for each in unknown:
        note(options, f"the view {each} is not checked: its projection is not known here")
    return 4 if unknown and not checks else _status(checks)


async def _check(options: Options, name: str | None, limit: int) -> tuple[list[ViewCheck], list[str]]:
    known = known_views(options)
    async with open_place(options, is_read_only=True) as place:
        there = {entry.name for entry in (await read_entries(place.database)).entries if entry.state == "live"}
        if name is not None and name not in known:
            raise unknown_view(name, known, there)
        names = [name] if name is not None else [each for each in known if each in there]
        checks = []
        spell = partial(spelled, options)
        for each in names:
            with progress(options, f"checking {each}") as bar:
                checks.append(
                    await check_one(place.log, known[each], place=place.file, limit=limit, spell=spell, on_progress=bar)
                )
    return checks, sorted(there - known.keys()) if name is None else []


def _status(checks: Sequence[ViewCheck]) -> int:
    verdicts = {check.verdict for check in checks}
    if "differs" in verdicts:
        return 3
    return 4 if verdicts & {"unknown", "absent"} else 0


def _show(options: Options, checks: Sequence[ViewCheck], unknown: Sequence[str]) -> None:
    match options.format:
        case "json":
            write_document({"views": [_document(each) for each in checks], "not_checked": list(unknown)})
        case "jsonl":
            write_text("".join(to_json(_document(each)) + "\n" for each in checks))
        case "plain":
            show_lines([line for each in checks for line in _fields(each)], tabs=True)
        case "human":
            show_lines([line for each in checks for line in _lines(each)])
            if not checks:
                note(options, "the log has no view that is known here")


def _document(check: ViewCheck) -> dict[str, Any]:
    checked = check.checked
    return {
        "name": check.name,
        "revision": check.revision,
        "verdict": check.verdict,
        "reason": check.reason or None,
        "message": check.message or None,
        "position": checked and checked.position,
        "head": checked and checked.head,
        "rows": checked and checked.rows,
        "differing": checked and checked.differing,
        "differences": difference_documents(checked.differences) if checked else [],
        "problem": to_builtins(checked.problem) if checked else None,
    }


def _fields(check: ViewCheck) -> list[str]:
    checked = check.checked
    numbers = (checked.position, checked.head, checked.rows, checked.differing) if checked else ("-",) * 4
    words = ("view", check.name, check.verdict, *numbers, check.message or "-")
    return [
        "\t".join(visible(str(word)) for word in words),
        *difference_fields(check.name, checked.differences if checked else []),
    ]


def _lines(check: ViewCheck) -> list[str]:
    checked = check.checked
    if checked is None:
        return [f"{check.name}: {check.message or 'this log has no such view'} [{check.verdict}]"]
    said = check.message or f"{grouped(checked.rows)} rows are what the log says up to position {checked.position}"
    lines = [f"{check.name}, revision {check.revision}: {said} [{check.verdict}]"]
    return [*lines, *(f"    {line}" for line in difference_lines(checked.differences, checked.differing))]
