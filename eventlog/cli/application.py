"""The caller's own program: `--app MODULE:RUNNER` names what makes its Runner.

The command then acts with the actions, workflows and policies of that one.

MODULE is imported as Python does it, the current folder first. RUNNER is a function that takes the open log and returns
a `Runner`, or is async and does; or anything else that can be called so. What the program prints goes to standard
error: standard output belongs to the answer of the command.
"""

from __future__ import annotations

import inspect
from typing import Any

from eventlog.cli.imported import Imported, printing_elsewhere
from eventlog.cli.options import Options
from eventlog.errors import EventLogError, Misuse
from eventlog.log import RunLog
from eventlog.runtime.runner import Runner

__all__ = ["load_runner", "load_types", "register_types"]


def register_types(options: Options) -> None:
    """Import what `--app` and `--projections` name, so that the types of events in it are registered.

    For commands that only read: they show the caller's events as his program does itself, and run nothing. Raises
    Misuse (`app_unusable`, `projections_unusable`).
    """
    if options.app is not None:
        load_types(options.app)
    if options.projections is not None:
        with printing_elsewhere():
            Imported(options.projections, "--projections", "MODULE:NAME", "projections_unusable").loaded()


def load_types(app: str) -> None:
    """Import the program, so that its types of events are registered; no Runner is made. Raises Misuse(`app_unusable`).

    A MODULE alone will do, for nothing in it is called.
    """
    with printing_elsewhere():
        if ":" in app:
            _found(app)
        else:
            _named(app).loaded()


async def load_runner(app: str, log: RunLog) -> Runner:
    """Return the Runner that the program makes for this log. Raises Misuse(`app_unusable`)."""
    with printing_elsewhere():
        factory = _found(app)
        try:
            runner = factory(log)
            if inspect.isawaitable(runner):
                runner = await runner
        except EventLogError:
            raise
        except Exception as error:
            raise _unusable(app, f"it failed to make a Runner: {type(error).__name__}: {error}") from error
    if not isinstance(runner, Runner):
        raise _unusable(app, f"it made a {type(runner).__name__}, and no Runner")
    if runner.log is not log:
        raise _unusable(app, "its Runner is one of another log than the one it was given")
    return runner


def _named(app: str) -> Imported:
    return Imported(app, "--app", "MODULE:RUNNER", "app_unusable")


def _found(app: str) -> Any:
    named = _named(app)
    found = named.found()
    if not callable(found):
        name = app.partition(":")[2]
        raise named.unusable(f"{name!r} is a {type(found).__name__}, and cannot be called with the log")
    return found


def _unusable(app: str, why: str) -> Misuse:
    return _named(app).unusable(why)
