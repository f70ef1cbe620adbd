"""What the reader of a log knows by another way than from the log itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from eventlog.signing.notes import VerifierKey

__all__ = ["NO_TRUST", "OutsideHead", "PinnedApprover", "Trust"]


class OutsideHead(msgspec.Struct, frozen=True, kw_only=True):
    """A head that was kept outside the database. `source` says where, for people; `at_us` when, if that is known."""

    note: bytes
    source: str
    at_us: int | None = None


class PinnedApprover(msgspec.Struct, frozen=True, kw_only=True):
    """A key that an approver is known to hold: its 32 raw bytes. Who has had several is named with each."""

    approver: str
    public: bytes


class Trust(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of the heads of a log, heads that it had, and keys of approvers: known by another way than from the log.

    `min_level` is the least that each approval has to be. `since_head` leaves out what a head covers already that one
    of the keys has signed, or that was kept outside.
    """

    log_keys: Sequence[VerifierKey] = ()
    heads: Sequence[OutsideHead] = ()
    approvers: Sequence[PinnedApprover] = ()
    min_level: int = 0
    since_head: bool = False

    @property
    def asks_for_heads(self) -> bool:
        """Whether heads have to be checked, so that not being able to is an answer of its own."""
        return bool(self.log_keys) or bool(self.heads)


NO_TRUST: Final = Trust()
