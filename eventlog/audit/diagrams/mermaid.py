"""A run as a Mermaid sequence diagram.

    sequenceDiagram
        actor P0 as anna
        participant P1 as run run-1
        P0->>P1: 4. approve approval#58;run-1<br/>2bba…

One line a participant, one line an event. Participants are `P0`, `P1`, … in the order in which they come; what they are
called is a label. In labels only letters and digits, spaces, and `. , _ / -` stand for themselves. Everything else is
spelled `#<decimal code point>;`, Mermaid's own escape: so no label ends its line (`;`, line breaks), begins a comment
or a directive (`%%`, `%%{`), an escape (`#`), an arrow or a tag, or looks like the placeholders that Mermaid puts where
an escape was (`ﬂ°`, `¶ß`). Mermaid draws texts of up to 50 000 characters unless its `maxTextSize` is raised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from eventlog.audit.diagrams.moments import Moment, Part
from eventlog.text import visible

__all__ = ["mermaid_diagram"]

_PLAIN: Final = frozenset(" .,_/-")
_PLACEHOLDERS: Final = frozenset("ﬂß")
_BROKEN: Final = "<br/>"
_ARROWS: Final = {"refusal": "-x", "unknown": "--x"}
_HEADS: Final = {"actor": "actor", "run": "participant", "effect": "participant", "other_run": "participant"}
_BEFORE: Final = {"actor": "", "run": "run ", "effect": "effect ", "other_run": "run "}


def mermaid_diagram(moments: Sequence[Moment]) -> str:
    """Return the lines of the diagram, each ended. A run without events has no moments and an empty diagram."""
    parts = {part: f"P{number}" for number, part in enumerate(_parts(moments))}
    heads = [f"{_HEADS[part.role]} {name} as {_label(_BEFORE[part.role] + part.name)}" for part, name in parts.items()]
    lines = [_line(moment, parts) for moment in moments]
    return "".join(f"{line}\n" for line in ("sequenceDiagram", *(f"    {line}" for line in (*heads, *lines))))


def _parts(moments: Sequence[Moment]) -> list[Part]:
    return list(dict.fromkeys(part for moment in moments for part in (moment.source, moment.target)))


def _line(moment: Moment, parts: dict[Part, str]) -> str:
    first, *others = moment.lines
    text = _BROKEN.join(map(_label, (f"{moment.version}. {first}", *others)))
    return f"{parts[moment.source]}{_arrow(moment)}{parts[moment.target]}: {text}"


def _arrow(moment: Moment) -> str:
    """Return the arrow: with a cross where something did not happen, dashed where an effect or a run answers."""
    is_answer = moment.source.role in ("effect", "other_run")
    return _ARROWS.get(moment.kind) or ("-->>" if is_answer else "->>")


def _label(text: str) -> str:
    return "".join(map(_character, visible(text)))


def _character(character: str) -> str:
    is_plain = character in _PLAIN or (character.isalnum() and character not in _PLACEHOLDERS)
    return character if is_plain else f"#{ord(character)};"
