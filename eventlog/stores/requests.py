"""What a caller asks for, checked and encoded, before a store sees it.

Everything that can be refused without looking at the log is refused here: bad ids, data that has no exact form, too
much of it, reserved streams. A store works on `Request`s only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from eventlog.codec import MAX_SCHEMA_VERSION, MAX_TYPE_BYTES, Registry
from eventlog.entry import NO_ID
from eventlog.errors import AppendTooLate, InvalidInput, Misuse
from eventlog.ids import new_event_id
from eventlog.log import Append, Expect, NewEvent
from eventlog.plain import Limits, check_id
from eventlog.scanning import Scanner
from eventlog.stores.refused_secrets import refuse_secret, refuse_secret_in_name

__all__ = [
    "NO_BODY",
    "EncodedEvent",
    "Part",
    "Request",
    "Wanted",
    "Write",
    "check_actor",
    "check_event_id",
    "check_limit",
    "check_position",
    "check_stream",
    "check_wanted",
    "make_request",
    "make_writing_request",
]

MAX_ACTOR_BYTES: Final = 256
MAX_CORRELATION_BYTES: Final = 512
MAX_SUBJECT_BYTES: Final = 512
MAX_POSITION: Final = 2**63 - 1
NO_BODY: Final = b""
"""In place of a body that is made only in the transaction."""


class EncodedEvent(msgspec.Struct, frozen=True, gc=False):
    """One event, its data as the JSON bytes that will be stored."""

    type: str
    schema_version: int
    event_id: bytes
    correlation_id: str | None
    causation_id: bytes | None
    body: bytes


Write = Callable[[Any], bytes]
"""Called with the connection inside the transaction; returns the event's body."""


class Part(msgspec.Struct, frozen=True, gc=False):
    """The events for one stream, and where the caller thinks it is."""

    stream: str
    events: list[EncodedEvent]
    expect: Expect
    subject: str | None = None
    subject_of: str | None = None


class Request(msgspec.Struct, frozen=True, gc=False):
    """One call of `append` or `append_many`."""

    parts: list[Part]
    checks: Sequence[tuple[str, Expect]]
    actor: str
    size: int
    """How many events."""
    write: Write | None = None
    """What is written in the same transaction, and makes the body of the one event."""
    before_us: int | None = None
    """It is recorded before this time, or not at all."""

    def lateness(self, at_us: int) -> AppendTooLate | None:
        """Return the refusal of the request if `at_us`, when it would be recorded, is too late for it."""
        if self.before_us is None or at_us < self.before_us:
            return None
        return AppendTooLate(at_us, self.before_us)

    def event_ids(self) -> list[bytes]:
        return [event.event_id for part in self.parts for event in part.events]


class Wanted(msgspec.Struct, frozen=True):
    """Which events a reader of the log asked for: of these types, in streams whose names begin so, in these streams.

    `types` are all the names under which such events may be stored, those of today among them; see
    `Registry.stored_names`. So `has` says no to a stored name only if nothing stored so is wanted; to the name of today
    it says exactly.
    """

    types: frozenset[str] | None
    stream_prefix: str
    streams: frozenset[str] | None = None

    def has(self, type: str, stream: str) -> bool:
        return (
            (self.types is None or type in self.types)
            and stream.startswith(self.stream_prefix)
            and (self.streams is None or stream in self.streams)
        )


def make_request(
    appends: Sequence[Append],
    checks: Sequence[tuple[str, Expect]],
    *,
    actor: str,
    correlation_id: str | None,
    causation_id: bytes | None,
    registry: Registry,
    limits: Limits,
    scanner: Scanner | None = None,
    is_reserved_allowed: bool = False,
    before_us: int | None = None,
) -> Request:
    """Return the call as a request. Raises InvalidInput or Misuse; nothing was written then."""
    if not appends:
        raise InvalidInput("invalid_argument", "append_many needs at least one stream to append to")
    size = 0
    parts = []
    for append in appends:
        size += len(_events_of(append))
    if size > limits.events_per_call:
        raise InvalidInput("batch_too_large", f"{size} events in one call, {limits.events_per_call} are allowed")
    for append in appends:
        parts.append(_part(append, registry, limits, scanner, correlation_id, causation_id, is_reserved_allowed))
    if checks:
        checks = [(check_stream(stream, limits), _expect(expect)) for stream, expect in checks]
    request = Request(parts, checks, check_actor(actor), size, before_us=before_us)
    _refuse_secret_names(scanner, request)
    if len(parts) > 1 and len({part.stream for part in parts}) != len(parts):
        raise InvalidInput("invalid_argument", "a stream stands twice in one append_many; put its events together")
    if size > 1 and len(set(request.event_ids())) != size:
        raise Misuse("event_id_conflict", "an event id stands twice in one call")
    return request


def make_writing_request(
    stream: str,
    type: str,
    make: Callable[[Any], Any],
    expect: Expect,
    *,
    actor: str,
    correlation_id: str | None,
    event_id: bytes | None = None,
    registry: Registry,
    limits: Limits,
    scanner: Scanner | None = None,
) -> Request:
    """Return the request to append the one event that `make` returns when it is called inside the transaction."""

    def write(connection: Any) -> bytes:
        event = make(connection)
        if registry.type_of(event.__class__) != (type, schema_version):
            raise InvalidInput("invalid_event", f"{event.__class__.__qualname__} is no {type!r}")
        body = registry.encode(event, limits)
        refuse_secret(scanner, body, stream)
        return body

    schema_version = registry.current_version(check_id(type, "event type", max_bytes=MAX_TYPE_BYTES))
    own_id = new_event_id() if event_id is None else check_event_id(event_id)
    event = EncodedEvent(type, schema_version, own_id, correlation_id, None, NO_BODY)
    part = Part(check_stream(stream, limits), [event], _expect(expect))
    request = Request([part], (), check_actor(actor), 1, write)
    _refuse_secret_names(scanner, request)
    return request


def _refuse_secret_names(scanner: Scanner | None, request: Request) -> None:
    """Refuse a secret in what no erasure takes away."""
    if scanner is None:
        return
    refuse_secret_in_name(scanner, request.actor, "actor")
    for part in request.parts:
        refuse_secret_in_name(scanner, part.stream, "name of the stream")
        for event in part.events:
            refuse_secret_in_name(scanner, event.type, "event type")
            refuse_secret_in_name(scanner, event.correlation_id, "correlation id")


def check_stream(stream: str, limits: Limits) -> str:
    """Return `stream` if it can name a stream; raises InvalidInput(`invalid_id`)."""
    return check_id(stream, "stream", max_bytes=limits.id_bytes)


def check_actor(actor: str) -> str:
    """Return `actor` if it can name who did something; raises InvalidInput(`invalid_id`)."""
    return check_id(actor, "actor", max_bytes=MAX_ACTOR_BYTES)


def check_position(value: int, what: str) -> int:
    """Return `value` if it is a cursor: an int from 0. Raises InvalidInput(`invalid_argument`)."""
    if type(value) is not int or not 0 <= value <= MAX_POSITION:
        raise InvalidInput(
            "invalid_argument", f"`{what}` is an int from 0 to 2**63 - 1, not this {type(value).__name__}"
        )
    return value


def check_limit(value: int | None) -> int | None:
    """Return `value` if it can bound a read: an int from 0, or None. Raises InvalidInput(`invalid_argument`)."""
    return None if value is None else check_position(value, "limit")


def check_wanted(
    types: Iterable[str] | None,
    stream_prefix: str | None,
    registry: Registry,
    streams: Iterable[str] | None = None,
) -> Wanted | None:
    """Return what a reader asks for, or None if that is everything. Raises InvalidInput(`invalid_argument`).

    A former name means what became of it. A single text for `types` or `streams`
    would be taken for its letters, so it is refused.
    """
    if isinstance(types, str):
        raise InvalidInput("invalid_argument", f"`types` is a list of event types, not the text {types!r:.40}")
    if stream_prefix is not None and type(stream_prefix) is not str:
        raise InvalidInput("invalid_argument", f"`stream_prefix` is a text, not {stream_prefix!r:.40}")
    if types is None and not stream_prefix and streams is None:
        return None
    names = None if types is None else registry.stored_names(types)
    return Wanted(names, stream_prefix or "", _streams(streams))


def _streams(streams: Any) -> frozenset[str] | None:
    if streams is None:
        return None
    found = frozenset(streams) if isinstance(streams, Iterable) and not isinstance(streams, str) else {None}
    if not all(type(stream) is str for stream in found):
        raise InvalidInput("invalid_argument", f"`streams` is a list of names of streams, not {streams!r:.40}")
    return frozenset(found)


def check_event_id(value: bytes) -> bytes:
    """Return `value` if it can be an event's id; raises InvalidInput(`invalid_id`)."""
    return _id(value, "event id")


def _events_of(append: Append) -> Sequence[Any]:
    if not isinstance(append, Append):
        raise InvalidInput("invalid_argument", f"append_many takes Appends, not a {type(append).__name__}")
    events = append.events
    if type(events) is not list and (
        isinstance(events, (str, bytes, dict, msgspec.Struct)) or not isinstance(events, Sequence)
    ):
        raise InvalidInput("invalid_argument", f"events are a list, not a {type(events).__name__}")
    if not events:
        raise InvalidInput("invalid_argument", f"no events to append to {append.stream!r:.80}")
    return events


def _expect(expect: Expect) -> Expect:
    if not isinstance(expect, Expect):
        raise InvalidInput("invalid_argument", f"`expect` is an Expect, not a {type(expect).__name__}")
    return expect


def _part(
    append: Append,
    registry: Registry,
    limits: Limits,
    scanner: Scanner | None,
    correlation_id: str | None,
    causation_id: bytes | None,
    is_reserved_allowed: bool,
) -> Part:
    stream = check_id(append.stream, "stream", max_bytes=limits.id_bytes)
    if not is_reserved_allowed and stream.startswith(("run:", "$")):
        raise Misuse("reserved_stream", f"the stream {stream!r} belongs to the engine", stream=stream)
    events = []
    for index, event in enumerate(append.events):
        try:
            encoded = _encoded(event, registry, limits, correlation_id, causation_id)
            refuse_secret(scanner, encoded.body, stream)
            events.append(encoded)
        except InvalidInput as error:
            if len(append.events) == 1:
                raise
            message = str(error).removesuffix(f" (at {error.path})")
            raise InvalidInput(error.code, f"event {index} of {stream!r}: {message}", **error.details) from None
    subject = append.subject
    if subject is not None:
        check_id(subject, "subject", max_bytes=MAX_SUBJECT_BYTES)
        if stream.startswith("$"):
            raise InvalidInput("invalid_argument", f"the stream {stream!r} is about the log, and about nobody")
    shared = append.subject_of
    if shared is not None:
        check_stream(shared, limits)
    return Part(stream, events, _expect(append.expect), subject, shared)


def _encoded(
    event: Any, registry: Registry, limits: Limits, correlation_id: str | None, causation_id: bytes | None
) -> EncodedEvent:
    if isinstance(event, NewEvent):
        type_name, schema_version, data = _of_new_event(event, registry)
        event_id = _id(event.event_id, "event id")
        if event.correlation_id is not None:
            correlation_id = event.correlation_id
        if event.causation_id is not None:
            causation_id = event.causation_id
    elif isinstance(event, msgspec.Struct):
        type_name, schema_version = registry.type_of(type(event))
        data = event
        event_id = new_event_id()
    else:
        raise InvalidInput(
            "unsupported_type", f"an event is a registered Struct or a NewEvent, not {type(event).__name__}"
        )
    if correlation_id is not None:
        check_id(correlation_id, "correlation id", max_bytes=MAX_CORRELATION_BYTES)
    if causation_id is not None:
        _id(causation_id, "causation id")
    body = registry.encode(data, limits)
    if data is not event and not isinstance(data, msgspec.Struct) and registry.knows(type_name, schema_version):
        registry.decode(type_name, schema_version, body)  # plain data of a registered type must have its shape
    return EncodedEvent(type_name, schema_version, event_id, correlation_id, causation_id, body)


def _of_new_event(event: NewEvent, registry: Registry) -> tuple[str, int, Any]:
    type_name = check_id(event.type, "event type", max_bytes=MAX_TYPE_BYTES)
    data = event.data
    if isinstance(data, msgspec.Struct):
        registered, schema_version = registry.type_of(type(data))
        if registered != type_name:
            raise InvalidInput("invalid_event", f"{type(data).__qualname__} is a {registered!r}, not a {type_name!r}")
        return type_name, schema_version, data
    if type(event.schema_version) is not int or not 1 <= event.schema_version <= MAX_SCHEMA_VERSION:
        raise InvalidInput("invalid_argument", f"a schema version is an int from 1 to {MAX_SCHEMA_VERSION}")
    registry.check_writable(type_name, event.schema_version)
    return type_name, event.schema_version, data


def _id(value: bytes, what: str) -> bytes:
    if type(value) is not bytes or len(value) != 16 or value == NO_ID:
        raise InvalidInput("invalid_id", f"the {what} must be 16 bytes that are not all zero", what=what)
    return value
