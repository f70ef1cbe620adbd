"""What people are wanted for, as the rows that `approvals list` shows. They come from views; no stream is read."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, Final

from eventlog.cli.options import Options
from eventlog.cli.output import time_text
from eventlog.cli.wiring import ACTION
from projections import Row
from projections.sqlite_views.wanted import Wanted

__all__ = ["wanted_rows"]

_AS_THEY_ARE: Final = (
    "run_id",
    "request_id",
    "args",
    "output",
    "proposal_hash",
    "approval_request_id",
    "approval_hash",
    "executed",
    "workflow",
    "parent_run_id",
    "root_run_id",
    "waiting_for",
)


def wanted_rows(options: Options, wanted: Wanted, now_us: int) -> list[Row]:
    """Return a row for each thing that somebody has to look after at `now_us`, by run.

    `wanted` says what for: `decide`, or `expired` if that is too late; `reconcile`; or `resume`, for an attempt that
    has no result though its time has passed, which is what a crash leaves. `next` are the commands that go on.
    """
    found = [(row["request_id"], _asked(options, row, now_us)) for row in wanted.requests]
    found += [(row["effect"], _crashed(options, row)) for row in wanted.crashes]
    found.sort(key=lambda each: (each[1]["run_id"], each[0]))
    return [row for _, row in found]


def _asked(options: Options, row: Row, now_us: int) -> Row:
    expires_at_us = row["expires_at_us"] if row["wanted"] == "decide" else None
    is_late = expires_at_us is not None and now_us >= expires_at_us
    is_undoing = row["at_stake"] not in (None, row["action"])
    return {
        **_request(row),
        "action": _undoing(row["at_stake"], row["action"]) if is_undoing else row["action"],
        "expires_at": None if expires_at_us is None else time_text(expires_at_us),
        "wanted": "expired" if is_late else row["wanted"],
        "attempts": None,
        "began_at": None,
        "until": None,
        "next": [_command(options, row, "approvals", "show", *_named(row))],
    }


def _crashed(options: Options, row: Row) -> Row:
    is_undoing = row["undoes"] is not None
    reconcile = ("reconcile", *_named(row), "--verdict", "VERDICT", "--at-version", "N", "--evidence", "TEXT")
    resume = [] if is_undoing else [_command(options, row, "resume", *_app(options, row))]
    return {
        **_request(row),
        "action": _undoing(row["at_work_on"], row["action"]) if is_undoing else row["action"],
        "expires_at": None,
        "wanted": "resume",
        "attempts": row["attempts"],
        "began_at": time_text(row["began_at_us"]),
        "until": time_text(row["until_us"]),
        "next": [*resume, _command(options, row, *reconcile)],
    }


def _request(row: Row) -> Row:
    """Return what every row says of its request. `status` is that of the run."""
    return {
        **{name: row[name] for name in _AS_THEY_ARE},
        "status": row["run_status"],
        "step": row["step"] or None,
        "approval": row["decision"],
    }


def _undoing(undoing: str, action: str) -> str:
    """Return the name of what undoes an effect, with that of the effect."""
    return f"{undoing} (undoes {action})"


def _named(row: Row) -> Sequence[str]:
    """Return the option that names the request, where a run may have several."""
    return ("--request", row["request_id"]) if row["step"] else ()


def _app(options: Options, row: Row) -> Sequence[str]:
    """Return the option that brings the action, or shows its place where this command line cannot perform it."""
    if options.given.get("app") is not None:
        return "--app", str(options.app)
    return () if row["action"] == ACTION and row["workflow"] is None else ("--app", "MODULE:RUNNER")


def _command(options: Options, row: Row, *words: str) -> str:
    run_id: Any = row["run_id"]
    end = ("--", run_id) if run_id.startswith("-") else (run_id,)
    return shlex.join(["eventlog", "--db", options.db, *words, *end])
