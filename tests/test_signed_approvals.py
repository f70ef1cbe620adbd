"""Approvals that their approvers have signed: no binding can be left out, and all are checked before the effect.

The rows of audit.md, section 17.9, come first: what differs, which code says so, and that the refusal is in the log.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

import eventlog
from eventlog.audit.heads.key_file import make_key_file
from eventlog.audit.heads.local_signer import LocalSigner
from eventlog.errors import InvalidInput, Refused, StoreUnavailable
from eventlog.events import LOG_STREAM, ApprovalRecorded, ApproverEnrolled, Envelope, PolicyTerms, ProposalRecorded
from eventlog.log import Append, Expect, NewEvent, RunLog
from eventlog.merkle import TreeHead
from eventlog.progress import requests_of
from eventlog.proposal import propose
from eventlog.run import Status
from eventlog.runtime.action_digests import action_digest
from eventlog.runtime.actions.function import action
from eventlog.runtime.actions.write_file import WriteFile
from eventlog.runtime.approval_statements import (
    approval_statement,
    bytes_to_sign,
    envelope_of_ssh,
    prepare_approval,
    require_growth,
    sign_approval,
)
from eventlog.runtime.approvers import (
    approver_challenge,
    approver_keys,
    enrol_approver,
    enrolment_of_ssh,
    revoke_approver,
    sign_enrolment,
)
from eventlog.runtime.effects import Call, Promise
from eventlog.runtime.policies import Policy
from eventlog.runtime.signed_decisions import SignedDecisions, log_ids_of
from eventlog.signing import signed_decisions
from eventlog.signing.approver_keys import (
    ED25519,
    SSH,
    SSH_TOKEN,
    fold_approver_keys,
    note_approver_event,
    parse_public_key,
    spell_public_key,
)
from eventlog.signing.ed25519 import PrivateKey
from eventlog.signing.envelopes import decode_envelope, encode_envelope, make_envelope, pae
from eventlog.signing.signed_decisions import Flaw, Occasion, bindings, check_decision, flaw_of_recorded
from eventlog.signing.ssh_signatures import make_ssh_signature, public_line, to_armour
from eventlog.signing.statements import Displayed, SeenHead, encode_enrolment, key_id_of
from eventlog.stores import MemoryLog, SqliteLog
from eventlog.testing.clock import FakeClock
from tests import signed_scenarios
from tests.effect_runs import Receiver, Sending, runner_of, types_of
from tests.signed_runs import (
    ANNA,
    BOB,
    PAY,
    SIGNED,
    Scene,
    altered,
    enrol,
    events_of,
    last_event,
    paying,
    prepared_scene,
)
from tests.test_ssh_signatures import token_blob
from tools.campaigns.processes import child

OTHER = propose("pay", {"amount": "2500"}, "account-7")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Any]:
    path = "memory:" if request.param == "memory" else str(tmp_path / "log.db")
    async with eventlog.open(path, clock=clock) as log:
        yield log


@pytest.fixture
async def scene(store: MemoryLog | SqliteLog, clock: FakeClock) -> Scene:
    """A run that waits for an approval of level 2."""
    return await prepared_scene(store, clock)


@pytest.fixture
async def plain(clock: FakeClock) -> AsyncIterator[Scene]:
    """A run whose terms ask for nothing, in memory."""
    async with eventlog.open("memory:", clock=clock) as log:
        yield await prepared_scene(log, clock, None)


# ── what is accepted ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_signed_approval_is_recorded_under_its_nonce_and_the_effect_happens_once(scene: Scene) -> None:
    envelope = await scene.signed(reason="checked", roles=("ops",))
    run = await scene.approve(envelope)
    assert (run.status, run.decided_by) == (Status.APPROVED, "anna")
    (recorded,) = [event for event in await events_of(scene.log) if event.type == "approval_recorded"]
    statement = json.loads(base64.b64decode(envelope.payload))["predicate"]
    assert recorded.event_id.hex() == statement["nonce"]
    assert recorded.actor == "anna"
    said: ApprovalRecorded = recorded.data
    assert (said.level, said.actor_source, said.envelope) == (2, "signed", envelope)
    assert (said.reason, said.roles) == ("checked", ("ops",))
    assert (await scene.runner.resume("run-1")).run.status is Status.COMPLETED
    assert scene.receiver.requests == 1


async def test_a_signed_rejection_is_final(scene: Scene) -> None:
    envelope = await scene.signed(decision="reject", reason="too much")
    run = (await scene.runner.reject("run-1", PAY.hash, envelope=envelope)).run
    assert (run.status, run.decision_reason, run.votes[0].level) == (Status.REJECTED, "too much", 2)


async def test_an_ssh_key_signs_as_well(scene: Scene) -> None:
    key = PrivateKey.from_seed(b"ssh!" * 8)
    challenge = await approver_challenge(scene.log, "carl", key.public, clock=scene.clock)
    armour = to_armour(make_ssh_signature(key, pae(encode_enrolment(challenge))))
    proof = enrolment_of_ssh(challenge, armour)
    enrolled = await enrol_approver(scene.log, proof, kind=SSH, public=key.public, clock=scene.clock)
    assert (enrolled.approver, enrolled.kind, enrolled.level) == ("carl", SSH, 2)
    statement = await scene.statement(approver="carl")
    armour = to_armour(make_ssh_signature(key, bytes_to_sign(statement)))
    assert (await scene.approve(envelope_of_ssh(statement, armour))).status is Status.APPROVED


async def test_a_token_signs_as_level_3_and_nobody_has_to_say_so(store: RunLog, clock: FakeClock) -> None:
    """A key in memory stands in the token's place, and signs as a token does."""
    assert isinstance(store, MemoryLog | SqliteLog)
    scene = await prepared_scene(store, clock, Policy(level=3))
    key = PrivateKey.from_seed(b"sk.." * 8)
    challenge = await approver_challenge(store, "carl", key.public, clock=clock)
    proof = enrolment_of_ssh(challenge, to_armour(token_blob(pae(encode_enrolment(challenge)), key=key)))
    kind, public = parse_public_key(public_line(key.public, SSH_TOKEN))
    with pytest.raises(InvalidInput):
        await enrol_approver(store, proof, kind=kind, public=public, level=2, clock=clock)
    with pytest.raises(Refused) as raised:
        await enrol_approver(store, proof, kind=SSH, public=public, level=3, clock=clock)
    assert raised.value.code == "signature_invalid"
    enrolled = await enrol_approver(store, proof, kind=kind, public=public, clock=clock)
    assert (enrolled.approver, enrolled.kind, enrolled.level) == ("carl", SSH_TOKEN, 3)
    statement = await scene.statement(approver="carl")
    in_a_file = to_armour(make_ssh_signature(key, bytes_to_sign(statement)))
    assert (await scene.refusal(envelope_of_ssh(statement, in_a_file))).code == "signature_invalid"
    absent = to_armour(token_blob(bytes_to_sign(statement), key=key, flags=0))
    assert (await scene.refusal(envelope_of_ssh(statement, absent))).code == "statement_invalid"
    armour = to_armour(token_blob(bytes_to_sign(statement), key=key))
    run = await scene.approve(envelope_of_ssh(statement, armour))
    assert (run.status, run.votes[0].level) == (Status.APPROVED, 3)
    assert (await scene.runner.resume("run-1")).run.status is Status.COMPLETED


async def test_several_approvers_each_sign_for_themselves(store: RunLog, clock: FakeClock) -> None:
    assert isinstance(store, MemoryLog | SqliteLog)
    scene = await prepared_scene(store, clock, Policy(level=2, required=2))
    first = await scene.signed(approver="anna")
    assert (await scene.approve(first)).status is Status.WAITING_FOR_USER
    assert (await scene.refusal(await scene.signed(approver="anna"))).code == "already_voted"
    assert (await scene.approve(await scene.signed(approver="bob"))).status is Status.APPROVED
    assert (await scene.runner.resume("run-1")).run.status is Status.COMPLETED


async def test_signed_and_unsigned_approvals_are_counted_together_where_no_level_is_asked_for(clock: FakeClock) -> None:
    async with eventlog.open("memory:", clock=clock) as log:
        scene = await prepared_scene(log, clock, Policy(required=2))
        assert (await scene.approve(await scene.signed())).status is Status.WAITING_FOR_USER
        run = (await scene.runner.approve("run-1", PAY.hash, actor="carl")).run
        assert (run.status, [vote.level for vote in run.votes]) == (Status.APPROVED, [2, 0])
        assert (await scene.runner.resume("run-1")).run.status is Status.COMPLETED
        assert scene.receiver.requests == 1


async def test_an_approval_may_be_signed_where_nobody_asks_for_it(plain: Scene) -> None:
    run = await plain.approve(await plain.signed())
    assert [vote.level for vote in run.votes] == [2]
    assert (await plain.runner.resume("run-1")).run.status is Status.COMPLETED


async def test_unsigned_approvals_go_on_as_before(plain: Scene) -> None:
    run = (await plain.runner.approve("run-1", PAY.hash, actor="carl", reason="fine")).run
    assert (run.status, run.votes[0].level, run.votes[0].actor_source) == (Status.APPROVED, 0, "asserted")
    recorded = await last_event(plain.log)
    assert b"level" not in recorded.body
    assert b"envelope" not in recorded.body
    assert (await plain.runner.resume("run-1")).run.status is Status.COMPLETED


async def test_a_server_that_has_authenticated_the_actor_vouches_for_level_1(plain: Scene) -> None:
    run = (await plain.runner.approve("run-1", PAY.hash, actor="carl", is_authenticated=True)).run
    assert (run.votes[0].level, run.votes[0].actor_source) == (1, "authenticated")
    assert (await plain.runner.resume("run-1")).run.status is Status.COMPLETED
    with pytest.raises(InvalidInput):
        await plain.runner.approve("run-1", PAY.hash, is_authenticated=True)


async def test_level_1_is_enough_where_no_more_is_asked_for(store: RunLog, clock: FakeClock) -> None:
    assert isinstance(store, MemoryLog | SqliteLog)
    scene = await prepared_scene(store, clock, Policy(level=1), "run-1", "run-2")
    with pytest.raises(Refused) as raised:
        await scene.runner.approve("run-1", PAY.hash, actor="carl")
    assert raised.value.code == "level_required"
    await scene.runner.approve("run-1", PAY.hash, actor="carl", is_authenticated=True)
    await scene.approve(await scene.signed("run-2"), "run-2")
    for run_id in ("run-1", "run-2"):
        assert (await scene.runner.resume(run_id)).run.status is Status.COMPLETED


# ── audit.md, 17.9: what differs is refused, with a code and an event ────────────────────────────────────────────────

MISMATCHES: dict[str, tuple[str, dict[str, Any]]] = {
    "another request": ("request_id", {"request_id": "approval:run-9"}),
    "another log": ("log_id", {"log_id": "f" * 32}),
    "another run": ("run_id", {"run_id": "run-9"}),
    "another proposal event": ("proposal_position", {"proposal_position": 1}),
    "another leaf": ("proposal_leaf", {"proposal_leaf": "0" * 64}),
    "changed arguments": ("proposal_sha256", {"proposal_sha256": OTHER.hash}),
    "another tool": ("action", {"action": "refund"}),
    "another definition": ("action_sha256", {"action_sha256": "0" * 64}),
    "no definition": ("action_sha256", {"action_sha256": None}),
    "another target": ("output", {"output": "account-8"}),
    "another policy": ("policy_id", {"policy_id": "refund"}),
    "other terms": ("policy_sha256", {"policy_sha256": "0" * 64}),
    "another requester": ("requester", {"requester": "bob"}),
    "another approver": ("approver", {"approver": "bob"}),
    "another screen": ("displayed", {}),
    "another decision": ("decision", {"decision": "reject"}),
}


@pytest.mark.parametrize(("field", "changes"), MISMATCHES.values(), ids=MISMATCHES)
async def test_a_statement_about_something_else_is_refused(plain: Scene, field: str, changes: dict[str, Any]) -> None:
    statement = await plain.statement()
    if field == "displayed":
        changes = {"displayed": replace(statement.displayed, sha256="0" * 64)}
    error = await plain.refusal(altered(statement, **changes))
    if field == "request_id":
        assert error.code == "unknown_request"
        return
    assert (error.code, error.details["field"]) == ("statement_mismatch", field)
    trace = (await last_event(plain.log)).data.detail
    assert trace.startswith(f"{field}: ")
    assert "envelope sha256" in trace
    assert (await plain.approve(altered(statement))).status is Status.APPROVED, "the control: unaltered it is taken"


async def test_a_statement_for_another_run_is_refused_there(store: RunLog, clock: FakeClock) -> None:
    assert isinstance(store, MemoryLog | SqliteLog)
    scene = await prepared_scene(store, clock, SIGNED, "run-1", "run-2")
    envelope = await scene.signed("run-1")
    error = await scene.refusal(envelope, "run-2")
    assert (error.code, error.details["field"]) == ("statement_mismatch", "run_id")
    assert (await scene.approve(envelope, "run-1")).status is Status.APPROVED
    assert (await scene.refusal(envelope, "run-2")).code == "statement_mismatch"


async def test_a_statement_of_another_log_is_refused(scene: Scene, clock: FakeClock) -> None:
    async with eventlog.open("memory:", clock=clock) as log:
        elsewhere = await prepared_scene(log, clock)
        error = await scene.refusal(await elsewhere.signed())
    assert error.code == "statement_mismatch"
    assert error.details["field"] == "log_id"


async def test_the_hash_that_the_caller_names_is_the_one_that_was_signed(scene: Scene) -> None:
    error = await scene.refusal(await scene.signed(), digest=OTHER.hash)
    assert (error.code, error.details["field"]) == ("statement_mismatch", "proposal_sha256")


async def test_what_was_edited_meanwhile_is_not_approved(scene: Scene) -> None:
    envelope = await scene.signed()
    await scene.runner.edit("run-1", args={"amount": "2500"}, actor="agent")
    error = await scene.refusal(envelope)
    assert error.code == "approval_not_pending"
    assert (await scene.approve(await scene.signed(), digest=OTHER.hash)).status is Status.APPROVED


async def test_another_key_than_the_named_one_has_not_signed_it(scene: Scene) -> None:
    assert (await scene.refusal(await scene.signed(key=BOB))).code == "signature_invalid"
    theirs = altered(await scene.statement(), BOB, key_id=key_id_of(BOB.public))
    error = await scene.refusal(theirs)
    assert (error.code, error.details["field"]) == ("statement_mismatch", "approver"), "bob does not sign as anna"


async def test_a_key_that_nobody_has_enrolled_is_refused(scene: Scene) -> None:
    stranger = PrivateKey.from_seed(bytes(32))
    envelope = altered(await scene.statement(), stranger, key_id=key_id_of(stranger.public))
    assert (await scene.refusal(envelope)).code == "approver_unknown"


async def test_a_key_that_was_revoked_is_refused(scene: Scene) -> None:
    envelope = await scene.signed()
    await revoke_approver(scene.log, key_id_of(ANNA.public), reason="left")
    assert (await scene.refusal(envelope)).code == "approver_revoked"
    with pytest.raises(Refused) as raised:
        await approval_statement(scene.log, "run-1", key_id=key_id_of(ANNA.public), clock=scene.clock)
    assert raised.value.code == "approver_revoked"


async def test_a_statement_counts_once(scene: Scene) -> None:
    envelope = await scene.signed()
    await scene.approve(envelope)
    error = await scene.refusal(envelope)
    assert error.code == "nonce_used"
    (recorded,) = [event for event in await events_of(scene.log) if event.type == "approval_recorded"]
    assert error.details["position"] == recorded.position


async def test_a_statement_counts_once_even_if_its_approval_was_withdrawn(scene: Scene) -> None:
    envelope = await scene.signed()
    await scene.approve(envelope)
    await scene.runner.revoke("run-1", actor="agent")
    assert (await scene.refusal(envelope)).code == "nonce_used"
    assert (await scene.approve(await scene.signed())).status is Status.APPROVED


async def test_a_nonce_that_any_event_of_the_log_has_is_used(scene: Scene) -> None:
    statement = await scene.statement()
    taken = NewEvent("noted", {"n": 1}, bytes.fromhex(statement.nonce))
    await scene.log.append("notes", [taken], expect=Expect.any())
    assert (await scene.refusal(sign_approval(statement, ANNA))).code == "nonce_used"


async def test_a_statement_counts_until_its_time_is_over(scene: Scene) -> None:
    early = await scene.signed(valid_for_s=60)
    late = await scene.signed(valid_for_s=61)
    scene.clock.advance(60)
    assert (await scene.refusal(early)).code == "statement_expired"
    assert (await scene.approve(late)).status is Status.APPROVED
    scene.clock.advance(1)
    assert (await scene.refused_resume()).code == "statement_expired"


async def test_who_asked_does_not_approve_where_the_terms_say_so(store: RunLog, clock: FakeClock) -> None:
    assert isinstance(store, MemoryLog | SqliteLog)
    scene = await prepared_scene(store, clock, Policy(level=2, separation_of_duties=True))
    await scene.runner.propose("run-2", PAY, actor="anna")
    assert (await scene.refusal(await scene.signed("run-2"), "run-2")).code == "separation_of_duties"
    assert (await scene.approve(await scene.signed("run-2", "bob"), "run-2")).status is Status.APPROVED


async def test_who_edited_it_does_not_approve_either(store: RunLog, clock: FakeClock) -> None:
    assert isinstance(store, MemoryLog | SqliteLog)
    scene = await prepared_scene(store, clock, Policy(level=2, separation_of_duties=True))
    await scene.runner.edit("run-1", args={"amount": "1"}, actor="anna")
    await scene.runner.edit("run-1", args={"amount": "2500"}, actor="agent")
    assert (await scene.refusal(await scene.signed(), digest=OTHER.hash)).code == "separation_of_duties"


@pytest.mark.parametrize(
    ("size", "root"),
    [(0, None), (-1, None), (1000, None), (0, "0" * 64)],
    ids=["older than the proposal", "beyond", "far beyond", "another root"],
)
async def test_a_head_that_the_log_never_had_is_refused(scene: Scene, size: int, root: str | None) -> None:
    statement = await scene.statement()
    heads = {
        0: SeenHead(size=statement.proposal_position - 1, root=statement.head.root),
        -1: SeenHead(size=statement.head.size + 1, root=statement.head.root),
        1000: SeenHead(size=1000, root=statement.head.root),
    }
    head = heads[size] if root is None else replace(statement.head, root=root)
    assert (await scene.refusal(altered(statement, head=head))).code == "head_mismatch"


async def test_a_head_that_is_older_than_the_log_now_holds_all_the_same(scene: Scene) -> None:
    envelope = await scene.signed()
    for number in range(40):
        await scene.log.append("notes", [NewEvent("noted", {"n": number})], expect=Expect.any())
    assert (await scene.approve(envelope)).status is Status.APPROVED


async def test_an_unsigned_approval_is_not_enough_where_a_level_is_asked_for(scene: Scene) -> None:
    for more in ({}, {"actor": "anna"}, {"actor": "anna", "is_authenticated": True}):
        with pytest.raises(Refused) as raised:
            await scene.runner.approve("run-1", PAY.hash, **more)
        assert raised.value.code == "level_required"
        assert (await last_event(scene.log)).data.reason == "level_required"


async def test_a_key_of_a_lower_level_is_not_enough(store: RunLog, clock: FakeClock) -> None:
    assert isinstance(store, MemoryLog | SqliteLog)
    scene = await prepared_scene(store, clock, Policy(level=3))
    assert (await scene.refusal(await scene.signed())).code == "level_required"


async def test_anybody_may_say_no_whatever_the_level(scene: Scene) -> None:
    assert (await scene.runner.reject("run-1", PAY.hash, actor="carl")).run.status is Status.REJECTED


async def test_who_edits_does_not_approve_unsigned_in_the_same_breath(scene: Scene) -> None:
    with pytest.raises(Refused) as raised:
        await scene.runner.edit("run-1", args={"amount": "1"}, approves=True, actor="carl")
    assert raised.value.code == "level_required"


async def test_a_signature_in_another_namespace_is_refused(scene: Scene) -> None:
    key = PrivateKey.from_seed(b"ssh!" * 8)
    challenge = await approver_challenge(scene.log, "carl", key.public, clock=scene.clock)
    payload = encode_enrolment(challenge)
    for namespace in ("git", "file", "eventlog-approval@v2"):
        signature = make_ssh_signature(key, pae(payload), namespace)
        with pytest.raises(Refused) as raised:
            await enrol_approver(
                scene.log,
                make_envelope(payload, challenge.key_id, signature),
                kind=SSH,
                public=key.public,
                clock=scene.clock,
            )
        assert raised.value.code == "signature_invalid"
    proof = make_envelope(payload, challenge.key_id, make_ssh_signature(key, pae(payload)))
    await enrol_approver(scene.log, proof, kind=SSH, public=key.public, clock=scene.clock)
    statement = await scene.statement(approver="carl")
    signed = make_ssh_signature(key, bytes_to_sign(statement), "git")
    assert (await scene.refusal(envelope_of_ssh(statement, to_armour(signed)))).code == "signature_invalid"
    bare = sign_approval(statement, key)
    assert (await scene.refusal(bare)).code == "statement_invalid", "an SSH key signs as SSH does"


@pytest.mark.parametrize("point", [0, 1, 2**255 - 19 - 1, 2**255 - 19], ids=["zero", "identity", "minus 1", "p"])
async def test_a_key_under_which_anybody_can_sign_is_not_enrolled(plain: Scene, point: int) -> None:
    public = point.to_bytes(32, "little")
    with pytest.raises(InvalidInput) as raised:
        await approver_challenge(plain.log, "carl", public, clock=plain.clock)
    assert raised.value.code == "weak_key"
    challenge = await approver_challenge(plain.log, "carl", BOB.public, clock=plain.clock)
    with pytest.raises(InvalidInput) as raised:
        await enrol_approver(plain.log, sign_enrolment(challenge, BOB), kind=ED25519, public=public, clock=plain.clock)
    assert raised.value.code == "weak_key"
    with pytest.raises(InvalidInput) as raised:
        parse_public_key(base64.b64encode(public).decode())
    assert raised.value.code == "weak_key"


async def test_an_envelope_that_holds_no_statement_is_refused_with_a_trace(scene: Scene) -> None:
    challenge = await approver_challenge(scene.log, "anna", ANNA.public, clock=scene.clock)
    good = await scene.signed()
    for envelope in (
        sign_enrolment(challenge, ANNA),
        replace(good, payload_type="text/plain"),
        replace(good, payload=base64.b64encode(b"{}").decode()),
        replace(good, signatures=()),
        replace(good, signatures=good.signatures * 2),
    ):
        assert (await scene.refusal(envelope)).code == "statement_invalid"


async def test_what_would_stand_beside_it_unsigned_is_not_taken(scene: Scene) -> None:
    envelope = await scene.signed()
    for more in ({"reason": "because"}, {"roles": ("ops",)}, {"actor": "anna", "is_authenticated": True}):
        with pytest.raises(InvalidInput):
            await scene.runner.approve("run-1", PAY.hash, envelope=envelope, **more)
    with pytest.raises(Refused) as raised:
        await scene.runner.approve("run-1", PAY.hash, envelope=envelope, actor="bob")
    assert raised.value.details["field"] == "approver"


async def test_another_screen_than_ours_is_evidence_and_no_more(scene: Scene) -> None:
    shown = Displayed(media_type="text/html", sha256="0" * 64)
    run = await scene.approve(await scene.signed(displayed=shown))
    assert run.status is Status.APPROVED


# ── every byte ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_every_byte_of_an_envelope_matters(plain: Scene) -> None:
    """By the check itself, which decides wherever an approval is looked at; nothing is irrelevant."""
    envelope = await plain.signed()
    text = encode_envelope(envelope)
    (asked,) = [event for event in await events_of(plain.log) if event.type == "proposal_recorded"]
    keys = await approver_keys(plain.log)
    head = await plain.log.tree_head()
    log_id = (await log_ids_of(plain.log))(1)
    now = Occasion(position=head.size + 1, at_us=plain.clock.now_us(), log_id=log_id, root=head.root)

    def is_proved(candidate: Envelope) -> bool:
        return not isinstance(check_decision(candidate, asked, keys, now), Flaw)

    assert is_proved(decode_envelope(text)), "the control: unchanged it is taken"
    taken = []
    for place in range(len(text)):
        for bit in (0x01, 0x20):
            flipped = text[:place] + bytes([text[place] ^ bit]) + text[place + 1 :]
            try:
                candidate = decode_envelope(flipped)
            except InvalidInput:
                continue
            if candidate != envelope and is_proved(candidate):
                taken.append(place)
    assert taken == []


async def test_a_check_that_left_the_signature_out_would_be_seen(plain: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of all refusals above: with the signature not looked at, a forged statement passes."""
    forged = altered(await plain.statement(), BOB)
    assert (await plain.refusal(forged)).code == "signature_invalid"
    monkeypatch.setattr("eventlog.signing.signed_decisions.is_signed_by", lambda *_: True)
    assert (await plain.approve(forged)).status is Status.APPROVED


async def test_a_revocation_that_comes_between_check_and_append_is_not_overtaken(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    envelope = await scene.signed()
    checked = SignedDecisions._checked
    looks = []

    async def revoked_meanwhile(self: SignedDecisions, *args: Any) -> Any:
        found = await checked(self, *args)
        looks.append(found)
        if len(looks) == 1:
            await revoke_approver(scene.log, key_id_of(ANNA.public))
        return found

    monkeypatch.setattr(SignedDecisions, "_checked", revoked_meanwhile)
    assert (await scene.refusal(envelope)).code == "approver_revoked"
    assert len(looks) == 2
    assert "approval_recorded" not in [event.type for event in await events_of(scene.log)]


def keyed(receiver: Receiver) -> Sending:
    """Return an action `pay` whose receiver does nothing twice for one op_key."""
    action = Sending(receiver, Promise.KEYED, key_lifetime_s=86_400.0)
    action.name = "pay"
    return action


async def test_a_declared_restore_makes_what_was_signed_before_it_count_for_nothing_new(
    tmp_path: Path, clock: FakeClock
) -> None:
    """What was recorded before goes on counting, for an action that is keyed; a statement that was not is one for
    another incarnation.
    """
    path, key_path = tmp_path / "log.db", tmp_path / "log.pem"
    make_key_file(key_path)
    async with eventlog.open(path, clock=clock, signer=LocalSigner(key_path)) as log:
        scene = await prepared_scene(log, clock, SIGNED, "run-1", "run-2", make=keyed)
        await scene.approve(await scene.signed("run-1"), "run-1")
        await log.backup(str(tmp_path / "copy.db"))
        pending = await scene.signed("run-2")
        await scene.ask("run-3")
    (tmp_path / "copy.db").rename(path)
    for name in ("log.db-wal", "log.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    async with eventlog.open(path, clock=clock, signer=LocalSigner(key_path), restored="the disk was lost") as log:
        assert len(await log.log_ids()) == 2
        scene = Scene(log, clock, make=keyed)
        error = await scene.refusal(pending, "run-2")
        assert (error.code, error.details["field"]) == ("statement_mismatch", "log_id")
        assert (await scene.runner.resume("run-1")).run.status is Status.COMPLETED
        assert (await scene.approve(await scene.signed("run-2"), "run-2")).status is Status.APPROVED


COMPARED_TWICE = {"request_id", "run_id", "approver", "decision", "proposal_sha256"}
COMPARED_ONCE = {name: row for name, row in MISMATCHES.items() if row[0] not in COMPARED_TWICE}


@pytest.mark.parametrize(("field", "changes"), COMPARED_ONCE.values(), ids=COMPARED_ONCE)
async def test_a_check_that_left_a_binding_out_would_be_seen(
    plain: Scene, monkeypatch: pytest.MonkeyPatch, field: str, changes: dict[str, Any]
) -> None:
    """The control of each row above, but those that are compared in a second place as well."""
    statement = await plain.statement()
    changes = changes or {"displayed": replace(statement.displayed, sha256="0" * 64)}
    monkeypatch.setattr(signed_decisions, "bindings", lambda *asked: _without(bindings(*asked), field))
    assert (await plain.approve(altered(statement, **changes))).votes, "without the check it is taken"


def _without(fields: dict[str, Any], name: str) -> dict[str, Any]:
    return {field: value for field, value in fields.items() if field != name}


# ── before the effect ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_key_that_was_revoked_after_the_approval_stops_the_effect(scene: Scene) -> None:
    await scene.approve(await scene.signed())
    await revoke_approver(scene.log, key_id_of(ANNA.public))
    assert (await scene.refused_resume()).code == "approver_revoked"
    assert "resume_started" not in [event.type for event in await events_of(scene.log)]


async def test_a_changed_action_is_not_the_one_that_was_approved(scene: Scene) -> None:
    await scene.approve(await scene.signed())

    class Generous(type(paying(scene.receiver))):  # type: ignore[misc]
        async def execute(self, call: Call) -> Any:
            return await super().execute(call)

    other = Generous(scene.receiver)
    other.name = "pay"
    changed = runner_of(scene.log, scene.clock, other, policies=scene.policies)
    with pytest.raises(Refused) as raised:
        await changed.resume("run-1")
    assert raised.value.code == "definition_mismatch"
    assert (await last_event(scene.log)).data.reason == "definition_mismatch"
    assert scene.receiver.requests == 0
    assert (await scene.runner.resume("run-1")).run.status is Status.COMPLETED


async def test_a_changed_action_runs_where_nobody_has_signed(plain: Scene) -> None:
    await plain.runner.approve("run-1", PAY.hash)
    changed = paying(plain.receiver)
    changed.compensation = "refund"
    assert action_digest(changed) != action_digest(paying(plain.receiver))
    ended = await runner_of(plain.log, plain.clock, changed).resume("run-1")
    assert ended.run.status is Status.COMPLETED


async def append_as_thief(log: RunLog, *events: Any, actor: str, run_id: str = "run-1") -> None:
    """Append as a runtime does that has been taken over: whatever it likes, at the end of the run."""
    new = [NewEvent(name, data) for name, data in events]
    await log.append_reserved([Append(f"run:{run_id}", new, Expect.exists())], actor=actor)


def proposal_event(proposal: Any, **more: Any) -> ProposalRecorded:
    return ProposalRecorded(
        request_id="approval:run-1",
        proposal=msgspec.Raw(proposal.canonical),
        proposal_hash=proposal.hash,
        **more,
    )


async def test_a_stolen_runtime_that_edits_the_arguments_after_the_approval_is_refused(scene: Scene) -> None:
    await scene.approve(await scene.signed())
    await append_as_thief(
        scene.log, ("proposal_recorded", proposal_event(OTHER, policy=PolicyTerms(level=2))), actor="agent"
    )
    with pytest.raises(Refused) as raised:
        await scene.runner.resume("run-1")
    assert raised.value.code == "proposal_hash_mismatch"
    assert scene.receiver.requests == 0


async def test_a_stolen_runtime_that_moves_an_approval_to_other_arguments_is_refused(scene: Scene) -> None:
    """It proposes something else and records the signed envelope for that, under whatever id."""
    envelope = await scene.signed()
    moved = ApprovalRecorded(
        request_id="approval:run-1",
        decision="approve",
        approval_hash=OTHER.hash,
        actor_source="signed",
        level=2,
        envelope=envelope,
    )
    asked = proposal_event(OTHER, policy=PolicyTerms(level=2))
    await append_as_thief(scene.log, ("proposal_recorded", asked), ("approval_recorded", moved), actor="anna")
    error = await scene.refused_resume()
    assert (error.code, error.details["field"]) == ("statement_mismatch", "proposal_position")


@pytest.mark.parametrize(
    ("fields", "actor", "code"),
    [
        ({"actor_source": "os"}, "anna", "level_required"),
        ({"actor_source": "os", "level": 2}, "anna", "signature_invalid"),
        ({"actor_source": "signed", "level": 2}, "anna", "signature_invalid"),
        ({"actor_source": "authenticated", "level": 1}, "anna", "level_required"),
        ({"actor_source": "policy"}, "anna", "level_required"),
    ],
    ids=["unsigned", "only says so", "says that it is signed", "authenticated", "a rule"],
)
async def test_a_stolen_runtime_that_approves_by_itself_is_refused(
    scene: Scene, fields: dict[str, Any], actor: str, code: str
) -> None:
    forged = ApprovalRecorded(request_id="approval:run-1", decision="approve", approval_hash=PAY.hash, **fields)
    await append_as_thief(scene.log, ("approval_recorded", forged), actor=actor)
    assert (await scene.refused_resume()).code == code


async def test_a_stolen_runtime_that_records_an_envelope_without_a_statement_is_refused(scene: Scene) -> None:
    envelope = replace(await scene.signed(), payload=base64.b64encode(b"{}").decode())
    forged = ApprovalRecorded(
        request_id="approval:run-1",
        decision="approve",
        approval_hash=PAY.hash,
        actor_source="signed",
        level=2,
        envelope=envelope,
    )
    await append_as_thief(scene.log, ("approval_recorded", forged), actor="anna")
    assert (await scene.refused_resume()).code == "statement_invalid"


@pytest.mark.parametrize(
    ("fields", "actor", "field"),
    [
        ({"reason": "other words"}, "anna", "reason"),
        ({"roles": ("ops",)}, "anna", "roles"),
        ({"level": 3}, "anna", "level"),
        ({"actor_source": "os"}, "anna", "actor_source"),
        ({}, "bob", "approver"),
        ({}, "anna", "nonce"),
    ],
)
async def test_an_event_that_says_something_else_than_was_signed_does_not_count(
    plain: Scene, fields: dict[str, Any], actor: str, field: str
) -> None:
    envelope = await plain.signed()
    said = {"actor_source": "signed", "level": 2, **fields}
    recorded = ApprovalRecorded(
        request_id="approval:run-1", decision="approve", approval_hash=PAY.hash, envelope=envelope, **said
    )
    await append_as_thief(plain.log, ("approval_recorded", recorded), actor=actor)
    error = await plain.refused_resume()
    assert (error.code, error.details["field"]) == ("statement_mismatch", field)


async def test_too_few_who_have_signed_do_not_let_the_effect_begin(store: RunLog, clock: FakeClock) -> None:
    assert isinstance(store, MemoryLog | SqliteLog)
    scene = await prepared_scene(store, clock, Policy(level=2, required=2))
    statement = await scene.statement()
    decides = ApprovalRecorded(
        request_id="approval:run-1",
        decision="approve",
        approval_hash=PAY.hash,
        actor_source="signed",
        level=2,
        envelope=sign_approval(statement, ANNA),
    )
    event = NewEvent("approval_recorded", decides, bytes.fromhex(statement.nonce))
    await scene.log.append_reserved([Append("run:run-1", [event], Expect.exists())], actor="anna")
    assert (await scene.refused_resume()).code == "approval_required"


async def test_a_workflow_does_not_act_on_an_approval_that_does_not_count(tmp_path: Path, clock: FakeClock) -> None:
    @eventlog.workflow
    async def buy(run: eventlog.RunContext) -> Any:
        return await run.act("pay", {"amount": "25"}, output="account-7")

    receiver = Receiver()
    async with eventlog.open(tmp_path / "log.db", clock=clock) as log:
        await enrol(log, "anna", ANNA, clock)
        options: dict[str, Any] = {"policies": {"pay": SIGNED}, "workflows": [buy]}
        runner = runner_of(log, clock, paying(receiver), **options)
        for run_id in ("one", "two"):
            run = (await runner.start(buy, run_id)).run
            (request,) = requests_of(run)
            statement = await approval_statement(log, run_id, approver="anna", clock=clock)
            assert statement.request_id == request.request_id
            digest = statement.proposal_sha256
            await runner.approve(run_id, digest, envelope=sign_approval(statement, ANNA))
            if run_id == "two":
                await revoke_approver(log, key_id_of(ANNA.public))
                with pytest.raises(Refused) as raised:
                    await runner.resume(run_id)
                assert raised.value.code == "approver_revoked"
                assert "resume_rejected" in [event.type for event in await events_of(log, run_id)]
            else:
                assert (await runner.resume(run_id)).run.status is Status.COMPLETED
    assert receiver.requests == 1


# ── keys of approvers ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_key_stands_for_one_approver_and_is_enrolled_once(scene: Scene) -> None:
    for approver in ("carl", "anna"):
        with pytest.raises(Refused) as raised:
            await enrol(scene.log, approver, ANNA, scene.clock)
        assert raised.value.code == "approver_key_taken"
    await revoke_approver(scene.log, key_id_of(ANNA.public))
    with pytest.raises(Refused) as raised:
        await enrol(scene.log, "anna", ANNA, scene.clock)
    assert raised.value.code == "approver_key_taken", "what is revoked stays so"
    with pytest.raises(Refused) as raised:
        await revoke_approver(scene.log, key_id_of(ANNA.public))
    assert raised.value.code == "approver_revoked"
    with pytest.raises(Refused) as raised:
        await revoke_approver(scene.log, "0" * 64)
    assert raised.value.code == "approver_unknown"


async def test_an_approver_may_have_several_keys_and_then_names_one(scene: Scene) -> None:
    second = PrivateKey.from_seed(b"2nd." * 8)
    await enrol(scene.log, "anna", second, scene.clock)
    with pytest.raises(InvalidInput):
        await scene.statement()
    statement = await scene.statement(key_id=key_id_of(second.public))
    assert (await scene.approve(sign_approval(statement, second))).status is Status.APPROVED


async def test_a_proof_counts_once_in_time_for_its_key_and_its_log(plain: Scene, clock: FakeClock) -> None:
    log, key = plain.log, PrivateKey.from_seed(b"new." * 8)

    async def refused(proof: Envelope, public: bytes = key.public, **more: Any) -> str:
        with pytest.raises(Refused) as raised:
            await enrol_approver(log, proof, kind=ED25519, public=public, clock=clock, **more)
        return raised.value.code

    challenge = await approver_challenge(log, "carl", key.public, clock=clock, valid_for_s=10)
    assert await refused(sign_enrolment(challenge, BOB)) == "signature_invalid"
    assert await refused(sign_enrolment(challenge, BOB), BOB.public) == "statement_mismatch"
    async with eventlog.open("memory:", clock=clock) as other:
        elsewhere = await approver_challenge(other, "carl", key.public, clock=clock)
    assert await refused(sign_enrolment(elsewhere, key)) == "statement_mismatch"
    clock.advance(10)
    assert await refused(sign_enrolment(challenge, key)) == "statement_expired"
    challenge = await approver_challenge(log, "carl", key.public, clock=clock)
    proof = sign_enrolment(challenge, key)
    assert (await enrol_approver(log, proof, kind=ED25519, public=key.public, clock=clock)).approver == "carl"
    assert await refused(proof) == "approver_key_taken"


async def test_an_enrolment_that_breaks_a_rule_enrols_nobody(plain: Scene, clock: FakeClock) -> None:
    """What a writer puts into the log past this engine is folded by the same rules."""
    log, thief = plain.log, PrivateKey.from_seed(b"bad!" * 8)
    (first, *_) = [event for event in (await log.read_stream(LOG_STREAM)).events if event.type == "approver_enrolled"]
    copied: ApproverEnrolled = first.data
    challenge = await approver_challenge(log, "thief", thief.public, clock=clock)
    proof = sign_enrolment(challenge, thief)
    spelled = spell_public_key(ED25519, thief.public)
    forged = {
        "no proof of this key": replace(copied, key_id=key_id_of(thief.public), public_key=spelled),
        "another approver": replace(copied, approver="thief"),
        "an id of another": ApproverEnrolled(
            approver="thief", key_id="0" * 64, kind=ED25519, public_key=spelled, proof=proof
        ),
        "another kind": ApproverEnrolled(
            approver="thief",
            key_id=key_id_of(thief.public),
            kind=SSH,
            public_key=public_line(thief.public),
            proof=proof,
        ),
        "a level that there is not": ApproverEnrolled(
            approver="thief", key_id=key_id_of(thief.public), kind=ED25519, public_key=spelled, proof=proof, level=9
        ),
        "another id than the challenge": ApproverEnrolled(
            approver="thief", key_id=key_id_of(thief.public), kind=ED25519, public_key=spelled, proof=proof
        ),
        "no key at all": ApproverEnrolled(
            approver="thief", key_id=key_id_of(thief.public), kind=ED25519, public_key="AAAA", proof=proof
        ),
    }
    before = await approver_keys(log)
    for event in forged.values():
        await log.append_reserved([Append(LOG_STREAM, [NewEvent("approver_enrolled", event)], Expect.exists())])
    assert await approver_keys(log) == before
    events = (await log.read_stream(LOG_STREAM)).events
    log_id_at = await log_ids_of(log)
    keys: dict[str, Any] = {}
    flaws = [note_approver_event(keys, event, log_id_at) for event in events]
    assert flaws[:2] == [None, None], "the control: those of the engine count"
    assert None not in flaws[2:]
    assert fold_approver_keys(events, log_id_at) == before


# ── the approver as a witness ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_log_that_has_grown_is_signed_and_one_that_was_cut_or_rewritten_is_not(scene: Scene) -> None:
    first = await prepare_approval(scene.log, "run-1", approver="anna", clock=scene.clock)
    seen = TreeHead(first.statement.head.size, bytes.fromhex(first.statement.head.root))
    await require_growth(scene.log, first, None)
    await require_growth(scene.log, first, seen)
    await scene.ask("run-2")
    grown = await prepare_approval(scene.log, "run-2", approver="anna", clock=scene.clock)
    await require_growth(scene.log, grown, seen)
    with pytest.raises(StoreUnavailable) as raised:
        await require_growth(scene.log, grown, TreeHead(seen.size, bytes(32)))
    assert raised.value.code == "store_forked"
    now = TreeHead(grown.statement.head.size, bytes.fromhex(grown.statement.head.root))
    with pytest.raises(StoreUnavailable) as raised:
        await require_growth(scene.log, first, now)
    assert raised.value.code == "store_rolled_back"


# ── the digest of an action ──────────────────────────────────────────────────────────────────────────────────────────


async def test_the_digest_of_an_action_is_its_definition() -> None:
    def made(amount: int, **more: Any) -> Any:
        if amount == 1:

            @action("pay", **more)
            async def pay(call: Call) -> int:
                """Pay."""
                return 1  # a comment

        else:

            @action("pay", **more)
            async def pay(call: Call) -> int:
                return 2

        return pay

    assert action_digest(made(1)) == action_digest(made(1))
    assert action_digest(made(1)) != action_digest(made(2)), "other code"
    assert action_digest(made(1)) != action_digest(made(1, compensation="refund"))
    assert action_digest(WriteFile(root="/a")) == action_digest(WriteFile(root="/a"))
    assert action_digest(WriteFile(root="/a")) != action_digest(WriteFile(root="/b"))
    assert action_digest(WriteFile(name="a")) != action_digest(WriteFile(name="b"))


async def test_a_definition_that_is_no_plain_data_is_refused() -> None:
    odd: Any = paying(Receiver())
    odd.definition = {"at": object()}
    with pytest.raises(InvalidInput) as raised:
        action_digest(odd)
    assert "definition" in str(raised.value)


@pytest.mark.parametrize("more", [{"level": 4}, {"level": -1}, {"level": True}, {"level": 2, "auto": True}])
def test_a_policy_with_a_level_that_cannot_be_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Policy(**more)


# ── races, and verifying later ───────────────────────────────────────────────────────────────────────────────────────


async def test_two_who_hand_in_the_same_approval_at_once_record_it_once(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "log.db"
    async with eventlog.open(path, clock=clock) as log:
        scene = await prepared_scene(log, clock)
        envelope = await scene.signed()
        told = await asyncio.gather(*(scene.approve(envelope) for _ in range(8)), return_exceptions=True)
        recorded = [event for event in await events_of(log) if event.type == "approval_recorded"]
    assert len(recorded) == 1
    assert {getattr(each, "code", "recorded") for each in told} <= {"recorded", "nonce_used"}
    assert any(not isinstance(each, BaseException) for each in told)


async def test_two_processes_that_hand_in_the_same_approvals_record_each_once(tmp_path: Path) -> None:
    path, texts, run_ids = tmp_path / "log.db", tmp_path / "envelopes.json", [f"run-{number}" for number in range(6)]
    clock = FakeClock(time.time_ns() // 1000)
    async with eventlog.open(path, clock=clock) as log:
        scene = await prepared_scene(log, clock, SIGNED, *run_ids)
        signed = {run_id: encode_envelope(await scene.signed(run_id)).decode() for run_id in run_ids}
    texts.write_text(json.dumps(signed))
    processes = [child.start(signed_scenarios.hand_in, path, texts) for _ in range(2)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "READY\n"
    told = []
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        told.append(json.loads(out.removeprefix("RESULT ")))
    async with eventlog.open(path) as log:
        for run_id in run_ids:
            recorded = [event for event in await events_of(log, run_id) if event.type == "approval_recorded"]
            answers = [each[run_id] for each in told]
            assert len(recorded) == 1
            assert "recorded" in answers
            assert set(answers) <= {"recorded", "nonce_used"}


async def test_what_was_recorded_is_proved_again_at_its_position(scene: Scene) -> None:
    """As a verifier does later, when the key is revoked and the time over: at its own position it counted."""
    await scene.approve(await scene.signed(valid_for_s=60))
    await revoke_approver(scene.log, key_id_of(ANNA.public))
    scene.clock.advance(hours=1)
    events = await events_of(scene.log)
    (recorded,) = [event for event in events if event.type == "approval_recorded"]
    (asked,) = [event for event in events if event.type == "proposal_recorded"]
    keys = await approver_keys(scene.log)
    size = recorded.data.envelope and json.loads(base64.b64decode(recorded.data.envelope.payload))
    head = await scene.log.tree_head(size["predicate"]["head"]["size"])
    then = Occasion(
        position=recorded.position,
        at_us=recorded.recorded_at_us,
        log_id=(await log_ids_of(scene.log))(recorded.position),
        root=head.root,
    )
    assert flaw_of_recorded(recorded, asked, keys, then) is None
    for change, code in (
        ({"position": keys[key_id_of(ANNA.public)].revoked_at}, "approver_revoked"),
        ({"position": 1}, "approver_unknown"),
        ({"at_us": scene.clock.now_us()}, "statement_expired"),
        ({"root": bytes(32)}, "head_mismatch"),
        ({"root": None}, "head_mismatch"),
        ({"log_id": bytes(16)}, "statement_mismatch"),
    ):
        flaw = flaw_of_recorded(recorded, asked, keys, replace(then, **change))
        assert flaw is not None
        assert flaw.code == code


# ── programs that know less ──────────────────────────────────────────────────────────────────────────────────────────


async def test_what_a_program_without_the_policy_asked_and_approved_is_not_done_by_one_with_it(
    tmp_path: Path, clock: FakeClock
) -> None:
    async with eventlog.open(tmp_path / "log.db", clock=clock) as log:
        scene = await prepared_scene(log, clock)
        bare = runner_of(log, clock, paying(scene.receiver))
        await bare.propose("two", PAY, actor="agent")
        await bare.approve("two", PAY.hash, actor="agent")
        with pytest.raises(Refused) as refused:
            await scene.runner.resume("two")
        assert refused.value.code == "level_required"
        assert (await types_of(log, "two"))[-1] == "resume_rejected"
        assert not scene.receiver.effects
        assert (await bare.resume("two")).run.status is Status.COMPLETED, "it asks for no more than it knows"


async def test_edits_by_a_program_without_the_policy_lower_no_level(tmp_path: Path, clock: FakeClock) -> None:
    async with eventlog.open(tmp_path / "log.db", clock=clock) as log:
        scene = await prepared_scene(log, clock)
        other = paying(scene.receiver)
        other.name = "noop"
        bare = runner_of(log, clock, paying(scene.receiver), other)
        await bare.edit("run-1", action="noop", actor="agent")
        edited = (await bare.edit("run-1", action="pay", actor="agent")).run
        assert edited.policy is not None and edited.policy.level == 2
        with pytest.raises(Refused) as refused:
            await bare.approve("run-1", str(edited.proposal_hash), actor="agent")
        assert refused.value.code == "level_required"
