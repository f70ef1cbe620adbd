"""Real child processes: a typed function of a module without pytest, run by a fresh interpreter under a time limit.

    done = run(scenarios.exits_without_close, tmp_path / "log.db")

What the function returns comes back as `done.result`. A coroutine function is run by `asyncio.run`. A function that
calls `leaving()` says "from here on the program only ends": `done.exit_s` is how long that took.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

__all__ = ["LEAVING", "RESULT", "Done", "call", "command", "environment", "leaving", "run", "start"]

ROOT: Final = Path(__file__).resolve().parents[3]
RESULT: Final = "RESULT "
LEAVING: Final = "LEAVING "


@dataclass(frozen=True, slots=True)
class Done:
    """How a child process ended."""

    returncode: int
    stdout: str
    stderr: str
    ended_at_s: float

    @property
    def result(self) -> Any:
        """What the function returned."""
        return json.loads(self._line(RESULT))

    @property
    def exit_s(self) -> float:
        """Seconds between `leaving()` and the end of the process."""
        return self.ended_at_s - float(self._line(LEAVING))

    def _line(self, mark: str) -> str:
        found = [line.removeprefix(mark) for line in self.stdout.splitlines() if line.startswith(mark)]
        assert found, f"the child ended with {self.returncode} and printed no {mark}:\n{self.stdout}\n{self.stderr}"
        return found[-1]


def run(
    function: Callable[..., Any],
    *args: object,
    timeout_s: float = 30,
    env: Mapping[str, str] | None = None,
) -> Done:
    """Run `function(*args)` in a child and wait for it; a child that does not end is killed and fails the test."""
    process = start(function, *args, env=env)
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"{function.__qualname__} did not end in {timeout_s} s\n{out}\n{err}") from None
    return Done(process.returncode, out, err, time.monotonic())


def start(function: Callable[..., Any], *args: object, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start a child and return it, with pipes for all three streams."""
    return subprocess.Popen(
        command(function, *args),
        cwd=ROOT,
        env=environment(env),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def command(function: Callable[..., Any], *args: object) -> list[str]:
    """Return the command line that runs `function(*args)`; the arguments arrive as text."""
    return [sys.executable, "-m", __name__, function.__module__, function.__qualname__, *map(str, args)]


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment with the project's folder in front of the import path."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **(more or {})}


def leaving() -> None:
    """Say that the program has nothing to do any more but to end."""
    print(f"{LEAVING}{time.monotonic()}", flush=True)


def call(module: str, name: str, *args: str) -> None:
    """Be the child: call the function, run what it returns if that is a coroutine, and print what comes of it."""
    function = getattr(import_module(module), name)
    result = function(*args)
    if inspect.iscoroutine(result):
        result = asyncio.run(result)
    print(RESULT + json.dumps(result), flush=True)


if __name__ == "__main__":
    call(*sys.argv[1:])
