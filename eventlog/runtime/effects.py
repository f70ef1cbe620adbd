"""What an action is, what it can promise, and what it reports.

An action performs one effect in the world outside the log. The runner has made the intent durable before it calls
`execute`, and appends what `execute` reports:

    returns Executed      action_executed    the effect was done now and is durable
    returns Recovered     action_recovered   it had been done before; proved, not repeated
    returns Conflicted    action_conflict    the target holds something else; nothing was changed
    raises ActionFailed   action_failed      definitely not done, with proof
    raises anything else  outcome_unknown    it may have happened

So an action raises `ActionFailed` only if it can prove that nothing was sent, linked or committed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from eventlog.runtime.failpoints import Reach, pass_by

__all__ = ["Action", "Call", "Conflicted", "Executed", "Promise", "Recovered", "Report"]


class Promise(StrEnum):
    """What an action can say about an effect after a crash between the effect and its record."""

    CHECKABLE = "checkable"
    """`execute` may be called again with the same call: it finds out whether it happened, and does it if not."""

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
    reach: Reach = pass_by
    """Passed at `effect.inside` while the effect is half done."""


class Executed(msgspec.Struct, frozen=True, kw_only=True):
    """The effect was done by this call, and is durable."""

    result: Any = None


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """The effect was there already, exactly as approved, and is durable; `evidence` says how that was seen."""

    evidence: Any = None


class Conflicted(msgspec.Struct, frozen=True, kw_only=True):
    """The target holds something else. Hashes are hex SHA-256 of contents; contents are text, or None if not shown."""

    reason: str
    expected_content_hash: str | None = None
    existing_content_hash: str | None = None
    expected_content: str | None = None
    existing_content: str | None = None


Report = Executed | Recovered | Conflicted


class Action(Protocol):
    """Code that performs one effect. Any class with these members is one; there is nothing to inherit."""

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
