"""The command line. `main` is its door; everything else is loaded by the command that needs it."""

from __future__ import annotations

import os
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command that the process was started with, and end the process with its exit status."""
    _keep_standard_descriptors()
    try:
        from eventlog.cli.app import run

        status = run(sys.argv[1:])
    except KeyboardInterrupt:  # while a module was being loaded; `run` handles its own
        status = 130
    sys.exit(status)


def _keep_standard_descriptors() -> None:
    """Put the null device where a standard stream is closed, so that no file of the log gets its number."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free, which is this one
