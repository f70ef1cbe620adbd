"""Faults of the operating system on demand: a shim in front of libc that fails the n-th call of a kind.

`build_shim` compiles it; a process that is started with `LD_PRELOAD=<shim>` and `FAULTS=<file>` arms it through
`Faults`, in the middle of its own work, for files below a folder or with a given ending only. A fault lets `skip` calls
pass and then fails `times` of them (FOR_EVER: all) with `error`, or with `KILLED` ends the process there.

A call that fails can have worked all the same (`works`), which is what makes a failed fsync treacherous; a write can be
cut in the middle (`torn`): with an error of `SHORT` it says so, as the system does, and with KILLED nobody can.

SQLite goes through libc as well, so that nothing has to be traced. What maps memory (`-shm`) or lists a folder is not
seen.
"""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
from pathlib import Path
from typing import Final, Literal, get_args

__all__ = ["FOR_EVER", "KILLED", "OPERATIONS", "SHORT", "Faults", "Operation", "build_shim", "shim_environment"]

Operation = Literal["sync", "write", "read", "open", "link", "rename", "unlink", "truncate", "mkdir"]
OPERATIONS: Final[tuple[Operation, ...]] = get_args(Operation)

FOR_EVER: Final = -1
KILLED: Final = 0
SHORT: Final = -1
"""An error that is none: the write returns that it has written only a part, which it has."""

_DOES_NOT_WORK, _WORKS, _TORN = range(3)
_FAULT: Final = struct.Struct("<iiiiii208s48s")

_SHIM: Final = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { SYNC, WRITE, READ, OPEN, LINK, RENAME, UNLINK, TRUNCATE, MKDIR, OPERATIONS };
enum { GOES_ON, FAILS, FAILS_BEHIND, TORN };
struct fault { int times, skip, error, works, hits, seen; char prefix[208], suffix[48]; };
static volatile struct fault *faults;

__attribute__((constructor)) static void map_faults(void) {
    const char *path = getenv("FAULTS");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *at = mmap(0, OPERATIONS * sizeof(struct fault), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at != MAP_FAILED) faults = at;
}

static int is_armed(int operation) { return faults && faults[operation].times != 0; }

static ssize_t path_of(int fd, char *path, size_t room) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(fd == AT_FDCWD ? "/proc/self/cwd" : link, path, room - 1);
    path[size < 0 ? 0 : size] = 0;
    return size;
}

/* Counts a call on a path and says what becomes of it. Threads may come at the same time: each gets a number. */
static int decide_path(int operation, const char *path) {
    volatile struct fault *f = &faults[operation];
    size_t size = strlen(path), head = strlen((const char *)f->prefix), tail = strlen((const char *)f->suffix);
    if (size < head || strncmp(path, (const char *)f->prefix, head)) return GOES_ON;
    if (size < tail || strcmp(path + size - tail, (const char *)f->suffix)) return GOES_ON;
    __atomic_fetch_add(&f->seen, 1, __ATOMIC_SEQ_CST);
    int skip = f->skip;
    while (skip > 0)
        if (__atomic_compare_exchange_n(&f->skip, &skip, skip - 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            return GOES_ON;
    int times = f->times;
    while (times > 0)
        if (__atomic_compare_exchange_n(&f->times, &times, times - 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) break;
    if (times == 0) return GOES_ON;
    __atomic_fetch_add(&f->hits, 1, __ATOMIC_SEQ_CST);
    if (!f->error && !f->works) kill(getpid(), SIGKILL);
    return FAILS + f->works;
}

static int decide_fd(int operation, int fd) {
    if (!is_armed(operation)) return GOES_ON;
    char path[4096];
    int before = errno, what = path_of(fd, path, sizeof path) < 0 ? GOES_ON : decide_path(operation, path);
    errno = before;
    return what;
}

static int decide_at(int operation, int directory, const char *name) {
    if (!is_armed(operation) || !name) return GOES_ON;
    char path[8192];
    int before = errno;
    ssize_t size = name[0] == '/' ? 0 : path_of(directory, path, 4096);
    if (size > 0) path[size++] = '/';
    if (size >= 0) snprintf(path + size, 4096, "%s", name);
    int what = size < 0 ? GOES_ON : decide_path(operation, path);
    errno = before;
    return what;
}

static int failed(int operation) {
    if (!faults[operation].error) kill(getpid(), SIGKILL);
    errno = faults[operation].error;
    return -1;
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name)
#define FAIL(operation, decision, call) \
    int what = decision; \
    if (what == GOES_ON) return call; \
    if (what != FAILS) { __typeof__(call) done = call; (void)done; } \
    return failed(operation)
#define FAIL_OPEN(decision, call) \
    int what = decision; \
    if (what == GOES_ON) return call; \
    if (what != FAILS) { int fd = call; if (fd >= 0) close(fd); } \
    return failed(OPEN)
/* A part of the data is written: half of it, at least a byte. */
#define FAIL_WRITE(call, cut) \
    int what = decide_fd(WRITE, fd); \
    if (what == GOES_ON) return call; \
    if (what == TORN) { \
        ssize_t done = cut; \
        if (faults[WRITE].error == -1) return done; \
    } else if (what == FAILS_BEHIND) { ssize_t done = call; (void)done; } \
    return failed(WRITE)
#define HALF(size) ((size) > 1 ? (size) / 2 : (size))

int fdatasync(int fd) { REAL(fdatasync); FAIL(SYNC, decide_fd(SYNC, fd), real(fd)); }
int fsync(int fd) { REAL(fsync); FAIL(SYNC, decide_fd(SYNC, fd), real(fd)); }

ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    FAIL_WRITE(real(fd, data, size), real(fd, data, HALF(size)));
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    REAL(pwrite);
    FAIL_WRITE(real(fd, data, size, at), real(fd, data, HALF(size), at));
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    REAL(pwrite64);
    FAIL_WRITE(real(fd, data, size, at), real(fd, data, HALF(size), at));
}
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) {
    REAL(pwritev);
    FAIL_WRITE(real(fd, parts, count, at), real(fd, parts, HALF(count), at));
}
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t at) {
    REAL(pwritev64);
    FAIL_WRITE(real(fd, parts, count, at), real(fd, parts, HALF(count), at));
}

ssize_t read(int fd, void *data, size_t size) { REAL(read); FAIL(READ, decide_fd(READ, fd), real(fd, data, size)); }
ssize_t pread(int fd, void *data, size_t size, off_t at) {
    REAL(pread);
    FAIL(READ, decide_fd(READ, fd), real(fd, data, size, at));
}
ssize_t pread64(int fd, void *data, size_t size, off64_t at) {
    REAL(pread64);
    FAIL(READ, decide_fd(READ, fd), real(fd, data, size, at));
}

#define MODE \
    mode_t mode = 0; \
    if (flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE) { \
        va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); \
    }
int open(const char *path, int flags, ...) {
    MODE REAL(open);
    FAIL_OPEN(decide_at(OPEN, AT_FDCWD, path), real(path, flags, mode));
}
int open64(const char *path, int flags, ...) {
    MODE REAL(open64);
    FAIL_OPEN(decide_at(OPEN, AT_FDCWD, path), real(path, flags, mode));
}
int openat(int at, const char *path, int flags, ...) {
    MODE REAL(openat);
    FAIL_OPEN(decide_at(OPEN, at, path), real(at, path, flags, mode));
}
int openat64(int at, const char *path, int flags, ...) {
    MODE REAL(openat64);
    FAIL_OPEN(decide_at(OPEN, at, path), real(at, path, flags, mode));
}
/* openat2 and renameat2 are called by number where the C library has no name for them. */
long syscall(long number, ...) {
    REAL(syscall);
    long a[6];
    va_list more; va_start(more, number);
    for (int each = 0; each < 6; each++) a[each] = va_arg(more, long);
    va_end(more);
    if (number == 437) {
        FAIL_OPEN(decide_at(OPEN, (int)a[0], (const char *)a[1]), real(number, a[0], a[1], a[2], a[3], a[4], a[5]));
    }
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

int link(const char *old, const char *new) {
    REAL(link);
    FAIL(LINK, decide_at(LINK, AT_FDCWD, new), real(old, new));
}
int linkat(int from, const char *old, int to, const char *new, int flags) {
    REAL(linkat);
    FAIL(LINK, decide_at(LINK, to, new), real(from, old, to, new, flags));
}
int rename(const char *old, const char *new) {
    REAL(rename);
    FAIL(RENAME, decide_at(RENAME, AT_FDCWD, new), real(old, new));
}
int renameat(int from, const char *old, int to, const char *new) {
    REAL(renameat);
    FAIL(RENAME, decide_at(RENAME, to, new), real(from, old, to, new));
}
int renameat2(int from, const char *old, int to, const char *new, unsigned flags) {
    REAL(renameat2);
    FAIL(RENAME, decide_at(RENAME, to, new), real(from, old, to, new, flags));
}
int unlink(const char *path) { REAL(unlink); FAIL(UNLINK, decide_at(UNLINK, AT_FDCWD, path), real(path)); }
int rmdir(const char *path) { REAL(rmdir); FAIL(UNLINK, decide_at(UNLINK, AT_FDCWD, path), real(path)); }
int unlinkat(int at, const char *path, int flags) {
    REAL(unlinkat);
    FAIL(UNLINK, decide_at(UNLINK, at, path), real(at, path, flags));
}
int ftruncate(int fd, off_t size) { REAL(ftruncate); FAIL(TRUNCATE, decide_fd(TRUNCATE, fd), real(fd, size)); }
int ftruncate64(int fd, off64_t size) { REAL(ftruncate64); FAIL(TRUNCATE, decide_fd(TRUNCATE, fd), real(fd, size)); }
int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    FAIL(MKDIR, decide_at(MKDIR, AT_FDCWD, path), real(path, mode));
}
int mkdirat(int at, const char *path, mode_t mode) {
    REAL(mkdirat);
    FAIL(MKDIR, decide_at(MKDIR, at, path), real(at, path, mode));
}
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
    table.write_bytes(bytes(_FAULT.size * len(OPERATIONS)))
    return {"LD_PRELOAD": str(library), "FAULTS": str(table)}


class Faults:
    """The faults of this process, which has been started with the shim, and of those that it forks."""

    def __init__(self) -> None:
        with open(os.environ["FAULTS"], "r+b") as table:
            self._table: Final = mmap.mmap(table.fileno(), 0)

    def arm(
        self,
        operation: Operation,
        error: int,
        *,
        files: str = "",
        below: str = "",
        skip: int = 0,
        times: int = 1,
        works: bool = False,
        torn: bool = False,
    ) -> None:
        """Let `operation` fail on files whose path begins with `below` and ends with `files`.

        `times` calls fail behind the next `skip`. Of a link or a rename the new name counts.
        """
        how = _TORN if torn else _WORKS if works else _DOES_NOT_WORK
        assert len(below.encode()) < 208, "longer than the shim has room for"
        assert len(files.encode()) < 48, "longer than the shim has room for"
        fault = _FAULT.pack(times, skip, error, how, 0, 0, below.encode(), files.encode())
        start = self._start(operation)
        self._table[start + 4 : start + _FAULT.size] = fault[4:]
        self._table[start : start + 4] = fault[:4]  # it is armed by that, at once and with all that belongs to it

    def disarm(self, operation: Operation) -> int:
        """Let `operation` work again and return how many calls have failed."""
        start = self._start(operation)
        self._table[start : start + 4] = bytes(4)
        return self.hits(operation)

    def hits(self, operation: Operation) -> int:
        """Return how many calls have failed since the fault was armed."""
        return int(_FAULT.unpack_from(self._table, self._start(operation))[4])

    def seen(self, operation: Operation) -> int:
        """Return how many calls the fault was looked up for since it was armed, those that passed too."""
        return int(_FAULT.unpack_from(self._table, self._start(operation))[5])

    def _start(self, operation: Operation) -> int:
        return OPERATIONS.index(operation) * _FAULT.size
