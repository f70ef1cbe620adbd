"""Targets that take what people type: ids, times, and what is scanned for secrets."""

from __future__ import annotations

import random
import unicodedata
from datetime import datetime
from typing import Any, Final

import msgspec

from eventlog.errors import InvalidInput
from eventlog.plain import check_id
from eventlog.scanning import DEFAULT_PATTERNS, DEFAULT_SCANNER, Found, Scanner
from eventlog.stores.refused_secrets import refuse_secret, refuse_secret_in_name
from eventlog.text import escaped_json, visible
from eventlog.times import parse_time, time_text
from tools.campaigns.fuzz import drawing
from tools.campaigns.fuzz.target import Problem, Target

__all__ = ["TARGETS"]

_INVISIBLE: Final = ("Cc", "Cf", "Cs", "Zl", "Zp")


# ── ids ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _draw_id(chance: random.Random) -> tuple[Any, int]:
    given = chance.choice((drawing.text, drawing.characters, lambda _: drawing.wild(chance)))(chance)
    if isinstance(given, str) and chance.random() < 0.1:
        given = given * chance.choice((2, 50, 300))
    return given, chance.choice((512, 128, 4))


def _check_id(drawn: tuple[Any, int]) -> Problem:
    """An id that is taken is what was given, and holds nothing that people could not see."""
    given, max_bytes = drawn
    if check_id(given, "thing", max_bytes=max_bytes) is not given:
        return "another one is taken"
    hidden = [c for c in given if unicodedata.category(c) in _INVISIBLE]
    if hidden or given.strip() != given or not given or len(given.encode()) > max_bytes:
        return f"it is taken, with {hidden!r}, in {len(given.encode())} bytes"
    return None if visible(given).isprintable() or not given.isascii() else "it cannot be shown"


def _draw_shown(chance: random.Random) -> str:
    return "".join((drawing.characters(chance), drawing.text(chance), drawing.characters(chance)))


def _check_shown(given: str) -> Problem:
    """What is shown is one line without control characters; JSON that is shown means what it meant."""
    shown = visible(given)
    if any(unicodedata.category(c) in _INVISIBLE for c in shown) or "\n" in shown:
        return f"it is shown as {shown!r:.200}"
    spelled = msgspec.json.encode(given.encode("utf-8", "replace").decode()).decode()
    return None if msgspec.json.decode(escaped_json(spelled)) == msgspec.json.decode(spelled) else "it means another"


# ── times ────────────────────────────────────────────────────────────────────────────────────────────────────────────

_TIMES: Final = (
    "2026-11-30T02:15:00Z", "2026-11-30T03:15:47.000001+01:00", "@1796004947000001", "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59.999999-23:59", "20261130T021500Z", "2026-W48-1T00:00Z", "2026-11-30", "24:00", "@0",
)  # fmt: skip
_WIDEST_US: Final = 62_135_596_800_000_000
"""As many microseconds in front of 1970 as the calendar has; behind it there are more."""


def _draw_time(chance: random.Random) -> tuple[str, int]:
    spelled = drawing.mutated_text(chance, chance.choice(_TIMES)) if chance.random() < 0.9 else drawing.text(chance)
    return spelled, chance.choice((0, 1, -1, 2**63, -(2**63), 10**30, chance.randrange(-(2**57), 2**57)))


def _check_time(drawn: tuple[str, int]) -> Problem:
    """A time that was written is read as the same; one that is taken names the instant that the calendar says."""
    spelled, at_us = drawn
    if abs(at_us) < _WIDEST_US and parse_time(time_text(at_us)) != at_us:
        return f"{at_us} is written as {time_text(at_us)}"
    time_text(at_us)
    found = parse_time(spelled)
    if spelled.startswith("@"):
        return None if found == int(spelled[1:]) else f"it is {found}"
    expected = datetime.fromisoformat(spelled)
    return None if abs(expected.timestamp() * 1e6 - found) < 1e3 else f"it is {found}"


# ── secrets ──────────────────────────────────────────────────────────────────────────────────────────────────────────

_LETTERS: Final = "aB3dE5gH7jK9mN1pQ2sT4vW6yZ8bC0dF" * 2
_SECRETS: Final = (
    "".join(("gh", "p_", _LETTERS[:36])),
    "".join(("gl", "pat-", _LETTERS[:20])),
    "AKIA" + "Q3EG6UZ2PLMXNT7R",
)


class _Failing(Exception):
    """What a detector raises that cannot look."""


def _fails(body: bytes) -> Found | bool | None:
    if body.count(b"a") % 2:
        raise _Failing
    return None


_BLIND: Final = Scanner({**DEFAULT_PATTERNS, "own": _fails})


def _draw_scanned(chance: random.Random) -> tuple[bytes, str | None]:
    secret = chance.choice(_SECRETS) if chance.random() < 0.5 else None
    value = drawing.plain(chance)
    data = msgspec.json.encode(value) if _has_utf8(value) else b"{}"
    if secret is not None:
        data = b'{"k":[%s,%s]}' % (data, _spelled(chance, secret))
    elif chance.random() < 0.3:
        data = drawing.mutated(chance, data) + b"\\" * chance.choice((0, 1, 50)) + b"-_." * chance.choice((0, 1, 50))
    return data, secret


def _has_utf8(value: Any) -> bool:
    try:
        msgspec.json.encode(value)
    except (UnicodeEncodeError, OverflowError):
        return False
    return True


def _spelled(chance: random.Random, secret: str) -> bytes:
    """Return a JSON text with the secret in it, some of its characters as escapes."""
    spelled = "".join(f"\\u{ord(c):04x}" if chance.random() < 0.1 else c for c in secret)
    before = msgspec.json.encode(drawing.text(chance).encode("utf-8", "replace").decode())[1:-1]
    return b'"%s %s"' % (before, spelled.encode())


def _check_scanned(drawn: tuple[bytes, str | None]) -> Problem:
    """A secret is never let through in any spelling; a detector that fails refuses what it has not looked at."""
    data, secret = drawn
    found = DEFAULT_SCANNER.find(data)
    if secret is not None and found is None:
        return "it is not found"
    if found is not None and not 0 <= found.start < found.end <= len(data):
        return f"it is found at {found.start} to {found.end} of {len(data)} bytes"
    for scanner in (DEFAULT_SCANNER, _BLIND):
        must_fail = scanner is _BLIND and found is None and data.count(b"a") % 2 == 1
        try:
            refuse_secret(scanner, data)
        except InvalidInput as error:
            may_fail = scanner is _BLIND and error.code == "secret_scan_failed"  # looking for the place of a secret
            if not may_fail and (must_fail or error.code != "secret_found"):
                return f"it is refused with {error.code}"
            continue
        if found is not None or must_fail:
            return "it is let through"
    refuse_secret_in_name(DEFAULT_SCANNER, data.decode("utf-8", "replace")[:200], "stream")
    return None


TARGETS: Final = (
    Target("id", _draw_id, _check_id, 60),
    Target("shown", _draw_shown, _check_shown, 30),
    Target("time", _draw_time, _check_time, 60),
    Target("secrets", _draw_scanned, _check_scanned, 60),
)
