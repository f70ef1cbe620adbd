"""Signs heads in this process, with a key in a file, and keeps them in the file of heads beside it.

It verifies by itself that each head goes on from the last one: what it is told by the log is not believed. Against who
can write the database but not these files, that is enough; where the same user may write both, let another user run it
(`eventlog signer`, `eventlog.audit.heads.signer_service`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from eventlog.audit.heads.head_file import HeadFile
from eventlog.audit.heads.head_lines import HeadLine, HeadMemory, KeptHead
from eventlog.audit.heads.key_file import heads_beside, read_key_file
from eventlog.errors import InvalidInput, StoreUnavailable
from eventlog.heads import HeadRequest, SignedHead, StaleHead
from eventlog.merkle import EMPTY_ROOT, TreeHead, is_consistent
from eventlog.signing.head_text import DEFAULT_PREFIX, check_prefix, head_text, open_head, origin_of
from eventlog.signing.notes import VerifierKey, add_signature, make_verifier_key, sign_note
from eventlog.stores.clock import Clock, SystemClock

__all__ = ["LocalSigner", "begin_incarnation"]

_NOTHING: Final = TreeHead(0, EMPTY_ROOT)


class LocalSigner:
    """Keeps the contract of `eventlog.heads.HeadSigner`.

    The heads are in `heads_path`, `<key_path>.heads` unless given. `prefix` is what stands in front of the id of the
    log in an origin: the one in the file of heads, or of the heads in it, unless given; a key has one for ever. The
    keys in `also` sign every head too, behind the first: while one key takes the place of another, who knows either can
    verify.

    Raises InvalidInput: `key_exposed`, `key_unusable`, `bad_verifier_key`; Misuse(`missing_extra`).
    """

    def __init__(
        self,
        key_path: str | os.PathLike[str],
        *,
        prefix: str | None = None,
        heads_path: str | os.PathLike[str] | None = None,
        also: Sequence[str | os.PathLike[str]] = (),
        clock: Clock | None = None,
    ) -> None:
        self._keys: Final = tuple(map(read_key_file, (key_path, *also)))
        self._prefix: Final = None if prefix is None else check_prefix(prefix)
        self._file: Final = HeadFile(heads_beside(key_path) if heads_path is None else heads_path)
        self._clock: Final = clock or SystemClock()
        self._verified: KeptHead | None = None

    @property
    def heads_path(self) -> str:
        """Where the heads are kept."""
        return self._file.path

    @property
    def public_key(self) -> bytes:
        """The public key, 32 bytes."""
        return self._keys[0].public

    @property
    def public_keys(self) -> tuple[bytes, ...]:
        """The public keys of all that sign, the first one first."""
        return tuple(key.public for key in self._keys)

    def verifier_key(self, log_id: bytes) -> VerifierKey:
        """Return the key by which the heads of this log are verified. Raises as `last`."""
        return make_verifier_key(self.origin(log_id), self._keys[0].public)

    def verifier_keys(self, log_id: bytes) -> tuple[VerifierKey, ...]:
        """Return the keys that sign the heads of this log, all of them. Raises as `last`."""
        origin = self.origin(log_id)
        return tuple(make_verifier_key(origin, key.public) for key in self._keys)

    def origin(self, log_id: bytes) -> str:
        """Return the first line of the heads of this log. Raises as `last`."""
        return self._origin(self._file.look(), log_id)

    def prefix(self) -> str:
        """Return what stands in front of the id of a log in an origin. Raises as `last`."""
        memory = self._file.look()
        self._check_prefix(memory)
        return self._prefix or memory.prefix or DEFAULT_PREFIX

    def current(self) -> bytes | None:
        """Return the id of the incarnation whose heads are signed, None while there was none. Raises as `last`."""
        return self._file.look().current

    def last(self) -> SignedHead | None:
        """Return the newest head that was signed, or None.

        Raises StoreUnavailable: `signer_unavailable`, `head_file_damaged` if it is not signed by this key, and
        `head_refused` if another key has taken its place: whoever opens a log with it learns that at once.
        """
        memory = self._file.look()
        _check_not_moved(memory)
        return None if memory.newest is None else self._checked(memory.newest).to_signed()

    def sign(self, request: HeadRequest) -> SignedHead:
        """Sign a head that goes on from the last one; *durable* on return. The same head again is the same note.

        Raises StaleHead, and StoreUnavailable: `head_refused`, `signer_unavailable`, `head_file_damaged`.
        """
        with self._file.locked() as held:
            self._check_may_sign(held.memory, request.log_id)
            last = held.memory.of_log(request.log_id)
            origin = self._origin(held.memory, request.log_id)
            if last is not None and last.head == request.head and self._is_signed_by_all(last):
                return last.to_signed()
            _check_growth(_NOTHING if last is None else self._checked(last).head, request)
            note = self._sign(head_text(origin, request.head), origin)
            kept = held.append(HeadLine(at_us=self._clock.now_us(), note=note.decode()))
            assert kept is not None, "the line has a head"
            self._verified = kept  # as soon as it was signed
        return kept.to_signed()

    def begin(self, log_id: bytes) -> None:
        """Take heads of this incarnation, from size 0, and of no other from now on: see `begin_incarnation`."""
        begin_incarnation(self._file, log_id, at_us=self._clock.now_us())

    def keep_prefix(self) -> None:
        """Write the given prefix into a file of heads that says none yet; *durable* on return."""
        if self._prefix is None:
            return
        with self._file.locked() as held:
            _check_not_moved(held.memory)
            self._check_prefix(held.memory)
            if held.memory.prefix is None:
                held.append(HeadLine(at_us=self._clock.now_us(), prefix=self._prefix))

    def _sign(self, text: bytes, origin: str) -> bytes:
        first, *others = self._keys
        note = sign_note(text, origin, first)
        for key in others:
            note = add_signature(note, origin, key)
        return note

    def _check_may_sign(self, memory: HeadMemory, log_id: bytes) -> None:
        _check_not_moved(memory)
        if memory.current is not None and memory.current != log_id:
            why = f"the incarnation {log_id.hex()} of the log was followed by another, or never begun"
            raise _refused("another_log", f"{why}; the signer signs {_hex(memory.current)}")

    def _origin(self, memory: HeadMemory, log_id: bytes) -> str:
        self._check_prefix(memory)
        origin = origin_of(self._prefix or memory.prefix or DEFAULT_PREFIX, log_id)
        last = memory.of_log(log_id)
        if last is not None and last.origin != origin:
            raise _refused("another_log", f"the heads of this log are signed as {last.origin!r}, not as {origin!r}")
        return origin

    def _check_prefix(self, memory: HeadMemory) -> None:
        if self._prefix is not None and memory.prefix not in (None, self._prefix):
            raise _refused("another_log", f"the prefix of this key is {memory.prefix!r}, not {self._prefix!r}")

    def _checked(self, kept: KeptHead) -> KeptHead:
        """Return a head that one of the keys has signed: nobody else has written it into the file."""
        if kept is not self._verified:  # what this process holds in its memory need not be verified again
            self._signers_of(kept)
            self._verified = kept
        return kept

    def _is_signed_by_all(self, kept: KeptHead) -> bool:
        return self._signers_of(kept) == {key.public for key in self._keys}

    def _signers_of(self, kept: KeptHead) -> set[bytes]:
        """Return which of the keys have signed a head. Raises StoreUnavailable(`head_file_damaged`) if none has."""
        try:
            keys = [make_verifier_key(kept.origin, key.public) for key in self._keys]
            return {key.public for key in open_head(kept.note, keys).verified}
        except InvalidInput as error:
            raise self._file.damaged(f"the head of size {kept.head.size}: {error}") from error


def begin_incarnation(file: HeadFile, log_id: bytes, *, at_us: int) -> None:
    """Let heads of this incarnation be signed from now on, from size 0, and of no other; *durable* on return.

    May be repeated. Raises StoreUnavailable: `head_refused` for one that has been followed by another.
    """
    with file.locked() as held:
        _check_not_moved(held.memory)
        if log_id == held.memory.current:
            return
        if log_id in held.read_all().begun:
            why = f"the incarnation {log_id.hex()} of the log was followed by {_hex(held.memory.current)}"
            raise _refused("another_log", why)
        held.append(HeadLine(at_us=at_us, begins=log_id.hex()))


def _check_not_moved(memory: HeadMemory) -> None:
    if memory.moved_to is not None:
        raise _refused("key_replaced", f"the key was replaced, and its heads go on in {memory.moved_to!r}")


def _check_growth(old: TreeHead, request: HeadRequest) -> None:
    """Raise StaleHead or StoreUnavailable(`head_refused`) unless the head goes on from the old one, or is the same."""
    head = request.head
    if head == old and head.size:
        return  # signed again, because another key signs as well by now
    if request.old_size != old.size:
        raise StaleHead(old.size)
    if head.size < old.size:
        why = f"the log has {head.size} events, and the head of {old.size} was signed: it was cut or put back"
        raise _refused("not_extended", why)
    if head.size == old.size:
        why = "there is nothing in the log" if not head.size else "the signed head of this size has another root"
        raise _refused("not_extended", f"{why}: {head.root.hex()} at size {head.size}")
    if not is_consistent(old.size, old.root, head.size, head.root, request.proof):
        why = f"the proof does not show that the head of {head.size} goes on from the signed one of {old.size}"
        raise _refused("not_extended", why)


def _refused(reason: str, why: str) -> StoreUnavailable:
    """`reason` is a word for programs: `not_extended`, `another_log`, `key_replaced`."""
    return StoreUnavailable("head_refused", why, reason=reason)


def _hex(log_id: bytes | None) -> str:
    return "none" if log_id is None else log_id.hex()
