"""Signed heads: what a log needs of whoever signs them, and what both of them say to each other.

A *head* is the size and the root of the log's Merkle tree (`eventlog.merkle.TreeHead`). A signer signs the heads of a
log that only grows: it keeps the last one that it signed where the writer of the database cannot reach it, and refuses
whatever does not go on from there. So a log that was cut, put back or rewritten is found when it is opened, and shown
to be so for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from eventlog.errors import EventLogError
from eventlog.merkle import TreeHead

__all__ = ["HeadRequest", "HeadSigner", "SignedHead", "StaleHead"]


class SignedHead(msgspec.Struct, frozen=True, kw_only=True):
    """A head with the note that signs it (C2SP signed note, three lines, then signature lines).

    `log_id` is the incarnation of the log that the note's origin names. `signed_at_us` is when it was signed, by the
    clock of who signed it; a note has no time of its own.
    """

    log_id: bytes
    head: TreeHead
    note: bytes
    signed_at_us: int


class HeadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A head to be signed, with the proof that the tree has only grown since the head of `old_size` (0: none)."""

    log_id: bytes
    head: TreeHead
    old_size: int
    proof: Sequence[bytes]


class StaleHead(EventLogError):
    """The signer has signed a head of another size last: ask again with a proof from `size`."""

    def __init__(self, size: int) -> None:
        super().__init__("head_stale", f"the signer has signed the head of size {size} last", size=size)
        self.size = size


class HeadSigner(Protocol):
    """Who signs heads. The calls block, and are made on a thread.

    They raise StoreUnavailable: `signer_unavailable` where it cannot be asked, `head_refused` where it will not sign.

    Whatever it answers is opened before it counts (`eventlog.stores.head_check`). One that has `verifier_keys(log_id)`
    as well names the keys that it signs with, for logs that declare none; `pinned`, a verifier key, is one that its
    caller knows by another way.
    """

    def last(self) -> SignedHead | None:
        """Return the newest head that was signed, of whatever incarnation of the log, or None if none was."""

    def sign(self, request: HeadRequest) -> SignedHead:
        """Sign a head, keep it *durably*, and return it. Repeating a call returns what was signed.

        Raises StaleHead, and StoreUnavailable(`head_refused`) for a head that does not go on from the last one, or of
        an incarnation that was not begun.
        """

    def begin(self, log_id: bytes) -> None:
        """Take heads of a new incarnation of the log from now on, from size 0: a restore that was declared.

        The first incarnation begins by itself.
        """
