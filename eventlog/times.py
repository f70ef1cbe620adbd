"""Instants as people write them. Inside they are integer microseconds UTC.

2026-11-30T02:15:47.000001Z         what is written: ISO 8601, UTC, always six digits
2026-11-30T03:15+01:00, @1796004947000001       what is read: ISO 8601 with a zone or Z, or `@` and microseconds
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from eventlog.errors import InvalidInput

__all__ = ["parse_time", "time_text"]

_MICROSECONDS: Final = re.compile(r"@([0-9]{1,19})", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def time_text(at_us: int) -> str:
    """Return microseconds UTC as ISO 8601."""
    try:
        seconds, microseconds = divmod(at_us, 1_000_000)
        at = datetime.fromtimestamp(seconds, UTC).replace(microsecond=microseconds)
    except (OverflowError, OSError, ValueError):
        return f"{at_us} µs"  # a time that no calendar holds
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_time(text: str) -> int:
    """Return the instant that `text` names as microseconds UTC.

    A time without a zone names many instants. Raises InvalidInput(`invalid_argument`) for it, and for what is no time.
    """
    microseconds = _MICROSECONDS.fullmatch(text)
    if microseconds is not None:
        return int(microseconds[1])
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        message = f"{text!r:.80} is no time: give 2026-11-30T02:15:00Z, one with another zone, or @ and microseconds"
        raise InvalidInput("invalid_argument", message) from None
    if at.tzinfo is None:
        raise InvalidInput("invalid_argument", f"{text!r:.80} has no zone: append Z for UTC, or an offset as +01:00")
    return (at - _EPOCH) // timedelta(microseconds=1)
