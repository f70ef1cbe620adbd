"""`verify` and what proves a log: its tree, its heads, its approvals, and what is said where something is missing."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, cast

import pytest

import eventlog
from eventlog.audit.heads.key_file import make_key_file, read_key_file
from eventlog.audit.verify import Finding, OutsideHead, Trust, approvals, verify
from eventlog.audit.verify.findings import Problems
from eventlog.audit.verify.stored_tree import frontier_at
from eventlog.audit.verify.tree import TreeCheck, TreeReader
from eventlog.errors import InvalidInput, LogCorrupt
from eventlog.events import ApprovalRecorded
from eventlog.log import Append, CheckedPage, Expect, Head, NewEvent
from eventlog.merkle import Frontier
from eventlog.signing.ed25519 import PrivateKey
from eventlog.signing.notes import make_verifier_key
from tests.attacker import attacking
from tests.command_line import Ended, HereCommandLine
from tests.proven_log import ProvenLog, build, check, propose_run, take_notes
from tools.campaigns.storage.log_files import open_file

NOTE, LATE_NOTE, PROPOSAL, APPROVAL, SIZE = 5, 13, 9, 11, 18
STRANGER: Final = PrivateKey.from_seed(b"stranger".ljust(32, b"."))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> ProvenLog:
    return asyncio.run(build(tmp_path_factory.mktemp("original")))


@pytest.fixture
def world(original: ProvenLog, tmp_path: Path) -> ProvenLog:
    return original.copy_to(tmp_path / "copy")


@pytest.fixture
def cli(world: ProvenLog) -> HereCommandLine:
    return HereCommandLine(world.folder, "--db", "a.db")


# ── the tree ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Leaves:
    """A log of leaves and nothing else, with the tiles over them."""

    def __init__(self, count: int) -> None:
        chance = random.Random(count)
        self.leaves: Final = [chance.randbytes(32) for _ in range(count)]
        self.frontier: Final = Frontier()
        tiles: list[tuple[int, int, bytes]] = []
        self.frontier.extend(self.leaves, tiles)
        self.tiles: Final = {(level, number): root for level, number, root in tiles}

    async def check_page(self, *, after: int, limit: int = 1000) -> CheckedPage:
        leaves = self.leaves[after : after + limit]
        return CheckedPage(position=after + len(leaves), events=len(leaves), problems=(), leaves=leaves)

    async def read_tiles(self, level: int, first: int, limit: int) -> list[tuple[int, bytes]]:
        found = sorted((number, root) for (at, number), root in self.tiles.items() if at == level and number >= first)
        return found[:limit]

    async def head(self) -> Head:
        return Head(len(self.leaves), self.leaves[-1])

    async def judged(self, sizes: Sequence[int] = ()) -> tuple[TreeCheck, Finding]:
        """Return the check, and its verdict."""
        tree = TreeCheck(cast(TreeReader, self), sizes)
        while tree.size < len(self.leaves):
            await tree.grow(await self.check_page(after=tree.size))
        await tree.finish((self.frontier.size, self.frontier.to_bytes()))
        return tree, tree.finding(Problems())


def root_of(leaves: Sequence[bytes]) -> bytes:
    frontier = Frontier()
    frontier.extend(leaves)
    return frontier.root()


class TestTree:
    @pytest.mark.parametrize("count", [1, 255, 256, 257, 1000, 1001, 5000, 66_000])
    async def test_roots_of_all_sizes_are_those_of_the_leaves(self, count: int) -> None:
        log = Leaves(count)
        sizes = sorted({1, count // 3, count // 2, 255, 256, 257, 511, 65_536, 65_793, count - 1, count})
        sizes = [size for size in sizes if 0 < size <= count]
        tree, finding = await log.judged(sizes[::2])
        assert (finding.verdict, finding.details["root"]) == ("ok", root_of(log.leaves).hex())
        for size in sizes:
            expected = root_of(log.leaves[:size])
            assert await tree.root_of(size) == expected
            assert (await frontier_at(cast(TreeReader, log), size)).root() == expected
        assert {size: tree.roots[size] for size in sizes[::2]} == {
            size: root_of(log.leaves[:size]) for size in sizes[::2]
        }
        with pytest.raises(LogCorrupt):
            await tree.root_of(count + 1)

    @pytest.mark.parametrize("place", [(1, 0), (1, 100), (1, 256), (2, 0)])
    async def test_a_tile_that_is_wrong_or_missing_is_named(self, place: tuple[int, int]) -> None:
        log = Leaves(66_000)
        whole = log.tiles[place]
        log.tiles[place] = bytes(32)
        _, finding = await log.judged()
        assert [each.message for each in finding.problems] == [
            f"tile {place[1]} of level {place[0]} is not the root of its leaves"
        ]
        del log.tiles[place]
        _, finding = await log.judged()
        assert [each.message for each in finding.problems] == [f"tile {place[1]} of level {place[0]} is missing"]
        log.tiles[place] = whole
        assert (await log.judged())[1].verdict == "ok"

    async def test_a_tile_beyond_the_log_is_named(self) -> None:
        log = Leaves(600)
        log.tiles[1, 2] = bytes(32)
        _, finding = await log.judged()
        assert [each.reason for each in finding.problems] == ["tree_mismatch"]

    async def test_a_log_in_memory_has_a_tree_as_well(self) -> None:
        async with eventlog.open("memory:") as log:
            await log.append("notes", [NewEvent("noted", number) for number in range(300)], expect=Expect.any())
            found = await verify(log)
        assert (found.tree.verdict, found.tree.details["size"], found.heads.verdict) == ("ok", 300, "unanchored")


# ── heads ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class TestHeads:
    async def test_a_log_without_any_head_is_unanchored_and_no_damage(self, tmp_path: Path) -> None:
        async with open_file(tmp_path / "a.db") as log:
            await take_notes(log, 3)
        verdicts = await check(tmp_path / "a.db")
        assert (verdicts.heads.verdict, verdicts.is_damaged, verdicts.is_known) == ("unanchored", False, True)
        assert (verdicts.heads.details["keys"], verdicts.heads.details["unprotected"]) == ("none", 3)

    async def test_a_pinned_key_that_signed_nothing_is_never_fine(self, tmp_path: Path) -> None:
        async with open_file(tmp_path / "a.db") as log:
            await take_notes(log, 3)
        key = make_verifier_key("eventlog.local/log/" + "00" * 16, STRANGER.public)
        verdicts = await check(tmp_path / "a.db", Trust(log_keys=[key]))
        assert (verdicts.heads.verdict, verdicts.is_known) == ("unknown", False)

    async def test_the_heads_of_another_key_than_the_pinned_one_are_damage(self, world: ProvenLog) -> None:
        key = make_verifier_key(world.log_key.name, STRANGER.public)
        verdicts = await check(world.path, Trust(log_keys=[key]))
        assert {each.reason for each in verdicts.heads.problems} == {"head_unsigned"}

    async def test_a_head_of_another_log_is_told_apart(self, world: ProvenLog, tmp_path: Path) -> None:
        (tmp_path / "other").mkdir()
        other = await build(tmp_path / "other")
        verdicts = await check(world.path, Trust(log_keys=[world.log_key], heads=other.outside_heads()[:1]))
        assert [each.reason for each in verdicts.heads.problems] == ["store_forked", "head_unsigned"]

    async def test_a_head_that_nobody_here_can_verify_is_unknown(self, tmp_path: Path) -> None:
        """The log declares no key, and none is pinned: the root is right, and who signed it cannot be told."""
        path, key_path = tmp_path / "a.db", tmp_path / "log.key"
        make_key_file(key_path)
        log_of = ProvenLog(tmp_path, make_verifier_key("x/" + "00" * 16, STRANGER.public))
        async with log_of.opened() as log:
            await take_notes(log, 3)
        verdicts = await check(path, Trust(heads=log_of.outside_heads()))
        assert (verdicts.heads.verdict, verdicts.is_damaged) == ("unknown", False)
        assert (await check(path)).heads.verdict == "unanchored"

    @pytest.mark.parametrize(
        "note", [b"", b"\xff", b"no note at all\n", b"a\n\nb\n"], ids=["empty", "bytes", "text", "two"]
    )
    async def test_what_is_no_head_is_said_to_be_none(self, world: ProvenLog, note: bytes) -> None:
        heads = [OutsideHead(note=note, source="somewhere")]
        verdicts = await check(world.path, Trust(log_keys=[world.log_key], heads=heads))
        assert [each.reason for each in verdicts.heads.problems] == ["bad_note"]


# ── only a part ──────────────────────────────────────────────────────────────────────────────────────────────────────


class TestSinceHead:
    def trust(self, world: ProvenLog, heads: int = 2) -> Trust:
        return Trust(log_keys=[world.log_key], heads=world.outside_heads()[:heads], since_head=True)

    async def test_only_what_is_newer_than_the_newest_outside_head_is_read(self, world: ProvenLog) -> None:
        verdicts = await check(world.path, self.trust(world))
        assert (verdicts.events, verdicts.after, verdicts.head) == (7, 11, 18)
        assert (verdicts.is_damaged, verdicts.heads.verdict) == (False, "ok")
        assert verdicts.heads.details["unprotected"] == 7

    async def test_an_edit_behind_it_is_found_and_one_in_front_of_it_is_not_looked_for(self, world: ProvenLog) -> None:
        with attacking(world.path) as attacker:
            attacker.edit_body(NOTE, b'{"n":7}')
        assert not (await check(world.path, self.trust(world))).is_damaged
        with attacking(world.path) as attacker:
            attacker.edit_body(LATE_NOTE, b'{"n":7}')
        verdicts = await check(world.path, self.trust(world))
        assert [each.position for each in verdicts.integrity.problems] == [LATE_NOTE]

    @pytest.mark.parametrize("at", [NOTE, LATE_NOTE])
    async def test_a_history_that_was_computed_again_does_not_go_on_from_it(self, world: ProvenLog, at: int) -> None:
        with attacking(world.path) as attacker:
            attacker.edit_body(at, b'{"n":7}')
            attacker.rehash()
            attacker.resign(STRANGER)
        verdicts = await check(world.path, self.trust(world, heads=3))
        assert "store_forked" in {each.reason for each in verdicts.heads.problems}

    async def test_an_approval_behind_it_is_verified_against_the_older_head_that_it_names(
        self, world: ProvenLog
    ) -> None:
        verdicts = await check(world.path, self.trust(world, heads=1))
        assert verdicts.approvals.details["states"] == {"unsigned": 1, "verified": 1}
        with attacking(world.path) as attacker:
            attacker.edit_body(10, b"{}")
            attacker.rehash()
        verdicts = await check(world.path, self.trust(world, heads=1))
        assert "head_mismatch" in {each.reason for each in verdicts.approvals.problems}

    async def test_without_a_head_to_trust_nothing_is_left_out(self, world: ProvenLog) -> None:
        with pytest.raises(InvalidInput, match="no head") as caught:
            await check(world.path, Trust(since_head=True))
        assert caught.value.code == "no_trusted_head"


class TestOneRun:
    async def test_its_events_are_in_the_heads_that_are_known(self, world: ProvenLog) -> None:
        verdicts = await check(world.path, Trust(log_keys=[world.log_key], heads=world.outside_heads()), run="r1")
        assert (verdicts.tree.verdict, verdicts.heads.verdict, verdicts.approvals.verdict) == ("ok", "ok", "ok")

    async def test_a_rewritten_history_is_found_by_its_approval(self, world: ProvenLog) -> None:
        with attacking(world.path) as attacker:
            attacker.edit_body(NOTE, b'{"n":7}')
            attacker.rehash()
            attacker.resign(read_key_file(world.key_path))
        verdicts = await check(world.path, Trust(log_keys=[world.log_key]), run="r1")
        assert [each.reason for each in verdicts.approvals.problems] == ["head_mismatch"]

    async def test_an_event_that_is_not_in_the_stored_tree_is_named(self, world: ProvenLog) -> None:
        with attacking(world.path) as attacker:
            attacker.edit_body(17, attacker.value("SELECT body FROM events WHERE position = 9").encode())
            for position in (17, 18):
                attacker.rehash_only(position)
        verdicts = await check(world.path, run="r3")
        assert "tree_mismatch" in {each.reason for each in verdicts.tree.problems}


# ── approvals ────────────────────────────────────────────────────────────────────────────────────────────────────────


class TestApprovals:
    async def test_each_is_listed_with_its_level_and_its_key(self, world: ProvenLog) -> None:
        signed, unsigned = (await check(world.path)).approvals.details["approvals"]
        assert {name: signed[name] for name in ("position", "run", "request", "approver", "level", "verdict")} == {
            "position": APPROVAL,
            "run": "r1",
            "request": "approval:r1",
            "approver": "anna",
            "level": 2,
            "verdict": "verified",
        }
        assert len(signed["key_id"]) == 64
        assert (unsigned["approver"], unsigned["level"], unsigned["verdict"]) == ("ben", 0, "unsigned")

    async def test_a_proposal_that_is_not_remembered_any_more_is_read_again(
        self, world: ProvenLog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        expected = (await check(world.path)).approvals
        monkeypatch.setattr(approvals, "_REMEMBERED", 1)
        assert (await check(world.path)).approvals == expected

    async def test_a_level_that_nothing_proves_is_damage(self, world: ProvenLog) -> None:
        async with open_file(world.path) as log:
            asked = await propose_run(log, "r9")
            claimed = ApprovalRecorded(
                request_id="approval:r9",
                approval_hash=asked.data.proposal_hash,
                decision="approve",
                actor_source="signed",
                level=2,
            )
            await log.append_reserved([Append("run:r9", [claimed], Expect.any())])
        assert [each.reason for each in (await check(world.path)).approvals.problems] == ["signature_invalid"]

    async def test_a_decision_on_nothing_is_damage(self, world: ProvenLog) -> None:
        async with open_file(world.path) as log:
            decided = ApprovalRecorded(
                request_id="approval:r8", approval_hash="00" * 32, decision="approve", actor_source="os"
            )
            await log.append_reserved([Append("run:r8", [decided], Expect.any())])
        assert [each.reason for each in (await check(world.path)).approvals.problems] == ["statement_mismatch"]

    async def test_a_level_that_is_asked_for_and_not_reached_cannot_be_verified(self, world: ProvenLog) -> None:
        assert (await check(world.path, Trust(min_level=0))).is_known
        verdicts = await check(world.path, Trust(min_level=2))
        assert (verdicts.approvals.verdict, verdicts.is_damaged, verdicts.is_known) == ("unknown", False, False)
        assert (await check(world.path, Trust(min_level=2), run="r1")).is_known


# ── without the library ──────────────────────────────────────────────────────────────────────────────────────────────


class TestWithoutCryptography:
    @pytest.fixture(autouse=True)
    def without(self, world: ProvenLog, monkeypatch: pytest.MonkeyPatch) -> None:
        """Take the library away, once the log that was signed with it is there."""
        monkeypatch.setitem(sys.modules, "cryptography", None)

    async def test_signatures_that_are_there_cannot_be_verified(self, world: ProvenLog) -> None:
        verdicts = await check(world.path)
        assert (verdicts.is_damaged, verdicts.is_known) == (False, False)
        assert (verdicts.heads.verdict, verdicts.approvals.verdict) == ("unknown", "unknown")
        assert "proof" in verdicts.heads.details["unknown"][0]

    async def test_a_log_that_was_cut_is_found_all_the_same(self, world: ProvenLog) -> None:
        with attacking(world.path) as attacker:
            attacker.truncate(14)
            attacker.replant()
        assert {each.reason for each in (await check(world.path)).heads.problems} == {"store_rolled_back"}

    @pytest.mark.parametrize("words", [(), ("--since-head",), ("--run", "r1"), ("--signer", "log.key")], ids=" ".join)
    def test_the_command_cannot_verify(self, cli: HereCommandLine, world: ProvenLog, words: tuple[str, ...]) -> None:
        cli("verify", "--json", "--log-key", world.log_key.to_text(), *words, status=4)

    async def test_a_log_without_signatures_needs_none(self, tmp_path: Path) -> None:
        async with open_file(tmp_path / "a.db") as log:
            await take_notes(log, 3)
        verdicts = await check(tmp_path / "a.db")
        assert (verdicts.is_damaged, verdicts.is_known) == (False, True)


# ── the command ──────────────────────────────────────────────────────────────────────────────────────────────────────


class TestCommand:
    def verified(self, cli: HereCommandLine, *words: str, status: int = 0) -> Ended:
        return cli("verify", "--format", "human", *words, status=status)

    def test_it_says_what_is_anchored_and_by_whose_key(self, cli: HereCommandLine, world: ProvenLog) -> None:
        text = self.verified(cli, "--log-key", world.log_key.to_text(), "--head", "log.key.heads").text
        assert "anchored up to 18 at 20" in text
        assert "0 newer events unprotected" in text
        assert "opened under the pinned keys" in text

    def test_without_a_head_from_outside_it_says_unanchored(self, cli: HereCommandLine) -> None:
        text = self.verified(cli).text
        assert "heads      unanchored" in text
        assert "no key is pinned" in text

    def test_a_signer_anchors_as_well(self, cli: HereCommandLine) -> None:
        assert cli("verify", "--json", "--signer", "log.key", status=0).json["heads"]["anchored_to"] == 18

    def test_one_note_is_a_head_without_a_time(self, cli: HereCommandLine, world: ProvenLog) -> None:
        (world.folder / "one.note").write_bytes(world.outside_heads()[1].note)
        heads = cli("verify", "--json", "--head", "one.note", status=0).json["heads"]
        assert (heads["verdict"], heads["anchored_to"], heads["anchored_at_us"], heads["unprotected"]) == (
            "ok",
            11,
            None,
            7,
        )

    @pytest.mark.parametrize(
        ("words", "code"),
        [
            (("--head", "none"), "head_unreadable"),
            (("--head", "empty.heads"), "head_file_damaged"),
            (("--since-head",), "no_trusted_head"),
            (("--signer", "unix:none"), "signer_unavailable"),
            (("--pack", "none.zip"), "store_cannot_open"),
        ],
        ids=lambda value: value if isinstance(value, str) else value[0],
    )
    def test_what_cannot_be_checked_ends_with_4(
        self, cli: HereCommandLine, world: ProvenLog, words: tuple[str, ...], code: str
    ) -> None:
        (world.folder / "empty.heads").write_bytes(b"{}\n")
        assert cli("verify", "--json", *words, status=4).json["error"] == code

    @pytest.mark.parametrize(
        "words",
        [
            ("--log-key", "x"),
            ("--min-level", "4"),
            ("--since-head", "--run", "r1"),
            ("--approver", "anna=x"),
            ("--since-head", "--pack", "x"),
        ],
        ids=" ".join,
    )
    def test_wrong_usage_ends_with_2(self, cli: HereCommandLine, words: tuple[str, ...]) -> None:
        cli("verify", "--json", *words, status=2)

    def test_since_head_says_what_was_not_looked_at(self, cli: HereCommandLine, world: ProvenLog) -> None:
        (world.folder / "one.note").write_bytes(world.outside_heads()[1].note)
        words = ("--since-head", "--log-key", world.log_key.to_text(), "--head", "one.note")
        ended = self.verified(cli, *words)
        assert "checked 7 events; the log ends at position 18; the first 11 were not looked at" in ended.error
        assert cli("verify", "--json", *words, status=0).json["after"] == 11

    async def test_what_the_log_says_cannot_write_on_the_terminal(self, world: ProvenLog) -> None:
        hostile = "\x1b[2J\u202e gone"
        async with world.opened(restored=hostile) as log:
            await take_notes(log, 1)
        cli = HereCommandLine(world.folder, "--db", "a.db")
        for form in ("human", "plain", "json"):
            ended = await asyncio.to_thread(cli, "verify", "--format", form, status=0)
            assert "gone" in ended.text
            assert not {"\x1b", "\u202e"} & set(ended.text), form

    def test_a_pack_is_verified_by_its_own_verifier(self, cli: HereCommandLine, world: ProvenLog) -> None:
        cli("export", "--format", "pack", "--run", "r1", "--to", "r1.zip", status=0)
        key = world.log_key.to_text()
        found: Any = cli("verify", "--pack", "r1.zip", "--json", "--log-key", key, status=0).json
        assert (found["conclusion"], found["run"]) == ("verified", "r1")
        cli("verify", "--pack", "r1.zip", status=4)
        data = bytearray((world.folder / "r1.zip").read_bytes())
        at = data.index(b'"amount"')
        data[at + 1] ^= 1
        (world.folder / "r1.zip").write_bytes(data)
        cli("verify", "--pack", "r1.zip", "--log-key", key, status=3)
