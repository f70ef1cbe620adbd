"""What changed in a run between two of its versions, as people and programs read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from eventlog.audit.states import Change, changes, path_text, plain_state
from eventlog.cli.options import Options
from eventlog.cli.output import cell, show_lines, time_text, write_document
from eventlog.cli.text import shortened
from eventlog.log import RecordedEvent
from eventlog.run import Run
from eventlog.sentences import sentence

__all__ = ["show_diff"]

_VALUE: Final = 200
"""How many characters of a value a line for people has; the JSON document has all."""


def show_diff(options: Options, before: Run, after: Run, between: Sequence[RecordedEvent]) -> None:
    """Show the differences of two states of a run, and the events that lie between them."""
    found = changes(plain_state(before), plain_state(after))
    match options.format:
        case "json" | "jsonl":
            write_document(_document(before, after, found, between))
        case "plain":
            show_lines(list(map(_plain_line, found)), tabs=True)
        case "human":
            show_lines(_human_lines(before, after, found, between))


def _document(before: Run, after: Run, found: Sequence[Change], between: Sequence[RecordedEvent]) -> dict[str, Any]:
    return {
        "run_id": before.run_id,
        "from": _end(before),
        "to": _end(after),
        "changes": [
            {
                "path": list(change.path),
                "kind": change.kind,
                **({"before": change.before} if change.kind != "added" else {}),
                **({"after": change.after} if change.kind != "removed" else {}),
            }
            for change in found
        ],
        "events": [
            {"version": event.version, "type": event.type, "actor": event.actor, "sentence": sentence(event)}
            for event in between
        ],
    }


def _end(run: Run) -> dict[str, Any]:
    return {"version": run.version, "recorded_at": time_text(run.recorded_at_us), "status": run.status.value}


def _human_lines(before: Run, after: Run, found: Sequence[Change], between: Sequence[RecordedEvent]) -> list[str]:
    ends = [f"version {end['version']} ({end['recorded_at']}, {end['status']})" for end in (_end(before), _end(after))]
    head = f"run {before.run_id}: {' -> '.join(ends)}"
    lines = [f"  {_human_line(change)}" for change in found] or ["  nothing"]
    events = [f"  {event.version}  {event.type}: {sentence(event)}" for event in between]
    return [head, "changed:", *lines, *(["events between:", *events] if events else [])]


def _human_line(change: Change) -> str:
    path = path_text(change.path)
    match change.kind:
        case "added":
            return f"+ {path}: {_short(change.after)}"
        case "removed":
            return f"- {path}: {_short(change.before)}"
        case _:
            return f"~ {path}: {_short(change.before)} -> {_short(change.after)}"


def _plain_line(change: Change) -> str:
    return "\t".join((change.kind, cell(path_text(change.path)), cell(change.before), cell(change.after)))


def _short(value: Any) -> str:
    return shortened(cell(value), _VALUE)
