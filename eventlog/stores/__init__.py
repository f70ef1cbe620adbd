"""The stores that keep the contract of `eventlog.log`, and the one way to open them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, overload

from eventlog.codec import REGISTRY, Registry
from eventlog.errors import InvalidInput
from eventlog.plain import Limits
from eventlog.stores.clock import Clock
from eventlog.stores.memory import MemoryLog
from eventlog.stores.requests import check_actor
from eventlog.stores.sqlite import SqliteLog

if TYPE_CHECKING:
    from eventlog.stores.sqlite import InlineView

__all__ = ["MemoryLog", "SqliteLog", "open"]


@overload
def open(  # type: ignore[overload-overlap]  # "memory:" is a str, too, and the only one that is no path
    path: Literal["memory:"],
    *,
    actor: str | None = ...,
    registry: Registry = ...,
    limits: Limits | None = ...,
    clock: Clock | None = ...,
) -> MemoryLog: ...
@overload
def open(
    path: str | os.PathLike[str],
    *,
    actor: str | None = ...,
    registry: Registry = ...,
    limits: Limits | None = ...,
    durability: Literal["full", "normal"] = ...,
    busy_timeout_s: float = ...,
    settle_timeout_s: float = ...,
    may_create: bool = ...,
    is_read_only: bool = ...,
    views: Iterable[InlineView] = ...,
    clock: Clock | None = ...,
) -> SqliteLog: ...
def open(
    path: str | os.PathLike[str],
    *,
    actor: str | None = None,
    registry: Registry = REGISTRY,
    limits: Limits | None = None,
    durability: Literal["full", "normal"] = "full",
    busy_timeout_s: float = 5.0,
    settle_timeout_s: float = 5.0,
    may_create: bool = True,
    is_read_only: bool = False,
    views: Iterable[InlineView] = (),
    clock: Clock | None = None,
) -> SqliteLog | MemoryLog:
    """Return the log at `path`, to be used as `async with eventlog.open(path) as log`.

    `path` is an SQLite file, created if it is missing, or "memory:" for a log that ends with its object. `actor` names
    who appends, `os:<uid>` by default; never a person's name or address, for it stays in the log. `durability="normal"`
    lets a power cut take the last commits; `full` never does. `busy_timeout_s` is how long a call waits for other
    processes, and `settle_timeout_s` how long a failed commit may take to be settled before it is reported as unknown.

    Raises InvalidInput; opening raises StoreUnavailable (`store_cannot_open`, `store_not_eventlog`, `schema_too_new`,
    …).
    """
    name = os.fspath(path)
    if type(name) is not str or not name or "\0" in name:  # callers without a type checker give bytes
        raise InvalidInput("invalid_argument", f"the path of a log is a text that names a file, not {name!r:.80}")
    actor = check_actor(actor if actor is not None else f"os:{os.getuid()}")
    if name == "memory:":
        if is_read_only or not may_create or tuple(views):
            raise InvalidInput("invalid_argument", "a log in memory is new, can be written and has no stored views")
        return MemoryLog(actor=actor, registry=registry, limits=limits, clock=clock)
    views = tuple(views)
    _check_views(views)
    return SqliteLog(
        name,
        actor=actor,
        registry=registry,
        limits=limits,
        durability=durability,
        busy_timeout_s=busy_timeout_s,
        settle_timeout_s=settle_timeout_s,
        may_create=may_create,
        is_read_only=is_read_only,
        views=views,
        clock=clock,
    )


def _check_views(views: Sequence[InlineView]) -> None:
    for view in views:
        if not all(hasattr(view, name) for name in ("name", "revision", "shape", "selection", "create")):
            message = f"{type(view).__qualname__} is no view in SQLite; wrap a projection: `SqliteView(…)`"
            raise InvalidInput("invalid_argument", message)
    names = [view.name.lower() for view in views]
    if len(set(names)) < len(names):
        raise InvalidInput("invalid_argument", f"a view is given twice: {', '.join(names)}")
