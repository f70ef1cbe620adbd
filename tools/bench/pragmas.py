"""Reading durability settings back from a connection, whoever opened it."""

from __future__ import annotations

from typing import Any, Final

from tools.bench.store import Settings

__all__ = ["QUERIES", "named", "read_back"]

QUERIES: Final = ("PRAGMA journal_mode", "PRAGMA synchronous")
_SYNCHRONOUS: Final = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}


def read_back(connection: Any) -> Settings:
    """Return the settings of a DB-API connection to SQLite, on the thread that may use it."""
    return named(*(connection.execute(query).fetchone()[0] for query in QUERIES))


def named(journal_mode: str, synchronous: int) -> Settings:
    """Return the answers to `QUERIES` as the documentation of SQLite spells them."""
    return {"journal_mode": journal_mode.upper(), "synchronous": _SYNCHRONOUS[synchronous]}
