"""Where arguments and events come from besides the command line: files, and standard input.

Standard input may be closed, or no file that can be read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import click

from eventlog.cli.text import why_unreadable
from eventlog.errors import InvalidInput
from eventlog.plain import Limits, parse_json

__all__ = ["json_argument", "standard_input"]


def json_argument(source: str, *, option: str, what: str) -> Any:
    """Return the plain data that `source` spells: JSON text, `@FILE` or `-`.

    `option` is what it was given for and `what` its name in messages. Raises InvalidInput for what is not exact or too
    large, click.UsageError for a file that cannot be read.
    """
    if source == "-":
        with standard_input() as file:
            return parse_json(_read_all(file, what), what=what)
    if not source.startswith("@"):
        return parse_json(source, what=what)
    try:
        with Path(source[1:]).open("rb") as file:
            return parse_json(_read_all(file, what), what=what)
    except (OSError, ValueError) as error:
        raise click.UsageError(f"{option}: cannot read {source[1:]!r}: {why_unreadable(error)}.") from error


@contextmanager
def standard_input() -> Iterator[BinaryIO]:
    """Give standard input, to be read inside. Raises InvalidInput(`invalid_argument`) if it cannot be."""
    if sys.stdin is None:
        raise InvalidInput("invalid_argument", "standard input is closed, so that there is nothing to read from `-`")
    try:
        yield sys.stdin.buffer
    except OSError as error:
        raise InvalidInput("invalid_argument", f"cannot read standard input: {error.strerror or error}") from error


def _read_all(file: BinaryIO, what: str) -> bytes:
    """Return the bytes of a file, which must not be larger than an event may be."""
    limit = Limits().body_bytes
    data = file.read(limit + 1)
    if len(data) > limit:
        raise InvalidInput("payload_too_large", f"{what} has more than {limit} bytes")
    return data
