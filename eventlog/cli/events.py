"""`eventlog events`: single events, shown as they are stored and appended as they are given."""

from __future__ import annotations

from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

import click
from msgspec import to_builtins

from eventlog.audit.export.exported_event import FIELDS as EXPORTED_FIELDS
from eventlog.audit.export.exported_event import OPTIONAL_FIELDS
from eventlog.cli.application import register_types
from eventlog.cli.commands import Group, TypedCommand
from eventlog.cli.options import Options
from eventlog.cli.output import note, show_card, write_bytes, write_document
from eventlog.cli.record import as_document
from eventlog.cli.source import standard_input
from eventlog.cli.text import why_unreadable
from eventlog.cli.wiring import check_not_beyond, complete, open_log, open_to_look
from eventlog.errors import InvalidInput
from eventlog.ids import new_event_id
from eventlog.log import AppendResult, Expect, NewEvent, RecordedEvent
from eventlog.plain import Limits, check_id, parse_json

__all__ = ["events"]

_WORDS: Final = {"any": Expect.any(), "exists": Expect.exists(), "no-stream": Expect.no_stream()}
_FIELDS: Final = frozenset({"type", "data", "event_id", "schema_version", "correlation_id", "causation_id"})
_EXPORTED: Final = frozenset(EXPORTED_FIELDS)


def _expectation(context: click.Context, option: click.Parameter, value: str) -> Expect:
    """Return the expectation that a text names: a version, 0 for no stream, or one of the words."""
    if value in _WORDS:
        return _WORDS[value]
    if not (value.isascii() and value.isdecimal() and len(value) < 19):
        raise click.BadParameter(f"{value!r} is no version and none of {', '.join(_WORDS)}.", context, option)
    return Expect.at(int(value))


@click.group("events", cls=Group)
def events() -> None:
    """Single events."""


@events.command("show", cls=TypedCommand)
@click.argument("position", type=click.IntRange(min=1), metavar="POS")
@click.option("--raw", is_flag=True, help="Only the stored body, byte for byte; the stored type is said beside it.")
@click.pass_obj
def show_event(options: Options, position: int, raw: bool) -> None:
    """Show the event at a position, verified.

    Events of your own types are shown in their current shape, and under their current name, with --app MODULE or
    --projections MODULE:NAME, which are imported; as they are stored without.
    """
    register_types(options)
    complete(options, _show(options, position, raw))


@events.command("append")
@click.argument("stream")
@click.option("--from", "source", required=True, metavar="FILE|-", help='JSON lines of {"type", "data", …}.')
@click.option(
    "--expect", required=True, callback=_expectation, metavar="N", help="The stream's version, any, exists, no-stream."
)
@click.pass_obj
def append_events(options: Options, stream: str, source: str, expect: Expect) -> None:
    """Append events to a stream of your own, all of them or none.

    An "event_id" (32 hex digits) makes a repetition of the same append safe. A line may also have "schema_version",
    "correlation_id" and "causation_id", or be one of `export --format jsonl`: its place, time, actor and hash are those
    of the other log, and not taken over.
    """
    check_id(stream, "stream")
    complete(options, _append(options, stream, _read_events(source), expect))


async def _show(options: Options, position: int, raw: bool) -> None:
    async with open_to_look(options) as opened:
        await check_not_beyond(opened.log, position, "POS")
        found = [event async for event in opened.log.read_all(after=position - 1, limit=1)]
    assert found, "positions have no gaps"
    if raw:
        write_bytes(found[0].body)
        note(options, f"Stored as {_stored_as(found[0])}.")
        if found[0].redacted is not None:
            note(options, f"This is no longer what was appended, but what remains of it: {found[0].redacted}.")
    else:
        show_card(options, as_document(found[0]))


def _stored_as(event: RecordedEvent) -> str:
    return f"{event.stored_type or event.type}, schema version {event.schema_version}"


async def _append(options: Options, stream: str, new: list[NewEvent], expect: Expect) -> None:
    async with open_log(options, may_create=expect.allows(0)) as opened:
        result = await opened.log.append(stream, new, expect=expect)
    write_document(_result(result))


def _result(result: AppendResult) -> dict[str, Any]:
    fields: dict[str, Any] = to_builtins(result, builtin_types=(bytes,))
    return fields | {"leaf": result.leaf.hex()}


def _read_events(source: str) -> list[NewEvent]:
    with _opened(source) as file:
        return [_event(line, number) for number, line in _lines(file)]


@contextmanager
def _opened(source: str) -> Iterator[BinaryIO]:
    if source == "-":
        with standard_input() as given:
            yield given
        return
    try:
        file = Path(source).open("rb")  # noqa: SIM115 - closed below; only the opening is a usage error
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--from: cannot read {source!r}: {why_unreadable(error)}.") from error
    with file:
        yield file


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Give the lines that are not blank, with their numbers, each no longer and all no more than an append may take."""
    limits = Limits()
    longest = 2 * limits.body_bytes
    number = count = 0
    while line := file.readline(longest + 1):
        number += 1
        if len(line) > longest:
            raise InvalidInput("payload_too_large", f"line {number} has more than {longest} bytes")
        if not line.strip():
            continue
        count += 1
        if count > limits.events_per_call:
            raise InvalidInput("batch_too_large", f"more than {limits.events_per_call} events in one append")
        yield number, line


def _event(line: bytes, number: int) -> NewEvent:
    fields = parse_json(line, what=f"line {number}")
    if type(fields) is not dict or not (_is_new(fields.keys()) or _is_exported(fields.keys())):
        what = '"type", "data" and perhaps "event_id", "schema_version", "correlation_id", "causation_id"'
        raise InvalidInput(
            "invalid_event", f"line {number} must be an object of {what}, or a line of `export --format jsonl`"
        )
    if fields.get("redacted") is not None:
        message = f"line {number} is of an event whose data is not there ({fields['redacted']!s:.40}); leave it out"
        raise InvalidInput("invalid_event", message)
    cause = fields.get("causation_id")
    return NewEvent(
        fields["type"],
        fields["data"],
        event_id=_event_id(fields["event_id"], number) if "event_id" in fields else new_event_id(),
        correlation_id=fields.get("correlation_id"),
        causation_id=None if cause is None else _event_id(cause, number),
        schema_version=fields.get("schema_version", 1),
    )


def _is_new(names: Set[str]) -> bool:
    return {"type", "data"} <= names <= _FIELDS


def _is_exported(names: Set[str]) -> bool:
    """Say whether these are the fields of an exported event. Those that tell its place in the other log are left."""
    return _EXPORTED - OPTIONAL_FIELDS <= names <= _EXPORTED


def _event_id(text: Any, number: int) -> bytes:
    try:
        event_id = bytes.fromhex(text.replace("-", ""))
    except (ValueError, TypeError, AttributeError):
        event_id = b""
    if len(event_id) != 16:
        raise InvalidInput("invalid_id", f"line {number}: an event id is 32 hex digits, not {text!r:.80}")
    return event_id
