"""What a log says of its own tree: roots, proofs, signed heads, entries. For whoever proves something, or checks it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Final

from eventlog.heads import SignedHead
from eventlog.log import StoredEntry
from eventlog.merkle import TreeHead
from eventlog.plain import Limits
from eventlog.stores.guard import Guard
from eventlog.stores.requests import check_position, check_stream
from eventlog.stores.sqlite.database import read_facts
from eventlog.stores.sqlite.reader import ReadConnections
from eventlog.stores.sqlite.tree import (
    prove_consistency,
    prove_inclusion,
    read_heads,
    read_tiles,
    tree_head,
    tree_state,
)

if TYPE_CHECKING:
    from eventlog.stores.sqlite.rows import Rows

__all__ = ["TreeReads"]

_PAGE: Final = 500


class TreeReads:
    """The part of `SqliteLog` that reads its tree. All of it costs O(log n), the entries apart."""

    _reads: ReadConnections

    if TYPE_CHECKING:

        @property
        def _guard(self) -> Guard: ...

        @property
        def _limits(self) -> Limits: ...

        def _make_rows(self) -> Rows: ...

    async def tree_head(self, size: int | None = None) -> TreeHead:
        """Return size and root of the tree of the first `size` events, of all if that is None.

        Raises InvalidInput(`invalid_argument`) for a size that the log has not, LogCorrupt(`tree_mismatch`).
        """
        self._guard.check()
        return await self._reads.run(tree_head, size)

    async def tree_state(self) -> tuple[int, bytes]:
        """Return the size and the frontier of the tree as they are stored."""
        self._guard.check()
        return await self._reads.run(tree_state)

    async def read_tiles(self, level: int, first: int, limit: int) -> list[tuple[int, bytes]]:
        """Return up to `limit` stored tiles of a level (from 1) from the number `first` on, as (number, root)."""
        self._guard.check()
        return await self._reads.run(read_tiles, level, first, limit)

    async def prove_inclusion(self, position: int, size: int) -> list[bytes]:
        """Return the RFC 6962 proof that the event at `position` is in the tree of `size`. Raises InvalidInput."""
        self._guard.check()
        return await self._reads.run(prove_inclusion, position, size)

    async def prove_consistency(self, old_size: int, size: int) -> list[bytes]:
        """Return the RFC 6962 proof that the tree of `size` begins with that of `old_size`. Raises InvalidInput."""
        self._guard.check()
        return await self._reads.run(prove_consistency, old_size, size)

    async def signed_heads(self, *, after: int = 0, limit: int | None = None) -> list[SignedHead]:
        """Return the signed heads that the database keeps, of sizes beyond `after`, by size; as they are stored.

        The first `limit` of them, and the others of the size of the last one.
        """
        self._guard.check()
        check_position(after, "after")
        return await self._reads.run(read_heads, after, limit)

    async def log_ids(self) -> list[tuple[int, bytes]]:
        """Return (first_position, log_id) of each incarnation of the log, oldest first."""
        self._guard.check()
        return list((await self._reads.run(read_facts)).log_ids)

    async def read_entries(self, stream: str | None = None, *, after: int = 0) -> AsyncGenerator[StoredEntry, None]:
        """Give the entries of `stream` behind version `after`, or of the whole log behind position `after`.

        Each is compared with the stored leaf. Raises LogCorrupt at the first that contradicts it.
        """
        self._guard.check()
        if stream is not None:
            check_stream(stream, self._limits)
        check_position(after, "after")
        rows = self._make_rows()
        while True:
            self._guard.check()
            page = await self._reads.run(rows.entry_page, stream, after, _PAGE)
            for entry in page:
                yield entry
            if len(page) < _PAGE:
                return
            after = page[-1].position if stream is None else page[-1].version
