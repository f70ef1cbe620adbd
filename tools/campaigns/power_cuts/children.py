"""Runs the engine in a process of its own: forked, so that it begins warm, and waited for with a bound."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
import traceback
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

__all__ = ["Died", "in_a_child"]

_LIMIT_S: Final = 60.0
_PAUSE_S: Final = 0.0005


class Died(Exception):
    """A child has raised, was killed (`is_killed`), or did not end in time (`is_stuck`)."""

    def __init__(self, what: str, *, is_stuck: bool = False, is_killed: bool = False) -> None:
        super().__init__(what)
        self.is_stuck = is_stuck
        self.is_killed = is_killed


def in_a_child(function: Callable[..., Coroutine[Any, Any, Any]], *args: Any, answer: Path) -> Any:
    """Run a coroutine in a forked child and return its result, which is JSON. Raises Died.

    `answer` is a file that the two may use for it. This process must have one thread only.
    """
    child = os.fork()
    if child == 0:
        _be_the_child(function, args, answer)
    _await(child, function.__name__)
    if not answer.exists():
        raise Died(f"{function.__name__}: it was killed", is_killed=True)
    said = json.loads(answer.read_bytes())
    answer.unlink()
    if "raised" in said:
        raise Died(f"{function.__name__}: {said['raised']}")
    return said["result"]


def _await(child: int, name: str) -> None:
    until_s = time.monotonic() + _LIMIT_S
    while not os.waitpid(child, os.WNOHANG)[0]:
        if time.monotonic() > until_s:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise Died(f"{name} did not end in {_LIMIT_S:g} s", is_stuck=True)
        time.sleep(_PAUSE_S)


def _be_the_child(function: Callable[..., Coroutine[Any, Any, Any]], args: Sequence[Any], answer: Path) -> NoReturn:
    try:
        try:
            said = {"result": asyncio.run(function(*args))}
        except BaseException:
            said = {"raised": traceback.format_exc(limit=-6)}
        answer.write_text(json.dumps(said))
    finally:
        os._exit(0)
