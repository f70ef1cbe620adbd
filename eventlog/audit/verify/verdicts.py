"""All verdicts on a log, and the one streaming pass that finds them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from eventlog.audit.verify.findings import Finding, Verdict
from eventlog.audit.verify.pages import Progress, pages_of_log, pages_of_stream
from eventlog.audit.verify.streaming_pass import Pass
from eventlog.audit.verify.trust import NO_TRUST, Trust
from eventlog.errors import Refused
from eventlog.events import run_stream
from eventlog.log import Artifacts, EventReader, Problem

__all__ = ["FilesCheck", "Verdicts", "ViewsCheck", "verify"]

_NOT_CHECKED: Final = Finding(verdict="not_checked")


class Verdicts(msgspec.Struct, frozen=True, kw_only=True):
    """What was found, and over how many events. `head` is the last position that was there when the check began.

    `after` is the last position that was not looked at, because a trusted head covers it.
    """

    integrity: Finding
    order: Finding
    tree: Finding = _NOT_CHECKED
    heads: Finding = _NOT_CHECKED
    approvals: Finding = _NOT_CHECKED
    erasures: Finding = _NOT_CHECKED
    artifacts: Finding
    snapshots: Finding
    views: Finding
    events: int
    head: int
    after: int = 0

    @property
    def findings(self) -> dict[str, Finding]:
        """The verdicts by their names."""
        values = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return {name: value for name, value in values if isinstance(value, Finding)}

    @property
    def is_damaged(self) -> bool:
        return not {"damaged", "differs"}.isdisjoint(self._all)

    @property
    def is_known(self) -> bool:
        """Whether everything that was asked for could be checked."""
        return "unknown" not in self._all

    @property
    def _all(self) -> tuple[Verdict, ...]:
        return tuple(finding.verdict for finding in self.findings.values())


ViewsCheck = Callable[[], Awaitable[Finding]]
FilesCheck = Callable[[], Awaitable[Sequence[Problem]]]


async def verify(
    log: EventReader,
    *,
    run: str | None = None,
    files: FilesCheck | None = None,
    artifacts: Artifacts | None = None,
    snapshots: ViewsCheck | None = None,
    views: ViewsCheck | None = None,
    progress: Progress | None = None,
    trust: Trust = NO_TRUST,
) -> Verdicts:
    """Check the log, or the one run that is named; `files`, `snapshots` and `views` check what is outside the events.

    Without the `artifacts` of the log, those that events name are unknown. `trust` is what the reader knows: without it
    no head anchors the log. Raises StoreUnavailable if the log cannot be read for another reason than damage,
    Refused(`unknown_run`), and InvalidInput(`no_trusted_head`) where what lies behind a trusted head is asked for, and
    there is none.
    """
    checks = Pass(log, artifacts, trust, is_of_run=run is not None)
    await checks.begin()
    pages = pages_of_log(log, checks.head, progress, after=checks.after)
    events = 0
    async for page in pages if run is None else pages_of_stream(log, run_stream(run)):
        events += page.events
        await checks.look(page)
    if run is not None and not checks.has_problems and events == 0:
        raise Refused("unknown_run", f"there is no run {run!r}", subject=run, run_id=run)
    await checks.end(() if files is None else await files(), progress)
    return Verdicts(
        **checks.findings(),
        artifacts=checks.artifacts.finding(),
        snapshots=await snapshots() if snapshots is not None else Finding(verdict="ok"),
        views=await views() if views is not None else Finding(verdict="unknown"),
        events=events,
        head=checks.head,
        after=checks.after,
    )
