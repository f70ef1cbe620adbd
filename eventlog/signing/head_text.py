"""The text of a head: three lines, as C2SP has them (c2sp.org/tlog-checkpoint), and no more.

    log.example/agent-runs/<log_id, 32 hex digits>      the origin: <prefix>/<log_id>
    27                                                  the size, decimal
    <base64 of the 32-byte root>

The key that signs the heads of a log has the origin as its name. Lines behind the third, which C2SP allows, are refused
(`bad_note`): nothing here would say what they mean.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import Final

import msgspec

from eventlog.errors import InvalidInput
from eventlog.merkle import TreeHead
from eventlog.signing.notes import VerifierKey, canonical_base64, check_key_name, open_note

__all__ = [
    "DEFAULT_PREFIX",
    "OpenedHead",
    "check_prefix",
    "head_text",
    "log_id_of",
    "open_head",
    "origin_of",
    "parse_head",
]

DEFAULT_PREFIX: Final = "eventlog.local/log"
"""The origin's first part where nobody has chosen one: a name that resolves nowhere."""

_LOG_ID: Final = 16
_ROOT: Final = 32
_MAX_SIZE: Final = 2**63 - 1
_MAX_PREFIX_BYTES: Final = 200


class OpenedHead(msgspec.Struct, frozen=True):
    """A head that these keys have signed."""

    origin: str
    head: TreeHead
    verified: tuple[VerifierKey, ...]


def head_text(origin: str, head: TreeHead) -> bytes:
    """Return the three lines. Raises InvalidInput(`bad_verifier_key`) for an origin that no key could be named by."""
    return f"{check_key_name(origin)}\n{head.size}\n{b64encode(head.root).decode()}\n".encode()


def parse_head(text: bytes) -> tuple[str, TreeHead]:
    """Return the origin and the head of such a text, whoever has signed it or not. Raises InvalidInput(`bad_note`)."""
    try:
        lines = text.decode().split("\n")
    except UnicodeDecodeError:
        raise _bad("it is not UTF-8") from None
    if len(lines) != 4 or lines[3]:
        raise _bad("it has not exactly three lines")
    try:
        return check_key_name(lines[0]), TreeHead(_size(lines[1]), _root(lines[2]))
    except ValueError as error:
        raise _bad(str(error)) from None
    except InvalidInput:
        raise _bad("its first line cannot be the name of a log") from None


def open_head(note: bytes, keys: Sequence[VerifierKey]) -> OpenedHead:
    """Return the head of a note that at least one of these keys has signed; a key signs for the origin of its name.

    Raises InvalidInput: `bad_note`, `unverified_note`.
    """
    opened = open_note(note, keys)
    origin, head = parse_head(opened.text)
    verified = tuple(key for key in opened.verified if key.name == origin)
    if not verified:
        names = ", ".join(key.name for key in opened.verified)
        raise InvalidInput("unverified_note", f"the head of {origin!r} is signed by keys of another log only: {names}")
    return OpenedHead(origin, head, verified)


def origin_of(prefix: str, log_id: bytes) -> str:
    """Return the origin of the log of this id, 16 bytes. Raises InvalidInput(`bad_verifier_key`)."""
    if len(log_id) != _LOG_ID:
        raise InvalidInput("bad_verifier_key", f"the id of a log has {_LOG_ID} bytes, not {len(log_id)}")
    return f"{check_prefix(prefix)}/{log_id.hex()}"


def log_id_of(origin: str) -> bytes:
    """Return the id of the log that an origin names, 16 bytes. Raises InvalidInput(`bad_note`)."""
    prefix, _, spelled = origin.rpartition("/")
    try:
        log_id = bytes.fromhex(spelled)
    except ValueError:
        log_id = b""
    if not prefix or len(log_id) != _LOG_ID or log_id.hex() != spelled:  # one spelling only
        raise _bad(f"the origin {origin!r:.120} does not end with the id of a log")
    return log_id


def check_prefix(prefix: str) -> str:
    """Return what may stand in front of the id of a log in an origin. Raises InvalidInput(`bad_verifier_key`)."""
    check_key_name(prefix)
    if len(prefix.encode()) > _MAX_PREFIX_BYTES or prefix.startswith("/") or prefix.endswith("/"):
        why = f"a prefix is `<domain>/<name>` of at most {_MAX_PREFIX_BYTES} bytes"
        raise InvalidInput("bad_verifier_key", f"{why}, not {prefix!r:.80}")
    return prefix


def _size(line: str) -> int:
    if not line.isascii() or not line.isdigit() or len(line) > 19 or (line[0] == "0" and line != "0"):
        raise ValueError("its second line is no size in decimal")
    size = int(line)
    if size > _MAX_SIZE:
        raise ValueError("its size is larger than any log")
    return size


def _root(line: str) -> bytes:
    root = canonical_base64(line)
    if len(root) != _ROOT:
        raise ValueError("its root is not 32 bytes")
    return root


def _bad(why: str) -> InvalidInput:
    return InvalidInput("bad_note", f"this is no head of a log: {why}")
