"""`eventlog tail`: events as they are in the log, and as they come."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from fnmatch import fnmatchcase

import click

from eventlog.cli.application import register_types
from eventlog.cli.commands import TypedCommand
from eventlog.cli.options import Options
from eventlog.cli.output import to_json, write_text
from eventlog.cli.record import as_document, as_line, cells
from eventlog.cli.wiring import check_not_beyond, complete, open_to_look
from eventlog.decide import check_run_id, require_run
from eventlog.events import run_stream
from eventlog.log import EventReader, RecordedEvent
from eventlog.run import Run

__all__ = ["tail"]


@click.command("tail", cls=TypedCommand)
@click.argument("run_id", metavar="[RUN]", required=False)
@click.option("--follow", "-f", is_flag=True, help="Go on as events come.")
@click.option("--after", type=click.IntRange(min=0), default=0, metavar="POS", help="Only events behind this position.")
@click.option(
    "--type",
    "patterns",
    metavar="GLOB",
    multiple=True,
    help="Only events whose type matches, as 'action_*'; repeatable.",
)
@click.pass_obj
def tail(options: Options, run_id: str | None, follow: bool, after: int, patterns: tuple[str, ...]) -> None:
    """Print the events of the log, or of one run: position, time, stream, version, type, summary.

    Events of your own types are shown in their current shape, and under their current name, with --app MODULE or
    --projections MODULE:NAME, which are imported; as they are stored without.
    """
    if follow and options.format == "json":
        raise click.UsageError("What follows never ends, so it is no JSON document; use --format jsonl.")
    if run_id is not None:
        check_run_id(run_id)
    register_types(options)
    complete(options, _tail(options, run_id, follow, after, patterns))


async def _tail(options: Options, run_id: str | None, follow: bool, after: int, patterns: tuple[str, ...]) -> None:
    async with open_to_look(options, follows=follow) as opened:
        if after:
            await check_not_beyond(opened.log, after, "--after")
        events = _following(opened.log, after) if follow else _ending(opened.log, run_id, after)
        stream = run_stream(run_id) if run_id is not None else None
        wanted = (
            event
            async for event in events
            if (stream is None or event.stream == stream) and _is_wanted(event, patterns)
        )
        await _print(options, wanted)


def _is_wanted(event: RecordedEvent, patterns: tuple[str, ...]) -> bool:
    """Say whether the type, or the name that it was stored under, matches one of the patterns, if there are any."""
    names = (event.type, event.stored_type or event.type)
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns for name in names)


async def _following(log: EventReader, after: int) -> AsyncIterator[RecordedEvent]:
    async for event in log.subscribe(after=after):
        assert isinstance(event, RecordedEvent), "marks were not asked for"
        yield event


async def _ending(log: EventReader, run_id: str | None, after: int) -> AsyncIterator[RecordedEvent]:
    if run_id is None:
        async for event in log.read_all(after=after):
            yield event
        return
    version = 0
    async for event in log.read(run_stream(run_id)):
        version = event.version
        if event.position > after:
            yield event
    require_run(Run(run_id=run_id, version=version))


async def _print(options: Options, events: AsyncIterator[RecordedEvent]) -> None:
    if options.format == "json":
        await _print_document(options, events)
        return
    spell = _SPELLINGS[options.format]
    async for event in events:
        write_text(spell(event) + "\n")


async def _print_document(options: Options, events: AsyncIterator[RecordedEvent]) -> None:
    """Write one JSON document piece by piece, however long it gets."""
    options.is_streaming = True
    before = '{"events": ['
    async for event in events:
        write_text(before + to_json(as_document(event)))
        before = ", "
    write_text("]}\n" if before == ", " else before + "]}\n")


def _as_json(event: RecordedEvent) -> str:
    return to_json(as_document(event))


def _as_plain(event: RecordedEvent) -> str:
    return "\t".join(cells(event))


_SPELLINGS: dict[str, Callable[[RecordedEvent], str]] = {"human": as_line, "plain": _as_plain, "jsonl": _as_json}
