"""`eventlog erase`: what was recorded is taken out of the log and of all that was made of it, and the log says so."""

from __future__ import annotations

import sys
from typing import Any, Final

import click
import msgspec

from eventlog.audit.erasure import Erasure, Plan, erase, erase_subject, plan_erasure, plan_subject_erasure
from eventlog.cli.advice import spelled
from eventlog.cli.options import Options
from eventlog.cli.output import MeasuredProgress, counted, grouped, measured_progress, note, show_card
from eventlog.cli.projections.command import ViewCommand
from eventlog.cli.projections.known import known_views
from eventlog.cli.wiring import complete, open_views_as_they_are
from eventlog.stores import SqliteLog
from projections import BuildProgress, RebuildableViews

__all__ = ["erase_command"]

_BUSY: Final = "view_busy:"


class _Request(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for; exactly one of the first four is given."""

    run: str | None
    positions: tuple[int, ...]
    stream: str | None
    subject: str | None
    legal_basis: str
    reason: str | None
    drop_unknown_views: bool

    @property
    def what(self) -> str:
        """What is erased, in words."""
        if self.run is not None:
            return f"the run {self.run!r} and what it has started"
        if self.stream is not None:
            return f"the stream {self.stream!r}"
        if self.subject is not None:
            return f"the subject {self.subject!r}"
        return f"{counted(len(set(self.positions)), 'event')}"


@click.command("erase", cls=ViewCommand)
@click.option("--run", metavar="RUN", help="This run, and the runs that it has started for itself.")
@click.option("--position", "positions", type=click.IntRange(min=1), multiple=True, metavar="N", help="These events.")
@click.option("--stream", metavar="NAME", help="All events of this stream.")
@click.option("--subject", metavar="ID", help="All that is encrypted under this subject's key, in every copy.")
@click.option("--legal-basis", required=True, metavar="TEXT", help="On what ground; recorded for good, and no name.")
@click.option("--reason", metavar="TEXT", help="What more there is to say; recorded for good.")
@click.option(
    "--drop-unknown-views", is_flag=True, help="Drop views that are not known here, and so cannot be rebuilt."
)
@click.option("--dry-run", is_flag=True, help="Only say what would be erased.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def erase_command(options: Options, /, dry_run: bool, yes: bool, **asked: Any) -> int:
    """Erase what was recorded, for good, and say so in the log.

    Bodies and salts are overwritten; what the hashes need stays, so that every proof goes on to hold. Artifacts that
    no other event names are removed, views are built again (--projections names your own), snapshots are dropped, and
    the write-ahead log is cut. A run has to have ended. What the answer calls `out_of_reach` is for you to see to.

    Repeating it is safe, and goes on where an interrupted one has stopped.

    Exit status 0: nothing of it is left in the files of the log. 2: refused, or a view could not be built again. 5: a
    reader keeps a copy in the write-ahead log; call it again.
    """
    request = _Request(**asked)
    if (
        sum((request.run is not None, bool(request.positions), request.stream is not None, request.subject is not None))
        != 1
    ):
        raise click.UsageError("Exactly one of --run, --position, --stream and --subject.")
    if request.subject is not None and options.subject_keys is None:
        raise click.UsageError("--subject needs --subject-keys (or EVENTLOG_SUBJECT_KEYS).")
    if dry_run:
        _show_plan(options, request, complete(options, _plan(options, request)))
        return 0
    if not yes and not _is_confirmed(options, request):
        raise click.UsageError("Nothing was erased: it is confirmed on a terminal, or with --yes.")
    done = complete(options, _erase(options, request))
    _show(options, done)
    return _status(options, done)


def _is_confirmed(options: Options, request: _Request) -> bool:
    if not options.may_ask:
        return False
    sys.stderr.write(f"Erase {request.what} for good? Nobody can bring it back. Type `erase`: ")
    sys.stderr.flush()
    return sys.stdin.readline().strip() == "erase"


async def _plan(options: Options, request: _Request) -> Plan:
    known = known_views(options)
    async with open_views_as_they_are(options) as log:
        views = RebuildableViews(log, known.values())
        if request.subject is not None:
            drops = request.drop_unknown_views
            return await plan_subject_erasure(log, request.subject, views=views, drop_unknown_views=drops)
        return await plan_erasure(log, views=views, **_selected(request))


async def _erase(options: Options, request: _Request) -> Erasure:
    known = known_views(options)
    async with open_views_as_they_are(options) as log:
        with measured_progress(options, "building views again") as bar:
            views = RebuildableViews(log, known.values(), on_progress=_told_by(bar))
            return await _carried_out(log, request, views)


async def _carried_out(log: SqliteLog, request: _Request, views: RebuildableViews) -> Erasure:
    said: dict[str, Any] = {"legal_basis": request.legal_basis, "reason": request.reason}
    if request.subject is not None:
        drops = request.drop_unknown_views
        return await erase_subject(log, request.subject, views=views, drop_unknown_views=drops, **said)
    return await erase(log, views=views, **said, **_selected(request))


def _selected(request: _Request) -> dict[str, Any]:
    return {
        "positions": request.positions or None,
        "run": request.run,
        "stream": request.stream,
        "drop_unknown_views": request.drop_unknown_views,
    }


def _told_by(bar: MeasuredProgress) -> Any:
    def tell(name: str, progress: BuildProgress) -> None:
        bar(progress.position, progress.head, f"{name}: {grouped(round(progress.rate))} events/s")

    return tell


# ── what is said ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _show_plan(options: Options, request: _Request, plan: Plan) -> None:
    scope = plan.scope
    card = {
        "dry_run": True,
        "what": request.what,
        "events": len(scope.positions) if request.subject is None else sum(scope.versions.values()),
        "already": scope.already,
        "streams": list(scope.streams or scope.versions),
        "artifacts": sorted(scope.artifacts),
        "views_rebuilt": list(plan.views.rebuilt),
        "views_dropped": list(plan.views.dropped),
        "handed_on": list(scope.handed_on),
    }
    show_card(options, card, document={**card, "positions": list(scope.positions)}, sort_keys=False)


def _show(options: Options, done: Erasure) -> None:
    counts = {"erased": done.erased, "already": done.already}
    card = {
        **(counts if done.subject_key is None else {"subject_key_destroyed": done.subject_key}),
        "streams": list(done.streams),
        "artifacts": list(done.artifacts),
        "kept_artifacts": list(done.kept_artifacts),
        "views_rebuilt": list(done.rebuilt_views),
        "views_dropped": list(done.dropped_views),
        "views_failed": done.failed_views,
        "handed_on": list(done.handed_on),
        "is_purged": done.is_purged,
        "is_complete": done.is_complete,
    }
    document = {**card, "positions": list(done.positions), "out_of_reach": list(done.out_of_reach)}
    lines = ["out of reach from here:", *(f"    {each}" for each in done.out_of_reach)]
    show_card(options, card, document=document, extra=lines, sort_keys=False)


def _status(options: Options, done: Erasure) -> int:
    for name, why in done.failed_views.items():
        then = "call this again" if why.startswith(_BUSY) else f"mend it, or {spelled(options, 'drop', name, '--live')}"
        note(options, f"the view {name} holds what it held ({why}); {then}")
    if not done.is_purged:
        note(options, "a reader keeps copies in the write-ahead log; end it, and call this again")
    if done.is_complete:
        return 0
    return 5 if all(why.startswith(_BUSY) for why in done.failed_views.values()) else 2
