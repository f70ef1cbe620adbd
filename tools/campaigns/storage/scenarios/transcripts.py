"""The check of transcripts in files, as against the log that they are of.

It knows the format from its specification alone, and reads files and events, nothing of the mirror.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from eventlog.log import EventReader, RecordedEvent

__all__ = ["faults_in"]


async def faults_in(log: EventReader, folder: Path, streams: str = "") -> list[str]:
    """Return what is wrong with a folder of transcripts, as against what the log holds; nothing may be left over."""
    events = [event async for event in log.read_all() if event.stream.startswith(streams)]
    found: dict[tuple[str, int], bytes] = {}
    faults = [f"left over: {path.name}" for path in folder.iterdir() if path.suffix in (".prepared", ".tmp")]
    for path in sorted(folder.glob("*.jsonl")):
        data = path.read_bytes()
        if data and not data.endswith(b"\n"):
            faults.append(f"torn: {path.name}")
        for number, text in enumerate(data.split(b"\n")[:-1], 1):
            line = json.loads(text)
            if line["version"] != number:
                faults.append(f"line {number} of {path.name} is version {line['version']}")
            found[line["stream"], line["version"]] = text
    for event in events:
        text = found.pop((event.stream, event.version), b"")
        faults += [f"{event.stream} {event.version}: {fault}" for fault in _faults_of(text, event)]
    return faults + [f"{stream} {version}: not in the log" for stream, version in found]


def _faults_of(text: bytes, event: RecordedEvent) -> list[str]:
    if not text:
        return ["missing"]
    line = json.loads(text)
    body, _, tail = text.rpartition(b',"sum":"')
    expected = {
        "position": event.position,
        "type": event.type,
        "schema_version": event.schema_version,
        "recorded_at_us": event.recorded_at_us,
        "actor": event.actor,
        "event_id": event.event_id.hex(),
        "correlation_id": event.correlation_id,
        "causation_id": event.causation_id.hex() if event.causation_id is not None else None,
        "leaf": event.leaf.hex(),
        "sum": hashlib.sha256(body).hexdigest(),
    }
    wrong = [name for name, value in expected.items() if line[name] != value]
    if event.schema_version == 1 and line["data"] != json.loads(event.body):
        wrong.append("data")
    return wrong + ([] if tail.endswith(b'"}') else ["tail"])
