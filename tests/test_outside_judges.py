"""What others have written judges our heads, proofs and signatures: a witness, a verifier of logs, OpenSSL.

The verifier needs Python 3.12. Where this one is older, it runs under a newer one, with libraries of its own in a
temporary folder, if this machine has one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from witness_log import WitnessService

from eventlog import Expect, NewEvent
from eventlog.audit.heads import LocalSigner
from eventlog.audit.heads.key_file import make_key_file, read_key_file
from eventlog.heads import HeadRequest, SignedHead
from eventlog.merkle import TreeHead
from eventlog.signing.cosignatures import (
    add_cosignatures,
    make_growth_request,
    open_cosignatures,
    parse_witness_key,
)
from eventlog.signing.head_text import open_head
from eventlog.signing.notes import VerifierKey, parse_note
from eventlog.stores import SqliteLog
from tests.command_line import environment
from tests.needs import need, need_command
from tools.campaigns.storage.log_files import open_file

VERIFIER: Final = "aics-tlog==0.2.1"
SIZES: Final = (1, 2, 3, 7, 8, 9, 31, 32, 33, 40)


class Grown(NamedTuple):
    """A real log in a file, grown under its signer."""

    log: SqliteLog
    signer: LocalSigner
    heads: dict[int, SignedHead]
    key: VerifierKey

    async def request(self, old: int, size: int) -> bytes:
        """Return what a witness is asked about a signed head of ours."""
        return make_growth_request(old, await self.log.prove_consistency(old, size), self.heads[size].note)


@pytest.fixture
async def grown(tmp_path: Path) -> AsyncIterator[Grown]:
    """A log of 40 events that was signed at `SIZES`."""
    make_key_file(tmp_path / "key")
    signer = LocalSigner(tmp_path / "key", prefix="log.example/runs")
    async with open_file(tmp_path / "log.db", signer=signer, head_every_events=10**6, head_every_s=3_600) as log:
        heads, size = dict[int, SignedHead](), 0
        for wanted in SIZES:
            for index in range(size, wanted):
                await log.append(f"stream-{index % 3}", [NewEvent("counted", {"index": index})], expect=Expect.any())
            signed = await log.sign_head()
            assert signed is not None and signed.head.size == wanted
            heads[wanted], size = signed, wanted
        yield Grown(log, signer, heads, signer.verifier_key(log.facts.log_ids[-1][1]))


async def forked(grown: Grown, folder: Path) -> tuple[SignedHead, list[bytes]]:
    """Return a head of 41 other events, signed with the real key for this log, and a proof that they go on from 40."""
    async with open_file(folder / "other.db") as other:
        for index in range(41):
            await other.append(f"stream-{index % 3}", [NewEvent("counted", {"index": index})], expect=Expect.any())
        head, proof = await other.tree_head(), await other.prove_consistency(40, 41)
    signer = LocalSigner(folder / "key", prefix="log.example/runs", heads_path=folder / "hidden.heads")
    request = HeadRequest(log_id=grown.heads[1].log_id, head=head, old_size=0, proof=[])
    return signer.sign(request), proof


# ── a witness: witness-log ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def witness(grown: Grown, tmp_path: Path) -> WitnessService:
    state = str(tmp_path / "witness.json")
    WitnessService.create_state(state)
    service = WitnessService.new("witness.example/w1", b"w" * 32, state)
    assert service.add_log(grown.key.name, grown.key.to_text())
    return service


async def test_a_witness_cosigns_every_growth_of_the_log(grown: Grown, witness: WitnessService) -> None:
    key, old = parse_witness_key(witness.vkey()), 0
    for size in SIZES:
        body = await grown.request(old, size)
        status, _, answer = witness.handle_add_checkpoint_http(body.decode(), 1_700_000_000 + size)
        assert (status, old) == (200, old)
        note = add_cosignatures(grown.heads[size].note, answer.encode(), [key])
        assert [each.time_s for each in open_cosignatures(note, [key])] == [1_700_000_000 + size]
        assert open_head(note, [grown.key]).head == grown.heads[size].head
        old = size


async def test_a_witness_names_its_size_to_who_asks_with_another(grown: Grown, witness: WitnessService) -> None:
    assert witness.handle_add_checkpoint((await grown.request(0, 8)).decode())[0] == 200
    for old in (0, 3, 7, 9):
        answer = witness.handle_add_checkpoint_http((await grown.request(old, 33)).decode())
        assert answer == (409, "text/x.tlog.size", "8\n")
    assert witness.handle_add_checkpoint((await grown.request(8, 33)).decode())[0] == 200


async def test_a_witness_refuses_a_log_that_was_put_back(grown: Grown, witness: WitnessService) -> None:
    assert witness.handle_add_checkpoint((await grown.request(0, 33)).decode())[0] == 200
    body = make_growth_request(33, [], grown.heads[9].note)
    assert witness.handle_add_checkpoint(body.decode())[0] == 400
    assert witness.handle_add_checkpoint((await grown.request(9, 9)).decode()) == (409, "33\n")


async def test_a_witness_refuses_a_fork_that_the_real_key_has_signed(
    grown: Grown, witness: WitnessService, tmp_path: Path
) -> None:
    assert witness.handle_add_checkpoint((await grown.request(0, 40)).decode())[0] == 200
    await grown.log.append("stream-0", [NewEvent("counted", {"index": 40})], expect=Expect.any())
    honest = await grown.log.sign_head()
    assert honest is not None
    ours = make_growth_request(40, await grown.log.prove_consistency(40, 41), honest.note)
    fork, proof = await forked(grown, tmp_path)
    assert open_head(fork.note, [grown.key]).head == fork.head, "it bears the signature of the real key"
    assert witness.handle_add_checkpoint(make_growth_request(40, proof, fork.note).decode())[0] == 422
    assert witness.handle_add_checkpoint(ours.decode())[0] == 200


async def test_a_witness_refuses_who_has_another_key(grown: Grown, witness: WitnessService, tmp_path: Path) -> None:
    make_key_file(tmp_path / "stranger")
    stranger = LocalSigner(tmp_path / "stranger", prefix="log.example/runs")
    head = grown.heads[8]
    note = stranger.sign(HeadRequest(log_id=head.log_id, head=head.head, old_size=0, proof=[])).note
    assert witness.handle_add_checkpoint(make_growth_request(0, [], note).decode())[0] == 403


# ── a verifier of logs: aics-tlog ────────────────────────────────────────────────────────────────────────────────────

_JUDGE: Final = """
import json, sys
from base64 import b64decode
from aics_tlog import (MerkleTree, parse_note, parse_vkey, verify_checkpoint, verify_consistency, verify_inclusion)

def judge(kind, case):
    b = lambda name: b64decode(case[name])
    proof = [b64decode(each) for each in case.get("proof", ())]
    if kind == "head":
        witnesses = [parse_vkey(each) for each in case["witnesses"]]
        found = verify_checkpoint(parse_note(b("note")), parse_vkey(case["key"]), witnesses, len(witnesses),
                                  expected_origin=case["origin"])
        return found.ok and (found.size, found.root) == (case["size"], b("root"))
    if kind == "inclusion":
        return verify_inclusion(b("leaf"), case["index"], case["size"], proof, b("root"))
    if kind == "consistency":
        return verify_consistency(case["old_size"], case["size"], b("old_root"), b("root"), proof)
    tree = MerkleTree([b64decode(each) for each in case["entries"]])
    return tree.root(case["size"]) == b("root") and tree.inclusion_proof(0, case["size"]) == proof

def safely(kind, case):
    try: return bool(judge(kind, case))
    except ValueError: return False

print(json.dumps([safely(kind, case) for kind, case in json.load(sys.stdin)]))
"""

Case = tuple[str, dict[str, Any]]


class Judge(NamedTuple):
    """Who runs the verifier: an interpreter, and the folder of its libraries, if they are not its own."""

    python: str
    folder: str


def newer_pythons() -> Iterator[str]:
    """Yield interpreters from 3.12 on that PATH and pyenv offer, the newest first."""
    names = [f"python3.{minor}" for minor in (15, 14, 13, 12)]
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for name in names:
        yield from (str(path) for path in sorted(root.glob(f"{name.removeprefix('python')}.*/bin/{name}")))
        path = shutil.which(name)
        if path is not None:
            yield path


def is_new_enough(python: str) -> bool:
    """Say whether an interpreter runs at all: a shim of pyenv may lead nowhere."""
    program = "import sys, ctypes; sys.exit(sys.version_info < (3, 12) or sys.version_info[3] != 'final')"
    return subprocess.run([python, "-c", program], capture_output=True, timeout=60, check=False).returncode == 0


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    """Return an interpreter, and the folder in which it has the verifier."""
    if find_spec("aics_tlog") is not None:
        return Judge(sys.executable, "")
    python = next((each for each in newer_pythons() if is_new_enough(each)), None)
    need(python is not None, f"a Python from 3.12 on, for {VERIFIER}")
    assert python is not None
    folder = str(tmp_path_factory.mktemp("verifier"))
    install = ["install", "--quiet", "--no-compile", "--only-binary", ":all:", "--target", folder, VERIFIER]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, *install]
    ended = subprocess.run(command, capture_output=True, timeout=240, check=False, text=True)
    need(ended.returncode == 0, f"{VERIFIER}: {ended.stderr.strip()[-300:]}")
    return Judge(python, folder)


def judged(judge: Judge, cases: list[Case]) -> list[bool]:
    """Return what the verifier says of each case."""
    text = json.dumps(cases)
    command = [judge.python, "-c", _JUDGE]
    own = environment(PYTHONPATH=judge.folder)
    ended = subprocess.run(command, input=text, capture_output=True, env=own, timeout=120, check=False, text=True)
    assert ended.returncode == 0, ended.stderr
    answers: list[bool] = json.loads(ended.stdout)
    assert len(answers) == len(cases)
    return answers


def spelled(data: bytes) -> str:
    return b64encode(data).decode()


def head_case(grown: Grown, size: int, note: bytes, witnesses: tuple[str, ...] = ()) -> Case:
    facts = {"key": grown.key.to_text(), "origin": grown.key.name, "witnesses": list(witnesses)}
    head = grown.heads[size].head
    return "head", {**facts, "note": spelled(note), "size": size, "root": spelled(head.root)}


async def inclusion_case(grown: Grown, position: int, head: TreeHead) -> Case:
    async with aclosing(grown.log.read_all(after=position - 1, limit=1)) as events:
        leaf = (await anext(events)).leaf
    proof = [spelled(each) for each in await grown.log.prove_inclusion(position, head.size)]
    facts = {"leaf": spelled(leaf), "index": position - 1, "size": head.size, "root": spelled(head.root)}
    return "inclusion", {**facts, "proof": proof}


async def consistency_case(grown: Grown, old: TreeHead, new: TreeHead) -> Case:
    proof = [spelled(each) for each in await grown.log.prove_consistency(old.size, new.size)]
    facts = {"old_size": old.size, "old_root": spelled(old.root), "size": new.size, "root": spelled(new.root)}
    return "consistency", {**facts, "proof": proof}


async def entries_case(grown: Grown, head: TreeHead) -> Case:
    async with aclosing(grown.log.read_entries()) as entries:
        all_of_them = [spelled(each.entry) async for each in entries]
    proof = [spelled(each) for each in await grown.log.prove_inclusion(1, head.size)]
    return "entries", {"entries": all_of_them, "size": head.size, "root": spelled(head.root), "proof": proof}


async def honest_cases(grown: Grown, witness: WitnessService) -> list[Case]:
    heads = [grown.heads[size].head for size in SIZES]
    cases = [head_case(grown, size, grown.heads[size].note) for size in SIZES]
    answer = witness.handle_add_checkpoint((await grown.request(0, 33)).decode())[1]
    cases.append(head_case(grown, 33, grown.heads[33].note + answer.encode(), (witness.vkey(),)))
    for head in heads:
        cases.append(await entries_case(grown, head))
        cases += [await inclusion_case(grown, position, head) for position in range(1, head.size + 1, 3)]
        cases += [await consistency_case(grown, old, head) for old in heads if old.size <= head.size]
    return cases


def altered(case: Case) -> Iterator[Case]:
    """Yield the case with each of its texts, numbers and hashes changed, one at a time.

    Not the sizes of proofs: trees of several sizes have the same path, and the signed head says which one it is.
    """
    kind, facts = case
    for name, value in facts.items():
        if name in ("note", "leaf", "root", "old_root"):
            yield kind, {**facts, name: spelled(turned(value))}
        elif name == "index" or (name == "size" and kind == "head"):
            yield kind, {**facts, name: value + 1}
        elif name == "proof" and value:
            yield kind, {**facts, name: [spelled(turned(value[0])), *value[1:]]}
            yield kind, {**facts, name: value[:-1]}
        elif name == "proof":
            yield kind, {**facts, name: [spelled(bytes(32))]}


def turned(value: str) -> bytes:
    data = bytearray(b64decode(value))
    data[len(data) // 2] ^= 1
    return bytes(data)


@pytest.mark.timeout(400)
async def test_a_verifier_takes_our_heads_and_proofs_and_none_that_was_altered(
    grown: Grown, witness: WitnessService, judge: Judge, tmp_path: Path
) -> None:
    honest = await honest_cases(grown, witness)
    wrong = [each for case in honest for each in altered(case)]
    fork, _ = await forked(grown, tmp_path)
    wrong.append(head_case(grown, 40, fork.note))
    answers = judged(judge, [*honest, *wrong])
    assert [case for case, is_taken in zip(honest, answers, strict=False) if not is_taken] == []
    assert [case for case, is_taken in zip(wrong, answers[len(honest) :], strict=True) if is_taken] == []
    assert len(honest) > 100 and len(wrong) > 300


# ── OpenSSL ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def openssl(*words: str | Path) -> subprocess.CompletedProcess[bytes]:
    command = need_command("openssl")
    return subprocess.run([command, *map(str, words)], capture_output=True, timeout=60, check=False)


async def test_openssl_verifies_the_signature_of_a_head(grown: Grown, tmp_path: Path) -> None:
    text, (line,) = parse_note(grown.heads[33].note)
    (tmp_path / "text").write_bytes(text)
    (tmp_path / "signature").write_bytes(line.signature)
    assert openssl("pkey", "-in", tmp_path / "key", "-pubout", "-out", tmp_path / "public").returncode == 0
    words = ("pkeyutl", "-verify", "-pubin", "-inkey", tmp_path / "public", "-rawin")
    files = ("-in", tmp_path / "text", "-sigfile", tmp_path / "signature")
    assert b"Signature Verified Successfully" in openssl(*words, *files).stdout
    (tmp_path / "text").write_bytes(text.replace(b"\n33\n", b"\n34\n"))
    assert openssl(*words, *files).returncode != 0


def test_a_key_that_openssl_has_made_signs_here(tmp_path: Path) -> None:
    assert openssl("genpkey", "-algorithm", "ed25519", "-out", tmp_path / "made").returncode == 0
    (tmp_path / "made").chmod(0o600)
    shown = openssl("pkey", "-in", tmp_path / "made", "-pubout", "-outform", "DER").stdout
    assert read_key_file(tmp_path / "made").public == shown[-32:]
