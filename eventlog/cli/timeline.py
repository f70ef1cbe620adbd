"""`eventlog runs timeline`: the story of a run, one readable line an event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import click

from eventlog.cli.commands import Command
from eventlog.cli.late_views import require_views
from eventlog.cli.options import Options
from eventlog.cli.output import note, show_lines, show_rows, time_text
from eventlog.cli.record import mark_of
from eventlog.cli.redacted_runs import redacted_versions, say_what_is_redacted
from eventlog.cli.wiring import complete, open_to_look, version_of
from projections import TIMELINE, Row

__all__ = ["timeline"]

_COLUMNS: Final = {
    "version": "version",
    "recorded_at": "at",
    "actor": "by",
    "type": "event",
    "sentence": "what happened",
}
_EVERY: Final = -1


@click.command("timeline", cls=Command)
@click.argument("run_id", metavar="RUN")
@click.pass_obj
def timeline(options: Options, run_id: str) -> None:
    """Tell the story of a run: who proposed, approved, did and refused what, when and why, a line an event.

    It comes from the view `timeline`, which is brought up first; that takes a while the first time. Long values are
    cut, which is said: `tail RUN --format jsonl` has every event whole.
    """
    complete(options, _timeline(options, run_id))


async def _timeline(options: Options, run_id: str) -> None:
    async with open_to_look(options, asked_for=[TIMELINE]) as opened:
        version = await version_of(opened.log, run_id)
        is_whole = await require_views(options, opened, TIMELINE.name)
        view = opened.views[TIMELINE.name]
        rows = await opened.log.read_view(view.rows_where, "run_id", run_id, _EVERY, of=(view.name,))
        gone = await redacted_versions(opened.log, run_id)
    told = [_told(row, gone.get(row["version"])) for row in rows]
    if options.format == "human":
        show_lines(_lines(told))
    else:
        show_rows(options, "timeline", told, _COLUMNS, total=len(told))
    say_what_is_redacted(options, gone)
    untold = version - sum(row["version"] <= version for row in told)
    if untold and is_whole:
        note(options, f"{untold} of its events are of types that are not known here; `eventlog tail` shows them")


def _told(row: Row, redacted: str | None) -> dict[str, Any]:
    names = ("position", "run_id", "version", "actor", "type", "sentence")
    told = {**{name: row[name] for name in names}, "recorded_at": time_text(row["at_us"])}
    return told if redacted is None else {**told, "redacted": redacted}


def _lines(rows: Sequence[Row]) -> list[str]:
    """Return a line an event: its number in the run, when, and the sentence, which says who."""
    width = max((len(str(row["version"])) for row in rows), default=0)
    return [
        f"{row['version']:>{width}}  {row['recorded_at']}  {row['sentence']} {mark_of(row.get('redacted'))}".rstrip()
        for row in rows
    ]
