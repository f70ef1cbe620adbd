"""The page of a report: who proposed, approved, did and was refused what, when and why, and how to check that again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from eventlog.audit.report.decisions import (
    decisions_section,
    refusal_kind,
    refusals,
    refusals_section,
    requests_section,
)
from eventlog.audit.report.effects import effects_section
from eventlog.audit.report.parts import card, facts, hash_of, pretty, raw, section, time_of
from eventlog.audit.report.safe import Safe, document, joined, preformatted, tag
from eventlog.audit.report.subject import Subject
from eventlog.audit.states import plain_state
from eventlog.audit.verify import Finding, Verdicts
from eventlog.events import CheckpointSaved, ChildFinished, ChildStarted
from eventlog.log import Problem, RecordedEvent
from eventlog.sentences import sentence
from eventlog.times import time_text

__all__ = ["run_report"]

_PLACES: Final = {
    "requests": "asked for",
    "decisions": "decided",
    "refusals": "refused or failed",
    "effects": "done",
    "related": "other runs",
    "timeline": "timeline",
    "state": "state",
    "verified": "verified",
}
_CHECKED: Final = {
    "integrity": "every event is what its hash says",
    "order": "positions, versions and times follow one another",
    "tree": "the events of the run are in the stored Merkle tree",
    "heads": "the log goes on from every signed head that is known",
    "approvals": "who approved what, and how sure that is",
    "erasures": "bodies that are gone were erased by an event that says so",
    "artifacts": "every large value that an event names is there, and is what its name says",
    "snapshots": "the states that the run may be resumed from are what its events add up to",
    "views": "what people look at is what the log says",
}
_GOOD: Final = frozenset({"COMPLETED", "COMPENSATED"})
_BAD: Final = frozenset({"FAILED", "REJECTED", "CANCELLED", "EXPIRED"})


def run_report(subject: Subject) -> str:
    """Return the report as one HTML file, which needs nothing beside it and runs nothing.

    Everything that the log says of the run is in it, whole: only sentences cut long values, as they say, and the data
    of each event stands below its own.
    """
    run, events = subject.run, subject.events
    body = joined(
        tag("header", tag("h1", "Run ", run.run_id), _summary(subject), _card(subject), _contents()),
        tag(
            "main",
            requests_section(run, events),
            decisions_section(events),
            refusals_section(events),
            effects_section(events),
            _related(events),
            section("timeline", "What happened, in order", tag("ol", *map(_moment, events))),
            _state(subject),
            _verified(subject),
        ),
        tag("footer", _made(subject)),
    )
    return document(f"Run {run.run_id}: {run.status.value}", body)


def _summary(subject: Subject) -> Safe:
    """Return the status in one line, with what a reader has to know first."""
    status = subject.run.status.value
    look = "good" if status in _GOOD else "bad" if status in _BAD else "unsure"
    count = len(refusals(subject.events))
    refused = f"; {count} {'refusal or failure' if count == 1 else 'refusals or failures'}" if count else ""
    found = "; the check found damage" if subject.verdicts.is_damaged else ""
    said = f", {len(subject.events)} events{refused}{found}"
    return tag("p", tag("span", status, class_=f"status {look}"), said)


def _card(subject: Subject) -> Safe:
    run, first = subject.run, subject.events[0]
    progress = run.progress
    definition = progress.definition if progress is not None else None
    last = subject.events[-1]
    return card(
        facts(
            {
                "run": run.run_id,
                "status": run.status.value,
                "workflow": definition.workflow if definition is not None else "none: a run of one action",
                "workflow version": definition.version if definition is not None else None,
                "workflow code": hash_of(definition.fingerprint if definition is not None else None),
                "version": f"{run.version}, state version {run.state_version}",
                "redacted": None if run.redacted is None else f"words of this run are not there: {run.redacted}",
                "began": f"{time_text(first.recorded_at_us)}, by {first.actor}",
                "last event": f"{time_text(last.recorded_at_us)}, by {last.actor}",
                "last leaf hash": hash_of(last.leaf.hex()),
                "log": tag("code", subject.path),
                "log id": hash_of(subject.log_id),
                "store id": hash_of(subject.store_id),
                "head of the log": [
                    joined(f"position {subject.head.position}, leaf "),
                    tag("span", subject.head.leaf.hex(), class_="hash"),
                ],
            }
        )
    )


def _contents() -> Safe:
    links = [tag("li", tag("a", title, href=f"#{name}")) for name, title in _PLACES.items()]
    return tag("nav", tag("ul", *links))


def _related(events: Sequence[RecordedEvent]) -> Safe:
    found = [tag("li", line) for line in _relations(events)]
    return section("related", "Other runs", tag("ul", *found) if found else tag("p", "None."))


def _relations(events: Sequence[RecordedEvent]) -> Iterator[Safe]:
    for event in events:
        match event.data:
            case CheckpointSaved(parent=parent) if parent is not None:
                told = f"{parent.relation} of step {parent.step} of the run ", tag("code", parent.run_id)
                yield tag("p", *told, "; the family began with ", tag("code", parent.root_run_id))
            case ChildStarted() | ChildFinished():
                yield tag("p", sentence(event))


def _moment(event: RecordedEvent) -> Safe:
    return tag(
        "li",
        tag("p", sentence(event)),
        tag("p", f"{event.version} · {event.type} · {time_text(event.recorded_at_us)} · ", event.actor, class_="soft"),
        tag("p", f"position {event.position} · leaf ", tag("span", event.leaf.hex(), class_="hash"), class_="soft"),
        tag("details", tag("summary", "data, as stored"), _envelope(event), raw(event)),
        class_=f"card {refusal_kind(event)}".rstrip(),
        id=f"v{event.version}",
    )


def _envelope(event: RecordedEvent) -> Safe:
    return facts(
        {
            "event id": hash_of(event.event_id.hex()),
            "schema version": str(event.schema_version),
            "correlation id": event.correlation_id,
            "causation id": hash_of(event.causation_id.hex() if event.causation_id is not None else None),
            "leaf before it in the run": hash_of(event.prev_in_stream.hex()),
        }
    )


def _state(subject: Subject) -> Safe:
    whole = tag("details", tag("summary", "every field"), pretty(plain_state(subject.run)))
    return section("state", "What the events add up to", tag("p", "The state is a fold of the events above."), whole)


def _verified(subject: Subject) -> Safe:
    run_id = subject.run.run_id
    verdicts = subject.verdicts
    path = shlex.quote(subject.path)
    command = f"eventlog --db {path} verify --run {shlex.quote(run_id)}"
    again = f"eventlog --db {path} report {shlex.quote(run_id)} --to FILE"
    return section(
        "verified",
        "How this was verified, and how to verify it again",
        tag(
            "p", f"Every event above was compared with its own hash and with the event before it. {_checked(verdicts)}"
        ),
        card(
            facts({f"{name}: {_CHECKED.get(name, name)}": _finding(finding) for name, finding in _findings(verdicts)})
        ),
        tag("p", "Check the run, and make the report again, wherever the log is:"),
        preformatted([command, again]),
        tag("p", "Events are only ever added: the leaf hashes of this report have to be found in the log for ever."),
        tag("p", "This page bears no signature. It is as good as its reader's copy of the log, or of its head."),
    )


def _checked(verdicts: Verdicts) -> str:
    return f"A check of {verdicts.events} events of this run then found:"


def _findings(verdicts: Verdicts) -> Iterator[tuple[str, Finding]]:
    for name in verdicts.__struct_fields__:
        finding = getattr(verdicts, name)
        if isinstance(finding, Finding):
            yield name, finding


def _finding(finding: Finding) -> list[Safe]:
    look = {"ok": "good", "damaged": "bad", "differs": "bad"}.get(finding.verdict, "unsure")
    left = finding.count - len(finding.problems)
    more = [tag("p", f"… and {left} more")] if left > 0 else []
    return [tag("p", finding.verdict, class_=f"status {look}"), *map(_problem, finding.problems), *more]


def _problem(problem: Problem) -> Safe:
    where = "" if problem.position is None else f"position {problem.position}: "
    return tag("p", f"{where}{problem.message} [{problem.reason}]")


def _made(subject: Subject) -> Safe:
    return tag("p", f"Made {time_of(subject.made_at_us)} by {subject.program}.", class_="soft")
