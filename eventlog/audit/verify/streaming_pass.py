"""The one pass over a log, or over a run: it hands each page to every check, and asks them for their verdicts."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from typing import Final, TypeVar

from eventlog.audit.verify.approvals import ApprovalCheck, RootAt
from eventlog.audit.verify.artifacts import ArtifactCheck
from eventlog.audit.verify.erasures import ErasureCheck
from eventlog.audit.verify.findings import Finding, Problems, damage, raise_if_not_damage
from eventlog.audit.verify.heads import HeadCheck
from eventlog.audit.verify.pages import Progress, pages_of_stream
from eventlog.audit.verify.stored_heads import StoredHeads
from eventlog.audit.verify.stored_tree import frontier_at, goes_on, is_in_tree
from eventlog.audit.verify.tree import TreeCheck, TreeReader
from eventlog.audit.verify.trust import Trust
from eventlog.errors import EventLogError, InvalidInput, LogCorrupt
from eventlog.events import LOG_STREAM
from eventlog.log import Artifacts, CheckedPage, EventReader, Problem, RecordedEvent
from eventlog.merkle import TreeHead

__all__ = ["Pass"]

ORDER_REASONS: Final = frozenset({"position_gap", "version_gap", "time_backwards", "stream_empty"})

T = TypeVar("T")


class Pass:
    """The checks of one pass. `begin`, then `look` at each page behind `after`, up to `head`, then `end`.

    Of one run, whose pages are those of its stream, the tree is not computed: its last event has to be in what is
    stored of it, and in the heads that the reader has brought.
    """

    def __init__(self, log: EventReader, artifacts: Artifacts | None, trust: Trust, *, is_of_run: bool) -> None:
        self._log: Final = log
        self._proven: Final = log if isinstance(log, TreeReader) else None
        self._trust: Final = trust
        self._is_of_run: Final = is_of_run
        self._integrity: Final = Problems()
        self._order: Final = Problems()
        self._tree_problems: Final = Problems()
        self._tree: TreeCheck | None = None
        self._state: tuple[int, bytes] | None = None
        self._heads: HeadCheck | None = None
        self._stored: StoredHeads | None = None
        self._log_ids: list[tuple[int, bytes]] = []
        self._roots: Mapping[int, bytes] = {}
        self._last: list[tuple[int, bytes]] = []
        self._approvals = ApprovalCheck(log, (), None, trust)
        self._erasures = ErasureCheck(sees_all=not is_of_run)
        self.artifacts: Final = ArtifactCheck(artifacts)
        self.after = 0
        self.head = 0

    @property
    def has_problems(self) -> bool:
        """Whether events are wrong, or in a wrong place."""
        return bool(self._integrity.count + self._order.count)

    async def begin(self) -> None:
        """Find out where the pass begins and ends. Raises InvalidInput(`no_trusted_head`)."""
        if self._proven is None:
            self.head = await self._last_position()
            return
        self._log_ids = await self._or_damage(self._proven.log_ids()) or []
        self._stored = StoredHeads(self._proven, newest_only=self._is_of_run)
        await self._or_damage(self._stored.find())
        await self._find_end(self._proven)
        self._heads = HeadCheck(self._trust.heads, self._trust.log_keys)
        if self._is_of_run:
            await self._begin_run(self._proven)
        elif self._trust.since_head:
            await self._begin_behind_head(self._proven, self._heads)
        else:
            self._tree = tree = TreeCheck(self._proven, self._stored.sizes_with(self._heads.sizes))
            self._approvals = self._approvals_by(lambda seen, _: tree.root_of(seen.size))

    async def look(self, page: CheckedPage) -> None:
        """Hand a page to every check."""
        self._note(page.problems)
        if self._tree is not None:
            await self._tree.grow(page)
        elif page.leaves:
            self._last = [(page.position, page.leaves[-1])]
        await self.artifacts.check(page.artifacts)
        self._erasures.look(page)
        for event in page.judged:
            await self._see(event)

    async def end(self, files: Iterable[Problem], progress: Progress | None = None) -> None:
        """Take note of what is wrong with the files, and finish what needs the whole log."""
        self._note(files)
        if self._proven is None:
            return
        if self._is_of_run:
            await self._find_in_tree(self._proven)
        elif self._tree is not None:
            self._roots = self._tree.roots
            await self._tree.finish(self._state)
        if self._heads is not None and self._stored is not None:
            judging = self._heads.judge(
                self._stored, self._roots, self._log_ids, self.head, after=self.after, progress=progress
            )
            await self._or_damage(judging)

    def findings(self) -> dict[str, Finding]:
        """Return the verdicts on what is in the log, by their names."""
        return {
            "integrity": self._integrity.finding(),
            "order": self._order.finding(),
            "tree": self._tree_finding(),
            "heads": self._heads_finding(),
            "approvals": self._approvals.finding(),
            "erasures": self._erasures.finding(),
        }

    # ── beginning ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _find_end(self, log: TreeReader) -> None:
        """Find the size to check: that of the stored tree, which has to be the log's own as long as nobody appends."""
        first = await self._last_position()
        try:
            self._state = await log.tree_state()
        except EventLogError as error:
            raise_if_not_damage(error)
            self._tree_problems.extend([damage(error)])
        last = await self._last_position()
        size = self._state[0] if self._state is not None else last
        if type(size) is not int or not first <= size <= last:
            message = f"the stored tree is one of {size} events, and the log ends at position {last}"
            self._tree_problems.add("tree_mismatch", message)
            self._state, size = None, last
        self.head = size

    async def _begin_run(self, log: TreeReader) -> None:
        async def root_at(seen: TreeHead, asked: RecordedEvent) -> bytes | None:
            return seen.root if await is_in_tree(log, asked.position, asked.leaf, seen) else None

        self._approvals = self._approvals_by(root_at)
        async for page in pages_of_stream(log, LOG_STREAM):
            self._note(page.problems)
            for event in page.judged:
                await self._see(event)
                self._erasures.see(event)

    async def _begin_behind_head(self, log: TreeReader, heads: HeadCheck) -> None:
        events: list[RecordedEvent] = []
        async for page in pages_of_stream(log, LOG_STREAM):
            self._note(page.problems)
            events += page.judged
        assert self._stored is not None, "there is a tree"
        trusted = await heads.newest_trusted(events, self._log_ids, self._stored.pages_back(self.head), self.head)
        if trusted is None:
            why = "no head is signed by a key of --log-key, and none was brought from outside"
            raise InvalidInput("no_trusted_head", why)
        self.after = trusted.size
        self._erasures = ErasureCheck(after=self.after)
        self._approvals = self._approvals_by(self._root_behind_head)
        known = [event for event in events if event.position <= self.after]
        for event in known:
            await self._see(event)
        if known and not await is_in_tree(log, known[-1].position, known[-1].leaf, trusted):
            message = f"position {known[-1].position}, of stream {LOG_STREAM}, is not in the head that is trusted"
            self._tree_problems.add("tree_mismatch", message, position=known[-1].position)
        start = await self._or_damage(frontier_at(log, self.after))
        self._tree = None if start is None else TreeCheck(log, self._stored.sizes_with(heads.sizes), start)

    async def _root_behind_head(self, seen: TreeHead, _: RecordedEvent) -> bytes | None:
        assert self._proven is not None, "there is a tree"
        now = None if self._tree is None else self._tree.current
        if now is None:
            raise LogCorrupt("tree_mismatch", "the tree is not known")
        return seen.root if await goes_on(self._proven, seen, now) else None

    def _approvals_by(self, root_at: RootAt) -> ApprovalCheck:
        return ApprovalCheck(self._log, self._log_ids, root_at, self._trust)

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _see(self, event: RecordedEvent) -> None:
        if self._heads is not None:
            self._heads.see(event)
        await self._approvals.see(event)

    def _note(self, problems: Iterable[Problem]) -> None:
        for problem in problems:
            if problem.reason == "tree_mismatch":
                self._tree_problems.extend([problem])
            else:
                (self._order if problem.reason in ORDER_REASONS else self._integrity).extend([problem])

    # ── ending ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _find_in_tree(self, log: TreeReader) -> None:
        """Look for the last event of a run in the tree, as it is stored, and in the heads that it is compared with."""
        assert self._heads is not None, "there is a tree"
        assert self._stored is not None, "there is a tree"
        self._roots = roots = dict[int, bytes]()
        for size in self._stored.sizes_with([*self._heads.sizes, self.head]):
            if not 0 < size <= self.head:
                continue
            head = await self._or_damage(log.tree_head(size))
            if head is not None:
                roots[size] = head.root
                await self._require_last_in(log, head)

    async def _require_last_in(self, log: TreeReader, head: TreeHead) -> None:
        for position, leaf in self._last:
            if position <= head.size and not await is_in_tree(log, position, leaf, head):
                message = f"position {position}, the last one of the run, is not in the tree of size {head.size}"
                self._tree_problems.add("tree_mismatch", message, position=position)

    def _tree_finding(self) -> Finding:
        if self._proven is None:
            return Finding(verdict="not_checked")
        if self._tree is None:
            return self._tree_problems.finding()
        return self._tree.finding(self._tree_problems)

    def _heads_finding(self) -> Finding:
        if self._heads is None:
            return Finding(verdict="unknown" if self._trust.asks_for_heads else "not_checked")
        return self._heads.finding()

    async def _last_position(self) -> int:
        head = await self._or_damage(self._log.head())
        return 0 if head is None else head.position

    async def _or_damage(self, reading: Awaitable[T]) -> T | None:
        """Return what is read, or note that it cannot be."""
        try:
            return await reading
        except EventLogError as error:
            raise_if_not_damage(error)
            self._note([damage(error)])
            return None
