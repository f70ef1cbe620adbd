"""Random bytes for salts and ids, in one place."""

from __future__ import annotations

import os

__all__ = ["random_bytes"]


def random_bytes(size: int) -> bytes:
    """Return `size` bytes that nobody can guess."""
    return os.urandom(size)
