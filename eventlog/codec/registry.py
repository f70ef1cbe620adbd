"""Which Struct stands for which event type, and what former types became."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from eventlog.codec.encoding import Encoder, spell_sorted
from eventlog.codec.names import MAX_SCHEMA_VERSION, Divided, Entry, Gone, Live, Names, check_type
from eventlog.codec.readings import UNREADABLE, Decode, Decoded, Reading, make_reading, unreadable
from eventlog.codec.upcasting import Chain, Split, Upcast
from eventlog.errors import InvalidInput
from eventlog.events import LOG_EVENTS, RUN_EVENTS
from eventlog.log import RecordedEvent, Retired
from eventlog.plain import Limits

__all__ = ["Registry"]

S = TypeVar("S", bound=msgspec.Struct)


class Registry:
    """Which Struct stands for which event type. A program registers its types once, when its modules are imported.

    Every registry knows the engine's own events, except one that stands in for a program of another version, as tools
    and tests have (`knows_engine=False`).
    """

    def __init__(self, *, knows_engine: bool = True) -> None:
        self._names = Names()
        self._by_class: dict[type[msgspec.Struct], tuple[str, int]] = {}
        self._readings: dict[tuple[str, int], Reading] = {}
        self._encoder = Encoder(self._by_class)
        for name, cls in (*RUN_EVENTS.items(), *LOG_EVENTS.items()) if knows_engine else ():
            self.register(cls, name)

    # ── declaring types ──────────────────────────────────────────────────────────────────────────────────────────────

    def register(
        self,
        cls: type[S],
        type_name: str,
        *,
        schema_version: int = 1,
        upcast: Mapping[int, Upcast] | None = None,
        renamed_from: Iterable[str] = (),
    ) -> type[S]:
        """Register `cls` as the current shape of `type_name` and return it.

        `upcast[n]` turns the mapping of schema version n into that of n + 1; there must be one for each earlier
        version. `renamed_from` are the names that the type had before: its versions are one series, whatever it was
        called. Raises InvalidInput: `invalid_argument` if the chain has a hole, `event_type_conflict` if a name is
        taken, or registered already with something else.
        """
        chain = _chain(type_name, schema_version, upcast)
        if chain.steps and cls.__struct_config__.array_like:
            raise InvalidInput("invalid_argument", f"{cls.__qualname__} is stored as a list; upcasters give mappings")
        decode = msgspec.json.Decoder(cls).decode
        self._add(Live(check_type(type_name), _former(renamed_from), chain, cls, decode))
        self._by_class[cls] = (type_name, schema_version)
        return cls

    def split(
        self,
        decide: Split,
        type_name: str,
        *,
        into: Mapping[str, int] | Iterable[str],
        schema_version: int = 1,
        upcast: Mapping[int, Upcast] | None = None,
        renamed_from: Iterable[str] = (),
    ) -> None:
        """Declare that each event of the former type `type_name` is of one of the types `into` now.

        `decide(mapping)` gets an event's plain data, in the shape of the `schema_version` that the former type had at
        last, to which `upcast` brings older ones. It returns the type that the event is, and its mapping in the shape
        of that type's schema version that `into` states (1, if it is a list of names); from there on its own upcasters
        are used. An event stays one event at its position. Raises InvalidInput as `register` does.
        """
        if isinstance(into, str):
            raise InvalidInput("invalid_argument", f"`into` is several event types, not the text {into!r:.80}")
        versions = dict(into) if isinstance(into, Mapping) else dict.fromkeys(into, 1)
        if not versions:
            raise InvalidInput("invalid_argument", f"{type_name!r} is split into no type; retire it instead")
        for target, version in versions.items():
            _check_version(check_type(target), version)
        chain = _chain(type_name, schema_version, upcast)
        self._add(Divided(check_type(type_name), _former(renamed_from), chain, versions, decide))

    def retire(self, type_name: str) -> None:
        """Declare that events of the former type `type_name` mean nothing any more; they are read as `Retired`.

        Raises InvalidInput(`event_type_conflict`) if the name stands for something else.
        """
        self._add(Gone(check_type(type_name)))

    def _add(self, entry: Entry) -> None:
        self._names.add(entry)
        self._readings = {}  # another one: a thread that is looking at what stood before may still write into the old

    # ── asking about types ───────────────────────────────────────────────────────────────────────────────────────────

    def type_of(self, cls: type) -> tuple[str, int]:
        """Return the (type, schema_version) that `cls` is registered for. Raises InvalidInput(`unsupported_type`)."""
        try:
            return self._by_class[cls]
        except KeyError:
            raise InvalidInput(
                "unsupported_type", f"{cls.__qualname__} is not registered; decorate it with @eventlog.event(name)"
            ) from None

    def classes(self) -> frozenset[type[msgspec.Struct]]:
        """Return every Struct that is registered."""
        return frozenset(self._by_class)

    def current_version(self, type_name: str) -> int:
        """Return the schema version that events of this type are written in.

        Raises InvalidInput: `event_type_former` for a name under which none are written any more, `unsupported_type`
        for an unknown one.
        """
        entry = self._writable(type_name)
        if entry is None:
            raise InvalidInput("unsupported_type", f"no Struct is registered for the event type {type_name!r}")
        return entry.chain.schema_version

    def known_version(self, type_name: str) -> int | None:
        """Return the highest schema version of this type, by any name it ever had, that is known here; None if none."""
        entry = self._names.get(type_name)
        return None if entry is None or isinstance(entry, Gone) else entry.chain.schema_version

    def is_known(self, type_name: str) -> bool:
        """Say whether the name is that of a type here, or ever was: whether anybody declared it."""
        return self._names.get(type_name) is not None

    def knows(self, type_name: str, schema_version: int) -> bool:
        """Say whether events stored so are read as registered Structs, or as `Retired`."""
        return self.reading(type_name, schema_version).is_known

    def check_writable(self, type_name: str, schema_version: int) -> None:
        """Check that plain data may be written so: under a current name, and never in an older shape.

        Raises InvalidInput: `event_type_former`, `schema_version_old`.
        """
        entry = self._writable(type_name)
        if entry is not None and schema_version < entry.chain.schema_version:
            raise InvalidInput(
                "schema_version_old",
                f"{type_name!r} is at schema version {entry.chain.schema_version} here and is written in no older one, "
                f"as {schema_version} is",
                type=type_name,
                found=schema_version,
                known=entry.chain.schema_version,
            )

    def stored_names(self, types: Iterable[str]) -> frozenset[str]:
        """Return every name under which events that may be read as one of `types` are stored, these among them.

        A former name means what became of it: its current type; the types that it was split into. An event that is read
        under one of these names is one that was asked for: of a former name, it is one of a split type in a newer
        schema version, which nobody here can tell from those that it became.
        """
        return self._names.stored(types)

    def _writable(self, type_name: str) -> Live | None:
        """Return the entry of a type that is written in, None if nobody registered the name. Raises InvalidInput."""
        entry = self._names.get(type_name)
        if entry is None or (isinstance(entry, Live) and entry.name == type_name):
            return entry
        now = sorted(self._names.became(type_name))
        if isinstance(entry, Gone):
            became, now = "retired", []
        else:
            became = f"{'split into' if isinstance(entry, Divided) else 'renamed'} {', '.join(now)}"
        message = f"the event type {type_name!r} was {became}"
        raise InvalidInput("event_type_former", message, type=type_name, now=now)

    # ── bytes ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def encode(self, data: Any, limits: Limits) -> bytes:
        """Return the JSON bytes of plain data or of a Struct, exact: decoding them gives an equal value.

        Raises InvalidInput with the path to what cannot be stored.
        """
        return self._encoder.encode(data, limits)

    def decode(self, type_name: str, schema_version: int, body: bytes) -> Any:
        """Return the data of an event that was stored so; plain for a type or schema version that is not known here.

        Raises InvalidInput(`invalid_event`) if the stored shape cannot be read as the registered one.
        """
        return self.read(type_name, schema_version, body).data

    def read(
        self,
        stored_type: str,
        schema_version: int,
        body: bytes,
        *,
        position: int | None = None,
        stream: str | None = None,
    ) -> Decoded:
        """Return an event that was stored so as it is read: with its type of today and its data.

        Raises InvalidInput(`invalid_event`) as `decode`; it says where the event stands, if that is given.
        """
        reading = self.reading(stored_type, schema_version)
        try:
            data = reading.decode(body)
        except UNREADABLE as error:
            raise unreadable(stored_type, schema_version, error, position=position, stream=stream) from error
        name = reading.type
        if name is None:
            name, data = data
        return Decoded(name, None if name == stored_type else stored_type, data, reading.is_known)

    def reading(
        self, stored_type: str, schema_version: int, shapes: Mapping[str, type[msgspec.Struct]] | None = None
    ) -> Reading:
        """Return how events that are stored so are read. Good for many of them, as long as nothing is registered.

        With `shapes`, those of a type named there are read into that Struct, which has some of the fields of the
        registered one and leaves out the others, unchecked. Raises InvalidInput(`invalid_argument`) for a Struct that
        cannot leave out any.
        """
        if shapes is not None:
            return make_reading(self._names, stored_type, schema_version, self._decoders(shapes))
        readings = self._readings
        reading = readings.get((stored_type, schema_version))
        if reading is None:
            reading = make_reading(self._names, stored_type, schema_version, {})
            if reading.is_known:  # of others there may be any number
                readings[stored_type, schema_version] = reading
        return reading

    def _decoders(self, shapes: Mapping[str, type[msgspec.Struct]]) -> dict[str, Decode]:
        decoders: dict[str, Decode] = {}
        for name, shape in shapes.items():
            if shape.__struct_config__.forbid_unknown_fields:
                name = shape.__qualname__
                raise InvalidInput("invalid_argument", f"{name} has to allow fields that it does not name")
            decoder = msgspec.json.Decoder(shape).decode
            decoders |= dict.fromkeys(self._names.became(name), decoder)
        return decoders

    def in_current_shape(self, event: RecordedEvent) -> tuple[int, Any]:
        """Return an event's data as plain data, and the schema version of `event.type` that this is the shape of.

        As stored, if it is in today's shape already, retired or not known here; else as its Struct is written today.
        """
        entry = self._names.get(event.type)
        is_split = isinstance(self._names.get(event.stored_type or event.type), Divided)
        if not isinstance(entry, Live) or not event.is_known:
            return event.schema_version, event.data.data if isinstance(event.data, Retired) else event.data
        version = entry.chain.schema_version
        if version == event.schema_version and not is_split:
            return version, msgspec.json.decode(event.body)
        return version, msgspec.json.decode(spell_sorted(event.data))


def _chain(type_name: str, schema_version: int, upcast: Mapping[int, Upcast] | None) -> Chain:
    steps = dict(upcast or {})
    _check_version(type_name, schema_version)
    if sorted(steps) != list(range(1, schema_version)):
        raise InvalidInput(
            "invalid_argument", f"{type_name!r} needs one upcaster for each version below {schema_version}"
        )
    return Chain(schema_version, steps)


def _check_version(type_name: str, schema_version: int) -> None:
    if type(schema_version) is not int or not 1 <= schema_version <= MAX_SCHEMA_VERSION:
        raise InvalidInput(
            "invalid_argument", f"a schema version of {type_name!r} is an int from 1 to {MAX_SCHEMA_VERSION}"
        )


def _former(names: Iterable[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise InvalidInput("invalid_argument", f"`renamed_from` is a list of event types, not the text {names!r:.80}")
    return tuple(map(check_type, names))
