"""The verdict `heads`: the log goes on from every head of it that was ever signed and can be shown.

Heads are known from the database, which whoever writes it can delete, and from outside, where he cannot: those alone
anchor the log. A head is compared by its root, not by its size; its signature is opened under the keys that the reader
has pinned, and those that they have handed over to. Without a pinned key the keys that the log itself declares are
taken, and the finding says so: whoever rewrites a log can declare his own.

    store_rolled_back   the head is of more events than the log has, and no restore declares the rest lost
    store_forked        the log has another root at its size, or is another log altogether
    bad_note            it is no head at all
    bad_signature       a key that is known has not signed this text
    head_unsigned       no key that counts at its size has signed it
    head_mismatch       the row that keeps it says something else than its text
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from eventlog.audit.verify.findings import Finding, Problems, Verdict
from eventlog.audit.verify.head_continuity import Continuity, ReadHead, incarnations, read_head
from eventlog.audit.verify.head_keys import HeadKeys, Signature
from eventlog.audit.verify.stored_heads import StoredHeads
from eventlog.audit.verify.trust import OutsideHead
from eventlog.errors import InvalidInput, Misuse
from eventlog.events import LOG_EVENTS, LOG_STREAM, LogEvent, LogRestored
from eventlog.heads import SignedHead
from eventlog.log import RecordedEvent
from eventlog.merkle import TreeHead
from eventlog.signing.notes import SignatureLine, VerifierKey

__all__ = ["HeadCheck"]

_LOG_EVENTS: Final = tuple(LOG_EVENTS.values())
_SIGNED: Final = frozenset({"pinned", "self_declared"})
_RESTORES_SHOWN: Final = 100
_STORED: Final = "in the database"


class HeadCheck:
    """Collects heads from outside and the events about keys and restores; `judge` compares all heads with the log."""

    def __init__(self, outside: Sequence[OutsideHead], pinned: Sequence[VerifierKey]) -> None:
        self._problems: Final = Problems()
        self._pinned: Final = tuple(pinned)
        self._events: Final[list[tuple[int, LogEvent]]] = []
        self._unknown: Final[list[str]] = []
        found = (self._read(each.note, each.source, each.at_us) for each in outside)
        self._outside: Final = [each for each in found if each is not None]
        self._finding = Finding(verdict="unknown")

    @property
    def sizes(self) -> list[int]:
        """The sizes of the heads from outside, at which roots are needed."""
        return [each.size for each in self._outside]

    def see(self, event: RecordedEvent) -> None:
        """Note an event of the log itself."""
        if event.stream == LOG_STREAM and isinstance(event.data, _LOG_EVENTS):
            self._events.append((event.position, event.data))

    async def newest_trusted(
        self,
        events: Iterable[RecordedEvent],
        log_ids: Sequence[tuple[int, bytes]],
        stored: AsyncIterator[Sequence[SignedHead]],
        size: int,
    ) -> TreeHead | None:
        """Return the largest head of at most `size` events that came from outside, signed, or that a pinned key signed.

        `events` are those of the log itself, `stored` the heads in the database of at most this size, the largest
        first. Raises Misuse(`missing_extra`).
        """
        of_log = ((each.position, each.data) for each in events if isinstance(each.data, _LOG_EVENTS))
        keys = HeadKeys(self._pinned, of_log, dict(log_ids))
        outside = [each.head for each in self._outside if each.size <= size and _signature(each, keys) in _SIGNED]
        if outside:
            return max(outside, key=lambda head: head.size)
        if not self._pinned:
            return None
        async for page in stored:
            for row in page:
                try:
                    kept = read_head(row.note, _STORED, row.signed_at_us, is_outside=False)
                except InvalidInput:
                    continue  # which `judge` says
                if kept.size <= size and _signature(kept, keys) == "pinned":
                    return kept.head
        return None

    async def judge(
        self,
        stored: StoredHeads,
        roots: Mapping[int, bytes],
        log_ids: Sequence[tuple[int, bytes]],
        size: int,
        *,
        after: int = 0,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Judge the heads of a log of `size` events, whose root at each size of a head beyond `after` is given.

        Smaller heads are left out. `progress` is told how many are judged, and how many there are.
        """
        outside = [each for each in self._outside if each.size >= after]
        left_out = len(self._outside) - len(outside) + stored.count_before(after)
        counts = {"in_database": len(stored), "outside": len(self._outside), "left_out": left_out}
        judged = _Judged(self._problems, self._unknown)
        try:
            keys = HeadKeys(self._pinned, self._events, dict(log_ids))
        except Misuse as error:  # rotations, and nothing here that can verify them
            judged.is_blind = True
            self._unknown.append(str(error))
            keys = HeadKeys(self._pinned, (), {})
        compare = Continuity(self._problems, incarnations(log_ids, dict(self._restores()), size), roots)
        for each in outside:
            judged.add(each, compare, keys)
        done = len(outside)
        async for page in stored.pages(after=max(after - 1, 0)):
            for row in page:
                kept = self._read(row.note, _STORED, row.signed_at_us, of_row=row)
                if kept is not None:
                    judged.add(kept, compare, keys)
            done += len(page)
            if progress is not None:
                progress(done, len(stored) + len(outside))
        self._conclude(judged, compare, keys, size, counts)

    def finding(self) -> Finding:
        """Return the verdict, once all is judged."""
        return self._finding

    def _conclude(
        self, judged: _Judged, compare: Continuity, keys: HeadKeys, size: int, counts: Mapping[str, int]
    ) -> None:
        self._unknown.extend(compare.unknown)
        for origin, largest in judged.behind_restores.items():
            if largest > judged.pinned_to:  # otherwise a pinned key has signed all that it stands for
                self._unknown.append(_not_handed_over(origin, keys))
        if self._pinned and not judged.pinned_to:
            self._unknown.append("no head that the log goes on from is signed by a pinned key")
        anchored = judged.anchor is not None
        verdict: Verdict = "unknown" if self._unknown else "ok" if anchored else "unanchored"
        details = {**self._details(judged, keys, size), **counts, "unknown": list(dict.fromkeys(self._unknown))}
        self._finding = self._problems.finding(verdict, details)

    def _read(
        self, note: bytes, source: str, at_us: int | None, *, of_row: SignedHead | None = None
    ) -> ReadHead | None:
        try:
            found = read_head(note, source, at_us, is_outside=of_row is None)
        except InvalidInput as error:
            where = f"of size {of_row.head.size} " if of_row is not None else ""
            self._problems.add("bad_note", f"the head {where}({source}): {error}")
            return None
        if of_row is not None and (of_row.head.size, of_row.log_id) != (found.size, found.log_id):
            self._problems.add("head_mismatch", f"{found.name} is kept as one of another size, or of another log")
        return found

    def _restores(self) -> Iterator[tuple[int, LogRestored]]:
        for position, event in self._events:
            if isinstance(event, LogRestored):
                yield position, event

    def _details(self, judged: _Judged, keys: HeadKeys, size: int) -> dict[str, Any]:
        anchor = judged.anchor
        restores = sorted(self._restores(), key=lambda each: each[0])[:_RESTORES_SHOWN]
        return {
            "keys": keys.kind,
            "in_database": 0,
            "outside": 0,
            "signed_to": judged.signed_to,
            "anchored_to": None if anchor is None else anchor.size,
            "anchored_at_us": None if anchor is None else anchor.at_us,
            "unprotected": size if anchor is None else size - anchor.size,
            "restores": [{"position": at, "lost_to": each.size, "reason": each.reason} for at, each in restores],
            "key_problems": [{"position": each.position, "why": each.why} for each in keys.declared.problems],
        }


class _Judged:
    """What the heads add up to that were judged so far."""

    def __init__(self, problems: Problems, unknown: list[str]) -> None:
        self._problems: Final = problems
        self._unknown: Final = unknown
        self._known: Final[dict[tuple[bytes, tuple[SignatureLine, ...]], Signature | None]] = {}
        self.is_blind = False
        self.signed_to: int | None = None
        self.pinned_to = 0
        self.anchor: ReadHead | None = None
        self.behind_restores: Final[dict[str, int]] = {}
        """The largest head of each origin that a restore ended or began, signed by a key that nobody has pinned."""

    def add(self, head: ReadHead, compare: Continuity, keys: HeadKeys) -> None:
        """Judge one more head."""
        is_continued = compare.is_continued(head)
        signature = self._signature(head, keys)
        if not self._is_signed(head, signature, compare) or not is_continued:
            return
        if signature in _SIGNED:
            self.signed_to = max(self.signed_to or 0, head.size)
        if signature == "pinned":
            self.pinned_to = max(self.pinned_to, head.size)
        if head.is_outside and (self.anchor is None or head.size > self.anchor.size):
            self.anchor = head

    def _signature(self, head: ReadHead, keys: HeadKeys) -> Signature | None:
        """Return who has signed a head. One that came from outside is opened once, wherever else it is kept."""
        spelled = head.text, head.lines
        if self.is_blind or spelled in self._known:
            return self._known.get(spelled)
        try:
            found = _signature(head, keys)
        except Misuse as error:  # signatures, and nothing here that can verify them
            self.is_blind = True
            self._unknown.append(str(error))
            return None
        if head.is_outside:
            self._known[spelled] = found
        return found

    def _is_signed(self, head: ReadHead, signature: Signature | None, compare: Continuity) -> bool:
        """Say whether a head may be shown for what it is, and note what is wrong with its signature."""
        match signature:
            case "pinned" | "self_declared":
                return True
            case "bad":
                self._problems.add("bad_signature", f"{head.name}: the signature of a known key is wrong")
            case "unpinned" if compare.is_of_restore(head):
                self.behind_restores[head.origin] = max(head.size, self.behind_restores.get(head.origin, 0))
            case "unpinned":
                message = f"{head.name} is signed by a key that only the log declares, and not by one that is pinned"
                self._problems.add("head_unsigned", message)
            case "unsigned" if compare.is_declared_lost(head):
                why = "is of what a restore declares lost, and signed by a key that the log does not know"
                self._unknown.append(f"{head.name} {why}: give --log-key")
            case "unsigned":
                self._problems.add("head_unsigned", f"{head.name} is signed by no key that counts at its size")
            case "no_key" if head.is_outside:
                self._unknown.append(f"{head.name} is signed by keys that nobody here knows: give --log-key")
            case "no_key":
                return True  # its root is compared; who signed it is not known, and is not said to be
        return False


def _signature(head: ReadHead, keys: HeadKeys) -> Signature:
    return keys.signature(head.origin, head.size, head.text, head.lines)


def _not_handed_over(origin: str, keys: HeadKeys) -> str:
    known = " or ".join(each.key.to_text() for each in keys.declared.keys if each.key.name == origin and each.position)
    return (
        f"behind or before a declared restore, heads of {origin} are signed by a key that no pinned one has handed over"
        f" to: if you know it by another way, give --log-key {known or 'VKEY'}"
    )
