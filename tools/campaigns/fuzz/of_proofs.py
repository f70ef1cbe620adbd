"""Targets that read what others have signed: notes, heads, keys, envelopes, SSH signatures, statements, tree proofs."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable
from hashlib import sha256
from typing import Any, Final

from eventlog.errors import InvalidInput
from eventlog.merkle import (
    EMPTY_ROOT,
    TreeHead,
    consistency_proof,
    inclusion_proof,
    is_consistent,
    is_included,
    node_hash,
)
from eventlog.signing import cosignatures, envelopes, head_text, notes, ssh_signatures, statements
from eventlog.signing.approver_keys import parse_public_key
from eventlog.signing.ed25519 import PrivateKey
from tools.campaigns.fuzz import drawing
from tools.campaigns.fuzz.target import Problem, Target

__all__ = ["TARGETS"]

_KEY: Final = PrivateKey.from_seed(b"fuzz".ljust(32, b"."))
_ORIGIN: Final = head_text.origin_of("log.example/fuzz", bytes(range(16)))
_VERIFIER: Final = notes.make_verifier_key(_ORIGIN, _KEY.public)
_TEXT: Final = head_text.head_text(_ORIGIN, TreeHead(27, sha256(b"root").digest()))
_NOTE: Final = notes.sign_note(_TEXT, _ORIGIN, _KEY)
_WITNESS: Final = cosignatures.make_witness_key("witness.example", _KEY.public)
_COSIGNED: Final = notes.add_line(_NOTE, cosignatures.cosign(_TEXT, "witness.example", _KEY, 1_700_000_000))
_REQUEST: Final = cosignatures.make_growth_request(3, [sha256(b"a").digest()] * 2, _NOTE)


# ── notes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _draw_note(chance: random.Random) -> bytes:
    note = chance.choice((_NOTE, _COSIGNED))
    return drawing.mutated(chance, note, 4)


def _check_note(note: bytes) -> Problem:
    """A note is spelled in one way; one that opens has the text that was signed, whatever was done to it."""
    text, lines = notes.parse_note(note)
    if text + b"\n" + "".join(line.to_text() for line in lines).encode() != note:
        return "it is a note in two spellings"
    cosignatures.open_cosignatures(note, [_WITNESS])
    opened = head_text.open_head(note, [_VERIFIER])
    return None if head_text.head_text(opened.origin, opened.head) == _TEXT else f"it opens as {opened.head!r:.150}"


def _draw_lines(chance: random.Random) -> tuple[bytes, str]:
    return drawing.mutated(chance, chance.choice((_TEXT, _REQUEST, _NOTE))), _line(chance)


def _line(chance: random.Random) -> str:
    lines = (_VERIFIER.to_text(), _WITNESS.to_text(), ssh_signatures.public_line(_KEY.public), _ORIGIN)
    spelled = chance.choice((*lines, base64.b64encode(_KEY.public).decode()))
    return drawing.mutated_text(chance, spelled) if chance.random() < 0.9 else drawing.text(chance)


_OF_BYTES: Final[tuple[Callable[[bytes], Any], ...]] = (head_text.parse_head, cosignatures.parse_growth_request)
_OF_TEXT: Final[tuple[Callable[[str], Any], ...]] = (
    notes.parse_verifier_key,
    cosignatures.parse_witness_key,
    ssh_signatures.parse_public_line,
    parse_public_key,
    head_text.log_id_of,
    head_text.check_prefix,
)


def _check_lines(drawn: tuple[bytes, str]) -> Problem:
    """Every parser is asked, whatever the one before said; what they take is spelled in one way where there is one."""
    data, line = drawn
    refused: Exception | None = None
    questions: list[tuple[Callable[[Any], Any], Any]] = [(parse, data) for parse in _OF_BYTES]
    for parse, given in [*questions, *((each, line) for each in _OF_TEXT)]:
        try:
            found = parse(given)
        except InvalidInput as error:
            refused = error
            continue
        if parse is head_text.parse_head and head_text.head_text(*found) != data:
            return "it is a head in two spellings"
        if parse in (notes.parse_verifier_key, cosignatures.parse_witness_key) and found.to_text() != line:
            return "it is a key in two spellings"
    if refused is not None:
        raise refused
    return None


# ── envelopes and SSH signatures ─────────────────────────────────────────────────────────────────────────────────────

_PAYLOAD: Final = b'{"a":1}'
_ENVELOPE: Final = envelopes.make_envelope(_PAYLOAD, "k" * 64, _KEY.sign(envelopes.pae(_PAYLOAD)))
_SSH: Final = ssh_signatures.make_ssh_signature(_KEY, _PAYLOAD)
_ARMOUR: Final = ssh_signatures.to_armour(_SSH)


def _draw_envelope(chance: random.Random) -> tuple[bytes, bytes]:
    spelled = envelopes.encode_envelope(_ENVELOPE)
    return drawing.mutated(chance, spelled), drawing.mutated(chance, envelopes.pae(_PAYLOAD))


def _check_envelope(drawn: tuple[bytes, bytes]) -> Problem:
    """An envelope is what its parts make; what is verified is what is given on."""
    spelled, signed = drawn
    try:
        if envelopes.pae(envelopes.parse_pae(signed)) != signed:
            return "the payload of a PAE is another one"
    except InvalidInput:
        pass
    envelope = envelopes.decode_envelope(spelled)
    payload, (key_id, signature) = envelopes.payload_of(envelope), envelopes.signature_of(envelope)
    return None if envelopes.make_envelope(payload, key_id, signature) == envelope else "it is made of other parts"


def _draw_ssh(chance: random.Random) -> tuple[bytes, bytes]:
    return drawing.mutated(chance, _SSH, 2), drawing.mutated(chance, _ARMOUR, 2)


def _check_ssh(drawn: tuple[bytes, bytes]) -> Problem:
    """No other blob is a signature of the message; armour gives the blob that is in it."""
    blob, armour = drawn
    try:
        ssh_signatures.parse_blob(ssh_signatures.parse_armour(armour))
    except InvalidInput:
        pass
    if ssh_signatures.is_ssh_signature(_KEY.public, blob, _PAYLOAD) and blob != _SSH:
        return "another blob counts as the signature"
    return None


# ── statements ───────────────────────────────────────────────────────────────────────────────────────────────────────

_ENROLMENT: Final = statements.EnrolmentStatement(
    approver="anna", key_id="a" * 64, log_id="b" * 32, challenge="c" * 32, not_after_us=9
)
_APPROVAL: Final = statements.ApprovalStatement(
    decision="approve", request_id="r", log_id="b" * 32, run_id="run", proposal_position=1, proposal_leaf="d" * 64,
    proposal_sha256="e" * 64, action="pay", action_sha256=None, output="o", policy_id="pay", policy_sha256="f" * 64,
    requester="x", approver="anna", key_id="a" * 64, roles=("buyer",), reason=None, nonce="c" * 32, not_after_us=9,
    max_uses=1, displayed=statements.Displayed(media_type="text/plain", sha256="0" * 64),
    head=statements.SeenHead(size=1, root="1" * 64),
)  # fmt: skip
_PAYLOADS: Final = (statements.encode_approval(_APPROVAL), statements.encode_enrolment(_ENROLMENT))


def _draw_statement(chance: random.Random) -> bytes:
    return drawing.mutated(chance, chance.choice(_PAYLOADS), 2)


def _check_statement(payload: bytes) -> Problem:
    """A statement is spelled in one way."""
    try:
        found = statements.encode_approval(statements.parse_approval(payload))
    except InvalidInput:
        found = statements.encode_enrolment(statements.parse_enrolment(payload))
    return None if found == payload else "it is a statement in two spellings"


# ── proofs of the tree ───────────────────────────────────────────────────────────────────────────────────────────────

_MOST: Final = 70
_LEAVES: Final = [sha256(b"\0" + bytes([number])).digest() for number in range(_MOST)]


def _tree(leaves: list[bytes]) -> bytes:
    """Return the root as RFC 6962 defines it."""
    if len(leaves) < 2:
        return leaves[0] if leaves else EMPTY_ROOT
    half = 1 << (len(leaves) - 1).bit_length() - 1
    return node_hash(_tree(leaves[:half]), _tree(leaves[half:]))


_ROOTS: Final = [_tree(_LEAVES[:size]) for size in range(_MOST + 1)]
_SUBTREES: Final[dict[tuple[int, int], bytes]] = {}


def _hashes(level: int, index: int) -> bytes:
    found = _SUBTREES.get((level, index))
    if found is None:
        found = _SUBTREES[level, index] = _tree(_LEAVES[index << level : (index + 1) << level])
    return found


Proof = tuple[bool, int, int, bytes, bytes, list[bytes], bool]
"""Whether of inclusion; index or old size; size; leaf or old root; root; the proof; whether it is the right one."""


def _draw_proof(chance: random.Random) -> Proof:
    size = chance.randrange(1, _MOST + 1)
    is_inclusion = chance.random() < 0.5
    place = chance.randrange(size) if is_inclusion else chance.randrange(1, size + 1)
    start = _LEAVES[place] if is_inclusion else _ROOTS[place]
    root = _ROOTS[size]
    proof = inclusion_proof(place, size, _hashes) if is_inclusion else consistency_proof(place, size, _hashes)
    right = (place, start, root, proof)
    for _ in range(chance.randrange(3)):
        place, start, root, proof = _wrong(chance, (place, start, root, list(proof)), is_inclusion)
    return is_inclusion, place, size, start, root, proof, right == (place, start, root, proof)


def _wrong(
    chance: random.Random, given: tuple[int, bytes, bytes, list[bytes]], is_inclusion: bool
) -> tuple[int, bytes, bytes, list[bytes]]:
    place, start, root, proof = given
    at = chance.randrange(len(proof) + 1)
    match chance.randrange(8):
        case 0 if is_inclusion:  # an old size is bound by the old root alone
            place = chance.choice((place + 1, place - 1, place ^ 1, 2**63))
        case 1:
            start = drawing.mutated(chance, start, 1)
        case 2:
            root = drawing.mutated(chance, root, 1)
        case 3:
            proof = [*proof[:at], *proof[at + 1 :]]
        case 4:
            proof = [*proof[:at], chance.choice((*_LEAVES[:4], start, root, b"", bytes(32))), *proof[at:]]
        case 5 if proof:
            proof[at - 1] = drawing.mutated(chance, proof[at - 1], 1)
        case 6:
            proof = proof[::-1]
        case _:
            proof = [*proof, *proof[:1]]
    return place, start, root, proof


def _check_proof(drawn: Proof) -> Problem:
    is_inclusion, place, size, start, root, proof, is_right = drawn
    judge = is_included if is_inclusion else is_consistent
    found = judge(place, start, size, root, proof)
    return None if found is is_right else f"a proof that is right: {is_right}, is accepted: {found}"


TARGETS: Final = (
    Target("note", _draw_note, _check_note, 30),
    Target("lines", _draw_lines, _check_lines, 20),
    Target("envelope", _draw_envelope, _check_envelope, 40),
    Target("ssh", _draw_ssh, _check_ssh, 20),
    Target("statement", _draw_statement, _check_statement, 30),
    Target("merkle", _draw_proof, _check_proof, 40),
)
