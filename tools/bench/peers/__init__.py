"""Everything that is measured: what each side is called, where it lives, and how many events it has the time for.

Only the modules of what is measured are imported, so that the engine can be measured without the `bench` extra.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import msgspec

from tools.bench.steps import OpenWorkflows
from tools.bench.store import OpenStore

__all__ = ["BARE", "DBOS_WAL", "LANGGRAPH", "OURS", "PEERS", "RAW", "Peer", "find"]

OURS: Final = "eventlog"
RAW: Final = "sqlite3"
BARE: Final = "bare engine"
"""What Python, SQLite and this machine allow an engine of this kind: see its module."""
LANGGRAPH: Final = "langgraph"
DBOS_WAL: Final = "dbos (WAL)"
"""DBOS in the journal mode in which it is faster."""


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A side. `pace` is its share of the events that a fast side writes, so that every round takes about as long.

    `workflows` is the module and the function that opens it for workflows, where it has any; `workflow_pace` is its
    share of those that run at once.
    """

    name: str
    module: str
    opener: str
    package: str | None
    pace: float = 1.0
    is_reader: bool = False
    workflows: str | None = None
    workflow_pace: float = 1.0

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
        function: OpenStore = _found(f"{self.module}.{self.opener}")
        return function

    def open_workflows(self) -> OpenWorkflows:
        """Return the function that opens it for workflows in a folder."""
        assert self.workflows is not None, "only a side with workflows is asked"
        function: OpenWorkflows = _found(self.workflows)
        return function


def _found(name: str) -> Any:
    module, _, function = name.partition(".")
    return getattr(import_module(f"tools.bench.peers.{module}"), function)


def _peer(
    name: str,
    module: str,
    opener: str,
    package: str | None,
    pace: float = 1.0,
    *,
    is_reader: bool = False,
    workflows: str | None = None,
    workflow_pace: float = 1.0,
) -> Peer:
    return Peer(
        name=name,
        module=module,
        opener=opener,
        package=package,
        pace=pace,
        is_reader=is_reader,
        workflows=workflows,
        workflow_pace=workflow_pace,
    )


_DBOS_PACE: Final = 0.1

PEERS: Final[tuple[Peer, ...]] = (
    _peer(OURS, "ours", "open_store", None, is_reader=True, workflows="our_workflows.open_workflows"),
    _peer(RAW, "raw_sqlite", "open_store", None),
    _peer(BARE, "bare_engine", "open_store", None, is_reader=True),
    _peer(
        LANGGRAPH,
        "langgraph_saver",
        "open_store",
        "langgraph-checkpoint-sqlite",
        0.2,
        workflows="langgraph_graphs.open_graphs",
        workflow_pace=0.1,
    ),
    _peer("eventsourcing", "eventsourcing_recorder", "open_store", "eventsourcing", is_reader=True),
    _peer(
        "dbos",
        "dbos_steps",
        "open_as_it_comes",
        "dbos",
        _DBOS_PACE,
        workflows="dbos_steps.open_as_it_comes",
        workflow_pace=_DBOS_PACE,
    ),
    _peer(
        DBOS_WAL,
        "dbos_steps",
        "open_in_wal",
        "dbos",
        _DBOS_PACE,
        workflows="dbos_steps.open_in_wal",
        workflow_pace=_DBOS_PACE,
    ),
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
