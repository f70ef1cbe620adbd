"""The caller's own program: `--app MODULE:RUNNER` names what makes its Runner.

The command then acts with the actions, workflows and policies of that one.

MODULE is imported as Python does it, the current folder first. RUNNER is a function that takes the open log and returns
a `Runner`, or is async and does; or anything else that can be called so. What the program prints goes to standard
error: standard output belongs to the answer of the command.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from typing import Any

from eventlog.errors import EventLogError, Misuse
from eventlog.log import RunLog
from eventlog.runtime.runner import Runner

__all__ = ["load_runner", "printing_elsewhere"]


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


@contextmanager
def printing_elsewhere() -> Iterator[None]:
    """Send what the caller's own code prints to standard error."""
    with redirect_stdout(sys.stderr):
        yield


def _found(app: str) -> Any:
    module_name, colon, name = app.partition(":")
    if not (module_name and colon and name):
        raise _unusable(app, "that is not MODULE:RUNNER")
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found: Any = import_module(module_name)
    except (Exception, SystemExit) as error:
        raise _unusable(app, f"cannot import {module_name!r}: {type(error).__name__}: {error}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise _unusable(app, f"{module_name!r} has no {name!r}")
        found = getattr(found, part)
    if not callable(found):
        raise _unusable(app, f"{name!r} is a {type(found).__name__}, and cannot be called with the log")
    return found


def _unusable(app: str, why: str) -> Misuse:
    return Misuse("app_unusable", f"--app {app!r}: {why}", app=app)
