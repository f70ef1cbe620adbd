"""Signatures, as far as they are bytes: keys, notes, heads, cosignatures, and which key counts for what. No IO.

Each module is imported by its own name: what does not sign anything does not load `cryptography`.
"""

from __future__ import annotations

__all__: list[str] = []
