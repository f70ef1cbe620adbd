"""What the stored tree can prove of a head that is trusted, where the leaves in front of it are not all read again."""

from __future__ import annotations

from typing import Final

from eventlog.audit.verify.tree import TreeReader
from eventlog.errors import InvalidInput, LogCorrupt
from eventlog.merkle import Frontier, TreeHead, frontier_of, is_consistent, is_included, node_hash

__all__ = ["frontier_at", "goes_on", "is_in_tree"]

_HEIGHT: Final = 8
_LEVELS: Final = 8


async def frontier_at(log: TreeReader, size: int) -> Frontier:
    """Return the frontier of the first `size` leaves, as it is stored: nothing is sure of it but what its root proves.

    Raises LogCorrupt(`tree_mismatch`).
    """
    hashes: dict[tuple[int, int], bytes] = {}
    for level in range(1, _LEVELS + 1):
        first, end = size >> _HEIGHT * (level + 1) << _HEIGHT, size >> _HEIGHT * level
        for number, root in await log.read_tiles(level, first, end - first) if end > first else ():
            hashes[level * _HEIGHT, number] = root
    first = size >> _HEIGHT << _HEIGHT
    if size > first:
        leaves = (await log.check_page(after=first, limit=size - first)).leaves
        hashes.update({(0, number): leaf for number, leaf in enumerate(leaves, first)})

    def subtree(level: int, index: int) -> bytes:
        found = hashes.get((level, index))
        if found is None and level % _HEIGHT:
            found = node_hash(subtree(level - 1, 2 * index), subtree(level - 1, 2 * index + 1))
        if found is None:
            raise LogCorrupt("tree_mismatch", f"the stored tree of {size} leaves is not whole")
        return found

    return frontier_of(size, subtree)


async def goes_on(log: TreeReader, old: TreeHead, new: TreeHead) -> bool:
    """Say whether the tree of the head `new` begins with that of `old`: the log has to prove it."""
    try:
        proof = await log.prove_consistency(old.size, new.size)
    except (InvalidInput, LogCorrupt):
        return False
    return is_consistent(old.size, old.root, new.size, new.root, proof)


async def is_in_tree(log: TreeReader, position: int, leaf: bytes, head: TreeHead) -> bool:
    """Say whether the event at a position, with this leaf, is in the tree of a head: the log has to prove it."""
    try:
        proof = await log.prove_inclusion(position, head.size)
    except (InvalidInput, LogCorrupt):
        return False
    return is_included(position - 1, leaf, head.size, head.root, proof)
