"""Asking a person, and what is said to that: a decision, a vote, or nothing in time.

On what terms a request is decided was frozen when it was asked (`ProposalRecorded.policy`), so that any process decides
on the same ones. Without terms one decision by anybody decides. Else `required` people have to approve, each for
himself; one rejection decides.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec

from eventlog.decide.answers import (
    MAX_SUPPLIED,
    Accepted,
    Refusal,
    check_supplied,
    decision_facts,
    proposal_of,
    refuse_transition,
    request_id_of,
    require_run,
    time_text,
)
from eventlog.errors import ApprovalExpired, InvalidInput, Refused
from eventlog.events import ApprovalExpired as ApprovalExpiredEvent
from eventlog.events import (
    ApprovalRecorded,
    CheckpointSaved,
    Envelope,
    PolicyTerms,
    ProposalRecorded,
    ProposalRejected,
    ProposalVerified,
    RunEvent,
    Waiting,
)
from eventlog.plain import check_id
from eventlog.proposal import Proposal, hash_of, request_id_for
from eventlog.run import Run, Status

__all__ = [
    "DECISIONS",
    "Terms",
    "ask",
    "check_roles",
    "expire",
    "has_expired",
    "not_pending",
    "record_decision",
    "refuse_expired",
    "start",
    "too_late",
]

DECISIONS: Final = ("approve", "reject")
_MAX_ROLES: Final = 32


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """On what terms one request is asked. Nothing is asked for by default: one decision by anybody, at any time.

    `auto` is why a rule approves it at once, so that nobody is asked; `rule_failed` why it could not say.
    `action_sha256` is the digest of the action's definition, where it is known.
    """

    policy: PolicyTerms | None = None
    expires_at_us: int | None = None
    auto: str | None = None
    rule_failed: str | None = None
    action_sha256: str | None = None

    @property
    def decided_before_us(self) -> int | None:
        """Before when the request has to be recorded, as its approval is recorded with it; None if people decide."""
        return self.expires_at_us if self.auto is not None else None


_NO_TERMS: Final = Terms()


def start(run: Run, proposal: Proposal, folder: str | None = None, terms: Terms = _NO_TERMS) -> Accepted:
    """Begin a run of one action: its first checkpoint and its proposal. Raises Refused(`run_exists`).

    `folder` is what a relative target of the proposal is relative to.
    """
    if run.version != 0:
        raise Refused("run_exists", f"the run {run.run_id!r} exists already", subject=run.run_id, run_id=run.run_id)
    request_id = request_id_for(run.run_id)
    waiting = Waiting(type="approval", node_id=proposal.action, approval_id=request_id)
    checkpoint = CheckpointSaved(status=Status.WAITING_FOR_USER, state_version=1, waiting=waiting)
    return Accepted((checkpoint, *ask(request_id, proposal, folder, terms)))


def ask(
    request_id: str, proposal: Proposal, folder: str | None = None, terms: Terms = _NO_TERMS, **fields: Any
) -> tuple[RunEvent, ...]:
    """Return the events of a request: what is proposed, and its approval, if a rule gives that at once.

    `fields` are further ones of the `ProposalRecorded`.
    """
    recorded = ProposalRecorded(
        request_id=request_id,
        proposal=msgspec.Raw(proposal.canonical),
        proposal_hash=proposal.hash,
        folder=folder,
        policy=terms.policy,
        expires_at_us=terms.expires_at_us,
        rule_failed=terms.rule_failed,
        action_sha256=terms.action_sha256,
        **fields,
    )
    if terms.auto is None:
        return (recorded,)
    return (
        recorded,
        ProposalVerified(phase="approval", proposal_hash=proposal.hash),
        ApprovalRecorded(
            request_id=request_id,
            decision="approve",
            approval_hash=proposal.hash,
            actor_source="policy",
            reason=terms.auto,
        ),
    )


def record_decision(
    run: Run,
    decision: str,
    supplied_hash: str,
    *,
    actor_source: str,
    reason: str | None = None,
    actor: str | None = None,
    roles: Sequence[str] = (),
    now_us: int = 0,
    level: int = 0,
    envelope: Envelope | None = None,
) -> Accepted | Refusal:
    """Approve or reject exactly the proposal whose hash is supplied.

    `actor` is who decides, by the name that the envelope will have, and `roles` are what he brings; both matter only
    where the terms of the request ask for it. `level` is how sure it is who he is, and `envelope` what he has signed,
    which was checked before. Raises InvalidInput(`invalid_decision`, `invalid_text`, `invalid_id`,
    `payload_too_large`) for what could not even be recorded.
    """
    require_run(run)
    _check_decision(decision, supplied_hash, reason)
    brought = check_roles(roles)
    if run.status is not Status.WAITING_FOR_USER:
        return not_pending(run, decision, supplied_hash)
    if has_expired(run, now_us):
        return refuse_expired(run)
    proposal = proposal_of(run)
    current_hash = hash_of(proposal.canonical)
    if not supplied_hash == current_hash == run.proposal_hash:
        return _other_hash(run, proposal, supplied_hash, current_hash)
    refused = _refused_by_policy(run, decision, supplied_hash, actor, brought, level)
    if refused is not None:
        return refused
    return Accepted(
        (
            ProposalVerified(phase="approval", proposal_hash=current_hash),
            ApprovalRecorded(
                request_id=request_id_of(run),
                decision=decision,
                approval_hash=current_hash,
                actor_source=actor_source,
                reason=reason,
                roles=brought,
                is_deciding=decision == "reject" or len(run.votes) + 1 >= _required(run),
                level=level,
                envelope=envelope,
            ),
        )
    )


def expire(run: Run, now_us: int) -> Accepted | None:
    """Return that nobody has decided in time, if that is so and has not been said yet."""
    require_run(run)
    return Accepted((_expired(run),)) if has_expired(run, now_us) else None


def has_expired(run: Run, now_us: int) -> bool:
    """Say whether the time for a decision has run out while nobody decided."""
    return run.status is Status.WAITING_FOR_USER and run.expires_at_us is not None and now_us >= run.expires_at_us


def refuse_expired(run: Run) -> Refusal:
    """Return the refusal of whatever comes after the time has run out: the event says just that."""
    return Refusal(_expired(run), too_late(run))


def not_pending(run: Run, attempted: str, supplied_hash: str | None = None) -> Refusal:
    """Return the refusal of a command on a request that waits for nobody, with the decision that stands."""
    if run.status is Status.EXPIRED:
        refusal = refuse_transition(run, "approval_expired", attempted, "", supplied_hash=supplied_hash)
        return Refusal(refusal.event, too_late(run))
    request = f"the request of run {run.run_id!r}"
    message = f"{request} is decided already: {run.approval}"
    if run.approval is None:
        message = f"{request} waits for no decision: the run is {run.status.value}"
    return refuse_transition(
        run, "approval_not_pending", attempted, message, supplied_hash=supplied_hash, **decision_facts(run)
    )


def too_late(run: Run) -> ApprovalExpired:
    """Return the error that says that nobody decided in time."""
    at = None if run.expires_at_us is None else time_text(run.expires_at_us)
    return ApprovalExpired(
        f"nobody decided on the request of run {run.run_id!r} in time",
        run_id=run.run_id,
        status=Status.EXPIRED.value,
        request_id=run.request_id,
        expires_at=at,
    )


def check_roles(roles: Collection[str]) -> tuple[str, ...]:
    """Return the roles, each once, if an event can hold them. Raises InvalidInput(`invalid_id`, `invalid_argument`)."""
    if isinstance(roles, str) or not isinstance(roles, Collection):
        raise InvalidInput(
            "invalid_argument", f"roles are several texts, not this {type(roles).__name__}", path="$.roles"
        )
    brought = tuple(dict.fromkeys(check_id(role, "role", max_bytes=128) for role in roles))
    if len(brought) > _MAX_ROLES:
        raise InvalidInput("invalid_argument", f"more than {_MAX_ROLES} roles", path="$.roles")
    return brought


def _check_decision(decision: str, supplied_hash: str, reason: str | None) -> None:
    if decision not in DECISIONS:
        raise InvalidInput("invalid_decision", f"a decision is approve or reject, not {decision!r:.80}")
    check_supplied("proposal_hash", supplied_hash)
    check_supplied("reason", reason or "")


def _required(run: Run) -> int:
    return run.policy.required if run.policy is not None else 1


def _refused_by_policy(
    run: Run, decision: str, supplied_hash: str, actor: str | None, roles: tuple[str, ...], level: int
) -> Refusal | None:
    """Refuse who may not decide, by the terms that were frozen with the request. Anybody may say no, once."""
    if run.policy is None:
        return None
    who = "nobody named" if actor is None else repr(actor)

    def refuse(code: str, message: str, **facts: Any) -> Refusal:
        return refuse_transition(run, code, decision, message, supplied_hash=supplied_hash, actor=actor, **facts)

    if any(vote.actor == actor for vote in run.votes):
        return refuse("already_voted", f"{who} has decided on the request of run {run.run_id!r} already")
    if decision != "approve":
        return None
    if run.policy.separation_of_duties and (actor is None or actor in run.proposers):
        return refuse(
            "separation_of_duties", f"{who} has proposed or edited what run {run.run_id!r} asks, and cannot approve it"
        )
    if level < run.policy.level:
        return refuse(
            "level_required",
            f"the request of run {run.run_id!r} takes approvals of level {run.policy.level}, and this one is {level}",
            required_level=run.policy.level,
            level=level,
        )
    if run.policy.roles and not set(roles).intersection(run.policy.roles):
        wanted = ", ".join(run.policy.roles)
        return refuse(
            "role_required",
            f"the request of run {run.run_id!r} takes an approver with one of the roles {wanted}",
            required_roles=list(run.policy.roles),
            roles=list(roles),
            detail=", ".join(roles)[:MAX_SUPPLIED] or None,
        )
    return None


def _expired(run: Run) -> ApprovalExpiredEvent:
    assert run.expires_at_us is not None, "only what has an end can be over"
    return ApprovalExpiredEvent(request_id=request_id_of(run), expires_at_us=run.expires_at_us)


def _other_hash(run: Run, proposal: Proposal, supplied_hash: str, current_hash: str) -> Refusal:
    return Refusal(
        ProposalRejected(
            phase="approval",
            reason="proposal_hash_mismatch",
            action=proposal.action,
            output=proposal.output,
            supplied_hash=supplied_hash,
            current_hash=current_hash,
            stored_hash=run.proposal_hash,
        ),
        Refused(
            "proposal_hash_mismatch",
            f"the supplied hash is not that of the current proposal of run {run.run_id!r}",
            run_id=run.run_id,
            supplied_hash=supplied_hash,
            current_hash=current_hash,
        ),
    )
