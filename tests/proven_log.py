"""A log in which everything is signed that can be: its heads, and an approval by a key that only the approver holds.

    1       `$log`      the key of its heads is declared
    2       `$log`      the approver's key is enrolled
    3 – 8   notes       six of them
    9       run:r1      a proposal
    10      run:r2      another proposal
    11      run:r1      the approval of the first, signed; its statement holds the head of size 10
    12 – 16 notes       five more
    17      run:r3      a proposal
    18      run:r3      its approval, which nobody has signed

Heads were signed at the sizes 8, 11, 16 and 18, and are in the database and in the signer's own file.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Final

import msgspec

import eventlog
from eventlog.audit.heads import LocalSigner
from eventlog.audit.heads.head_file import kept_heads
from eventlog.audit.heads.key_file import make_key_file
from eventlog.audit.verify import Finding, OutsideHead, Trust, Verdicts, verify
from eventlog.events import LOG_STREAM, ApprovalRecorded, LogKeyDeclared, ProposalRecorded, run_stream
from eventlog.log import Append, Expect, NewEvent, RecordedEvent
from eventlog.proposal import propose
from eventlog.signing.approver_keys import ED25519, enrol
from eventlog.signing.ed25519 import PrivateKey
from eventlog.signing.envelopes import make_envelope, pae
from eventlog.signing.notes import VerifierKey
from eventlog.signing.signed_decisions import bindings
from eventlog.signing.statements import (
    ApprovalStatement,
    EnrolmentStatement,
    SeenHead,
    encode_approval,
    encode_enrolment,
    key_id_of,
)
from eventlog.stores import SqliteLog
from tools.campaigns.storage.log_files import open_file

__all__ = ["APPROVER", "ProvenLog", "approve", "build", "check", "enrol_approver", "propose_run"]

APPROVER: Final = PrivateKey.from_seed(b"approver".ljust(32, b"."))
LATER_US: Final = 9_000_000_000_000_000


class ProvenLog(msgspec.Struct, frozen=True):
    """A closed log, its signer's key and file of heads, and the verifier key that a reader would have pinned."""

    folder: Path
    log_key: VerifierKey

    @property
    def path(self) -> Path:
        return self.folder / "a.db"

    @property
    def key_path(self) -> Path:
        return self.folder / "log.key"

    def opened(self, **options: Any) -> SqliteLog:
        """Return the log, to be opened with its signer."""
        return open_file(self.path, signer=LocalSigner(self.key_path), head_every_s=3600.0, **options)

    def copy_to(self, folder: Path) -> ProvenLog:
        """Return the same log in another folder."""
        shutil.copytree(self.folder, folder)
        return ProvenLog(folder, self.log_key)

    def outside_heads(self) -> list[OutsideHead]:
        """Return the heads that the signer has kept."""
        found, _ = kept_heads(f"{self.key_path}.heads")
        return [OutsideHead(note=each.note, source="kept", at_us=each.at_us) for each in found]


async def build(folder: Path) -> ProvenLog:
    """Make the log in an empty folder."""
    key_path = folder / "log.key"
    make_key_file(key_path)
    log = ProvenLog(folder, await _declare_key(folder, LocalSigner(key_path)))
    for write in (_until_8, _until_11, _until_16, _until_18):
        async with log.opened() as opened:  # which signs what is new when it is closed
            await write(opened)
    return log


async def _declare_key(folder: Path, signer: LocalSigner) -> VerifierKey:
    async with open_file(folder / "a.db") as log:
        log_key = signer.verifier_key(await _log_id(log))
        await _append(log, LOG_STREAM, LogKeyDeclared(verifier_key=log_key.to_text()))
        return log_key


async def _until_8(log: SqliteLog) -> None:
    await enrol_approver(log, "anna", APPROVER)
    await take_notes(log, 6)


async def _until_11(log: SqliteLog) -> None:
    asked = await propose_run(log, "r1")
    await propose_run(log, "r2")
    await approve(log, asked, "anna", APPROVER)


async def _until_16(log: SqliteLog) -> None:
    await take_notes(log, 5)


async def _until_18(log: SqliteLog) -> None:
    await _approve_unsigned(log, await propose_run(log, "r3"))


async def check(path: Path, trust: Trust | None = None, *, run: str | None = None, registry: Any = None) -> Verdicts:
    """Return all verdicts on the log at `path`, which has no views."""
    options = {} if registry is None else {"registry": registry}

    async def no_views() -> Finding:
        return Finding(verdict="ok")

    async with open_file(path, is_read_only=True, **options) as log:
        return await verify(
            log,
            run=run,
            files=log.check_file if run is None else None,
            artifacts=log.artifacts,
            views=no_views,
            trust=trust or Trust(),
        )


async def enrol_approver(log: SqliteLog, approver: str, key: PrivateKey) -> None:
    """Enrol the key of an approver, who proves that it is his."""
    log_id, challenge = await _log_id(log), eventlog.NewEvent("x", None).event_id
    statement = EnrolmentStatement(
        approver=approver,
        key_id=key_id_of(key.public),
        log_id=log_id.hex(),
        challenge=challenge.hex(),
        not_after_us=LATER_US,
    )
    payload = encode_enrolment(statement)
    proof = make_envelope(payload, statement.key_id, key.sign(pae(payload)))
    enrolled, event_id = enrol({}, proof, kind=ED25519, public=key.public, log_id=log_id, now_us=0)
    await _append(log, LOG_STREAM, NewEvent("approver_enrolled", enrolled, event_id=event_id))


async def take_notes(log: SqliteLog, count: int) -> None:
    await log.append("notes", [NewEvent("noted", {"n": number}) for number in range(count)], expect=Expect.any())


async def propose_run(log: SqliteLog, run_id: str) -> RecordedEvent:
    """Begin a run with a proposal, and return its event."""
    proposal = propose("pay", {"amount": "100"}, f"account-{run_id}")
    asked = ProposalRecorded(
        request_id=f"approval:{run_id}",
        proposal=msgspec.Raw(proposal.canonical),
        proposal_hash=proposal.hash,
        action_sha256="ab" * 32,
    )
    await _append(log, run_stream(run_id), asked)
    return (await log.read_stream(run_stream(run_id))).events[-1]


async def approve(log: SqliteLog, asked: RecordedEvent, approver: str, key: PrivateKey) -> None:
    """Record a signed approval of the proposal, made with the log's head as it is now."""
    head = await log.tree_head()
    nonce = eventlog.NewEvent("x", None).event_id
    statement = ApprovalStatement(
        **bindings(asked, await _log_id(log)),
        decision="approve",
        approver=approver,
        key_id=key_id_of(key.public),
        roles=(),
        reason="read and agreed",
        nonce=nonce.hex(),
        not_after_us=LATER_US,
        max_uses=1,
        head=SeenHead(size=head.size, root=head.root.hex()),
    )
    payload = encode_approval(statement)
    recorded = ApprovalRecorded(
        request_id=statement.request_id,
        approval_hash=statement.proposal_sha256,
        decision="approve",
        actor_source="signed",
        reason=statement.reason,
        level=2,
        envelope=make_envelope(payload, statement.key_id, key.sign(pae(payload))),
    )
    new = NewEvent("approval_recorded", recorded, event_id=nonce)
    await _append(log, asked.stream, new, actor=approver)


async def _approve_unsigned(log: SqliteLog, asked: RecordedEvent) -> None:
    recorded = ApprovalRecorded(
        request_id=asked.data.request_id,
        approval_hash=asked.data.proposal_hash,
        decision="approve",
        actor_source="asserted",
    )
    await _append(log, asked.stream, recorded, actor="ben")


async def _append(log: SqliteLog, stream: str, event: Any, *, actor: str | None = None) -> None:
    await log.append_reserved([Append(stream, [event], Expect.any())], actor=actor)


async def _log_id(log: SqliteLog) -> bytes:
    return (await log.log_ids())[-1][1]
