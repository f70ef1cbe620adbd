"""The verdict `tree`: the Merkle tree that is stored is the one that the leaves make.

The tree grows again from the leaves that pass by, and everything that is kept of it is compared: the frontier, and each
tile. So a root or a proof that the store makes from them is one of these leaves.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol, runtime_checkable

from eventlog.audit.verify.findings import Finding, Problems, damage, raise_if_not_damage
from eventlog.errors import EventLogError, LogCorrupt
from eventlog.heads import SignedHead
from eventlog.log import CheckedPage, EventReader
from eventlog.merkle import Frontier, TreeHead, frontier_of, node_hash

__all__ = ["Roots", "TreeCheck", "TreeReader"]

_HEIGHT: Final = 8
"""The levels of a tile."""
_HASH: Final = 32
_COMPARED_AT_ONCE: Final = 1000

_Tile = tuple[int, bytes]


@runtime_checkable
class TreeReader(EventReader, Protocol):
    """A log that keeps the Merkle tree of its leaves, and the heads of it that were signed."""

    async def tree_state(self) -> tuple[int, bytes]:
        """Return the size of the stored tree and its frontier, as stored."""

    async def tree_head(self, size: int | None = None) -> TreeHead:
        """Return the head of the first `size` leaves, by what is stored of the tree."""

    async def read_tiles(self, level: int, first: int, limit: int) -> list[tuple[int, bytes]]:
        """Return stored tiles of a level, from the number `first` on."""

    async def prove_inclusion(self, position: int, size: int) -> list[bytes]:
        """Return the proof that the event at `position` is in the tree of `size`."""

    async def prove_consistency(self, old_size: int, size: int) -> list[bytes]:
        """Return the proof that the tree of `size` begins with that of `old_size`."""

    async def signed_heads(self, *, after: int = 0, limit: int | None = None) -> list[SignedHead]:
        """Return the signed heads of sizes beyond `after` that are kept with the log, by size.

        The first `limit` of them, and the others of the size of the last one.
        """

    async def log_ids(self) -> list[tuple[int, bytes]]:
        """Return the incarnations of the log: the first position of each, and its id."""


class Roots(Mapping[int, bytes]):
    """The roots at some sizes, which are added in order: 40 bytes each."""

    def __init__(self) -> None:
        self._sizes: Final = array("Q")
        self._roots: Final = bytearray()

    def add(self, size: int, root: bytes) -> None:
        """Add the root at a size that is larger than those before."""
        self._sizes.append(size)
        self._roots.extend(root)

    def __getitem__(self, size: int) -> bytes:
        at = bisect_left(self._sizes, size)
        if at == len(self._sizes) or self._sizes[at] != size:
            raise KeyError(size)
        return bytes(self._roots[at * _HASH : (at + 1) * _HASH])

    def __iter__(self) -> Iterator[int]:
        return iter(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)


class TreeCheck:
    """Grows the tree from the leaves that pass by, and compares what the store keeps of it.

    `roots` has the root at each of the `sizes`, which are in order, once the tree has grown so far. It begins at
    `start`, a tree that is trusted. The roots of its own tiles are kept: 1 MB for eight million events.
    """

    def __init__(self, log: TreeReader, sizes: Iterable[int] = (), start: Frontier | None = None) -> None:
        self._log: Final = log
        self._frontier: Final = Frontier() if start is None else start
        self._sizes: Final = deque(size for size in sizes if size >= self._frontier.size)
        self._problems: Final = Problems()
        self._tiles: Final[list[bytearray]] = []
        self._skipped: Final = self._frontier.size
        self._pending: Final[dict[int, list[_Tile]]] = {}
        self._is_whole = True
        self.roots: Final = Roots()
        self._note_roots_here()

    @property
    def size(self) -> int:
        """How many leaves have passed by."""
        return self._frontier.size

    @property
    def current(self) -> TreeHead | None:
        """The head of what has passed by, None where events were missing."""
        return TreeHead(self.size, self._frontier.root()) if self._is_whole else None

    async def grow(self, page: CheckedPage) -> None:
        """Append the leaves of a page. Where events are missing the tree ends: what is behind has no place in it."""
        if not self._is_whole:
            return
        leaves = page.leaves
        if page.position - self.size != len(leaves) or not _are_hashes(leaves):
            self._is_whole = False
            place = f"behind position {self.size}"
            self._problems.add("tree_mismatch", f"events are missing {place}: the tree cannot be computed beyond it")
            return
        self._extend(page.leaves)
        if sum(map(len, self._pending.values())) >= _COMPARED_AT_ONCE:
            await self._compare_tiles()

    async def finish(self, stored: tuple[int, bytes] | None) -> None:
        """Compare the stored frontier, as it was when the check began, and the tiles that were not compared yet."""
        await self._compare_tiles()
        if stored is not None and stored[0] != self.size:
            self._problems.add("tree_mismatch", f"the stored tree has {stored[0]} leaves, the log gave {self.size}")
        elif stored is not None and stored[1] != self._frontier.to_bytes():
            self._problems.add("tree_mismatch", "the stored frontier is not the one that the leaves make")
        await self._look_for_others()

    def finding(self, others: Problems) -> Finding:
        """Return the verdict, with what else is wrong with the stored tree."""
        self._problems.extend(others.finding().problems)
        current = self.current
        details = {"size": self.size, "root": None if current is None else current.root.hex()}
        return self._problems.finding(details=details)

    async def root_of(self, size: int) -> bytes:
        """Return the root of an earlier size, from what has passed by. Reads up to 255 leaves again.

        Only where the check began at the first event. Raises LogCorrupt(`tree_mismatch`) if it is not known.
        """
        if size in self.roots:
            return self.roots[size]
        if self._skipped or size > self.size:
            raise LogCorrupt("tree_mismatch", f"the tree of size {size} is not known")
        first = size >> _HEIGHT << _HEIGHT
        leaves: Sequence[bytes] = ()
        if size > first:
            leaves = (await self._log.check_page(after=first, limit=size - first)).leaves
        if len(leaves) != size - first:
            raise LogCorrupt("tree_mismatch", f"the tree of size {size} cannot be read again")
        return frontier_of(size, lambda level, index: self._subtree(level, index, leaves)).root()

    def _extend(self, leaves: Sequence[bytes]) -> None:
        tiles: list[tuple[int, int, bytes]] = []
        begin = self.size
        while self._sizes and self._sizes[0] <= begin + len(leaves):
            self._frontier.extend(leaves[self.size - begin : self._sizes[0] - begin], tiles)
            self._note_roots_here()
        self._frontier.extend(leaves[self.size - begin :], tiles)
        for level, number, root in tiles:
            self._pending.setdefault(level, []).append((number, root))
            if not self._skipped:
                while len(self._tiles) <= level:
                    self._tiles.append(bytearray())
                self._tiles[level] += root

    def _note_roots_here(self) -> None:
        while self._sizes and self._sizes[0] == self.size:
            self.roots.add(self._sizes.popleft(), self._frontier.root())

    async def _compare_tiles(self) -> None:
        for level, computed in self._pending.items():
            if computed:
                self._compare(level, computed, dict(await self._read_tiles(level, computed[0][0], len(computed))))
        self._pending.clear()

    def _compare(self, level: int, computed: Sequence[_Tile], stored: dict[int, bytes]) -> None:
        for number, root in computed:
            if stored.get(number) != root:
                what = "is not the root of its leaves" if number in stored else "is missing"
                self._problems.add("tree_mismatch", f"tile {number} of level {level} {what}")

    async def _look_for_others(self) -> None:
        """Look for tiles behind the last ones, which only somebody who is appending right now may have written."""
        for level in range(1, 64 // _HEIGHT + 1):
            first = self.size >> _HEIGHT * level
            others = await self._read_tiles(level, first, 1)
            now = (await self._log.head()).position if others else 0
            if others and (type(others[0][0]) is not int or others[0][0] >= now >> _HEIGHT * level):
                message = f"tile {others[0][0]!r:.40} of level {level} is stored, but the log has not so many events"
                self._problems.add("tree_mismatch", message)

    async def _read_tiles(self, level: int, first: int, limit: int) -> list[_Tile]:
        try:
            return await self._log.read_tiles(level, first, limit)
        except EventLogError as error:
            raise_if_not_damage(error)
            self._problems.extend([damage(error)])
            return []

    def _subtree(self, level: int, index: int, leaves: Sequence[bytes]) -> bytes:
        """Return the root over 2**level leaves, of which `leaves` are those of the last tile, which is not full."""
        tile_level, height = divmod(level, _HEIGHT)
        first, count = index << height, 1 << height
        if tile_level == 0:
            first &= (1 << _HEIGHT) - 1
            found = list(leaves[first : first + count])
        else:
            tiles = self._tiles[tile_level]
            found = [bytes(tiles[at * _HASH : (at + 1) * _HASH]) for at in range(first, first + count)]
        while len(found) > 1:
            found = [node_hash(found[at], found[at + 1]) for at in range(0, len(found), 2)]
        return found[0]


def _are_hashes(leaves: Sequence[bytes]) -> bool:
    """Say whether damage has left every leaf what a leaf is. Every event passes here: no Python for each of them."""
    return set(map(type, leaves)) <= {bytes} and set(map(len, leaves)) <= {_HASH}
