"""Chains of upcasters: pure functions on plain data, each from one schema version of a type to the next.

A function gets a mapping of its own, which it may change and keep, and returns a mapping of plain data: dict with text
keys, list, str, int, finite float, bool and None, of exactly these types. So what comes out does not hang on what
functions share with one another, and is what it would be if it had been stored. Whatever a function raises, or returns
instead, is an `invalid_event` that names the step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any, Final

import msgspec

from eventlog.errors import InvalidInput
from eventlog.plain import Limits, check_plain

__all__ = ["Chain", "Split", "Upcast", "bring_up", "decide_split", "is_same_function", "mapping_in", "spell"]

Upcast = Callable[[dict[str, Any]], dict[str, Any]]
"""From the mapping of one schema version to that of the next."""

Split = Callable[[dict[str, Any]], tuple[str, dict[str, Any]]]
"""From the mapping of a former type to the type that the event is now, and its mapping."""

spell: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode
_ANY_SIZE: Final = Limits(body_bytes=2**62, depth=2**62)


class Chain(msgspec.Struct, frozen=True):
    """The functions of one type, by the schema version that each begins from, up to the `schema_version` of today."""

    schema_version: int
    steps: Mapping[int, Upcast]


def mapping_in(body: bytes) -> dict[str, Any]:
    """Return the mapping that a stored body holds. Raises InvalidInput(`invalid_event`), and what msgspec raises."""
    mapping = _decode(body)
    if type(mapping) is not dict:
        raise InvalidInput("invalid_event", f"it holds a {type(mapping).__name__}, and an upcaster takes a mapping")
    return mapping


def bring_up(chain: Chain, mapping: dict[str, Any], schema_version: int, name: str) -> dict[str, Any]:
    """Return the mapping of `name` in today's shape. Raises InvalidInput(`invalid_event`) that names the step."""
    for version in range(schema_version, chain.schema_version):
        step = f"the upcaster of {name!r} from schema version {version} to {version + 1}"
        mapping = _own(_called(chain.steps[version], mapping, step), step)
    return mapping


def decide_split(decide: Split, mapping: dict[str, Any], name: str) -> tuple[str, dict[str, Any]]:
    """Return what an event of the former type `name` is now. Raises InvalidInput(`invalid_event`) that names the step.

    Whether the type is one that was declared is not looked at.
    """
    step = f"the split of {name!r}"
    found = _called(decide, mapping, step)
    if type(found) is not tuple or len(found) != 2 or type(found[0]) is not str:
        raise InvalidInput("invalid_event", f"{step} gave {found!r:.80}, not a type and a mapping", step=step)
    return found[0], _own(found[1], step)


def _called(function: Callable[[dict[str, Any]], Any], mapping: dict[str, Any], step: str) -> Any:
    try:
        return function(mapping)
    except Exception as error:  # a user's own function may raise anything
        raise InvalidInput("invalid_event", f"{step} raised {error!r:.200}", step=step) from error


def _own(mapping: Any, step: str) -> dict[str, Any]:
    """Return a copy that nobody else holds of what a function returned, if that is a mapping of plain data."""
    if type(mapping) is not dict:
        raise InvalidInput("invalid_event", f"{step} gave a {type(mapping).__name__}, not a dict", step=step)
    try:
        check_plain(mapping, _ANY_SIZE)
    except (InvalidInput, RecursionError) as error:
        raise InvalidInput("invalid_event", f"{step} gave what is no plain data: {error}", step=step) from error
    own: dict[str, Any] = _decode(spell(mapping))
    return own


def is_same_function(one: object, other: object) -> bool:
    """Say whether two functions do the same, as far as can be seen: a module that is loaded twice makes them twice."""
    code, other_code = getattr(one, "__code__", None), getattr(other, "__code__", None)
    if one is other or not isinstance(code, CodeType) or not isinstance(other_code, CodeType):
        return one is other or (type(one) is type(other) and bool(one == other))
    ours, theirs = _held(one), _held(other)
    if _facts(code) != _facts(other_code) or len(ours) != len(theirs):
        return False
    return all(_is_same_value(*pair) for pair in zip(ours, theirs, strict=True))


def _facts(code: CodeType) -> tuple[Any, ...]:
    """Return what a function does, without where it stands."""
    constants = tuple(_facts(each) if isinstance(each, CodeType) else (type(each), each) for each in code.co_consts)
    return code.co_qualname, code.co_code, code.co_names, code.co_varnames, constants


def _held(function: Any) -> list[Any]:
    """Return the values that a function brings along: its defaults, and what it closes over."""
    return [*(function.__defaults__ or ()), *(cell.cell_contents for cell in function.__closure__ or ())]


def _is_same_value(one: Any, other: Any) -> bool:
    code, other_code = getattr(one, "__code__", None), getattr(other, "__code__", None)
    if isinstance(code, CodeType) and isinstance(other_code, CodeType):
        return _facts(code) == _facts(other_code)  # not what it holds: it may hold itself
    return bool(one == other)
