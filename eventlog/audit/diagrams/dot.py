"""A run as a Graphviz digraph.

    digraph run {
        e1 [label="1. start\\nanna", …];
        e2 [label="2. request approval:run-1\\n…", …];
        e1 -> e2;
    }

A node `e<version>` an event, from one to the next; who did it is its last line. The effects (`x<n>`) and the other runs
(`r<n>`) that take part are nodes of their own, with dashed edges to the events that are about them. All that comes from
the log is in the quoted labels of nodes. There `"` and `\\` have a backslash in front, `&` is `&amp;` (Graphviz reads
entities in labels), and a line break is `\\n`; a label that is quoted is never HTML.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from eventlog.audit.diagrams.moments import Kind, Moment, Part
from eventlog.text import visible

__all__ = ["dot_diagram"]

_LOOKS: Final[dict[Kind, str]] = {
    "course": "shape=box, style=rounded",
    "step": "shape=box",
    "request": "shape=note",
    "check": "shape=box, style=dotted",
    "decision": "shape=hexagon",
    "effect": "shape=box, penwidth=2",
    "refusal": 'shape=octagon, color="#b00020", fontcolor="#b00020"',
    "unknown": 'shape=octagon, style=dashed, color="#b00020", fontcolor="#b00020"',
    "other_run": "shape=box, style=rounded",
}
_OTHERS: Final = {"effect": ("x", "effect", "shape=cylinder"), "other_run": ("r", "run", "shape=folder")}


def dot_diagram(run_id: str, moments: Sequence[Moment]) -> str:
    """Return the lines of the graph, each ended."""
    others = _others(moments)
    lines = [
        f"label={_quoted((f'run {run_id}',))};",
        "labelloc=t;",
        'node [fontname="sans-serif"];',
        *(f"e{moment.version} [label={_quoted(_words(moment))}, {_LOOKS[moment.kind]}];" for moment in moments),
        *(f"e{before.version} -> e{after.version};" for before, after in pairwise(moments)),
        *(f"{name} [label={_quoted((_called(part),))}, {_OTHERS[part.role][2]}];" for part, name in others.items()),
        *_ties(moments, others),
    ]
    return "".join(f"{line}\n" for line in ("digraph run {", *(f"    {line}" for line in lines), "}"))


def _words(moment: Moment) -> tuple[str, ...]:
    first, *lines = moment.lines
    by = (f"by {moment.source.name}",) if moment.source.role == "actor" else ()
    return (f"{moment.version}. {first}", *lines, *by)


def _others(moments: Sequence[Moment]) -> dict[Part, str]:
    """Return the effects and other runs that take part, each with the name of its node."""
    named: dict[Part, str] = {}
    for moment in moments:
        for part in (moment.source, moment.target):
            if part.role in _OTHERS and part not in named:
                named[part] = f"{_OTHERS[part.role][0]}{len(named)}"
    return named


def _called(part: Part) -> str:
    return f"{_OTHERS[part.role][1]} {part.name}"


def _ties(moments: Sequence[Moment], others: dict[Part, str]) -> Iterator[str]:
    for moment in moments:
        if moment.target in others:
            yield f"e{moment.version} -> {others[moment.target]} [style=dashed];"
        if moment.source in others:
            yield f"{others[moment.source]} -> e{moment.version} [style=dashed];"


def _quoted(lines: Sequence[str]) -> str:
    return '"' + r"\n".join(map(_escaped, lines)) + '"'


def _escaped(text: str) -> str:
    return visible(text).replace("\\", r"\\").replace('"', r"\"").replace("&", "&amp;")
