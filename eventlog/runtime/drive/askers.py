"""The tasks of the code that ask for something, what each of them waits for, and which failures it goes on behind.

A task that is told of a failure and asks for something else has handled it. So has one that saw a task of its own end
that was told; a task beside it, which knows nothing of the failure, has not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from eventlog.runtime.drive.suspension import Suspension

__all__ = ["GROUP", "STEP", "Asked", "Asker", "Askers", "retrieve"]


class Asked:
    """One operation that the workflow asked for: its key, its group, and the failures that it goes on behind."""

    __slots__ = ("accepts", "group", "key", "late", "name")

    def __init__(self, name: str, key: str) -> None:
        self.name: Final = name
        self.key: Final = key
        self.group: str | None = None
        self.accepts: tuple[str, ...] = ()
        self.late = 0
        """How many attempts at its effect have used up their lease before they could act."""


GROUP: Final[ContextVar[str | None]] = ContextVar("eventlog_group", default=None)
"""The group that the operations of this task belong to."""

STEP: Final[ContextVar[str | None]] = ContextVar("eventlog_step", default=None)
"""The step whose function is being called in this task."""


class Asker:
    """A task of the code that has asked for something, and the asker that has begun it."""

    __slots__ = ("begun_by", "gathers", "is_asking", "task")

    def __init__(self, task: asyncio.Task[Any], begun_by: Asker | None) -> None:
        self.task: Final = task
        self.begun_by: Final = begun_by
        self.is_asking = False
        self.gathers: Sequence[asyncio.Future[Any]] = ()
        """What it waits for together, if it does."""

    def has_heard(self, told: Asker | None) -> bool:
        """Say whether this goes on behind what `told` was told: it is the same, or began it and has seen it end."""
        while told is not self:
            if told is None or not told.task.done():
                return False
            told = told.begun_by
        return True


_ASKER: Final[ContextVar[Asker | None]] = ContextVar("eventlog_asker", default=None)
"""The asker that this task is, or that has begun it."""


class Askers:
    """The askers of one drive."""

    def __init__(self, suspension: Suspension) -> None:
        self._suspension: Final = suspension
        self._by_task: Final[dict[asyncio.Task[Any], Asker]] = {}
        self._told: Final[dict[Asker, dict[str, None]]] = {}
        self._main: asyncio.Task[Any] | None = None

    @property
    def tasks(self) -> list[asyncio.Task[Any]]:
        """The tasks that have asked for something and have not ended."""
        return list(self._by_task)

    def begin(self) -> None:
        """Take the current task for the code itself, which nothing of another run has begun."""
        GROUP.set(None)
        STEP.set(None)
        _ASKER.set(None)
        self._main = self.current().task

    def current(self) -> Asker:
        """Return what is known of the task that asks."""
        task = asyncio.current_task()
        assert task is not None, "the code runs in tasks"
        asker = self._by_task.get(task)
        if asker is None:
            asker = self._by_task[task] = Asker(task, _ASKER.get())
            _ASKER.set(asker)
            task.add_done_callback(self._ended)
        return asker

    def _ended(self, task: asyncio.Task[Any]) -> None:
        del self._by_task[task]
        if self._suspension.is_on and task is not self._main:
            retrieve(task)  # how it ended, with the run stopped, says nothing

    async def end(self) -> None:
        """End the tasks that the code has left behind: what they ask for belongs to a run that has stopped."""
        tasks = [task for task in self._by_task if not task.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # ── what they wait for ───────────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def gathering(self, tasks: Sequence[asyncio.Future[Any]]) -> Iterator[None]:
        """Note that this task waits for these, and for nothing else."""
        asker = self.current()
        outer, asker.gathers = asker.gathers, tasks
        try:
            yield
        finally:
            asker.gathers = outer

    def are_all_asking(self) -> bool:
        """Say whether the code, as far as it can be seen, waits for nothing but what it has asked."""
        return all(self._is_asking(task) for task in self.tasks)

    def _is_asking(self, task: asyncio.Future[Any]) -> bool:
        asker = self._by_task.get(task)  # type: ignore[call-overload]
        if asker is None:
            return task.done()
        return asker.is_asking or (bool(asker.gathers) and all(map(self._is_asking, asker.gathers)))

    # ── what they were told ──────────────────────────────────────────────────────────────────────────────────────────

    def tell(self, keys: Iterable[str]) -> None:
        """Note that this task is told that these failed: what it asks next it asks knowing that."""
        self._told.setdefault(self.current(), {}).update(dict.fromkeys(keys))

    def known_to(self, asker: Asker) -> tuple[str, ...]:
        """Return the failures that this task goes on behind: told to it, or to one that it began and that has ended."""
        if not self._told:
            return ()
        heard = (keys for told, keys in self._told.items() if asker.has_heard(told))
        return tuple(dict.fromkeys(key for keys in heard for key in keys))

    def told(self) -> tuple[str, ...]:
        """Return every failure that anybody was told of and that is not forgotten."""
        return tuple({key: None for keys in self._told.values() for key in keys})

    def forget(self, keys: Iterable[str]) -> None:
        """Forget these failures: they are committed."""
        for key in keys:
            for told in self._told.values():
                told.pop(key, None)


def retrieve(task: asyncio.Task[Any]) -> None:
    """Take note of how a task ended, so that the loop does not say that nobody did."""
    if task.done() and not task.cancelled():
        task.exception()
