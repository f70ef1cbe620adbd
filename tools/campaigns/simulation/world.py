"""One simulation under way: its loop, its disk, its receivers, and the processes in it, with what befalls them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, Final

from eventlog.errors import CODES, EventLogError, Refused
from eventlog.runtime.runner import Runner
from tools.campaigns.simulation import kernel
from tools.campaigns.simulation.kernel import Process, SimulatedClock
from tools.campaigns.simulation.loop import PROCESS, SimulatedLoop
from tools.campaigns.simulation.notes import Note
from tools.campaigns.simulation.plan import Fault, Machine, Plan
from tools.campaigns.simulation.receivers import Receivers
from tools.campaigns.simulation.store import Disk, Port
from tools.campaigns.simulation.stories import STORIES

__all__ = ["CANCELLED", "Live", "Living", "World"]

_LONGEST_ERROR_S: Final = 1e9
"""No action may say that its requests are under way for longer than a hundred years: twice this, and a bit more."""

_HAS_HEIR: Final = 0.6
"""How likely it is that a process that has died is started again."""


CANCELLED: Final = "cancelled"
"""What a call came to that was cancelled."""

_NO_TRACE: Final = ("run_exists", "unknown_run")
"""Refusals for which there is no run that could say so."""

_TRACES: Final = frozenset(
    {
        "action_conflict",
        "action_failed",
        "action_replayed",
        "approval_expired",
        "outcome_unknown",
        "proposal_rejected",
        "resume_rejected",
        "transition_rejected",
    }
)


class Living(Process):
    """A process with what it does, and the faults that it is to meet."""

    def __init__(self, world: World, machine: Machine, live: Live) -> None:
        super().__init__(machine.name, machine.host, SimulatedClock(world.loop, machine.skew_s))
        self.live: Final = live
        self.world: Final = world
        self.machine: Final = machine
        self.calls: Final[list[asyncio.Task[Any]]] = []
        """What it calls of the engine, and has not been told the end of."""
        self.over: Final[asyncio.Future[None]] = world.loop.create_future()
        """Done once it has ended, or died."""
        self._faults: Final = list(machine.faults)
        self.next_fault = self._faults[0].step if self._faults else 0

    def on_fault(self) -> None:
        """Meet the next fault."""
        fault = self._faults.pop(0)
        self.next_fault = max(self._faults[0].step, self.steps + 1) if self._faults else 0
        if not self.world.is_calm:
            self.world.befall(self, fault)


Live = Callable[[Living], Coroutine[Any, Any, None]]
"""What a process does, from its beginning to its end."""


class World:
    """The simulation of one plan. `control` names what is broken in it on purpose, if anything is."""

    def __init__(self, seed: str, plan: Plan, chance: random.Random, control: str | None) -> None:
        kernel.begin(seed)
        self.plan: Final = plan
        self.chance: Final = chance
        self.control: Final = control
        self.loop: Final = SimulatedLoop(chance, is_fair=plan.is_fair)  # type: ignore[abstract]  # nothing calls them
        self.disk: Final = Disk(self.loop, chance, plan.weather, control=control)
        self.receivers: Final = Receivers(
            self.disk,
            key_life_s=plan.key_life_s,
            clock_error_s=min(plan.clock_error_s, _LONGEST_ERROR_S),
            is_forgetful=control == "forgetful",
        )
        self.living: Final[list[Living]] = []
        self._unborn = 0
        self.is_calm = False
        self.counts: Final[Counter[str]] = Counter()
        self.notes: Final[list[Note]] = []
        self.told: Final[list[str]] = []
        """What callers were told, in order: part of the history."""
        self.wrong: Final[list[tuple[str, str]]] = []
        """Violations that were seen while it went on: the invariant, and what."""

    # ── processes ────────────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, machine: Machine, live: Live) -> Living:
        """Let a process begin, and live as `live` says."""
        process = Living(self, machine, live)
        self.living.append(process)
        context = self.loop.context.copy()
        context.run(PROCESS.set, process)
        task = self.loop.create_task(live(process), context=context)
        task.add_done_callback(lambda task: self._ended(process, task), context=self.loop.context)
        self.loop.buried.append(task)
        return process

    def _ended(self, process: Living, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.wrong.append(("I8", f"{process.name} was ended by {error!r}"))
        if not process.over.done():
            process.over.set_result(None)

    def runner(self, port: Port) -> Runner:
        """Return a runner as every process here has one."""
        return Runner(
            port,
            actions=self.receivers.actions(),
            policies=self.plan.policies,
            workflows=STORIES,
            lease_s=self.plan.lease_s,
            patience_s=self.plan.patience_s,
            folder="/",
            clock=port.clock,
        )

    def befall(self, process: Living, fault: Fault) -> None:
        """Let a fault happen to a process."""
        match fault.kind:
            case "die":
                self.die(process)
                if self.chance.random() < _HAS_HEIR:
                    self._unborn += 1
                    self.loop.later(fault.seconds, self._begin_heir, process)
            case "suspend" | "stand still":
                self.loop.suspend(process)
                self.loop.later(fault.seconds, self._go_on, process, fault)
                self.counts["suspensions"] += 1
            case "jump":
                process.clock.ahead_us += round(fault.seconds * 1_000_000)
                self.counts["clock jumps"] += 1
            case "cancel":
                calls = [call for call in process.calls if not call.done()]
                if calls:
                    calls[int(self.chance.random() * len(calls))].cancel()
                    self.counts["cancellations"] += 1

    def die(self, process: Living) -> None:
        """End a process as a crash does: nothing of it runs any more."""
        if not process.over.done():
            self.loop.kill(process)
            self.counts["crashes"] += 1
            process.over.set_result(None)

    def _begin_heir(self, process: Living) -> None:
        self._unborn -= 1
        name, operations = f"{process.name}'", min(process.machine.operations, 3)
        self.begin(replace(process.machine, name=name, begins_at_s=0.0, operations=operations, faults=()), process.live)

    async def quiet(self) -> None:
        """Wait until every process has ended, or died."""
        while True:
            living = [process.over for process in self.living if not process.over.done()]
            if living:
                await asyncio.wait(living)
            elif self._unborn:
                await asyncio.sleep(1.0)
            else:
                return

    def _go_on(self, process: Living, fault: Fault) -> None:
        if fault.kind == "stand still":
            process.clock.stood_s += fault.seconds
        self.loop.go_on(process)

    # ── calls ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def call(self, process: Living, what: str, call: Awaitable[Any], timeout_s: float | None = None) -> Any:
        """Make a call of the engine, and return what it came to: its result, a coded error, or CANCELLED.

        Anything else is a violation, and so is a refusal of which the log has no trace.
        """
        before = len(self.disk.events)
        task = asyncio.ensure_future(call)
        process.calls.append(task)
        timer = None if timeout_s is None else self.loop.call_later(timeout_s, task.cancel)
        error: BaseException | None = None
        answer: Any = CANCELLED
        try:
            answer = await task
        except asyncio.CancelledError:
            pass  # by a fault, or because it took too long: nobody else cancels anything here
        except BaseException as raised:
            answer = error = raised
        process.calls.remove(task)
        if timer is not None:
            timer.cancel()
        self.counts["calls"] += 1
        code = "cancelled" if answer is CANCELLED else getattr(error, "code", error and repr(error))
        self.told.append(f"{process.name} {what} {code}")
        if error is None:
            return answer
        if not isinstance(error, EventLogError) or error.code not in CODES:
            self.wrong.append(("I8", f"{what} of {process.name} ended with {error!r}"))
        elif isinstance(error, Refused) and error.code not in _NO_TRACE and not self._has_trace(error, before):
            self.wrong.append(("I8", f"{what} of {process.name} was refused, and the log does not say so: {error!r}"))
        return error

    def _has_trace(self, error: Refused, before: int) -> bool:
        """Say whether something in the log, behind this position, tells that a run was refused."""
        return any(event.type in _TRACES for event in self.disk.events[before:])

    def calm(self) -> None:
        """Stop all faults: nothing is slow, nobody dies, and who is suspended goes on."""
        self.is_calm = True
        self.plan.weather.calm()
        for process in self.living:
            if process.is_suspended:
                self.loop.go_on(process)
