"""The processes in which mutants are tried: forked, each in a folder of its own, ended with all that they started."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from tools.mutation.mutants import Mutant

__all__ = ["BROKEN", "Trial", "side_by_side"]

BROKEN: Final = 71
"""The exit status of a process whose work has not come to an end of its own."""

_WAITS_S: Final = 180.0


def side_by_side(
    mutants: Sequence[Mutant], begin: Callable[[Mutant], Trial], jobs: int
) -> Iterator[tuple[Mutant, Trial]]:
    """Give each mutant with its trial when that has ended; it is cleared away afterwards."""
    waiting = list(reversed(mutants))
    running: list[tuple[Mutant, Trial]] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                mutant = waiting.pop()
                running.append((mutant, begin(mutant)))
            time.sleep(0.02)
            for pair in [pair for pair in running if pair[1].has_ended()]:
                running.remove(pair)
                yield pair
                pair[1].clear()
    finally:
        for _, trial in running:
            trial.clear()


class Trial:
    """A forked process that does `work` in a folder of its own and ends with the status that this returns."""

    def __init__(self, work: Callable[[Path], int], limit_s: int | None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="eventlog-mutant-"))
        self.status: int | None = None
        self._deadline = None if limit_s is None else time.monotonic() + _WAITS_S + 10 * limit_s
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _be_the_child(work, self.folder, limit_s)

    def has_ended(self) -> bool:
        """Say whether it is over; if its time is up, it is now."""
        if self._deadline is not None and time.monotonic() > self._deadline:
            self._kill()
            self.wait()
        elif self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = status if pid else None
        return self.status is not None

    def wait(self) -> None:
        """Wait until it is over."""
        if self.status is None:
            self.status = os.waitpid(self.pid, 0)[1]

    def said(self) -> str:
        """Return the end of what was printed."""
        with suppress(FileNotFoundError):
            return (self.folder / "said").read_text(encoding="utf-8", errors="replace")[-4000:]
        return ""

    def stop(self) -> None:
        """Have the process end itself and the trials that it has begun, if it has not ended."""
        if self.status is None:
            os.kill(self.pid, signal.SIGTERM)
            self.wait()

    def clear(self) -> None:
        """End the process with all that it has started, and leave nothing behind."""
        self._kill()
        self.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)  # it may not have a group yet


def _be_the_child(work: Callable[[Path], int], folder: Path, limit_s: int | None) -> None:
    status = BROKEN
    try:
        os.setpgid(0, 0)
        said = os.open(folder / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(said, 1)
        os.dup2(said, 2)
        if limit_s is not None:
            resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(folder)
        tempfile.tempdir = str(folder)
        status = work(folder)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
