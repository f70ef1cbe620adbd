"""The Merkle tree: the published vectors of RFC 6962, and the same answers as a tree that is made the plain way."""

from __future__ import annotations

import json
from base64 import b64decode
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pytest

from eventlog.merkle import (
    EMPTY_ROOT,
    Frontier,
    consistency_proof,
    frontier_of,
    inclusion_proof,
    is_consistent,
    is_included,
    root_of,
)

VECTORS: Final = Path(__file__).parent / "vectors" / "rfc6962"
ROOTS: Final = json.loads((VECTORS / "roots.json").read_text())
LARGEST: Final = 130
LEAVES: Final = [sha256(b"\0" + index.to_bytes(4, "big")).digest() for index in range(LARGEST)]


def vectors(kind: str) -> list[Any]:
    """Return the files of a kind by their names below its folder, in an order that is always the same."""
    files = sorted((VECTORS / kind).rglob("*.json"))
    return [pytest.param(path, id=path.relative_to(VECTORS / kind).as_posix()) for path in files]


def read(path: Path) -> tuple[dict[str, Any], list[bytes]]:
    """Return a vector and its proof."""
    vector: dict[str, Any] = json.loads(path.read_text())
    return vector, [b64decode(each) for each in vector["proof"] or ()]


def naive_root(leaves: list[bytes]) -> bytes:
    """The definition of RFC 6962, 2.1, word for word."""
    if not leaves:
        return sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    half = 1
    while half * 2 < len(leaves):
        half *= 2
    return sha256(b"\1" + naive_root(leaves[:half]) + naive_root(leaves[half:])).digest()


def hashes(level: int, index: int) -> bytes:
    """Return the root of a complete subtree of the leaves, as a log would keep it."""
    return naive_root(LEAVES[index << level : (index + 1) << level])


ROOT_AT: Final = [naive_root(LEAVES[:size]) for size in range(LARGEST + 1)]


def test_there_are_vectors_of_both_kinds() -> None:
    for kind in ("inclusion", "consistency"):
        found = [json.loads(each.values[0].read_text())["wantErr"] for each in vectors(kind)]
        assert (len(found), True in found, False in found) == (98, True, True)


@pytest.mark.parametrize("path", vectors("inclusion"))
def test_a_proof_of_inclusion_holds_where_its_vector_says_so(path: Path) -> None:
    vector, proof = read(path)
    root, leaf = b64decode(vector["root"] or ""), b64decode(vector["leafHash"] or "")
    assert is_included(vector["leafIdx"], leaf, vector["treeSize"], root, proof) is not vector["wantErr"]


@pytest.mark.parametrize("path", vectors("consistency"))
def test_a_proof_of_consistency_holds_where_its_vector_says_so(path: Path) -> None:
    vector, proof = read(path)
    old, new = b64decode(vector["root1"] or ""), b64decode(vector["root2"] or "")
    assert is_consistent(vector["size1"], old, vector["size2"], new, proof) is not vector["wantErr"]


@pytest.mark.parametrize("size", range(9))
def test_the_root_is_the_published_one(size: int) -> None:
    leaves = [sha256(b"\0" + bytes.fromhex(each)).digest() for each in ROOTS["leaf_inputs_hex"][:size]]
    tree = Frontier()
    tree.extend(leaves)
    assert tree.root().hex() == naive_root(leaves).hex() == ROOTS["root_hex_by_size"][size]


def test_a_tree_that_grows_has_the_roots_of_the_plain_one() -> None:
    tree = Frontier()
    assert tree.root() == EMPTY_ROOT == ROOT_AT[0]
    for size, leaf in enumerate(LEAVES, 1):
        tree.extend([leaf])
        assert tree.root() == ROOT_AT[size]
        assert frontier_of(size, hashes).hashes == tree.hashes
        assert Frontier.from_bytes(size, tree.to_bytes()).root() == ROOT_AT[size]


def test_growing_by_several_leaves_at_once_is_growing_by_each() -> None:
    for first in range(0, LARGEST, 7):
        tree = Frontier()
        tree.extend(LEAVES[:first])
        tree.extend(LEAVES[first:])
        assert (tree.size, tree.root()) == (LARGEST, ROOT_AT[LARGEST])


@pytest.mark.parametrize(
    "sizes", [range(66), range(66, 100), range(100, LARGEST + 1)], ids=["small", "middle", "large"]
)
def test_every_proof_of_inclusion_holds_for_its_leaf_and_for_no_other(sizes: range) -> None:
    for size in sizes:
        for index in range(size):
            proof = inclusion_proof(index, size, hashes)
            assert is_included(index, LEAVES[index], size, ROOT_AT[size], proof)
            assert not is_included(index, LEAVES[index - 1], size, ROOT_AT[size], proof) or size == 1
            assert not is_included(index, LEAVES[index], size, ROOT_AT[size - 1], proof)


@pytest.mark.parametrize(
    "sizes", [range(66), range(66, 100), range(100, LARGEST + 1)], ids=["small", "middle", "large"]
)
def test_every_proof_of_consistency_holds_for_its_two_trees_and_for_no_others(sizes: range) -> None:
    for size in sizes:
        for old in range(1, size + 1):
            proof = consistency_proof(old, size, hashes)
            assert is_consistent(old, ROOT_AT[old], size, ROOT_AT[size], proof)
            assert not is_consistent(old, ROOT_AT[old - 1], size, ROOT_AT[size], proof)
            assert not is_consistent(old, ROOT_AT[old], size, ROOT_AT[size - 1], proof)


def test_a_proof_with_any_bit_turned_holds_no_more() -> None:
    proof = consistency_proof(37, 100, hashes)
    for at in range(len(proof)):
        for bit in range(0, 256, 5):
            turned = (int.from_bytes(proof[at], "big") ^ 1 << bit).to_bytes(32, "big")
            assert not is_consistent(37, ROOT_AT[37], 100, ROOT_AT[100], [*proof[:at], turned, *proof[at + 1 :]])


def test_the_empty_tree_begins_every_tree_and_proves_nothing_about_itself() -> None:
    assert consistency_proof(0, 5, hashes) == []
    assert is_consistent(0, EMPTY_ROOT, 5, ROOT_AT[5], [])
    assert not is_consistent(0, EMPTY_ROOT, 0, EMPTY_ROOT, [])
    assert not is_consistent(0, ROOT_AT[1], 5, ROOT_AT[5], [])


@pytest.mark.parametrize(("index", "size"), [(0, 0), (5, 5), (-1, 5)])
def test_there_is_no_proof_for_a_leaf_outside_of_the_tree(index: int, size: int) -> None:
    with pytest.raises(ValueError, match="has no leaf"):
        inclusion_proof(index, size, hashes)


@pytest.mark.parametrize(("old", "size"), [(6, 5), (-1, 5)])
def test_there_is_no_proof_that_a_tree_begins_with_a_larger_one(old: int, size: int) -> None:
    with pytest.raises(ValueError, match="does not begin"):
        consistency_proof(old, size, hashes)


@pytest.mark.parametrize("stored", [b"", b"x" * 31, b"x" * 64])
def test_a_frontier_that_does_not_fit_its_size_is_refused(stored: bytes) -> None:
    with pytest.raises(ValueError, match="frontier"):
        Frontier.from_bytes(1, stored)


def test_tiles_are_the_roots_of_256_and_65536_leaves() -> None:
    leaves = [sha256(index.to_bytes(4, "big")).digest() for index in range(66_000)]
    tree, tiles = Frontier(), list[tuple[int, int, bytes]]()
    for start in range(0, len(leaves), 999):  # batches do not end where tiles do
        tree.extend(leaves[start : start + 999], tiles)
    found = {(level, index): root for level, index, root in tiles}
    firsts = [(1, index) for index in range(len(leaves) // 256)]
    assert sorted(found) == sorted([*firsts, (2, 0)]) and len(tiles) == len(found)
    for _, index in firsts:
        assert found[1, index] == naive_root(leaves[index * 256 : (index + 1) * 256])
    assert found[2, 0] == naive_root(leaves[:65_536]) == root_of([naive_root([found[1, each] for each in range(256)])])
    assert tree.root() == naive_root(leaves)


def test_proofs_from_tiles_are_the_same_as_from_leaves() -> None:
    leaves = [sha256(index.to_bytes(4, "big")).digest() for index in range(1_500)]
    tiles: list[tuple[int, int, bytes]] = []
    tree = Frontier()
    tree.extend(leaves, tiles)
    kept = {index: root for _, index, root in tiles}

    def from_tiles(level: int, index: int) -> bytes:
        if level < 8:
            return naive_root(leaves[index << level : (index + 1) << level])
        return naive_root([kept[each] for each in range(index << level - 8, (index + 1) << level - 8)])

    for size in (1, 255, 256, 257, 511, 512, 1_024, 1_500):
        root = naive_root(leaves[:size])
        assert frontier_of(size, from_tiles).root() == root
        assert is_included(size // 2, leaves[size // 2], size, root, inclusion_proof(size // 2, size, from_tiles))
        assert is_consistent(size, root, 1_500, tree.root(), consistency_proof(size, 1_500, from_tiles))
