"""A signer is believed nothing: a head counts once its note was opened, and a log goes on from all that it keeps."""

from __future__ import annotations

import os
import sqlite3
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from eventlog import ActionFailed, EventLogError, Expect, InvalidInput, NewEvent, StoreUnavailable
from eventlog.audit.heads import LocalSigner, RemoteSigner, signer_from
from eventlog.audit.heads.head_file import kept_heads
from eventlog.audit.heads.key_file import make_key_file
from eventlog.audit.heads.signer_service import SignerService
from eventlog.events import LogKeyDeclared, LogKeyRevoked
from eventlog.heads import HeadRequest, SignedHead
from eventlog.log import Append
from eventlog.merkle import TreeHead
from eventlog.signing.ed25519 import PrivateKey
from eventlog.signing.head_text import head_text, origin_of
from eventlog.signing.log_keys import rotate
from eventlog.signing.notes import VerifierKey, make_verifier_key, sign_note
from eventlog.stores import SqliteLog
from eventlog.testing.clock import FakeClock
from tests.effect_runs import Looking, Receiver, approved, runner_of
from tests.test_signers import served
from tools.campaigns.storage.log_files import open_file

ANY: Final = Expect.any()
PREFIX: Final = "log.example/runs"
NEVER: Final = {"head_every_s": 3600.0, "head_every_events": 1_000_000}
OURS: Final = PrivateKey.from_seed(b"o" * 32)
THEIRS: Final = PrivateKey.from_seed(b"t" * 32)


class Answering:
    """A signer that signs with `keys`, or with random bytes, and names `named`; `change` is done to each answer."""

    def __init__(self, *keys: PrivateKey, named: PrivateKey | None = OURS, pinned: PrivateKey | None = None) -> None:
        self.keys: Sequence[PrivateKey] = keys
        self.named, self.pinned_key = named, pinned
        self.heads: list[SignedHead] = []
        self.asked_keys = 0

    @property
    def pinned(self) -> VerifierKey | None:
        return None if self.pinned_key is None else make_verifier_key(f"{PREFIX}/{'0' * 32}", self.pinned_key.public)

    def verifier_keys(self, log_id: bytes) -> tuple[VerifierKey, ...]:
        self.asked_keys += 1
        return () if self.named is None else (make_verifier_key(origin_of(PREFIX, log_id), self.named.public),)

    def last(self) -> SignedHead | None:
        return self.heads[-1] if self.heads else None

    def sign(self, request: HeadRequest) -> SignedHead:
        origin = origin_of(PREFIX, request.log_id)
        text = head_text(origin, request.head)
        note = text + f"\n— {origin} {b64encode(os.urandom(68)).decode()}\n".encode()
        for key in self.keys[:1]:
            note = sign_note(text, origin, key)
        signed = self.change(SignedHead(log_id=request.log_id, head=request.head, note=note, signed_at_us=1))
        self.heads.append(signed)
        return signed

    def change(self, signed: SignedHead) -> SignedHead:
        return signed

    def begin(self, log_id: bytes) -> None:
        pass


class Changing(Answering):
    """Signs, and answers with something else than that."""

    def __init__(self, how: str) -> None:
        super().__init__(OURS)
        self.how = how

    def change(self, signed: SignedHead) -> SignedHead:
        note, origin = signed.note, signed.note.split(b"\n")[0].decode()
        other = TreeHead(signed.head.size, bytes(32))
        match self.how:
            case "another root in the note":
                return replace(signed, note=sign_note(head_text(origin, other), origin, OURS))
            case "another origin":
                return replace(signed, note=sign_note(head_text(f"{PREFIX}/{'1' * 32}", signed.head), origin, OURS))
            case "one bit of the signature":
                return replace(signed, note=note[:-10] + (b"A" if note[-10:-9] != b"A" else b"B") + note[-9:])
            case "no note":
                return replace(signed, note=b"")
            case "a time that is none":
                return replace(signed, signed_at_us=2**70)
        return signed


async def write(log: SqliteLog, count: int = 1) -> None:
    await log.append("a", [NewEvent("noted", number) for number in range(count)], expect=ANY)


async def say(log: SqliteLog, event: Any) -> int:
    (result,) = await log.append_reserved([Append("$log", [event], ANY)])
    return result.last_position


def key_of(log: SqliteLog, key: PrivateKey) -> VerifierKey:
    return make_verifier_key(origin_of(PREFIX, log.facts.log_ids[-1][1]), key.public)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


async def resumed(path: Path, signer: Any) -> tuple[int, str | None]:
    """Approve an effect and let it happen; return how many have, and why not."""
    receiver, clock = Receiver(), FakeClock()
    async with open_file(path, signer=signer, clock=clock, **NEVER) as log:
        runner = runner_of(log, clock, Looking(receiver))
        await approved(runner)
        try:
            await runner.resume("run-1")
        except ActionFailed as error:
            return receiver.requests, error.code
        return receiver.requests, None


# ── what a signer answers ────────────────────────────────────────────────────────────────────────────────────────────


async def test_effect_does_not_run_on_a_signature_of_random_bytes(path: Path) -> None:
    assert await resumed(path, Answering()) == (0, "head_not_signed")


async def test_effect_runs_on_a_signature_of_the_key_that_the_signer_has_named(path: Path) -> None:
    assert await resumed(path, Answering(OURS)) == (1, None)


CHANGES: Final = [
    "another root in the note",
    "another origin",
    "one bit of the signature",
    "no note",
    "a time that is none",
]


@pytest.mark.parametrize("how", CHANGES)
async def test_answer_that_was_changed_counts_for_nothing(path: Path, how: str) -> None:
    signer = Changing(how)
    async with open_file(path, signer=signer, **NEVER) as log:
        await write(log)
        with pytest.raises(StoreUnavailable) as refused:
            await log.sign_head()
        assert refused.value.code == "signer_unavailable"
        health = await log.health()
        assert health.signed_size == 0 and health.head_error is not None
        signer.how, signer.heads[:] = "nothing", []
        assert (await log.sign_head()) is not None  # control
    async with open_file(path) as log:
        assert [each.head.size for each in await log.signed_heads()] == [1]


async def test_key_that_a_signer_has_named_first_holds_for_the_life_of_the_process(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    signer = Answering(OURS)
    async with open_file(path, signer=signer, **NEVER) as log:
        await write(log)
        await log.sign_head()
        assert "signer_key_not_pinned" in caplog.text
        signer.keys, signer.named = (THEIRS,), THEIRS
        await write(log)
        with pytest.raises(StoreUnavailable):
            await log.sign_head()
        assert signer.asked_keys == 1
        signer.keys = (OURS,)


async def test_key_that_the_log_declares_is_the_one_that_has_to_sign(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    signer = Answering(OURS, named=THEIRS)
    async with open_file(path, signer=signer, **NEVER) as log:
        await say(log, LogKeyDeclared(verifier_key=key_of(log, OURS).to_text()))
        assert (await log.sign_head()) is not None
        signer.keys = (THEIRS,)
        await write(log)
        with pytest.raises(StoreUnavailable):
            await log.sign_head()
        signer.keys = (OURS,)
        assert (await log.sign_head()) is not None
        assert signer.asked_keys == 0 and "signer_key_not_pinned" not in caplog.text


async def test_rotation_that_the_log_declares_is_followed_at_once(path: Path) -> None:
    signer = Answering(OURS)
    async with open_file(path, signer=signer, **NEVER) as log:
        await say(log, LogKeyDeclared(verifier_key=key_of(log, OURS).to_text()))
        await log.sign_head()
        await say(log, rotate(OURS, THEIRS.public, key_of(log, OURS).name))
        with pytest.raises(StoreUnavailable):  # the old key signs nothing any more
            await log.sign_head()
        signer.keys = (THEIRS,)
        assert (await log.sign_head()) is not None
    async with open_file(path, signer=signer, **NEVER) as log:
        assert (await log.sign_head()) is not None


async def test_log_opens_though_the_key_of_its_last_head_was_retired(path: Path) -> None:
    signer = Answering(OURS)
    async with open_file(path, signer=signer, **NEVER) as log:
        name = key_of(log, OURS)
        await say(log, LogKeyDeclared(verifier_key=name.to_text()))
        await write(log, 3)
    async with open_file(path) as log:
        await say(log, rotate(OURS, THEIRS.public, name.name))
        await say(log, LogKeyRevoked(verifier_key=name.to_text(), from_size=1, reason="stolen"))
    signer.keys = (THEIRS,)
    async with open_file(path, signer=signer, **NEVER) as log:
        signed = await log.sign_head()
        assert signed is not None and signed.head.size == 6


async def test_pinned_key_counts_whatever_the_log_declares(path: Path) -> None:
    signer = Answering(OURS, pinned=OURS, named=THEIRS)
    async with open_file(path, signer=signer, **NEVER) as log:
        await say(log, LogKeyDeclared(verifier_key=key_of(log, THEIRS).to_text()))
        assert (await log.sign_head()) is not None
        signer.keys = (THEIRS,)
        await write(log)
        with pytest.raises(StoreUnavailable):
            await log.sign_head()
        signer.keys = (OURS,)


async def test_pinned_key_is_followed_through_the_rotations_that_it_has_signed(path: Path) -> None:
    signer = Answering(OURS, pinned=OURS)
    async with open_file(path, signer=signer, **NEVER) as log:
        await say(log, LogKeyDeclared(verifier_key=key_of(log, OURS).to_text()))
        await say(log, rotate(OURS, THEIRS.public, key_of(log, OURS).name))
        signer.keys = (THEIRS,)
        assert (await log.sign_head()) is not None


async def test_last_head_of_a_signer_is_opened_before_the_log_is(path: Path) -> None:
    signer = Answering(OURS)
    async with open_file(path, signer=signer, **NEVER) as log:
        await write(log)
    honest = signer.heads[-1]
    signer.heads[-1] = replace(honest, note=honest.note[:-10] + b"AAAAAAAA=\n")
    with pytest.raises(EventLogError) as refused:
        async with open_file(path, signer=signer, **NEVER):
            pass
    assert refused.value.code == "signer_unavailable"
    signer.heads[-1] = honest
    async with open_file(path, signer=signer, **NEVER):
        pass


# ── over a socket ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def key(tmp_path: Path) -> Path:
    make_key_file(tmp_path / "key")
    return tmp_path / "key"


@pytest.fixture
def at(key: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a signer."""
    with served(SignerService(str(tmp_path / "socket"), LocalSigner(key, prefix=PREFIX))):
        yield f"unix:{tmp_path / 'socket'}"


async def test_key_of_a_signer_at_a_socket_can_be_pinned(path: Path, key: Path, at: str) -> None:
    right = LocalSigner(key).verifier_key(bytes(16))
    assert RemoteSigner(at).verifier_keys(bytes(16)) == (make_verifier_key(f"{PREFIX}/{'0' * 32}", right.public),)
    wrong = make_verifier_key(right.name, OURS.public)
    assert await resumed(path, signer_from(f"{at}#{right.to_text()}")) == (1, None)
    with pytest.raises(StoreUnavailable) as refused:
        async with open_file(path, signer=RemoteSigner(at, verifier_key=wrong), **NEVER):
            pass
    assert refused.value.code == "signer_unavailable"
    with pytest.raises(InvalidInput):
        signer_from(f"{at}#nonsense")


# ── heads that the signer has lost ───────────────────────────────────────────────────────────────────────────────────


async def test_lost_heads_of_a_signer_are_said_and_the_log_goes_on(
    path: Path, key: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heads = Path(f"{key}.heads")
    async with open_file(path, signer=LocalSigner(key), **NEVER) as log:
        await write(log, 3)
    async with open_file(path, signer=LocalSigner(key), **NEVER) as log:  # control
        assert (await log.health()).head_error is None
    assert "signer_behind" not in caplog.text
    heads.write_bytes(b"")
    async with open_file(path, signer=LocalSigner(key), **NEVER) as log:
        assert "signer_behind" in caplog.text
        assert "size 3" in ((await log.health()).head_error or "")
        await write(log)
        signed = await log.sign_head()
        assert signed is not None and signed.head.size == 4
        assert "size 3" in ((await log.health()).head_error or ""), "signing again heals nothing"
    assert [each.head.size for each in kept_heads(heads)[0]] == [4]


@pytest.mark.parametrize("how", ["cut", "rewritten"])
async def test_log_that_does_not_go_on_from_a_head_it_keeps_is_refused_though_the_signer_has_lost_it(
    path: Path, key: Path, how: str
) -> None:
    async with open_file(path, signer=LocalSigner(key), **NEVER) as log:
        await write(log, 3)
        head = await log.sign_head()
    assert head is not None
    os.unlink(f"{key}.heads")
    path.with_suffix(".heads").touch()
    other = path.with_name("other.db")
    async with open_file(path) as log:
        await log.backup(other)
    with closing(sqlite3.connect(other)) as database:
        row = database.execute("SELECT log_id, note, signed_at_us FROM heads WHERE size = 3").fetchone()
    os.unlink(path)
    async with open_file(path) as log:
        await write(log, 1 if how == "cut" else 5)
    with closing(sqlite3.connect(path)) as database:  # another log with the old name, and the head that it kept
        for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
            if "log_ids" in name or "heads" in name:
                database.execute(f"DROP TRIGGER {name}")
        database.execute("UPDATE log_ids SET log_id = ?", row[:1])
        database.execute("INSERT INTO heads (size, log_id, note, signed_at_us) VALUES (3, ?, ?, ?)", row)
        database.commit()
    with pytest.raises(StoreUnavailable) as refused:
        async with open_file(path, signer=LocalSigner(key), **NEVER):
            pass
    assert refused.value.code == {"cut": "store_rolled_back", "rewritten": "store_forked"}[how]


async def test_head_in_the_database_that_no_key_has_signed_is_no_head(path: Path, key: Path) -> None:
    async with open_file(path, signer=LocalSigner(key), **NEVER) as log:
        await write(log, 3)
        origin = LocalSigner(key).origin(log.facts.log_ids[-1][1])
        log_id = log.facts.log_ids[-1][1]
    note = sign_note(head_text(origin, TreeHead(9, bytes(32))), origin, THEIRS)
    with closing(sqlite3.connect(path)) as database:
        database.execute("INSERT INTO heads (size, log_id, note, signed_at_us) VALUES (9, ?, ?, 1)", (log_id, note))
        database.commit()
    async with open_file(path, signer=LocalSigner(key), **NEVER) as log:
        assert (await log.health()).head_error is None


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_file_of_heads_that_is_none_is_refused_at_once(key: Path, kind: str) -> None:
    heads = Path(f"{key}.heads")
    match kind:
        case "pipe":
            os.mkfifo(heads)
        case "folder":
            heads.mkdir()
        case "device":
            heads.symlink_to("/dev/zero")
    signer = LocalSigner(key)
    request = HeadRequest(log_id=bytes(16), head=TreeHead(1, bytes(32)), old_size=0, proof=[])
    for ask in (signer.last, lambda: signer.sign(request), lambda: kept_heads(heads)):
        with pytest.raises(StoreUnavailable) as refused:
            ask()
        assert refused.value.code == "signer_unavailable"
