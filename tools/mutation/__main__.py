"""`python tools/mutation` and `python -m tools.mutation`."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def start() -> int:
    """Run the program, whatever folder this was called from."""
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [str(ROOT), *(each for each in sys.path if each != here)]  # `python FOLDER` would hide other modules
    from tools.environment import continue_in_environment

    continue_in_environment()
    from tools.mutation.program import main

    return main()


if __name__ == "__main__":
    sys.exit(start())
