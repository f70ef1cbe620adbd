"""Text from the log, from a file name or from a view, made safe to show.

Whoever wrote it chose its characters. Those that people cannot see, or that move others around (control, bidirectional,
zero-width, tag and other invisible characters, unusual spaces, unassigned and private code points), are shown as
escapes in the spelling of Python and JSON. Nothing else is changed: a backslash in the text stays one.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

__all__ = ["escaped_json", "is_hidden", "shortened", "visible"]

_HIDDEN_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"})
_SPACES: Final = frozenset({" ", "\u3000"})  # the ideographic space is as wide as it looks, and common
_BLANK_LETTERS: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}

_ASCII_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_NOT_ASCII: Final = re.compile(r"[^\x00-\x7e]")


def is_hidden(character: str) -> bool:
    """Say whether people cannot see this character, or not what it does to its neighbours."""
    if character in _SPACES:
        return False
    if character in _BLANK_LETTERS or "\ufe00" <= character <= "\ufe0f" or "\U000e0100" <= character <= "\U000e01ef":
        return True
    return unicodedata.category(character) in _HIDDEN_CATEGORIES


def visible(text: str) -> str:
    """Return `text` as one line in which every character can be seen."""
    if text.isascii():
        return text if text.isprintable() else _ASCII_CONTROL.sub(_escape, text)
    return "".join(_named(character) if is_hidden(character) else character for character in text)


def escaped_json(text: str) -> str:
    """Return JSON text that means the same, with hidden characters as JSON escapes.

    Outside its strings JSON is ASCII, so that a non-ASCII character may be escaped wherever it stands.
    """
    return text if text.isascii() and "\x7f" not in text else _NOT_ASCII.sub(_json_escape, text)


def shortened(text: str, limit: int = 200) -> str:
    """Return at most `limit` characters of `text`, saying how many are left out. Never for ids and hashes."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} more characters)"


def _escape(match: re.Match[str]) -> str:
    return _named(match.group())


def _named(character: str) -> str:
    number = ord(character)
    if number > 0xFFFF:
        return f"\\U{number:08x}"
    return _SHORT.get(character) or (f"\\u{number:04x}" if number > 0xFF else f"\\x{number:02x}")


def _json_escape(match: re.Match[str]) -> str:
    character = match.group()
    if not is_hidden(character):
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
