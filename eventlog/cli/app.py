"""The command `eventlog`: its commands by name, and the one place where an invocation ends, well or badly."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout, suppress
from io import BytesIO, TextIOWrapper
from typing import Final

import click
from click.shell_completion import shell_complete

from eventlog import __version__
from eventlog.cli.commands import LazyGroup, Place
from eventlog.cli.options import Options

__all__ = ["SECTIONS", "eventlog", "run"]

UNEXPECTED: Final = 1
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141
COMPLETE: Final = "_EVENTLOG_COMPLETE"
"""The environment variable by which a shell asks for completions."""


def _place(module: str, name: str, text: str) -> Place:
    return Place(f"eventlog.cli.{module}", name, text)


SECTIONS: Final[Mapping[str, Mapping[str, Place]]] = {
    "Run": {
        "start": _place("seed", "start", "Record a proposal; the run then waits for a decision."),
        "approve": _place("seed", "approve", "Approve exactly the proposal with this hash."),
        "reject": _place("seed", "reject", "Reject exactly the proposal with this hash."),
        "resume": _place("seed", "resume", "Perform the approved effect, or find that it was performed."),
        "reconcile": _place("reconcile", "reconcile", "Settle an outcome that nobody knows, by what you found out."),
        "worker": _place("worker", "worker", "Drive workflow runs as they can go on."),
        "show-trace": _place("seed", "show_trace", "Show a run with the events that led to it."),
    },
    "Look": {
        "runs": _place("runs", "runs", "The runs: list, show, diff, timeline, usage; cancel, signal."),
        "approvals": _place(
            "approvals", "approvals", "What waits for a person: list, show, review, statement, wait, edit, revoke."
        ),
        "tail": _place("tail", "tail", "Print events; -f goes on as they come."),
        "events": _place("events", "events", "Single events: show, append."),
        "diagram": _place("diagram", "diagram", "Print a run as a picture, for Mermaid or Graphviz."),
        "report": _place("report", "report", "Write a run's whole story as one HTML file."),
        "verify": _place("verify", "verify", "Check the log against its hashes, order and views."),
    },
    "Keep": {
        "export": _place("export", "export", "Write events as jsonl, csv, cloudevents or parquet."),
        "projections": _place("projections", "projections", "The views: list, status, rebuild, check, resume, drop."),
        "erase": _place("erase", "erase_command", "Erase events, runs, streams or subjects for good."),
        "keys": _place("keys", "keys", "The keys of the log and of its approvers: new, rotate, list, …"),
        "head": _place("head", "head", "The signed head of the log, and proofs from it."),
        "signer": _place("signer", "signer", "Sign heads in a process of its own."),
        "db": _place("db", "db", "The database: info, backup, migrate."),
        "doctor": _place("doctor", "doctor", "Check this machine and the log's folder."),
    },
    "Learn": {
        "demo": _place("demo", "demo", "Watch a run crash and recover in real processes."),
        "explain": _place("explain", "explain", "Say what a code means and what to do."),
        "completion": _place("completion", "completion", "Print the completion script of a shell."),
    },
}


def _show_version(context: click.Context, option: click.Parameter, is_asked: bool) -> None:
    if is_asked and not context.resilient_parsing:
        from eventlog.cli.output import write_line

        write_line(f"eventlog, version {__version__}")
        context.exit()


@click.command(cls=LazyGroup, sections=SECTIONS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
def eventlog() -> None:
    """A log that agents can stand on: durable runs, frozen approvals, effects that do not happen twice.

    Options may stand before the command or behind it.
    """


def run(argv: Sequence[str]) -> int:
    """Run one invocation and return its exit status. Every way it can end is told here and nowhere else.

    Without a standard output nothing is begun: nobody would learn how it ended.
    """
    options = Options(argv)
    try:
        return _run(options) if sys.stdout is not None else _cannot_say("it is closed")
    except BrokenPipeError:
        from eventlog.cli.output import silence_standard_output

        silence_standard_output()
        return BROKEN_PIPE
    except (KeyboardInterrupt, click.Abort):
        return _interrupted(options)
    except OSError as error:
        return _cannot_say(error.strerror or str(error))


def _interrupted(options: Options) -> int:
    from eventlog.cli.failures import report_interrupted

    with suppress(OSError):  # nobody is left to be told
        report_interrupted(options)
    return INTERRUPTED


def _cannot_say(why: str) -> int:
    """End when standard output does not take what has to be said: it is full, or closed."""
    from eventlog.cli.output import silence_standard_output, write_error_text

    silence_standard_output()
    write_error_text(f"error: cannot write to standard output: {why}")
    return UNEXPECTED


def _run(options: Options) -> int:
    try:
        return _invoke(options)
    except click.exceptions.Exit as end:  # --help and --version end so
        return end.exit_code
    except (BrokenPipeError, click.Abort):
        raise
    except click.UsageError as error:
        from eventlog.cli.failures import report_usage

        return report_usage(error, options)
    except Exception as error:
        return _failed(error, options)


def _invoke(options: Options) -> int:
    """Parse and run. Not click's own `main`: that answers a broken pipe and an interrupt in its own way."""
    instruction = os.environ.get(COMPLETE)
    if instruction:
        return _complete(instruction)
    with eventlog.make_context("eventlog", list(options.argv), obj=options) as context:
        status = eventlog.invoke(context)
        return status if isinstance(status, int) else 0


def _complete(instruction: str) -> int:
    """Answer a shell that asks for completions, or for the script that asks."""
    from eventlog.cli.output import write_bytes, write_error_text

    said = BytesIO()
    with redirect_stdout(TextIOWrapper(said, encoding="utf-8", write_through=True)):  # click writes text and bytes
        status = shell_complete(eventlog, {}, "eventlog", COMPLETE, instruction)
        answer = said.getvalue()
    if status and not answer:
        write_error_text(f"error: {COMPLETE} is set, and no shell asks for completions by what it holds; unset it")
    write_bytes(answer)
    return status


def _failed(error: Exception, options: Options) -> int:
    from eventlog.cli.failures import CannotVerify, report, report_unexpected
    from eventlog.cli.output import CannotWrite
    from eventlog.errors import EventLogError

    if isinstance(error, CannotWrite):
        raise error
    if isinstance(error, CannotVerify):
        return report(error.error, options, status=4)
    if isinstance(error, EventLogError):
        return report(error, options)
    return report_unexpected(error, options)
