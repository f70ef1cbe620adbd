"""What a program says of its event types when its modules are imported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

import msgspec

from eventlog.codec.registry import Registry
from eventlog.codec.upcasting import Split, Upcast

__all__ = ["REGISTRY", "event", "retire", "split"]

S = TypeVar("S", bound=msgspec.Struct)
F = TypeVar("F", bound=Split)

REGISTRY: Final = Registry()
"""The registry that these fill and that logs use unless they are given another."""


def event(
    type_name: str,
    *,
    schema_version: int = 1,
    upcast: Mapping[int, Upcast] | None = None,
    renamed_from: Iterable[str] = (),
    registry: Registry = REGISTRY,
) -> Callable[[type[S]], type[S]]:
    """Class decorator: this `msgspec.Struct` is the event type `type_name`. See `Registry.register`."""

    def register(cls: type[S]) -> type[S]:
        return registry.register(
            cls, type_name, schema_version=schema_version, upcast=upcast, renamed_from=renamed_from
        )

    return register


def split(
    type_name: str,
    *,
    into: Mapping[str, int] | Iterable[str],
    schema_version: int = 1,
    upcast: Mapping[int, Upcast] | None = None,
    renamed_from: Iterable[str] = (),
    registry: Registry = REGISTRY,
) -> Callable[[F], F]:
    """Function decorator: this function says what each event of the former type `type_name` is now.

    See `Registry.split`.
    """

    def register(decide: F) -> F:
        registry.split(
            decide, type_name, into=into, schema_version=schema_version, upcast=upcast, renamed_from=renamed_from
        )
        return decide

    return register


def retire(*type_names: str, registry: Registry = REGISTRY) -> None:
    """Say that these former event types mean nothing any more. See `Registry.retire`."""
    for type_name in type_names:
        registry.retire(type_name)
