"""The Merkle tree over the leaves of a log, as RFC 6962 has it: roots, and proofs that need no log to be checked.

    leaf     SHA-256(0x00, entry)          made by `eventlog.entry`
    node     SHA-256(0x01, left, right)
    empty    SHA-256("")

The leaf of position p has the index p - 1; a tree of size n has the leaves of the positions 1 to n. The *frontier* of
a tree are the roots of its largest complete subtrees, from left to right: one for each bit that is set in its size. A
tree grows, and has its root, by its frontier alone.

Proofs are made from the hashes of complete subtrees: `Hashes(level, index)` is the root over the 2**level leaves from
index * 2**level on. They are checked as in RFC 9162, section 2.1.3.2 and 2.1.4.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import Final

import msgspec

__all__ = [
    "EMPTY_ROOT",
    "MAX_PROOF",
    "Frontier",
    "Hashes",
    "TreeHead",
    "consistency_proof",
    "frontier_of",
    "inclusion_proof",
    "is_consistent",
    "is_included",
    "node_hash",
    "root_of",
]

EMPTY_ROOT: Final = sha256(b"").digest()
MAX_PROOF: Final = 63
"""No tree of less than 2**63 leaves needs a longer proof of inclusion."""

_HASH: Final = 32
_NODE: Final = b"\1"

Hashes = Callable[[int, int], bytes]
"""The root of a complete subtree: of level `level` (0: the leaves), the `index`-th from the left, from 0."""


class TreeHead(msgspec.Struct, frozen=True):
    """What a tree is at a size: the number of its leaves, which is the last position, and its 32-byte root."""

    size: int
    root: bytes


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of an inner node."""
    return sha256(_NODE + left + right).digest()


class Frontier:
    """The roots of the complete subtrees of a tree that grows, largest first.

    `hashes` are as many as the size has bits set. Raises ValueError if they are not.
    """

    __slots__ = ("hashes", "size")

    def __init__(self, size: int = 0, hashes: Iterable[bytes] = ()) -> None:
        self.size = size
        self.hashes = list(hashes)
        if len(self.hashes) != size.bit_count() or any(len(each) != _HASH for each in self.hashes):
            raise ValueError(f"a tree of {size} leaves has a frontier of {size.bit_count()} hashes of 32 bytes")

    @classmethod
    def from_bytes(cls, size: int, stored: bytes) -> Frontier:
        """Return the frontier that `to_bytes` has spelled. Raises ValueError."""
        if len(stored) % _HASH:
            raise ValueError("the frontier is cut short")
        return cls(size, (stored[at : at + _HASH] for at in range(0, len(stored), _HASH)))

    def to_bytes(self) -> bytes:
        """Return the hashes, one behind the other."""
        return b"".join(self.hashes)

    # Every append and every verified event passes here: local names, no calls.
    def extend(self, leaves: Iterable[bytes], tiles: list[tuple[int, int, bytes]] | None = None) -> None:
        """Append leaves. The roots of complete subtrees of 256, 256**2, … leaves are added to `tiles`.

        Each of those is (level, index, root): level 1 for 256 leaves, 2 for 65,536, and the index counts from 0.
        """
        hashes, size, digest, node = self.hashes, self.size, sha256, _NODE
        pop, push = hashes.pop, hashes.append
        for leaf in leaves:
            rest = size
            size += 1
            if not size & 255 and tiles is not None:
                leaf = _merged(hashes, size, leaf, tiles)
            else:
                while rest & 1:
                    leaf = digest(node + pop() + leaf).digest()
                    rest >>= 1
            push(leaf)
        self.size = size

    def root(self) -> bytes:
        """Return the root of the tree."""
        return root_of(self.hashes)


def _merged(hashes: list[bytes], size: int, leaf: bytes, tiles: list[tuple[int, int, bytes]]) -> bytes:
    """Merge the leaf number `size`, which completes a tile, into the frontier, and note each tile on the way."""
    height = 0
    while not size >> height & 1:
        leaf = node_hash(hashes.pop(), leaf)
        height += 1
        if not height & 7:
            tiles.append((height >> 3, (size >> height) - 1, leaf))
    return leaf


def root_of(frontier: Sequence[bytes]) -> bytes:
    """Return the root of the tree with this frontier."""
    if not frontier:
        return EMPTY_ROOT
    root = frontier[-1]
    for left in reversed(frontier[:-1]):
        root = node_hash(left, root)
    return root


def frontier_of(size: int, hashes: Hashes) -> Frontier:
    """Return the frontier of the tree of the first `size` leaves. Raises what `hashes` raises."""
    found, start = [], 0
    for level in reversed(range(size.bit_length())):
        if size >> level & 1:
            found.append(hashes(level, start >> level))
            start += 1 << level
    return Frontier(size, found)


def inclusion_proof(index: int, size: int, hashes: Hashes) -> list[bytes]:
    """Return the proof that the leaf `index` is in the tree of `size` leaves (RFC 6962, 2.1.1).

    Raises ValueError unless 0 <= index < size, and what `hashes` raises.
    """
    if not 0 <= index < size:
        raise ValueError(f"a tree of {size} leaves has no leaf {index}")
    return _path(index, 0, size, hashes)


def consistency_proof(old_size: int, size: int, hashes: Hashes) -> list[bytes]:
    """Return the proof that the tree of `size` leaves begins with that of `old_size` (RFC 6962, 2.1.2).

    It is empty where the sizes are equal, and for the empty tree, with which every tree begins. Raises ValueError
    unless 0 <= old_size <= size, and what `hashes` raises.
    """
    if not 0 <= old_size <= size:
        raise ValueError(f"a tree of {size} leaves does not begin with one of {old_size}")
    return _growth(old_size, 0, size, hashes, is_whole=True) if 0 < old_size < size else []


def is_included(index: int, leaf: bytes, size: int, root: bytes, proof: Sequence[bytes]) -> bool:
    """Say whether the proof shows that `leaf` is the leaf `index` of the tree of `size` leaves with this root.

    As in RFC 9162, 2.1.3.2. Nothing is included in a tree that is given by a wrong root, size or index.
    """
    if not 0 <= index < size or not _are_hashes(leaf, root, *proof):
        return False
    node, last, found = index, size - 1, leaf
    for each in proof:
        if last == 0:
            return False
        if node & 1 or node == last:
            found = node_hash(each, found)
            while node and not node & 1:
                node, last = node >> 1, last >> 1
        else:
            found = node_hash(found, each)
        node, last = node >> 1, last >> 1
    return last == 0 and found == root


def is_consistent(old_size: int, old_root: bytes, size: int, root: bytes, proof: Sequence[bytes]) -> bool:
    """Say whether the proof shows that the tree of `size` leaves begins with that of `old_size`.

    As in RFC 9162, 2.1.4.2. The empty tree has one root and needs no proof; it is consistent with every tree that is
    not empty. Two empty trees prove nothing, and are refused.
    """
    if not 0 <= old_size <= size or size == 0:
        return False
    if old_size == size:
        return old_root == root and not proof
    if not _are_hashes(old_root, root, *proof):
        return False
    if old_size == 0:
        return old_root == EMPTY_ROOT and not proof
    path = [old_root, *proof] if old_size & (old_size - 1) == 0 else list(proof)
    if not path:
        return False
    node, last = old_size - 1, size - 1
    while node & 1:
        node, last = node >> 1, last >> 1
    old = new = path[0]
    for each in path[1:]:
        if last == 0:
            return False
        if node & 1 or node == last:
            old, new = node_hash(each, old), node_hash(each, new)
            while node and not node & 1:
                node, last = node >> 1, last >> 1
        else:
            new = node_hash(new, each)
        node, last = node >> 1, last >> 1
    return last == 0 and old == old_root and new == root


def _path(index: int, start: int, end: int, hashes: Hashes) -> list[bytes]:
    """Return the audit path of the leaf `index` within the leaves from `start` to `end`, from the leaf up."""
    if end - start == 1:
        return []
    middle = start + _split(end - start)
    if index < middle:
        return [*_path(index, start, middle, hashes), _root(middle, end, hashes)]
    return [*_path(index, middle, end, hashes), _root(start, middle, hashes)]


def _growth(old_size: int, start: int, end: int, hashes: Hashes, *, is_whole: bool) -> list[bytes]:
    """Return SUBPROOF of RFC 6962, 2.1.2, for the leaves from `start` to `end`, of which `old_size` are old."""
    size = end - start
    if old_size == size:
        return [] if is_whole else [_root(start, end, hashes)]
    half = _split(size)
    middle = start + half
    if old_size <= half:
        return [*_growth(old_size, start, middle, hashes, is_whole=is_whole), _root(middle, end, hashes)]
    return [*_growth(old_size - half, middle, end, hashes, is_whole=False), _root(start, middle, hashes)]


def _root(start: int, end: int, hashes: Hashes) -> bytes:
    """Return the root over the leaves from `start` to `end`; `start` is where a subtree of that size may begin."""
    size = end - start
    if size & (size - 1) == 0:
        level = size.bit_length() - 1
        return hashes(level, start >> level)
    middle = start + _split(size)
    return node_hash(_root(start, middle, hashes), _root(middle, end, hashes))


def _split(size: int) -> int:
    """Return the largest power of two that is smaller than `size`."""
    return 1 << (size - 1).bit_length() - 1


def _are_hashes(*values: bytes) -> bool:
    return all(len(each) == _HASH for each in values)
