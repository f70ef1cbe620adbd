"""Everything that is measured: what each side is called, where it lives, and how many events it has the time for.

Only the modules of what is measured are imported, so that the engine can be measured without the `bench` extra.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import msgspec

from tools.bench.store import OpenStore

__all__ = ["BARE", "OURS", "PEERS", "RAW", "Peer", "find"]

OURS: Final = "eventlog"
RAW: Final = "sqlite3"
BARE: Final = "bare engine"
"""What Python, SQLite and this machine allow an engine of this kind: see its module."""


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A side. `pace` is its share of the events that a fast side writes, so that every round takes about as long."""

    name: str
    module: str
    opener: str
    package: str | None
    pace: float = 1.0
    is_reader: bool = False

    @property
    def version(self) -> str | None:
        """The installed version of the package, or None if it is missing."""
        if self.package is None:
            return ""
        try:
            return version(self.package)
        except PackageNotFoundError:
            return None

    def open(self) -> OpenStore:
        """Return the function that opens the store in a folder."""
        function: OpenStore = getattr(import_module(f"tools.bench.peers.{self.module}"), self.opener)
        return function


def _peer(
    name: str, module: str, opener: str, package: str | None, pace: float = 1.0, *, is_reader: bool = False
) -> Peer:
    return Peer(name=name, module=module, opener=opener, package=package, pace=pace, is_reader=is_reader)


PEERS: Final[tuple[Peer, ...]] = (
    _peer(OURS, "ours", "open_store", None, is_reader=True),
    _peer(RAW, "raw_sqlite", "open_store", None),
    _peer(BARE, "bare_engine", "open_store", None, is_reader=True),
    _peer("langgraph", "langgraph_saver", "open_store", "langgraph-checkpoint-sqlite", 0.2),
    _peer("eventsourcing", "eventsourcing_recorder", "open_store", "eventsourcing", is_reader=True),
    _peer("dbos", "dbos_steps", "open_as_it_comes", "dbos", 0.1),
    _peer("dbos (WAL)", "dbos_steps", "open_in_wal", "dbos", 0.1),
    _peer("openai-agents", "openai_sessions", "open_store", "openai-agents", 0.3, is_reader=True),
    _peer(
        "py-event-sourcing", "py_event_sourcing_streams", "open_as_it_comes", "py-event-sourcing", 0.3, is_reader=True
    ),
    _peer("py-event-sourcing (FULL)", "py_event_sourcing_streams", "open_full", "py-event-sourcing", 0.3),
)


def find(names: Iterable[str] | None = None) -> list[Peer]:
    """Return the sides with these names, all by default, in the order of the table."""
    wanted = None if names is None else set(names)
    return [peer for peer in PEERS if wanted is None or peer.name in wanted]
