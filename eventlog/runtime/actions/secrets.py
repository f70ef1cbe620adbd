"""Secrets that an effect needs and that the log must not hold.

In a proposal a secret is named and not given. `secret_ref("API_TOKEN", prefix="Bearer ")` is the plain data

    {"$secret": "API_TOKEN", "prefix": "Bearer "}

and that is what is hashed, approved and stored; `SecretRef` is the same as a value with a type, for a registered event.
The value is put in its place at the moment of the call, and taken out of everything that comes back: a receiver may
echo what it was sent, and the text of an error may quote it.

What is taken out: the value itself, as JSON, HTML, a URL, Python or base64 spell it, and the beginning of it where the
end was cut off. What a receiver derives from it in another way, a hash or an encryption, is not recognised. A number is
taken out where it is spelled with four characters or more; a shorter one, and a bool, are no text that could be told
from others.

With `KeyedSecrets` a reference also says which value it means, by a fingerprint:

    {"$secret": "API_TOKEN", "fingerprint": "<32 hex digits>"}

which is HMAC-SHA256 with the fingerprint key of `eventlog/secret/v1` 0x00 and the value's JSON, cut to 16 bytes. Where
two are equal the same value is meant; nobody can guess it without the key, which is in no log. If the secret of that
name is another one by the time of the call, nothing is sent (`secret_changed`).
"""

from __future__ import annotations

import hmac
import html
import json
import math
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote, quote_plus

import msgspec

from eventlog.errors import ActionFailed, InvalidInput
from eventlog.plain import is_utf8
from eventlog.scanning import MASK

__all__ = ["MARK", "KeyedSecrets", "Revealed", "Secret", "SecretRef", "Secrets", "secret_ref"]

Secret = str | int | float | bool

Secrets = Mapping[str, str] | Mapping[str, Secret] | Callable[[str], Secret | None]
"""Values by name. A name that is not known is missing from the mapping; a function returns None or raises LookupError.

A function is called on the event loop, at every check and every attempt.
"""

MARK: Final = MASK
"""What stands where a secret was taken out."""

_KEY: Final = "$secret"
_LABEL: Final = b"eventlog/secret/v1\0"
_FINGERPRINT_SIZE: Final = 16
_MIN_KEY: Final = 16
_MIN_NUMBER: Final = 4
_MIN_BASE64: Final = 8
"""Shorter pieces of base64 could stand in a text by chance."""


def secret_ref(name: str, *, prefix: str = "") -> dict[str, str]:
    """Return plain data that stands for `prefix` and the secret called `name`, in a header or anywhere in the JSON.

    Without a prefix the secret may be a number or a bool, in JSON. `HttpRequest(…, secrets=…)` puts the value in its
    place at the call; an action of your own is given what stands here, and looks the name up itself.
    """
    return SecretRef(name, prefix).to_plain()


class SecretRef(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename={"name": _KEY},
):
    """Stands for `prefix` and the secret called `name`; in JSON it is what `secret_ref` returns."""

    name: str
    prefix: str = ""
    fingerprint: str = ""

    def to_plain(self) -> dict[str, str]:
        """Return it as plain data, for the arguments of a proposal."""
        plain: dict[str, str] = msgspec.to_builtins(self)
        return plain


class KeyedSecrets:
    """Secrets whose references say which value they mean. It is given to actions as any other `Secrets`.

    `fingerprint_key` is 16 bytes or more that nobody can guess; the same wherever references are made and resolved, and
    kept as long as they are to be compared. Raises InvalidInput(`invalid_argument`) for a shorter one.
    """

    def __init__(self, secrets: Secrets, *, fingerprint_key: bytes) -> None:
        if type(fingerprint_key) is not bytes or len(fingerprint_key) < _MIN_KEY:
            raise InvalidInput("invalid_argument", f"a fingerprint key is {_MIN_KEY} bytes or more")
        self._secrets: Final = secrets
        self._key: Final = fingerprint_key

    def __call__(self, name: str) -> Any:
        """Return the secret called `name`, None if it is not known."""
        return self._secrets(name) if callable(self._secrets) else self._secrets.get(name)

    def ref(self, name: str, *, prefix: str = "") -> dict[str, str]:
        """Return plain data that stands for the secret as it is now. Raises InvalidInput(`secret_unknown`)."""
        value, why = _answer(self, name)
        if value is None:
            raise InvalidInput("secret_unknown", f"the secret {name!r:.80} {why}")
        return SecretRef(name, prefix, self.fingerprint_of(value)).to_plain()

    def fingerprint_of(self, value: Secret) -> str:
        """Return the fingerprint of a value, 32 hex digits."""
        return hmac.digest(self._key, _LABEL + msgspec.json.encode(value), sha256)[:_FINGERPRINT_SIZE].hex()


class Revealed:
    """The secrets of one call: put in the place of their references, and taken out of what comes back."""

    def __init__(self, secrets: Secrets | None) -> None:
        self._secrets: Final = secrets
        self._forms: list[bytes] = []
        self._is_empty = True

    @property
    def is_empty(self) -> bool:
        """Whether no secret was put in."""
        return self._is_empty

    def put_in(self, value: Any) -> Any:
        """Return plain data with each reference replaced by what it stands for.

        Raises ActionFailed: `invalid_arguments` for a reference that is malformed, `secret_unknown`, `secret_changed`.
        """
        match value:
            case dict() if _KEY in value:
                return self._value_of(value)
            case dict():
                return {key: self.put_in(each) for key, each in value.items()}
            case list():
                return [self.put_in(each) for each in value]
            case _:
                return value

    def take_out(self, data: bytes, *, is_cut: bool = False) -> bytes:
        """Return the data without any secret that was put in. `is_cut`: its end is missing, maybe inside a secret."""
        for form in self._forms:
            data = data.replace(form, MARK.encode())
        return self._without_a_beginning(data) if is_cut else data

    def take_out_of_text(self, text: str) -> str:
        """Return the text without any secret that was put in."""
        return self.take_out(text.encode(errors="replace")).decode(errors="replace")

    def take_out_of(self, value: Any) -> Any:
        """Return plain data without any secret that was put in, in keys or in values."""
        match value:
            case str():
                return self.take_out_of_text(value) if is_utf8(value) else value
            case int() | float() if not isinstance(value, bool):
                text = str(value)
                return value if self.take_out_of_text(text) == text else MARK
            case dict():
                return {self.take_out_of(key): self.take_out_of(each) for key, each in value.items()}
            case list() | tuple():
                return [self.take_out_of(each) for each in value]
            case _:
                return value

    def _value_of(self, reference: dict[str, Any]) -> Secret:
        try:
            ref = msgspec.convert(reference, SecretRef)
        except msgspec.ValidationError:
            why = 'a secret is named as {"$secret": NAME, "prefix": TEXT}'
            raise ActionFailed("invalid_arguments", why) from None
        value = self._look_up(ref.name)
        self._require_meant(ref, value)
        if ref.prefix and not isinstance(value, str):
            raise ActionFailed("invalid_arguments", f"the secret {ref.name!r:.80} is no text, and takes no prefix")
        self._is_empty = False
        # The longest first: a shorter form may be a part of a longer one.
        self._forms = sorted({*self._forms, *_forms_of(value)}, key=lambda form: (-len(form), form))
        return ref.prefix + value if isinstance(value, str) else value

    def _require_meant(self, ref: SecretRef, value: Secret) -> None:
        """Raise ActionFailed if the reference says that it means another value."""
        if not ref.fingerprint:
            return
        if not isinstance(self._secrets, KeyedSecrets):
            why = (
                f"the secret {ref.name!r:.80} has a fingerprint, and this action has no key to compare it: KeyedSecrets"
            )
            raise ActionFailed("invalid_arguments", why)
        if not hmac.compare_digest(self._secrets.fingerprint_of(value).encode(), ref.fingerprint.encode()):
            why = f"the secret {ref.name!r:.80} is another one than this was proposed with; nothing was sent"
            raise ActionFailed("secret_changed", why, secret=ref.name[:80])

    def _look_up(self, name: str) -> Secret:
        value, why = _answer(self._secrets, name)
        if value is None:
            raise ActionFailed("secret_unknown", f"the secret {name!r:.80} {why}; nothing was sent", secret=name[:80])
        return value

    def _without_a_beginning(self, data: bytes) -> bytes:
        """Return the data without an end that may be the beginning of a secret."""
        longest = 0
        for form in self._forms:
            sizes = range(min(len(form), len(data)), longest, -1)
            longest = next((size for size in sizes if data.endswith(form[:size])), longest)
        return data[: len(data) - longest]


def _answer(secrets: Secrets | None, name: str) -> tuple[Secret | None, str]:
    """Return the secret, or None and why there is none. No error goes on from here: its text could be the secret."""
    if secrets is None:
        return None, "is not known: this action was given no secrets"
    value: Any
    try:
        value = secrets(name) if callable(secrets) else secrets.get(name)
    except LookupError:
        value = None
    except Exception as error:
        return None, f"could not be looked up ({type(error).__name__})"
    if value is None:
        return None, "is not known to this action"
    if type(value) in (bool, int) or (type(value) is float and math.isfinite(value)):
        return value, ""
    if not isinstance(value, str) or not value or not is_utf8(value):
        return None, "is empty or no text"
    return value, ""


def _forms_of(value: Secret) -> set[bytes]:
    """Return how a receiver or an error may spell the secret."""
    if isinstance(value, str):
        return _forms_of_text(value)
    spellings = set() if isinstance(value, bool) else {str(value), msgspec.json.encode(value).decode()}
    return {text.encode() for text in spellings if len(text) >= _MIN_NUMBER}


def _forms_of_text(secret: str) -> set[bytes]:
    in_url = {quote(secret, safe=""), quote(secret), quote_plus(secret)}
    in_json = _in_json(secret)
    texts = {
        secret,
        *in_json,
        *(twice for once in in_json for twice in _in_json(once)),  # an echo of our JSON as a text inside JSON
        html.escape(secret),
        html.escape(secret, quote=False),
        repr(secret)[1:-1],
        *in_url,
        *map(_with_small_escapes, in_url),
    }
    forms = {text.encode() for text in texts}
    forms |= {text.encode("latin-1") for text in texts if _is_latin(text)}
    return forms | set(_in_base64(secret.encode()))


def _in_json(text: str) -> set[str]:
    spellings = {json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
    return spellings | {each.replace("/", "\\/") for each in spellings}


def _with_small_escapes(quoted: str) -> str:
    first, *rest = quoted.split("%")
    return first + "".join(f"%{each[:2].lower()}{each[2:]}" for each in rest)


def _is_latin(text: str) -> bool:
    return all(ord(character) < 256 for character in text)


def _in_base64(data: bytes) -> Iterator[bytes]:
    """Yield what the data looks like inside base64, wherever it begins there: with 0, 1 or 2 bytes before it."""
    for before in range(3):
        encoded = b64encode(bytes(before) + data)
        # Only characters of which all six bits are the data's own.
        core = encoded[-(-before * 8 // 6) : (before + len(data)) * 8 // 6]
        if len(core) >= _MIN_BASE64:
            yield core
            yield core.translate(bytes.maketrans(b"+/", b"-_"))
