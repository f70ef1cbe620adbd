"""Faults of the operating system on demand: a shim in front of libc that fails the n-th call.

`build_shim` compiles it; a child that is started with `LD_PRELOAD=<shim>` and `FAULTS=<file>` arms it through
`Faults`, in the middle of its own work and for files with a given ending only. A fault counts down `skip` calls and
then fails `times` of them (-1: all) with `error`, or with `KILLED` ends the process there. A sync can also fail
*after* it has worked, which is what makes a failed fsync treacherous.
"""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
from pathlib import Path
from typing import Final, Literal

__all__ = ["FOR_EVER", "KILLED", "Faults", "Operation", "build_shim", "shim_environment"]

Operation = Literal["sync", "write", "read"]
FOR_EVER: Final = -1
KILLED: Final = 0

_OPERATIONS: Final[dict[str, int]] = {"sync": 0, "write": 1, "read": 2}
_FAULT: Final = struct.Struct("<iiiii44s")

_SHIM: Final = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

struct fault { int skip, times, error, hits, works; char suffix[44]; };
static volatile struct fault *faults;

__attribute__((constructor)) static void map_faults(void) {
    const char *path = getenv("FAULTS");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *at = mmap(0, 3 * sizeof(struct fault), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at != MAP_FAILED) faults = at;
}

/* 0: go on; 1: fail; 2: do it, then fail. */
static int decide(int operation, int fd) {
    if (!faults || faults[operation].times == 0) return 0;
    volatile struct fault *f = &faults[operation];
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    size_t length = strlen((const char *)f->suffix);
    if ((size_t)size < length || strcmp(path + size - length, (const char *)f->suffix)) return 0;
    if (f->skip > 0) { f->skip--; return 0; }
    if (f->times > 0) f->times--;
    f->hits++;
    if (!f->error) kill(getpid(), SIGKILL);
    return f->works ? 2 : 1;
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name)
#define FAIL(operation, call) \
    int what = decide(operation, fd); \
    if (!what) return call; \
    if (what == 2) (void)call; \
    errno = faults[operation].error; \
    return -1

int fdatasync(int fd) { REAL(fdatasync); FAIL(0, real(fd)); }
int fsync(int fd) { REAL(fsync); FAIL(0, real(fd)); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { REAL(pwrite); FAIL(1, real(fd, data, size, at)); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    REAL(pwrite64);
    FAIL(1, real(fd, data, size, at));
}
ssize_t pread(int fd, void *data, size_t size, off_t at) { REAL(pread); FAIL(2, real(fd, data, size, at)); }
ssize_t pread64(int fd, void *data, size_t size, off64_t at) { REAL(pread64); FAIL(2, real(fd, data, size, at)); }
"""


def build_shim(folder: Path, compiler: str) -> Path:
    """Compile the shim in `folder` and return the library."""
    source, library = folder / "faults.c", folder / "faults.so"
    source.write_text(_SHIM)
    subprocess.run(
        [compiler, "-O1", "-fPIC", "-shared", "-w", "-o", str(library), str(source), "-ldl"], check=True, timeout=60
    )
    return library


def shim_environment(library: Path, table: Path) -> dict[str, str]:
    """Return what a child needs in its environment; `table` is made, with no fault armed."""
    table.write_bytes(bytes(_FAULT.size * len(_OPERATIONS)))
    return {"LD_PRELOAD": str(library), "FAULTS": str(table)}


class Faults:
    """The faults of this process, which has been started with the shim."""

    def __init__(self) -> None:
        with open(os.environ["FAULTS"], "r+b") as table:
            self._table: Final = mmap.mmap(table.fileno(), 0)

    def arm(
        self, operation: Operation, error: int, *, files: str, skip: int = 0, times: int = 1, works: bool = False
    ) -> None:
        """Let `operation` fail on files whose path ends with `files`: `times` calls behind the next `skip`."""
        fault = _FAULT.pack(skip, times, error, 0, works, files.encode())
        start = _OPERATIONS[operation] * _FAULT.size
        self._table[start + 4 : start + _FAULT.size] = fault[4:]
        self._table[start : start + 4] = fault[:4]

    def disarm(self, operation: Operation) -> int:
        """Let `operation` work again and return how many calls have failed."""
        start = _OPERATIONS[operation] * _FAULT.size
        _, _, error, hits, works, files = _FAULT.unpack_from(self._table, start)
        self._table[start : start + _FAULT.size] = _FAULT.pack(0, 0, error, hits, works, files)
        return int(hits)
