"""What an action is, what it can promise, and what it reports.

An action performs one effect in the world outside the log. The runner has made the intent durable before it calls
`execute`, and appends what `execute` reports:

    returns Executed      action_executed    the effect was done now and is durable
    returns Recovered     action_recovered   it had been done before; proved, not repeated
    returns Conflicted    action_conflict    the target holds something else; nothing was changed
    raises ActionFailed   action_failed      definitely not done, with proof
    raises anything else  outcome_unknown    it may have happened

So an action raises `ActionFailed` only if it can prove that nothing was sent, linked or committed. Of a later attempt
of a KEYED action it proves only that this one did nothing, unless it says `covers_earlier=True`.

After a crash between an intent and its result, or an outcome that is unknown, the promise of the action says what the
next resumer does:

    TRANSACTIONAL   effect and result commit together: without a result nothing happened, so it is done now
    CHECKABLE       `inspect` is asked, or else `execute` again, which finds out itself
    KEYED           `execute` again with the same op_key, as long as the receiver knows it; then as OPAQUE
    OPAQUE          nothing: the outcome is unknown until a person has settled it

`inspect` may be given to a KEYED action too; it is asked once the key has ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Literal, Protocol, assert_never, runtime_checkable

import msgspec

from eventlog.runtime.failpoints import Reach, pass_by

__all__ = [
    "Absent",
    "Action",
    "Call",
    "Conflicted",
    "Executed",
    "Finding",
    "Inconclusive",
    "Inspectable",
    "Promise",
    "Recourse",
    "Recovered",
    "Report",
    "TransactionalAction",
    "compensation_of",
    "is_fenced",
    "is_key_known",
    "key_lifetime_s_of",
    "recourse",
    "request_life_s_of",
]

_MICRO: Final = 1_000_000


class Promise(StrEnum):
    """What an action can say about an effect after a crash between the effect and its record."""

    TRANSACTIONAL = "transactional"
    """The effect is written in the log's own database, in the transaction that records its result."""

    CHECKABLE = "checkable"
    """The receiver can be asked, by `inspect` or by `execute` itself, whether the effect happened."""

    KEYED = "keyed"
    """The receiver does nothing twice for one `op_key`, for `key_lifetime_s` seconds from the first attempt."""

    OPAQUE = "opaque"
    """Nobody can ask; after a crash the outcome is unknown and nothing is retried automatically."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One approved effect. `args` and `output` were decoded from the very bytes whose hash was approved."""

    run_id: str
    action: str
    args: Any
    output: str
    op_key: str
    """64 hex digits: the identity of this logical effect, the same for every attempt."""
    folder: str | None = None
    """The absolute folder in which the run was proposed; a relative target is relative to it."""
    place: str | None = None
    """The path of the log's database, if it is a file: no effect may touch it or what lies beside it for it."""
    attempt: int
    """1 for the first intent of this op_key, then 2, 3, …"""
    may_have_happened: bool | None = None
    """Whether an earlier attempt may have; if not said, every later one has to take that for possible."""
    reach: Reach = pass_by
    """Passed at `effect.inside` while the effect is half done."""

    @property
    def is_alone(self) -> bool:
        """Whether no earlier attempt can have happened: what proves that this one did nothing then proves it all."""
        return self.attempt == 1 if self.may_have_happened is None else not self.may_have_happened


class Executed(msgspec.Struct, frozen=True, kw_only=True):
    """The effect was done by this call, and is durable. `result` is stored, and returned to every later resume."""

    result: Any = None


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """The effect was there already, exactly as approved, and is durable; `evidence` says how that was seen.

    `result` is what the first attempt would have returned, where the receiver still knows it.
    """

    evidence: Any = None
    result: Any = None


class Conflicted(msgspec.Struct, frozen=True, kw_only=True):
    """The target holds something else. Hashes are hex SHA-256 of contents; contents are text, or None if not shown.

    `code` is `idempotency_conflict` where the receiver knows this very op_key with another payload.
    """

    reason: str
    expected_content_hash: str | None = None
    existing_content_hash: str | None = None
    expected_content: str | None = None
    existing_content: str | None = None
    code: Literal["output_conflict", "idempotency_conflict"] = "output_conflict"


class Absent(msgspec.Struct, frozen=True, kw_only=True):
    """The receiver was asked, and knows nothing of this op_key."""


class Inconclusive(msgspec.Struct, frozen=True, kw_only=True):
    """The receiver was asked, and `why` it cannot tell."""

    why: str


Report = Executed | Recovered | Conflicted
"""What an effect came to."""

Finding = Recovered | Conflicted | Absent | Inconclusive
"""What the receiver says when it is asked."""


class Action(Protocol):
    """Code that performs one effect. Any class with these members is one; there is nothing to inherit.

    Some members more are optional:

        inspect(call)       `Inspectable`: ask the receiver and change nothing
        key_lifetime_s      seconds for which the receiver knows an op_key; a KEYED action must have it
        request_life_s      seconds for which a request may still be under way after its sender died (0 by default):
                            until then the receiver's "no" is not final, and a KEYED action is not tried again when
                            no more than that is left of its key. As a key's lifetime it is counted by the wall
                            clock of whoever asks, never before the log's last event: leave room for how far the clocks
                            of the hosts are apart
        is_fenced           True if a CHECKABLE action's receiver refuses a second effect by itself, as a unique index
                            does; else nothing is tried while a resumer that was overruled may still be at work
        compensation        the name of the action that undoes this one; it is called with
                            {"args": the arguments, "result": what was returned} and the same output
        definition          plain data that says what it is beyond its code, as the targets that it may touch; who
                            approves with a signature approves the action with this definition
    """

    @property
    def name(self) -> str:
        """The name that proposals use."""

    @property
    def promise(self) -> Promise:
        """What the runner may do after a crash between intent and result."""

    def check(self, call: Call) -> None:
        """Refuse, by raising `ActionFailed`, what can be refused before any intent: arguments, a forbidden target."""

    async def execute(self, call: Call) -> Report:
        """Perform the effect, or find that it is done. Cancellation must not leave the effect half visible."""


class TransactionalAction(Protocol):
    """An action whose effect is rows in the log's own database. Instead of `execute` it has `write`."""

    @property
    def name(self) -> str:
        """The name that proposals use."""

    @property
    def promise(self) -> Promise:
        """`Promise.TRANSACTIONAL`."""

    def check(self, call: Call) -> None:
        """As `Action.check`."""

    def write(self, connection: Any, call: Call) -> Any:
        """Write through `connection`, inside the transaction, and return the result.

        `connection` has `execute` and `executemany` as a connection of `sqlite3` has them, and nothing else; it and
        its cursors are of no use once `write` has ended, nor on another thread. It runs on the writer's thread while
        all other appends wait: no waiting, no network. Whatever it raises, nothing is written, and the attempt has
        definitely failed. It cannot commit, and cannot write the log's own tables. A transaction that has to start over
        calls it again; what it wrote before is gone then.
        """


@runtime_checkable
class Inspectable(Protocol):
    """An action whose receiver can be asked whether an op_key happened."""

    async def inspect(self, call: Call) -> Finding:
        """Ask the receiver, and change nothing. What it raises is inconclusive."""


Recourse = Literal["retry", "ask", "unknown"]


def is_key_known(action: object, key_until_us: int, now_us: int) -> bool:
    """Say whether the receiver still knows the op_key when a request that is sent now arrives, at the latest."""
    return now_us + round(request_life_s_of(action) * _MICRO) < key_until_us


def recourse(action: Action | TransactionalAction, key_until_us: int | None, now_us: int) -> Recourse:
    """Return what may be done about an effect that has begun and has no result."""
    can_ask = isinstance(action, Inspectable)
    match Promise(action.promise):
        case Promise.TRANSACTIONAL:
            return "retry"
        case Promise.CHECKABLE:
            return "ask" if can_ask else "retry"
        case Promise.KEYED if key_until_us is not None and is_key_known(action, key_until_us, now_us):
            return "retry"
        case Promise.KEYED:
            return "ask" if can_ask else "unknown"
        case Promise.OPAQUE:
            return "unknown"
        case never:
            assert_never(never)


def key_lifetime_s_of(action: object) -> float | None:
    """Return for how many seconds the receiver knows an op_key, None if that does not matter."""
    lifetime_s: float | None = getattr(action, "key_lifetime_s", None)
    return lifetime_s


def request_life_s_of(action: object) -> float:
    """Return for how many seconds a request may be under way after its sender died."""
    life_s: float = getattr(action, "request_life_s", 0.0)
    return life_s


def is_fenced(action: object) -> bool:
    """Say whether the receiver of a CHECKABLE action refuses a second effect by itself, whoever is at work."""
    return bool(getattr(action, "is_fenced", False))


def compensation_of(action: object) -> str | None:
    """Return the name of the action that undoes this one, if there is one."""
    name: str | None = getattr(action, "compensation", None)
    return name
