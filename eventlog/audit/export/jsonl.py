"""JSON Lines: one JSON object an event, UTF-8, each line ended by LF.

The keys are the fields of `ExportedEvent`, in that order. `correlation_id`, `causation_id` and `recorded_at` are null
where there is none; `stored_type`, `stored_schema_version` and `redacted` are left out where they say nothing new.
`data` is JSON itself, not JSON in a text.

It is exact: integers have all of their digits, characters that JSON has to escape (NUL among them) are escaped, and no
other is. So a reader has to take integers as integers: `position` stays below 2**63, those in `data` may be longer.

A line can be appended to another log as it is (`eventlog events append STREAM --from FILE`): data, type, schema
version, ids of the event, its correlation and its cause come from the line; place, time, actor and hash are those of
the new log. A line of a redacted event has no data to append, and is refused there.
"""

from __future__ import annotations

from typing import Final

import msgspec

from eventlog.audit.export.exported_event import ExportedEvent

__all__ = ["json_line"]

_encode: Final = msgspec.json.Encoder().encode


def json_line(event: ExportedEvent) -> bytes:
    """Return the event as one line."""
    return _encode(event) + b"\n"
