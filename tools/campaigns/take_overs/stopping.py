"""Processes that are stopped (SIGSTOP) in the middle of what they do, waited for with a bound, and ended."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

from eventlog.runtime.failpoints import EFFECT_INSIDE, INTENT_AFTER_COMMIT, Reach

__all__ = ["StuckError", "end", "fork", "has_stopped", "kill", "stop_at", "stop_soon"]

_PATIENCE_S: Final = 60.0
_POLL_S: Final = 0.002


class StuckError(Exception):
    """A process neither stopped nor ended in the time that it was given."""


def stop_at(target: str) -> Reach:
    """Return a `reach` that stops this process at the point `target`, once, until somebody continues it.

    One that was too slow to begin its effect, and only records that, is not stopped: it is no holder worth taking over.
    """
    has_begun, is_done = target == INTENT_AFTER_COMMIT, False

    def reach(name: str) -> None:
        nonlocal has_begun, is_done
        has_begun = has_begun or name == EFFECT_INSIDE
        if name == target and has_begun and not is_done:
            is_done = True
            # To this very thread: it stops before the next instruction, wherever the others are.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    return reach


def fork(work: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Run `work` in a forked process; nobody has a log open yet. Return its id."""
    child = os.fork()
    if child == 0:
        status = 70
        try:
            asyncio.run(work())
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return child


def stop_soon(pid: int, sign: Path, after_s: float) -> None:
    """Stop a process from outside, so long after it has made the file `sign`. Raises StuckError."""
    until_s = time.monotonic() + _PATIENCE_S
    while not sign.exists():
        if time.monotonic() > until_s:
            raise StuckError(f"process {pid} did not begin")
        time.sleep(_POLL_S / 10)
    time.sleep(after_s)
    os.kill(pid, signal.SIGSTOP)


def has_stopped(pid: int) -> bool:
    """Wait until a process stops or ends, and say whether it stopped. Raises StuckError."""
    return os.WIFSTOPPED(_change_of(pid, os.WUNTRACED))


def end(pid: int) -> int:
    """Wait until a process has ended, and return its exit status, negative for a signal. Raises StuckError."""
    return os.waitstatus_to_exitcode(_change_of(pid, 0))


def _change_of(pid: int, options: int) -> int:
    until_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until_s:
        found, status = os.waitpid(pid, options | os.WNOHANG)
        if found:
            return status
        time.sleep(_POLL_S)
    raise StuckError(f"process {pid} neither stopped nor ended in {_PATIENCE_S:g} s")


def kill(pid: int) -> None:
    """End a process of ours that is still there: a stopped one would stay for ever."""
    try:
        if os.waitpid(pid, os.WNOHANG) == (0, 0):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    except ChildProcessError:
        pass  # it has ended, and that was seen
