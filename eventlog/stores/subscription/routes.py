"""Who wants an event. Found by looking its stream and type up: what it costs grows with those who do, not with all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from eventlog.stores.requests import Wanted
from eventlog.stores.subscription.subscriber import Subscriber

__all__ = ["Routes"]

Subscribers = dict[Subscriber, None]
"""A set that keeps its order, so that who came first is served first."""


class _Group:
    """Those who want the same streams: all of their events, or those of some types."""

    __slots__ = ("by_type", "of_all_types")

    def __init__(self) -> None:
        self.of_all_types: Final[Subscribers] = {}
        self.by_type: Final[dict[str, Subscribers]] = {}

    def is_empty(self) -> bool:
        return not self.of_all_types and not self.by_type

    def add(self, subscriber: Subscriber, types: Iterable[str] | None) -> None:
        if types is None:
            self.of_all_types[subscriber] = None
            return
        for type_name in types:
            self.by_type.setdefault(type_name, {})[subscriber] = None

    def discard(self, subscriber: Subscriber, types: Iterable[str] | None) -> None:
        if types is None:
            self.of_all_types.pop(subscriber, None)
            return
        for type_name in types:
            those = self.by_type.get(type_name)
            if those is not None:
                those.pop(subscriber, None)
                if not those:
                    del self.by_type[type_name]


class Routes:
    """The subscribers of a tail, by what they want. One of k types in n streams stands in k times n places."""

    def __init__(self) -> None:
        self._of_the_log: Final = _Group()
        self._by_stream: Final[dict[str, _Group]] = {}
        self._by_prefix: Final[dict[int, dict[str, _Group]]] = {}
        """By the length of the prefix, and then by the prefix: each length is one look-up."""

    def add(self, subscriber: Subscriber) -> None:
        """Have this one find what he wants."""
        types = _types(subscriber.wanted)
        for groups, name in self._places(subscriber.wanted):
            groups.setdefault(name, _Group()).add(subscriber, types)
        if _is_of_the_log(subscriber.wanted):
            self._of_the_log.add(subscriber, types)

    def discard(self, subscriber: Subscriber) -> None:
        """Forget this one."""
        types = _types(subscriber.wanted)
        for groups, name in self._places(subscriber.wanted):
            group = groups.get(name)
            if group is not None:
                group.discard(subscriber, types)
                if group.is_empty():
                    del groups[name]
        self._of_the_log.discard(subscriber, types)
        for length in [length for length, groups in self._by_prefix.items() if not groups]:
            del self._by_prefix[length]

    def who_wants(self, stream: str, type_name: str) -> list[Subscribers]:
        """Return those who want an event of this type in this stream, in groups without a double."""
        found = []
        for group in self._groups(stream):
            if group.of_all_types:
                found.append(group.of_all_types)
            if group.by_type and type_name in group.by_type:
                found.append(group.by_type[type_name])
        return found

    def who_might_want(self, stream: str) -> list[Subscriber]:
        """Return those who want some event of this stream, of whatever type."""
        found: Subscribers = {}
        for group in self._groups(stream):
            found |= group.of_all_types
            for those in group.by_type.values():
                found |= those
        return list(found)

    def _groups(self, stream: str) -> list[_Group]:
        groups = [self._of_the_log]
        if (exact := self._by_stream.get(stream)) is not None:
            groups.append(exact)
        for length, prefixes in self._by_prefix.items():
            if (group := prefixes.get(stream[:length])) is not None:
                groups.append(group)
        return groups

    def _places(self, wanted: Wanted | None) -> Iterator[tuple[dict[str, _Group], str]]:
        if wanted is None:
            return
        if wanted.streams is not None:
            for stream in wanted.streams:
                if stream.startswith(wanted.stream_prefix):
                    yield self._by_stream, stream
        elif wanted.stream_prefix:
            yield self._by_prefix.setdefault(len(wanted.stream_prefix), {}), wanted.stream_prefix


def _is_of_the_log(wanted: Wanted | None) -> bool:
    return wanted is None or (wanted.streams is None and not wanted.stream_prefix)


def _types(wanted: Wanted | None) -> Iterable[str] | None:
    return None if wanted is None else wanted.types
