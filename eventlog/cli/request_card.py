"""One request whole, as the person sees it who decides on it: nothing cut, every character visible."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from difflib import unified_diff
from typing import Any, Final

from eventlog.cli.output import time_text
from eventlog.cli.reconcile import at_stake, commands_that_settle
from eventlog.cli.record import decider_of, decision_of, redaction_of, verdict_of
from eventlog.cli.text import is_hidden
from eventlog.cli.workflow_state import happened_anyway, terms_of
from eventlog.decide import Refusal, choose_request, is_pending
from eventlog.events import OfRequest, ProposalRecorded
from eventlog.log import RecordedEvent
from eventlog.progress import requests_of
from eventlog.run import Run, Status
from projections import wanted_requests

__all__ = ["card_of_request", "choose", "lines_of_request", "whole_request"]

Card = dict[str, Any]

_SIGNED: Final = 2
"""The least level of an approval that is signed."""

_RARE: Final = frozenset({"step", "policy", "votes", "expires_at", "supersedes", "parent_run_id"})


def choose(run: Run, request_id: str | None) -> Run:
    """Return the request that is meant: the named one, or the only one, or the only one that waits for a person.

    Raises Refused(`unknown_request`, `request_ambiguous`, `approval_not_pending`).
    """
    requests = requests_of(run)
    wanted = wanted_requests(run)
    if request_id is None and len(wanted) == 1:
        return wanted[0]
    found = choose_request(run, requests, "show", request_id=request_id, is_candidate=_is_wanted)
    if isinstance(found, Refusal):
        raise found.error
    return found


def whole_request(db: str, run: Run, request: Run, events: Sequence[RecordedEvent]) -> tuple[Card, Card]:
    """Return a request as a card for people, and as a document with its arguments and the commands that follow."""
    own = [event for event in events if _step_of(event) == request.step]
    asked = next(event for event in reversed(own) if isinstance(event.data, ProposalRecorded))
    card = card_of_request(request)
    if run.progress is not None:
        card |= _place_of(run, request)
    card |= {"version": run.version, "recorded_at": time_text(asked.recorded_at_us), "recorded_by": asked.actor}
    card |= terms_of(request) | decision_of(request) | at_stake(request) | verdict_of(own, request.step)
    document = card | {
        "executed": request.executed,
        "result": request.result,
        "rule_failed": asked.data.rule_failed,
        "hidden_characters": _count_hidden([card["action"], card["args"], card["output"]]),
        "changes": _changes(request, own),
        "approve_with": _approve_command(db, run, request),
        "reconcile_with": commands_that_settle(db, request, run.version),
    }
    shown = card | {"decided_by": decider_of(card)}
    return {name: value for name, value in shown.items() if name != "args" and _is_shown(name, value)}, document


def lines_of_request(document: Mapping[str, Any]) -> list[str]:
    """Return what follows the card of a request for people: its arguments whole, and what may be done."""
    settling = document["reconcile_with"]
    return [
        "args:",
        *_pretty(document["args"]),
        *_changed(document),
        *_warning(document["hidden_characters"]),
        *_failed_rule(document["rule_failed"]),
        *_happened_anyway(document),
        *_approving(document),
        *_settling(document, settling),
    ]


def card_of_request(request: Run) -> Card:
    """Return what a request asks for, and what was decided."""
    proposal = request.proposal
    assert proposal is not None, "a request has a proposal"
    return {
        "run_id": request.run_id,
        "step": request.step,
        "status": request.status.value,
        "request_id": request.request_id,
        "action": proposal.action,
        "args": proposal.args,
        "output": proposal.output,
        "folder": request.folder,
        "proposal_hash": proposal.hash if request.redacted is None else request.proposal_hash,
        **redaction_of(request),
        "approval": request.approval,
        "approval_request_id": request.approval_request_id,
        "approval_hash": request.approval_hash,
    }


def _is_shown(name: str, value: Any) -> bool:
    """Say whether a card for people has a line for it: what only some requests have is left out where it is not."""
    return name not in _RARE or value not in (None, [])


def _is_wanted(request: Run) -> bool:
    return is_pending(request) or request.is_unknown


def _step_of(event: RecordedEvent) -> str | None:
    return event.data.step if isinstance(event.data, OfRequest) else None


def _place_of(run: Run, request: Run) -> Card:
    parent = run.progress.parent
    return {
        "workflow": run.progress.definition.workflow,
        "run_status": run.status.value,
        "parent_run_id": parent.run_id if parent is not None else None,
    }


def _count_hidden(value: Any) -> int:
    """Return how many characters of the texts in plain data people could not see, if they were not escaped."""
    match value:
        case str():
            return sum(map(is_hidden, value))
        case dict():
            return sum(_count_hidden(key) + _count_hidden(each) for key, each in value.items())
        case list():
            return sum(map(_count_hidden, value))
        case _:
            return 0


def _changes(request: Run, events: Sequence[RecordedEvent]) -> list[str] | None:
    """Return what an edit has changed as the lines of a diff, or None if the request was not edited."""
    asked = [event.data for event in events if isinstance(event.data, ProposalRecorded)]
    before = next((each for each in asked if each.request_id == request.supersedes), None)
    if before is None or request.proposal is None:
        return None
    first, now = (_spelled(json.loads(canonical)) for canonical in (bytes(before.proposal), request.proposal.canonical))
    return list(unified_diff(first, now, lineterm=""))[2:]


def _changed(document: Mapping[str, Any]) -> list[str]:
    if document["changes"] is None:
        return []
    return [f"changed from {document['supersedes']}:", *_indented(document["changes"])]


def _warning(hidden: int) -> list[str]:
    return [f"note: {hidden} characters that cannot be seen are shown as escapes"] if hidden else []


def _pretty(args: dict[str, Any]) -> list[str]:
    return _indented(_spelled(args))


def _spelled(value: Any) -> list[str]:
    # Line breaks are escapes inside JSON text, so that each line here is one of the layout, never one of the data.
    return json.dumps(value, ensure_ascii=False, sort_keys=True, indent=2).split("\n")


def _indented(lines: Iterable[str]) -> list[str]:
    return ["  " + line for line in lines]


def _failed_rule(why: str | None) -> list[str]:
    return [] if why is None else [f"its auto rule failed: {why}"]


def _happened_anyway(document: Mapping[str, Any]) -> list[str]:
    """Say that a cancellation came too late to keep the effect from happening."""
    line = happened_anyway(document)
    return [] if line is None else [line]


def _approving(document: Mapping[str, Any]) -> list[str]:
    command = document["approve_with"]
    if command is None:
        return []
    roles = document["policy"]["roles"] if document["policy"] is not None else []
    return [f"approve with:  {command}", *([f"  ROLE is one of:  {', '.join(roles)}"] if roles else [])]


def _settling(document: Mapping[str, Any], commands: dict[str, str] | None) -> list[str]:
    if document["intent"] is not None:
        attempt = f"attempt {document['attempts']} has begun and has no result yet"
        return [f"{attempt}: if it ended without one, resume where the action is registered, or reconcile"]
    if commands is None:
        return []
    undoing = document["undoing"]
    about = f"what {document['action']!r} did" if undoing is None else f"whether {undoing!r} has undone it"
    return [
        *_late(document["late_result"]),
        f"find out {about}, say how as the evidence, and reconcile with one of:",
        *_indented(commands.values()),
    ]


def _late(result: dict[str, Any] | None) -> list[str]:
    """Say what a resumer that came late has reported: nobody else may know it."""
    if result is None:
        return []
    return [f"attempt {result['attempt']} was overruled, and reported late: {result['rejected']}"]


def _approve_command(db: str, run: Run, request: Run) -> str | None:
    """Return the command that approves exactly this proposal, or None if it is decided already.

    Where its terms want a role, or a signature, the place for one is there, and refused as it stands: which one is
    brought is said by who brings it.
    """
    if request.status is not Status.WAITING_FOR_USER or request.proposal is None:
        return None
    named = [] if run.progress is None else ["--request", str(request.request_id)]
    role = ["--role", "ROLE"] if request.policy is not None and request.policy.roles else []
    key = ["--sign", "KEY"] if request.policy is not None and request.policy.level >= _SIGNED else []
    words = ["eventlog", "--db", db, "approve", *named, "--proposal-hash", request.proposal.hash, *role, *key]
    words += ["--", run.run_id]
    if not run.run_id.startswith("-"):
        words.remove("--")
    return shlex.join(words)
