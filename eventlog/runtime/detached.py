"""Plain data that nobody else can change: what the state of a run holds, and what is handed out of it, are apart.

An action may go on changing what it has returned, and a workflow what it was given. The state must say what the log
says all the same: snapshots and replays come from it.
"""

from __future__ import annotations

from typing import TypeVar, cast

import msgspec
from msgspec.structs import fields, replace

__all__ = ["detached"]

T = TypeVar("T")


def detached(value: T) -> T:
    """Return a copy of plain data, or of a Struct that holds some, down to the last dict and list.

    What is neither is left as it is, and so is what contains itself: no store takes that.
    """
    try:
        return cast(T, _copy(value))
    except RecursionError:
        return value


def _copy(value: object) -> object:
    if type(value) is dict:
        return {key: _copy(item) for key, item in value.items()}
    if type(value) is list:
        return [_copy(item) for item in value]
    if isinstance(value, msgspec.Struct):
        held = {field.name: getattr(value, field.name) for field in fields(value)}
        changed = {name: _copy(item) for name, item in held.items() if isinstance(item, dict | list | msgspec.Struct)}
        return replace(value, **changed) if changed else value
    return value
