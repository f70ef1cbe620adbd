"""What must be true of a simulation when it is over, found from the stored bytes and the receivers' record alone.

Nothing of the engine folds events here: decisions are read in the order of the log, from the JSON that is stored.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from eventlog.entry import NO_HASH
from eventlog.log import RecordedEvent
from tools.campaigns.simulation.receivers import Effect

__all__ = ["Judged", "judge"]

Wrong = tuple[str, str]
"""The invariant that does not hold, and what shows it."""

_RUN: Final = "run:"


@dataclass(slots=True)
class _Request:
    """What the log says of one request so far: of a run of one action, or of one step of a workflow."""

    hash: str
    proposal: dict[str, Any]
    required: int
    expires_at_us: int | None
    votes: set[str] = field(default_factory=set)
    is_approved: bool = False
    closed: str = ""
    """Why nothing may begin any more: it was rejected, or has expired."""


@dataclass(frozen=True, slots=True)
class _Intent:
    """The first intent of an op_key."""

    position: int
    place: tuple[str, str | None]
    proposal: dict[str, Any]


class Judged:
    """What the log says, read from its first event to its last."""

    def __init__(self) -> None:
        self.wrong: Final[list[Wrong]] = []
        self.intents: Final[dict[str, _Intent]] = {}
        self.happened: Final[dict[str, int]] = {}
        """The op_keys of which the log says that their effect has happened, and at which position."""
        self._requests: Final[dict[tuple[str, str | None], _Request]] = {}
        self._cancelled: Final[set[str]] = set()
        self._claimed_by: Final[dict[str, Any]] = {}
        """Who has claimed a run last."""

    def note(self, event: RecordedEvent) -> None:
        """Read the next event of a run."""
        body: dict[str, Any] = msgspec.json.decode(event.body)
        place = (event.stream, body.get("step"))
        match event.type:
            case "proposal_recorded":
                terms = body.get("policy") or {}
                self._requests[place] = _Request(
                    hash=body["proposal_hash"],
                    proposal=body["proposal"],
                    required=terms.get("required", 1),
                    expires_at_us=body.get("expires_at_us"),
                )
            case "approval_recorded":
                self._decided(event, self._requests[place], body)
            case "approval_revoked":
                request = self._requests[place]
                request.is_approved, request.votes = False, set()
            case "approval_expired":
                self._requests[place].closed = "it has expired"
            case "run_cancelled":
                self._cancelled.add(event.stream)
            case "run_claimed":
                if self._claimed_by.get(event.stream) == body["owner"]:
                    where = f"at position {event.position} of {event.stream}"
                    self.wrong.append(("I9", f"who holds the run claims it {where}, and fences what it does itself"))
                self._claimed_by[event.stream] = body["owner"]
            case "resume_started":
                self._begun(event, place, body)
            case "action_executed" | "action_recovered":
                self.happened.setdefault(body["op_key"], event.position)
            case "outcome_reconciled" if body["verdict"] == "executed":
                self.happened.setdefault(body["op_key"], event.position)

    def _decided(self, event: RecordedEvent, request: _Request, body: dict[str, Any]) -> None:
        where = f"at position {event.position} of {event.stream}"
        if body["approval_hash"] != request.hash:
            self.wrong.append(("I7", f"something else than what was asked is decided on {where}"))
        if request.expires_at_us is not None and event.recorded_at_us >= request.expires_at_us:
            self.wrong.append(("I7", f"a decision that came too late is recorded {where}"))
        if body["decision"] != "approve":
            request.closed = "it was rejected"
            return
        request.votes.add(event.actor)
        if body.get("is_deciding", True):
            if len(request.votes) < request.required and body["actor_source"] != "policy":
                self.wrong.append(("I7", f"{len(request.votes)} of {request.required} people decide {where}"))
            request.is_approved = True

    def _begun(self, event: RecordedEvent, place: tuple[str, str | None], body: dict[str, Any]) -> None:
        request = self._requests.get(place)
        where = f"the intent at position {event.position} of {event.stream}"
        if request is None or not request.is_approved:
            self.wrong.append(("I7", f"{where} has no approval that counts"))
        elif request.closed:
            self.wrong.append(("I7", f"{where} came though {request.closed}"))
        elif {body["approval_hash"], body["input_hash"]} != {request.hash}:
            self.wrong.append(("I7", f"{where} is for something else than what was approved"))
        if event.stream in self._cancelled:
            self.wrong.append(("I7", f"{where} came though the run was cancelled"))
        if body["op_key"] in self.happened:
            self.wrong.append(("I5", f"{where} came behind the result of the very same effect"))
        if request is not None:
            self.intents.setdefault(body["op_key"], _Intent(event.position, place, request.proposal))


def judge(events: Sequence[RecordedEvent], effects: Sequence[Effect]) -> list[Wrong]:
    """Return every violation that the log and the receivers' record show together."""
    judged = Judged()
    for event in events:
        if event.stream.startswith(_RUN):
            judged.note(event)
    return [*_gaps(events), *judged.wrong, *_unfounded(judged, effects), *_untrue(judged, effects)]


def _gaps(events: Sequence[RecordedEvent]) -> Iterator[Wrong]:
    """Yield where positions, versions or links are not those that follow."""
    last: dict[str, tuple[int, bytes]] = {}
    seen: set[bytes] = set()
    for position, event in enumerate(events, start=1):
        version, leaf = last.get(event.stream, (0, NO_HASH))
        if (event.position, event.version, event.prev_in_stream) != (position, version + 1, leaf):
            yield "I2", f"position {position} holds version {event.version} of {event.stream} behind {version}"
        if event.event_id in seen:
            yield "I4", f"the event at position {position} is stored twice"
        seen.add(event.event_id)
        last[event.stream] = (event.version, event.leaf)
    for one, other in itertools.pairwise(events):
        if other.recorded_at_us < one.recorded_at_us:
            yield "I2", f"the time of position {other.position} is before that of the one in front of it"


def _unfounded(judged: Judged, effects: Sequence[Effect]) -> Iterator[Wrong]:
    """Yield effects without an intent in front of them, of something else, or that have happened before."""
    keys: Counter[str] = Counter()
    places: Counter[tuple[str, str | None]] = Counter()
    for effect in effects:
        intent = judged.intents.get(effect.op_key)
        named = f"the effect {effect.op_key[:8]} of {effect.run_id} at {effect.kind!r}"
        keys[effect.op_key] += 1
        if keys[effect.op_key] > 1:
            yield "I5", f"{named} has happened {keys[effect.op_key]} times"
        if intent is None or intent.position > effect.position:
            yield "I5", f"{named} has no intent in front of it"
            continue
        places[intent.place] += 1
        if places[intent.place] > 1 and keys[effect.op_key] == 1:
            yield "I5", f"{named} is another one of the same request"
        asked = (intent.proposal["action"], intent.proposal["args"], intent.proposal["output"])
        if (effect.kind, effect.args, effect.output) != asked:
            yield "I7", f"{named} is something else than what was approved"


def _untrue(judged: Judged, effects: Sequence[Effect]) -> Iterator[Wrong]:
    """Yield results in the log whose effect has not happened by then."""
    first: dict[str, int] = {}
    for effect in effects:
        first.setdefault(effect.op_key, effect.position)
    for op_key, position in judged.happened.items():
        if op_key not in first or first[op_key] > position:
            yield "I6", f"position {position} says that the effect {op_key[:8]} has happened, and it has not"
