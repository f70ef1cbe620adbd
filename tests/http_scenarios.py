"""What a process does that sends requests and may be killed. Each runs in a child of its own."""

from __future__ import annotations

import sys

import eventlog
from eventlog.runtime.failpoints import crash_at, pass_by

__all__ = ["makes_one_without_httpx", "resumes"]


async def resumes(path: str, origin: str, crash: str) -> dict[str, object]:
    """Resume `run-1` of the log, and crash at the failpoint if one is named."""
    action = eventlog.HttpRequest(key_lifetime_s=3600, allows=[origin], timeout_s=10)
    async with eventlog.open(path) as log:
        runner = eventlog.Runner(log, actions=[action], reach=crash_at(crash) if crash else pass_by)
        outcome = await runner.resume("run-1")
        return {"result": outcome.result, "status": outcome.status, "value": outcome.value}


def makes_one_without_httpx() -> dict[str, object]:
    """Import everything, and make the action, where httpx is not installed."""
    sys.modules["httpx"] = None  # type: ignore[assignment]
    is_importable = eventlog.HttpRequest.__name__ == "HttpRequest"
    try:
        eventlog.HttpRequest(key_lifetime_s=3600, allows=None)
    except eventlog.Misuse as error:
        return {"is_importable": is_importable, "code": error.code, "message": str(error)}
    return {"is_importable": is_importable}
