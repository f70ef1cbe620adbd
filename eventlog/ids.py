"""Event ids: UUIDv7 (RFC 9562), 16 bytes that sort by the time they were made.

Time-ordered ids keep the unique index of a store append-mostly. This is the one file of the pure heart that looks at
the clock and at the entropy pool; everything else is handed ids as values.
"""

from __future__ import annotations

import os
import time

__all__ = ["new_event_id"]


def new_event_id() -> bytes:
    """Return 16 fresh bytes: 48 bits of milliseconds, 12 bits of the millisecond's fraction, 62 random bits."""
    now_ns = time.time_ns()
    milliseconds, rest_ns = divmod(now_ns, 1_000_000)
    fraction = (rest_ns << 12) // 1_000_000
    random_bits = int.from_bytes(os.urandom(8), "big") >> 2
    number = (milliseconds << 80) | (0x7 << 76) | (fraction << 64) | (0b10 << 62) | random_bits
    return number.to_bytes(16, "big")
