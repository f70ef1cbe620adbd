"""Making a signed approval: the statement from the log, and the envelope from a key or from a signature made elsewhere.

    statement = await approval_statement(log, "run-1", approver="anna")     # reading is enough
    envelope = sign_approval(statement, key)                                # where the key is: not in the agent
    await runner.approve("run-1", statement.proposal_sha256, envelope=envelope)

The bytes that are signed are `bytes_to_sign(statement)`; `ssh-keygen -Y sign -n eventlog-approval@v1` signs a file that
holds them, and `envelope_of_ssh` makes the envelope. What the approver is to be shown first is `shown_request` of
`eventlog.signing.shown_requests`, or something else whose digest is then given as `displayed`.

Before it is signed the head in the statement is looked at by whoever holds the key, with `require_growth`: the log has
to go on from the head that he has signed last, and hold the proposal. So every approver is a witness of the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from eventlog.decide import Refusal, check_roles, check_run_id, choose_request, is_pending, require_run
from eventlog.decide.answers import check_supplied
from eventlog.decide.decisions import not_pending
from eventlog.errors import InvalidInput, LogCorrupt, Refused, StoreUnavailable
from eventlog.events import LOG_STREAM, Envelope, ProposalRecorded, run_stream
from eventlog.log import EventReader, ProvenLog, RecordedEvent
from eventlog.merkle import TreeHead, is_consistent, is_included
from eventlog.progress import fold_stream, requests_of
from eventlog.runtime.arguments import check_given, check_if_given
from eventlog.runtime.signed_decisions import log_ids_of, proven
from eventlog.signing.approver_keys import ApproverKey, fold_approver_keys, key_of
from eventlog.signing.ed25519 import PrivateKey
from eventlog.signing.envelopes import make_envelope, pae
from eventlog.signing.shown_requests import shown_request
from eventlog.signing.signed_decisions import bindings
from eventlog.signing.ssh_signatures import parse_armour
from eventlog.signing.statements import ApprovalStatement, Displayed, SeenHead, encode_approval
from eventlog.stores.clock import Clock, SystemClock
from eventlog.stores.entropy import random_bytes

__all__ = [
    "VALID_FOR_S",
    "PreparedApproval",
    "approval_statement",
    "bytes_to_sign",
    "envelope_of_ssh",
    "prepare_approval",
    "require_growth",
    "sign_approval",
]

VALID_FOR_S: Final = 1800.0
"""How long a statement counts, if nothing else is said: half an hour, until the effect has begun."""

_MICRO: Final = 1_000_000
_NONCE_BYTES: Final = 16


class PreparedApproval(msgspec.Struct, frozen=True, kw_only=True):
    """A statement with what its signer looks at: the event of the proposal, and the text that shows it."""

    statement: ApprovalStatement
    asked: RecordedEvent
    shown: str


async def approval_statement(
    log: EventReader,
    run_id: str,
    *,
    approver: str | None = None,
    key_id: str | None = None,
    decision: Literal["approve", "reject"] = "approve",
    request: str | None = None,
    proposal_hash: str | None = None,
    reason: str | None = None,
    roles: Sequence[str] = (),
    valid_for_s: float = VALID_FOR_S,
    displayed: Displayed | None = None,
    clock: Clock | None = None,
) -> ApprovalStatement:
    """Return the statement of a decision on a request of a run, as it is now, to be signed by its approver.

    Which of several requests is said by `request`, or by the `proposal_hash` that one of them asks for. The key is
    `key_id`, or the only one that `approver` has. The statement counts for `valid_for_s` seconds, once.
    Raises Refused: `unknown_run`, `unknown_request`, `request_ambiguous`, `approval_not_pending`, `approver_unknown`,
    `approver_revoked`; InvalidInput for what no event could hold.
    """
    prepared = await prepare_approval(
        log,
        run_id,
        approver=approver,
        key_id=key_id,
        decision=decision,
        request=request,
        proposal_hash=proposal_hash,
        reason=reason,
        roles=roles,
        valid_for_s=valid_for_s,
        displayed=displayed,
        clock=clock,
    )
    return prepared.statement


async def prepare_approval(
    log: EventReader,
    run_id: str,
    *,
    approver: str | None = None,
    key_id: str | None = None,
    decision: Literal["approve", "reject"] = "approve",
    request: str | None = None,
    proposal_hash: str | None = None,
    reason: str | None = None,
    roles: Sequence[str] = (),
    valid_for_s: float = VALID_FOR_S,
    displayed: Displayed | None = None,
    clock: Clock | None = None,
) -> PreparedApproval:
    """Return the statement as `approval_statement`, with what is shown of the request."""
    proven(log)
    check_given(decision=decision, roles=roles, valid_for_s=valid_for_s)
    check_if_given(approver=approver, key_id=key_id, request=request, proposal_hash=proposal_hash, reason=reason)
    check_if_given(displayed=displayed, clock=clock)
    check_supplied("reason", reason or "")
    if not 0 < valid_for_s <= _MAX_VALID_S:
        raise InvalidInput("invalid_argument", f"a statement counts for seconds above 0, not for {valid_for_s!r:.80}")
    asked = await _asked(log, run_id, decision, request, proposal_hash)
    log_id_at = await log_ids_of(log)
    head = await proven(log).tree_head()
    key = await _key(log, approver, key_id, head.size + 1)
    log_id = log_id_at(head.size + 1)
    said = bindings(asked, log_id) | ({} if displayed is None else {"displayed": displayed})
    now_us = max((clock or SystemClock()).now_us(), (await log.head()).recorded_at_us)
    statement = ApprovalStatement(
        **said,
        decision=decision,
        approver=key.approver,
        key_id=key.key_id,
        roles=check_roles(roles),
        reason=reason,
        nonce=random_bytes(_NONCE_BYTES).hex(),
        not_after_us=now_us + max(1, round(valid_for_s * _MICRO)),
        max_uses=1,
        head=SeenHead(size=head.size, root=head.root.hex()),
    )
    return PreparedApproval(statement=statement, asked=asked, shown=shown_request(asked, log_id))


def bytes_to_sign(statement: ApprovalStatement) -> bytes:
    """Return the exact bytes that the approver signs: the DSSE PAE of the statement."""
    return pae(encode_approval(statement))


def sign_approval(statement: ApprovalStatement, key: PrivateKey) -> Envelope:
    """Return the envelope of a statement, signed with an Ed25519 key that is enrolled as `ed25519`."""
    return make_envelope(encode_approval(statement), statement.key_id, key.sign(bytes_to_sign(statement)))


def envelope_of_ssh(statement: ApprovalStatement, armour: bytes) -> Envelope:
    """Return the envelope of a statement with the signature that `ssh-keygen -Y sign` has made of `bytes_to_sign`.

    Raises InvalidInput(`statement_invalid`) for what is no such armour; the signature itself is not looked at.
    """
    return make_envelope(encode_approval(statement), statement.key_id, parse_armour(armour))


async def require_growth(log: EventReader, prepared: PreparedApproval, seen: TreeHead | None) -> None:
    """Look at the log as a witness does, before signing: the head holds the proposal, and goes on from `seen`.

    `seen` is the head of this log that the same key has signed last, None if it has signed none. Raises
    StoreUnavailable: `store_rolled_back` if the log is shorter than that, `store_forked` if it is another one;
    LogCorrupt(`tree_mismatch`) if its own proofs do not hold.
    """
    tree: ProvenLog = proven(log)
    asked, head = prepared.asked, prepared.statement.head
    root = bytes.fromhex(head.root)
    inclusion = await tree.prove_inclusion(asked.position, head.size)
    if not is_included(asked.position - 1, asked.leaf, head.size, root, inclusion):
        raise LogCorrupt("tree_mismatch", "the proposal is not in the head of the log", position=asked.position)
    if seen is None:
        return
    facts = {"seen_size": seen.size, "size": head.size, "seen_root": seen.root.hex(), "root": head.root}
    if head.size < seen.size:
        message = f"the log ends at {head.size}, and this key has signed its head at {seen.size}"
        raise StoreUnavailable("store_rolled_back", message, **facts)
    growth = await tree.prove_consistency(seen.size, head.size)
    if not is_consistent(seen.size, seen.root, head.size, root, growth):
        message = f"the log does not go on from the head of size {seen.size} that this key has signed"
        raise StoreUnavailable("store_forked", message, **facts)


_MAX_VALID_S: Final = 365 * 24 * 3600


async def _asked(
    log: EventReader, run_id: str, decision: str, request_id: str | None, proposal_hash: str | None
) -> RecordedEvent:
    """Return the event of the proposal that a person has to decide on. Raises a refusal; nothing is recorded."""
    events = (await log.read_stream(run_stream(check_run_id(run_id)))).events
    run = fold_stream(run_id, events)
    require_run(run)
    requests = requests_of(run) or (run,)
    chosen = choose_request(run, requests, decision, request_id=request_id, supplied_hash=proposal_hash)
    if isinstance(chosen, Refusal):
        raise chosen.error
    if not is_pending(chosen):
        raise not_pending(chosen, decision).error
    found = [
        event
        for event in events
        if isinstance(event.data, ProposalRecorded) and event.data.request_id == chosen.request_id
    ]
    return found[-1]


async def _key(log: EventReader, approver: str | None, key_id: str | None, position: int) -> ApproverKey:
    """Return the key that is to sign. Raises Refused(`approver_unknown`, `approver_revoked`), InvalidInput."""
    keys = fold_approver_keys((await log.read_stream(LOG_STREAM)).events, await log_ids_of(log))
    if key_id is None:
        if approver is None:
            raise InvalidInput("invalid_argument", "a statement needs its approver, or the id of his key")
        return key_of(keys, approver, position)
    key = keys.get(key_id)
    if key is None or approver not in (None, key.approver):
        whose = "" if approver is None else f" as one of {approver!r}"
        raise Refused("approver_unknown", f"the key {key_id:.80} is not enrolled in this log{whose}", key_id=key_id)
    if not key.counts_at(position):
        raise Refused("approver_revoked", f"the key {key_id} was revoked at position {key.revoked_at}", key_id=key_id)
    return key
