"""What a mirror is: a second form of some streams, outside the log, that is never ahead of it.

    prepare   in front of the log's append: durable evidence that one has begun, and proof that the mirror can be
              written
    settle    behind the log's own commit: the stream's mirror is brought up to the log, from the log
    release   when all streams are settled, or the append was refused (its abort): the evidence goes, nothing is left
    leave     when one is not, or nobody knows what became of the append: the evidence stays for the next start

There is one way in which something gets into a mirror: it is read from the log, behind its commit. So an append, a
repair after a crash and a rebuild write the same thing, and what nobody appended through the mirror gets there as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from eventlog.errors import MirrorBehind
from eventlog.log import RunLog
from projections.mirrors.evidence import Begun

__all__ = ["Mirror"]


class Mirror(Protocol):
    """Keeps a mirror of some streams. Several tasks call it at once; of several processes each has one of its own."""

    def wants(self, stream: str) -> bool:
        """Say whether the stream is mirrored."""

    async def start(self, log: RunLog) -> Sequence[MirrorBehind]:
        """Compare all of the mirror with the log and bring it up; return what cannot be, for the log cannot be read.

        Raises MirrorDamaged where the mirror contradicts the log, and leaves that as it is. Raises StoreUnavailable.
        """

    async def prepare(self, appends: Sequence[Begun]) -> Any:
        """Return evidence of an append, *durable* on return. Raises StoreUnavailable(`mirror_unavailable`), and
        MirrorDamaged if what is there cannot be gone on with. Nothing is left then.
        """

    async def release(self, evidence: Any) -> None:
        """Take the evidence of an append away that was refused, or whose streams are settled. Raises EventLogError."""

    async def settle(self, log: RunLog, stream: str) -> None:
        """Bring the stream's mirror up to the log, *durable* on return. Raises EventLogError."""

    async def reached(self, stream: str) -> int | None:
        """Return up to which version the stream is in the mirror; None if that cannot be said. Raises nothing."""

    def leave(self, evidence: Any) -> None:
        """Let the evidence lie for the next start."""
