"""A program in which lives begin as real processes: `python -m eventlog.testing.nursery MODULE FUNCTION`.

It imports the scenario once, and then forks for each life that a line of its input asks for, before it has any thread
or loop of its own, so that a life costs no start of Python. For each it answers with a line: how the process ended.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from eventlog.errors import InvalidInput
from eventlog.testing.life import Ending, Scenario, live

__all__ = ["Nursery", "Order"]

_LIFE_S: Final = 60
"""A life that is not over by then is ended, and its end reported as an error."""


class Order(msgspec.Struct):
    """Which life is wanted."""

    place: str
    life: int
    die_at: int | None = None


class Nursery:
    """The program, as its parent talks to it. A context manager; its calls block."""

    def __init__(self, make: Callable[[Path], Scenario]) -> None:
        module, name = getattr(make, "__module__", ""), getattr(make, "__qualname__", "")
        if not module or module == "__main__" or getattr(sys.modules.get(module), name, None) is not make:
            what = (
                f"{name} is a function of __main__, the program that was started; move it into a module of its own"
                if module == "__main__"
                else f"{make!r:.80} is no function at the top of a module"
            )
            raise InvalidInput("invalid_argument", f"a process has to import what it runs: {what}")
        self._command: Final = [sys.executable, "-m", __name__, module, name]

    def __enter__(self) -> Nursery:
        path = os.pathsep.join(each for each in sys.path if each)
        self._process = subprocess.Popen(
            self._command,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def live(self, order: Order) -> Ending:
        """Let a life begin, and wait for its end."""
        assert self._process.stdin is not None and self._process.stdout is not None, "both were asked for"
        self._process.stdin.write(msgspec.json.encode(order).decode() + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(
                f"{' '.join(self._command)} has ended with {self._process.wait()}; see its error output"
            )
        return msgspec.json.decode(line, type=Ending)


def _main(module: str, name: str) -> None:
    make = getattr(import_module(module), name)
    for line in sys.stdin:
        order = msgspec.json.decode(line, type=Order)
        child = os.fork()
        if child == 0:
            _live(make, order)
        _, status = os.waitpid(child, 0)
        os.write(1, msgspec.json.encode(_ending(order, os.waitstatus_to_exitcode(status))) + b"\n")


def _ending(order: Order, status: int) -> Ending:
    if status == -signal.SIGKILL:
        return Ending(has_died=True, appends=abs(order.die_at or 0))
    path = _path(order)
    if path.exists():
        return msgspec.json.decode(path.read_bytes(), type=Ending)
    what = f"did not end within {_LIFE_S} seconds" if status == -signal.SIGALRM else f"ended with status {status}"
    return Ending(error=f"the process of life {order.life} {what}")


def _live(make: Callable[[Path], Scenario], order: Order) -> NoReturn:
    """Be the life, in a process that nothing outlives."""
    status = 1
    try:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(2, 1)  # what the workflow prints is no answer
        signal.alarm(_LIFE_S)
        place = Path(order.place)
        try:
            ending = asyncio.run(live(make(place), place, order.life, order.die_at, is_process=True))
        except BaseException:
            ending = Ending(error=traceback.format_exc())
        _path(order).write_bytes(msgspec.json.encode(ending))
        status = 0
    finally:
        os._exit(status)


def _path(order: Order) -> Path:
    return Path(order.place) / f"ending-{order.life}.json"


if __name__ == "__main__":
    _main(*sys.argv[1:])
