"""Structs and plain data to JSON bytes: exact, or refused."""

from __future__ import annotations

import math
from collections.abc import Container
from typing import Any, Final

import msgspec
import msgspec.inspect
from msgspec.structs import astuple

from eventlog.errors import InvalidInput
from eventlog.plain import Limits, check_plain, is_utf8
from eventlog.values import CERTAIN_INT, exact_types, is_same_struct

__all__ = ["Encoder", "spell_sorted"]

_encode: Final = msgspec.json.Encoder().encode
_encode_sorted: Final = msgspec.json.Encoder(order="deterministic").encode


class Encoder:
    """Encodes the data of events; of the classes that are `registered` it remembers which fields need a closer look."""

    def __init__(self, registered: Container[type]) -> None:
        self._registered: Final = registered
        self._exact: Final[dict[type[msgspec.Struct], _ExactTypes | None]] = {}

    def encode(self, data: Any, limits: Limits) -> bytes:
        """Return the JSON bytes of plain data or of a Struct, exact. Raises InvalidInput with the path."""
        exact = self._exact.get(type(data))
        if exact is not None and _are_exact(astuple(data), exact, limits.body_bytes):
            body = _encode(data)
        elif isinstance(data, msgspec.Struct):
            body = self._encode_struct(data, limits)
        else:
            body = _encode_plain(data, limits)
        if len(body) > limits.body_bytes:
            raise InvalidInput("payload_too_large", f"the body has {len(body)} bytes, {limits.body_bytes} are allowed")
        return body

    def _encode_struct(self, data: msgspec.Struct, limits: Limits) -> bytes:
        fields = astuple(data)
        has_set = False
        if type(data) not in self._exact and type(data) in self._registered:
            self._exact[type(data)] = _exact_types(type(data))
        try:
            if not _LEAVES.issuperset(map(type, fields)) or not _is_plain(list(fields), limits):
                walk = _StructWalk(limits)
                walk.check(data, _ROOT, limits.depth)
                has_set = walk.has_set
            body = spell_sorted(data) if has_set else _encode(data)
            found = msgspec.json.decode(body, type=type(data))
            is_same = is_same_struct(data, fields, found)
        except RecursionError:
            raise InvalidInput("payload_too_deep", f"{type(data).__qualname__} is nested too deeply") from None
        except UnicodeEncodeError:
            raise InvalidInput("invalid_text", f"{type(data).__qualname__} holds a lone surrogate") from None
        except (msgspec.ValidationError, TypeError, ValueError, OverflowError) as error:
            raise InvalidInput(
                "invalid_event", f"{type(data).__qualname__} cannot be stored exactly: {error}"
            ) from None
        if not is_same:
            raise InvalidInput("invalid_event", f"{type(data).__qualname__} would not come back as it was given")
        return body


_decode_raw: Final = msgspec.json.Decoder(msgspec.Raw).decode

_ExactTypes = tuple[frozenset[type], ...]
"""For each field, the types whose values come back as they are."""


def _exact_types(cls: type[msgspec.Struct]) -> _ExactTypes | None:
    """Return the types of the fields if each is a text, a number or a truth value, one of these or None, or raw JSON.

    None if decoding may do more than read them back, and so has to be tried.
    """
    info = msgspec.inspect.type_info(cls)
    if not isinstance(info, msgspec.inspect.StructType) or hasattr(cls, "__post_init__"):
        return None
    exact = []
    for name, field in zip(cls.__struct_fields__, info.fields, strict=True):
        is_raw = isinstance(field.type, msgspec.inspect.RawType)
        types = frozenset({msgspec.Raw}) if is_raw else exact_types(field.type)
        if not types or field.name != name:
            return None
        exact.append(types)
    return tuple(exact)


def _are_exact(fields: tuple[Any, ...], exact: _ExactTypes, room: int) -> bool:
    """Say whether these fields are certain to come back as they are, and take no more than about `room` characters.

    Every Struct that is appended passes here. Where this says no, the careful way finds out why, and whether it is so.
    """
    for value, types in zip(fields, exact, strict=True):
        kind = type(value)
        if kind not in types:
            return False
        if kind is str:
            room -= len(value)
            if room < 0 or not (value.isascii() or is_utf8(value)):
                return False
        elif kind is int:
            if not -CERTAIN_INT <= value < CERTAIN_INT:
                return False
        elif kind is float:
            if not math.isfinite(value):
                return False
        elif kind is msgspec.Raw and not _is_json(value):
            return False
    return True


def _is_json(raw: msgspec.Raw) -> bool:
    """Say whether this is one JSON text with nothing around it, which comes back byte for byte."""
    try:
        return bool(_decode_raw(raw) == raw) and _is_text(raw)
    except (msgspec.DecodeError, RecursionError):
        return False


def _is_text(raw: msgspec.Raw) -> bool:
    """Say whether raw JSON is UTF-8, which msgspec does not ask of the texts in it."""
    try:
        str(memoryview(raw), "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def spell_sorted(data: msgspec.Struct) -> bytes:
    """Return the JSON bytes with sets and keys sorted.

    Each process lists the members of a set in an order of its own, and a retry has to spell what the first try spelled.
    """
    try:
        return _encode_sorted(data)
    except TypeError:  # msgspec sorts no keys that are not texts, and then it sorts nothing
        return _encode(data)


_LEAVES: Final = frozenset({str, int, float, bool, type(None)})

_Path = tuple[Any, str]
"""The path of the holder, and the step from there."""

_ROOT: Final[_Path] = (None, "$")


class _StructWalk:
    """Refuses what would be altered, or copied at length, before anything is encoded; the path says where it stands.

    Values of other types (dates, UUIDs, enumerations, …) are left to the comparison after encoding.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits: Final = limits
        self._room = limits.body_bytes
        self.has_set = False

    def check(self, value: Any, path: _Path, depth: int) -> None:
        """Raise InvalidInput for text, a number or bytes that cannot be stored, here or further inside."""
        if isinstance(value, str):
            self._take(len(value), path)
            self._check_plain(value, path)
        elif isinstance(value, (float, int)):
            self._check_plain(value, path)
        elif isinstance(value, (bytes, bytearray, memoryview)):
            self._take(len(value), path)
        elif isinstance(value, msgspec.Raw):
            if not _is_text(value):
                raise InvalidInput("invalid_text", "raw JSON that is no UTF-8", path=_spelled(path))
        elif isinstance(value, msgspec.Struct):
            self._enter(path, depth)
            for name in value.__struct_fields__:
                self.check(getattr(value, name), (path, f".{name}"), depth - 1)
        elif isinstance(value, dict):
            self._enter(path, depth)
            for key, item in value.items():
                self.check(key, (path, " (a key)"), depth - 1)
                self.check(item, (path, f"[{key!a:.40}]"), depth - 1)
        elif isinstance(value, (list, tuple, set, frozenset)):
            self._enter(path, depth)
            self.has_set = self.has_set or isinstance(value, (set, frozenset))
            for index, item in enumerate(value):
                self.check(item, (path, f"[{index}]"), depth - 1)

    def _check_plain(self, value: str | float, path: _Path) -> None:
        try:
            check_plain(value, self._limits)
        except InvalidInput as error:
            if error.code != "unsupported_type":  # a subclass, as the member of an enumeration may be
                raise InvalidInput(error.code, str(error), path=_spelled(path)) from None

    def _enter(self, path: _Path, depth: int) -> None:
        self._take(1, path)
        if depth <= 0:
            message = f"nested more than {self._limits.depth} levels deep"
            raise InvalidInput("payload_too_deep", message, path=_spelled(path))

    def _take(self, size: int, path: _Path) -> None:
        self._room -= size
        if self._room < 0:
            raise InvalidInput("payload_too_large", f"larger than {self._limits.body_bytes} bytes", path=_spelled(path))


def _spelled(path: _Path) -> str:
    holder, step = path
    return step if holder is None else _spelled(holder) + step


def _is_plain(value: Any, limits: Limits) -> bool:
    try:
        check_plain(value, limits)
    except InvalidInput:
        return False
    return True


def _encode_plain(data: Any, limits: Limits) -> bytes:
    try:
        check_plain(data, limits)
        return _encode(data)
    except RecursionError:
        raise InvalidInput("payload_too_deep", "nested too deeply") from None
