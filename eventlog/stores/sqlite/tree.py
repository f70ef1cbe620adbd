"""The Merkle tree over the leaves of a log: written with each append, read for roots and proofs.

Leaves are in `events`; `tiles` has the root of each complete subtree of 256**k leaves, `tree` the frontier. Whatever
lies between is computed from at most 255 of those below, so that a root or a proof costs O(log n) reads of O(1).

What is returned was compared with the frontier, which every append extends: a root, or a proof, that rests on a leaf
or a tile that was changed is LogCorrupt(`tree_mismatch`), never a wrong answer.
"""

from __future__ import annotations

import sqlite3
from base64 import b64decode
from collections.abc import Sequence
from typing import Final

from eventlog.errors import InvalidInput, LogCorrupt
from eventlog.heads import SignedHead
from eventlog.merkle import (
    Frontier,
    Hashes,
    TreeHead,
    consistency_proof,
    frontier_of,
    inclusion_proof,
    is_consistent,
    is_included,
    node_hash,
)
from eventlog.stores.sqlite.rollback import one_snapshot
from eventlog.stores.sqlite.schema import INSERT_TILE, UPDATE_TREE

__all__ = [
    "add_head",
    "checked_head",
    "hashes_in",
    "newest_heads",
    "prove_consistency",
    "prove_inclusion",
    "read_frontier",
    "read_heads",
    "read_tiles",
    "tree_head",
    "tree_state",
    "write_tree",
]

_HEIGHT: Final = 8
"""The levels of a tile."""
_SIZE: Final = "SELECT coalesce(max(position), 0) FROM events"
_PAGE: Final = 1000
_STATE: Final = "SELECT size, frontier FROM tree"
_LEAVES: Final = "SELECT leaf FROM events WHERE position > ? AND position <= ? ORDER BY position"
_TILES: Final = "SELECT root FROM tiles WHERE level = ? AND number >= ? AND number < ? ORDER BY number"
_NUMBERED: Final = "SELECT number, root FROM tiles WHERE level = ? AND number >= ? ORDER BY number LIMIT ?"
_HEADS: Final = "SELECT log_id, size, note, signed_at_us FROM heads WHERE size > ? ORDER BY size"
_SOME_HEADS: Final = """
SELECT log_id, size, note, signed_at_us FROM heads WHERE size > :after AND size <= coalesce(
  (SELECT size FROM heads WHERE size > :after ORDER BY size LIMIT 1 OFFSET :limit - 1), 9223372036854775807
) ORDER BY size
"""
_NEWEST_HEADS: Final = """
SELECT log_id, size, note, signed_at_us FROM heads WHERE log_id = ? AND size > ? ORDER BY size DESC LIMIT 10"""
_ADD_HEAD: Final = "INSERT INTO heads (size, log_id, note, signed_at_us) VALUES (?, ?, ?, ?)"
_HAS_HEAD: Final = "SELECT 1 FROM heads WHERE size = ? AND log_id = ?"


def read_frontier(connection: sqlite3.Connection, position: int) -> Frontier:
    """Return the stored frontier of a log that ends at `position`. Raises LogCorrupt(`tree_mismatch`)."""
    size, stored = tree_state(connection)
    if size != position:
        raise LogCorrupt("tree_mismatch", f"the log ends at position {position}, its tree at {size}", position=position)
    return _frontier(size, stored)


def tree_state(connection: sqlite3.Connection) -> tuple[int, bytes]:
    """Return the size of the stored tree and its frontier as stored. Raises LogCorrupt(`tree_mismatch`)."""
    row = connection.execute(_STATE).fetchone()
    if row is None:
        raise LogCorrupt("tree_mismatch", "the log has lost its tree")
    size, stored = row
    return size, stored


def write_tree(connection: sqlite3.Connection, frontier: Frontier, leaves: Sequence[bytes]) -> None:
    """Append the leaves of this transaction to the tree, and to `frontier`."""
    tiles: list[tuple[int, int, bytes]] = []
    frontier.extend(leaves, tiles)
    if tiles:
        connection.executemany(INSERT_TILE, tiles)
    connection.execute(UPDATE_TREE, (frontier.size, frontier.to_bytes()))


def tree_head(connection: sqlite3.Connection, size: int | None) -> TreeHead:
    """Return the head of the first `size` leaves, of all if that is None.

    Raises InvalidInput(`invalid_argument`) for a size that the log has not, LogCorrupt.
    """
    with one_snapshot(connection):
        last = _last(connection)
        _check_size(last if size is None else size, last)
        return _head(connection, last if size is None else size, last, hashes_in(connection))


def checked_head(connection: sqlite3.Connection, after: int) -> TreeHead:
    """Return the head, from the tree of size `after` and the leaves behind it as they are stored now.

    Raises LogCorrupt(`tree_mismatch`) unless that is the tree that was written with them.
    """
    with one_snapshot(connection):
        last = _last(connection)
        stored = read_frontier(connection, last)
        frontier = frontier_of(min(after, last), hashes_in(connection))
        rows = connection.execute(_LEAVES, (frontier.size, last))
        while page := rows.fetchmany(_PAGE):
            frontier.extend([row[0] for row in page])
    if (frontier.size, frontier.hashes) != (stored.size, stored.hashes):
        raise _mismatch(last)
    return TreeHead(last, stored.root())


def prove_inclusion(connection: sqlite3.Connection, position: int, size: int) -> list[bytes]:
    """Return the proof that the event at `position` is in the tree of `size`. Raises InvalidInput, LogCorrupt."""
    with one_snapshot(connection):
        last = _last(connection)
        _check_size(size, last)
        if type(position) is not int or not 1 <= position <= size:
            message = f"the tree of size {size} has no position {position!r:.40}"
            raise InvalidInput("invalid_argument", message)
        hashes = hashes_in(connection)
        head = _head(connection, size, last, hashes)
        proof = inclusion_proof(position - 1, size, hashes)
        if not is_included(position - 1, hashes(0, position - 1), size, head.root, proof):
            raise _mismatch(size)
        return proof


def prove_consistency(connection: sqlite3.Connection, old_size: int, size: int) -> list[bytes]:
    """Return the proof that the tree of `size` begins with that of `old_size`. Raises InvalidInput, LogCorrupt."""
    with one_snapshot(connection):
        last = _last(connection)
        _check_size(size, last)
        if type(old_size) is not int or not 0 <= old_size <= size:
            message = f"a tree of size {size} does not begin with one of size {old_size!r:.40}"
            raise InvalidInput("invalid_argument", message)
        hashes = hashes_in(connection)
        new = _head(connection, size, last, hashes)
        old = TreeHead(old_size, frontier_of(old_size, hashes).root())  # the proof compares it with the new one
        proof = consistency_proof(old_size, size, hashes)
        if size and not is_consistent(old.size, old.root, new.size, new.root, proof):
            raise _mismatch(size)
        return proof


def hashes_in(connection: sqlite3.Connection) -> Hashes:
    """Return what reads the roots of complete subtrees, and each row once for all of one proof.

    For one snapshot, and for no longer. It raises LogCorrupt (`position_gap`, `tree_mismatch`).
    """
    read: dict[tuple[int, int], list[list[bytes]]] = {}

    def hashes(level: int, index: int) -> bytes:
        height = level % _HEIGHT
        for above in range(_HEIGHT - height):  # the subtree itself, or one around it that was read already
            layers = read.get((level + above, index >> above))
            if layers is not None:
                return layers[height][index & ((1 << above) - 1)]
        read[level, index] = layers = _layers(connection, level, index)
        return layers[-1][0]

    return hashes


def _layers(connection: sqlite3.Connection, level: int, index: int) -> list[list[bytes]]:
    """Return a complete subtree from the rows that are stored of it up to its root, one layer behind the other."""
    tile_level, height = divmod(level, _HEIGHT)
    first, count = index << height, 1 << height
    found = [row[0] for row in connection.execute(*_range(tile_level, first, count)).fetchall()]
    if len(found) != count:
        raise _missing(tile_level, first)
    layers = [found]
    while len(found) > 1:
        pairs = iter(found)
        found = [node_hash(left, right) for left, right in zip(pairs, pairs, strict=True)]
        layers.append(found)
    return layers


def read_tiles(connection: sqlite3.Connection, level: int, first: int, limit: int) -> list[tuple[int, bytes]]:
    """Return up to `limit` tiles of a level from the number `first` on, as (number, root)."""
    return connection.execute(_NUMBERED, (level, first, limit)).fetchall()


def read_heads(connection: sqlite3.Connection, after: int, limit: int | None = None) -> list[SignedHead]:
    """Return the signed heads of sizes beyond `after`, by size. The root is the one that the note says.

    Of many the first `limit`, and the others of the size of the last one. What is no head at all is returned with an
    empty root: whoever checks heads says so.
    """
    rows = (
        connection.execute(_HEADS, (after,))
        if limit is None
        else connection.execute(_SOME_HEADS, {"after": after, "limit": max(limit, 1)})
    )
    return [
        SignedHead(log_id=log_id, head=TreeHead(size, _root_in(note)), note=note, signed_at_us=at_us)
        for log_id, size, note, at_us in map(_with_bytes, rows)
    ]


def newest_heads(connection: sqlite3.Connection, log_id: bytes, after: int) -> list[SignedHead]:
    """Return the largest few heads of an incarnation that are of sizes beyond `after`, as `read_heads` does."""
    return [
        SignedHead(log_id=log_id, head=TreeHead(size, _root_in(note)), note=note, signed_at_us=at_us)
        for log_id, size, note, at_us in map(_with_bytes, connection.execute(_NEWEST_HEADS, (log_id, after)))
    ]


def add_head(connection: sqlite3.Connection, signed: SignedHead) -> None:
    """Keep a signed head, inside the transaction it is called in; the first of a size and an incarnation stays."""
    if connection.execute(_HAS_HEAD, (signed.head.size, signed.log_id)).fetchone() is None:
        connection.execute(_ADD_HEAD, (signed.head.size, signed.log_id, signed.note, signed.signed_at_us))


def _head(connection: sqlite3.Connection, size: int, last: int, hashes: Hashes) -> TreeHead:
    """Return the head of a size of a log that ends at `last`, once it goes with the frontier that is stored."""
    stored = read_frontier(connection, last)
    if size == last:
        if frontier_of(last, hashes).hashes != stored.hashes:
            raise _mismatch(last)
        return TreeHead(last, stored.root())
    head = TreeHead(size, frontier_of(size, hashes).root())
    if not is_consistent(size, head.root, last, stored.root(), consistency_proof(size, last, hashes)):
        raise _mismatch(size)
    return head


def _mismatch(size: int) -> LogCorrupt:
    return LogCorrupt("tree_mismatch", f"the tree of the first {size} events is not that of their leaves")


def _frontier(size: int, stored: bytes) -> Frontier:
    try:
        return Frontier.from_bytes(size, stored)
    except (TypeError, ValueError) as error:
        raise LogCorrupt("tree_mismatch", f"the stored tree is damaged: {error}") from error


def _range(tile_level: int, first: int, count: int) -> tuple[str, tuple[int, ...]]:
    if tile_level == 0:
        return _LEAVES, (first, first + count)
    return _TILES, (tile_level, first, first + count)


def _missing(tile_level: int, first: int) -> LogCorrupt:
    if tile_level == 0:
        return LogCorrupt("position_gap", f"an event behind position {first} is missing", position=first + 1)
    return LogCorrupt("tree_mismatch", f"tile {first} of level {tile_level}, or one behind it, is missing")


def _check_size(size: int, last: int) -> None:
    if type(size) is not int or not 0 <= size <= last:
        raise InvalidInput("invalid_argument", f"the log has no tree of size {size!r:.40}: it ends at position {last}")


def _last(connection: sqlite3.Connection) -> int:
    last: int = connection.execute(_SIZE).fetchone()[0]
    return last


def _with_bytes(row: tuple[bytes, int, object, int]) -> tuple[bytes, int, bytes, int]:
    """Return a row of `heads` with a note of bytes, which a damaged file may not have."""
    log_id, size, note, at_us = row
    return log_id, size, note if isinstance(note, bytes) else b"", at_us


def _root_in(note: bytes) -> bytes:
    """Return the root that the third line of a note says, or nothing."""
    lines = note.split(b"\n", 3)
    try:
        root = b64decode(lines[2], validate=True)
    except (IndexError, ValueError):
        return b""
    return root if len(root) == 32 else b""
