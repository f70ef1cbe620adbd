"""What the operating system gives to processes, simulated: clocks, chance, and locks that only the living hold.

The engine's own code for claims runs unchanged above the few functions here that stand for `flock` and its files. Each
simulated process has its own memory of claims, as a real one has, and is on a host; the lock files are for all of them.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal

from eventlog.runtime import action_digests, claims
from eventlog.runtime.attempts import AnyAction
from tools.campaigns.simulation.loop import PROCESS, Queue, SimulatedLoop

__all__ = ["PLACE", "LockFiles", "Process", "SimulatedClock", "begin", "lock_state", "simulated"]

PLACE: Final = "/simulated/log.db"
"""The path of the log, as far as lock files are concerned."""

NOON_US: Final = 1_767_268_800_000_000
"""2026-01-01T12:00:00Z, when each simulation begins."""

_MICRO: Final = 1_000_000


class SimulatedClock:
    """The clocks of one process. Its wall clock may be wrong; its monotonic one may stand still in a suspension."""

    def __init__(self, loop: SimulatedLoop, ahead_s: float = 0.0) -> None:
        self._loop: Final = loop
        self.ahead_us = round(ahead_s * _MICRO)
        """By how much the wall clock is wrong."""
        self.stood_s = 0.0

    def now_us(self) -> int:
        """Return what the process takes for the time."""
        return NOON_US + round(self._loop.time() * _MICRO) + self.ahead_us

    def monotonic_s(self) -> float:
        """Return seconds that never go back."""
        return self._loop.time() - self.stood_s


class Process(Queue):
    """One simulated process: its callbacks, its clocks, and what of the engine's memory is its own."""

    def __init__(self, name: str, host: str, clock: SimulatedClock) -> None:
        super().__init__()
        self.name: Final = name
        self.host: Final = host
        self.clock: Final = clock
        self.own: Final[dict[str, Any]] = {}
        """The lock files that it holds, by their ids: the engine's `_OWN`."""


class LockFiles:
    """All lock files: who holds each. None: it is there, and free."""

    def __init__(self) -> None:
        self._holders: Final[dict[str, Process | None]] = {}

    def take(self, path: str) -> int:
        """Make a file and hold it."""
        holder = PROCESS.get()
        assert isinstance(holder, Process) and path not in self._holders
        self._holders[path] = holder
        return -1

    def release(self, path: str) -> None:
        """Let a file go."""
        if path in self._holders:
            self._holders[path] = None

    def remove(self, path: str) -> None:
        """Remove a file."""
        self._holders.pop(path, None)

    def state(self, path: str) -> Literal["held", "free", "unknown"]:
        """Say what the file proves."""
        if path not in self._holders:
            return "unknown"
        holder = self._holders[path]
        return "held" if holder is not None and not holder.is_dead else "free"


class _Own:
    """The engine's `_OWN`, as each process has one."""

    def __contains__(self, file_id: str) -> bool:
        return file_id in _current().own

    def __getitem__(self, file_id: str) -> Any:
        return _current().own[file_id]

    def __setitem__(self, file_id: str, file: Any) -> None:
        _current().own[file_id] = file

    def get(self, file_id: str) -> Any:
        return _current().own.get(file_id)

    def pop(self, file_id: str, default: Any) -> Any:
        return _current().own.pop(file_id, default)


class _Entropy:
    """Chance and time for ids, from the seed."""

    def __init__(self) -> None:
        self.chance = random.Random()
        self.ticks = 0

    def urandom(self, size: int) -> bytes:
        return self.chance.randbytes(size)

    def time_ns(self) -> int:
        self.ticks += 1
        return self.ticks


_ENTROPY: Final = _Entropy()


@contextmanager
def simulated() -> Iterator[None]:
    """Put the simulated system in the place of the real one, for as long as simulations run in this real process."""
    before = [(module, name, getattr(module, name)) for module, name in _REPLACED]
    try:
        for (module, name), new in _REPLACED.items():
            setattr(module, name, new)
        yield
    finally:
        for module, name, old in before:
            setattr(module, name, old)


def begin(seed: str) -> None:
    """Begin a simulation anew: no lock file is there, and chance begins with the seed."""
    global _files
    _files = LockFiles()
    _ENTROPY.chance.seed(f"{seed}/entropy")
    _ENTROPY.ticks = 0
    random.seed(f"{seed}/global")


def lock_state(path: str) -> Literal["held", "free", "unknown"]:
    """Say what really is so of a lock file: who arranges the simulation sees all of it."""
    return _files.state(path)


def _current() -> Process:
    process = PROCESS.get()
    assert isinstance(process, Process), "claims are made and asked for by processes"
    return process


_files = LockFiles()


_digests: Final[dict[tuple[type, str], str]] = {}


def _digest_once(action: AnyAction) -> str:
    """Return what the engine makes of the code of an action: to read source text takes longer than a simulation."""
    kind = (type(action), action.name)
    if kind not in _digests:
        _digests[kind] = _action_digest(action)
    return _digests[kind]


_action_digest: Final = action_digests.action_digest

_REPLACED: Final[dict[tuple[Any, str], Any]] = {
    (os, "urandom"): _ENTROPY.urandom,
    (time, "time_ns"): _ENTROPY.time_ns,
    (claims, "_OWN"): _Own(),
    (claims, "_take"): lambda path: _files.take(path),
    (claims, "_release"): lambda path: _files.release(path),
    (claims, "_remove"): lambda path: _files.remove(path),
    (claims, "_state_of_file"): lambda path: _files.state(path),
    (claims, "_is_sweep_due"): lambda place: False,
    (claims, "this_host"): lambda: (_current().host, "boot"),
    (claims._LockFile, "date"): lambda file: 0.0,
    (action_digests, "action_digest"): _digest_once,
}
