"""Trees whose leaves follow from a text, and who has their heads signed; light, for processes that tests start."""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from eventlog.audit.heads import LocalSigner
from eventlog.heads import HeadRequest, StaleHead
from eventlog.merkle import TreeHead, consistency_proof, node_hash, root_of

__all__ = ["FORK", "LOG", "A", "Tree", "grow"]

LOG: Final = bytes(range(16))


class Tree:
    """A tree whose leaves follow from a text, so that two of them are different logs."""

    def __init__(self, seed: str = "a", common: int = 0) -> None:
        self._leaves = [sha256(f"{'a' if index < common else seed}{index}".encode()).digest() for index in range(64)]

    def hashes(self, level: int, index: int) -> bytes:
        if level == 0:
            return self._leaves[index]
        return node_hash(self.hashes(level - 1, 2 * index), self.hashes(level - 1, 2 * index + 1))

    def head(self, size: int) -> TreeHead:
        frontier, start = [], 0
        for level in reversed(range(size.bit_length())):
            if size >> level & 1:
                frontier.append(self.hashes(level, start >> level))
                start += 1 << level
        return TreeHead(size, root_of(frontier))

    def request(self, old: int, size: int, log_id: bytes = LOG) -> HeadRequest:
        proof = consistency_proof(min(old, size), size, self.hashes)
        return HeadRequest(log_id=log_id, head=self.head(size), old_size=old, proof=proof)


A: Final = Tree()
FORK: Final = Tree("b", common=3)


def grow(key: str) -> None:
    """Have each head from 1 to 64 signed, unless somebody else has been faster."""
    signer = LocalSigner(key)
    last = signer.last()
    size = 0 if last is None else last.head.size
    while size < 64:
        try:
            size = signer.sign(A.request(size, size + 1)).head.size
        except StaleHead as stale:
            size = stale.size
