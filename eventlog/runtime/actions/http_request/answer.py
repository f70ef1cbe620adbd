"""What the answer to an HTTP request proves about its effect. Pure.

An answer speaks for the request it answers. Whether it also speaks for an *earlier* request with the same key, whose
answer was lost, decides most of this table. Earlier there was one if this is not the first attempt, or if the receiver
has said that one is in flight.

    answer                     nothing earlier               something earlier
    2xx                        Executed                      Recovered if it says so, or else Executed
    409, after waiting         unknown                       unknown
    422                        failed, final                 Conflicted: the key belongs to another payload
    401 403 407 421 423 425
    and 429                    failed, may be tried again    unknown
    408                        unknown                       unknown
    other 4xx                  failed, final                 unknown
    307, 308                   failed, final                 unknown
    other 3xx                  unknown                       unknown
    5xx and others             unknown                       unknown
    nothing was sent           failed, may be tried again    unknown
    no answer                  unknown                       unknown

A 4xx that the receiver marks as replayed is the stored answer to the first request, so it speaks for all: failed,
final. `unknown` is the exception `Unproved`: the next attempt, with the same key and bytes, finds out more. A 301, 302
or 303 is what many receivers say after they have done what was asked; only 307 and 308 say that the request is to be
made elsewhere. A 503 may come from a proxy, after the receiver has acted.

The header that marks a replay is `Idempotency-Replayed` or `Idempotent-Replayed`, with the value `true`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from eventlog.errors import ActionFailed
from eventlog.runtime.effects import Call, Conflicted, Executed, Recovered, Report

__all__ = ["Answer", "Lost", "Unproved", "reported"]

_NOT_NOW: Final = frozenset({401, 403, 407, 421, 423, 425, 429})
"""Refusals of who asks, or when, and not of what is asked: a later attempt can do better."""

_FAILURE_BODY: Final = 64 * 1024
_QUOTED: Final = 200
_CHARSETS: Final = {"utf-8": "utf-8", "us-ascii": "utf-8", "iso-8859-1": "latin-1", "latin-1": "latin-1"}


class Unproved(Exception):
    """The exchange does not say whether the effect happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer, without secrets. `is_cut`: the body went on, or broke off. `was_in_flight`: an earlier answer was 409.

    `headers` are those that are kept, with small names; `charset` is None if the body has an encoding that is not read.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    charset: str | None
    is_cut: bool
    is_replay: bool
    location: str | None = None
    retry_after_s: float | None = None
    was_in_flight: bool = False

    @property
    def text(self) -> str | None:
        """The body as text, None if it is none."""
        codec = _CHARSETS.get((self.charset or "").lower())
        if codec is None:
            return None
        try:
            return self.body.decode(codec)
        except UnicodeDecodeError as error:
            # What was cut may end inside a character.
            is_tail = self.is_cut and error.reason == "unexpected end of data"
            return self.body[: error.start].decode(codec) if is_tail else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """There is no answer. `was_sent` unless it is certain that not one byte of the request left."""

    why: str
    was_sent: bool
    was_in_flight: bool = False


def reported(call: Call, end: Answer | Lost) -> Report:
    """Return what an exchange came to. Raises ActionFailed where it proves that nothing was done, or else Unproved."""
    is_alone = call.is_alone and not end.was_in_flight
    if isinstance(end, Lost):
        if end.was_sent or not is_alone:
            raise Unproved(end.why)
        raise ActionFailed("action_failed", f"nothing was sent to {call.output!r:.200}: {end.why}", url=call.output)
    if 200 <= end.status < 300:
        return _done(call, end)
    if end.status == 422 and not is_alone and not end.is_replay:
        return Conflicted(reason=f"the receiver {_says(end)}", code="idempotency_conflict")
    is_replayed_refusal = end.is_replay and 400 <= end.status < 500
    if not is_alone and not is_replayed_refusal:
        raise Unproved(f"the receiver {_says(end)}; that does not tell what became of the earlier request")
    raise _refused(call, end)


def _done(call: Call, answer: Answer) -> Report:
    result = {
        "status": answer.status,
        "headers": dict(answer.headers),
        "body": answer.text,
        "body_sha256": hashlib.sha256(answer.body).hexdigest(),
        "body_bytes": len(answer.body),
        "is_cut": answer.is_cut,
    }
    if answer.is_replay and call.attempt > 1:
        return Recovered(evidence={"op_key": call.op_key, "status": answer.status, "is_replay": True}, result=result)
    return Executed(result=result)


def _refused(call: Call, answer: Answer) -> Exception:
    """Return the failure that the answer to the only request proves, or Unproved."""
    facts: dict[str, Any] = {
        "status": answer.status,
        "headers": dict(answer.headers),
        "body": None if answer.text is None else answer.text[:_FAILURE_BODY],
        "is_cut": answer.is_cut or len(answer.text or "") > _FAILURE_BODY,
    }
    if answer.status in (307, 308):
        message = f"{call.output!r:.200} redirects to {answer.location or 'nowhere'!r:.200}, which was not followed"
        return ActionFailed("redirect_refused", message, is_final=True, **facts)
    if answer.status in (408, 409) or not 400 <= answer.status < 500:
        return Unproved(f"the receiver {_says(answer)}")
    message = f"{call.output!r:.200} refused the request: it {_says(answer)}"
    is_final = answer.is_replay or answer.status not in _NOT_NOW
    return ActionFailed("request_refused", message, is_final=is_final, covers_earlier=answer.is_replay, **facts)


def _says(answer: Answer) -> str:
    body = " ".join((answer.text or "").split())
    said = f"answered {answer.status}"
    if answer.status == 409:
        said += " (a request with this key is still in flight)"
    return f"{said}: {body[:_QUOTED]}" if body else said
