"""The tree over the events of a log: roots, proofs, and the entries that they are about."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final

import pytest

from eventlog.entry import BODY_PLAIN, content_commitment, leaf_hash, parse
from eventlog.log import Append, Expect, NewEvent, ProvenLog, RunLog, StoredEntry
from eventlog.merkle import is_consistent, is_included
from eventlog.testing.log_contract.subject import ANY, Subject, everything, note, notes, raises

__all__ = ["ProvingContract", "assert_tree"]

_TILE: Final = 256


def _root_of(leaves: Sequence[bytes]) -> bytes:
    """Return the tree hash of these leaves as RFC 6962 defines it, from the definition alone."""
    if len(leaves) < 2:
        return leaves[0] if leaves else sha256(b"").digest()
    half = 1 << (len(leaves) - 1).bit_length() - 1
    return sha256(b"\1" + _root_of(leaves[:half]) + _root_of(leaves[half:])).digest()


def _complete(leaves: Sequence[bytes], span: int) -> list[bytes]:
    return [_root_of(leaves[at : at + span]) for at in range(0, len(leaves) - span + 1, span)]


def _frontier_of(leaves: Sequence[bytes]) -> bytes:
    frontier, start = b"", 0
    for level in reversed(range(len(leaves).bit_length())):
        if len(leaves) >> level & 1:
            frontier += _root_of(leaves[start : start + (1 << level)])
            start += 1 << level
    return frontier


async def assert_tree(log: ProvenLog) -> int:
    """Assert that root, frontier and tiles are those of the log's leaves, computed afresh; return the size."""
    leaves = [event.leaf for event in await everything(log)]
    head = await log.tree_head()
    assert (head.size, head.root) == (len(leaves), _root_of(leaves))
    assert await log.tree_state() == (len(leaves), _frontier_of(leaves))
    for level, span in ((1, _TILE), (2, _TILE**2)):
        tiles = _complete(leaves, span)
        assert await log.read_tiles(level, 0, len(tiles) + 1) == list(enumerate(tiles))
    return head.size


async def _entries(log: ProvenLog, stream: str | None = None, *, after: int = 0) -> list[StoredEntry]:
    return [entry async for entry in log.read_entries(stream, after=after)]


class ProvingContract(Subject):
    """What a log shows to somebody who does not believe it."""

    async def test_an_empty_log_has_the_empty_tree(self, log: RunLog) -> None:
        assert await assert_tree(log) == 0
        assert await log.prove_consistency(0, 0) == []
        assert await log.signed_heads() == []
        assert await log.sign_head() is None
        assert await _entries(log) == []

    async def test_the_tree_grows_with_every_kind_of_append(self, log: RunLog) -> None:
        await log.append("a", [note()], expect=Expect.no_stream())
        assert await assert_tree(log) == 1
        await log.append("a", notes(5), expect=Expect.at(1))
        assert await assert_tree(log) == 6
        await log.append_many([Append("a", notes(2), ANY), Append("b", notes(3), ANY)])
        assert await assert_tree(log) == 11
        await log.append_reserved([Append("$own", [note()], ANY)])
        assert await assert_tree(log) == 12
        await log.append("a", notes(600), expect=ANY)
        assert await assert_tree(log) == 612

    async def test_what_was_refused_or_repeated_leaves_no_leaf(self, log: RunLog) -> None:
        first = note()
        await log.append("a", [first], expect=ANY)
        with raises("version_conflict"):
            await log.append("a", notes(3), expect=Expect.no_stream())
        with raises("version_conflict"):
            await log.append_many([Append("b", notes(3), ANY), Append("a", notes(3), Expect.at(7))])
        with raises("event_id_conflict"):
            await log.append("b", [NewEvent("note_taken", {"text": "other"}, event_id=first.event_id)], expect=ANY)
        assert (await log.append("a", [first], expect=ANY)).deduplicated
        await log.append("a", [note()], expect=Expect.at(1))
        assert await assert_tree(log) == 2

    async def test_every_event_is_proved_in_every_tree_that_has_it(self, log: RunLog) -> None:
        leaves, roots = await self._grown(log, 40)
        for size in range(1, len(leaves) + 1):
            for position in range(1, size + 1):
                proof = await log.prove_inclusion(position, size)
                assert is_included(position - 1, leaves[position - 1], size, roots[size], proof)
                assert not is_included(position - 1, leaves[position % len(leaves)], size, roots[size], proof)

    async def test_every_tree_is_proved_to_begin_with_every_smaller_one(self, log: RunLog) -> None:
        _, roots = await self._grown(log, 40)
        for size in range(1, len(roots)):
            for old in range(size + 1):
                proof = await log.prove_consistency(old, size)
                assert is_consistent(old, roots[old], size, roots[size], proof)
                assert not is_consistent(old, sha256(roots[old]).digest(), size, roots[size], proof)

    @pytest.mark.parametrize("size", [256, 257, 511, 512, 600])
    async def test_proofs_reach_across_tiles(self, log: RunLog, size: int) -> None:
        leaves, roots = await self._grown(log, 600)
        for number in (1, 2, 255, 256, 257, 511, 512, 600):
            if number <= size:
                proof = await log.prove_inclusion(number, size)
                assert is_included(number - 1, leaves[number - 1], size, roots[size], proof)
                assert is_consistent(
                    number, roots[number], size, roots[size], await log.prove_consistency(number, size)
                )

    @pytest.mark.parametrize("size", [-1, 4, 2**63, True, 1.0, "3", b"3"])
    async def test_a_log_has_no_tree_of_another_size(self, log: RunLog, size: Any) -> None:
        await log.append("a", notes(3), expect=ANY)
        for call in (
            lambda: log.tree_head(size),
            lambda: log.prove_inclusion(1, size),
            lambda: log.prove_inclusion(size, 3),
            lambda: log.prove_consistency(1, size),
            lambda: log.prove_consistency(size, 3),
        ):
            with raises("invalid_argument"):
                await call()

    async def test_position_0_is_in_no_tree(self, log: RunLog) -> None:
        await log.append("a", notes(3), expect=ANY)
        with raises("invalid_argument"):
            await log.prove_inclusion(0, 3)
        with raises("invalid_argument"):
            await log.prove_inclusion(3, 2)
        with raises("invalid_argument"):
            await log.prove_consistency(3, 2)

    async def test_every_entry_is_that_of_its_event(self, log: RunLog) -> None:
        cause = note()
        await log.append("a", [cause, note(causation_id=cause.event_id, correlation_id="case-1")], expect=ANY)
        await log.append("b", [NewEvent("order_placed", {"total": 7})], expect=ANY, actor="svc:shop")
        await log.append("a", notes(700), expect=ANY)
        found, events = await _entries(log), await everything(log)
        assert len(found) == len(events) == 703
        ((first, log_id),) = await log.log_ids()
        assert first == 1
        for stored, event in zip(found, events, strict=True):
            entry = parse(stored.entry)
            assert leaf_hash(stored.entry) == event.leaf
            assert (stored.position, stored.version, stored.type) == (event.position, event.version, event.type)
            assert stored.stored == event.body
            assert stored.salt is not None
            assert entry.content_commit == content_commitment(stored.salt, event.body)
            assert (entry.log_id, entry.body_kind, entry.body_len) == (log_id, BODY_PLAIN, len(event.body))
            assert (entry.position, entry.version) == (event.position, event.version)
            assert (entry.stream, entry.type, entry.actor) == (event.stream, event.type, event.actor)
            assert (entry.event_id, entry.recorded_at_us) == (event.event_id, event.recorded_at_us)
            assert (entry.schema_version, entry.prev_in_stream) == (event.schema_version, event.prev_in_stream)
            assert entry.causation_id == (event.causation_id or bytes(16))
            assert entry.correlation_id == (event.correlation_id or "")

    @pytest.mark.parametrize("after", [0, 1, 3, 4, 5, 2**63 - 1])
    async def test_entries_are_read_from_any_place_on(self, log: RunLog, after: int) -> None:
        for number in range(4):
            await log.append("a", [note(f"a{number}")], expect=ANY)
            await log.append("b", [note(f"b{number}")], expect=ANY)
        assert [each.position for each in await _entries(log, after=after)] == list(range(1, 9))[after:]
        assert [each.version for each in await _entries(log, "b", after=after)] == list(range(1, 5))[after:]
        assert await _entries(log, "c", after=after) == []

    @pytest.mark.parametrize("after", [-1, 1.5, None, True])
    async def test_entries_begin_behind_a_position(self, log: RunLog, after: Any) -> None:
        with raises("invalid_argument"):
            await _entries(log, after=after)

    async def test_entries_are_of_a_stream(self, log: RunLog) -> None:
        with raises("invalid_id"):
            await _entries(log, "")

    async def _grown(self, log: RunLog, size: int) -> tuple[list[bytes], list[bytes]]:
        """Grow the log; return its leaves, and the root of each size, computed from them."""
        await log.append("a", notes(size), expect=ANY)
        leaves = [event.leaf for event in await everything(log)]
        roots = [_root_of(leaves[:at]) for at in range(size + 1)]
        for at in range(0, size + 1, 1 if size < 100 else 37):
            assert (await log.tree_head(at)).root == roots[at]
        return leaves, roots
