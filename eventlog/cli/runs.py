"""`eventlog runs`: runs as they are and were, and what a person tells one: a signal, or that it is cancelled."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from typing import Any, Final

import click
from msgspec import to_builtins

from eventlog.cli.commands import Group
from eventlog.cli.late_views import require_views
from eventlog.cli.options import Options
from eventlog.cli.output import show_card, show_rows, time_text
from eventlog.cli.record import decision_of, redaction_of, verdict_of
from eventlog.cli.seed import card_of
from eventlog.cli.source import json_argument
from eventlog.cli.state_diff import show_diff
from eventlog.cli.text import shortened
from eventlog.cli.timeline import timeline
from eventlog.cli.usage import usage
from eventlog.cli.wiring import Opened, complete, open_existing, open_to_look, read_run
from eventlog.cli.workflow_state import (
    happened_anyway,
    refused_text,
    state_card,
    state_document,
    state_lines,
    terms_of,
    way_out,
)
from eventlog.decide import check_run_id
from eventlog.events import run_stream
from eventlog.log import RecordedEvent
from eventlog.run import Compensation, Run, Status
from eventlog.times import parse_time
from projections import Row

__all__ = ["all_rows", "collect_rows", "runs"]

_COLUMNS: Final = {
    "run_id": "run",
    "status": "status",
    "action": "action",
    "output": "output",
    "workflow": "workflow",
    "waiting_for": "waits for",
}
_REFUSAL_COLUMNS: Final = ("refusal", "refusal_detail", "refused_at_us")
_OWN: Final = frozenset({"asks", "expires_at_us", "is_cancelled", "state", "version", *_REFUSAL_COLUMNS})
"""Columns of the view that are not for readers; `version` is that of the last event that changed the row."""
_PAGE: Final = 1000
_REFUSAL: Final = 100
"""How many characters of a refusal the list shows people; the card of the run has more."""
_DRIVEN: Final = frozenset({Status.RUNNING.value, Status.WAITING.value})
"""Where a workflow run goes on by itself, if somebody drives it who can."""


@click.group("runs", cls=Group)
def runs() -> None:
    """The runs: their state, their story, what they have used."""


for _command in (timeline, usage):
    runs.add_command(_command)


@runs.command("list")
@click.option("--limit", type=click.IntRange(min=0), default=50, show_default=True, help="How many to show at most.")
@click.option("--all", "shows_all", is_flag=True, help="Show all.")
@click.option(
    "--status",
    "statuses",
    type=click.Choice([status.value for status in Status], case_sensitive=False),
    multiple=True,
    help="Only runs that are there; repeatable.",
)
@click.pass_obj
def list_runs(options: Options, limit: int, shows_all: bool, statuses: tuple[str, ...]) -> None:
    """List the runs of the log by id.

    Of a workflow that could not be driven on, because its code is missing or is another now, the list says so.
    """
    complete(options, _list(options, None if shows_all else limit, frozenset(statuses)))


@runs.command("show")
@click.argument("run_id", metavar="RUN")
@click.option("--at-version", type=click.IntRange(min=1), metavar="N", help="As it was after its event N.")
@click.option("--at-time", metavar="T", help="As it was then: ISO 8601 with a zone or Z, or @ and microseconds.")
@click.pass_obj
def show_run(options: Options, run_id: str, at_version: int | None, at_time: str | None) -> None:
    """Show a run as its events leave it, with everything that is frozen.

    Of a workflow the paused state comes first: what is committed, what is done and not committed yet, what it waits
    for. With --at-time the events count that were recorded at that instant or before.
    """
    if at_version is not None and at_time is not None:
        raise click.UsageError("--at-version and --at-time exclude one another.")
    complete(options, _show(options, run_id, at_version, None if at_time is None else parse_time(at_time)))


@runs.command("diff")
@click.argument("run_id", metavar="RUN")
@click.argument("first", type=click.IntRange(min=1), metavar="V1")
@click.argument("second", type=click.IntRange(min=1), metavar="V2")
@click.pass_obj
def diff_run(options: Options, run_id: str, first: int, second: int) -> None:
    """Show what changed in a run between its versions V1 and V2, field by field, and the events in between.

    JSON has every value whole; for people long ones are cut, which is said.
    """
    complete(options, _diff(options, run_id, first, second))


@runs.command("cancel")
@click.option("--reason", metavar="TEXT", help="Why; recorded.")
@click.argument("run_id", metavar="RUN")
@click.pass_obj
def cancel_run(options: Options, run_id: str, reason: str | None) -> None:
    """Cancel a run that has not ended, and the runs that it waits for.

    Nothing begins any more. What is under way is not called back, and what it comes to is still recorded.
    """
    complete(options, _cancel(options, run_id, reason))


@runs.command("signal")
@click.option("--payload", "payload_from", metavar="JSON|@FILE|-", help="What the signal carries.")
@click.argument("run_id", metavar="RUN")
@click.argument("name", metavar="NAME")
@click.pass_obj
def signal_run(options: Options, run_id: str, name: str, payload_from: str | None) -> None:
    """Send a workflow run a signal. It is kept until the workflow takes it."""
    payload = None if payload_from is None else json_argument(payload_from, option="--payload", what="the payload")
    complete(options, _signal(options, run_id, name, payload))


async def collect_rows(
    options: Options, opened: Opened, limit: int | None, statuses: Collection[str] = ()
) -> tuple[list[Row], int]:
    """Return up to `limit` rows of the view as readers see them, and how many there are; of these statuses, if any."""
    shown: list[Row] = []
    total = 0
    async for row in all_rows(options, opened):
        if statuses and row["status"] not in statuses:
            continue
        total += 1
        if limit is None or total <= limit:
            shown.append({**_without_own(row), "refused": _refused(row)})
    return shown, total


async def all_rows(options: Options, opened: Opened) -> AsyncIterator[Row]:
    """Give the rows of the view by run id, and say what it is missing."""
    await require_views(options, opened, opened.view.name)
    after: str | None = None
    while page := await opened.table.page(after, _PAGE):
        for row in page:
            yield row
        after = str(page[-1]["run_id"])


def _without_own(row: Row) -> Row:
    """Return the row without the columns that are the view's own."""
    return {name: value for name, value in row.items() if name not in _OWN}


async def _list(options: Options, limit: int | None, statuses: Collection[str]) -> None:
    async with open_to_look(options) as opened:
        rows, total = await collect_rows(options, opened, limit, statuses)
    show_rows(options, "runs", rows if options.is_json else [_for_people(row) for row in rows], _COLUMNS, total=total)


def _refused(row: Row) -> str | None:
    """Return why nobody could drive a workflow run on, if somebody has to before it goes on by itself."""
    if row["refusal"] is None or row["workflow"] is None or row["status"] not in _DRIVEN:
        return None
    return refused_text({"code": row["refusal"], "detail": row["refusal_detail"]})


def _for_people(row: Row) -> Row:
    """Return the row with what it was refused as what the run waits for."""
    refused = row["refused"]
    return row if refused is None else {**row, "waiting_for": shortened(f"refused: {refused}", _REFUSAL)}


async def _diff(options: Options, run_id: str, first: int, second: int) -> None:
    async with open_to_look(options) as opened:
        before, _ = await read_run(opened.log, run_id, at_version=first)
        after, _ = await read_run(opened.log, run_id, at_version=second)
        low, high = sorted((first, second))
        between = [event async for event in opened.log.read(run_stream(run_id), after=low, limit=high - low)]
    show_diff(options, before, after, between)


async def _show(options: Options, run_id: str, at_version: int | None, at_us: int | None) -> None:
    async with open_to_look(options) as opened:
        run, events = await read_run(opened.log, run_id, at_version=at_version, at_us=at_us)
    if run.progress is not None:
        _show_workflow(options, run, events)
        return
    document = _state(run) | terms_of(run) | decision_of(run) | verdict_of(events) | card_of(run, list(events))
    notes = filter(None, (happened_anyway(document), way_out(run, events)))
    card = {key: document[key] for key in document if key != "trace"}
    show_card(options, card, document=document, extra=list(notes))


def _show_workflow(options: Options, run: Run, events: Sequence[RecordedEvent]) -> None:
    document = state_document(run, events)
    show_card(options, state_card(document), document=document, extra=state_lines(document), sort_keys=False)


async def _cancel(options: Options, run_id: str, reason: str | None) -> None:
    async with open_existing(options, run_id) as opened:
        outcome = await opened.runner.cancel(run_id, reason=reason)
    show_card(options, {"run_id": run_id, "status": outcome.status, "reason": reason})


async def _signal(options: Options, run_id: str, name: str, payload: Any) -> None:
    async with open_existing(options, check_run_id(run_id)) as opened:
        outcome = await opened.runner.signal(run_id, name, payload)
    waiting_for = outcome.run.waiting
    card = {
        "run_id": run_id,
        "status": outcome.status,
        "signal": name,
        "payload": payload,
        "waiting": to_builtins(waiting_for),
    }
    show_card(options, card)


def _state(run: Run) -> dict[str, Any]:
    """Return the state of a run beyond the keys of the frozen commands."""
    return {
        "run_id": run.run_id,
        "status": run.status.value,
        "version": run.version,
        **redaction_of(run),
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
