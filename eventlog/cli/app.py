"""The command `eventlog`: its commands by name, and the one place where an invocation ends, well or badly."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
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
        "show-trace": _place("seed", "show_trace", "Show a run with the events that led to it."),
    },
    "Look": {
        "runs": _place("runs", "runs", "The state of runs: list, show."),
        "approvals": _place("approvals", "approvals", "What waits for a decision: list, show."),
        "tail": _place("tail", "tail", "Print events; -f goes on as they come."),
        "events": _place("events", "events", "Single events: show, append."),
        "verify": _place("verify", "verify", "Check the log against its hashes, order and views."),
    },
    "Keep": {
        "db": _place("db", "db", "The database: info, backup, migrate."),
        "doctor": _place("doctor", "doctor", "Check this machine and the log's folder."),
    },
    "Learn": {
        "demo": _place("demo", "demo", "Watch a run crash and recover in real processes."),
        "explain": _place("explain", "explain", "Say what a code means and what to do."),
        "completion": _place("completion", "completion", "Print the completion script of a shell."),
    },
}


@click.command(cls=LazyGroup, sections=SECTIONS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="eventlog")
def eventlog() -> None:
    """A log that agents can stand on: durable runs, frozen approvals, effects that do not happen twice.

    Options may stand before the command or behind it.
    """


def run(argv: Sequence[str]) -> int:
    """Run one invocation and return its exit status. Every way it can end is told here and nowhere else."""
    options = Options(argv)
    try:
        return _run(options)
    except BrokenPipeError:
        from eventlog.cli.output import silence_standard_output

        silence_standard_output()
        return BROKEN_PIPE
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except OSError as error:
        return _cannot_say(error)


def _cannot_say(error: OSError) -> int:
    """End when standard output takes neither the result nor the report of the failure: it is full, or closed."""
    from eventlog.cli.output import silence_standard_output, write_error_text

    silence_standard_output()
    write_error_text(f"error[unexpected]: cannot write to standard output: {error.strerror or error}")
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
        return shell_complete(eventlog, {}, "eventlog", COMPLETE, instruction)
    with eventlog.make_context("eventlog", list(options.argv), obj=options) as context:
        status = eventlog.invoke(context)
        return status if isinstance(status, int) else 0


def _failed(error: Exception, options: Options) -> int:
    from eventlog.cli.failures import CannotVerify, report, report_unexpected
    from eventlog.errors import EventLogError

    if isinstance(error, CannotVerify):
        return report(error.error, options, status=4)
    if isinstance(error, EventLogError):
        return report(error, options)
    return report_unexpected(error, options)
