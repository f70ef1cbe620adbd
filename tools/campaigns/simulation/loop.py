"""The simulated event loop: time passes only when nothing is ready, and what is ready runs in a random order.

It is an asyncio loop without selector, thread or clock. Everything that happens on it is decided by one source of
chance, so that the same seed gives the same history, step by step. Each callback belongs to the simulated process in
whose context it was scheduled: that of a process that has died never runs, and one that is suspended waits.

asyncio promises that callbacks run in the order in which they became ready. A loop that is not `is_fair` breaks that
promise within a process, as an adversary; one that is keeps it, and only the processes overtake each other.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final, TypeVar

__all__ = ["PROCESS", "Queue", "SimulatedLoop", "Stuck"]

T = TypeVar("T")


class Queue:
    """The callbacks of one simulated process that are ready to run."""

    def __init__(self) -> None:
        self.ready: list[asyncio.Handle] = []
        self.is_dead = False
        self.is_suspended = False
        self.steps = 0
        """How many callbacks have run."""
        self.next_fault = 0
        """Before which callback something happens to it (`on_fault`); 0: nothing does."""

    def on_fault(self) -> None:
        """Something happens to the process, now: its `next_fault` has come."""


PROCESS: Final[ContextVar[Queue]] = ContextVar("simulated_process")
"""To which process this code belongs."""


class Stuck(Exception):
    """The simulation does not come to its end: nothing will ever happen again, or too much has."""


class _Task(asyncio.Task[T]):
    """A task that has the same place in a set in every replay: by its number, and not by where it lies in memory."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class _Future(asyncio.Future[T]):
    """As `_Task`."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class SimulatedLoop(asyncio.AbstractEventLoop):
    """The loop. `outside` is the process of all that never dies: whoever arranges the simulation, and the network."""

    def __init__(self, chance: random.Random, *, is_fair: bool) -> None:
        self._chance: Final = chance
        self._is_fair: Final = is_fair
        self._now_s = 0.0
        self._busy: Final[list[Queue]] = []
        """Those that have something ready and are not suspended."""
        self._timers: Final[list[tuple[float, int, asyncio.TimerHandle, Queue]]] = []
        self._numbers: Final = itertools.count(1)
        self.buried: Final[list[object]] = []
        """What belongs to the dead. It is kept: to forget a coroutine is to run the rest of its `finally`."""
        self.broken: Final[list[str]] = []
        """What callbacks have raised, and what asyncio complains of."""
        self.steps = 0
        self.outside: Final = Queue()
        self.context: Final = copy_context()
        self.context.run(PROCESS.set, self.outside)

    # ── running ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def run(self, main: Coroutine[Any, Any, T], *, limit_s: float, limit_steps: int) -> T:
        """Run until `main` is done, and return what it returns. Raises Stuck at the limits, or if nothing is left."""
        asyncio._set_running_loop(self)
        try:
            task = self.create_task(main, context=self.context)
            while not task.done():
                if not self._busy:
                    self._pass_time()
                    if self._now_s > limit_s:
                        raise Stuck(f"it is not over after {limit_s:.0f} simulated seconds")
                    continue
                self._run_one()
                self.steps += 1
                if self.steps > limit_steps:
                    raise Stuck(f"it is not over after {limit_steps} steps")
            return task.result()
        finally:
            asyncio._set_running_loop(None)

    def _run_one(self) -> None:
        busy = self._busy
        queue = busy[int(self._chance.random() * len(busy))] if len(busy) > 1 else busy[0]
        if queue.next_fault and queue.steps >= queue.next_fault:
            queue.next_fault = 0
            queue.on_fault()
            return
        ready = queue.ready
        index = 0 if self._is_fair or len(ready) == 1 else int(self._chance.random() * len(ready))
        handle = ready.pop(index)
        if not ready:
            busy.remove(queue)
        if handle.cancelled():
            return
        queue.steps += 1
        handle._run()

    def _pass_time(self) -> None:
        """Go on to the next timer, as nothing is ready before it."""
        timers = self._timers
        while timers:
            when_s, _, handle, queue = heapq.heappop(timers)
            if handle.cancelled():
                continue
            self._now_s = max(self._now_s, when_s)
            self._make_ready(queue, handle)
            while timers and timers[0][0] <= self._now_s:
                _, _, handle, queue = heapq.heappop(timers)
                if not handle.cancelled():
                    self._make_ready(queue, handle)
            return
        raise Stuck("nothing is ready, and no timer is set: somebody waits for what will never come")

    def _make_ready(self, queue: Queue, handle: asyncio.Handle) -> None:
        if queue.is_dead:
            self.buried.append(handle)
            return
        if not queue.ready and not queue.is_suspended:
            self._busy.append(queue)
        queue.ready.append(handle)

    # ── processes ────────────────────────────────────────────────────────────────────────────────────────────────────

    def kill(self, queue: Queue) -> None:
        """End the process between two of its callbacks: nothing of it runs any more, not even its clean-up."""
        queue.is_dead = True
        self.buried.append(queue.ready)
        queue.ready = []
        if queue in self._busy:
            self._busy.remove(queue)

    def suspend(self, queue: Queue) -> None:
        """Let nothing of the process run until `go_on`; its timers come due meanwhile."""
        queue.is_suspended = True
        if queue in self._busy:
            self._busy.remove(queue)

    def go_on(self, queue: Queue) -> None:
        """End the suspension, if it has not ended."""
        if queue.is_suspended:
            queue.is_suspended = False
            if queue.ready and not queue.is_dead:
                self._busy.append(queue)

    def later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """Call this after a time whatever dies until then: it is under way in the network, or lies in the future."""
        return self.call_at(self._now_s + delay_s, callback, *args, context=self.context)

    # ── what asyncio asks of a loop ──────────────────────────────────────────────────────────────────────────────────

    def time(self) -> float:
        """Return the simulated time in seconds."""
        return self._now_s

    def call_soon(  # type: ignore[override]  # a type variable tuple says no more here
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Make this ready."""
        if context is None:
            context = copy_context()
        handle = asyncio.Handle(callback, args, self, context)
        self._make_ready(context[PROCESS], handle)
        return handle

    def call_later(  # type: ignore[override]  # a type variable tuple says no more here
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Make this ready after a time."""
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]  # a type variable tuple says no more here
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Make this ready at a time."""
        if context is None:
            context = copy_context()
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        queue = context[PROCESS]
        if when <= self._now_s:
            self._make_ready(queue, handle)
        else:
            heapq.heappush(self._timers, (when, next(self._numbers), handle, queue))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        future: _Future[Any] = _Future(loop=self)
        future.number = next(self._numbers)
        return future

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        """Return a task of this loop."""
        task: _Task[T] = _Task.__new__(_Task)
        task.number = next(self._numbers)  # in front of its beginning, which puts it into a set
        task.__init__(coro, loop=self, name=name, context=context)  # type: ignore[misc]
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Note what asyncio complains of."""
        self.broken.append(f"{context.get('message')}: {context.get('exception')!r}")

    def get_debug(self) -> bool:
        """Nothing is looked at twice here."""
        return False

    def is_running(self) -> bool:
        """It is, whenever somebody asks."""
        return True

    def is_closed(self) -> bool:
        """Nothing has to be closed."""
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer is passed over when it comes due."""
