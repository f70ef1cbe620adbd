"""How many rows are asked for, as SQLite takes it."""

from __future__ import annotations

from typing import Final

__all__ = ["at_most"]

_MOST: Final = 2**63 - 1


def at_most(limit: int) -> int:
    """Return the limit; one that is larger than any integer of SQLite is that largest one, more than any table has."""
    return min(limit, _MOST)
