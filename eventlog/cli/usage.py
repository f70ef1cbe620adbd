"""`eventlog runs usage`: what runs have used, as far as their results report it: tokens, cost and time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import click

from eventlog.cli.commands import Command
from eventlog.cli.late_views import require_views
from eventlog.cli.options import Options
from eventlog.cli.output import grouped, note, show_lines, show_rows, write_document
from eventlog.cli.redacted_runs import redacted_versions, say_what_is_redacted
from eventlog.cli.wiring import Opened, complete, open_to_look, version_of
from projections import USAGE, Row
from projections.sqlite_views.used_runs import used_runs_count
from projections.usage_totals import usage_total

__all__ = ["usage"]

_FIGURES: Final = {
    "input_tokens": "tokens in",
    "output_tokens": "out",
    "total_tokens": "in all",
    "cost": "cost",
    "cost_usd": "cost USD",
    "results": "results",
    "failures": "failures",
    "time_s": "time s",
}
_OF_RUNS: Final = {"run_id": "run", "workflow": "workflow", **_FIGURES, "elapsed_s": "elapsed s"}
_OF_ONE: Final = {"agent": "agent", "kind": "kind", "action": "action", **_FIGURES}
_EVERY: Final = -1
_PAGE: Final = 1000


@click.command("usage", cls=Command)
@click.option("--limit", type=click.IntRange(min=0), default=50, show_default=True, help="How many to show at most.")
@click.option("--all", "shows_all", is_flag=True, help="Show all.")
@click.argument("run_id", metavar="[RUN]", required=False)
@click.pass_obj
def usage(options: Options, limit: int, shows_all: bool, run_id: str | None) -> None:
    """Show what runs have used: tokens, cost and time; of one RUN by agent and by what was done.

    Tokens and costs are what the results of steps and actions report, as the fields input_tokens, output_tokens,
    total_tokens, cost and cost_usd, in themselves or under `usage`; they are added up exactly. `time` is that of the
    attempts whose beginning and end are in the log. `elapsed` lies between the first and the last of the events that
    are counted: of a workflow that is its whole life, of a run of one action its attempts.

    It comes from the view `usage`, which is brought up first; that takes a while the first time.
    """
    most = None if shows_all else limit
    complete(options, _of_runs(options, most) if run_id is None else _of_one(options, run_id, most))


# ── all runs ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _of_runs(options: Options, limit: int | None) -> None:
    async with open_to_look(options, asked_for=[USAGE]) as opened:
        await require_views(options, opened, USAGE.name)
        totals = await _totals(opened, limit)
        count = await opened.log.read_view(used_runs_count, of=(USAGE.name,))
    show_rows(options, "usage", _shown(options, totals), _OF_RUNS, total=max(count, len(totals)))
    _say_what_is_not_counted(options, totals)


async def _totals(opened: Opened, limit: int | None) -> list[Row]:
    """Return the totals of the first runs by id, read page by page."""
    totals: list[Row] = []
    kept: list[Row] = []
    after: Any = None
    view = opened.views[USAGE.name]
    while page := await opened.log.read_view(view.rows, after, _PAGE, of=(view.name,)):
        runs = [list(rows) for _, rows in groupby([*kept, *page], key=itemgetter("run_id"))]
        kept = runs.pop()  # the next page may have more of it
        totals += map(_total_of_run, runs)
        if limit is not None and len(totals) >= limit:
            return totals[:limit]
        after = tuple(page[-1][name] for name in view.key_columns)
    return [*totals, _total_of_run(kept)] if kept else totals


def _total_of_run(rows: Sequence[Row]) -> Row:
    return {"run_id": rows[0]["run_id"], **usage_total(rows)}


# ── one run ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _of_one(options: Options, run_id: str, limit: int | None) -> None:
    async with open_to_look(options, asked_for=[USAGE]) as opened:
        await version_of(opened.log, run_id)
        await require_views(options, opened, USAGE.name)
        view = opened.views[USAGE.name]
        found = await opened.log.read_view(view.rows_where, "run_id", run_id, _EVERY, of=(view.name,))
        gone = await redacted_versions(opened.log, run_id)
    whole = {"run_id": run_id, **usage_total(found)}
    rows = _by_agent_and_action(found)
    shown = rows[:limit]
    if options.format == "json":
        count = {"redacted_events": len(gone)} if gone else {}
        write_document({"run": whole, "usage": shown, "shown": len(shown), "total": len(rows), **count})
        if len(shown) < len(rows):
            note(options, f"showing {grouped(len(shown))} of {grouped(len(rows))} (--all)")
    else:
        show_rows(options, "usage", _shown(options, shown), _OF_ONE, total=len(rows))
    if options.format == "human":
        show_lines(_in_all(whole))
    _say_what_is_not_counted(options, [whole])
    say_what_is_redacted(options, gone, "what those have reported is not counted")


def _by_agent_and_action(rows: Sequence[Row]) -> list[Row]:
    """Return a row for whoever did what. That a run began and ended used nothing."""
    done = [row for row in rows if row["kind"] != "run"]
    groups = groupby(sorted(done, key=_doer_and_deed), key=_doer_and_deed)
    return [_used(agent, kind, action, each) for (agent, kind, action), each in groups]


def _doer_and_deed(row: Row) -> tuple[str, str, str]:
    """Return who did what. What an attempt does that has no result yet is said by its step, if it has one."""
    return row["agent"], row["kind"], row["action"] or row["step"]


def _used(agent: str, kind: str, action: str, rows: Iterable[Row]) -> Row:
    total = {name: value for name, value in usage_total(rows).items() if name != "workflow"}
    return {"agent": agent, "kind": kind, "action": action or None, **total}


def _in_all(whole: Row) -> list[str]:
    tokens = f"{grouped(whole['input_tokens'])} tokens in, {grouped(whole['output_tokens'])} out"
    cost = f"cost {whole['cost']}, USD {whole['cost_usd']}"
    took = f"{_seconds(whole['time_us'])} s at work, {_seconds(whole['elapsed_us'])} s from the first to the last"
    return [f"in all: {tokens}, {grouped(whole['total_tokens'])} together; {cost}; {took}"]


# ── for people ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _shown(options: Options, rows: Sequence[Row]) -> list[Row]:
    """Return the rows as they are, or for people with their times in seconds."""
    if options.is_json:
        return list(rows)
    return [{**row, "time_s": _seconds(row["time_us"]), "elapsed_s": _seconds(row["elapsed_us"])} for row in rows]


def _seconds(microseconds: int) -> str:
    return f"{microseconds // 1_000_000}.{microseconds % 1_000_000:06d}"


def _say_what_is_not_counted(options: Options, totals: Sequence[Row]) -> None:
    malformed, unread = (sum(row[name] for row in totals) for name in ("malformed", "unread"))
    if malformed:
        note(options, f"{grouped(malformed)} reported figures are no numbers, and not counted")
    if unread:
        note(options, f"{grouped(unread)} results are kept beside the log, and were not looked into")
