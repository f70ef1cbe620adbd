"""The life of one drive, and what the operations of a workflow ask of it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NoReturn

from eventlog.decide import refuse_resume
from eventlog.errors import (
    Conflict,
    EventLogError,
    EventTypeUnknown,
    InvalidInput,
    LogCorrupt,
    Misuse,
    Refused,
    RunConflict,
    StoreUnavailable,
)
from eventlog.events import RunEvent, Status, Waiting
from eventlog.progress import Progress, Stored
from eventlog.run import Run
from eventlog.runtime.definitions import Workflow
from eventlog.runtime.drive.askers import GROUP, STEP, Asked, Askers, retrieve
from eventlog.runtime.drive.branches import Keys
from eventlog.runtime.drive.checkpoints import Checkpoints, committing, released
from eventlog.runtime.drive.pauses import Pauses, Working
from eventlog.runtime.drive.replay import Replay
from eventlog.runtime.drive.suspension import Suspended, Suspension
from eventlog.runtime.drive.watch import watch
from eventlog.runtime.endings import complete, fail
from eventlog.runtime.run_streams import printable
from eventlog.runtime.session import Session
from eventlog.runtime.tools import Tools
from eventlog.runtime.undisturbed import undisturbed
from eventlog.stores.telemetry import logger
from eventlog.values import ValueCodec

__all__ = ["Drive"]

_KNOWN_ENDS: Final = (Refused, Conflict, LogCorrupt, StoreUnavailable)
_TURNS: Final = 20
"""Turns of the loop in which code that is let on no more can end by itself."""
_NAP_S: Final = 0.01
_MAX_NAP_S: Final = 1.0


class Drive:
    """Drives the run that `session` holds, by `workflow`, with `tools`.

    `company` says how many runs are driven here, so that looking at the log for each of them stays cheap; None if
    somebody tells this drive what others do to its run.
    """

    def __init__(
        self, session: Session, workflow: Workflow, tools: Tools, *, company: Callable[[], int] | None = None
    ) -> None:
        self.session: Final = session
        self.workflow: Final = workflow
        self.tools: Final = tools
        self._company: Final = company
        self._suspension: Final = Suspension()
        self._keys: Final = Keys()
        self._askers: Final = Askers(self._suspension)
        self._replay: Final = Replay(session, self._keys, self._askers, self._suspension, patience_s=tools.patience_s)
        self._checkpoints: Final = Checkpoints(session, tools.log, self._suspension)
        self._pauses: Final = Pauses(
            session, self._replay, self._checkpoints, self._suspension, patience_s=tools.patience_s
        )
        self._members: Final[dict[str, list[str]]] = {}
        self._effects: Final[set[asyncio.Task[Any]]] = set()
        self._unentered: Final[dict[str, Coroutine[Any, Any, Any]]] = {}
        """What the code has asked for and nobody has begun to await."""
        self._main: asyncio.Task[Any] | None = None
        self._looking_at_log: asyncio.Future[None] | None = None
        session.on_change = self._changed

    @property
    def run(self) -> Run:
        """The run as its last durable event leaves it."""
        return self.session.run

    @property
    def progress(self) -> Progress:
        return self.session.progress

    @property
    def is_cancelled(self) -> bool:
        """Whether somebody has cancelled the run."""
        return self.session.run.status is Status.CANCELLED

    # ── from the first line of the code to the last ──────────────────────────────────────────────────────────────────

    async def go(self, context: Any, args: Sequence[Any]) -> Run:
        """Run the code until the run ends or pauses, and return the run as it is then.

        Raises what refuses to go on (`nondeterministic_replay`, …) once that is in the log. If the caller is cancelled
        the run is not: it is given free, and goes on from its log when it is resumed.
        """
        self._main = asyncio.create_task(self._code(context, args))
        watching = asyncio.create_task(
            watch(
                self.session,
                lease_s=self.tools.lease_s,
                company=self._company,
                is_over=lambda: self._pauses.is_free,
            )
        )
        try:
            await self._until_code_ends(self._main)
            await self._finish(self._main)
        except BaseException:
            await undisturbed(self._abandon())
            raise
        finally:
            watching.cancel()
            await undisturbed(self.session.end())
            for asked in self._unentered.values():
                asked.close()
        return self.run

    async def _until_code_ends(self, main: asyncio.Task[Any]) -> None:
        """Wait until the code has ended, by itself or because it is let on no more.

        What it has asked of the run is unwound then. Where its main line waits for something of its own, an event or a
        queue, nothing else ever comes: once nothing of the run is at work that wait is cancelled, again if need be.
        """
        stopped = asyncio.create_task(self._suspension.come())
        try:
            await asyncio.wait([main, stopped], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
        nap_s = _NAP_S
        for _ in range(_TURNS):
            if main.done():
                return
            await asyncio.sleep(0)
        while not main.done():
            if not self._pauses.is_at_work:
                main.cancel()
                nap_s = min(_MAX_NAP_S, nap_s * 2)
            await asyncio.wait([main], timeout=nap_s)

    async def _code(self, context: Any, args: Sequence[Any]) -> Any:
        # This task may have been begun by a step, a group or a branch of another run.
        self._keys.begin()
        self._askers.begin()
        return await self.workflow(context, *args)

    def stop(self) -> None:
        """Give the run free at the next boundary: what is under way is finished, and nothing new begins."""
        self._pauses.stop()

    def look_at_log(self) -> None:
        """See what others have done to the run, soon."""
        self._looking_at_log = asyncio.ensure_future(self.session.catch_up())

    def _changed(self) -> None:
        """Others have changed the run: whoever waits looks again."""
        if self.is_cancelled or self.session.lost is not None:
            self._suspension.suspend()
            if self._main is not None:
                self._main.cancel()
        else:
            self._pauses.wake_all()

    async def _finish(self, main: asyncio.Task[Any]) -> None:
        """Write how the code ended."""
        error = main.exception() if not main.cancelled() else asyncio.CancelledError()
        self._suspension.suspend()
        await asyncio.sleep(0)  # a task that the code has begun and left behind begins what it was given, and is told
        await self._askers.end()
        for writing in (*self._pauses.tasks, *self._checkpoints.tasks):
            await asyncio.wait([writing])
        await self._let_effects_end()
        if self.is_cancelled or self._pauses.is_free:
            return
        fatal = self._suspension.fatal or self.session.lost
        if fatal is not None:
            await self.refuse(fatal)
        try:
            await self._record_end(error, main)
        except RunConflict:
            if not self.is_cancelled:  # somebody did while the end was being written
                raise

    async def _record_end(self, error: BaseException | None, main: asyncio.Task[Any]) -> None:
        if error is not None:
            await fail(self.session, self.tools, error)
        elif not self._replay.is_over:
            await self.refuse(self._replay.left_out("the end of the workflow"))
        elif never := self._never_awaited():
            await fail(self.session, self.tools, never)
        else:
            handled = committing(self._askers.told())
            await complete(self.session, self.tools, self.workflow.result, main.result(), handled)

    def _never_awaited(self) -> Misuse | None:
        """Return what a workflow is told that has ended without awaiting all that it asked for; None if it did."""
        # What was given to a task that was cancelled before it began is closed by now, and so not meant.
        created = [
            key for key, asked in self._unentered.items() if inspect.getcoroutinestate(asked) == inspect.CORO_CREATED
        ]
        if not created:
            return None
        keys = ", ".join(map(repr, created))
        message = f"the workflow has ended and never awaited {keys}; nothing of that was done"
        return Misuse("never_awaited", message, run_id=self.run.run_id, steps=created)

    async def _let_effects_end(self) -> None:
        """What an effect that is under way comes to is still recorded, though nothing more begins."""
        if self._effects:
            await asyncio.wait(self._effects)
        await self.session.drain()

    async def refuse(self, error: BaseException) -> NoReturn:
        """Say in the log why the run cannot go on here, give it free, and raise that."""
        if isinstance(error, Refused | LogCorrupt) and self.session.lost is None:
            detail = printable(str(error.details.get("detail", error)))

            def make(run: Run) -> Sequence[RunEvent]:
                return refuse_resume(run, error.code, str(error), detail=detail).event, released(run)

            await self.session.append(make)
        raise error

    async def _abandon(self) -> None:
        """Stop everything at once, and give the run free if that can still be said."""
        self._suspension.suspend()
        assert self._main is not None, "what is abandoned has begun"
        tasks = {self._main, *self._pauses.tasks, *self._checkpoints.tasks, *self._effects, *self._askers.tasks}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            retrieve(task)
        await self.session.drain()
        if self.progress.owner == self.session.owner and self.session.lost is None:
            try:
                await self.session.append(lambda run: (released(run),))
            except EventLogError as error:
                logger.warning("run_not_released", run_id=self.run.run_id, code=error.code)

    # ── asking ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def key(self, name: str, key: str | None = None) -> str:
        """Return the key of the next operation of this name: the name itself, then `name#2`, `name#3`, …"""
        _require_outside_of_steps(name)
        return self._keys.next(name) if key is None else self._keys.own(name, key)

    def own_key(self, name: str, key: str) -> str:
        """Return the key of an operation that the program names itself: the same in whichever branch it stands."""
        _require_outside_of_steps(name)
        return self._keys.own(name, key)

    def signal_key(self, name: str) -> str:
        """Return the key of the next wait for this signal."""
        _require_outside_of_steps(name)
        return self._keys.next_signal(name)

    def ask(self, name: str, key: str) -> Asked:
        """Note that the workflow asks for this."""
        self._replay.note(key)
        return Asked(name, key)

    def answer(
        self, operation: Callable[..., Coroutine[Any, Any, Any]], asked: Asked, *args: Any
    ) -> Coroutine[Any, Any, Any]:
        """Await `operation(drive, asked, *args)` in the task that awaits this, as one of the group of that task."""
        answer = self._unentered[asked.key] = self._answer(operation, asked, *args)
        return answer

    async def _answer(self, operation: Callable[..., Coroutine[Any, Any, Any]], asked: Asked, *args: Any) -> Any:
        self._unentered.pop(asked.key, None)
        _require_outside_of_steps(asked.key)
        asker = self._askers.current()
        try:
            await self._pauses.let_pass()
        except Suspended:
            await asyncio.sleep(0)  # code that catches this and asks again in a loop lets others run
            raise
        self._pauses.note_move()
        asked.group = GROUP.get()
        if asked.group is not None:
            self._members.setdefault(asked.group, []).append(asked.key)
        asked.accepts = self._askers.known_to(asker)
        asker.is_asking = True
        try:
            return await operation(self, asked, *args)
        except (Conflict, StoreUnavailable, LogCorrupt, EventTypeUnknown) as error:
            # Not the workflow's to handle: it would go on as if the log said so.
            if self.is_cancelled:
                raise Suspended from None
            raise self.halt(error) from error
        finally:
            asker.is_asking = False

    def gathering(self, tasks: Sequence[asyncio.Future[Any]]) -> AbstractContextManager[None]:
        """Note that this task waits for these, and for nothing else."""
        return self._askers.gathering(tasks)

    # ── before something new, and instead of it ──────────────────────────────────────────────────────────────────────

    async def before_new(self) -> None:
        """Wait until everything that the log holds has been asked for. Then, and only then, something new may happen.

        Raises Suspended if it may not: the run pauses, stops or has diverged.
        """
        await self._replay.end()
        await self._pauses.let_pass()
        while self._pauses.is_stopping:
            await self._pauses.block(None)

    async def require_held(self) -> None:
        """Raise Suspended if another has taken the run over while this process stood still beyond its lease.

        Whatever is appended then is refused in any case. This keeps a process that wakes up from calling once more
        what has been called elsewhere meanwhile.
        """
        if self.session.now_us() > self.progress.deadline_us:
            await self.session.catch_up()
            self._suspension.require_off()

    def require_kind(self, asked: Asked, *kinds: str) -> None:
        """Stop the run if the log has something of none of these `kinds` under this key; the first is asked for."""
        self._replay.require_kind(asked.key, *kinds)

    def diverged(self, asked: str, recorded: str) -> Suspended:
        """Stop the run for good here: `asked` is what the workflow asks for, `recorded` what the log has there."""
        return self._replay.diverged(asked, recorded)

    def halt(self, error: BaseException) -> Suspended:
        """Stop the run here for `error`, which `go` raises, and return what unwinds the code."""
        return self._suspension.halt(error)

    async def value(self, asked: Asked, codec: ValueCodec, stored: Stored) -> Any:
        """Return a value of the log; the run does not pause while it is read. It is stopped if the type is another."""
        with self.working():
            try:
                if stored.is_left_out:
                    return codec.decode(await self.session.text(stored))
                return await self.tools.value(codec, stored)
            except InvalidInput as error:
                raise self.diverged(f"{asked.key!r} as another type ({error})", "a value of its former type") from error

    # ── at work, or waiting ──────────────────────────────────────────────────────────────────────────────────────────

    def working(self) -> Working:
        """Return what keeps the run from pausing, as a context, while something of it is at work."""
        return self._pauses.working

    async def block(self, waiting: Waiting) -> None:
        """Wait until something has come that may be what `waiting` waits for; ask again then. Raises Suspended."""
        await self._pauses.block(waiting)

    async def effect(self, asked: Asked, make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Await an effect, which the end of the code that asked for it does not end: what it comes to is recorded.

        Whatever else it ends with than what refuses it stops the run here: the code would go on behind an effect of
        which nobody knows.
        """
        task = asyncio.create_task(self._at_work(asked, make))
        self._effects.add(task)
        task.add_done_callback(self._effects.discard)
        task.add_done_callback(retrieve)  # nobody may be left who waits for it
        try:
            return await asyncio.shield(task)
        except _KNOWN_ENDS:
            raise
        except BaseException as error:
            end = error if task.done() and task.cancelled() else task.exception() if task.done() else None
            if end is None or isinstance(end, _KNOWN_ENDS):
                raise  # who waits is cancelled, and the effect is not
            raise self.halt(end) from end

    async def _at_work(self, asked: Asked, make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        STEP.set(asked.key)  # of this task alone: an action may ask its own run for as little as a step may
        with self.working():
            return await make()

    # ── going on behind failures, and committing groups ──────────────────────────────────────────────────────────────

    def deliver(self, asked: Asked) -> None:
        """Note that the workflow is told that this failed: what it asks next it asks knowing that."""
        if asked.key not in self.progress.committed:
            self._askers.tell((asked.key,))

    async def accept(self, asked: Asked) -> None:
        """Commit the failures that the workflow has handled, since it goes on behind them."""
        if asked.accepts and any(key not in self.progress.committed for key in asked.accepts):
            await self._checkpoints.save(committed=asked.accepts)
            self._askers.forget(asked.accepts)

    async def end_group(self, group: str, *, has_failed: bool) -> None:
        """Commit what a group came to, or, if one of it failed, leave that to what the workflow does next."""
        keys = [key for key in self._members.get(group, ()) if key not in self.progress.committed]
        if has_failed:
            self._askers.tell(keys)
        elif keys and not self._suspension.is_on:
            await self._checkpoints.save(committed=tuple(keys))


def _require_outside_of_steps(asked: str) -> None:
    """Raise Misuse in the function of a step, or in an action: a replay does not call it, and would miss the rest."""
    if STEP.get() is not None:
        message = f"the step {STEP.get()!r} asks its own run for {asked!r}; only the workflow itself may"
        raise Misuse("nested_step", message, step=asked)
