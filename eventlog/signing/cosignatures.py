"""Cosignatures of witnesses (c2sp.org/tlog-cosignature, Ed25519), and what is asked of one (c2sp.org/tlog-witness).

A witness says of a head: "at this time, no head of this log that I have seen was larger, and it goes on from all of
them". What it signs with Ed25519 is

    cosignature/v1
    time <seconds since 1970>
    <the text of the head>

and its signature line holds the time, 8 bytes big-endian, and 64 bytes of signature. The keys are spelled as verifier
keys are, with 0x04 instead of 0x01, so that one is never taken for the other. It is asked by `add-checkpoint`, whose
body is

    old <size of the head that the witness has seen last>
    <base64 of a hash of the consistency proof>          at most 63 such lines
    <an empty line>
    <the signed head>
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import Final

import msgspec

from eventlog.errors import InvalidInput
from eventlog.merkle import MAX_PROOF
from eventlog.signing.ed25519 import SIGNATURE_BYTES, PrivateKey, check_public_key, is_signature
from eventlog.signing.notes import (
    SignatureLine,
    add_line,
    canonical_base64,
    check_key_name,
    key_id_of,
    parse_note,
    split_verifier_key,
)

__all__ = [
    "Cosignature",
    "GrowthRequest",
    "WitnessKey",
    "add_cosignatures",
    "cosign",
    "make_growth_request",
    "make_witness_key",
    "open_cosignatures",
    "parse_growth_request",
    "parse_witness_key",
]

_COSIGNATURE: Final = 4
_TIME: Final = 8
_MAX_TIME: Final = 2**63 - 1


class WitnessKey(msgspec.Struct, frozen=True):
    """The public key of a witness under its name. `key_id` is 4 bytes, `public` 32."""

    name: str
    key_id: bytes
    public: bytes

    def to_text(self) -> str:
        """Return the key as `parse_witness_key` reads it."""
        return f"{self.name}+{self.key_id.hex()}+{b64encode(bytes([_COSIGNATURE]) + self.public).decode()}"


class Cosignature(msgspec.Struct, frozen=True):
    """That this witness has cosigned a head, at this time by its own clock, in seconds since 1970."""

    key: WitnessKey
    time_s: int


class GrowthRequest(msgspec.Struct, frozen=True):
    """What a witness is asked: to take the head in `note` for one that goes on from its own of size `old_size`."""

    old_size: int
    proof: tuple[bytes, ...]
    note: bytes


def make_witness_key(name: str, public: bytes) -> WitnessKey:
    """Return the key. Raises InvalidInput: `weak_key`, `bad_verifier_key` for a name that cannot be one."""
    check_key_name(name)
    return WitnessKey(name, key_id_of(name, _COSIGNATURE, check_public_key(public)), public)


def parse_witness_key(text: str) -> WitnessKey:
    """Return the key that this is the text of. Raises InvalidInput: `bad_verifier_key`, `weak_key`."""
    return WitnessKey(*split_verifier_key(text, _COSIGNATURE))


def cosign(text: bytes, name: str, key: PrivateKey, time_s: int) -> SignatureLine:
    """Return the line by which a witness of this name cosigns the text of a head."""
    signature = key.sign(_signed(text, time_s))
    return SignatureLine(name, make_witness_key(name, key.public).key_id, time_s.to_bytes(_TIME, "big") + signature)


def open_cosignatures(note: bytes, keys: Sequence[WitnessKey]) -> tuple[Cosignature, ...]:
    """Return which of these witnesses have cosigned the head in a note; a public key counts once, whatever its names.

    Raises InvalidInput: `bad_note`, and `unverified_note` if a cosignature of one of them is wrong.
    """
    text, lines = parse_note(note)
    found: dict[bytes, Cosignature] = {}
    for line in lines:
        for key in keys:
            if (key.name, key.key_id) == (line.name, line.key_id):
                found.setdefault(key.public, Cosignature(key, _verified_time(key, line, text)))
    return tuple(found.values())


def add_cosignatures(note: bytes, answer: bytes, keys: Sequence[WitnessKey]) -> bytes:
    """Return the note with the lines of a witness's answer that are of these keys. Raises InvalidInput.

    `unverified_note` if one of them is wrong, or none is there; `bad_note` if the answer is not signature lines.
    """
    text, _ = parse_note(note)
    known = {(key.name, key.key_id) for key in keys}
    lines = [line for line in parse_note(text + b"\n" + answer)[1] if (line.name, line.key_id) in known]
    if not lines:
        raise InvalidInput("unverified_note", "the answer has no cosignature of a witness that is known here")
    for line in lines:
        note = add_line(note, line)
    open_cosignatures(note, keys)
    return note


def _verified_time(key: WitnessKey, line: SignatureLine, text: bytes) -> int:
    time_s = int.from_bytes(line.signature[:_TIME], "big")
    signature = line.signature[_TIME:]
    is_whole = len(signature) == SIGNATURE_BYTES and time_s <= _MAX_TIME
    if not is_whole or not is_signature(key.public, signature, _signed(text, time_s)):
        raise InvalidInput("unverified_note", f"the note has a wrong cosignature of the witness {key.name!r:.120}")
    return time_s


def _signed(text: bytes, time_s: int) -> bytes:
    return b"cosignature/v1\ntime %d\n" % time_s + text


def make_growth_request(old_size: int, proof: Sequence[bytes], note: bytes) -> bytes:
    """Return the body of an `add-checkpoint` request."""
    lines = [f"old {old_size}", *(b64encode(each).decode() for each in proof), "", ""]
    return "\n".join(lines).encode() + note


def parse_growth_request(body: bytes) -> GrowthRequest:
    """Return what a body asks for; its note was not looked at. Raises InvalidInput(`bad_request`)."""
    asked, separator, note = body.partition(b"\n\n")
    if not separator:
        raise _bad("it has no empty line in front of the head")
    try:
        first, *proof = asked.decode("ascii").split("\n")
        return GrowthRequest(_old_size(first), _hashes(proof), note)
    except ValueError as error:
        raise _bad(str(error)) from None


def _old_size(line: str) -> int:
    spelled = line.removeprefix("old ")
    if spelled == line or not spelled.isdigit() or len(spelled) > 19 or str(int(spelled)) != spelled:
        raise ValueError("its first line is not `old <size>`")
    return int(spelled)


def _hashes(lines: Sequence[str]) -> tuple[bytes, ...]:
    if len(lines) > MAX_PROOF:
        raise ValueError(f"its proof has more than {MAX_PROOF} hashes")
    hashes = tuple(map(canonical_base64, lines))
    if any(len(each) != 32 for each in hashes):
        raise ValueError("its proof has a hash that is not 32 bytes")
    return hashes


def _bad(why: str) -> InvalidInput:
    return InvalidInput("bad_request", f"this is no request to a witness: {why}")
