"""How the views of a log are: what their database says of each of their tables, and what this program makes of that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from eventlog.cli.advice import spelled
from eventlog.cli.kept_views import SHIPPED
from eventlog.cli.options import Options
from eventlog.cli.projections.known import Known
from eventlog.cli.projections.place import Place
from eventlog.stores.sqlite.view_tables import generations_without_table
from eventlog.views import ViewEntry, ViewProblem
from projections.sqlite_views.build_lock import is_held
from projections.sqlite_views.entries import ViewEntries, read_entries

__all__ = ["ViewState", "document_of", "percent", "spell_entry", "spell_problem", "states_of"]

_NAME_IT: Final = "name its projection with --projections MODULE:NAME"
_LATER_KEEPS: Final = "a later program keeps it: upgrade this one"
_LATER_BUILDS: Final = "a later program builds it, and goes on with it"


class ViewState(msgspec.Struct, frozen=True, kw_only=True):
    """One table of a view, or a view that is known and not there (`absent`).

    `condition` is one of ok, behind, ahead, gone (its table is not there), stopped, outdated (of an earlier revision),
    later (of a later one), building, interrupted, kept, unknown_here; of a view that is not there absent, or not_kept
    for one that ships: the commands that show it bring it up. `next` is the command that does something about it, if
    one of this program does, and `advice` what else does.
    """

    name: str
    state: str
    condition: str
    known_revision: int | None
    revision: int | None
    position: int
    head: int
    rows: int | None = None
    problem: ViewProblem | None = None
    next: str | None = None
    advice: str | None = None

    @property
    def behind(self) -> int:
        """How many positions it is behind the end of the log."""
        return self.head - self.position


def percent(position: int, head: int) -> int:
    """Return how much of the log that is, in whole per cent: 100 only at its end."""
    return 100 if position >= head else 100 * position // head


def spell_entry(entry: ViewEntry) -> str:
    """Return a name for the entry: that of its view, the revision, and the state unless it is live."""
    state = "" if entry.state == "live" else f" ({entry.state})"
    return f"{entry.name}/{entry.revision}{state}"


def spell_problem(problem: ViewProblem) -> str:
    """Return the sentence about what stopped a view."""
    return f"at position {problem.position}, {problem.type} of {problem.stream}: {problem.error}"


async def states_of(options: Options, place: Place, known: Known, *, counts_rows: bool = False) -> list[ViewState]:
    """Return how the views are, of their database and of this program, by name.

    Of a database apart from the log nobody expects the views that ship; those that it has are shown.
    """
    found = await read_entries(place.database, counts_rows=counts_rows)
    gone = await place.database.look(generations_without_table)
    states = [_state(options, place.database.place, entry, found, gone, known) for entry in found.entries]
    expected = {name for name in known if place.file is None or name not in SHIPPED}
    states += _absent(options, known, expected - {entry.name for entry in found.entries}, found.head)
    return sorted(states, key=lambda state: state.name)


def document_of(state: ViewState) -> dict[str, Any]:
    """Return the state as JSON has it."""
    document: dict[str, Any] = msgspec.to_builtins(state)
    return {**document, "behind": state.behind, "percent": percent(state.position, state.head)}


def _state(
    options: Options, place: str, entry: ViewEntry, found: ViewEntries, gone: frozenset[int], known: Known
) -> ViewState:
    revision = known[entry.name].revision if entry.name in known else None
    is_gone = entry.generation in gone
    condition = _condition(place, entry, found.head, revision, is_gone=is_gone)
    return ViewState(
        name=entry.name,
        state=entry.state,
        condition=condition,
        known_revision=revision,
        revision=entry.revision,
        position=entry.position,
        head=found.head,
        rows=None if is_gone else found.rows.get(entry.generation),
        problem=entry.problem,
        next=_next(options, entry, condition, revision),
        advice=_advice(entry, condition, revision),
    )


def _condition(place: str, entry: ViewEntry, head: int, known: int | None, *, is_gone: bool) -> str:
    if entry.state == "kept":
        return "kept"
    if is_gone:
        return "gone"
    if entry.problem is not None:
        return "stopped"
    if entry.state != "live":
        return "building" if is_held(place, f"{entry.name}-build") else "interrupted"
    if known is None:
        return "unknown_here"
    if entry.revision != known:
        return "outdated" if entry.revision < known else "later"
    return "ahead" if entry.position > head else "behind" if entry.position < head else "ok"


def _next(options: Options, entry: ViewEntry, condition: str, known: int | None) -> str | None:
    """Return the command of this program that is for this condition. It has one only for revisions that it can fold."""
    if condition == "kept":
        return spelled(options, "drop", entry.name)
    if known is None or entry.revision > known:
        return None
    match condition:
        case "stopped" if entry.state == "live" and entry.revision == known:
            return spelled(options, "resume", entry.name)
        case "behind":
            return spelled(options, "resume", entry.name)
        case "stopped" | "interrupted" | "outdated" | "ahead" | "gone":
            # Ranges are gone on with by several processes only, however many.
            processes = () if entry.state in ("live", "building") else ("--processes", "2")
            return spelled(options, "rebuild", entry.name, *processes)
        case _:
            return None


def _advice(entry: ViewEntry, condition: str, known: int | None) -> str | None:
    """Return what goes on where no command of this program does."""
    if condition == "kept":
        return None
    if known is None:
        return _NAME_IT
    if entry.revision > known:
        return _LATER_KEEPS if entry.state == "live" else _LATER_BUILDS
    return None


def _absent(options: Options, known: Known, missing: set[str], head: int) -> Iterator[ViewState]:
    for name in missing:
        ships = name in SHIPPED
        yield ViewState(
            name=name,
            state="absent",
            condition="not_kept" if ships else "absent",
            known_revision=known[name].revision,
            revision=None,
            position=0,
            head=head,
            next=None if ships else spelled(options, "rebuild", name),
        )
