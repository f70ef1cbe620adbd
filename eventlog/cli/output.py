"""Where things go: results to standard output as UTF-8 whatever the locale, everything else to standard error.

`write_seed` has the bytes of the frozen commands. Everything else is written in the format that was asked for: tables
and cards for people, tab-separated lines without colours, one JSON document, or one JSON object a line. Texts from the
log pass `visible` first, and rich never interprets them.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO
from typing import TYPE_CHECKING, Any, Final, TextIO

from eventlog.cli.options import Options
from eventlog.cli.text import escaped_json, visible
from eventlog.times import time_text

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "CannotWrite",
    "cell",
    "counted",
    "grouped",
    "measured_progress",
    "note",
    "progress",
    "show_card",
    "show_lines",
    "show_rows",
    "silence_standard_output",
    "time_text",
    "to_json",
    "write_bytes",
    "write_document",
    "write_error_text",
    "write_line",
    "write_seed",
    "write_text",
    "write_workflow",
]

_FOLDING: Final = frozenset({"output", "meaning"})
"""The columns of tables that may be folded over several lines. Ids and hashes, which people compare, never are."""
_NARROWEST: Final = 12
_GAP: Final = 3

Row = Mapping[str, Any]
Progress = Callable[[int, int], None]
MeasuredProgress = Callable[[int, int, str], None]


class CannotWrite(OSError):
    """Standard output does not take what is written, for another reason than that its reader left."""


def write_bytes(data: bytes) -> None:
    """Write bytes to standard output and flush them. Raises BrokenPipeError, CannotWrite."""
    if sys.stdout is None:
        raise CannotWrite(errno.EBADF, "it is closed")
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CannotWrite(error.errno, error.strerror or str(error)) from error


def write_text(text: str) -> None:
    """Write text to standard output as UTF-8."""
    write_bytes(text.encode(errors="backslashreplace"))


def write_seed(document: Mapping[str, Any]) -> None:
    """Write the one JSON object of a frozen command, byte for byte as Python's json module spells it."""
    write_text(json.dumps(document, ensure_ascii=False, sort_keys=True) + "\n")


def write_workflow(document: Mapping[str, Any]) -> None:
    """Write what a frozen command says of a workflow run: one line for programs, spread over many on a terminal.

    On a terminal hidden characters are escaped, as the first seed's own bytes are not.
    """
    if sys.stdout is not None and sys.stdout.isatty():
        write_text(escaped_json(json.dumps(document, ensure_ascii=False, sort_keys=True, indent=2)) + "\n")
    else:
        write_seed(document)


def to_json(value: Any, *, sort_keys: bool = True) -> str:
    """Return one line of JSON with sorted keys, or in the order that they have, hidden characters escaped."""
    return escaped_json(json.dumps(value, ensure_ascii=False, sort_keys=sort_keys))


def write_document(document: Any, *, sort_keys: bool = True) -> None:
    """Write one JSON document."""
    write_text(to_json(document, sort_keys=sort_keys) + "\n")


def write_line(text: str) -> None:
    """Write one line of text in which every character can be seen."""
    write_text(visible(text) + "\n")


def write_error_text(text: str) -> None:
    """Write lines to standard error. A standard error that is gone is no reason to fail."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.flush()
        sys.stderr.buffer.write((text + "\n").encode(errors="backslashreplace"))
        sys.stderr.buffer.flush()
    except OSError:
        pass


def note(options: Options, text: str) -> None:
    """Write a remark to standard error, unless only results are wanted."""
    if not options.is_quiet:
        write_error_text(visible(text))


def silence_standard_output() -> None:
    """Send what is still buffered nowhere, so that the end of the process does not complain that its reader left."""
    if sys.stdout is None:
        return
    descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(descriptor, 1)
    os.close(descriptor)


def cell(value: Any) -> str:
    """Return a value as text for people, on one line."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case str():
            return visible(value)
        case dict() | list():
            return visible(json.dumps(value, ensure_ascii=False, sort_keys=True))
        case _:
            return visible(str(value))


def show_rows(options: Options, name: str, rows: Sequence[Row], columns: Mapping[str, str], *, total: int) -> None:
    """Show rows and say what is left out. `columns` are the keys to show with their headings; JSON has all keys."""
    match options.format:
        case "json":
            write_document({name: list(rows), "shown": len(rows), "total": total})
        case "jsonl":
            write_text("".join(to_json(row) + "\n" for row in rows))
        case "plain":
            write_text("".join("\t".join(cell(row[key]) for key in columns) + "\n" for row in rows))
        case "human":
            _show_table(options, rows, columns)
    if len(rows) < total:
        note(options, f"showing {grouped(len(rows))} of {grouped(total)} (--all)")
    elif not rows and options.format == "human":
        note(options, f"no {name}")


def show_card(
    options: Options, card: Row, *, document: Any = None, extra: Sequence[str] = (), sort_keys: bool = True
) -> None:
    """Show one thing as names and values, and lines behind them; `document` is what JSON formats show instead."""
    match options.format:
        case "json" | "jsonl":
            write_document(card if document is None else document, sort_keys=sort_keys)
        case "plain":
            lines = [f"{name}\t{cell(value)}" for name, value in card.items()]
            write_text("".join(line + "\n" for line in (*lines, *map(visible, extra))))
        case "human":
            width = max(map(len, card))
            lines = [f"{name:<{width}}  {cell(value)}" for name, value in card.items()]
            write_text("".join(line + "\n" for line in (*lines, *map(visible, extra))))


def show_lines(lines: Sequence[str], *, tabs: bool = False) -> None:
    """Show lines of text; `tabs` says that a tab separates fields, each of which is made visible."""
    spelled = ("\t".join(map(visible, line.split("\t"))) if tabs else visible(line) for line in lines)
    write_text("".join(line + "\n" for line in spelled))


@contextmanager
def progress(options: Options, title: str) -> Iterator[Progress]:
    """Draw a bar on standard error while work goes on: call it with what is done and what there is in all."""
    if not options.shows_progress:
        yield _no_progress
        return
    from rich.progress import Progress as Bar

    with Bar(console=_console(options, sys.stderr), transient=True) as bar:
        task = bar.add_task(title)
        yield lambda done, total: bar.update(task, completed=done, total=max(total, 1))


@contextmanager
def measured_progress(options: Options, title: str) -> Iterator[MeasuredProgress]:
    """As `progress`, with a text behind the bar: call it with what is done, what there is in all, and the text."""
    if not options.shows_progress:
        yield _no_measured_progress
        return
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %", markup=False),
        TextColumn("{task.fields[text]}", markup=False),
    )
    with Bar(*columns, console=_console(options, sys.stderr), transient=True) as bar:
        task = bar.add_task(title, text="")
        yield lambda done, total, text: bar.update(task, completed=done, total=max(total, 1), text=text)


def _no_measured_progress(done: int, total: int, text: str) -> None:
    """Draw nothing."""


def _no_progress(done: int, total: int) -> None:
    """Draw nothing."""


def _show_table(options: Options, rows: Sequence[Row], columns: Mapping[str, str]) -> None:
    if not rows:
        return
    from rich.box import SIMPLE_HEAD
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    needed = 0
    for key, heading in columns.items():
        width = max(cell_len(text) for text in (heading, *(cell(row[key]) for row in rows)))
        needed += _GAP + (min(width, _NARROWEST) if key in _FOLDING else width)
        table.add_column(Text(heading), overflow="fold", no_wrap=key not in _FOLDING)
    for row in rows:
        table.add_row(*(Text(cell(row[key])) for key in columns))
    buffer = StringIO()
    console = _console(options, buffer)
    console.width = max(console.width, needed)  # beyond the terminal, which wraps it, rather than in pieces
    console.print(table)
    lines = buffer.getvalue().splitlines()
    write_text("".join(line.rstrip() + "\n" for line in lines))


def _console(options: Options, file: TextIO) -> Console:
    from rich.console import Console

    return Console(
        file=file,
        force_terminal=sys.stdout is not None and sys.stdout.isatty() if file is not sys.stderr else None,
        width=max(shutil.get_terminal_size().columns, 40),
        no_color=not options.has_color,
        markup=False,
        highlight=False,
        emoji=False,
    )


def grouped(number: int) -> str:
    """Return a number with its thousands apart."""
    return f"{number:,}".replace(",", " ")


def counted(number: int, noun: str) -> str:
    """Return so many of these, as `1 event` and `2 events`."""
    return f"{grouped(number)} {noun}{'' if number == 1 else 's'}"
