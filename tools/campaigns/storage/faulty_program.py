"""A program whose system calls can be made to fail, and in which storage scenarios are run: `FaultyProgram`.

It is started once, with the shim in front of libc, imports everything, and forks for each run that is asked for. So a
run costs what its work costs, and not the start of an interpreter.
"""

from __future__ import annotations

import errno
import gc
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from tools.campaigns.frame.copies import ROOT
from tools.campaigns.storage.libc_faults import (
    FOR_EVER,
    KILLED,
    OPERATIONS,
    SHORT,
    Faults,
    Operation,
    build_shim,
    shim_environment,
)
from tools.campaigns.storage.runs import Ran, Runs

__all__ = ["ERRORS", "KILLS", "NO_LINKS", "Fault", "FaultyProgram", "Order", "Outcome", "lacks_shim", "operations_of"]

_STORM: Final = 40
"""So many calls in a row end with EINTR where it is "for ever": a signal that came for ever would let nothing end."""
_NEVER: Final = 1 << 30


class Fault(msgspec.Struct, frozen=True):
    """How a call fails: see `Faults.arm`."""

    error: int
    works: bool = False
    torn: bool = False
    only: tuple[Operation, ...] = ()
    """The operations that can fail so; all, if empty."""


ERRORS: Final[Mapping[str, Fault]] = {
    "EIO": Fault(errno.EIO),
    "ENOSPC": Fault(errno.ENOSPC, only=("write", "sync", "open", "link", "rename", "truncate", "mkdir")),
    "EINTR": Fault(errno.EINTR, only=("write", "read", "sync", "open", "truncate")),
    "short": Fault(SHORT, torn=True, only=("write",)),
    "torn": Fault(errno.EIO, torn=True, only=("write",)),
    "late": Fault(errno.EIO, works=True, only=("sync", "link", "rename", "unlink", "truncate", "mkdir")),
    "EPERM": Fault(errno.EPERM, only=("link",)),
    "EOPNOTSUPP": Fault(errno.EOPNOTSUPP, only=("link",)),
}
"""`short`: a part is written, and the call says so. `torn`: a part is written, and the call fails. `late`: the call
fails, and has worked all the same."""

NO_LINKS: Final = frozenset({"EPERM", "EOPNOTSUPP"})
"""What file systems say that have no links."""

KILLS: Final[Mapping[str, Fault]] = {
    "before": Fault(KILLED, only=("write", "sync", "open", "link", "rename", "unlink", "truncate", "mkdir")),
    "behind": Fault(KILLED, works=True, only=("sync", "open", "link", "rename", "unlink", "truncate", "mkdir")),
    "torn": Fault(KILLED, torn=True, only=("write",)),
}
"""The process ends in front of a call, behind it, in the middle of a write."""


def operations_of(fault: Fault) -> tuple[Operation, ...]:
    """Return the operations that can fail so."""
    return fault.only or OPERATIONS


class Order(msgspec.Struct, frozen=True):
    """One run that is asked for: the call number `at` (from 1) of an operation fails, or all from it on.

    Without a fault the calls are counted, of all operations.
    """

    scenario: str
    operation: Operation = "write"
    fault: Fault | None = None
    at: int = 1
    for_ever: bool = False


class Outcome(msgspec.Struct):
    """What came of a run: how often the fault was met, how many calls there were, and what was seen."""

    hits: int
    counts: dict[Operation, int]
    ran: Ran


def lacks_shim() -> str | None:
    """Return what is missing here for the shim, if something is."""
    if sys.platform != "linux":
        return "LD_PRELOAD as Linux has it"
    return None if _compiler() else "a C compiler (gcc or cc)"


def _compiler() -> str | None:
    return shutil.which("gcc") or shutil.which("cc")


class FaultyProgram:
    """The program, as its parent talks to it: one run at a time. A context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder

    def __enter__(self) -> Self:
        compiler = _compiler()
        assert compiler is not None, "a campaign that lacks it is not run"
        library = build_shim(self._folder, compiler)
        place = self._folder / "runs"
        place.mkdir()
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **shim_environment(library, self._folder / "table")}
        command = [sys.executable, "-m", __name__, str(place)]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def run(self, order: Order) -> Outcome:
        """Have a scenario run. The program bounds its children, and so ends each run in time."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(order) + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the program that runs scenarios has ended with {self._process.wait()}"
        return msgspec.json.decode(line, type=Outcome)


def _perform(runs: Runs, faults: Faults, order: Order) -> Outcome:
    fault = order.fault

    def begin(folder: Path) -> None:
        if fault is None:
            for operation in OPERATIONS:
                faults.arm(operation, errno.EIO, below=str(folder), skip=_NEVER)
            return
        times = 1
        if order.for_ever:
            times = _STORM if fault.error == errno.EINTR else FOR_EVER
        faults.arm(
            order.operation,
            fault.error,
            below=str(folder),
            skip=order.at - 1,
            times=times,
            works=fault.works,
            torn=fault.torn,
        )

    def heal() -> None:
        for operation in OPERATIONS:
            faults.disarm(operation)

    is_killed = fault is not None and fault.error == KILLED
    ran = runs.run(order.scenario, begin, heal, may_die_by=[signal.SIGKILL] if is_killed else [])
    return Outcome(faults.hits(order.operation), {each: faults.seen(each) for each in OPERATIONS}, ran)


def _serve(place: Path) -> None:
    """Answer orders until there are no more. What children print goes to the error output, not between the answers."""
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    faults = Faults()
    with Runs(place) as runs:
        for line in sys.stdin.buffer:
            order = msgspec.json.decode(line, type=Order)
            runs.folder(order.scenario)
            gc.freeze()  # so that no child copies pages by looking for garbage
            answers.write(msgspec.json.encode(_perform(runs, faults, order)) + b"\n")


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
