"""Who signs heads: in this process or another one, the same contract; and the file in which the heads are kept."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Final

import pytest

from eventlog import Expect, NewEvent
from eventlog.audit.heads import LocalSigner, RemoteSigner, head_file, signer_from
from eventlog.audit.heads import signer_service as service_module
from eventlog.audit.heads.head_file import HeadFile, kept_heads, move_heads
from eventlog.audit.heads.key_file import make_key_file
from eventlog.audit.heads.new_file import flush_folder_of
from eventlog.audit.heads.remote_signer import _UnixConnection
from eventlog.audit.heads.signer_service import MAX_BODY_BYTES, SignerService
from eventlog.audit.heads.witness import Witness
from eventlog.errors import EventLogError
from eventlog.heads import HeadRequest, HeadSigner, StaleHead
from eventlog.merkle import EMPTY_ROOT, TreeHead
from eventlog.signing.cosignatures import make_growth_request, open_cosignatures
from eventlog.signing.head_text import head_text, open_head, origin_of
from eventlog.signing.notes import VerifierKey
from tests.command_line import environment
from tests.head_trees import FORK, LOG, A, Tree, grow
from tools.campaigns.storage.log_files import open_file

OTHER: Final = bytes(range(16, 32))
THIRD: Final = bytes(range(32, 48))
PREFIX: Final = "log.example/runs"


@contextmanager
def refused(code: str) -> Iterator[pytest.ExceptionInfo[EventLogError]]:
    """Expect an error with this code."""
    with pytest.raises(EventLogError) as raised:
        yield raised
    assert raised.value.code == code


@contextmanager
def served(service: SignerService) -> Iterator[SignerService]:
    """Answer requests on a thread."""
    thread = threading.Thread(target=service.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield service
    finally:
        service.shutdown()
        thread.join()
        service.server_close()


@pytest.fixture
def key(tmp_path: Path) -> Path:
    make_key_file(tmp_path / "key")
    return tmp_path / "key"


@pytest.fixture(params=["here", "elsewhere"])
def signer(request: pytest.FixtureRequest, key: Path, tmp_path: Path) -> Iterator[HeadSigner]:
    """A signer in this process, and one that is asked at a socket."""
    if request.param == "here":
        yield signer_from(str(key))
        return
    with served(SignerService(str(tmp_path / "socket"), LocalSigner(key))):
        yield signer_from(f"unix:{tmp_path / 'socket'}")


def public(key: Path, log_id: bytes = LOG) -> VerifierKey:
    return LocalSigner(key).verifier_key(log_id)


# ── the contract ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_signer_signs_a_log_that_grows(signer: HeadSigner, key: Path) -> None:
    assert signer.last() is None
    old = 0
    for size in (1, 2, 3, 7, 8, 33, 64):
        signed = signer.sign(A.request(old, size))
        opened = open_head(signed.note, [public(key)])
        assert (opened.head, opened.origin) == (A.head(size), f"eventlog.local/log/{LOG.hex()}")
        assert (signed.log_id, signed.head) == (LOG, A.head(size))
        assert signer.last() == signed
        old = size


def test_the_same_head_again_is_the_same_note(signer: HeadSigner, key: Path) -> None:
    signed = signer.sign(A.request(0, 5))
    content = Path(f"{key}.heads").read_bytes()
    assert signer.sign(A.request(0, 5)) == signer.sign(A.request(5, 5)) == signed
    assert Path(f"{key}.heads").read_bytes() == content


def test_who_asks_with_another_size_is_told_the_right_one(signer: HeadSigner) -> None:
    with pytest.raises(StaleHead) as raised:
        signer.sign(A.request(3, 5))
    assert raised.value.size == 0
    signer.sign(A.request(0, 5))
    for old, size in [(0, 7), (4, 7), (6, 7), (0, 2)]:
        with pytest.raises(StaleHead) as raised:
            signer.sign(A.request(old, size))
        assert raised.value.size == 5
    signer.sign(A.request(5, 7))


@pytest.mark.parametrize(
    ("why", "request_"),
    [
        ("shorter", HeadRequest(log_id=LOG, head=A.head(4), old_size=5, proof=[])),
        ("another root", HeadRequest(log_id=LOG, head=FORK.head(5), old_size=5, proof=[])),
        ("a fork", FORK.request(5, 9)),
        ("no proof", HeadRequest(log_id=LOG, head=A.head(9), old_size=5, proof=[])),
        (
            "too much proof",
            HeadRequest(log_id=LOG, head=A.head(9), old_size=5, proof=[*A.request(5, 9).proof, bytes(32)]),
        ),
        ("of the size before", HeadRequest(log_id=LOG, head=A.head(9), old_size=5, proof=A.request(4, 9).proof)),
        (
            "another root at the end",
            HeadRequest(log_id=LOG, head=TreeHead(9, bytes(32)), old_size=5, proof=A.request(5, 9).proof),
        ),
        ("nothing", HeadRequest(log_id=LOG, head=TreeHead(0, EMPTY_ROOT), old_size=5, proof=[])),
        ("of another log", A.request(0, 9, OTHER)),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_what_does_not_go_on_from_the_last_head_is_refused(signer: HeadSigner, why: str, request_: HeadRequest) -> None:
    signed = signer.sign(A.request(0, 5))
    with refused("head_refused"):
        signer.sign(request_)
    assert signer.last() == signed, why
    assert signer.sign(A.request(5, 9)).head == A.head(9), "the right one is signed all the same"


def test_an_empty_log_is_not_signed(signer: HeadSigner) -> None:
    with refused("head_refused"):
        signer.sign(HeadRequest(log_id=LOG, head=TreeHead(0, EMPTY_ROOT), old_size=0, proof=[]))
    assert signer.last() is None


# ── incarnations ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_restored_log_begins_anew_and_the_one_before_has_ended(key: Path) -> None:
    signer = LocalSigner(key)
    last = signer.sign(A.request(0, 5))
    signer.begin(OTHER)
    signer.begin(OTHER)
    assert signer.last() == last, "the last head of all, also of the one before"
    with refused("head_refused"):
        signer.sign(A.request(5, 9))
    with pytest.raises(StaleHead) as raised:
        signer.sign(FORK.request(5, 9, OTHER))
    assert raised.value.size == 0
    assert signer.sign(FORK.request(0, 6, OTHER)).log_id == OTHER
    with refused("head_refused"):
        signer.begin(LOG)
    assert sum(b"begins" in line for line in Path(f"{key}.heads").read_bytes().splitlines()) == 1


def test_a_first_incarnation_that_was_named_is_the_only_one_that_begins(key: Path) -> None:
    LocalSigner(key).begin(OTHER)
    with refused("head_refused"):
        LocalSigner(key).sign(A.request(0, 5))
    assert LocalSigner(key).sign(A.request(0, 5, OTHER)).log_id == OTHER


def test_nobody_begins_an_incarnation_over_the_socket(key: Path, tmp_path: Path) -> None:
    signer = LocalSigner(key)
    with served(SignerService(str(tmp_path / "socket"), signer)):
        remote = RemoteSigner(f"unix:{tmp_path / 'socket'}")
        remote.sign(A.request(0, 5))
        with refused("head_refused") as raised:
            remote.begin(OTHER)
        assert f"eventlog signer begin --heads FILE {OTHER.hex()}" in str(raised.value)
        with refused("head_refused"):
            remote.sign(A.request(0, 5, OTHER))
        signer.begin(OTHER)
        remote.begin(OTHER)
        assert remote.sign(A.request(0, 5, OTHER)).log_id == OTHER


async def test_a_log_that_was_put_back_is_refused_until_that_is_declared(key: Path, tmp_path: Path) -> None:
    signer, path = LocalSigner(key), tmp_path / "log.db"
    async with open_file(path, signer=signer) as log:
        await log.append("a", [NewEvent("noted", {})], expect=Expect.any())
        await log.backup(tmp_path / "older.db")
        await log.append("a", [NewEvent("noted", {})], expect=Expect.any())
    last = signer.last()
    assert last is not None and last.head.size == 2
    older = tmp_path / "older.db"
    with refused("store_rolled_back"):
        async with open_file(older, signer=signer):
            pass
    async with open_file(older, signer=signer, restored="the disk broke") as log:
        signed = await log.sign_head()
        assert signed is not None and signed.log_id != last.log_id
        assert open_head(signed.note, [signer.verifier_key(signed.log_id)]).head == await log.tree_head()
    with refused("store_forked"):
        async with open_file(path, signer=signer):
            pass
    async with open_file(older, signer=LocalSigner(key)) as log:
        await log.append("a", [NewEvent("noted", {})], expect=Expect.any())


async def test_a_restore_with_a_signer_elsewhere_needs_both_sides(key: Path, tmp_path: Path) -> None:
    signer, path = LocalSigner(key), tmp_path / "log.db"
    with served(SignerService(str(tmp_path / "socket"), signer)):
        remote = RemoteSigner(f"unix:{tmp_path / 'socket'}")
        async with open_file(path, signer=remote) as log:
            await log.append("a", [NewEvent("noted", {})], expect=Expect.any())
        async with open_file(path, signer=remote, restored="the disk broke") as log:
            with refused("head_refused"):
                await log.sign_head()
            log_id = log.facts.log_ids[-1][1]
            signer.begin(log_id)
            signed = await log.sign_head()
            assert signed is not None and signed.log_id == log_id


# ── the file of heads ────────────────────────────────────────────────────────────────────────────────────────────────


def heads(key: Path) -> Path:
    return Path(f"{key}.heads")


def test_the_heads_are_for_the_signer_alone_and_stay_in_their_order(key: Path) -> None:
    signer = LocalSigner(key)
    signed = [signer.sign(A.request(old, size)) for old, size in [(0, 2), (2, 5), (5, 6)]]
    assert heads(key).stat().st_mode & 0o777 == 0o600
    found, torn = kept_heads(heads(key))
    assert ([each.to_signed() for each in found], torn) == (signed, 0)
    lines = [json.loads(line) for line in heads(key).read_text().splitlines()]
    assert [line["note"].encode() for line in lines] == [each.note for each in signed]


def test_a_head_that_a_crash_has_cut_short_was_never_given_out(key: Path) -> None:
    first = LocalSigner(key).sign(A.request(0, 2))
    whole = heads(key).read_bytes()
    LocalSigner(key).sign(A.request(2, 5))
    longer = heads(key).read_bytes()
    for end in range(len(whole), len(longer), 5):
        heads(key).write_bytes(longer[:end])
        assert kept_heads(heads(key))[1] == end - len(whole)
        signer = LocalSigner(key)
        assert signer.last() == first
    assert signer.sign(A.request(2, 7)).head.size == 7
    found, torn = kept_heads(heads(key))
    assert ([each.head.size for each in found], torn) == ([2, 7], 0)


def test_a_head_that_a_power_cut_has_torn_was_never_given_out(key: Path) -> None:
    """The end of its line is there, and a sector in front of that is not."""
    first = LocalSigner(key).sign(A.request(0, 2))
    whole = heads(key).read_bytes()
    LocalSigner(key).sign(A.request(2, 5))
    longer = heads(key).read_bytes()
    for end in range(len(whole) + 1, len(longer), 5):
        heads(key).write_bytes(whole + bytes(end - len(whole)) + longer[end:])
        assert kept_heads(heads(key))[1] == len(longer) - len(whole)
        signer = LocalSigner(key)
        assert signer.last() == first
    assert signer.sign(A.request(2, 7)).head.size == 7
    found, torn = kept_heads(heads(key))
    assert ([each.head.size for each in found], torn) == ([2, 7], 0)


def test_a_head_that_was_given_out_and_is_torn_later_is_damage(key: Path) -> None:
    signer = LocalSigner(key)
    signer.sign(A.request(0, 2))
    signer.sign(A.request(2, 5))
    lines = heads(key).read_bytes()
    heads(key).write_bytes(lines[:-9] + b"\0" + lines[-8:] + b'{"at_us":1,"no')
    with refused("head_file_damaged"):
        signer.last()


def test_what_a_crash_has_left_is_told(key: Path, caplog: pytest.LogCaptureFixture) -> None:
    LocalSigner(key).sign(A.request(0, 2))
    with heads(key).open("ab") as file:
        file.write(b'{"at_us":1,"no')
    with caplog.at_level("WARNING", logger="eventlog"):
        LocalSigner(key).last()
    assert "head_file_torn" in caplog.text and "bytes=14" in caplog.text


def edits(content: bytes) -> dict[str, bytes]:
    """Return what somebody may have made of a file with three heads."""
    first, second, third = content.splitlines(keepends=True)
    return {
        "not-json": first + b"x" + second + third,
        "an-empty-line": first + b"\n" + second,
        "a-second-first": first + second + first,
        "swapped": second + first + third,
        "another-key": first.replace(b'"at_us"', b'"at"') + second,
        "nothing-said": b'{"at_us":1}\n' + second,
        "two-things": b'{"at_us":1,"begins":"' + b"00" * 16 + b'","prefix":"a"}\n',
        "no-note": b'{"at_us":1,"note":"a\\n"}\n' + second,
        "no-log-id": b'{"at_us":1,"begins":"xy"}\n' + second,
        "another-root": first + second + third.replace(b"\\n6\\n", b"\\n5\\n"),
    }


@pytest.mark.parametrize("how", sorted(edits(b"1\n2\n3\n")))
def test_a_file_that_somebody_has_edited_signs_nothing_more(key: Path, how: str) -> None:
    for old, size in [(0, 2), (2, 5), (5, 6)]:
        LocalSigner(key).sign(A.request(old, size))
    edited = edits(heads(key).read_bytes())[how]
    heads(key).write_bytes(edited)
    signer = LocalSigner(key)
    for _ in range(2):
        for call in (signer.last, lambda: signer.sign(A.request(6, 7)), lambda: signer.begin(OTHER)):
            with refused("head_file_damaged"):
                call()
    with refused("head_file_damaged"):
        kept_heads(heads(key))
    assert heads(key).read_bytes() == edited


def test_every_bit_of_the_newest_head_counts(key: Path) -> None:
    LocalSigner(key).sign(A.request(0, 2))
    content = heads(key).read_bytes()
    note = content.index(b'"note"')
    for bit in range(note * 8, len(content) * 8, 11):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        heads(key).write_bytes(changed)
        if b"\n" not in changed:  # only a line without its end is as if it were not there
            assert LocalSigner(key).last() is None
            continue
        with refused("head_file_damaged"):
            LocalSigner(key).last()


def test_a_head_that_another_key_has_signed_is_not_ours(key: Path, tmp_path: Path) -> None:
    make_key_file(tmp_path / "other")
    LocalSigner(tmp_path / "other", heads_path=heads(key)).sign(A.request(0, 2))
    for call in (LocalSigner(key).last, lambda: LocalSigner(key).sign(A.request(2, 5))):
        with refused("head_file_damaged"):
            call()


@pytest.mark.parametrize("how", ["shortened", "replaced", "removed"])
def test_a_file_that_is_taken_away_while_it_is_used_does_not_begin_anew(key: Path, how: str) -> None:
    signer = LocalSigner(key)
    signer.sign(A.request(0, 2))
    signer.sign(A.request(2, 5))
    content = heads(key).read_bytes()
    if how == "shortened":
        heads(key).write_bytes(content.splitlines(keepends=True)[0])
    else:
        heads(key).rename(f"{key}.away")
        if how == "replaced":
            heads(key).write_bytes(content)
    for call in (signer.last, lambda: signer.sign(FORK.request(0, 7)), lambda: signer.sign(A.request(2, 7))):
        with refused("head_file_damaged"):
            call()
    assert heads(key).exists() is (how != "removed"), "nor does it for the next one"


def test_a_full_disk_signs_nothing_and_the_next_head_stands_whole(key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signer = LocalSigner(key)
    signer.sign(A.request(0, 2))
    real, failing = os.fsync, [True]

    def fsync(descriptor: int) -> None:
        if failing:
            failing.clear()
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with refused("signer_unavailable"):
        signer.sign(A.request(2, 5))
    assert [each.head.size for each in kept_heads(heads(key))[0]] == [2]
    assert signer.sign(A.request(2, 6)).head.size == 6


def test_heads_whose_file_another_has_made_and_not_flushed_by_name_are_given_out_when_it_is(
    key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    LocalSigner(key).sign(A.request(0, 2))
    flushed = list[str]()

    def noted(path: str) -> None:
        flushed.append(path)
        flush_folder_of(path)

    monkeypatch.setattr(head_file, "flush_folder_of", noted)
    signer = LocalSigner(key)
    signer.sign(A.request(2, 5))
    signer.sign(A.request(5, 7))
    assert flushed == [str(heads(key))]


def test_what_a_crash_has_left_may_be_longer_than_a_line(key: Path) -> None:
    LocalSigner(key).sign(A.request(0, 2))
    with heads(key).open("ab") as file:
        file.write(b"x" * 5_000)
    LocalSigner(key).sign(A.request(2, 5))
    found, torn = kept_heads(heads(key))
    assert ([each.head.size for each in found], torn) == ([2, 5], 0)


def test_a_signer_waits_for_another_one_and_not_for_ever(key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signer = LocalSigner(key)
    signer.sign(A.request(0, 2))
    with heads(key).open("rb") as held:  # as another process would
        fcntl.flock(held, fcntl.LOCK_EX)
        monkeypatch.setattr(head_file, "_LOCK_TIMEOUT_S", 0.05)
        for call in (signer.last, lambda: signer.sign(A.request(2, 5))):
            with refused("signer_unavailable"):
                call()
        monkeypatch.setattr(head_file, "_LOCK_TIMEOUT_S", 30)
        waiting = threading.Thread(target=signer.sign, args=(A.request(2, 5),))
        waiting.start()
        waiting.join(0.05)
        assert waiting.is_alive()
        fcntl.flock(held, fcntl.LOCK_UN)
        waiting.join()
    assert [each.head.size for each in kept_heads(heads(key))[0]] == [2, 5]


def test_what_another_one_has_added_is_seen(key: Path) -> None:
    one, two = LocalSigner(key), LocalSigner(key)
    one.sign(A.request(0, 2))
    two.sign(A.request(2, 5))
    with pytest.raises(StaleHead):
        one.sign(A.request(2, 7))
    assert one.sign(A.request(5, 7)) == two.last()


def test_threads_and_processes_that_sign_together_make_one_line_of_heads(key: Path) -> None:
    program = "import sys; from tests.head_trees import grow; print(flush=True); input(); grow(sys.argv[1])"
    argv = [sys.executable, "-c", program, str(key)]
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(argv, env=environment(), stdin=pipe, stdout=pipe, text=True) for _ in range(2)]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()  # it is ready
    threads = [threading.Thread(target=grow, args=(str(key),)) for _ in range(2)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for process in processes:
        process.communicate(timeout=60)
    assert [process.returncode for process in processes] == [0, 0]
    found, torn = kept_heads(heads(key))
    assert ([each.head for each in found], torn) == ([A.head(size) for size in range(1, 65)], 0)


def test_a_signer_that_is_killed_at_any_moment_has_kept_what_it_gave_out(key: Path) -> None:
    program = (
        "import sys; from eventlog.audit.heads import LocalSigner; from tests.head_trees import A\n"
        "signer = LocalSigner(sys.argv[1]); last = signer.last(); size = last.head.size if last else 0\n"
        "while size < 64:\n"
        "    size += 1; signer.sign(A.request(size - 1, size)); print(size, flush=True)\n"
    )
    given = 0
    for pause in (0.0, 0.004, 0.011):
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(key)], env=environment(), stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(pause)
        process.send_signal(signal.SIGKILL)
        given = max([given, *map(int, process.stdout.read().split())])
        process.wait()
        process.stdout.close()
        last = LocalSigner(key).last()
        assert last is not None and last.head.size >= given and last.head == A.head(last.head.size)


# ── a long file of heads ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def long(key: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A key with 64 heads and a prefix, of which the last line or two are in reach of the first look."""
    monkeypatch.setattr(head_file, "_WINDOW_BYTES", 700)
    LocalSigner(key, prefix=PREFIX).keep_prefix()
    grow(str(key))
    return key


def counted_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which each read of a file adds how many bytes it has read."""
    found: list[int] = []
    real = os.pread

    def pread(descriptor: int, size: int, offset: int) -> bytes:
        data = real(descriptor, size, offset)
        found.append(len(data))
        return data

    monkeypatch.setattr(os, "pread", pread)
    return found


def test_the_start_reads_the_end_of_the_file_only(long: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = counted_bytes(monkeypatch)
    signer = LocalSigner(long)
    last = signer.last()
    assert last is not None and last.head == A.head(64)
    assert (signer.prefix(), signer.current()) == (PREFIX, LOG)
    assert signer.sign(A.request(64, 64)) == last
    with pytest.raises(StaleHead):
        signer.sign(A.request(0, 5))
    assert sum(read) < 4_000 < heads(long).stat().st_size


def test_what_stands_behind_the_newest_head_counts_and_that_is_found_before_it(long: Path) -> None:
    LocalSigner(long).begin(OTHER)
    for number in range(30):
        LocalSigner(long).begin(number.to_bytes(16, "big"))
    signer = LocalSigner(long)
    last = signer.last()
    assert last is not None and (last.log_id, last.head) == (LOG, A.head(64))
    assert signer.current() == (29).to_bytes(16, "big") and signer.prefix() == PREFIX
    for before in (LOG, OTHER, (3).to_bytes(16, "big")):
        with refused("head_refused") as raised:
            LocalSigner(long).begin(before)
        assert "was followed by" in str(raised.value)
        with refused("head_refused"):
            LocalSigner(long).sign(A.request(0, 5, before))
    assert LocalSigner(long).sign(FORK.request(0, 5, (29).to_bytes(16, "big"))).head == FORK.head(5)


def test_a_first_incarnation_is_not_begun_again_however_far_back_it_is(key: Path, long: Path) -> None:
    signer = LocalSigner(key)
    signer.begin(OTHER)
    old = 0
    for size in range(1, 40):
        signer.sign(FORK.request(old, size, OTHER))
        old = size
    with refused("head_refused"):
        LocalSigner(key).begin(LOG)
    assert LocalSigner(key).current() == OTHER


def test_where_the_heads_go_on_is_the_last_line(long: Path, tmp_path: Path) -> None:
    move_heads(HeadFile(heads(long)), f"{tmp_path}/next.heads", at_us=1)
    moved = heads(long).read_bytes()
    prefixed = LocalSigner(long, prefix=PREFIX)
    for call in (prefixed.last, lambda: prefixed.begin(OTHER), prefixed.keep_prefix):
        with refused("head_refused"):
            call()
    assert heads(long).read_bytes() == moved
    assert (tmp_path / "next.heads").read_bytes() == moved[: moved.rstrip(b"\n").rindex(b"\n") + 1]
    with heads(long).open("ab") as file:
        file.write(moved.splitlines(keepends=True)[-2])
    with refused("head_file_damaged"):
        LocalSigner(long).last()


def test_damage_far_back_stops_no_signing_and_whoever_reads_all_says_so(long: Path, tmp_path: Path) -> None:
    content = heads(long).read_bytes()
    second = content.index(b"\n") + 1
    heads(long).write_bytes(content[:second] + b"x" + content[second + 1 :])
    signer = LocalSigner(long)
    last = signer.last()
    assert last is not None and last.head == A.head(64)
    assert signer.sign(A.request(64, 64)) == last
    for call in (
        lambda: kept_heads(heads(long)),
        lambda: move_heads(HeadFile(heads(long)), f"{tmp_path}/next.heads", at_us=1),
        lambda: LocalSigner(long).begin(OTHER),
    ):
        with refused("head_file_damaged") as raised:
            call()
        assert f"the line at byte {second}: " in str(raised.value)
    assert not (tmp_path / "next.heads").exists()
    assert signer.last() == last, "it goes on"


@pytest.mark.parametrize("torn", [0, 1, 699, 700, 701, 5_000])
def test_what_a_crash_has_left_behind_a_long_file_is_not_read_as_a_line(long: Path, torn: int) -> None:
    with heads(long).open("ab") as file:
        file.write(b"x" * torn)
    assert kept_heads(heads(long))[1] == torn
    signer = LocalSigner(long)
    signer.begin(OTHER)
    assert signer.sign(FORK.request(0, 5, OTHER)).head == FORK.head(5)
    found, left = kept_heads(heads(long))
    assert (len(found), left) == (65, 0)


@pytest.mark.parametrize("window", [1, 64, 280, 281, 282, 283, 284, 285, 600])
def test_a_window_of_any_size_finds_the_same(long: Path, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_file, "_WINDOW_BYTES", window)
    signer = LocalSigner(long)
    last = signer.last()
    assert last is not None and last.head == A.head(64) and signer.prefix() == PREFIX
    with HeadFile(heads(long)).locked() as held:
        assert len(held.read_all().by_origin) == 1 and held.memory.begun == [LOG]
        assert held.last_of("another.example/log") is None


def test_pieces_of_any_size_find_the_same_heads(long: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = kept_heads(heads(long))
    for size in (1, 50, 283, 1_000):
        monkeypatch.setattr(head_file, "_PIECE_BYTES", size)
        assert kept_heads(heads(long)) == whole


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_prefix_is_kept_with_the_heads(key: Path) -> None:
    LocalSigner(key, prefix=PREFIX).keep_prefix()
    assert LocalSigner(key).sign(A.request(0, 2)).note.startswith(f"{PREFIX}/{LOG.hex()}\n".encode())
    other = LocalSigner(key, prefix="log.example/others")
    for call in (lambda: other.sign(A.request(2, 5)), other.keep_prefix, other.prefix):
        with refused("head_refused"):
            call()


def test_the_heads_of_a_log_do_not_change_their_name(key: Path) -> None:
    LocalSigner(key, prefix=PREFIX).sign(A.request(0, 2))
    other = LocalSigner(key, prefix="log.example/others")
    for call in (lambda: other.sign(A.request(2, 5)), other.prefix, lambda: other.origin(LOG), other.keep_prefix):
        with refused("head_refused"):
            call()


@pytest.mark.parametrize("prefix", [PREFIX, None])
def test_a_prefix_that_no_line_says_is_that_of_the_heads(key: Path, prefix: str | None) -> None:
    first = LocalSigner(key, prefix=prefix).sign(A.request(0, 2))
    assert b"prefix" not in heads(key).read_bytes()
    again = LocalSigner(key)
    assert again.prefix() == (prefix or "eventlog.local/log")
    assert again.sign(A.request(2, 5)).note.partition(b"\n")[0] == first.note.partition(b"\n")[0]
    again.begin(OTHER)
    assert (
        LocalSigner(key).sign(FORK.request(0, 4, OTHER)).note.startswith(f"{again.prefix()}/{OTHER.hex()}\n".encode())
    )
    LocalSigner(key, prefix=prefix).keep_prefix()
    assert LocalSigner(key).prefix() == again.prefix()


def test_two_keys_sign_while_one_takes_the_place_of_the_other(key: Path, tmp_path: Path) -> None:
    last = LocalSigner(key).sign(A.request(0, 2))
    make_key_file(tmp_path / "next")
    for _ in range(2):  # it may be repeated
        move_heads(HeadFile(heads(key)), f"{tmp_path}/next.heads", at_us=1)
    with refused("head_refused"):
        LocalSigner(key).sign(A.request(2, 5))
    with refused("head_refused"):
        LocalSigner(key).last()
    both = signer_from(f"{tmp_path}/next,{key}")
    assert both.last() == last
    again = both.sign(A.request(2, 2))
    handed_over = both.sign(A.request(2, 5))
    for each in (public(key), public(tmp_path / "next")):
        assert open_head(handed_over.note, [each]).head == A.head(5)
        assert open_head(again.note, [each]).head == A.head(2)
    alone = LocalSigner(tmp_path / "next")
    assert alone.last() == handed_over
    assert open_head(alone.sign(A.request(5, 7)).note, [public(tmp_path / "next")]).head.size == 7


def test_heads_do_not_move_over_those_of_another_key(key: Path, tmp_path: Path) -> None:
    LocalSigner(key).sign(A.request(0, 2))
    make_key_file(tmp_path / "next")
    LocalSigner(tmp_path / "next").sign(FORK.request(0, 5))
    with refused("target_exists"):
        move_heads(HeadFile(heads(key)), f"{tmp_path}/next.heads", at_us=1)
    assert LocalSigner(key).sign(A.request(2, 5)).head.size == 5, "it goes on where it is"


# ── another process ──────────────────────────────────────────────────────────────────────────────────────────────────


def ask(path: Path, method: str, target: str, body: bytes | None = None) -> tuple[int, bytes, str | None]:
    """Return the answer of a service: status, body, and content type."""
    connection = _UnixConnection(str(path), 10)
    connection.request(method, target, body)
    answer = connection.getresponse()
    found = answer.status, answer.read(), answer.getheader("Content-Type")
    connection.close()
    return found


def unsigned(old: int, size: int, *, tree: Tree = A, log_id: bytes = LOG, prefix: str = "eventlog.local/log") -> bytes:
    text = head_text(origin_of(prefix, log_id), tree.head(size))
    return make_growth_request(old, tree.request(old, size).proof, text)


@pytest.fixture
def at(key: Path, tmp_path: Path) -> Iterator[Path]:
    """The socket of a service."""
    with served(SignerService(str(tmp_path / "socket"), LocalSigner(key))):
        yield tmp_path / "socket"


def test_a_service_answers_as_a_witness_does(at: Path, caplog: pytest.LogCaptureFixture) -> None:
    status, body, kind = ask(at, "POST", "/sign-head", unsigned(0, 5))
    assert (status, kind) == (200, "application/json")
    assert json.loads(ask(at, "GET", "/last")[1])["head"] == json.loads(body)
    assert ask(at, "POST", "/sign-head", unsigned(2, 9)) == (409, b"5\n", "text/x.tlog.size")
    for wrong, expected in [
        (unsigned(5, 9, tree=FORK), 422),
        (unsigned(0, 5, log_id=OTHER), 404),
        (unsigned(5, 9, prefix="another.example/log"), 404),
        (b"", 400),
        (b"old x\n\n", 400),
        (unsigned(5, 9) + b"more\n", 400),
        (unsigned(5, 9)[:-10], 400),
        (b"\xff" * 100, 400),
    ]:
        caplog.clear()
        assert ask(at, "POST", "/sign-head", wrong)[0] == expected
        assert len(caplog.records) == 1 and f"status={expected}" in caplog.text
    assert ask(at, "POST", "/sign-head", unsigned(5, 9))[0] == 200


@pytest.mark.parametrize(
    ("method", "target", "expected"),
    [
        ("GET", "/", 404),
        ("GET", "/sign-head", 404),
        ("POST", "/last", 404),
        ("POST", "/begin", 404),
        ("POST", "/add-checkpoint", 404),
        ("PUT", "/sign-head", 501),
    ],
)
def test_a_service_has_no_other_doors(at: Path, method: str, target: str, expected: int) -> None:
    assert ask(at, method, target, b"" if method != "GET" else None)[0] == expected


def test_a_key_that_was_replaced_is_said_so_over_the_socket(at: Path, key: Path) -> None:
    remote = RemoteSigner(f"unix:{at}")
    remote.sign(A.request(0, 5))
    move_heads(HeadFile(heads(key)), f"{key}.next", at_us=1)
    assert ask(at, "POST", "/sign-head", unsigned(5, 9))[0] == 403
    for call in (remote.last, lambda: remote.sign(A.request(5, 9))):
        with refused("head_refused"):
            call()


def test_a_body_that_is_too_large_is_not_read(at: Path) -> None:
    connection = HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(at))
    connection.putrequest("POST", "/sign-head")
    connection.putheader("Content-Length", str(MAX_BODY_BYTES + 1))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"POST /sign-head HTTP/1.1\r\n",
        b"POST /sign-head HTTP/1.1\r\nContent-Length: 9\r\n\r\nold",
        b"\0" * 9,
        b"GET",
    ],
    ids=["nothing", "half-a-head", "half-a-body", "zeros", "a-word"],
)
def test_who_sends_slowly_is_hung_up_on_and_nobody_waits_for_him(
    key: Path, tmp_path: Path, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "_REQUEST_TIMEOUT_S", 0.3)
    monkeypatch.setattr(service_module._Exchange, "timeout", 0.3)
    with served(SignerService(str(tmp_path / "socket"), LocalSigner(key))):
        slow = socket.socket(socket.AF_UNIX)
        slow.connect(str(tmp_path / "socket"))
        slow.sendall(sent)
        assert RemoteSigner(f"unix:{tmp_path / 'socket'}").sign(A.request(0, 5)).head.size == 5
        slow.settimeout(30)
        while slow.recv(1000):
            pass  # the connection ends
        slow.close()


def test_who_sends_a_byte_at_a_time_has_no_more_time_than_others(
    key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "_REQUEST_TIMEOUT_S", 0.3)
    with served(SignerService(str(tmp_path / "socket"), LocalSigner(key))):
        slow = socket.socket(socket.AF_UNIX)
        slow.connect(str(tmp_path / "socket"))
        with pytest.raises(BrokenPipeError):
            for _ in range(1000):
                slow.send(b"x")
                time.sleep(0.02)
        slow.close()


def test_a_service_that_nobody_can_ask_is_unavailable(tmp_path: Path) -> None:
    remote = RemoteSigner(f"unix:{tmp_path}/nobody")
    for call in (remote.last, lambda: remote.sign(A.request(0, 5)), lambda: remote.begin(OTHER)):
        with refused("signer_unavailable") as raised:
            call()
        assert f"{tmp_path}/nobody" in str(raised.value)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.0 500 No\r\n\r\nout of order",
        b"HTTP/1.0 200 OK\r\n\r\nnot json",
        b'HTTP/1.0 200 OK\r\n\r\n{"head":{"at_us":1,"note":"no note"},"current":null}',
        b"HTTP/1.0 409 No\r\n\r\nfive\n",
    ],
    ids=["nothing", "nonsense", "500", "not-json", "no-note", "no-size"],
)
def test_a_service_that_answers_nonsense_is_unavailable(tmp_path: Path, answer: bytes) -> None:
    with answering(tmp_path / "socket", answer), refused("signer_unavailable"):
        RemoteSigner(f"unix:{tmp_path / 'socket'}", timeout_s=5).last()


def test_a_service_that_signs_another_head_is_not_believed(key: Path, tmp_path: Path) -> None:
    signed = LocalSigner(key).sign(A.request(0, 5))
    document = {"head": None, "current": None, "at_us": 1, "note": signed.note.decode()}
    answer = b"HTTP/1.0 200 OK\r\n\r\n" + json.dumps(document).encode()
    with answering(tmp_path / "socket", answer), refused("signer_unavailable") as raised:
        RemoteSigner(f"unix:{tmp_path / 'socket'}", timeout_s=5).sign(A.request(0, 6))
    assert "another head" in str(raised.value)


def test_a_service_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        listening.listen()
        with refused("signer_unavailable"):
            RemoteSigner(f"unix:{tmp_path / 'socket'}", timeout_s=0.1).last()


@contextmanager
def answering(path: Path, answer: bytes) -> Iterator[None]:
    """Answer every request at this socket with these bytes."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()

    def answer_all() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(100_000):
                    pass  # who is hung up on while he asks would say that, and not what he was answered

    thread = threading.Thread(target=answer_all)
    thread.start()
    try:
        yield
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()


@pytest.mark.parametrize("address", ["unix:", "/path", "unix:a\0b"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with refused("invalid_argument"):
        RemoteSigner(address)


def test_a_socket_is_for_its_group_and_goes_with_its_service(at: Path, key: Path) -> None:
    assert at.stat().st_mode & 0o777 == 0o660
    with refused("target_exists"):
        SignerService(str(at), LocalSigner(key))
    assert ask(at, "GET", "/last")[0] == 200, "the one that serves there goes on"


def test_a_socket_that_a_crash_has_left_is_replaced_and_a_file_is_not(key: Path, tmp_path: Path) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "socket"))
    left.close()
    with served(SignerService(str(tmp_path / "socket"), LocalSigner(key))):
        assert ask(tmp_path / "socket", "GET", "/last")[0] == 200
    assert not (tmp_path / "socket").exists()
    (tmp_path / "file").write_text("mine")
    with refused("target_exists"):
        SignerService(str(tmp_path / "file"), LocalSigner(key))
    assert (tmp_path / "file").read_text() == "mine"
    with refused("invalid_argument"):
        SignerService(str(tmp_path / ("x" * 200)), LocalSigner(key))


# ── a witness ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def witness(key: Path, tmp_path: Path) -> Witness:
    make_key_file(tmp_path / "witness")
    return Witness(tmp_path / "witness", name="witness.example/w", log_keys=[public(key)])


def grown(key: Path, old: int, size: int, *, tree: Tree = A, note: bytes | None = None) -> bytes:
    """Return the request to a witness for a head that the log's real key has signed."""
    if note is None:
        scratch = key.parent / f"{os.urandom(4).hex()}.heads"
        note = LocalSigner(key, heads_path=scratch).sign(tree.request(0, size)).note
    return make_growth_request(old, tree.request(old, size).proof, note)


def test_a_witness_cosigns_growth_and_nothing_else(witness: Witness, key: Path, tmp_path: Path) -> None:
    answer = witness.add_checkpoint(grown(key, 0, 5))
    assert answer.status == 200
    note = parse_growth(grown(key, 0, 5)) + answer.body
    assert [each.key for each in open_cosignatures(note, [witness.key])] == [witness.key]
    make_key_file(tmp_path / "stranger")
    stale = witness.add_checkpoint(grown(key, 3, 9))
    assert (stale.status, stale.body, stale.content_type) == (409, b"5\n", "text/x.tlog.size")
    for body, expected in [
        (grown(key, 5, 9, tree=FORK), 422),
        (grown(key, 5, 5, tree=FORK), 409),
        (grown(key, 5, 4), 400),
        (grown(tmp_path / "stranger", 5, 9), 403),
        (b"old 5\n\nnonsense", 400),
    ]:
        assert witness.add_checkpoint(body).status == expected
    unknown = LocalSigner(key, prefix=PREFIX, heads_path=tmp_path / "elsewhere").sign(A.request(0, 9)).note
    assert witness.add_checkpoint(grown(key, 5, 9, note=unknown)).status == 404
    assert witness.add_checkpoint(grown(key, 5, 5)).status == 200, "the same again"
    assert witness.add_checkpoint(grown(key, 5, 9)).status == 200


def test_a_witness_remembers_what_it_has_cosigned(witness: Witness, key: Path, tmp_path: Path) -> None:
    assert witness.add_checkpoint(grown(key, 0, 9)).status == 200
    again = Witness(tmp_path / "witness", name="witness.example/w", log_keys=[public(key)])
    assert again.add_checkpoint(grown(key, 0, 5)).body == b"9\n"
    assert [each.head.size for each in kept_heads(tmp_path / "witness.heads")[0]] == [9]


def test_a_witness_finds_its_head_of_a_log_behind_those_of_others(
    key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_file, "_WINDOW_BYTES", 700)
    make_key_file(tmp_path / "witness")
    logs = [public(key), public(key, OTHER)]
    witness = Witness(tmp_path / "witness", name="witness.example/w", log_keys=logs)
    assert witness.add_checkpoint(grown(key, 0, 5)).status == 200
    other = LocalSigner(key, heads_path=tmp_path / "other.heads")
    for size in range(1, 30):
        note = other.sign(A.request(size - 1, size, OTHER)).note
        assert witness.add_checkpoint(grown(key, size - 1, size, note=note)).status == 200
    again = Witness(tmp_path / "witness", name="witness.example/w", log_keys=logs)
    assert again.add_checkpoint(grown(key, 0, 4)).body == b"5\n"
    assert again.add_checkpoint(grown(key, 5, 9, tree=FORK)).status == 422
    assert again.add_checkpoint(grown(key, 5, 9)).status == 200


def test_a_witness_whose_memory_was_edited_cosigns_nothing(witness: Witness, key: Path, tmp_path: Path) -> None:
    assert witness.add_checkpoint(grown(key, 0, 9)).status == 200
    content = (tmp_path / "witness.heads").read_bytes()
    (tmp_path / "witness.heads").write_bytes(content.replace(b"\\n9\\n", b"\\n5\\n"))
    again = Witness(tmp_path / "witness", name="witness.example/w", log_keys=[public(key)])
    with refused("head_file_damaged"):
        again.add_checkpoint(grown(key, 5, 9))


def parse_growth(body: bytes) -> bytes:
    return body.partition(b"\n\n")[2]


# ── as a command, as another user ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("idle", [60, 200])
def test_clients_that_send_nothing_keep_no_log_waiting(at: Path, idle: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "_BEGIN_TIMEOUT_S", 30.0)  # as if they had only just come
    monkeypatch.setattr(service_module, "_REQUEST_TIMEOUT_S", 30.0)
    clients = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(idle)]
    try:
        for client in clients:
            client.connect(str(at))  # which waits where the queue is full
            client.settimeout(20)
        remote = RemoteSigner(f"unix:{at}", timeout_s=5.0)
        assert remote.sign(A.request(0, 5)).head == A.head(5)
        assert remote.sign(A.request(5, 9)).head == A.head(9)
        if idle > service_module._MAX_READING:
            assert clients[0].recv(1) == b"", "the one that has waited longest makes room"
        clients[-1].sendall(b"GET /key HTTP/1.0\r\n\r\n")
        assert b"200" in clients[-1].recv(100)
    finally:
        for client in clients:
            client.close()


def test_client_that_sends_nothing_is_hung_up_on(at: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "_BEGIN_TIMEOUT_S", 0.05)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(20)
        client.connect(str(at))
        assert client.recv(1) == b""


@contextmanager
def running(folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run `eventlog signer` until it answers, and end it with SIGTERM."""
    argv = [sys.executable, "-m", "eventlog", "signer", *words]
    process = subprocess.Popen(
        argv, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("socket\t"), (line, process.stderr.read() if process.stderr and not line else "")
        yield process
    finally:
        process.terminate()
        process.wait(30)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def test_the_command_signs_says_why_it_refuses_and_ends_cleanly(key: Path, tmp_path: Path) -> None:
    with running(tmp_path, "--key", str(key), "--socket", "s", "--prefix", PREFIX) as process:
        remote = signer_from(f"unix:{tmp_path / 's'}")
        assert remote.sign(A.request(0, 5)).note.startswith(f"{PREFIX}/{LOG.hex()}\n".encode())
        with refused("head_refused"):
            remote.sign(FORK.request(5, 9))
        process.terminate()
        assert process.wait(30) == 0
        assert process.stderr is not None
        said = process.stderr.read()
    assert said.count("signer_refused") == 1 and "status=422" in said
    assert not (tmp_path / "s").exists()


def test_a_command_that_is_killed_goes_on_where_it_was(key: Path, tmp_path: Path) -> None:
    with running(tmp_path, "--key", str(key), "--socket", "s") as process:
        signer_from(f"unix:{tmp_path / 's'}").sign(A.request(0, 5))
        process.kill()
        process.wait(30)
    with running(tmp_path, "--key", str(key), "--socket", "s"):
        remote = signer_from(f"unix:{tmp_path / 's'}")
        last = remote.last()
        assert last is not None and last.head == A.head(5)
        with pytest.raises(StaleHead):
            remote.sign(FORK.request(0, 9))


def test_the_command_cosigns_for_the_logs_that_it_was_told_of(key: Path, tmp_path: Path) -> None:
    make_key_file(tmp_path / "own")
    make_key_file(tmp_path / "w")
    words = ["--key", "own", "--socket", "s", "--witness-key", "w", "--witness-name", "witness.example/w"]
    with running(tmp_path, *words, "--log-key", public(key).to_text()):
        assert ask(tmp_path / "s", "POST", "/add-checkpoint", grown(key, 0, 5))[0] == 200
        assert ask(tmp_path / "s", "POST", "/add-checkpoint", grown(key, 5, 9, tree=FORK))[0] == 422


_AS_NOBODY: Final = """
import os, sys
from eventlog.audit.heads import signer_from
from tests.head_trees import A
import cryptography.hazmat.primitives.serialization
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
for path in sys.argv[2:]:
    try: open(path, "ab")
    except PermissionError: print("denied")
print(signer_from(sys.argv[1]).sign(A.request(0, 5)).head.size)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_has_heads_signed_whose_key_and_file_he_cannot_touch(key: Path, tmp_path: Path) -> None:
    vault, door = tmp_path / "vault", tmp_path / "door"
    vault.mkdir(mode=0o700)
    door.mkdir(mode=0o755)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)  # what pytest makes is its user's own
    key.rename(vault / "key")
    with running(tmp_path, "--key", "vault/key", "--socket", "door/s", "--socket-mode", "666"):
        argv = [sys.executable, "-c", _AS_NOBODY, f"unix:{door / 's'}", str(vault / "key"), str(vault / "key.heads")]
        ended = subprocess.run(argv, env=environment(), capture_output=True, timeout=60, check=False)
    assert ended.stdout.split() == [b"denied", b"denied", b"5"], ended.stderr
