"""How proofs are spelled in a pack.

    inclusion     C2SP tlog-proof: `c2sp.org/tlog-proof@v1`, `index <position - 1>`, the hashes from the leaf up, an
                  empty line, and the signed head
    consistency   the front of a tlog-witness `add-checkpoint` request: `old <size>`, and the hashes

Hashes are base64, a line each; every line ends with a newline.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence

__all__ = ["growth_text", "inclusion_text"]


def inclusion_text(position: int, proof: Sequence[bytes], note: bytes) -> bytes:
    """Return the proof that the event at `position` is in the tree of the head that `note` signs."""
    return b"c2sp.org/tlog-proof@v1\nindex %d\n" % (position - 1) + _lines(proof) + b"\n" + note


def growth_text(old_size: int, proof: Sequence[bytes]) -> bytes:
    """Return the proof that the tree has only grown since it had `old_size` leaves."""
    return b"old %d\n" % old_size + _lines(proof)


def _lines(proof: Sequence[bytes]) -> bytes:
    return b"".join(b64encode(each) + b"\n" for each in proof)
