"""What goes wrong, said to people and to programs, and the exit status it ends with.

0 done · 1 unexpected · 2 usage or refusal · 3 damage found · 4 cannot verify · 5 try again
130 interrupted · 141 broken pipe
"""

from __future__ import annotations

import traceback
from io import StringIO
from typing import Any, Final

import click

from eventlog.cli.advice import advice
from eventlog.cli.options import Options
from eventlog.cli.output import write_document, write_error_text, write_seed
from eventlog.cli.text import shortened, visible
from eventlog.errors import (
    CODES,
    CommitOutcomeUnknown,
    Conflict,
    EventLogError,
    InvalidInput,
    LogCorrupt,
    Refused,
    StoreBusy,
)
from eventlog.events import Failure

__all__ = [
    "CannotVerify",
    "StillWaiting",
    "exit_status",
    "label_of",
    "report",
    "report_failure",
    "report_interrupted",
    "report_unexpected",
    "report_usage",
]

_MESSAGE: Final = 1000
"""How many characters of what a workflow raised are said; its log holds all."""

_UNEXPECTED: Final = frozenset(
    {
        "store_full",
        "store_identity_changed",
        "store_io_error",
        "store_out_of_memory",
        "unexpected",
        "view_failed",
    }
)
"""What neither the caller nor the log did wrong."""

_NOT_IN_SEED: Final = frozenset(
    {
        "approver_revoked",
        "level_required",
        "secret_found",
        "statement_expired",
        "statement_invalid",
        "statement_mismatch",
    }
)
"""What a command can be refused that was given nothing but a run, and that no answer of the first seed explains."""

_TRY_AGAIN: Final = frozenset({"view_busy", "view_late"})
"""What another process is at work on."""


class CannotVerify(Exception):
    """The log could not be verified, for the reason that `error` gives: neither clean nor damaged."""

    def __init__(self, error: EventLogError) -> None:
        super().__init__(str(error))
        self.error: Final = error


class StillWaiting(EventLogError):
    """What was waited for has not come in time (`still_waiting`). Nothing was changed; it may be waited for again."""

    def __init__(self, message: str, /, **details: Any) -> None:
        super().__init__("still_waiting", message, **details)


def label_of(error: EventLogError) -> str:
    """Return the code, with its subject where it has one (`unknown_run:run-1`) or the status (`cannot_resume:…`)."""
    return error.label if isinstance(error, Refused) else error.code


def exit_status(error: EventLogError) -> int:
    """Return the exit status of a coded error."""
    if isinstance(error, LogCorrupt):
        return 3
    if isinstance(error, Conflict | StoreBusy | CommitOutcomeUnknown | StillWaiting):
        return 5
    if error.code in _TRY_AGAIN:
        return 5
    return 1 if error.code in _UNEXPECTED else 2


def report(error: EventLogError, options: Options, *, status: int | None = None, hint: str | None = None) -> int:
    """Tell a coded error in the form that the command owes, and return the exit status.

    `hint` is what the command knows better than the error's code.
    """
    hint = advice(error, options) if hint is None else hint
    if options.is_seed:
        write_seed({"error": label_of(error)})
        if _may_explain(error, options) and not options.verbosity:
            write_error_text(_for_people(error, hint))
    elif options.is_json:
        write_document(_document(label_of(error), str(error), hint, error.details))
    else:
        write_error_text(_for_people(error, hint))
    if options.verbosity:
        _say_more(error, options, hint)
    return exit_status(error) if status is None else status


def _may_explain(error: EventLogError, options: Options) -> bool:
    """Say whether a frozen command may use standard error: where it meets what the first seed does not have."""
    is_new = options.is_about_workflow or options.is_signed or error.code in _NOT_IN_SEED
    return is_new or any(given is not None for given in (options.app, options.signer, options.subject_keys))


def report_interrupted(options: Options) -> None:
    """Tell a program that reads JSON that the command was interrupted, unless its answer has begun already."""
    if options.format == "json" and not options.is_seed and not options.is_streaming:
        error = options.interrupted or EventLogError("interrupted", "the command was interrupted before it had ended")
        write_document(_document(error.code, str(error), advice(error, options), error.details))


def report_unexpected(error: Exception, options: Options) -> int:
    """Tell a fault of the program itself. The traceback is for those who ask with -v."""
    coded = EventLogError("unexpected", f"{type(error).__name__}: {error}")
    status = report(coded, options)
    if options.verbosity:
        _show_traceback(error)
    return status


def report_usage(error: click.UsageError, options: Options) -> int:
    """Tell what is wrong with the command line: as text, and to a program that reads JSON as a document."""
    text = StringIO()
    error.show(file=text)
    write_error_text(text.getvalue().rstrip("\n"))
    if options.is_json and not options.is_seed and _command_of(error) not in _SEED:
        hint = f"{error.ctx.command_path} --help" if error.ctx is not None else "eventlog --help"
        write_document(_document("invalid_argument", error.format_message(), hint, {}))
    return 2


_SEED: Final = frozenset({"start", "approve", "reject", "resume", "show-trace"})


def _command_of(error: click.UsageError) -> str | None:
    return error.ctx.info_name if error.ctx is not None else None


def _document(label: str, message: str, hint: str, details: dict[str, Any]) -> dict[str, Any]:
    return {"error": label, "message": message, "hint": hint, "details": details}


def report_failure(failure: Failure) -> None:
    """Say on standard error why a run has ended badly, where its result is on standard output."""
    text = f"error[{visible(failure.code)}]: {visible(shortened(failure.message, _MESSAGE))}"
    hint = CODES.get(failure.code)
    write_error_text(text if hint is None else f"{text}\nhint: {hint.hint}")


def _for_people(error: EventLogError, hint: str) -> str:
    lines = [f"error[{visible(error.code)}]: {visible(str(error))}"]
    lines += [
        f"  {visible(name)}: {visible(str(value))}"
        for name, value in error.details.items()
        if _is_news(error, name, value)
    ]
    return "\n".join([*lines, f"hint: {visible(hint)}"])


def _is_news(error: EventLogError, name: str, value: Any) -> bool:
    """Say whether a fact is worth its own line: it is there, and the sentence does not say it already."""
    if value is None or (isinstance(error, InvalidInput) and name == "path"):
        return False
    return str(value) not in str(error)


def _say_more(error: EventLogError, options: Options, hint: str) -> None:
    """Say on standard error what a program's answer does not; where the program is at fault, also where."""
    if options.is_seed or options.is_json:
        write_error_text(_for_people(error, hint))
    if error.code == "unexpected" and error.__traceback__ is not None:
        _show_traceback(error)
    if error.code == "app_unusable" and isinstance(error.__cause__, Exception):
        _show_traceback(error.__cause__)


def _show_traceback(error: Exception) -> None:
    write_error_text("".join(traceback.format_exception(error)).rstrip())
