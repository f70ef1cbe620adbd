"""An action made of an async function: `@eventlog.action(…)`."""

from __future__ import annotations

import inspect as python_inspect
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final, TypeVar

import msgspec

from eventlog.errors import ActionFailed, InvalidInput
from eventlog.plain import check_id
from eventlog.runtime.actions.secrets import Revealed, Secrets
from eventlog.runtime.attempts import described
from eventlog.runtime.definitions import fingerprint_of
from eventlog.runtime.effects import (
    Absent,
    Call,
    Conflicted,
    Executed,
    Finding,
    Inconclusive,
    Promise,
    Recovered,
    Report,
)
from eventlog.runtime.foreign import Interruptions

__all__ = ["FunctionAction", "action"]

Perform = Callable[[Call], Awaitable[Any]]
Check = Callable[[Call], None]
Inspect = Callable[[Call], Awaitable[Finding]]

T = TypeVar("T")


class FunctionAction:
    """An action whose effect is one call of an async function.

    What the function returns is stored as the result, unless it is a report (`Executed`, `Recovered`, `Conflicted`).
    It raises `ActionFailed` only if it can prove that nothing happened.

    With `secrets` the function, and `inspect`, get arguments in which each `secret_ref` is replaced by its value; that
    is taken out of whatever they return or raise. `check` is not given any value. Without, references stay as they are.
    """

    def __init__(
        self,
        function: Perform,
        *,
        name: str,
        promise: Promise,
        check: Check | None = None,
        key_lifetime_s: float | None = None,
        request_life_s: float = 0.0,
        compensation: str | None = None,
        secrets: Secrets | None = None,
    ) -> None:
        self.name: Final = check_id(name, "action", max_bytes=128)
        self.promise: Final = promise
        self.key_lifetime_s: Final = key_lifetime_s
        self.request_life_s: Final = request_life_s
        self.compensation: Final = compensation
        self._function: Final = function
        self._check: Final = check
        self._secrets: Final = secrets
        self.__doc__ = function.__doc__

    @property
    def definition(self) -> dict[str, str | None]:
        """The code of the functions that it is made of, as digests."""
        made_of = {"function": self._function, "check": self._check, "inspect": getattr(self, "_inspect", None)}
        return {name: fingerprint_of(function) for name, function in made_of.items() if function is not None}

    def check(self, call: Call) -> None:
        """Refuse what the given check refuses, and secrets that are not known or not the ones that were meant."""
        self._revealed(call)
        if self._check is None:
            return
        answer: object = self._check(call)
        if answer is not None:
            why = f"`check` returned a {type(answer).__name__}, and not None: to refuse it raises ActionFailed"
            raise ActionFailed("action_failed", why)

    async def execute(self, call: Call) -> Report:
        """Call the function. Raises TypeError, which is an unknown outcome, if it returns what only `inspect` may."""
        result = await self._called(self._function, call)
        if isinstance(result, Absent | Inconclusive):
            raise TypeError(f"the function returned {type(result).__name__}, which only `inspect` may")
        if isinstance(result, BaseException):
            raise TypeError(f"the function returned a {type(result).__name__}, which is to be raised")
        return result if isinstance(result, Executed | Recovered | Conflicted) else Executed(result=result)

    async def __call__(self, call: Call) -> Any:
        """Call the function itself, without any log: for its own tests."""
        return await self._function(call)

    async def _called(self, function: Callable[[Call], Awaitable[Any]], call: Call) -> Any:
        """Return what the function returns for the call with its secrets, or raise what it raises, without them."""
        if self._secrets is None:
            return await function(call)
        revealed, with_secrets = self._revealed(call)
        interruptions = Interruptions()
        try:
            return _taken_out(revealed, await function(with_secrets))
        except BaseException as error:
            if interruptions.include(error):
                raise
            told = _told(revealed, error)
        # Behind the handler, so that an error that shows a secret is no part of the one that is told.
        raise told

    def _revealed(self, call: Call) -> tuple[Revealed, Call]:
        revealed = Revealed(self._secrets)
        return revealed, call if self._secrets is None else replace(call, args=revealed.put_in(call.args))


class _InspectableFunctionAction(FunctionAction):
    """A function action whose receiver can be asked."""

    def __init__(self, function: Perform, inspect: Inspect, **rest: Any) -> None:
        super().__init__(function, **rest)
        self._inspect: Final = inspect

    async def inspect(self, call: Call) -> Finding:
        """Ask the receiver."""
        finding: Finding = await self._called(self._inspect, call)
        return finding


def action(
    name: str | None = None,
    *,
    promise: Promise | str | None = None,
    check: Check | None = None,
    inspect: Inspect | None = None,
    key_lifetime_s: float | None = None,
    request_life_s: float = 0.0,
    compensation: str | None = None,
    secrets: Secrets | None = None,
) -> Callable[[Perform], FunctionAction]:
    """Turn an async function of one `Call` into an action, called as the function if no name is given.

    The event loop must not wait for a function that blocks: it calls blocking code by
    `eventlog.runtime.actions.threads.run_to_the_end`, which ends only when the work has ended, cancelled or not.

        @eventlog.action()
        async def book(call: Call) -> str:
            return await run_to_the_end(lambda: session.post(url, json=call.args).text)

    A function that has ended, by an error or by being cancelled too, must have left nothing running that may still
    perform the effect: no thread, no task, no process. Behind its end others see that nobody is at work, ask the
    receiver, hear "no" and do it again. So never `asyncio.to_thread`, nor `run_in_executor` alone: cancelled, they
    return at once, and their thread goes on.

    Without a promise it is checkable if `inspect` is given, and else opaque, which is always true. The other arguments
    are the members of `Action` with these names; for `secrets` see `FunctionAction`.

    Raises InvalidInput(`invalid_argument`) for an unknown promise, one that a function cannot keep (checkable without
    `inspect`), an async `check`, and a function that is not async.
    """
    if name is not None and not isinstance(name, str):
        raise InvalidInput("invalid_argument", "write `@eventlog.action()`, with parentheses")
    kept = _kept_promise(promise, inspect)
    if python_inspect.iscoroutinefunction(check):
        raise InvalidInput("invalid_argument", "`check=` waits for nothing: it is no async function")

    def decorate(function: Perform) -> FunctionAction:
        if not python_inspect.iscoroutinefunction(function):
            raise InvalidInput("invalid_argument", f"the action {function!r:.80} is not an async function")
        rest: dict[str, Any] = {
            "name": name if name is not None else function.__name__,
            "promise": kept,
            "check": check,
            "key_lifetime_s": key_lifetime_s,
            "request_life_s": request_life_s,
            "compensation": compensation,
            "secrets": secrets,
        }
        return (
            FunctionAction(function, **rest)
            if inspect is None
            else _InspectableFunctionAction(function, inspect, **rest)
        )

    return decorate


def _taken_out(revealed: Revealed, result: Any) -> Any:
    """Return what a function returned, a report too, without any secret."""
    if isinstance(result, Executed | Recovered | Conflicted | Inconclusive):
        fields = {name: revealed.take_out_of(getattr(result, name)) for name in result.__struct_fields__}
        return msgspec.structs.replace(result, **fields)
    return revealed.take_out_of(result)


def _told(revealed: Revealed, error: BaseException) -> BaseException:
    """Return the error, or one without the secret that its text shows."""
    if isinstance(error, ActionFailed):
        details = {name: revealed.take_out_of(value) for name, value in error.details.items()}
        text = revealed.take_out_of_text(str(error))
        if text == str(error) and details == error.details:
            return error
        code = revealed.take_out_of_text(str(error.code))
        return ActionFailed(code, text, is_final=error.is_final, covers_earlier=error.covers_earlier, **details)
    said = described(error)
    text = revealed.take_out_of_text(said)
    return error if text == said else RuntimeError(text)


def _kept_promise(promise: Promise | str | None, inspect: Inspect | None) -> Promise:
    """Return the promise, or the one that follows from `inspect`. Raises InvalidInput for one that cannot be kept."""
    if promise is None:
        return Promise.OPAQUE if inspect is None else Promise.CHECKABLE
    try:
        kept = Promise(promise)
    except ValueError:
        raise InvalidInput(
            "invalid_argument", f"a promise is one of {', '.join(Promise)}, not {promise!r:.80}"
        ) from None
    if kept is Promise.TRANSACTIONAL:
        raise InvalidInput("invalid_argument", "a transactional action has a `write` method: make it a class")
    if kept is Promise.CHECKABLE and inspect is None:
        raise InvalidInput(
            "invalid_argument", "a checkable function needs `inspect=`; if it finds out itself, make it a class"
        )
    if kept is Promise.OPAQUE and inspect is not None:
        raise InvalidInput("invalid_argument", "an opaque action is never asked: with `inspect=` it is checkable")
    return kept
