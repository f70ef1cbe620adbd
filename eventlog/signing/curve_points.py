"""Which 32 bytes are an Ed25519 public key that nobody but its holder can sign under.

A library that verifies signatures does not have to look: under a point of small order anybody can make a signature, and
a point with a part of small order lets two honest verifiers disagree. So a key is taken only if it is

    canonical                its y is below 2**255 - 19, and an x of 0 has no sign        (RFC 8032, 5.1.3)
    a point                  x**2 = (y**2 - 1) / (d y**2 + 1) has a root
    of the prime-order group it is no neutral element, and L times it is the neutral element

which is what libsodium calls a valid point. Everything here is public: nothing has to take the same time.
"""

from __future__ import annotations

from typing import Final

__all__ = ["flaw_of"]

_P: Final = 2**255 - 19
_L: Final = 2**252 + 27742317777372353535851937790883648493
_D: Final = -121665 * pow(121666, -1, _P) % _P
_ROOT_OF_MINUS_1: Final = pow(2, (_P - 1) // 4, _P)
_SIGN: Final = 1 << 255

# X, Y, Z, T with x = X / Z, y = Y / Z, xy = T / Z.
_Point = tuple[int, int, int, int]
_NEUTRAL: Final[_Point] = (0, 1, 1, 0)


def flaw_of(public_key: bytes) -> str | None:
    """Return what is wrong with a public key, as the end of a sentence, or None if it can be trusted."""
    if len(public_key) != 32:
        return f"has {len(public_key)} bytes, not 32"
    encoded = int.from_bytes(public_key, "little")
    y, sign = encoded & (_SIGN - 1), encoded >> 255
    if y >= _P:
        return "is not spelled canonically"
    x = _x_of(y)
    if x is None:
        return "is no point of the curve"
    if x == 0 and sign:
        return "is not spelled canonically"
    point = (x, y, 1, x * y % _P)  # its sign does not matter for its order
    if _is_neutral(point) or not _is_neutral(_times(_L, point)):
        return "is a point of small order, or has a part of small order, so that others may sign under it"
    return None


def _x_of(y: int) -> int | None:
    """Return an x with which y is on the curve, or None."""
    square = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    x = pow(square, (_P + 3) // 8, _P)
    if x * x % _P != square:
        x = x * _ROOT_OF_MINUS_1 % _P
    return x if x * x % _P == square else None


def _times(factor: int, point: _Point) -> _Point:
    found = _NEUTRAL
    while factor:
        if factor & 1:
            found = _sum(found, point)
        point = _sum(point, point)
        factor >>= 1
    return found


def _sum(left: _Point, right: _Point) -> _Point:
    """Add two points: the formula for twisted Edwards curves that holds for all of them (RFC 8032, 5.1.4)."""
    x1, y1, z1, t1 = left
    x2, y2, z2, t2 = right
    a, b = (y1 - x1) * (y2 - x2) % _P, (y1 + x1) * (y2 + x2) % _P
    c, d = 2 * t1 * t2 * _D % _P, 2 * z1 * z2 % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _is_neutral(point: _Point) -> bool:
    x, y, z, _ = point
    return x % _P == 0 and (y - z) % _P == 0
