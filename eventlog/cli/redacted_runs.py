"""What is said of a run whose words are erased, or encrypted under a key that is not here, where a view tells of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from eventlog.cli.options import Options
from eventlog.cli.output import counted, note
from eventlog.events import run_stream
from eventlog.log import EventReader

__all__ = ["redacted_versions", "say_what_is_redacted"]


async def redacted_versions(log: EventReader, run_id: str) -> dict[int, str]:
    """Return the versions of the run's events whose words are not there, and why."""
    events = (await log.read_stream(run_stream(run_id))).events
    return {event.version: event.redacted for event in events if event.redacted is not None}


def say_what_is_redacted(options: Options, gone: Mapping[int, str], so: str = "what they said is not there") -> None:
    """Say it as a remark, if there is anything to say."""
    for why, count in sorted(Counter(gone.values()).items()):
        how = "encrypted, and the key is not here" if why == "key_missing" else "erased"
        note(options, f"{counted(count, 'event')} of this run: {how}; {so}")
