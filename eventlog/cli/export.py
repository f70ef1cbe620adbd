"""`eventlog export`: events in a form that other programs read, to a file or to standard output."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Final

import click
import msgspec

from eventlog.audit.export import BINARY, SPELLINGS, Selection, Spelling, exported, selected, spelling
from eventlog.cli.application import register_types
from eventlog.cli.commands import TypedCommand
from eventlog.cli.options import Options
from eventlog.cli.output import Progress, counted, note, progress, show_card, write_bytes
from eventlog.cli.pack import PACK, export_pack
from eventlog.cli.target_file import TargetFile
from eventlog.cli.wiring import check_not_beyond, complete, open_log
from eventlog.codec import REGISTRY
from eventlog.decide import check_run_id, require_run
from eventlog.errors import InvalidInput
from eventlog.events import run_stream
from eventlog.plain import check_id
from eventlog.run import Run
from eventlog.stores import SqliteLog
from eventlog.text import escaped_json

__all__ = ["export"]

_PIECE_BYTES: Final = 64 * 1024
_PROGRESS_EVENTS: Final = 1000

Write = Callable[[bytes], None]


class _ExportCommand(TypedCommand):
    """The command has a `--format` of its own: what is written is no result in one of the common formats."""

    def _own_options(self) -> list[click.Parameter]:
        options = [option for option in super()._own_options() if option.name != "format"]
        for option in options:
            if isinstance(option, click.Option) and option.name == "json":
                option.help = "What was written, and errors, as JSON."
        return options


class _Request(msgspec.Struct, frozen=True):
    """What was asked for, checked as far as that goes without the log. `run_id` is that of the stream, if one is."""

    form: str
    run_id: str | None
    stream: str | None
    stream_prefix: str | None
    patterns: tuple[str, ...]
    after: int
    limit: int | None


class _Done(msgspec.Struct, frozen=True):
    """What was written."""

    events: int
    first_position: int | None
    last_position: int | None


@click.command("export", cls=_ExportCommand)
@click.option("--format", "form", type=click.Choice((*SPELLINGS, PACK)), required=True, help="How events are spelled.")
@click.option("--to", "target", metavar="PATH|-", required=True, help="A new file, or - for standard output.")
@click.option("--run", "run_id", metavar="RUN", help="Only this run.")
@click.option("--stream", metavar="NAME", help="Only this stream.")
@click.option("--stream-prefix", metavar="TEXT", help="Only streams whose names begin so.")
@click.option("--type", "patterns", multiple=True, metavar="GLOB", help="Only types that match; may be repeated.")
@click.option("--after", type=click.IntRange(min=0), default=0, metavar="POS", help="Only events behind this position.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N of them.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.option(
    "--since-size",
    "since",
    type=click.IntRange(min=1),
    multiple=True,
    metavar="SIZE",
    help="In a pack: prove growth since a head of this size; may be repeated.",
)
@click.pass_obj
def export(options: Options, /, target: str, force: bool, since: tuple[int, ...], **asked: Any) -> None:
    """Write events in a form that other programs read.

    The events up to the end of the log as it is now, verified one by one; nothing is appended, and no data changed. A
    file is there whole or not at all. Types of your own are read in their current shape with --app MODULE or
    --projections MODULE:NAME, which are imported, and as they are stored without.

    The format `pack` is the evidence of one run (--run) for somebody who does not trust you: entries, bodies, proofs,
    the signed head, approvals, a report, and a verifier of one file, as a zip file, or a folder if PATH ends with a
    slash. The log needs a signed head that covers the run.
    """
    request = _Request(**asked)
    if request.form == PACK:
        _check_pack(request, target, force)
        complete(options, export_pack(options, request.run_id or "", target, force=force, since=since))
        return
    if since:
        raise click.UsageError("--since-size is for --format pack.")
    _check(options, request, target, force)
    register_types(options)
    complete(options, _export(options, request, target, force))


def _check_pack(request: _Request, target: str, force: bool) -> None:
    others = (request.stream, request.stream_prefix, request.limit, *request.patterns)
    if request.run_id is None or request.after or any(each is not None for each in others):
        raise click.UsageError(
            "A pack is the evidence of one run: give --run RUN, and nothing else that selects events."
        )
    check_run_id(request.run_id)
    if target == "-":
        raise click.UsageError("A pack is written to a file, or a folder if its name ends with a slash.")
    if force and target.endswith("/"):
        raise click.UsageError("--force is for a file; a folder that is there is never replaced.")


def _check(options: Options, request: _Request, target: str, force: bool) -> None:
    if sum(each is not None for each in (request.run_id, request.stream, request.stream_prefix)) > 1:
        raise click.UsageError("Only one of --run, --stream and --stream-prefix.")
    if request.run_id is not None:
        check_run_id(request.run_id)
    if request.stream is not None:
        check_id(request.stream, "stream")
    if target != "-":
        return
    if force:
        raise click.UsageError("--force is for a file; standard output is written as it comes.")
    if options.is_json:
        raise click.UsageError("A JSON answer would stand among the events on standard output; leave --json away.")
    if request.form in BINARY and sys.stdout is not None and sys.stdout.isatty():
        raise click.UsageError(f"{request.form} is no text and not written to a terminal; give --to PATH.")


async def _export(options: Options, request: _Request, target: str, force: bool) -> None:
    form = spelling(request.form)  # what is not installed is said before anything is touched
    async with open_log(options, is_read_only=True) as opened:
        selection = await _selection(opened.log, request)
        if target == "-":
            done = await _write(options, opened.log, selection, form, _to_standard_output(request.form))
            note(options, f"exported {counted(done.events, 'event')}")
            return
        with TargetFile(target, force=force, place=opened.log.place) as file:
            done = await _write(options, opened.log, selection, form, file.write)
            file.publish()
    facts = msgspec.structs.asdict(done)
    show_card(options, {"path": target, "format": request.form, **facts, "size_bytes": file.size_bytes})


async def _selection(log: SqliteLog, request: _Request) -> Selection:
    """Return what to export. Raises Refused(`unknown_run`), and InvalidInput for a stream that there is not."""
    head = (await log.head()).position
    if request.after:
        await check_not_beyond(log, request.after, "--after")
    stream = request.stream if request.run_id is None else run_stream(request.run_id)
    if stream is not None:
        await _check_stream(log, stream, request.run_id)
    return Selection(
        up_to=head,
        after=request.after,
        stream=stream,
        stream_prefix=request.stream_prefix,
        patterns=request.patterns,
        limit=request.limit,
    )


async def _check_stream(log: SqliteLog, stream: str, run_id: str | None) -> None:
    async with aclosing(log.read(stream, limit=1)) as events:
        version = len([event async for event in events])
    if run_id is not None:
        require_run(Run(run_id=run_id, version=version))
    elif version == 0:
        raise InvalidInput("invalid_argument", f"the log has no stream {stream!r}")


async def _write(options: Options, log: SqliteLog, selection: Selection, form: Spelling, write: Write) -> _Done:
    with progress(options, "exporting") as bar:
        return await _write_events(log, selection, form, write, bar)


async def _write_events(log: SqliteLog, selection: Selection, form: Spelling, write: Write, bar: Progress) -> _Done:
    pending = bytearray(form.begin())
    count, first, last = 0, None, None
    async with aclosing(selected(log, selection, REGISTRY)) as events:
        async for event in events:
            pending += form.add(exported(event, log_id=log.facts.log_id_at(event.position), registry=REGISTRY))
            count, first, last = count + 1, first or event.position, event.position
            if len(pending) >= _PIECE_BYTES:
                write(bytes(pending))
                pending.clear()
            if count % _PROGRESS_EVENTS == 0:
                bar(event.position - selection.after, selection.up_to - selection.after)
    write(bytes(pending) + form.end())
    return _Done(count, first, last)


def _to_standard_output(form: str) -> Write:
    """Return what writes there. On a terminal hidden characters are escaped, as they are everywhere."""
    if form in BINARY or sys.stdout is None or not sys.stdout.isatty():
        return write_bytes
    return lambda data: write_bytes(escaped_json(data.decode()).encode())
