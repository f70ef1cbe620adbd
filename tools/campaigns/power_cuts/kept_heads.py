"""What a power cut leaves of a signer's file of heads: every head of it is of a log that is there.

A signer that has signed more than the disk has kept would take the log for one that was put back; a file that a cut has
torn must be told from one that somebody has damaged.
"""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Final

from eventlog.audit.heads.head_file import kept_heads
from eventlog.errors import StoreUnavailable
from tools.campaigns.power_cuts.disk import Cut
from tools.campaigns.power_cuts.history import Wrong
from tools.campaigns.power_cuts.scene import HEADS

__all__ = ["HeadJudge"]


class HeadJudge:
    """Looks at the file of heads of crash images, and remembers the answers for equal contents of one trace."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._path: Final = folder / "heads"
        self._known: Final[dict[Hashable, int | Wrong]] = {}

    def check(self, cut: Cut, count: int) -> int:
        """Return the size of the last head. Raises Wrong unless they can be read, and are of up to `count` events."""
        size = self.signed_in(cut)
        if size > count:
            raise Wrong("I1", f"a head of {size} events was signed, {count} are left")
        return size

    def signed_in(self, cut: Cut) -> int:
        """Return the size of the last head that was signed, 0 if none was. Raises Wrong if they cannot be read."""
        file = cut.find(HEADS)
        if file is None:
            return 0
        key = cut.key(file)
        if key not in self._known:
            self._known[key] = self._size_of(cut.content(file))
        size = self._known[key]
        if isinstance(size, Wrong):
            raise size
        return size

    def _size_of(self, content: bytes) -> int | Wrong:
        self._path.write_bytes(content)
        try:
            heads, _ = kept_heads(self._path)
        except StoreUnavailable as error:
            return Wrong("I1", f"the signer cannot go on: {error.code}")
        return max((each.head.size for each in heads), default=0)
