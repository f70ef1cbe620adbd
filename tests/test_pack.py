"""`eventlog export --format pack`: what a real log gives an auditor, who has a file, a key and `cryptography`.

What the verifier finds in packs that lie is in `tests/test_pack_verifier.py`; these packs come from logs that do not.
"""

from __future__ import annotations

import base64
import json
import os
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

import eventlog
from eventlog.audit.heads.key_file import make_key_file
from eventlog.audit.heads.local_signer import LocalSigner
from eventlog.audit.pack import Contents, covering_head, pack_files, trust_of, verifier, verify_pack, write_archive
from eventlog.errors import Misuse
from eventlog.events import LOG_STREAM, LogKeyDeclared, SignalReceived, run_stream
from eventlog.log import Append, Expect
from eventlog.proposal import propose
from eventlog.runtime.actions.write_file import WriteFile
from eventlog.runtime.approval_statements import approval_statement, bytes_to_sign, sign_approval
from eventlog.runtime.approvers import approver_challenge, enrol_approver, revoke_approver, sign_enrolment
from eventlog.runtime.effects import Promise
from eventlog.runtime.grounds import Grounds
from eventlog.runtime.policies import Policy
from eventlog.runtime.runner import Runner
from eventlog.runtime.signed_decisions import SignedDecisions
from eventlog.signing.ed25519 import PrivateKey
from eventlog.signing.envelopes import make_envelope, pae
from eventlog.signing.ssh_signatures import make_ssh_signature, public_line
from eventlog.signing.statements import encode_approval, encode_enrolment, key_id_of
from eventlog.stores import SqliteLog
from eventlog.stores.subject_keys import SubjectKeys
from eventlog.testing.clock import FakeClock
from tests.command_line import HereCommandLine
from tests.effect_runs import Crash, Receiver, Sending, crash_at, runner_of
from tests.needs import need
from tests.pack_scene import archive_of

RUN: Final = "refund 17"
ALICE: Final = PrivateKey.from_seed(b"a" * 32)
BOB: Final = PrivateKey.from_seed(b"b" * 32)
APPROVERS: Final = ("alice=" + base64.b64encode(ALICE.public).decode(), "bob=" + public_line(BOB.public))


def signer_of(folder: Path) -> LocalSigner:
    return LocalSigner(folder / "log.key", prefix="log.example/runs")


@dataclass(frozen=True)
class Told:
    """A log in which alice, with her key file, and bob, with his SSH key, have approved what the run did."""

    folder: Path
    log_key: str
    seen_size: int

    @property
    def trust(self) -> dict[str, Any]:
        return {"log_keys": [self.log_key], "approvers": APPROVERS, "min_level": 2, "run": RUN}

    def check(self, name: str, **more: Any) -> verifier.Report:
        return verify_pack(str(self.folder / name), trust_of(**{**self.trust, **more}))


async def enrol(log: SqliteLog) -> None:
    """Enrol alice and bob."""
    await enrol_approver(
        log,
        sign_enrolment(await approver_challenge(log, "alice", ALICE.public), ALICE),
        kind="ed25519",
        public=ALICE.public,
    )
    challenge = await approver_challenge(log, "bob", BOB.public)
    payload = encode_enrolment(challenge)
    proof = make_envelope(payload, challenge.key_id, make_ssh_signature(BOB, pae(payload)))
    await enrol_approver(log, proof, kind="ssh-ed25519", public=BOB.public)


async def approve(runner: Runner, log: SqliteLog) -> None:
    """Let both approve."""
    first = await approval_statement(log, RUN, approver="alice")
    await runner.approve(RUN, first.proposal_sha256, envelope=sign_approval(first, ALICE))
    second = await approval_statement(log, RUN, approver="bob", reason="it is due")
    signature = make_ssh_signature(BOB, bytes_to_sign(second))
    envelope = make_envelope(encode_approval(second), second.key_id, signature)
    await runner.approve(RUN, second.proposal_sha256, envelope=envelope)


async def tell(folder: Path) -> Told:
    """Make the log: a run that asks for two approvals of level 2, and does what was approved."""
    make_key_file(folder / "log.key")
    signer = signer_of(folder)
    async with eventlog.open(folder / "log.db", signer=signer) as log:
        key = signer.verifier_key((await log.log_ids())[-1][1]).to_text()
        await log.append_reserved([Append(LOG_STREAM, [LogKeyDeclared(verifier_key=key)], Expect.any())])
        await enrol(log)
        policies = {"write_draft": Policy(required=2, level=2, separation_of_duties=True)}
        runner = Runner(log, actions=[WriteFile(name="write_draft", shows_content=True)], policies=policies)
        proposal = propose("write_draft", {"content": "50 € zurück"}, str(folder / "letter.txt"))
        await runner.propose(RUN, proposal, actor="agent")
        seen = (await log.head()).position
        await approve(runner, log)
        await runner.resume(RUN)
    return Told(folder, key, seen)


@pytest.fixture
async def told(tmp_path: Path) -> Told:
    return await tell(tmp_path)


@pytest.fixture
async def log(told: Told) -> AsyncIterator[SqliteLog]:
    """The log of the story, open again."""
    async with eventlog.open(told.folder / "log.db", signer=signer_of(told.folder)) as log:
        yield log


@pytest.fixture
def cli(told: Told) -> HereCommandLine:
    return HereCommandLine(told.folder, "--db", "log.db")


def export(cli: HereCommandLine, to: str, *more: str, status: int = 0) -> Any:
    return cli("export", "--format", "pack", "--run", RUN, "--to", to, "--json", *more, status=status).json


async def written(log: SqliteLog, path: Path, run_id: str = RUN) -> Path:
    """Write a pack of a log as it is now."""
    head = await covering_head(log, (await log.head()).position)
    with path.open("wb") as file:
        await write_archive(pack_files(log, Contents(run_id=run_id, head=head, report=b"<p>")), file.write)
    return path


# ── what the command gives ───────────────────────────────────────────────────────────────────────────────────────────


def test_the_pack_of_a_run_verifies_with_the_auditors_own_keys(told: Told, cli: HereCommandLine) -> None:
    card = export(cli, "pack.zip")
    report = told.check("pack.zip")
    assert report.exit_status == 0, verifier.text_of(report)
    assert [(each["approver"], each["level"], each["key"]) for each in report["approvals"].facts["each"]] == [
        ("alice", 2, "your key"),
        ("bob", 2, "your key"),
    ]
    assert card["verifier_sha256"] in zipfile.ZipFile(told.folder / "pack.zip").read("README.txt").decode()


def test_the_same_log_gives_the_same_bytes_and_a_folder_holds_the_same_files(told: Told, cli: HereCommandLine) -> None:
    export(cli, "one.zip")
    export(cli, "two.zip")
    export(cli, "three/")
    first, second = ((told.folder / name).read_bytes() for name in ("one.zip", "two.zip"))
    assert first == second
    with zipfile.ZipFile(told.folder / "one.zip") as archive:
        for name in archive.namelist():
            assert (told.folder / "three" / name).read_bytes() == archive.read(name), name
    assert told.check("three").exit_status == 0


def test_a_pack_names_no_place_of_the_machine_it_was_made_on(told: Told, cli: HereCommandLine) -> None:
    """The target of the action is in the proposal, and said there; the path of the log is nobody's business."""
    export(cli, "pack/")
    report = (told.folder / "pack" / "report.html").read_text()
    assert str(told.folder / "log.db") not in report


def test_a_proof_of_growth_is_added_for_a_head_that_the_auditor_holds(told: Told, cli: HereCommandLine) -> None:
    export(cli, "pack.zip")
    kept = zipfile.ZipFile(told.folder / "pack.zip").read("checkpoint")
    size = int(kept.split(b"\n")[1])
    assert told.check("pack.zip", heads=[("kept.note", kept)]).exit_status == 0
    export(cli, "more.zip", "--since-size", str(size - 1))
    assert f"consistency/{size - 1}.proof" in zipfile.ZipFile(told.folder / "more.zip").namelist()


def test_a_pack_is_there_whole_or_not_at_all(told: Told, cli: HereCommandLine) -> None:
    before = set(os.listdir(told.folder))
    (told.folder / "pack.zip").write_text("mine")
    assert export(cli, "pack.zip", status=2)["error"] == "target_exists"
    (told.folder / "pack").mkdir()
    assert export(cli, "pack/", status=2)["error"] == "target_exists"
    unknown = cli("export", "--format", "pack", "--run", "nobody", "--to", "x.zip", "--json")
    assert unknown.json["error"] == "unknown_run:nobody"
    export(cli, "size.zip", "--since-size", "99999", status=2)
    assert set(os.listdir(told.folder)) == before | {"pack.zip", "pack"}
    assert (told.folder / "pack.zip").read_text() == "mine"


@pytest.mark.parametrize(
    "words",
    [("--stream", "x"), ("--limit", "1"), ("--after", "1"), ("--type", "*"), ("--stream-prefix", "x")],
    ids=lambda words: words[0],
)
def test_a_pack_is_of_one_run_and_takes_no_other_selection(words: tuple[str, str], tmp_path: Path) -> None:
    cli = HereCommandLine(tmp_path, "--db", "log.db")
    cli("export", "--format", "pack", "--run", RUN, "--to", "p.zip", *words, status=2)
    cli("export", "--format", "pack", "--to", "p.zip", status=2)
    cli("export", "--format", "pack", "--run", RUN, "--to", "-", status=2)


async def test_a_log_without_a_signed_head_gives_no_pack(tmp_path: Path) -> None:
    async with eventlog.open(tmp_path / "log.db") as log:
        signal = SignalReceived(name="n")
        await log.append_reserved([Append(run_stream(RUN), [signal], Expect.no_stream())])
        with pytest.raises(Misuse) as refused:
            await covering_head(log, 1)
    assert refused.value.code == "no_signed_head"


# ── what became of the log since ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_key_that_is_revoked_after_the_effect_does_not_undo_what_it_approved(
    told: Told, log: SqliteLog
) -> None:
    await revoke_approver(log, key_id_of(ALICE.public), reason="lost")
    path = await written(log, told.folder / "pack.zip")
    assert verify_pack(str(path), trust_of(**told.trust)).exit_status == 0


async def test_an_erased_body_is_erased_in_the_pack_and_everything_else_still_verifies(
    told: Told, log: SqliteLog
) -> None:
    position = [event.position async for event in log.read(run_stream(RUN)) if event.type == "action_executed"][-1]
    await log.erase([position], legal_basis="art. 17")
    path = await written(log, told.folder / "pack.zip")
    report = verify_pack(str(path), trust_of(**told.trust))
    assert report.exit_status == 0, verifier.text_of(report)
    assert report["erasures"].facts["erased"] == [position]


async def test_an_erased_approval_cannot_be_checked_any_more_and_nothing_says_that_it_can(
    told: Told, log: SqliteLog
) -> None:
    position = [event.position async for event in log.read(run_stream(RUN)) if event.type == "approval_recorded"][-1]
    await log.erase([position], legal_basis="art. 17")
    report = verify_pack(str(await written(log, told.folder / "pack.zip")), trust_of(**told.trust))
    assert report.exit_status == 4 and report["approvals"].verdict == "unverified", verifier.text_of(report)


async def test_an_erased_proposal_leaves_the_approvals_of_its_hash_verifiable(told: Told, log: SqliteLog) -> None:
    position = [event.position async for event in log.read(run_stream(RUN)) if event.type == "proposal_recorded"][-1]
    await log.erase([position], legal_basis="art. 17")
    report = verify_pack(str(await written(log, told.folder / "pack.zip")), trust_of(**told.trust))
    assert report.exit_status == 0, verifier.text_of(report)


def test_the_file_of_heads_that_verifies_a_log_verifies_a_pack(told: Told, cli: HereCommandLine) -> None:
    export(cli, "pack.zip")
    trusted = ("--log-key", told.log_key, "--approver", APPROVERS[0], "--approver", APPROVERS[1])
    for of_what in ((), ("--pack", "pack.zip")):
        assert cli("verify", *of_what, *trusted, "--head", "log.key.heads", status=0).out
    (told.folder / "no.heads").write_text('{"at_us":1,"prefix":"log.example/runs"}\n')
    for of_what in ((), ("--pack", "pack.zip")):
        cli("verify", *of_what, *trusted, "--head", "no.heads", status=4)


@pytest.mark.parametrize("is_begun_in_time", [True, False])
async def test_a_retry_behind_the_time_of_its_approval_is_honest_if_the_first_attempt_was_in_time(
    told: Told, is_begun_in_time: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock((2**51 // 10**6) * 10**6)
    receiver = Receiver(is_refusing=True)
    action = Sending(receiver, Promise.KEYED, key_lifetime_s=86_400.0)
    proposal = propose("send", {}, "target")
    async with eventlog.open(told.folder / "log.db", signer=signer_of(told.folder), clock=clock) as log:
        await runner_of(log, clock, action, policies={"send": Policy(level=2)}).propose("late", proposal, actor="agent")
        statement = await approval_statement(log, "late", approver="alice", valid_for_s=60, clock=clock)
        crashing = runner_of(log, clock, action, reach=crash_at("effect.after"))
        await crashing.approve("late", proposal.hash, envelope=sign_approval(statement, ALICE))
        if not is_begun_in_time:  # break it on purpose: the engine begins all the same
            clock.advance(hours=1)
            monkeypatch.setattr(SignedDecisions, "prove", no_proof_at_all)
            monkeypatch.setattr(SignedDecisions, "refusal_before_effect", nothing_refused)
        with pytest.raises(Crash):
            await crashing.resume("late")
        clock.advance(hours=1)
        await runner_of(log, clock, action).resume("late")
        await log.sign_head()
        path = await written(log, told.folder / "late.zip", "late")
    report = verify_pack(str(path), trust_of(log_keys=[told.log_key], approvers=APPROVERS, run="late"))
    assert report.exit_status == (0 if is_begun_in_time else 3), verifier.text_of(report)


async def no_proof_at_all(self: SignedDecisions, request: Any) -> Grounds:
    return Grounds()


async def nothing_refused(self: SignedDecisions, request: Any) -> None:
    return None


async def test_a_run_that_was_proposed_before_a_restore_and_approved_behind_it_gives_an_honest_pack(told: Told) -> None:
    signer = signer_of(told.folder)
    proposal = propose("write_draft", {"content": "later"}, str(told.folder / "later.txt"))
    async with eventlog.open(told.folder / "log.db", signer=signer) as log:
        await runner_of_later(log).propose("later", proposal, actor="agent")
    async with eventlog.open(told.folder / "log.db", signer=signer, restored="a drill") as log:
        new_key = signer.verifier_key((await log.log_ids())[-1][1]).to_text()
        await log.append_reserved([Append(LOG_STREAM, [LogKeyDeclared(verifier_key=new_key)], Expect.any())])
        statement = await approval_statement(log, "later", approver="alice")
        await runner_of_later(log).approve("later", proposal.hash, envelope=sign_approval(statement, ALICE))
        await log.sign_head()
        path = await written(log, told.folder / "later.zip", "later")
    report = verify_pack(str(path), trust_of(log_keys=[told.log_key, new_key], approvers=APPROVERS, run="later"))
    assert report["approvals"].problems == [], verifier.text_of(report)


def runner_of_later(log: SqliteLog) -> Runner:
    return Runner(log, actions=[WriteFile(name="write_draft")], policies={"write_draft": Policy(level=2)})


async def test_a_log_that_was_restored_gives_packs_of_both_incarnations(told: Told) -> None:
    signer = signer_of(told.folder)
    async with eventlog.open(told.folder / "log.db", signer=signer, restored="a drill") as log:
        key = signer.verifier_key((await log.log_ids())[-1][1]).to_text()
        await log.append_reserved([Append("run:later", [SignalReceived(name="n")], Expect.no_stream())])
        path = await written(log, told.folder / "old.zip")
        old = verify_pack(str(path), trust_of(**{**told.trust, "log_keys": [key]}))
        assert old.exit_status == 0, verifier.text_of(old)
        later = verify_pack(str(await written(log, told.folder / "new.zip", "later")), trust_of(log_keys=[key]))
        assert later.exit_status == 0, verifier.text_of(later)
    assert told.check("old.zip").exit_status == 0, "the key of before the restore is followed"


async def test_a_run_about_a_subject_is_in_the_pack_as_it_is_stored(told: Told) -> None:
    keys = SubjectKeys(told.folder / "keys", wrapping_key=bytes(32))
    signer = signer_of(told.folder)
    async with eventlog.open(told.folder / "log.db", signer=signer, subject_keys=keys) as log:
        signal = SignalReceived(name="address", payload=msgspec.Raw(b'"Baker Street 221b"'))
        about = Append("run:about", [signal], Expect.no_stream(), subject="customer-17")
        await log.append_reserved([about])
        path = await written(log, told.folder / "pack.zip", "about")
    report = verify_pack(str(path), trust_of(log_keys=[told.log_key]))
    assert report.exit_status == 0 and report["erasures"].facts["encrypted"] == 1, verifier.text_of(report)
    assert b"Baker" not in path.read_bytes()


def test_a_damaged_log_gives_no_pack(told: Told, cli: HereCommandLine) -> None:
    with closing(sqlite3.connect(told.folder / "log.db")) as connection, connection:
        triggers = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")]
        for name in triggers:
            connection.execute(f'DROP TRIGGER "{name}"')
        connection.execute("UPDATE events SET recorded_at_us = recorded_at_us + 1 WHERE position = ?", [told.seen_size])
    export(cli, "pack.zip", status=3)
    assert not (told.folder / "pack.zip").exists()


# ── the auditor's machine ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with nothing but `cryptography`; skipped, or in CI failed, where none can be made."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    command = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
    made = subprocess.run(command, capture_output=True, timeout=100, check=False)
    need(made.returncode == 0, "the module venv")
    python = folder / "bin" / "python"
    install = ["--python", str(python), "install", "--quiet", "--no-compile", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", *install, "cryptography>=44"]
    installed = subprocess.run(command, capture_output=True, timeout=100, check=False)
    need(installed.returncode == 0, "a package index to install `cryptography` from")
    return python


def test_an_auditor_checks_a_pack_with_cryptography_alone(told: Told, cli: HereCommandLine, bare: Path) -> None:
    export(cli, "pack.zip")
    with zipfile.ZipFile(told.folder / "pack.zip") as archive:
        (told.folder / "verify.py").write_bytes(archive.read("verify.py"))
    policy = told.folder / "policy.json"
    people = [{"id": name, "key": key} for name, _, key in (each.partition("=") for each in APPROVERS)]
    policy.write_text(json.dumps({"log_keys": [told.log_key], "approvers": people, "min_level": 2, "run": RUN}))
    command = [str(bare), "-I", "verify.py", "pack.zip", "--policy", "policy.json"]
    good = subprocess.run(command, cwd=told.folder, capture_output=True, text=True, timeout=60, check=False)
    assert (good.returncode, good.stderr) == (0, "") and good.stdout.endswith("VERIFIED\n"), good.stdout
    with zipfile.ZipFile(told.folder / "pack.zip") as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    changed = files["entries.bin"].replace(b"agent", b"Agent")
    (told.folder / "pack.zip").write_bytes(archive_of({**files, "entries.bin": changed}))
    bad = subprocess.run(command, cwd=told.folder, capture_output=True, text=True, timeout=60, check=False)
    assert bad.returncode == 3 and "entries.bin: run:refund 17 version" in bad.stdout, bad.stdout
