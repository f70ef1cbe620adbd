"""Children that are forked from a warm program, each bounded in time: `in_child`, and what it says through a pipe."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from typing import Final, NamedTuple, NoReturn

__all__ = ["Ended", "in_child", "read_until", "tell"]

_BROKEN: Final = 70


class Ended(NamedTuple):
    """How a child ended: its exit status, negative if a signal ended it; what it said; whether it had to be ended."""

    status: int
    said: bytes
    has_hung: bool


def in_child(work: Callable[[int], object], patience_s: float) -> Ended:
    """Run `work` in a forked process, with a descriptor through which it says things, and wait for its end."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _be_the_child(work, writing)
    os.close(writing)
    said, has_hung = b"", True
    try:
        said, has_hung = read_until(reading, time.monotonic() + patience_s)
    finally:
        os.close(reading)
        if has_hung:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    return Ended(os.waitstatus_to_exitcode(status), said, has_hung)


def read_until(descriptor: int, give_up_s: float, end: bytes = b"") -> tuple[bytes, bool]:
    """Return what is said until all have closed the other side, or up to `end`; and whether that was not in time."""
    said = bytearray()
    while not (end and said.endswith(end)):
        ready, _, _ = select.select([descriptor], [], [], max(give_up_s - time.monotonic(), 0))
        if not ready:
            return bytes(said), True
        data = os.read(descriptor, 65_536)
        if not data:
            break
        said += data
    return bytes(said), False


def tell(descriptor: int, data: bytes) -> None:
    """Write all of it."""
    while data:
        data = data[os.write(descriptor, data) :]


def _be_the_child(work: Callable[[int], object], descriptor: int) -> NoReturn:
    status = _BROKEN
    try:
        work(descriptor)
        status = 0
    except BaseException as error:
        os.write(descriptor, f"{type(error).__name__}: {error}".encode())
    finally:
        os._exit(status)
