"""Compares the views of a log with the log, without writing: what is late is not what differs."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from eventlog.audit.verify import SHOWN, Finding, Verdict
from eventlog.cli.kept_views import is_brought_up_when_asked_for
from eventlog.cli.output import counted
from eventlog.errors import EventLogError, InvalidInput, LogCorrupt, Misuse, StoreBusy
from eventlog.events import RUN_PREFIX, run_stream
from eventlog.log import Problem, RecordedEvent
from eventlog.stores import SqliteLog
from eventlog.stores.sqlite.view_registry import all_entries, find_entry
from eventlog.stores.sqlite.view_tables import without_table
from eventlog.views import ViewEntry, as_view_event
from projections import RUNS, Checked, Difference, Row, SqliteView, ViewFile, check_view

__all__ = ["ViewCheck", "check_one", "check_view_of_run", "check_views", "difference_text"]

CheckVerdict = Literal["ok", "differs", "behind", "stopped", "absent", "unknown"]
_WORST: Final[Sequence[Verdict]] = ("differs", "unknown", "behind", "ok", "not_checked", "absent")

Spell = Callable[..., str]
"""Returns the words of a command about views as it is typed."""


def _bare(*words: str) -> str:
    return shlex.join(["eventlog", "projections", *words])


class ViewCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What came of comparing one view: `behind` and `stopped` are right up to where they are; `unknown` says why.

    `reason` is a word for anything but ok and absent, `message` the sentence; `revision` is that of the log's view.
    """

    name: str
    verdict: CheckVerdict
    revision: int | None = None
    reason: str = ""
    message: str = ""
    checked: Checked | None = None


async def check_one(
    log: SqliteLog,
    view: SqliteView,
    *,
    place: ViewFile | None = None,
    limit: int = SHOWN,
    spell: Spell = _bare,
    on_progress: Callable[[int, int], None] | None = None,
) -> ViewCheck:
    """Compare every row of a view with the log up to the position that the view has reached.

    `place` is where the view is, if that is not the log's own database. Keeps up to `limit` differences. Raises
    StoreBusy, Misuse; whatever else keeps it from comparing is in the answer.
    """
    entry: ViewEntry | None = None
    try:
        database = log if place is None else place
        entry = await database.look(find_entry, view.name)
        is_gone = entry is not None and bool(await database.look(without_table, [entry]))
        refused = _incomparable(entry, view, spell, is_gone=is_gone)
        if refused is not None:
            return refused
        checked = await check_view(log, view, place=place, limit=limit, on_progress=on_progress)
        return _absent(view) if checked is None else _judged(checked, spell)
    except Exception as error:
        return _not_compared(view, entry, error)


async def check_views(
    log: SqliteLog,
    known: Mapping[str, SqliteView],
    *,
    unknown_here: str = "its projection is not known here",
    spell: Spell = _bare,
    on_progress: Callable[[int, int], None] | None = None,
) -> Finding:
    """Compare every view of the log that is known here. The others are named and judged by nobody."""
    try:
        entries = [entry for entry in await log.look(all_entries) if entry.state == "live"]
    except Exception as error:
        checks, others = [_not_compared(None, None, error)], []
    else:
        views = [known[entry.name] for entry in entries if _is_of(entry, known)]
        checks = [await check_one(log, view, spell=spell, on_progress=on_progress) for view in views]
        others = [_not_checked(entry, known, unknown_here, spell) for entry in entries if not _is_of(entry, known)]
    return _finding(checks, others)


async def check_view_of_run(log: SqliteLog, view: SqliteView, run_id: str, *, spell: Spell = _bare) -> Finding:
    """Compare the row of one run in the view of runs with the run's own events."""
    try:
        return await _compare_run(log, view, run_id, spell)
    except Exception as error:
        return _finding([_not_compared(view, None, error)], [])


def difference_text(name: str, difference: Difference) -> str:
    """Return the sentence about a row that differs."""
    row = f"run {difference.key!r}" if name == RUNS.name else f"row {difference.key!r} of the view {name!r}"
    if difference.stored is None:
        return f"{row} is in the log, but not in the view"
    if difference.expected is None:
        return f"{row} is in the view, but not in the log"
    return f"{row} differs from its log in {', '.join(difference.columns)}"


# ── one view ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _incomparable(entry: ViewEntry | None, view: SqliteView, spell: Spell, *, is_gone: bool) -> ViewCheck | None:
    """Return the verdict on a view that has no rows which the projection could have made, None if it has."""
    if entry is None:
        return _absent(view)
    if entry.revision != view.revision:
        return _unknown(entry, *_other_revision(entry, view, spell))
    if is_gone:
        message = f"the table of the view {view.name!r} is gone; `{spell('rebuild', view.name)}` builds it"
        return _differs(view.name, entry.revision, "view_unreadable", message)
    if entry.shape != view.shape:
        rebuild = f"`{spell('rebuild', view.name)}` builds it again"
        message = f"the view {view.name!r} has other columns than its projection; {rebuild}"
        return _differs(view.name, entry.revision, "view_unreadable", message)
    return None


def _other_revision(entry: ViewEntry, view: SqliteView, spell: Spell) -> tuple[str, str]:
    has = f"the view {view.name!r} has revision {entry.revision}"
    if entry.revision < view.revision:
        rebuild = f"`{spell('rebuild', view.name)}` builds it"
        return "view_outdated", f"{has}, this program folds {view.revision}; {rebuild}"
    return "view_overtaken", f"{has}, which a later program keeps; this one knows {view.revision}: upgrade it"


def _judged(checked: Checked, spell: Spell) -> ViewCheck:
    behind = checked.head - checked.position
    verdict: CheckVerdict = "ok"
    reason = message = ""
    if checked.differing:
        verdict, reason = "differs", "view_differs"
        message = f"{checked.differing} of {checked.rows} rows are not what the log says"
    elif behind < 0:
        verdict, reason = "differs", "view_ahead"
        message = f"the view has seen {-behind} events that the log does not hold any more"
    elif checked.problem is not None:
        verdict, reason, problem = "stopped", "view_stopped", checked.problem
        message = (
            f"the view stopped in front of position {problem.position}, and is right up to there: {problem.error}; "
            f"`{spell('resume', checked.name)}` goes on once its projection is corrected"
        )
    elif behind > 0:
        verdict, reason = "behind", "view_behind"
        late = f"the view is {counted(behind, 'event')} late, and right up to there"
        message = f"{late}; `{spell('resume', checked.name)}` brings it up"
    return ViewCheck(
        name=checked.name,
        revision=checked.revision,
        verdict=verdict,
        reason=reason,
        message=message,
        checked=checked,
    )


def _absent(view: SqliteView) -> ViewCheck:
    return ViewCheck(name=view.name, verdict="absent")


def _unknown(entry: ViewEntry, reason: str, message: str) -> ViewCheck:
    return ViewCheck(name=entry.name, revision=entry.revision, verdict="unknown", reason=reason, message=message)


def _differs(name: str, revision: int | None, reason: str, message: str) -> ViewCheck:
    return ViewCheck(name=name, revision=revision, verdict="differs", reason=reason, message=message)


def _not_compared(view: SqliteView | None, entry: ViewEntry | None, error: Exception) -> ViewCheck:
    """Return the verdict where comparing failed: because of the log itself, of the projection, or of the view.

    A table that is not there is the view's: if it is one of the log's, the check of the log says so.
    """
    if isinstance(error, StoreBusy | Misuse):
        raise error
    name = "views" if view is None else view.name
    revision = None if entry is None else entry.revision
    is_gone = isinstance(error, LogCorrupt) and error.reason == "schema_changed"
    if isinstance(error, EventLogError) and not is_gone:
        is_damage = isinstance(error, LogCorrupt | InvalidInput)
        message = f"the log itself is damaged: {error}" if is_damage else str(error)
        return ViewCheck(
            name=name,
            revision=revision,
            verdict="unknown",
            reason="log_corrupt" if is_damage else error.code,
            message=message,
        )
    return _differs(name, revision, "view_unreadable", f"the view cannot be read: {error}")


# ── all views ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _is_of(entry: ViewEntry, known: Mapping[str, SqliteView]) -> bool:
    return entry.name in known and known[entry.name].revision == entry.revision


def _not_checked(entry: ViewEntry, known: Mapping[str, SqliteView], unknown_here: str, spell: Spell) -> dict[str, Any]:
    why = _other_revision(entry, known[entry.name], spell)[1] if entry.name in known else unknown_here
    return {"name": entry.name, "revision": entry.revision, "why": why}


def _finding(found: Sequence[ViewCheck], others: Sequence[dict[str, Any]]) -> Finding:
    checks = [check for check in found if not _is_as_usual(check)]
    verdicts: set[Verdict] = {_as_verdict(check.verdict) for check in checks} | {"absent"}
    verdicts |= {"ok"} if len(checks) < len(found) else set()
    verdicts |= {"not_checked"} if others else set()
    problems = [problem for check in checks for problem in _problems(check)]
    return Finding(
        verdict=next(verdict for verdict in _WORST if verdict in verdicts),
        problems=tuple(problems)[:SHOWN],
        count=sum(_count(check) for check in checks),
        details={"checked": [_summary(check) for check in found], "not_checked": list(others)},
    )


def _is_as_usual(check: ViewCheck) -> bool:
    """Say whether a view is right up to where it is, and nobody expects it to be further."""
    return check.verdict == "behind" and is_brought_up_when_asked_for(check.name)


def _as_verdict(verdict: CheckVerdict) -> Verdict:
    return "behind" if verdict == "stopped" else verdict


def _count(check: ViewCheck) -> int:
    if check.reason == "view_differs" and check.checked is not None:
        return check.checked.differing
    return int(bool(check.reason))


def _problems(check: ViewCheck) -> Iterable[Problem]:
    if check.reason == "view_differs" and check.checked is not None:
        for each in check.checked.differences:
            yield Problem(
                reason=check.reason, message=difference_text(check.name, each), stream=_stream(check.name, each)
            )
    elif check.reason:
        yield Problem(reason=check.reason, message=check.message)


def _stream(name: str, difference: Difference) -> str | None:
    return RUN_PREFIX + difference.key if name == RUNS.name else None


def _summary(check: ViewCheck) -> dict[str, Any]:
    checked = check.checked
    numbers = {"position": checked.position, "rows": checked.rows, "differing": checked.differing} if checked else {}
    return {"name": check.name, "revision": check.revision, "verdict": check.verdict, **numbers}


# ── one run ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _compare_run(log: SqliteLog, view: SqliteView, run_id: str, spell: Spell) -> Finding:
    health = await log.health()
    behind = health.views_behind.get(f"{view.name}/{view.revision}")
    if behind is None:
        return Finding(verdict="absent")
    events = [event async for event in log.read(run_stream(run_id))]
    row = await log.look(view.row, run_id)
    expected = _fold(events)
    version = row["version"] if row is not None else 0
    is_late = behind > 0 and row == _fold([event for event in events if event.version <= version])
    differs = row != expected and not is_late
    columns = [name for name in RUNS.columns if (row or {}).get(name) != (expected or {}).get(name)]
    differing = [Difference(key=run_id, columns=columns, stored=row, expected=expected)] if differs else []
    checked = Checked(
        name=view.name,
        revision=view.revision,
        position=health.head if row == expected else health.head - behind,
        head=health.head,
        rows=1,
        differing=len(differing),
        differences=differing,
    )
    return _finding([_judged(checked, spell)], [])


def _fold(events: Iterable[RecordedEvent]) -> Row | None:
    row: Row | None = None
    for event in events:
        if event.type in RUNS.event_types:
            row = RUNS.apply(row, as_view_event(event))
    return row
