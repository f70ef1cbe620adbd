"""`eventlog events`: single events, shown as they are stored and appended as they are given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

import click
from msgspec import to_builtins

from eventlog.cli.commands import Group
from eventlog.cli.options import Options
from eventlog.cli.output import show_card, write_bytes, write_document
from eventlog.cli.record import as_document
from eventlog.cli.source import standard_input
from eventlog.cli.wiring import check_not_beyond, complete, open_log, open_to_look
from eventlog.errors import InvalidInput
from eventlog.log import AppendResult, Expect, NewEvent
from eventlog.plain import Limits, check_id, parse_json

__all__ = ["events"]

_WORDS: Final = {"any": Expect.any(), "exists": Expect.exists(), "no-stream": Expect.no_stream()}
_FIELDS: Final = frozenset({"type", "data", "event_id"})


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


@events.command("show")
@click.argument("position", type=click.IntRange(min=1), metavar="POS")
@click.option("--raw", is_flag=True, help="Only the stored body, byte for byte.")
@click.pass_obj
def show_event(options: Options, position: int, raw: bool) -> None:
    """Show the event at a position, verified."""
    complete(options, _show(options, position, raw))


@events.command("append")
@click.argument("stream")
@click.option("--from", "source", required=True, metavar="FILE|-", help='JSON lines of {"type", "data", "event_id"?}.')
@click.option(
    "--expect", required=True, callback=_expectation, metavar="N", help="The stream's version, any, exists, no-stream."
)
@click.pass_obj
def append_events(options: Options, stream: str, source: str, expect: Expect) -> None:
    """Append events to a stream of your own, all of them or none.

    An "event_id" (32 hex digits) makes a repetition of the same append safe.
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
    else:
        show_card(options, as_document(found[0]))


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
        raise click.UsageError(f"--from: cannot read {source!r}: {error}.") from error
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
    if type(fields) is not dict or not {"type", "data"} <= fields.keys() <= _FIELDS:
        raise InvalidInput("invalid_event", f'line {number} must be an object of "type", "data" and perhaps "event_id"')
    if "event_id" not in fields:
        return NewEvent(fields["type"], fields["data"])
    return NewEvent(fields["type"], fields["data"], event_id=_event_id(fields["event_id"], number))


def _event_id(text: Any, number: int) -> bytes:
    try:
        event_id = bytes.fromhex(text.replace("-", ""))
    except (ValueError, TypeError, AttributeError):
        event_id = b""
    if len(event_id) != 16:
        raise InvalidInput("invalid_id", f"line {number}: an event id is 32 hex digits, not {text!r:.80}")
    return event_id
