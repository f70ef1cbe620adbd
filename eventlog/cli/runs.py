"""`eventlog runs`: the state of runs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import click
from msgspec import to_builtins

from eventlog.cli.commands import Group
from eventlog.cli.options import Options
from eventlog.cli.output import note, show_card, show_rows, time_text
from eventlog.cli.record import decision_of, verdict_of
from eventlog.cli.seed import card_of
from eventlog.cli.wiring import Opened, complete, open_to_look, read_run
from eventlog.errors import StoreUnavailable
from eventlog.run import Compensation, Run
from projections import Row

__all__ = ["collect_rows", "runs"]

_COLUMNS: Final = {"run_id": "run", "status": "status", "action": "action", "output": "output"}
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


async def collect_rows(
    options: Options, opened: Opened, limit: int | None, *, statuses: Collection[str] | None = None
) -> tuple[list[Row], int]:
    """Return up to `limit` rows of the view, of these statuses if given, and how many there are.

    Without the version of the row, which is that of the last event that changed it and so not always the run's.
    """
    await _note_if_late(options, opened)
    shown: list[Row] = []
    total = 0
    after: str | None = None
    while page := await opened.table.page(after, _PAGE):
        wanted = [row for row in page if statuses is None or row["status"] in statuses]
        total += len(wanted)
        shown += wanted if limit is None else wanted[: max(limit - len(shown), 0)]
        after = str(page[-1]["run_id"])
    return [{name: row[name] for name in row if name != "version"} for row in shown], total


async def _note_if_late(options: Options, opened: Opened) -> None:
    """Say what a view is missing that cannot be brought up, because the log cannot be written here."""
    health = await opened.log.health()
    if not health.is_read_only:
        return
    behind = health.views_behind.get(f"{opened.view.name}/{opened.view.revision}")
    if behind is None:
        raise StoreUnavailable("store_readonly", "the log has no view of runs yet, and cannot be written to make one")
    if behind:
        note(options, f"the view of runs is {behind} events behind the log, which cannot be written here")


async def _list(options: Options, limit: int | None) -> None:
    async with open_to_look(options) as opened:
        rows, total = await collect_rows(options, opened, limit)
    show_rows(options, "runs", rows, _COLUMNS, total=total)


async def _show(options: Options, run_id: str, at_version: int | None) -> None:
    async with open_to_look(options) as opened:
        run, events = await read_run(opened.log, run_id, at_version=at_version)
    document = _state(run) | decision_of(events) | verdict_of(events) | card_of(run, list(events))
    show_card(options, {key: document[key] for key in document if key != "trace"}, document=document)


def _state(run: Run) -> dict[str, Any]:
    """Return the state of a run beyond the keys of the frozen commands."""
    return {
        "run_id": run.run_id,
        "status": run.status.value,
        "version": run.version,
        "folder": run.folder,
        "state_version": run.state_version,
        "committed": {},
        "pending_writes": [],
        "waiting": to_builtins(run.waiting),
        "approval": run.approval,
        "epoch": run.epoch,
        "attempts": run.attempts,
        "op_key": run.op_key,
        "key_until": _time_text(run.key_until_us),
        "intent": to_builtins(run.intent),
        "is_stray": run.is_stray,
        "result": run.result,
        "failure": to_builtins(run.failure),
        "problem": to_builtins(run.problem),
        "unknown": run.unknown,
        "late_result": to_builtins(run.late),
        "compensation": _undoing(run.compensation),
        "recorded_at": time_text(run.recorded_at_us),
    }


def _undoing(compensation: Compensation | None) -> dict[str, Any] | None:
    if compensation is None:
        return None
    fields: dict[str, Any] = to_builtins(compensation)
    fields["key_until"] = _time_text(fields.pop("key_until_us"))
    return fields


def _time_text(at_us: int | None) -> str | None:
    return None if at_us is None else time_text(at_us)
