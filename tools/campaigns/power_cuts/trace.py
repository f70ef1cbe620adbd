"""The trace of a file system: what it held at first, and every change and every flush since, in one global order.

Files and directories are known by numbers that are never used again, so that a file with two names, or one whose name
was given to another, stays itself. The root directory is number 0.

A program whose files are traced says what it was told by writing it to a file `told` of the same file system: so that
is in the same order as all else. Such a write is `Told`, and no file of the disk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

__all__ = [
    "ROOT",
    "TOLD",
    "Changed",
    "Entry",
    "Made",
    "Operation",
    "Start",
    "Synced",
    "Told",
    "Trace",
    "Truncated",
    "Wrote",
]

ROOT: Final = 0
TOLD: Final = "told"

Entry: TypeAlias = tuple[str, int | None]
"""A name in a directory and the number behind it from now on, None if it is gone."""


class Made(NamedTuple):
    """A number is taken by an empty file, or by an empty directory. It has no name yet: a `Changed` follows."""

    number: int
    is_directory: bool


class Changed(NamedTuple):
    """Names in a directory changed, all of them at once: one of a create, link or unlink, two of a rename."""

    directory: int
    entries: tuple[Entry, ...]


class Wrote(NamedTuple):
    """Bytes of a file were written."""

    file: int
    offset: int
    data: bytes


class Truncated(NamedTuple):
    """A file was cut, or made longer with zeros."""

    file: int
    size: int


class Synced(NamedTuple):
    """A file's content, or a directory's names, were flushed: they are durable."""

    number: int


class Told(NamedTuple):
    """The program wrote down what it was told."""

    data: bytes


Operation: TypeAlias = Made | Changed | Wrote | Truncated | Synced | Told


@dataclass(frozen=True, slots=True)
class Start:
    """What is on the disk at first, all of it durable."""

    files: Mapping[int, bytes] = field(default_factory=dict)
    directories: Mapping[int, Mapping[str, int]] = field(default_factory=lambda: {ROOT: {}})


@dataclass(frozen=True, slots=True)
class Trace:
    """What a file system held, and what was done to it."""

    start: Start
    operations: Sequence[Operation]
