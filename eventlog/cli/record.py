"""A recorded event as people and programs read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from eventlog.cli.output import cell, time_text
from eventlog.cli.text import shortened, visible
from eventlog.cli.trace import trace_item
from eventlog.codec import REGISTRY
from eventlog.events import OutcomeReconciled, RunEvent
from eventlog.log import RecordedEvent, Redacted
from eventlog.run import Run

__all__ = ["as_document", "as_line", "cells", "decider_of", "decision_of", "mark_of", "redaction_of", "verdict_of"]

_RUN_EVENTS = get_args(RunEvent)


def as_document(event: RecordedEvent) -> dict[str, Any]:
    """Return all there is of an event, ids and hashes as hex.

    `type`, `schema_version` and `data` are those of today; what was stored under another name or in an older shape says
    so in `stored_type` and `stored_schema_version`. Data that is in today's shape is as the stored JSON spells it.
    Of what is erased, or cannot be read here, `redacted` says why, and `data` is what remains: None if nothing does.
    """
    if isinstance(event.data, Redacted):
        schema_version, data = event.schema_version, None
    else:
        schema_version, data = REGISTRY.in_current_shape(event)
    is_old = schema_version != event.schema_version
    return {
        "position": event.position,
        "stream": event.stream,
        "version": event.version,
        "type": event.type,
        "schema_version": schema_version,
        "event_id": event.event_id.hex(),
        "recorded_at": time_text(event.recorded_at_us),
        "actor": event.actor,
        "correlation_id": event.correlation_id,
        "causation_id": event.causation_id.hex() if event.causation_id is not None else None,
        "leaf": event.leaf.hex(),
        "prev_in_stream": event.prev_in_stream.hex(),
        **({} if event.stored_type is None else {"stored_type": event.stored_type}),
        **({"stored_schema_version": event.schema_version} if is_old else {}),
        **({} if event.redacted is None else {"redacted": event.redacted}),
        "data": data,
    }


def decision_of(request: Run) -> dict[str, Any]:
    """Return who decided on a request, when and why; None for what nobody has said yet, or where a rule decided."""
    return {
        "decided_by": request.decided_by,
        "decided_at": None if request.decided_at_us is None else time_text(request.decided_at_us),
        "decision_reason": request.decision_reason,
    }


def decider_of(decided: Mapping[str, Any]) -> str:
    """Return who decided as people read it: `policy` where a rule did, whose name stands in the reason."""
    is_by_rule = any(vote["actor_source"] == "policy" for vote in decided["votes"])
    return decided["decided_by"] or ("policy" if is_by_rule else "-")


def verdict_of(events: Sequence[RecordedEvent], step: str | None = None) -> dict[str, Any]:
    """Return who settled an unknown outcome last, when and how; None for what nobody has said yet.

    `step` is the step key of the request, if the run is a workflow.
    """
    for event in reversed(events):
        if isinstance(event.data, OutcomeReconciled) and event.data.step == step:
            return {
                "verdict": event.data.verdict,
                "evidence": event.data.evidence,
                "reconciled_by": event.actor,
                "reconciled_at": time_text(event.recorded_at_us),
            }
    return dict.fromkeys(("verdict", "evidence", "reconciled_by", "reconciled_at"))


def redaction_of(run: Run) -> dict[str, str]:
    """Return why words of the run are not there, under `redacted`; nothing if they all are."""
    return {} if run.redacted is None else {"redacted": run.redacted}


def mark_of(redacted: str | None) -> str:
    """Return how people are told of an event that its words are not there; an empty text if they are."""
    match redacted:
        case None:
            return ""
        case "key_missing":
            return "[encrypted, and the key is not here]"
        case _:
            return "[erased]"


def cells(event: RecordedEvent) -> list[str]:
    """Return position, time, stream, version, type and a summary, as visible text."""
    return [
        str(event.position),
        time_text(event.recorded_at_us),
        visible(event.stream),
        str(event.version),
        visible(event.type),
        visible(" ".join(filter(None, (_summary(event), mark_of(event.redacted))))),
    ]


def as_line(event: RecordedEvent) -> str:
    """Return an event as one line for people."""
    position, at, stream, version, type_name, summary = cells(event)
    return f"{position:>6}  {at}  {stream}  {version}  {type_name}  {summary}".rstrip()


def _summary(event: RecordedEvent) -> str:
    """Return what a reader needs first: the trace's facts for the event of a run, the body's beginning for others."""
    if isinstance(event.data, _RUN_EVENTS):
        facts = trace_item(event.type, event.data)
        return " ".join(
            f"{name}={cell(value)}" for name, value in facts.items() if name != "event" and value is not None
        )
    return shortened(event.body.decode(errors="backslashreplace"))
