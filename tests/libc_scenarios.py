"""Programs whose system calls fail, for `tests/test_libc_faults.py`. Each function runs in a child of its own."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.campaigns.storage.libc_faults import FOR_EVER, SHORT, Faults, Operation

_CALLS: dict[Operation, Callable[[Path], object]] = {
    "write": lambda folder: (folder / "file").write_bytes(b"x" * 10),
    "open": lambda folder: (folder / "file").open().close(),
    "link": lambda folder: os.link(folder / "file", folder / "second"),
    "rename": lambda folder: os.rename(folder / "second", folder / "third"),
    "unlink": lambda folder: os.unlink(folder / "third"),
    "truncate": lambda folder: os.truncate(os.open(folder / "file", os.O_RDWR), 1),
    "mkdir": lambda folder: os.mkdir(folder / "folder"),
}


def each_call_fails_where_it_is_told_to(folder: str) -> dict[str, Any]:
    """Fail each kind of call below one folder only, and say what came of it there and elsewhere."""
    faults, below, elsewhere = Faults(), Path(folder, "below"), Path(folder, "elsewhere")
    below.mkdir()
    elsewhere.mkdir()
    seen: dict[str, Any] = {}
    for operation, call in _CALLS.items():
        faults.arm(operation, errno.EIO, below=str(below), times=FOR_EVER)
        failed = _error(call, below)
        passed = _error(call, elsewhere)
        hits = faults.disarm(operation)
        seen[operation] = [failed, passed, hits, _error(call, below)]
    return seen


def half_a_write(folder: str) -> dict[str, Any]:
    """Have a write be short, then torn, then fail though it has worked."""
    faults, file = Faults(), os.open(Path(folder, "file"), os.O_RDWR | os.O_CREAT)
    faults.arm("write", SHORT, below=folder, torn=True)
    short = os.write(file, b"x" * 10)
    faults.arm("write", errno.EIO, below=folder, torn=True, skip=1)
    passed = os.write(file, b"y" * 10)
    torn = _error(lambda _: os.write(file, b"z" * 10), Path(folder))
    seen = faults.seen("write")
    size = os.fstat(file).st_size
    faults.arm("unlink", errno.EIO, below=folder, works=True)
    late = _error(lambda place: os.unlink(place / "file"), Path(folder))
    return {
        "short": short,
        "passed": passed,
        "torn": torn,
        "seen": seen,
        "size": size,
        "late": late,
        "is_there": Path(folder, "file").exists(),
    }


def _error(call: Callable[[Path], object], folder: Path) -> str:
    try:
        call(folder)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "ok"
