"""Whether each effect was approved when it began: what stood in the log at that position, judged again.

At each `resume_started` the request that it is for has been approved: by as many different people as its terms ask for,
none of whose keys was revoked by then, each on its own terms (`approvals` judges that where the approval stands). At
the first one, which spends the approvals, the time of no signed statement was over. Its hashes and its op_key are those
of the proposal that was approved. And nothing is executed or recovered under an op_key that no such intent has.

    intent_unapproved      too few have approved what it does, or nobody was asked
    approver_revoked       an approval that it rests on was signed with a key that was revoked by then
    statement_expired      it is the first, and the time of a statement that it rests on was over
    intent_mismatch        it names another proposal than the one that was approved, or another op_key
    effect_without_intent  something was done under an op_key that no intent in front of it has
    intent_erased          its proposal, or an approval that it rests on, was erased before it

What is open is remembered, up to a number of requests, until it is done; what was forgotten is read again, and so is
what seems wrong, so that damage to an event in front of it is told as that, and not as an attack. What is erased, or
encrypted, raises no other alarm: an effect may rest on what was erased after it. A rule that approves is an approval;
so is one that nobody has signed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol, runtime_checkable

import msgspec

from eventlog.audit.verify.findings import SHOWN, Problems, raise_if_not_damage
from eventlog.errors import EventLogError, InvalidInput
from eventlog.events import (
    RUN_PREFIX,
    ActionExecuted,
    ActionRecovered,
    ApprovalRecorded,
    ApprovalRevoked,
    OfRequest,
    ProposalRecorded,
    ResumeStarted,
)
from eventlog.log import EventReader, RecordedEvent
from eventlog.proposal import hash_of, op_key
from eventlog.signing.approver_keys import ApproverKey
from eventlog.signing.signed_decisions import Flaw, read_statement

__all__ = ["IntentCheck", "JudgeDecision"]

_REMEMBERED: Final = 2000
_MIN_READ_AGAIN: Final = 200_000
_MAX_SHARE: Final = 4

JudgeDecision = Callable[[RecordedEvent], Awaitable[tuple[str, Flaw | None]]]
"""Returns what is to be thought of a decision where it stands, as `approvals` says it."""


@runtime_checkable
class Named(Protocol):
    """A log that has the id from which op_keys are made."""

    @property
    def store_id(self) -> bytes:
        """The 16 bytes that name the store."""


class _Approval(msgspec.Struct, frozen=True):
    position: int
    actor: str
    by_rule: bool
    is_deciding: bool
    key_id: str | None
    not_after_us: int | None


class _Request(msgspec.Struct):
    """A request as far as an intent depends on it. `is_clear` unless something in front of it cannot be read."""

    request_id: str
    hash: str
    op_key: str | None
    required: int
    is_clear: bool
    is_rejected: bool = False
    asked_at: int = 0
    gone: list[int] = []
    """The positions of its proposal and its approvals, where they are erased."""
    approvals: list[_Approval] = []
    begun: tuple[str, ...] = ()


class IntentCheck:
    """Follows the requests of runs, and judges each intent and each effect where it stands.

    `keys` are those of approvers, as they are folded up to the event that is looked at; `judge` looks at a decision
    that is read again; `problems` and `unknown` take what is found.
    """

    def __init__(
        self,
        log: EventReader,
        keys: Mapping[str, ApproverKey],
        judge: JudgeDecision,
        problems: Problems,
        unknown: list[str],
    ) -> None:
        self._log: Final = log
        self._store_id: Final = log.store_id if isinstance(log, Named) else None
        self._keys: Final = keys
        self._judge: Final = judge
        self._problems: Final = problems
        self._unknown: Final = unknown
        self._open: Final[dict[tuple[str, str | None], _Request]] = {}
        self._blurred: Final[dict[str, None]] = {}
        self._gone: Final[dict[int, bool]] = {}
        self._read_again = 0
        self.judged = 0
        """How many intents were judged."""

    def ask(self, event: RecordedEvent) -> None:
        """Note a proposal: what was said about an earlier one of its step counts no more."""
        asked: ProposalRecorded = event.data
        request = self._request(event)
        self._watch(request, event)
        self._keep((event.stream, asked.step), request)

    def decide(self, event: RecordedEvent, state: str, flaw: Flaw | None) -> None:
        """Note a decision, as it was judged where it stands."""
        request = self._open.get((event.stream, event.data.step))
        if request is not None:
            _note_decision(request, event, state, flaw)
            self._watch(request, event)

    def blur(self, event: RecordedEvent) -> None:
        """Note an event that cannot be read: of no request of its run can be said what it has."""
        if len(self._blurred) >= _REMEMBERED:
            self._blurred.pop(next(iter(self._blurred)))
        self._blurred[event.stream] = None

    def erase(self, position: int) -> None:
        """Note that the event at this position is erased from here on, if something may rest on it."""
        if position in self._gone:
            self._gone[position] = True

    async def see(self, event: RecordedEvent) -> None:
        """Note a withdrawal; judge an intent, or an effect."""
        match event.data:
            case ApprovalRevoked(step=step):
                request = self._open.get((event.stream, step))
                if request is not None:
                    request.approvals = []
                    request.gone = [at for at in request.gone if at == request.asked_at]
            case ResumeStarted(step=step):
                self.judged += 1
                self._require_readable(event)
                request = await self._judged(event, self._flaw_of_intent)
                if request is not None and event.data.op_key not in request.begun:
                    request.begun = (*request.begun, event.data.op_key)
            case ActionExecuted(step=step) | ActionRecovered(step=step):
                await self._judged(event, _flaw_of_effect)
                self._open.pop((event.stream, step), None)

    def _require_readable(self, event: RecordedEvent) -> None:
        """Note an intent whose proposal, or an approval of it, was erased before it, as the log says."""
        request = self._open.get((event.stream, event.data.step))
        gone = next((at for at in request.gone if self._gone.get(at)), None) if request is not None else None
        if gone is not None:
            message = f"position {event.position}: an effect began that rests on position {gone}, which was erased"
            self._problems.add("intent_erased", message, position=event.position, stream=event.stream)

    def _watch(self, request: _Request, event: RecordedEvent) -> None:
        """Watch when an event of the request that is erased by now was erased."""
        if event.redacted != "erased":
            return
        request.gone = [*request.gone, event.position]
        if len(self._gone) >= _REMEMBERED:
            self._gone.pop(next(iter(self._gone)))
        self._gone[event.position] = False

    # ── judging ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _judged(
        self, event: RecordedEvent, flaw_of: Callable[[_Request | None, RecordedEvent], Flaw | None]
    ) -> _Request | None:
        """Note what is wrong with an event, looked at twice; return the request that it is about."""
        key = (event.stream, event.data.step)
        request = self._open.get(key)
        is_clear = event.redacted is None and event.stream not in self._blurred
        if not is_clear or (request is not None and not request.is_clear):
            return request
        flaw = flaw_of(request, event)
        if flaw is not None and (request is None or self._problems.count < SHOWN):
            is_known, request = await self._again(event, key)
            flaw = flaw_of(request, event) if is_known and (request is None or request.is_clear) else None
        if flaw is not None:
            message = f"position {event.position}: {flaw.message}"
            self._problems.add(flaw.code, message, position=event.position, stream=event.stream)
        return request

    def _flaw_of_intent(self, request: _Request | None, event: RecordedEvent) -> Flaw | None:
        if request is None:
            return Flaw(code="intent_unapproved", message="an effect began, and nobody was asked for it")
        intent: ResumeStarted = event.data
        for name, found, expected in (
            ("approval_hash", intent.approval_hash, request.hash),
            ("input_hash", intent.input_hash, request.hash),
            ("op_key", intent.op_key, request.op_key),
        ):
            if expected is not None and found != expected:
                message = f"an effect began with another {name} than that of the request {request.request_id!r:.200}"
                return Flaw(code="intent_mismatch", message=message, field=name, supplied=found, expected=expected)
        return self._flaw_of_approvals(request, event)

    def _flaw_of_approvals(self, request: _Request, event: RecordedEvent) -> Flaw | None:
        """Return why the approvals that still count are too few."""
        lost: Flaw | None = None
        counting: list[_Approval] = []
        for approval in request.approvals:
            flaw = self._lost(approval, event, is_first=not request.begun)
            lost = lost or flaw
            if flaw is None:
                counting.append(approval)
        people = {approval.actor for approval in counting}
        is_enough = len(people) >= request.required or any(approval.by_rule for approval in counting)
        if is_enough and not request.is_rejected and any(approval.is_deciding for approval in counting):
            return None
        name = f"the request {request.request_id!r:.200}"
        message = f"an effect began, and {len(people)} of {request.required} who have to have approved {name}"
        if request.is_rejected:
            message = f"an effect began although {name} was rejected"
        return lost or Flaw(code="intent_unapproved", message=message)

    def _lost(self, approval: _Approval, event: RecordedEvent, *, is_first: bool) -> Flaw | None:
        """Return why an approval that counted where it stands does not count for the intent."""
        what = f"an effect began on the approval at position {approval.position}"
        key = self._keys.get(approval.key_id) if approval.key_id is not None else None
        if key is not None and not key.counts_at(event.position):
            message = f"{what}, whose key was revoked at position {key.revoked_at}"
            return Flaw(code="approver_revoked", message=message)
        until_us = approval.not_after_us
        if is_first and until_us is not None and event.recorded_at_us >= until_us:
            return Flaw(code="statement_expired", message=f"{what}, whose time was over")
        return None

    # ── remembering, and reading again ───────────────────────────────────────────────────────────────────────────────

    def _keep(self, key: tuple[str, str | None], request: _Request) -> None:
        self._open.pop(key, None)
        if len(self._open) >= _REMEMBERED:
            self._open.pop(next(iter(self._open)))
        self._open[key] = request

    def _request(self, event: RecordedEvent) -> _Request:
        asked: ProposalRecorded = event.data
        canonical = bytes(asked.proposal)
        digest = hash_of(canonical)
        return _Request(
            request_id=asked.request_id,
            hash=digest,
            op_key=self._op_key(event, canonical, digest),
            required=1 if asked.policy is None else asked.policy.required,
            is_clear=event.redacted is None,
            asked_at=event.position,
        )

    def _op_key(self, event: RecordedEvent, canonical: bytes, digest: str) -> str | None:
        if self._store_id is None:
            return None
        step = event.data.step
        try:
            name = msgspec.json.decode(canonical, type=_Named).action if step is None else step
        except msgspec.MsgspecError:
            return None  # it is no proposal, which is found where it is decided on
        return op_key(self._store_id, event.stream.removeprefix(RUN_PREFIX), name, digest)

    async def _again(self, event: RecordedEvent, key: tuple[str, str | None]) -> tuple[bool, _Request | None]:
        """Read the request again from the events in front of this one; False if that cannot be known."""
        self._read_again += event.version
        if self._read_again > max(_MIN_READ_AGAIN, _MAX_SHARE * event.position):
            self._unknown.append(f"too much is open at once: from position {event.position} on not all of it is judged")
            return False, self._open.get(key)
        try:
            request = await self._read(event, key[1])
        except EventLogError as error:
            raise_if_not_damage(error)
            self._unknown.append(f"position {event.position}: what is in front of it cannot be read: {error}")
            return False, self._open.get(key)
        if request is not None:
            self._keep(key, request)
        return True, request

    async def _read(self, event: RecordedEvent, step: str | None) -> _Request | None:
        request: _Request | None = None
        is_blurred = False
        async for each in self._log.read(event.stream, limit=event.version - 1):
            data = each.data
            is_blurred = is_blurred or (each.redacted is not None and not isinstance(data, OfRequest))
            if not isinstance(data, OfRequest) or data.step != step:
                continue
            match data:
                case ProposalRecorded():
                    request = self._request(each)
                case ApprovalRecorded() if request is not None:
                    _note_decision(request, each, *await self._judge(each))
                case ApprovalRevoked() if request is not None:
                    request.approvals = []
                case ResumeStarted(op_key=begun) if request is not None:
                    request.begun = (*request.begun, begun)
        if is_blurred:
            request = request or _Request(request_id="", hash="", op_key=None, required=0, is_clear=False)
            request.is_clear = False
        return request


class _Named(msgspec.Struct):
    action: str


def _flaw_of_effect(request: _Request | None, event: RecordedEvent) -> Flaw | None:
    effect: ActionExecuted | ActionRecovered = event.data
    if request is not None and effect.op_key in request.begun:
        return None
    message = "something was done, and no intent in front of it has its op_key"
    return Flaw(code="effect_without_intent", message=message)


def _note_decision(request: _Request, event: RecordedEvent, state: str, flaw: Flaw | None) -> None:
    """Note a decision on a request. One on another request, or that does not count where it stands, changes nothing."""
    decision: ApprovalRecorded = event.data
    if state not in ("unsigned", "verified", "invalid"):
        request.is_clear = False
    elif flaw is None and decision.request_id == request.request_id and decision.approval_hash == request.hash:
        if decision.decision == "approve":
            request.approvals = [*request.approvals, _approval(event)]
        else:
            request.is_rejected = True


def _approval(event: RecordedEvent) -> _Approval:
    decision: ApprovalRecorded = event.data
    statement = None
    if decision.envelope is not None:
        try:
            statement = read_statement(decision.envelope)
        except InvalidInput:
            statement = None  # it was judged, and is none that counts
    return _Approval(
        event.position,
        event.actor,
        decision.actor_source == "policy",
        decision.is_deciding,
        None if statement is None else statement.key_id,
        None if statement is None else statement.not_after_us,
    )
