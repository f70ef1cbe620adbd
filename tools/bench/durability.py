"""The proof that a commit reaches the disk: the syncs of a child process, counted by strace between two marks.

The child (`durability_child.py`) commits so often and marks the beginning and the end with a system call that strace
sees too. Syncs outside the marks (creating the file, closing it) do not count. The negative control is the engine with
`durability="normal"`, of which there must be fewer syncs than commits, or the count would prove nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

__all__ = ["BEGIN", "CONTROL", "END", "Syncs", "count_syncs", "syncs_in"]

BEGIN: Final = "/eventlog-bench-begin"
END: Final = "/eventlog-bench-end"
CONTROL: Final = "eventlog (normal)"
"""The name of the negative control."""

_MODULE: Final = "tools.bench.durability_child"
_CALLS: Final = "fdatasync,fsync,access,faccessat,faccessat2"
_TIMEOUT_S: Final = 120


class Syncs(msgspec.Struct, frozen=True, kw_only=True):
    """How many commits were made, and how many syncs there were meanwhile. `events` is the number in each commit."""

    name: str
    commits: int
    events: int
    syncs: int

    @property
    def is_durable(self) -> bool:
        """Whether there was at least one sync for each commit."""
        return self.syncs >= self.commits


def count_syncs(name: str, folder: Path, *, commits: int, events: int = 1) -> Syncs | None:
    """Let a store commit under strace and return the count; None on a machine without strace."""
    strace = shutil.which("strace")
    if strace is None:
        return None
    log = folder / "strace.out"
    command = [strace, "-f", "-qq", "-o", str(log), "-e", f"trace={_CALLS}", sys.executable, "-m", _MODULE]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    arguments = [name, str(folder), str(commits), str(events)]
    subprocess.run([*command, *arguments], env=environment, timeout=_TIMEOUT_S, check=True)
    syncs = syncs_in(log.read_text(encoding="utf-8", errors="replace").splitlines())
    return Syncs(name=name, commits=commits, events=events, syncs=syncs)


def syncs_in(lines: Iterable[str]) -> int:
    """Return how many syncs begin between the marks, in the lines of `strace -f`."""
    count = 0
    is_between = False
    for line in lines:
        if BEGIN in line:
            is_between = True
        elif END in line:
            return count
        elif is_between and ("fdatasync(" in line or "fsync(" in line):
            count += 1
    raise ValueError("the mark of the end is missing: the child did not get there")
