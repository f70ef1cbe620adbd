"""DSSE envelopes: what is signed, and how payload and signature travel together.

    PAE        "DSSEv1" SP len(type) SP type SP len(payload) SP payload          these bytes are signed
    envelope   {"payload": base64, "payloadType": type, "signatures": [{"keyid": hint, "sig": base64}]}

Lengths are decimal numbers of bytes. The payload is an in-toto statement (`eventlog.signing.statements`). The format is
https://github.com/secure-systems-lab/dsse, `protocol.md` and `envelope.md`, version 1; stricter here in that base64 has
one spelling only (the standard alphabet, padded) and that there is exactly one signature. `keyid` is signed by nobody;
it has to name the key that the payload names, and is never looked at otherwise.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final

import msgspec

from eventlog.errors import InvalidInput
from eventlog.events import Envelope, EnvelopeSignature
from eventlog.plain import parse_json

__all__ = [
    "PAYLOAD_TYPE",
    "decode_envelope",
    "encode_envelope",
    "make_envelope",
    "pae",
    "parse_pae",
    "payload_of",
    "signature_of",
]

PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"


def pae(payload: bytes, payload_type: str = PAYLOAD_TYPE) -> bytes:
    """Return the pre-authentication encoding: the exact bytes that are signed."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def parse_pae(data: bytes) -> bytes:
    """Return the payload inside bytes that `pae` has made of a payload of our type.

    Raises InvalidInput(`statement_invalid`) for anything else.
    """
    begin = re.match(rb"DSSEv1 %d %s ([0-9]{1,10}) " % (len(PAYLOAD_TYPE), re.escape(PAYLOAD_TYPE.encode())), data)
    payload = data[begin.end() :] if begin is not None else b""
    if pae(payload) != data:
        raise _invalid(f"these are not the bytes of a signed statement: they are no DSSE PAE of {PAYLOAD_TYPE}")
    return payload


def make_envelope(payload: bytes, key_id: str, signature: bytes) -> Envelope:
    """Return the envelope of a payload with its one signature."""
    signed = EnvelopeSignature(keyid=key_id, sig=base64.b64encode(signature).decode())
    return Envelope(payload=base64.b64encode(payload).decode(), payload_type=PAYLOAD_TYPE, signatures=(signed,))


def payload_of(envelope: Envelope) -> bytes:
    """Return the bytes of the payload. Raises InvalidInput(`statement_invalid`) for one of another type."""
    if envelope.payload_type != PAYLOAD_TYPE:
        raise _invalid(f"the payload of the envelope is {envelope.payload_type!r:.80}, not {PAYLOAD_TYPE}")
    return _decoded(envelope.payload, "payload")


def signature_of(envelope: Envelope) -> tuple[str, bytes]:
    """Return the hint at the key, and the signature. Raises InvalidInput(`statement_invalid`) unless there is one."""
    if len(envelope.signatures) != 1:
        raise _invalid(f"the envelope has {len(envelope.signatures)} signatures; exactly one is taken")
    (signed,) = envelope.signatures
    return signed.keyid, _decoded(signed.sig, "signature")


def encode_envelope(envelope: Envelope) -> bytes:
    """Return the envelope as JSON text."""
    return msgspec.json.encode(envelope)


def decode_envelope(text: bytes) -> Envelope:
    """Return the envelope that a JSON text spells. Raises InvalidInput, `statement_invalid` where it is JSON."""
    value = parse_json(text, what="the envelope")
    try:
        return msgspec.convert(value, Envelope)
    except msgspec.ValidationError as error:
        raise _invalid(f"this is no DSSE envelope: {error}") from error


def _decoded(text: str, what: str) -> bytes:
    """Return the bytes that base64 spells, in the one spelling that they have."""
    try:
        data = base64.b64decode(text.encode(), validate=True)
    except (binascii.Error, UnicodeEncodeError, ValueError):
        data = None
    if data is None or base64.b64encode(data).decode() != text:
        raise _invalid(f"the {what} of the envelope is not base64")
    return data


def _invalid(message: str) -> InvalidInput:
    return InvalidInput("statement_invalid", message)
