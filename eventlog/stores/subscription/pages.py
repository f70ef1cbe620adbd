"""What a store offers to subscriptions: pages of verified events."""

from __future__ import annotations

from typing import Protocol

import msgspec

from eventlog.log import RecordedEvent
from eventlog.stores.requests import Wanted

__all__ = ["Page", "Source", "TailPage", "Unreadable"]


class Unreadable(msgspec.Struct, frozen=True):
    """An event that is sound but cannot be decoded. It stops those who want it, and them alone."""

    position: int
    stream: str


Page = tuple[list[RecordedEvent], int]
"""The wanted events among the next positions, and the last position that was looked at."""

TailPage = list[RecordedEvent | Unreadable]
"""What stands at each of the next positions."""


class Source(Protocol):
    """A log as subscriptions read it. Each page is of one snapshot, so one that is not full ends at the head."""

    @property
    def is_shared(self) -> bool:
        """Whether others may append as well, who call no `Tail.wake`: then the tail has to look again and again."""

    def check(self) -> None:
        """Raise EventLogError unless the log may be read."""

    async def read_page(self, after: int, limit: int, wanted: Wanted | None) -> Page:
        """Read `limit` positions behind `after`. All are verified; those that are wanted are given."""

    async def read_tail(self, after: int, limit: int) -> TailPage:
        """Read `limit` positions behind `after`, all verified and given."""
