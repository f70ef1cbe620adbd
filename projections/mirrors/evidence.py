"""Evidence of an append that has begun: a file that is durable before the log is touched, and gone when all is done.

    run%3arun-1.jsonl.4711-0.prepared    {"appends": [{"stream": "run:run-1", "expect": "at version 3",
                                                       "event_ids": ["0193…"], "events": 1, "size_bytes": 812}]}

One file for each append, named by its first stream, with all streams of the append in it. `expect` is where the caller
thinks the stream is, `event_ids` are the ids of the first hundred events as far as the caller has given them, and
`size_bytes` is how long the transcript was. What stands behind that in a transcript may have been torn when the machine
lost its power, and is written again; what stands in front of it has to be as the log has it.

Its owner holds a lock on it, so that another process can tell an append that is under way from one that was cut off.
One that cannot be read was cut off while it was written; then the append had not begun.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec

from projections.mirrors.folder import create_owned, flush, opened, write_whole

__all__ = ["PREPARED", "Begun", "Evidence", "read_evidence"]

PREPARED: Final = ".prepared"
MAX_IDS: Final = 100


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """What an append that has begun means for one stream."""

    stream: str
    expect: str
    event_ids: Sequence[str]
    events: int
    size_bytes: int = 0


class _Content(msgspec.Struct, frozen=True):
    appends: list[Begun]


_decode: Final = msgspec.json.Decoder(_Content).decode


class Evidence:
    """The evidence of one append, owned by this process until it is removed or left."""

    def __init__(self, folder: str, name: str, descriptor: int) -> None:
        self._folder: Final = folder
        self._name: Final = name
        self._descriptor: int | None = descriptor

    @classmethod
    def create(cls, folder: str, directory: int, first: str, appends: Sequence[Begun]) -> Evidence:
        """Make the evidence, *durable* on return. Raises OSError; then there is none."""
        name, descriptor = create_owned(directory, lambda number: f"{first}.{number}{PREPARED}")
        evidence = cls(folder, name, descriptor)
        try:
            write_whole(descriptor, msgspec.json.encode(_Content(list(appends))), 0)
            flush(descriptor)
            flush(directory)
        except BaseException:
            with suppress(OSError):
                evidence.remove()
            raise
        return evidence

    def remove(self) -> None:
        """Take the evidence away. It need not be gone for good: one that comes back is looked at once more."""
        try:
            with suppress(FileNotFoundError), opened(self._folder) as directory:  # another may have taken it for dead
                os.unlink(self._name, dir_fd=directory)
        finally:
            self.leave()

    def leave(self) -> None:
        """Let it lie, for whoever starts next: it is nobody's from here on."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def read_evidence(descriptor: int) -> Sequence[Begun]:
    """Return what a file of evidence says; nothing if it was cut off while it was written."""
    try:
        with open(descriptor, "rb", closefd=False) as file:
            return _decode(file.read()).appends
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []
