"""`eventlog projections rebuild`: a view is built again beside the one that is there, and then takes its name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import click
import msgspec

from eventlog.cli.advice import advice, after_a_failed_build, spelled
from eventlog.cli.failures import exit_status, label_of, report
from eventlog.cli.options import Options
from eventlog.cli.output import (
    MeasuredProgress,
    grouped,
    measured_progress,
    note,
    show_lines,
    to_json,
    write_document,
    write_text,
)
from eventlog.cli.projections.command import PlacedViewCommand
from eventlog.cli.projections.difference_lines import difference_documents, difference_fields, difference_lines
from eventlog.cli.projections.known import Known, built_elsewhere, known_views, the_view
from eventlog.cli.projections.place import Place, open_place
from eventlog.cli.text import visible
from eventlog.cli.wiring import complete
from eventlog.errors import EventLogError, Misuse, StoreUnavailable
from eventlog.stores.sqlite.view_registry import find_entry
from eventlog.stores.sqlite.view_tables import without_table
from eventlog.views import ViewEntry
from projections import BuildProgress, Rebuilt, SqliteView, drop_old_view, rebuild_in_ranges, rebuild_view
from projections.sqlite_views.bringing_up import bring_up
from projections.sqlite_views.entries import read_entries

__all__ = ["rebuild"]

_SHOWN: Final = 20
"""How many rows that differ are shown to people; JSON has all that are kept."""


class _How(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for."""

    compare: bool
    dry_run: bool
    anew: bool
    allow_unknown: bool
    keep_old: bool
    processes: int


class _Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one view: what was done, or the error that kept it from being done."""

    name: str
    before: ViewEntry | None = None
    rebuilt: Rebuilt | None = None
    old: str = "none"
    error: EventLogError | None = None
    hint: str | None = None


@click.command("rebuild", cls=PlacedViewCommand)
@click.argument("name", required=False)
@click.option("--all", "takes_all", is_flag=True, help="Every view of the log that is known here.")
@click.option("--compare", is_flag=True, help="Say in which rows the old view differed.")
@click.option("--dry-run", is_flag=True, help="Only compare; the view stays as it is.")
@click.option("--anew", is_flag=True, help="Throw away an interrupted build instead of going on with it.")
@click.option("--allow-unknown", is_flag=True, help="Pass over events of types that nobody has registered here.")
@click.option("--processes", type=click.IntRange(1, 64), default=1, help="Fold the log by so many (with `merge`).")
@click.option("--keep-old/--drop-old", default=True, show_default=True, help="What becomes of the old view.")
@click.pass_obj
def rebuild(options: Options, /, name: str | None, takes_all: bool, **how: Any) -> int:
    """Build a view again from the whole log, beside the one that is there; then it takes its name.

    The old view is read, and kept up to date by who keeps it, until then. What is interrupted goes on next time.

    Exit status 0: done. 2: it cannot be built, as where its projection raises. 5: another process builds it. 130:
    interrupted. With --dry-run 3: rows of this revision differ. 4: they cannot be compared.
    """
    if (name is None) is not takes_all:
        raise click.UsageError("Either NAME or --all.")
    if options.into is not None and how["processes"] > 1:
        raise click.UsageError("--processes is for views in the log's own database, not for --into.")
    outcomes = complete(options, _rebuild(options, name, _How(**how)))
    if name is not None and outcomes[0].error is not None:
        return report(outcomes[0].error, options, status=_failed_with(outcomes[0].error), hint=outcomes[0].hint)
    _show(options, outcomes)
    return _status(outcomes, is_dry=how["dry_run"])


async def _rebuild(options: Options, name: str | None, how: _How) -> list[_Outcome]:
    known = known_views(options)
    async with open_place(options, may_create=name in known) as place:
        there = {entry.name for entry in (await read_entries(place.database)).entries}
        views = _all(known, there) if name is None else [the_view(known, name, there)]
        return [await _rebuild_one(options, place, view, how) for view in views]


def _all(known: Known, there: set[str]) -> list[SqliteView]:
    return [view for view in known.values() if view.name in there]


async def _rebuild_one(options: Options, place: Place, view: SqliteView, how: _How) -> _Outcome:
    """Rebuild one view. What is wrong with this one is in the outcome; what is wrong with the log is raised."""
    told = _Told()
    try:
        return await _exchanged(options, place, view, how, told)
    except (StoreUnavailable, Misuse):
        raise
    except EventLogError as error:
        if error.code == "view_busy":
            error = built_elsewhere(view.name)
        return _Outcome(name=view.name, error=error, hint=_hint(options, error, view.name))
    except asyncio.CancelledError:
        _say_where(options, view, told.position)
        raise


def _hint(options: Options, error: EventLogError, name: str) -> str:
    match error.code:
        case "view_failed":
            return after_a_failed_build(options, name)
        case "event_type_unknown":
            passing = spelled(options, "rebuild", name, "--allow-unknown")
            return f"Name the program that registers the type with --app MODULE; or pass such events over:  {passing}"
        case _:
            return advice(error, options)


async def _exchanged(options: Options, place: Place, view: SqliteView, how: _How, told: _Told) -> _Outcome:
    database = place.database
    before = await database.look(find_entry, view.name)
    is_gone = before is not None and bool(await database.look(without_table, [before]))
    compares = how.compare or how.dry_run
    if compares and before is not None and before.revision == view.revision and not is_gone:
        await bring_up(database, view)  # what is only late is no difference
    with measured_progress(options, f"building {view.name}") as bar:
        rebuilt = await _built(place, view, how, compares, told.by(bar))
    old = "none" if before is None or is_gone else "kept"
    if how.dry_run:
        old = "untouched"
    elif (is_gone or not how.keep_old) and await drop_old_view(database, view) and not is_gone:
        old = "dropped"
    return _Outcome(name=view.name, before=before, rebuilt=rebuilt, old=old)


async def _built(
    place: Place, view: SqliteView, how: _How, compares: bool, tell: Callable[[BuildProgress], None]
) -> Rebuilt:
    if how.processes > 1:
        return await rebuild_in_ranges(
            place.log,
            view,
            processes=how.processes,
            anew=how.anew,
            compares=compares,
            exchanges=not how.dry_run,
            allows_unknown_types=how.allow_unknown,
            on_progress=tell,
        )
    return await rebuild_view(
        place.database,
        view,
        anew=how.anew,
        compares=compares,
        exchanges=not how.dry_run,
        allows_unknown_types=how.allow_unknown,
        on_progress=tell,
    )


class _Told:
    """The last position that the build has told."""

    position: int | None = None

    def by(self, bar: MeasuredProgress) -> Callable[[BuildProgress], None]:
        """Return what is to be told of each page; the bar shows it."""

        def tell(progress: BuildProgress) -> None:
            self.position = progress.position
            left = "" if progress.left_s is None else f", {_time(progress.left_s)} left"
            bar(progress.position, progress.head, f"{grouped(round(progress.rate))} events/s{left}")

        return tell


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _say_where(options: Options, view: SqliteView, position: int | None) -> None:
    """Say what an interrupted build leaves; to a program that reads JSON that is said in the end."""
    built = "" if position is None else f", and is built up to position {position}"
    note(options, f"interrupted; the view {view.name} is as it was{built}")
    note(options, f"go on with:  {spelled(options, 'rebuild', view.name)}")
    message = f"the build was interrupted; the view {view.name!r} is as it was{built}"
    options.interrupted = EventLogError("interrupted", message, view=view.name, position=position)


# ── what is said ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _status(outcomes: Sequence[_Outcome], *, is_dry: bool) -> int:
    failed = [outcome.error for outcome in outcomes if outcome.error is not None]
    if failed:
        return _failed_with(failed[0])
    if is_dry and any(_differs(outcome) for outcome in outcomes):
        return 3
    return 4 if is_dry and any(_comparison(outcome) is None for outcome in outcomes) else 0


def _failed_with(error: EventLogError) -> int:
    """Return the exit status. A projection is input here: one that raises is refused, and no fault of the program."""
    return 2 if error.code == "view_failed" else exit_status(error)


def _differs(outcome: _Outcome) -> bool:
    """Say whether rows differ that should not: those of an earlier revision may."""
    rebuilt, comparison = outcome.rebuilt, _comparison(outcome)
    if rebuilt is None or comparison is None or outcome.before is None:
        return False
    return outcome.before.revision == rebuilt.revision and comparison.differing > 0


def _comparison(outcome: _Outcome) -> Any:
    return None if outcome.rebuilt is None else outcome.rebuilt.comparison


def _show(options: Options, outcomes: Sequence[_Outcome]) -> None:
    match options.format:
        case "json":
            write_document({"views": [_document(each) for each in outcomes]})
        case "jsonl":
            write_text("".join(to_json(_document(each)) + "\n" for each in outcomes))
        case "plain":
            show_lines([line for each in outcomes for line in _fields(each)], tabs=True)
        case "human":
            show_lines([line for each in outcomes for line in _lines(options, each)])
            if not outcomes:
                note(options, "the log has no view that is known here")


def _document(outcome: _Outcome) -> dict[str, Any]:
    error, rebuilt = outcome.error, outcome.rebuilt
    if error is not None or rebuilt is None:
        assert error is not None, "either it was rebuilt or there is an error"
        return {
            "name": outcome.name,
            "outcome": "failed",
            "error": label_of(error),
            "message": str(error),
            "hint": outcome.hint,
        }
    comparison = rebuilt.comparison
    return {
        "name": rebuilt.name,
        "outcome": rebuilt.outcome,
        "revision": rebuilt.revision,
        "revision_before": outcome.before and outcome.before.revision,
        "position": rebuilt.position,
        "began_after": rebuilt.began_after,
        "events": rebuilt.events,
        "seconds": round(rebuilt.seconds, 3),
        "old": outcome.old,
        "comparison": comparison
        and {
            "rows": comparison.rows,
            "differing": comparison.differing,
            "differences": difference_documents(comparison.differences),
        },
    }


def _fields(outcome: _Outcome) -> list[str]:
    if outcome.rebuilt is None:
        return ["\t".join(("view", outcome.name, "failed", *(visible(str(outcome.error)),)))]
    rebuilt = outcome.rebuilt
    compared = rebuilt.comparison
    words = (
        "view",
        rebuilt.name,
        rebuilt.outcome,
        rebuilt.revision,
        rebuilt.position,
        rebuilt.events,
        f"{rebuilt.seconds:.3f}",
        outcome.old,
        compared.differing if compared is not None else "-",
    )
    shown = compared.differences[:_SHOWN] if compared is not None else []
    return ["\t".join(str(word) for word in words), *difference_fields(rebuilt.name, shown)]


def _lines(options: Options, outcome: _Outcome) -> list[str]:
    if outcome.rebuilt is None:
        failed = f"{outcome.name}: failed, and the view is as it was: {outcome.error}"
        return [failed, *([] if outcome.hint is None else [f"    {outcome.hint}"])]
    rebuilt = outcome.rebuilt
    begun = f", going on behind position {grouped(rebuilt.began_after)}" if rebuilt.began_after else ""
    done = "built" if rebuilt.outcome == "exchanged" else "compared"
    lines = [
        f"{rebuilt.name}: revision {rebuilt.revision} is {done} up to position {grouped(rebuilt.position)}"
        f" ({grouped(rebuilt.events)} events in {rebuilt.seconds:.1f} s{begun})"
    ]
    if outcome.old == "kept":
        lines.append(f"    what it was is kept until:  {spelled(options, 'drop', rebuilt.name)}")
    return [*lines, *(f"    {line}" for line in _compared(outcome))]


def _compared(outcome: _Outcome) -> list[str]:
    rebuilt, comparison = outcome.rebuilt, _comparison(outcome)
    if comparison is not None:
        said = f"{grouped(comparison.differing)} of {grouped(comparison.rows)} rows differ from the old view"
        return [said, *difference_lines(comparison.differences[:_SHOWN], comparison.differing)]
    is_asked = rebuilt is not None and rebuilt.outcome == "compared"
    return ["the old view cannot be compared: there is none, or nobody has brought it up"] if is_asked else []
