"""A log made by hand, byte by byte, and the pack of its run: for packs that no honest log would give.

It is no store: entries come from `eventlog.entry`, proofs from `eventlog.merkle`, signatures from fixed keys. `Scene`
tells one story (a request that alice approves with her key and that is executed; a signal with an artifact; a signal
that is erased), and each part of it can be told otherwise: `Scene(statement={"output": "elsewhere"})`.
"""

from __future__ import annotations

import base64
import io
import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from eventlog import entry as layout
from eventlog import merkle
from eventlog.audit.pack import VERIFIER
from eventlog.audit.pack.hints import hint_files
from eventlog.audit.pack.manifest import Manifest
from eventlog.audit.pack.proofs import growth_text, inclusion_text
from eventlog.events import PolicyTerms
from eventlog.proposal import canonical_bytes
from eventlog.signing.statements import policy_digest

__all__ = ["ALICE", "BOB", "LOG_ID", "LOG_KEY", "RUN", "WITNESS", "Key", "Scene", "archive_of", "note_key"]

LOG_ID: Final = bytes(range(16))
RUN: Final = "refund-17"
STREAM: Final = f"run:{RUN}"
ORIGIN: Final = f"log.example/runs/{LOG_ID.hex()}"
STARTED_US: Final = 1_790_000_000_000_000
STATEMENT: Final = "https://in-toto.io/Statement/v1"


class Key:
    """A key that follows from one byte."""

    def __init__(self, seed: int) -> None:
        self._private: Final = Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)
        self.public = self._private.public_key().public_bytes_raw()
        self.id = sha256(self.public).hexdigest()
        self.text = base64.b64encode(self.public).decode()

    def sign(self, data: bytes) -> bytes:
        """Return the signature."""
        return self._private.sign(data)


LOG_KEY: Final = Key(1)
ALICE: Final = Key(2)
BOB: Final = Key(3)
WITNESS: Final = Key(4)


def note_key(key: Key, name: str = ORIGIN, alg: int = 1) -> str:
    """Return the verifier key of a note."""
    data = bytes([alg]) + key.public
    return f"{name}+{key_id(key, name, alg).hex()}+{base64.b64encode(data).decode()}"


def key_id(key: Key, name: str, alg: int = 1) -> bytes:
    return sha256(name.encode() + b"\n" + bytes([alg]) + key.public).digest()[:4]


@dataclass
class Recorded:
    """One event as it was recorded."""

    fields: layout.Entry
    stream: str  # the one that it counts in, whatever its entry says
    entry: bytes
    stored: bytes
    salt: bytes

    @property
    def leaf(self) -> bytes:
        return layout.leaf_hash(self.entry)

    @property
    def position(self) -> int:
        return self.fields.position


class Scene:
    """The story, as it is told by who holds the log's key.

    `tells` changes a body by the type of its event, `entries` fields of the entry by the version in the run, or by the
    name of another stream;
    `statement` and `enrolment` are what alice signs, `sign` is how. `before` is called in front of each part.
    """

    def __init__(
        self,
        *,
        tells: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] | None = None,
        statement: Mapping[str, Any] | None = None,
        enrolment: Mapping[str, Any] | None = None,
        approver: Key = ALICE,
        approved_by: str = "alice",
        sign: Callable[[bytes], bytes] | None = None,
        terms: dict[str, Any] | None = None,
        before: Callable[[Scene, str], None] = lambda scene, what: None,
        origin: str = ORIGIN,
        entries: Mapping[int | str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.events: list[Recorded] = []
        self.erased: set[int] = set()
        self.artifacts: list[bytes] = [b'"a large value"']
        self.origin: Final = origin
        self.log_id = LOG_ID
        self._tells: Final = tells or {}
        self._statement: Final = statement or {}
        self._enrolment: Final = enrolment or {}
        self._approver: Final = approver
        self._by: Final = approved_by
        self._sign: Final = sign or approver.sign
        self._terms: Final = terms
        self._entries: Final = entries or {}
        self.seen: merkle.TreeHead
        for what in ("keys", "signals", "request", "approval", "effect", "erasure", "after"):
            before(self, what)
            getattr(self, f"tell_{what}")()
        before(self, "end")

    # ── the story ────────────────────────────────────────────────────────────────────────────────────────────────────

    def tell_keys(self) -> None:
        """The log has a key, and alice proves that she holds hers."""
        self.add("$log", "log_key_declared", {"verifier_key": note_key(LOG_KEY, self.origin)})
        challenge = self.next_id()
        predicate = {
            "approver": self._by,
            "key_id": self._approver.id,
            "log_id": LOG_ID.hex(),
            "challenge": challenge.hex(),
            "not_after_us": STARTED_US + 10**9,
            **self._enrolment,
        }
        proof = envelope("urn:eventlog:enrolment:v1", predicate, "approver", "key_id", self._approver.sign)
        self.add(
            "$log",
            "approver_enrolled",
            {
                "approver": self._by,
                "key_id": self._approver.id,
                "kind": "ed25519",
                "public_key": self._approver.text,
                "proof": proof,
            },
        )

    def tell_signals(self) -> None:
        """Something else goes on in the log, and the run begins."""
        self.add("orders", "order_placed", {"n": 1})
        self.add(STREAM, "checkpoint_saved", {"status": "WAITING_FOR_USER", "state_version": 1})
        digest = sha256(self.artifacts[0]).hexdigest()
        self.add(STREAM, "signal_received", {"name": "papers", "artifact": digest})
        self.add(STREAM, "signal_received", {"name": "address", "payload": "Baker Street 221b"})

    def tell_request(self) -> None:
        """The run asks."""
        proposal = {"action": "refund", "args": {"amount": "50.00"}, "output": "order-17"}
        body = {
            "request_id": f"approval:{RUN}",
            "proposal": proposal,
            "proposal_hash": sha256(canonical_bytes(proposal)).hexdigest(),
            "action_sha256": "ab" * 32,
        }
        if self._terms is not None:
            body["policy"] = self._terms
        self.request = self.add(STREAM, "proposal_recorded", body, actor="agent")
        self.add("orders", "order_placed", {"n": 2})
        self.seen = merkle.TreeHead(len(self.events), self.root(len(self.events)))

    def tell_approval(self) -> None:
        """Alice approves."""
        hash = json.loads(self.request.stored)["proposal_hash"]
        self.add(STREAM, "proposal_verified", {"phase": "approval", "proposal_hash": hash})
        nonce = self.next_id()
        signed = envelope(
            "urn:eventlog:approval:v1", self.statement(nonce), "request_id", "proposal_sha256", self._sign
        )
        body = {
            "request_id": f"approval:{RUN}",
            "decision": "approve",
            "approval_hash": hash,
            "actor_source": "signed",
            "level": 2,
            "envelope": signed,
        }
        self.approval = self.add(STREAM, "approval_recorded", body, actor=self._by)

    def statement(self, nonce: bytes) -> dict[str, Any]:
        """Return what alice signs."""
        asked = json.loads(self.request.stored)
        terms = PolicyTerms(**{**(self._terms or {}), "roles": tuple((self._terms or {}).get("roles", ()))})
        return {
            "decision": "approve",
            "request_id": asked["request_id"],
            "log_id": LOG_ID.hex(),
            "run_id": RUN,
            "proposal_position": self.request.position,
            "proposal_leaf": self.request.leaf.hex(),
            "proposal_sha256": asked["proposal_hash"],
            "action": "refund",
            "action_sha256": "ab" * 32,
            "output": "order-17",
            "policy_id": "refund",
            "policy_sha256": policy_digest(terms),
            "requester": "agent",
            "approver": self._by,
            "key_id": self._approver.id,
            "roles": [],
            "reason": None,
            "nonce": nonce.hex(),
            "not_after_us": STARTED_US + 10**9,
            "max_uses": 1,
            "displayed": {"media_type": "text/plain", "sha256": "cd" * 32},
            "head": {"size": self.seen.size, "root": self.seen.root.hex()},
            **self._statement,
        }

    def tell_effect(self) -> None:
        """It is done."""
        hash = json.loads(self.request.stored)["proposal_hash"]
        self.add(STREAM, "proposal_verified", {"phase": "resume", "proposal_hash": hash})
        begun = {
            "op_key": "ef" * 32,
            "attempt": 1,
            "epoch": 0,
            "owner": {"host": "h", "boot": "b", "lock": "l"},
            "deadline_us": STARTED_US + 10**8,
            "approval_hash": hash,
            "input_hash": hash,
        }
        self.add(STREAM, "resume_started", begun)
        self.add(STREAM, "action_executed", {"action": "refund", "op_key": "ef" * 32, "result": {"id": "r-1"}})

    def tell_erasure(self) -> None:
        """The address is erased."""
        self.erase(self.of("signal_received")[1], remainder={"name": "address"})

    def tell_after(self) -> None:
        """The log goes on."""
        for n in range(3, 6):
            self.add("orders", "order_placed", {"n": n})

    # ── the log ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def next_id(self) -> bytes:
        """Return the id of the event that is added next."""
        return sha256(b"id %d" % len(self.events)).digest()[:16]

    def of(self, type: str) -> list[Recorded]:
        """Return the events of a type."""
        return [each for each in self.events if each.fields.type == type]

    def add(
        self, stream: str, type: str, body: dict[str, Any] | bytes, *, actor: str = "worker", **more: Any
    ) -> Recorded:
        """Append an event as it is, or as it is told otherwise. `more` are fields of the entry."""
        if isinstance(body, dict):
            body = json.dumps(self._tells.get(type, dict)(body), separators=(",", ":"), ensure_ascii=False).encode()
        before = [each for each in self.events if each.stream == stream]
        number = len(self.events)
        salt = sha256(b"salt %d" % number).digest()[:16]
        fields: dict[str, Any] = {
            "log_id": self.log_id,
            "position": number + 1,
            "version": len(before) + 1,
            "recorded_at_us": STARTED_US + number * 1000,
            "schema_version": 1,
            "event_id": self.next_id(),
            "causation_id": layout.NO_ID,
            "body_kind": 0,
            "body_len": len(body),
            "content_commit": layout.content_commitment(salt, body),
            "stored_hash": layout.NO_HASH,
            "prev_in_stream": before[-1].leaf if before else layout.NO_HASH,
            "stream": stream,
            "type": type,
            "actor": actor,
            "correlation_id": "",
        }
        told = self._entries.get(fields["version"] if stream == STREAM else stream, {})
        made = layout.Entry(**{**fields, **more, **told})
        recorded = Recorded(made, stream, layout.encode(made), body, salt)
        self.events.append(recorded)
        return recorded

    def erase(self, event: Recorded, *, remainder: dict[str, Any] | None = None, **other: Any) -> None:
        """Erase the body of an event, and say so."""
        self.erased.add(event.position)
        body = {
            "position": event.position,
            "body_kind": event.fields.body_kind,
            "body_len": event.fields.body_len,
            "content_commit": event.fields.content_commit.hex(),
            "stored_hash": event.fields.stored_hash.hex(),
            "legal_basis": "art. 17",
        }
        self.add("$log", "payload_erased", {**body, **({"remainder": remainder} if remainder else {}), **other})

    def hashes(self, level: int, index: int) -> bytes:
        """Return the root of a complete subtree."""
        if level == 0:
            return self.events[index].leaf
        return merkle.node_hash(self.hashes(level - 1, 2 * index), self.hashes(level - 1, 2 * index + 1))

    def root(self, size: int) -> bytes:
        """Return the root of the tree at a size."""
        return merkle.frontier_of(size, self.hashes).root()

    def note(self, size: int | None = None, *, key: Key = LOG_KEY, witnesses: tuple[Key, ...] = ()) -> bytes:
        """Return the signed head."""
        size = len(self.events) if size is None else size
        text = f"{self.origin}\n{size}\n{base64.b64encode(self.root(size)).decode()}\n".encode()
        lines = [self._line(self.origin, key_id(key, self.origin), key.sign(text))]
        for number, witness in enumerate(witnesses):
            name = f"witness{number}.example"
            signature = witness.sign(b"cosignature/v1\ntime 1790000000\n" + text)
            lines.append(self._line(name, key_id(witness, name, 4), (1790000000).to_bytes(8, "big") + signature))
        return text + b"\n" + "".join(lines).encode()

    def _line(self, name: str, id: bytes, signature: bytes) -> str:
        return f"— {name} {base64.b64encode(id + signature).decode()}\n"

    # ── the pack ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def files(self, *, note: bytes | None = None, without_manifest: bool = False) -> dict[str, bytes]:
        """Return the files of the pack, in order."""
        note = self.note() if note is None else note
        size = int(note.split(b"\n")[1])
        files = {"README.txt": b"read me\n", "verify.py": VERIFIER, "report.html": b"<p>\n", "checkpoint": note}
        streams = {"": STREAM, "log-": "$log"}
        chosen = {
            prefix: [each for each in self.events[:size] if each.stream == stream] for prefix, stream in streams.items()
        }
        for prefix, events in chosen.items():
            files[f"{prefix}entries.bin"] = b"".join(len(e.entry).to_bytes(2, "big") + e.entry for e in events)
            if events:
                proof = merkle.inclusion_proof(events[-1].position - 1, size, self.hashes)
                files[f"{prefix}proof.tlog-proof"] = inclusion_text(events[-1].position, proof, note)
        for folder, events in (("log", chosen["log-"]), ("run", chosen[""])):
            files |= self._bodies(folder, events)
        for event in chosen[""]:
            body = {} if event.position in self.erased or event.fields.body_kind else json.loads(event.stored)
            if "envelope" in body:
                raw = json.dumps(body["envelope"], separators=(",", ":")).encode()
                files[f"approvals/{event.fields.version}.dsse.json"] = raw
        proof = merkle.consistency_proof(self.seen.size, size, self.hashes)
        files[f"consistency/{self.seen.size}.proof"] = growth_text(self.seen.size, proof)
        files |= dict(hint_files(RUN, [(each.fields.type, each.stored) for each in chosen["log-"]]))
        files |= {f"artifacts/{sha256(each).hexdigest()}": each for each in self.artifacts}
        return files if without_manifest else with_manifest(files)

    def _bodies(self, folder: str, events: list[Recorded]) -> dict[str, bytes]:
        files = {}
        for each in events:
            if each.position in self.erased:
                continue
            path = f"payload/{folder}/{each.fields.version}"
            if each.fields.body_kind:
                files[f"{path}.sealed"] = each.stored
            else:
                files |= {f"{path}.json": each.stored, f"{path}.salt": each.salt}
        return files


def with_manifest(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files with a manifest that fits them."""
    manifest = Manifest(RUN, [(1, LOG_ID)])
    made = dict(manifest.note(name, data) for name, data in files.items() if name != "manifest.json")
    return {**made, "manifest.json": manifest.file()[1]}


def envelope(
    kind: str, predicate: dict[str, Any], name: str, hash: str, sign: Callable[[bytes], bytes]
) -> dict[str, Any]:
    """Return the DSSE envelope of a statement. `sign` gets the PAE."""
    subject = [{"name": predicate[name], "digest": {"sha256": predicate[hash]}}]
    statement = {"_type": STATEMENT, "subject": subject, "predicateType": kind, "predicate": predicate}
    payload = json.dumps(statement, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()
    type = "application/vnd.in-toto+json"
    pae = b"DSSEv1 %d %s %d %s" % (len(type), type.encode(), len(payload), payload)
    signature = base64.b64encode(sign(pae)).decode()
    return {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": type,
        "signatures": [{"keyid": str(predicate["key_id"]), "sig": signature}],
    }


def archive_of(files: Mapping[str, bytes]) -> bytes:
    """Return the files as a zip archive."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data)
    return made.getvalue()
