"""Which URL an effect may be sent to: URLs that cannot be read in two ways, and the list of those that are allowed.

An entry of the list is an origin, `https://api.example.com`, or an origin with a path, `https://api.example.com/v1`,
which stands for that path and all below it: `/v1/orders`, not `/v10`. A comparison of text is only as good as its
agreement with what the client and the receiver make of the text, so a URL is refused if they could differ: user
information, a fragment, a backslash, control characters, non-ASCII text, and `.` or `..` in any spelling.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

__all__ = ["Url", "is_allowed", "parse_url"]

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_VISIBLE: Final = re.compile(r"[!-\[\]-~]+")  # ASCII from `!` to `~`, without the backslash
_HOST: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?|\[[0-9A-Fa-f:.]+\]")
_PORT: Final = re.compile(r"[0-9]{1,5}")
_MAX_DECODINGS: Final = 4


class Url(NamedTuple):
    """A URL that was found good. `text` is as it was given, `path` begins with `/`."""

    text: str
    scheme: str
    host: str
    port: int
    path: str
    query: str

    @property
    def origin(self) -> tuple[str, str, int]:
        """What decides whether two URLs lead to the same server."""
        return (self.scheme, self.host, self.port)


def parse_url(text: str) -> Url:
    """Return the parts of an absolute http or https URL. Raises ValueError, which says why it is none."""
    if not _VISIBLE.fullmatch(text):
        raise ValueError("it is empty, or holds a space, a backslash or a character that is not ASCII")
    if "#" in text:
        raise ValueError("it holds a fragment, which is never sent")
    parts = urlsplit(text)
    if parts.scheme not in _DEFAULT_PORTS or not text.lower().startswith(f"{parts.scheme}://"):
        raise ValueError("it is no http or https URL")
    if "@" in parts.netloc:
        raise ValueError("it holds user information; send it as a header, by secret_ref")
    host, port = _host_and_port(parts.netloc, _DEFAULT_PORTS[parts.scheme])
    path = parts.path or "/"
    if _has_dot_segment(path):
        raise ValueError("its path holds `.` or `..`")
    return Url(text, parts.scheme, host, port, path, parts.query)


def is_allowed(url: Url, allows: Iterable[Url]) -> bool:
    """Say whether the URL is one of these, or lies below one."""
    return any(url.origin == entry.origin and _is_below(url.path, entry.path) for entry in allows)


def _is_below(path: str, top: str) -> bool:
    return path == top or path.startswith(top if top.endswith("/") else f"{top}/")


def _host_and_port(netloc: str, default: int) -> tuple[str, int]:
    # A colon inside brackets is part of an IPv6 address.
    host, colon, port = netloc.rpartition(":") if not netloc.endswith("]") else (netloc, "", "")
    if not colon:
        host, port = netloc, str(default)
    if not _HOST.fullmatch(host):
        raise ValueError("it names no host")
    if not _PORT.fullmatch(port) or not 0 < int(port) < 65536:
        raise ValueError("it names a port that there is not")
    return host.lower(), int(port)


def _has_dot_segment(path: str) -> bool:
    """Say whether some reader could see `.` or `..` in the path: percent-encoded, twice even, or before a `;`."""
    for _ in range(_MAX_DECODINGS):
        segments = re.split(r"[/\\]", path)
        if any(segment.partition(";")[0] in (".", "..") for segment in segments):
            return True
        decoded = unquote(path, errors="replace")
        if decoded == path:
            return False
        path = decoded
    return True
