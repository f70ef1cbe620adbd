"""Waiting for a signal or a time: nothing runs meanwhile, and no process is needed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from eventlog.errors import InvalidInput, WaitTimedOut
from eventlog.events import SignalRejected, StepCompleted, TimerFired, TimerSet, Waiting
from eventlog.progress import Stored, Timer
from eventlog.runtime.drive import Asked, Drive
from eventlog.runtime.run_streams import printable
from eventlog.values import ValueCodec, codec_for

__all__ = ["as_us", "sleep_until", "wait_for_signal"]

_MICRO: Final = 1_000_000
_MAX_SLEEP_S: Final = 100 * 366 * 24 * 3600


def as_us(when: object) -> int:
    """Return a time with a zone as microseconds UTC. Raises InvalidInput(`invalid_argument`) for one without."""
    if not isinstance(when, datetime) or when.tzinfo is None:
        raise InvalidInput("invalid_argument", f"a time is a datetime with a zone, not {when!r:.80}")
    since = when - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * _MICRO + since.microseconds


def checked_seconds(name: str, value: object) -> float:
    """Return `value` if it is a number of seconds. Raises InvalidInput(`invalid_argument`)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MAX_SLEEP_S:
        raise InvalidInput("invalid_argument", f"`{name}` is a number of seconds from 0, not {value!r:.80}")
    return value


async def sleep_until(drive: Drive, asked: Asked, seconds: float | None, due_us: int | None) -> None:
    """Return once it is time: `due_us`, or so many seconds from when that was asked first."""
    drive.require_kind(asked, "timer")
    timer = await _timer(drive, asked, seconds=seconds, due_us=due_us)
    while not timer.has_fired:
        if drive.session.now_us() >= timer.due_us:
            await drive.before_new()
            with drive.working():
                await drive.session.add(TimerFired(key=asked.key))
        else:
            await drive.block(Waiting(type="timer", node_id=asked.key, due_us=timer.due_us))
        timer = drive.progress.timers[asked.key]


async def wait_for_signal(drive: Drive, asked: Asked, name: str, annotation: Any, timeout_s: float | None) -> Any:
    """Return the payload of the first signal of this name that no step has taken.

    Raises WaitTimedOut if none came in time, the same on every replay.
    """
    codec = codec_for(annotation)
    drive.require_kind(asked, "signal", "timer")
    known = drive.progress.steps.get(asked.key)
    if known is not None:
        return await drive.value(asked, codec, known.value)
    timer = await _timer(drive, asked, seconds=timeout_s) if timeout_s is not None else None
    while True:
        if timer is not None and timer.has_fired:
            message = f"the signal {name!r} did not come to run {drive.run.run_id!r} in time"
            raise WaitTimedOut(message, run_id=drive.run.run_id, signal=name, step=asked.key)
        await drive.before_new()
        with drive.working():
            await drive.accept(asked)
        if await _has_settled(drive, asked, name, codec, timer):
            known = drive.progress.steps.get(asked.key)
            if known is not None:
                return await drive.value(asked, codec, known.value)
        else:
            due_us = timer.due_us if timer is not None else None
            await drive.block(Waiting(type="signal", node_id=asked.key, signal=name, due_us=due_us))
        timer = drive.progress.timers.get(asked.key)


async def _has_settled(drive: Drive, asked: Asked, name: str, codec: ValueCodec, timer: Timer | None) -> bool:
    """Take the signal, or say that its time is over; False if neither is so.

    A signal that is no value of the type that is waited for is refused: whoever sent it knows nothing of types, and it
    must not keep the right one from being taken.
    """
    with drive.working():
        while waiting := drive.progress.signals.get(name):
            why = await _why_unfit(drive, codec, waiting[0])
            if why is not None:
                await drive.session.add(SignalRejected(name=name, key=asked.key, reason=why))
                continue
            taken = StepCompleted(name=name, key=asked.key, kind="signal", group=asked.group)
            await drive.session.add(taken)
            return True
        if timer is not None and drive.session.now_us() >= timer.due_us:
            await drive.session.add(TimerFired(key=asked.key))
            return True
    return False


async def _why_unfit(drive: Drive, codec: ValueCodec, signal: Stored) -> str | None:
    try:
        await drive.tools.value(codec, signal)
    except InvalidInput as error:
        return printable(str(error))
    return None


async def _timer(drive: Drive, asked: Asked, *, seconds: float | None = None, due_us: int | None = None) -> Timer:
    """Return the timer of the step, set now if it is not set yet."""
    timer = drive.progress.timers.get(asked.key)
    if timer is None:
        await drive.before_new()
        with drive.working():
            await drive.accept(asked)
            if due_us is None:
                due_us = drive.session.now_us() + round((seconds or 0) * _MICRO)
            await drive.session.add(TimerSet(key=asked.key, due_us=due_us, group=asked.group))
        timer = drive.progress.timers[asked.key]
    return timer
