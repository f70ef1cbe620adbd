"""`eventlog approvals`: what waits for a decision, shown whole."""

from __future__ import annotations

import json
import shlex
from typing import Any, Final

import click

from eventlog.cli.commands import Group
from eventlog.cli.options import Options
from eventlog.cli.output import show_card, show_rows, time_text
from eventlog.cli.record import decision_of
from eventlog.cli.runs import collect_rows
from eventlog.cli.wiring import complete, open_to_look, read_run
from eventlog.run import Run, Status

__all__ = ["approvals"]

_COLUMNS: Final = {
    "run_id": "run",
    "request_id": "request",
    "action": "action",
    "output": "output",
    "proposal_hash": "proposal hash",
}


@click.group("approvals", cls=Group)
def approvals() -> None:
    """What waits for a decision."""


@approvals.command("list")
@click.option("--limit", type=click.IntRange(min=0), default=50, show_default=True, help="How many to show at most.")
@click.option("--all", "shows_all", is_flag=True, help="Show all.")
@click.pass_obj
def list_approvals(options: Options, limit: int, shows_all: bool) -> None:
    """List the runs that wait for a decision."""
    complete(options, _list(options, None if shows_all else limit))


@approvals.command("show")
@click.argument("run_id", metavar="RUN")
@click.pass_obj
def show_approval(options: Options, run_id: str) -> None:
    """Show the whole proposal of a run, never cut, and the command that approves exactly this one."""
    complete(options, _show(options, run_id))


async def _list(options: Options, limit: int | None) -> None:
    async with open_to_look(options) as opened:
        rows, total = await collect_rows(options, opened, limit, status=Status.WAITING_FOR_USER.value)
    show_rows(options, "approvals", rows, _COLUMNS, total=total)


async def _show(options: Options, run_id: str) -> None:
    async with open_to_look(options) as opened:
        run, events = await read_run(opened.log, run_id)
    card = _card(run) | {"recorded_at": time_text(events[0].recorded_at_us), "recorded_by": events[0].actor}
    card |= decision_of(events)
    command = _approve_command(options.db, run)
    args = card.pop("args")
    show_card(
        options,
        card,
        document=card | {"args": args, "approve_with": command},
        extra=["args:", *_pretty(args), *([] if command is None else [f"approve with:  {command}"])],
    )


def _card(run: Run) -> dict[str, Any]:
    proposal = run.proposal
    assert proposal is not None, "the first append of a run records its proposal"
    return {
        "run_id": run.run_id,
        "status": run.status.value,
        "request_id": run.request_id,
        "action": proposal.action,
        "args": proposal.args,
        "output": proposal.output,
        "proposal_hash": proposal.hash,
        "approval": run.approval,
        "approval_request_id": run.approval_request_id,
        "approval_hash": run.approval_hash,
    }


def _pretty(args: dict[str, Any]) -> list[str]:
    # Line breaks are escapes inside JSON text, so that each line here is one of the layout, never one of the data.
    text = json.dumps(args, ensure_ascii=False, sort_keys=True, indent=2)
    return ["  " + line for line in text.split("\n")]


def _approve_command(db: str, run: Run) -> str | None:
    """Return the command that approves exactly this proposal, or None if it is decided already."""
    if run.status is not Status.WAITING_FOR_USER or run.proposal is None:
        return None
    words = ["eventlog", "--db", db, "approve", "--proposal-hash", run.proposal.hash, "--", run.run_id]
    if not run.run_id.startswith("-"):
        words.remove("--")
    return shlex.join(words)
