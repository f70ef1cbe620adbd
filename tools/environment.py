"""Lets a tool be started with any Python: it goes on in the project's `.venv`. Only the standard library is imported.

A tool calls `continue_in_environment()` before it imports the engine, and only when it is the program itself:

    from tools.environment import continue_in_environment

    if __name__ == "__main__":
        continue_in_environment()

    import eventlog
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

__all__ = ["continue_in_environment"]

ROOT = Path(__file__).resolve().parent.parent


def continue_in_environment() -> None:
    """Go on in the project's own environment, unless this is it; without one, in this if it has what is needed."""
    program = sys.argv[0]
    environment = ROOT / ".venv"
    if Path(sys.prefix).resolve() == environment.resolve():
        return
    python = environment / "bin" / "python"
    if (environment / "pyvenv.cfg").is_file() and python.is_file():
        os.execv(python, [str(python), program, *sys.argv[1:]])
    if sys.version_info < (3, 11) or importlib.util.find_spec("msgspec") is None:
        sys.exit(f"{os.path.basename(program)}: run `python3 tools/dev.py setup` first")
