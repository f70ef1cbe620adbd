"""Appends of a process that dies in the middle of one: at a chosen statement, behind its COMMIT, or behind the answer.

A process with a log open must not be forked, so there is one that never opens any, and forks those that will die. The
moment is a count of SQL statements and not a time: the same example dies at the same place when it is tried again.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, NoReturn

import msgspec

import eventlog
from eventlog import Append, Expect, NewEvent
from eventlog.stores.sqlite.writer import Writer

__all__ = ["Doom", "DoomedEvent", "Undertaker", "undertaking"]

_PATIENCE_S: Final = 60


class DoomedEvent(msgspec.Struct, frozen=True, array_like=True):
    """An event that is appended by somebody who will die."""

    type: str
    data: Any
    event_id: bytes
    correlation_id: str | None


class Doom(msgspec.Struct, frozen=True):
    """What to append where, and when to die: at the statement of that number, or at that moment."""

    path: str
    stream: str
    events: tuple[DoomedEvent, ...]
    statement: int = 0
    moment: Literal["statement", "committed", "answered"] = "statement"


Ended = Literal["died", "answered", "ended"]
_WORDS: Final[dict[bytes, Ended]] = {b"d": "died", b"a": "answered", b"e": "ended"}


class Undertaker:
    """The process that forks those who die, as its parent sees it."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands: Final = commands
        self._answers: Final = answers

    def perform(self, doom: Doom) -> Ended:
        """Let a process append and die. Return whether it died, had been answered before, or ended otherwise."""
        command = msgspec.msgpack.encode(doom)
        os.write(self._commands, len(command).to_bytes(4, "big") + command)
        word = os.read(self._answers, 1)
        return _WORDS.get(word, "ended")


@contextmanager
def undertaking() -> Iterator[Undertaker]:
    """Fork the undertaker, from a process with no log open, and end it afterwards."""
    commands_out, commands_in = os.pipe()
    answers_out, answers_in = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(commands_in)
        os.close(answers_out)
        _serve(commands_out, answers_in)
    os.close(commands_out)
    os.close(answers_in)
    try:
        yield Undertaker(commands_in, answers_out)
    finally:
        os.close(commands_in)
        os.close(answers_out)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _serve(commands: int, answers: int) -> NoReturn:
    try:
        while header := os.read(commands, 4):
            doom = msgspec.msgpack.decode(os.read(commands, int.from_bytes(header, "big")), type=Doom)
            os.write(answers, _end_of(doom))
    finally:
        os._exit(0)


def _end_of(doom: Doom) -> bytes:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _die(doom, writing)
    os.close(writing)
    said = os.read(reading, 1)
    os.close(reading)
    _, status = os.waitpid(child, 0)
    died = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    return (said or b"d") if died else b"e"


def _die(doom: Doom, writing: int) -> NoReturn:
    try:
        signal.alarm(_PATIENCE_S)
        asyncio.run(_append(doom, lambda: os.write(writing, b"a")))
    finally:
        os._exit(1)


async def _append(doom: Doom, tell: Callable[[], object]) -> None:
    async with eventlog.open(doom.path) as log:
        assert log._writer is not None, "it is not open for reading only"
        if doom.moment == "statement":
            await log._writer.run_between(lambda connection: connection.set_trace_callback(_after(doom.statement)))
        elif doom.moment == "committed":
            Writer._tell_and_wake = _kill  # type: ignore[assignment, method-assign]
        await log.append_many([Append(doom.stream, _new(doom.events), Expect.any())])
        tell()
        _kill()


def _new(events: Sequence[DoomedEvent]) -> list[NewEvent]:
    return [NewEvent(event.type, event.data, event.event_id, event.correlation_id) for event in events]


def _after(statements: int) -> Callable[[str], None]:
    left = statements

    def count(_: str) -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            _kill()

    return count


def _kill(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
