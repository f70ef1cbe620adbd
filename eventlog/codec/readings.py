"""How the events of one stored type and schema version are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, assert_never

import msgspec

from eventlog.codec.names import Divided, Gone, Live, Names
from eventlog.codec.upcasting import bring_up, decide_split, mapping_in, spell
from eventlog.errors import InvalidInput
from eventlog.log import Retired

__all__ = ["UNREADABLE", "Decode", "Decoded", "Reading", "make_reading", "unreadable"]

Decode = Callable[[bytes], Any]

UNREADABLE: Final = (InvalidInput, msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What reading a stored body raises, whatever bytes it is: see `unreadable`. Nobody stores what is nested so deeply
that reading it ends in a RecursionError; a body that was put into a database may be."""

_decode_plain: Final = msgspec.json.Decoder().decode


class Reading(msgspec.Struct, frozen=True):
    """How the events of one stored type and schema version are read. Asked for once for many of them.

    `type` is their name of today. It is None where each event's content decides it, after a split: then `decode` gives
    a pair, the type and the data. `is_known` says whether the data is of the registered Struct (`is_retired`: of
    `Retired`); else it is plain. `decode` raises what is `UNREADABLE`.
    """

    type: str | None
    decode: Decode
    is_known: bool
    is_retired: bool = False


class Decoded(NamedTuple):
    """An event as it is read: its name of today, the stored one where that is another, its data."""

    type: str
    stored_type: str | None
    data: Any
    is_known: bool


def make_reading(names: Names, stored_type: str, schema_version: int, shapes: Mapping[str, Decode]) -> Reading:
    """Return how to read these events, those of a type in `shapes`, by its name of today, with the decoder there."""
    entry = names.get(stored_type)
    if isinstance(entry, Gone):
        return Reading(entry.name, _decode_retired, is_known=True, is_retired=True)
    if entry is None or schema_version > entry.chain.schema_version:
        return Reading(stored_type if entry is None else entry.name, _decode_plain, is_known=False)
    if isinstance(entry, Divided):
        return Reading(None, partial(_read_split, names, shapes, entry, schema_version), is_known=True)
    decode = shapes.get(entry.name, entry.decode)
    if schema_version < entry.chain.schema_version:
        decode = partial(_read_old, decode, entry, schema_version)
    return Reading(entry.name, decode, is_known=True)


def unreadable(
    stored_type: str, schema_version: int, error: Exception, *, position: int | None = None, stream: str | None = None
) -> InvalidInput:
    """Return the InvalidInput(`invalid_event`) that says which event cannot be read, and why: what `decode` raised."""
    message = f"a stored {stored_type!r} of schema version {schema_version} cannot be read: {error}"
    where: dict[str, Any] = {"type": stored_type, "schema_version": schema_version}
    if isinstance(error, InvalidInput) and "step" in error.details:
        where["step"] = error.details["step"]
    if position is not None:
        message = f"position {position} of stream {stream!r}: {message}"
        where |= {"position": position, "stream": stream}
    return InvalidInput("invalid_event", message, **where)


def _decode_retired(body: bytes) -> Retired:
    return Retired(_decode_plain(body))


def _read_old(decode: Decode, entry: Live, schema_version: int, body: bytes) -> Any:
    return decode(spell(bring_up(entry.chain, mapping_in(body), schema_version, entry.name)))


def _read_split(
    names: Names, shapes: Mapping[str, Decode], entry: Divided, schema_version: int, body: bytes
) -> tuple[str, Any]:
    """Return what an event is now and its data. A type that it became may have been renamed, split or retired since."""
    mapping = mapping_in(body)
    while True:
        mapping = bring_up(entry.chain, mapping, schema_version, entry.name)
        target, mapping = decide_split(entry.decide, mapping, entry.name)
        if target not in entry.into:
            raise InvalidInput(
                "invalid_event",
                f"the split of {entry.name!r} gave the type {target!r:.80}, not one of {', '.join(entry.into)}",
                step=f"the split of {entry.name!r}",
            )
        schema_version = entry.into[target]
        found = names.get(target)
        match found:
            case Live(name=name, chain=chain, decode=decode):
                mapping = bring_up(chain, mapping, schema_version, name)
                return name, shapes.get(name, decode)(spell(mapping))
            case Gone(name=name):
                return name, Retired(mapping)
            case Divided():
                entry = found
            case None:
                raise InvalidInput(
                    "invalid_event",
                    f"it became {target!r}, which is not registered here",
                    step=f"the split of {entry.name!r}",
                )
            case _:
                assert_never(found)
