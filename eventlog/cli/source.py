"""Standard input as a source of arguments and events. It may be closed, or no file that can be read."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from eventlog.errors import InvalidInput

__all__ = ["standard_input"]


@contextmanager
def standard_input() -> Iterator[BinaryIO]:
    """Give standard input, to be read inside. Raises InvalidInput(`invalid_argument`) if it cannot be."""
    if sys.stdin is None:
        raise InvalidInput("invalid_argument", "standard input is closed, so that there is nothing to read from `-`")
    try:
        yield sys.stdin.buffer
    except OSError as error:
        raise InvalidInput("invalid_argument", f"cannot read standard input: {error.strerror or error}") from error
