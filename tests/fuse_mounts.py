"""Real file systems that lack something, by FUSE: without links, or without memory that processes can share."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from tests.needs import need, need_command

__all__ = ["mounted_without"]

_PROGRAM: Final = """
import os, sys
import mfusepy as fuse

class PassThrough(fuse.Operations):  # it has no `link`
    use_ns = True
    def __init__(self, root): self.root = root
    def getattr(self, path, fh=None):
        seen = os.lstat(self.root + path)
        names = ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid", "st_ino")
        return {**{name: getattr(seen, name) for name in names}, "st_mtime": seen.st_mtime_ns}
    def readdir(self, path, fh): return [".", "..", *os.listdir(self.root + path)]
    def open(self, path, flags): return os.open(self.root + path, flags)
    def create(self, path, mode, fi=None): return os.open(self.root + path, os.O_RDWR | os.O_CREAT, mode)
    def read(self, path, size, offset, fh): return os.pread(fh, size, offset)
    def write(self, path, data, offset, fh): return os.pwrite(fh, data, offset)
    def truncate(self, path, length, fh=None): os.truncate(self.root + path, length)
    def unlink(self, path): os.unlink(self.root + path)
    def rename(self, old, new): os.rename(self.root + old, self.root + new)
    def mkdir(self, path, mode): os.mkdir(self.root + path, mode)
    def release(self, path, fh): os.close(fh)
    def fsync(self, path, datasync, fh): os.fsync(fh)

options = {"direct_io": True} if sys.argv[3] == "shared memory" else {}
fuse.FUSE(PassThrough(sys.argv[1]), sys.argv[2], foreground=True, nothreads=True, **options)
"""
"""With `direct_io` files bypass the page cache and cannot be mapped as shared memory, as on file systems of others."""


@contextmanager
def mounted_without(what: Literal["links", "shared memory"], tmp_path: Path) -> Iterator[Path]:
    """Mount such a file system over `tmp_path/behind`. Skips the test, or in CI fails it, where that cannot be done."""
    need(os.geteuid() == 0 and os.path.exists("/dev/fuse"), "FUSE")
    need_command("fusermount3")
    need(importlib.util.find_spec("mfusepy") is not None, "mfusepy, which the extra `dev` brings")
    behind, mount = tmp_path / "behind", tmp_path / "mount"
    behind.mkdir()
    mount.mkdir()
    server = subprocess.Popen([sys.executable, "-c", _PROGRAM, behind, mount, what])
    try:
        deadline = time.monotonic() + 30
        while not os.path.ismount(mount):
            assert server.poll() is None and time.monotonic() < deadline, "the FUSE server did not start"
            time.sleep(0.01)
        yield mount
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=False)
        server.terminate()
        server.wait()
