"""The five frozen commands: start, approve, reject, resume, show-trace. One JSON object each, whatever happens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import click

from eventlog.cli.commands import SeedCommand, TargetCommand
from eventlog.cli.options import Options
from eventlog.cli.output import write_seed
from eventlog.cli.source import json_argument
from eventlog.cli.trace import trace_of
from eventlog.cli.wiring import ACTION, Opened, complete, failpoint, open_log, open_to_look, read_run
from eventlog.decide import check_run_id
from eventlog.errors import Refused, StoreUnavailable
from eventlog.log import RecordedEvent
from eventlog.proposal import Proposal, propose
from eventlog.run import Run

__all__ = ["approve", "card_of", "reject", "resume", "show_trace", "start"]

FIXTURE_ARGS: Final = {"content": "approved technical brief"}

_HASH = click.option(
    "--proposal-hash", required=True, metavar="HASH", help="64 hex digits, of the proposal that was read."
)
_REASON = click.option("--reason", metavar="TEXT", help="Why; recorded with the decision.")
_RUN = click.argument("run_id", metavar="RUN")


@click.command("start", cls=TargetCommand)
@click.option("--action", metavar="NAME", help="Propose this action; with --args.")
@click.option("--args", "args_from", metavar="JSON|@FILE|-", help="The action's arguments, a JSON object.")
@_RUN
@click.pass_obj
def start(options: Options, run_id: str, action: str | None, args_from: str | None) -> None:
    """Record a proposal; the run then waits for a decision.

    Without --action and --args it is the fixture of the first seed: write_draft with a short text, to the --output.
    """
    if options.output is None:
        raise click.UsageError("Missing option '--output' (or the environment variable EVENTLOG_OUTPUT).")
    if action is not None and args_from is None:
        raise click.UsageError("--action needs --args.")
    args = FIXTURE_ARGS
    if args_from is not None:
        args = json_argument(args_from, option="--args", what="the arguments")
    complete(options, _start(options, check_run_id(run_id), propose(action or ACTION, args, options.output)))


@click.command("approve", cls=SeedCommand)
@_HASH
@_REASON
@_RUN
@click.pass_obj
def approve(options: Options, run_id: str, proposal_hash: str, reason: str | None) -> None:
    """Approve exactly the proposal with this hash."""
    complete(options, _decide(options, "approve", run_id, proposal_hash, reason))


@click.command("reject", cls=SeedCommand)
@_HASH
@_REASON
@_RUN
@click.pass_obj
def reject(options: Options, run_id: str, proposal_hash: str, reason: str | None) -> None:
    """Reject exactly the proposal with this hash; a rejection is final."""
    complete(options, _decide(options, "reject", run_id, proposal_hash, reason))


@click.command("resume", cls=TargetCommand)
@_RUN
@click.pass_obj
def resume(options: Options, run_id: str) -> None:
    """Perform the approved effect, or find that it was performed.

    Any process may do this, any number of times. An --output, if given, must be the approved one.
    """
    complete(options, _resume(options, run_id))


@click.command("show-trace", cls=SeedCommand)
@_RUN
@click.pass_obj
def show_trace(options: Options, run_id: str) -> None:
    """Show a run with the events that led to it."""
    complete(options, _show_trace(options, run_id))


def card_of(run: Run, events: list[RecordedEvent]) -> dict[str, Any]:
    """Return a run in the keys of the frozen commands."""
    proposal = run.proposal
    return {
        "action": proposal.action if proposal is not None else None,
        "approval_hash": run.approval_hash,
        "approval_request_id": run.approval_request_id,
        "args": proposal.args if proposal is not None else None,
        "executed": run.executed,
        "output": proposal.output if proposal is not None else None,
        "proposal_hash": run.proposal_hash,
        "request_id": run.request_id,
        "run_id": run.run_id,
        "status": run.status.value,
        "trace": trace_of(events),
    }


async def _start(options: Options, run_id: str, proposal: Proposal) -> None:
    async with open_log(options, may_create=True, reach=failpoint()) as opened:
        await opened.runner.propose(run_id, proposal)
        await _show(opened, run_id)


async def _decide(options: Options, decision: str, run_id: str, proposal_hash: str, reason: str | None) -> None:
    async with _open_for(options, run_id) as opened:
        command = opened.runner.approve if decision == "approve" else opened.runner.reject
        await command(run_id, proposal_hash, reason=reason)
        await _show(opened, run_id)


async def _resume(options: Options, run_id: str) -> None:
    async with _open_for(options, run_id) as opened:
        outcome = await opened.runner.resume(run_id, output=options.output)
        await _show(opened, run_id, result=outcome.result)


async def _show_trace(options: Options, run_id: str) -> None:
    async with _open_for(options, run_id, only_reads=True) as opened:
        await _show(opened, run_id)


@asynccontextmanager
async def _open_for(options: Options, run_id: str, *, only_reads: bool = False) -> AsyncIterator[Opened]:
    """Open the log of an existing run: in a log that does not exist there is no such run, and none is created."""
    check_run_id(run_id)
    opening = open_to_look if only_reads else open_log
    try:
        async with opening(options, reach=failpoint()) as opened:
            yield opened
    except StoreUnavailable as error:
        if error.code != "store_not_found":
            raise
        raise Refused("unknown_run", f"there is no log at {options.db!r}", subject=run_id, run_id=run_id) from error


async def _show(opened: Opened, run_id: str, **more: Any) -> None:
    run, events = await read_run(opened.log, run_id)
    write_seed({**card_of(run, list(events)), **more})
