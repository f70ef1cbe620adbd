"""What a check has found: a verdict with the first problems behind it, and how many there are in all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from eventlog.errors import EventLogError, LogCorrupt, Misuse, StoreBusy, StoreUnavailable
from eventlog.log import Problem

__all__ = ["SHOWN", "Finding", "Problems", "Verdict", "damage", "raise_if_not_damage", "unreadable"]

Verdict = Literal["ok", "damaged", "differs", "behind", "absent", "not_checked", "unanchored", "unknown"]
"""`differs`, `behind` (late, but right so far) and `absent` are for views; `unknown` is what could not be checked.

Views that are there, none of which the caller knows, are `not_checked`: whoever knows them has to judge them. Heads are
`unanchored` where nothing contradicts them, and none that was kept outside the database was shown.
"""

SHOWN: Final = 20
"""How many problems are kept of each kind; the rest is counted."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One verdict with the first problems behind it and how many there are in all.

    `details` say what it is made up of, as plain data by name.
    """

    verdict: Verdict
    problems: Sequence[Problem] = ()
    count: int = 0
    details: Mapping[str, Any] = {}


class Problems:
    """The first problems, and the count of all."""

    def __init__(self) -> None:
        self._kept: Final[list[Problem]] = []
        self.count = 0

    def add(self, reason: str, message: str, *, position: int | None = None, stream: str | None = None) -> None:
        """Add one problem."""
        self.extend([Problem(reason=reason, message=message, position=position, stream=stream)])

    def extend(self, problems: Iterable[Problem]) -> None:
        """Add problems."""
        for problem in problems:
            self.count += 1
            if len(self._kept) < SHOWN:
                self._kept.append(problem)

    def finding(self, verdict: Verdict = "ok", details: Mapping[str, Any] | None = None) -> Finding:
        """Return what was found: damage, or `verdict` if nothing is wrong."""
        return Finding(
            verdict="damaged" if self.count else verdict,
            problems=tuple(self._kept),
            count=self.count,
            details={} if details is None else details,
        )


def damage(error: EventLogError) -> Problem:
    """Return a coded error as a problem."""
    if isinstance(error, LogCorrupt):
        return Problem(reason=error.reason, message=str(error), position=error.position, stream=error.stream)
    return Problem(reason=error.code, message=str(error))


def raise_if_not_damage(error: Exception) -> None:
    """Raise what says nothing about the data: somebody else holds the lock, or the log was used wrongly."""
    is_elsewhere = isinstance(error, StoreUnavailable) and error.code != "store_io_error"
    if isinstance(error, StoreBusy | Misuse) or is_elsewhere:
        raise error


def unreadable(position: int | None, error: Exception, stream: str | None = None) -> Problem:
    """Return whatever reading raised, as a problem with the place where it was met."""
    if isinstance(error, EventLogError):
        found = damage(error)
        where = found.position if found.position is not None else position
        return msgspec.structs.replace(found, position=where, stream=found.stream or stream)
    return Problem(
        reason="row_unreadable", message=f"{type(error).__name__}: {error}", position=position, stream=stream
    )
