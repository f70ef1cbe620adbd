"""`eventlog projections list` and `status`: which views there are, how far they are, and what to do about them.

`status` shows the consumers as well, which handle the events of the log as views fold them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import click

from eventlog.cli.kept_views import is_brought_up_when_asked_for
from eventlog.cli.options import Options
from eventlog.cli.output import grouped, show_lines, show_rows, to_json, write_document, write_text
from eventlog.cli.projections.command import PlacedViewCommand
from eventlog.cli.projections.consumers import ConsumerState, consumer_document, consumers_of
from eventlog.cli.projections.known import Known, known_views, unknown_view
from eventlog.cli.projections.place import open_place
from eventlog.cli.projections.states import ViewState, document_of, percent, spell_problem, states_of
from eventlog.cli.text import visible
from eventlog.cli.wiring import complete, open_views_as_they_are
from eventlog.errors import StoreUnavailable

__all__ = ["list_views", "status"]

_COLUMNS: Final = {
    "name": "view",
    "state": "state",
    "condition": "condition",
    "known_revision": "revision here",
    "revision": "in the log",
    "position": "position",
    "behind": "behind",
    "rows": "rows",
}
_CONDITIONS: Final = {
    "ok": "up to date",
    "behind": "behind the log; nobody has brought it up yet",
    "behind_until_asked_for": "behind the log; brought up when asked for",
    "ahead": "ahead of the log, which does not hold these events any more",
    "gone": "its table is gone",
    "stopped": "stopped",
    "outdated": "of an earlier revision than this program folds",
    "later": "of a later revision than this program knows; a later program keeps it",
    "building": "being built",
    "interrupted": "a build that nobody goes on with",
    "kept": "what had the name before the last exchange",
    "absent": "not in this log",
    "not_kept": "not kept; brought up when asked for",
    "unknown_here": "unknown here",
}
_CONSUMERS: Final = {
    "running": "somebody runs it",
    "ok": "it has handled everything",
    "behind": "behind the log, and nobody runs it",
    "ahead": "ahead of the log, which does not hold these events any more",
    "of_another_log": "it handles the events of another log",
}


class _Shown(NamedTuple):
    """What `status` shows."""

    views: list[ViewState]
    consumers: list[ConsumerState]


@click.command("list", cls=PlacedViewCommand)
@click.pass_obj
def list_views(options: Options) -> None:
    """List the views of the log and those that this program knows, with their revisions, positions and rows.

    A view has one line for each of its tables: the live one, one that is built beside it, one that is kept.
    """
    states = complete(options, _listed(options))
    show_rows(options, "views", [document_of(state) for state in states], _COLUMNS, total=len(states))


@click.command("status", cls=PlacedViewCommand)
@click.argument("name", required=False)
@click.pass_obj
def status(options: Options, name: str | None) -> None:
    """Show how far the views are, what stopped one, and the command that goes on from there; and the consumers.

    Nothing is written, and no view is brought up.
    """
    shown = complete(options, _status(options, name))
    match options.format:
        case "json":
            views = [document_of(state) for state in shown.views]
            write_document({"views": views, "consumers": [consumer_document(each) for each in shown.consumers]})
        case "jsonl":
            write_text("".join(to_json(document_of(state)) + "\n" for state in shown.views))
            write_text("".join(to_json({"consumer": consumer_document(each)}) + "\n" for each in shown.consumers))
        case "plain":
            fields = [*map(_fields, shown.views), *map(_consumer_fields, shown.consumers)]
            show_lines(["\t".join(each) for each in fields], tabs=True)
        case "human":
            show_lines([line for state in shown.views for line in _lines(state)])
            show_lines([line for each in shown.consumers for line in _consumer_lines(each)])


async def _listed(options: Options) -> list[ViewState]:
    known = known_views(options)
    async with open_place(options, is_read_only=True) as place:
        return await states_of(options, place, known, counts_rows=True)


async def _status(options: Options, name: str | None) -> _Shown:
    known = known_views(options)
    async with open_views_as_they_are(options, is_read_only=True) as log:
        consumers = await consumers_of(options, log)
    views = await _views(options, known, has_consumers=bool(consumers))
    if name is None:
        return _Shown(views, consumers)
    found = _Shown([state for state in views if state.name == name], [each for each in consumers if each.name == name])
    if not any(found):
        raise unknown_view(name, known, {state.name for state in views})
    return found


async def _views(options: Options, known: Known, *, has_consumers: bool) -> list[ViewState]:
    try:
        async with open_place(options, is_read_only=True) as place:
            return await states_of(options, place, known)
    except StoreUnavailable as error:
        if options.into is None or error.code != "store_not_eventlog" or not has_consumers:
            raise
        return []  # a database of consumers, and of no views


def _fields(state: ViewState) -> list[str]:
    problem = "-" if state.problem is None else spell_problem(state.problem)
    numbers = (state.revision, state.position, state.head, percent(state.position, state.head))
    words = (state.name, state.state, state.condition, *numbers, problem, state.next)
    return [visible("-" if word is None else str(word)) for word in words]


def _lines(state: ViewState) -> list[str]:
    revision = state.revision if state.revision is not None else state.known_revision
    lines = [f"{state.name}, revision {revision}: {_CONDITIONS[_condition(state)]}"]
    if state.state != "absent":
        share = f"{percent(state.position, state.head)} %"
        lines.append(
            f"    {state.state}, position {grouped(state.position)} of {grouped(state.head)}, {share}{_here(state)}"
        )
    if state.problem is not None:
        lines.append(f"    {spell_problem(state.problem)}")
    if state.advice is not None:
        lines.append(f"    {state.advice}")
    return lines if state.next is None else [*lines, f"    next: {state.next}"]


def _consumer_fields(state: ConsumerState) -> list[str]:
    words = (state.name, "consumer", state.condition, "-", state.position, state.head)
    share = percent(state.position, state.head)
    return [visible(str(word)) for word in (*words, share, "-", "-")]


def _consumer_lines(state: ConsumerState) -> list[str]:
    where = f"position {grouped(state.position)} of {grouped(state.head)}, {grouped(state.behind)} behind"
    return [f"{state.name}, consumer: {_CONSUMERS[state.condition]}", f"    {where}, in {state.place}"]


def _condition(state: ViewState) -> str:
    """Return the condition, with whether it is as it should be."""
    is_as_usual = state.condition == "behind" and is_brought_up_when_asked_for(state.name)
    return "behind_until_asked_for" if is_as_usual else state.condition


def _here(state: ViewState) -> str:
    known = state.known_revision
    return "" if known in (None, state.revision) else f"; this program folds revision {known}"
