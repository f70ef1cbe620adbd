"""`eventlog approvals`: what waits for a person: a decision, an outcome that nobody knows, what a crash has left."""

from __future__ import annotations

import time
from typing import Final

import click

from eventlog.cli.commands import Group
from eventlog.cli.edits import edit, revoke
from eventlog.cli.elsewhere import decide_there, refuse_where_others_ask
from eventlog.cli.inbox_rows import wanted_rows
from eventlog.cli.kept_views import INBOX
from eventlog.cli.late_views import require_views
from eventlog.cli.options import Options
from eventlog.cli.output import grouped, note, show_card, show_rows
from eventlog.cli.request_card import choose, lines_of_request, whole_request
from eventlog.cli.review import review
from eventlog.cli.signed_approvals import statement
from eventlog.cli.waiting import wait
from eventlog.cli.wiring import complete, open_to_look, read_run
from projections.sqlite_views.wanted import wanted_at

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
_AFTER_A_CRASH: Final = (
    "began and have no result, though their time has passed (resume): to find out what became of one, resume its run "
    "where the action is registered, or look yourself and reconcile; --json has the commands"
)


@click.group("approvals", cls=Group)
def approvals() -> None:
    """What waits for a person: a decision, an outcome that nobody knows, what a crash has left."""


for _command in (review, wait, revoke, edit, statement):
    approvals.add_command(_command)


@approvals.command("list")
@click.option("--limit", type=click.IntRange(min=0), default=50, show_default=True, help="How many to show at most.")
@click.option("--all", "shows_all", is_flag=True, help="Show all.")
@click.pass_obj
def list_approvals(options: Options, limit: int, shows_all: bool) -> None:
    """List every request that waits for a person, and what for: `decide`, `reconcile` or `resume`.

    Requests of workflows are listed one by one, those of the runs that they have started as well, with the parent.
    `expired` is a request for which a decision comes too late.

    `resume` is an effect that began and has no result, though the time of who was at it has passed: a crash that nobody
    has looked after. Resume finds out what became of it; reconcile records what you found out yourself.
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
    async with open_to_look(options) as opened:
        await require_views(options, opened, *INBOX)
        now_us = time.time_ns() // 1000
        wanted = await opened.log.read_view(wanted_at, now_us, limit, of=INBOX)
    rows = wanted_rows(options, wanted, now_us)[:limit]
    show_rows(options, "approvals", rows, _COLUMNS, total=max(wanted.total, len(rows)))
    crashes = sum(row["wanted"] == "resume" for row in rows)
    if crashes and not options.is_json:
        note(options, f"{grouped(crashes)} of these effects {_AFTER_A_CRASH}")


async def _show(options: Options, run_id: str, request_id: str | None) -> None:
    async with open_to_look(options) as opened:
        run, events = await read_run(opened.log, run_id)
        places = await refuse_where_others_ask(opened.log, run) if request_id is None else ()
    if places:
        note(options, decide_there(places))
    request = choose(run, request_id)
    card, document = whole_request(options.db, run, request, events)
    show_card(options, card, document=document, extra=lines_of_request(document))
