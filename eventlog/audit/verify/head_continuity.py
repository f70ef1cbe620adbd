"""Whether a log goes on from a head of it: by the root at the head's size, and the restores that the log declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from eventlog.audit.verify.findings import Problems
from eventlog.events import LogRestored
from eventlog.merkle import TreeHead
from eventlog.signing.head_text import log_id_of, parse_head
from eventlog.signing.notes import SignatureLine, parse_note

__all__ = ["Continuity", "Incarnation", "ReadHead", "incarnations", "read_head"]


class ReadHead(msgspec.Struct, frozen=True, kw_only=True):
    """A head as its text says, which nobody has verified yet."""

    origin: str
    log_id: bytes
    head: TreeHead
    text: bytes
    lines: tuple[SignatureLine, ...]
    at_us: int | None
    source: str
    is_outside: bool

    @property
    def size(self) -> int:
        return self.head.size

    @property
    def name(self) -> str:
        return f"the head of size {self.size} ({self.source})"


class Incarnation(msgspec.Struct, frozen=True):
    """The last position that a log_id is valid for, and the restore that ended it, if one did.

    What was signed up to the size that the restore names is declared lost.
    """

    last: int
    restore: LogRestored | None
    is_begun: bool = False
    """Whether a restore began it."""


class Continuity:
    """Compares heads with the log."""

    def __init__(
        self, problems: Problems, incarnations: Mapping[bytes, Incarnation], roots: Mapping[int, bytes]
    ) -> None:
        self._problems: Final = problems
        self._incarnations: Final = incarnations
        self._roots: Final = roots
        self.unknown: Final[list[str]] = []
        """Why the last head that cannot be compared cannot be."""

    def is_continued(self, head: ReadHead) -> bool:
        """Say whether the log goes on from this head. Notes what is wrong."""
        own = self._incarnations.get(head.log_id)
        if own is None:
            self._problems.add("store_forked", f"{head.name} is one of the log {head.log_id.hex()}, which is not here")
            return False
        if head.size > own.last:
            self._judge_lost(head, own)
            return False  # even if it is declared: the log does not go on from it
        root = self._roots.get(head.size)
        if root is None:
            self.unknown[:] = [f"{head.name} cannot be compared: the tree is not known there"]
        elif root != head.head.root:
            message = f"{head.name} has another root: what lies before position {head.size} is not what was signed"
            self._problems.add("store_forked", message, position=head.size)
        return root == head.head.root

    def is_of_restore(self, head: ReadHead) -> bool:
        """Say whether a restore has ended the incarnation of a head, or begun it."""
        own = self._incarnations.get(head.log_id)
        return own is not None and (own.restore is not None or own.is_begun)

    def is_declared_lost(self, head: ReadHead) -> bool:
        """Say whether a head is of what a restore declares lost."""
        own = self._incarnations.get(head.log_id)
        return own is not None and own.restore is not None and own.last < head.size <= own.restore.size

    def _judge_lost(self, head: ReadHead, own: Incarnation) -> None:
        """Note that the log is shorter than a head of it, unless a restore has declared what is lost.

        A copy that was put back twice has lost what the first restore said: the second names only the incarnation in
        between, which is lost as a whole. Nobody can tell then what the first one declared.
        """
        restore = own.restore
        if restore is not None and restore.size < head.size and restore.previous_log_id != head.log_id.hex():
            between = f"the incarnation {restore.previous_log_id} behind it is lost, with what it said of that"
            self.unknown[:] = [f"{head.name} is of more events than the log has, and {between}"]
        elif restore is None or restore.size < head.size:
            message = f"{head.name} is of more events than the log has: it ends at position {own.last}"
            self._problems.add("store_rolled_back", message, position=own.last)
        elif (restore.previous_log_id, restore.size) == (head.log_id.hex(), head.size) and (
            restore.root != head.head.root.hex()
        ):
            message = f"{head.name} has another root than the one that the restore names as the last known"
            self._problems.add("store_forked", message)


def read_head(note: bytes, source: str, at_us: int | None, *, is_outside: bool) -> ReadHead:
    """Return the head that a note spells. Raises InvalidInput(`bad_note`)."""
    text, lines = parse_note(note)
    origin, head = parse_head(text)
    return ReadHead(
        origin=origin,
        log_id=log_id_of(origin),
        head=head,
        text=text,
        lines=lines,
        at_us=at_us,
        source=source,
        is_outside=is_outside,
    )


def incarnations(
    log_ids: Sequence[tuple[int, bytes]], restores: Mapping[int, LogRestored], size: int
) -> dict[bytes, Incarnation]:
    """Return each incarnation of the log by its id; also those that are lost as a whole, and that a restore names."""
    found = {bytes.fromhex(each.previous_log_id): Incarnation(0, each) for each in restores.values() if _is_id(each)}
    for number, (first, log_id) in enumerate(log_ids):
        next_first = log_ids[number + 1][0] if number + 1 < len(log_ids) else size + 1
        found[log_id] = Incarnation(min(next_first - 1, size), restores.get(next_first), first in restores)
    return found


def _is_id(restored: LogRestored) -> bool:
    try:
        return len(bytes.fromhex(restored.previous_log_id)) == 16
    except ValueError:
        return False
