"""The verdict `approvals`: who approved what, and how sure that is.

Each decision that is recorded is looked at: its level, and for a signed one, again, every binding of what was signed
at its place in the log: the key that was enrolled there, the proposal as it is stored, and the head that the approver
saw, against the tree that the leaves make. So a history that was rewritten is found although every hash in it was
computed again, and every head of it signed again: by whoever has approved something after it.

    unsigned     level 0 or 1: the log says who it was
    verified     signed, and everything that was signed is so
    invalid      something is not so; the reason is a code of `eventlog.signing.signed_decisions`
    unreadable   the decision, or what was decided on, is erased or encrypted
    unknown      it could not be checked

Whose key is whose, the log says itself, and whoever can write it can enrol one: `keys` is `self_declared` unless all
signed decisions are under keys that the reader has pinned (`pinned_approvers`).

What was done on them is judged as well: see `intents`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Literal

from eventlog.audit.verify.findings import Finding, Problems, raise_if_not_damage
from eventlog.audit.verify.intents import IntentCheck
from eventlog.audit.verify.pinned_approvers import PinnedApprovers
from eventlog.audit.verify.trust import NO_TRUST, Trust
from eventlog.errors import EventLogError, InvalidInput, Misuse
from eventlog.events import LOG_STREAM, RUN_PREFIX, ApprovalRecorded, ApproverEnrolled, PayloadErased, ProposalRecorded
from eventlog.log import EventReader, RecordedEvent
from eventlog.merkle import TreeHead
from eventlog.signing.approver_keys import ApproverKey, note_approver_event
from eventlog.signing.signed_decisions import Flaw, Occasion, flaw_of_recorded, read_statement

__all__ = ["ApprovalCheck", "RootAt"]

_LISTED: Final = 1000
_REMEMBERED: Final = 2000

State = Literal["unsigned", "verified", "invalid", "unreadable", "unknown"]

RootAt = Callable[[TreeHead, RecordedEvent], Awaitable[bytes | None]]
"""Returns the root of the log at the size of a head that an approver of the proposal saw, None if it has none.

Raises LogCorrupt where the root is not known.
"""


class ApprovalCheck:
    """Follows proposals and the keys of approvers, and judges each decision where it stands.

    `root_at` gives the root of the tree at the size of a head. The last proposals are remembered, others read again.
    """

    def __init__(
        self, log: EventReader, log_ids: Sequence[tuple[int, bytes]], root_at: RootAt | None, trust: Trust = NO_TRUST
    ) -> None:
        self._log: Final = log
        self._log_ids: Final = log_ids
        self._root_at: Final = root_at
        self._min_level: Final = trust.min_level
        self._pinned: Final = PinnedApprovers(trust.approvers)
        self._problems: Final = Problems()
        self._keys: Final[dict[str, ApproverKey]] = {}
        self._asked: Final[dict[tuple[str, str], RecordedEvent]] = {}
        self._levels: Final[Counter[int]] = Counter()
        self._states: Final[Counter[State]] = Counter()
        self._below = 0
        self._listed: Final[list[dict[str, Any]]] = []
        self._unknown: Final[list[str]] = []
        self._witnessed_to = 0
        self._knows_keys = True
        self._intents: Final = IntentCheck(log, self._keys, self._state, self._problems, self._unknown)

    async def see(self, event: RecordedEvent) -> None:
        """Take note of an event, if it is about a key of an approver, a proposal, a decision or an effect."""
        if event.stream == LOG_STREAM:
            self._note_key(event)
        elif event.stream.startswith(RUN_PREFIX):
            if isinstance(event.data, ProposalRecorded):
                self._remember(event)
                self._intents.ask(event)
            elif isinstance(event.data, ApprovalRecorded):
                self._intents.decide(event, *await self._judge(event))
            elif event.type == "approval_recorded":
                self._states["unreadable"] += 1
                self._below += self._min_level > 0
                self._intents.blur(event)
            else:
                await self._intents.see(event)

    def finding(self) -> Finding:
        """Return the verdict."""
        if self._below:
            self._unknown.append(f"{self._below} approvals are of a lower level than {self._min_level}")
        details = {
            "keys": self._pinned.kind,
            "levels": {str(level): self._levels[level] for level in sorted(self._levels)},
            "states": {state: self._states[state] for state in sorted(self._states)},
            "witnessed_to": self._witnessed_to,
            "intents": self._intents.judged,
            "approvals": self._listed,
            "not_listed": sum(self._states.values()) - len(self._listed),
            "unknown": list(dict.fromkeys(self._unknown)),
        }
        return self._problems.finding("unknown" if self._unknown else "ok", details)

    def _note_key(self, event: RecordedEvent) -> None:
        if isinstance(event.data, PayloadErased):
            self._intents.erase(event.data.position)
            return
        try:
            flaw = note_approver_event(self._keys, event, self._log_id_at)
        except Misuse as error:  # a proof of possession, and nothing here that can verify it
            self._unknown.append(str(error))
            self._knows_keys = False
            return
        if flaw is not None:
            message = f"the key that is enrolled at position {event.position} does not count: {flaw}"
            self._problems.add(flaw, message, position=event.position, stream=event.stream)
        elif isinstance(event.data, ApproverEnrolled) and (why := self._pinned.flaw_of(event.data)) is not None:
            message = f"position {event.position}: {why}"
            self._problems.add("approver_unpinned", message, position=event.position, stream=event.stream)

    def _remember(self, event: RecordedEvent) -> None:
        if len(self._asked) >= _REMEMBERED:
            self._asked.pop(next(iter(self._asked)))
        self._asked[event.stream, event.data.request_id] = event

    async def _judge(self, event: RecordedEvent) -> tuple[State, Flaw | None]:
        decision: ApprovalRecorded = event.data
        state, flaw = await self._state(event)
        self._states[state] += 1
        self._levels[decision.level] += 1
        if self._min_level and decision.decision == "approve":
            self._below += state not in ("unsigned", "verified") or decision.level < self._min_level
        if flaw is not None:
            message = f"position {event.position}: {flaw.message}"
            self._problems.add(flaw.code, message, position=event.position, stream=event.stream)
        key_id = _key_id_in(decision)
        standing = self._pinned.judge(event.actor, key_id)
        if len(self._listed) < _LISTED:
            self._listed.append({**_spelled(event, state, flaw, key_id), "key": standing})
        return state, flaw

    async def _state(self, event: RecordedEvent) -> tuple[State, Flaw | None]:
        """Return what is to be thought of a decision, and what is wrong with it."""
        try:
            asked = await self._asked_by(event)
            if asked is None:
                return "invalid", Flaw(code="statement_mismatch", message="it decides on a request that was not made")
            if event.redacted is not None or asked.redacted is not None:
                return "unreadable", None
            if event.data.envelope is not None and not self._knows_keys:
                return "unknown", None
            flaw = flaw_of_recorded(event, asked, self._keys, await self._occasion(event, asked))
        except (Misuse, EventLogError) as error:
            if not isinstance(error, Misuse):
                raise_if_not_damage(error)
            self._unknown.append(f"the decision at position {event.position}: {error}")
            return "unknown", None
        if flaw is not None:
            return "invalid", flaw
        if event.data.envelope is None:
            return "unsigned", None
        self._witnessed_to = max(self._witnessed_to, read_statement(event.data.envelope).head.size)
        return "verified", None

    async def _asked_by(self, event: RecordedEvent) -> RecordedEvent | None:
        """Return the proposal that a decision is about: the last one of its request in front of it."""
        request_id = event.data.request_id
        asked = self._asked.get((event.stream, request_id))
        if asked is not None:
            return asked
        async for each in self._log.read(event.stream, limit=event.version - 1):
            is_hidden = each.type == "proposal_recorded" and not isinstance(each.data, ProposalRecorded)
            if is_hidden or (isinstance(each.data, ProposalRecorded) and each.data.request_id == request_id):
                asked = each
        return asked

    async def _occasion(self, event: RecordedEvent, asked: RecordedEvent) -> Occasion:
        return Occasion(
            position=event.position,
            at_us=event.recorded_at_us,
            log_id=self._log_id_at(event.position),
            root=await self._root(event, asked),
        )

    async def _root(self, event: RecordedEvent, asked: RecordedEvent) -> bytes | None:
        if event.data.envelope is None or self._root_at is None:
            return None
        try:
            seen = read_statement(event.data.envelope).head
        except InvalidInput:
            return None
        if seen.size >= event.position:
            return None  # it says that it was made after it was recorded
        return await self._root_at(TreeHead(seen.size, bytes.fromhex(seen.root)), asked)

    def _log_id_at(self, position: int) -> bytes:
        return next((log_id for first, log_id in reversed(self._log_ids) if first <= position), b"")


def _key_id_in(decision: ApprovalRecorded) -> str | None:
    try:
        return None if decision.envelope is None else read_statement(decision.envelope).key_id
    except InvalidInput:
        return None


def _spelled(event: RecordedEvent, state: State, flaw: Flaw | None, key_id: str | None) -> dict[str, Any]:
    decision: ApprovalRecorded = event.data
    return {
        "position": event.position,
        "run": event.stream.removeprefix(RUN_PREFIX),
        "request": decision.request_id,
        "decision": decision.decision,
        "approver": event.actor,
        "level": decision.level,
        "key_id": key_id,
        "verdict": state,
        "reason": None if flaw is None else flaw.code,
    }
