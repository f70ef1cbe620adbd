"""The contract of a log: what every store promises, in words and types.

* `append` returns only when its events are *durable*. All events of one call become durable together or not at all.
* Events of a stream have versions 1, 2, 3, … without gaps; events of the log have positions 1, 2, 3, … without gaps, in
  the order in which they became durable. Positions are ordered; other than that a caller reads nothing into them.
* An event is the same for ever: same position, version, bytes and leaf, and is verified against its leaf when it is
  read.
* An append whose event ids are all stored already, one behind the other in the log and with the same content, returns
  the original result with `deduplicated=True`, whatever it expected. So repeating a call is always safe.
* Readers hold no lock and no transaction while the caller looks at an event.
* A cancelled `append` means "not told": the events may be stored or not; repeating the call settles it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import msgspec

from eventlog.errors import InvalidInput
from eventlog.heads import SignedHead
from eventlog.ids import new_event_id
from eventlog.merkle import TreeHead
from eventlog.scanning import Scanner

__all__ = [
    "Append",
    "AppendResult",
    "ArtifactName",
    "Artifacts",
    "CaughtUp",
    "CheckedPage",
    "CursorMoved",
    "EventLog",
    "EventReader",
    "Expect",
    "FellBehind",
    "Head",
    "Health",
    "Mark",
    "NewEvent",
    "Problem",
    "ProvenLog",
    "RecordedEvent",
    "Redacted",
    "Retired",
    "RunLog",
    "Snapshot",
    "StoredEntry",
    "StreamSlice",
    "TransactionalLog",
    "fold",
]

S = TypeVar("S")


class Expect(msgspec.Struct, frozen=True):
    """Where the caller thinks a stream is. Make one with `any`, `no_stream`, `exists` or `at`."""

    kind: Literal["any", "no_stream", "exists", "at"]
    version: int = 0

    @staticmethod
    def any() -> Expect:
        """No expectation."""
        return _ANY

    @staticmethod
    def no_stream() -> Expect:
        """The stream has no event."""
        return _NO_STREAM

    @staticmethod
    def exists() -> Expect:
        """The stream has at least one event."""
        return _EXISTS

    @staticmethod
    def at(version: int) -> Expect:
        """The stream is at exactly this version; 0 is the same as `no_stream`."""
        if type(version) is not int or version < 0:
            raise InvalidInput("invalid_argument", f"a version is an int from 0, not this {type(version).__name__}")
        return Expect("at", version)

    def allows(self, actual: int) -> bool:
        """Say whether a stream at version `actual` (0: absent) is where this expectation thinks it is."""
        match self.kind:
            case "at":
                return actual == self.version
            case "any":
                return True
            case "no_stream":
                return actual == 0
            case "exists":
                return actual > 0

    def __str__(self) -> str:
        return f"at version {self.version}" if self.kind == "at" else self.kind.replace("_", " ")


_ANY = Expect("any")
_NO_STREAM = Expect("no_stream")
_EXISTS = Expect("exists")


class NewEvent(msgspec.Struct, frozen=True, kw_only=False):
    """An event to append. `data` is plain data or a registered Struct; ids are 16 bytes, UUIDv7 by default.

    Keep the object to repeat an append: the id that it was given when it was made is what makes the retry safe.
    """

    type: str
    data: Any
    event_id: bytes = msgspec.field(default_factory=new_event_id)
    correlation_id: str | None = None
    causation_id: bytes | None = None
    schema_version: int = 1


class RecordedEvent(msgspec.Struct, frozen=True, gc=False):
    """An event as it is in the log.

    `body` is the stored JSON, byte for byte; `data` is what it decodes to in today's shape: the registered Struct,
    `Retired`, or plain data where `is_known` is False. `type` is today's name of the type, `stored_type` the stored one
    where that is another; `schema_version` is the stored one. `redacted` says why the body is not the one that was
    appended, if it is not: then `data` is what is left of it (`Redacted`). `recorded_at_us` is microseconds UTC by the
    writer's clock, never before the event in front of it. The garbage collector does not look at events: what JSON
    decodes to has no cycles.
    """

    position: int
    stream: str
    version: int
    type: str
    schema_version: int
    event_id: bytes
    recorded_at_us: int
    actor: str
    correlation_id: str | None
    causation_id: bytes | None
    body: bytes
    data: Any
    is_known: bool
    leaf: bytes
    prev_in_stream: bytes
    stored_type: str | None = None
    redacted: Literal["erased", "subject_erased", "key_missing"] | None = None


class Redacted(msgspec.Struct, frozen=True):
    """What an event holds whose body cannot be read any more, or not here.

    `why` is `erased` (body and salt are gone), `subject_erased` (its key is destroyed) or `key_missing` (it is
    encrypted, and this program was not given its key). Where the engine has kept the fields that say nothing of
    anybody, an event holds those instead; its `redacted` says why all the same.
    """

    why: Literal["erased", "subject_erased", "key_missing"]


class Retired(msgspec.Struct, frozen=True):
    """What an event of a retired type holds: plain data, as it was stored.

    `fold` passes over it; the other reads give it, so that the story of a log is whole.
    """

    data: Any


class Append(msgspec.Struct, frozen=True):
    """One stream's part of an `append_many`.

    `subject` is whom a new stream is about, as an opaque id: all bodies of the stream are encrypted under the key of
    that subject, from the first on. Later appends need not name it again. `subject_of` names a stream whose subject a
    new one has as well, if that has one.
    """

    stream: str
    events: Sequence[Any]
    expect: Expect
    subject: str | None = None
    subject_of: str | None = None


class AppendResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was stored: the stream's new version, positions of the first and last event, leaf and time of the last."""

    stream: str
    version: int
    first_position: int
    last_position: int
    leaf: bytes
    recorded_at_us: int = 0
    deduplicated: bool = False


class Head(msgspec.Struct, frozen=True):
    """The end of the log: the last position (0 if empty), its leaf (32 zero bytes if empty), and when that was."""

    position: int
    leaf: bytes
    recorded_at_us: int = 0


class StreamSlice(msgspec.Struct, frozen=True):
    """Events of one stream together with the version the stream had when they were read (0: no such stream)."""

    events: Sequence[RecordedEvent]
    version: int


class CaughtUp(msgspec.Struct, frozen=True):
    """A subscription has given out everything up to `position` and now waits for new events."""

    position: int


class FellBehind(msgspec.Struct, frozen=True):
    """A subscription that had caught up did not keep up: more waits for it after `position` than is kept for it."""

    position: int


class CursorMoved(msgspec.Struct, frozen=True):
    """Everything up to `position` is handled, though nothing in it matched the filter."""

    position: int


Mark = CaughtUp | FellBehind | CursorMoved


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """What a supervisor needs to know. Sizes are bytes; ids are hex.

    `signed_size` is the position up to which the log is under a signed head, None where nobody signs; `head_error` is
    why the last try to sign failed, if it did.
    """

    store: str
    log_id: str
    store_id: str
    format_version: int
    head: int
    state: Literal["open", "poisoned", "closed"]
    queued: int
    durability: str = "full"
    is_read_only: bool = False
    sqlite_version: str | None = None
    has_wal_reset_fix: bool | None = None
    is_locked_by_file: bool | None = None
    wal_bytes: int | None = None
    views_behind: dict[str, int] = {}
    last_wal_checkpoint_error: str | None = None
    signed_size: int | None = None
    head_error: str | None = None


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One contradiction in stored data. `reason` is a word, as in `LogCorrupt`."""

    reason: str
    message: str
    position: int | None = None
    stream: str | None = None


class ArtifactName(msgspec.Struct, frozen=True, kw_only=True):
    """That the event at `position` names the artifact `digest`."""

    digest: str
    position: int
    stream: str


class CheckedPage(msgspec.Struct, frozen=True, kw_only=True):
    """What a check of one page of the log found.

    `position` is where the next page begins behind, `events` how many rows were looked at. `artifacts` are those that
    sound events name; whether they are there was not looked at. `leaves` are those of the rows, as stored, and
    `redacted` the positions of events whose body is not the one that was appended, with the reason. `judged` are the
    sound events of the types in `eventlog.events.JUDGED_EVENTS`, without results: they say more than a hash can prove.
    """

    position: int
    events: int
    problems: Sequence[Problem]
    artifacts: Sequence[ArtifactName] = ()
    leaves: Sequence[bytes] = ()
    redacted: Sequence[tuple[int, str]] = ()
    judged: Sequence[RecordedEvent] = ()


class StoredEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An event as it is hashed, for somebody who checks it for himself.

    `entry` are the bytes of `eventlog/entry.py`; its leaf was compared with the stored one. `stored` is the stored
    body: the JSON that was appended where `salt` is there too, a sealed body (`eventlog/sealed.py`) where it is not,
    None where it is erased.
    """

    position: int
    version: int
    type: str
    entry: bytes
    stored: bytes | None
    salt: bytes | None


class Snapshot(msgspec.Struct, frozen=True):
    """A state that was folded from the first `version` events of a stream, as its writer spells it.

    It may be gone, late or wrong at any time: whoever takes one has to be able to do without it.
    """

    version: int
    state: bytes


class EventReader(Protocol):
    """What reads a log. It cannot append: that is a type, not a rule."""

    def read(self, stream: str, *, after: int = 0, limit: int | None = None) -> AsyncGenerator[RecordedEvent, None]:
        """Give the events of `stream` behind version `after`, in version order.

        Each event is verified against its leaf and its predecessor. Raises LogCorrupt at the first that contradicts
        them.
        """

    def read_back(
        self, stream: str, *, before: int | None = None, limit: int | None = None
    ) -> AsyncGenerator[RecordedEvent, None]:
        """Give the events of `stream` in front of version `before`, newest first; from its end, if None.

        Verified as by `read`. `limit=1` without `before` is the last event, and with it the version of the stream.
        """

    async def read_stream(self, stream: str, *, after: int = 0) -> StreamSlice:
        """Return the events of `stream` behind version `after` and the version it was at, from one snapshot."""

    def read_all(
        self,
        *,
        after: int = 0,
        limit: int | None = None,
        types: Iterable[str] | None = None,
        stream_prefix: str | None = None,
    ) -> AsyncGenerator[RecordedEvent, None]:
        """Give the events of the log behind position `after`, in position order, up to the head at the last page.

        Of `types` only, and only of streams whose names begin with `stream_prefix`, if given; `limit` counts what is
        given out. What the filter leaves out is read and verified all the same: it costs time, and a gap or a changed
        event is found wherever it is.
        """

    def subscribe(
        self,
        *,
        after: int = 0,
        types: Iterable[str] | None = None,
        stream_prefix: str | None = None,
        streams: Iterable[str] | None = None,
        marks: bool = False,
    ) -> AsyncGenerator[RecordedEvent | Mark, None]:
        """Give the events behind position `after`, then wait for new ones, for ever; filtered as by `read_all`.

        Of the streams named in `streams` only, if given. In position order, each once, without a gap, and all verified,
        also what the filter leaves out. All subscriptions of a log in a process share one reader of its end, so that
        thousands of them, each on a few streams, cost little more than what they are given. A slow reader never holds
        up a writer or another reader: a bounded number of events waits for it, and behind those it reads again for
        itself.

        With `marks`, also `CaughtUp`, `FellBehind`, and `CursorMoved`: while new events come, of which none is wanted,
        about every half a second. Raises StoreUnavailable(`store_identity_changed`) if `after` is beyond the end of the
        log, and what `read_all` raises.
        """

    async def find(self, event_id: bytes) -> RecordedEvent | None:
        """Return the event with this id, verified as by `read_all`, or None if the log has none."""

    async def head(self) -> Head:
        """Return the end of the log."""

    async def check_page(self, *, after: int, limit: int = 1000) -> CheckedPage:
        """Check the next `limit` events behind position `after`, and go on where `read` would stop."""


@runtime_checkable
class ProvenLog(EventReader, Protocol):
    """A log with a Merkle tree over its events: roots, proofs, and the heads that were signed."""

    async def tree_head(self, size: int | None = None) -> TreeHead:
        """Return size and root of the tree of the first `size` events, of all if that is None.

        Raises InvalidInput(`invalid_argument`) for a size that the log has not, LogCorrupt(`tree_mismatch`).
        """

    async def tree_state(self) -> tuple[int, bytes]:
        """Return the size and the frontier of the tree as they are stored."""

    async def read_tiles(self, level: int, first: int, limit: int) -> list[tuple[int, bytes]]:
        """Return up to `limit` stored tiles of a level (from 1) from the number `first` on, as (number, root)."""

    async def prove_inclusion(self, position: int, size: int) -> list[bytes]:
        """Return the RFC 6962 proof that the event at `position` is in the tree of `size`. Raises InvalidInput."""

    async def prove_consistency(self, old_size: int, size: int) -> list[bytes]:
        """Return the RFC 6962 proof that the tree of `size` begins with that of `old_size`. Raises InvalidInput."""

    async def signed_heads(self, *, after: int = 0, limit: int | None = None) -> list[SignedHead]:
        """Return the signed heads that are kept with the log, of sizes beyond `after`, by size; as they are stored.

        The first `limit` of them, and the others of the size of the last one: a log may keep millions.
        """

    async def log_ids(self) -> list[tuple[int, bytes]]:
        """Return (first_position, log_id) of each incarnation of the log, oldest first."""

    def read_entries(self, stream: str | None = None, *, after: int = 0) -> AsyncGenerator[StoredEntry, None]:
        """Give the entries of `stream` behind version `after`, or of the whole log behind position `after`.

        Each is compared with the stored leaf. Raises LogCorrupt at the first that contradicts it.
        """


class EventLog(EventReader, Protocol):
    """A log that can be appended to. Used as `async with eventlog.open(…) as log`."""

    async def append(
        self,
        stream: str,
        events: Sequence[Any],
        *,
        expect: Expect,
        actor: str | None = None,
        correlation_id: str | None = None,
        causation_id: bytes | None = None,
        subject: str | None = None,
    ) -> AppendResult:
        """Append events to one stream; *durable* on return. See `append_many`, and `Append` for `subject`."""

    async def append_many(
        self,
        appends: Sequence[Append],
        *,
        checks: Sequence[tuple[str, Expect]] = (),
        actor: str | None = None,
        correlation_id: str | None = None,
        causation_id: bytes | None = None,
    ) -> list[AppendResult]:
        """Append to several streams, and check others that are not written, as one: all or nothing.

        An event is a registered Struct or a `NewEvent`; `correlation_id` and `causation_id` are for events without
        their own. Raises WrongExpectedVersion, InvalidInput, Misuse (`reserved_stream`, `event_id_conflict`, …),
        StoreUnavailable.
        """

    async def health(self) -> Health:
        """Return the state of the store, without waiting for a writer."""

    async def close(self) -> None:
        """Take no more work, finish what was taken, and give the files back. May be called twice."""


class Artifacts(Protocol):
    """Values too large for an event, each kept beside the log under the SHA-256 of its bytes."""

    async def put(self, data: bytes) -> str:
        """Keep `data`, *durable* on return, and return its digest, 64 hex digits. Repeating it is harmless.

        Raises StoreUnavailable, and LogCorrupt(`artifact_damaged`) if something else has its name.
        """

    async def get(self, digest: str) -> bytes:
        """Return what is kept under `digest`, verified.

        Raises LogCorrupt (`artifact_missing`, `artifact_damaged`), StoreUnavailable, InvalidInput.
        """


class RunLog(EventLog, ProvenLog, Protocol):
    """The engine's own door: a log that the runtime may append reserved streams to, with what it keeps beside it."""

    @property
    def store_id(self) -> bytes:
        """The 16 bytes that name the store; they survive a restore."""

    @property
    def actor(self) -> str:
        """Who appends if a call does not say."""

    @property
    def place(self) -> str | None:
        """The path beside which the runtime may keep its lock files, or None for a log that lives in one process."""

    @property
    def artifacts(self) -> Artifacts:
        """The large values that events of this log name."""

    @property
    def scanner(self) -> Scanner | None:
        """What looks for secrets in all that is appended, and refuses it: InvalidInput(`secret_found`)."""

    async def sign_head(self) -> SignedHead | None:
        """Make sure that everything that is committed by now is under a signed head that is kept outside the log.

        Return that head, or None where nobody signs, or the log is empty. Raises StoreUnavailable
        (`signer_unavailable`, `head_refused`), LogCorrupt.
        """

    async def append_reserved(
        self,
        appends: Sequence[Append],
        *,
        checks: Sequence[tuple[str, Expect]] = (),
        actor: str | None = None,
        correlation_id: str | None = None,
        causation_id: bytes | None = None,
        before_us: int | None = None,
    ) -> list[AppendResult]:
        """As `append_many`, for streams that begin with `run:` or `$`.

        With `before_us`, in microseconds UTC, it is recorded before that time or not at all (AppendTooLate): times of
        the log never run back, so that of an event may be later than the caller's clock.
        """

    async def is_sealed(self, stream: str) -> bool:
        """Say whether the bodies of the stream are encrypted, so that nothing of it may lie in clear elsewhere."""

    async def read_from_snapshot(self, stream: str) -> tuple[Snapshot | None, StreamSlice]:
        """Return the stream's snapshot and the events from its version on; without one, all events of the stream."""

    async def snapshot_streams(self) -> Sequence[str]:
        """Return the streams that have a snapshot, in any order."""

    async def load_snapshot(self, stream: str) -> Snapshot | None:
        """Return the snapshot that was saved last of this stream, or None: none was, or it cannot be read."""

    async def save_snapshot(self, stream: str, snapshot: Snapshot) -> None:
        """Keep the snapshot instead of the stream's older one; never instead of a newer one.

        Not saving it is no error: the log may be read-only, busy, or full.
        """


@runtime_checkable
class TransactionalLog(Protocol):
    """A log that lives in a database, in which an effect and its event can be written as one."""

    async def append_with(
        self,
        stream: str,
        type: str,
        make: Callable[[Any], Any],
        *,
        expect: Expect,
        actor: str | None = None,
        correlation_id: str | None = None,
        event_id: bytes | None = None,
    ) -> AppendResult:
        """Append the event that `make(connection)` returns, in the transaction in which it is called.

        `make` runs once the expectation holds, on the writer's thread, while all other appends wait. What it writes
        through `connection` is durable with the event or not at all. `connection` has `execute` and `executemany`,
        whose cursors can be read, and is of no use once `make` has returned, nor on another thread. It cannot end the
        transaction, nor write the log's own tables. What `make` raises is raised here, as it is if it is an
        EventLogError, and else as ActionFailed; nothing was written then. If the transaction has to start over `make`
        is called again, and what it wrote before is gone. Whoever does not learn what became of the append asks again
        with the same `event_id`: where the event is stored, that is the answer, and `make` is not called.
        """


_PASSED_OVER = frozenset({Retired, Redacted})


async def fold(
    log: EventReader, stream: str, initial: Callable[[], S], evolve: Callable[[S, RecordedEvent], S]
) -> tuple[S, int]:
    """Return the state that the events of `stream` add up to, and the version to append at.

    `initial()` makes the state of a stream without events; `evolve(state, event)` returns the state after `event`,
    whose `data` is the registered Struct, or plain data where `is_known` is False. Events of retired types, and those
    of which nothing can be read any more (`Redacted`), count as versions, and are not shown to `evolve`: whoever has to
    know that something was erased reads the stream. Raises what `read` raises.
    """
    state = initial()
    version = 0
    async for event in log.read(stream):
        if type(event.data) not in _PASSED_OVER:
            state = evolve(state, event)
        version = event.version
    return state, version
