"""Secrets that an effect needs and that the log must not hold.

In a proposal a secret is named and not given. `secret_ref("API_TOKEN", prefix="Bearer ")` is the plain data

    {"$secret": "API_TOKEN", "prefix": "Bearer "}

and that is what is hashed, approved and stored. The value is put in its place at the moment of the call, and taken out
of everything that comes back: a receiver may echo what it was sent, and the text of an error may quote it.

What is taken out: the value itself, as JSON, HTML, a URL, Python or base64 spell it, and the beginning of it where the
end was cut off. What a receiver derives from it in another way, a hash or an encryption, is not recognised.
"""

from __future__ import annotations

import html
import json
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote, quote_plus

from eventlog.errors import ActionFailed
from eventlog.plain import is_utf8

__all__ = ["MARK", "Revealed", "Secrets", "secret_ref"]

Secrets = Mapping[str, str] | Callable[[str], str | None]
"""Values by name. A name that is not known is missing from the mapping; a function returns None or raises LookupError.

A function is called on the event loop, at every check and every attempt.
"""

MARK: Final = "***"
"""What stands where a secret was taken out."""

_KEY: Final = "$secret"
_PREFIX: Final = "prefix"
_MIN_BASE64: Final = 8
"""Shorter pieces of base64 could stand in a text by chance."""


def secret_ref(name: str, *, prefix: str = "") -> dict[str, str]:
    """Return plain data that stands for `prefix` and the secret called `name`, in a header or anywhere in the JSON."""
    return {_KEY: name, _PREFIX: prefix} if prefix else {_KEY: name}


class Revealed:
    """The secrets of one call: put in the place of their references, and taken out of what comes back."""

    def __init__(self, secrets: Secrets | None) -> None:
        self._secrets: Final = secrets
        self._forms: list[bytes] = []

    @property
    def is_empty(self) -> bool:
        """Whether no secret was put in."""
        return not self._forms

    def put_in(self, value: Any) -> Any:
        """Return plain data with each reference replaced by what it stands for.

        Raises ActionFailed: `invalid_arguments` for a reference that is malformed, `secret_unknown`.
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

    def _value_of(self, reference: dict[str, Any]) -> str:
        name, prefix = reference[_KEY], reference.get(_PREFIX, "")
        if not (reference.keys() <= {_KEY, _PREFIX} and isinstance(name, str) and isinstance(prefix, str)):
            raise ActionFailed("invalid_arguments", 'a secret is named as {"$secret": NAME, "prefix": TEXT}')
        value = self._look_up(name)
        # The longest first: a shorter form may be a part of a longer one.
        self._forms = sorted({*self._forms, *_forms_of(value)}, key=lambda form: (-len(form), form))
        return prefix + value

    def _look_up(self, name: str) -> str:
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


def _answer(secrets: Secrets | None, name: str) -> tuple[str | None, str]:
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
    if not isinstance(value, str) or not value or not is_utf8(value):
        return None, "is empty or no text"
    return value, ""


def _forms_of(secret: str) -> set[bytes]:
    """Return how a receiver or an error may spell the secret."""
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
