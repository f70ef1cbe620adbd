"""Whether a signed head counts: its text is the head that was asked for, and a key that counts has signed it.

A signer may be another process, or who has taken its place at the socket; and what comes back from any of them may have
been changed on the way. So every note is opened here before anything rests on it. The keys that count are

* the key that the caller pinned (`RemoteSigner(…, verifier_key=…)`), and those that the log says it handed over to;
* else those that `$log` declares for this incarnation of the log at that size, rotations followed;
* else those that the signer named itself when it was asked first, for the life of this process: a warning says so.

A signer that can name no key, of a log that declares none, is held to the text alone; a warning says that too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from typing import Final

from eventlog.errors import InvalidInput, StoreUnavailable
from eventlog.heads import SignedHead
from eventlog.merkle import TreeHead
from eventlog.signing.head_text import log_id_of, open_head, parse_head
from eventlog.signing.log_keys import LogKeys, keys_for
from eventlog.signing.notes import VerifierKey, make_verifier_key
from eventlog.stores.telemetry import logger

__all__ = ["HeadCheck"]

_MAX_US: Final = 2**63 - 1

NamesKeys = Callable[[bytes], Awaitable[Sequence[VerifierKey]]]


class HeadCheck:
    """Opens the notes of one signer. `ask_keys` asks it for the keys that it signs the heads of a log with."""

    def __init__(
        self, log_keys: Callable[[], Awaitable[LogKeys]], ask_keys: NamesKeys, pinned: VerifierKey | None
    ) -> None:
        self._log_keys: Final = log_keys
        self._ask_keys: Final = ask_keys
        self._pinned: Final = pinned
        self._own: tuple[bytes, ...] | None = None

    async def require(self, signed: SignedHead, log_id: bytes, head: TreeHead) -> None:
        """Raise StoreUnavailable(`signer_unavailable`) unless this is that head of this log, and a key has signed it.

        Raises Misuse(`missing_extra`), and what reading `$log` raises.
        """
        origin = _origin_of(signed, log_id, head)
        _require_signed(signed, origin, await self._keys(await self._log_keys(), origin, head.size))

    async def require_known(self, signed: SignedHead) -> None:
        """As `require`, for a head of some time before: a key that has counted for its log at any size will do.

        So will one that the signer names itself, unless the caller has pinned another: the log may have lost, with its
        end, that it was handed over to.
        """
        origin = _origin_of(signed, signed.log_id, signed.head)
        keys = await self._keys(await self._log_keys(), origin, None)
        if keys is not None and self._pinned is None:
            keys = tuple(dict.fromkeys((*keys, *_renamed(await self._own_keys(signed.log_id), origin))))
        _require_signed(signed, origin, keys)

    async def is_known(self, signed: SignedHead) -> bool:
        """Say whether a key that this log or this caller knows has signed a head that the database keeps."""
        try:
            origin = _origin_of(signed, signed.log_id, signed.head)
            keys = await self._keys(await self._log_keys(), origin, None)
            return keys is not None and bool(open_head(signed.note, keys).verified)
        except (InvalidInput, StoreUnavailable):
            return False

    async def _keys(self, found: LogKeys, origin: str, size: int | None) -> tuple[VerifierKey, ...] | None:
        """Return the keys that count for heads of this origin and size, any size if None. None: nobody knows any."""
        if self._pinned is not None:
            return _pinned_keys(self._pinned, found, origin, size)
        declared = tuple(each.key for each in found.keys if each.key.name == origin)
        if declared:
            return declared if size is None else keys_for(found, origin, size)
        return _renamed(await self._own_keys(log_id_of(origin)), origin) or None

    async def _own_keys(self, log_id: bytes) -> tuple[bytes, ...]:
        """Return the public keys that the signer has named first."""
        if self._own is None:
            self._own = tuple(key.public for key in await self._ask_keys(log_id))
            logger.warning("signer_key_not_pinned", keys=[public.hex() for public in self._own])
        return self._own


def _pinned_keys(pinned: VerifierKey, found: LogKeys, origin: str, size: int | None) -> tuple[VerifierKey, ...]:
    """Return the pinned key, or where the log names it, the one of those from there on that counts at this size.

    The key carries over into the incarnations of the log that a restore begins: its name has another id of the log.
    """
    own = _renamed((pinned.public,), origin)
    of_log = [each for each in found.keys if each.key.name == origin]
    since = next((each.position for each in of_log if each.key.public == pinned.public), None)
    if since is None:
        return own
    later = {each.key for each in of_log if each.position >= since}
    counting = [each.key for each in of_log] if size is None else keys_for(found, origin, size)
    return tuple(key for key in counting if key in later)


@lru_cache(maxsize=16)  # looking whether a key is a weak one takes as long as a signature
def _renamed(publics: tuple[bytes, ...], origin: str) -> tuple[VerifierKey, ...]:
    return tuple(make_verifier_key(origin, public) for public in publics)


def _origin_of(signed: SignedHead, log_id: bytes, head: TreeHead) -> str:
    """Return the first line of the note. Raises StoreUnavailable(`signer_unavailable`) unless it is of this head."""
    text, gap, _ = signed.note.rpartition(b"\n\n")
    try:
        origin, said = parse_head(text + gap[:1])
        named = log_id_of(origin)
    except InvalidInput as error:
        raise _refused(f"its answer is no head: {error}") from error
    if (named, said) != (log_id, head) or (signed.log_id, signed.head) != (log_id, head):
        raise _refused(f"the note it answers with is of another head than that of size {head.size}")
    if type(signed.signed_at_us) is not int or not 0 <= signed.signed_at_us <= _MAX_US:
        raise _refused("the time of its answer is none")
    return origin


def _require_signed(signed: SignedHead, origin: str, keys: Sequence[VerifierKey] | None) -> None:
    if keys is None:
        return
    try:
        open_head(signed.note, keys)
    except InvalidInput as error:
        expected = ", ".join(key.to_text() for key in keys)
        why = f"no key that counts has signed the head of size {signed.head.size} that it gave: {error}"
        raise _refused(f"{why} (expected of {origin}: {expected})") from error


def _refused(why: str) -> StoreUnavailable:
    return StoreUnavailable("signer_unavailable", f"the signer of heads cannot be believed: {why}")
