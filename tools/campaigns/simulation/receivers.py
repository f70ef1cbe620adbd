"""The receivers of simulated effects, which keep a record of what really happened, and the actions that act on them.

    row     TRANSACTIONAL   a row in the log's own database
    file    CHECKABLE       the sender's own act, which ends with the sender; it can be asked, and refuses nothing
    asked   CHECKABLE       a request that is under way when its sender has died; it can be asked, and refuses nothing
    unique  CHECKABLE       finds out itself what is there, and refuses a second effect
    keyed   KEYED           does nothing twice for one key, as long as it knows the key
    line    OPAQUE          can neither be asked, nor refuse

How long a request is under way, and how long a key is known, is said to the engine as it is, and a longer time is kept
by as much as the clocks of a simulation may be wrong: both are reckoned by wall clocks, and no engine can know better.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from eventlog.errors import ActionFailed
from eventlog.runtime.attempts import AnyAction
from eventlog.runtime.effects import Absent, Call, Executed, Finding, Inconclusive, Promise, Recovered, Report
from tools.campaigns.simulation.store import Disk

__all__ = ["KINDS", "Effect", "Receivers"]

KINDS: Final = ("row", "file", "asked", "unique", "keyed", "line")

_PROMISES: Final = {
    "row": Promise.TRANSACTIONAL,
    "file": Promise.CHECKABLE,
    "asked": Promise.CHECKABLE,
    "unique": Promise.CHECKABLE,
    "keyed": Promise.KEYED,
    "line": Promise.OPAQUE,
}
_DIE_WITH_SENDER: Final = ("file",)


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect that has happened. `position` is where the log ended then."""

    kind: str
    op_key: str
    run_id: str
    args: Any
    output: str
    position: int
    at_s: float


class Receivers:
    """All receivers of one simulation, in one. `clock_error_s` is by how much its clocks may be wrong."""

    def __init__(self, disk: Disk, *, key_life_s: float, clock_error_s: float, is_forgetful: bool) -> None:
        self.disk: Final = disk
        self.effects: Final[list[Effect]] = []
        self.under_way: Final[Counter[str]] = Counter()
        """How many requests of each op_key may still come."""
        self.longest_s: Final = disk.weather.longest_s
        self.request_life_s: Final = self.longest_s + 2 * clock_error_s + 0.001
        self.key_life_s: Final = key_life_s
        self.clock_error_s: Final = clock_error_s
        self._known_s: Final = 0.0 if is_forgetful else key_life_s + 2 * clock_error_s
        self._keys: Final[dict[str, float]] = {}
        self._happened: Final[set[str]] = set()

    def actions(self) -> list[AnyAction]:
        """Return the actions, for one process."""
        return [_Row(self), *(_ACTIONS[kind](self, kind) for kind in KINDS if kind != "row")]

    def holds(self, op_key: str) -> bool:
        """Say whether the effect has happened."""
        return op_key in self._happened

    def note(self, kind: str, call: Call) -> None:
        """Let the effect happen."""
        self._happened.add(call.op_key)
        events, now_s = self.disk.events, self.disk.loop.time()
        self.effects.append(Effect(kind, call.op_key, call.run_id, call.args, call.output, len(events), now_s))

    def collect_rows(self) -> None:
        """Take over the rows that were committed."""
        for call, position in self.disk.rows:
            self._happened.add(call.op_key)
            self.effects.append(Effect("row", call.op_key, call.run_id, call.args, call.output, position, 0.0))
        self.disk.rows.clear()

    def arrive(self, kind: str, call: Call) -> Report:
        """Do what a request asks for that has come."""
        if kind == "keyed":
            return self._arrive_keyed(call)
        if kind == "unique" and self.holds(call.op_key):
            return Recovered(evidence="it is there", result=call.args)
        self.note(kind, call)
        return Executed(result=call.args)

    def _arrive_keyed(self, call: Call) -> Report:
        now_s = self.disk.loop.time()
        if now_s < self._keys.get(call.op_key, 0.0):
            return Recovered(evidence="the key is known", result=call.args)
        self._keys[call.op_key] = now_s + self._known_s
        self.note("keyed", call)
        return Executed(result=call.args)


class _Row:
    """Writes a row in the transaction of its event."""

    name = "row"
    promise = Promise.TRANSACTIONAL

    def __init__(self, receivers: Receivers) -> None:
        self._receivers: Final = receivers

    def check(self, call: Call) -> None:
        """Nothing to refuse."""

    def write(self, connection: Any, call: Call) -> Any:
        """Write the row."""
        disk = self._receivers.disk
        connection.append(call)
        if disk.draws(disk.weather.refused):
            raise ActionFailed("action_failed", "the row is refused")
        return call.args


class _Sent:
    """Sends a request to its receiver, and waits for the answer."""

    def __init__(self, receivers: Receivers, kind: str) -> None:
        self._receivers: Final = receivers
        self._disk: Final = receivers.disk
        self.name: Final = kind
        self.promise: Final = _PROMISES[kind]

    def check(self, call: Call) -> None:
        """Nothing to refuse."""

    async def execute(self, call: Call) -> Report:
        """Perform the effect. What dies with its sender is called back if that is cancelled."""
        disk, weather = self._disk, self._disk.weather
        if disk.draws(weather.refused):
            raise ActionFailed("action_failed", "it refuses, and has done nothing")
        answer: asyncio.Future[Report] = disk.loop.create_future()
        self._receivers.under_way[call.op_key] += 1
        send = disk.loop.call_later if self.name in _DIE_WITH_SENDER else disk.loop.later
        handle = send(disk.delay_s(), self._arrive, call, answer)
        try:
            report = await answer
        except asyncio.CancelledError:
            if self.name in _DIE_WITH_SENDER and not handle.cancelled() and not answer_has_come(answer):
                handle.cancel()
                self._receivers.under_way[call.op_key] -= 1
            raise
        await asyncio.sleep(disk.delay_s())
        if disk.draws(weather.lost):
            raise TimeoutError("no answer")
        return report

    def _arrive(self, call: Call, answer: asyncio.Future[Report]) -> None:
        self._receivers.under_way[call.op_key] -= 1
        report = self._receivers.arrive(self.name, call)
        if not answer.done():
            answer.set_result(report)


def answer_has_come(answer: asyncio.Future[Report]) -> bool:
    """Say whether the receiver has answered, though the sender was cancelled meanwhile."""
    return answer.done() and not answer.cancelled()


class _Asked(_Sent):
    """As `_Sent`; the receiver can be asked."""

    def __init__(self, receivers: Receivers, kind: str) -> None:
        super().__init__(receivers, kind)
        if kind == "asked":
            self.request_life_s: Final = receivers.request_life_s

    async def inspect(self, call: Call) -> Finding:
        """Ask whether it has happened."""
        disk = self._disk
        await asyncio.sleep(disk.delay_s())
        found: Finding = Recovered(result=call.args) if self._receivers.holds(call.op_key) else Absent()
        await asyncio.sleep(disk.delay_s())
        return Inconclusive(why="it does not answer") if disk.draws(disk.weather.lost) else found


class _Unique(_Sent):
    """As `_Sent`; the receiver refuses a second effect."""

    is_fenced = True


class _Keyed(_Sent):
    """As `_Sent`; the receiver knows the op_key for a time."""

    def __init__(self, receivers: Receivers, kind: str) -> None:
        super().__init__(receivers, kind)
        self.key_lifetime_s: Final = receivers.key_life_s
        self.request_life_s: Final = receivers.request_life_s


_ACTIONS: Final[dict[str, type[_Sent]]] = {
    "file": _Asked,
    "asked": _Asked,
    "unique": _Unique,
    "keyed": _Keyed,
    "line": _Sent,
}
