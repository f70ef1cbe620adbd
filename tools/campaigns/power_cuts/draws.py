"""Which disks a power cut at one moment may leave: the extremes, and random ones between them, each drawn once."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterator, Sequence

from tools.campaigns.power_cuts.disk import ALL, Disk, Kept, Pending, sectors_of

__all__ = ["draw", "draws"]


def draws(disk: Disk, chance: random.Random, tries: int) -> Iterator[Kept]:
    """Return different choices of what survives now: nothing, all, and what up to `tries` random draws have given."""
    seen: set[Hashable] = set()
    for number in range(tries + 2):
        kept = (Kept(), disk.everything())[number] if number < 2 else draw(disk, chance)
        key = _key(disk, kept)
        if key not in seen:
            seen.add(key)
            yield kept
        if not (disk.writes or disk.changes):
            return


def draw(disk: Disk, chance: random.Random) -> Kept:
    """Return a random choice: some of the writes of each file, and a beginning of the changes of each directory."""
    writes = {file: _masks(done, chance) for file, done in disk.writes.items()}
    return Kept(writes, {directory: chance.randint(0, len(done)) for directory, done in disk.changes.items()})


def _key(disk: Disk, kept: Kept) -> Hashable:
    """As `Kept.key`, where leaving something out is the same as to keep nothing of it."""
    nothing = {file: (0,) * len(done) for file, done in disk.writes.items()}
    return Kept({**nothing, **kept.writes}, {**dict.fromkeys(disk.changes, 0), **kept.changes}).key()


def _masks(writes: Sequence[Pending], chance: random.Random) -> tuple[int, ...]:
    """Return what is kept of the writes of one file, in one of the ways in which disks are known to do it."""
    count = len(writes)
    match chance.randrange(8):
        case 0:
            return (0,) * count
        case 1:
            return (ALL,) * count
        case 2:
            end = chance.randint(0, count)
            return (ALL,) * end + (0,) * (count - end)
        case 3:
            lost = chance.randrange(count)
            return tuple(0 if number == lost else ALL for number in range(count))
        case 4 | 5:
            return (*(ALL,) * (count - 1), _torn(writes[-1], chance))
        case 6:
            return tuple(chance.choice((0, ALL, _torn(write, chance))) for write in writes)
        case _:
            return tuple(ALL if chance.random() < 0.5 else 0 for _ in writes)


def _torn(write: Pending, chance: random.Random) -> int:
    """Return a mask that keeps each sector or not, or only the first ones, or only the last ones."""
    sectors = sectors_of(write)
    whole, some = (1 << sectors) - 1, (1 << chance.randint(0, sectors)) - 1
    mask = chance.choice((chance.getrandbits(sectors), some, whole ^ some))
    return ALL if mask == whole else mask
