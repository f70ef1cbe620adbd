"""`eventlog approvals`: what waits for a person, shown whole: a decision, or an outcome that nobody knows."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Final

import click

from eventlog.cli.commands import Group
from eventlog.cli.edits import edit, revoke
from eventlog.cli.elsewhere import decide_there, refuse_where_others_ask
from eventlog.cli.options import Options
from eventlog.cli.output import note, show_card, show_rows, time_text
from eventlog.cli.request_card import card_of_request, choose, lines_of_request, whole_request
from eventlog.cli.review import review
from eventlog.cli.runs import all_rows, without_own
from eventlog.cli.waiting import wait
from eventlog.cli.wiring import Opened, complete, open_to_look, read_run
from eventlog.errors import EventTypeUnknown
from eventlog.proposal import canonical_args
from eventlog.run import Run, Status
from projections import Row, wanted_requests

__all__ = ["approvals"]

_COLUMNS: Final = {
    "run_id": "run",
    "wanted": "wanted",
    "request_id": "request",
    "action": "action",
    "output": "output",
    "proposal_hash": "proposal hash",
    "parent_run_id": "parent",
}
_WANTED: Final = {Status.WAITING_FOR_USER.value: "decide", Status.OUTCOME_UNKNOWN.value: "reconcile"}
"""What a person is wanted for, by the status of the run."""


@click.group("approvals", cls=Group)
def approvals() -> None:
    """What waits for a person: a decision, or an outcome that nobody knows."""


for _command in (review, wait, revoke, edit):
    approvals.add_command(_command)


@approvals.command("list")
@click.option("--limit", type=click.IntRange(min=0), default=50, show_default=True, help="How many to show at most.")
@click.option("--all", "shows_all", is_flag=True, help="Show all.")
@click.pass_obj
def list_approvals(options: Options, limit: int, shows_all: bool) -> None:
    """List every request that waits for a person, and what for: `decide` or `reconcile`.

    Requests of workflows are listed one by one, those of the runs that they have started as well, with the parent.
    `expired` is a request for which a decision comes too late.
    """
    complete(options, _list(options, None if shows_all else limit))


@approvals.command("show")
@click.option("--request", "request_id", metavar="ID", help="Which one, where a run has several.")
@click.argument("run_id", metavar="RUN")
@click.pass_obj
def show_approval(options: Options, run_id: str, request_id: str | None) -> None:
    """Show the whole proposal of a run, never cut, and the command that approves exactly this one.

    Of an outcome that nobody knows: why, and the commands that settle it.
    """
    complete(options, _show(options, run_id, request_id))


async def _list(options: Options, limit: int | None) -> None:
    shown: list[Row] = []
    total = 0
    async with open_to_look(options) as opened:
        async for row in all_rows(options, opened):
            asks = int(row["asks"])
            if asks and (limit is None or total < limit):
                shown += [each async for each in _asked(opened, row)]
            total += asks
    show_rows(options, "approvals", shown[:limit], _COLUMNS, total=max(total, len(shown)))


async def _asked(opened: Opened, row: Row) -> AsyncIterator[Row]:
    """Give a row for each request of a run that waits for a person."""
    if row["workflow"] is None and row["status"] == Status.WAITING_FOR_USER.value:
        yield _asking(row, row["expires_at_us"], {})
        return
    try:
        run, _ = await read_run(opened.log, row["run_id"])
    except EventTypeUnknown:  # a newer program's run: what its row says, rather than no list at all
        yield _asking(row, row["expires_at_us"], {})
        return
    if run.progress is None:
        undoing = run.compensation.action if run.compensation is not None else None
        yield _asking(row, None, {"action": _named(row["action"], undoing)}, "reconcile")
        return
    for request in wanted_requests(run):
        yield _asking(row, request.expires_at_us, _columns_of(request), "reconcile" if request.is_unknown else "decide")


def _asking(row: Row, expires_at_us: int | None, columns: Row, wanted: str = "decide") -> Row:
    is_late = wanted == "decide" and expires_at_us is not None and time.time_ns() // 1000 >= expires_at_us
    return {
        **without_own(row),
        "step": None,
        **columns,
        "expires_at": None if expires_at_us is None else time_text(expires_at_us),
        "wanted": "expired" if is_late else wanted,
    }


def _columns_of(request: Run) -> Row:
    assert request.proposal is not None, "a request has a proposal"
    card = card_of_request(request)
    names = ("step", "request_id", "action", "output", "proposal_hash", "approval")
    return {**{name: card[name] for name in names}, "args": canonical_args(request.proposal.canonical)}


def _named(action: str, undoing: str | None) -> str:
    """Return the action that is asked about: the run's own, or the one that undoes it."""
    return action if undoing is None else f"{undoing} (undoes {action})"


async def _show(options: Options, run_id: str, request_id: str | None) -> None:
    async with open_to_look(options) as opened:
        run, events = await read_run(opened.log, run_id)
        places = await refuse_where_others_ask(opened.log, run) if request_id is None else ()
    if places:
        note(options, decide_there(places))
    request = choose(run, request_id)
    card, document = whole_request(options.db, run, request, events)
    show_card(options, card, document=document, extra=lines_of_request(document))
