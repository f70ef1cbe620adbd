"""What inputs are drawn from: values, texts and bytes that are mostly well-formed, and wrong in one place.

Everything is drawn from a `random.Random`, so that one source of chance is one input. Guided fuzzing puts bytes in its
place (`BytesChance`): what the fuzzer learns of them it learns of the structures that are drawn from them.
"""

from __future__ import annotations

import json
import random
import unicodedata
from typing import Any, Final

__all__ = [
    "BytesChance",
    "bytes_like",
    "characters",
    "json_text",
    "mutated",
    "mutated_text",
    "plain",
    "text",
    "unlike",
    "wild",
]

_ODD_TEXTS: Final = (
    "", " ", "\0", "a\0b", "\ud800", "a\udfff", "é", "e\u0301", "ﬁ", "\u202eabc", "\u200b", "\ufeff", "K", "\u2028",
    "İ", "ß", "'; drop table events; --", "../x", "/", "\\", "null", "1", "true", "\u0600", "\U000e0041", "😀", "\x7f",
    "_type", "__proto__", "n" * 130, "é" * 260, "\ud83d\ude00", "\ue000", "\uffff", "\r\n", "\t",
)  # fmt: skip
_ODD_NUMBERS: Final = (
    0, -0.0, 0.0, 1, 1.0, -1, 2**53, 2**53 - 1, -(2**53), 2**53 + 1, 2**63, 2**64, -(2**63), 10**21, 1e21, 1e20, 5e-324,
    1.7976931348623157e308, 5.573092662399899e16, 9007199254740993.0, 0.1, 1e-7, 1e-6, 123456789012345680000.0, 1e16,
    4.35, 1e22, 333333333.3333333, 10**400, 1e23,
)  # fmt: skip
_WILD: Final = (
    float("nan"),
    float("inf"),
    -float("inf"),
    10**5000,
    (),
    (1,),
    b"x",
    {1: 2},
    {"a": {None: 1}},
    {1},
    object,
)
_ALPHABET: Final = "abcxyzABC019 _-./:+=@#{}[]\",\\'\n"


class BytesChance(random.Random):
    """A source of chance that is a row of bytes; zeros, when they are used up."""

    def __init__(self, data: bytes) -> None:
        super().__init__(0)
        self._data: Final = data
        self._at = 0

    def getrandbits(self, count: int, /) -> int:
        size = (count + 7) // 8
        taken = self._data[self._at : self._at + size]
        self._at += size
        return int.from_bytes(taken.ljust(size, b"\0"), "big") & ((1 << count) - 1)

    def random(self) -> float:
        return self.getrandbits(24) / (1 << 24)


def characters(chance: random.Random, most: int = 12) -> str:
    """Return a short text of any characters, lone surrogates now and then among them."""
    return "".join(chr(_code(chance)) for _ in range(chance.randrange(most)))


def _code(chance: random.Random) -> int:
    match chance.randrange(8):
        case 0:
            return chance.randrange(0x20)
        case 1:
            return chance.randrange(0x80, 0x600)
        case 2:
            return chance.randrange(0x2000, 0x2070)
        case 3:
            return chance.randrange(0x110000)
        case _:
            return ord(chance.choice(_ALPHABET))


def text(chance: random.Random) -> str:
    """Return a text: usual, odd, or of any characters."""
    kind = chance.randrange(6)
    if kind == 0:
        return chance.choice(_ODD_TEXTS)
    if kind == 1:
        return characters(chance)
    return "".join(chance.choice(_ALPHABET) for _ in range(chance.randrange(10)))


def _leaf(chance: random.Random) -> Any:
    match chance.randrange(10):
        case 0:
            return None
        case 1:
            return chance.random() < 0.5
        case 2 | 3:
            return chance.choice(_ODD_NUMBERS)
        case 4:
            return chance.randrange(-(1 << 60), 1 << 60)
        case 5:
            return chance.uniform(-1e6, 1e6)
        case _:
            return text(chance)


def plain(chance: random.Random, depth: int = 4) -> Any:
    """Return what is plain data, or would be but for one text or number in it."""
    kind = chance.randrange(8) if depth else 0
    if kind == 6:
        return [plain(chance, depth - 1) for _ in range(chance.randrange(4))]
    if kind == 7:
        return {text(chance): plain(chance, depth - 1) for _ in range(chance.randrange(4))}
    return _leaf(chance)


def wild(chance: random.Random) -> Any:
    """Return a value that may be no plain data at all, or nested for ever."""
    kind = chance.randrange(20)
    if kind == 0:
        return chance.choice(_WILD)
    if kind == 1:
        return [plain(chance, 1), {text(chance): chance.choice(_WILD)}]
    if kind == 2 and chance.random() < 0.05:
        return _deep(chance)
    return plain(chance)


def _deep(chance: random.Random) -> Any:
    value: Any = text(chance)
    for _ in range(chance.choice((90, 99, 100, 101, 500, 3000))):
        value = [value] if chance.random() < 0.5 else {"a": value}
    return value


def unlike(chance: random.Random, value: Any) -> Any:
    """Return a value that looks like `value`, and mostly is another one."""
    match value:
        case dict() if value and chance.random() < 0.8:
            key = chance.choice(list(value))
            if chance.random() < 0.3:
                rest = {name: each for name, each in value.items() if name != key}
                other = unlike(chance, key)
                return {other if isinstance(other, str | int | float) else key: value[key], **rest}
            return {**value, key: unlike(chance, value[key])}
        case list() if value and chance.random() < 0.8:
            at = chance.randrange(len(value))
            return [*value[:at], unlike(chance, value[at]), *value[at + 1 :]]
        case bool():
            return chance.choice((not value, int(value), float(value), str(value).lower()))
        case int() | float():
            return _other_number(chance, value)
        case str():
            return _other_text(chance, value)
        case None:
            return chance.choice((False, 0, "", "null", [], {}))
        case _:
            return chance.choice(([], {}, [value], {"": value}, None, ""))


def _other_number(chance: random.Random, value: float) -> Any:
    if not -(10**300) < value < 10**300:  # not every float is an int, and not every int has a text
        return chance.choice(([value], None, -value))
    choices: tuple[Any, ...] = (int(value), float(value), str(value), -value, bool(value), value + 1, [value])
    return chance.choice((*choices, value * 10))


def _other_text(chance: random.Random, value: str) -> Any:
    forms = [unicodedata.normalize(form, value) for form in ("NFC", "NFD", "NFKC")]
    try:
        number: Any = json.loads(value)
    except (ValueError, RecursionError):
        number = [value]
    choices = [*forms, value + "\0", value.strip(), value.upper(), value[:-1], value + " ", number, f'"{value}"']
    return chance.choice(choices)


def bytes_like(chance: random.Random, sizes: tuple[int, ...] = (0, 1, 4, 16, 31, 32, 33, 64, 65)) -> bytes:
    """Return bytes of a size that formats have, or is next to one."""
    return chance.randbytes(chance.choice(sizes))


def mutated(chance: random.Random, data: bytes, most: int = 3) -> bytes:
    """Return the bytes with up to `most` changes: of a bit, a piece that is lost, doubled, moved or new."""
    for _ in range(chance.randrange(most + 1)):
        at = chance.randrange(len(data) + 1)
        end = min(len(data), at + chance.choice((1, 1, 2, 4, 8, 33)))
        match chance.randrange(6):
            case 0 if at < len(data):
                data = data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
            case 1:
                data = data[:at] + data[end:]
            case 2:
                data = data[:end] + data[at:]
            case 3:
                data = data[:at] + bytes_like(chance, (1, 2, 4)) + data[at:]
            case 4:
                data = data[:at] + chance.choice((b"\0", b"\n", b"\r\n", b"=", b" ", b"\xff", b"\xc3\xa9", b'"', b"\\"))
            case _:
                data = data[:at] + data[end:] + data[at:end]
    return data


def mutated_text(chance: random.Random, value: str) -> str:
    """Return the text with up to two changes of characters."""
    for _ in range(chance.randrange(3)):
        at = chance.randrange(len(value) + 1)
        piece = chance.choice((characters(chance, 3), chance.choice(_ODD_TEXTS), chance.choice(_ALPHABET), ""))
        value = value[:at] + piece + value[at + chance.randrange(3) :]
    return value


def json_text(chance: random.Random, value: Any) -> bytes:
    """Return JSON text of a value in one of its spellings, which may be one that has to be refused."""
    try:
        spelled = json.dumps(value, ensure_ascii=chance.random() < 0.5, separators=chance.choice(((",", ":"), None)))
    except (TypeError, ValueError, RecursionError):
        spelled = '{"a":1,"a":2}'
    data = spelled.encode("utf-8", "surrogatepass")
    return mutated(chance, data, 2) if chance.random() < 0.4 else data
