"""Event ids: UUIDv7 (RFC 9562), 16 bytes that sort by the time they were made.

Time-ordered ids keep the unique index of a store append-mostly. This is the one file of the pure heart that looks at
the clock and at the entropy pool; everything else is handed ids as values.
"""

from __future__ import annotations

import os
import struct
import time
from typing import Final

__all__ = ["new_event_id"]

_HALVES: Final = struct.Struct(">QQ")


def new_event_id() -> bytes:
    """Return 16 fresh bytes: 48 bits of milliseconds, 12 bits of the millisecond's fraction, 62 random bits."""
    milliseconds, rest_ns = divmod(time.time_ns(), 1_000_000)
    fraction = (rest_ns << 12) // 1_000_000
    random_bits = int.from_bytes(os.urandom(8), "big") >> 2
    return _HALVES.pack((milliseconds << 16) | 0x7000 | fraction, (0b10 << 62) | random_bits)
