"""Data inside sentences: where a value of the log begins and ends has to be seen, whatever it says.

A text that reads as one word stands as it is; any other is quoted as JSON text, so that no name of an actor or a reason
can go on with words that look like the sentence's own, and no line break in it ends the line.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import msgspec

from eventlog.events import Failure
from eventlog.text import shortened

__all__ = ["LONGEST", "failure_text", "joined", "listed", "named", "quoted", "stored_text", "value_text"]

LONGEST: Final = 200
"""How many characters of a value a sentence has. The mark behind it says how many it leaves out; the log has all."""

_WORD: Final = re.compile(r"[\w@.:/+#~=%$-]+")


def named(text: str) -> str:
    """Return an id, a name or a hash: whole, and in quotes unless it reads as one word."""
    return text if _WORD.fullmatch(text) else _spelled(text)


def quoted(text: str) -> str:
    """Return a text that somebody wrote, in quotes; cut with a mark where it is long."""
    return _cut_text(text)


def value_text(value: Any) -> str:
    """Return plain data as JSON with sorted keys; cut with a mark where it is long."""
    return _cut_text(value) if isinstance(value, str) else shortened(_spelled(value), LONGEST)


def stored_text(text: msgspec.Raw, artifact: str | None) -> str:
    """Return a stored value as JSON, cut with a mark; or the name of the artifact that holds it; else nothing."""
    if artifact is not None:
        return named(f"artifact://{artifact}")
    spelled = bytes(text).decode()
    return value_text(json.loads(spelled)) if spelled else ""


def failure_text(error: Failure) -> str:
    """Return a failure: its code, and what it says."""
    kind = "" if error.type is None else f" ({named(error.type)})"
    return f"{named(error.code)}{kind}: {quoted(error.message)}"


def listed(texts: tuple[str, ...], last: str = "and") -> str:
    """Return names as people list them: `a, b and c`."""
    names = [named(text) for text in texts]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {last} {names[-1]}" if names else ""


def joined(*parts: str | None) -> str:
    """Return the parts of a sentence that are there, with semicolons between them."""
    return "; ".join(part for part in parts if part)


def _cut_text(text: str) -> str:
    if len(text) <= LONGEST:
        return _spelled(text)
    return f"{_spelled(text[:LONGEST])}… ({len(text) - LONGEST} more characters)"


def _spelled(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True).replace("\x7f", "\\u007f")
