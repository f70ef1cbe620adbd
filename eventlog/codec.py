"""Events to bytes and back; the one place where old shapes become new ones.

An event is encoded once, as JSON; those bytes are stored, hashed and verified, and never made again. Reading takes the
registered Struct of the type, or plain data where the type (or a newer schema version of it) is not known here.

Old shapes: `register(…, upcast={1: one_to_two, 2: two_to_three})` gives a chain of pure functions on the decoded mapping, one
for each schema version that was ever released. Every read path passes here, and stored bytes stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from eventlog.errors import InvalidInput
from eventlog.events import LOG_EVENTS, RUN_EVENTS
from eventlog.plain import Limits, check_id, check_plain

__all__ = ["REGISTRY", "Registry", "Upcast", "event"]

Upcast = Callable[[dict[str, Any]], dict[str, Any]]
S = TypeVar("S", bound=msgspec.Struct)

MAX_TYPE_BYTES: Final = 128
MAX_SCHEMA_VERSION: Final = 0xFFFF

_encode: Final = msgspec.json.Encoder().encode
_decode_plain: Final = msgspec.json.Decoder().decode


class _Registered(msgspec.Struct, frozen=True):
    cls: type[msgspec.Struct]
    schema_version: int
    upcast: Mapping[int, Upcast]
    decode: Callable[[bytes], Any]


class Registry:
    """Which Struct stands for which event type. A program registers its types once, when its modules are imported."""

    def __init__(self) -> None:
        self._by_type: dict[str, _Registered] = {}
        self._by_class: dict[type[msgspec.Struct], tuple[str, int]] = {}

    def register(
        self, cls: type[S], type_name: str, *, schema_version: int = 1, upcast: Mapping[int, Upcast] | None = None
    ) -> type[S]:
        """Register `cls` as the current shape of `type_name` and return it.

        `upcast[n]` turns the mapping of schema version n into that of n + 1; there must be one for each earlier version.
        Raises InvalidInput if the name is taken by another class, or the chain has a hole.
        """
        check_id(type_name, "event type", max_bytes=MAX_TYPE_BYTES)
        chain = dict(upcast or {})
        if not 1 <= schema_version <= MAX_SCHEMA_VERSION or sorted(chain) != list(range(1, schema_version)):
            raise InvalidInput("invalid_argument", f"{type_name!r} needs one upcaster for each version below {schema_version}")
        known = self._by_type.get(type_name)
        if known is not None and (known.cls.__module__, known.cls.__qualname__) != (cls.__module__, cls.__qualname__):
            raise InvalidInput("invalid_argument", f"the event type {type_name!r} belongs to {known.cls.__qualname__}")
        self._by_type[type_name] = _Registered(cls, schema_version, chain, msgspec.json.Decoder(cls).decode)
        self._by_class[cls] = (type_name, schema_version)
        return cls

    def type_of(self, cls: type) -> tuple[str, int]:
        """Return the (type, schema_version) that `cls` is registered for. Raises InvalidInput(`unsupported_type`)."""
        try:
            return self._by_class[cls]
        except KeyError:
            raise InvalidInput(
                "unsupported_type", f"{cls.__qualname__} is not registered; decorate it with @eventlog.event(name)"
            ) from None

    def knows(self, type_name: str, schema_version: int) -> bool:
        """Say whether `decode` returns a Struct for this type at this version."""
        known = self._by_type.get(type_name)
        return known is not None and schema_version <= known.schema_version

    def encode(self, data: Any, limits: Limits) -> bytes:
        """Return the JSON bytes of plain data or of a Struct, exact: decoding them gives an equal value.

        Raises InvalidInput with the path to what cannot be stored.
        """
        body = self._encode_struct(data, limits) if isinstance(data, msgspec.Struct) else _encode_plain(data, limits)
        if len(body) > limits.body_bytes:
            raise InvalidInput("payload_too_large", f"the body has {len(body)} bytes, {limits.body_bytes} are allowed")
        return body

    def decode(self, type_name: str, schema_version: int, body: bytes) -> Any:
        """Return the typed event, or plain data for a type or schema version that is not known here.

        Raises InvalidInput(`invalid_event`) if the stored shape is not the registered one.
        """
        known = self._by_type.get(type_name)
        if known is None or schema_version > known.schema_version:
            return _decode_plain(body)
        try:
            if schema_version == known.schema_version:
                return known.decode(body)
            return _upcast(known, schema_version, body)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise InvalidInput(
                "invalid_event", f"a stored {type_name!r} of schema version {schema_version} cannot be read: {error}"
            ) from error

    def _encode_struct(self, data: msgspec.Struct, limits: Limits) -> bytes:
        check_struct(data, limits)
        try:
            body = _encode(data)
            same = msgspec.json.decode(body, type=type(data)) == data
        except RecursionError:
            raise InvalidInput("payload_too_deep", f"{type(data).__qualname__} is nested too deeply") from None
        except UnicodeEncodeError:
            raise InvalidInput("invalid_text", f"{type(data).__qualname__} holds a lone surrogate") from None
        except (msgspec.ValidationError, TypeError, ValueError, OverflowError) as error:
            raise InvalidInput("invalid_event", f"{type(data).__qualname__} cannot be stored exactly: {error}") from None
        if not same:
            raise InvalidInput("invalid_event", f"{type(data).__qualname__} would not come back equal to what was given")
        return body


def check_struct(data: msgspec.Struct, limits: Limits) -> None:
    """Refuse what would be altered or copied at length: each field that is plain data, text or a number is checked.

    Values of other types (dates, UUIDs, bytes, tuples, enumerations) are left to the comparison after encoding.
    """
    for name in data.__struct_fields__:
        value = getattr(data, name)
        if isinstance(value, (str, float, dict, list, int)):
            try:
                check_plain(value, limits)
            except InvalidInput as error:
                if error.code not in ("unsupported_type", "non_string_key"):
                    path = f"$.{name}{error.path[1:]}"
                    message = str(error).removesuffix(f" (at {error.path})")
                    raise InvalidInput(error.code, message, path=path) from None
        elif isinstance(value, (bytes, bytearray, memoryview)) and len(value) > limits.body_bytes:
            raise InvalidInput("payload_too_large", f"larger than {limits.body_bytes} bytes", path=f"$.{name}")


def _encode_plain(data: Any, limits: Limits) -> bytes:
    check_plain(data, limits)
    return _encode(data)


def _upcast(known: _Registered, schema_version: int, body: bytes) -> Any:
    mapping = _decode_plain(body)
    for version in range(schema_version, known.schema_version):
        mapping = known.upcast[version](mapping)
    return msgspec.convert(mapping, known.cls)


REGISTRY: Final = Registry()
"""The registry that `@event` fills and that logs use unless they are given another."""

for _name, _cls in (*RUN_EVENTS.items(), *LOG_EVENTS.items()):
    REGISTRY.register(_cls, _name)


def event(
    type_name: str, *, schema_version: int = 1, upcast: Mapping[int, Upcast] | None = None, registry: Registry = REGISTRY
) -> Callable[[type[S]], type[S]]:
    """Class decorator: this `msgspec.Struct` is the event type `type_name`. See `Registry.register`."""

    def register(cls: type[S]) -> type[S]:
        return registry.register(cls, type_name, schema_version=schema_version, upcast=upcast)

    return register
