"""What an action is, as a digest: who approves it with a signature approves this one, and no other under its name.

    SHA-256 of the RFC 8785 bytes of {"name", "promise", "compensation", "kind", "code", "definition"}

`kind` is the class, `code` the fingerprint of each of its methods that the engine calls, made as that of a workflow's
code: comments and formatting do not matter, nor does what the methods call. The actions of this package leave `code`
out, so that a new version of it does not void what was approved. `definition` is plain data that the action says of
itself, if it has such an attribute: the targets that it may touch, the functions that it is made of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from eventlog.errors import InvalidInput
from eventlog.proposal import canonical_bytes, hash_of
from eventlog.runtime.attempts import AnyAction
from eventlog.runtime.definitions import fingerprint_of
from eventlog.runtime.effects import Promise, compensation_of

__all__ = ["ActionDigests", "action_digest"]

_METHODS: Final = ("check", "execute", "inspect", "write")
_OWN: Final = "eventlog."


class ActionDigests:
    """The digests of the actions of one program. Raises as `action_digest`.

    Those for which source text is read are made at once, for that would hold up a run in the middle; others when they
    are first asked for.
    """

    def __init__(self, actions: Mapping[str, AnyAction]) -> None:
        self._actions: Final = actions
        self._known = {name: action_digest(action) for name, action in actions.items() if not _is_own(action)}

    def of(self, name: str) -> str | None:
        """Return the digest of the action of this name; None if the program does not have it."""
        if name not in self._known and name in self._actions:
            self._known[name] = action_digest(self._actions[name])
        return self._known.get(name)


def action_digest(action: AnyAction) -> str:
    """Return the digest of an action, 64 hex digits. Raises InvalidInput for a `definition` that is no plain data."""
    kind = type(action)
    try:
        return hash_of(
            canonical_bytes(
                {
                    "name": action.name,
                    "promise": Promise(action.promise).value,
                    "compensation": compensation_of(action),
                    "kind": f"{kind.__module__}.{kind.__qualname__}",
                    "code": {} if _is_own(action) else _code(action),
                    "definition": getattr(action, "definition", None),
                }
            )
        )
    except InvalidInput as error:
        message = f"the `definition` of the action {action.name!r} is no plain data: {error}"
        raise InvalidInput("invalid_argument", message) from error


def _is_own(action: AnyAction) -> bool:
    """Say whether an action is one of this package."""
    return type(action).__module__.startswith(_OWN)


def _code(action: AnyAction) -> dict[str, Any]:
    methods = {name: getattr(action, name, None) for name in _METHODS}
    return {name: fingerprint_of(method) for name, method in methods.items() if callable(method)}
