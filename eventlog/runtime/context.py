"""What a workflow is given: everything it may ask of its run. Each answer is recorded before it is seen."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar, overload

from eventlog.errors import InvalidInput
from eventlog.plain import check_id
from eventlog.runtime.arguments import check_if_given
from eventlog.runtime.definitions import Workflow
from eventlog.runtime.drive import BRANCH, GROUP, Branch, Drive, Suspended
from eventlog.runtime.operations.acts import act
from eventlog.runtime.operations.children import hand_off, run_child
from eventlog.runtime.operations.steps import record_value, run_step
from eventlog.runtime.operations.waits import as_us, checked_seconds, sleep_until, wait_for_signal
from eventlog.runtime.retries import Retry
from eventlog.stores.entropy import random_bytes, random_float
from eventlog.values import codec_for

__all__ = ["RunContext"]

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class RunContext:
    """The run, as its workflow sees it. Made by the runner; of no use once the workflow has returned.

    Whatever may differ between two executions of the code has to come from here: the world through `step`, effects
    through `act`, people and time through `wait_for_signal` and `sleep`, the clock and chance through `now`, `random`
    and `uuid`. An operation is known by its name, and from its second use in program order as `name#2`. What a
    coroutine asks for inside a `gather` is counted for it alone (`gather#1.2/name` in the second of the first), as is
    what a task of your own asks for, in the order in which such tasks first do. Give a `key` where that may differ.
    """

    def __init__(self, drive: Drive) -> None:
        self._drive: Final = drive

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self._drive.run.run_id

    @property
    def root_run_id(self) -> str:
        """The id of the run in which the family of this one began."""
        return self._drive.run.root_run_id or self.run_id

    @property
    def cancelled(self) -> bool:
        """Whether somebody has cancelled the run; whatever is asked for next unwinds the code."""
        return self._drive.is_cancelled

    @overload
    def step(
        self,
        name: str,
        function: Callable[..., Awaitable[T]],
        *args: Any,
        key: str | None = None,
        retry: Retry | None = None,
        timeout_s: float | None = None,
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def step(
        self,
        name: str,
        function: Callable[..., T],
        *args: Any,
        key: str | None = None,
        retry: Retry | None = None,
        timeout_s: float | None = None,
    ) -> Coroutine[Any, Any, T]: ...
    def step(
        self,
        name: str,
        function: Callable[..., Any],
        *args: Any,
        key: str | None = None,
        retry: Retry | None = None,
        timeout_s: float | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Call `function(*args)` until it has returned once; its output is *durable* before anyone sees it.

        After a crash it may be called again if it had not returned: what changes the world belongs into `act`. A plain
        function is called on the loop itself, and must not block it. The output is stored as the function's annotation
        says, exactly or not at all; one of more than 64 KiB beside the log. `timeout_s` is for one attempt. Raises
        StepFailed when it may not be tried again.
        """
        if not callable(function):
            raise InvalidInput(
                "invalid_argument", f"the step {name!r:.80} needs a function to call, not {function!r:.80}"
            )
        if timeout_s is not None:
            checked_seconds("timeout_s", timeout_s)
        check_if_given(retry=retry)
        own = self._drive.key(name, key)
        return self._ask(run_step, name, own, function, args, retry, timeout_s)

    def act(
        self, action: str, args: dict[str, Any], *, output: str, key: str | None = None
    ) -> Coroutine[Any, Any, Any]:
        """Do what `action` does, once a person (or its policy) has approved exactly this; return its result.

        The run pauses here until then. Raises ApprovalRejected, ApprovalExpired, ActionFailed and ActionConflict for
        the workflow to handle; not handled, they end the run.
        """
        own = self._drive.key(action, key)
        return self._ask(act, action, own, action, args, output)

    def wait_for_signal(
        self, name: str, *, timeout_s: float | None = None, type: Any = Any, key: str | None = None
    ) -> Coroutine[Any, Any, Any]:
        """Return the payload of the next signal of this name, as a `type`: they are taken in the order of their coming.

        One that came earlier waits to be taken. Raises WaitTimedOut after `timeout_s` seconds.
        """
        if timeout_s is not None:
            checked_seconds("timeout_s", timeout_s)
        own = self._drive.signal_key(name) if key is None else self._drive.own_key(name, key)
        return self._ask(wait_for_signal, name, own, name, type, timeout_s)

    def sleep(self, seconds: float, *, key: str | None = None) -> Coroutine[Any, Any, None]:
        """Wait so many seconds from when this was reached first, whatever processes end meanwhile."""
        seconds = checked_seconds("seconds", seconds)
        own = self._drive.key("sleep", key)
        return self._ask(sleep_until, "sleep", own, seconds, None)

    def sleep_until(self, when: datetime, *, key: str | None = None) -> Coroutine[Any, Any, None]:
        """Wait until `when`, a datetime with a zone."""
        due_us = as_us(when)
        own = self._drive.key("sleep", key)
        return self._ask(sleep_until, "sleep", own, None, due_us)

    def now(self, *, key: str | None = None) -> Coroutine[Any, Any, datetime]:
        """Return the time in UTC as it was when this was asked first."""
        return self._value("now", key, datetime, lambda: _EPOCH + timedelta(microseconds=self._drive.session.now_us()))

    def random(self, *, key: str | None = None) -> Coroutine[Any, Any, float]:
        """Return a number from 0 up to 1, the same on every replay."""
        return self._value("random", key, float, random_float)

    def uuid(self, *, key: str | None = None) -> Coroutine[Any, Any, uuid.UUID]:
        """Return a random UUID (version 4), the same on every replay."""
        return self._value("uuid", key, uuid.UUID, lambda: uuid.UUID(bytes=random_bytes(16), version=4))

    def child(
        self, workflow: Workflow, *args: Any, run_id: str | None = None, key: str | None = None
    ) -> Coroutine[Any, Any, Any]:
        """Start another run and return what it returns. Its requests are its own: nobody's approval of one is shared.

        Its id is `<run id>/<key>` unless `run_id` says another. Raises StepFailed if it ends otherwise.
        """
        own = self._drive.key(_named(workflow), key)
        return self._ask(run_child, workflow.name, own, workflow, args, run_id)

    def hand_off(
        self, workflow: Workflow, *args: Any, run_id: str | None = None, key: str | None = None
    ) -> Coroutine[Any, Any, str]:
        """Start another run that takes the work over, and return its id without waiting for it."""
        own = self._drive.key(_named(workflow), key)
        return self._ask(hand_off, workflow.name, own, workflow, args, run_id)

    @overload
    async def gather(self, first: Awaitable[A], /) -> tuple[A]: ...
    @overload
    async def gather(self, first: Awaitable[A], second: Awaitable[B], /) -> tuple[A, B]: ...
    @overload
    async def gather(self, first: Awaitable[A], second: Awaitable[B], third: Awaitable[C], /) -> tuple[A, B, C]: ...
    @overload
    async def gather(self, *operations: Awaitable[Any]) -> tuple[Any, ...]: ...
    async def gather(self, *operations: Awaitable[Any]) -> tuple[Any, ...]:
        """Do these at the same time, and return what they came to, in their order, committed as one.

        What has finished is *durable* at once: the failure, the pause or the crash of another does not take it back,
        and it is not done again. Every one is let come to its end; then the first failure is raised.
        """
        drive = self._drive
        group = drive.key("gather")
        tasks = [_task(operation, group, place) for place, operation in enumerate(operations, start=1)]
        try:
            if tasks:
                with drive.gathering(tasks):
                    await asyncio.wait(tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        errors = [task.exception() if not task.cancelled() else asyncio.CancelledError() for task in tasks]
        for error in errors:
            if isinstance(error, Suspended):
                raise error
        failed = [error for error in errors if error is not None]
        with drive.working():
            await drive.end_group(group, has_failed=bool(failed))
        if failed:
            raise failed[0]
        return tuple(task.result() for task in tasks)

    def _value(self, name: str, key: str | None, kind: Any, make: Callable[[], Any]) -> Coroutine[Any, Any, Any]:
        return self._ask(record_value, name, self._drive.key(name, key), codec_for(kind), make)

    def _ask(
        self, operation: Callable[..., Coroutine[Any, Any, Any]], name: str, key: str, *args: Any
    ) -> Coroutine[Any, Any, Any]:
        return self._drive.answer(operation, self._drive.ask(name, key), *args)


def _task(operation: Awaitable[Any], group: str, place: int) -> asyncio.Future[Any]:
    """Begin one of a group: what it asks for by itself is its own, whichever of the others come first."""
    is_numbered = "#" in group.rpartition("/")[2]
    context = copy_context()
    context.run(GROUP.set, group)
    context.run(BRANCH.set, Branch(f"{group if is_numbered else group + '#1'}.{place}/"))
    return context.run(asyncio.ensure_future, operation)


def _named(workflow: object) -> str:
    if not isinstance(workflow, Workflow):
        raise InvalidInput("invalid_argument", f"a child follows a workflow made by @workflow, not {workflow!r:.80}")
    return check_id(workflow.name, "workflow", max_bytes=128)
