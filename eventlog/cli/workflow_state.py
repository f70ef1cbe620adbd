"""A workflow run as people and programs read it: the paused state first, then all that stands behind it.

    run_id, state_version, status, committed, pending_writes, waiting      what a paused run is, in this order

`committed` are the keys of the steps that are part of the state, `pending_writes` what is done already and not yet
part of it, by key: the value, or `artifact://<sha256>` where it is kept beside the log. `waiting` is what the run waits
for, null if for nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final

from msgspec import to_builtins

from eventlog.cli.output import cell, time_text
from eventlog.cli.record import decision_of, redaction_of
from eventlog.cli.text import shortened, visible
from eventlog.errors import CODES
from eventlog.events import Parent, ResumeRejected, ResumeStarted, RunClaimed, Waiting
from eventlog.log import RecordedEvent
from eventlog.progress import ENDED, Progress, Step, Stored, requests_of
from eventlog.run import Run, Status, Vote
from projections.run_refusals import OF_THE_RUN

__all__ = [
    "happened_anyway",
    "last_refusal",
    "paused_state",
    "refused_text",
    "request_document",
    "state_card",
    "state_document",
    "state_lines",
    "stored_value",
    "terms_of",
    "way_out",
]

_VALUE: Final = 120
"""How many characters of a value a line for people shows; the JSON document has all."""


def paused_state(run: Run) -> dict[str, Any]:
    """Return the state of a paused run; `also_waiting` is there only if it waits for more than one thing."""
    progress: Progress = run.progress
    waits = [_waiting(wait) for wait in progress.waits]
    state = {
        "run_id": run.run_id,
        "state_version": run.state_version,
        "status": run.status.value,
        "committed": list(progress.committed),
        "pending_writes": {key: _written(value) for key, value in progress.pending_writes().items()},
        "waiting": waits[0] if waits else None,
    }
    return state | ({"also_waiting": waits[1:]} if waits[1:] else {})


def state_document(run: Run, events: Sequence[RecordedEvent]) -> dict[str, Any]:
    """Return all that is known of a workflow run, the paused state first. `events` are all of the run."""
    progress: Progress = run.progress
    definition = progress.definition
    return paused_state(run) | {
        "workflow": definition.workflow,
        "code_version": definition.version,
        "fingerprint": definition.fingerprint,
        "version": run.version,
        **redaction_of(run),
        "epoch": run.epoch,
        "driven_by": to_builtins(progress.owner),
        "refused": last_refusal(run, events),
        "input": stored_value(progress.input),
        "result": stored_value(progress.value),
        "failure": to_builtins(run.failure),
        "steps": [_step(key, step, progress) for key, step in progress.steps.items()],
        "requests": [request_document(request) for request in requests_of(run)],
        "timers": [
            {"key": key, "due_at": time_text(timer.due_us), "has_fired": timer.has_fired}
            for key, timer in progress.timers.items()
        ],
        "signals": {name: [stored_value(each) for each in kept] for name, kept in progress.signals.items() if kept},
        "children": [
            {
                "key": key,
                "run_id": child.run_id,
                "workflow": child.workflow,
                "relation": child.relation,
                "status": child.status.value if child.status is not None else None,
                "result": stored_value(child.value),
            }
            for key, child in progress.children.items()
        ],
        "parent": _parent(progress.parent),
        "root_run_id": run.root_run_id,
        "recorded_at": time_text(run.recorded_at_us),
    }


def last_refusal(run: Run, events: Sequence[RecordedEvent]) -> dict[str, Any] | None:
    """Return why nobody could drive a run on when that was tried last; None if it has gone on since, or ended.

    What is asked of the run itself, an approval or a verdict, is no reason: that is in its status.
    """
    if run.status in ENDED:
        return None
    for event in reversed(events):
        match event.data:
            case RunClaimed() | ResumeStarted(step=None):
                return None
            case ResumeRejected(step=None, reason=reason, detail=detail) if reason not in OF_THE_RUN:
                return {"code": reason, "detail": detail, "at": time_text(event.recorded_at_us)}
    return None


def refused_text(refusal: Mapping[str, Any] | None) -> str | None:
    """Return a refusal on one line for people."""
    if refusal is None:
        return None
    detail = refusal["detail"]
    return refusal["code"] if detail is None else f"{refusal['code']} ({shortened(detail, 2 * _VALUE)})"


def way_out(run: Run, events: Sequence[RecordedEvent]) -> str | None:
    """Return why an approved run was not resumed when that was tried last, and what its reader can do about it."""
    refusal = last_refusal(run, events) if run.status is Status.APPROVED else None
    if refusal is None:
        return None
    known = CODES.get(refusal["code"])
    return f"resume was refused: {refused_text(refusal)}{'' if known is None else f'. {known.hint}'}"


def request_document(request: Run) -> dict[str, Any]:
    """Return one request of a run with what was said to it and what became of its effect."""
    proposal = request.proposal
    assert proposal is not None, "a request has a proposal"
    return {
        "request_id": request.request_id,
        "step": request.step,
        "action": proposal.action,
        "args": proposal.args,
        "output": proposal.output,
        "folder": request.folder,
        "proposal_hash": proposal.hash if request.redacted is None else request.proposal_hash,
        "status": request.status.value,
        **terms_of(request),
        "approval": request.approval,
        **decision_of(request),
        "executed": request.executed,
        "attempts": request.attempts,
        "op_key": request.op_key,
        "result": request.result,
        "failure": to_builtins(request.failure),
        "problem": to_builtins(request.problem),
        "unknown": request.unknown,
    }


def terms_of(request: Run) -> dict[str, Any]:
    """Return on what terms a request is decided, and what has been said so far."""
    policy = request.policy
    return {
        "proposed_by": request.proposed_by,
        "policy": None
        if policy is None
        else {
            "required": policy.required,
            "roles": list(policy.roles),
            "separation_of_duties": policy.separation_of_duties,
            **({"level": policy.level} if policy.level else {}),
        },
        "votes": [_vote(vote) for vote in request.votes],
        "expires_at": _time_text(request.expires_at_us),
        "supersedes": request.supersedes,
    }


def _vote(vote: Vote) -> dict[str, Any]:
    """Return a decision, with its level where that is more than that a program says so."""
    spelled: dict[str, Any] = to_builtins(vote)
    more = {name: spelled.pop(name) for name in ("level", "is_signed")}
    return spelled | {name: value for name, value in more.items() if value}


def happened_anyway(request: Mapping[str, Any]) -> str | None:
    """Return in words that the effect of a cancelled request happened all the same, and what it returned."""
    if not request["executed"] or request["status"] != Status.CANCELLED.value:
        return None
    result = cell(request["result"])
    return f"cancelled, but the effect of {request['action']!r} happened all the same; its result: {result}"


def state_card(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a state document that is one line each for people."""
    waits = [document["waiting"], *document.get("also_waiting", ())] if document["waiting"] is not None else []
    names = ("run_id", "status", "workflow", "code_version", "fingerprint", "state_version", "version")
    card = {name: document[name] for name in names}
    card["redacted"] = document.get("redacted")
    card["refused"] = refused_text(document["refused"])
    card["waiting"] = "; ".join(map(_wait_line, waits)) or None
    card["committed"] = ", ".join(document["committed"]) or None
    parent = document["parent"]
    card["parent"] = None if parent is None else f"{parent['run_id']} ({parent['relation']} of step {parent['step']})"
    card |= {name: document[name] for name in ("input", "result", "failure", "recorded_at")}
    return {name: value for name, value in card.items() if value is not None or name in ("waiting", "committed")}


def state_lines(document: Mapping[str, Any]) -> list[str]:
    """Return what follows the card: pending writes, steps, requests, children, timers and signals, a line each."""
    return [
        *_section("pending writes", ((key, _short(value)) for key, value in document["pending_writes"].items())),
        *_section("steps", map(_step_cells, document["steps"])),
        *_section("requests", map(_request_cells, document["requests"])),
        *_section("children", map(_child_cells, document["children"])),
        *_section("timers", ((each["key"], f"due {each['due_at']}") for each in _open_timers(document))),
        *_section("signals not taken", ((name, _short(kept)) for name, kept in document["signals"].items())),
    ]


def stored_value(stored: Stored) -> Any:
    """Return a stored value as plain data, or the name of the artifact that holds it."""
    if stored.artifact is not None:
        return f"artifact://{stored.artifact}"
    text = bytes(stored.json)
    return json.loads(text) if text else None


def _parent(parent: Parent | None) -> dict[str, Any] | None:
    return None if parent is None else {name: getattr(parent, name) for name in parent.__struct_fields__}


def _written(value: Any) -> Any:
    return stored_value(value) if isinstance(value, Stored) else value


def _waiting(wait: Waiting) -> dict[str, Any]:
    """Return a wait. Of an approval exactly what, where and which request; when it expires is said with the request."""
    found: dict[str, Any] = {"type": wait.type, "node_id": wait.node_id}
    if wait.type == "approval":
        return found | {"approval_id": wait.approval_id}
    more = {"signal": wait.signal, "child_run_id": wait.child_run_id, "due_at": _time_text(wait.due_us)}
    return found | {name: value for name, value in more.items() if value is not None}


def _step(key: str, step: Step, progress: Progress) -> dict[str, Any]:
    return {
        "key": key,
        "name": step.name,
        "kind": step.kind,
        "attempts": step.attempts,
        "state": _state_of_step(key, step, progress),
        "group": progress.groups.get(key),
        "error": to_builtins(progress.failures.get(key)),
        "retry_at": _time_text(step.retry_at_us),
    }


def _state_of_step(key: str, step: Step, progress: Progress) -> str:
    if step.is_done:
        return "committed" if key in progress.committed else "pending"
    if key in progress.failures:
        return "failed"
    if step.retry_at_us is not None:
        return "retrying"
    return "running" if progress.owner is not None else "interrupted"


def _section(title: str, rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a heading and rows whose columns stand below one another; nothing if there are no rows."""
    from rich.cells import cell_len

    shown = [[visible(text) for text in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip_longest(*shown, fillvalue="")]
    lines = [
        "  ".join(text + " " * (width - cell_len(text)) for text, width in zip(row, widths, strict=False)).rstrip()
        for row in shown
    ]
    return [f"{title}:", *(f"  {line}" for line in lines)] if lines else []


def _step_cells(step: Mapping[str, Any]) -> list[str]:
    more = [] if step["attempts"] == 1 else [f"{step['attempts']} attempts"]
    if step["retry_at"] is not None:
        more.append(f"again at {step['retry_at']}")
    if step["error"] is not None:
        more.append(f"{step['error']['code']}: {shortened(step['error']['message'], _VALUE)}")
    return [step["key"], step["state"], ", ".join(more)]


def _request_cells(request: Mapping[str, Any]) -> list[str]:
    policy, votes = request["policy"], request["votes"]
    more = [f"{len(votes)} of {policy['required']} votes"] if policy is not None and policy["required"] > 1 else []
    if request["expires_at"] is not None:
        more.append(f"expires {request['expires_at']}")
    happened = happened_anyway(request)
    if happened is not None:
        more.append(shortened(happened, 2 * _VALUE))
    asked = f"{request['action']} -> {request['output']}"
    return [request["request_id"], request["status"], asked, request["proposal_hash"], ", ".join(more)]


def _child_cells(child: Mapping[str, Any]) -> list[str]:
    return [child["key"], child["run_id"], child["workflow"], child["status"] or "has not ended"]


def _open_timers(document: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    return (timer for timer in document["timers"] if not timer["has_fired"])


def _wait_line(wait: Mapping[str, Any]) -> str:
    due = f" until {wait['due_at']}" if "due_at" in wait else ""
    match wait["type"]:
        case "approval":
            return f"approval of {wait['node_id']} ({wait['approval_id']})"
        case "signal":
            return f"signal {wait['signal']}{due}"
        case "child":
            return f"child {wait['child_run_id']}"
        case _:
            return f"{wait['type']} of {wait['node_id']}{due}"


def _short(value: Any) -> str:
    return shortened(cell(value), _VALUE)


def _time_text(at_us: int | None) -> str | None:
    return None if at_us is None else time_text(at_us)
