"""The keys of subjects that a command was given: the folder of `--subject-keys`, and the key that wraps them.

The wrapping key is the file `FOLDER.wrapping`, beside the folder and not in it, or the one that EVENTLOG_WRAPPING_KEY
names: whoever keeps copies of the folder keeps those of this file elsewhere. Both are made by the first command that
writes about a subject; afterwards a missing one is refused, and never made anew.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from eventlog.cli.options import Options
from eventlog.errors import InvalidInput, Misuse, StoreUnavailable
from eventlog.stores.entropy import random_bytes

if TYPE_CHECKING:
    from eventlog.stores.subject_keys import SubjectKeys

__all__ = ["subject_keys_of"]

_WRAPPING_KEY: Final = "EVENTLOG_WRAPPING_KEY"
_SUFFIX: Final = ".wrapping"
_BYTES: Final = 32


def subject_keys_of(options: Options, *, may_create: bool = False) -> SubjectKeys | None:
    """Return the keys of the folder that was named, None if none was. Only who `may_create` makes the folder.

    Raises StoreUnavailable(`subject_key_missing`) for a folder that is not there, InvalidInput
    (`wrapping_key_unusable`, `key_exposed`), Misuse(`missing_extra`).
    """
    folder = options.subject_keys
    if folder is None:
        return None
    from eventlog.stores.subject_keys import SubjectKeys

    wrapping = os.environ.get(_WRAPPING_KEY) or folder.rstrip("/") + _SUFFIX
    if not os.path.isdir(folder) and not may_create:
        raise StoreUnavailable("subject_key_missing", f"there is no folder of keys at {folder!r}", path=folder)
    if may_create and _is_unused(folder) and not os.path.exists(wrapping):
        _make(wrapping)
    return SubjectKeys(folder, wrapping_key=wrapping)


def _is_unused(folder: str) -> bool:
    """Say whether the folder is missing, or empty: then no key in it is wrapped by anything yet."""
    return not os.path.isdir(folder) or not os.listdir(folder)


def _make(path: str) -> None:
    from eventlog.audit.heads.new_file import write_new_file

    try:
        write_new_file(path, random_bytes(_BYTES).hex().encode() + b"\n")
    except Misuse as error:  # another process was first, and has made the same file
        if not os.path.isfile(path):
            raise InvalidInput("wrapping_key_unusable", f"{path!r} is no file") from error
