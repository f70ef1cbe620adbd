"""Whose word it is that a key is an approver's: that of the reader, who has pinned it, or that of the log alone.

Whoever can write the log can enrol a key for anybody, with a proof of possession that holds. So where the reader knows
the keys of a person, another key that the log enrols for him is found (`approver_unpinned`), and so is one that the
reader knows as somebody else's. A person who has had several keys is pinned with each of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, Literal

from eventlog.audit.verify.trust import PinnedApprover
from eventlog.events import ApproverEnrolled
from eventlog.signing.statements import key_id_of

__all__ = ["PinnedApprovers", "Standing"]

Standing = Literal["pinned", "self_declared"]


class PinnedApprovers:
    """The keys that the reader has pinned, and how many signed decisions were under them, or under others."""

    def __init__(self, pinned: Sequence[PinnedApprover]) -> None:
        self._pinned: Final = {(each.approver, key_id_of(each.public)) for each in pinned}
        self._people: Final = {approver for approver, _ in self._pinned}
        self._standings: Final[Counter[Standing]] = Counter()

    @property
    def kind(self) -> Literal["pinned", "self_declared", "none"]:
        """Under which keys the signed decisions were: `pinned` only if all of them were."""
        return "self_declared" if self._standings["self_declared"] else "pinned" if self._standings else "none"

    def flaw_of(self, enrolled: ApproverEnrolled) -> str | None:
        """Return what contradicts the reader's word in an enrolment, if something does."""
        if (enrolled.approver, enrolled.key_id) in self._pinned:
            return None
        owners = sorted(approver for approver, key_id in self._pinned if key_id == enrolled.key_id)
        if owners:
            return f"it enrols a key for {enrolled.approver!r} that you have pinned as that of {', '.join(owners)}"
        if enrolled.approver in self._people:
            why = "another key than you have pinned for him: pin it too if it is his, or it is an impostor's"
            return f"it enrols for {enrolled.approver!r} the key {enrolled.key_id}, {why}"
        return None

    def judge(self, approver: str, key_id: str | None) -> Standing | None:
        """Return whose word it is that a key is the approver's, None for no key, and count it."""
        if key_id is None:
            return None
        standing: Standing = "pinned" if (approver, key_id) in self._pinned else "self_declared"
        self._standings[standing] += 1
        return standing
