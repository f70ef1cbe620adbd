"""A rename that never replaces anything: `renameat2` with RENAME_NOREPLACE on Linux, `renameatx_np` on macOS."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from typing import Final

__all__ = ["NO_EXCLUSIVE_RENAME", "rename_exclusively"]

NO_EXCLUSIVE_RENAME: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP})
"""The `errno` of an OSError which says that the file system, or the C library, has no such rename."""

_SYMBOL, _FLAG = ("renameatx_np", 4) if sys.platform == "darwin" else ("renameat2", 1)


def rename_exclusively(directory: int, old: bytes, new: bytes) -> None:
    """Rename within an open directory. Raises FileExistsError if there is something by the new name, and OSError."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), _SYMBOL, None)
    if rename is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    rename.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    if rename(directory, old, directory, new, _FLAG) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
