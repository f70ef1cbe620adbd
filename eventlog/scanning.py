r"""Finds secrets in what is about to be appended: a log cannot be edited later, so they must never get in.

The patterns of `DEFAULT_PATTERNS` are of high confidence only: tokens that their issuers have given a distinctive
beginning so that they can be found, and private keys. A hash, a UUID, base64 or prose is no secret for them. What they
cannot see: a password without a form of its own, and a secret that was encoded (base64, a compression) or taken apart.

    Scanner()                                                       the default
    Scanner(DEFAULT_PATTERNS | {"jwt": None})                       without one of them
    Scanner(DEFAULT_PATTERNS | {"house": Pattern((b"hse_",), rb"hse_[0-9a-f]{40,}")})
    Scanner(DEFAULT_PATTERNS | {"vault": function})                 any function of the body

A body is JSON, in which a text may be spelled with escapes (`\u002d`, `\/`, `\n`), JSON inside JSON more than once.
These are undone before a look where they could hide something.

All work is linear in the size of the body, whoever wrote it. That nothing is there is seen in a few passes of compiled
code: every token of the table holds `RUN` characters of a token in a row, and only such rows are looked at.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

__all__ = [
    "DEFAULT_PATTERNS",
    "DEFAULT_SCANNER",
    "MASK",
    "Detector",
    "Found",
    "Pattern",
    "Place",
    "Scanner",
    "masked",
    "place_of",
]

MASK: Final = "***"
"""What stands where a secret was taken out."""

RUN: Final = 20
"""How many characters of `_TOKEN` every token of the table has in a row."""

_MAX_MASKED: Final = 100
_MARKS: Final = frozenset(b"-_.")
_LONG_ROW: Final = 128


class Found(msgspec.Struct, frozen=True):
    """That a secret stands in bytes `start` to `end`, and by which name of the table; never the secret itself."""

    pattern: str
    start: int
    end: int


Detector = Callable[[bytes], Found | bool | None]
"""Looks at a body as it would be stored: a Found, or True, for "there is a secret". What it raises refuses the body."""


class Pattern(msgspec.Struct, frozen=True):
    """A form of secrets. `regex` is searched only where one of the `literals` stands; it is on bytes.

    Let it begin with something fixed, and repeat without a bound only at its end: then its work is linear. `is_token`:
    a literal stands at most 12 bytes before, or in, `RUN` characters A-Z a-z 0-9 _ - in a row; it is found faster. So
    is what has a rare `byte` in it, as a backslash where there are several lines.
    """

    literals: tuple[bytes, ...]
    regex: bytes
    is_token: bool = False
    byte: bytes = b""


class Scanner:
    """Looks for secrets by the patterns of a table; one that stands for None is switched off. Has no state."""

    def __init__(self, patterns: Mapping[str, Pattern | Detector | None] | None = None) -> None:
        given = DEFAULT_PATTERNS if patterns is None else patterns
        forms = {name: each for name, each in given.items() if isinstance(each, Pattern)}
        self._tokens: Final = [(name, each) for name, each in forms.items() if each.is_token]
        self._others: Final = [(name, each) for name, each in forms.items() if not each.is_token]
        self._detectors: Final = [(name, each) for name, each in given.items() if callable(each)]
        literals = sorted({literal for _, each in self._tokens for literal in each.literals})
        self._marked: Final = [literal for literal in literals if not _MARKS.isdisjoint(literal)]
        self._unmarked: Final = [literal for literal in literals if _MARKS.isdisjoint(literal)]
        self._beginnings: Final = _one_of(self._marked)

    def find(self, body: bytes) -> Found | None:
        """Return where a secret stands in a JSON text, None if none is found. Raises what a detector raises."""
        if b"\\" in body and (b"\\u00" in body or b"\\/" in body):
            text, marks = _unescaped(body)
            found = self._look(text)
            found = found and Found(found.pattern, _before(marks, found.start), _before(marks, found.end))
        else:
            found = self._look(body)
        if found is None and self._detectors:
            return self._detected(body)
        return found

    def _look(self, text: bytes) -> Found | None:
        rows = text.translate(_ROWS)
        start = rows.find(_ROW)
        if start >= 0 and self._has_beginning(text, rows, start):
            for name, pattern in self._tokens:
                if (found := _matched(name, pattern, text)) is not None:
                    return found
        for name, pattern in self._others:
            if pattern.byte in text and (found := _matched(name, pattern, text)) is not None:
                return found
        return None

    def _has_beginning(self, text: bytes, rows: bytes, start: int) -> bool:
        """Say whether one of the rows from `start` on has the beginning of a token in it, or just before.

        Nearly all beginnings have a mark in them, as base64 has not: so only rows near a mark are looked at, and the
        few others are searched for in the whole text.
        """
        if any(map(text.__contains__, self._unmarked)):
            return True
        at = max(0, start - _LONGEST_BEFORE)
        marks = _Marks(text)
        while (mark := marks.next(at)) >= 0:
            start = rows.find(_ROW, rows.rfind(b" ", 0, mark + 1) + 1)
            if start < 0:
                return False
            if start > mark + _LONGEST_BEFORE:
                at = start - _LONGEST_BEFORE
                continue
            at = rows.find(b" ", start)
            at = len(rows) if at < 0 else at
            is_hash = not text[start:at].translate(None, _HASH) and text[start - 1 : start] != b"."
            if not is_hash and self._begins_in(text[max(0, start - _LONGEST_BEFORE) : at]):
                return True
        return False

    def _begins_in(self, row: bytes) -> bool:
        """Say whether one of the beginnings with a mark stands in a row: by one pattern, or faster in a long one."""
        if len(row) < _LONG_ROW:
            return _compiled(self._beginnings).search(row) is not None
        return any(map(row.__contains__, self._marked))

    def _detected(self, body: bytes) -> Found | None:
        for name, detect in self._detectors:
            answer = detect(body)
            if isinstance(answer, Found):
                return answer
            if answer is True:
                return Found(name, 0, len(body))
            if answer is not None and answer is not False:
                raise TypeError(f"the detector {name!r} returned a {type(answer).__name__}, not Found, bool or None")
        return None


class _Marks:
    """Finds the next of the marks that nearly every token has near its beginning."""

    def __init__(self, text: bytes) -> None:
        self._text: Final = text
        self._next: Final = dict.fromkeys((b"-", b"_", b"."), -2)

    def next(self, at: int) -> int:
        """Return where the first mark from `at` on stands, -1 if none does."""
        found = -1
        for mark, place in self._next.items():
            if place != -1 and place < at:
                place = self._next[mark] = self._text.find(mark, at)
            if place >= 0 and (found < 0 or place < found):
                found = place
        return found


def _matched(name: str, pattern: Pattern, text: bytes) -> Found | None:
    if not any(map(text.__contains__, pattern.literals)):
        return None
    match = _compiled(pattern.regex).search(text)
    return None if match is None else Found(name, *match.span())


def _one_of(literals: Iterable[bytes]) -> bytes:
    """Return a pattern that any of the literals fits, as a tree by their bytes: so it fails at the second byte."""
    tails: dict[int, list[bytes]] = {}
    for literal in literals:
        if not literal:
            return b""  # one that begins here ends here: what follows in others does not matter
        tails.setdefault(literal[0], []).append(literal[1:])
    branches = [re.escape(bytes((first,))) + _one_of(rest) for first, rest in sorted(tails.items())]
    return b"(?:" + b"|".join(branches) + b")" if branches else rb"(?!)"


_COMPILED: Final[dict[bytes, re.Pattern[bytes]]] = {}


def _compiled(regex: bytes) -> re.Pattern[bytes]:
    """Return the compiled pattern; most are never needed, so none is compiled before."""
    pattern = _COMPILED.get(regex)
    if pattern is None:
        pattern = _COMPILED[regex] = re.compile(regex)
    return pattern


# ── escapes ──────────────────────────────────────────────────────────────────────────────────────────────────────────

_ESCAPE: Final = rb"\\+(?:u00([2-7][0-9A-Fa-f])|(/))?"
"""Any number of backslashes, as of JSON in JSON, and what they spell. It takes all of them at once: linear."""


def _unescaped(body: bytes) -> tuple[bytes, tuple[list[int], list[int]]]:
    """Return the body with printable ASCII put in the place of its escapes, and from where in both the pieces begin."""
    pieces: list[bytes] = []
    there, here, size, last = [0], [0], 0, 0
    for escape in _compiled(_ESCAPE).finditer(body):
        code, slash = escape.groups()
        if code is None and slash is None:
            continue
        pieces += (body[last : escape.start()], slash or bytes((int(code, 16),)))
        size += escape.start() - last + 1
        last = escape.end()
        there += (size - 1, size)
        here += (escape.start(), last)
    pieces.append(body[last:])
    return b"".join(pieces), (there, here)


def _before(marks: tuple[list[int], list[int]], offset: int) -> int:
    there, here = marks
    piece = bisect_right(there, offset) - 1
    return here[piece] + offset - there[piece]


# ── where it stands ──────────────────────────────────────────────────────────────────────────────────────────────────


class Place(msgspec.Struct, frozen=True):
    """Where in a body a secret stands: the path to the value. `is_key`: in a key of the object that the path names."""

    path: str
    is_key: bool = False


def place_of(scanner: Scanner, body: bytes) -> Place:
    """Return where in the JSON `body` a secret stands; its root, if it is seen in no single text. Slow.

    No key that holds a secret is part of the path.
    """
    try:
        value: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return Place("$")
    return next(_places(scanner, value, "$"), Place("$"))


def _places(scanner: Scanner, value: Any, path: str) -> Iterator[Place]:
    match value:
        case str():
            if scanner.find(msgspec.json.encode(value)) is not None:
                yield Place(path)
        case dict():
            for key, item in value.items():
                if scanner.find(msgspec.json.encode(key)) is not None:
                    yield Place(path, is_key=True)
                else:
                    yield from _places(scanner, item, path + _step(key))
        case list():
            for index, item in enumerate(value):
                yield from _places(scanner, item, f"{path}[{index}]")


def _step(key: str) -> str:
    name = key if len(key) <= 40 else key[:40] + "…"
    return f".{name}" if name.isidentifier() else f"[{name!a}]"


def masked(scanner: Scanner, value: Any) -> Any:
    """Return plain data in which no text, and no key, holds a secret that the scanner sees: `MASK` stands there."""
    match value:
        case str():
            return _masked_text(scanner, value)
        case dict():
            return {_masked_text(scanner, key): masked(scanner, item) for key, item in value.items()}
        case list() | tuple():
            return [masked(scanner, item) for item in value]
        case _:
            return value


def _masked_text(scanner: Scanner, text: str) -> str:
    body = msgspec.json.encode(text)
    for _ in range(_MAX_MASKED):
        found = scanner.find(body)
        if found is None:
            return msgspec.json.decode(body, type=str)
        body = body[: found.start] + MASK.encode() + body[found.end :]
        if body[:1] != b'"' or body[-1:] != b'"':  # of a detector that does not say where
            break
    return MASK


# ── the table ────────────────────────────────────────────────────────────────────────────────────────────────────────

_TOKEN: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"
_ROWS: Final = bytes(ord("a") if code in _TOKEN else ord(" ") for code in range(256))
_ROW: Final = b"a" * RUN
_HASH: Final = b"0123456789abcdefABCDEF-"
"""What hashes and UUIDs are made of; no token is, unless it stands behind a dot."""
_LONGEST_BEFORE: Final = 12

_ESCAPED: Final = rb"(?<=\\[bfnrt])|(?<=\\u[0-9A-Fa-f]{4})|(?<=%[0-9A-Fa-f]{2})"
_BEGIN: Final = rb"(?:(?<![0-9A-Za-z])|" + _ESCAPED + rb")"
"""Not in the middle of a word. The letter of `\n` is part of no word, nor is a byte of a URL that is spelled %3D."""
_BEGIN_ROW: Final = rb"(?:(?<![0-9A-Za-z_-])|" + _ESCAPED + rb")"
_END: Final = rb"(?![0-9A-Za-z_-])"


def _token(*literals: bytes, form: bytes) -> Pattern:
    return Pattern(literals, _BEGIN + form, is_token=True)


DEFAULT_PATTERNS: Final[Mapping[str, Pattern | Detector | None]] = MappingProxyType(
    {
        # docs.github.com, "About authentication to GitHub"; the GitHub blog, "New authentication token formats"
        "github_token": _token(
            *(b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_", b"github_pat_"),
            form=rb"(?:gh[pousr]_[0-9A-Za-z]{36,}|github_pat_[0-9A-Za-z]{22}_[0-9A-Za-z]{59,})",
        ),
        # docs.gitlab.com, "GitLab token overview"
        "gitlab_token": _token(
            *(b"glpat-", b"gldt-", b"glrt-", b"glptt-", b"gloas-"),
            form=rb"gl(?:pat|dt|rt|ptt|oas)-[0-9A-Za-z_-]{20,}",
        ),
        # docs.aws.amazon.com, IAM "Unique identifiers": AKIA or ASIA, then 16 of base32. Not the key of its examples
        "aws_access_key_id": _token(
            *(b"AKIA", b"ASIA"), form=rb"A[KS]IA(?!IOSFODNN7EXAMPLE|[A-Z2-7]{9}EXAMPLE)[A-Z2-7]{16}" + _END
        ),
        # cloud.google.com, "Authenticate by using API keys"; "OAuth 2.0": client secrets and access tokens
        "google_api_key": _token(b"AIza", form=rb"AIza[0-9A-Za-z_-]{35}" + _END),
        "google_client_secret": _token(b"GOCSPX-", form=rb"GOCSPX-[0-9A-Za-z_-]{28,}"),
        "google_access_token": _token(b"ya29.", form=rb"ya29\.[0-9A-Za-z_-]{40,}"),
        # docs.slack.dev, "Tokens"
        "slack_token": _token(
            *(b"xoxb-", b"xoxp-", b"xoxa-", b"xoxe-", b"xoxe.", b"xoxr-", b"xoxs-", b"xoxc-", b"xoxd-", b"xapp-"),
            form=rb"(?:xox[bparscde]-|xoxe\.xox[bp]-|xapp-)[0-9A-Za-z][0-9A-Za-z-]{23,}",
        ),
        # docs.stripe.com, "API keys": secret and restricted keys of live mode
        "stripe_key": _token(b"sk_live_", b"rk_live_", form=rb"[sr]k_live_[0-9A-Za-z]{20,}"),
        # the documentation of Anthropic's API: keys of the API and of its administration
        "anthropic_key": _token(b"sk-ant-", form=rb"sk-ant-[0-9a-z]{3,16}-[0-9A-Za-z_-]{80,}"),
        # platform.openai.com, "API keys"; the middle of the older form is base64 of `OpenAI`
        "openai_key": _token(
            *(b"sk-proj-", b"sk-svcacct-", b"sk-admin-", b"T3BlbkFJ"),
            form=rb"sk-(?:(?:proj|svcacct|admin)-[0-9A-Za-z_-]{40,}|[0-9A-Za-z]{20}T3BlbkFJ[0-9A-Za-z]{20,})",
        ),
        # openrouter.ai, "API authentication"
        "openrouter_key": _token(b"sk-or-v1-", form=rb"sk-or-v1-[0-9a-f]{64}"),
        # huggingface.co, "User access tokens"
        "huggingface_token": _token(b"hf_", form=rb"hf_[A-Za-z]{34,}" + _END),
        # the form is in the GitHub blog, "npm's new token format"
        "npm_token": _token(b"npm_", form=rb"npm_[0-9A-Za-z]{36,}"),
        # tokens of the Python package index: a macaroon of that place
        "pypi_token": _token(b"pypi-AgE", form=rb"pypi-AgE[0-9A-Za-z_-]{50,}"),
        # docs.docker.com, "Personal access tokens"
        "docker_token": _token(b"dckr_pat_", form=rb"dckr_pat_[0-9A-Za-z_-]{27,}"),
        # docs.sendgrid.com, "API keys": two parts of 16 and 32 bytes in base64
        "sendgrid_key": _token(b"SG.", form=rb"SG\.[0-9A-Za-z_-]{22}\.[0-9A-Za-z_-]{43}" + _END),
        # docs.digitalocean.com, "Personal access tokens", "OAuth"
        "digitalocean_token": _token(b"dop_v1_", b"doo_v1_", b"dor_v1_", form=rb"do[opr]_v1_[0-9a-f]{64}"),
        # shopify.dev, "About app secrets and access tokens"
        "shopify_token": _token(
            *(b"shpat_", b"shpca_", b"shppa_", b"shpss_"), form=rb"shp(?:at|ca|pa|ss)_[0-9A-Fa-f]{32}"
        ),
        # developer.hashicorp.com, Vault "Tokens"
        "vault_token": _token(b"hvs.", b"hvb.", form=rb"hv[sb]\.[0-9A-Za-z_-]{24,}"),
        # docs.databricks.com, "Personal access tokens"
        "databricks_token": _token(b"dapi", form=rb"dapi[0-9a-f]{32}" + _END),
        # grafana.com, "Service accounts"
        "grafana_token": _token(b"glsa_", form=rb"glsa_[0-9A-Za-z]{32}_[0-9A-Fa-f]{8}"),
        # age-encryption.org/v1: Bech32 of 32 bytes
        "age_secret_key": _token(b"AGE-SECRET-KEY-1", form=rb"AGE-SECRET-KEY-1[02-9AC-HJ-NP-Z]{58}"),
        # RFC 7519: three parts in base64url, of which the first two are objects; a bearer's credential
        "jwt": Pattern(
            (b".eyJ",),
            _BEGIN_ROW + rb"eyJ[0-9A-Za-z_-]{17,}\.eyJ[0-9A-Za-z_-]{5,}\.[0-9A-Za-z_-]{20,}",
            byte=b".",
        ),
        # learn.microsoft.com, "Manage storage account access keys": 64 bytes in base64
        "azure_storage_key": Pattern((b"AccountKey=",), rb"AccountKey=[0-9A-Za-z+/]{86}==", byte=b"="),
        # RFC 7468 and RFC 1421: the line that begins a private key, and something of a key behind it
        "private_key": Pattern(
            (b"PRIVATE KEY",),
            rb"-----BEGIN (?:[0-9A-Z]{1,16} ){0,3}PRIVATE KEY(?: BLOCK)?-----"
            rb"(?:\s|\\{1,8}[nr]){1,8}(?:[0-9A-Za-z+/=]{16}|[A-Z][A-Za-z-]{3,20}: )(?:[^-\"\\]|\\{1,8}[nr]|-(?!----))*",
            byte=b"\\",
        ),
    }
)

DEFAULT_SCANNER: Final = Scanner()
