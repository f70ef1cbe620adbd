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

__all__ = ["Proposal", "canonical_args", "canonical_bytes", "hash_of", "op_key", "propose", "request_id_for"]

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
        """Return the proposal that these bytes spell. Raises InvalidInput(`invalid_event`) if they spell none."""
        try:
            fields = msgspec.json.decode(canonical, type=_Fields)
        except (msgspec.ValidationError, msgspec.DecodeError, RecursionError) as error:
            raise InvalidInput("invalid_event", f"the stored bytes are not a proposal: {error}") from error
        return Proposal(
            action=fields.action, args=fields.args, output=fields.output, canonical=canonical, hash=hash_of(canonical)
        )


class _Args(msgspec.Struct, frozen=True):
    args: msgspec.Raw


def canonical_args(canonical: bytes) -> str:
    """Return the canonical JSON text of the args inside the canonical bytes of a proposal."""
    return bytes(msgspec.json.decode(canonical, type=_Args).args).decode()


class _Fields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    action: str
    args: dict[str, Any]
    output: str


def propose(action: str, args: dict[str, Any], output: str, *, limits: Limits | None = None) -> Proposal:
    """Return the proposal to run `action` with `args` on the target `output`.

    Raises InvalidInput with the path if a value has no exact canonical form.
    """
    check_id(action, "action", max_bytes=128)
    if type(args) is not dict:
        raise InvalidInput("unsupported_type", f"the args must be a dict, not {type(args).__name__}", path="$.args")
    if type(output) is not str:
        raise InvalidInput(
            "unsupported_type", f"the output must be a str, not {type(output).__name__}", path="$.output"
        )
    if not output or "\0" in output:
        raise InvalidInput("invalid_id", "the output names no target: it is empty or holds NUL", path="$.output")
    check_text(output, "$.output")
    return Proposal.decode(canonical_bytes({"action": action, "args": args, "output": output}, limits=limits))


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
