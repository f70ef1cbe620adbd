"""The signed heads that a log keeps in its database, page by page: whoever writes the database may have added millions.

What stays in memory is the size of each, eight bytes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Iterator, Sequence
from heapq import merge
from typing import Final

from eventlog.audit.verify.tree import TreeReader
from eventlog.errors import LogCorrupt
from eventlog.heads import SignedHead

__all__ = ["StoredHeads"]

_PAGE: Final = 1000


class StoredHeads:
    """The heads that were there when `find` looked; with `newest_only`, the newest of them.

    `signed_heads` gives a page with all heads of its last size, so that a size is never cut in two.
    """

    def __init__(self, log: TreeReader, *, newest_only: bool = False) -> None:
        self._log: Final = log
        self._newest_only: Final = newest_only
        self._sizes = array("Q")

    async def find(self) -> None:
        """Find out which heads there are. Raises LogCorrupt, with those that were found so far."""
        after = 0
        while page := await self._log.signed_heads(after=after, limit=_PAGE):
            sizes = [each.head.size for each in page]
            if any(type(size) is not int or size <= after for size in sizes):
                raise LogCorrupt("head_mismatch", f"behind size {after}, the database keeps heads of what is no size")
            self._sizes.extend(sizes)
            after = sizes[-1]
        if self._newest_only:
            del self._sizes[:-1]

    def __len__(self) -> int:
        return len(self._sizes)

    def count_before(self, size: int) -> int:
        """Return how many are of a smaller size."""
        return bisect_left(self._sizes, size)

    def sizes_with(self, others: Sequence[int]) -> Iterator[int]:
        """Give the sizes of all heads, and the others, each once and in order."""
        before = 0
        for size in merge(self._sizes, sorted(others)):
            if size != before:
                yield size
            before = size

    async def pages(self, *, after: int = 0) -> AsyncIterator[Sequence[SignedHead]]:
        """Give those of sizes beyond `after`, by size."""
        end = self._sizes[-1] if self._sizes else 0
        after = max(after, end - 1) if self._newest_only else after
        while after < end and (page := await self._log.signed_heads(after=after, limit=_PAGE)):
            found = [each for each in page if type(each.head.size) is int and after < each.head.size <= end]
            if not found:
                return
            after = found[-1].head.size
            yield found[-1:] if self._newest_only else found

    async def pages_back(self, size: int) -> AsyncIterator[Sequence[SignedHead]]:
        """Give those of at most `size`, the largest first."""
        end = bisect_right(self._sizes, size)
        while end:
            first = bisect_left(self._sizes, self._sizes[max(end - _PAGE, 0)])
            page = await self._log.signed_heads(after=self._sizes[first] - 1, limit=end - first)
            yield [each for each in reversed(page) if each.head.size <= self._sizes[end - 1]]
            end = first
