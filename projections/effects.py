"""The view `effects`: what runs have done, or may have done, to the world; one row an effect.

    status        what is known of the effect
    not_begun     it was asked for; whether it may begin is said in the view `approvals`
    superseded    an edit has asked for another one instead, before it began
    open          an attempt has begun and has no result: it may have happened, or happen yet
    executed      the last attempt did it
    recovered     an earlier attempt had done it
    conflict      not done: the target holds something else
    failed        not done; `is_final`, if no attempt can do better
    unknown       nobody can tell: somebody has to find out
    reconciled    a person has found out: `verdict` is `executed`, `not_executed` or `abandoned`
    compensated   it was done, and another effect has undone it

Who is at an open attempt is named by `host`, `boot` and `lock`, the last `epoch` under which the run was claimed, and
`until_us`, until when it is theirs. An open row whose `until_us` has passed is a crash that nobody has looked after: in
no other status anybody would be told of it. `is_stray` says that an earlier attempt was overruled without proof that
its process is dead.

`step` is the step key, empty in a run of one action. The undoing of an effect is one itself: its row has in `undoes`
the `op_key` of the other. A row is named by `effect`: the request that asked for it, or the op_key of an undoing.
`result` is JSON text, and like `problem`, which says in words why an attempt came to nothing, cut after 2,000
characters with a mark; the log has all of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from eventlog.events import (
    RUN_PREFIX,
    ActionConflict,
    ActionExecuted,
    ActionFailed,
    ActionRecovered,
    ClaimRenewed,
    CompensationExecuted,
    CompensationFailed,
    CompensationStarted,
    OutcomeReconciled,
    OutcomeUnknown,
    ProposalRecorded,
    ResultRejected,
    ResumeStarted,
    RunClaimed,
)
from eventlog.proposal import stored_proposal
from eventlog.views import ViewEvent
from projections.projection import GroupProjection, Key, Row

__all__ = ["EFFECTS", "EffectsProjection"]

_COLUMNS: Final[Mapping[str, str]] = {
    "run_id": "TEXT NOT NULL",
    "step": "TEXT NOT NULL",
    "effect": "TEXT NOT NULL",
    "status": "TEXT NOT NULL",
    "action": "TEXT NOT NULL",
    "output": "TEXT NOT NULL",
    "op_key": "TEXT",
    "undoes": "TEXT",
    "attempts": "INTEGER NOT NULL",
    "began_at_us": "INTEGER",
    "changed_at_us": "INTEGER NOT NULL",
    "until_us": "INTEGER",
    "key_until_us": "INTEGER",
    "host": "TEXT",
    "boot": "TEXT",
    "lock": "TEXT",
    "epoch": "INTEGER",
    "is_stray": "INTEGER NOT NULL",
    "result": "TEXT",
    "problem_code": "TEXT",
    "problem": "TEXT",
    "is_final": "INTEGER NOT NULL",
    "verdict": "TEXT",
    "settled_by": "TEXT",
    "late": "TEXT",
}
_CLAIMS: Final = frozenset({"claim_renewed", "run_claimed"})
_LONGEST: Final = 2000
_FREE: Final[Mapping[str, Any]] = {"until_us": None, "host": None, "boot": None, "lock": None}
"""Nobody is at it any more."""
_FRESH: Final[Mapping[str, Any]] = {
    "result": None,
    "problem_code": None,
    "problem": None,
    "is_final": 0,
    "verdict": None,
    "settled_by": None,
}
"""An attempt that has begun has come to nothing yet."""


class EffectsProjection(GroupProjection):
    """Folds intents and what came of them into the row of each effect.

    A group is what one step has to do with: its effect, the undoing of it, and what edits have replaced. Only a claim
    of a run concerns all of its groups.
    """

    name = "effects"
    columns = _COLUMNS
    key_columns = 3
    group_columns = 2
    stream_prefix = RUN_PREFIX
    indexes = ("status, until_us",)
    event_types = frozenset(
        {
            "action_conflict",
            "action_executed",
            "action_failed",
            "action_recovered",
            "claim_renewed",
            "compensation_executed",
            "compensation_failed",
            "compensation_started",
            "outcome_reconciled",
            "outcome_unknown",
            "proposal_recorded",
            "result_rejected",
            "resume_started",
            "run_claimed",
        }
    )

    def group(self, event: ViewEvent) -> str | tuple[str, str]:
        """Return the run's id and the step, or for a claim of the run its id alone."""
        run_id = event.stream.removeprefix(RUN_PREFIX)
        return run_id if event.type in _CLAIMS else (run_id, event.data.step or "")

    def apply(self, rows: Mapping[Key, Row], event: ViewEvent) -> Iterable[Row]:
        """Return the rows of the effects that the event is about."""
        return [{**row, "changed_at_us": event.recorded_at_us} for row in _changed(rows, event)]


EFFECTS: Final = EffectsProjection()


def _changed(rows: Mapping[Key, Row], event: ViewEvent) -> list[Row]:
    match event.data:
        case ProposalRecorded() as asked:
            replaced = _asked_last(rows) if asked.supersedes is not None else []
            return [*({**row, "status": "superseded"} for row in replaced), _not_begun(event, asked)]
        case RunClaimed() | ClaimRenewed() as held:
            return [{**row, **_held(row, held)} for row in rows.values() if row["status"] == "open"]
        case ResumeStarted() as intent:
            return [{**row, **_begun(row, intent, event)} for row in _asked_last(rows)]
        case CompensationStarted() as intent:
            return _undoing(rows, intent, event)
        case CompensationExecuted() as done:
            return _undone(rows, done.op_key, _executed(done))
        case OutcomeReconciled(op_key=op_key, verdict="executed") as settled:
            return _undone(rows, op_key, _settled(settled, event))
        case data:
            return [{**row, **_come_to(data, event)} for row in _of_key(rows, data.op_key)]


def _of_key(rows: Mapping[Key, Row], op_key: str) -> list[Row]:
    return [row for row in rows.values() if row["op_key"] == op_key]


def _asked_last(rows: Mapping[Key, Row]) -> list[Row]:
    """Return the row of what a step asks for, behind all edits: those are made before an effect begins."""
    return [row for row in rows.values() if row["undoes"] is None and row["status"] != "superseded"]


def _not_begun(recorded: ViewEvent, event: ProposalRecorded) -> Row:
    proposal = stored_proposal(bytes(event.proposal))
    named = {"effect": event.request_id, "status": "not_begun", "step": event.step or ""}
    asked = {"action": proposal.action, "output": proposal.output}
    run_id = recorded.stream.removeprefix(RUN_PREFIX)
    return {**dict.fromkeys(_COLUMNS), **_FRESH, "run_id": run_id, **named, **asked, "attempts": 0, "is_stray": 0}


def _begun(row: Row, intent: ResumeStarted | CompensationStarted, recorded: ViewEvent) -> Row:
    return {
        **_FRESH,
        "status": "open",
        "op_key": intent.op_key,
        "attempts": intent.attempt,
        "began_at_us": recorded.recorded_at_us if row["began_at_us"] is None else row["began_at_us"],
        "until_us": intent.deadline_us,
        "key_until_us": intent.key_until_us,
        "host": intent.owner.host,
        "boot": intent.owner.boot,
        "lock": intent.owner.lock,
        "epoch": intent.epoch,
    }


def _undoing(rows: Mapping[Key, Row], intent: CompensationStarted, recorded: ViewEvent) -> list[Row]:
    undone = _of_key(rows, intent.compensates)
    before = _of_key(rows, intent.op_key)
    row = before[0] if before else {**dict.fromkeys(_COLUMNS), "is_stray": 0}
    named = {
        "run_id": recorded.stream.removeprefix(RUN_PREFIX),
        "effect": intent.op_key,
        "step": intent.step or "",
        "action": intent.action,
        "output": undone[0]["output"] if undone else "",
        "undoes": intent.compensates,
    }
    return [{**row, **named, **_begun(row, intent, recorded)}]


def _undone(rows: Mapping[Key, Row], op_key: str, changes: Row) -> list[Row]:
    """Return the row of an effect that was done and, if it was an undoing, that of what it undid."""
    changed = [{**row, **changes} for row in _of_key(rows, op_key)]
    return [
        *changed,
        *({**other, "status": "compensated"} for row in changed for other in _of_key(rows, row["undoes"] or "")),
    ]


def _held(row: Row, event: RunClaimed | ClaimRenewed) -> Row:
    if isinstance(event, ClaimRenewed):
        return {"until_us": max(row["until_us"], event.deadline_us)}
    return {
        "epoch": event.epoch,
        "until_us": event.deadline_us,
        "host": event.owner.host,
        "boot": event.owner.boot,
        "lock": event.owner.lock,
        "is_stray": int(row["is_stray"] or event.is_stray),
    }


def _come_to(event: Any, recorded: ViewEvent) -> Row:
    """Return what an attempt has come to, or what is said of one afterwards."""
    match event:
        case ActionExecuted():
            return _executed(event)
        case ActionRecovered():
            return {**_executed(event), "status": "recovered"}
        case ActionConflict(code=code, reason=reason):
            status = "unknown" if code == "idempotency_conflict" else "conflict"
            return _failed(status, code, reason)
        case ActionFailed(error=error, is_final=is_final) | CompensationFailed(error=error, is_final=is_final):
            return _failed("failed", error.code, error.message, is_final=is_final)
        case OutcomeUnknown(why=why):
            return _failed("unknown", None, why)
        case OutcomeReconciled():
            return _settled(event, recorded)
        case ResultRejected(rejected=rejected):
            return {"late": rejected}
        case _:
            return {}


def _executed(event: ActionExecuted | ActionRecovered | CompensationExecuted) -> Row:
    problem = None if event.not_stored is None else _cut(event.not_stored)
    return {**_FREE, **_FRESH, "status": "executed", "result": _json(event.result), "problem": problem}


def _failed(status: str, code: str | None, message: str, *, is_final: bool = False) -> Row:
    said = {"problem_code": code, "problem": _cut(message), "is_final": int(is_final)}
    return {**_FREE, **_FRESH, "status": status, **said}


def _settled(event: OutcomeReconciled, recorded: ViewEvent) -> Row:
    said = {"verdict": event.verdict, "settled_by": recorded.actor, "result": _json(event.result)}
    return {**_FREE, **_FRESH, "status": "reconciled", **said}


def _json(value: Any) -> str | None:
    return None if value is None else _cut(json.dumps(value, ensure_ascii=False))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
