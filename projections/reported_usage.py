"""What a step or an action reports of the model that it has used: tokens, cost and the model's name, in its result.

A result that is a JSON object may carry these fields, in itself or in an object under `usage`, where they are looked
for first:

    input_tokens, output_tokens, total_tokens    whole numbers; prompt_tokens and completion_tokens are other names of
                                                 the first two
    cost, cost_usd                               a number, or decimal text as "0.0125"; the former in whatever the
                                                 program counts in, the latter in US dollars
    model                                        text

So the objects that providers of models return can be handed on as they are. Nothing is refused: what is there and is no
such number is not counted, but how many were there is said (`malformed`); null is as good as not there. Without
`total_tokens` the total is that of the other two. Numbers are read from the JSON text, digit by digit, so that a cost
is the decimal number that was written and never a binary fraction near it.
"""

from __future__ import annotations

import re
from decimal import Context, Decimal, Inexact
from typing import Final

import msgspec

from eventlog.events import NOTHING

__all__ = ["NO_COST", "Reported", "added_costs", "reported_usage"]

NO_COST: Final = "0"
_TOKENS: Final = re.compile(rb"[0-9]{1,12}")
_COST: Final = re.compile(r"-?[0-9]{1,40}(?:\.[0-9]{1,40})?(?:[eE][+-]?[0-9]{1,3})?")
_PLACES: Final = 24
"""How many digits a cost may have on each side of the decimal point."""
_EXACT: Final = Context(prec=200, traps=[Inexact])
_LONGEST_NAME: Final = 200


class Reported(msgspec.Struct, frozen=True, kw_only=True):
    """What one result reports. Costs are decimal text, without an exponent and without zeros at the end."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cost: str = NO_COST
    cost_usd: str = NO_COST
    model: str | None = None
    malformed: int = 0


class _Fields(msgspec.Struct):
    """The fields as they are spelled; the others of the result are passed over without being read."""

    input_tokens: msgspec.Raw = NOTHING
    prompt_tokens: msgspec.Raw = NOTHING
    output_tokens: msgspec.Raw = NOTHING
    completion_tokens: msgspec.Raw = NOTHING
    total_tokens: msgspec.Raw = NOTHING
    cost: msgspec.Raw = NOTHING
    cost_usd: msgspec.Raw = NOTHING
    model: msgspec.Raw = NOTHING
    usage: msgspec.Raw = NOTHING


_decode_fields: Final = msgspec.json.Decoder(_Fields).decode


def reported_usage(result: bytes) -> Reported | None:
    """Return what the JSON text of a result reports, or None if it has none of the fields."""
    if not result.startswith(b"{"):
        return None
    outer = _decode_fields(result)
    usage = bytes(outer.usage)
    inner = _decode_fields(usage) if usage.startswith(b"{") else _Fields()
    found = _Found(inner, outer)
    given, got = found.tokens("input_tokens", "prompt_tokens"), found.tokens("output_tokens", "completion_tokens")
    total = found.tokens("total_tokens")
    reported = Reported(
        input_tokens=given or 0,
        output_tokens=got or 0,
        total_tokens=total if total is not None else (given or 0) + (got or 0),
        cost=found.cost("cost"),
        cost_usd=found.cost("cost_usd"),
        model=found.model(),
        malformed=found.malformed,
    )
    return reported if found.is_any else None


def added_costs(first: str, second: str) -> str:
    """Return the exact sum of two costs, spelled as in `Reported`."""
    if second == NO_COST:
        return first
    return second if first == NO_COST else _spelled(_EXACT.add(Decimal(first), Decimal(second)))


class _Found:
    """Reads the fields of one result and counts what is no number."""

    def __init__(self, inner: _Fields, outer: _Fields) -> None:
        self._places: Final = (inner, outer)
        self.is_any = False
        self.malformed = 0

    def tokens(self, *names: str) -> int | None:
        """Return a number of tokens, by the first of the names that is there."""
        text = self._text(names)
        if text is None:
            return None
        self.is_any = True
        if not _TOKENS.fullmatch(text):
            self.malformed += 1
            return None
        return int(text)

    def cost(self, name: str) -> str:
        """Return a cost."""
        text = self._text((name,))
        if text is None:
            return NO_COST
        self.is_any = True
        cost = _cost(text)
        if cost is None:
            self.malformed += 1
        return NO_COST if cost is None else _spelled(cost)

    def model(self) -> str | None:
        """Return the name of the model. It alone is no report: many a result names one."""
        text = self._text(("model",))
        if text is None or not text.startswith(b'"'):
            return None
        name: str = msgspec.json.decode(text)
        return name if len(name) <= _LONGEST_NAME else None

    def _text(self, names: tuple[str, ...]) -> bytes | None:
        for place in self._places:
            for name in names:
                text = bytes(getattr(place, name))
                if text and text != b"null":
                    return text
        return None


def _cost(text: bytes) -> Decimal | None:
    spelled = msgspec.json.decode(text) if text.startswith(b'"') else text.decode()
    if not _COST.fullmatch(spelled):
        return None
    cost = Decimal(spelled)
    lowest = cost.as_tuple().exponent
    assert isinstance(lowest, int), "it is finite"
    return cost if cost.adjusted() < _PLACES and lowest >= -_PLACES else None


def _spelled(cost: Decimal) -> str:
    text = f"{cost:f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return NO_COST if text in ("-0", "") else text
