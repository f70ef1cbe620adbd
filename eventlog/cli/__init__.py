"""The command line. `main` is its door; everything else is loaded by the command that needs it."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command that the process was started with, and end the process with its exit status."""
    try:
        from eventlog.cli.app import run

        status = run(sys.argv[1:])
    except KeyboardInterrupt:  # while a module was being loaded; `run` handles its own
        status = 130
    sys.exit(status)
