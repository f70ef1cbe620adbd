"""What an opening is waiting for, on a terminal: a view whose revision was raised is built before anything else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from eventlog.cli.options import Options
from eventlog.views import ViewBuild

__all__ = ["build_line"]

PATIENCE_S: Final = 1.0
"""So long nobody wonders what is going on."""


@contextmanager
def build_line(options: Options) -> Iterator[Callable[[ViewBuild], None]]:
    """Give what says on standard error how far a view is built, once that takes longer than a second.

    It is one line that is written over, and taken away in the end; nothing at all where standard error is no terminal.
    """
    began_s = time.monotonic()
    written = 0

    def show(build: ViewBuild) -> None:
        nonlocal written
        if options.shows_progress and time.monotonic() - began_s >= PATIENCE_S:
            percent = 100 * build.position // max(build.head, 1)
            text = f"building the view {build.name}, revision {build.revision}: {percent} %"
            _write("\r" + text.ljust(written))
            written = len(text)

    try:
        yield show
    finally:
        if written:
            _write("\r" + " " * written + "\r")


def _write(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        pass  # a standard error that is gone is no reason to fail
