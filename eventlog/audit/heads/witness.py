"""A witness for heads that a log has signed: it answers `add-checkpoint` as c2sp.org/tlog-witness says.

It knows the keys of the logs that it follows, and keeps the last head of each that it has cosigned, in a file of heads
of its own, before it answers. Two heads of which neither goes on from the other never get a cosignature both.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

import msgspec

from eventlog.audit.heads.head_file import HeadFile, HeldHeads
from eventlog.audit.heads.head_lines import HeadLine, KeptHead
from eventlog.audit.heads.key_file import heads_beside, read_key_file
from eventlog.errors import InvalidInput
from eventlog.merkle import EMPTY_ROOT, TreeHead, is_consistent
from eventlog.signing.cosignatures import (
    GrowthRequest,
    WitnessKey,
    cosign,
    make_witness_key,
    open_cosignatures,
    parse_growth_request,
)
from eventlog.signing.head_text import OpenedHead, open_head, parse_head
from eventlog.signing.notes import VerifierKey, parse_note
from eventlog.stores.clock import Clock, SystemClock

__all__ = ["SIZE_TYPE", "TEXT_TYPE", "Answer", "Witness"]

SIZE_TYPE: Final = "text/x.tlog.size"
TEXT_TYPE: Final = "text/plain; charset=utf-8"
_NOTHING: Final = TreeHead(0, EMPTY_ROOT)


class Answer(msgspec.Struct, frozen=True):
    """An HTTP answer. `why` is what the log of the service says of a refusal."""

    status: int
    body: bytes
    content_type: str = TEXT_TYPE
    why: str | None = None


class Witness:
    """Cosigns the heads of logs under these keys, as a witness of this name.

    Raises InvalidInput: `key_exposed`, `key_unusable`, `bad_verifier_key`; Misuse(`missing_extra`).
    """

    def __init__(
        self,
        key_path: str | os.PathLike[str],
        *,
        name: str,
        log_keys: Sequence[VerifierKey],
        heads_path: str | os.PathLike[str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._private: Final = read_key_file(key_path)
        self.key: Final[WitnessKey] = make_witness_key(name, self._private.public)
        self._log_keys: Final = tuple(log_keys)
        self._file: Final = HeadFile(heads_beside(key_path) if heads_path is None else heads_path)
        self._clock: Final = clock or SystemClock()

    def add_checkpoint(self, body: bytes) -> Answer:
        """Answer the body of a request: 200 with a cosignature, *durable* before it is given, or why not.

        Raises StoreUnavailable: `signer_unavailable`, `head_file_damaged`.
        """
        try:
            request = parse_growth_request(body)
            origin, _ = parse_head(parse_note(request.note)[0])
        except InvalidInput as error:
            return _refusal(400, str(error))
        keys = [key for key in self._log_keys if key.name == origin]
        if not keys:
            return _refusal(404, f"this witness does not follow the log {origin!r:.120}")
        try:
            opened = open_head(request.note, keys)
        except InvalidInput as error:
            return _refusal(403, str(error))
        if request.old_size > opened.head.size:
            return _refusal(400, f"the old size {request.old_size} is larger than the size {opened.head.size}")
        with self._file.locked() as held:
            return self._answer(held, request, opened)

    def _answer(self, held: HeldHeads, request: GrowthRequest, opened: OpenedHead) -> Answer:
        kept = held.last_of(opened.origin)
        old, head = _NOTHING if kept is None else self._checked(kept).head, opened.head
        if request.old_size != old.size or (head.size == old.size and head.root != old.root):
            why = f"the head of {old.size} was cosigned last, not that of {request.old_size}, or with another root"
            return Answer(409, b"%d\n" % old.size, SIZE_TYPE, why)
        is_same = head == old and not request.proof
        if not is_same and not is_consistent(old.size, old.root, head.size, head.root, request.proof):
            return _refusal(422, f"the proof does not show that {head.size} goes on from {old.size}")
        return self._cosigned(held, request.note, opened, is_kept=kept is not None and is_same)

    def _checked(self, kept: KeptHead) -> KeptHead:
        """Return a head that this witness has cosigned: nobody else has written it into the file."""
        try:
            is_ours = bool(open_cosignatures(kept.note, [self.key]))
        except InvalidInput:
            is_ours = False
        if not is_ours:
            raise self._file.damaged(f"the head of size {kept.head.size} was not cosigned by {self.key.name!r}")
        return kept

    def _cosigned(self, held: HeldHeads, note: bytes, opened: OpenedHead, *, is_kept: bool) -> Answer:
        now_us = self._clock.now_us()
        text, lines = parse_note(note)
        line = cosign(text, self.key.name, self._private, now_us // 1_000_000)
        if not is_kept:
            known = {(key.name, key.key_id) for key in opened.verified}
            own = "".join(each.to_text() for each in lines if (each.name, each.key_id) in known) + line.to_text()
            held.append(HeadLine(at_us=now_us, note=(text + b"\n").decode() + own))
        return Answer(200, line.to_text().encode())


def _refusal(status: int, why: str) -> Answer:
    return Answer(status, f"{why}\n".encode(), why=why)
