"""`eventlog approvals edit` and `revoke`: asking something else instead, and taking an approval back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from eventlog.cli.commands import Command
from eventlog.cli.options import Options
from eventlog.cli.output import show_card
from eventlog.cli.request_card import lines_of_request, whole_request
from eventlog.cli.source import json_argument
from eventlog.cli.wiring import complete, open_existing, read_run
from eventlog.errors import InvalidInput
from eventlog.events import ApprovalRevoked, ProposalRecorded
from eventlog.log import RecordedEvent
from eventlog.progress import requests_of
from eventlog.run import Run

__all__ = ["edit", "revoke"]

_REQUEST = click.option("--request", "request_id", metavar="ID", help="Which one, where a run has several.")
_REASON = click.option("--reason", metavar="TEXT", help="Why; recorded.")
_RUN = click.argument("run_id", metavar="RUN")


@click.command("edit", cls=Command)
@_REQUEST
@click.option("--action", metavar="NAME", help="Another action.")
@click.option("--args", "args_from", metavar="JSON|@FILE|-", help="Other arguments, a JSON object.")
@click.option("--output", metavar="TARGET", help="Another target.")
@click.option("--approve", "approves", is_flag=True, help="Approve it as well, as far as its terms let you.")
@click.option("--role", "roles", multiple=True, metavar="ROLE", help="A role that you bring; repeatable.")
@_REASON
@_RUN
@click.pass_obj
def edit(options: Options, /, run_id: str, args_from: str | None, **given: Any) -> None:
    """Ask something else instead: a new proposal, under a request id of its own.

    What is not named stays as it was asked. The original request is closed for good.
    """
    if args_from is None and given["action"] is None and given["output"] is None:
        raise click.UsageError("An edit names what changes: --action, --args or --output.")
    args = None if args_from is None else json_argument(args_from, option="--args", what="the arguments")
    if args is not None and not isinstance(args, dict):
        raise InvalidInput("invalid_argument", "the arguments are a JSON object")
    complete(options, _edit(options, run_id, args, **given))


@click.command("revoke", cls=Command)
@_REQUEST
@_REASON
@_RUN
@click.pass_obj
def revoke(options: Options, run_id: str, request_id: str | None, reason: str | None) -> None:
    """Take the approvals of a request back before its effect has begun; it waits for a decision again."""
    complete(options, _revoke(options, run_id, request_id, reason))


async def _edit(
    options: Options,
    run_id: str,
    args: dict[str, Any] | None,
    *,
    request_id: str | None,
    action: str | None,
    output: str | None,
    approves: bool,
    roles: Sequence[str],
    reason: str | None,
) -> None:
    async with open_existing(options, run_id) as opened:
        await opened.runner.edit(
            run_id,
            request=request_id,
            action=action,
            args=args,
            output=output,
            approves=approves,
            reason=reason,
            roles=tuple(roles),
        )
        run, events = await read_run(opened.log, run_id)
    _show(options, run, events, ProposalRecorded)


async def _revoke(options: Options, run_id: str, request_id: str | None, reason: str | None) -> None:
    async with open_existing(options, run_id) as opened:
        await opened.runner.revoke(run_id, request=request_id, reason=reason)
        run, events = await read_run(opened.log, run_id)
    _show(options, run, events, ApprovalRevoked)


def _show(
    options: Options,
    run: Run,
    events: Sequence[RecordedEvent],
    kind: type[ProposalRecorded | ApprovalRevoked],
) -> None:
    """Show the request that the last event of this kind is about, as it is now."""
    last = next(event.data for event in reversed(events) if isinstance(event.data, kind))
    request = next(request for request in requests_of(run) if request.step == last.step)
    card, document = whole_request(options.db, run, request, events)
    show_card(options, card, document=document, extra=lines_of_request(document))
