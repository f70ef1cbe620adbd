"""One pure function for each command: the state of a run in, events out, or a refusal that is itself an event.

The runtime appends what comes out at exactly the version of the run that went in. A `Refusal` is appended the same way,
and then its error is raised: no "no" without a trace. Two refusals have no run to be recorded in, or would only repeat
its first event, and are errors alone: `unknown_run` and `run_exists`.

    answers        what a command comes to
    requests       which of the requests of a run is meant
    decisions      asking a person, and what is said to that
    withdrawals    taking something back before the act
    proofs         approvals as they are stored, looked at again before the effect
    frozen         what was approved, compared with what is there
    effects        resuming, and the intent to act
    compensation   undoing
"""

from __future__ import annotations

from eventlog.decide.answers import (
    Accepted,
    Refusal,
    Replay,
    check_run_id,
    refuse_resume,
    refuse_transition,
    require_run,
)
from eventlog.decide.compensation import begin_compensation, compensate
from eventlog.decide.decisions import DECISIONS, Terms, ask, check_roles, expire, has_expired, record_decision, start
from eventlog.decide.effects import VERDICTS, begin_effect, claim, found_out, reconcile, resume
from eventlog.decide.frozen import compare_view, view_columns
from eventlog.decide.requests import choose_request, is_pending
from eventlog.decide.withdrawals import cancel, edit, refuse_edit, revoke

__all__ = [
    "DECISIONS",
    "VERDICTS",
    "Accepted",
    "Refusal",
    "Replay",
    "Terms",
    "ask",
    "begin_compensation",
    "begin_effect",
    "cancel",
    "check_roles",
    "check_run_id",
    "choose_request",
    "claim",
    "compare_view",
    "compensate",
    "edit",
    "expire",
    "found_out",
    "has_expired",
    "is_pending",
    "reconcile",
    "record_decision",
    "refuse_edit",
    "refuse_resume",
    "refuse_transition",
    "require_run",
    "resume",
    "revoke",
    "start",
    "view_columns",
]
