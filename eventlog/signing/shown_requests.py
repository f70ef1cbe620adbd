"""A request as it is shown to the approver who signs: plain text, the same bytes for the same event everywhere.

An approval says what was on the screen by its digest (`displayed`), so the text is made from the event of the proposal
alone, and anybody who has that can make it again: nothing in it depends on the time, the terminal or the path of a
file. Each line is one of the layout: texts of the data are in it as JSON, with every character that people cannot see
escaped, and those that Unicode 3.2 did not have: which later ones can be seen depends on the version of Python.
"""

from __future__ import annotations

import json
import re
import unicodedata
from hashlib import sha256
from typing import Any, Final

from eventlog.events import RUN_PREFIX, PolicyTerms, ProposalRecorded
from eventlog.log import RecordedEvent
from eventlog.proposal import stored_proposal
from eventlog.signing.statements import Displayed
from eventlog.text import is_hidden
from eventlog.times import time_text

__all__ = ["SHOWN_AS", "displayed_request", "shown_request"]

SHOWN_AS: Final = "text/vnd.eventlog.request; version=1"
"""The media type of what `shown_request` makes. Another program that shows requests has another."""

_NOT_ASCII: Final = re.compile(r"[^\x00-\x7e]")


def shown_request(asked: RecordedEvent, log_id: bytes) -> str:
    """Return the request that the event, a `ProposalRecorded`, makes in the log of this id.

    Raises InvalidInput(`invalid_event`) where the event holds no proposal.
    """
    event: ProposalRecorded = asked.data
    proposal = stored_proposal(bytes(event.proposal))
    lines = [
        ("log", log_id.hex()),
        ("run", _json(asked.stream.removeprefix(RUN_PREFIX))),
        ("request", _json(event.request_id)),
        ("step", None if event.step is None else _json(event.step)),
        ("action", _json(proposal.action)),
        ("definition", event.action_sha256 or "not recorded"),
        ("output", _json(proposal.output)),
        ("folder", None if event.folder is None else _json(event.folder)),
        ("asked by", _json(asked.actor)),
        ("asked at", time_text(asked.recorded_at_us)),
        ("in place of", None if event.supersedes is None else _json(event.supersedes)),
        ("terms", _terms(event.policy)),
        ("decide until", None if event.expires_at_us is None else time_text(event.expires_at_us)),
        ("position", str(asked.position)),
        ("proposal", event.proposal_hash),
    ]
    args = [f"  {line}" for line in _json(proposal.args, indent=2).split("\n")]
    shown = [f"{name + ':':<14}{text}" for name, text in lines if text is not None]
    return "\n".join([*shown, "args:", *args, ""])


def displayed_request(asked: RecordedEvent, log_id: bytes) -> Displayed:
    """Return what a statement says of an approver who was shown `shown_request`. Raises as that."""
    text = shown_request(asked, log_id)
    return Displayed(media_type=SHOWN_AS, sha256=sha256(text.encode()).hexdigest())


def _terms(policy: PolicyTerms | None) -> str:
    policy = policy or PolicyTerms()
    people = "1 approval" if policy.required == 1 else f"{policy.required} approvals by different people"
    roles = f", each with one of the roles {_json(list(policy.roles))}" if policy.roles else ""
    duties = ", not by who asked" if policy.separation_of_duties else ""
    level = f", of level {policy.level} or higher" if policy.level else ""
    return people + roles + duties + level


def _json(value: Any, indent: int | None = None) -> str:
    return _NOT_ASCII.sub(_seen, json.dumps(value, ensure_ascii=False, sort_keys=True, indent=indent))


def _seen(match: re.Match[str]) -> str:
    character = match.group()
    if is_hidden(character) or unicodedata.ucd_3_2_0.category(character) == "Cn":
        return json.dumps(character)[1:-1]
    return character
