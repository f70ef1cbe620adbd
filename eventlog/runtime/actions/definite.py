"""What an error of the operating system proves: that nothing was done, or that nobody can tell."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

from eventlog.errors import ActionFailed
from eventlog.runtime.effects import Call

__all__ = ["before_looking", "failed", "libc", "nothing_done", "raise_errno"]

_PROOFS_OF_ABSENCE: Final = frozenset({errno.ENAMETOOLONG, errno.ENOTDIR})
"""Answers to a look-up which say that the path leads to no file. ENOENT is none: a root may just not be mounted."""


@contextmanager
def nothing_done(call: Call) -> Iterator[None]:
    """Turn an OSError into `ActionFailed`: the target was seen to be absent and has not been linked."""
    try:
        yield
    except OSError as error:
        raise failed(call, error) from error


@contextmanager
def before_looking(call: Call) -> Iterator[None]:
    """Like `nothing_done`, but a later attempt that cannot see the target cannot say what an earlier one did."""
    try:
        yield
    except OSError as error:
        if not call.is_alone and error.errno not in _PROOFS_OF_ABSENCE:
            raise
        raise failed(call, error) from error


def failed(call: Call, error: OSError) -> ActionFailed:
    name = errno.errorcode.get(error.errno or 0, "unknown")
    message = f"{call.output!r} was not written: {error.strerror} ({name})"
    return ActionFailed("action_failed", message, path=call.output, errno=name, strerror=error.strerror)


def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def raise_errno() -> NoReturn:
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number))
