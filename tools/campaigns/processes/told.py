"""What a caller was told, call by call, as it left its process: through a pipe, line by line, whatever happened to it.

A call that was begun and is not told of any more is one that nobody was told about: the process has died in it.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Awaitable, Iterable
from typing import Any, Final, Literal, TypeVar

import msgspec

from eventlog.errors import CommitOutcomeUnknown, EventLogError, MirrorBehind

__all__ = ["Call", "Said", "StoppedEarly", "Told", "calls_in"]

Told = Literal["nothing", "ok", "failed", "unknown", "raw"]
"""`failed` is a definite coded error, `unknown` one that says that nobody knows; `raw` is an error without a code."""

T = TypeVar("T")

_UNKNOWN: Final = frozenset({"commit_outcome_unknown", "outcome_unknown"})
_RAW_LINES: Final = 6


class Call(msgspec.Struct):
    """One call: what was asked, and what its caller was told."""

    what: str
    told: Told = "nothing"
    code: str = ""
    message: str = ""
    ids: list[str] = []
    """The ids of the events that were to be appended."""
    facts: dict[str, Any] = {}
    """What an `ok` is told with."""
    is_second: bool = False
    """It was made after the fault was over: it has to work."""

    def __str__(self) -> str:
        return f"{self.what}: {self.told} {self.code} {self.message}".rstrip()


class StoppedEarly(Exception):  # no error: what comes next makes no sense, and why has been told
    """Nothing more can be done in this process: opening has failed, say."""


class Said:
    """Tells calls through a descriptor. `stored` says what an answer is to be told with."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: Final = descriptor
        self._count = 0
        self.is_second = False
        self.has_failed = False

    async def ask(self, what: str, asked: Awaitable[T], *, ids: Iterable[bytes] = ()) -> T | None:
        """Wait for a call and tell what came of it; None if it failed, which is told."""
        self._count += 1
        number = self._count
        call = Call(what, ids=[each.hex() for each in ids], is_second=self.is_second)
        self._tell(number, call)
        result: T | None = None
        try:
            result = await asked
            call.told, call.facts = "ok", _facts(result)
        except MirrorBehind as error:  # the log has it
            call.told, call.code, call.message = "ok", error.code, str(error)
            call.facts = _facts(error.results[0]) if error.results else {}
            self.has_failed = True
        except EventLogError as error:
            is_unknown = isinstance(error, CommitOutcomeUnknown) or error.code in _UNKNOWN
            call.told, call.code, call.message = "unknown" if is_unknown else "failed", error.code, str(error)
            self.has_failed = True
        except Exception as error:
            call.told, call.code, call.message = "raw", type(error).__name__, _trace(error)
            self.has_failed = True
        self._tell(number, call)
        return result

    def note(self, what: str, **facts: Any) -> None:
        """Tell what was seen."""
        self._count += 1
        self._tell(self._count, Call(what, "ok", facts=facts, is_second=self.is_second))

    def broke(self, error: Exception) -> None:
        """Tell that an error without a code has come out of what a caller does."""
        self._count += 1
        self.has_failed = True
        self._tell(self._count, Call("work", "raw", type(error).__name__, _trace(error), is_second=self.is_second))

    def _tell(self, number: int, call: Call) -> None:
        data = json.dumps([number, msgspec.to_builtins(call)]).encode() + b"\n"
        while data:
            data = data[os.write(self._descriptor, data) :]


def calls_in(said: bytes) -> list[Call]:
    """Return the calls that were told of, in order; a line that was cut is nobody's knowledge."""
    found: dict[int, Call] = {}
    for line in said[: said.rfind(b"\n") + 1].splitlines():
        number, call = json.loads(line)
        found[number] = msgspec.convert(call, Call)
    return [found[number] for number in sorted(found)]


def _facts(result: object) -> dict[str, Any]:
    names = ("stream", "version", "first_position", "last_position", "leaf", "deduplicated", "result")
    facts = {name: getattr(result, name) for name in names if hasattr(result, name)}
    if not facts and isinstance(result, (str, int)):
        facts = {"value": result}
    return {name: value.hex() if isinstance(value, bytes) else value for name, value in facts.items()}


def _trace(error: BaseException) -> str:
    return " | ".join(line.strip() for line in "".join(traceback.format_exception(error)).splitlines()[-_RAW_LINES:])
