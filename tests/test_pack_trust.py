"""What an auditor's files and keys mean for a pack: a signer's file of heads, and restores that the log declares."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

import eventlog
from eventlog.audit.heads.key_file import make_key_file
from eventlog.audit.heads.local_signer import LocalSigner
from eventlog.audit.pack import Contents, covering_head, pack_files, trust_of, verifier, verify_pack, write_archive
from eventlog.audit.verify import OutsideHead, Trust, Verdicts, verify
from eventlog.events import LOG_STREAM, LogKeyDeclared, SignalReceived
from eventlog.log import Append, Expect
from eventlog.signing.ed25519 import PrivateKey
from eventlog.signing.notes import make_verifier_key, parse_verifier_key
from eventlog.stores import SqliteLog
from tests.command_line import HereCommandLine
from tests.pack_scene import LOG_KEY, Scene, archive_of, note_key

TRUST: Final[dict[str, Any]] = {"log_keys": [note_key(LOG_KEY)]}


# ── a file of heads ──────────────────────────────────────────────────────────────────────────────────────────────────


def heads_file(*notes: bytes, more: Sequence[dict[str, Any]] = ()) -> bytes:
    """Return the lines of a signer."""
    lines = [*({"at_us": n, "note": note.decode()} for n, note in enumerate(notes)), *more]
    return b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in lines)


def checked(tmp_path: Path, files: dict[str, bytes], data: bytes) -> verifier.Report:
    path = tmp_path / "pack.zip"
    path.write_bytes(archive_of(files))
    return verify_pack(str(path), trust_of(**TRUST, heads=[("log.key.heads", data)]))


def test_the_signers_file_of_heads_is_taken_as_it_is(tmp_path: Path) -> None:
    scene = Scene()
    more = [{"at_us": 9, "begins": "00" * 16}, {"at_us": 9, "prefix": "log.example/runs"}]
    torn = b'{"at_us": 10, "note": "cut sh'
    data = heads_file(scene.note(3), scene.note(9), scene.note(), more=more) + torn
    report = checked(tmp_path, scene.files(), data)
    assert report.exit_status == 0, verifier.text_of(report)
    assert report["head"].facts["kept_heads"] == 1


def test_a_file_of_heads_of_another_history_is_found(tmp_path: Path) -> None:
    scene, other = Scene(), Scene(tells={"order_placed": lambda body: {"n": 666}})
    report = checked(tmp_path, scene.files(), heads_file(other.note(9), other.note()))
    assert report.exit_status == 3
    assert "the log was forked" in report["head"].problems[0].message
    longer = checked(tmp_path, scene.files(), heads_file(scene.note(9)))
    assert longer.exit_status == 4, "what is newer than the newest head of the file has nothing to vouch for it"
    assert "no proof from 9 to" in longer["head"].problems[0].message


def test_an_older_head_of_the_file_to_which_a_proof_leads_is_compared(tmp_path: Path) -> None:
    from tests.pack_attacks import with_growth_from

    scene, other = Scene(), Scene(tells={"order_placed": lambda body: {"n": 666}})
    files = with_growth_from(scene, 4)
    good = checked(tmp_path, files, heads_file(scene.note(4), scene.note()))
    assert (good.exit_status, good["head"].facts["kept_heads"]) == (0, 2), verifier.text_of(good)
    assert checked(tmp_path, files, heads_file(other.note(4), scene.note())).exit_status == 3


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"{}\n",
        b"{" * 100_000 + b"\n",
        b'{"at_us":1,"note":7}\n',
        b'{"at_us":1,"note":"a","note":"b"}\n',
        b'{"at_us":1,"other":"a"}\n',
        b'{"at_us":1,"begins":"a"}\n',
        b'{"at_us":1,"note":"no head"}\n',
        b'{"at_us":1,"begins":"a"}\n' * 7,
    ],
    ids=["torn", "empty", "deep", "number", "twice", "other", "no-head", "no-note", "too-many"],
)
def test_a_file_of_heads_that_is_made_to_harm_says_nothing(
    data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifier, "MAX_HEADS", 6)
    report = checked(tmp_path, Scene().files(), data)
    assert report.exit_status == 4, verifier.text_of(report)
    assert "says nothing" in report["head"].problems[0].message


def test_heads_of_a_file_that_do_not_grow_say_nothing(tmp_path: Path) -> None:
    scene, other = Scene(), Scene(tells={"order_placed": lambda body: {"n": 666}})
    for notes in ((scene.note(9), scene.note(4)), (scene.note(), other.note())):
        report = checked(tmp_path, scene.files(), heads_file(*notes))
        assert report.exit_status == 4
        assert "does not go on from the one before it" in report["head"].problems[0].message


def test_a_kept_file_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier, "MAX_TABLE", 100)
    (tmp_path / "heads").write_bytes(b"{" * 101)
    with pytest.raises(ValueError, match="too large"):
        verifier.read_kept(str(tmp_path / "heads"))


# ── restores ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class World:
    """A log with a run, its signer, and what an auditor would have of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "log.db"
        self.old = folder / "old.key"
        self.new = folder / "new.key"
        self.keys: dict[str, str] = {}

    def signer(self, key: Path) -> LocalSigner:
        """Return who signs with this key."""
        return LocalSigner(key, prefix="log.example/runs")

    async def declare(self, log: SqliteLog, signer: LocalSigner, name: str) -> None:
        self.keys[name] = signer.verifier_key((await log.log_ids())[-1][1]).to_text()
        await log.append_reserved([Append(LOG_STREAM, [LogKeyDeclared(verifier_key=self.keys[name])], Expect.any())])

    async def begin(self) -> None:
        make_key_file(self.old)
        async with eventlog.open(self.path, signer=self.signer(self.old)) as log:
            await self.declare(log, self.signer(self.old), "old")
            await self.work(log, "early")
        shutil.copy(self.path, self.folder / "backup.db")

    async def work(self, log: SqliteLog, run: str) -> None:
        await log.append_reserved([Append(f"run:{run}", [SignalReceived(name="n")], Expect.any())])

    def put_back(self) -> None:
        for ending in ("", "-wal", "-shm"):
            (self.folder / f"log.db{ending}").unlink(missing_ok=True)
        shutil.copy(self.folder / "backup.db", self.path)

    async def lose(self, signer_key: Path) -> None:
        """Put the older copy back, and declare it with a signer."""
        self.put_back()
        signer = self.signer(signer_key)
        async with eventlog.open(self.path, signer=signer, restored="the disk broke") as log:
            await self.declare(log, signer, "after")
            await self.work(log, "late")

    def outside(self, key: Path) -> list[OutsideHead]:
        from eventlog.audit.heads.head_file import kept_heads

        return [OutsideHead(note=each.note, source="kept") for each in kept_heads(f"{key}.heads")[0]]

    async def verify(self, *names: str, heads: Sequence[OutsideHead] = ()) -> Verdicts:
        keys = [parse_verifier_key(self.keys[name]) for name in names]
        async with eventlog.open(self.path) as log:
            return await verify(log, trust=Trust(log_keys=keys, heads=heads))

    async def pack(self, run: str) -> Path:
        path = self.folder / f"{run}.zip"
        async with eventlog.open(self.path) as log:
            head = await covering_head(log, (await log.head()).position)
            with path.open("wb") as file:
                await write_archive(pack_files(log, Contents(run_id=run, head=head, report=b"<p>")), file.write)
        return path

    async def check(self, run: str, *names: str, heads: Path | None = None) -> verifier.Report:
        kept = [] if heads is None else [("heads", verifier.read_kept(f"{heads}.heads"))]
        trust = trust_of(log_keys=[self.keys[name] for name in names], heads=kept)
        return verify_pack(str(await self.pack(run)), trust)


@pytest.fixture
async def world(tmp_path: Path) -> World:
    found = World(tmp_path)
    await found.begin()
    return found


async def lose_a_tail(world: World) -> None:
    async with eventlog.open(world.path, signer=world.signer(world.old)) as log:
        await world.work(log, "lost")
    await world.lose(world.old)


@pytest.mark.parametrize("run", ["early", "late"])
async def test_a_key_of_before_a_declared_restore_still_verifies_a_pack_and_the_restore_is_said(
    world: World, run: str
) -> None:
    await lose_a_tail(world)
    for names in (["old"], ["after"], ["old", "after"]):
        report = await world.check(run, *names, heads=world.old)
        assert report.exit_status == 0, verifier.text_of(report)
        assert "restored at position" in report["head"].says and "the disk broke" in report["head"].says
        assert not (await world.verify(*names, heads=world.outside(world.old))).is_damaged


async def test_a_head_of_what_was_lost_vouches_for_nothing(world: World) -> None:
    await lose_a_tail(world)
    heads = world.outside(world.old)
    origin = world.keys["old"].partition("+")[0].encode()
    lost = [each for each in heads if each.note.startswith(origin)][-1]
    path = await world.pack("early")
    for kept, status in (([lost], 4), ([lost, heads[-1]], 0)):
        trust = trust_of(log_keys=[world.keys["old"]], heads=[(each.source, each.note) for each in kept])
        report = verify_pack(str(path), trust)
        assert report.exit_status == status, verifier.text_of(report)
        assert report["head"].facts["lost_heads"] == 1


async def test_a_restore_that_names_less_than_a_kept_head_is_a_cut(world: World) -> None:
    """The operator declares a restore that hides how much was lost: a head that the auditor kept is of more."""
    async with eventlog.open(world.path, signer=world.signer(world.old)) as log:
        for number in range(3):
            await world.work(log, f"lost-{number}")
    kept = world.outside(world.old)[-1]
    shutil.copy(world.old, world.new)  # the same key, with a file of heads that begins anew
    await world.lose(world.new)
    path = await world.pack("early")
    report = verify_pack(str(path), trust_of(log_keys=[world.keys["old"]], heads=[("kept", kept.note)]))
    assert report.exit_status == 3
    assert any("of more than the restore declares lost" in each.message for each in report["head"].problems)
    verdicts = await world.verify("old", heads=[kept])
    assert "store_rolled_back" in {each.reason for each in verdicts.heads.problems}


# ── a copy of before a rotation ──────────────────────────────────────────────────────────────────────────────────────


async def lose_a_rotation(world: World) -> None:
    """Replace the key, then put the copy back that does not know of it, and declare it with the new key's signer."""
    cli = HereCommandLine(world.folder, "--db", "log.db")
    words = ("keys", "rotate", "--key", "old.key", "--to", "new.key", "--json")
    world.keys["rotated"] = (await asyncio.to_thread(cli, *words, status=0)).json["verifier_key"]
    async with eventlog.open(world.path, signer=world.signer(world.new)) as log:
        await world.work(log, "lost")
    await world.lose(world.new)


@pytest.mark.parametrize("run", ["early", "late"])
async def test_the_old_key_cannot_verify_a_copy_of_before_a_rotation_and_is_told_the_key_to_give(
    world: World, run: str
) -> None:
    await lose_a_rotation(world)
    report = await world.check(run, "old")
    assert report.exit_status == 4, verifier.text_of(report)
    assert f"--log-key {world.keys['after']}" in report["head"].problems[0].message
    for heads in ([], world.outside(world.new)):
        verdicts = await world.verify("old", heads=heads)
        assert (verdicts.is_damaged, verdicts.is_known) == (False, False), verdicts.heads
        assert any(f"--log-key {world.keys['after']}" in each for each in verdicts.heads.details["unknown"])


@pytest.mark.parametrize("run", ["early", "late"])
@pytest.mark.parametrize("names", [["after"], ["rotated"], ["old", "after"], ["old", "rotated"]], ids="-".join)
async def test_the_new_key_verifies_a_copy_of_before_a_rotation_and_the_restore_is_said(
    world: World, run: str, names: list[str]
) -> None:
    await lose_a_rotation(world)
    report = await world.check(run, *names, heads=world.new)
    assert report.exit_status == 0, verifier.text_of(report)
    verdicts = await world.verify(*names, heads=world.outside(world.new))
    assert (verdicts.heads.verdict, verdicts.is_damaged) == ("ok", False), verdicts.heads
    assert [each["reason"] for each in verdicts.heads.details["restores"]] == ["the disk broke"]


async def test_heads_under_another_key_without_a_restore_are_damage_as_ever(world: World) -> None:
    """The control: what is not known behind a restore is damage where there was none."""
    stranger = make_verifier_key(parse_verifier_key(world.keys["old"]).name, PrivateKey.from_seed(b"s" * 32).public)
    world.keys["stranger"] = stranger.to_text()
    assert (await world.check("early", "stranger")).exit_status == 3
    assert (await world.verify("stranger")).is_damaged


async def test_a_restore_that_is_invented_to_bring_in_a_key_verifies_nothing_and_is_said(world: World) -> None:
    """Whoever can write the log, and not sign for it, declares a restore and a key of his own."""
    make_key_file(world.new)
    await world.lose(world.new)
    assert (await world.check("late", "old")).exit_status == 4
    verdicts = await world.verify("old", heads=world.outside(world.old))
    assert (verdicts.heads.verdict, len(verdicts.heads.details["restores"])) != ("ok", 1), verdicts.heads
    assert not verdicts.is_known or verdicts.is_damaged
