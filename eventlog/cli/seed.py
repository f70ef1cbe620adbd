"""The five frozen commands: start, approve, reject, resume, show-trace. One JSON object each, whatever happens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import click
from msgspec import to_builtins

from eventlog.cli.commands import SeedCommand, TargetCommand
from eventlog.cli.decisions import (
    Asked,
    decide_each,
    decided_request,
    decision_options,
    require_nothing_beside_from,
    required_decision,
)
from eventlog.cli.elsewhere import sends_there
from eventlog.cli.failures import report_failure
from eventlog.cli.imported import printing_elsewhere
from eventlog.cli.options import Options
from eventlog.cli.output import write_seed, write_workflow
from eventlog.cli.signed_approvals import Signing, handed_in, sign_here, signing_of, signing_options
from eventlog.cli.source import json_argument
from eventlog.cli.trace import trace_of
from eventlog.cli.wiring import ACTION, Opened, complete, failpoint, open_existing, open_log, read_run
from eventlog.cli.workflow_state import paused_state, stored_value, terms_of
from eventlog.decide import check_run_id
from eventlog.events import Envelope, OfRequest
from eventlog.log import RecordedEvent
from eventlog.proposal import Proposal, propose
from eventlog.run import Run, Status
from eventlog.signing.signed_decisions import read_statement

__all__ = ["approve", "card_of", "reject", "resume", "show_trace", "start"]

FIXTURE_ARGS: Final = {"content": "approved technical brief"}

_ENDED_BADLY: Final = frozenset({Status.FAILED, Status.REJECTED, Status.EXPIRED, Status.CANCELLED})

_RUN = click.argument("run_id", metavar="RUN")


@click.command("start", cls=TargetCommand)
@click.option("--action", metavar="NAME", help="Propose this action; with --args.")
@click.option("--args", "args_from", metavar="JSON|@FILE|-", help="The action's arguments, a JSON object.")
@click.option("--subject", metavar="ID", help="Whom the run is about: all of it is encrypted; with --subject-keys.")
@_RUN
@click.pass_obj
def start(options: Options, run_id: str, action: str | None, args_from: str | None, subject: str | None) -> None:
    """Record a proposal; the run then waits for a decision.

    Without --action and --args it is the fixture of the first seed: write_draft with a short text, to the --output.
    """
    if subject is not None and options.subject_keys is None:
        raise click.UsageError("--subject needs --subject-keys (or EVENTLOG_SUBJECT_KEYS).")
    if options.output is None:
        raise click.UsageError("Missing option '--output' (or the environment variable EVENTLOG_OUTPUT).")
    if action is not None and args_from is None:
        raise click.UsageError("--action needs --args.")
    args = FIXTURE_ARGS
    if args_from is not None:
        args = json_argument(args_from, option="--args", what="the arguments")
    complete(options, _start(options, check_run_id(run_id), propose(action or ACTION, args, options.output), subject))


@click.command("approve", cls=SeedCommand)
@decision_options
@signing_options
@click.pass_context
def approve(context: click.Context, /, source: str | None, **given: Any) -> int:
    """Approve exactly the proposal with this hash.

    With --sign KEY it is shown and signed here, with --statement and --ssh-signature, or --envelope, it was signed
    elsewhere: then --proposal-hash may be left away, and what was signed says the reason and the roles.

    With --from FILE a decision a line, each answered by a line; exit status 2 if one was refused. A line is a JSON
    object with "run_id" and "proposal_hash", and may have "request" (or "request_id"), "reason" and "roles"; other keys
    are passed over, so that lines of `approvals list --all --format jsonl` can be fed in.
    """
    return _decide_as_given(context, "approve", source, given)


@click.command("reject", cls=SeedCommand)
@decision_options
@signing_options
@click.pass_context
def reject(context: click.Context, /, source: str | None, **given: Any) -> int:
    """Reject exactly the proposal with this hash; a rejection is final.

    It is signed as an approval is: with --sign KEY here, or elsewhere, and handed in by --statement and
    --ssh-signature, or --envelope (`eventlog approvals statement RUN --decision reject`).

    With --from FILE a decision a line, each answered by a line; exit status 2 if one was refused. A line is a JSON
    object with "run_id" and "proposal_hash", and may have "request" (or "request_id"), "reason" and "roles"; other keys
    are passed over, so that lines of `approvals list --all --format jsonl` can be fed in.
    """
    return _decide_as_given(context, "reject", source, given)


@click.command("resume", cls=TargetCommand)
@_RUN
@click.pass_obj
def resume(options: Options, run_id: str) -> int:
    """Perform the approved effect, or find that it was performed. A workflow goes on until it ends or pauses.

    Any process may do this, any number of times. An --output, if given, must be the approved one.

    Exit status 0 if it is done, or if the workflow has completed or pauses; 2 if it was refused, or if the workflow
    has ended otherwise: FAILED, REJECTED, EXPIRED or CANCELLED.
    """
    return complete(options, _resume(options, run_id))


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


async def _start(options: Options, run_id: str, proposal: Proposal, subject: str | None) -> None:
    async with open_log(options, may_create=True, reach=failpoint()) as opened:
        await opened.runner.propose(run_id, proposal, subject=subject)
        await _show(opened, run_id)


def _decide_as_given(context: click.Context, decision: str, source: str | None, given: dict[str, Any]) -> int:
    options = context.find_object(Options)
    assert options is not None, "the root context holds the options"
    if source is not None:
        require_nothing_beside_from(context)
        return complete(options, decide_each(options, decision, source))
    envelope, signing = handed_in(given), signing_of(given)
    options.is_signed = envelope is not None or signing is not None
    if envelope is not None:
        given["proposal_hash"] = given["proposal_hash"] or read_statement(envelope).proposal_sha256
        if given["reason"] is not None or given["roles"]:
            raise click.UsageError("What was signed says the reason and the roles; leave --reason and --role away.")
    complete(options, _decide(options, decision, required_decision(context, given), envelope, signing))
    return 0


async def _decide(
    options: Options, decision: str, asked: Asked, envelope: Envelope | None, signing: Signing | None
) -> None:
    run_id = asked.run_id
    async with open_existing(options, run_id) as opened:
        async with sends_there(opened.log, run_id):
            if signing is not None:
                envelope = await sign_here(
                    opened.log,
                    signing,
                    "approve" if decision == "approve" else "reject",
                    run_id,
                    asked.proposal_hash,
                    request=asked.request,
                    reason=asked.reason,
                    roles=tuple(asked.roles),
                )
            await asked.carry_out(opened.runner, decision, envelope)
        run, events = await read_run(opened.log, run_id)
    if run.progress is None:
        write_seed(card_of(run, list(events)))
        return
    request = decided_request(run, events, asked.proposal_hash)
    own = [event for event in events if isinstance(event.data, OfRequest) and event.data.step == request.step]
    write_seed({**card_of(request, own), **_place_of(run, request)})


def _place_of(run: Run, request: Run) -> dict[str, Any]:
    """Return what a request of a workflow run has beyond one that is a run of its own."""
    terms = terms_of(request)
    return {
        "expires_at": terms["expires_at"],
        "policy": terms["policy"],
        "run_status": run.status.value,
        "step": request.step,
        "votes": terms["votes"],
        "workflow": run.progress.definition.workflow,
    }


async def _resume(options: Options, run_id: str) -> int:
    """Resume, show what came of it, and return the exit status."""
    async with open_existing(options, run_id) as opened:
        with printing_elsewhere():
            outcome = await opened.runner.resume(run_id, output=options.output)
        run = await _show(opened, run_id, result=outcome.result)
    if run.progress is None or run.status not in _ENDED_BADLY:
        return 0
    if run.failure is not None:
        report_failure(run.failure)
    return 2


async def _show_trace(options: Options, run_id: str) -> None:
    async with open_existing(options, run_id, only_reads=True) as opened:
        await _show(opened, run_id)


async def _show(opened: Opened, run_id: str, **more: Any) -> Run:
    """Show a run, of a workflow or not, and return it."""
    run, events = await read_run(opened.log, run_id)
    if run.progress is None:
        write_seed({**card_of(run, list(events)), **more})
    else:
        write_workflow({**_workflow_card(run, events), **more})
    return run


def _workflow_card(run: Run, events: Sequence[RecordedEvent]) -> dict[str, Any]:
    """Return a workflow run in the spirit of the frozen keys: its paused state, what it returned, and its trace."""
    return {
        **paused_state(run),
        "failure": to_builtins(run.failure),
        "returned": stored_value(run.progress.value),
        "trace": trace_of(events),
        "workflow": run.progress.definition.workflow,
    }
