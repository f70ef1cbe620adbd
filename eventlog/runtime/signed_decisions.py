"""Decisions that their approvers have signed: checked against the log when they are recorded, and before the effect.

What is needed for that is read from the log each time: the event of the proposal, who holds which key (`$log`), and the
root of the tree at the size that the approver saw. The nonce of a statement becomes the id of the event that records
it, so that the log itself takes it once: a second use, by whichever process, fails in the transaction of its append.
The append also holds only if nothing was added to `$log` since the keys were read, so that no revocation is overtaken;
and so does that of an intent that rests on what was signed. Whether a statement's time is over is asked of the time of
the event itself, which is never before that of an earlier event, wherever the clock stands: also in that transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final, NamedTuple

from eventlog.decide import Accepted, Refusal, choose_request, record_decision, refuse_transition
from eventlog.decide.answers import MAX_SUPPLIED
from eventlog.decide.proofs import (
    approvals_of,
    began_at_us,
    earliest_end,
    event_of_request,
    flaw_facts,
    needs_proof,
    refuse_changed_action,
    refuse_erased,
    refuse_other_proposal,
    refuse_too_few,
    refuse_unproved,
    statement_of,
)
from eventlog.errors import AppendTooLate, InvalidInput, Misuse, RunConflict, WrongExpectedVersion
from eventlog.events import (
    LOG_STREAM,
    ApprovalRecorded,
    Envelope,
    RunEvent,
)
from eventlog.log import Expect, NewEvent, ProvenLog, RecordedEvent, RunLog
from eventlog.progress import requests_of
from eventlog.run import Run
from eventlog.runtime.action_digests import ActionDigests
from eventlog.runtime.attempts import logged
from eventlog.runtime.grounds import Grounds
from eventlog.runtime.run_streams import MAX_REDECISIONS, RunStreams, new_event, of_step, printable
from eventlog.signing.approver_keys import ApproverKeys, LogIdAt, fold_approver_keys
from eventlog.signing.envelopes import encode_envelope
from eventlog.signing.signed_decisions import SIGNED, Flaw, Occasion, check_decision, flaw_of_recorded, read_statement
from eventlog.signing.statements import ApprovalStatement
from eventlog.stores.clock import Clock

__all__ = ["SignedDecisions", "log_ids_of", "proven"]

_UNSIGNED: Final = Occasion(position=0, at_us=0, log_id=b"", root=None)
_VERIFIED_LABEL: Final = b"eventlog/proposal-verified/v1\0"


class SignedDecisions:
    """Records signed decisions on the runs of one log, and checks them again before an effect."""

    def __init__(self, log: RunLog, streams: RunStreams, clock: Clock, digests: ActionDigests) -> None:
        self._log: Final = log
        self._streams: Final = streams
        self._clock: Final = clock
        self._digests: Final = digests

    # ── recording ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def record(
        self,
        run_id: str,
        decision: str,
        proposal_hash: str,
        envelope: Envelope,
        *,
        request: str | None,
        actor: str | None,
    ) -> Run:
        """Record the decision that the envelope proves, and return the run as it is then.

        What it says counts: who decides, why and as what. `decision`, `proposal_hash`, and `request` and `actor` if
        they are given, have to be the same. Raises as `Runner.approve`.
        """
        for _ in range(MAX_REDECISIONS):
            run = await self._streams.load(run_id)
            chosen, decided = await self._decide(run, decision, proposal_hash, envelope, request, actor)
            if isinstance(decided, Refusal):
                if await self._streams.has_appended(chosen, (decided.event,), actor):
                    raise logged(decided.error)
            elif await self._has_recorded(chosen, decided, read_statement(envelope)):
                return await self._streams.load(run_id)
        raise RunConflict(run_id, "it changes faster than a decision can be recorded")

    async def _decide(
        self,
        run: Run,
        decision: str,
        proposal_hash: str,
        envelope: Envelope,
        request: str | None,
        actor: str | None,
    ) -> tuple[Run, _Decided | Refusal]:
        try:
            statement = read_statement(envelope)
        except InvalidInput as error:
            flaw = Flaw(code="statement_invalid", message=str(error))
            return run, self._refusal(run, decision, flaw, envelope)
        said = {"run_id": run.run_id, "decision": decision, "proposal_sha256": proposal_hash}
        said |= {} if request is None else {"request_id": request}
        said |= {} if actor is None else {"approver": actor}
        other = _first_other(statement, said)
        chosen = choose_request(
            run, requests_of(run) or (run,), decision, request_id=statement.request_id, supplied_hash=proposal_hash
        )
        if other is not None:
            return run, self._refusal(run, decision, other, envelope)
        if isinstance(chosen, Refusal):
            return run, chosen
        return chosen, await self._checked(chosen, statement, envelope)

    async def _checked(self, chosen: Run, statement: ApprovalStatement, envelope: Envelope) -> _Decided | Refusal:
        asked = event_of_request(await self._streams.events(chosen.run_id), chosen)
        keys_version, keys, log_id_at = await self._keys()
        now_us = await self._now_us()
        occasion = await self._occasion(statement, log_id_at, now_us)
        found = check_decision(envelope, asked, keys, occasion)
        if isinstance(found, Flaw):
            return self._refusal(chosen, statement.decision, found, envelope)
        used = await self._log.find(bytes.fromhex(statement.nonce))
        if used is not None:
            return self._used(chosen, statement.decision, envelope, used.position)
        decided = record_decision(
            chosen,
            statement.decision,
            statement.proposal_sha256,
            actor_source=SIGNED,
            reason=statement.reason,
            actor=statement.approver,
            roles=statement.roles,
            now_us=now_us,
            level=found.key.level,
            envelope=envelope,
        )
        return decided if isinstance(decided, Refusal) else _Decided(decided, keys_version)

    async def _has_recorded(self, chosen: Run, decided: _Decided, statement: ApprovalStatement) -> bool:
        """Append the decision under its nonce, and in its time.

        False if the run, or who holds which key, has changed meanwhile, or it would be recorded when its time is over.
        """
        nonce = bytes.fromhex(statement.nonce)
        events = _under_nonce(of_step(chosen, decided.accepted.events), nonce)
        try:
            await self._streams.append_at(
                chosen,
                events,
                statement.approver,
                checks=_at_version(decided.keys_version),
                before_us=min(statement.not_after_us, chosen.expires_at_us or statement.not_after_us),
            )
        except (WrongExpectedVersion, AppendTooLate):
            return False
        except Misuse as error:
            if error.code != "event_id_conflict":
                raise
            return False  # another has used the nonce since it was looked for: it is found now
        return True

    def _used(self, run: Run, decision: str, envelope: Envelope, position: int) -> Refusal:
        message = f"the signed statement was recorded before, at position {position}"
        return self._refusal(run, decision, Flaw(code="nonce_used", message=message), envelope, position=position)

    def _refusal(self, run: Run, decision: str, flaw: Flaw, envelope: Envelope, **facts: Any) -> Refusal:
        """Return the refusal of a signed decision: its trace says what was supplied, and by its digest which."""
        digest = sha256(encode_envelope(envelope)).hexdigest()
        named = "" if flaw.field is None else f"{flaw.field}: {flaw.supplied!r:.300}, not {flaw.expected!r:.300}; "
        return refuse_transition(
            run,
            flaw.code,
            decision,
            flaw.message,
            detail=printable(f"{named}envelope sha256 {digest}")[:MAX_SUPPLIED],
            **flaw_facts(flaw),
            **facts,
        )

    # ── before the effect ────────────────────────────────────────────────────────────────────────────────────────────

    async def refusal_before_effect(self, request: Run) -> Refusal | None:
        """Return why nothing must be done about the effect now, by what is stored; None if something may.

        Where an attempt has begun that is asked of the action alone: what it came to has to be found out and recorded
        whatever became of the approvals. Whoever makes another one asks `prove` first.
        """
        if not needs_proof(request):
            return None
        if request.open_intent is None and not request.is_unknown:
            found = await self.prove(request)
            return found if isinstance(found, Refusal) else None
        return self._refuse_other(request, event_of_request(await self._streams.events(request.run_id), request))

    async def prove(self, request: Run) -> Grounds | Refusal:
        """Return on what an attempt would rest that begins now: the approvals of the request, as they are stored.

        Each is checked again, as of now: a key that was revoked meanwhile, an action that is another than the one that
        was approved, an approval of a lower level than is asked for. The time of a statement binds the first attempt.
        The keys are those of a version of `$log`, at which the intent has to be appended.
        """
        if not needs_proof(request):
            return Grounds()
        events = await self._streams.events(request.run_id)
        asked = event_of_request(events, request)
        approvals = approvals_of(events, asked, request)
        erased = refuse_erased(request, [asked, *approvals])
        if erased is not None:
            return erased
        grounds, flaws = await self._flaws(request, asked, approvals, began_at_us(events, asked, request))
        for recorded, flaw in flaws:
            if flaw is not None:
                return refuse_unproved(request, flaw, recorded.position)
        return self._refuse_other(request, asked) or refuse_too_few(request, asked, approvals) or grounds

    def _refuse_other(self, request: Run, asked: RecordedEvent) -> Refusal | None:
        return refuse_other_proposal(request, asked) or refuse_changed_action(request, asked, self._digests.of)

    async def _flaws(
        self, request: Run, asked: RecordedEvent, approvals: Sequence[RecordedEvent], first_at_us: int | None
    ) -> tuple[Grounds, list[tuple[RecordedEvent, Flaw | None]]]:
        """Return what is wrong with each approval as of now. Where none is signed the log needs no keys and no tree."""
        if not any(recorded.data.envelope is not None for recorded in approvals):
            return Grounds(), [(each, flaw_of_recorded(each, asked, {}, _UNSIGNED)) for each in approvals]
        keys_version, keys, log_id_at = await self._keys()
        at_us = await self._now_us() if first_at_us is None else first_at_us
        found = []
        for recorded in approvals:
            occasion = await self._occasion(statement_of(recorded), log_id_at, at_us, recorded)
            found.append((recorded, flaw_of_recorded(recorded, asked, keys, occasion)))
        before_us = earliest_end(approvals) if first_at_us is None else None
        return Grounds(_at_version(keys_version), before_us), found

    # ── the log ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _keys(self) -> tuple[int, ApproverKeys, LogIdAt]:
        """Return the version of `$log`, the keys that it has enrolled, and what tells the incarnation of a position."""
        log_id_at = await log_ids_of(self._log)
        stream = await self._log.read_stream(LOG_STREAM)
        return stream.version, fold_approver_keys(stream.events, log_id_at), log_id_at

    async def _now_us(self) -> int:
        """Return when an event would be recorded now: not before the last one of the whole log."""
        return max(self._clock.now_us(), await self._streams.last_at_us())

    async def _occasion(
        self,
        statement: ApprovalStatement | None,
        log_id_at: LogIdAt,
        now_us: int,
        recorded: RecordedEvent | None = None,
    ) -> Occasion:
        """Return the occasion of an event that would be appended now, about a decision recorded before, if it is."""
        position = (await self._log.head()).position + 1
        root = None
        if statement is not None and statement.head.size < position:
            root = (await proven(self._log).tree_head(statement.head.size)).root
        log_id = log_id_at(position if recorded is None else recorded.position)
        return Occasion(position=position, at_us=now_us, log_id=log_id, root=root)


class _Decided(NamedTuple):
    """A decision that is allowed, and the version of `$log` at which its key was looked up."""

    accepted: Accepted
    keys_version: int


def proven(log: object) -> ProvenLog:
    """Return the log as one that has a tree. Raises Misuse(`invalid_argument`) for one that has none."""
    if not isinstance(log, ProvenLog):
        raise Misuse("invalid_argument", f"signed decisions need a log with a tree; {type(log).__name__} has none")
    return log


async def log_ids_of(log: object) -> LogIdAt:
    """Return what tells to which incarnation of the log a position belongs, the next one among them."""
    incarnations = await proven(log).log_ids()

    def log_id_at(position: int) -> bytes:
        return [log_id for first, log_id in incarnations if first <= max(position, 1)][-1]

    return log_id_at


def _at_version(keys_version: int) -> tuple[tuple[str, Expect], ...]:
    """Return the check that no key was enrolled or revoked since `$log` was read."""
    return ((LOG_STREAM, Expect.at(keys_version)),)


def _first_other(statement: ApprovalStatement, said: dict[str, str]) -> Flaw | None:
    """Return the first field that says something else than the caller."""
    for field, expected in said.items():
        found = getattr(statement, field)
        if found != expected:
            message = f"what was signed is about another {field}: {found!r:.200}, not {expected!r:.200}"
            return Flaw(code="statement_mismatch", message=message, field=field, supplied=found, expected=expected)
    return None


def _under_nonce(events: Sequence[RunEvent], nonce: bytes) -> list[NewEvent]:
    """Return the events of a decision with ids that follow from its nonce: the same append again is the same events."""
    new = []
    for event in events:
        is_decision = isinstance(event, ApprovalRecorded)
        event_id = nonce if is_decision else sha256(_VERIFIED_LABEL + nonce).digest()[:16]
        new.append(NewEvent(new_event(event).type, event, event_id))
    return new
