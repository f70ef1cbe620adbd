"""The one-file verifier of evidence packs: what it finds, what it must not be misled by, and that each check is needed.

The packs are made by hand (`tests/pack_scene.py`), most of them by an operator who lies (`tests/pack_attacks.py`).
"""

from __future__ import annotations

import ast
import functools
import json
import os
import struct
import subprocess
import sys
import types
import zipfile
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pytest

from eventlog import entry, merkle
from eventlog.audit.pack import VERIFIER, verifier
from eventlog.events import LOG_EVENTS, RUN_EVENTS, PolicyTerms
from eventlog.signing.ed25519 import PrivateKey
from eventlog.signing.shown_requests import SHOWN_AS
from eventlog.signing.ssh_signatures import NAMESPACE, SK_SSH_ED25519, make_ssh_signature, public_line
from eventlog.signing.statements import ApprovalStatement, EnrolmentStatement
from eventlog.stores.artifacts import ARTIFACT_EVENTS
from tests.pack_attacks import ATTACKS, STATEMENTS, Attack
from tests.pack_scene import ALICE, LOG_KEY, RUN, Key, Scene, archive_of, note_key, with_manifest
from tests.test_ssh_signatures import token_blob

TRUST: Final[dict[str, Any]] = {"log_keys": [note_key(LOG_KEY)], "approvers": ["alice=" + ALICE.text]}
PLAIN_FILES: Final = frozenset({"README.txt", "verify.py", "report.html"})


def check(module: Any, path: Path, trust: Mapping[str, Any] | None = None) -> verifier.Report:
    """Return what a verifier says of the pack at `path`."""
    report: verifier.Report = module.verify_pack(str(path), module.trust_of(**(TRUST if trust is None else trust)))
    return report


def check_in_memory(module: Any, files: Mapping[str, bytes], trust: Mapping[str, Any]) -> verifier.Report:
    """Return what a verifier says of files that were never written."""
    report: verifier.Report = module.Report()
    module.check_case(module.Case(MemoryPack(files, module.PackError), module.trust_of(**trust), report))
    return report


class MemoryPack(verifier.Pack):
    """A pack that is in no file."""

    def __init__(self, files: Mapping[str, bytes], error: type[Exception]) -> None:
        super().__init__({name: len(data) for name, data in files.items()})
        self._files = files
        self._error = error

    def read(self, name: str, limit: int) -> bytes:
        if name not in self._files or len(self._files[name]) > limit:
            raise self._error("the file is missing, or too large", name)
        return self._files[name]

    def pieces(self, name: str) -> Iterator[bytes]:
        yield self._files[name]


def written(tmp_path: Path, files: Mapping[str, bytes]) -> Path:
    """Return the path of a folder with these files."""
    folder = tmp_path / "pack"
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def archived(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "pack.zip"
    path.write_bytes(data)
    return path


@functools.cache
def mutated(*guard: tuple[str, str]) -> types.ModuleType:
    """Return the verifier with some pieces of its source changed, which have to be there."""
    source = VERIFIER.decode()
    for old, new in guard:
        assert old in source, old
        source = source.replace(old, new)
    module = types.ModuleType("mutated_verifier")
    sys.modules[module.__name__] = module  # where dataclasses look for the names of their types
    exec(compile(source, "mutated_verifier.py", "exec"), module.__dict__)
    return module


# ── an honest pack ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_honest_pack_verifies_as_an_archive_and_as_a_folder(tmp_path: Path) -> None:
    files = Scene().files()
    archive, folder = archived(tmp_path, archive_of(files)), written(tmp_path, files)
    reports = [check(verifier, path, {**TRUST, "min_level": 2, "run": RUN}) for path in (archive, folder)]
    assert verifier.text_of(reports[0]) == verifier.text_of(reports[1])
    assert reports[0].exit_status == 0, verifier.text_of(reports[0])
    (approval,) = reports[0]["approvals"].facts["each"]
    assert (approval["level"], approval["key"], approval["approver"]) == (2, "your key", "alice")
    assert reports[0]["erasures"].facts["erased"] == [6]


def test_without_a_key_of_the_auditors_nothing_is_verified(tmp_path: Path) -> None:
    report = check(verifier, archived(tmp_path, archive_of(Scene().files())), {})
    assert report.exit_status == 4
    assert report["head"].verdict == "unverified" and report["integrity"].verdict == "ok"


def test_the_key_of_the_log_alone_verifies_and_says_whose_word_the_approvers_key_is(tmp_path: Path) -> None:
    report = check(verifier, archived(tmp_path, archive_of(Scene().files())), {"log_keys": TRUST["log_keys"]})
    assert report.exit_status == 0
    assert report["approvals"].facts["each"][0]["key"] == "a key that only the log names"


def test_a_key_that_was_rotated_is_followed_from_the_one_that_the_auditor_has(tmp_path: Path) -> None:
    from tests.pack_attacks import rotated, scene_with
    from tests.pack_scene import BOB

    scene = scene_with("after", rotated)
    report = check(verifier, written(tmp_path, scene.files(note=scene.note(key=BOB))))
    assert report.exit_status == 0 and "rotated" in report["head"].says, verifier.text_of(report)


def test_a_smaller_head_that_the_auditor_kept_is_compared_by_a_proof_in_the_pack(tmp_path: Path) -> None:
    from tests.pack_attacks import with_growth_from

    scene = Scene()
    path = written(tmp_path, with_growth_from(scene, 4))
    assert check(verifier, path, {**TRUST, "heads": [("old.note", scene.note(4))]}).exit_status == 0
    unproved = check(verifier, path, {**TRUST, "heads": [("old.note", scene.note(5))]})
    assert unproved.exit_status == 4 and "--head" in unproved["head"].problems[0].message


def test_witnesses_that_have_signed_are_counted(tmp_path: Path) -> None:
    from tests.pack_scene import WITNESS

    scene = Scene()
    path = written(tmp_path, scene.files(note=scene.note(witnesses=(WITNESS,))))
    witnesses = [note_key(WITNESS, "witness0.example", 4)]
    assert check(verifier, path, {**TRUST, "witnesses": witnesses, "quorum": 1})["witnesses"].verdict == "ok"


# ── attacks, each with the check that finds it ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name.replace(" ", "-"))
def test_an_attack_is_found_and_named_and_passes_without_the_check_that_finds_it(
    attack: Attack,
) -> None:
    files, trust = attack.make(), {**TRUST, **attack.trust}
    report = check_in_memory(verifier, files, trust)
    shown = verifier.text_of(report)
    assert report.exit_status == attack.exit_status, shown
    assert any(attack.says in problem.message for problem in report[attack.verdict].problems), shown
    blind = check_in_memory(mutated(*attack.guard), files, trust)
    assert blind.exit_status == 0, verifier.text_of(blind)


def test_every_field_of_a_statement_has_an_attack() -> None:
    fields = {attack.name.rpartition(" ")[2] for attack in ATTACKS if attack.name.startswith("the statement has")}
    fields |= {"approver", "key_id"}  # which make it a statement of somebody else, with a key of his
    assert fields == set(verifier.STATEMENT_FIELDS) and STATEMENTS


# ── every byte ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.timeout(900)  # with --long it is every byte
def test_every_byte_of_every_file_is_found_whatever_the_manifest_says(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Only bytes that nothing reads are irrelevant, and then only to who takes the manifest to be fitted to them."""
    files = Scene().files()
    step = 1 if request.config.getoption("--long") else 97
    found: dict[str, int] = {}
    strict = {**TRUST, "min_level": 2}
    for name, data in files.items():
        positions = range(0, len(data), step if len(data) > 64 else max(step // 8, 1))
        for at in [each for each in positions if name not in PLAIN_FILES or each < 2000]:
            broken = {**files, name: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]}
            assert check_in_memory(verifier, broken, strict).exit_status != 0, (name, at)
            if name != "manifest.json" and check_in_memory(verifier, with_manifest(broken), strict).exit_status == 0:
                found[name] = found.get(name, 0) + 1
    assert set(found) <= IRRELEVANT, found


IRRELEVANT: Final = PLAIN_FILES | {"keys.json", "policy.json"}
"""What only the manifest speaks for. People read README.txt and report.html, `verify.py` comes from elsewhere if it is
to prove anything, and keys.json and policy.json are hints that no verdict rests on."""


@pytest.mark.timeout(900)  # with --long it is every byte
def test_every_byte_of_an_archive_is_found_or_is_one_that_says_nothing_of_a_file(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    step = 1 if request.config.getoption("--long") else 19
    data = archive_of(with_manifest({**Scene().files(), "verify.py": b"", "report.html": b""}))
    places = zip_places(data)
    missed: set[str] = set()
    path = tmp_path / "pack.zip"
    positions = [at for at in range(len(data)) if places[at] != "data"][::step]
    for at in positions:
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        if check(verifier, path).exit_status == 0:
            missed.add(places[at])
    assert missed <= ZIP_IRRELEVANT, missed - ZIP_IRRELEVANT


ZIP_IRRELEVANT: Final = frozenset(
    """
    local version, local flags, local method, local time, local date, local crc, local packed, local size,
    local extra size, central made by, central version, central flags, central time, central date, central packed,
    central extra size, central disk, central internal, central external, end disk, end central disk,
    end disk entries, end comment size, end entries, central comment size, central name size
    """.replace("\n", " ")
    .strip()
    .replace("    ", "")
    .split(", ")
)
"""Fields of an archive that say nothing of what is in a file: dates, rights, versions of programs, numbers of disks,
sizes that readers pass over, and what the local header repeats of the central directory, which is the one that is read.
Each file that comes out of the archive is compared with its hash all the same, so that a byte of these changes none."""

LOCAL: Final = (
    ("signature", 4), ("version", 2), ("flags", 2), ("method", 2), ("time", 2), ("date", 2), ("crc", 4), ("packed", 4),
    ("size", 4), ("name size", 2), ("extra size", 2),
)  # fmt: skip
CENTRAL: Final = (
    ("signature", 4), ("made by", 2), ("version", 2), ("flags", 2), ("method", 2), ("time", 2), ("date", 2), ("crc", 4),
    ("packed", 4), ("size", 4), ("name size", 2), ("extra size", 2), ("comment size", 2), ("disk", 2), ("internal", 2),
    ("external", 4), ("offset", 4),
)  # fmt: skip
END: Final = (
    ("signature", 4), ("disk", 2), ("central disk", 2), ("disk entries", 2), ("entries", 2), ("central size", 4),
    ("central offset", 4), ("comment size", 2),
)  # fmt: skip


def zip_places(data: bytes) -> list[str]:
    """Return of what each byte of an archive is a part."""
    places: list[str] = []

    def add(kind: str, fields: tuple[tuple[str, int], ...]) -> None:
        for name, size in fields:
            places.extend([f"{kind} {name}"] * size)

    while data[len(places) : len(places) + 4] == b"PK\3\4":
        at = len(places)
        size, (name_size,) = struct.unpack_from("<I", data, at + 18)[0], struct.unpack_from("<H", data, at + 26)
        add("local", (*LOCAL, ("name", name_size)))
        places.extend(["data"] * size)
    while data[len(places) : len(places) + 4] == b"PK\1\2":
        (name_size,) = struct.unpack_from("<H", data, len(places) + 28)
        add("central", (*CENTRAL, ("name", name_size)))
    add("end", END)
    assert len(places) == len(data)
    return places


# ── packs that are made to harm ──────────────────────────────────────────────────────────────────────────────────────


def hostile(name: str) -> bytes:
    """Return an archive that is made to harm."""
    files = Scene().files()
    match name:
        case "nothing at all":
            return b""
        case "no archive":
            return b"PK" + bytes(100)
        case "cut in the middle":
            return archive_of(files)[:9000]
        case "a path out of the folder":
            return archive_of({**files, "../../evil": b"?"})
        case "an absolute path":
            return archive_of({**files, "/etc/evil": b"?"})
        case "a name with a backslash":
            return archive_of({**files, "payload\\run\\1.json": b"?"})
        case "a name with NUL":
            return archive_of({**files, "verify.pz": b"?"}).replace(b"verify.pz", b"verify.p\0")
        case "a deep document":
            return archive_of(with_manifest({**files, "payload/run/2.json": b"[" * 10**6}))
        case "a deep manifest":
            return archive_of({**files, "manifest.json": b'{"files":' * 10**5})
        case "a number without end":
            return archive_of({**files, "manifest.json": b'{"version":' + b"9" * 10**6 + b"}"})
        case "quotes without end":
            return archive_of({**files, "manifest.json": b'"' + b'\\"' * 10**6})
        case "a proof of 64 hashes":
            proof = files["proof.tlog-proof"].replace(b"\n\n", b"\n" + b"A" * 43 + b"=\n", 1)
            front, _, note = files["proof.tlog-proof"].partition(b"\n\n")
            proof = front + (b"\n" + b"A" * 43 + b"=") * 64 + b"\n\n" + note
            return archive_of(with_manifest({**files, "proof.tlog-proof": proof}))
        case "65 signatures":
            text, _, line = files["checkpoint"].rpartition(b"\n\n")
            return archive_of(with_manifest({**files, "checkpoint": text + b"\n\n" + line * 65}))
        case "a body without its salt":
            return archive_of(with_manifest({name: files[name] for name in files if name != "payload/run/2.salt"}))
        case "an unknown kind of body":
            return archive_of(Scene(entries={2: {"body_kind": 2}}).files())
        case "a proposal that is none":
            tells = {"proposal_recorded": lambda body: {**body, "proposal": [], "request_id": {}, "policy": 7}}
            return archive_of(Scene(tells=tells).files())
        case "values of other kinds everywhere":
            tells = {
                "approval_recorded": lambda body: {**body, "level": [], "roles": 7, "decision": {}, "reason": []},
                "resume_started": lambda body: {**body, "op_key": [], "approval_hash": {}},
                "action_executed": lambda body: {**body, "op_key": [], "action": {}},
                "approver_enrolled": lambda body: {**body, "approver": [], "public_key": 7, "proof": []},
                "log_key_declared": lambda body: {"verifier_key": []},
                "payload_erased": lambda body: {**body, "position": [], "remainder": []},
                "signal_received": lambda body: {**body, "artifact": []},
            }
            return archive_of(Scene(tells=tells).files())
        case _:
            raise AssertionError(name)


HOSTILE: Final = (
    "nothing at all",
    "no archive",
    "cut in the middle",
    "a path out of the folder",
    "an absolute path",
    "a name with a backslash",
    "a name with NUL",
    "a deep document",
    "a deep manifest",
    "a number without end",
    "quotes without end",
    "a proof of 64 hashes",
    "65 signatures",
    "a body without its salt",
    "an unknown kind of body",
    "a proposal that is none",
    "values of other kinds everywhere",
)


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: name.replace(" ", "-"))
def test_a_pack_that_is_made_to_harm_is_a_finding_and_no_crash(name: str, tmp_path: Path) -> None:
    report = check(verifier, archived(tmp_path, hostile(name)))
    assert report.exit_status == 3
    assert json.loads(json.dumps(report.to_json()))["conclusion"] == "failed"
    assert verifier.text_of(report).isascii()


def test_an_archive_that_unpacks_to_more_than_it_says_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pack.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in Scene().files().items():
            archive.writestr(name, bytes(50_000_000) if name == "report.html" else data)
    path.write_bytes(path.read_bytes().replace(struct.pack("<I", 50_000_000), struct.pack("<I", 4)))
    assert check(verifier, path)["files"].verdict == "failed"


def test_an_archive_that_holds_a_name_twice_is_refused(tmp_path: Path) -> None:
    data = archive_of({**Scene().files(), "verify.px": b"?"}).replace(b"verify.px", b"verify.py")
    report = check(verifier, archived(tmp_path, data))
    assert report.exit_status == 3 and "twice" in report["files"].says


def test_files_that_are_too_large_together_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier, "MAX_TOTAL", 1000)
    report = check(verifier, archived(tmp_path, archive_of(Scene().files())))
    assert report.exit_status == 3 and "too large" in report["files"].says


def test_a_link_in_a_folder_is_refused(tmp_path: Path) -> None:
    folder = written(tmp_path, Scene().files())
    (folder / "report.html").unlink()
    (folder / "report.html").symlink_to("/etc/hostname")
    report = check(verifier, folder)
    assert (report.exit_status == 3 and report["files"].problems[0].file is None) or "report.html" in str(
        report["files"]
    )


def test_a_fifo_in_a_folder_does_not_hold_the_verifier_up(tmp_path: Path) -> None:
    folder = written(tmp_path, Scene().files())
    (folder / "report.html").unlink()
    os.mkfifo(folder / "report.html")
    assert check(verifier, folder).exit_status == 3


def test_text_from_a_pack_cannot_steer_a_terminal(tmp_path: Path) -> None:
    tells = {"action_executed": lambda body: {**body, "action": "\x1b[2J\u202e", "op_key": "\x1b]0;x\x07"}}
    path = archived(tmp_path, archive_of(Scene(tells=tells, approved_by="al\u202eice").files()))
    shown = verifier.text_of(check(verifier, path))
    assert all(line.isprintable() and line.isascii() for line in shown.splitlines())


WEAK: Final = (
    bytes(32),
    (1).to_bytes(32, "little"),
    (2**255 - 20).to_bytes(32, "little"),
    (2**255 - 19).to_bytes(32, "little"),
    (2**255 - 18).to_bytes(32, "little"),
    ((1 << 255) | 1).to_bytes(32, "little"),
    bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"),
    bytes.fromhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"),
    (2).to_bytes(32, "little"),
)


@pytest.mark.parametrize("key", WEAK, ids=lambda key: key.hex()[:8] + key.hex()[-2:])
def test_a_weak_key_is_no_key(key: bytes) -> None:
    with pytest.raises(ValueError):
        verifier.checked_key(key)
    assert not verifier.is_signature(key, (1).to_bytes(32, "little") + bytes(32), b"anything")


# ── the same as the engine, which it does not import ─────────────────────────────────────────────────────────────────


def test_it_knows_the_events_terms_and_statements_that_the_engine_has() -> None:
    assert set(RUN_EVENTS) == verifier.TYPES and set(LOG_EVENTS) == verifier.LOG_TYPES
    defaults = {name: getattr(PolicyTerms(), name) for name in PolicyTerms.__struct_fields__}
    assert {**defaults, "roles": []} == verifier.TERMS
    assert set(ApprovalStatement.__struct_fields__) == verifier.STATEMENT_FIELDS
    assert set(EnrolmentStatement.__struct_fields__) == verifier.ENROLMENT_FIELDS
    assert (verifier.SHOWN_AS, verifier.SSH_NAMESPACE.decode()) == (SHOWN_AS, NAMESPACE)


def test_it_reads_the_artifact_of_every_event_that_may_name_one() -> None:
    assert all("artifact" in RUN_EVENTS[name].__struct_fields__ for name in ARTIFACT_EVENTS)


def test_no_changed_byte_of_an_entry_is_read_by_one_of_the_two_alone() -> None:
    data = Scene().events[6].entry
    for at in range(len(data)):
        for bit in range(8):
            changed = data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
            ours, theirs = readable(verifier.parse_entry, changed), readable(entry.parse, changed)
            assert ours <= theirs, (at, bit)  # the verifier refuses more: control characters, external bodies


def readable(parse: Callable[[bytes], object], data: bytes) -> bool:
    try:
        parse(data)
    except ValueError:
        return False
    return True


def test_it_takes_the_proofs_that_the_engine_makes_and_no_others() -> None:
    leaves = [sha256(bytes([n])).digest() for n in range(20)]

    def hashes(level: int, index: int) -> bytes:
        if level == 0:
            return leaves[index]
        return merkle.node_hash(hashes(level - 1, 2 * index), hashes(level - 1, 2 * index + 1))

    roots = {size: merkle.frontier_of(size, hashes).root() for size in range(1, 21)}
    for size in range(1, 21):
        for index in range(size):
            proof = merkle.inclusion_proof(index, size, hashes)
            assert verifier.is_included(index, leaves[index], size, roots[size], proof)
            assert not verifier.is_included(index, leaves[index], size, bytes(32), proof)
            assert not verifier.is_included(index, leaves[index - 1], size, roots[size], proof) or size == 1
            growth = merkle.consistency_proof(index + 1, size, hashes)
            assert verifier.is_consistent(index + 1, roots[index + 1], size, roots[size], growth)
            assert not verifier.is_consistent(index + 1, bytes(32), size, roots[size], growth)
            assert not verifier.is_consistent(index + 1, roots[index + 1], size, bytes(32), growth)


def test_an_ssh_signature_counts_for_this_key_namespace_and_message_alone() -> None:
    key = PrivateKey.from_seed(b"s" * 32)
    blob = make_ssh_signature(key, b"message")
    assert verifier.is_ssh_signature(key.public, blob, b"message")
    assert verifier.is_ssh_signature(key.public, make_ssh_signature(key, b"message", hash_name="sha256"), b"message")
    assert not verifier.is_ssh_signature(ALICE.public, blob, b"message")
    assert not verifier.is_ssh_signature(key.public, blob, b"massage")
    assert not verifier.is_ssh_signature(key.public, make_ssh_signature(key, b"message", namespace="file"), b"message")
    for at in range(len(blob)):
        assert not ssh_verifies(key.public, blob[:at] + bytes([blob[at] ^ 1]) + blob[at + 1 :]), at
    assert not ssh_verifies(key.public, blob + b"\0")


class Token(Key):
    """A key that signs as a FIDO token does; it stands in the token's place."""

    def sign(self, data: bytes) -> bytes:
        return token_blob(data, key=PrivateKey.from_seed(bytes([5]) * 32))


@pytest.mark.parametrize(
    ("enrolled", "level", "verdict"),
    [({"level": 3}, 3, "ok"), ({"level": 2}, 2, "failed"), ({"level": 3, "kind": "ssh-ed25519"}, 3, "failed")],
    ids=["as it is", "of another level", "of another kind"],
)
def test_an_approval_that_a_token_has_signed_has_the_level_3(
    tmp_path: Path, enrolled: dict[str, Any], level: int, verdict: str
) -> None:
    token = Token(5)
    line = public_line(token.public, SK_SSH_ED25519)
    said = {"kind": SK_SSH_ED25519, "public_key": line, **enrolled}
    scene = Scene(
        approver=token,
        tells={
            "approver_enrolled": lambda body: {**body, **said},
            "approval_recorded": lambda body: {**body, "level": level},
        },
    )
    trust = {**TRUST, "approvers": ["alice=" + line], "min_level": 3}
    report = check(verifier, archived(tmp_path, archive_of(scene.files())), trust)
    assert report["approvals"].verdict == verdict, report["approvals"]


def ssh_verifies(key: bytes, blob: bytes) -> bool:
    try:
        return verifier.is_ssh_signature(key, blob, b"message")
    except ValueError:
        return False


# ── the program ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_verifier_imports_the_standard_library_and_cryptography_alone_and_is_python_3_9() -> None:
    tree = ast.parse(VERIFIER, feature_version=(3, 9))
    names = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert names - {"__future__"} - set(sys.stdlib_module_names) == {"cryptography"}


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the verifier as an auditor does, without anything of this project to import."""
    command = [sys.executable, "-I", str(Path(verifier.__file__)), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, **environment}, check=False
    )


def test_the_command_says_what_it_found_and_ends_with_the_status_of_that(tmp_path: Path) -> None:
    path = str(archived(tmp_path, archive_of(Scene().files())))
    policy = tmp_path / "policy.json"
    own = {"log_keys": TRUST["log_keys"], "approvers": [{"id": "alice", "key": ALICE.text}], "min_level": 2, "run": RUN}
    policy.write_text(json.dumps(own))
    good = run(path, "--policy", str(policy))
    assert (good.returncode, good.stdout.splitlines()[-1], good.stderr) == (0, "VERIFIED", "")
    told = run(path, "--json")
    assert told.returncode == 4 and json.loads(told.stdout)["head"]["verdict"] == "unverified"
    assert run(path, "--log-key", "no key").returncode == 2
    assert run(str(tmp_path / "missing.zip")).returncode == 2
    bad = run(path, "--policy", str(policy), "--run", "other")
    assert bad.returncode == 3 and "entries.bin: stream: this is not the run" in bad.stdout, bad.stdout


def test_a_policy_with_a_word_that_means_nothing_is_wrong_usage(tmp_path: Path) -> None:
    policy = tmp_path / "policy.json"
    policy.write_text('{"log_key":[]}')
    assert run(str(tmp_path), "--policy", str(policy)).returncode == 2


def test_without_cryptography_it_says_so_in_one_line_and_verifies_nothing(tmp_path: Path) -> None:
    program = f"import sys; sys.modules['cryptography'] = None; sys.argv = ['verify.py', {str(tmp_path)!r}]\n"
    program += f"import runpy; runpy.run_path({verifier.__file__!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr == "cannot verify: this needs the package `cryptography`\n"
