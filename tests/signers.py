"""A signer in memory that keeps the contract of `eventlog.heads`, and does what a test tells it to do wrong."""

from __future__ import annotations

import threading
from base64 import b64encode
from collections.abc import Callable
from typing import Final

from eventlog.errors import StoreUnavailable
from eventlog.heads import HeadRequest, SignedHead, StaleHead
from eventlog.merkle import EMPTY_ROOT, TreeHead, is_consistent

__all__ = ["MemorySigner"]


class MemorySigner:
    """Signs nothing, and remembers like one who does. `before` is called in front of every head that is asked for."""

    def __init__(self) -> None:
        self.heads: Final[list[SignedHead]] = []
        self.current: bytes | None = None
        self.asked = 0
        self.before: Callable[[], None] = lambda: None
        self._lock: Final = threading.Lock()

    @property
    def sizes(self) -> list[int]:
        """The sizes of the heads that were signed, oldest first."""
        return [signed.head.size for signed in self.heads]

    def last(self) -> SignedHead | None:
        return self.heads[-1] if self.heads else None

    def sign(self, request: HeadRequest) -> SignedHead:
        self.asked += 1
        self.before()
        with self._lock:
            if self.current is None:
                self.current = request.log_id
            if request.log_id != self.current:
                raise StoreUnavailable("head_refused", "the signer signs the heads of another incarnation")
            of_this = [signed for signed in self.heads if signed.log_id == request.log_id]
            last = of_this[-1].head if of_this else TreeHead(0, EMPTY_ROOT)
            if of_this and last == request.head:
                return of_this[-1]
            if request.old_size != last.size:
                raise StaleHead(last.size)
            head = request.head
            if head.size <= last.size or not is_consistent(last.size, last.root, head.size, head.root, request.proof):
                raise StoreUnavailable("head_refused", "the head does not go on from the last one")
            signed = SignedHead(log_id=request.log_id, head=head, note=_note(request), signed_at_us=self.asked)
            self.heads.append(signed)
            return signed

    def begin(self, log_id: bytes) -> None:
        self.current = log_id


def _note(request: HeadRequest) -> bytes:
    origin = f"log.example/{request.log_id.hex()}"
    root = b64encode(request.head.root).decode()
    return f"{origin}\n{request.head.size}\n{root}\n\n— {origin} AAAA\n".encode()
