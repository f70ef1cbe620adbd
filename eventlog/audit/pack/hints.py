"""`keys.json` and `policy.json` of a pack: which keys the log itself names. Nobody has to believe it.

`policy.json` has the form in which the verifier takes a policy (`verify.py --policy`), so that an auditor who has
compared each key with what he knows by another way can use it as his own.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from eventlog.audit.pack.verifier import members_of

__all__ = ["hint_files", "seen_size"]

_encode: Final = msgspec.json.Encoder().encode
_KEY_EVENTS: Final = frozenset({"log_key_declared", "log_key_rotated"})


def hint_files(run_id: str, log_events: Sequence[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """Return both files, from the types and bodies of the events of `$log`."""
    log_keys: list[str] = []
    approvers: list[dict[str, Any]] = []
    for type, body in log_events:
        values = {name: value for name, (value, _) in members_of(body, "the body").items()}
        if type in _KEY_EVENTS:
            log_keys.append(values["verifier_key"])
        elif type == "approver_enrolled":
            approvers.append({name: values[name] for name in ("approver", "key_id", "kind", "public_key")})
    people = [{"id": each["approver"], "key": each["public_key"]} for each in approvers]
    warning = "what the log says of itself; compare each key with one that you have by another way"
    return [
        ("keys.json", _encode({"hint": warning, "log_keys": log_keys, "approvers": approvers}) + b"\n"),
        ("policy.json", _encode({"log_keys": log_keys, "approvers": people, "run": run_id}) + b"\n"),
    ]


def seen_size(envelope: bytes) -> int | None:
    """Return the size of the head that the signer of an approval saw, or None where the envelope says none."""
    try:
        payload = base64.b64decode(members_of(envelope, "the envelope")["payload"][0], validate=True)
        size = members_of(payload, "the statement")["predicate"][0]["head"]["size"]
    except (ValueError, KeyError, TypeError):
        return None
    return size if type(size) is int else None
