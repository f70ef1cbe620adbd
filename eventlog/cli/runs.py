"""`eventlog runs`: the state of runs."""

from __future__ import annotations

from typing import Any, Final

import click
from msgspec import to_builtins

from eventlog.cli.commands import Group
from eventlog.cli.options import Options
from eventlog.cli.output import show_card, show_rows, time_text
from eventlog.cli.seed import card_of
from eventlog.cli.wiring import complete, open_log, read_run
from eventlog.run import Run
from projections import Row, RunsTable

__all__ = ["collect_rows", "runs"]

_COLUMNS: Final = {"run_id": "run", "status": "status", "action": "action", "output": "output", "version": "version"}
_PAGE: Final = 1000


@click.group("runs", cls=Group)
def runs() -> None:
    """The state of runs."""


@runs.command("list")
@click.option("--limit", type=click.IntRange(min=0), default=50, show_default=True, help="How many to show at most.")
@click.option("--all", "shows_all", is_flag=True, help="Show all.")
@click.pass_obj
def list_runs(options: Options, limit: int, shows_all: bool) -> None:
    """List the runs of the log by id."""
    complete(options, _list(options, None if shows_all else limit))


@runs.command("show")
@click.argument("run_id", metavar="RUN")
@click.option("--at-version", type=click.IntRange(min=1), metavar="N", help="As it was after its event N.")
@click.pass_obj
def show_run(options: Options, run_id: str, at_version: int | None) -> None:
    """Show a run as its events leave it, with everything that is frozen."""
    complete(options, _show(options, run_id, at_version))


async def collect_rows(table: RunsTable, limit: int | None, *, status: str | None = None) -> tuple[list[Row], int]:
    """Return up to `limit` rows of the view, of one status if given, and how many there are."""
    shown: list[Row] = []
    total = 0
    after: str | None = None
    while page := await table.page(after, _PAGE):
        wanted = [row for row in page if status is None or row["status"] == status]
        total += len(wanted)
        shown += wanted if limit is None else wanted[: max(limit - len(shown), 0)]
        after = str(page[-1]["run_id"])
    return shown, total


async def _list(options: Options, limit: int | None) -> None:
    async with open_log(options) as opened:
        rows, total = await collect_rows(opened.table, limit)
    show_rows(options, "runs", rows, _COLUMNS, total=total)


async def _show(options: Options, run_id: str, at_version: int | None) -> None:
    async with open_log(options) as opened:
        run, events = await read_run(opened.log, run_id, at_version=at_version)
    document = _state(run) | card_of(run, list(events))
    show_card(options, {key: document[key] for key in document if key != "trace"}, document=document)


def _state(run: Run) -> dict[str, Any]:
    """Return the state of a run beyond the keys of the frozen commands."""
    return {
        "run_id": run.run_id,
        "status": run.status.value,
        "version": run.version,
        "state_version": run.state_version,
        "committed": {},
        "pending_writes": [],
        "waiting": to_builtins(run.waiting),
        "approval": run.approval,
        "epoch": run.epoch,
        "attempts": run.attempts,
        "intent": to_builtins(run.intent),
        "recorded_at": time_text(run.recorded_at_us),
    }
