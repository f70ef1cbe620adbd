"""What may enter the log: plain data and ids, exact or refused.

Plain data is dict with text keys, list, str, int of any size, finite float, bool and None, of exactly these types: a
subclass would come back as its base, a tuple as a list, so they are refused. Every refusal is an `InvalidInput` that
names the path to the value, as `$.items[0].price`, and comes before anything is encoded, hashed or written.
"""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Iterable
from typing import Any, Final, NoReturn

import msgspec

from eventlog.errors import InvalidInput

__all__ = ["Limits", "check_id", "check_plain", "check_text", "is_utf8", "parse_json"]

MAX_INT_DIGITS: Final = 4300
"""Python's own default bound for turning integers into text and back."""

MAX_INT_BITS: Final = 14_280
"""The largest number of bits that never takes more than `MAX_INT_DIGITS` characters, a minus sign among them."""

_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How large one append may be."""

    body_bytes: int = 16 * 1024 * 1024
    events_per_call: int = 10_000
    depth: int = 100
    id_bytes: int = 512


def check_id(value: object, what: str, *, max_bytes: int = 512, may_be_empty: bool = False) -> str:
    """Return `value` if it can name something: 1 to `max_bytes` bytes of UTF-8 that people can see and compare.

    Raises InvalidInput(`invalid_id`) for other types, empty and blank text, outer white space, lone surrogates, and for
    control, format (zero-width, bidirectional) and line-separating characters, which make different ids look alike.
    """
    if type(value) is not str:
        raise InvalidInput("invalid_id", f"the {what} must be a str, not {type(value).__name__}", what=what)
    if len(value) > max_bytes or (value.isascii() and value.isprintable()):
        size = len(value)
    elif any(unicodedata.category(character) in _HIDDEN for character in value):
        raise InvalidInput("invalid_id", f"the {what} {value[:80]!r} holds hidden characters", what=what)
    else:
        size = len(value.encode())
    if size > max_bytes:
        raise InvalidInput("invalid_id", f"the {what} has {size} bytes or more, {max_bytes} are allowed", what=what)
    if value != value.strip() or (not value and not may_be_empty):
        raise InvalidInput("invalid_id", f"the {what} {value[:80]!r} is blank or begins or ends with space", what=what)
    return value


def check_text(value: str, path: str = "$") -> str:
    """Return `value` if UTF-8 can hold it; raises InvalidInput(`invalid_text`) for a lone surrogate."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput("invalid_text", f"a lone surrogate stands at character {error.start}", path=path) from None
    return value


def check_plain(value: Any, limits: Limits, *, int_bits: int = MAX_INT_BITS) -> None:
    """Return if `value` is plain data within the limits, with no integer longer than `int_bits`.

    Raises InvalidInput with the path.
    """
    try:
        _size(value, limits.depth, int_bits, limits.body_bytes)
        return
    except _NotPlain:
        pass
    fault = _Walk(limits, int_bits).fault_in(value, limits.depth)
    if fault is not None:
        code, message, steps = fault
        raise InvalidInput(code, message, path="$" + "".join(reversed(steps)))


def is_utf8(text: str) -> bool:
    """Say whether UTF-8 can hold the text: whether it has no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class _NotPlain(Exception):
    """Something is wrong somewhere in the value; `_Walk` finds out what and where."""


def _size(value: Any, depth: int, int_bits: int, room: int) -> int:
    """Return about how many characters the value takes, or raise _NotPlain as soon as it takes more than `room`.

    This is the pass that every good value makes, so leaves are handled in place rather than by a call each. A lone
    surrogate in text that is not ASCII is looked for here too: nothing later names its path. A text is not copied
    before it is known to be small, and a list that holds one other list many times is not followed for ever.
    """
    kind = type(value)
    if kind is dict:
        items = value.values()
        size = 2
        for key in value:
            if type(key) is not str:
                raise _NotPlain
            size += len(key) + 4
            if not key.isascii() and (size > room or not is_utf8(key)):
                raise _NotPlain
    elif kind is list:
        items = value
        size = 2
    else:
        items = (value,)
        size = 0
        depth += 1
    if depth <= 0:
        raise _NotPlain
    for item in items:
        kind = type(item)
        if kind is str:
            size += len(item) + 3
            if not item.isascii() and (size > room or not is_utf8(item)):
                raise _NotPlain
        elif kind is int:
            if item.bit_length() > int_bits:
                raise _NotPlain
            size += 1
        elif kind is float:
            if not math.isfinite(item):
                raise _NotPlain
            size += 1
        elif kind is bool or item is None:
            size += 1
        elif (kind is dict or kind is list) and item is not value:
            size += _size(item, depth - 1, int_bits, room - size)
        else:
            raise _NotPlain
    if size > room:
        raise _NotPlain
    return size


Fault = tuple[str, str, list[str]]


class _Walk:
    """The second pass, only over a value that is refused: says what is wrong, and where, on the way back up."""

    def __init__(self, limits: Limits, int_bits: int) -> None:
        self.room = limits.body_bytes
        self.limit = limits.body_bytes
        self.max_depth = limits.depth
        self.int_bits = int_bits

    def fault_in(self, value: Any, depth: int) -> Fault | None:
        kind = type(value)
        if kind is str:
            return self._fault_in_text(value)
        if kind is int:
            return None if value.bit_length() <= self.int_bits else self._number_too_large(value)
        if value is None or kind is bool:
            return None
        if kind is float:
            return None if math.isfinite(value) else ("non_finite_number", f"{value!r} is not a JSON number", [])
        if kind is dict:
            return self._fault_in_dict(value, depth)
        if kind is list:
            return self._fault_in_list(value, depth)
        return "unsupported_type", f"{kind.__module__}.{kind.__qualname__} is not plain data", []

    def _fault_in_text(self, text: str) -> Fault | None:
        self.room -= len(text) + 1
        if self.room < 0:
            return self._too_large()
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                return "invalid_text", f"a lone surrogate stands at character {error.start}", []
        return None

    def _fault_in_dict(self, value: dict[Any, Any], depth: int) -> Fault | None:
        if depth <= 0:
            return self._too_deep()
        for key, item in value.items():
            if type(key) is not str:
                return "non_string_key", f"a key is a {type(key).__name__}, not a str", []
            fault = self._fault_in_text(key) or self.fault_in(item, depth - 1)
            if fault is not None:
                fault[2].append(_step(key))
                return fault
        return None

    def _fault_in_list(self, value: list[Any], depth: int) -> Fault | None:
        if depth <= 0:
            return self._too_deep()
        self.room -= len(value)
        if self.room < 0:
            return self._too_large()
        for index, item in enumerate(value):
            fault = self.fault_in(item, depth - 1)
            if fault is not None:
                fault[2].append(f"[{index}]")
                return fault
        return None

    def _too_deep(self) -> Fault:
        return "payload_too_deep", f"nested more than {self.max_depth} levels deep", []

    def _too_large(self) -> Fault:
        return "payload_too_large", f"larger than {self.limit} bytes", []

    def _number_too_large(self, value: int) -> Fault:
        return "number_too_large", f"an integer of {value.bit_length()} bits cannot be stored exactly here", []


def _step(key: str) -> str:
    name = key if len(key) <= 40 else key[:40] + "…"
    return f".{name}" if name.isidentifier() else f"[{name!a}]"


def parse_json(text: bytes | str, *, what: str = "the JSON text") -> Any:
    """Return the plain data that a JSON text spells, exactly.

    Stricter than the standard library: a key named twice, NaN and infinity, numbers that a float cannot hold, lone
    surrogates and bytes that are not UTF-8 are refused. Raises InvalidInput.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode()
        value = json.loads(
            text, object_pairs_hook=_object, parse_constant=_no_constant, parse_float=_finite, parse_int=_integer
        )
        check_plain(value, _ANY_SIZE)
        return value
    except UnicodeDecodeError as error:
        raise InvalidInput("invalid_text", f"{what} is not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise InvalidInput("payload_too_deep", f"{what} is nested too deeply") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InvalidInput("invalid_json", f"{what} is not JSON: {error.msg} at {where}") from None


_ANY_SIZE: Final = Limits(body_bytes=2**62, depth=2**62)


def _object(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise InvalidInput("duplicate_key", f"the key {key!r:.80} stands twice in one object")
        result[key] = value
    return result


def _no_constant(name: str) -> NoReturn:
    raise InvalidInput("non_finite_number", f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise InvalidInput("non_finite_number", f"{text:.40} is larger than any float")
    return value


def _integer(text: str) -> int:
    if len(text) > MAX_INT_DIGITS:
        raise InvalidInput("number_too_large", f"an integer has {len(text)} digits")
    return int(text)
