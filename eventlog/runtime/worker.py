"""Drives the workflow runs of a log as they can go on: any number of workers, in any number of processes.

A worker reads the feed of the log and so learns of new runs, decisions, signals, ended children and processes that
died; it sleeps until the next thing comes or the next timer is due, and asks nobody in between. Workers do not know of
each other: whoever claims a run first drives it, the others see that in the feed and leave it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing, suppress
from functools import partial
from typing import Final

from eventlog.errors import Conflict, EventLogError, InvalidInput, Refused, StoreUnavailable
from eventlog.events import RUN_PREFIX
from eventlog.log import CaughtUp, RecordedEvent
from eventlog.runtime.agenda import TYPES, Agenda
from eventlog.runtime.arguments import check_given
from eventlog.runtime.claims import is_proved_dead
from eventlog.runtime.runner import Runner
from eventlog.stores.entropy import random_float, sample
from eventlog.stores.telemetry import logger

__all__ = ["Worker"]

_MICRO: Final = 1_000_000
_LOOK_S: Final = 1.0
"""How often the holders of runs are looked at, while others hold any."""
_JITTER_S: Final = 0.02
_MAX_CONCURRENT: Final = 100_000
_FIRST_PAUSE_S: Final = 0.5
_MAX_PAUSE_S: Final = 60.0
_MAX_DOUBLINGS: Final = 7


class _Pause:
    """The time for which a run is left alone that could not be driven; it gets longer each time in a row."""

    __slots__ = ("failures", "is_worth_waiting_for", "timer")

    def __init__(self) -> None:
        self.failures = 0
        self.timer: asyncio.TimerHandle | None = None
        self.is_worth_waiting_for = False
        """Whether it is likely to be over by itself, as a busy store."""

    def begin(self, loop: asyncio.AbstractEventLoop, over: Callable[[], None]) -> float:
        """Begin to pause, and return for how long: `over` is called then."""
        pause_s: float = min(_FIRST_PAUSE_S * 2 ** min(self.failures, _MAX_DOUBLINGS), _MAX_PAUSE_S)
        self.failures += 1
        self.end()
        self.timer = loop.call_later(pause_s, over)
        return pause_s

    def end(self) -> None:
        """Do not pause any longer."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = None


class Worker:
    """Drives up to `max_concurrent` runs at a time with the workflows and actions of `runner`.

    Runs of one action are left to `runner.resume`. A run that is refused here (another definition, an unknown action)
    is left alone until something new happens to it; one that cannot be driven because of an error, as of a store that
    is busy, is tried again after a pause, which gets longer. `grace_s` is how long a stop waits for what is under way
    before it is cut short; its runs go on elsewhere in either case.
    """

    def __init__(self, runner: Runner, *, max_concurrent: int = 20, grace_s: float = 30.0) -> None:
        check_given(runner=runner, grace_s=grace_s)
        if type(max_concurrent) is not int or not 1 <= max_concurrent <= _MAX_CONCURRENT:
            raise InvalidInput("invalid_argument", f"`max_concurrent` is an int from 1, not {max_concurrent!r:.80}")
        self._runner: Final = runner
        self._max_concurrent: Final = max_concurrent
        self._grace_s: Final = grace_s
        self._agenda: Final = Agenda()
        self._driving: Final[dict[str, asyncio.Task[None]]] = {}
        self._pauses: Final[dict[str, _Pause]] = {}
        self._news: Final = asyncio.Event()
        self._is_caught_up = False
        self._is_stopping = False
        self.driven = 0
        """How often a run was picked up and driven on."""

    async def run(self, *, until_idle: bool = False) -> None:
        """Drive runs until `stop` is called; with `until_idle`, until nothing is left that can go on by now.

        Raises what makes the log unusable. If it is cancelled its runs are given free, as on a stop.
        """
        check_given(until_idle=until_idle)
        self._runner.workflows.is_told = True
        following = asyncio.create_task(self._follow())
        try:
            while not self._is_stopping:
                if following.done():
                    following.result()
                self._pick_up()
                if until_idle and self._is_idle():
                    break
                await self._wait_for_news(following)
            await self._end()
        finally:
            self._runner.workflows.is_told = False
            for pause in self._pauses.values():
                pause.end()
            following.cancel()
            for task in self._driving.values():
                task.cancel()
            # This ends behind the last of them, however often it is cancelled meanwhile.
            await asyncio.gather(following, *self._driving.values(), return_exceptions=True)

    def stop(self) -> None:
        """Pick up nothing more, and give every run free at its next boundary. `run` returns when that is done."""
        self._is_stopping = True
        self._news.set()

    def wake(self) -> None:
        """Look at the clock again: for clocks that somebody moves."""
        self._news.set()

    async def _end(self) -> None:
        self._runner.workflows.stop()
        if self._driving:
            await asyncio.wait(self._driving.values(), timeout=self._grace_s)

    async def _follow(self) -> None:
        """Fold the feed. What has happened before is folded first, and nothing is picked up until then."""
        feed = self._runner.log.subscribe(types=TYPES, stream_prefix=RUN_PREFIX, marks=True)
        try:
            async with aclosing(feed):
                async for item in feed:
                    if isinstance(item, RecordedEvent):
                        touched = self._agenda.note(item)
                        if touched is not None:
                            self._runner.workflows.notify(touched)
                    elif isinstance(item, CaughtUp) and not self._is_caught_up:
                        self._agenda.try_refused()
                        self._is_caught_up = True
                    self._news.set()
        finally:
            self._news.set()

    def _pick_up(self) -> None:
        """Begin to drive what is ready, as far as there is room, in any order: other workers do the same."""
        if not self._is_caught_up or self._is_stopping:
            return
        self._agenda.due(self._now_us())
        room = self._max_concurrent - len(self._driving)
        ready = [run_id for run_id in self._agenda.ready if self._is_free(run_id)]
        for run_id in sample(ready, min(room, len(ready))):
            self._agenda.take(run_id)
            task = asyncio.create_task(self._drive(run_id))
            self._driving[run_id] = task
            task.add_done_callback(lambda _, run_id=run_id: self._left(run_id))  # type: ignore[misc]

    def _left(self, run_id: str) -> None:
        del self._driving[run_id]
        self._news.set()

    async def _drive(self, run_id: str) -> None:
        """Drive the run if it can go on. Whatever comes of that, the agenda knows it behind this."""
        try:
            try:
                run = await self._runner.workflows.advance(run_id)
            except Conflict as error:
                logger.debug("run_left_to_others", run_id=run_id, code=error.code)
                run = None
            if run is None:
                self._agenda.found(await self._runner.state(run_id))
            else:
                self.driven += 1
                logger.info("run_driven", run_id=run_id, status=run.status.value)
        except Refused as error:
            logger.warning("run_not_driven", run_id=run_id, code=error.code, why=str(error))
        except Exception as error:
            if not (isinstance(error, StoreUnavailable) and error.code == "subject_key_missing"):
                self._try_later(run_id, error)
                return
            logger.warning("run_not_driven", run_id=run_id, code=error.code, why=str(error))
        self._pauses.pop(run_id, None)

    def _try_later(self, run_id: str, error: Exception) -> None:
        """Leave the run alone for a while: the next try may do better, and must not come at once."""
        pause = self._pauses.setdefault(run_id, _Pause())
        pause.is_worth_waiting_for = isinstance(error, StoreUnavailable)
        pause_s = pause.begin(asyncio.get_running_loop(), partial(self._paused, pause))
        self._agenda.again(run_id)
        code = error.code if isinstance(error, EventLogError) else type(error).__name__
        logger.error("run_failed_to_drive", run_id=run_id, code=code, why=str(error), again_in_s=pause_s)

    def _paused(self, pause: _Pause) -> None:
        pause.end()
        self._news.set()

    def _is_free(self, run_id: str) -> bool:
        """Say whether the run is neither driven here nor left alone for a while."""
        pause = self._pauses.get(run_id)
        return run_id not in self._driving and (pause is None or pause.timer is None)

    async def _wait_for_news(self, following: asyncio.Task[None]) -> None:
        """Sleep until the feed says something, a run is left, the next timer is due, or holders are to be looked at."""
        timeout_s = self._until_due_s()
        if self._is_held_by_others():
            timeout_s = min(timeout_s if timeout_s is not None else _LOOK_S, _LOOK_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        self._news.clear()
        self._look_after_held()

    def _until_due_s(self) -> float | None:
        if not self._is_caught_up:
            return None
        due_us = self._agenda.due(self._now_us())
        if due_us is None:
            return 0.0 if self._agenda.ready and self._has_room() else None
        # Several workers wake for one timer: a moment apart, so that all but the first see that it is taken.
        left_s = (due_us - self._now_us()) / _MICRO + random_float() * _JITTER_S
        return 0.0 if self._agenda.ready and self._has_room() else max(0.0, min(left_s, 3600.0))

    def _has_room(self) -> bool:
        return len(self._driving) < self._max_concurrent and any(map(self._is_free, self._agenda.ready))

    def _is_held_by_others(self) -> bool:
        return any(run_id not in self._driving for run_id in self._agenda.held)

    def _look_after_held(self) -> None:
        """Make ready what nobody drives any more."""
        now_us, place = self._now_us(), self._runner.log.place
        for run_id, held in self._agenda.others():
            if run_id not in self._driving and (now_us > held.deadline_us or is_proved_dead(held.owner, place)):
                self._agenda.abandoned(run_id)

    def _is_idle(self) -> bool:
        if not self._is_caught_up or self._driving or self._agenda.held:
            return False
        return not any(
            self._is_free(run_id) or self._pauses[run_id].is_worth_waiting_for for run_id in self._agenda.ready
        )

    def _now_us(self) -> int:
        return self._runner.workflows.clock_us()
