"""What people do about the requests of runs: decide, edit, withdraw, cancel; and that nobody did anything in time.

Each command reads the run, decides on the log alone, and appends at exactly the version that it read. If the run has
moved meanwhile it decides again, so that of two people the first one's decision stands and the other is told of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from eventlog.decide import (
    Accepted,
    Refusal,
    Terms,
    cancel,
    check_run_id,
    choose_request,
    edit,
    expire,
    has_expired,
    is_pending,
    record_decision,
    refuse_edit,
    refuse_transition,
    require_run,
    revoke,
)
from eventlog.errors import AppendTooLate, InvalidInput, RunConflict
from eventlog.events import ApprovalRecorded, Envelope, ProposalRecorded, RunEvent
from eventlog.progress import ENDED, requests_of
from eventlog.proposal import Proposal, propose
from eventlog.run import Run, Status
from eventlog.runtime.attempts import logged
from eventlog.runtime.policies import Policies
from eventlog.runtime.run_streams import MAX_REDECISIONS, RunStreams
from eventlog.runtime.signed_decisions import SignedDecisions
from eventlog.signing.signed_decisions import AUTHENTICATED
from eventlog.stores.clock import Clock

__all__ = ["People", "actor_source"]

Decide = Callable[[Run], Accepted | Refusal]
_ENDED: Final = ENDED - {Status.FAILED}
"""Ends that nothing comes behind. What a run has asked for that FAILED can still be decided: it may be resumed."""
_OPEN: Final = frozenset({Status.WAITING_FOR_USER, Status.APPROVED})


def actor_source(actor: str | None, *, is_authenticated: bool = False) -> str:
    """Return who vouches for the actor: the operating system, if nobody named one."""
    if is_authenticated:
        return AUTHENTICATED
    return "os" if actor is None else "asserted"


class People:
    """Commands of people on the runs of one log. `default_actor` is who acts where a command names nobody.

    `policies` say on what terms an edited proposal is asked; `is_known` whether this program knows an action, and so
    whether it can say that.
    """

    def __init__(
        self,
        streams: RunStreams,
        clock: Clock,
        policies: Policies,
        *,
        signed: SignedDecisions,
        default_actor: str,
        is_known: Callable[[str], bool],
    ) -> None:
        self._streams: Final = streams
        self._clock: Final = clock
        self._policies: Final = policies
        self._signed: Final = signed
        self._default_actor: Final = default_actor
        self._is_known: Final = is_known

    async def decide(
        self,
        run_id: str,
        decision: str,
        proposal_hash: str,
        *,
        request: str | None = None,
        reason: str | None = None,
        actor: str | None = None,
        roles: Sequence[str] = (),
        is_authenticated: bool = False,
        envelope: Envelope | None = None,
    ) -> Run:
        """Approve or reject exactly the proposal with this hash, of the request that is meant.

        Raises Refused: `unknown_run`, `unknown_request`, `request_ambiguous`, `approval_not_pending` (with the recorded
        decision in its details), `approval_expired`, `proposal_hash_mismatch`, `already_voted`, `role_required`,
        `separation_of_duties`, `level_required`; of a signed decision as `signing.signed_decisions`, and `nonce_used`.
        """
        if is_authenticated and actor is None:
            raise InvalidInput("invalid_argument", "who was authenticated is to be named: there is no `actor`")
        if envelope is not None:
            _require_signed_alone(reason, roles, is_authenticated=is_authenticated)
            check_run_id(run_id)
            return await self._signed.record(run_id, decision, proposal_hash, envelope, request=request, actor=actor)

        def choose_and_decide(run: Run, floor_us: int) -> tuple[Run, Accepted | Refusal]:
            chosen = choose_request(run, _requests(run), decision, request_id=request, supplied_hash=proposal_hash)
            if isinstance(chosen, Refusal):
                return run, chosen
            return chosen, record_decision(
                chosen,
                decision,
                proposal_hash,
                actor_source=actor_source(actor, is_authenticated=is_authenticated),
                reason=reason,
                actor=self._name(actor),
                roles=roles,
                now_us=max(self.now_us(chosen), floor_us),
                level=1 if is_authenticated else 0,  # a higher one is proved by a signature alone
            )

        return await self._carry_out(run_id, choose_and_decide, actor)

    async def edit(
        self,
        run_id: str,
        *,
        request: str | None = None,
        action: str | None = None,
        args: dict[str, Any] | None = None,
        output: str | None = None,
        approves: bool = False,
        reason: str | None = None,
        actor: str | None = None,
        roles: Sequence[str] = (),
    ) -> Run:
        """Ask something else instead: a new proposal under a request id of its own, on the terms of its own action.

        What is not named stays as it was asked. The original request is closed for good. With `approves` the editor
        approves the new proposal in the same append, as far as its terms let him. Name the `request` that was looked
        at: another edit, that came first, has closed it. Raises as `decide`; Refused(`unknown_action`) for an action
        that this program does not know, since it cannot say on what terms that is asked; InvalidInput if nothing would
        change.
        """
        if action is None and args is None and output is None:
            raise InvalidInput(
                "invalid_argument", "an edit names what changes: the action, its arguments or its output"
            )
        pinned = request

        def choose_and_edit(run: Run, floor_us: int) -> tuple[Run, Accepted | Refusal]:
            nonlocal pinned
            chosen = choose_request(run, _requests(run), "edit", request_id=pinned, has_to_name=approves)
            if isinstance(chosen, Refusal):
                return run, chosen
            pinned = chosen.request_id  # an edit that came first meanwhile is not edited unseen
            now_us = max(self.now_us(chosen), floor_us)
            refused = refuse_edit(chosen, now_us)
            if refused is not None:
                return chosen, refused
            edited = _edited(chosen, action, args, output)
            terms = self._terms_of_edit(chosen, edited, now_us)
            if isinstance(terms, Refusal):
                return chosen, terms
            return chosen, edit(
                chosen,
                edited,
                terms,
                actor_source=actor_source(actor),
                folder=chosen.folder,
                approves=approves,
                reason=reason,
                actor=self._name(actor),
                roles=roles,
                now_us=now_us,
            )

        # The end of what is asked instead is counted from when that is recorded: not before the last event of the log.
        return await self._carry_out(run_id, choose_and_edit, actor, floor_us=await self._streams.last_at_us())

    async def revoke(
        self, run_id: str, *, request: str | None = None, reason: str | None = None, actor: str | None = None
    ) -> Run:
        """Withdraw the approvals of a request before the act; it waits for a decision again, on the same terms.

        Raises Refused: `approval_spent` once the effect has begun, `cannot_revoke` where there is no approval, and as
        `decide` for the request that is meant.
        """

        def choose_and_revoke(run: Run, floor_us: int) -> tuple[Run, Accepted | Refusal]:
            requests = _requests(run)
            if request is None and len(requests) > 1 and not any(map(_is_revocable, requests)):
                return run, _nothing_to_revoke(run)
            chosen = choose_request(run, requests, "revoke", request_id=request, is_candidate=_is_revocable)
            if isinstance(chosen, Refusal):
                return run, chosen
            now_us = max(self.now_us(chosen), floor_us)
            return chosen, revoke(chosen, actor_source=actor_source(actor), reason=reason, now_us=now_us)

        return await self._carry_out(run_id, choose_and_revoke, actor)

    async def cancel(self, run_id: str, *, reason: str | None = None, actor: str | None = None) -> Run:
        """Cancel a run that has not ended. What is under way is not called back, but nothing begins any more.

        Raises Refused: `unknown_run`, `cannot_cancel`.
        """
        decide = partial(cancel, actor_source=actor_source(actor), reason=reason)
        return await self._carry_out(run_id, lambda run, _: (run, decide(run)), actor, is_timed=False)

    async def expire(self, run_id: str, *, actor: str | None = None) -> Run:
        """Record every request of the run on which nobody decided in time. Raises Refused(`unknown_run`)."""
        check_run_id(run_id)
        for _ in range(MAX_REDECISIONS):
            run = await self._streams.load(run_id)
            require_run(run)
            now_us = self.now_us(run)
            overdue = next((request for request in _requests(run) if has_expired(request, now_us)), None)
            accepted = expire(overdue, now_us) if overdue is not None else None
            if overdue is None or accepted is None:
                return run
            await self._streams.has_appended(overdue, accepted.events, actor)
        raise RunConflict(run_id, "it changes faster than an end can be recorded")

    def now_us(self, run: Run) -> int:
        """Return the time by which decisions on the run are made: never before its last event."""
        return max(self._clock.now_us(), run.recorded_at_us)

    def _name(self, actor: str | None) -> str:
        return self._default_actor if actor is None else actor

    def _terms_of_edit(self, run: Run, proposal: Proposal, now_us: int) -> Terms | Refusal:
        is_same = run.proposal is not None and run.proposal.action == proposal.action
        if not is_same and not self._is_known(proposal.action):
            message = f"no action {proposal.action!r} is registered here, so nobody can say who has to approve it"
            return refuse_transition(run, "unknown_action", "edit", message)
        return self._policies.terms_of_edit(run, proposal, now_us)

    async def _carry_out(
        self,
        run_id: str,
        decide: Callable[[Run, int], tuple[Run, Accepted | Refusal]],
        actor: str | None,
        *,
        is_timed: bool = True,
        floor_us: int = 0,
    ) -> Run:
        """Append what is decided on the run, or on one of its requests, and return the run then. Raises a refusal.

        `decide` is told before which time it is not: what `is_timed` is recorded before the request expires, or not. So
        is what approves in the same append what it asks instead.
        """
        check_run_id(run_id)
        for _ in range(MAX_REDECISIONS):
            chosen, decision = decide(await self._streams.load(run_id), floor_us)
            match decision:
                case Accepted(events=events):
                    before_us = _end_us(events, chosen if is_timed and is_pending(chosen) else None)
                    try:
                        if await self._streams.has_appended(chosen, events, actor, before_us=before_us):
                            return await self._streams.load(run_id)
                    except AppendTooLate:
                        floor_us = await self._streams.last_at_us()
                case Refusal(event=event, error=error):
                    if await self._streams.has_appended(chosen, (event,), actor):
                        raise logged(error)
        raise RunConflict(run_id, "it changes faster than a decision can be recorded")


def _requests(run: Run) -> tuple[Run, ...]:
    """Return the requests of a run; those that a workflow has left open when it ended have ended with it."""
    requests = requests_of(run)
    if run.progress is None or run.status not in _ENDED:
        return requests
    return tuple(replace(request, status=run.status) if request.status in _OPEN else request for request in requests)


def _end_us(events: Sequence[RunEvent], decided_on: Run | None) -> int | None:
    """Return before when this has to be recorded: before the end of each request of it that it decides on."""
    ends = [] if decided_on is None else [decided_on.expires_at_us]
    if any(isinstance(event, ApprovalRecorded) for event in events):
        ends += [event.expires_at_us for event in events if isinstance(event, ProposalRecorded)]
    return min((end for end in ends if end is not None), default=None)


def _require_signed_alone(reason: str | None, roles: Sequence[str], *, is_authenticated: bool) -> None:
    """Raise InvalidInput for what would stand beside a signed decision without being signed."""
    if reason is not None or roles or is_authenticated:
        raise InvalidInput(
            "invalid_argument", "the signed statement says the reason, the roles and who decides; leave them away"
        )


def _is_revocable(request: Run) -> bool:
    return request.attempts == 0 and (
        request.status is Status.APPROVED or (is_pending(request) and bool(request.votes))
    )


def _nothing_to_revoke(run: Run) -> Refusal:
    """Return the refusal of a revocation that names none of several requests, where none could be meant."""
    message = f"nothing is approved: no request of run {run.run_id!r} has an approval whose effect has not begun"
    return refuse_transition(run, "cannot_revoke", "revoke", message)


def _edited(run: Run, action: str | None, args: dict[str, Any] | None, output: str | None) -> Proposal:
    """Return what is asked instead. Raises InvalidInput for what is no proposal."""
    asked = run.proposal
    assert asked is not None, "a request has a proposal"
    return propose(
        asked.action if action is None else action,
        asked.args if args is None else args,
        asked.output if output is None else output,
    )
