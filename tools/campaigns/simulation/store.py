"""The simulated store: a log in memory that all simulated processes share, and the port by which one of them uses it.

An append travels to the store, is stored or not, and its answer travels back; each takes its time, overtakes others,
and may be refused as busy, or end without anybody knowing whether it was stored. Whoever waits for the answer may be
cancelled, and the append goes on. A process that dies before the moment in which it is stored has appended nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from eventlog.errors import ActionFailed, CommitOutcomeUnknown, EventLogError, StoreBusy
from eventlog.log import Append, AppendResult, Expect, RecordedEvent, Snapshot, StreamSlice
from eventlog.stores.memory import MemoryLog, _Feed
from eventlog.stores.requests import Request, make_request, make_writing_request
from eventlog.stores.subscription import Tail
from tools.campaigns.simulation.kernel import PLACE, Process
from tools.campaigns.simulation.loop import SimulatedLoop

__all__ = ["Disk", "Port", "Weather"]

_SHARED: Final = (
    "_store_id",
    "_log_id",
    "_events",
    "_streams",
    "_by_id",
    "_salts",
    "_frontier",
    "_tiles",
    "_snapshots",
)


@dataclass(slots=True)
class Weather:
    """How likely faults are; all of it is set to nothing when they are to stop."""

    slow: float = 0.0
    """That something takes a noticeable time."""
    longest_s: float = 0.0
    """How long that is at most."""
    busy: float = 0.0
    unknown: float = 0.0
    refused: float = 0.0
    """That a receiver refuses, and nothing happens."""
    lost: float = 0.0
    """That its answer is lost."""

    def calm(self) -> None:
        """Stop all faults."""
        self.slow = self.busy = self.unknown = self.refused = self.lost = 0.0


class Disk:
    """What is stored: the events, and the rows of effects that are written with them."""

    def __init__(
        self, loop: SimulatedLoop, chance: random.Random, weather: Weather, *, control: str | None = None
    ) -> None:
        self.is_lying: Final = control == "lying"
        """Whether it says "busy", and stores all the same."""
        self.is_tearing: Final = control == "tearing"
        """Whether it stores half of what nobody waits for any more."""
        self.loop: Final = loop
        self.chance: Final = chance
        self.weather: Final = weather
        self.ports: Final[list[Port]] = []
        self.rows: Final[list[tuple[Any, int]]] = []
        """What actions have written in a transaction that was committed, and where the log ended then."""
        self.core: Final = MemoryLog(actor="simulation", scanner=None)

    @property
    def events(self) -> list[RecordedEvent]:
        """All events, as they are stored."""
        return self.core._events

    def delay_s(self) -> float:
        """Return how long the next thing takes; mostly next to nothing."""
        if self.weather.slow and self.chance.random() < self.weather.slow:
            return self.chance.random() * self.weather.longest_s
        return 0.0

    def draws(self, probability: float) -> bool:
        """Say whether a fault happens that is as likely as this."""
        return probability > 0.0 and self.chance.random() < probability


class Port(MemoryLog):
    """The log as one process has it open."""

    def __init__(self, disk: Disk, process: Process) -> None:
        super().__init__(actor=process.name, scanner=None, clock=process.clock)
        self.clock: Final = process.clock
        for name in _SHARED:
            setattr(self, name, getattr(disk.core, name))
        self._tail = Tail(_Feed(self._guard, self._events, self._registry))  # type: ignore[misc]
        self._disk: Final = disk
        disk.ports.append(self)

    async def __aenter__(self) -> Port:
        await super().__aenter__()
        return self

    @property
    def place(self) -> str:  # type: ignore[override]
        """Beside which the simulated lock files lie."""
        return PLACE

    # ── appending ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _append(
        self,
        appends: Sequence[Append],
        checks: Sequence[tuple[str, Expect]],
        actor: str | None,
        correlation_id: str | None,
        causation_id: bytes | None,
        *,
        is_reserved_allowed: bool = False,
        before_us: int | None = None,
    ) -> list[AppendResult]:
        self._guard.check()
        request = make_request(
            appends,
            checks,
            actor=actor if actor is not None else self._actor,
            correlation_id=correlation_id,
            causation_id=causation_id,
            registry=self._registry,
            limits=self._limits,
            scanner=None,
            is_reserved_allowed=is_reserved_allowed,
            before_us=before_us,
        )
        return await self._send(request, self._store)

    async def append_with(
        self,
        stream: str,
        type: str,
        make: Callable[[Any], Any],
        *,
        expect: Expect,
        actor: str | None = None,
        correlation_id: str | None = None,
        event_id: bytes | None = None,
    ) -> AppendResult:
        """Append the event that `make(connection)` returns, and keep what it has written, in one transaction."""
        self._guard.check()
        request = make_writing_request(
            stream,
            type,
            make,
            expect,
            actor=actor if actor is not None else self._actor,
            correlation_id=correlation_id,
            event_id=event_id,
            registry=self._registry,
            limits=self._limits,
        )
        return (await self._send(request, self._write))[0]

    def _write(self, request: Request) -> list[AppendResult]:
        """Store a request that makes its event inside the transaction. Raises what `make` raises, as the real store."""
        (part,) = request.parts
        (event,) = part.events
        actual = len(self._streams.get(part.stream, ()))
        stored = self._by_id.get(event.event_id)
        if stored is not None or not part.expect.allows(actual):
            body = event.body if stored is None else stored.body
            return self._store(replace(request, parts=[replace(part, events=[replace(event, body=body)])]))
        assert request.write is not None
        written: list[Any] = []
        try:
            body = request.write(written)
        except EventLogError:
            raise
        except Exception as error:
            raise ActionFailed("action_failed", f"nothing was written: {error!r}") from error
        results = self._store(replace(request, parts=[replace(part, events=[replace(event, body=body)])], write=None))
        self._disk.rows.extend((row, len(self._events)) for row in written)
        return results

    async def _send(self, request: Request, store: Callable[[Request], list[AppendResult]]) -> list[AppendResult]:
        answer: asyncio.Future[list[AppendResult]] = self._disk.loop.create_future()
        delay_s = self._disk.delay_s()
        if delay_s:
            self._disk.loop.call_later(delay_s, self._arrive, request, store, answer)
        else:
            self._disk.loop.call_soon(self._arrive, request, store, answer)
        return await answer

    def _arrive(
        self,
        request: Request,
        store: Callable[[Request], list[AppendResult]],
        answer: asyncio.Future[list[AppendResult]],
    ) -> None:
        """Store the request, or not, and send the answer."""
        disk = self._disk
        said: list[AppendResult] | EventLogError
        if disk.is_tearing and answer.cancelled():
            first = replace(request.parts[0], events=request.parts[0].events[:1])
            request = replace(request, parts=[first])
        if disk.draws(disk.weather.busy):
            if disk.is_lying:
                with suppress(EventLogError):
                    store(request)
            said = StoreBusy("the write lock was not free in time")
        elif disk.draws(disk.weather.unknown / 2):
            said = _unknown(request)
        else:
            try:
                said = store(request)
            except EventLogError as error:
                said = error
            else:
                if disk.draws(disk.weather.unknown):
                    said = _unknown(request)
                for port in disk.ports:
                    port._tail.wake()
        delay_s = disk.delay_s()
        if delay_s:
            disk.loop.call_later(delay_s, _tell, answer, said)
        else:
            _tell(answer, said)

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def read_stream(self, stream: str, *, after: int = 0) -> StreamSlice:
        """Return the events of `stream` behind version `after`, as they were at some moment of the call."""
        await self._look()
        found = await super().read_stream(stream, after=after)
        await self._rest()
        return found

    async def read_from_snapshot(self, stream: str) -> tuple[Snapshot | None, StreamSlice]:
        """Return the stream's snapshot and the events from its version on."""
        await self._look()
        snapshot = await self.load_snapshot(stream)
        found = await super().read_stream(stream, after=max(snapshot.version - 1, 0) if snapshot else 0)
        await self._rest()
        return snapshot, found

    async def _look(self) -> None:
        if self._disk.draws(self._disk.weather.busy / 2):
            raise StoreBusy("the database was locked while it was read")
        await self._rest()

    async def _rest(self) -> None:
        delay_s = self._disk.delay_s()
        if delay_s:
            await asyncio.sleep(delay_s)


def _unknown(request: Request) -> CommitOutcomeUnknown:
    return CommitOutcomeUnknown([each.hex() for each in request.event_ids()], "the answer of the disk was lost")


def _tell(answer: asyncio.Future[list[AppendResult]], said: list[AppendResult] | EventLogError) -> None:
    if answer.done():
        return
    if isinstance(said, EventLogError):
        answer.set_exception(said)
    else:
        answer.set_result(said)
