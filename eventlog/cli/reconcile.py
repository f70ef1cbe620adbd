"""`eventlog reconcile`: a person settles an outcome that nobody knows.

Whether an effect happened is found out outside the log, so the command needs no action and asks no receiver. It records
the verdict, the evidence for it and who gave it, and says what may be done next.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import click
from msgspec import to_builtins

from eventlog.cli.commands import Command
from eventlog.cli.options import Options
from eventlog.cli.output import note, show_card
from eventlog.cli.record import verdict_of
from eventlog.cli.source import json_argument
from eventlog.cli.wiring import ACTION, complete, open_log, read_run
from eventlog.decide import VERDICTS, check_run_id
from eventlog.events import OutcomeReconciled
from eventlog.log import RecordedEvent
from eventlog.progress import requests_of
from eventlog.run import Run, Status

__all__ = ["at_stake", "commands_that_settle", "reconcile"]


@click.command("reconcile", cls=Command)
@click.option("--verdict", type=click.Choice(VERDICTS), required=True, help="What became of the effect.")
@click.option("--evidence", required=True, metavar="TEXT", help="How that was found out; recorded with the verdict.")
@click.option("--result", "result_from", metavar="JSON|@FILE|-", help="What an executed effect returned.")
@click.option("--request", metavar="ID", help="Whose effect it was, where a run has several requests.")
@click.option(
    "--at-version", type=click.IntRange(1), metavar="N", help="The version that was shown when you began to look."
)
@click.argument("run_id", metavar="RUN")
@click.pass_obj
def reconcile(
    options: Options,
    run_id: str,
    verdict: str,
    evidence: str,
    result_from: str | None,
    request: str | None,
    at_version: int | None,
) -> None:
    """Settle an outcome that nobody knows, by what you found out about it.

    executed: the effect happened, and the run is completed. not_executed: it did not, and the run may be resumed.
    abandoned: nobody will ever know, and nothing more is done.

    not_executed needs --at-version: what had not happened when you looked may have happened since. If another attempt
    has begun by now, or it was not recorded then that the last one is over, it is refused, and you have to look again.

    A process that died during the effect is found out here too. One that is still at work is left in peace until its
    lease is over.
    """
    result = None if result_from is None else json_argument(result_from, option="--result", what="the result")
    settle = _reconcile(options, check_run_id(run_id), verdict, evidence, result, request, at_version)
    complete(options, settle)


def at_stake(run: Run) -> dict[str, Any]:
    """Return what of a run is unknown or under way: its effect or, with the action's name, the undoing of it."""
    undoing = run.compensation
    return {
        "unknown": run.unknown,
        "late_result": to_builtins(run.late),
        "undoing": undoing.action if undoing is not None else None,
        "op_key": undoing.op_key if undoing is not None else run.op_key,
        "attempts": undoing.attempts if undoing is not None else run.attempts,
        "intent": to_builtins(run.open_intent),
    }


def commands_that_settle(db: str, run: Run, version: int) -> dict[str, str] | None:
    """Return a command for each verdict, or None if nothing is unknown. `version` is that of the whole run.

    The evidence is left empty, and refused so: only who has found something out can give it. What an effect of a
    workflow returned is what its workflow goes on with, so its place is shown, and refused as it stands.
    """
    if not run.is_unknown:
        return None
    named = ("--request", str(run.request_id)) if run.step is not None else ()
    returned = {"executed": ("--result", "JSON")} if run.step is not None else {}
    return {
        verdict: _command(
            db,
            "reconcile",
            *named,
            "--verdict",
            verdict,
            "--at-version",
            str(version),
            "--evidence",
            "",
            *returned.get(verdict, ()),
            run_id=run.run_id,
        )
        for verdict in VERDICTS
    }


async def _reconcile(
    options: Options,
    run_id: str,
    verdict: str,
    evidence: str,
    result: Any,
    request_id: str | None,
    at_version: int | None,
) -> None:
    async with open_log(options) as opened:
        outcome = await opened.runner.reconcile(
            run_id, verdict, evidence=evidence, result=result, request=request_id, at_version=at_version
        )
        run, events = await read_run(opened.log, run_id, at_version=outcome.run.version)
    if run.progress is None:
        _show(options, run, verdict_of(events) | {"result": result})
        return
    request = _settled_request(run, events)
    _show_of_workflow(options, run, request, verdict_of(events, request.step) | {"result": result})


def _settled_request(run: Run, events: Sequence[RecordedEvent]) -> Run:
    """Return the request whose outcome was settled last."""
    last = next(event.data for event in reversed(events) if isinstance(event.data, OutcomeReconciled))
    return next(request for request in requests_of(run) if request.step == last.step)


def _show_of_workflow(options: Options, run: Run, request: Run, verdict: dict[str, Any]) -> None:
    assert request.proposal is not None, "a request has a proposal"
    stake = at_stake(request)
    card = {
        "run_id": run.run_id,
        "status": run.status.value,
        "request_id": request.request_id,
        "request_status": request.status.value,
        "step": request.step,
        "action": request.proposal.action,
        **{name: stake[name] for name in ("undoing", "op_key", "attempts")},
        **verdict,
    }
    workflow = run.progress.definition.workflow
    show_card(options, card, extra=[f"a worker, or resume, goes on where the workflow {workflow!r} is registered"])


def _show(options: Options, run: Run, verdict: dict[str, Any]) -> None:
    assert run.proposal is not None, "the first append of a run records its proposal"
    stake = at_stake(run)
    card = {
        "run_id": run.run_id,
        "status": run.status.value,
        "action": run.proposal.action,
        **{name: stake[name] for name in ("undoing", "op_key", "attempts")},
        **verdict,
    }
    command = _resume_command(options.db, run)
    show_card(options, card, document=card | {"resume_with": command}, extra=_next(run, command))
    if run.is_stray and run.status is Status.APPROVED:
        note(options, "an earlier resumer was overruled, and may still be at work: end it before you resume")


def _resume_command(db: str, run: Run) -> str | None:
    """Return the command that tries again, where that is allowed and this command line knows the action."""
    may_try = run.status is Status.APPROVED and run.proposal is not None and run.proposal.action == ACTION
    return _command(db, "resume", run_id=run.run_id) if may_try else None


def _next(run: Run, command: str | None) -> list[str]:
    if command is not None:
        return [f"resume with:  {command}"]
    if run.status is Status.APPROVED and run.proposal is not None:
        return [f"resume it in the program that registers the action {run.proposal.action!r}"]
    return []


def _command(db: str, name: str, *words: str, run_id: str) -> str:
    end = ("--", run_id) if run_id.startswith("-") else (run_id,)
    return shlex.join(["eventlog", "--db", db, name, *words, *end])
