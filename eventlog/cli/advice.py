"""What to do next about a view, as a command that can be pasted: with the name that is known and the options given."""

from __future__ import annotations

import shlex
from typing import Final

from eventlog.cli.options import Options
from eventlog.errors import CODES, EventLogError

__all__ = ["advice", "after_a_failed_build", "after_a_stop", "spelled"]

_WITHOUT_KEY: Final = "the key of its subject is not here"
"""What stopped a view is known by its text alone; these are the words of `subject_key_missing`."""

_REPLACED: Final = "the key was replaced"
"""What a signer says whose key was rotated; one in another process hands on nothing but its words."""

_OWN: Final = ("projections", "into", "app")
"""Options that a command about views needs again, in the order in which they are spelled."""


def spelled(options: Options, *words: str) -> str:
    """Return a command about views as it is typed, with the options that this one was given."""
    own = [text for name in _OWN if (given := options.given.get(name)) is not None for text in (f"--{name}", given)]
    db = [] if options.db_or_none is None else ["--db", options.db_or_none]
    return shlex.join(["eventlog", *db, "projections", *words, *own])


def advice(error: EventLogError, options: Options) -> str:
    """Return what to do about an error: its own hint, or for one about a view or a replaced key what fits exactly."""
    if error.code == "head_refused" and _REPLACED in str(error):
        return "Sign with the key that took its place: `--signer NEW`, or EVENTLOG_SIGNER."
    view = error.details.get("view")
    if not isinstance(view, str):
        return error.hint
    match error.code:
        case "view_failed" if _WITHOUT_KEY in str(error):
            return CODES["subject_key_missing"].hint
        case "view_failed":
            return _after_a_failure(error, options, view)
        case "view_outdated":
            return f"Build it again:  {spelled(options, 'rebuild', view)}"
        case "view_overtaken" if "revision" in error.details:
            return "This program's revision is lower than that of the view: upgrade it, or use the later program."
        case "view_overtaken":
            return f"Somebody else writes it; stop one of the two. How far it is:  {spelled(options, 'status', view)}"
        case "view_busy":
            return f"Wait for it. How far it is:  {spelled(options, 'status', view)}"
        case "view_late":
            return f"Wait longer. Where it stands, and what may have stopped it:  {spelled(options, 'status', view)}"
        case "store_rolled_back":
            again = spelled(options, "rebuild", view)
            return f"Put the right log back, or, if this one is right, build the view again:  {again}"
        case "interrupted":
            return f"Go on with:  {spelled(options, 'rebuild', view)}"
        case "unknown_view" if "revision" in error.details:  # it is known, and only not there
            return f"Build it:  {spelled(options, 'rebuild', view)}"
        case "unknown_view":
            known = spelled(options, "list")
            return f"Name your own with --projections MODULE:NAME. Those that there are:  {known}"
        case _:
            return error.hint


def after_a_failed_build(options: Options, view: str) -> str:
    """Return what to do about a build whose projection has raised."""
    return f"Correct the projection, then go on with the build:  {spelled(options, 'rebuild', view)}"


def after_a_stop(options: Options, view: str) -> str:
    """Return what to do about a live view whose projection has raised."""
    return f"Correct the projection, then bring it up:  {spelled(options, 'resume', view)}"


def _after_a_failure(error: EventLogError, options: Options, view: str) -> str:
    match error.details.get("state"):
        case "live":
            return after_a_stop(options, view)
        case str():
            return after_a_failed_build(options, view)
        case _:  # what reads a view does not say what it is that has stopped
            status = spelled(options, "status", view)
            return f"Where it stopped, and what goes on once its projection is corrected:  {status}"
