"""`WriteFile` on real files: what it makes, what it finds, what it refuses, and what a crash or a failing disk leaves.

Faults are the system's own: a seccomp filter makes a system call fail in a thread, strace makes the n-th call fail in
a process, a tiny tmpfs is full, a FUSE file system has no links. What this machine does not allow is skipped by name.
"""

from __future__ import annotations

import asyncio
import ctypes
import dataclasses
import errno
import hashlib
import json
import os
import platform
import resource
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import eventlog
from eventlog.errors import ActionFailed
from eventlog.runtime.actions import directories, write_file
from eventlog.runtime.actions.write_file import WriteFile
from eventlog.runtime.effects import Action, Call, Conflicted, Executed, Promise, Recovered, Report
from eventlog.runtime.failpoints import CRASH_STATUS, EFFECT_INSIDE, Reach, pass_by
from eventlog.stores import exclusive_rename
from tests.fuse_mounts import mounted_without
from tests.needs import need, need_command

T = TypeVar("T")

CONTENT: Final = "first\r\nsecond\nzażółć 🙂\n"
DIGEST: Final = hashlib.sha256(CONTENT.encode()).hexdigest()
OP_KEY: Final = "ab" * 32
REUSED: Final = "idempotency_key_reused_with_different_content"
REPOSITORY: Final = Path(__file__).resolve().parent.parent


def a_call(
    output: str | Path,
    content: Any = CONTENT,
    *,
    op_key: str = OP_KEY,
    attempt: int = 1,
    reach: Reach = pass_by,
    args: Any = None,
    folder: str | Path | None = None,
) -> Call:
    args = {"content": content} if args is None else args
    return Call(
        run_id="run-1",
        action="write_file",
        args=args,
        output=str(output),
        op_key=op_key,
        folder=None if folder is None else str(folder),
        attempt=attempt,
        reach=reach,
    )


def perform(call: Call, root: str | Path | None = None) -> Report:
    return asyncio.run(WriteFile(root=root, shows_content=True).execute(call))


def refusal(call: Call, root: str | Path | None = None) -> ActionFailed:
    with pytest.raises(ActionFailed) as caught:
        perform(call, root)
    return caught.value


def somebody_writes(target: Path, content: str) -> Reach:
    """Return a `reach` at which another program writes the target."""

    def reach(name: str) -> None:
        target.write_bytes(content.encode())

    return reach


def temps(directory: Path) -> list[str]:
    return [path.name for path in directory.rglob("*.eventlog-tmp")]


def executed(output: str | Path) -> Executed:
    return Executed(result={"path": str(output), "sha256": DIGEST, "size_bytes": len(CONTENT.encode())})


def recovered(output: str | Path) -> Recovered:
    """The same result as of the attempt that wrote it, and what was seen."""
    return Recovered(evidence={"sha256": DIGEST, "size_bytes": len(CONTENT.encode())}, result=executed(output).result)


# ── faults ────────────────────────────────────────────────────────────────────────────────────────────────────────────

SYSCALLS: Final[dict[str, dict[str, int]]] = {
    "x86_64": {"linkat": 265, "openat2": 437, "renameat2": 316, "fsync": 74},
    "aarch64": {"linkat": 37, "openat2": 437, "renameat2": 276, "fsync": 82},
}


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def forbid(**errors: int) -> None:
    """Make these system calls fail with these error numbers, for this thread and all it starts, for ever."""
    need(sys.platform == "linux" and platform.machine() in SYSCALLS, "a seccomp filter")
    numbers = SYSCALLS[platform.machine()]
    code = struct.pack("HBBI", 0x20, 0, 0, 0)  # load the number of the call
    for name, number in errors.items():
        code += struct.pack("HBBI", 0x15, 0, 1, numbers[name])  # if it is this one
        code += struct.pack("HBBI", 0x06, 0, 0, 0x00050000 | number)  # return the error
    code += struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)  # otherwise let it pass
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert prctl(38, 1, 0, 0, 0) == 0, "PR_SET_NO_NEW_PRIVS"
    assert prctl(22, 2, ctypes.byref(_Program(len(code) // 8, code)), 0, 0) == 0, "PR_SET_SECCOMP"


def where_forbidden(work: Callable[[], T], **errors: int) -> T:
    """Run `work` in a thread of its own in which these system calls fail."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            forbid(**errors)
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return future.result()


def with_the_walk(work: Callable[[], T]) -> T:
    return where_forbidden(work, openat2=errno.ENOSYS)


def with_openat2(work: Callable[[], T]) -> T:
    return work()


confinements = pytest.mark.parametrize("confined", [with_openat2, with_the_walk], ids=["openat2", "walk"])

PROGRAM: Final = """
import asyncio, json, os, signal, sys
from eventlog.errors import ActionFailed
from eventlog.runtime.actions.write_file import WriteFile
from eventlog.runtime.effects import Call
from eventlog.runtime.failpoints import EFFECT_INSIDE, crash_at

def kill(name):
    os.kill(os.getpid(), signal.SIGKILL)

given = json.loads(sys.argv[1])
reach = {"exit": crash_at(EFFECT_INSIDE), "kill": kill, "pass": lambda name: None}[given["reach"]]
call = Call(run_id="run-1", action="write_file", args={"content": given["content"]}, output=given["output"],
            op_key=given["op_key"], attempt=given["attempt"], reach=reach)
if "user" in given:  # Only now: the interpreter may lie where this user may not go. The loop starts to import the rest.
    asyncio.run(asyncio.to_thread(int))
    os.setgroups([])
    os.setresuid(given["user"], given["user"], given["user"])
if "at" in given:
    while not os.path.exists(given["at"]):
        pass
try:
    print(type(asyncio.run(WriteFile(root=given["root"]).execute(call))).__name__)
except ActionFailed as error:
    print(f"ActionFailed {error.code} {error.details.get('errno')}")
except OSError as error:
    print(f"OSError {error.errno}")
"""


def start(*tracer: str, output: str | Path, content: str = CONTENT, **given: Any) -> subprocess.Popen[str]:
    """Perform one call in a new process, which prints one line about how it ended."""
    given = {"root": None, "op_key": OP_KEY, "attempt": 1, "reach": "pass", **given}
    text = json.dumps({"output": str(output), "content": content, **given})
    return subprocess.Popen(
        [*tracer, sys.executable, "-c", PROGRAM, text],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *sys.path]), "PYTHONDONTWRITEBYTECODE": "1"},
    )


def finish(process: subprocess.Popen[str]) -> str:
    return process.communicate(timeout=60)[0].strip()


def failing(path: Path, inject: str) -> list[str]:
    """Return the strace command under which one system call on files of this directory fails."""
    call = inject.split(":")[0]
    return [
        need_command("strace"),
        "-f",
        "-qq",
        "-o",
        str(path / "strace.out"),
        "-e",
        f"trace={call}",
        "-e",
        f"inject={inject}",
    ]


def nobody() -> int:
    """Return a user for whom permissions count, as they do not for root."""
    need(os.geteuid() == 0, "root, who may become somebody else")
    return 65534


@contextmanager
def mounted(directory: Path, *options: str) -> Iterator[Path]:
    directory.mkdir()
    done = subprocess.run([need_command("mount"), *options, str(directory)], capture_output=True)
    need(done.returncode == 0, "the permission to mount")
    try:
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True)


# ── what is made ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_it_is_a_checkable_action() -> None:
    action: Action = WriteFile(name="save")
    assert (action.name, action.promise, WriteFile().name) == ("save", Promise.CHECKABLE, "write_file")


@pytest.mark.asyncio
async def test_the_file_holds_exactly_the_bytes_and_the_report_names_them(tmp_path: Path) -> None:
    target = tmp_path / "out.txt"
    assert await WriteFile().execute(a_call(target)) == executed(target)
    assert target.read_bytes() == CONTENT.encode()
    assert target.stat().st_nlink == 1
    assert os.listdir(tmp_path) == ["out.txt"]


@pytest.mark.parametrize("content", ["", "\0", "a\0b", "\r\n", "\ufeffbom", "x" * 3_000_001], ids=len)
def test_any_text_is_written_as_it_is(tmp_path: Path, content: str) -> None:
    assert isinstance(perform(a_call(tmp_path / "t", content)), Executed)
    assert (tmp_path / "t").read_bytes() == content.encode()
    assert isinstance(perform(a_call(tmp_path / "t", content, attempt=2)), Recovered)


@pytest.mark.parametrize("root", [True, False], ids=["with root", "without root"])
def test_missing_parents_are_made_with_the_modes_of_the_umask(tmp_path: Path, root: bool) -> None:
    before = os.umask(0o027)
    try:
        call = a_call("a/./b//ö/t.txt", folder=tmp_path)
        assert perform(call, tmp_path if root else None) == executed("a/./b//ö/t.txt")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "a/b", "a/b/ö", "a/b/ö/t.txt")]
    assert modes == [0o750, 0o750, 0o750, 0o640]


def test_without_root_parents_may_be_symbolic_links_and_hold_dots(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    perform(a_call(tmp_path / "real/../link/new/t.txt"))
    assert (tmp_path / "real/new/t.txt").read_bytes() == CONTENT.encode()


def let_all_pass(folder: Path) -> None:
    """Open this folder, and those above it that pytest made: one more where it runs in several processes."""
    made = 3 if "PYTEST_XDIST_WORKER" in os.environ else 2
    for above in (folder, *folder.parents[:made]):
        above.chmod(0o755)


def test_an_ancestor_that_may_only_be_passed_is_no_obstacle(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    (closed / "mine").mkdir(parents=True)
    closed.chmod(0o711)
    (closed / "mine").chmod(0o777)
    let_all_pass(tmp_path)
    assert finish(start(output=closed / "mine/t.txt", user=nobody())) == "Executed"


@pytest.mark.parametrize("made", [0, 1, 2], ids=["no directory is there", "one is there", "both are there"])
@pytest.mark.parametrize("root", [True, False], ids=["with root", "without root"])
def test_every_directory_on_the_way_is_flushed_before_the_link_and_its_own_after(
    tmp_path: Path, root: bool, made: int
) -> None:
    """Those that are there as well: whoever made them may not have flushed them yet."""
    base = tmp_path / "base"
    base.joinpath(*["a", "b"][:made]).mkdir(parents=True)
    output = "a/b/t" if root else str(base / "a/b/t")
    log = tmp_path / "strace.out"
    trace = [need_command("strace"), "-f", "-y", "-qq", "-o", str(log), "-e", "trace=fsync,linkat,mkdirat,unlinkat"]
    assert finish(start(*trace, output=output, root=str(base) if root else None)) == "Executed"
    steps = [" ".join(line.split()[1:]) for line in log.read_text().splitlines() if str(base) in line]
    temp = f"{base}/a/b/.{OP_KEY[:32]}-1.eventlog-tmp"
    flushed = [step.split("<")[1].split(">")[0] for step in steps if step.startswith("fsync")]
    names = [step.split("(")[0] for step in steps if not step.startswith("unlinkat") or " = 0" in step]
    assert flushed == [str(base), f"{base}/a", temp, f"{base}/a/b"]
    above = [step for depth in range(2) for step in (["fsync"] if depth < made else ["mkdirat", "fsync"])]
    assert names == [*above, "fsync", "linkat", "fsync", "unlinkat"]


# ── what is refused before anything ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "args", [{}, [], "text", {"content": None}, {"content": 1}, {"content": b""}, {"content": "", "mode": 1}], ids=repr
)
def test_other_arguments_are_refused(tmp_path: Path, args: Any) -> None:
    with pytest.raises(ActionFailed) as caught:
        WriteFile().check(a_call(tmp_path / "t", args=args))
    assert caught.value.code == "invalid_arguments"


@pytest.mark.parametrize("path", ["", "/", "a/", ".", "..", "a/.", "a/..", "a\0b", "a/\0"], ids=repr)
@pytest.mark.parametrize("root", [None, "/nowhere"])
def test_a_path_that_names_no_file_is_refused(path: str, root: str | None) -> None:
    with pytest.raises(ActionFailed) as caught:
        WriteFile(root=root).check(a_call(path))
    assert caught.value.code == "path_not_allowed"


@pytest.mark.parametrize("folder", [None, "", ".", "work", "../work", "/a\0b"], ids=repr)
def test_a_relative_path_without_an_absolute_folder_could_be_any_file_and_is_refused(folder: str | None) -> None:
    with pytest.raises(ActionFailed) as caught:
        WriteFile().check(a_call("t", folder=folder))
    assert caught.value.code == "path_not_allowed"


def test_a_folder_that_is_no_text_is_refused() -> None:
    with pytest.raises(ActionFailed) as caught:
        WriteFile().check(a_call("t", folder="/\ud800"))
    assert caught.value.code == "invalid_text"


@pytest.mark.parametrize(("path", "root"), [("/t", None), ("t", "/nowhere")])
def test_who_needs_no_folder_is_not_asked_for_one(path: str, root: str | None) -> None:
    for folder in (None, "work"):
        WriteFile(root=root).check(a_call(path, folder=folder))


def test_a_relative_path_is_taken_from_the_folder_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    assert perform(a_call("t", folder=tmp_path / "work")) == executed("t")
    assert (tmp_path / "work/t").read_bytes() == CONTENT.encode()


async def test_a_run_that_was_proposed_in_no_folder_never_writes_a_relative_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, here = tmp_path / "gone", tmp_path / "here"
    gone.mkdir()
    here.mkdir()
    async with eventlog.open("memory:") as log:
        runner = eventlog.Runner(log, actions=[WriteFile()])
        monkeypatch.chdir(gone)
        gone.rmdir()
        proposal = eventlog.propose("write_file", {"content": CONTENT}, "t")
        await runner.propose("run-1", proposal)
        await runner.approve("run-1", proposal.hash)
        monkeypatch.chdir(here)
        with pytest.raises(ActionFailed) as caught:
            await runner.resume("run-1")
        assert caught.value.code == "path_not_allowed"
        assert "resume_started" not in [event.type for event in await runner.trace("run-1")]
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("path", ["/etc/x", "//x", "../x", "a/../x", "a/../../x", "a/b/../x"])
def test_with_root_an_absolute_path_or_a_step_up_is_refused(tmp_path: Path, path: str) -> None:
    assert refusal(a_call(path), tmp_path).code == "path_not_allowed"
    assert os.listdir(tmp_path) == []


def test_lone_surrogates_are_refused_in_path_and_content(tmp_path: Path) -> None:
    assert refusal(a_call(tmp_path / "a\ud800")).code == "invalid_text"
    assert refusal(a_call(tmp_path / "t", "x\udfff")).code == "invalid_text"
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("path", ["n" * 256, "d/" + "n" * 300, "d/" * 3000 + "t", "ö" * 130], ids=len)
@pytest.mark.parametrize("attempt", [1, 2])
def test_a_path_that_is_too_long_definitely_failed(tmp_path: Path, path: str, attempt: int) -> None:
    error = refusal(a_call(path, attempt=attempt), tmp_path)
    assert (error.code, error.details["errno"]) == ("action_failed", "ENAMETOOLONG")
    assert temps(tmp_path) == []


def test_the_longest_name_is_written(tmp_path: Path) -> None:
    assert isinstance(perform(a_call("n" * 255), tmp_path), Executed)


# ── what is there already ─────────────────────────────────────────────────────────────────────────────────────────────


def state(path: Path) -> tuple[int, ...]:
    seen = path.lstat()
    return (seen.st_ino, seen.st_mode, seen.st_nlink, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)


def make(kind: str, target: Path) -> None:
    other = target.parent / "other"
    match kind:
        case "symlink":
            other.write_bytes(CONTENT.encode())
            target.symlink_to(other)
        case "dangling link":
            target.symlink_to("nothing")
        case "directory":
            target.mkdir()
        case "fifo":
            os.mkfifo(target)
        case "socket":
            with socket.socket(socket.AF_UNIX) as server:
                here = os.getcwd()
                os.chdir(target.parent)  # The address has to be short.
                server.bind(target.name)
                os.chdir(here)
        case "device":
            need(os.geteuid() == 0, "root, who may make a device")
            os.mknod(target, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        case _:
            raise AssertionError(kind)


@pytest.mark.parametrize("attempt", [1, 2])
@pytest.mark.parametrize("rooted", [True, False], ids=["with root", "without root"])
@pytest.mark.parametrize(
    "kind",
    ["symlink", "dangling link", "directory", "fifo", "socket", "device"],
)
def test_a_target_that_is_no_regular_file_is_refused_and_never_followed_or_awaited(
    tmp_path: Path, kind: str, rooted: bool, attempt: int
) -> None:
    target = tmp_path / "t"
    make(kind, target)
    before = state(target), sorted(os.listdir(tmp_path))
    call = a_call("t" if rooted else target, attempt=attempt)
    assert refusal(call, tmp_path if rooted else None).code == "target_not_regular"
    assert (state(target), sorted(os.listdir(tmp_path))) == before


@pytest.mark.parametrize("links", [1, 2, 3])
@pytest.mark.parametrize("attempt", [1, 2])
def test_the_same_content_is_recovered_and_the_file_stays_as_it_is(tmp_path: Path, links: int, attempt: int) -> None:
    target = tmp_path / "t"
    target.write_bytes(CONTENT.encode())
    for number in range(1, links):
        os.link(target, tmp_path / f"link{number}")
    os.utime(target, ns=(1, 1))
    before = state(target)
    assert perform(a_call(target, attempt=attempt)) == recovered(target)
    assert state(target) == before


@pytest.mark.parametrize("links", [1, 2])
@pytest.mark.parametrize(
    "existing", [b"", b"else\n", CONTENT.encode()[:-1], CONTENT.encode() + b"x", CONTENT.encode()[::-1]], ids=repr
)
def test_other_content_is_a_conflict_with_both_hashes_and_the_file_stays_as_it_is(
    tmp_path: Path, existing: bytes, links: int
) -> None:
    target = tmp_path / "t"
    target.write_bytes(existing)
    if links == 2:
        os.link(target, tmp_path / "link")
    before = state(target)
    report = perform(a_call(target))
    assert isinstance(report, Conflicted)
    assert (report.reason, report.expected_content_hash, report.expected_content) == (REUSED, DIGEST, CONTENT)
    assert report.existing_content_hash == hashlib.sha256(existing).hexdigest()
    assert (state(target), temps(tmp_path)) == (before, [])


@pytest.mark.parametrize(
    ("existing", "shown"),
    [
        (b"x" * 4096, "x" * 4096),
        (b"x" * 4097, None),
        (b"\xff", None),
        (b"a\0", None),
        ("ż".encode(), "ż"),
        (b"", ""),
    ],
    ids=["4096", "4097", "not utf-8", "nul", "utf-8", "empty"],
)
def test_only_short_text_is_shown(tmp_path: Path, existing: bytes, shown: str | None) -> None:
    (tmp_path / "t").write_bytes(existing)
    report = perform(a_call(tmp_path / "t", "y" * 5000))
    assert isinstance(report, Conflicted)
    assert (report.existing_content, report.expected_content) == (shown, None)


def test_a_huge_foreign_file_is_hashed_in_constant_memory(tmp_path: Path) -> None:
    with (tmp_path / "t").open("wb") as file:
        file.truncate(300 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    report = perform(a_call(tmp_path / "t"))
    zeros = hashlib.sha256()
    for _ in range(300):
        zeros.update(bytes(1 << 20))
    assert isinstance(report, Conflicted)
    assert report.existing_content_hash == zeros.hexdigest()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10, "KiB"


def test_a_file_that_never_stops_growing_is_reported_all_the_same(tmp_path: Path) -> None:
    target = tmp_path / "t"
    target.write_bytes(b"x" * 5_000_000)
    going = threading.Event()
    going.set()

    def grow() -> None:
        with target.open("ab", buffering=0) as file:
            while going.is_set() and file.tell() < 1 << 30:
                file.write(b"x" * 1_000_000)

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        report = perform(a_call(target))
    finally:
        going.clear()
        writer.join()
    assert isinstance(report, Conflicted)
    assert report.existing_content is None


def test_a_file_with_more_in_it_than_its_size_is_a_conflict_without_a_hash() -> None:
    """As a file that grows while it is read; here deterministically, by a file that the kernel makes up."""
    need(os.path.exists("/proc/version"), "/proc")
    for content in ("", CONTENT):
        report = perform(a_call("/proc/version", content))
        assert isinstance(report, Conflicted)
        assert (report.reason, report.existing_content_hash, report.existing_content) == (REUSED, None, None)


def test_a_directory_that_no_system_can_flush_is_passed() -> None:
    """As `/proc`, which stands above the file here: what is in it needs no flush to be found again."""
    need(os.path.exists("/proc/self/comm"), "/proc")
    report = perform(a_call(f"/proc/{os.getpid()}/comm"))
    assert isinstance(report, Conflicted)
    assert report.reason == REUSED


def test_a_target_that_cannot_be_read_is_a_failure_at_first_and_unknown_later(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(CONTENT.encode())
    (tmp_path / "t").chmod(0)
    let_all_pass(tmp_path)
    ends = [finish(start(output=tmp_path / "t", attempt=attempt, user=nobody())) for attempt in (1, 2)]
    assert ends == ["ActionFailed action_failed EACCES", f"OSError {errno.EACCES}"]


@pytest.mark.parametrize("nth", [1, 2])
def test_a_recovery_that_cannot_flush_is_unknown_and_never_a_failure(tmp_path: Path, nth: int) -> None:
    base = tmp_path / "base"
    base.mkdir()
    (base / "t").write_bytes(CONTENT.encode())
    tracer = failing(tmp_path, f"fsync:error=EIO:when={nth}")
    assert finish(start(*tracer, output="t", root=str(base))) == f"OSError {errno.EIO}"
    assert (base / "t").read_bytes() == CONTENT.encode()


# ── confinement ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A root in `tmp_path/root` with every way out that a link can be; what lies outside of it."""
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    (root / "inner").mkdir(parents=True)
    (root / "file").write_text("file")
    (root / "up").symlink_to("../outside")
    (root / "absolute").symlink_to(outside)
    (root / "inner/up").symlink_to("../../outside")
    (root / "sideways").symlink_to("inner")
    (root / "dangling").symlink_to("nothing")
    (root / "self").symlink_to(".")
    (root / "loop").symlink_to("loop")
    return outside


@confinements
@pytest.mark.parametrize("attempt", [1, 2])
@pytest.mark.parametrize(
    "path", ["up/t", "absolute/t", "inner/up/t", "up/new/t", "sideways/t", "dangling/t", "self/t", "loop/t"]
)
def test_a_symbolic_link_on_the_way_is_not_allowed(
    outside: Path, confined: Callable[[Callable[[], Any]], Any], path: str, attempt: int
) -> None:
    root = outside.parent / "root"
    before = sorted(root.rglob("*"))
    error = confined(lambda: refusal(a_call(path, attempt=attempt), root))
    assert error.code == "path_not_allowed"
    assert (os.listdir(outside), sorted(root.rglob("*"))) == ([], before)


@confinements
def test_a_file_on_the_way_is_a_definite_failure(outside: Path, confined: Callable[[Callable[[], Any]], Any]) -> None:
    error = confined(lambda: refusal(a_call("file/new/t"), outside.parent / "root"))
    assert (error.code, error.details["errno"]) == ("action_failed", "ENOTDIR")


@confinements
def test_below_the_root_files_and_directories_are_made(
    outside: Path, confined: Callable[[Callable[[], Any]], Any]
) -> None:
    root = outside.parent / "root"
    assert confined(lambda: perform(a_call("inner/x/y/t"), root)) == executed("inner/x/y/t")
    assert confined(lambda: perform(a_call("inner/x/y/t", attempt=2), root)) == recovered("inner/x/y/t")
    assert confined(lambda: perform(a_call("top"), root)) == executed("top")


def test_the_forbidden_openat2_is_really_not_there() -> None:
    """The control for every test of the walk."""

    def ask() -> int:
        with pytest.raises(OSError) as caught:
            directories._openat2(0, b".")
        assert caught.value.errno is not None
        return caught.value.errno

    assert with_the_walk(ask) == errno.ENOSYS


def test_a_missing_root_fails_at_first_and_is_unknown_later_as_it_may_be_unmounted(tmp_path: Path) -> None:
    assert refusal(a_call("t"), tmp_path / "none").details["errno"] == "ENOENT"
    with pytest.raises(FileNotFoundError):
        perform(a_call("t", attempt=2), tmp_path / "none")


PARTS: Final = st.one_of(
    st.sampled_from(["..", ".", "", "up", "absolute", "inner", "sideways", "dangling", "self", "loop", "file", "t"]),
    st.sampled_from(["...", "~", "%2e%2e", "..\\..", "\u2024\u2024", "proc", "C:", "a" * 255, " ", "\n"]),
    st.text(max_size=6),
)
PATHS: Final = st.tuples(st.sampled_from(["", "", "/", "//"]), st.lists(PARTS, max_size=6)).map(
    lambda drawn: drawn[0] + "/".join(drawn[1])
)


def snapshot(outside: Path) -> list[Path]:
    return sorted(path for path in outside.parent.rglob("*") if (outside.parent / "root") not in path.parents)


@pytest.mark.campaign
@confinements
def test_no_path_whatever_escapes_the_root(
    outside: Path, confined: Callable[[Callable[[], Any]], Any], is_long: bool
) -> None:
    root = outside.parent / "root"
    before = snapshot(outside)
    ends: Counter[str] = Counter()

    @settings(max_examples=10_000 if is_long else 2_000, deadline=None, database=None)
    @given(PATHS)
    @example("../t")
    @example("inner/up/../t")
    def no_path_escapes(path: str) -> None:
        call = a_call(path, op_key=hashlib.sha256(path.encode("utf-8", "replace")).hexdigest())
        try:
            WriteFile(root=root).check(call)
            report = write_file._perform(call, os.fsencode(root))
            ends[type(report).__name__] += 1
            assert (root / path).resolve().is_relative_to(root), path
        except ActionFailed as error:
            ends[error.code] += 1
        assert os.listdir(outside) == []

    confined(no_path_escapes)
    assert snapshot(outside) == before
    assert temps(outside.parent) == []
    assert ends["Executed"] > 100 and ends["path_not_allowed"] > 100, f"the paths are one-sided: {ends}"


def test_control_without_a_root_the_same_link_leads_outside(outside: Path) -> None:
    perform(a_call(outside.parent / "root/up/t"))
    assert os.listdir(outside) == ["t"]


def test_a_parent_swapped_for_a_link_meanwhile_leads_nowhere_else(outside: Path) -> None:
    root = outside.parent / "root"

    def swap(name: str) -> None:
        assert name == EFFECT_INSIDE
        (root / "inner").rename(root / "moved")
        (root / "inner").symlink_to(outside)

    assert isinstance(perform(a_call("inner/t", reach=swap), root), Executed)
    assert os.listdir(outside) == []
    assert (root / "moved/t").read_bytes() == CONTENT.encode()


def test_a_parent_removed_meanwhile_is_a_definite_failure(tmp_path: Path) -> None:
    error = refusal(a_call("gone/t", reach=lambda name: shutil.rmtree(tmp_path / "gone")), tmp_path)
    assert (error.code, error.details["errno"]) == ("action_failed", "ENOENT")
    assert os.listdir(tmp_path) == []


@pytest.mark.campaign
@confinements
def test_a_parent_that_is_swapped_all_the_time_never_leads_outside(
    outside: Path, confined: Callable[[Callable[[], Any]], Any]
) -> None:
    root = outside.parent / "root"
    (root / "trap").symlink_to(outside)
    going = threading.Event()
    going.set()

    def swap() -> None:
        exchange = ctypes.CDLL(None).renameat2
        while going.is_set():
            exchange(-100, os.fsencode(root / "inner"), -100, os.fsencode(root / "trap"), 2)

    def write() -> Counter[str]:
        ends: Counter[str] = Counter()
        for number in range(1500):
            key = hashlib.sha256(str(number).encode()).hexdigest()
            try:
                ends[type(write_file._perform(a_call(f"inner/t{number}", op_key=key), os.fsencode(root))).__name__] += 1
            except ActionFailed as error:
                ends[error.code] += 1
        return ends

    need(hasattr(ctypes.CDLL(None), "renameat2"), "renameat2 to swap with")
    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        ends = confined(write)
    finally:
        going.clear()
        swapper.join()
    assert os.listdir(outside) == []
    assert ends["Executed"] > 0 and ends["path_not_allowed"] > 0, f"nothing was raced: {ends}"


# ── file systems without links, full disks, failing disks ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS], ids=errno.errorcode.get)
def test_where_links_fail_the_file_is_renamed_without_replacing(tmp_path: Path, number: int) -> None:
    target = tmp_path / "t"
    assert where_forbidden(lambda: perform(a_call(target)), linkat=number) == executed(target)
    assert (target.read_bytes(), os.listdir(tmp_path)) == (CONTENT.encode(), ["t"])


def test_where_links_fail_a_target_that_comes_in_between_is_not_replaced(tmp_path: Path) -> None:
    target = tmp_path / "t"
    call = a_call(target, reach=somebody_writes(target, "quicker"))
    report = where_forbidden(lambda: perform(call), linkat=errno.EPERM)
    assert isinstance(report, Conflicted)
    assert (target.read_text(), os.listdir(tmp_path)) == ("quicker", ["t"])


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS], ids=errno.errorcode.get)
def test_where_nothing_creates_exclusively_it_is_refused_and_nothing_is_left(tmp_path: Path, number: int) -> None:
    call = a_call(tmp_path / "t")
    error = where_forbidden(lambda: refusal(call), linkat=errno.EPERM, renameat2=number)
    assert (error.code, os.listdir(tmp_path)) == ("atomic_create_unsupported", [])


def test_an_answer_to_the_link_that_leaves_it_open_is_unknown(tmp_path: Path) -> None:
    def ask() -> None:
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            perform(a_call(tmp_path / "t"))

    where_forbidden(ask, linkat=errno.EIO)
    assert os.listdir(tmp_path) == []


def test_a_real_file_system_without_links(tmp_path: Path) -> None:
    with mounted_without("links", tmp_path) as mount:
        (mount / "probe").write_text("x")
        with pytest.raises(OSError):
            os.link(mount / "probe", mount / "probe2")
        assert finish(start(output="a/b/t", root=str(mount))) == "Executed"
        assert finish(start(output="a/b/t", root=str(mount), attempt=2)) == "Recovered"
        assert finish(start(output="a/b/t", root=str(mount), content="other")) == "Conflicted"
        assert (tmp_path / "behind/a/b/t").read_bytes() == CONTENT.encode()
        assert temps(tmp_path / "behind") == []


def test_a_full_disk_is_a_definite_failure_and_the_temp_is_removed(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=64k", "tmpfs") as small:
        for attempt in (1, 2):
            error = refusal(a_call("a/t", "x" * 1_000_000, attempt=attempt), small)
            assert (error.code, error.details["errno"]) == ("action_failed", "ENOSPC")
            assert os.listdir(small / "a") == []
        assert isinstance(perform(a_call("a/t", attempt=3), small), Executed)


def test_a_read_only_file_system_is_a_definite_failure(tmp_path: Path) -> None:
    with mounted(tmp_path / "fixed", "-t", "tmpfs", "-o", "ro", "tmpfs") as fixed:
        for attempt, path in ((1, "t"), (2, "t"), (1, "new/t"), (2, "new/t")):
            assert refusal(a_call(path, attempt=attempt), fixed).details["errno"] == "EROFS"


@pytest.mark.campaign
@pytest.mark.parametrize("call", ["fsync", "write", "linkat", "unlinkat", "mkdirat", "openat2"])
@pytest.mark.parametrize("number", ["EIO", "ENOSPC"])
def test_whichever_call_fails_a_failure_means_no_target_and_the_next_attempt_is_right(
    tmp_path: Path, call: str, number: str
) -> None:
    ends: list[str] = []
    for nth in range(1, 9):
        base = tmp_path / f"base{nth}"
        base.mkdir()
        only = ["-P", f"{base}/a/.{OP_KEY[:32]}-1.eventlog-tmp"] if call == "write" else []
        tracer = [*failing(tmp_path, f"{call}:error={number}:when={nth}"), *only]
        end = finish(start(*tracer, output="a/t", root=str(base)))
        target = base / "a/t"
        was_there = target.exists()
        assert end == "Executed" or end.startswith(("ActionFailed action_failed", "OSError")), end
        assert not (end.startswith("ActionFailed") and was_there), f"call {nth}: told failed, but it is there"
        assert perform(a_call("a/t", attempt=2), base) == (recovered("a/t") if was_there else executed("a/t"))
        assert target.read_bytes() == CONTENT.encode() and temps(base) == []
        ends.append(end)
    assert ends[0] != "Executed" and ends[-1] == "Executed", f"the faults did not go through every call: {ends}"


def test_a_directory_that_cannot_be_flushed_after_the_link_is_unknown_and_then_recovered(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    tracer = failing(tmp_path, "fsync:error=EIO:when=2")  # The first is the temp's.
    assert finish(start(*tracer, output="t", root=str(base))) == f"OSError {errno.EIO}"
    assert (base / "t").read_bytes() == CONTENT.encode()
    assert perform(a_call("t", attempt=2), base) == recovered("t")


# ── crashes, races, cancellation ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("reach", "status"), [("exit", CRASH_STATUS), ("kill", -signal.SIGKILL)])
@pytest.mark.parametrize("attempt", [1, 2], ids=["same attempt again", "next attempt"])
def test_a_crash_inside_leaves_no_target_and_the_next_attempt_succeeds_and_sweeps(
    tmp_path: Path, reach: str, status: int, attempt: int
) -> None:
    process = start(output="a/t", root=str(tmp_path), reach=reach)
    assert (finish(process), process.returncode) == ("", status)
    foreign = tmp_path / f"a/.{'cd' * 16}-1.eventlog-tmp"
    foreign.write_text("another run's")
    assert len(temps(tmp_path)) == 2 and not (tmp_path / "a/t").exists()
    assert perform(a_call("a/t", attempt=attempt), tmp_path) == executed("a/t")
    assert temps(tmp_path) == [foreign.name], "its own are swept, and never another's"


@pytest.mark.campaign
@pytest.mark.parametrize("attempt", [1, 2], ids=["same attempt again", "next attempt"])
@pytest.mark.parametrize("call", ["fsync", "linkat", "unlinkat", "mkdirat"])
def test_killed_at_any_step_the_target_is_whole_or_absent_and_the_next_attempt_is_right(
    tmp_path: Path, call: str, attempt: int
) -> None:
    killed = 0
    for nth in range(1, 7):
        base = tmp_path / f"base{nth}"
        base.mkdir()
        process = start(*failing(tmp_path, f"{call}:signal=SIGKILL:when={nth}"), output="a/t", root=str(base))
        end, target = finish(process), base / "a/t"
        killed += process.returncode != 0
        was_there = target.exists()
        assert end == ("Executed" if process.returncode == 0 else "")
        assert perform(a_call("a/t", attempt=attempt), base) == (recovered("a/t") if was_there else executed("a/t"))
        assert target.read_bytes() == CONTENT.encode() and temps(base) == []
    assert 0 < killed < 6, "the kills did not go through every step"


@pytest.mark.campaign
def test_of_threads_that_race_one_creates_and_the_others_recover(tmp_path: Path, is_long: bool) -> None:
    for number in range(3_000 if is_long else 300):
        calls = [a_call(f"d{number}/t", op_key=f"{n}" * 64) for n in range(3)]
        gate, ends = threading.Barrier(3), Counter[str]()

        def race(call: Call, gate: threading.Barrier = gate, ends: Counter[str] = ends) -> None:
            gate.wait()
            ends[type(write_file._perform(call, os.fsencode(tmp_path))).__name__] += 1

        threads = [threading.Thread(target=race, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ends == {"Executed": 1, "Recovered": 2}
    assert temps(tmp_path) == []


@pytest.mark.campaign
def test_of_processes_that_race_one_creates_and_the_others_recover(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    for number in range(5):
        racers = [start(output=f"d{number}/t", root=str(tmp_path), op_key=f"{n}" * 64, at=str(gate)) for n in range(3)]
        time.sleep(0.4)
        gate.touch()
        assert Counter(map(finish, racers)) == {"Executed": 1, "Recovered": 2}
        gate.unlink()
    assert temps(tmp_path) == []


@pytest.mark.parametrize(("quicker", "kind"), [(CONTENT, Recovered), ("other", Conflicted)])
def test_a_target_that_comes_in_between_is_compared_and_kept(tmp_path: Path, quicker: str, kind: type) -> None:
    target = tmp_path / "t"
    report = perform(a_call(target, reach=somebody_writes(target, quicker)))
    assert isinstance(report, kind)
    assert (target.read_bytes(), os.listdir(tmp_path)) == (quicker.encode(), ["t"])


def test_control_the_comparison_is_what_tells_recovered_from_conflict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the comparison every existing file looks recovered: the tests above would see it."""
    (tmp_path / "t").write_text("else")
    monkeypatch.setattr(write_file, "_read", lambda fd: write_file._Seen(len(CONTENT.encode()), DIGEST, None))
    assert isinstance(perform(a_call(tmp_path / "t")), Recovered)


@pytest.mark.asyncio
async def test_cancellation_waits_until_the_thread_has_finished(tmp_path: Path) -> None:
    inside, go_on, passed = threading.Event(), threading.Event(), threading.Event()

    def hold(name: str) -> None:
        inside.set()
        assert go_on.wait(10)
        passed.set()

    task = asyncio.create_task(WriteFile().execute(a_call(tmp_path / "t", reach=hold)))
    await asyncio.to_thread(inside.wait, 10)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.02)
    assert not task.done(), "cancelled again and again, it still waits"
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert passed.is_set() and (tmp_path / "t").read_bytes() == CONTENT.encode() and temps(tmp_path) == []
    assert await WriteFile().execute(a_call(tmp_path / "t", attempt=2)) == recovered(tmp_path / "t")


@pytest.mark.asyncio
async def test_a_cancelled_call_that_fails_is_cancelled_and_nothing_complains(tmp_path: Path) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def hold(name: str) -> None:
        inside.set()
        assert go_on.wait(10)
        raise OSError(errno.EIO, "injected")

    task = asyncio.create_task(WriteFile().execute(a_call(tmp_path / "t", reach=hold)))
    await asyncio.to_thread(inside.wait, 10)
    task.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert os.listdir(tmp_path) == []


def test_a_loop_that_ends_waits_for_the_work(tmp_path: Path) -> None:
    ended = threading.Event()

    def slow(name: str) -> None:
        time.sleep(0.2)
        ended.set()

    async def leave() -> None:
        asyncio.create_task(WriteFile().execute(a_call(tmp_path / "t", reach=slow)))  # noqa: RUF006  # left on purpose
        await asyncio.sleep(0.05)

    asyncio.run(leave())
    assert ended.is_set() and (tmp_path / "t").exists() and temps(tmp_path) == []


def test_no_descriptor_is_left_open(outside: Path) -> None:
    root = outside.parent / "root"
    need(os.path.isdir("/proc/self/fd"), "/proc")
    before = len(os.listdir("/proc/self/fd"))
    for path in (
        "inner/a/t",
        "inner/a/t",
        "up/t",
        "file/t",
        "file/x/t",
        "inner",
        "dangling",
        "n" * 300,
        "inner/up/x/t",
    ):
        with suppress(ActionFailed):
            perform(a_call(path), root)
    assert len(os.listdir("/proc/self/fd")) == before


# ── what changes between two looks ────────────────────────────────────────────────────────────────────────────────────


def test_a_file_that_was_in_the_way_and_has_gone_is_a_definite_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    publish = write_file._publish

    def gone_again(effect: Any) -> bool:
        has_made_it = publish(effect)
        target.unlink()
        return has_made_it

    monkeypatch.setattr(write_file, "_publish", gone_again)
    failure = refusal(a_call(target, reach=somebody_writes(target, "theirs")))
    assert failure.code == "action_failed"
    assert "another file was there and has gone" in str(failure)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("swap", [lambda target: target.symlink_to("elsewhere"), os.mkfifo], ids=["link", "fifo"])
def test_a_target_that_is_swapped_between_the_look_and_the_opening_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swap: Callable[[Path], None]
) -> None:
    target = tmp_path / "target"
    target.write_text("theirs")
    look = write_file._require_regular
    looks = 0

    def looked_and_swapped(call: Call, status: os.stat_result) -> None:
        nonlocal looks
        look(call, status)
        looks += 1
        target.unlink()
        swap(target)

    monkeypatch.setattr(write_file, "_require_regular", looked_and_swapped)
    before = len(os.listdir("/proc/self/fd"))
    failure = refusal(a_call(target))
    assert (failure.code, looks) == ("target_not_regular", 1)
    assert len(os.listdir("/proc/self/fd")) == before, "what was opened is closed again"


def test_a_c_library_without_the_exclusive_rename_is_refused_where_there_are_no_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exclusive_rename, "_SYMBOL", "rename_of_no_library")
    monkeypatch.setattr(write_file, "_link", lambda effect: False)
    failure = refusal(a_call(tmp_path / "target"))
    assert failure.code == "atomic_create_unsupported"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["log.db", "log.db-wal", "log.db.owners/lock", "log.db.artifacts/x"])
def test_a_file_of_the_log_is_refused_also_by_an_effect_that_nobody_checked(tmp_path: Path, name: str) -> None:
    (tmp_path / "log.db.owners").mkdir()
    (tmp_path / "log.db.artifacts").mkdir()
    call = dataclasses.replace(a_call(tmp_path / name), place=str(tmp_path / "log.db"))
    failure = refusal(call)
    assert failure.code == "path_not_allowed"
    assert "belongs to the log" in str(failure)
    assert not (tmp_path / name).exists()


def test_a_folder_that_cannot_be_flushed_makes_no_file_and_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inner").mkdir()

    def broken(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(directories, "flush", broken)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises((ActionFailed, OSError)):
        perform(a_call("inner/target"), root=tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before
    assert list((tmp_path / "inner").iterdir()) == []


def test_without_the_confining_system_call_the_way_is_walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directories, "_HAS_OPENAT2", False)
    (tmp_path / "inner").mkdir()
    assert isinstance(perform(a_call("inner/target"), root=tmp_path), Executed)
    assert (tmp_path / "inner" / "target").read_bytes() == CONTENT.encode()
