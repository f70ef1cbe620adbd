"""Every leaf and the tree once more, from the rows alone, by an encoder that shares nothing with the engine's."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

__all__ = ["ROWS", "entry_of", "read_rows", "root_of", "wrong_leaves"]

ROWS: Final = """
SELECT e.position, e.version, e.recorded_at_us, e.schema_version, e.event_id, e.causation_id, e.body_kind,
       CAST(e.body AS BLOB) AS body, e.salt, e.leaf, s.name AS stream, t.name AS type, a.name AS actor,
       e.correlation_id, e.body AS text
FROM events e JOIN streams s USING (stream_id) JOIN types t USING (type_id) JOIN actors a USING (actor_id)
ORDER BY e.position"""


def read_rows(path: Path) -> tuple[list[sqlite3.Row], list[sqlite3.Row]]:
    """Return the rows of the events, and those of the ids that the log has had."""
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        log_ids = connection.execute("SELECT first_position, log_id FROM log_ids ORDER BY first_position").fetchall()
        return connection.execute(ROWS).fetchall(), log_ids


def entry_of(row: sqlite3.Row, log_id: bytes, previous: bytes, erasure: Mapping[str, Any]) -> bytes:
    """Return the entry of a row, field by field as the layout of version 1 lists them."""
    entry: bytes = b"eventlog/entry/v1" + b"\x00"
    entry += log_id
    entry += struct.pack(">Q", row["position"])
    entry += struct.pack(">Q", row["version"])
    entry += struct.pack(">q", row["recorded_at_us"])
    entry += struct.pack(">H", row["schema_version"])
    entry += row["event_id"]
    entry += row["causation_id"] or b"\x00" * 16
    entry += struct.pack(">B", row["body_kind"])
    if row["body"] is None:
        entry += struct.pack(">I", erasure["body_len"])
        entry += bytes.fromhex(erasure["content_commit"]) + bytes.fromhex(erasure["stored_hash"])
    elif row["body_kind"] == 1:
        assert (row["body"][0], row["salt"]) == (1, None)
        entry += struct.pack(">I", len(row["body"]))
        entry += row["body"][29:61]
        entry += hashlib.sha256(b"eventlog/stored/v1\x00" + row["body"]).digest()
    else:
        entry += struct.pack(">I", len(row["body"]))
        entry += hashlib.sha256(b"eventlog/content/v1\x00" + row["salt"] + row["body"]).digest()
        entry += b"\x00" * 32
    entry += previous
    assert len(entry) == 193
    for text in (row["stream"], row["type"], row["actor"], row["correlation_id"] or ""):
        data = text.encode("utf-8")
        entry += struct.pack(">H", len(data)) + data
    return entry


def wrong_leaves(path: Path, events: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Give what is wrong with a leaf, be it the stored one or the one that was frozen with the golden log."""
    rows, log_ids = read_rows(path)
    said = [json.loads(row["body"]) for row in rows if row["type"] == "payload_erased"]
    erasures = {each["position"]: each for each in said}
    if len(rows) != len(events):
        yield f"{len(rows)} rows, and {len(events)} events were frozen"
    last: dict[str, bytes] = {}
    for row, event in zip(rows, events, strict=False):
        log_id = next(each["log_id"] for each in reversed(log_ids) if each["first_position"] <= row["position"])
        previous = last.get(row["stream"], b"\x00" * 32)
        entry = entry_of(row, log_id, previous, erasures.get(row["position"], {}))
        leaf = last[row["stream"]] = hashlib.sha256(b"\x00" + entry).digest()
        if not leaf == row["leaf"] == bytes.fromhex(event["leaf"]):
            yield f"the leaf at position {row['position']} is not the hash of its entry"
        if event.get("prev_in_stream", previous.hex()) != previous.hex():
            yield f"position {row['position']} does not follow the leaf in front of it"


def root_of(leaves: list[bytes]) -> bytes:
    """Return the Merkle tree hash of these leaf hashes, as RFC 6962 defines it."""
    if len(leaves) < 2:
        return leaves[0] if leaves else hashlib.sha256(b"").digest()
    half = 1 << (len(leaves) - 1).bit_length() - 1
    return hashlib.sha256(b"\x01" + root_of(leaves[:half]) + root_of(leaves[half:])).digest()
