"""One input is tried: it is refused with a code, or taken and right; anything else is a violation."""

from __future__ import annotations

import ast
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from eventlog.errors import CODES, EventLogError
from tools.campaigns.fuzz.target import Target

__all__ = ["SLOWEST_S", "corpus_of", "spelled", "try_input", "try_slowly"]

SLOWEST_S: Final = 2.0
"""How much of a processor one input may take."""

_CORPUS: Final = Path(__file__).parent / "corpus"

Wrong = tuple[str, str]
"""The invariant, and what does not hold."""


def spelled(given: Any) -> str:
    """Return the beginning of how Python spells an input; not every one has a spelling."""
    try:
        return f"{given!r:.300}"
    except (ValueError, RecursionError) as error:  # an integer of too many digits, or what is nested for ever
        return f"a {type(given).__name__} that Python cannot spell: {error}"


def try_input(target: Target, given: Any, taken: Counter[str] | None = None) -> Wrong | None:
    """Return what is wrong with how the target meets this input; count it in `taken`, by the target, if it was."""
    try:
        problem = target.check(given)
        if taken is not None:
            taken[target.name] += 1
    except EventLogError as error:
        return None if error.code in CODES else ("I8", f"it is refused with a code that nobody explains: {error.code}")
    except target.allowed:
        return None
    except (Exception, SystemExit) as error:
        return "I8", f"a raw {type(error).__name__}: {error!s:.200}"
    return None if problem is None else ("I10", problem)


def try_slowly(target: Target, given: Any, taken: Counter[str] | None = None) -> Wrong | None:
    """As `try_input`, and what takes longer than any input may is wrong, too."""
    began_s = time.process_time()
    wrong = try_input(target, given, taken)
    took_s = time.process_time() - began_s
    return ("I9", f"it takes {took_s:.1f} s of a processor") if wrong is None and took_s > SLOWEST_S else wrong


def corpus_of(target: Target) -> Iterator[Any]:
    """Give the inputs that have to be looked at each time: once they showed something, or nearly did.

    The file of a target holds texts, each a Python literal, as JSON has no bytes and no lone surrogates; `*` repeats.
    """
    yield from target.known
    file = _CORPUS / f"{target.name}.json"
    if file.exists():
        for spelled in json.loads(file.read_text(encoding="utf-8")):
            yield _value(ast.parse(spelled, mode="eval").body)


def _value(node: ast.expr) -> Any:
    """Return the value of a literal in which texts and bytes may be added and repeated."""
    match node:
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _value(left) * _value(right)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _value(left) + _value(right)
        case ast.Tuple(elts=parts):
            return tuple(map(_value, parts))
        case _:
            return ast.literal_eval(node)
