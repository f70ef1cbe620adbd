"""Signatures that `ssh-keygen -Y sign` makes: an approver needs no software but that, and no key but the one he has.

    armour       -----BEGIN SSH SIGNATURE-----, base64 of the blob in lines, -----END SSH SIGNATURE-----
    blob         "SSHSIG", u32 1, public key, namespace, reserved, hash name, signature
    public key   "ssh-ed25519", 32 bytes
    signature    "ssh-ed25519", 64 bytes
    signed       "SSHSIG", namespace, reserved, hash name, H(message)

Everything but the first two parts is a string: a u32 length and so many bytes. Taken are Ed25519 keys and signatures
(`ssh-ed25519`), an empty `reserved`, H of sha512 or sha256, our own namespace, and nothing behind the last part. The
format is `PROTOCOL.sshsig` of OpenSSH.

A FIDO token (`ssh-keygen -t ed25519-sk`) signs otherwise, by `PROTOCOL.u2f`; its kind is `sk-ssh-ed25519@openssh.com`:

    public key   kind, 32 bytes, application
    signature    kind, 64 bytes, then without a length: flags u8, counter u32
    signed       SHA-256(application), flags, counter, SHA-256(what is signed above)

Taken is the application `ssh:`, which is the one that OpenSSH makes keys for unless it is told otherwise, and flags
that say that somebody was present (1), who may have been verified too (4), and nothing else. The counter is compared
with nothing. `ssh-keygen -Y verify` looks at neither. The kind is no proof that there is a token: an approver can
imitate one with a key in a file, which weakens nobody's approvals but his own.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct
from typing import Final

import msgspec

from eventlog.errors import InvalidInput
from eventlog.signing.ed25519 import PrivateKey, is_signature

__all__ = [
    "NAMESPACE",
    "SK_SSH_ED25519",
    "SSH_ED25519",
    "SshSignature",
    "is_ssh_signature",
    "make_ssh_signature",
    "parse_armour",
    "parse_blob",
    "parse_public_line",
    "public_line",
    "to_armour",
]

NAMESPACE: Final = "eventlog-approval@v1"
"""What `ssh-keygen -Y sign -n` has to be given: a signature made for something else proves nothing here."""

SSH_ED25519: Final = "ssh-ed25519"
SK_SSH_ED25519: Final = "sk-ssh-ed25519@openssh.com"

_MAGIC: Final = b"SSHSIG"
_VERSION: Final = 1
_KINDS: Final = (SSH_ED25519.encode(), SK_SSH_ED25519.encode())
_APPLICATION: Final = b"ssh:"
_PRESENT: Final = 0x01
_VERIFIED: Final = 0x04
_TOKEN: Final = struct.Struct(">BI")
_LENGTH: Final = struct.Struct(">I")
_HASHES: Final = {b"sha512": hashlib.sha512, b"sha256": hashlib.sha256}
_BEGIN: Final = b"-----BEGIN SSH SIGNATURE-----"
_END: Final = b"-----END SSH SIGNATURE-----"
_LINE: Final = 70
_MAX_BYTES: Final = 4096


class SshSignature(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a blob that can differ: the raw public key, namespace, hash name, and the raw signature.

    `token` are flags and counter of a token, empty for a key that is none.
    """

    kind: str
    public: bytes
    namespace: bytes
    hash_name: bytes
    signature: bytes
    token: bytes


def parse_armour(text: bytes) -> bytes:
    """Return the blob inside its armour. Raises InvalidInput(`statement_invalid`)."""
    lines = text.replace(b"\r\n", b"\n").strip(b"\n").split(b"\n")
    if len(text) > _MAX_BYTES or len(lines) < 3 or lines[0] != _BEGIN or lines[-1] != _END:
        raise _invalid("this is no SSH signature: its armour is missing, or too long")
    try:
        return base64.b64decode(b"".join(lines[1:-1]), validate=True)
    except binascii.Error as error:
        raise _invalid(f"the SSH signature is not base64: {error}") from None


def to_armour(blob: bytes) -> bytes:
    """Return the blob in its armour, as `ssh-keygen -Y verify` takes it."""
    text = base64.b64encode(blob)
    lines = [text[at : at + _LINE] for at in range(0, len(text), _LINE)]
    return b"\n".join([_BEGIN, *lines, _END, b""])


def parse_blob(blob: bytes) -> SshSignature:
    """Return the parts of a blob. Raises InvalidInput(`statement_invalid`) for any that is not as above."""
    head = _MAGIC + _LENGTH.pack(_VERSION)
    if not blob.startswith(head) or len(blob) > _MAX_BYTES:
        raise _invalid("this is no SSH signature of version 1")
    key, namespace, reserved, hash_name, signed = _strings(blob[len(head) :], 5)
    if reserved:
        raise _invalid("the reserved field of the SSH signature is not empty")
    if hash_name not in _HASHES:
        raise _invalid(f"the SSH signature is of a {hash_name!r:.40} hash, not sha512 or sha256")
    kind, public = _public(key)
    signature, token = _signature(signed, kind)
    return SshSignature(
        kind=kind, public=public, namespace=namespace, hash_name=hash_name, signature=signature, token=token
    )


def is_ssh_signature(
    public: bytes, blob: bytes, message: bytes, namespace: str = NAMESPACE, *, kind: str = SSH_ED25519
) -> bool:
    """Say whether the blob is a signature of `message` by this raw public key of this kind for this namespace.

    Raises InvalidInput(`statement_invalid`) for a blob that is not as above, Misuse(`missing_extra`) without
    `cryptography`.
    """
    parts = parse_blob(blob)
    if parts.kind != kind or parts.public != public or parts.namespace != namespace.encode():
        return False
    signed = _signed(parts.namespace, parts.hash_name, message)
    return is_signature(public, parts.signature, _signed_by_token(parts.token, signed) if parts.token else signed)


def make_ssh_signature(key: PrivateKey, message: bytes, namespace: str = NAMESPACE, hash_name: str = "sha512") -> bytes:
    """Return the blob of a signature, as `ssh-keygen -Y sign` would make it with a key in a file."""
    name, digest = namespace.encode(), hash_name.encode()
    signature = key.sign(_signed(name, digest, message))
    parts = (_pair(key.public, SSH_ED25519), name, b"", digest, _pair(signature, SSH_ED25519))
    return _MAGIC + _LENGTH.pack(_VERSION) + b"".join(map(_string, parts))


def parse_public_line(text: str) -> bytes:
    """Return the raw public key of a line as in `id_ed25519.pub`: kind, base64, and a comment that is passed over.

    Raises InvalidInput(`invalid_argument`).
    """
    words = text.split()
    if len(words) < 2 or words[0].encode(errors="replace") not in _KINDS or len(text) > _MAX_BYTES:
        kinds = b" or ".join(_KINDS).decode()
        raise InvalidInput("invalid_argument", f"this is no line of an OpenSSH public key of the kind {kinds}")
    try:
        kind, public = _public(base64.b64decode(words[1].encode(), validate=True))
    except (binascii.Error, UnicodeEncodeError, InvalidInput) as error:
        raise InvalidInput("invalid_argument", f"the OpenSSH public key cannot be read: {error}") from None
    if kind != words[0]:
        raise InvalidInput("invalid_argument", "the OpenSSH public key is of another kind than its line says")
    return public


def public_line(public: bytes, kind: str = SSH_ED25519) -> str:
    """Return a raw public key as a line of an OpenSSH public key, without a comment."""
    application = _string(_APPLICATION) if kind == SK_SSH_ED25519 else b""
    return f"{kind} {base64.b64encode(_pair(public, kind) + application).decode()}"


def _signed(namespace: bytes, hash_name: bytes, message: bytes) -> bytes:
    """Return the bytes that the key signs."""
    digest = _HASHES[hash_name](message).digest()
    return _MAGIC + b"".join(map(_string, (namespace, b"", hash_name, digest)))


def _signed_by_token(token: bytes, signed: bytes) -> bytes:
    """Return the bytes that a token signs: what else it is told to sign as a digest, with what it says of itself."""
    return hashlib.sha256(_APPLICATION).digest() + token + hashlib.sha256(signed).digest()


def _public(data: bytes) -> tuple[str, bytes]:
    """Return the kind and the raw bytes of a public key."""
    if data.startswith(_string(_KINDS[1])):
        kind, public, application = _strings(data, 3)
        if application != _APPLICATION:
            raise _invalid(f"the key in the token is for {application!r:.80}, not for {_APPLICATION.decode()!r}")
    else:
        kind, public = _strings(data, 2)
    if kind not in _KINDS or len(public) != 32:
        raise _invalid(f"the key in the SSH signature is not {SSH_ED25519}")
    return kind.decode(), public


def _signature(data: bytes, kind: str) -> tuple[bytes, bytes]:
    """Return the raw signature of a key of this kind, and what a token says with it."""
    is_token = kind == SK_SSH_ED25519
    if is_token and len(data) < _TOKEN.size:
        raise _invalid("the signature of the token is cut short")
    data, token = (data[: -_TOKEN.size], data[-_TOKEN.size :]) if is_token else (data, b"")
    found, value = _strings(data, 2)
    if found != kind.encode() or len(value) != 64:
        raise _invalid(f"the signature in the SSH signature is not {kind}")
    if is_token and token[0] not in (_PRESENT, _PRESENT | _VERIFIED):
        raise _invalid(f"the flags of the token are {token[0]:#x}: they do not say that somebody was present, or more")
    return value, token


def _pair(value: bytes, kind: str) -> bytes:
    return _string(kind.encode()) + _string(value)


def _string(value: bytes) -> bytes:
    return _LENGTH.pack(len(value)) + value


def _strings(data: bytes, count: int) -> list[bytes]:
    """Return exactly so many strings, with nothing behind them."""
    found, at = [], 0
    for _ in range(count):
        end = at + 4 + (_LENGTH.unpack_from(data, at)[0] if len(data) >= at + 4 else len(data))
        if end > len(data):
            raise _invalid("the SSH signature is cut short")
        found.append(data[at + 4 : end])
        at = end
    if at != len(data):
        raise _invalid(f"{len(data) - at} bytes follow the SSH signature")
    return found


def _invalid(message: str) -> InvalidInput:
    return InvalidInput("statement_invalid", message)
