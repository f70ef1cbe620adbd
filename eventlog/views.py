"""What passes between a log and the views that are folded from it.

A view reads many events and of each little: `ViewEvent` has that little, and its `data` may be a narrower Struct than
the one the type is registered with. A view that is written in the append's own transaction and one that is built anew
are handed the same events, so that both come to the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from eventlog.log import RecordedEvent

__all__ = [
    "FoldFailed",
    "Selection",
    "ViewBuild",
    "ViewEntry",
    "ViewEvent",
    "ViewProblem",
    "ViewState",
    "as_view_event",
    "described",
]

_LONGEST_ERROR: Final = 500


class ViewEvent(msgspec.Struct, gc=False):
    """An event as a projection sees it; the fields mean what they mean in `RecordedEvent`.

    `data` is in the current shape of its type: the registered Struct, the narrower one that the projection asked for,
    or plain data. It is not frozen, because making one is half the price then; nobody changes it.
    """

    position: int
    stream: str
    version: int
    type: str
    recorded_at_us: int
    actor: str
    data: Any


class Selection(msgspec.Struct, frozen=True):
    """Which events a projection folds: of these (current) types, in streams whose names begin so.

    `shapes` gives for a type the narrow Struct that its data is decoded to, with some of the registered one's fields.
    """

    types: frozenset[str]
    stream_prefix: str = ""
    shapes: Mapping[str, type[msgspec.Struct]] = {}


class ViewProblem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a view stopped: the event that its projection could not fold, and what it raised."""

    position: int
    type: str
    stream: str
    error: str


ViewState = Literal["live", "building", "kept"]
"""Whether a view has the public name, is being built beside it, or had it before the last exchange."""


class ViewEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What a database says of one view in it.

    `generation` numbers the tables that were ever made here and is part of the names of those that are not live.
    """

    name: str
    state: str
    revision: int
    position: int
    generation: int
    shape: str
    problem: ViewProblem | None = None
    leaf: bytes | None = None
    """The leaf of the event at `position`, where the view lies apart from its log and is kept."""


class ViewBuild(msgspec.Struct, frozen=True, kw_only=True):
    """How far a view is built, or brought up, as positions, while a log is being opened."""

    name: str
    revision: int
    position: int
    head: int


class FoldFailed(Exception):
    """What a projection raised over an event, whatever that was; `position`, `type` and `stream` are the event's."""

    def __init__(self, event: ViewEvent, error: BaseException) -> None:
        self.position = event.position
        self.type = event.type
        self.stream = event.stream
        super().__init__(described(error))


def described(error: BaseException) -> str:
    """Return an error as a text that can be stored and shown, whatever it is made of; 500 characters at the most."""
    try:
        text = str(error)
    except BaseException:
        text = "(its text cannot be made)"
    if not isinstance(error, FoldFailed):
        text = f"{type(error).__name__}: {text}"
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= _LONGEST_ERROR else f"{text[:_LONGEST_ERROR]}…"


def as_view_event(event: RecordedEvent, data: Any = None) -> ViewEvent:
    """Return of an event what a projection sees of it; with other `data`, where it has been decoded more narrowly."""
    return ViewEvent(
        event.position,
        event.stream,
        event.version,
        event.type,
        event.recorded_at_us,
        event.actor,
        event.data if data is None else data,
    )
