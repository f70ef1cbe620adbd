"""The list of what is in a pack: `manifest.json`, one line of JSON. It finds accidents, and proves nothing."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final

import msgspec

from eventlog.audit.pack.verifier import FORMAT, VERSION

__all__ = ["Manifest"]

_encode: Final = msgspec.json.Encoder().encode


class Manifest:
    """Takes note of each file as it is made."""

    def __init__(self, run_id: str, log_ids: Sequence[tuple[int, bytes]]) -> None:
        self._run_id: Final = run_id
        self._log_ids: Final = [[position, log_id.hex()] for position, log_id in log_ids]
        self._files: list[dict[str, Any]] = []

    def note(self, name: str, data: bytes) -> tuple[str, bytes]:
        """Return the file as it is, once it is on the list."""
        self._files.append({"name": name, "size": len(data), "sha256": sha256(data).hexdigest()})
        return name, data

    def file(self) -> tuple[str, bytes]:
        """Return the manifest itself."""
        facts = {"format": FORMAT, "version": VERSION, "run": self._run_id, "log_ids": self._log_ids}
        return "manifest.json", _encode({**facts, "files": self._files}) + b"\n"
