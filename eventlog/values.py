"""The values of a workflow: what goes in, what its steps return, exact or refused.

A step's value is stored once, as JSON, and every replay reads it from there. So the value that replay hands out has to
be the one that the step returned: equal, and of the same types all the way down. What cannot come back like that is
refused with the path to it, as `$.items[0].price`, and never altered.

How a value comes back is decided by the annotation of the function that returned it (`returns`, `parameters`). Without
one, or with `Any`, a value is plain data: see `plain.py`. With one, msgspec writes it and reads it as that type, so
dataclasses, Structs, tuples, sets, times, enumerations and the like come back as what they were. An annotation that
msgspec cannot read (a class it does not know, a TypeVar, a name that cannot be resolved) counts as none; a value that
is then refused says so.

Nothing here is told by the JSON itself: what was stored stays readable as plain data whatever became of its type.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import functools
import inspect
import math
import re
import sys
import types
import typing
from collections.abc import Awaitable, Callable, Iterator, Sequence
from hashlib import sha256
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

import msgspec
from msgspec.inspect import (
    AnyType,
    BoolType,
    CustomType,
    DictType,
    ExtType,
    FloatType,
    IntType,
    ListType,
    NoneType,
    RawType,
    StrType,
    UnionType,
    type_info,
)
from msgspec.structs import astuple

from eventlog.errors import InvalidInput
from eventlog.plain import MAX_INT_BITS, Limits, check_plain, is_utf8

if sys.version_info >= (3, 14):
    # Annotations are evaluated when they are asked for, and one name that is imported for the type checker only would
    # make all of them fail.
    from annotationlib import Format, get_annotations

    def _annotations_of(function: Any) -> dict[str, Any]:
        return get_annotations(function, format=Format.FORWARDREF)

    def _signature_of(function: Any) -> inspect.Signature:
        return inspect.signature(function, annotation_format=Format.FORWARDREF)
else:

    def _annotations_of(function: Any) -> dict[str, Any]:
        return getattr(function, "__annotations__", None) or {}

    def _signature_of(function: Any) -> inspect.Signature:
        return inspect.signature(function)


__all__ = [
    "ValueCodec",
    "check_arguments",
    "codec_for",
    "codec_of",
    "digest_of",
    "exact_types",
    "is_same",
    "is_same_struct",
    "parameters",
    "returns",
    "signature_of",
]

CERTAIN_INT: Final = 2**63
"""Integers up to here, of either sign, are certain to be read back."""

_encode: Final = msgspec.json.Encoder().encode
_encode_sorted: Final = msgspec.json.Encoder(order="deterministic").encode
_LIMITS: Final = Limits()
_DIGEST_DIGITS: Final = 16


# ── One annotation ───────────────────────────────────────────────────────────────────────────────────────────────────


class ValueCodec:
    """Writes and reads the values of one annotation. Made by `codec_for`.

    `untyped_because` says why an annotation counts as none; it is None where it counts, and where there is none.
    """

    __slots__ = ("_leaves", "_plain", "_read", "annotation", "untyped_because")

    def __init__(self, annotation: Any) -> None:
        self.annotation: Final = annotation
        info, self.untyped_because = _understood(annotation)
        self._read: Final[Callable[[bytes | msgspec.Raw], Any]] = (
            _decode_plain if info is None else msgspec.json.Decoder(annotation).decode
        )
        self._leaves: Final = _LEAVES if info is None else exact_types(info)
        self._plain: Final = None if info is None else _plain_containers(info)

    @property
    def is_typed(self) -> bool:
        """Whether the annotation decides what comes back; if not, values are plain data."""
        return self._plain is not None

    def encode(self, value: Any, limits: Limits = _LIMITS) -> bytes:
        """Return the JSON text of a value, from which `decode` makes an equal one of the same types.

        The one exception is an int where the annotation says float: it comes back as the equal float. Raises
        InvalidInput with the path to what cannot come back.
        """
        kind = type(value)
        if kind in self._leaves and _is_certain(value, kind):
            data = _encode(value)
        elif self._plain is None or kind in self._plain:
            self._check_plain(value, limits)
            data = _encode(value)
        else:
            data, _ = self._tried(value)
        if len(data) > limits.body_bytes:
            raise InvalidInput("payload_too_large", f"a value of {len(data)} bytes, {limits.body_bytes} are allowed")
        return data

    def round_trip(self, value: Any, limits: Limits = _LIMITS) -> tuple[bytes, Any]:
        """Return the JSON text, and the value as every replay will read it: nobody else holds that object.

        Who hands this one on, rather than the one given, runs the same way the first time as on every replay, also if
        the giver alters its own later. Raises as `encode`.
        """
        data = self.encode(value, limits)
        return data, value if type(value) in _LEAVES and type(value) in self._leaves else self.decode(data)

    def decode(self, data: bytes | msgspec.Raw) -> Any:
        """Return the value that the JSON text spells.

        Raises InvalidInput(`invalid_event`) if it is none of this annotation, as after a change of the class.
        """
        try:
            return self._read(data)
        except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            message, path = _split(error)
            what = "a stored value cannot be read"
            if self.is_typed:
                what = f"{what} as {described(self.annotation)}"
            raise InvalidInput("invalid_event", f"{what}: {message}", path=path) from error

    def _check_plain(self, value: Any, limits: Limits) -> None:
        try:
            check_plain(value, limits)
        except InvalidInput as error:
            if self.untyped_because is None or error.code not in ("unsupported_type", "non_string_key"):
                raise
            message = str(error).removesuffix(f" (at {error.path})")
            raise InvalidInput(error.code, f"{message}, and {self.untyped_because}", path=error.path) from None

    def _tried(self, value: Any) -> tuple[bytes, Any]:
        """Return the JSON text and the value read from it, which is the same. Raises InvalidInput if it is not."""
        try:
            data = _encode(value)
            found = self._read(data)
            if is_same(value, found):
                return data, found
            problem: Exception | None = None
        except RecursionError:
            raise InvalidInput("payload_too_deep", f"a {_name(type(value))} is nested too deeply") from None
        except Exception as error:  # the value's own code may raise anything, as may a comparison
            found, problem = None, error
        raise self._refusal(value, found, problem) from problem

    def _refusal(self, value: Any, found: Any, problem: Exception | None) -> InvalidInput:
        """Return the error that says what is wrong with the value, and where."""
        try:
            fault = _fault_in(value)
            if fault is not None:
                return InvalidInput(fault.code, fault.message, path=fault.path)
            if problem is None:
                path, given, back = _difference(value, found)
                how = f"would come back as {_brief(back)} from {described(self.annotation)}"
                return InvalidInput("unsupported_type", f"{_brief(given)} {how}", path=path)
        except Exception as error:  # likewise; then there is no path to tell
            problem = problem or error
        message, path = _split(problem)
        return InvalidInput(
            "unsupported_type", f"the value is no {described(self.annotation)} that can be stored: {message}", path=path
        )


def codec_for(annotation: Any) -> ValueCodec:
    """Return what writes and reads the values of this annotation; it is made once, and kept.

    Without an annotation (`inspect.Signature.empty`), or with Any or object, values are plain data.
    """
    try:
        return _codec_for(annotation)
    except TypeError:  # an annotation that cannot be hashed
        known = _unhashable.get(id(annotation))
        if known is None:
            if len(_unhashable) >= _MAX_UNHASHABLE:
                _unhashable.clear()
            known = _unhashable[id(annotation)] = ValueCodec(
                annotation
            )  # holds the annotation, so the id stays its own
        return known


@functools.lru_cache(maxsize=2048, typed=True)
def _codec_for(annotation: Any) -> ValueCodec:
    return ValueCodec(annotation)


_MAX_UNHASHABLE: Final = 256
_unhashable: Final[dict[int, ValueCodec]] = {}


def _decode_plain(data: bytes | msgspec.Raw) -> Any:
    return msgspec.json.decode(data)


def _understood(annotation: Any) -> tuple[msgspec.inspect.Type | None, str | None]:
    """Return what msgspec knows of the annotation; None if it counts as none, and why, unless it is none."""
    if annotation in (Any, object, inspect.Signature.empty):
        return None, None
    if isinstance(annotation, str | typing.ForwardRef):
        return None, f"the annotation {described(annotation)} cannot be resolved"
    if isinstance(annotation, TypeVar):
        return None, f"the annotation {described(annotation)} stands for any type"
    try:
        msgspec.json.Decoder(annotation)
        info = type_info(annotation)
    except Exception as error:  # msgspec raises TypeError, and what the classes themselves raise
        return None, f"the annotation {described(annotation)} cannot be read back from JSON: {error}"
    if isinstance(info, AnyType):
        return None, None
    unknown = next((each for each in _all_types(info) if isinstance(each, CustomType | RawType | ExtType)), None)
    if unknown is None:
        return info, None
    name = _name(unknown.cls) if isinstance(unknown, CustomType) else type(unknown).__name__.removesuffix("Type")
    of = "" if described(annotation) == name else f" in {described(annotation)}"
    return None, f"the annotation {name}{of} cannot be read back from JSON"


def _all_types(info: msgspec.inspect.Type) -> Iterator[msgspec.inspect.Type]:
    """Yield a type and all that it is made of, each once: a type may be made of itself."""
    seen: set[int] = set()
    left: list[Any] = [info]
    while left:
        each = left.pop()
        if isinstance(each, tuple):
            left.extend(each)
        elif isinstance(each, msgspec.inspect.Field):
            left.append(each.type)
        elif isinstance(each, msgspec.inspect.Type) and id(each) not in seen:
            seen.add(id(each))
            yield each
            left.extend(getattr(each, name) for name in each.__struct_fields__)


_EXACT: Final = ((StrType(), str), (IntType(), int), (FloatType(), float), (BoolType(), bool), (NoneType(), type(None)))
"""Types as they are inspected if nothing constrains them."""

_LEAVES: Final = frozenset({str, int, float, bool, type(None)})


def exact_types(info: msgspec.inspect.Type) -> frozenset[type]:
    """Return the types whose values are certain to come back as they are: those of texts, numbers, truth values, None.

    Numbers and texts within `CERTAIN_INT`, finite and without lone surrogates, that is.
    """
    alternatives = info.types if isinstance(info, UnionType) else (info,)
    return frozenset(kind for plain, kind in _EXACT if plain in alternatives)


def _plain_containers(info: msgspec.inspect.Type) -> frozenset[type]:
    """Return `dict` and `list` where the annotation allows all plain data in them: it need not be tried."""
    alternatives = info.types if isinstance(info, UnionType) else (info,)
    found: set[type] = set()
    for each in alternatives:
        match each:
            case DictType(key_type=AnyType() | StrType(), value_type=AnyType()):
                if each in (DictType(AnyType(), AnyType()), DictType(StrType(), AnyType())):
                    found.add(dict)
            case ListType(item_type=AnyType()) if each == ListType(AnyType()):
                found.add(list)
    return frozenset(found)


def _is_certain(value: Any, kind: type) -> bool:
    """Say whether a leaf is certain to come back; a closer look may find that others do, too."""
    if kind is str:
        return bool(value.isascii()) or is_utf8(value)
    if kind is int:
        return bool(-CERTAIN_INT <= value < CERTAIN_INT)
    return kind is not float or bool(math.isfinite(value))


# ── What comes back is what was given ────────────────────────────────────────────────────────────────────────────────


def is_same(given: Any, found: Any) -> bool:
    """Say whether what comes back is what was given: equal, and of the same types all the way down.

    An enumeration member in a field that names a text, or an OrderedDict, is equal to what comes back and yet another
    thing; so is a time of the same moment in another zone. The one exception is an int in a field that names a float,
    which type checkers allow and which stays equal.
    """
    kind = type(given)
    if kind is not type(found):
        return kind is int and type(found) is float and bool(given == found)
    if kind in _LEAVES:
        return bool(given == found)
    if isinstance(given, msgspec.Struct):
        return is_same_struct(given, astuple(given), found)
    if isinstance(given, list | tuple):
        return len(given) == len(found) and all(map(is_same, given, found))
    if kind is dict:
        return {key: type(key) for key in given} == {key: type(key) for key in found} and all(
            is_same(value, found[key]) for key, value in given.items()
        )
    if kind is set or kind is frozenset:
        members = {member: member for member in found}
        return len(given) == len(found) and all(
            member in members and is_same(member, members[member]) for member in given
        )
    if isinstance(given, datetime.datetime | datetime.time):
        return bool(given == found) and _zone(given) == _zone(found)
    if isinstance(given, decimal.Decimal):
        return bool(given.as_tuple() == found.as_tuple())  # comparing a signalling NaN raises
    names = _field_names(kind)
    if names is not None:
        return _extra(given, names) == _extra(found, names) == [] and all(
            is_same(getattr(given, name, _ABSENT), getattr(found, name, _ABSENT)) for name in names
        )
    return bool(given == found)


def is_same_struct(given: msgspec.Struct, fields: tuple[Any, ...], found: msgspec.Struct) -> bool:
    """Say whether the Struct `given`, whose `fields` these are, is the one that was found. See `is_same`."""
    found_fields = astuple(found)
    if _LEAVES.issuperset(map(type, fields)) and list(map(type, fields)) == list(map(type, found_fields)):
        return fields == found_fields
    return type(given) is type(found) and all(map(is_same, fields, found_fields))


_ABSENT: Final = enum.Enum("_ABSENT", "ABSENT").ABSENT  # type: ignore[attr-defined]


def _zone(at: datetime.datetime | datetime.time) -> tuple[object, ...]:
    """Return what is lost if a time is written with no more than its distance from UTC."""
    return at.utcoffset(), type(at.tzinfo), at.fold if at.tzinfo is None else 0


def _field_names(kind: type) -> tuple[str, ...] | None:
    """Return the names of the fields of a dataclass or an attrs class; None for any other type."""
    fields = getattr(kind, "__dataclass_fields__", None)
    if fields is not None:
        return tuple(fields)
    fields = getattr(kind, "__attrs_attrs__", None)
    return None if fields is None else tuple(field.name for field in fields)


def _extra(value: Any, names: Sequence[str]) -> list[str]:
    """Return the names of attributes that somebody has set beside the fields; what is cached can be computed again."""
    return [
        name
        for name in getattr(value, "__dict__", ())
        if name not in names and not isinstance(getattr(type(value), name, None), functools.cached_property)
    ]


# ── Where it does not ────────────────────────────────────────────────────────────────────────────────────────────────


class _Fault(msgspec.Struct, frozen=True):
    code: str
    message: str
    path: str


def _fault_in(value: Any, path: str = "$") -> _Fault | None:
    """Return what no annotation can make storable: the first such value, and where it stands."""
    if isinstance(value, str):
        return None if is_utf8(value) else _Fault("invalid_text", f"{value!a:.40} holds a lone surrogate", path)
    if isinstance(value, float):
        return None if math.isfinite(value) else _Fault("non_finite_number", f"{value!r} is not a JSON number", path)
    if isinstance(value, int):
        size = value.bit_length()
        message = f"an integer of {size} bits cannot be stored exactly here"
        return None if size <= MAX_INT_BITS else _Fault("number_too_large", message, path)
    parts = _parts(value)
    if parts is not None:
        faults = (_fault_in(part, path + step) for step, part in parts)
        return next((fault for fault in faults if fault is not None), None)
    try:
        _encode(value)
    except Exception as error:
        why = "" if isinstance(error, TypeError) else f": {error}"
        return _Fault("unsupported_type", f"{_name(type(value))} is not plain data, nor known to msgspec{why}", path)
    return None


def _difference(given: Any, found: Any) -> tuple[str, Any, Any]:
    """Return the path to the first value that does not come back, as deep as it can be told, and what comes back."""
    path = "$"
    while True:
        inside = _differing_part(given, found)
        if inside is None:
            return path, given, found
        step, given, found = inside
        path += step


def _differing_part(given: Any, found: Any) -> tuple[str, Any, Any] | None:
    if type(given) is not type(found) or isinstance(given, set | frozenset):
        return None
    parts = dict(_parts(given) or ())
    others = dict(_parts(found) or ())
    if parts.keys() != others.keys():
        return None
    return next(
        ((step, part, others[step]) for step, part in parts.items() if not is_same(part, others[step])),
        None,
    )


def _parts(value: Any) -> Iterator[tuple[str, Any]] | None:
    """Return what the value is made of, each part behind the step that leads to it; None for a leaf."""
    if isinstance(value, dict):
        keys = ((f" (the key {key!a:.40})", key) for key in value if type(key) is not str or not is_utf8(key))
        return iter([*keys, *((_step(key), item) for key, item in value.items())])
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return iter([(f".{name}", item) for name, item in zip(value._fields, value, strict=True)])
    if isinstance(value, list | tuple | set | frozenset):
        return ((f"[{index}]", item) for index, item in enumerate(value))
    if isinstance(value, msgspec.Struct):
        return ((f".{name}", getattr(value, name)) for name in value.__struct_fields__)
    names = _field_names(type(value))
    if names is None:
        return None
    return ((f".{name}", getattr(value, name, None)) for name in (*names, *_extra(value, names)))


def _step(key: Any) -> str:
    name = key if type(key) is str else ""
    return f".{name}" if name.isidentifier() and len(name) <= 40 else f"[{key!a:.40}]"


_PATH_AT_END: Final = re.compile(r"(?P<message>.*) - at `(?P<path>\$.*)`", re.DOTALL)


def _split(error: Exception | None) -> tuple[str, str]:
    """Return what msgspec says, and the path that it names behind."""
    found = _PATH_AT_END.fullmatch(str(error))
    return (found["message"], found["path"]) if found is not None else (str(error) or repr(error), "$")


def described(annotation: Any) -> str:
    """Return the annotation as a person writes it."""
    if isinstance(annotation, typing.ForwardRef):
        annotation = annotation.__forward_arg__
    if isinstance(annotation, str):
        return f"{annotation:.80}"
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return _name(annotation)
    return f"{annotation!r:.120}".replace("typing.", "")


def _name(kind: type) -> str:
    """Return the name of a type as people know it: local ones without the function they stand in."""
    name = kind.__qualname__.rpartition("<locals>.")[2]
    return name if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{name}"


def _brief(value: Any) -> str:
    return f"{value!r:.80} ({_name(type(value))})"


# ── Functions ────────────────────────────────────────────────────────────────────────────────────────────────────────


def codec_of(function: Callable[..., Any]) -> ValueCodec:
    """Return the codec for what a function returns; quick for a function that has been asked about before."""
    named = _named(function)
    try:
        known = _codecs.get(named)
    except TypeError:  # neither weakly referenced nor hashed
        return codec_for(returns(function))
    if known is None:
        known = codec_for(returns(function))
        if not isinstance(known.annotation, str | typing.ForwardRef):  # a name may be defined later
            try:
                _codecs[named] = known
            except TypeError:
                pass
    return known


_codecs: Final[WeakKeyDictionary[Any, ValueCodec]] = WeakKeyDictionary()


def returns(function: Callable[..., Any]) -> Any:
    """Return what the annotation says that a call gives, awaited if it is awaitable; Any without an annotation.

    The function may be async or not, a method, a partial, an object that can be called, a class (which gives itself).
    A name that cannot be resolved is returned as it is written, as a str or a ForwardRef.
    """
    named = _named(function)
    if isinstance(named, type):
        return named
    try:
        annotation = _annotations_of(named)["return"]
    except KeyError:
        return Any
    except Exception:  # annotations that are evaluated only now may raise anything
        return Any
    annotation = _resolved(annotation, named)
    return annotation if inspect.iscoroutinefunction(named) else _awaited(annotation)


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature, also where an annotation names what is not there; quick from the second time on."""
    try:
        known = _signatures.get(function)
        if known is None:
            known = _signatures[function] = _signature_of(function)
    except TypeError:  # neither weakly referenced nor hashed, or no signature
        return _signature_of(function)
    return known


_signatures: Final[WeakKeyDictionary[Any, inspect.Signature]] = WeakKeyDictionary()


def parameters(function: Callable[..., Any], count: int) -> list[Any]:
    """Return the annotations of the first `count` positional arguments behind the first one, which is the context.

    `*args: T` stands for as many as are missing; any other that has no annotation, or no parameter, is Any.
    """
    named = _named(function)
    given = list(signature_of(function).parameters.values())[1:]
    positional = [each for each in given if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    rest = next((each for each in given if each.kind is each.VAR_POSITIONAL), None)
    chosen = [*positional[:count], *[rest] * (count - len(positional))]
    return [
        Any if each is None or each.annotation is each.empty else _resolved(each.annotation, named) for each in chosen
    ]


def check_arguments(function: Callable[..., Any], args: Sequence[Any]) -> None:
    """Return if `function(context, *args)` is a call that the signature allows.

    Raises InvalidInput(`invalid_argument`). The types of the arguments are left to their codecs.
    """
    try:
        signature_of(function).bind(None, *args)
    except TypeError as error:
        name = getattr(_named(function), "__name__", repr(function))
        raise InvalidInput("invalid_argument", f"{name!r:.80} cannot be called with these arguments: {error}") from None


def digest_of(args: tuple[Any, ...]) -> str | None:
    """Return 16 hex digits that tell these arguments from others, or None if they have no JSON text.

    Equal in every process: members of sets and keys of mappings are sorted. A tuple and a list are not told apart.
    """
    try:
        return sha256(_encode_sorted(args)).hexdigest()[:_DIGEST_DIGITS]
    except Exception:  # whatever the arguments' own code raises, they may still be good arguments
        return None


def _named(function: Any) -> Any:
    """Return the function, or the class, that carries the annotations of something that can be called."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, types.MethodType):
            function = function.__func__
        elif isinstance(function, types.FunctionType | types.BuiltinFunctionType | type):
            return function
        else:
            call = getattr(type(function), "__call__", None)  # noqa: B004 - the attribute itself is wanted
            if not isinstance(call, types.FunctionType):
                return function
            return call


def _resolved(annotation: Any, function: Any) -> Any:
    """Return the annotation with the names in it resolved where the function stands; as it is if that fails."""
    if annotation is None:
        return type(None)
    if type(annotation) is type:
        return annotation
    inner = inspect.unwrap(function)
    try:
        hints = typing.get_type_hints(
            _carrying(annotation), getattr(inner, "__globals__", {}), _closure(inner), include_extras=True
        )
    except Exception:  # a name may be anything, or nothing
        return annotation
    return hints["it"]


def _carrying(annotation: Any) -> Callable[[], None]:
    """Return a function with this annotation alone: another one that cannot be resolved does not matter to it."""

    def carrier() -> None: ...

    carrier.__annotations__ = {"it": annotation}
    return carrier


def _closure(function: Any) -> dict[str, Any]:
    """Return the variables around the function that it uses: classes that are local to a function are among them."""
    code = getattr(function, "__code__", None)
    cells = getattr(function, "__closure__", None)
    found: dict[str, Any] = {}
    if code is None or cells is None:
        return found
    for name, cell in zip(code.co_freevars, cells, strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return found


def _awaited(annotation: Any) -> Any:
    """Return T for Awaitable[T], Coroutine[…, …, T], Task[T] and the like; anything else as it is."""
    origin = typing.get_origin(annotation)
    if isinstance(origin, type) and issubclass(origin, Awaitable):
        args = typing.get_args(annotation)
        return args[-1] if args else Any
    if isinstance(annotation, type) and issubclass(annotation, Awaitable):
        return Any
    return annotation
