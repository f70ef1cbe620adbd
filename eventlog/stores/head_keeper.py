"""Keeps a log under signed heads while it is open: asks the signer in time, and refuses a log that does not go on.

A head is signed only when what it covers was committed durably and was read again from the database: at the latest
so many events or seconds after a commit, before every effect that was decided on, and when the log is closed. Signing
in the background that fails is said in the telemetry and in `health()`, and is tried again with the next head; in front
of an effect it stops the effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from eventlog.errors import EventLogError, StoreUnavailable
from eventlog.heads import HeadRequest, HeadSigner, SignedHead, StaleHead
from eventlog.merkle import EMPTY_ROOT, TreeHead
from eventlog.signing.log_keys import LogKeys
from eventlog.stores.head_check import HeadCheck
from eventlog.stores.signer_calls import SignerCalls
from eventlog.stores.telemetry import logger

__all__ = ["HeadKeeper", "HeadSource", "HeadTimes", "Restored"]

_MAX_STALE: Final = 3
_RETRY_S: Final = 1.0
_CLOSE_TIMEOUT_S: Final = 2.0


class HeadTimes(msgspec.Struct, frozen=True, kw_only=True):
    """When a head is due: after so many events, or so many seconds after a commit, whichever comes first."""

    every_events: int = 1000
    every_s: float = 1.0


class Restored(msgspec.Struct, frozen=True):
    """What the first event of an incarnation says of the one before: its id, and the last head that was known of it."""

    previous_log_id: bytes
    head: TreeHead


class HeadSource(Protocol):
    """The log, as whoever signs its heads sees it."""

    async def log_ids(self) -> Sequence[tuple[int, bytes]]:
        """Return (first_position, log_id) of each incarnation, oldest first."""

    async def tree_head(self, size: int | None = None) -> TreeHead:
        """Return the head of the first `size` events, of all if None."""

    async def checked_head(self, after: int) -> TreeHead:
        """Return the head, with the tree grown again from size `after` by the leaves that are stored now.

        Raises LogCorrupt(`tree_mismatch`) where that is not what is stored.
        """

    async def make_durable(self) -> None:
        """Make *durable* what others have committed and this program only reads. Raises StoreUnavailable."""

    async def prove_consistency(self, old_size: int, size: int) -> list[bytes]:
        """Return the proof that the tree of `size` begins with that of `old_size`."""

    async def keep_head(self, signed: SignedHead) -> None:
        """Keep a signed head in the database."""

    async def newest_heads(self, log_id: bytes, after: int) -> Sequence[SignedHead]:
        """Return a few of the heads of an incarnation, beyond this size, that the database keeps; newest first."""

    async def log_keys(self) -> LogKeys:
        """Return the keys that `$log` names by now. Raises LogCorrupt."""

    async def restored(self) -> Restored | None:
        """Return what the newest incarnation says of the one before it, if it was declared."""


class HeadKeeper:
    """Signs the heads of one open log."""

    def __init__(self, signer: HeadSigner, source: HeadSource, times: HeadTimes) -> None:
        self._signer: Final = SignerCalls(signer)
        self._check: Final = HeadCheck(source.log_keys, self._signer.keys, getattr(signer, "pinned", None))
        self._source: Final = source
        self._times: Final = times
        self._log_id = b""
        self._last = TreeHead(0, EMPTY_ROOT)
        self._signed: SignedHead | None = None
        self._kept = 0
        self._durable = 0
        self._known = 0  # the largest size that the log is known to have had
        self._lock: Final = asyncio.Lock()
        self._wake: Final = asyncio.Event()
        self._is_due: Final = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.last_error: str | None = None
        self.behind: str | None = None
        """That the database had a signed head when the log was opened which its signer does not know any more."""

    @property
    def problem(self) -> str | None:
        """What is wrong with the signing of heads, if anything is."""
        return self.last_error or self.behind

    @property
    def signed_size(self) -> int:
        """The size of the last head that is known to be signed, 0 if none is."""
        return self._last.size

    async def check(self) -> None:
        """Compare the log with the last head that was signed.

        Raises StoreUnavailable: `store_rolled_back` where the log is shorter, `store_forked` where it is another one,
        `signer_unavailable`. A newest incarnation that says itself that it follows that head is in order.
        """
        last = await self._signer.last()
        ids = await self._source.log_ids()
        size = (await self._source.tree_head()).size
        log_id = ids[-1][1]
        if last is not None:
            await self._check.require_known(last)
        if last is not None and last.log_id == log_id:
            await self._require_growth(last, size)
        elif last is not None and await self._source.restored() != Restored(last.log_id, last.head):
            raise _forked(last, [log_id for _, log_id in ids])
        is_of_this = last is not None and last.log_id == log_id
        self._log_id = log_id
        self._signed = last if is_of_this else None
        self._last = last.head if last is not None and is_of_this else TreeHead(0, EMPTY_ROOT)
        await self._compare_with_kept(log_id, size)
        self._known = size
        if size > self._last.size:  # what came before a crash, or from a program that signs nothing
            self._wake.set()

    async def require_new(self, place: str) -> None:
        """Raise StoreUnavailable(`store_rolled_back`) if a head was signed of the log that is missing at `place`."""
        last = await self._signer.last()
        if last is not None:
            message = f"a head of size {last.head.size} was signed, and there is no log at {place!r}"
            raise StoreUnavailable("store_rolled_back", message, signed_size=last.head.size, size=0)

    async def last(self) -> SignedHead | None:
        """Return the head that was signed last, of whatever incarnation. Raises StoreUnavailable."""
        last = await self._signer.last()
        if last is not None:
            await self._check.require_known(last)
        return last

    async def begin(self, log_id: bytes) -> None:
        """Tell the signer of a new incarnation of the log. Raises StoreUnavailable."""
        await self._signer.begin(log_id)

    def start(self) -> None:
        """Begin to sign in the background."""
        self._task = asyncio.create_task(self._run(), name="eventlog-heads")

    def note_commit(self, position: int) -> None:
        """Take note that the log ends at `position` now, durably."""
        self._durable = max(self._durable, position)
        self._known = max(self._known, position)
        self._wake.set()
        if position - self._last.size >= self._times.every_events:
            self._is_due.set()

    async def sign(self) -> SignedHead | None:
        """Make sure that everything that is committed by now is under a signed head, and return that.

        None for an empty log. Raises StoreUnavailable (`signer_unavailable`, `head_refused`), LogCorrupt.
        """
        async with self._lock:
            try:
                signed = await self._sign_or_follow()
            except EventLogError as error:
                self.last_error = str(error)
                raise
            self.last_error = None
            return signed

    async def close(self, *, signs: bool) -> None:
        """End, and sign what is not signed yet if `signs`. Never raises, and takes about two seconds at the most."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        if not signs:
            return
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self.sign()
                await self._keep()
        except Exception as error:
            logger.error("head_not_signed", why=str(error) or "the signer did not answer in time", at="close")

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                async with asyncio.timeout(self._times.every_s):
                    await self._is_due.wait()
            except TimeoutError:
                pass
            self._is_due.clear()
            if not await self._sign_and_keep():
                await asyncio.sleep(min(self._times.every_s, _RETRY_S))  # however many events come meanwhile
                self._wake.set()
                self._is_due.set()

    async def _sign_and_keep(self) -> bool:
        try:
            async with self._lock:  # whoever has asked just now signs it all
                is_open = self._known > self._last.size or self.last_error is not None
            if is_open:
                await self.sign()
            await self._keep()
        except EventLogError as error:
            logger.error("head_not_signed", why=str(error), code=error.code)
            return False
        except Exception as error:
            self.last_error = f"{type(error).__name__}: {error}"
            logger.exception("head_not_signed")
            return False
        return True

    async def _sign_or_follow(self) -> SignedHead | None:
        """Sign, under the incarnation that another process has begun meanwhile if the signer knows that already."""
        try:
            return await self._sign()
        except StoreUnavailable as error:
            if error.code != "head_refused" or (await self._source.log_ids())[-1][1] == self._log_id:
                raise
            await self.check()
            return await self._sign()

    async def _sign(self) -> SignedHead | None:
        head = await self._head_beyond(self._last.size)
        if head.size == 0 or (self._signed is not None and head == self._last):
            return self._signed
        old_size = self._last.size
        for _ in range(_MAX_STALE):
            proof = await self._source.prove_consistency(old_size, head.size)
            request = HeadRequest(log_id=self._log_id, head=head, old_size=old_size, proof=proof)
            try:
                signed = await self._signer.sign(request)
            except StaleHead as stale:  # another process has signed meanwhile
                old_size = stale.size
                head = head if head.size >= old_size else await self._head_beyond(old_size)
            else:
                await self._check.require(signed, request.log_id, request.head)
                self._last, self._signed = signed.head, signed
                return signed
        raise StoreUnavailable("signer_unavailable", "the signer signs heads of others faster than it can be asked")

    async def _head_beyond(self, signed_size: int) -> TreeHead:
        """Return the head as it is now, durable and compared with the leaves since the last one that was signed here.

        Raises StoreUnavailable(`store_rolled_back`) if the log is shorter than `signed_size` by now.
        """
        head = await self._source.checked_head(self._last.size)
        if head.size < signed_size:
            raise _rolled_back(signed_size, head.size)
        if head.size > self._durable:  # a process that was killed may have left it in the memory of the system
            await self._source.make_durable()
            self._durable = head.size
        return head

    async def _keep(self) -> None:
        signed = self._signed
        if signed is not None and signed.head.size > self._kept:
            await self._source.keep_head(signed)
            self._kept = signed.head.size

    async def _compare_with_kept(self, log_id: bytes, size: int) -> None:
        """Let the log go on from the newest head that the database keeps, and say so if the signer does not know it.

        It is kept there after the signer has kept it, so the signer has lost what it had, or is another one. It signs
        all the same: that may be honest, and nothing is hidden.
        """
        for kept in await self._source.newest_heads(log_id, self._last.size):
            if await self._check.is_known(kept):
                await self._require_growth(kept, size)
                has = f"the database keeps a signed head of size {kept.head.size}"
                self.behind = f"{has}, and the signer knows none beyond {self._last.size}: it has lost its heads"
                logger.warning("signer_behind", kept_size=kept.head.size, signed_size=self._last.size)
                return

    async def _require_growth(self, last: SignedHead, size: int) -> None:
        if last.head.size > size:
            raise _rolled_back(last.head.size, size)
        root = (await self._source.tree_head(last.head.size)).root
        if root != last.head.root:
            message = f"the first {last.head.size} events are not those of which the head was signed"
            facts = {"signed_size": last.head.size, "size": size, "signed_root": last.head.root.hex()}
            raise StoreUnavailable("store_forked", message, root=root.hex(), **facts)


def _rolled_back(signed_size: int, size: int) -> StoreUnavailable:
    message = f"a head of size {signed_size} was signed, and the log ends at position {size}"
    return StoreUnavailable("store_rolled_back", message, signed_size=signed_size, size=size)


def _forked(last: SignedHead, log_ids: Sequence[bytes]) -> StoreUnavailable:
    message = f"the last head that was signed is of another log, {last.log_id.hex()}"
    if last.log_id in log_ids:
        message = "the log was restored, and does not say which head was the last one before"
    return StoreUnavailable("store_forked", message, signed_size=last.head.size, signed_log_id=last.log_id.hex())
