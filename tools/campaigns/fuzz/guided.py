"""Coverage-guided fuzzing of one target, by `atheris`, in a process of its own (`processes/guided_target.py`).

The modules that the target is about are instrumented when they are imported, so that the fuzzer sees which branch an
input took. Its bytes are what the input is drawn from (`BytesChance`): it learns structures, not only bytes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tools.campaigns.fuzz.drawing import BytesChance
from tools.campaigns.fuzz.target import Target
from tools.campaigns.fuzz.trying import spelled, try_input

__all__ = ["GUIDED", "Guided", "can_guide", "guide", "run_bytes"]

GUIDED: Final = {
    "decoder": "of_events",
    "encoder": "of_values",
    "canonical": "of_values",
    "stored_proposal": "of_values",
    "stored_outputs": "of_values",
    "json": "of_values",
    "entry": "of_values",
    "note": "of_proofs",
    "lines": "of_proofs",
    "envelope": "of_proofs",
    "ssh": "of_proofs",
    "statement": "of_proofs",
    "id": "of_names",
    "time": "of_names",
    "secrets": "of_names",
}
"""The module of each target that is fuzzed so."""

_LIMIT_S: Final = 1200
_DONE: Final = re.compile(r"Done (\d+) runs in (\d+) second")
_COVERAGE: Final = re.compile(r"cov: (\d+) ft: (\d+)")

Guided = tuple[int, int, int, str | None]
"""How many inputs there were, the seconds, the branches that were seen, and what was found wrong, with its bytes."""


def can_guide() -> bool:
    """Say whether the fuzzer is installed; there is none for every Python."""
    return find_spec("atheris") is not None


def guide(name: str, runs: int, seed: int, folder: Path) -> Guided:
    """Fuzz a target in a process of its own, and wait for its end."""
    found = folder / f"{name}.found"
    words = [sys.executable, "-m", "tools.campaigns.processes.guided_target", name, str(runs), str(seed), str(found)]
    try:
        ended = subprocess.run(
            words, capture_output=True, timeout=_LIMIT_S, check=False, cwd=folder, env=_environment(), text=True
        )
    except subprocess.TimeoutExpired:
        return 0, _LIMIT_S, 0, f"I9 it has not ended after {_LIMIT_S} s"
    done, coverage = _DONE.findall(ended.stderr), _COVERAGE.findall(ended.stderr)
    wrong = found.read_text() if found.exists() else None
    if not done and wrong is None:
        wrong = f"I8 the fuzzer ended with {ended.returncode}: {ended.stderr[-400:]}"
    count, seconds = (int(done[-1][0]), int(done[-1][1])) if done else (0, 0)
    return count, seconds, int(coverage[-1][0]) if coverage else 0, wrong


def _environment() -> dict[str, str]:
    project = str(Path(__file__).resolve().parents[3])
    return {**os.environ, "PYTHONPATH": project}


def run_bytes(target: Target, data: bytes) -> str | None:
    """Return what is wrong with the input that these bytes stand for."""
    drawn = target.draw(BytesChance(data))
    wrong = try_input(target, drawn)
    return None if wrong is None else f"{wrong[0]} {wrong[1]}, by {spelled(drawn)}"
