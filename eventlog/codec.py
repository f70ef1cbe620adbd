"""Events to bytes and back; the one place where old shapes become new ones.

An event is encoded once, as JSON; those bytes are stored, hashed and verified, and never made again. Reading takes the
registered Struct of the type, or plain data where the type (or a newer schema version of it) is not known here.

Old shapes: `register(…, upcast={1: one_to_two, 2: two_to_three})` gives a chain of pure functions on the decoded
mapping, one for each schema version that was ever released. Every read path passes here, and stored bytes stay as they
are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
import msgspec.inspect
from msgspec.structs import astuple

from eventlog.errors import InvalidInput
from eventlog.events import LOG_EVENTS, RUN_EVENTS
from eventlog.plain import Limits, check_id, check_plain, is_utf8
from eventlog.values import CERTAIN_INT, exact_types, is_same_struct

__all__ = ["REGISTRY", "Registry", "Upcast", "event"]

Upcast = Callable[[dict[str, Any]], dict[str, Any]]
S = TypeVar("S", bound=msgspec.Struct)

MAX_TYPE_BYTES: Final = 128
MAX_SCHEMA_VERSION: Final = 0xFFFF

_encode: Final = msgspec.json.Encoder().encode
_encode_sorted: Final = msgspec.json.Encoder(order="deterministic").encode
_decode_plain: Final = msgspec.json.Decoder().decode


class _Registered(msgspec.Struct, frozen=True):
    cls: type[msgspec.Struct]
    schema_version: int
    upcast: Mapping[int, Upcast]
    decode: Callable[[bytes], Any]


Reader = tuple[Callable[[bytes], Any], bool]
"""What decodes a body, and whether it gives a Struct."""

_PLAIN_READER: Final[Reader] = (_decode_plain, False)


class Registry:
    """Which Struct stands for which event type. A program registers its types once, when its modules are imported.

    Every registry knows the engine's own events.
    """

    def __init__(self) -> None:
        self._by_type: dict[str, _Registered] = {}
        self._by_class: dict[type[msgspec.Struct], tuple[str, int]] = {}
        self._readers: dict[tuple[str, int], Reader] = {}
        self._exact: dict[type[msgspec.Struct], _ExactTypes | None] = {}
        for name, cls in (*RUN_EVENTS.items(), *LOG_EVENTS.items()):
            self.register(cls, name)

    def register(
        self, cls: type[S], type_name: str, *, schema_version: int = 1, upcast: Mapping[int, Upcast] | None = None
    ) -> type[S]:
        """Register `cls` as the current shape of `type_name` and return it.

        `upcast[n]` turns the mapping of schema version n into that of n + 1; there must be one for each earlier
        version. Raises InvalidInput if the name is taken by another class, or the chain has a hole.
        """
        check_id(type_name, "event type", max_bytes=MAX_TYPE_BYTES)
        chain = dict(upcast or {})
        if not 1 <= schema_version <= MAX_SCHEMA_VERSION or sorted(chain) != list(range(1, schema_version)):
            raise InvalidInput(
                "invalid_argument", f"{type_name!r} needs one upcaster for each version below {schema_version}"
            )
        known = self._by_type.get(type_name)
        if known is not None and (known.cls.__module__, known.cls.__qualname__) != (cls.__module__, cls.__qualname__):
            raise InvalidInput("invalid_argument", f"the event type {type_name!r} belongs to {known.cls.__qualname__}")
        self._by_type[type_name] = _Registered(cls, schema_version, chain, msgspec.json.Decoder(cls).decode)
        self._by_class[cls] = (type_name, schema_version)
        self._readers = {}  # another one: a thread that is looking at what stood before may still write into the old
        return cls

    def type_of(self, cls: type) -> tuple[str, int]:
        """Return the (type, schema_version) that `cls` is registered for. Raises InvalidInput(`unsupported_type`)."""
        try:
            return self._by_class[cls]
        except KeyError:
            raise InvalidInput(
                "unsupported_type", f"{cls.__qualname__} is not registered; decorate it with @eventlog.event(name)"
            ) from None

    def current_version(self, type_name: str) -> int:
        """Return the schema version that events of this type are written in. Raises InvalidInput for an unknown one."""
        known = self._by_type.get(type_name)
        if known is None:
            raise InvalidInput("unsupported_type", f"no Struct is registered for the event type {type_name!r}")
        return known.schema_version

    def knows(self, type_name: str, schema_version: int) -> bool:
        """Say whether `decode` returns a Struct for this type at this version."""
        known = self._by_type.get(type_name)
        return known is not None and schema_version <= known.schema_version

    def encode(self, data: Any, limits: Limits) -> bytes:
        """Return the JSON bytes of plain data or of a Struct, exact: decoding them gives an equal value.

        Raises InvalidInput with the path to what cannot be stored.
        """
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

    def decode(self, type_name: str, schema_version: int, body: bytes) -> Any:
        """Return the typed event, or plain data for a type or schema version that is not known here.

        Raises InvalidInput(`invalid_event`) if the stored shape is not the registered one.
        """
        read, is_known = self.reader(type_name, schema_version)
        if not is_known:
            return read(body)
        try:
            return read(body)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise InvalidInput(
                "invalid_event", f"a stored {type_name!r} of schema version {schema_version} cannot be read: {error}"
            ) from error

    def reader(self, type_name: str, schema_version: int) -> Reader:
        """Return what `decode` uses for a type and version, and whether that `knows` them; it raises what msgspec does.

        Both may be asked for once for many events, as long as nothing is registered meanwhile.
        """
        readers = self._readers
        reader = readers.get((type_name, schema_version))
        if reader is None:
            known = self._by_type.get(type_name)
            if known is None or schema_version > known.schema_version:
                return _PLAIN_READER
            is_current = schema_version == known.schema_version
            reader = (known.decode if is_current else partial(_upcast, known, type_name, schema_version), True)
            readers[type_name, schema_version] = reader
        return reader

    def _encode_struct(self, data: msgspec.Struct, limits: Limits) -> bytes:
        fields = astuple(data)
        has_set = False
        if type(data) not in self._exact and type(data) in self._by_class:
            self._exact[type(data)] = _exact_types(type(data))
        if not _LEAVES.issuperset(map(type, fields)) or not _is_plain(list(fields), limits):
            walk = _StructWalk(limits)
            walk.check(data, _ROOT, limits.depth)
            has_set = walk.has_set
        try:
            body = _encode_with_sets(data) if has_set else _encode(data)
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
        return bool(_decode_raw(raw) == raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False


def _encode_with_sets(data: msgspec.Struct) -> bytes:
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
    check_plain(data, limits)
    return _encode(data)


def _upcast(known: _Registered, type_name: str, schema_version: int, body: bytes) -> Any:
    mapping = _decode_plain(body)
    try:
        for version in range(schema_version, known.schema_version):
            mapping = known.upcast[version](mapping)
        return known.decode(_encode(mapping))
    except Exception as error:  # a chain of the user's own functions may raise anything
        raise InvalidInput(
            "invalid_event",
            f"a stored {type_name!r} of schema version {schema_version} cannot be brought up to date: {error!r}",
        ) from error


REGISTRY: Final = Registry()
"""The registry that `@event` fills and that logs use unless they are given another."""


def event(
    type_name: str,
    *,
    schema_version: int = 1,
    upcast: Mapping[int, Upcast] | None = None,
    registry: Registry = REGISTRY,
) -> Callable[[type[S]], type[S]]:
    """Class decorator: this `msgspec.Struct` is the event type `type_name`. See `Registry.register`."""

    def register(cls: type[S]) -> type[S]:
        return registry.register(cls, type_name, schema_version=schema_version, upcast=upcast)

    return register
