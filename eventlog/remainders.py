"""What stays of an event of the engine when its body is erased: enough to fold its run, and nothing that anybody wrote.

`REMAINDERS` has a line for each field of each event of a run:

    kept       set by the engine (numbers, times, digests, op_keys, ids, statuses), or a name of the program's own code:
               actions, workflows, steps, signals, roles, groups
    code       a word of the program, as `card_declined`; anything that is not spelled like one is a text
    text       what a person, a tool or a model wrote: `ERASED` stands for it, where there was something
    dropped    the same, where the field may be absent
    value      JSON of theirs: the text `ERASED` stands for it, or a list of that for the input of a run

So the run still has its status, versions, waits, op_keys and hashes. Of a proposal the action stays; its arguments and
its target are gone, so that it can never run: it does not have its hash any more. Events about the log itself are never
erased.

What stays can say something all the same. A hash of a proposal, of arguments or of a state has no salt: who can guess
what was hashed can prove it. Names that a program makes of its data (a step called after a customer) stay as well, as
do those of streams and actors. Digests that a tool has reported, and those that a person has supplied, are dropped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from eventlog.events import RUN_EVENTS

__all__ = ["ERASED", "REMAINDERS", "remainder_of"]

ERASED: Final = "[erased]"
"""What stands where a text was that has to be there."""

_CODE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,79}")


class _Gone:
    """Stands for a field that is left out."""


_GONE: Final = _Gone()

Rule = Callable[[Any], Any]
"""From what stood in a field to what stands there now."""


def remainder_of(type: str, body: bytes) -> bytes:
    """Return what stays of a body, as JSON that decodes as the same type; `b""` for types that are not of a run."""
    rules = REMAINDERS.get(type)
    if rules is None:
        return b""
    fields: Any = msgspec.json.decode(body)
    remainder = _left_of(rules, fields)
    value = _VALUES.get(type)
    if value is not None and (value in fields or "artifact" in fields):
        remainder[value] = [ERASED] if value == "input" else ERASED
    if _has_lost_result(rules, fields):
        remainder["not_stored"] = ERASED
    return msgspec.json.encode(remainder)


def _left_of(rules: Mapping[str, Rule], fields: Mapping[str, Any]) -> dict[str, Any]:
    left = ((name, rules.get(name, _dropped)(value)) for name, value in fields.items())
    return {name: value for name, value in left if value is not _GONE}


def _has_lost_result(rules: Mapping[str, Rule], fields: Mapping[str, Any]) -> bool:
    return "not_stored" in rules and not fields.keys().isdisjoint({"result", "evidence", "not_stored"})


# ── rules ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _kept(value: Any) -> Any:
    return value


def _dropped(_: Any) -> Any:
    return _GONE


def _text(value: Any) -> Any:
    return value if value is None else ERASED


def _code(value: Any) -> Any:
    return value if value is None or (isinstance(value, str) and _CODE.fullmatch(value)) else ERASED


_value = _dropped  # `remainder_of` puts something in its place


def _inside(rules: Mapping[str, Rule]) -> Rule:
    """Return the rule for a field that holds an object, or several."""

    def left_of(value: Any) -> Any:
        match value:
            case dict():
                return _left_of(rules, value)
            case list():
                return [_left_of(rules, each) for each in value]
            case _:
                return _text(value)

    return left_of


def _proposal(value: Any) -> Any:
    """Return a proposal of the same action that can be read and never run, in the order of its canonical spelling."""
    return {"action": value["action"], "args": {ERASED: None}, "output": ERASED}


def _envelope(value: Any) -> Any:
    """Return that there was an envelope; what was signed held what its signer was shown."""
    return value if value is None else {"payload": "", "payloadType": value["payloadType"], "signatures": []}


# ── objects in events ────────────────────────────────────────────────────────────────────────────────────────────────

OWNER: Final[Mapping[str, Rule]] = {"host": _kept, "boot": _kept, "lock": _kept}
WAITING: Final[Mapping[str, Rule]] = dict.fromkeys(
    ("type", "node_id", "approval_id", "signal", "due_us", "child_run_id"), _kept
)
DEFINITION: Final[Mapping[str, Rule]] = dict.fromkeys(("workflow", "fingerprint", "version", "steps"), _kept)
PARENT: Final[Mapping[str, Rule]] = dict.fromkeys(("run_id", "step", "root_run_id", "relation"), _kept)
POLICY: Final[Mapping[str, Rule]] = dict.fromkeys(("required", "roles", "separation_of_duties", "level"), _kept)
FAILURE: Final[Mapping[str, Rule]] = {
    "code": _code,
    "message": _text,
    "details": _dropped,
    "type": _code,
    "traceback": _dropped,
}

_owner: Final = _inside(OWNER)
_waiting: Final = _inside(WAITING)
_failure: Final = _inside(FAILURE)

# ── events ───────────────────────────────────────────────────────────────────────────────────────────────────────────

_VALUES: Final[Mapping[str, str]] = {
    "checkpoint_saved": "input",
    "child_finished": "result",
    "run_completed": "result",
    "signal_received": "payload",
    "step_completed": "output",
}
"""Where an event holds a value, or names the artifact that does. The artifact is erased with it, so is its name."""

_INTENT: Final[Mapping[str, Rule]] = {
    "step": _kept,
    "op_key": _kept,
    "attempt": _kept,
    "epoch": _kept,
    "owner": _owner,
    "deadline_us": _kept,
    "input_hash": _kept,
    "key_until_us": _kept,
}

REMAINDERS: Final[Mapping[str, Mapping[str, Rule]]] = {
    "action_conflict": {
        "step": _kept,
        "action": _kept,
        "op_key": _kept,
        "reason": _text,
        "code": _code,
        "expected_content_hash": _dropped,
        "existing_content_hash": _dropped,
        "expected_content": _dropped,
        "existing_content": _dropped,
    },
    "action_executed": {
        "step": _kept,
        "action": _kept,
        "op_key": _kept,
        "result": _dropped,
        "not_stored": _text,
    },
    "action_failed": {
        "step": _kept,
        "action": _kept,
        "op_key": _kept,
        "error": _failure,
        "is_final": _kept,
    },
    "action_recovered": {
        "step": _kept,
        "action": _kept,
        "op_key": _kept,
        "evidence": _dropped,
        "result": _dropped,
        "not_stored": _text,
    },
    "action_replayed": {"step": _kept, "reason": _code},
    "approval_expired": {"step": _kept, "request_id": _kept, "expires_at_us": _kept},
    "approval_recorded": {
        "step": _kept,
        "request_id": _kept,
        "decision": _code,
        "approval_hash": _kept,
        "actor_source": _code,
        "reason": _dropped,
        "roles": _kept,
        "is_deciding": _kept,
        "level": _kept,
        "envelope": _envelope,
    },
    "approval_revoked": {"step": _kept, "request_id": _kept, "actor_source": _code, "reason": _dropped},
    "checkpoint_saved": {
        "status": _kept,
        "state_version": _kept,
        "waiting": _waiting,
        "also_waiting": _waiting,
        "definition": _inside(DEFINITION),
        "input": _value,
        "artifact": _dropped,
        "parent": _inside(PARENT),
        "committed": _kept,
        "is_released": _kept,
        "snapshot_hash": _kept,
    },
    "child_finished": {
        "key": _kept,
        "child_run_id": _kept,
        "status": _kept,
        "result": _value,
        "artifact": _dropped,
        "error": _failure,
    },
    "child_started": {
        "key": _kept,
        "child_run_id": _kept,
        "workflow": _kept,
        "relation": _kept,
        "input": _kept,
        "group": _kept,
    },
    "claim_renewed": {"epoch": _kept, "deadline_us": _kept},
    "compensation_executed": {
        "step": _kept,
        "action": _kept,
        "op_key": _kept,
        "compensates": _kept,
        "result": _dropped,
        "evidence": _dropped,
        "not_stored": _text,
    },
    "compensation_failed": {
        "step": _kept,
        "action": _kept,
        "op_key": _kept,
        "compensates": _kept,
        "error": _failure,
        "is_final": _kept,
    },
    "compensation_started": {**_INTENT, "action": _kept, "compensates": _kept, "reason": _dropped},
    "outcome_reconciled": {
        "step": _kept,
        "action": _kept,
        "op_key": _kept,
        "verdict": _code,
        "status": _kept,
        "evidence": _text,
        "actor_source": _code,
        "result": _dropped,
    },
    "outcome_unknown": {"step": _kept, "action": _kept, "op_key": _kept, "why": _text, "strays_are_over": _kept},
    "proposal_recorded": {
        "step": _kept,
        "request_id": _kept,
        "proposal": _proposal,
        "proposal_hash": _kept,
        "folder": _dropped,
        "policy": _inside(POLICY),
        "expires_at_us": _kept,
        "supersedes": _kept,
        "reason": _dropped,
        "rule_failed": _dropped,
        "group": _kept,
        "action_sha256": _kept,
    },
    "proposal_rejected": {
        "step": _kept,
        "phase": _code,
        "reason": _code,
        "action": _kept,
        "output": _dropped,
        "supplied_hash": _dropped,
        "current_hash": _kept,
        "stored_hash": _kept,
        "approval_hash": _kept,
        "current_output": _dropped,
        "approved_output": _dropped,
        "current_request_id": _kept,
        "approved_request_id": _kept,
        "viewed": _dropped,
    },
    "proposal_verified": {"step": _kept, "phase": _code, "proposal_hash": _kept},
    "result_rejected": {
        "step": _kept,
        "reason": _code,
        "rejected": _code,
        "op_key": _kept,
        "epoch": _kept,
        "attempt": _kept,
        "result": _dropped,
    },
    "resume_rejected": {"step": _kept, "reason": _code, "status": _code, "detail": _dropped, "viewed": _dropped},
    "resume_started": {**_INTENT, "approval_hash": _kept},
    "run_cancelled": {"actor_source": _code, "reason": _dropped},
    "run_claimed": {"epoch": _kept, "owner": _owner, "deadline_us": _kept, "is_stray": _kept},
    "run_completed": {"result": _value, "artifact": _dropped},
    "run_failed": {"error": _failure, "status": _kept},
    "signal_received": {"name": _kept, "payload": _value, "artifact": _dropped},
    "signal_rejected": {"name": _kept, "key": _kept, "reason": _text},
    "step_completed": {
        "name": _kept,
        "key": _kept,
        "kind": _code,
        "output": _value,
        "artifact": _dropped,
        "attempt": _kept,
        "input": _kept,
        "group": _kept,
    },
    "step_failed": {
        "name": _kept,
        "key": _kept,
        "kind": _code,
        "attempt": _kept,
        "error": _failure,
        "is_final": _kept,
        "retry_at_us": _kept,
        "input": _kept,
        "group": _kept,
    },
    "step_started": {"name": _kept, "key": _kept, "attempt": _kept},
    "timer_fired": {"key": _kept},
    "timer_set": {"key": _kept, "due_us": _kept, "group": _kept},
    "transition_rejected": {
        "step": _kept,
        "reason": _code,
        "attempted_decision": _code,
        "current_status": _code,
        "existing_approval": _code,
        "supplied_hash": _dropped,
        "detail": _dropped,
    },
}

assert REMAINDERS.keys() == RUN_EVENTS.keys(), "each event of a run has its line"
