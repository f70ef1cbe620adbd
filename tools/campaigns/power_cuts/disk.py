"""A disk while a trace is replayed: what is durable, what is not yet, and what a power cut at this moment may leave.

Of a file, what was flushed is there. Of the writes since, any may be there and any may be missing, each in pieces of
512 bytes (no piece is half there), whatever their order was; likewise of changes of its size. Of a directory, what was
flushed is there, and of the changes since the first ones, up to any point, as journals keep them in order; each
directory by itself. A flush of a file says nothing of its name, nor a flush of a directory of what is in its files.

`Kept` is one choice of what survives, and `Cut` the disk that it leaves. Equal choices leave equal disks, so the parts
of a `Kept` can stand for contents: `Cut.key`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from tools.campaigns.power_cuts.trace import ROOT, Changed, Entry, Made, Operation, Start, Synced, Truncated, Wrote

__all__ = ["ALL", "SECTOR", "Cut", "Disk", "Kept", "Pending", "sectors_of"]

SECTOR: Final = 512
ALL: Final = -1
"""The mask of an operation that is kept whole; a bit for each sector otherwise, 0 if it is lost."""

Pending: TypeAlias = Wrote | Truncated


def sectors_of(operation: Pending) -> int:
    """Return how many sectors of the disk an operation touches, which is into how many pieces it may be torn."""
    if isinstance(operation, Truncated):
        return 1
    return (operation.offset + max(len(operation.data), 1) - 1) // SECTOR - operation.offset // SECTOR + 1


@dataclass(frozen=True, slots=True)
class Kept:
    """What survives of what is not durable: a mask for each pending write, a number of changes for each directory."""

    writes: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    changes: Mapping[int, int] = field(default_factory=dict)

    def key(self) -> Hashable:
        """Return what is equal for choices that keep the same, at one moment of one disk."""
        return tuple(sorted(self.writes.items())), tuple(sorted(self.changes.items()))


class Disk:
    """Replays a trace, one operation at a time."""

    def __init__(self, start: Start) -> None:
        self.durable: Final[dict[int, bytes]] = dict(start.files)
        self.names: Final[dict[int, dict[str, int]]] = {key: dict(names) for key, names in start.directories.items()}
        self.writes: Final[dict[int, list[Pending]]] = {}
        """By file, what was done to it since it was flushed, oldest first; no file without any."""
        self.changes: Final[dict[int, list[tuple[Entry, ...]]]] = {}
        """By directory, likewise."""
        self.versions: Final[dict[int, int]] = dict.fromkeys([*start.files, *start.directories], 0)
        """How often each file and directory was flushed with something to flush."""

    def apply(self, operation: Operation) -> None:
        """Go on by one operation."""
        match operation:
            case Wrote() | Truncated():
                self.writes.setdefault(operation.file, []).append(operation)
            case Changed():
                self.changes.setdefault(operation.directory, []).append(operation.entries)
            case Made():
                self.versions[operation.number] = 0
                if operation.is_directory:
                    self.names[operation.number] = {}
                else:
                    self.durable[operation.number] = b""
            case Synced():
                self._sync(operation.number)

    def _sync(self, number: int) -> None:
        if number in self.writes:
            self.durable[number] = _written(self.durable[number], self.writes.pop(number), None)
            self.versions[number] += 1
        if number in self.changes:
            _change(self.names[number], self.changes.pop(number))
            self.versions[number] += 1

    def everything(self) -> Kept:
        """Return the choice that keeps all: the disk as the program sees it."""
        return Kept(
            {file: (ALL,) * len(done) for file, done in self.writes.items()},
            {directory: len(done) for directory, done in self.changes.items()},
        )


class Cut:
    """The disk that a power cut leaves. Valid until the `disk` it was made of goes on."""

    def __init__(self, disk: Disk, kept: Kept) -> None:
        self._disk: Final = disk
        self._kept: Final = kept
        self._names: Final[dict[int, dict[str, int]]] = {}

    def directory(self, number: int = ROOT) -> dict[str, int]:
        """Return the names in a directory, with the numbers behind them. Not to be changed."""
        count = self._kept.changes.get(number, 0)
        if count == 0:
            return self._disk.names[number]
        if number not in self._names:
            names = dict(self._disk.names[number])
            _change(names, self._disk.changes[number][:count])
            self._names[number] = names
        return self._names[number]

    def is_directory(self, number: int) -> bool:
        return number in self._disk.names

    def find(self, path: str) -> int | None:
        """Return the number of the file or directory at this relative path, None if there is nothing."""
        number: int | None = ROOT
        for name in path.split("/"):
            if number is None or number not in self._disk.names:
                return None
            number = self.directory(number).get(name)
        return number

    def key(self, file: int | None) -> Hashable:
        """Return what is equal for equal contents of this file, at all moments of one trace."""
        if file is None:
            return None
        return file, self._disk.versions[file], self._masks(file)

    def content(self, file: int) -> bytes:
        """Return what is in a file."""
        durable, masks = self._disk.durable[file], self._masks(file)
        return _written(durable, self._disk.writes[file], masks) if masks else durable

    def content_at(self, path: str) -> bytes | None:
        """Return what is in the file at this relative path, None if there is none."""
        file = self.find(path)
        return None if file is None or self.is_directory(file) else self.content(file)

    def _masks(self, file: int) -> tuple[int, ...]:
        """Return the masks of what is kept of a file, without the lost ones at the end: they leave no trace."""
        masks = self._kept.writes.get(file, ())
        end = len(masks)
        while end and not masks[end - 1]:
            end -= 1
        return masks[:end]

    def tree(self) -> Start:
        """Return all that can be reached on this disk, to begin another trace from."""
        files: dict[int, bytes] = {}
        directories: dict[int, Mapping[str, int]] = {}
        waiting = [ROOT]
        while waiting:
            number = waiting.pop()
            if self.is_directory(number):
                directories[number] = dict(self.directory(number))
                waiting += directories[number].values()
            else:
                files[number] = self.content(number)
        return Start(files, directories)


def _change(names: dict[str, int], changes: list[tuple[Entry, ...]]) -> None:
    for entries in changes:
        for name, number in entries:
            if number is None:
                names.pop(name, None)
            else:
                names[name] = number


def _written(durable: bytes, writes: list[Pending], masks: tuple[int, ...] | None) -> bytes:
    content = bytearray(durable)
    for operation, mask in zip(writes, masks if masks is not None else (ALL,) * len(writes), strict=False):
        if mask == 0:
            continue
        if isinstance(operation, Truncated):
            _resize(content, operation.size)
        elif mask == ALL:
            _put(content, operation.offset, operation.data)
        else:
            _put_sectors(content, operation, mask)
    return bytes(content)


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _put(content: bytearray, offset: int, data: bytes) -> None:
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _put_sectors(content: bytearray, operation: Wrote, mask: int) -> None:
    first = operation.offset // SECTOR
    for number in range(sectors_of(operation)):
        if mask >> number & 1:
            begin = max((first + number) * SECTOR, operation.offset)
            end = min((first + number + 1) * SECTOR, operation.offset + len(operation.data))
            _put(content, begin, operation.data[begin - operation.offset : end - operation.offset])
