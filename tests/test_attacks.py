"""Every attack that the design names, on a real file, and what `verify` says of it: with the database alone, and with
the signed heads that were kept outside.

Each row names the verdicts that find it, with their reasons, or MISSED: that nothing can find it belongs to the design,
and is promised here as well. The reader has the log's key by another way in both columns, unless a row says otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec
import pytest

from eventlog.audit.heads.key_file import read_key_file
from eventlog.audit.verify import Trust, Verdicts
from eventlog.audit.verify.approvals import ApprovalCheck
from eventlog.audit.verify.erasures import ErasureCheck
from eventlog.audit.verify.head_continuity import Continuity
from eventlog.audit.verify.head_keys import HeadKeys
from eventlog.audit.verify.tree import TreeCheck
from eventlog.signing.ed25519 import PrivateKey
from eventlog.signing.notes import make_verifier_key
from tests.attacker import Attacker, attacking
from tests.command_line import HereCommandLine
from tests.proven_log import ProvenLog, build, check

STRANGER: Final = PrivateKey.from_seed(b"stranger".ljust(32, b"."))
NOTE: Final = 5
"""Position of an event that nobody has a special interest in, in front of the approval."""
LATE_NOTE: Final = 13
"""One behind the last signed approval."""
PROPOSAL: Final = 9
OTHER_PROPOSAL: Final = 10
APPROVAL: Final = 11
SIZE: Final = 18

Found = dict[str, set[str]]
"""The verdicts that are damage, each with its reasons."""
MISSED: Final[Found] = {}


class Attack(msgspec.Struct, frozen=True):
    """What somebody does to the file, with the key of the heads if he has stolen it, and what finds it."""

    does: Callable[[Attacker, PrivateKey], None]
    alone: Mapping[str, set[str]]
    with_heads: Mapping[str, set[str]]
    heads_kept: int = 4
    pins: bool = True


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> ProvenLog:
    return asyncio.run(build(tmp_path_factory.mktemp("original")))


@pytest.fixture
def world(original: ProvenLog, tmp_path: Path) -> ProvenLog:
    return original.copy_to(tmp_path / "copy")


def found_in(verdicts: Verdicts) -> Found:
    return {
        name: {problem.reason for problem in finding.problems}
        for name, finding in verdicts.findings.items()
        if finding.problems
    }


# ── what he does ─────────────────────────────────────────────────────────────────────────────────────────────────────


def edits(body: bytes, *, at: int = NOTE, rehash: bool = False) -> Callable[[Attacker, PrivateKey], None]:
    def attack(attacker: Attacker, _: PrivateKey) -> None:
        attacker.edit_body(at, body)
        if rehash:
            attacker.rehash()
            attacker.drop_heads()

    return attack


def runs(statement: str, *, rehash: bool = False) -> Callable[[Attacker, PrivateKey], None]:
    def attack(attacker: Attacker, _: PrivateKey) -> None:
        attacker.run(statement)
        if rehash:
            attacker.rehash()
            attacker.drop_heads()

    return attack


def deletes(attacker: Attacker, _: PrivateKey) -> None:
    attacker.run("DELETE FROM events WHERE position = ?", NOTE)


def removes(attacker: Attacker, _: PrivateKey) -> None:
    attacker.remove(NOTE)
    attacker.replant()


def removes_and_rehashes(attacker: Attacker, _: PrivateKey) -> None:
    attacker.remove(NOTE)
    attacker.rehash()


def swaps(attacker: Attacker, _: PrivateKey) -> None:
    attacker.swap(NOTE, NOTE + 1)
    attacker.replant()


def swaps_and_rehashes(attacker: Attacker, _: PrivateKey) -> None:
    attacker.swap(NOTE, NOTE + 1)
    attacker.rehash()


def inserts(attacker: Attacker, _: PrivateKey) -> None:
    attacker.insert_copy(NOTE, NOTE + 1)
    attacker.replant()


def inserts_and_rehashes(attacker: Attacker, _: PrivateKey) -> None:
    attacker.insert_copy(NOTE, NOTE + 1)
    attacker.rehash()


def truncates(attacker: Attacker, _: PrivateKey) -> None:
    attacker.truncate(14)
    attacker.replant()


def truncates_with_heads(attacker: Attacker, _: PrivateKey) -> None:
    attacker.truncate(14)
    attacker.replant()
    attacker.drop_heads(beyond=14)


def truncates_the_window(attacker: Attacker, _: PrivateKey) -> None:
    attacker.truncate(16)
    attacker.replant()
    attacker.drop_heads(beyond=16)


def puts_back_an_older_copy(attacker: Attacker, _: PrivateKey) -> None:
    """What a copy that was made when the log had 11 events would hold."""
    attacker.truncate(11)
    attacker.replant()
    attacker.drop_heads(beyond=11)


def moves_the_approval(attacker: Attacker, _: PrivateKey) -> None:
    attacker.move(APPROVAL, "run:r2")
    attacker.rehash()
    attacker.drop_heads()


def replays_the_approval(attacker: Attacker, _: PrivateKey) -> None:
    attacker.insert_copy(APPROVAL, SIZE + 1)
    attacker.rehash()
    attacker.drop_heads()


def rewrites(key: PrivateKey | None, *, at: int = NOTE) -> Callable[[Attacker, PrivateKey], None]:
    """Edit and compute every hash again; sign again, with this key, or with the stolen one if it is None."""

    def attack(attacker: Attacker, stolen: PrivateKey) -> None:
        attacker.edit_body(at, b'{"n":1000000}')
        attacker.rehash()
        attacker.resign(stolen if key is None else key)

    return attack


def rewrites_and_drops_the_approval(attacker: Attacker, stolen: PrivateKey) -> None:
    attacker.remove(APPROVAL)
    attacker.edit_body(NOTE, b'{"n":1000000}')
    attacker.rehash()
    attacker.resign(stolen)


def does_nothing(attacker: Attacker, _: PrivateKey) -> None:
    """Whoever only looks leaves no trace, and raises no alarm."""


def declares_his_own_key(attacker: Attacker, _: PrivateKey) -> None:
    """As `rewrites` with another key, which the log then declares from its first event on."""
    origin = attacker.origin
    key = make_verifier_key(origin, STRANGER.public).to_text()
    attacker.edit_body(1, msgspec.json.encode({"verifier_key": key}))
    attacker.edit_body(NOTE, b'{"n":1000000}')
    attacker.rehash()
    attacker.resign(STRANGER)


def erases_with_another_commitment(attacker: Attacker, _: PrivateKey) -> None:
    """Take a body away, and let an event of the log say so that does not give its leaf."""
    attacker.run("UPDATE events SET body = NULL, salt = NULL WHERE position = ?", NOTE)
    attacker.append_erasure(NOTE)
    attacker.replant()
    attacker.drop_heads()


MISMATCH: Final[Found] = {"integrity": {"leaf_mismatch"}}
FORKED: Final[Found] = {"heads": {"store_forked"}}
LOST: Final[Found] = {"integrity": {"body_missing"}, "erasures": {"payload_lost"}}
HEAD_OF_APPROVAL: Final[Found] = {"approvals": {"head_mismatch"}}
BOTH: Final[Found] = {**FORKED, **HEAD_OF_APPROVAL}
GAP: Final[Found] = {"order": {"position_gap", "version_gap"}, "tree": {"tree_mismatch"}}
MOVED: Final[Found] = {"approvals": {"statement_mismatch"}}
ROLLED_BACK: Final[Found] = {"heads": {"store_rolled_back"}}
SHRUNK: Final[Found] = {"heads": {"store_forked", "store_rolled_back"}}

ATTACKS: Final[dict[str, Attack]] = {
    "nothing": Attack(does_nothing, MISSED, MISSED),
    # content and envelope of one event
    "edit a payload": Attack(edits(b'{"n":7}'), MISMATCH, MISMATCH),
    "add white space": Attack(edits(b'{"n": 2}'), MISMATCH, MISMATCH),
    "add a duplicate key": Attack(edits(b'{"n":9,"n":2}'), MISMATCH, MISMATCH),
    "edit a time": Attack(
        runs("UPDATE events SET recorded_at_us = recorded_at_us + 1 WHERE position = 8"), MISMATCH, MISMATCH
    ),
    "edit an actor": Attack(
        runs(f"UPDATE events SET actor_id = actor_id % 2 + 1 WHERE position = {NOTE}"), MISMATCH, MISMATCH
    ),
    "edit a type": Attack(runs(f"UPDATE events SET type_id = 1 WHERE position = {NOTE}"), MISMATCH, MISMATCH),
    # the order of events
    "delete": Attack(deletes, GAP, GAP),
    "delete and renumber": Attack(removes, {**MISMATCH, **SHRUNK}, {**MISMATCH, **SHRUNK}),
    "delete, renumber and re-hash": Attack(removes_and_rehashes, {**SHRUNK, **MOVED}, {**SHRUNK, **MOVED}),
    "reorder": Attack(swaps, MISMATCH, MISMATCH),
    "reorder and re-hash": Attack(swaps_and_rehashes, BOTH, BOTH),
    "insert": Attack(inserts, {**MISMATCH, **FORKED}, {**MISMATCH, **FORKED}),
    "insert and re-hash": Attack(inserts_and_rehashes, {**FORKED, **MOVED}, {**FORKED, **MOVED}),
    # the end of the log
    "truncate past a stored signed head": Attack(truncates, ROLLED_BACK, ROLLED_BACK),
    "truncate, and delete stored signed heads": Attack(truncates_with_heads, MISSED, ROLLED_BACK),
    "truncate what is newer than the last outside head": Attack(truncates_the_window, MISSED, MISSED, heads_kept=3),
    "put back an old honest copy": Attack(puts_back_an_older_copy, MISSED, ROLLED_BACK),
    # approvals
    "move an approval to another proposal": Attack(moves_the_approval, MOVED, {**MOVED, **FORKED}),
    "replay an approval": Attack(replays_the_approval, MOVED, MOVED),
    # all of it again
    "edit and re-hash all": Attack(edits(b'{"n":7}', rehash=True), HEAD_OF_APPROVAL, BOTH),
    "the same, re-signed with another key": Attack(
        rewrites(STRANGER),
        {"heads": {"head_unsigned"}, **HEAD_OF_APPROVAL},
        {"heads": {"head_unsigned", "store_forked"}, **HEAD_OF_APPROVAL},
    ),
    "the same, with another key that the log declares": Attack(
        declares_his_own_key,
        {"heads": {"head_unsigned"}, **HEAD_OF_APPROVAL},
        {"heads": {"head_unsigned", "store_forked"}, **HEAD_OF_APPROVAL},
    ),
    "the same, re-signed with the stolen log key": Attack(rewrites(None), HEAD_OF_APPROVAL, BOTH),
    "stolen log key, edit after the last approval": Attack(rewrites(None, at=LATE_NOTE), MISSED, FORKED),
    "edit after the last approval, signed heads deleted": Attack(
        edits(b'{"n":7}', at=LATE_NOTE, rehash=True), MISSED, FORKED, pins=False
    ),
    "re-hash, and drop the approval": Attack(rewrites_and_drops_the_approval, MISSED, SHRUNK),
    # bodies
    "remove a payload without an erasure": Attack(
        runs(f"UPDATE events SET body = NULL, salt = NULL WHERE position = {NOTE}"), LOST, LOST
    ),
    "remove a salt": Attack(runs(f"UPDATE events SET salt = NULL WHERE position = {NOTE}"), LOST, LOST),
    "remove a payload, and say that another was erased": Attack(
        erases_with_another_commitment,
        {**MISMATCH, "erasures": {"not_erased"}},
        {**MISMATCH, "erasures": {"not_erased"}},
    ),
    # the tree itself
    "edit the frontier": Attack(
        runs("UPDATE tree SET frontier = zeroblob(64)"), {"tree": {"tree_mismatch"}}, {"tree": {"tree_mismatch"}}
    ),
    "cut the tree": Attack(
        runs("UPDATE tree SET size = 16, frontier = zeroblob(32)"),
        {"tree": {"tree_mismatch"}},
        {"tree": {"tree_mismatch"}},
    ),
    "invent a tile": Attack(
        runs("INSERT INTO tiles VALUES (1, 0, zeroblob(32))"), {"tree": {"tree_mismatch"}}, {"tree": {"tree_mismatch"}}
    ),
}


@pytest.mark.parametrize("name", ATTACKS)
async def test_an_attack_on_the_database_alone_is_found_by_what_the_design_says(world: ProvenLog, name: str) -> None:
    attack = ATTACKS[name]
    with attacking(world.path) as attacker:
        attack.does(attacker, read_key_file(world.key_path))
    verdicts = await check(world.path, Trust(log_keys=[world.log_key] if attack.pins else []))
    assert found_in(verdicts) == attack.alone
    assert (verdicts.is_damaged, verdicts.is_damaged or verdicts.is_known) == (bool(attack.alone), True)


@pytest.mark.parametrize("name", ATTACKS)
async def test_an_attack_is_found_by_heads_that_were_kept_outside(world: ProvenLog, name: str) -> None:
    attack = ATTACKS[name]
    heads = world.outside_heads()[: attack.heads_kept]
    with attacking(world.path) as attacker:
        attack.does(attacker, read_key_file(world.key_path))
    verdicts = await check(world.path, Trust(log_keys=[world.log_key], heads=heads))
    assert found_in(verdicts) == attack.with_heads
    assert verdicts.is_damaged == bool(attack.with_heads)
    if not attack.with_heads:
        assert verdicts.heads.verdict == "ok"


@pytest.mark.parametrize("name", [name for name, attack in ATTACKS.items() if attack.with_heads])
def test_the_command_ends_with_damage(world: ProvenLog, name: str) -> None:
    with attacking(world.path) as attacker:
        ATTACKS[name].does(attacker, read_key_file(world.key_path))
    cli = HereCommandLine(world.folder, "--db", "a.db", "--json")
    words = ("verify", "--log-key", world.log_key.to_text(), "--head", "log.key.heads")
    ended = cli(*words, status=3)
    assert set(ATTACKS[name].with_heads) <= {
        key for key, each in ended.json.items() if isinstance(each, dict) and each["problems"]
    }


async def test_without_any_head_a_pinned_key_cannot_verify_anything(world: ProvenLog) -> None:
    """The attacker who has no key can drop the heads: then nothing says that the log is what the key has signed."""
    with attacking(world.path) as attacker:
        ATTACKS["edit after the last approval, signed heads deleted"].does(attacker, STRANGER)
    verdicts = await check(world.path, Trust(log_keys=[world.log_key]))
    assert (verdicts.is_damaged, verdicts.is_known, verdicts.heads.verdict) == (False, False, "unknown")


async def test_the_attacker_leaves_no_other_trace(world: ProvenLog) -> None:
    """The control of the attacker: what he computes again is what the log would have computed."""
    before = world.path.read_bytes()
    with attacking(world.path) as attacker:
        attacker.rehash()
        attacker.resign(read_key_file(world.key_path))
    verdicts = await check(world.path, Trust(log_keys=[world.log_key], heads=world.outside_heads()))
    assert (found_in(verdicts), verdicts.heads.verdict) == ({}, "ok")
    assert len(world.path.read_bytes()) == len(before)


# ── each check is needed ─────────────────────────────────────────────────────────────────────────────────────────────


def _nothing(*_: object, **__: object) -> None:
    """What is put in the place of a check."""


async def _no_tiles(*_: object) -> None:
    """What is put in the place of a check that waits."""


async def _no_flaw(*_: object) -> tuple[str, None]:
    """What is put in the place of the judgement on an approval."""
    return "verified", None


CHECKS: Final[dict[str, tuple[type, str, object, str]]] = {
    "signatures of heads": (HeadKeys, "signature", lambda *_: "pinned", "the same, re-signed with another key"),
    "roots of heads": (Continuity, "is_continued", lambda *_: True, "stolen log key, edit after the last approval"),
    "sizes of heads": (Continuity, "_judge_lost", _nothing, "truncate, and delete stored signed heads"),
    "approvals": (ApprovalCheck, "_judge", _no_flaw, "move an approval to another proposal"),
    "bodies that are lost": (ErasureCheck, "look", _nothing, "remove a payload without an erasure"),
    "tiles": (TreeCheck, "_look_for_others", _no_tiles, "invent a tile"),
    "the stored tree": (TreeCheck, "finish", _no_tiles, "edit the frontier"),
}


@pytest.mark.parametrize("name", CHECKS)
async def test_without_one_check_its_attack_is_not_found(
    world: ProvenLog, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the checks: each of them is what finds its attack, and nothing else does."""
    place, method, instead, attack = CHECKS[name]
    with attacking(world.path) as attacker:
        ATTACKS[attack].does(attacker, read_key_file(world.key_path))
    trust = Trust(log_keys=[world.log_key], heads=world.outside_heads())
    before = found_in(await check(world.path, trust))
    monkeypatch.setattr(place, method, instead)
    assert found_in(await check(world.path, trust)) != before
