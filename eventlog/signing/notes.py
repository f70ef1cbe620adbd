"""Signed notes and verifier keys, as C2SP has them (c2sp.org/signed-note).

    <text, which ends with a newline>
                                                 the last empty line of the note
    — <key name> <base64 of: key id, 4 bytes; signature>
    …

    key id        the first 4 bytes of SHA-256(key name, 0x0A, 0x01, public key)
    verifier key  <key name>+<key id, 8 hex digits>+<base64 of: 0x01, public key>

0x01 says Ed25519; a signature of it covers the text with its last newline. A note is refused (`bad_note`) unless it is
UTF-8 without control characters other than the newline, and every line behind the empty line is a signature line,
64 of them at the most, all base64 in its one canonical spelling. It counts for nothing (`unverified_note`) if a
signature of a key that the reader knows is wrong, or there is none of such a key. Signatures of other keys are ignored.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Sequence
from hashlib import sha256
from typing import Final

import msgspec

from eventlog.errors import InvalidInput
from eventlog.signing.ed25519 import PrivateKey, check_public_key, is_signature

__all__ = [
    "MAX_NOTE_BYTES",
    "MAX_SIGNATURES",
    "OpenedNote",
    "SignatureLine",
    "VerifierKey",
    "add_line",
    "add_signature",
    "canonical_base64",
    "check_key_name",
    "key_id_of",
    "make_verifier_key",
    "open_note",
    "parse_note",
    "parse_verifier_key",
    "sign_note",
    "split_verifier_key",
]

MAX_SIGNATURES: Final = 64
MAX_NOTE_BYTES: Final = 1_000_000
MAX_NAME_BYTES: Final = 255

_ED25519: Final = 1
_KEY_ID: Final = 4
_DASH: Final = "— "
_CONTROLS: Final = bytes(byte for byte in range(0x20) if byte != 0x0A)


class VerifierKey(msgspec.Struct, frozen=True):
    """A public key under the name that it signs notes with. `key_id` is 4 bytes, `public` 32."""

    name: str
    key_id: bytes
    public: bytes

    def to_text(self) -> str:
        """Return the key as `parse_verifier_key` reads it."""
        return f"{self.name}+{self.key_id.hex()}+{b64encode(bytes([_ED25519]) + self.public).decode()}"


class SignatureLine(msgspec.Struct, frozen=True):
    """One line behind the text of a note. `signature` is what stands behind the key id, of whatever kind it is."""

    name: str
    key_id: bytes
    signature: bytes

    def to_text(self) -> str:
        """Return the line with its newline."""
        return f"{_DASH}{self.name} {b64encode(self.key_id + self.signature).decode()}\n"


class OpenedNote(msgspec.Struct, frozen=True):
    """The text of a note, which these keys have signed: at least one of those that the reader knows."""

    text: bytes
    verified: tuple[VerifierKey, ...]


def make_verifier_key(name: str, public: bytes) -> VerifierKey:
    """Return the verifier key. Raises InvalidInput: `weak_key`, `bad_verifier_key` for a name that cannot be one."""
    check_key_name(name)
    return VerifierKey(name, key_id_of(name, _ED25519, check_public_key(public)), public)


def parse_verifier_key(text: str) -> VerifierKey:
    """Return the key that this is the text of. Raises InvalidInput: `bad_verifier_key`, `weak_key`."""
    name, key_id, public = split_verifier_key(text, _ED25519)
    return VerifierKey(name, key_id, public)


def split_verifier_key(text: str, algorithm: int) -> tuple[str, bytes, bytes]:
    """Return name, key id and public key of the text of a key of this algorithm, which is one byte.

    Raises InvalidInput: `bad_verifier_key`, `weak_key`.
    """
    name, key_id, material = _parts(text)
    check_key_name(name)
    if material[:1] != bytes([algorithm]) or len(material) != 33:
        raise _bad_key(text, "it is a key of another kind")
    public = material[1:]
    if key_id != key_id_of(name, algorithm, public):
        raise _bad_key(text, "its key id belongs to another name or key")
    return name, key_id, check_public_key(public)


def _parts(text: str) -> tuple[str, bytes, bytes]:
    parts = text.split("+", 2)  # base64 may hold further ones
    if len(parts) != 3 or len(parts[1]) != 2 * _KEY_ID or parts[1] != parts[1].lower():
        raise _bad_key(text, "it is not `<name>+<8 hex digits>+<base64>`")
    try:
        return parts[0], bytes.fromhex(parts[1]), canonical_base64(parts[2])
    except ValueError:
        raise _bad_key(text, "it is not `<name>+<8 hex digits>+<base64>`") from None


def key_id_of(name: str, algorithm: int, public: bytes) -> bytes:
    """Return the 4 bytes by which a note names the key."""
    return sha256(name.encode() + b"\n" + bytes([algorithm]) + public).digest()[:_KEY_ID]


def check_key_name(name: str) -> str:
    """Return a name that a key may have. Raises InvalidInput(`bad_verifier_key`)."""
    if not _is_key_name(name):
        why = "the name of a key is 1 to 255 bytes without spaces, control characters and `+`"
        raise InvalidInput("bad_verifier_key", f"{why}, not {name!r:.80}")
    return name


def sign_note(text: bytes, name: str, key: PrivateKey) -> bytes:
    """Return the text as a note with one signature. Raises InvalidInput: `bad_note`, `bad_verifier_key`."""
    _check_text(text)
    return text + b"\n" + _line(text, name, key).to_text().encode()


def add_signature(note: bytes, name: str, key: PrivateKey) -> bytes:
    """Return the note with one more signature, behind those that it has. Raises InvalidInput(`bad_note`)."""
    text, _ = parse_note(note)
    return add_line(note, _line(text, name, key))


def add_line(note: bytes, line: SignatureLine) -> bytes:
    """Return the note with this line behind its others, instead of one of the same key. Raises InvalidInput."""
    text, lines = parse_note(note)
    others = [each for each in lines if (each.name, each.key_id) != (line.name, line.key_id)]
    if len(others) >= MAX_SIGNATURES:
        raise _bad(f"it has more than {MAX_SIGNATURES} signatures")
    return text + b"\n" + "".join(each.to_text() for each in (*others, line)).encode()


def _line(text: bytes, name: str, key: PrivateKey) -> SignatureLine:
    """Return the line that signs the text. It was verified: a computer that errs signs nothing."""
    verifier = make_verifier_key(name, key.public)
    signature = key.sign(text)
    assert is_signature(key.public, signature, text), "what was signed just now verifies"
    return SignatureLine(name, verifier.key_id, signature)


def open_note(note: bytes, keys: Sequence[VerifierKey]) -> OpenedNote:
    """Return the text of a note that at least one of these keys has signed, and which of them have.

    Raises InvalidInput: `bad_note`, or `unverified_note` if none has, or the signature of one of them is wrong.
    """
    text, lines = parse_note(note)
    verified: dict[VerifierKey, None] = {}
    for line in lines:
        for key in {each: None for each in keys if (each.name, each.key_id) == (line.name, line.key_id)}:
            if not is_signature(key.public, line.signature, text):
                raise InvalidInput("unverified_note", f"the note has a wrong signature of the key {_name_of(key)}")
            verified[key] = None
    if not verified:
        signers = ", ".join(f"{line.name}+{line.key_id.hex()}" for line in lines[:3])
        raise InvalidInput("unverified_note", f"the note has no signature of a known key, only of {signers!r:.200}")
    return OpenedNote(text, tuple(verified))


def parse_note(note: bytes) -> tuple[bytes, tuple[SignatureLine, ...]]:
    """Return the text of a note, which *nobody has verified yet*, and its signature lines.

    Raises InvalidInput(`bad_note`).
    """
    if len(note) > MAX_NOTE_BYTES:
        raise _bad(f"it is larger than {MAX_NOTE_BYTES} bytes")
    _check_text(note)
    text, separator, lines = note.rpartition(b"\n\n")
    if not separator or not lines:
        raise _bad("it has no empty line with signatures behind it")
    found = lines[:-1].decode().split("\n")
    if len(found) > MAX_SIGNATURES:
        raise _bad(f"it has more than {MAX_SIGNATURES} signatures")
    return text + b"\n", tuple(map(_parse_line, found))


def _parse_line(line: str) -> SignatureLine:
    name, _, spelled = line.removeprefix(_DASH).partition(" ")
    try:
        signature = canonical_base64(spelled)
    except ValueError:
        signature = b""
    if not line.startswith(_DASH) or not _is_key_name(name) or len(signature) <= _KEY_ID:
        raise _bad(f"{line[:80]!r} is no signature line")
    return SignatureLine(name, signature[:_KEY_ID], signature[_KEY_ID:])


def canonical_base64(spelled: str) -> bytes:
    """Return the bytes that are spelled so, with padding and without stray bits. Raises ValueError."""
    try:
        found = b64decode(spelled.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise ValueError("this is no base64") from error
    if b64encode(found).decode() != spelled:
        raise ValueError("this is not the canonical base64 of its bytes")
    return found


def _check_text(text: bytes) -> None:
    try:
        text.decode()
    except UnicodeDecodeError:
        raise _bad("it is not UTF-8") from None
    if len(text.translate(None, _CONTROLS)) != len(text):
        raise _bad("it holds a control character")
    if not text.endswith(b"\n"):
        raise _bad("it does not end with a newline")


def _is_key_name(name: str) -> bool:
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return False
    return 0 < size <= MAX_NAME_BYTES and not any(c.isspace() or c < " " or c == "+" for c in name)


def _name_of(key: VerifierKey) -> str:
    return f"{key.name}+{key.key_id.hex()}"


def _bad(why: str) -> InvalidInput:
    return InvalidInput("bad_note", f"this is no signed note: {why}")


def _bad_key(text: str, why: str) -> InvalidInput:
    return InvalidInput("bad_verifier_key", f"{text!r:.120} is no verifier key: {why}")
