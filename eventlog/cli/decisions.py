"""Decisions as the command line is given them: one, by its options, or many, a line each.

A line of `--from FILE` is a JSON object {"run_id", "proposal_hash"}, which may also have "request", "reason" and
"roles". The request may be called "request_id" as well, and other keys are passed over: `approvals list --format jsonl`
gives such lines. Each is answered by a line of its own, in the order of the file, whatever became of the ones before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import click
import msgspec

from eventlog.cli.elsewhere import sends_there
from eventlog.cli.failures import label_of
from eventlog.cli.options import Options
from eventlog.cli.output import write_seed
from eventlog.cli.source import standard_input
from eventlog.cli.text import why_unreadable
from eventlog.cli.wiring import open_log, read_run
from eventlog.errors import Conflict, InvalidInput, Refused
from eventlog.events import ApprovalRecorded, Envelope
from eventlog.log import RecordedEvent
from eventlog.plain import Limits, parse_json
from eventlog.progress import requests_of
from eventlog.run import Run
from eventlog.runtime.runner import Outcome, Runner

__all__ = [
    "Asked",
    "decide_each",
    "decided_request",
    "decision_options",
    "require_nothing_beside_from",
    "required_decision",
]

F = TypeVar("F", bound=Callable[..., Any])

REFUSED: Final = 2
_FIELDS: Final = ("run_id", "proposal_hash", "request", "reason", "roles")
_REQUEST_ID: Final = "request_id"


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One decision that was asked for: on exactly the proposal with this hash."""

    run_id: str
    proposal_hash: str
    request: str | None = None
    reason: str | None = None
    roles: Sequence[str] = ()

    async def carry_out(self, runner: Runner, decision: str, envelope: Envelope | None = None) -> Outcome:
        """Record the decision, or the one that was signed. Raises as `Runner.approve`."""
        command = runner.approve if decision == "approve" else runner.reject
        if envelope is not None:
            return await command(self.run_id, self.proposal_hash, request=self.request, envelope=envelope)
        return await command(
            self.run_id, self.proposal_hash, request=self.request, reason=self.reason, roles=tuple(self.roles)
        )


def decision_options(command: F) -> F:
    """Give a command the options of a decision."""
    for option in reversed(
        (
            click.option("--proposal-hash", metavar="HASH", help="64 hex digits, of the proposal that was read."),
            click.option("--request", metavar="ID", help="Which request is meant, where a run has several."),
            click.option("--reason", metavar="TEXT", help="Why; recorded with the decision."),
            click.option("--role", "roles", multiple=True, metavar="ROLE", help="A role that you bring; repeatable."),
            click.option("--from", "source", metavar="FILE|-", help="Decide what these JSON lines name, one by one."),
            click.argument("run_id", metavar="RUN", required=False),
        )
    ):
        command = option(command)
    return command


def required_decision(context: click.Context, given: dict[str, Any]) -> Asked:
    """Return the decision that the options name. Raises click.MissingParameter."""
    for name, why in (("proposal_hash", "`eventlog approvals show RUN` shows it."), ("run_id", None)):
        if given[name] is None:
            raise click.MissingParameter(why, ctx=context, param=_parameter(context, name))
    return Asked(**{name: given[name] for name in _FIELDS})


def require_nothing_beside_from(context: click.Context) -> None:
    """Raise click.UsageError if a decision was named besides those of a file: it would be overlooked."""
    given = [name for name in context.params if name != "source" and context.params.get(name)]
    if given:
        named = " / ".join(_parameter(context, given[0]).opts) if given[0] != "run_id" else "RUN"
        raise click.UsageError(f"--from names the decisions itself; leave {named} away.", context)


async def decide_each(options: Options, decision: str, source: str) -> int:
    """Carry out the decisions of a file one by one, and return the exit status: 2 if one was refused."""
    refused = 0
    with _lines_of(source) as lines:
        async with open_log(options) as opened:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                answer = await _answer(opened.runner, opened.log, decision, number, line)
                refused += "error" in answer
                write_seed(answer)
    return REFUSED if refused else 0


def decided_request(run: Run, events: Sequence[RecordedEvent], proposal_hash: str) -> Run:
    """Return the request of a workflow run on which this was decided last."""
    for event in reversed(events):
        if isinstance(event.data, ApprovalRecorded) and event.data.approval_hash == proposal_hash:
            return next(request for request in requests_of(run) if request.step == event.data.step)
    raise AssertionError("the decision has just been recorded")


async def _answer(runner: Runner, log: Any, decision: str, number: int, line: bytes) -> dict[str, Any]:
    """Return the line that answers one: what was decided, or why not. Raises what is no refusal of this one."""
    named: dict[str, Any] = {"line": number}
    try:
        asked = _parsed(line)
        named |= {"run_id": asked.run_id, "proposal_hash": asked.proposal_hash}
        async with sends_there(log, asked.run_id):
            await asked.carry_out(runner, decision)
        run, events = await read_run(log, asked.run_id)
    except (Refused, InvalidInput, Conflict) as error:
        return {**named, "error": label_of(error), "message": str(error)}
    request = run if run.progress is None else decided_request(run, events, asked.proposal_hash)
    return {**named, "decision": decision, "request_id": request.request_id, "status": request.status.value}


def _parsed(line: bytes) -> Asked:
    value = parse_json(line, what="the line")
    if not isinstance(value, dict):
        raise InvalidInput("invalid_argument", f"a line is an object with some of {', '.join(_FIELDS)}")
    named = {name: value[name] for name in _FIELDS if name in value}
    if named.get("request") is None:
        named["request"] = value.get(_REQUEST_ID)
    elif value.get(_REQUEST_ID, named["request"]) != named["request"]:
        raise InvalidInput("invalid_argument", "the line names two requests: request and request_id")
    try:
        return msgspec.convert(named, Asked)
    except msgspec.ValidationError as error:
        raise InvalidInput("invalid_argument", f"the line is no decision: {error}") from error


@contextmanager
def _lines_of(source: str) -> Iterator[Iterator[bytes]]:
    if source == "-":
        with standard_input() as file:
            yield _bounded(file)
        return
    with ExitStack() as stack:
        try:
            file = stack.enter_context(Path(source).open("rb"))
        except (OSError, ValueError) as error:
            raise click.UsageError(f"--from: cannot read {source!r}: {why_unreadable(error)}.") from error
        yield _bounded(file)


def _bounded(file: BinaryIO) -> Iterator[bytes]:
    limit = Limits().body_bytes
    while line := file.readline(limit + 1):
        if len(line) > limit:
            raise InvalidInput("payload_too_large", f"a line has more than {limit} bytes")
        yield line


def _parameter(context: click.Context, name: str) -> click.Parameter:
    return next(parameter for parameter in context.command.params if parameter.name == name)
