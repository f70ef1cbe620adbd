"""One event as one sentence."""

from __future__ import annotations

from typing import Any, Final, Protocol, assert_never, get_args

from eventlog.events import LogEvent, RunEvent
from eventlog.sentences.of_log import log_sentence
from eventlog.sentences.progress import OfProgressEvent, progress_sentence
from eventlog.sentences.requests import OfRequestEvent, request_sentence
from eventlog.sentences.words import named

__all__ = ["Told", "sentence"]

_OF_RUN: Final = get_args(RunEvent)
_OF_LOG: Final = get_args(LogEvent)


class Told(Protocol):
    """What a sentence needs of an event, be it a `RecordedEvent` or a `ViewEvent`; the fields mean what they do there.

    Only the former says whether the program knows its type, in `is_known`; of one that does not say, it is known.
    """

    @property
    def type(self) -> str: ...

    @property
    def actor(self) -> str: ...

    @property
    def data(self) -> Any: ...


def sentence(event: Told) -> str:
    """Return what an event says, for people: one line, without the time and the place, which its envelope has.

    Of a type that is not in the catalogue, or that this program does not know, a neutral line. Never fails for an event
    that a log has given out.
    """
    actor = named(event.actor)
    data = event.data
    if not getattr(event, "is_known", True):
        return f"{actor} recorded {named(event.type)}, which this program does not know"
    if isinstance(data, _OF_LOG):
        return log_sentence(actor, data)
    if not isinstance(data, _OF_RUN):
        return f"{actor} recorded {named(event.type)}"
    return _of_run(actor, data)


def _of_run(actor: str, event: RunEvent) -> str:
    if isinstance(event, OfRequestEvent):
        return request_sentence(actor, event)
    if isinstance(event, OfProgressEvent):
        return progress_sentence(actor, event)
    assert_never(event)
