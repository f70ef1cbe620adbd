"""What becomes of a log whose write-ahead log is lost or damaged while nobody has it open.

SQLite opens what is left without a word, with fewer events. Who signs heads is told: a log that is shorter than the
last head that was signed is refused, and one that is not is opened.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from tools.campaigns.power_cuts.history import Wrong
from tools.campaigns.power_cuts.scene import LOG
from tools.campaigns.power_cuts.trace import ROOT, Start

__all__ = ["check_refusal", "lose_tail"]

_HEADER_BYTES: Final = 32
"""Of a write-ahead log: behind it are the frames."""
_REFUSALS: Final = frozenset({"store_rolled_back", "store_forked"})


def lose_tail(start: Start, chance: random.Random) -> tuple[str, Start] | None:
    """Return what was done to the write-ahead log, and the disk without its end; None if it holds nothing."""
    name = f"{LOG}-wal"
    number = start.directories[ROOT].get(name)
    content = start.files[number] if number is not None else b""
    if number is None or len(content) <= _HEADER_BYTES:
        return None
    match chance.choice(("removed", "removed", "cut short", "flipped")):
        case "removed":
            names = {each: below for each, below in start.directories[ROOT].items() if each != name}
            return "was removed", replace(start, directories={**start.directories, ROOT: names})
        case "cut short":
            size = chance.randrange(len(content))
            return f"was cut to {size} bytes", replace(start, files={**start.files, number: content[:size]})
        case _:
            at, bit = chance.randrange(len(content)), 1 << chance.randrange(8)
            flipped = content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :]
            return f"has another bit in byte {at}", replace(start, files={**start.files, number: flipped})


def check_refusal(said: Mapping[str, Any], left: int | None, signed: int) -> None:
    """Raise Wrong unless the log was opened or refused as it has to be.

    `left` is how many events SQLite finds, None if the database is damaged, which a WAL checkpoint that was under way
    explains; `signed` is the size of the last head.
    """
    head, code = said.get("head"), said.get("refused")
    if head is not None and head < signed:
        raise Wrong("I10", f"it was opened with {head} events, and a head of {signed} was signed")
    if left is None:
        return
    if left < signed and code not in _REFUSALS:
        raise Wrong("I10", f"{left} events are left of {signed} that were signed, and it is refused as {code}")
    if left >= signed and head != left:
        raise Wrong("I8", f"{left} events are left, {signed} were signed, and the engine says {dict(said)}")
