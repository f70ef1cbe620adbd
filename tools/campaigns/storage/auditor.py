"""The process that audits what storage scenarios leave behind: never the one that worked, and one for many of them.

It is forked from a warm program like those that work, but lives on: what an audit imports, compiles and touches is
there for the next one, which costs half of what it would cost in a child of its own. As soon as anything was wrong it
is ended, so that nothing it has met is still in memory when the next folder is looked at.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import msgspec

from tools.campaigns.processes.forked import read_until, tell
from tools.campaigns.processes.told import Call
from tools.campaigns.storage.scenarios import FOR_SMALL_DISKS, Wrong

__all__ = ["Audit", "Auditor"]

Audit = Callable[[str, Path, Sequence[Call]], Awaitable[list[Wrong]]]
"""What is asked of a scenario, by its name: its folder, and what callers were told there."""

_END: Final = b"\n"


class _Question(msgspec.Struct, frozen=True):
    scenario: str
    folder: str
    calls: list[Call]


class _Process(NamedTuple):
    pid: int
    questions: int
    answers: int


async def _audit(scenario: str, folder: Path, calls: Sequence[Call]) -> list[Wrong]:
    return await FOR_SMALL_DISKS[scenario].audit(folder, calls)


class Auditor:
    """The process, as the program that forks it talks to it. It begins with the first question."""

    def __init__(self, patience_s: float, audit: Audit = _audit) -> None:
        self._patience_s: Final = patience_s
        self._audit: Final = audit
        self._process: _Process | None = None

    def ask(self, scenario: str, folder: Path, calls: Sequence[Call]) -> list[Wrong]:
        """Return what is wrong in a folder; also that the audit has broken, or does not end."""
        if self._process is None:
            self._process = _begin(self._audit)
        question = _Question(scenario, str(folder), list(calls))
        with suppress(BrokenPipeError):  # it has died: that there is no answer says so
            tell(self._process.questions, msgspec.json.encode(question) + _END)
        said, has_hung = read_until(self._process.answers, time.monotonic() + self._patience_s, _END)
        if has_hung:
            self.end()
            return [Wrong("I9", "the audit does not end")]
        if not said.endswith(_END):
            return [Wrong("I8", f"the audit ended with {self.end()}")]
        wrong = msgspec.json.decode(said, type=list[Wrong])
        if wrong:
            self.end()
        return wrong

    def end(self) -> int | None:
        """End the process, if there is one, and return its exit status. May be called twice."""
        if self._process is None:
            return None
        process, self._process = self._process, None
        os.close(process.questions)
        os.close(process.answers)
        os.kill(process.pid, signal.SIGKILL)  # it may hang, and has nothing to finish
        return os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])


def _begin(audit: Audit) -> _Process:
    questions, to_ask = os.pipe()
    to_read, answers = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(to_ask)
        os.close(to_read)
        _serve(audit, questions, answers)
    os.close(questions)
    os.close(answers)
    return _Process(pid, to_ask, to_read)


def _serve(audit: Audit, questions: int, answers: int) -> NoReturn:
    """Be the process: answer until nobody can ask any more."""
    try:
        with open(questions, "rb") as lines:
            for line in lines:
                tell(answers, msgspec.json.encode(_answer(audit, line)) + _END)
    finally:
        os._exit(0)


def _answer(audit: Audit, line: bytes) -> list[Wrong]:
    question = msgspec.json.decode(line, type=_Question)
    work: Any = audit(question.scenario, Path(question.folder), question.calls)
    try:
        wrong: list[Wrong] = asyncio.run(work)
    except BaseException as error:
        return [Wrong("I8", f"the audit broke: {type(error).__name__}: {error}"[:1500])]
    return wrong
