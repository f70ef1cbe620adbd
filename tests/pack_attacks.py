"""What somebody who makes a pack may try, what has to find it, and the one check of the verifier that does.

Each attacker is the operator: he holds the log's key and signs whatever he has made. `guard` is a piece of the
verifier's source and what stands for it in a verifier without that check, which then finds nothing wrong.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from eventlog import entry as layout
from eventlog import merkle
from eventlog.audit.pack.proofs import growth_text
from eventlog.remainders import remainder_of
from eventlog.sealed import SealedBody, stored_hash
from tests.pack_scene import ALICE, BOB, LOG_ID, LOG_KEY, STREAM, WITNESS, Key, Scene, envelope, note_key
from tests.pack_scene import with_manifest as fitted

__all__ = ["ATTACKS", "STATEMENTS", "Attack"]

Files = dict[str, bytes]
Guard = tuple[tuple[str, str], ...]
NOBODY: Final = Key(9)


class WeakKey(Key):
    """The neutral point as a key, under which one signature is valid for whatever is signed."""

    def __init__(self) -> None:
        super().__init__(0)
        self.public = (1).to_bytes(32, "little")
        self.id = sha256(self.public).hexdigest()
        self.text = b64encode(self.public).decode()

    def sign(self, data: bytes) -> bytes:
        return self.public + bytes(32)


@dataclass(frozen=True)
class Attack:
    """An attack: its files, the verdict that fails, a piece of what it says, and the check that finds it."""

    name: str
    make: Callable[[], Files]
    verdict: str
    says: str
    guard: Guard
    trust: Mapping[str, Any] = field(default_factory=dict)
    exit_status: int = 3


def changed(name: str, change: Callable[[bytes], bytes], scene: Scene | None = None) -> Files:
    """Return the pack with one file changed, and a manifest that fits."""
    files = (scene or Scene()).files()
    return fitted({**files, name: change(files[name])})


def without(*names: str, scene: Scene | None = None) -> Files:
    """Return the pack without some files, and a manifest that fits."""
    files = (scene or Scene()).files()
    return fitted({name: data for name, data in files.items() if name not in names})


def told(type: str, scene: Mapping[str, Any] | None = None, **fields: Any) -> Callable[[], Files]:
    """Return the maker of a pack in which the events of a type say something else."""
    return lambda: Scene(tells={type: lambda body: {**body, **fields}}, **(scene or {})).files()


def story(part: str, tell: Callable[[Scene], Any], **settings: Any) -> Callable[[], Files]:
    """Return the maker of a pack in which something happens in front of a part of the story."""
    return lambda: scene_with(part, tell, **settings).files()


def scene_with(part: str, tell: Callable[[Scene], Any], **settings: Any) -> Scene:
    return Scene(before=lambda scene, what: tell(scene) if what == part else None, **settings)


def flipped(data: bytes, at: int = -2) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at:][1:]


def first_hash_flipped(data: bytes) -> bytes:
    """Return a proof whose last hash is another one."""
    front, blank, note = data.partition(b"\n\n")
    lines = front.split(b"\n")
    lines[-1] = b64encode(bytes(32))
    return b"\n".join(lines) + blank + note


def rehashed(scene: Scene, index: int) -> None:
    """Rewrite an event that came before, and every link behind it."""
    old = scene.events[index]
    body = b'{"n":666}'
    fields = {name: getattr(old.fields, name) for name in layout.Entry.__struct_fields__}
    fields |= {"body_len": len(body), "content_commit": layout.content_commitment(old.salt, body)}
    made = layout.Entry(**fields)
    scene.events[index] = type(old)(made, old.stream, layout.encode(made), body, old.salt)


def rotated(scene: Scene) -> None:
    """The log's key is replaced by bob's."""
    old, new = note_key(LOG_KEY), note_key(BOB)
    signature = b64encode(LOG_KEY.sign(f"eventlog/log-key/v1\n{old}\n{new}\n".encode())).decode()
    scene.add("$log", "log_key_rotated", {"verifier_key": new, "replaces": old, "signature": signature})


def rotated_by_thief(scene: Scene) -> Files:
    """Somebody else claims that the key was replaced by his."""
    old, new = note_key(LOG_KEY), note_key(NOBODY)
    signature = b64encode(NOBODY.sign(f"eventlog/log-key/v1\n{old}\n{new}\n".encode())).decode()
    scene.add("$log", "log_key_rotated", {"verifier_key": new, "replaces": old, "signature": signature})
    return scene.files(note=scene.note(key=NOBODY))


def sealed_scene(
    *, header_commit: bytes | None = None, stored: Callable[[bytes], bytes] = bytes, **fields: int
) -> Files:
    """The pack of a run with an encrypted body."""

    def tell(scene: Scene) -> None:
        commit = sha256(b"what it commits to").digest()
        body = SealedBody(bytes(16), bytes(12), header_commit or commit, b'{"name":"x"}', bytes(40)).to_bytes()
        more: dict[str, Any] = {"body_kind": 1, "content_commit": commit, "stored_hash": stored_hash(body)}
        scene.add(STREAM, "signal_received", body, **{**more, **fields})

    files = scene_with("request", tell).files()
    name = next(name for name in files if name.endswith(".sealed"))
    return fitted({**files, name: stored(files[name])})


def erased_with(type: str, **fields: Any) -> Files:
    """Return the pack of a run of which an event is erased, and its erasure says more of it than erasures do."""

    class Erasing(Scene):
        def tell_after(self) -> None:
            event = self.of(type)[0]
            left = json.loads(remainder_of(type, event.stored))
            self.erase(event, remainder={**left, **fields})
            super().tell_after()

    return Erasing().files()


def nothing(scene: Scene) -> None:
    """Nothing happens."""


class Unapproved(Scene):
    """Nobody approves, and it is done."""

    def tell_approval(self) -> None:
        """Nobody says anything."""


class TwiceApproved(Scene):
    """Alice's one approval is recorded a second time, after the first was withdrawn."""

    def tell_approval(self) -> None:
        super().tell_approval()
        body = json.loads(self.approval.stored)
        self.add(STREAM, "approval_revoked", {"request_id": body["request_id"], "actor_source": "os"}, actor="alice")
        self.add(STREAM, "approval_recorded", body, actor="alice")


def kept_head(scene: Scene) -> dict[str, Any]:
    """Return the trust of an auditor who kept the head of a log."""
    return {"heads": [("kept.note", scene.note())]}


def forked() -> Scene:
    scene = Scene()
    rehashed(scene, 2)
    return scene


def shorter() -> Scene:
    """Another log of the same key, which is shorter."""
    scene = forked()
    del scene.events[-2:]
    return scene


def unsigned(body: dict[str, Any]) -> dict[str, Any]:
    """Return an approval that the log only asserts."""
    return {**{k: v for k, v in body.items() if k != "envelope"}, "level": 0, "actor_source": "os"}


def with_growth_from(scene: Scene, size: int) -> Files:
    proof = merkle.consistency_proof(size, len(scene.events), scene.hashes)
    return fitted({**scene.files(), f"consistency/{size}.proof": growth_text(size, proof)})


def off(condition: str) -> Guard:
    """Return the mutation that never sees what an `if` looks for."""
    return mutation(f"if {condition}:", "if False:")


def mutation(old: str, new: str) -> Guard:
    return ((old, new),)


HASH: Final = "00" * 32
SEPARATE: Final = {"separation_of_duties": True}

INTEGRITY: Final = [
    Attack(
        "a body is another one",
        lambda: changed("payload/run/2.json", lambda data: data.replace(b"papers", b"Papers")),
        "integrity",
        "not what the entry commits to",
        off("hashlib.sha256(CONTENT_LABEL + salt + data).digest() != entry.content_commit"),
    ),
    Attack(
        "an event claims a later version",
        lambda: Scene(entries={9: {"version": 10}}).files(),
        "integrity",
        "version 9 is missing",
        off("entry.version != len(entries) + 1") + off("version > len(kinds[stream])"),
    ),
    Attack(
        "an event is cut off from the one before it",
        lambda: Scene(entries={2: {"prev_in_stream": bytes(32)}}).files(),
        "integrity",
        "not linked",
        off("entry.prev_in_stream != before"),
    ),
    Attack(
        "an event claims an earlier position",
        lambda: Scene(entries={2: {"position": 3}}).files(),
        "integrity",
        "not behind the one before it",
        off("entries and entry.position <= entries[-1].position"),
    ),
    Attack(
        "an event is of another stream",
        lambda: Scene(entries={2: {"stream": "run:other"}}).files(),
        "integrity",
        "of another stream",
        off("entries and entry.stream != entries[0].stream"),
    ),
    Attack(
        "two events have one id",
        lambda: Scene(entries={2: {"event_id": sha256(b"id 3").digest()[:16]}}).files(),
        "integrity",
        "the same event_id",
        mutation('for name in ("position", "event_id"):', 'for name in ("position",):'),
    ),
    Attack(
        "an event is of another log",
        lambda: Scene(entries={2: {"log_id": bytes(16)}}).files(),
        "integrity",
        "an entry of another log",
        off("event.entry.log_id != (begun[count - 1][1] if count else first)"),
    ),
    Attack(
        "it is the pack of another run",
        lambda: Scene().files(),
        "integrity",
        "not the run that you asked for",
        off('case.trust.run is not None and stream != f"run:{case.trust.run}"'),
        {"run": "refund-18"},
    ),
    Attack(
        "a body belongs to no entry",
        lambda: fitted({**Scene().files(), "payload/run/99.json": b"{}", "payload/run/99.salt": bytes(16)}),
        "integrity",
        "a body of no entry",
        off("version > len(kinds[stream])"),
    ),
    Attack(
        "an encrypted body is another one",
        lambda: sealed_scene(stored=lambda data: flipped(data, -3)),
        "integrity",
        "not the one of the entry",
        off("hashlib.sha256(STORED_LABEL + data).digest() != entry.stored_hash"),
    ),
    Attack(
        "an encrypted body commits to something else",
        lambda: sealed_scene(header_commit=bytes(32)),
        "integrity",
        "commits to another content",
        off("commit != entry.content_commit"),
    ),
    Attack(
        "a body has two meanings",
        story("request", lambda scene: scene.add(STREAM, "signal_received", b'{"name":"a","name":"b"}')),
        "integrity",
        "twice",
        off("key in found"),
    ),
    Attack(
        "another stream is shown as the log's own",
        lambda: Scene(entries={"$log": {"stream": "$lag"}}).files(),
        "integrity",
        "not the entries of the log's own stream",
        off('log and log[0].stream != "$log"'),
    ),
    Attack(
        "an event of the log's own stream has no body",
        lambda: without("payload/log/1.json", "payload/log/1.salt"),
        "integrity",
        "without a body",
        off('event.body.source != "plain"'),
    ),
    Attack(
        "an erased result says what it was",
        lambda: erased_with("action_executed", result={"id": "FORGED"}),
        "integrity",
        "more is left of the body than an erasure leaves",
        off('source == "remainder" and not _is_left(REMAINS.get(entry.type, ""), values)'),
    ),
    Attack(
        "an entry says another size of its body",
        lambda: Scene(entries={2: {"body_len": 7}}).files(),
        "integrity",
        "another size",
        off("len(data) != entry.body_len or len(salt) != 16"),
    ),
    Attack(
        "an entry says another size of its encrypted body",
        lambda: sealed_scene(body_len=7),
        "integrity",
        "another size",
        off("len(data) != entry.body_len"),
    ),
    Attack(
        "the manifest names another run",
        lambda: manifest_with(b'"run":"refund-17"', b'"run":"refund-18"'),
        "integrity",
        "names another run",
        off('stream != f"run:{case.report.run}"'),
    ),
    Attack(
        "the manifest names another log",
        lambda: manifest_with(LOG_ID.hex().encode(), b"ff" * 16),
        "integrity",
        "names other logs",
        mutation("    if stated != [*before", "    if False and stated != [*before"),
    ),
    Attack(
        "a plain event has a stored hash",
        lambda: Scene(entries={2: {"stored_hash": bytes([1]) * 32}}).files(),
        "files",
        "a plain body has no stored_hash",
        off("entry.body_kind == PLAIN and entry.stored_hash != NO_HASH"),
    ),
    Attack(
        "something follows the last field of an entry",
        lambda: padded_entries(),
        "files",
        "follows the last field",
        off("at != len(data)"),
    ),
]


def manifest_with(old: bytes, new: bytes) -> Files:
    files = Scene().files()
    return {**files, "manifest.json": files["manifest.json"].replace(old, new)}


def padded_entries() -> Files:
    """The last entry, which is signed for, has a byte too much."""
    scene = Scene()
    last = scene.events[-1]
    scene.events.pop()
    padded = scene.add(STREAM, "run_completed", {})
    scene.events[-1] = type(last)(padded.fields, padded.stream, padded.entry + b"\0", padded.stored, padded.salt)
    return scene.files()


INCLUSION: Final = [
    Attack(
        "the proof proves nothing",
        lambda: changed("proof.tlog-proof", first_hash_flipped),
        "inclusion",
        "not in the tree",
        off("not is_included(entry.position - 1, entry.leaf, head.size, head.root, hashes)"),
    ),
    Attack(
        "the proof for the log's own stream proves nothing",
        lambda: changed("log-proof.tlog-proof", first_hash_flipped),
        "inclusion",
        "not in the tree",
        mutation('_check_proof(case, "log-proof.tlog-proof", case.log[-1].entry, case.head)', "pass"),
    ),
    Attack(
        "the proof names another leaf",
        lambda: changed("proof.tlog-proof", lambda data: data.replace(b"index 12", b"index 11")),
        "inclusion",
        "another position",
        off("index != entry.position - 1"),
    ),
    Attack(
        "the proof is under another head",
        lambda: changed("proof.tlog-proof", lambda data: data.partition(b"\n\n")[0] + b"\n\n" + Scene().note(13)),
        "inclusion",
        "another head",
        off('note != case.pack.read("checkpoint", MAX_TEXT)'),
    ),
]

HEAD: Final = [
    Attack(
        "the head is signed by somebody else",
        lambda: Scene().files(note=Scene().note(key=NOBODY)),
        "head",
        "no log key that you trust",
        mutation("[key for key in signers_of(head, keys) if key.name == head.origin]", "list(keys)"),
    ),
    Attack(
        "the signature of the head is bad",
        lambda: resigned(lambda signature: flipped(signature, 30)),
        "head",
        "is bad",
        off("not _has_signed(key, signature, head.text)"),
    ),
    Attack(
        "the head is of another log of the same key",
        lambda: Scene(origin="log.example/runs/" + "ff" * 16).files(),
        "head",
        "of another log than the entries",
        off('case.head.origin.rpartition("/")[2] != last.hex()'),
        {"log_keys": [note_key(LOG_KEY, "log.example/runs/" + "ff" * 16)]},
    ),
    Attack(
        "the key was replaced before",
        story("after", rotated),
        "head",
        "replaced or revoked",
        mutation("head.size <= until.get(key.id, head.size)", "True"),
    ),
    Attack(
        "the key was revoked before",
        story(
            "after",
            lambda scene: scene.add("$log", "log_key_revoked", {"verifier_key": note_key(LOG_KEY), "from_size": 10}),
        ),
        "head",
        "replaced or revoked",
        mutation('elif event.entry.type == "log_key_revoked":', "elif False:"),
    ),
    Attack(
        "a thief says that the key was replaced",
        lambda: rotated_by_thief(Scene()),
        "head",
        "no log key that you trust",
        mutation("if _is_rotation(event, old):", "if True:"),
    ),
    Attack(
        "the auditor kept another head of this size",
        lambda: Scene().files(),
        "head",
        "the log was forked",
        off("small[1] != large[1]"),
        kept_head(forked()),
    ),
    Attack(
        "the auditor kept a head of another history",
        lambda: with_growth_from(Scene(), len(Scene().events) - 2),
        "head",
        "forked or cut",
        mutation("            is_consistent(small[0], small[1], large[0], large[1], hashes)", "            True"),
        kept_head(shorter()),
    ),
    Attack(
        "too few witnesses have signed",
        lambda: Scene().files(),
        "witnesses",
        "you ask for 1",
        off("len(seen) < case.trust.quorum"),
        {"witnesses": [note_key(WITNESS, "witness0.example", 4)]},
    ),
    Attack(
        "the cosignature is of another time",
        lambda: Scene().files(note=Scene().note(witnesses=(WITNESS,)).replace(*wrong_time())),
        "witnesses",
        "is bad",
        off("not _has_signed(key, signature, head.text)"),
        {"witnesses": [note_key(WITNESS, "witness0.example", 4)]},
    ),
]


def wrong_time() -> tuple[bytes, bytes]:
    """Return what is replaced in a cosignature line by what: its time is another one."""
    line = Scene().note(witnesses=(WITNESS,)).split(b"\n")[-2]
    _, _, text = line.rpartition(b" ")
    data = b64decode(text)
    return text, b64encode(data[:4] + (1790000001).to_bytes(8, "big") + data[12:])


def resigned(change: Callable[[bytes], bytes]) -> Files:
    """The pack under a note whose signature line is changed."""
    note = Scene().note()
    text, _, line = note.rpartition(b"\n\n")
    front, _, spelled = line.strip().rpartition(b" ")
    return Scene().files(note=text + b"\n\n" + front + b" " + b64encode(change(b64decode(spelled))) + b"\n")


STORY: Final = [
    Attack(
        "another action was done",
        told("action_executed", action="transfer"),
        "story",
        "another action was done",
        off('request.action is not None and event.get("action") != request.action'),
    ),
    Attack(
        "what was done was never begun",
        told("action_executed", op_key=HASH),
        "story",
        "never begun",
        mutation('if event.get("op_key") not in request.op_keys:', "if False:"),
    ),
    Attack(
        "something else runs than was approved",
        told("resume_started", input_hash=HASH),
        "story",
        "what runs is not what was approved",
        mutation('or event.get("input_hash") != request.hash', ""),
    ),
    Attack(
        "it runs under the approval of something else",
        told("resume_started", approval_hash=HASH),
        "story",
        "what runs is not what was approved",
        mutation('event.get("approval_hash") != request.hash or event.get("input_hash")', 'event.get("input_hash")'),
    ),
    Attack(
        "the arguments are others than the hash that was approved",
        told("proposal_recorded", proposal={"action": "refund", "args": {"amount": "5000.00"}, "output": "order-17"}),
        "story",
        "another hash than the event says",
        off("raw is None or hashlib.sha256(raw).hexdigest() != stated"),
    ),
    Attack(
        "the approval is of another proposal",
        told("approval_recorded", approval_hash=HASH),
        "story",
        "another proposal than was made",
        mutation('if event.get("approval_hash") != request.hash:', "if False:"),
    ),
    Attack(
        "the approval is of another request",
        told("approval_recorded", request_id="approval:other"),
        "story",
        "another request than the run asks",
        mutation('if event.get("request_id") != request.id:', "if False:"),
    ),
    Attack(
        "nobody approved",
        lambda: Unapproved().files(),
        "story",
        "was not approved",
        off("not request.is_approved"),
    ),
    Attack(
        "one approved, and two have to",
        lambda: Scene(terms={"required": 2}).files(),
        "story",
        "was not approved",
        off("not request.is_approved"),
    ),
    Attack(
        "the approval was withdrawn",
        story(
            "effect",
            lambda scene: scene.add(
                STREAM, "approval_revoked", {"request_id": "approval:refund-17", "actor_source": "os"}
            ),
        ),
        "story",
        "was not approved",
        mutation("request.votes.clear()", "pass"),
    ),
    Attack(
        "the approver has none of the roles",
        lambda: Scene(terms={"roles": ["treasurer"]}).files(),
        "story",
        "none of the roles",
        off('terms["roles"] and vote.actor is not None and not _common(event.get("roles"), terms["roles"])'),
    ),
    Attack(
        "the approval is of a lower level than was asked for",
        lambda: Scene(terms={"level": 3}).files(),
        "story",
        "the terms ask for 3",
        off('vote.level < terms["level"]'),
    ),
    Attack(
        "the request had expired",
        told("proposal_recorded", expires_at_us=1),
        "story",
        "after the request had expired",
        off("_is_later(event, request.expires_at_us)"),
    ),
    Attack(
        "something was undone that was never done",
        story(
            "after",
            lambda scene: scene.add(
                STREAM, "compensation_started", {"action": "undo", "op_key": HASH, "compensates": HASH}
            ),
        ),
        "story",
        "undoes what was never begun",
        off('event.get("compensates") not in self.begun'),
    ),
    Attack(
        "the terms are of the future",
        told("proposal_recorded", policy={"veto": ["auditor"]}),
        "story",
        "terms that this program does not know",
        off("not isinstance(terms, dict) or set(terms) - set(TERMS)"),
        exit_status=4,
    ),
    Attack(
        "an event of the log is of a type of the future",
        story("after", lambda scene: scene.add("$log", "approver_suspended", {})),
        "story",
        "does not know",
        off("event.entry.type not in LOG_TYPES or event.entry.schema_version != 1"),
        exit_status=4,
    ),
    Attack(
        "an event is of a type of the future",
        story("after", lambda scene: scene.add(STREAM, "proposal_widened", {})),
        "story",
        "does not know",
        off("event.entry.type not in TYPES or event.entry.schema_version != 1"),
        exit_status=4,
    ),
]


def statement(field: str, value: Any, says: str, guard: Guard, **settings: Any) -> Attack:
    """An approval whose statement says something else than it should."""
    return Attack(
        f"the statement has another {field}",
        lambda: Scene(statement={field: value}, **settings).files(),
        "approvals",
        says,
        guard,
    )


BINDING: Final = off("name not in gone and predicate[name] != value")
STATEMENTS: Final = [
    statement(name, value, "something else than the log", BINDING)
    for name, value in {
        "decision": "reject",
        "request_id": "approval:other",
        "log_id": "ff" * 16,
        "run_id": "refund-18",
        "proposal_position": 8,
        "proposal_leaf": HASH,
        "proposal_sha256": HASH,
        "action": "transfer",
        "action_sha256": HASH,
        "output": "order-18",
        "policy_id": "transfer",
        "policy_sha256": HASH,
        "requester": "somebody",
        "roles": ["treasurer"],
        "reason": "because",
        "nonce": "ff" * 16,
        "max_uses": 2,
    }.items()
]

MISDATED: Final = [
    statement(
        "not_after_us",
        1,
        "over by then",
        off('type(predicate["not_after_us"]) is not int or _is_later(other, predicate["not_after_us"])'),
    ),
    statement(
        "displayed",
        {"media_type": "text/vnd.eventlog.request; version=1", "sha256": HASH},
        "shown something else",
        mutation(
            'elif displayed["sha256"] != hashlib.sha256('
            'shown_request(request, event.entry.log_id).encode("utf-8")).hexdigest():',
            "elif False:",
        ),
    ),
]


def saw_less(scene: Scene) -> None:
    """Alice is shown an older head, without the request."""
    scene.seen = merkle.TreeHead(5, scene.root(5))


def enrolled_elsewhere(scene: Scene) -> None:
    """Alice's enrolment is told to be of bob."""
    enrolment = scene.of("approver_enrolled")[0]
    index = scene.events.index(enrolment)
    body = json.loads(enrolment.stored)
    scene.events.pop(index)
    predicate = {
        "approver": "bob",
        "key_id": ALICE.id,
        "log_id": LOG_ID.hex(),
        "challenge": scene.next_id().hex(),
        "not_after_us": 2**60,
    }
    proof = envelope("urn:eventlog:enrolment:v1", predicate, "approver", "key_id", ALICE.sign)
    scene.add("$log", "approver_enrolled", {**body, "approver": "bob", "proof": proof})


def revokes(scene: Scene) -> None:
    scene.add("$log", "approver_revoked", {"key_id": ALICE.id})


def rewrites(scene: Scene) -> None:
    """The operator rewrites what was before the approval, with the log's own key in his hands."""
    rehashed(scene, 2)


APPROVALS: Final = [
    Attack(
        "a number in the statement is a truth value",
        lambda: Scene(statement={"max_uses": True}).files(),
        "approvals",
        "a number that is none",
        off('type(predicate["max_uses"]) is not int or type(predicate["proposal_position"]) is not int'),
    ),
    Attack(
        "a statement has a field too many",
        lambda: Scene(statement={"except": "on Sundays"}).files(),
        "approvals",
        "other fields",
        mutation("or set(predicate) != names", ""),
    ),
    Attack(
        "what was displayed has a field too many",
        lambda: Scene(statement={"displayed": {"media_type": "text/plain", "sha256": HASH, "title": "?"}}).files(),
        "approvals",
        "what was displayed",
        off('not isinstance(displayed, dict) or set(displayed) != {"media_type", "sha256"}'),
    ),
    Attack(
        "the statement has another head",
        story("approval", saw_less),
        "approvals",
        "not from between",
        off('not request.event.entry.position <= seen["size"] < event.entry.position'),
    ),
    Attack(
        "somebody else signed",
        lambda: Scene(sign=BOB.sign).files(),
        "approvals",
        "not of this key",
        off("not _is_signed(kind, key, signature, pae(payload))"),
    ),
    Attack(
        "the history before the approval was rewritten and signed again",
        story("effect", rewrites),
        "approvals",
        "it was rewritten",
        mutation(
            'elif not is_consistent(seen["size"], _unhex(seen["root"]), head.size, head.root, growth[1]):',
            "elif False:",
        ),
    ),
    Attack(
        "the proof for what the approver saw is left out",
        lambda: without(f"consistency/{Scene().seen.size}.proof"),
        "approvals",
        "no proof that the log has grown",
        mutation(
            "growth = _growth(case, name) if name in case.pack.sizes else None",
            "growth = _growth(case, name) if name in case.pack.sizes else (seen['size'], [])",
        )
        + mutation(
            'elif not is_consistent(seen["size"], _unhex(seen["root"]), head',
            'elif False and not is_consistent(0, b"", head',
        ),
        exit_status=4,
    ),
    Attack(
        "a level is claimed that nothing proves",
        story(
            "effect",
            nothing,
            tells={"approval_recorded": lambda body: {k: v for k, v in body.items() if k != "envelope"}},
        ),
        "approvals",
        "a level that nothing in it proves",
        mutation('elif facts["level"] > (event.get("actor_source") == "authenticated"):', "elif False:"),
        {"approvers": []},
    ),
    Attack(
        "an approver claims a role that his key was not enrolled for",
        lambda: Scene(
            terms={"roles": ["cfo"], "level": 2},
            statement={"roles": ["cfo"]},
            tells={"approval_recorded": lambda body: {**body, "roles": ["cfo"]}},
        ).files(),
        "approvals",
        "enrolled for none of the roles",
        off("not isinstance(claimed, list) or not _common([role for role in claimed if role in bound], wanted)"),
    ),
    Attack(
        "a higher level is claimed than the key has",
        told("approval_recorded", level=3),
        "approvals",
        "another level than its key",
        off('event.get("level") != level'),
    ),
    Attack(
        "a signed decision says that it is none",
        told("approval_recorded", actor_source="asserted"),
        "approvals",
        "says it is none",
        off('event.get("actor_source") != "signed"'),
    ),
    Attack(
        "the key was enrolled for somebody else",
        story("signals", enrolled_elsewhere),
        "approvals",
        "for somebody else",
        mutation('elif enrolment.approver != predicate["approver"] or enrolment.key != key:', "elif False:"),
    ),
    Attack(
        "the key was revoked before the decision",
        story("approval", revokes),
        "approvals",
        "revoked at position",
        off("end is not None and any(end <= use.entry.position for use in (event, *vote.begun))"),
    ),
    Attack(
        "the key was revoked before the effect",
        story("effect", revokes),
        "approvals",
        "revoked at position",
        mutation("for use in (event, *vote.begun)", "for use in (event,)"),
    ),
    Attack(
        "the auditor knows that the key was revoked",
        lambda: Scene().files(),
        "approvals",
        "revoked at position 3",
        mutation("revoked = dict(case.trust.revoked)", "revoked: dict[str, int] = {}"),
        {"policy": {"revoked": [{"key_id": ALICE.id, "position": 3}]}},
    ),
    Attack(
        "the auditor knows another key of the approver",
        lambda: Scene().files(),
        "approvals",
        "another key than you know",
        off('is_known and _own_key(case, event.entry.actor, predicate["key_id"]) is None'),
        {"approvers": ["alice=" + BOB.text]},
    ),
    Attack(
        "the auditor knows the key as somebody else's",
        lambda: Scene().files(),
        "approvals",
        "you know this key as that of eve",
        (("if owners and event.entry.actor not in owners:", "if False:"), ("if approver not in names:", "if False:")),
        {"approvers": ["eve=" + ALICE.text]},
    ),
    Attack(
        "somebody approves whom the auditor has not named",
        lambda: Scene().files(),
        "approvals",
        "approved by alice, whom you have not named",
        off("approver not in names"),
        {"approvers": ["mallory=" + BOB.text]},
        exit_status=4,
    ),
    Attack(
        "an approval by whom the auditor has named is not signed",
        story("effect", nothing, tells={"approval_recorded": unsigned}),
        "approvals",
        "is not signed with the key that you know",
        mutation('elif facts["key"] == "no signature":', "elif False:"),
        exit_status=4,
    ),
    Attack(
        "one approval is used twice",
        lambda: TwiceApproved().files(),
        "approvals",
        "something else than the log",
        BINDING,
    ),
    Attack(
        "the proof of possession is somebody else's",
        lambda: Scene(enrolment={"challenge": HASH[:32]}).files(),
        "approvals",
        "was used before",
        off('predicate["log_id"] != event.entry.log_id.hex() or predicate["challenge"] != event.entry.event_id.hex()'),
    ),
    Attack(
        "the proof of possession was made for another log",
        lambda: Scene(enrolment={"log_id": "ff" * 16}).files(),
        "approvals",
        "for another log",
        off('predicate["log_id"] != event.entry.log_id.hex() or predicate["challenge"] != event.entry.event_id.hex()'),
    ),
    Attack(
        "the key is one that anybody can sign under",
        lambda: Scene(approver=WeakKey()).files(),
        "approvals",
        "a weak Ed25519 key",
        off("_is_neutral(point) or not _is_neutral(_times(_L, point))"),
        {"approvers": []},
    ),
    Attack(
        "the proof of possession was too old",
        lambda: Scene(enrolment={"not_after_us": 1}).files(),
        "approvals",
        "too old",
        off('type(predicate["not_after_us"]) is not int or _is_later(event, predicate["not_after_us"])'),
    ),
    Attack(
        "who asked approves",
        lambda: Scene(terms=SEPARATE, approved_by="agent").files(),
        "approvals",
        "the approver is who asked",
        off('request.terms["separation_of_duties"] and is_own')
        + off('terms["separation_of_duties"] and vote.actor in request.proposers'),
        {"approvers": ["agent=" + ALICE.text]},
    ),
    Attack(
        "the envelope in the pack is another one",
        lambda: changed("approvals/6.dsse.json", lambda data: data.replace(b"payloadType", b"payloadTypf")),
        "approvals",
        "not the one that the event holds",
        mutation(
            "if file not in case.pack.sizes or case.pack.read(file, MAX_TEXT) != _envelope_of(event):",
            "if False:",
        ),
    ),
    Attack(
        "there is an envelope of no event",
        lambda: fitted({**Scene().files(), "approvals/7.dsse.json": b"{}"}),
        "approvals",
        "no event of the run holds",
        off('name.startswith("approvals/") and name not in expected'),
    ),
    Attack(
        "the approval is of a lower level than the auditor asks for",
        lambda: Scene().files(),
        "approvals",
        "you ask for 3",
        off('facts["level"] < least and facts["key"] != "erased"'),
        {"min_level": 3},
    ),
    Attack(
        "only the pack says whose key it is",
        lambda: Scene().files(),
        "approvals",
        "only the pack says",
        mutation('elif least >= 2 and facts["key"] != "your key":', "elif False:"),
        {"approvers": [], "min_level": 2},
        exit_status=4,
    ),
]


def erases_otherwise(scene: Scene) -> None:
    """The request for the address says that it erased something else."""
    scene.erase(scene.of("signal_received")[1], content_commit=HASH)
    scene.tell_erasure = lambda: None  # type: ignore[method-assign]


def erases_nothing(scene: Scene) -> None:
    scene.erased.add(scene.of("signal_received")[1].position)
    scene.tell_erasure = lambda: None  # type: ignore[method-assign]


REST: Final = [
    Attack(
        "a body is gone, and nobody erased it",
        story("erasure", erases_nothing),
        "erasures",
        "lost",
        mutation("if erasure is None:", "if erasure is None:\n            pass\n        elif False:"),
    ),
    Attack(
        "the erasure was of something else",
        story("erasure", erases_otherwise),
        "erasures",
        "of another body",
        mutation("elif not _erases(erasure, event.entry):", "elif False:"),
    ),
    Attack(
        "an artifact is missing",
        lambda: without("artifacts/" + sha256(Scene().artifacts[0]).hexdigest()),
        "artifacts",
        "not here",
        mutation(
            'finding.fails("the artifact that the event names is not here", name, str(event), "artifact")', "pass"
        ),
    ),
    Attack(
        "an artifact is another one",
        lambda: changed("artifacts/" + sha256(Scene().artifacts[0]).hexdigest(), flipped),
        "artifacts",
        "another one than its name",
        off("_digest_of(case.pack, name) != digest"),
    ),
    Attack(
        "there is an artifact of no event",
        lambda: fitted({**Scene().files(), "artifacts/" + HASH: b"?"}),
        "artifacts",
        "no event names",
        off('name.startswith("artifacts/") and name[len("artifacts/") :] not in named'),
    ),
    Attack(
        "a file is not what the manifest says",
        lambda: {**Scene().files(), "report.html": b"<p>all is well"},
        "files",
        "not what the manifest says",
        off("listed[name] != (case.pack.sizes[name], digest)"),
    ),
    Attack(
        "a file is in no manifest",
        lambda: {**with_growth_from(Scene(), 4), "manifest.json": Scene().files()["manifest.json"]},
        "files",
        "no manifest names it",
        mutation(
            "for name in sorted(set(listed) ^ (set(case.pack.sizes)",
            "for name in sorted(set(listed) - (set(case.pack.sizes)",
        ),
    ),
]

ATTACKS: Final = [*INTEGRITY, *INCLUSION, *HEAD, *STORY, *STATEMENTS, *MISDATED, *APPROVALS, *REST]
