"""A program in which children begin without a start of Python: `python -m tools.campaigns.processes.warm FD MODULE…`.

It imports the modules once and then forks for each child that is asked for, while it has no thread and no loop. The
child leaves the loop of the program that it was forked from and ends as every Python program does, with all that
happens when an interpreter is shut down; that is what is looked at.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from tools.campaigns.processes import child
from tools.campaigns.processes.idleness import Idleness

__all__ = ["Started", "Warm"]

_LARGEST: Final = 65_536
_POLL_S: Final = 0.02
_BEGIN_S: Final = 60.0


class Warm:
    """The program, as its parent talks to it: one child at a time. A context manager."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._modules: Final = modules

    def __enter__(self) -> Warm:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", __name__, str(theirs.fileno()), *self._modules]
            self._process = subprocess.Popen(
                command, cwd=child.ROOT, env=child.environment(), pass_fds=[theirs.fileno()]
            )
        self._socket = ours
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()  # which is the end of its orders
        self._process.kill()
        self._process.wait()

    def start(self, program: Callable[..., Any], *args: object, folder: Path) -> Started:
        """Start a child whose output goes into files of the folder."""
        order = json.dumps([program.__module__, program.__qualname__, *map(str, args)]).encode()
        reading, writing = os.pipe()
        descriptors = [reading, *(os.open(folder / name, _NEW_FILE, 0o600) for name in ("out", "err"))]
        socket.send_fds(self._socket, [order], descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        return Started(int(self._answer(_BEGIN_S) or 0), writing, folder, self._answer)

    def _answer(self, timeout_s: float) -> bytes | None:
        """Return the next answer, or None if there is none in time."""
        self._socket.settimeout(timeout_s)
        try:
            answer = self._socket.recv(_LARGEST)
        except TimeoutError:
            return None
        assert answer, "the warm program has ended"
        self._socket.send(b"+")
        return answer


_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Started:
    """A child that was started. A context manager: behind it the child has ended, if need be by force."""

    def __init__(self, pid: int, stdin: int, folder: Path, answer: Callable[[float], bytes | None]) -> None:
        self.pid: Final = pid
        self._stdin: int | None = stdin
        self._folder: Final = folder
        self._answer: Final = answer
        self._idleness: Final = Idleness(pid)
        self._left_at_s: float | None = None
        self.returncode: int | None = None
        self.exit_s = 0.0

    def __enter__(self) -> Started:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close_input()
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._note_end(self._answer(_BEGIN_S))

    @property
    def stdout(self) -> str:
        return (self._folder / "out").read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return (self._folder / "err").read_text(errors="replace")

    @property
    def result(self) -> Any:
        """What the program returned; None if it did not come to that."""
        found = [line for line in self.stdout.splitlines() if line.startswith(child.RESULT)]
        return json.loads(found[-1].removeprefix(child.RESULT)) if found else None

    @property
    def idle_s(self) -> float:
        """For how long the child slept behind its last work, as far as that was looked at."""
        return self._idleness.seconds

    def has_said(self, line: str, *, timeout_s: float) -> bool:
        """Wait until the child has printed a line that begins so; False if it has not in time, or ended without."""
        give_up_s = time.monotonic() + timeout_s
        while not any(each.startswith(line) for each in self.stdout.splitlines()):
            if time.monotonic() > give_up_s or self.has_ended(_POLL_S):
                return any(each.startswith(line) for each in self.stdout.splitlines())
        return True

    def tell(self, text: str) -> None:
        """Write into the child's input."""
        assert self._stdin is not None
        os.write(self._stdin, text.encode())

    def close_input(self) -> None:
        """End the child's input."""
        if self._stdin is not None:
            os.close(self._stdin)
            self._stdin = None

    def send(self, number: signal.Signals) -> None:
        """Send a signal; from now on the child has nothing to do but to end."""
        self.leave()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def leave(self) -> None:
        """Take note that the child has nothing to do any more but to end."""
        self._left_at_s = self._left_at_s or time.monotonic()

    def has_ended(self, timeout_s: float) -> bool:
        """Wait for the end of the child, and say whether it has come."""
        if self.returncode is None:
            self._note_end(self._answer(timeout_s))
        return self.returncode is not None

    def waits_to_end(self, *, limit_s: float, idle_limit_s: float, before_s: float) -> bool:
        """Wait until it has ended; False if it took longer than the limit, or slept in vain for the other one.

        Both count from where it had nothing left to do, which may take as long as `before_s`.
        """
        give_up_s = time.monotonic() + before_s
        while not self.has_ended(_POLL_S):
            now_s = time.monotonic()
            self._left_at_s = self._left_at_s or self._said_leaving_at_s()
            if self._left_at_s is None:
                if now_s > give_up_s:
                    return False
                continue
            self._idleness.look(_POLL_S)
            if now_s - self._left_at_s > limit_s or self._idleness.seconds > idle_limit_s:
                return False
        return True

    def _said_leaving_at_s(self) -> float | None:
        found = [line for line in self.stdout.splitlines() if line.startswith(child.LEAVING)]
        return float(found[-1].removeprefix(child.LEAVING)) if found else None

    def _note_end(self, answer: bytes | None) -> None:
        if answer is not None:
            ended_at_s, status = answer.split()
            self.returncode = os.waitstatus_to_exitcode(int(status))
            self._left_at_s = self._left_at_s or self._said_leaving_at_s() or float(ended_at_s)
            self.exit_s = float(ended_at_s) - self._left_at_s


def _serve(orders: socket.socket) -> list[str] | None:
    """Fork for each order. Returns in each child what it is to do, and None in the end."""
    while True:
        order, descriptors, _, _ = socket.recv_fds(orders, _LARGEST, 3)
        if not order:
            return None
        pid = os.fork()
        if pid == 0:
            for number, descriptor in enumerate(descriptors):
                os.dup2(descriptor, number)
                os.close(descriptor)
            orders.close()
            found: list[str] = json.loads(order)
            return found
        for descriptor in descriptors:
            os.close(descriptor)
        _tell(orders, str(pid))
        _, status = os.waitpid(pid, 0)
        _tell(orders, f"{time.monotonic()} {status}")


def _tell(orders: socket.socket, text: str) -> None:
    """Send one answer, and wait until it was read: two must not become one."""
    orders.sendall(text.encode())
    orders.recv(1)


def _main(descriptor: str, *modules: str) -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    for module in modules:
        import_module(module)
    gc.freeze()  # what was imported is not looked at, and so not copied, in every child
    program = _serve(socket.socket(fileno=int(descriptor)))
    if program is not None:
        child.call(*program)


if __name__ == "__main__":
    _main(*sys.argv[1:])
