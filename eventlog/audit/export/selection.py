"""Which events of a log are exported."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from fnmatch import fnmatchcase
from typing import Final

import msgspec

from eventlog.codec import Registry
from eventlog.log import EventReader, RecordedEvent

__all__ = ["Selection", "selected"]

_WILD: Final = frozenset("*?[")


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """The events behind position `after`, up to position `up_to`; all of them unless something else is said.

    Of `stream` only, or of streams whose names begin with `stream_prefix`; whose type matches one of the `patterns`;
    and no more than `limit`, the first ones. A pattern is the name of a type, where a former name means what became of
    it, or has the wildcards of `fnmatch`, and then is compared with the name of today and the one it is stored under.
    """

    up_to: int
    after: int = 0
    stream: str | None = None
    stream_prefix: str | None = None
    patterns: tuple[str, ...] = ()
    limit: int | None = None


async def selected(log: EventReader, selection: Selection, registry: Registry) -> AsyncGenerator[RecordedEvent, None]:
    """Give the events, verified as by `read` and `read_all`, in the order of the log.

    One that cannot be read is an error with its position and never left out: LogCorrupt, or InvalidInput if it has
    another shape than its type. Where all patterns are names, and no stream is, events of other types are verified, and
    not decoded.
    """
    types = _Types(selection.patterns, registry)
    left = selection.limit
    async with aclosing(_behind(log, selection, types)) as events:
        async for event in events:
            if event.position > selection.up_to:
                return
            if event.position > selection.after and types.have(event):
                yield event
                left = None if left is None else left - 1
                if left == 0:
                    return


def _behind(log: EventReader, selection: Selection, types: _Types) -> AsyncGenerator[RecordedEvent, None]:
    if selection.stream is not None:
        return log.read(selection.stream)
    is_exact = not types.globs  # all that is read is wanted, so that the log reads no further than it has to
    return log.read_all(
        after=selection.after,
        limit=selection.limit if is_exact else None,
        types=types.names if is_exact and types.names else None,
        stream_prefix=selection.stream_prefix,
    )


class _Types:
    """The types that are asked for; all if there are no patterns."""

    def __init__(self, patterns: tuple[str, ...], registry: Registry) -> None:
        self.globs: Final = tuple(pattern for pattern in patterns if _WILD.intersection(pattern))
        self.names: Final = registry.stored_names(set(patterns).difference(self.globs))

    def have(self, event: RecordedEvent) -> bool:
        if event.type in self.names or not (self.names or self.globs):
            return True
        return any(fnmatchcase(name, glob) for glob in self.globs for name in (event.type, event.stored_type or ""))
