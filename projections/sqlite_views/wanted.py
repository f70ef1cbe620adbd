"""All that people are wanted for at one moment, of the views `runs`, `approvals` and `effects`."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final, NamedTuple

from projections.projection import Row
from projections.sqlite_views.crashes import crashed_effects, crashes_count
from projections.sqlite_views.inbox import inbox, inbox_size

__all__ = ["Wanted", "wanted_at"]

_EVERY: Final = -1


class Wanted(NamedTuple):
    """Rows of `inbox` and of `crashed_effects`, and how many there are of both in all."""

    requests: Sequence[Row]
    crashes: Sequence[Row]
    total: int


def wanted_at(connection: sqlite3.Connection, at_us: int, limit: int | None = None) -> Wanted:
    """Return the first `limit` of each kind. No stream is read."""
    at_most = _EVERY if limit is None else limit
    return Wanted(
        inbox(connection, limit=at_most),
        crashed_effects(connection, at_us, limit=at_most),
        inbox_size(connection) + crashes_count(connection, at_us),
    )
