"""Refuses what would put a secret into the log, before anything is written; what cannot be looked at is refused too.

No message holds the secret, or the text of an error that a scanner raised: that could be the secret.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec

from eventlog.errors import InvalidInput
from eventlog.scanning import Found, Scanner, place_of

__all__ = ["refuse_secret", "refuse_secret_in_name"]

_SHORTEST: Final = 20
"""No shorter name is looked at: none of the default patterns is met by fewer characters."""


def refuse_secret(scanner: Scanner | None, body: bytes, stream: str | None = None) -> None:
    """Return if the scanner finds nothing in a body, or an artifact.

    Raises InvalidInput: `secret_found` with the path to the value, `secret_scan_failed`.
    """
    if scanner is None:
        return
    found = _found(scanner, body, stream)
    if found is None:
        return
    try:
        place = place_of(scanner, body)
    except Exception as error:
        raise _failed(error, stream) from None
    what = "a key of the object" if place.is_key else "the value"
    message = f"{what} holds what looks like a secret ({found.pattern})"
    raise InvalidInput("secret_found", message, path=place.path, pattern=found.pattern, stream=stream)


def refuse_secret_in_name(scanner: Scanner | None, name: str | None, what: str) -> None:
    """Return if a name, of what `what` says, holds no secret; it stays even when bodies are erased.

    Raises InvalidInput as `refuse_secret`, and the message does not show the name.
    """
    if scanner is None or name is None or len(name) < _SHORTEST:
        return
    try:
        _look_at_name(scanner, name)
    except _Holds as held:
        pattern = held.pattern
    else:
        return
    message = f"the {what} holds what looks like a secret ({pattern})"
    raise InvalidInput("secret_found", message, pattern=pattern, what=what)


class _Holds(Exception):
    """A name holds a secret."""

    def __init__(self, pattern: str) -> None:
        self.pattern: Final = pattern
        super().__init__(pattern)


@lru_cache(maxsize=4096)
def _look_at_name(scanner: Scanner, name: str) -> None:
    """Return if there is no secret in the name, which is remembered: the same streams are written again and again."""
    found = _found(scanner, msgspec.json.encode(name), None)
    if found is not None:
        raise _Holds(found.pattern)


def _found(scanner: Scanner, body: bytes, stream: str | None) -> Found | None:
    try:
        return scanner.find(body)
    except Exception as error:
        raise _failed(error, stream) from None


def _failed(error: Exception, stream: str | None) -> InvalidInput:
    message = f"the scanner for secrets raised a {type(error).__name__}; what it has not looked at is not stored"
    return InvalidInput("secret_scan_failed", message, stream=stream)
