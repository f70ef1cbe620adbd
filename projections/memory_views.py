"""Views in memory: the rows of one projection, for as long as their object lives, over any log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from eventlog.codec import Registry
from eventlog.errors import EventTypeUnknown, InvalidInput, StoreUnavailable
from eventlog.log import RecordedEvent, Redacted
from eventlog.views import Selection, ViewEvent, as_view_event
from projections.folding import Cache, fold_events
from projections.projection import Key, Projection, Row

__all__ = ["MemoryView", "narrowed"]


class MemoryView:
    """The rows of one projection by key, and the position up to which the log is folded into them.

    Rows are to be looked at, not to be changed.
    """

    def __init__(self, projection: Projection) -> None:
        if not isinstance(projection, Projection):
            given = getattr(projection, "__qualname__", type(projection).__qualname__)
            raise InvalidInput("invalid_argument", f"a view is made of a projection, an object: `{given}()`?")
        self._projection: Final = projection
        self._rows: Final[dict[Key, Row]] = {}
        self._keys: Final[dict[str | int, dict[Key, None]]] = {}
        """The keys of several columns by the first of these."""
        self._cache: Final[Cache] = {}
        self._selection: Final = projection.selection()
        self.position = 0

    @property
    def name(self) -> str:
        """The name of the view."""
        return self._projection.name

    @property
    def revision(self) -> int:
        """The revision of the projection."""
        return self._projection.revision

    @property
    def selection(self) -> Selection:
        """The events that may change the view."""
        return self._selection

    @property
    def rows(self) -> Mapping[Key, Row]:
        """The rows by key."""
        return MappingProxyType(self._rows)

    def row(self, key: Key) -> Row | None:
        """Return one row by its key."""
        return self._rows.get(key)

    def group(self, prefix: tuple[str | int, ...]) -> dict[Key, Row]:
        """Return the rows, by key, that have these values in the first columns of the key."""
        keys = self._keys.get(prefix[0], {})
        return {key: self._rows[key] for key in keys if isinstance(key, tuple) and key[: len(prefix)] == prefix}

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows.values())

    def __len__(self) -> int:
        return len(self._rows)

    def apply(self, events: Iterable[ViewEvent], upto: int) -> None:
        """Fold events, in position order, and stand at position `upto`. A fold that raises changes nothing."""
        try:
            changes = fold_events(self._projection, events, self, self._cache)
        except BaseException:
            self._cache.clear()
            raise
        for key, row in changes.items():
            keys = self._keys.setdefault(key[0], {}) if isinstance(key, tuple) else {}
            if row is None:
                self._rows.pop(key, None)
                keys.pop(key, None)
            else:
                self._rows[key] = row
                keys[key] = None
        self.position = upto


def narrowed(event: RecordedEvent, selection: Selection, registry: Registry) -> list[ViewEvent]:
    """Return the event as a projection sees it, decoded as a view in SQLite decodes it; nothing for a retired one.

    Nothing either for one of which nothing is left. Raises EventTypeUnknown for a schema version that is newer than the
    one registered here, StoreUnavailable(`subject_key_missing`) for what only cannot be read here, InvalidInput.
    """
    if event.redacted == "key_missing":
        message = f"position {event.position} of stream {event.stream!r} is encrypted, and its key is not here"
        raise StoreUnavailable("subject_key_missing", message, position=event.position, stream=event.stream)
    if isinstance(event.data, Redacted):
        return []
    reading = registry.reading(event.stored_type or event.type, event.schema_version, selection.shapes)
    if reading.is_retired:
        return []
    if not reading.is_known and registry.is_known(event.type):
        raise EventTypeUnknown(event.stream, event.version, f"{event.type} of schema version {event.schema_version}")
    data = reading.decode(event.body)
    return [as_view_event(event, data if reading.type is not None else data[1])]
