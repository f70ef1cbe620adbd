"""A step: a function that is called until it has returned once, and whose output comes from the log ever after."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, Final

import msgspec

from eventlog.errors import InvalidInput, StepFailed
from eventlog.events import Failure, StepCompleted, StepStarted, Waiting
from eventlog.events import StepFailed as StepFailedEvent
from eventlog.progress import Step
from eventlog.runtime.drive import STEP, Asked, Drive
from eventlog.runtime.foreign import Interruptions
from eventlog.runtime.retries import Retry
from eventlog.runtime.tools import failure_of
from eventlog.values import ValueCodec, codec_of, digest_of

__all__ = ["record_value", "run_step", "step_failed"]

_MICRO: Final = 1_000_000


class _Call:
    """What a step calls, and how often."""

    __slots__ = ("args", "codec", "function", "input", "retry", "timeout_s")

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], retry: Retry | None, timeout_s: float | None
    ) -> None:
        self.function: Final = function
        self.args: Final = args
        self.retry: Final = retry
        self.timeout_s: Final = timeout_s
        self.codec: Final[ValueCodec] = codec_of(function)
        self.input: Final = digest_of(args) if args else None

    async def make(self, key: str) -> Any:
        token = STEP.set(key)
        try:
            if self.timeout_s is None:
                value = self.function(*self.args)
                return await value if inspect.isawaitable(value) else value
            async with asyncio.timeout(self.timeout_s):
                value = self.function(*self.args)
                return await value if inspect.isawaitable(value) else value
        finally:
            STEP.reset(token)


async def run_step(
    drive: Drive,
    asked: Asked,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    retry: Retry | None,
    timeout_s: float | None,
) -> Any:
    """Return the output of the step: from the log, or from the first call that returns.

    Raises StepFailed when it may not be tried again, the same on every replay.
    """
    drive.require_kind(asked, "step")
    call = _Call(function, args, retry, timeout_s)
    known = drive.progress.steps.get(asked.key)
    if known is not None:
        _require_same(drive, asked, known, call.input)
        if known.is_done:
            return await drive.value(asked, call.codec, known.value)
        if asked.key in drive.progress.failures:
            raise _told(drive, asked)
    await drive.before_new()
    with drive.working():
        await drive.accept(asked)
    while True:
        await _wait_for_turn(drive, asked)
        with drive.working():
            outcome = await _attempt(drive, asked, call)
        if outcome is not None:
            return outcome[0]
        if asked.key in drive.progress.failures:
            raise _told(drive, asked)


async def record_value(drive: Drive, asked: Asked, codec: ValueCodec, make: Callable[[], Any]) -> Any:
    """Return what the world gave once, `make()`, from the log if it is there."""
    drive.require_kind(asked, "value")
    known = drive.progress.steps.get(asked.key)
    if known is not None:
        return await drive.value(asked, codec, known.value)
    await drive.before_new()
    with drive.working():
        await drive.accept(asked)
        json, value = codec.round_trip(make())
        output = msgspec.Raw(json)
        await drive.session.add(
            StepCompleted(name=asked.name, key=asked.key, kind="value", output=output, group=asked.group)
        )
    return value


def step_failed(drive: Drive, asked: Asked, failure: Failure) -> StepFailed:
    """Return the error by which the workflow is told of a step, or of a run that it started."""
    step = drive.progress.steps.get(asked.key)
    details = failure.details if isinstance(failure.details, dict) else {}
    return StepFailed(
        f"{asked.key!r} of run {drive.run.run_id!r} failed: {_said(failure)}",
        step=asked.key,
        error_type=failure.type,
        attempts=step.attempts if step is not None else 1,
        traceback=failure.traceback,
        run_id=drive.run.run_id,
        reason=failure.message,
        **{name: value for name, value in details.items() if name in ("code", "path")},
    )


def _said(failure: Failure) -> str:
    return failure.message if failure.type is None else f"{failure.type}: {failure.message}"


def _told(drive: Drive, asked: Asked) -> StepFailed:
    drive.deliver(asked)
    return step_failed(drive, asked, drive.progress.failures[asked.key])


def _require_same(drive: Drive, asked: Asked, known: Step, digest: str | None) -> None:
    """Stop the run if the log has another step under this key than the workflow asks for."""
    if known.name != asked.name:
        raise drive.diverged(f"the step {asked.key!r}", f"a step {known.name!r}")
    if digest is not None and known.input is not None and digest != known.input:
        raise drive.diverged(
            f"the step {asked.key!r} with other arguments (digest {digest})", f"digest {known.input} there"
        )


async def _wait_for_turn(drive: Drive, asked: Asked) -> None:
    """Wait until the next attempt is due. Raises Suspended if that is far off."""
    while True:
        known = drive.progress.steps.get(asked.key)
        due_us = known.retry_at_us if known is not None else None
        if due_us is None or drive.session.now_us() >= due_us:
            return
        await drive.block(Waiting(type="retry", node_id=asked.key, due_us=due_us))


async def _attempt(drive: Drive, asked: Asked, call: _Call) -> tuple[Any] | None:
    """Make one attempt, and return what it returned; None if it failed and that is in the log."""
    known = drive.progress.steps.get(asked.key)
    attempt = 1 if known is None else known.attempts + 1
    counted = attempt if known is None else attempt - known.forgotten
    if call.retry is not None:
        if counted > call.retry.attempts:
            died = Failure(code="step_failed", message=f"attempt {attempt - 1} ended with its process")
            await _record_failure(drive, asked, call, attempt - 1, died, None)
            return None
        await drive.session.add(StepStarted(name=asked.name, key=asked.key, attempt=attempt))
    await drive.require_held()
    interruptions = Interruptions()
    try:
        value = await call.make(asked.key)
        json, value = drive.tools.encoded_and_read(call.codec, value)
        await drive.tools.require_room(json, drive.run.run_id)
    except BaseException as error:
        if interruptions.include(error):
            raise  # the step itself is cancelled; otherwise something that its function waited for was
        delay_s = _delay_s(call.retry, error, counted)
        failure = failure_of(error, "step_failed", keeps_traceback=drive.tools.keeps_tracebacks)
        due_us = None if delay_s is None else drive.session.now_us() + round(delay_s * _MICRO)
        await _record_failure(drive, asked, call, attempt, failure, due_us)
        return None
    try:
        stored = await drive.tools.keep(json, drive.run.run_id)  # a store that cannot keep it is no failure of the step
        completed = StepCompleted(
            name=asked.name,
            key=asked.key,
            output=stored.json,
            artifact=stored.artifact,
            attempt=attempt,
            input=call.input,
            group=asked.group,
        )
        await drive.session.add_result(completed)
    except InvalidInput as error:  # a secret in it: the step was done, and is not done again to find the same
        failure = failure_of(error, "step_failed", keeps_traceback=drive.tools.keeps_tracebacks)
        await _record_failure(drive, asked, call, attempt, failure, None)
        return None
    return (value,)


def _delay_s(retry: Retry | None, error: BaseException, attempt: int) -> float | None:
    """Return after how many seconds the step is tried again; None if it is not."""
    if retry is None or isinstance(error, InvalidInput) or not retry.allows(error, attempt):
        return None
    return retry.delay_s(attempt)


async def _record_failure(
    drive: Drive, asked: Asked, call: _Call, attempt: int, failure: Failure, due_us: int | None
) -> None:
    await drive.session.add_result(
        StepFailedEvent(
            name=asked.name,
            key=asked.key,
            attempt=attempt,
            error=failure,
            is_final=due_us is None,
            retry_at_us=due_us,
            input=call.input,
            group=asked.group,
        )
    )
