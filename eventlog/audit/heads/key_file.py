"""Files of private keys: an unencrypted PKCS #8 text for its owner alone.

OpenSSL makes the same (`openssl genpkey -algorithm ed25519`). A key that others can read signs nothing here: what it
signed would prove nothing.
"""

from __future__ import annotations

import os
import stat
from typing import Final

from eventlog.audit.heads.new_file import write_new_file
from eventlog.errors import InvalidInput
from eventlog.signing.ed25519 import SEED_BYTES, PrivateKey
from eventlog.stores.entropy import random_bytes

__all__ = ["heads_beside", "make_key_file", "read_key_file"]

_MAX_BYTES: Final = 10_000
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def make_key_file(path: str | os.PathLike[str], *, like: str | os.PathLike[str] | None = None) -> PrivateKey:
    """Make a new key, and a file of it with mode 0600; *durable* on return. Nothing is ever replaced.

    Made by root to follow the key in the file `like`, it has the owner and the mode of that.

    Raises Misuse: `target_exists`, `missing_extra`; InvalidInput(`invalid_argument`),
    StoreUnavailable(`store_cannot_open`).
    """
    key = PrivateKey.from_seed(random_bytes(SEED_BYTES))
    write_new_file(os.fspath(path), key.to_pem(), like=None if like is None else os.fspath(like))
    return key


def read_key_file(path: str | os.PathLike[str]) -> PrivateKey:
    """Return the key in a file.

    Raises InvalidInput: `key_exposed` if others than its owner can read or change it, `key_unusable` if there is none.
    Raises Misuse(`missing_extra`).
    """
    name = os.fspath(path)
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            _check_mode(name, os.fstat(descriptor).st_mode)
            pem = os.read(descriptor, _MAX_BYTES)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        why = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        raise InvalidInput("key_unusable", f"the key file {name!r} cannot be read: {why}") from error
    try:
        return PrivateKey.from_pem(pem)
    except InvalidInput as error:
        raise InvalidInput("key_unusable", f"the key file {name!r}: {error}") from None


def heads_beside(key_path: str | os.PathLike[str]) -> str:
    """Return the path of the file of heads that belongs to a key file, unless another one is named."""
    return f"{os.fspath(key_path)}.heads"


def _check_mode(name: str, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise InvalidInput("key_unusable", f"the key file {name!r} is no regular file")
    if mode & _OTHERS:
        why = f"its mode is {stat.S_IMODE(mode):04o} and has to be 0600 or 0400"
        raise InvalidInput("key_exposed", f"others than its owner can get at the key file {name!r}: {why}")
