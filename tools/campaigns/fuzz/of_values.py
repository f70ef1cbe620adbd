"""Targets that turn values into bytes: the encoder, the canonical form, the outputs of steps, strict JSON, entries."""

from __future__ import annotations

import datetime
import json
import random
import struct
import uuid
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Any, Final, NamedTuple

import msgspec

from eventlog import entry
from eventlog.codec import REGISTRY
from eventlog.errors import InvalidInput
from eventlog.plain import Limits, parse_json
from eventlog.proposal import Proposal, canonical_bytes, propose, stored_proposal
from eventlog.values import codec_for
from tools.campaigns.fuzz import drawing
from tools.campaigns.fuzz.target import Problem, Target

__all__ = ["TARGETS", "is_identical", "meaning"]

_LIMITS: Final = (Limits(), Limits(), Limits(body_bytes=64), Limits(depth=3))
_DEEP: Final = Limits(depth=500)


def is_identical(left: Any, right: Any) -> bool:
    """Say whether two values are equal and of the same types all the way down, with keys in the same order."""
    left_over = [(left, right)]
    while left_over:
        one, other = left_over.pop()
        if type(one) is not type(other):
            return False
        match one:
            case dict():
                if list(one) != list(other) or list(map(type, one)) != list(map(type, other)):
                    return False
                left_over += zip(one.values(), other.values(), strict=True)
            case list() | tuple():
                if len(one) != len(other):
                    return False
                left_over += zip(one, other, strict=True)
            case msgspec.Struct():
                left_over += [(getattr(one, name), getattr(other, name)) for name in one.__struct_fields__]
            case float():
                if repr(one) != repr(other):  # so that 0.0 and -0.0 are two
                    return False
            case _ if one != other:
                return False
    return True


# ── the encoder ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _draw_encoded(chance: random.Random) -> tuple[Any, Limits]:
    return drawing.wild(chance), chance.choice(_LIMITS)


def _check_encoded(drawn: tuple[Any, Limits]) -> Problem:
    value, limits = drawn
    body = REGISTRY.encode(value, limits)
    found = REGISTRY.decode("nobody_knows_it", 1, body)
    if len(body) > limits.body_bytes:
        return f"a body of {len(body)} bytes is let through"
    return None if is_identical(value, found) else f"it comes back as {found!r:.200}"


# ── the canonical form ───────────────────────────────────────────────────────────────────────────────────────────────


def meaning(value: Any) -> Any:
    """Return what a value means to RFC 8785, in a form that compares: numbers by value, texts by characters."""
    match value:
        case bool() | None:
            return repr(value)
        case int() | float():
            return Fraction(value)
        case str():
            return value, len(value)
        case list():
            return "list", tuple(map(meaning, value))
        case _:
            return "dict", frozenset((key, meaning(item)) for key, item in value.items())


def _draw_pair(chance: random.Random) -> tuple[Any, Any]:
    value = drawing.wild(chance)
    other = drawing.wild(chance) if chance.random() < 0.1 else drawing.unlike(chance, value)
    return value, other


def _check_pair(pair: tuple[Any, Any]) -> Problem:
    """Two values have the same bytes if they mean the same, and only then; the second is tried whatever the first."""
    first, second = (canonical_bytes(each) for each in pair)
    for value, canonical in zip(pair, (first, second), strict=True):
        read = msgspec.json.decode(canonical)
        if meaning(read) != meaning(value) or canonical_bytes(read) != canonical:
            return f"{value!r:.100} is read back as {read!r:.100}"
    is_same = meaning(pair[0]) == meaning(pair[1])
    return None if (first == second) is is_same else f"{first[:100]!r} and {second[:100]!r} mean the same: {is_same}"


def _draw_proposal(chance: random.Random) -> tuple[Any, Any, Any]:
    args: Any = {drawing.text(chance): drawing.wild(chance) for _ in range(chance.randrange(3))}
    return drawing.text(chance), args if chance.random() < 0.95 else drawing.wild(chance), drawing.text(chance)


def _check_proposal(drawn: tuple[Any, Any, Any]) -> Problem:
    action, args, output = drawn
    proposal = propose(action, args, output)
    read = (proposal.action, proposal.output, meaning(proposal.args))
    return None if read == (action, output, meaning(args)) else f"it is read as {proposal!r:.200}"


def _draw_stored_proposal(chance: random.Random) -> bytes:
    value = {"action": "pay", "args": {"a": drawing.plain(chance)}, "output": "o"}
    return drawing.mutated(chance, drawing.json_text(chance, value if chance.random() < 0.8 else drawing.wild(chance)))


def _check_stored_proposal(data: bytes) -> Problem:
    """What a log holds is read whatever its spelling; a caller's bytes are those that `propose` makes, or refused."""
    stored = stored_proposal(data)
    try:
        is_made = propose(stored.action, stored.args, stored.output, limits=_DEEP).canonical == data
    except InvalidInput:
        is_made = False
    try:
        is_taken = Proposal.decode(data) == stored
    except InvalidInput:
        is_taken = False
    if stored.canonical != data:
        return "other bytes are kept"
    return None if is_taken is is_made else f"from a caller it is taken: {is_taken}, though it is canonical: {is_made}"


# ── the outputs of steps ─────────────────────────────────────────────────────────────────────────────────────────────


class _Tone(Enum):
    LOUD = "loud"
    ONE = 1


@dataclass
class _Point:
    x: int
    name: str = ""


class _Pair(NamedTuple):
    left: int
    right: str


class _Item(msgspec.Struct, frozen=True):
    name: str
    parts: tuple[int, ...] = ()
    inner: dict[str, float] | None = None


_ANNOTATIONS: Final[tuple[Any, ...]] = (
    Any, int, float, str, bool, None, bytes, list[int], dict[str, Any], dict[int, str], tuple[int, str], set[str],
    frozenset[int], _Point, _Pair, _Item, _Tone, datetime.datetime, datetime.date, datetime.timedelta, uuid.UUID,
    Decimal, int | None, str | int | float, list[Any], list[_Item], dict[str, _Point], float | None, complex,
)  # fmt: skip
_UTC: Final = datetime.UTC


def _draw_output(chance: random.Random) -> tuple[Any, Any]:
    value = drawing.wild(chance) if chance.random() < 0.3 else _typed(chance)
    if type(value) in _ANNOTATIONS and chance.random() < 0.6:
        return type(value), value
    return chance.choice(_ANNOTATIONS), value


def _typed(chance: random.Random) -> Any:
    number = chance.choice((0, 1, -1, 2**53, 2**63, 2**64, -(2**70), chance.randrange(-(10**9), 10**9)))
    name = drawing.text(chance)
    makers: tuple[Any, ...] = (
        number, float(number), name, bool(number), name.encode("utf-8", "replace"), [number, 2], {name: number},
        {number: name}, (number, name), {name}, frozenset({number}), _Point(number, name), _Pair(number, name),
        _Item(name, (number,), {name: 0.5}), chance.choice(list(_Tone)), uuid.UUID(int=abs(number) % 2**128),
        datetime.datetime(2026, 1, 1, 0, 0, abs(number) % 60, tzinfo=chance.choice((_UTC, None))),
        datetime.date(2026, 1, 1 + abs(number) % 28), datetime.timedelta(seconds=number % 10**6, microseconds=1),
        Decimal(number).scaleb(-2), [_Item(name)], {name: _Point(1, name)}, None, complex(1, number % 10),
    )  # fmt: skip
    return chance.choice(makers)


def _check_output(drawn: tuple[Any, Any]) -> Problem:
    annotation, value = drawn
    codec = codec_for(annotation)
    data = codec.encode(value)
    found = codec.decode(data)
    if type(value) is int and type(found) is float and value == found:  # where the annotation says float
        return None
    return None if is_identical(value, found) else f"{value!r:.100} comes back as {found!r:.100} from {annotation}"


def _draw_stored_output(chance: random.Random) -> tuple[Any, bytes]:
    return chance.choice(_ANNOTATIONS), drawing.json_text(chance, drawing.wild(chance))


def _check_stored_output(drawn: tuple[Any, bytes]) -> Problem:
    codec_for(drawn[0]).decode(drawn[1])
    return None


# ── strict JSON ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _draw_json(chance: random.Random) -> bytes:
    return drawing.json_text(chance, drawing.wild(chance))


def _check_json(data: bytes) -> Problem:
    """What is accepted is what the standard library reads, which accepts more: keys that stand twice, for one."""
    found = parse_json(data)
    read = json.loads(data, object_pairs_hook=_object)
    return None if is_identical(found, read) else f"it is read as {found!r:.200}, and not as {read!r:.200}"


def _object(pairs: list[tuple[str, Any]]) -> Any:
    found = dict(pairs)
    return found if len(found) == len(pairs) else ("a key stands twice", pairs)


# ── entries ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _draw_entry(chance: random.Random) -> bytes:
    fields = dict(zip(entry.Entry.__struct_fields__, _fields(chance), strict=True))
    try:
        data = entry.encode(entry.Entry(**fields))
    except (ValueError, struct.error):
        data = entry.LABEL + chance.randbytes(entry.FIXED_SIZE)
    return drawing.mutated(chance, data)


def _fields(chance: random.Random) -> tuple[Any, ...]:
    small = chance.randrange(1, 1 << 40)
    hashes = [chance.randbytes(32) for _ in range(3)]
    ids = [chance.randbytes(16) for _ in range(3)]
    texts = [drawing.text(chance).encode("utf-8", "replace").decode() for _ in range(4)]
    return (ids[0], small, small, small, 1, ids[1], ids[2], chance.randrange(4), small & 0xFFFF, *hashes, *texts)


def _check_entry(data: bytes) -> Problem:
    return None if entry.encode(entry.parse(data)) == data else "it is spelled otherwise when it is encoded again"


TARGETS: Final = (
    Target("encoder", _draw_encoded, _check_encoded, 110),
    Target("canonical", _draw_pair, _check_pair, 140),
    Target("proposal", _draw_proposal, _check_proposal, 60),
    Target("stored_proposal", _draw_stored_proposal, _check_stored_proposal, 50),
    Target("outputs", _draw_output, _check_output, 100),
    Target("stored_outputs", _draw_stored_output, _check_stored_output, 60),
    Target("json", _draw_json, _check_json, 70),
    Target("entry", _draw_entry, _check_entry, 80, allowed=(ValueError,)),
)
