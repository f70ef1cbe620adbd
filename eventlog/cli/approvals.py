"""`eventlog approvals`: what waits for a person, shown whole: a decision, or an outcome that nobody knows."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from typing import Any, Final

import click

from eventlog.cli.commands import Group
from eventlog.cli.options import Options
from eventlog.cli.output import show_card, show_rows, time_text
from eventlog.cli.reconcile import at_stake, commands_that_settle
from eventlog.cli.record import decision_of, verdict_of
from eventlog.cli.runs import collect_rows
from eventlog.cli.wiring import complete, open_to_look, read_run
from eventlog.run import Run, Status
from projections import Row

__all__ = ["approvals"]

_COLUMNS: Final = {
    "run_id": "run",
    "wanted": "wanted",
    "request_id": "request",
    "action": "action",
    "output": "output",
    "proposal_hash": "proposal hash",
}
_WANTED: Final = {Status.WAITING_FOR_USER.value: "decide", Status.OUTCOME_UNKNOWN.value: "reconcile"}
"""What a person is wanted for, by the status of the run."""


@click.group("approvals", cls=Group)
def approvals() -> None:
    """What waits for a person: a decision, or an outcome that nobody knows."""


@approvals.command("list")
@click.option("--limit", type=click.IntRange(min=0), default=50, show_default=True, help="How many to show at most.")
@click.option("--all", "shows_all", is_flag=True, help="Show all.")
@click.pass_obj
def list_approvals(options: Options, limit: int, shows_all: bool) -> None:
    """List the runs that wait for a person, and what for: `decide` or `reconcile`."""
    complete(options, _list(options, None if shows_all else limit))


@approvals.command("show")
@click.argument("run_id", metavar="RUN")
@click.pass_obj
def show_approval(options: Options, run_id: str) -> None:
    """Show the whole proposal of a run, never cut, and the command that approves exactly this one.

    Of a run whose outcome nobody knows: why, and the commands that settle it.
    """
    complete(options, _show(options, run_id))


async def _list(options: Options, limit: int | None) -> None:
    async with open_to_look(options) as opened:
        rows, total = await collect_rows(options, opened, limit, statuses=_WANTED)
        for row in rows:
            row["wanted"] = _WANTED[row["status"]]
            if row["status"] == Status.OUTCOME_UNKNOWN.value:
                run, _ = await read_run(opened.log, row["run_id"])
                row["undoing"] = run.compensation.action if run.compensation is not None else None
    rows = [row | {"action": _named(row)} for row in rows]
    show_rows(options, "approvals", rows, _COLUMNS, total=total)


def _named(row: Row) -> str:
    """Return the action that is asked about: the run's own, or the one that undoes it."""
    undoing = row.pop("undoing", None)
    return str(row["action"]) if undoing is None else f"{undoing} (undoes {row['action']})"


async def _show(options: Options, run_id: str) -> None:
    async with open_to_look(options) as opened:
        run, events = await read_run(opened.log, run_id)
    card = _card(run) | {"recorded_at": time_text(events[0].recorded_at_us), "recorded_by": events[0].actor}
    card |= decision_of(events) | at_stake(run) | verdict_of(events)
    command = _approve_command(options.db, run)
    settling = commands_that_settle(options.db, run)
    args = card.pop("args")
    show_card(
        options,
        card,
        document=card | {"args": args, "approve_with": command, "reconcile_with": settling},
        extra=["args:", *_pretty(args), *_approving(command), *_settling(card, settling)],
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
        "folder": run.folder,
        "proposal_hash": proposal.hash,
        "approval": run.approval,
        "approval_request_id": run.approval_request_id,
        "approval_hash": run.approval_hash,
    }


def _pretty(args: dict[str, Any]) -> list[str]:
    # Line breaks are escapes inside JSON text, so that each line here is one of the layout, never one of the data.
    text = json.dumps(args, ensure_ascii=False, sort_keys=True, indent=2)
    return _indented(text.split("\n"))


def _indented(lines: Iterable[str]) -> list[str]:
    return ["  " + line for line in lines]


def _approving(command: str | None) -> list[str]:
    return [] if command is None else [f"approve with:  {command}"]


def _settling(card: dict[str, Any], commands: dict[str, str] | None) -> list[str]:
    if card["intent"] is not None:
        attempt = f"attempt {card['attempts']} has begun and has no result yet"
        return [f"{attempt}: if it ended without one, resume where the action is registered, or reconcile"]
    if commands is None:
        return []
    about = f"what {card['action']!r} did" if card["undoing"] is None else f"whether {card['undoing']!r} has undone it"
    return [
        *_late(card["late_result"]),
        f"find out {about}, say how as the evidence, and reconcile with one of:",
        *_indented(commands.values()),
    ]


def _late(result: dict[str, Any] | None) -> list[str]:
    """Say what a resumer that came late has reported: nobody else may know it."""
    if result is None:
        return []
    return [f"attempt {result['attempt']} was overruled, and reported late: {result['rejected']}"]


def _approve_command(db: str, run: Run) -> str | None:
    """Return the command that approves exactly this proposal, or None if it is decided already."""
    if run.status is not Status.WAITING_FOR_USER or run.proposal is None:
        return None
    words = ["eventlog", "--db", db, "approve", "--proposal-hash", run.proposal.hash, "--", run.run_id]
    if not run.run_id.startswith("-"):
        words.remove("--")
    return shlex.join(words)
