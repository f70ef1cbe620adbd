"""Which file of a folder is the transcript of a stream: a name that no stream can misuse, and that no two share.

    run:run-1            run%3arun-1.jsonl
    run:../../x          run%3a%2e%2e%2f%2e%2e%2fx.jsonl
    CON                  %43%4f%4e.jsonl
    con                  %63on.jsonl

Small letters, digits, `_` and `-` stand for themselves; every other byte of the name's UTF-8 is `%` and two hex digits.
So a name has no dot, no slash and no capital of its own: it leaves no folder, hides nowhere, and is another on a file
system that tells no small letters from capitals, or composes accents. The names that some systems keep for devices have
their first letter spelled out.

What would take more than 150 characters is cut to 100, and goes on with `~` and the SHA-256 of the stream's name. No
short name has a `~`, so nothing meets by accident; a long one says in its lines which stream it is of.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final
from urllib.parse import unquote_to_bytes

__all__ = ["SUFFIX", "file_name", "is_cut_name", "stream_of"]

SUFFIX: Final = ".jsonl"
_MAX_CHARACTERS: Final = 150
_KEPT_CHARACTERS: Final = 100
_PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_-")
_CUT: Final = re.compile(r"[a-z0-9_%-]{100}~[0-9a-f]{64}\.jsonl", re.ASCII)
_DEVICES: Final = re.compile(r"con|prn|aux|nul|com\d|lpt\d", re.ASCII)


def file_name(stream: str) -> str:
    """Return the name of the transcript of `stream`. Any text has one, also what no log takes for a stream."""
    data = stream.encode("utf-8", "surrogatepass")
    name = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02x}" for byte in data)
    if _DEVICES.fullmatch(name):
        name = f"%{data[0]:02x}{name[1:]}"
    if len(name) > _MAX_CHARACTERS:
        name = f"{name[:_KEPT_CHARACTERS]}~{hashlib.sha256(data).hexdigest()}"
    return name + SUFFIX


def stream_of(name: str) -> str | None:
    """Return the stream whose transcript has this name; None if the name does not say it, or is no such name."""
    stream = unquote_to_bytes(name.removesuffix(SUFFIX)).decode("utf-8", "replace")
    return stream if file_name(stream) == name else None


def is_cut_name(name: str) -> bool:
    """Say whether a file is named as the transcript of a stream whose name is too long for it."""
    return _CUT.fullmatch(name) is not None
