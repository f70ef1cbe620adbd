"""What a run wants to do, its canonical bytes and their hashes.

A proposal is {"action", "args", "output"} as RFC 8785 (JSON Canonicalization Scheme) bytes; its hash is SHA-256 of
them. The bytes are stored, and what runs is decoded from those bytes and nothing else: a float 1.0 is the integer 1
*before* anybody approves it. RFC 8785 numbers are doubles, so integers of 2**53 and more are refused, and floats that
it spells like such integers (those below 1e21); write them as text.
"""

from __future__ import annotations

import struct
from hashlib import sha256
from typing import Any, Final

import msgspec
import rfc8785

from eventlog.errors import InvalidInput
from eventlog.plain import Limits, check_id, check_plain, check_text

__all__ = [
    "Proposal",
    "canonical_args",
    "canonical_bytes",
    "checked_proposal",
    "hash_of",
    "op_key",
    "propose",
    "request_id_for",
    "stored_proposal",
]

_OP_KEY_LABEL: Final = b"eventlog/op-key/v1\0"
_LENGTH: Final = struct.Struct(">H")
_SAFE_INT_BITS: Final = 53


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """An action with its arguments and its target, decoded from `canonical`, whose SHA-256 in hex is `hash`."""

    action: str
    args: dict[str, Any]
    output: str
    canonical: bytes
    hash: str

    @staticmethod
    def decode(canonical: bytes) -> Proposal:
        """Return the proposal that these bytes spell, which are exactly those that `propose` makes.

        Bytes that are read otherwise by another reader, or spell the same in another way, are nothing that people can
        approve: a key that stands twice, white space, another order of keys, a number in another spelling. How long
        and how deep they are is up to `propose`. Raises InvalidInput(`unsupported_type`) for what is not bytes, and
        `invalid_event` for bytes that are no such proposal.
        """
        if type(canonical) is not bytes:
            raise InvalidInput("unsupported_type", f"a proposal is read from bytes, not {type(canonical).__name__}")
        found = stored_proposal(canonical)
        try:
            _check_action(found.action)
            _check_output(found.output)
            spelled = rfc8785.dumps({"action": found.action, "args": found.args, "output": found.output})
        except (InvalidInput, rfc8785.CanonicalizationError, RecursionError) as error:
            raise InvalidInput("invalid_event", f"the bytes spell what cannot be proposed: {error}") from error
        if spelled != canonical:
            raise InvalidInput("invalid_event", "the bytes are not the canonical form (RFC 8785) of their proposal")
        return found


class _Args(msgspec.Struct, frozen=True):
    args: msgspec.Raw


def canonical_args(canonical: bytes) -> str:
    """Return the canonical JSON text of the args inside the canonical bytes of a proposal."""
    return bytes(msgspec.json.decode(canonical, type=_Args).args).decode()


class _Fields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    action: str
    args: dict[str, Any]
    output: str


def stored_proposal(canonical: bytes) -> Proposal:
    """Return the proposal that bytes spell which this program has made, or which a stored event holds.

    They are not held to the canonical form: they were when they came in, their event's hash says that they are still
    those, and whatever a log holds can be read. Raises InvalidInput(`invalid_event`) if they spell no proposal.
    """
    try:
        fields = msgspec.json.decode(canonical, type=_Fields)
    except (msgspec.ValidationError, msgspec.DecodeError, RecursionError) as error:
        raise InvalidInput("invalid_event", f"the stored bytes are not a proposal: {error}") from error
    return Proposal(
        action=fields.action, args=fields.args, output=fields.output, canonical=canonical, hash=hash_of(canonical)
    )


def checked_proposal(proposal: Proposal) -> Proposal:
    """Return a caller's proposal as its bytes spell it, which are all that is recorded, approved and run.

    Terms and people go by its fields, so those and its hash have to be the ones of its bytes: `replace` changes a
    field alone, and who holds the args can change them. Raises InvalidInput(`invalid_argument`) with the path to a
    field that is another, and as `Proposal.decode`.
    """
    found = Proposal.decode(proposal.canonical)
    for name in ("action", "args", "output", "hash"):
        if not _is_same(getattr(found, name), getattr(proposal, name)):
            message = f"`{name}` of the proposal is not what its canonical bytes say; make it anew with `propose`"
            raise InvalidInput("invalid_argument", message, path=f"$.{name}")
    return found


def propose(action: str, args: dict[str, Any], output: str, *, limits: Limits | None = None) -> Proposal:
    """Return the proposal to run `action` with `args` on the target `output`.

    Raises InvalidInput with the path if a value has no exact canonical form.
    """
    _check_action(action)
    if type(args) is not dict:
        raise InvalidInput("unsupported_type", f"the args must be a dict, not {type(args).__name__}", path="$.args")
    if type(output) is not str:
        raise InvalidInput(
            "unsupported_type", f"the output must be a str, not {type(output).__name__}", path="$.output"
        )
    _check_output(output)
    check_text(output, "$.output")
    return stored_proposal(canonical_bytes({"action": action, "args": args, "output": output}, limits=limits))


def canonical_bytes(value: Any, *, limits: Limits | None = None) -> bytes:
    """Return the RFC 8785 bytes of plain data. Raises InvalidInput with the path."""
    limits = limits or Limits()
    check_plain(value, limits, int_bits=_SAFE_INT_BITS)
    canonical = rfc8785.dumps(value)
    # 5.573092662399899e16 is spelled 55730926623998990, which is another number when it is read as an integer.
    check_plain(msgspec.json.decode(canonical), limits, int_bits=_SAFE_INT_BITS)
    if len(canonical) > limits.body_bytes:
        raise InvalidInput(
            "payload_too_large", f"the proposal has {len(canonical)} bytes, {limits.body_bytes} are allowed"
        )
    return canonical


def hash_of(canonical: bytes) -> str:
    """Return the SHA-256 of canonical bytes, as 64 hex digits."""
    return sha256(canonical).hexdigest()


def request_id_for(run_id: str) -> str:
    """Return the id of the one question that a run of one action asks."""
    return f"approval:{run_id}"


def op_key(store_id: bytes, run_id: str, step_key: str, approval_hash: str) -> str:
    """Return the stable identity of one logical effect: the same for every attempt, and after a restore.

    Hex SHA-256 over "eventlog/op-key/v1" 0x00 and, each with a u16 length: the 16 bytes of the store id, the run id,
    the step key (the action's name in a run of one action) and the 64 hex digits of the approval hash.
    """
    fields = (store_id, run_id.encode(), step_key.encode(), approval_hash.encode())
    return sha256(_OP_KEY_LABEL + b"".join(_LENGTH.pack(len(field)) + field for field in fields)).hexdigest()


def _check_action(action: str) -> None:
    check_id(action, "action", max_bytes=128)


def _check_output(output: str) -> None:
    if not output or "\0" in output:
        raise InvalidInput("invalid_id", "the output names no target: it is empty or holds NUL", path="$.output")


def _is_same(spelled: Any, given: Any) -> bool:
    """Say whether `given` is what was spelled, down to the types: True is not the 1 that it is equal to.

    Only as much of `given` is looked at as was spelled, so that it may hold anything, itself too.
    """
    left_over = [(spelled, given)]
    while left_over:
        one, other = left_over.pop()
        if type(one) is not type(other):
            return False
        if type(one) is dict:
            if one.keys() != other.keys():
                return False
            left_over += [(item, other[key]) for key, item in one.items()]
        elif type(one) is list:
            if len(one) != len(other):
                return False
            left_over += zip(one, other, strict=True)
        elif one != other:
            return False
    return True
