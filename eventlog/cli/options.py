"""The options of every command, before its name and after it: after wins over before, before over the environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, Final, Literal

import click
from click.core import ParameterSource

from eventlog.errors import EventLogError

__all__ = ["FORMATS", "Options", "common_options", "into_option", "output_option", "projections_option"]

FORMATS: Final = ("human", "plain", "json", "jsonl")
_VARIABLES: Final = (
    "EVENTLOG_DB",
    "EVENTLOG_OUTPUT",
    "EVENTLOG_APP",
    "EVENTLOG_PROJECTIONS",
    "EVENTLOG_VIEWS",
    "EVENTLOG_SIGNER",
    "EVENTLOG_SUBJECT_KEYS",
    "EVENTLOG_WRAPPING_KEY",
)
Format = Literal["human", "plain", "json", "jsonl"]


class Options:
    """What the invocation asks for besides its command; filled in while the command line is parsed."""

    def __init__(self, argv: Sequence[str]) -> None:
        self.argv: Final = tuple(argv)
        self.given: Final[dict[str, Any]] = {}
        self.is_seed = False
        """The command is one of the five whose output is frozen."""
        self.is_about_workflow = False
        """What was refused is about a run of a workflow, of which the first seed says nothing."""
        self.is_signed = False
        """What was refused is a decision that was signed, of which the first seed says nothing."""
        self.is_streaming = False
        """The answer is written piece by piece, so that nothing can be said instead of it any more."""
        self.interrupted: EventLogError | None = None
        """What an interrupted command leaves, if it can say that."""

    @property
    def db(self) -> str:
        """The path of the log, as given. Raises click.UsageError if there is none."""
        path = self.db_or_none
        if path is None:
            raise click.UsageError("Missing option '--db' (or the environment variable EVENTLOG_DB).", _context())
        if path == "memory:":
            raise click.UsageError("'--db memory:' would end with this command; name a file.", _context())
        return path

    @property
    def db_or_none(self) -> str | None:
        """The path of the log, as given, or None."""
        return self._path("db", "EVENTLOG_DB")

    @property
    def output(self) -> str | None:
        """The target of the run, as given, or None."""
        return self._path("output", "EVENTLOG_OUTPUT")

    @property
    def app(self) -> str | None:
        """The caller's own program, as `MODULE:RUNNER`, or None."""
        return self._path("app", "EVENTLOG_APP")

    @property
    def projections(self) -> str | None:
        """The caller's own projections, as `MODULE:NAME`, or None."""
        return self._path("projections", "EVENTLOG_PROJECTIONS")

    @property
    def into(self) -> str | None:
        """The database of views apart from the log's own, as given, or None."""
        return self._path("into", "EVENTLOG_VIEWS")

    @property
    def signer(self) -> str | None:
        """Who signs the heads of the log, as `eventlog.audit.heads.signer_from` reads it, or None."""
        return self._path("signer", "EVENTLOG_SIGNER")

    @property
    def subject_keys(self) -> str | None:
        """The folder with the keys of subjects, as given, or None."""
        return self._path("subject_keys", "EVENTLOG_SUBJECT_KEYS")

    @property
    def may_ask(self) -> bool:
        """Whether somebody is there to be asked: on a terminal, unless that was switched off."""
        return not self.given.get("no_input") and sys.stdin is not None and sys.stdin.isatty()

    @property
    def format(self) -> Format:
        """The format of results: as asked for, else for people on a terminal and plain elsewhere."""
        chosen: Format | None = self.given.get("format")
        return chosen or ("human" if sys.stdout is not None and sys.stdout.isatty() else "plain")

    @property
    def is_json(self) -> bool:
        """Whether results, and errors, are JSON."""
        return self.format in ("json", "jsonl")

    @property
    def is_quiet(self) -> bool:
        return bool(self.given.get("quiet"))

    @property
    def verbosity(self) -> int:
        return int(self.given.get("verbose") or 0)

    @property
    def has_color(self) -> bool:
        """Whether colours are wanted at all (NO_COLOR counts when it is set and not empty)."""
        return not self.given.get("no_color") and not os.environ.get("NO_COLOR")

    @property
    def shows_progress(self) -> bool:
        """Whether long work may draw a bar: on a terminal, unless it was switched off."""
        wanted = not self.given.get("no_progress") and not self.is_quiet
        return wanted and sys.stderr is not None and sys.stderr.isatty()

    def texts(self) -> list[str]:
        """Return every text that came from outside: the arguments and the environment."""
        return [*self.argv, *(os.environ.get(name, "") for name in _VARIABLES)]

    def _path(self, name: str, variable: str) -> str | None:
        given: str | None = self.given.get(name)
        return given if given is not None else os.environ.get(variable) or None


def common_options() -> list[click.Parameter]:
    """Return fresh options that every command has."""
    return [
        _option("--db", metavar="FILE", help="The log (or EVENTLOG_DB)."),
        _option(
            "--app",
            metavar="MODULE:RUNNER",
            help="Your own program: actions, workflows, event types (or EVENTLOG_APP).",
        ),
        _option("--signer", metavar="KEY|unix:SOCKET", help="Who signs the log's heads (or EVENTLOG_SIGNER)."),
        _option("--subject-keys", metavar="FOLDER", help="The keys of subjects (or EVENTLOG_SUBJECT_KEYS)."),
        _option("--format", type=click.Choice(FORMATS), help="How results are written."),
        _option("--json", is_flag=True, default=None, help="The same as --format json."),
        _option("--no-color", is_flag=True, default=None, help="No colours (or NO_COLOR)."),
        _option("--no-progress", is_flag=True, default=None, help="No progress bars."),
        _option("--no-input", is_flag=True, default=None, help="Never ask anything."),
        _option("--quiet", "-q", is_flag=True, default=None, help="No remarks, only results and errors."),
        _option("--verbose", "-v", count=True, default=None, help="Log to standard error; twice for more."),
    ]


def output_option(text: str = "What the run writes to (or EVENTLOG_OUTPUT).") -> click.Parameter:
    """Return a fresh `--output` with this help."""
    return _option("--output", metavar="TARGET", help=text)


def projections_option(text: str = "Your own projections (or EVENTLOG_PROJECTIONS).") -> click.Parameter:
    """Return a fresh `--projections` with this help."""
    return _option("--projections", metavar="MODULE:NAME", help=text)


def into_option() -> click.Parameter:
    """Return a fresh `--into`, for commands about views that may lie in a database of their own."""
    return _option("--into", metavar="FILE", help="Views in a database of their own (or EVENTLOG_VIEWS).")


def _option(*names: str, **settings: Any) -> click.Option:
    # Eager, so that the form of the answer is known before anything else on the command line can be wrong.
    return click.Option(list(names), expose_value=False, is_eager=True, callback=_remember, **settings)


def _remember(context: click.Context, option: click.Parameter, value: Any) -> None:
    assert option.name is not None, "an option has a name"
    given = context.find_object(Options)
    if given is None or context.get_parameter_source(option.name) is not ParameterSource.COMMANDLINE:
        return  # nothing was given, or a shell asks for completions
    if option.name == "json":
        given.given["format"] = "json"
    elif option.name == "verbose":
        given.given["verbose"] = given.verbosity + value
    else:
        given.given[option.name] = value


def _context() -> click.Context | None:
    return click.get_current_context(silent=True)
