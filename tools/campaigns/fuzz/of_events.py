"""Targets around events: stored bodies of every type and schema version are read, and what is read is written again."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec.inspect import (
    BoolType,
    DictType,
    EnumType,
    IntType,
    ListType,
    LiteralType,
    NoneType,
    StrType,
    StructType,
    TupleType,
    UnionType,
    VarTupleType,
    type_info,
)

from eventlog.codec import Registry, event, retire, split
from eventlog.errors import EventLogError
from eventlog.events import LOG_EVENTS, RUN_EVENTS
from eventlog.log import Retired
from eventlog.plain import Limits
from tools.campaigns.fuzz import drawing
from tools.campaigns.fuzz.of_values import is_identical
from tools.campaigns.fuzz.target import Problem, Target

__all__ = ["TARGETS"]

_REGISTRY: Final = Registry()
_LIMITS: Final = Limits()


@event(
    "order_placed",
    schema_version=3,
    upcast={1: lambda old: {**old, "currency": "EUR"}, 2: lambda old: {"count": old["amount"], **old}},
    renamed_from=("order_made",),
    registry=_REGISTRY,
)
class _Placed(msgspec.Struct, frozen=True):
    count: int
    currency: str
    price: float = 0.0


@event("order_moved", registry=_REGISTRY)
class _Moved(msgspec.Struct, frozen=True, tag=True):
    to: str | None
    at: dict[str, int | float] = {}


@split("order_changed", into=("order_moved", "order_placed"), registry=_REGISTRY)
def _what_changed(old: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return (old["kind"], {"type": "_Moved", "to": old["to"]}) if "to" in old else ("order_placed", old)


retire("order_flagged", registry=_REGISTRY)

_INFOS: Final[Mapping[str, StructType]] = {
    name: info
    for name, cls in (*RUN_EVENTS.items(), *LOG_EVENTS.items())
    if isinstance(info := type_info(cls), StructType)
}
_OWN: Final = ("order_placed", "order_made", "order_moved", "order_changed", "order_flagged", "nobody_knows_it")
_OWN_NAMES: Final = ("amount", "count", "currency", "price", "kind", "to", "at", "type")


def _draw_stored(chance: random.Random) -> tuple[str, int, bytes]:
    if chance.random() < 0.4:
        name = chance.choice(_OWN)
        value: Any = {each: drawing.plain(chance, 1) for each in chance.sample(_OWN_NAMES, chance.randrange(5))}
    else:
        name = chance.choice(list(_INFOS))
        value = _of_type(_INFOS[name], chance, 6)
    if chance.random() < 0.3:
        value = drawing.unlike(chance, value)
    return name, chance.choice((1, 1, 1, 2, 3, 4, 65535)), drawing.json_text(chance, value)


def _of_type(info: Any, chance: random.Random, depth: int) -> Any:
    """Return plain data that a type could be read from, in most places."""
    if depth == 0 or chance.random() < 0.01:
        return drawing.plain(chance, 1)
    match info:
        case StructType():
            names = [each for each in info.fields if each.required or chance.random() < 0.3]
            return {each.encode_name: _of_type(each.type, chance, depth - 1) for each in names}
        case UnionType():
            return _of_type(chance.choice(info.types), chance, depth)
        case ListType() | VarTupleType():
            return [_of_type(info.item_type, chance, depth - 1) for _ in range(chance.randrange(3))]
        case TupleType():
            return [_of_type(each, chance, depth - 1) for each in info.item_types]
        case DictType():
            return {drawing.text(chance): _of_type(info.value_type, chance, depth - 1)}
        case _:
            return _leaf_of_type(info, chance)


def _leaf_of_type(info: Any, chance: random.Random) -> Any:
    match info:
        case StrType():
            return drawing.text(chance) if chance.random() < 0.7 else chance.randbytes(32).hex()
        case IntType():
            return chance.choice((0, 1, 2, 1_767_268_800_000_000, 2**63, -1))
        case BoolType():
            return chance.random() < 0.5
        case NoneType():
            return None
        case LiteralType():
            return chance.choice(info.values)
        case EnumType():
            return chance.choice(list(info.cls)).value
        case _:
            return drawing.plain(chance, 2)


def _check_stored(drawn: tuple[str, int, bytes]) -> Problem:
    """What is read as a registered Struct can be written, and is then read as the same; or writing it is refused."""
    name, schema_version, body = drawn
    found = _REGISTRY.read(name, schema_version, body)
    if isinstance(found.data, Retired) or not found.is_known:
        return None
    try:
        written = _REGISTRY.encode(found.data, _LIMITS)
    except EventLogError:
        return None
    again = _REGISTRY.decode(found.type, _REGISTRY.current_version(found.type), written)
    if is_identical(found.data, again):
        return None
    return f"{found.data!r:.150} is written as {written[:100]!r} and read as {again!r:.150}"


TARGETS: Final = (Target("decoder", _draw_stored, _check_stored, 130),)
