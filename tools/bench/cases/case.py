"""A case: what is measured, and how its sides are opened."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from tools.bench.peers import Peer
from tools.bench.rounds import Side
from tools.bench.scale import Scale
from tools.bench.store import Settings

__all__ = ["Case", "Place", "Unit", "rate"]

Unit = Literal["events/s", "/s", "ms", "bytes/event", "s", "µs", ""]


class Place:
    """Where a case is run: a folder, the peers to measure, how much of it; and the settings that were found."""

    def __init__(self, folder: Path, peers: Iterable[Peer], scale: Scale) -> None:
        self.folder: Final = folder
        self.peers: Final = tuple(peers)
        self.scale: Final = scale
        self.settings: Final[dict[str, Settings]] = {}

    def folder_for(self, name: str) -> Path:
        """Return a new folder below this one."""
        folder = self.folder / "".join(letter if letter.isalnum() else "-" for letter in name)
        folder.mkdir(parents=True)
        return folder

    def find(self, name: str) -> Peer | None:
        """Return the peer of this name, if it is to be measured."""
        return next((peer for peer in self.peers if peer.name == name), None)

    async def enter(self, opened: AsyncExitStack, peer: Peer) -> Any:
        """Open a peer in a folder of its own and keep what its writing connection says of its settings."""
        store = await opened.enter_async_context(peer.open()(self.folder_for(peer.name)))
        self.settings[peer.name] = await store.settings()
        return store

    async def enter_workflows(self, opened: AsyncExitStack, peer: Peer) -> Any:
        """Open a peer for workflows in a folder of its own; its settings are kept likewise."""
        runs = await opened.enter_async_context(peer.open_workflows()(self.folder_for(peer.name)))
        self.settings[peer.name] = await runs.settings()
        return runs


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """Something to measure. `rounds` is how many of them this case takes, of the scale's number by default."""

    name: str
    what: str
    unit: Unit
    open: Callable[[Place], AbstractAsyncContextManager[list[Side]]]
    rounds: Callable[[Scale], int] = lambda scale: scale.rounds
    warm_up: bool = False


def rate(name: str, events: int, work: Callable[[], Awaitable[float]]) -> Side:
    """Return the side that does `work`, which takes seconds for so many events, and gives events per second."""

    async def measure() -> Mapping[str, float]:
        return {name: events / await work()}

    return Side(name, measure)
