"""How a workflow run ends: with what its code returned or raised; the run that waits for it is told as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from eventlog.errors import ActionFailed, EventLogError, InvalidInput, StepFailed
from eventlog.events import (
    ChildFinished,
    Failure,
    RunCancelled,
    RunCompleted,
    RunEvent,
    RunFailed,
    Status,
    run_stream,
)
from eventlog.log import Append, Expect, NewEvent
from eventlog.progress import Progress
from eventlog.run import Run
from eventlog.runtime.session import Session
from eventlog.runtime.tools import Tools, failure_of
from eventlog.values import ValueCodec

__all__ = ["complete", "fail", "notices"]

_STATUS_OF: Final = {"approval_rejected": Status.REJECTED, "approval_expired": Status.EXPIRED}


async def complete(
    session: Session, tools: Tools, codec: ValueCodec, value: Any, accepting: Callable[[Run], tuple[RunEvent, ...]]
) -> None:
    """Record what the workflow returned. What cannot be stored exactly fails the run, and so does what cannot be read.

    A secret in it is no value that can be stored.

    Raises StoreUnavailable where the store cannot keep it now: that is nothing that the workflow has done.
    """
    try:
        json = tools.encoded(codec, value)
        await tools.require_room(json, session.run.run_id)
    except Exception as error:  # a value may have code of its own, which raises anything
        await fail(session, tools, error)
        return
    try:
        stored = await tools.keep(json, session.run.run_id)
        ended = RunCompleted(result=stored.json, artifact=stored.artifact)
        await session.append(lambda run: (*accepting(run), ended), beside=notices)
    except InvalidInput as error:  # a secret in it
        await fail(session, tools, error)


async def fail(session: Session, tools: Tools, error: BaseException) -> None:
    """Record what the workflow raised and did not handle. The failures behind it are tried again if it is resumed.

    Raises what ends the whole program, for that is no end of the run. Any other exception is the workflow's, also one
    of those that no `except Exception` catches: the run would only come to it again.
    """
    if isinstance(error, SystemExit | KeyboardInterrupt):
        raise error
    failure = _failure(error, keeps_traceback=tools.keeps_tracebacks)
    ended = RunFailed(error=failure, status=_STATUS_OF.get(failure.code, Status.FAILED))
    await session.append(lambda _: (ended,), beside=notices)


def notices(run: Run, events: Sequence[NewEvent]) -> list[Append]:
    """Return what the end of a run, the last of `events`, tells the run that started it."""
    progress: Progress | None = run.progress
    parent = progress.parent if progress is not None else None
    if parent is None:
        return []
    finished = _finished(run, parent.step, events[-1].data)
    event = NewEvent("child_finished", finished, causation_id=events[-1].event_id)
    return [Append(run_stream(parent.run_id), [event], Expect.exists())]


def _finished(run: Run, step: str, ended: RunEvent) -> ChildFinished:
    match ended:
        case RunCompleted(result=result, artifact=artifact):
            return ChildFinished(
                key=step, child_run_id=run.run_id, status=Status.COMPLETED, result=result, artifact=artifact
            )
        case RunFailed(error=error, status=status):
            return ChildFinished(key=step, child_run_id=run.run_id, status=status, error=error)
        case _:
            assert isinstance(ended, RunCancelled), "a run has three ends"
            why = f"the run {run.run_id!r} was cancelled" + (f": {ended.reason}" if ended.reason else "")
            error = Failure(code="run_cancelled", message=why)
            return ChildFinished(key=step, child_run_id=run.run_id, status=Status.CANCELLED, error=error)


def _failure(error: BaseException, *, keeps_traceback: bool) -> Failure:
    """Return how the run's own end is told: an error of the engine by its code, any other as the workflow's."""
    first = _first(error)
    if isinstance(first, StepFailed):
        return Failure(
            code=first.code,
            message=str(first),
            details={"step": first.step, "attempts": first.attempts},
            type=first.error_type,
            traceback=first.traceback,
        )
    code = first.code if isinstance(first, EventLogError) and not isinstance(first, ActionFailed) else None
    if isinstance(first, ActionFailed):
        code = "action_failed"
    return failure_of(first, code or "workflow_failed", keeps_traceback=keeps_traceback)


def _first(error: BaseException) -> BaseException:
    """Return the first error of a group, as a TaskGroup raises them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
