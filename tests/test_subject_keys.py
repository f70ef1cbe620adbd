"""The keys of subjects: one for each, agreed on by all processes, wrapped, and gone for good once destroyed."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from eventlog.entry import content_commitment
from eventlog.errors import InvalidInput, LogCorrupt, Misuse, Refused, StoreUnavailable
from eventlog.sealed import SealedBody, associated_data, parse_sealed
from eventlog.stores.subject_keys import SubjectKeys, open_sealed, seal_body
from tests import failure_scenarios
from tests.needs import need, need_command
from tools.campaigns.processes import child
from tools.campaigns.storage.libc_faults import build_shim, shim_environment

WRAPPING = bytes(range(32))
SUBJECT = "customer-17"
REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "keys of subjects"


@pytest.fixture
def keys(folder: Path) -> SubjectKeys:
    return SubjectKeys(folder, wrapping_key=WRAPPING)


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_subject_has_one_key_and_another_subject_another(keys: SubjectKeys, folder: Path) -> None:
    key_id, key = keys.key_for(SUBJECT, may_create=True)
    assert (len(key_id), len(key)) == (16, 32)
    assert keys.key_for(SUBJECT, may_create=False) == (key_id, key)
    assert SubjectKeys(folder, wrapping_key=WRAPPING).key_for(SUBJECT, may_create=False) == (key_id, key)
    assert keys.key(key_id) == key
    other_id, other = keys.key_for("customer-18", may_create=True)
    assert other_id != key_id and other != key
    assert keys.key_ids() == sorted([key_id, other_id])


def test_a_power_cut_does_not_take_the_folder_of_the_keys_away(tmp_path: Path) -> None:
    """The names on the way are flushed as well, those that were there too: who made them may not have done it yet."""
    (tmp_path / "there").mkdir()
    folder, log = tmp_path / "there" / "made" / "keys", tmp_path / "strace.out"
    program = (
        "import sys; from eventlog.stores.subject_keys import SubjectKeys as K; K(sys.argv[1], wrapping_key=b'w' * 32)"
    )
    trace = [need_command("strace"), "-f", "-y", "-qq", "-o", str(log), "-e", "trace=fsync,mkdir"]
    subprocess.run([*trace, sys.executable, "-c", program, str(folder)], cwd=REPOSITORY, check=True)
    steps = [line for line in log.read_text().splitlines() if str(tmp_path) in line]
    made = max(
        place for place, line in enumerate(steps) if "mkdir(" in line and line.endswith("= 0") and "/keys/" not in line
    )
    flushed = [line.split("<")[1].split(">")[0] for line in steps[made:] if "fsync(" in line]
    assert {str(tmp_path), str(tmp_path / "there"), str(folder.parent), str(folder)} <= set(flushed)


@pytest.mark.parametrize(
    ("error", "told"),
    [(errno.EINVAL, "ok"), (errno.EROFS, "ok"), (errno.EIO, "store_io_error")],
    ids=["not of this file system", "not to be changed", "disk"],
)
def test_a_name_on_the_way_that_the_disk_does_not_keep_is_told_and_one_that_cannot_be_flushed_is_not(
    tmp_path: Path, error: int, told: str
) -> None:
    need(sys.platform == "linux", "LD_PRELOAD, as Linux has it")
    shim = build_shim(tmp_path, need_command("gcc"))
    above = tmp_path / "above"
    above.mkdir()
    environment = shim_environment(shim, tmp_path / "faults")
    scenario = failure_scenarios.makes_keys_where_a_name_cannot_be_flushed
    assert child.run(scenario, above / "log.db", error, env=environment).result == told


def test_names_above_the_file_system_of_the_folder_are_none_of_its_business(tmp_path: Path) -> None:
    need(os.path.isdir("/dev/shm"), "a second file system that can be written")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        keys = SubjectKeys(Path(folder, "keys"), wrapping_key=WRAPPING)
        assert keys.key_for(SUBJECT, may_create=True) == keys.key_for(SUBJECT, may_create=False)


def test_a_key_is_not_made_unless_that_was_asked_for(keys: SubjectKeys, folder: Path) -> None:
    with pytest.raises(Refused) as refusal:
        keys.key_for(SUBJECT, may_create=False)
    assert refusal.value.code == "unknown_subject"
    assert keys.key_ids() == []
    assert keys.key(bytes(16)) is None and not keys.is_destroyed(bytes(16))


def test_purposes_have_keys_of_their_own(keys: SubjectKeys, folder: Path) -> None:
    other = SubjectKeys(folder, wrapping_key=WRAPPING, purpose="files")
    assert keys.key_for(SUBJECT, may_create=True)[0] != other.key_for(SUBJECT, may_create=True)[0]
    keys.destroy(SUBJECT)
    assert other.key_for(SUBJECT, may_create=False)


def test_no_subject_and_no_key_stands_in_the_folder(keys: SubjectKeys, folder: Path) -> None:
    _, key = keys.key_for(SUBJECT, may_create=True)
    found = [*(path.name.encode() for path in files_of(folder)), *(path.read_bytes() for path in files_of(folder))]
    assert found
    assert not any(SUBJECT.encode() in each or key in each or key.hex().encode() in each for each in found)


def test_nobody_else_can_read_the_folder_or_its_files(keys: SubjectKeys, folder: Path) -> None:
    keys.key_for(SUBJECT, may_create=True)
    keys.destroy(SUBJECT)
    paths = [folder, *folder.rglob("*")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths if path.is_dir()} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths if path.is_file()} == {0o600}
    assert not [path for path in paths if path.name.endswith(".tmp")], "nothing half made stays"


def test_a_folder_that_others_can_read_is_refused(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    with pytest.raises(InvalidInput) as refusal:
        SubjectKeys(folder, wrapping_key=WRAPPING)
    assert refusal.value.code == "key_exposed"


@pytest.mark.parametrize("below", ["file", "file/keys", "n" * 300], ids=["file", "below a file", "long name"])
def test_a_path_at_which_no_folder_can_be_is_told_as_one_that_cannot_be_opened(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_bytes(b"a log, say")
    with pytest.raises(StoreUnavailable) as refusal:
        SubjectKeys(tmp_path / below, wrapping_key=WRAPPING)
    assert refusal.value.code == "store_cannot_open"
    assert (tmp_path / "file").read_bytes() == b"a log, say"


@pytest.mark.parametrize(
    "subject", ["", " ", "a\nb", "x" * 513, "\ud800"], ids=["empty", "blank", "line", "long", "half"]
)
def test_a_subject_that_can_name_nobody_is_refused(keys: SubjectKeys, subject: str) -> None:
    with pytest.raises(InvalidInput):
        keys.key_for(subject, may_create=True)
    with pytest.raises(InvalidInput):
        keys.destroy(subject)


# ── destroying ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_destroyed_key_is_gone_is_told_from_an_unknown_one_and_is_never_made_again(
    keys: SubjectKeys, folder: Path
) -> None:
    key_id, _ = keys.key_for(SUBJECT, may_create=True)
    assert keys.destroy(SUBJECT) == key_id
    again = SubjectKeys(folder, wrapping_key=WRAPPING)
    for each in (keys, again):
        assert each.key(key_id) is None
        assert each.is_destroyed(key_id)
        assert each.key_ids() == []
        for may_create in (True, False):
            with pytest.raises(Refused) as refusal:
                each.key_for(SUBJECT, may_create=may_create)
            assert refusal.value.code == "subject_erased"
            assert SUBJECT not in str(refusal.value)
    assert again.destroy(SUBJECT) == key_id, "repeating it is harmless"


def test_who_has_no_key_cannot_be_destroyed(keys: SubjectKeys) -> None:
    with pytest.raises(Refused) as refusal:
        keys.destroy(SUBJECT)
    assert refusal.value.code == "unknown_subject"


def test_another_process_that_knows_the_key_forgets_it_when_it_is_destroyed(keys: SubjectKeys, folder: Path) -> None:
    other = SubjectKeys(folder, wrapping_key=WRAPPING)
    key_id, key = other.key_for(SUBJECT, may_create=True)
    assert other.key(key_id) == key
    keys.destroy(SUBJECT)
    assert other.key(key_id) is None


def test_the_file_of_a_destroyed_key_was_overwritten(keys: SubjectKeys, folder: Path) -> None:
    """Another name of the file, as a backup tool that links has, holds no key afterwards."""
    key_id, _ = keys.key_for(SUBJECT, may_create=True)
    path = folder / "keys" / key_id.hex()
    before = path.read_bytes()
    os.link(path, folder / "another name")
    keys.destroy(SUBJECT)
    assert not path.exists()
    after = (folder / "another name").read_bytes()
    assert len(after) == len(before) and before[24:] not in after
    (folder / "keys" / key_id.hex()).write_bytes(after)
    (folder / "destroyed" / key_id.hex()).unlink()
    with pytest.raises(LogCorrupt):
        SubjectKeys(folder, wrapping_key=WRAPPING).key(key_id)


def test_destroying_that_was_interrupted_counts_and_is_finished_the_next_time(keys: SubjectKeys, folder: Path) -> None:
    key_id, _ = keys.key_for(SUBJECT, may_create=True)
    (folder / "destroyed" / key_id.hex()).touch(mode=0o600)  # as far as it had come
    assert keys.key(key_id) is None and keys.is_destroyed(key_id)
    assert keys.destroy(SUBJECT) == key_id
    assert not (folder / "keys" / key_id.hex()).exists()


# ── several processes ────────────────────────────────────────────────────────────────────────────────────────────────

RACER = """
import sys, time
from eventlog.stores.subject_keys import SubjectKeys
folder, start = sys.argv[1], float(sys.argv[2])
time.sleep(max(0, start - time.time()))
keys = SubjectKeys(folder, wrapping_key=bytes(range(32)))
for number in range(8):
    key_id, key = keys.key_for(f"customer-{number}", may_create=True)
    print(number, key_id.hex(), key.hex())
"""


def test_processes_that_make_the_keys_of_the_same_subjects_at_once_agree(folder: Path) -> None:
    now = float(subprocess.run(["date", "+%s"], capture_output=True, text=True, check=True, timeout=10).stdout)
    command = [sys.executable, "-c", RACER, str(folder), str(now + 1)]
    racers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    lines = [line for racer in racers for line in racer.communicate(timeout=60)[0].splitlines()]
    assert [racer.returncode for racer in racers] == [0] * 3
    assert sorted(Counter(lines).values()) == [3] * 8, "each said the same of each subject"
    assert len(SubjectKeys(folder, wrapping_key=WRAPPING).key_ids()) == 8, "what came second left nothing"


DYING = """
import os, signal, sys
from eventlog.stores import subject_keys
from eventlog.stores.subject_keys import SubjectKeys
folder, doing, left = sys.argv[1], sys.argv[2], int(sys.argv[3])
calls = ("open", "write", "link", "unlink", "mkdir")
def counted(call):
    def wrapper(*args, **options):
        global left
        if str(folder) in str(args[0]) or call == "write":
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **options)
    return wrapper
for name in calls:
    setattr(os, name, counted(getattr(os, name)))
keys = SubjectKeys(folder, wrapping_key=bytes(range(32)))
if doing == "make":
    keys.key_for("customer-17", may_create=True)
else:
    keys.destroy("customer-17")
"""


@pytest.mark.parametrize("doing", ["make", "destroy"])
def test_a_process_that_is_killed_between_any_two_calls_leaves_nothing_half_done(folder: Path, doing: str) -> None:
    """Afterwards there is one key, whole, or it is destroyed; and what was begun can be done again."""
    for calls in range(1, 60, 4):
        if doing == "destroy":
            key_id, _ = SubjectKeys(folder, wrapping_key=WRAPPING).key_for(SUBJECT, may_create=True)
        command = [sys.executable, "-c", DYING, str(folder), doing, str(calls)]
        ended = subprocess.run(command, timeout=60, check=False).returncode
        assert ended in (0, -signal.SIGKILL)
        keys = SubjectKeys(folder, wrapping_key=WRAPPING)
        if doing == "make":
            assert len(keys.key_for(SUBJECT, may_create=True)[1]) == 32
        else:
            assert (keys.key(key_id) is None) == keys.is_destroyed(key_id)
            keys.destroy(SUBJECT)
            assert keys.key(key_id) is None and keys.key_ids() == []
        if ended == 0:
            assert calls > 5, "some of them were killed"
            return
        for path in files_of(folder):
            path.unlink()
    raise AssertionError("no process ever came to its end")


# ── the wrapping key ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_wrapping_key_may_lie_in_a_file_as_bytes_or_as_hex(keys: SubjectKeys, folder: Path, tmp_path: Path) -> None:
    key_id, key = keys.key_for(SUBJECT, may_create=True)
    path = tmp_path / "wrapping.key"
    for content in (WRAPPING, WRAPPING.hex().encode(), f"{WRAPPING.hex()}\n".encode()):
        path.write_bytes(content)
        path.chmod(0o600)
        assert SubjectKeys(folder, wrapping_key=path).key(key_id) == key


def test_a_wrapping_key_that_cannot_be_used_is_refused_and_not_shown(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "wrapping.key"
    refused = [b"short", bytes(31), bytes(33), tmp_path / "missing", path]
    path.write_bytes(b"zz" * 32)
    path.chmod(0o600)
    for given in refused:
        with pytest.raises(InvalidInput) as refusal:
            SubjectKeys(folder, wrapping_key=given)  # type: ignore[arg-type]
        assert refusal.value.code == "wrapping_key_unusable"
        assert "zz" not in str(refusal.value)
    path.write_bytes(WRAPPING)
    path.chmod(0o640)
    with pytest.raises(InvalidInput) as refusal:
        SubjectKeys(folder, wrapping_key=path)
    assert refusal.value.code == "key_exposed"
    assert not folder.exists(), "nothing was made"


def test_another_wrapping_key_is_refused_before_a_second_key_of_anybody_is_made(
    keys: SubjectKeys, folder: Path
) -> None:
    key_id, _ = keys.key_for(SUBJECT, may_create=True)
    with pytest.raises(InvalidInput) as refusal:
        SubjectKeys(folder, wrapping_key=bytes(32))
    assert refusal.value.code == "wrapping_key_unusable"
    assert keys.key_ids() == [key_id]


def test_the_wrapping_key_does_not_lie_among_what_it_protects(keys: SubjectKeys, folder: Path) -> None:
    path = folder / "wrapping.key"
    path.write_bytes(WRAPPING)
    path.chmod(0o600)
    with pytest.raises(InvalidInput) as refusal:
        SubjectKeys(folder, wrapping_key=path)
    assert refusal.value.code == "invalid_argument"


@pytest.mark.parametrize("offset", range(0, 84, 7))
def test_a_wrapped_key_that_was_changed_is_damage(keys: SubjectKeys, folder: Path, offset: int) -> None:
    key_id, _ = keys.key_for(SUBJECT, may_create=True)
    path = folder / "keys" / key_id.hex()
    data = bytearray(path.read_bytes())
    assert len(data) == 84
    data[offset] ^= 1
    path.write_bytes(data)
    with pytest.raises(LogCorrupt) as damage:
        SubjectKeys(folder, wrapping_key=WRAPPING).key(key_id)
    assert damage.value.reason == "subject_key_damaged"


def test_a_wrapped_key_under_the_name_of_another_is_damage(keys: SubjectKeys, folder: Path) -> None:
    first, _ = keys.key_for(SUBJECT, may_create=True)
    second, _ = keys.key_for("customer-18", may_create=True)
    (folder / "keys" / first.hex()).write_bytes((folder / "keys" / second.hex()).read_bytes())
    with pytest.raises(LogCorrupt):
        SubjectKeys(folder, wrapping_key=WRAPPING).key(first)


@pytest.mark.parametrize("text", [b"", b"of ann", b"\xff" * 32, b"ab" * 15], ids=["empty", "words", "bytes", "short"])
def test_a_subject_whose_file_names_no_key_is_damage_and_gets_no_other(
    keys: SubjectKeys, folder: Path, text: bytes
) -> None:
    keys.key_for(SUBJECT, may_create=True)
    (file,) = (folder / "subjects").iterdir()
    file.chmod(0o600)
    file.write_bytes(text)
    for may_create in (False, True):
        with pytest.raises(LogCorrupt) as damage:
            SubjectKeys(folder, wrapping_key=WRAPPING).key_for(SUBJECT, may_create=may_create)
        assert damage.value.reason == "subject_key_damaged"


def test_a_key_that_was_lost_is_no_new_key(keys: SubjectKeys, folder: Path) -> None:
    key_id, _ = keys.key_for(SUBJECT, may_create=True)
    (folder / "keys" / key_id.hex()).unlink()
    again = SubjectKeys(folder, wrapping_key=WRAPPING)
    with pytest.raises(LogCorrupt):
        again.key_for(SUBJECT, may_create=True)
    assert again.key(key_id) is None and not again.is_destroyed(key_id)


def test_a_folder_that_cannot_be_used_is_a_store_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable):
        SubjectKeys(tmp_path / "file" / "keys", wrapping_key=WRAPPING)


def test_without_the_extra_it_is_said_which_one_is_missing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(Misuse, match=r"eventlog-engine\[proof\]") as missing:
        SubjectKeys(folder, wrapping_key=WRAPPING)
    assert missing.value.code == "missing_extra"
    assert not folder.exists()


# ── bodies ───────────────────────────────────────────────────────────────────────────────────────────────────────────

KEY, KEY_ID, SALT, NONCE = bytes(32), b"k" * 16, b"s" * 16, b"n" * 12
BODY, REMAINDER = b'{"name":"Anna"}', b'{"step":"look"}'
DATA = associated_data(b"l" * 16, 7, 3, "orders-1", "order_placed")


def sealed(data: bytes = DATA) -> bytes:
    return seal_body(KEY, KEY_ID, data, SALT, BODY, REMAINDER, NONCE)


def test_a_body_is_sealed_in_its_layout_and_opened_again() -> None:
    stored = sealed()
    assert BODY not in stored and SALT not in stored
    parts = parse_sealed(stored)
    assert (parts.key_id, parts.nonce, parts.remainder) == (KEY_ID, NONCE, REMAINDER)
    assert parts.content_commit == content_commitment(SALT, BODY)
    assert open_sealed(KEY, DATA, stored) == (SALT, BODY)


def test_an_empty_body_and_no_remainder_can_be_sealed() -> None:
    assert open_sealed(KEY, b"", seal_body(KEY, KEY_ID, b"", SALT, b"", b"", NONCE)) == (SALT, b"")


@pytest.mark.parametrize(
    "data",
    [
        associated_data(b"m" * 16, 7, 3, "orders-1", "order_placed"),
        associated_data(b"l" * 16, 8, 3, "orders-1", "order_placed"),
        associated_data(b"l" * 16, 7, 4, "orders-1", "order_placed"),
        associated_data(b"l" * 16, 7, 3, "orders-2", "order_placed"),
        associated_data(b"l" * 16, 7, 3, "orders-1", "order_paid"),
    ],
    ids=["log", "position", "version", "stream", "type"],
)
def test_a_body_that_was_moved_to_another_event_is_damage(data: bytes) -> None:
    with pytest.raises(LogCorrupt) as damage:
        open_sealed(KEY, data, sealed())
    assert damage.value.reason == "body_unreadable"


def test_another_key_does_not_open_it() -> None:
    with pytest.raises(LogCorrupt):
        open_sealed(b"x" * 32, DATA, sealed())


def test_each_byte_that_is_not_the_remainder_or_the_key_id_is_bound() -> None:
    """Those two are bound by the hash of the stored bytes in the entry, as all of them are."""
    stored = sealed()
    free = {*range(1, 17), *range(65, 65 + len(REMAINDER))}
    for offset in range(len(stored)):
        changed = stored[:offset] + bytes([stored[offset] ^ 1]) + stored[offset + 1 :]
        if offset in free:
            assert open_sealed(KEY, DATA, changed) == (SALT, BODY)
            continue
        with pytest.raises(LogCorrupt):
            open_sealed(KEY, DATA, changed)


@pytest.mark.parametrize("size", [0, 1, 64, 65, 90])
def test_a_body_that_was_cut_is_damage(size: int) -> None:
    with pytest.raises(LogCorrupt):
        open_sealed(KEY, DATA, sealed()[:size])


def test_a_commitment_to_something_else_is_seen_though_the_key_fits() -> None:
    """GCM does not commit to its key, nor to what stands beside the ciphertext: the commitment is compared."""
    parts = parse_sealed(sealed())
    other = SealedBody(KEY_ID, NONCE, bytes(32), REMAINDER, parts.ciphertext).to_bytes()
    with pytest.raises(LogCorrupt) as damage:
        open_sealed(KEY, DATA, other)
    assert damage.value.reason == "content_mismatch"
