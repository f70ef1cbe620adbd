"""Pieces that every section of a report is made of."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from eventlog.audit.report.safe import Part, Safe, joined, preformatted, tag
from eventlog.log import RecordedEvent
from eventlog.times import time_text

__all__ = ["card", "facts", "hash_of", "link_to", "place_of", "pretty", "raw", "section", "time_of"]


def section(name: str, title: str, *parts: Part) -> Safe:
    """Return a section with a heading that can be linked to."""
    return tag("section", tag("h2", title), *parts, id=name)


def card(*parts: Part, kind: str = "") -> Safe:
    """Return a card, of a kind that it is marked as."""
    return tag("article", *parts, class_=f"card {kind}".rstrip())


def facts(pairs: Mapping[str, Part | Iterable[Safe]]) -> Safe:
    """Return names with their values; what is None is left out."""
    return tag("dl", *(joined(tag("dt", name), _value(value)) for name, value in pairs.items() if value is not None))


def _value(value: Part | Iterable[Safe]) -> Safe:
    return tag("dd", value) if isinstance(value, str | None) else tag("dd", *value)


def hash_of(digest: str | None) -> Safe | None:
    """Return an id or hash, whole."""
    return None if digest is None else tag("span", digest, class_="hash")


def time_of(at_us: int | None) -> str | None:
    return None if at_us is None else time_text(at_us)


def link_to(event: RecordedEvent) -> Safe:
    """Return a link to an event in the timeline."""
    return tag("a", f"event {event.version}", href=f"#v{event.version}", class_="number")


def place_of(event: RecordedEvent) -> Safe:
    """Return who, when and where of an event in one line."""
    return tag("p", time_text(event.recorded_at_us), " · ", event.actor, " · ", link_to(event), class_="soft")


def pretty(value: Any) -> Safe:
    """Return plain data as JSON over several lines, whole."""
    return preformatted(json.dumps(value, ensure_ascii=False, sort_keys=True, indent=2).split("\n"))


def raw(event: RecordedEvent) -> Safe:
    """Return the body of an event as it is stored, character by character."""
    return preformatted([event.body.decode(errors="backslashreplace")])
