"""What each name of an event type stands for: a stored name belongs to one current type, or to one decision.

    Live       a type that events are written in
    Former     a name that a type had once: its events are those of the current type
    Divided    a type whose events are of several types now, each by what it holds
    Gone       a type that means nothing any more

A table is never changed, only replaced as a whole, so that whoever reads while something is registered has one or the
other. What contradicts the rest of the table is refused with `event_type_conflict`, when it is declared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, assert_never

import msgspec

from eventlog.codec.upcasting import Chain, Split, is_same_function
from eventlog.errors import InvalidInput
from eventlog.plain import check_id

__all__ = ["MAX_SCHEMA_VERSION", "MAX_TYPE_BYTES", "Divided", "Entry", "Former", "Gone", "Live", "Names", "check_type"]

MAX_TYPE_BYTES: Final = 128
MAX_SCHEMA_VERSION: Final = 0xFFFF


class Live(msgspec.Struct, frozen=True):
    """A type that events are written in, as `cls` at the schema version of its chain."""

    name: str
    former: tuple[str, ...]
    chain: Chain
    cls: type[msgspec.Struct]
    decode: Callable[[bytes], Any]


class Divided(msgspec.Struct, frozen=True):
    """A former type of which each event is one of the types `into` now, in the shape of the version stated there."""

    name: str
    former: tuple[str, ...]
    chain: Chain
    into: Mapping[str, int]
    decide: Split


class Gone(msgspec.Struct, frozen=True):
    """A former type that means nothing any more."""

    name: str
    former: tuple[str, ...] = ()


class Former(msgspec.Struct, frozen=True):
    """A name that a type had once; `current` is the one that it was declared under, which may be former itself."""

    name: str
    current: str


Entry = Live | Divided | Gone


def check_type(name: str) -> str:
    """Return `name` if it can name an event type; raises InvalidInput(`invalid_id`)."""
    return check_id(name, "event type", max_bytes=MAX_TYPE_BYTES)


class Names:
    """The table, and what it says."""

    def __init__(self) -> None:
        self._table: Mapping[str, Entry | Former] = {}

    def get(self, name: str) -> Entry | None:
        """Return what stands under a name of today or of a former time, or None if nothing does."""
        return _resolved(self._table, name)

    def add(self, entry: Entry) -> None:
        """Take an entry in. Raises InvalidInput(`event_type_conflict`) if it contradicts what stands there.

        The same declaration once more, by a module that is loaded again, replaces the first.
        """
        known = self._table.get(entry.name)
        if known is not None and not _is_repeated(entry, known):
            raise _conflict(f"the event type {entry.name!r} {_described(known)}", entry.name)
        table = {**self._table, entry.name: entry}
        for name in entry.former:
            if name == entry.name:
                raise _conflict(f"the event type {name!r} cannot be renamed from itself", name)
            if known is None and name in table:
                raise _conflict(
                    f"{entry.name!r} cannot be renamed from {name!r}: that one {_described(table[name])}", name
                )
            table[name] = Former(name, entry.name)
        _check_splits(table)
        self._table = table

    def became(self, name: str) -> frozenset[str]:
        """Return the names of today of what was stored under `name`: one, unless it was split."""
        entry = self.get(name)
        if isinstance(entry, Divided):
            return frozenset().union(*map(self.became, entry.into))
        return frozenset((name if entry is None else entry.name,))

    def stored(self, types: Iterable[str]) -> frozenset[str]:
        """Return every name under which events that may be read as one of `types` are stored."""
        wanted = frozenset().union(*map(self.became, types))
        names = set(wanted)
        for entry in self._table.values():
            if not isinstance(entry, Former) and not wanted.isdisjoint(self.became(entry.name)):
                names.update((entry.name, *entry.former))
        return frozenset(names)


def _resolved(table: Mapping[str, Entry | Former], name: str) -> Entry | None:
    entry = table.get(name)
    return _resolved(table, entry.current) if type(entry) is Former else entry  # type: ignore[return-value]


def _is_repeated(entry: Entry, known: Entry | Former) -> bool:
    """Say whether a declaration is the one that stands there, made again."""
    if isinstance(entry, Live) and isinstance(known, Live):
        is_same = _home(entry.cls) == _home(known.cls)
        return is_same and entry.former == known.former and _is_same_chain(entry.chain, known.chain)
    if isinstance(entry, Divided) and isinstance(known, Divided):
        is_same = entry.into == known.into and is_same_function(entry.decide, known.decide)
        return is_same and entry.former == known.former and _is_same_chain(entry.chain, known.chain)
    return isinstance(entry, Gone) and entry == known


def _is_same_chain(one: Chain, other: Chain) -> bool:
    return one.schema_version == other.schema_version and all(
        is_same_function(step, other.steps[version]) for version, step in one.steps.items()
    )


def _home(cls: type) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


def _described(entry: Entry | Former) -> str:
    match entry:
        case Live(cls=cls, chain=chain):
            return f"belongs to {cls.__qualname__} of schema version {chain.schema_version}, in another way"
        case Former(current=current):
            return f"was renamed {current!r}"
        case Divided(into=into):
            return f"was split into {', '.join(into)}"
        case Gone():
            return "was retired"
        case _:
            assert_never(entry)


def _check_splits(table: Mapping[str, Entry | Former]) -> None:
    for entry in table.values():
        if isinstance(entry, Divided):
            for target, version in entry.into.items():
                _check_target(table, entry, target, version)
            if entry.name in _reached(table, entry, ()):
                raise _conflict(f"the event type {entry.name!r} would be split into itself", entry.name)


def _check_target(table: Mapping[str, Entry | Former], entry: Divided, target: str, version: int) -> None:
    found = _resolved(table, target)
    if isinstance(found, (Live, Divided)) and version > found.chain.schema_version:
        raise _conflict(
            f"{entry.name!r} is split into {target!r} of schema version {version}, "
            f"and that is at {found.chain.schema_version} here",
            entry.name,
        )


def _reached(table: Mapping[str, Entry | Former], entry: Divided, passed: tuple[str, ...]) -> Iterator[str]:
    """Give the names of today that an event of a split type may come to, stopping where it goes in a circle."""
    for target in entry.into:
        found = _resolved(table, target)
        if found is not None and found.name not in passed:
            yield found.name
            if isinstance(found, Divided):
                yield from _reached(table, found, (*passed, found.name))


def _conflict(message: str, type_name: str) -> InvalidInput:
    return InvalidInput("event_type_conflict", message, type=type_name)
