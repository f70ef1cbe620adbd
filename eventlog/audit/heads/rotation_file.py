"""The statement by which a key hands over to another, as a file: what a signer's operator gives to who writes the log.

One JSON object, which is the event `log_key_rotated` as the log takes it: `replaces` and `verifier_key`, the texts of
both keys, and `signature`, that of the old one. Nothing in it is secret, and it can be used in one log only.
"""

from __future__ import annotations

import os
from typing import Final

import msgspec

from eventlog.audit.heads.new_file import write_new_file
from eventlog.errors import InvalidInput, Misuse
from eventlog.events import LogKeyRotated

__all__ = ["check_rotation_target", "read_rotation_file", "write_rotation_file"]

_MAX_BYTES: Final = 10_000
_MODE: Final = 0o644


def check_rotation_target(path: str, event: LogKeyRotated) -> None:
    """Raise Misuse(`target_exists`) if there is anything else at this path than the file of this rotation."""
    if os.path.lexists(path) and _content(path) != _spelled(event):
        raise Misuse("target_exists", f"{path!r} exists, and is not this rotation", path=path)


def write_rotation_file(path: str, event: LogKeyRotated) -> None:
    """Write the file, for everybody to read; *durable* on return. May be repeated.

    Raises Misuse(`target_exists`), InvalidInput(`invalid_argument`), StoreUnavailable(`store_cannot_open`).
    """
    check_rotation_target(path, event)
    if not os.path.lexists(path):
        write_new_file(path, _spelled(event))
        os.chmod(path, _MODE)


def read_rotation_file(path: str) -> LogKeyRotated:
    """Return the rotation in a file; its signature was not verified. Raises InvalidInput(`invalid_argument`)."""
    try:
        return msgspec.json.decode(_content(path), type=LogKeyRotated)
    except (OSError, ValueError) as error:  # also what msgspec raises
        why = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        raise InvalidInput("invalid_argument", f"no rotation of a key can be read from {path!r:.200}: {why}") from error


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(_MAX_BYTES)


def _spelled(event: LogKeyRotated) -> bytes:
    return msgspec.json.encode(event) + b"\n"
