"""Folds events into rows, whatever the rows are kept in.

`load` gives the rows that are kept; what has changed is returned, to be kept with the position in one transaction.
Rows in `cache` are known to be those that are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeAlias

from eventlog.views import FoldFailed, ViewEvent
from projections.projection import GroupProjection, Key, Projection, Row, RowProjection

__all__ = ["MAX_CACHED_ROWS", "Cache", "Changes", "Load", "LoadFailed", "cached_rows", "fold_events"]

Changes: TypeAlias = dict[Key, Row | None]
"""The rows that changed by key; None for one that is gone."""

Cache: TypeAlias = dict[Any, Any]
"""Rows by key, or all rows of a group by the first columns of their keys."""


Prefix: TypeAlias = tuple[str | int, ...]
"""The values of the first columns of a key."""

_GROUPS: Final = "groups of"


class Load(Protocol):
    """Gives the rows that are kept."""

    def row(self, key: Key) -> Row | None:
        """Return the row with this key, or None."""

    def group(self, prefix: tuple[str | int, ...]) -> dict[Key, Row]:
        """Return the rows, by key, that have these values in the first columns of the key."""


def fold_events(projection: Projection, events: Iterable[ViewEvent], load: Load, cache: Cache) -> Changes:
    """Return what these events, in position order, change. The cache is brought up to date."""
    if isinstance(projection, RowProjection):
        return _fold_rows(projection.key, projection.apply, events, load.row, cache)
    assert isinstance(projection, GroupProjection), "a projection is one of the two"
    return _fold_groups(projection, events, load, cache)


MAX_CACHED_ROWS: Final = 20_000
"""From here on whoever keeps a cache empties it."""


def cached_rows(cache: Cache) -> int:
    """Return how many rows are in a cache, of groups all of them, and rather too many."""
    first = next(iter(cache.values()), None)
    if first is None or not _is_group(first):
        return len(cache)
    return sum(len(rows) for rows in cache.values())


def _is_group(cached: Any) -> bool:
    return isinstance(cached, list) or (
        isinstance(cached, dict) and all(isinstance(row, dict) for row in cached.values())
    )


class LoadFailed(Exception):
    """The database could not be read; its cause says why. No fault of the projection's."""


_MISSING: Any = object()


def _fold_rows(
    key_of: Callable[[ViewEvent], Key | None],
    apply: Callable[[Row | None, ViewEvent], Row | None],
    events: Iterable[ViewEvent],
    load: Callable[[Key], Row | None],
    rows: Cache,
) -> Changes:
    """Fold row by row. A rebuild passes here for each event, so it is one loop."""
    changes: Changes = {}
    get = rows.get
    for event in events:
        try:
            key = key_of(event)
            if key is None:
                continue
            row = get(key, _MISSING)
            if row is _MISSING:
                row = load(key)
            rows[key] = changes[key] = apply(row, event)
        except LoadFailed:
            raise
        except BaseException as error:  # an exit as well: a fold that ends its thread would end the appends of all
            raise FoldFailed(event, error) from error
    return changes


def _fold_groups(projection: GroupProjection, events: Iterable[ViewEvent], load: Load, groups: Cache) -> Changes:
    changes: Changes = {}
    for event in events:
        try:
            _fold_into_groups(projection, event, load, groups, changes)
        except LoadFailed:
            raise
        except BaseException as error:
            raise FoldFailed(event, error) from error
    return changes


def _fold_into_groups(
    projection: GroupProjection, event: ViewEvent, load: Load, groups: Cache, changes: Changes
) -> None:
    names, width = projection.key_names(), projection.group_columns
    value = projection.group(event)
    if value is None:
        return
    prefix = value if isinstance(value, tuple) else (value,)
    if not 0 < len(prefix) <= width:
        raise ValueError(f"the group {prefix!r} has {len(prefix)} columns, and {width} are the group's")
    rows = _group(prefix, load, groups) if len(prefix) == width else _wide_group(prefix, width, load, groups)
    for row in projection.apply(MappingProxyType(rows), event):
        key = _key(row, names)
        if key[: len(prefix)] != prefix:
            raise ValueError(f"a row with the key {key!r} is none of the group {prefix!r}")
        _group(key[:width], load, groups)[key] = changes[key] = row


def _group(prefix: Prefix, load: Load, groups: Cache) -> dict[Key, Row]:
    """Return the rows of a group, which from then on is in the cache."""
    rows: dict[Key, Row] | None = groups.get(prefix)
    if rows is None:
        rows = groups[prefix] = load.group(prefix)
        if len(prefix) > 1:
            _groups_of(prefix[:-1], groups).append(prefix)
    return rows


def _wide_group(wide: Prefix, width: int, load: Load, groups: Cache) -> dict[Key, Row]:
    """Return the rows of all groups that have this prefix in common: those in the cache, and what is kept besides."""
    fresh: dict[Prefix, dict[Key, Row]] = {}
    for key, row in load.group(wide).items():
        assert isinstance(key, tuple), "several columns are the key"
        if key[:width] not in groups:
            fresh.setdefault(key[:width], {})[key] = row
    groups |= fresh
    for prefix in fresh:
        _groups_of(prefix[:-1], groups).append(prefix)
    return {key: row for prefix in _groups_of(wide, groups) for key, row in groups[prefix].items()}


def _groups_of(wide: Prefix, groups: Cache) -> list[Prefix]:
    """Return which groups with this prefix are in the cache."""
    found: list[Prefix] = groups.setdefault((_GROUPS, wide), [])
    return found


def _key(row: Mapping[str, Any], names: tuple[str, ...]) -> Prefix:
    return tuple(row[name] for name in names)
