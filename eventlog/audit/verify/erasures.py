"""The verdict `erasures`: each body that is not there was erased by an event that says so.

erased           body and salt are gone, and a `payload_erased` event names the position and gives the leaf
LOST/TAMPERED    they are gone, and no event says so, or one that does not give the leaf (`payload_lost`)
subject_erased   the body is encrypted, and the key of its subject is destroyed, as an event says
key_missing      the body is encrypted, and this program was not given its key: its leaf is right all the same
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from eventlog.audit.verify.findings import Finding, Problems
from eventlog.events import LOG_STREAM, PayloadErased, SubjectErased
from eventlog.log import CheckedPage, RecordedEvent

__all__ = ["ErasureCheck"]

_SHOWN: Final = 20
_GONE: Final = frozenset({"body_missing"})


class ErasureCheck:
    """Pairs bodies that are gone with the events that erased them. `after`: the last position that nobody looks at.

    `sees_all` says that every event behind `after` passes by, so that a body which was erased, and is there again, is
    found as well.
    """

    def __init__(self, *, after: int = 0, sees_all: bool = True) -> None:
        self._after: Final = after
        self._sees_all: Final = sees_all
        self._problems: Final = Problems()
        self._counts: Final[Counter[str]] = Counter()
        self._gone: Final[set[int]] = set()
        self._lost: Final[set[int]] = set()
        self._named: Final[dict[int, int]] = {}
        self._destroyed_keys = 0

    def look(self, page: CheckedPage) -> None:
        """Note what a page says of bodies that are gone, and of erasures."""
        for position, why in page.redacted:
            self._counts[why] += 1
            if why == "erased":
                self._gone.add(position)
        for problem in page.problems:
            if problem.reason in _GONE and problem.position is not None:
                self._lost.add(problem.position)
                self._add_lost(problem.position, problem.message)
        for event in page.judged:
            self.see(event)

    def see(self, event: RecordedEvent) -> None:
        """Note an event of the log itself, if it is about an erasure."""
        if event.stream != LOG_STREAM:
            return
        if isinstance(event.data, PayloadErased):
            if event.data.position > self._after:
                self._named[event.data.position] = event.position
        elif isinstance(event.data, SubjectErased):
            self._destroyed_keys += 1

    def finding(self) -> Finding:
        """Return the verdict."""
        for position in sorted(self._gone - self._named.keys()):
            self._lost.add(position)
            self._add_lost(position, f"position {position}: no event says that its body was erased")
        for position in sorted(self._named.keys() - self._gone - self._lost) if self._sees_all else ():
            message = (
                f"the erasure at position {self._named[position]} names position {position}, whose body is there still,"
                " or is not the one that was erased"
            )
            self._problems.add("not_erased", message, position=position)
        return self._problems.finding(
            details={
                "erased": self._counts["erased"],
                "first_erased": sorted(self._gone)[:_SHOWN],
                "lost": len(self._lost),
                "subject_keys_destroyed": self._destroyed_keys,
                "subject_erased": self._counts["subject_erased"],
                "key_missing": self._counts["key_missing"],
            }
        )

    def _add_lost(self, position: int, message: str) -> None:
        self._problems.add("payload_lost", f"LOST or TAMPERED: {message}", position=position)
