"""The lines of a signer's file of heads, and what they say together.

Each line is one JSON object with `at_us`, the signer's clock in microseconds UTC, and one of

    note      a signed head, the whole note
    begins    the id of an incarnation of the log, 32 hex digits: heads of this one are signed from here on
    prefix    what stands in front of the id of the log in an origin
    moved_to  the file in which the heads go on, since the key was rotated: nothing is signed from this one any more

A log's heads only grow, and lines are only added; so a line that is none, a head that is smaller than one of the same
log before it, and a line behind `moved_to`, are damage. Only the last line may be incomplete: its head was never given
out.

The last lines say almost everything, however many there are before them: a head is signed for the current incarnation
only, and under the prefix of the key, so the newest head names both unless a line behind it does; and an incarnation
that a line begins has no heads before that line.
"""

from __future__ import annotations

from binascii import a2b_base64
from collections.abc import Iterator
from typing import Final

import msgspec

from eventlog.errors import InvalidInput
from eventlog.heads import SignedHead
from eventlog.merkle import TreeHead
from eventlog.signing.head_text import log_id_of

__all__ = ["HeadLine", "HeadMemory", "KeptHead", "LineDamaged", "parse_lines", "spell_line"]

_LOG_ID: Final = 16
_ROOT: Final = 32


class HeadLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One line, as it is spelled. Exactly one of the fields behind `at_us` is given."""

    at_us: int
    note: str | None = None
    begins: str | None = None
    prefix: str | None = None
    moved_to: str | None = None


class KeptHead(msgspec.Struct, frozen=True, kw_only=True):
    """A head in the file; its signatures were not looked at. `origin` is what a log of ours ends with its id."""

    at_us: int
    origin: str
    head: TreeHead
    note: bytes

    def to_signed(self) -> SignedHead:
        """Return the head of a log of ours. Raises InvalidInput(`bad_note`) for the origin of another kind of log."""
        return SignedHead(log_id=log_id_of(self.origin), head=self.head, note=self.note, signed_at_us=self.at_us)


class LineDamaged(ValueError):
    """A line is not what a signer writes. The text says why."""


class HeadMemory:
    """What the lines say so far. `begun` are the incarnations in their order; the last one is the current one.

    Of the last lines of a file, those behind a place in it, it has what they say: not each log, nor each incarnation.
    """

    def __init__(self) -> None:
        self.newest: KeptHead | None = None
        self.by_origin: Final[dict[str, KeptHead]] = {}
        self.begun: Final[list[bytes]] = []
        self.prefix: str | None = None
        self.moved_to: str | None = None

    @property
    def current(self) -> bytes | None:
        """The id of the incarnation whose heads are signed, None while there was none."""
        return self.begun[-1] if self.begun else None

    def of_log(self, log_id: bytes) -> KeptHead | None:
        """Return the last head of this incarnation, whatever its prefix was."""
        ending = f"/{log_id.hex()}"
        return next((kept for origin, kept in self.by_origin.items() if origin.endswith(ending)), None)

    def take(self, line: HeadLine) -> KeptHead | None:
        """Remember a line; return its head, if it has one. Raises LineDamaged."""
        if sum(each is not None for each in (line.note, line.begins, line.prefix, line.moved_to)) != 1:
            raise LineDamaged("it says nothing, or several things")
        if self.moved_to is not None:
            raise LineDamaged("it stands behind the line that says where the heads go on")
        if line.note is not None:
            return self._take_head(_kept(line.at_us, line.note))
        if line.begins is not None:
            self.begun.append(_log_id(line.begins))
        self.prefix = line.prefix or self.prefix
        self.moved_to = line.moved_to or self.moved_to
        return None

    def _take_head(self, kept: KeptHead) -> KeptHead:
        before = self.by_origin.get(kept.origin)
        if before is not None and not _may_follow(before.head, kept.head):
            raise LineDamaged(f"its head is not larger than the one before it, of size {before.head.size}")
        self.newest = self.by_origin[kept.origin] = kept
        if before is None:
            self._take_origin(kept.origin)
        return kept

    def _take_origin(self, origin: str) -> None:
        try:
            log_id = log_id_of(origin)
        except InvalidInput:
            return  # of another kind of log, as a witness may keep
        if not self.begun:  # the first incarnation begins by itself
            self.begun.append(log_id)
        self.prefix = self.prefix or origin.rpartition("/")[0]


def parse_lines(data: bytes) -> Iterator[tuple[bytes, HeadLine]]:
    """Yield each line of these bytes, which end with a newline, as it is spelled and read. Raises LineDamaged."""
    decode = msgspec.json.Decoder(HeadLine).decode
    for spelled in data.splitlines(keepends=True):
        try:
            yield spelled, decode(spelled)
        except (msgspec.DecodeError, RecursionError) as error:
            raise LineDamaged(f"it is no line of heads: {error}") from None


def spell_line(line: HeadLine) -> bytes:
    """Return the line with its newline."""
    return msgspec.json.encode(line) + b"\n"


# A file may hold a million heads, and a signer reads it when it begins: no more is looked at than has to be. Whoever
# uses a head opens its note.
def _kept(at_us: int, note: str) -> KeptHead:
    """Return the head of a note, of which the first three lines were looked at, and nothing else."""
    try:
        origin, size, root, rest = note.split("\n", 3)
        head = TreeHead(int(size), a2b_base64(root, strict_mode=True))
    except ValueError as error:
        raise LineDamaged(f"its note is no signed head: {error}") from None
    if not rest or not size.isdigit() or len(head.root) != _ROOT:
        raise LineDamaged("its note is no signed head")
    return KeptHead(at_us=at_us, origin=origin, head=head, note=note.encode())


def _may_follow(before: TreeHead, head: TreeHead) -> bool:
    """Say whether one may stand behind the other: it is larger, or the same, signed again by another key."""
    return head.size > before.size or head == before


def _log_id(spelled: str) -> bytes:
    try:
        found = bytes.fromhex(spelled)
    except ValueError:
        found = b""
    if len(found) != _LOG_ID or found.hex() != spelled:
        raise LineDamaged(f"{spelled!r:.60} is no id of a log")
    return found
